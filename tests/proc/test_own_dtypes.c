// SPDX-License-Identifier: Apache-2.0
/* Tensors that trainers read in another type than the rest of the model, as fp32 norms in a bf16
 * model. Training with two real daemons equals the in-process reference byte by byte, over unix
 * sockets and TCP, with one and two copies, with weights of two steps before, and when daemons are
 * killed and come again. Every tensor is read in its own type at the place that is told, also after
 * a save, a drop and a restore. A chunk of one type may have many more bytes than the first one of
 * another. Definitions that cannot be are refused, and so are those with what the release of a node
 * does not know: such tensors, one without elements, and many groups. The text names it. */
#include "base/check.h"
#include "lib/evil.h"
#include "lib/inproc.h"
#include "lib/keep.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"
#include "wire/dtype.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define OLDER "tests/older/shardd"

/* --- against the reference --- */

static int run(const char *environment, const char *arguments, const char *output)
{
	char build[4096], command[8192];
	ssize_t n = readlink("/proc/self/exe", build, sizeof(build) - 1);
	int status;

	assert_true(n > 0);
	build[n] = 0;
	/* The build folder is two levels above this program. The sources are in the folder where
	 * tests start. */
	for (int up = 0; up < 3; up++)
		*strrchr(build, '/') = 0;
	snprintf(command, sizeof(command), "%s tests/demo/exact.sh '%s' %s %s", environment, build,
		 arguments, output);
	status = system(command);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void exact(const char *environment, const char *arguments)
{
	if (run(environment, arguments, "") != 0)
		fail_msg("%s exact.sh BUILD %s: not exact, see above", environment, arguments);
}

static void like_the_reference(void **state)
{
	static const char *const over[] = {"", "TCP=1"};
	char arguments[256];

	(void)state;
	for (int i = 0; i < 4; i++) {
		snprintf(arguments, sizeof(arguments),
			 "2,1 --norm-dtype fp32 --settings 'chunk_elems=1024 clip=0.5 replicas=%d'",
			 1 + i / 2);
		exact(over[i % 2], arguments);
	}
	exact("", "1,2 --norm-dtype fp32 --settings 'replicas=1'"); /* A chunk of each type. */
	exact("", "2,2 --norm-dtype fp16 --grad-dtype fp32 --settings 'chunk_elems=4096 "
		  "optimizer=lion replicas=2'");
	exact("TCP=1", "1,1 --dtype fp32 --norm-dtype bf16 --settings 'chunk_elems=2048 "
		       "optimizer=adagrad replicas=2'");
	exact("TCP=1", "1,2 --norm-dtype fp32 --settings 'chunk_elems=1024 max_staleness=1 "
		       "replicas=1'");
	exact("", "1,2 --norm-dtype fp32 --settings 'chunk_elems=1024 max_staleness=1 replicas=2'");
}

static void killed(void **state)
{
	(void)state;
	exact("EVERY=15 DAEMONS='a,b b'",
	      "1,1 --norm-dtype fp32 --steps 60 --settings 'chunk_elems=2048 clip=0.5 replicas=1'");
	exact("EVERY=15 DAEMONS='b a'",
	      "1,1 --norm-dtype fp32 --steps 60 --settings 'chunk_elems=2048 max_staleness=1 "
	      "replicas=1'");
}

static void a_flipped_bit_is_found(void **state)
{
	(void)state;
	assert_int_equal(
		run("BREAK=1", "1,1 --norm-dtype fp32 --settings chunk_elems=1024", ">/dev/null"),
		1);
}

/* --- every tensor in its own type --- */

enum { TENSORS = 6, STEPS = 3, NUMEL_MAX = 5000 };

static const struct shard_tensor tensors[TENSORS] = {
	{.name = "wte", .ndim = 2, .shape = {50, 100}},
	{.name = "ln_1", .ndim = 1, .shape = {97}, .image = SHARD_F32},
	{.name = "router", .ndim = 1, .shape = {1500}, .image = SHARD_F16},
	{.name = "mlp", .ndim = 1, .shape = {1301}, .image = SHARD_BF16}, /* As the model. */
	{.name = "buffer", .ndim = 1, .flags = SHARD_FROZEN, .shape = {65}, .image = SHARD_F32},
	{.name = "ln_f", .ndim = 1, .shape = {2100}, .image = SHARD_F32},
};

static enum shard_dtype image_of(uint32_t t)
{
	return tensors[t].image ? (enum shard_dtype)tensors[t].image : SHARD_BF16;
}

static uint64_t numel(uint32_t t)
{
	return tensors[t].shape[0] * (tensors[t].ndim == 2 ? tensors[t].shape[1] : 1);
}

static float first_weight(uint32_t t, uint64_t i)
{
	return (float)(i % 201) * 0.013f - (float)t;
}

/* Plain SGD with small numbers, which are exact. */
static float weight_after(uint32_t t, uint64_t i, uint64_t steps)
{
	float w = first_weight(t, i);

	for (uint64_t n = 1; n <= steps && !(tensors[t].flags & SHARD_FROZEN); n++)
		w -= (float)((n + i + t) % 8) * 0.25f;
	return w;
}

static void spec_of(struct shard_spec *s, uint32_t copies)
{
	*s = (struct shard_spec){.size = sizeof(*s),
				 .name = "gpt",
				 .tensors = tensors,
				 .tensors_nr = TENSORS,
				 .image = SHARD_BF16,
				 .grad = SHARD_F32,
				 .settings = copies == 1 ? "optimizer=sgd lr=1 chunk_elems=1024 "
							   "replicas=1"
							 : "optimizer=sgd lr=1 chunk_elems=1024 "
							   "replicas=2"};
}

static void define(struct trainer *t, const char *address, uint32_t copies)
{
	static float w[NUMEL_MAX];
	struct shard_spec s;

	spec_of(&s, copies);
	trainer_connect(t, address);
	EXPECT(SHARD_OK, shard_define(t->client, &s, &t->model, &t->created));
	assert_true(t->created);
	for (uint32_t k = 0; k < TENSORS; k++) {
		for (uint64_t i = 0; i < numel(k); i++)
			w[i] = first_weight(k, i);
		EXPECT(SHARD_OK, shard_write(t->model, SHARD_MASTER, k, 0, numel(k), SHARD_F32, w));
	}
	EXPECT(SHARD_OK, shard_seal(t->model, 0));
}

static void one_step(struct trainer *t, uint64_t step)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	static float g[NUMEL_MAX];

	trainer_begin(t);
	for (uint32_t k = 0; k < TENSORS; k++) {
		for (uint64_t i = 0; i < numel(k); i++)
			g[i] = (float)((step + i + k) % 8) * 0.25f;
		if (tensors[k].flags & SHARD_FROZEN)
			EXPECT(SHARD_OK, shard_push_none(t->model, k));
		else
			EXPECT(SHARD_OK,
			       shard_push(t->model, k, 0, numel(k), g, SHARD_F32, 0, NULL));
	}
	EXPECT(SHARD_OK, shard_commit(t->model, NULL));
	EXPECT(SHARD_OK, shard_result(t->model, 0, pace_ms(20000), &r));
	assert_int_equal(r.outcome, SHARD_APPLIED);
}

