// SPDX-License-Identifier: Apache-2.0
/* Tests devices of the daemon on the driver library of tests/cuda, which has no GPU. An update has
 * the bits of the processor's kernels, for layouts of all kinds, and touches nothing else. Memory
 * outlives a process that is killed, and is not taken for what it is not. */
#include "gpu/device.h"

#include "base/check.h"
#include "lib/gpujobs.h"
#include "optim/ftz.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* --- opening, memory, copies --- */

static void opens(void **state)
{
	struct gpu_conf conf = {.ordinal = 7, .jobs_max = 1};
	struct fake_cuda_left before;
	struct gpu_about about;
	struct err e = {0};
	char text[GPU_UUID_TEXT];
	uint8_t uuid[GPU_UUID_BYTES];
	struct gpu *g = NULL;

	(void)state;
	jobs.fake.fake_cuda_left(&before);
	assert_int_equal(gpu_open(&g, &conf, &jobs.loop, &e), SHARD_NOT_FOUND);
	assert_non_null(strstr(e.text, "there is no GPU 7"));
	g = gpujobs_open(1);
	gpu_tell(g, &about);
	assert_int_equal(about.ordinal, 1);
	assert_string_equal(about.name, "no GPU: a processor");
	assert_int_equal(about.total_bytes, 1024 * MIB);
	assert_true(about.limit_bytes > 800 * MIB && about.limit_bytes < 1000 * MIB);
	assert_false(gpu_lost(g, NULL));
	gpujobs_close(&g);
	gpu_uuid_text(about.uuid, text);
	assert_true(gpu_uuid_parse(uuid, text, strlen(text)));
	assert_memory_equal(uuid, about.uuid, sizeof(uuid));
	assert_true(gpu_uuid_parse(uuid, text + 4, strlen(text) - 4));
	assert_false(gpu_uuid_parse(uuid, text, strlen(text) - 1));
	text[12] = 'x';
	assert_false(gpu_uuid_parse(uuid, text, strlen(text)));
	conf.uuid = about.uuid;
	assert_int_equal(gpu_open(&g, &conf, &jobs.loop, &e), SHARD_OK);
	gpu_tell(g, &about);
	assert_int_equal(about.ordinal, 1);
	gpujobs_close(&g);
	about.uuid[0] ^= 1;
	assert_int_equal(gpu_open(&g, &conf, &jobs.loop, &e), SHARD_NOT_FOUND);
	assert_non_null(strstr(e.text, gpu_uuid_text(about.uuid, text)));
	gpujobs_nothing_left(&before, "opened and closed");
}

static void no_kernels(void **state)
{
	struct gpu_conf conf = {.jobs_max = 1};
	char *were = strdup(getenv("SHARDD_GPU_KERNELS"));
	struct err e = {0};
	struct gpu *g = NULL;

	(void)state;
	setenv("SHARDD_GPU_KERNELS", "/nowhere/kernels", 1);
	assert_int_equal(gpu_open(&g, &conf, &jobs.loop, &e), SHARD_UNSUPPORTED);
	assert_non_null(strstr(e.text, "/nowhere/kernels"));
	unsetenv("SHARDD_GPU_KERNELS");
	if (gpu_open(&g, &conf, &jobs.loop, &e) == SHARD_OK) /* They are built in. */
		gpujobs_close(&g);
	else
		assert_non_null(strstr(e.text, "make nvcc"));
	setenv("SHARDD_GPU_KERNELS", were, 1);
	free(were);
}

