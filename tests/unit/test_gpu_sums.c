// SPDX-License-Identifier: Apache-2.0
/* Tests sums of gradients on devices of the daemon (gpu/sums.c), on the driver library of
 * tests/cuda. For layouts of all kinds, operands that are on the device or come from the host,
 * gradients that are absent, a factor, and a sum that is one of its operands, the sum, its norm and
 * whether it is finite are those of the processor's kernels, and an update takes it from the
 * device. What a network device wrote is seen, and a device that cannot say so is not written. */
#include "base/check.h"
#include "lib/gpujobs.h"
#include "optim/ftz.h"
#include "optim/reduce.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { OPERANDS = 5 };

static float number(struct rng *r, bool wild)
{
	uint32_t u = (uint32_t)(rng_next(r) >> 20);
	float x;

	if (!wild || rng_below(r, 400) != 0)
		u = (u & 0x807fffff) | (uint32_t)(100 + rng_below(r, 30)) << 23;
	memcpy(&x, &u, sizeof(x));
	return x;
}

struct sum { /* Of one chunk. */
	struct layout *layout;
	uint32_t chunk, k, to; /* to: which operand, or k. */
	enum shard_dtype dt;
	float pre;
	uint64_t bytes, room; /* Of the chunk, and of each operand on the device. */
	struct gpu *gpu;
	struct gpu_mem mem;
	uint8_t *operand[OPERANDS], *absent[OPERANDS], *want, *got;
	struct reduce_sum found;
};

static void sum_make(struct sum *s, struct rng *r, bool wild)
{
	uint32_t n = layout_chunk_elems(s->layout, s->chunk);

	s->bytes = (uint64_t)n * dtype_bytes(s->dt);
	s->room = (s->bytes + 4095) / 4096 * 4096;
	s->mem = gpujobs_map(s->gpu, s->room * (OPERANDS + 1), false);
	for (uint32_t k = 0; k < s->k; k++) {
		assert_non_null(s->operand[k] = aligned_alloc(64, s->room));
		assert_non_null(s->absent[k] = calloc(s->layout->segments_nr, 1));
		for (uint32_t i = 0; i < n; i++) {
			float x = number(r, wild);

			dtype_convert(s->operand[k] + i * dtype_bytes(s->dt), s->dt, &x, SHARD_F32,
				      1);
		}
		for (uint32_t i = 0; i < s->layout->segments_nr; i++)
			s->absent[k][i] = rng_below(r, 4) == 0;
	}
	assert_non_null(s->want = calloc(1, s->room));
	assert_non_null(s->got = calloc(1, s->room));
}

static void sum_free(struct sum *s)
{
	for (uint32_t k = 0; k < s->k; k++) {
		free(s->operand[k]);
		free(s->absent[k]);
	}
	free(s->want);
	free(s->got);
	gpu_unmap(&s->mem);
}

/* As main memory does it (store/tier_ram.c). */
static void sum_expected(struct sum *s)
{
	const struct layout *l = s->layout;

	s->found = (struct reduce_sum){0, true};
	for (uint32_t i = l->chunk_segment[s->chunk]; i < l->chunk_segment[s->chunk + 1]; i++) {
		const struct segment *g = &l->segment[i];
		uint64_t at = (uint64_t)g->start * dtype_bytes(s->dt);
		const void *from[OPERANDS];
		struct reduce_sum one;
		uint32_t nr = 0;

		for (uint32_t k = 0; k < s->k; k++)
			if (!s->absent[k][i])
				from[nr++] = s->operand[k] + at;
		if (nr == 0 || layout_frozen(l, i))
			continue;
		one = reduce_kernel(ISA_SCALAR, s->dt)(g->n, nr, from, s->want + at, s->pre, true);
		s->found.sq += one.sq;
		s->found.finite = s->found.finite && one.finite;
	}
}

static void same_segments(const struct sum *s)
{
	const struct layout *l = s->layout;

	for (uint32_t i = l->chunk_segment[s->chunk]; i < l->chunk_segment[s->chunk + 1]; i++) {
		const struct segment *g = &l->segment[i];
		size_t size = dtype_bytes(s->dt);
		bool any = false;

		for (uint32_t k = 0; k < s->k; k++)
			any = any || !s->absent[k][i];
		if (any && !layout_frozen(l, i) &&
		    memcmp(s->want + g->start * size, s->got + g->start * size, g->n * size) != 0)
			fail_msg("segment %u of chunk %u, %u operands, %s", i, s->chunk, s->k,
				 dtype_name(s->dt));
	}
}