/* What a trainer that has joined reads: in place, and converted by a pull. */
static void check_image(struct trainer *t, uint64_t steps)
{
	static float w[NUMEL_MAX], want[NUMEL_MAX], got[NUMEL_MAX];
	size_t bytes;
	void *base;

	trainer_begin(t);
	EXPECT(SHARD_OK, shard_region(t->model, SHARD_IMAGE, &base, &bytes));
	for (uint32_t k = 0; k < TENSORS; k++) {
		struct shard_info info = SHARD_INIT(struct shard_info);
		const char *image = shard_image(t->model, k);
		shard_ticket ticket;

		assert_non_null(image);
		EXPECT(SHARD_OK, shard_tensor_info(t->model, k, &info));
		assert_int_equal(info.image, image_of(k));
		assert_int_equal(info.flags, tensors[k].flags);
		assert_ptr_equal((char *)base + info.image_offset, image);
		assert_true(info.image_offset + numel(k) * dtype_bytes(image_of(k)) <= bytes);
		for (uint64_t i = 0; i < numel(k); i++)
			w[i] = weight_after(k, i, steps);
		dtype_convert(want, image_of(k), w, SHARD_F32, numel(k));
		assert_memory_equal(image, want, numel(k) * dtype_bytes(image_of(k)));
		dtype_convert(w, SHARD_F32, image, image_of(k), numel(k));
		for (int d = 1; d <= DTYPE_NR; d++) {
			enum shard_dtype dt = (enum shard_dtype)d;

			EXPECT(SHARD_OK,
			       shard_pull(t->model, k, 1, numel(k) - 1, steps, got, dt, &ticket));
			EXPECT(SHARD_OK, shard_wait(t->model, ticket, pace_ms(20000)));
			dtype_convert(want, dt, w + 1, SHARD_F32, numel(k) - 1);
			if (dt == image_of(k)) /* The bits, untouched. */
				memcpy(want, image + dtype_bytes(dt),
				       (numel(k) - 1) * dtype_bytes(dt));
			assert_memory_equal(got, want, (numel(k) - 1) * dtype_bytes(dt));
		}
	}
	EXPECT(SHARD_OK, shard_abandon(t->model, "it only looked"));
}