static void copies(void **state)
{
	const uint64_t bytes = 11 * MIB + 12345;
	struct gpu *g = gpujobs_open(0);
	struct gpu_mem m = gpujobs_map(g, bytes, false), zeros = {0};
	uint8_t *from = malloc(bytes), *to = malloc(bytes);
	struct gpu_about about;
	struct gpu_job j;
	struct err e = {0};

	(void)state;
	memset(to, 1, bytes);
	gpujobs_copy(g, GPU_TO_HOST, to, m.at, bytes);
	for (uint64_t i = 0; i < bytes; i++)
		assert_int_equal(to[i], 0);
	for (uint64_t i = 0; i < bytes; i++)
		from[i] = (uint8_t)(i * 7 + i / 1000);
	for (int pinned = 0; pinned < 2; pinned++) {
		if (pinned) {
			assert_int_equal(gpu_pin(g, from, bytes / 2, &e), SHARD_OK);
			assert_int_equal(gpu_pin(g, to, bytes, &e), SHARD_OK);
		}
		/* Copies that are of no, one, or many pieces, and one that is half pinned. */
		j = gpujobs_of(GPU_TO_DEVICE);
		j.copy[0] = (struct gpu_copy){from, m.at, 100};
		j.copy[1] = (struct gpu_copy){from + 100, m.at + 100, 0};
		j.copy[2] = (struct gpu_copy){from + 100, m.at + 100, bytes - 100};
		j.copies_nr = 3;
		gpujobs_run(g, &j);
		memset(to, 0, bytes);
		j = gpujobs_of(GPU_TO_HOST);
		for (uint32_t i = 0; i < GPU_COPIES_MAX; i++) {
			uint64_t at = bytes / GPU_COPIES_MAX * i;
			uint64_t end =
				i + 1 == GPU_COPIES_MAX ? bytes : at + bytes / GPU_COPIES_MAX;

			j.copy[j.copies_nr++] = (struct gpu_copy){to + at, m.at + at, end - at};
		}
		gpujobs_run(g, &j);
		assert_memory_equal(from, to, bytes);
	}
	gpu_unpin(g, from);
	gpu_unpin(g, from);
	gpu_unpin(g, to);
	assert_int_equal(jobs.lost_nr, 0);
	assert_int_equal(jobs.after_nr, jobs.done_nr);
	gpu_tell(g, &about);
	assert_int_equal(about.to_device_bytes, 2 * bytes);
	assert_int_equal(about.to_host_bytes, 3 * bytes);
	assert_int_equal(about.mapped_bytes, m.bytes);
	gpu_unmap(&m);
	gpu_unmap(&m);
	gpu_unmap(&zeros);
	gpujobs_close(&g);
	free(from);
	free(to);
}

/* Memory may be unmapped when the device is closed and its loop has ended. */
static void closes_first(void **state)
{
	struct fake_cuda_left before;
	struct gpu_mem m[2];
	struct gpu *g;
	static uint8_t host[4096];
	struct err e = {0};
	uint32_t nr = 0;

	(void)state;
	assert_int_equal(gpu_count(&nr, &e), SHARD_OK);
	assert_int_equal(nr, 2);
	jobs.fake.fake_cuda_left(&before);
	g = gpujobs_open(0);
	for (int i = 0; i < 2; i++)
		m[i] = gpujobs_map(g, MIB, i);
	assert_int_equal(gpu_pin(g, host, sizeof(host), &e), SHARD_OK);
	gpujobs_close(&g);
	gpu_unpin(m[0].gpu, host);
	gpu_unmap(&m[0]);
	gpu_unmap(&m[1]);
	gpujobs_nothing_left(&before, "closed before it was unmapped");
}

/* Memory that another device has pinned is pinned. */
static void both_pin(void **state)
{
	struct gpu *g[2] = {gpujobs_open(0), gpujobs_open(1)};
	struct gpu_mem m[2] = {gpujobs_map(g[0], MIB, false), gpujobs_map(g[1], MIB, false)};
	uint32_t before = jobs.fake.fake_cuda_synchronous();
	uint8_t *host = malloc(MIB), *back = malloc(MIB);
	struct fake_cuda_left left, now;
	struct err e = {0};

	(void)state;
	jobs.fake.fake_cuda_left(&left);
	memset(host, 5, MIB);
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpu_pin(g[i], host, MIB, &e), SHARD_OK);
	for (int i = 0; i < 2; i++) {
		gpujobs_copy(g[i], GPU_TO_DEVICE, host, m[i].at, MIB);
		gpujobs_copy(g[i], GPU_TO_HOST, back, m[i].at, MIB);
		assert_memory_equal(host, back, MIB);
	}
	assert_int_equal(jobs.fake.fake_cuda_synchronous(), before);
	for (int i = 0; i < 2; i++)
		gpu_unpin(g[i], host);
	jobs.fake.fake_cuda_left(&now);
	assert_int_equal(now.registered, left.registered);
	for (int i = 0; i < 2; i++) {
		gpu_unmap(&m[i]);
		gpujobs_close(&g[i]);
	}
	free(host);
	free(back);
}