static uint64_t at_of(const struct sum *s, uint32_t k)
{
	return s->mem.at + k * s->room;
}

/* up: a bit for each operand that the sum itself brings. */
static void sum_run(struct sum *s, uint64_t up, struct gpu_add *a)
{
	struct gpu_job j = gpujobs_of(GPU_ADD);

	*a = (struct gpu_add){.layout = s->layout,
			      .chunk = s->chunk,
			      .dtype = s->dt,
			      .pre = s->pre,
			      .operands_nr = s->k,
			      .to = at_of(s, s->to),
			      .copy = s->got};
	for (uint32_t k = 0; k < s->k; k++) {
		if (up >> k & 1)
			a->up[a->up_nr++] = (struct gpu_copy){s->operand[k], at_of(s, k), s->bytes};
		else
			gpujobs_copy(s->gpu, GPU_TO_DEVICE, s->operand[k], at_of(s, k), s->bytes);
		a->operand[k] = (struct gpu_operand){at_of(s, k), s->absent[k]};
	}
	j.add = a;
	gpujobs_run(s->gpu, &j);
	assert_int_equal(jobs.lost_nr, 0);
}

static void check(struct gpu *g, struct layout *l, uint32_t chunk, enum shard_dtype dt,
		  struct rng *r)
{
	static struct gpu_add a;
	struct sum s = {.layout = l,
			.chunk = chunk,
			.gpu = g,
			.k = 1 + (uint32_t)rng_below(r, OPERANDS),
			.dt = dt};
	bool pinned = rng_below(r, 2), wild = rng_below(r, 2);
	struct err e = {0};

	s.to = (uint32_t)rng_below(r, s.k + 1);
	s.pre = rng_below(r, 2) ? 1 : 1 / 3.0f;
	sum_make(&s, r, wild);
	for (uint32_t k = 0; pinned && k < s.k; k++)
		assert_int_equal(gpu_pin(g, s.operand[k], s.room, &e), SHARD_OK);
	if (pinned)
		assert_int_equal(gpu_pin(g, s.got, s.room, &e), SHARD_OK);
	sum_expected(&s);
	sum_run(&s, rng_next(r), &a);
	assert_int_equal(a.finite, s.found.finite);
	if (a.finite)
		same_segments(&s);
	else /* Nobody wants it, and an operand may be there. */
		for (uint64_t i = 0; i < s.bytes; i++)
			assert_int_equal(s.got[i], 0);
	if (a.finite)
		assert_memory_equal(&a.sumsq, &s.found.sq, sizeof(a.sumsq));
	/* It is on the device, too. */
	memset(s.got, 0x5a, s.bytes);
	gpujobs_copy(g, GPU_TO_HOST, s.got, a.to, s.bytes);
	same_segments(&s);
	for (uint32_t k = 0; pinned && k < s.k; k++)
		gpu_unpin(g, s.operand[k]);
	if (pinned)
		gpu_unpin(g, s.got);
	sum_free(&s);
}

static void bits(void **state)
{
	static const struct {
		uint32_t tensors;
		uint64_t numel;
		uint32_t chunk;
	} shapes[] = {
		{40, 900, 4096}, {6, 30000, 16384}, {3000, 100, 1 << 20}, {3, 6000000, 1 << 23}};
	struct rng r = {.state = 41};
	struct gpu *g = gpujobs_open(0);
	struct gpu_about before, after;
	uint64_t nr = 0;

	(void)state;
	ftz_on();
	jobs.fake.fake_cuda_delay(10, 5);
	gpu_tell(g, &before);
	for (size_t i = 0; i < NR(shapes); i++) {
		struct layout *l =
			gpujobs_layout(&r, shapes[i].tensors, shapes[i].numel, shapes[i].chunk);

		for (uint32_t c = 0; c < l->chunks_nr && c < 5; c++, nr++)
			check(g, l, c, (enum shard_dtype)(1 + (c + i) % DTYPE_NR), &r);
		layout_free(&l);
	}
	gpu_tell(g, &after);
	assert_int_equal(after.sums - before.sums, nr);
	gpujobs_close(&g);
}