/* What a tool reads of the model. */
static void check_reads(const char *address, uint64_t steps)
{
	static float want[NUMEL_MAX], got[NUMEL_MAX], rounded[NUMEL_MAX];
	struct trainer t;

	trainer_connect(&t, address);
	EXPECT(SHARD_OK, shard_attach(t.client, "gpt", &t.model));
	for (uint32_t k = 0; k < TENSORS; k++) {
		struct shard_info info = SHARD_INIT(struct shard_info);
		uint64_t step = 0;

		EXPECT(SHARD_OK, shard_tensor_info(t.model, k, &info));
		assert_int_equal(info.image, image_of(k));
		for (uint64_t i = 0; i < numel(k); i++)
			want[i] = weight_after(k, i, steps);
		EXPECT(SHARD_OK,
		       shard_read(t.model, SHARD_MASTER, k, 0, numel(k), SHARD_F32, got, &step));
		assert_memory_equal(got, want, numel(k) * sizeof(float));
		step = 0;
		EXPECT(SHARD_OK,
		       shard_read(t.model, SHARD_IMAGE, k, 0, numel(k), SHARD_F32, got, &step));
		dtype_convert(rounded, image_of(k), want, SHARD_F32, numel(k));
		dtype_convert(want, SHARD_F32, rounded, image_of(k), numel(k));
		assert_memory_equal(got, want, numel(k) * sizeof(float));
	}
	trainer_end(&t);
}

static const char *address_of(struct inproc *c, uint32_t node, bool tcp)
{
	return tcp ? c->node[node].tcp_address : c->node[node].unix_address;
}

static void join(struct trainer *t)
{
	struct shard_world w = SHARD_INIT(struct shard_world);

	EXPECT(SHARD_OK, shard_join(t->model, 0, pace_ms(20000), &w));
}

/* The memory that is handed over has each tensor where it was. */
static void check_kept(struct trainer *t, uint64_t steps)
{
	struct shard_kept kept = SHARD_INIT(struct shard_kept);
	static float w[NUMEL_MAX], want[NUMEL_MAX];

	EXPECT(SHARD_OK, shard_keep(t->model, SHARD_IMAGE, SHARD_DEFAULT, &kept));
	assert_int_equal(kept.step, steps);
	for (uint32_t k = 0; k < TENSORS; k++) {
		struct shard_info info = SHARD_INIT(struct shard_info);

		EXPECT(SHARD_OK, shard_tensor_info(t->model, k, &info));
		for (uint64_t i = 0; i < numel(k); i++)
			w[i] = weight_after(k, i, steps);
		dtype_convert(want, image_of(k), w, SHARD_F32, numel(k));
		assert_memory_equal((char *)kept.base + info.image_offset, want,
				    numel(k) * dtype_bytes(image_of(k)));
	}
	shard_unmap(&kept);
}