static void limit(void **state)
{
	struct gpu_conf conf = {.jobs_max = 1, .bytes = 9 * MIB};
	struct gpu_mem m, other;
	struct gpu *g = NULL;
	struct gpu_about about;
	struct err e = {0};

	(void)state;
	assert_int_equal(gpu_open(&g, &conf, &jobs.loop, &e), SHARD_OK);
	m = gpujobs_map(g, 5 * MIB, false); /* 6 MiB */
	assert_int_equal(gpu_map(g, 3 * MIB, false, &other, &e), SHARD_BUDGET);
	if (!strstr(e.text, "6291456 are in use") || !strstr(e.text, "9437184"))
		fail_msg("%s", e.text);
	assert_int_equal(gpu_map(g, UINT64_MAX - 5, false, &other, &e), SHARD_BUDGET);
	other = gpujobs_map(g, 2 * MIB, false);
	gpu_tell(g, &about);
	assert_int_equal(about.mapped_bytes, 8 * MIB);
	gpu_unmap(&m);
	gpu_unmap(&other);
	gpujobs_close(&g);
	conf.bytes = 1ull << 50; /* More than there is. */
	assert_int_equal(gpu_open(&g, &conf, &jobs.loop, &e), SHARD_OK);
	assert_int_equal(gpu_map(g, 2048ull * MIB, true, &m, &e), SHARD_BUDGET);
	assert_non_null(strstr(e.text, "free of 1073741824"));
	assert_null(m.gpu);
	gpujobs_close(&g);
}

static void full(void **state)
{
	struct gpu_conf conf = {.jobs_max = 2};
	struct gpu_job j = gpujobs_of(GPU_TO_HOST);
	uint32_t before = jobs.done_nr;
	uint8_t host[16];
	struct gpu *g = NULL;
	struct gpu_mem m;
	struct err e = {0};

	(void)state;
	assert_int_equal(gpu_open(&g, &conf, &jobs.loop, &e), SHARD_OK);
	m = gpujobs_map(g, 4096, false);
	j.copy[0] = (struct gpu_copy){host, m.at, sizeof(host)};
	j.copies_nr = 1;
	jobs.fake.fake_cuda_hold_device(0, 1);
	assert_int_equal(gpu_submit(g, &j), SHARD_OK);
	assert_int_equal(gpu_submit(g, &j), SHARD_OK);
	assert_int_equal(gpu_submit(g, &j), SHARD_AGAIN);
	jobs.fake.fake_cuda_hold_device(0, 0);
	while (jobs.done_nr < before + 2)
		uv_run(&jobs.loop, UV_RUN_ONCE);
	gpujobs_run(g, &j);
	gpu_unmap(&m);
	j = gpujobs_of(GPU_TO_DEVICE);
	assert_int_equal(gpu_submit(g, &j), SHARD_OK);
	gpujobs_close(&g); /* Its job comes back before. */
	assert_int_equal(jobs.done_nr, before + 4);
}

/* --- memory that outlives its process --- */