/* An update has the same results with the gradient of the host and with that of the device. */
static void taken_from_there(void **state)
{
	struct rng r = {.state = 3};
	struct layout *l = gpujobs_layout(&r, 60, 200000, 1 << 21);
	uint32_t n = layout_chunk_elems(l, 0);
	uint64_t floats = (uint64_t)n * 4;
	struct gpu *g = gpujobs_open(0);
	struct gpu_mem m = gpujobs_map(g, 6 * floats, false);
	uint8_t *grad = malloc(floats), *zero = calloc(l->segments_nr, 1);
	uint8_t *image[2] = {calloc(1, floats), calloc(1, floats)}, *was = malloc(floats);
	float *state_at[2] = {malloc(floats), malloc(floats)};
	struct optim_args args[2];

	(void)state;
	assert_true(n > 1 << 20); /* It takes two pieces. */
	memset(args, 0, sizeof(args));
	for (int i = 0; i < 2; i++)
		args[i] = (struct optim_args){.mult = 0.5f, .lr = 0.25f};
	for (uint32_t i = 0; i < n; i++)
		((float *)(void *)grad)[i] = number(&r, false);
	for (uint32_t i = 0; i < l->segments_nr; i++)
		zero[i] = rng_below(&r, 5) == 0;
	memset(was, 0, floats);
	for (int inside = 0; inside < 2; inside++) {
		struct gpu_job j = gpujobs_of(GPU_UPDATE);

		gpujobs_copy(g, GPU_TO_DEVICE, was, m.at, floats);
		gpujobs_copy(g, GPU_TO_DEVICE, grad, m.at + 2 * floats, floats);
		j.update = (struct gpu_update){.layout = l,
					       .optim = optim_find("sgd"),
					       .grad_dtype = SHARD_F32,
					       .image_dtype = SHARD_F32,
					       .args = args,
					       .zero = zero,
					       .grad = inside ? NULL : grad,
					       .grad_at = inside ? m.at + 2 * floats : 0,
					       .image = image[inside],
					       .from = {m.at},
					       .to = {m.at + floats}};
		for (uint32_t s = 0; s < j.update.optim->states_nr; s++) {
			j.update.from[s + 1] = m.at + (3 + s) * floats;
			j.update.to[s + 1] = m.at + (3 + s) * floats;
			gpujobs_copy(g, GPU_TO_DEVICE, was, j.update.from[s + 1], floats);
		}
		gpujobs_run(g, &j);
		gpujobs_copy(g, GPU_TO_HOST, state_at[inside], m.at + floats, floats);
	}
	assert_memory_equal(state_at[0], state_at[1], floats);
	assert_memory_equal(image[0], image[1], floats);
	assert_true(memcmp(state_at[0], was, floats) != 0);
	gpu_unmap(&m);
	gpujobs_close(&g);
	layout_free(&l);
	free(grad);
	free(zero);
	free(was);
	for (int i = 0; i < 2; i++) {
		free(image[i]);
		free(state_at[i]);
	}
}

/* --- network devices --- */

/* The number of the dma-buf (fake_cuda.h). */
static uint32_t name_of(int fd)
{
	char path[64], name[64] = "";
	uint32_t number;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	assert_true(readlink(path, name, sizeof(name) - 1) > 0);
	assert_int_equal(sscanf(name, "/memfd:fake-dmabuf-%u", &number), 1);
	return number;
}