static void each_in_its_own_type(uint32_t copies, bool tcp)
{
	struct inproc c, other;
	struct keep keep;
	struct trainer t;

	keep_init(&keep);
	inproc_start(&c, NULL);
	define(&t, address_of(&c, 1, tcp), copies);
	join(&t);
	for (uint64_t n = 1; n <= STEPS; n++)
		one_step(&t, n);
	check_image(&t, STEPS);
	check_reads(address_of(&c, 0, tcp), STEPS);
	check_reads(address_of(&c, 1, tcp), STEPS);
	check_kept(&t, STEPS);
	trainer_end(&t);
	keep_must_save(c.node[0].unix_address, "gpt", keep.dir, NULL);
	inproc_stop(&c);
	inproc_start(&other, NULL);
	keep_must_restore(other.node[1].unix_address, keep.dir, NULL, NULL);
	check_reads(address_of(&other, 0, tcp), STEPS);
	check_reads(address_of(&other, 1, tcp), STEPS);
	trainer_connect(&t, address_of(&other, 0, tcp));
	EXPECT(SHARD_OK, shard_attach(t.client, "gpt", &t.model));
	join(&t);
	one_step(&t, STEPS + 1);
	check_image(&t, STEPS + 1);
	trainer_end(&t);
	inproc_stop(&other);
	keep_free(&keep);
}

static void one_copy_unix(void **state)
{
	(void)state;
	each_in_its_own_type(1, false);
}

static void one_copy_tcp(void **state)
{
	(void)state;
	each_in_its_own_type(1, true);
}

static void two_copies_unix(void **state)
{
	(void)state;
	each_in_its_own_type(2, false);
}

static void two_copies_tcp(void **state)
{
	(void)state;
	each_in_its_own_type(2, true);
}

/* --- what is refused --- */

static void other(const char *address, uint32_t tensor, uint32_t image, enum shard_status st,
		  const char *text)
{
	struct shard_tensor all[TENSORS];
	struct shard_spec s;
	struct trainer t;

	memcpy(all, tensors, sizeof(all));
	all[tensor].image = image;
	spec_of(&s, 1);
	s.tensors = all;
	trainer_connect(&t, address);
	EXPECT(st, shard_define(t.client, &s, &t.model, &t.created));
	if (st != SHARD_OK)
		EXPECT_TEXT(text);
	trainer_end(&t);
}

static void other_types(void **state)
{
	struct inproc c;
	struct trainer t;

	(void)state;
	inproc_start(&c, NULL);
	define(&t, c.node[0].unix_address, 1);
	for (uint32_t n = 0; n < 2; n++) {
		const char *at = c.node[n].unix_address;

		other(at, 1, 0, SHARD_MISMATCH,
		      "tensor \"ln_1\": image bf16 here, fp32 in \"gpt\"");
		other(at, 0, SHARD_F16, SHARD_MISMATCH,
		      "tensor \"wte\": image fp16 here, bf16 in \"gpt\"");
		other(at, 3, 0, SHARD_OK, "");
		other(at, 0, SHARD_BF16, SHARD_OK, "");
		other(at, 0, 4, SHARD_BAD_ARG, "tensor \"wte\": image dtype 4: choose SHARD_F32");
	}
	trainer_end(&t);
	inproc_stop(&c);
}

static void refused(struct raw *r, uint32_t flags, const char *part)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = 1};
	Shard__Tensor t, *list[2];
	Shard__Define d;
	Shard__Spec spec;
	uint64_t shape;
	char *text;

	evil_spec(&d, &spec, &t, list, &shape);
	t.flags = flags;
	raw_send(r, &h, &d.base);
	text = raw_error(r);
	if (text == NULL || strstr(text, part) == NULL)
		fail_msg("flags 0x%x: answered with \"%s\", not with \"%s\"", flags,
			 text != NULL ? text : "nothing", part);
}

/* The bits beside those of the type stay unknown. */
static void hostile(void **state)
{
	static const uint32_t flags[] = {2, 0x80, 0x400, 0x500, 0x80000000u, 0xffffffffu};
	struct inproc c;
	struct raw r;

	(void)state;
	inproc_start(&c, NULL);
	for (uint32_t n = 0; n < 2; n++) {
		raw_connect(&r, c.node[n].unix_address);
		raw_hello(&r, ROLE_TRAINER);
		for (size_t i = 0; i < NR(flags); i++)
			refused(&r, flags[i], "tensor \"w\": flags 0x");
		raw_close(&r);
	}
	inproc_stop(&c);
}

/* A node of an older release would lay the model out in another way. */
static struct cluster *cluster;