static void send_fd(int to, int fd)
{
	char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 'x';
	struct iovec io = {&byte, 1};
	struct msghdr m = {.msg_iov = &io,
			   .msg_iovlen = 1,
			   .msg_control = control,
			   .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	CHECK(sendmsg(to, &m, 0) == 1);
}

static int take_fd(int from)
{
	char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 0;
	struct iovec io = {&byte, 1};
	struct msghdr m = {.msg_iov = &io,
			   .msg_iovlen = 1,
			   .msg_control = control,
			   .msg_controllen = sizeof(control)};
	int fd = -1;

	CHECK(recvmsg(from, &m, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&m) != NULL);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	return fd;
}

static void fill(uint8_t *at, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		at[i] = (uint8_t)(i * 31 + i / 777);
}

/* The process that is killed: it writes memory of a device, and hands on the descriptor. */
__attribute__((noreturn)) static void maker(int to)
{
	const uint64_t bytes = 3 * MIB;
	struct gpu *g = gpujobs_open(1);
	struct gpu_mem m = gpujobs_map(g, bytes, true);
	uint8_t *host = malloc(bytes);

	fill(host, bytes);
	gpujobs_copy(g, GPU_TO_DEVICE, host, m.at, bytes);
	send_fd(to, m.fd);
	for (;;)
		pause();
}

static void outlives(void **state)
{
	const uint64_t bytes = 3 * MIB;
	uint8_t *want = malloc(bytes), *got = malloc(bytes);
	struct gpu_mem m, wrong;
	struct gpu *g = gpujobs_open(1), *other = gpujobs_open(0);
	struct err e = {0};
	int pair[2], fd, status;
	char number[16];
	pid_t pid;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	snprintf(number, sizeof(number), "%d", pair[1]);
	pid = fork();
	if (pid == 0) {
		execl("/proc/self/exe", "maker", "maker", number, (char *)NULL);
		_exit(127);
	}
	close(pair[1]);
	fd = take_fd(pair[0]);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	assert_int_equal(gpu_again(other, fd, bytes, &wrong, &e), SHARD_MISMATCH);
	assert_non_null(strstr(e.text, "of another device"));
	assert_int_equal(gpu_again(g, fd, bytes + 2 * MIB, &wrong, &e), SHARD_MISMATCH);
	assert_non_null(strstr(e.text, "smaller"));
	assert_int_equal(gpu_again(g, fd, MIB, &wrong, &e), SHARD_MISMATCH);
	assert_non_null(strstr(e.text, "larger"));
	assert_int_equal(gpu_again(g, fd, bytes, &m, &e), SHARD_OK);
	close(fd);
	fill(want, bytes);
	gpujobs_copy(g, GPU_TO_HOST, got, m.at, bytes);
	assert_memory_equal(want, got, bytes);
	/* Once more, from the gpujobs_copy of the descriptor. */
	fd = dup(m.fd);
	gpu_unmap(&m);
	assert_int_equal(gpu_again(g, fd, bytes, &m, &e), SHARD_OK);
	memset(got, 0, bytes);
	gpujobs_copy(g, GPU_TO_HOST, got, m.at, bytes);
	assert_memory_equal(want, got, bytes);
	gpu_unmap(&m);
	close(fd);
	close(pair[0]);
	gpujobs_close(&g);
	gpujobs_close(&other);
	free(want);
	free(got);
}

/* A descriptor may be anything. */
static void hostile(void **state)
{
	struct fake_cuda_left before;
	struct gpu *g = gpujobs_open(0);
	struct gpu_mem m;
	struct err e = {0};
	int fd[5], pipes[2];

	(void)state;
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	fd[0] = open("/dev/null", O_RDWR | O_CLOEXEC);
	fd[1] = pipes[0];
	fd[2] = memfd_create("other", MFD_CLOEXEC);
	fd[3] = socket(AF_UNIX, SOCK_STREAM, 0);
	fd[4] = -1;
	jobs.fake.fake_cuda_left(&before);
	for (size_t i = 0; i < NR(fd); i++) {
		assert_int_equal(gpu_again(g, fd[i], 2 * MIB, &m, &e), SHARD_MISMATCH);
		assert_null(m.gpu);
		assert_int_equal(m.fd, -1);
	}
	assert_int_equal(gpu_again(g, fd[2], UINT64_MAX, &m, &e), SHARD_MISMATCH);
	gpujobs_nothing_left(&before, "descriptors of others");
	assert_false(gpu_lost(g, NULL));
	for (size_t i = 0; i + 1 < NR(fd); i++)
		close(fd[i]);
	close(pipes[1]);
	gpujobs_close(&g);
}

/* --- updates --- */

struct update { /* One chunk, on the device and as it should be. */
	struct layout *layout;
	uint32_t chunk, n;
	const struct optim_row *row;
	enum shard_dtype grad_dtype, image_dtype;
	struct optim_args args[2];
	uint8_t *zero, *grad, *image, *want_image;
	float *from[STATES], *want[STATES], *got[STATES], *keep[STATES];
	struct gpu_mem mem[2], shown; /* shown: for an image on the device, or none. */
	uint64_t at[2][STATES];
	uint64_t kept;
};

static float any_number(struct rng *r, bool positive)
{
	uint64_t v = rng_next(r);
	uint32_t u = (uint32_t)v;

	if (v >> 62) /* Any bits, ordinary numbers, and tiny ones. */
		u = (u & 0x807fffff) |
		    (uint32_t)(v >> 62 == 3 ? (v >> 32) % 64 : 100 + (v >> 32) % 30) << 23;
	return dtype_float(positive ? u & 0x7fffffff : u);
}

static void update_make(struct update *u, struct rng *r, struct gpu *g)
{
	const uint64_t bytes = ((uint64_t)u->n * 4 + 4095) / 4096 * 4096;
	uint32_t segments_nr = u->layout->segments_nr;
	double h[HYPER_NR];

	u->zero = calloc(segments_nr + 1, 1);
	u->grad = malloc(u->n * 4ull);
	u->image = malloc(u->n * 4ull);
	u->want_image = malloc(u->n * 4ull);
	for (uint32_t i = 0; i < segments_nr; i++)
		u->zero[i] = rng_below(r, 4) == 0;
	memset(u->image, 0xa5, u->n * 4ull);
	memset(u->want_image, 0xa5, u->n * 4ull);
	if (rng_below(r, 2) || u->n > 1u << 18) { /* Also of an update in pieces. */
		u->shown = gpujobs_map(g, u->n * 4ull, true);
		gpujobs_copy(g, GPU_TO_DEVICE, u->image, u->shown.at, u->n * 4ull);
	}
	for (uint32_t i = 0; i < u->n; i++) {
		float w = any_number(r, false);

		dtype_convert(u->grad + i * dtype_bytes(u->grad_dtype), u->grad_dtype, &w,
			      SHARD_F32, 1);
	}
	for (int k = 0; k < 2; k++) {
		optim_defaults(u->row, h);
		h[HYPER_LR] = 0.01 * (k + 1);
		optim_args_set(&u->args[k], u->row, h, 3, 0.37f);
		u->mem[k] = gpujobs_map(g, bytes * STATES, false);
	}
	for (uint32_t t = 0; t <= u->row->states_nr; t++) {
		u->from[t] = malloc(u->n * 4ull);
		u->want[t] = malloc(u->n * 4ull);
		u->got[t] = malloc(u->n * 4ull);
		u->keep[t] = malloc(u->n * 4ull);
		for (uint32_t i = 0; i < u->n; i++)
			u->from[t][i] = any_number(r, t == 2);
		memcpy(u->want[t], u->from[t], u->n * 4ull);
		for (int k = 0; k < 2; k++)
			u->at[k][t] = u->mem[k].at + bytes * t;
		gpujobs_copy(g, GPU_TO_DEVICE, u->from[t], u->at[0][t], u->n * 4ull);
	}
}

static void update_free(struct update *u)
{
	gpu_unmap(&u->mem[0]);
	gpu_unmap(&u->mem[1]);
	gpu_unmap(&u->shown);
	for (uint32_t t = 0; t <= u->row->states_nr; t++)
		free(u->from[t]), free(u->want[t]), free(u->got[t]), free(u->keep[t]);
	free(u->zero), free(u->grad), free(u->image), free(u->want_image);
}

/* What the kernels of the processor make of it. */
static void update_expect(struct update *u)
{
	optim_apply *apply = optim_kernel(u->row, isa_best(), u->grad_dtype, u->image_dtype);
	uint32_t first = u->layout->chunk_segment[u->chunk];
	unsigned before = ftz_on();

	for (uint32_t i = first; i < u->layout->chunk_segment[u->chunk + 1]; i++) {
		const struct segment *s = &u->layout->segment[i];
		float *at[STATES] = {NULL};

		for (uint32_t t = 0; t <= u->row->states_nr; t++)
			at[t] = u->want[t] + s->start;
		if (!layout_frozen(u->layout, i))
			u->kept += apply(
				&u->args[s->group], s->n,
				u->zero[i] ? NULL : u->grad + s->start * dtype_bytes(u->grad_dtype),
				at[0], at[1], at[2],
				u->want_image + s->start * dtype_bytes(u->image_dtype));
	}
	ftz_restore(before);
}

static void update_run(struct update *u, struct gpu *g, bool pins, bool in_place, bool keeps)
{
	struct gpu_job j = gpujobs_of(GPU_UPDATE);
	uint64_t kept = jobs.kept;
	struct err e = {0};

	j.update = (struct gpu_update){.layout = u->layout,
				       .chunk = u->chunk,
				       .optim = u->row,
				       .grad_dtype = u->grad_dtype,
				       .image_dtype = u->image_dtype,
				       .args = u->args,
				       .zero = u->zero,
				       .grad = u->grad,
				       .image = u->image,
				       .image_at = u->shown.at};
	for (uint32_t t = 0; t <= u->row->states_nr; t++) {
		j.update.from[t] = u->at[0][t];
		j.update.to[t] = u->at[in_place ? 0 : 1][t];
		j.update.keep[t] = keeps ? u->keep[t] : NULL;
	}
	if (pins) {
		assert_int_equal(gpu_pin(g, u->grad, u->n * 4ull, &e), SHARD_OK);
		assert_int_equal(gpu_pin(g, u->image, u->n * 4ull, &e), SHARD_OK);
		for (uint32_t t = 0; t <= u->row->states_nr; t++)
			assert_int_equal(gpu_pin(g, u->keep[t], u->n * 4ull, &e), SHARD_OK);
	}
	gpujobs_run(g, &j);
	gpu_unpin(g, u->grad);
	gpu_unpin(g, u->image);
	for (uint32_t t = 0; t <= u->row->states_nr; t++) {
		gpu_unpin(g, u->keep[t]);
		gpujobs_copy(g, GPU_TO_HOST, u->got[t], j.update.to[t], u->n * 4ull);
		assert_memory_equal(u->got[t], u->want[t], u->n * 4ull);
		if (keeps)
			assert_memory_equal(u->keep[t], u->from[t], u->n * 4ull);
	}
	assert_memory_equal(u->image, u->want_image, u->n * 4ull);
	if (u->shown.at != 0) {
		gpujobs_copy(g, GPU_TO_HOST, u->got[0], u->shown.at, u->n * 4ull);
		assert_memory_equal(u->got[0], u->want_image, u->n * 4ull);
	}
	assert_int_equal(jobs.kept - kept, u->kept);
	assert_int_equal(jobs.lost_nr, 0);
}

static void one_update(struct rng *r, struct gpu *g, struct layout *l, uint32_t chunk)
{
	struct update u = {.layout = l,
			   .chunk = chunk,
			   .n = layout_chunk_elems(l, chunk),
			   .row = optim_row((enum optim_id)rng_below(r, OPTIM_NR)),
			   .grad_dtype = (enum shard_dtype)(1 + rng_below(r, DTYPE_NR)),
			   .image_dtype = (enum shard_dtype)(1 + rng_below(r, DTYPE_NR))};

	update_make(&u, r, g);
	update_expect(&u);
	update_run(&u, g, rng_below(r, 2), rng_below(r, 3) == 0, rng_below(r, 2));
	update_free(&u);
}

static void updates(void **state)
{
	struct gpu *g = gpujobs_open(0);
	struct rng r = {.state = 11};
	struct gpu_about about;
	uint32_t nr = 0;

	(void)state;
	jobs.fake.fake_cuda_delay(20, 3);
	for (int round = 0; round < 40; round++) {
		struct layout *l =
			gpujobs_layout(&r, 1 + (uint32_t)rng_below(&r, round % 4 ? 40 : 3),
				       round % 3 ? 3000 : 200, 4096u << rng_below(&r, 3));

		for (uint32_t c = 0; c < l->chunks_nr && c < 3; c++, nr++)
			one_update(&r, g, l, c);
		layout_free(&l);
	}
	gpu_tell(g, &about);
	assert_int_equal(about.updates, nr);
	gpujobs_close(&g);
}

/* A chunk that is done in pieces. */
static void large_updates(void **state)
{
	struct gpu *g = gpujobs_open(0);
	struct rng r = {.state = 5};

	(void)state;
	jobs.fake.fake_cuda_delay(20, 3);
	for (int round = 0; round < 4; round++) {
		struct layout *l = gpujobs_layout(&r, 60, 100000, round < 2 ? 1u << 19 : 1u << 21);

		one_update(&r, g, l, 0);
		layout_free(&l);
	}
	gpujobs_close(&g);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(opens),         cmocka_unit_test(no_kernels),
		cmocka_unit_test(copies),        cmocka_unit_test(closes_first),
		cmocka_unit_test(both_pin),      cmocka_unit_test(limit),
		cmocka_unit_test(full),          cmocka_unit_test(outlives),
		cmocka_unit_test(hostile),       cmocka_unit_test(updates),
		cmocka_unit_test(large_updates),
	};
	int rc;

	gpujobs_init(argv);
	if (argc == 3 && strcmp(argv[1], "maker") == 0)
		maker(atoi(argv[2]));
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	gpujobs_deinit();
	return rc;
}