/* Sums two operands, of which one is written by a network device. */
static void written_by_another(bool ordered)
{
	struct rng r = {.state = 8};
	struct layout *l = gpujobs_layout(&r, 9, 4000, 8192);
	struct gpu *g;
	struct sum s = {.layout = l, .k = 2, .to = 0, .pre = 1, .dt = SHARD_BF16};
	uint32_t flushes = jobs.fake.fake_cuda_flushes();
	static struct gpu_add a;
	struct gpu_job j = gpujobs_of(GPU_ADD);
	struct gpu_mem m;
	struct err e = {0};

	jobs.fake.fake_cuda_attribute(118, ordered ? 100 : 0);
	s.gpu = g = gpujobs_open(1);
	sum_make(&s, &r, false);
	sum_expected(&s);
	if (gpu_map_direct(g, 2 * s.room, &m, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	assert_true(m.fd >= 0 && (fcntl(m.fd, F_GETFD) & FD_CLOEXEC));
	for (int turn = 0; turn < 3; turn++) {
		memset(s.got, 0, s.bytes);
		a = (struct gpu_add){.layout = l,
				     .dtype = s.dt,
				     .pre = 1,
				     .operands_nr = 2,
				     .up_nr = 1,
				     .up = {{s.operand[0], m.at, s.bytes}},
				     .operand = {{m.at, s.absent[0]}, {m.at + s.room, s.absent[1]}},
				     .to = m.at,
				     .copy = s.got};
		assert_true(jobs.fake.fake_cuda_dma(name_of(m.fd), s.room, s.operand[1], s.bytes));
		j.add = &a;
		gpujobs_run(g, &j);
		same_segments(&s);
		for (uint64_t i = 0; i < s.bytes; i++) /* What is old is wrong. */
			s.operand[1][i] ^= turn == 0 ? 1 : 2;
		sum_expected(&s);
	}
	assert_int_equal(jobs.fake.fake_cuda_flushes() - flushes, ordered ? 0 : 3);
	assert_false(jobs.fake.fake_cuda_dma(name_of(m.fd), m.bytes - 1, s.operand[1], 2));
	gpu_unmap(&m);
	sum_free(&s);
	layout_free(&l);
	gpujobs_close(&g);
	jobs.fake.fake_cuda_attribute(118, 0);
}

static void written(void **state)
{
	(void)state;
	written_by_another(false);
	written_by_another(true);
}

/* What such a device has written is copied to the host, without a sum. */
static void copied(void **state)
{
	struct gpu *g = gpujobs_open(1);
	struct gpu_job j = gpujobs_of(GPU_TO_HOST);
	static uint8_t want[3 * 65536], got[3 * 65536];
	struct gpu_mem m;
	struct err e = {0};

	(void)state;
	if (gpu_map_direct(g, MIB, &m, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	j.copy[0] = (struct gpu_copy){got, m.at + 65536, sizeof(got)};
	j.copies_nr = 1;
	j.written = true;
	for (int turn = 0; turn < 3; turn++) {
		for (uint32_t i = 0; i < sizeof(want); i++)
			want[i] = (uint8_t)(i * 7 + i / 251 + (uint32_t)turn);
		assert_true(jobs.fake.fake_cuda_dma(name_of(m.fd), 65536, want, sizeof(want)));
		gpujobs_run(g, &j);
		assert_memory_equal(got, want, sizeof(want));
	}
	gpu_unmap(&m);
	gpujobs_close(&g);
}

/* It is looked at when the device is opened. */
static void refused(int which, int value, const char *says)
{
	int were = which == 118 ? 0 : 1;
	struct fake_cuda_left before;
	struct gpu_mem m;
	struct err e = {0};
	struct gpu *g;

	jobs.fake.fake_cuda_attribute(which, value);
	g = gpujobs_open(0);
	jobs.fake.fake_cuda_left(&before);
	assert_int_equal(gpu_direct(g, &e), SHARD_UNSUPPORTED);
	assert_int_equal(gpu_map_direct(g, MIB, &m, &e), SHARD_UNSUPPORTED);
	jobs.fake.fake_cuda_attribute(which, were);
	if (!strstr(e.text, says) || !strstr(e.text, "no GPU: a processor"))
		fail_msg("%d = %d: \"%s\"", which, value, e.text);
	assert_true(m.gpu == NULL && m.fd == -1);
	gpujobs_nothing_left(&before, says);
	gpujobs_close(&g);
	g = gpujobs_open(0);
	assert_int_equal(gpu_direct(g, &e), SHARD_OK);
	gpujobs_close(&g);
}

/* What a device lacks is named, and nothing else of it is hurt. */
static void lacks(void **state)
{
	struct err e = {0};
	struct gpu *g;

	(void)state;
	refused(110, 0, "has no memory that network devices may write");
	refused(124, 0, "gives no dma-buf of its memory");
	refused(117, 2, "cannot say when it sees");
	/* It need not flush what it orders. */
	jobs.fake.fake_cuda_attribute(117, 0);
	jobs.fake.fake_cuda_attribute(118, 200);
	g = gpujobs_open(0);
	assert_int_equal(gpu_direct(g, &e), SHARD_OK);
	jobs.fake.fake_cuda_attribute(117, 1);
	jobs.fake.fake_cuda_attribute(118, 0);
	gpujobs_close(&g);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bits),    cmocka_unit_test(taken_from_there),
		cmocka_unit_test(written), cmocka_unit_test(copied),
		cmocka_unit_test(lacks),
	};
	int rc;

	(void)argc;
	gpujobs_init(argv);
	rc = cmocka_run_group_tests_name("gpu_sums", tests, NULL, NULL);
	gpujobs_deinit();
	return rc;
}