static void older_release(void **state)
{
	static const struct shard_tensor empty[] = {{.name = "wte", .ndim = 1, .shape = {5000}},
						    {.name = "none", .ndim = 1, .shape = {0}}};
	static const struct shard_group groups[] = {
		{"a", 0}, {"b", 0}, {"c", 0}, {"d", 0}, {"e", 0}, {"f", 0},
		{"g", 0}, {"h", 0}, {"i", 0}, {"j", 0}, {"k", 0}, {"l", 0},
		{"m", 0}, {"n", 0}, {"o", 0}, {"p", 0}, {"q", 0}};
	struct shard_spec s;
	struct trainer t;

	(void)state;
	cluster = cluster_make(2, NULL, NULL);
	cluster_spawn(cluster, 0);
	cluster->daemon = OLDER;
	cluster_spawn(cluster, 1);
	cluster->daemon = NULL;
	cluster_ready(cluster, 0);
	cluster_ready(cluster, 1);
	cluster_wait_log(cluster, 0, "event=link_up", 1);
	for (int n = 0; n < 2; n++) {
		spec_of(&s, 1);
		s.name = n == 0 ? "a" : "b";
		trainer_connect(&t, cluster->node[n].unix_address);
		EXPECT(SHARD_UNSUPPORTED, shard_define(t.client, &s, &t.model, &t.created));
		EXPECT_TEXT(
			"tensor \"ln_1\" has an image dtype of its own, which node b (release ");
		s.tensors = empty;
		s.tensors_nr = 2;
		EXPECT(SHARD_UNSUPPORTED, shard_define(t.client, &s, &t.model, &t.created));
		EXPECT_TEXT("tensor \"none\" has a dimension of 0, which node b (release ");
		s.tensors_nr = 1; /* It has neither. */
		s.groups = groups;
		s.groups_nr = NR(groups);
		EXPECT(SHARD_UNSUPPORTED, shard_define(t.client, &s, &t.model, &t.created));
		EXPECT_TEXT("17 tensor groups, and node b (release ");
		s.groups_nr = 16;
		EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
		trainer_end(&t);
	}
	cluster_done(&cluster);
}

static int put_away(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

/* The only tensor of the model's type fills less of its chunk than one part of the wire, and the
 * chunk of the other type has more parts than a byte has bits. */
static void first_chunk_is_short(void **state)
{
	enum { LONG = 1 << 20 };
	static const struct shard_tensor two[] = {
		{.name = "small", .ndim = 1, .shape = {64}},
		{.name = "large", .ndim = 1, .shape = {LONG}, .image = SHARD_F32}};
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	float *w = calloc(LONG, sizeof(*w));
	struct trainer t;
	struct inproc c;

	(void)state;
	assert_non_null(w);
	s.name = "gpt";
	s.tensors = two;
	s.tensors_nr = NR(two);
	s.image = SHARD_BF16;
	s.grad = SHARD_F32;
	s.settings = "optimizer=sgd lr=1 chunk_elems=1048576 replicas=1";
	inproc_start(&c, NULL);
	trainer_connect(&t, address_of(&c, 0, true));
	EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
	for (uint32_t k = 0; k < NR(two); k++)
		EXPECT(SHARD_OK,
		       shard_write(t.model, SHARD_MASTER, k, 0, two[k].shape[0], SHARD_F32, w));
	EXPECT(SHARD_OK, shard_seal(t.model, 0));
	join(&t);
	trainer_begin(&t);
	for (uint32_t k = 0; k < NR(two); k++)
		EXPECT(SHARD_OK, shard_push(t.model, k, 0, two[k].shape[0], w, SHARD_F32, 0, NULL));
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	EXPECT(SHARD_OK, shard_result(t.model, 0, pace_ms(20000), &r));
	assert_int_equal(r.outcome, SHARD_APPLIED);
	trainer_end(&t);
	inproc_stop(&c);
	free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(like_the_reference),
		cmocka_unit_test(killed),
		cmocka_unit_test(a_flipped_bit_is_found),
		cmocka_unit_test(one_copy_unix),
		cmocka_unit_test(one_copy_tcp),
		cmocka_unit_test(two_copies_unix),
		cmocka_unit_test(two_copies_tcp),
		cmocka_unit_test(first_chunk_is_short),
		cmocka_unit_test(other_types),
		cmocka_unit_test(hostile),
		cmocka_unit_test_teardown(older_release, put_away),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
