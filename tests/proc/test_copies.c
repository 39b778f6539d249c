// SPDX-License-Identifier: Apache-2.0
/* Tests models of which several nodes hold each chunk. A training with replicas = 2 or 3 gives the
 * same weights and moments as with one copy, bit by bit, and so does each of the copies, which are
 * compared in the daemons' own memory. It is so for small and large chunks, several ranks on a node
 * and none, absent tensors, gradients that are not finite, a clip and delayed weights. A save with
 * several copies is restored with one, and the other way round. A copy that differs is not sealed.
 * The bytes that travel are those of the formula in proto/wire/README.md. */
#include "base/check.h"
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/keep.h"
#include "lib/pace.h"
#include "lib/trainer.h"
#include "model/model.h"
#include "model/spec.h"
#include "wire/dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { TENSORS = 7, RANKS_MAX = 6, STEPS = 8, TOTAL = 150001 + 64 + 1 + 5000 + 3 + 2100 + 20000 };
enum { KINDS = 3 };

static const enum shard_kind kinds[KINDS] = {SHARD_MASTER, SHARD_EXP_AVG, SHARD_EXP_AVG_SQ};

static const struct shard_tensor tensors[TENSORS] = {
	{.name = "wide", .ndim = 1, .shape = {150001}},
	{.name = "a", .ndim = 1, .shape = {64}},
	{.name = "one", .ndim = 1, .shape = {1}},
	{.name = "mid", .ndim = 2, .shape = {50, 100}},
	{.name = "few", .ndim = 1, .shape = {3}},
	{.name = "frozen", .ndim = 1, .flags = SHARD_FROZEN, .shape = {2100}},
	{.name = "last", .ndim = 1, .shape = {20000}},
};
static const struct shard_tensor own[TENSORS] = {
	{.name = "wide", .ndim = 1, .shape = {150001}},
	{.name = "a", .ndim = 1, .shape = {64}, .image = SHARD_F32},
	{.name = "one", .ndim = 1, .shape = {1}},
	{.name = "mid", .ndim = 2, .shape = {50, 100}, .image = SHARD_F16},
	{.name = "few", .ndim = 1, .shape = {3}, .image = SHARD_F32},
	{.name = "frozen", .ndim = 1, .flags = SHARD_FROZEN, .shape = {2100}, .image = SHARD_F32},
	{.name = "last", .ndim = 1, .shape = {20000}, .image = SHARD_F32},
};
enum { FROZEN = 5 };

struct how {
	const char *name;
	uint32_t nodes, ranks[INPROC_NODES_MAX]; /* ranks: on each node. */
	uint32_t copies;
	enum shard_dtype image, grad;
	uint32_t chunk;
	bool absent, bad; /* bad: some gradients are not finite. */
	const char *settings, *net;
	bool own; /* Some tensors have an image dtype of their own. */
};

struct training;

struct rank {
	struct training *of;
	pthread_t thread;
	uint32_t nr, node;
};

struct training {
	const struct how *how;
	uint32_t copies, ranks_nr;
	struct inproc cluster;
	struct rank rank[RANKS_MAX];
	float *all[INPROC_NODES_MAX][KINDS + 1]; /* As each node reads it. The last is the image. */
	uint64_t in_bytes, want_bytes;           /* Of the last step. */
};

static enum shard_dtype image_of(const struct how *h, uint32_t t)
{
	return h->own && own[t].image != 0 ? (enum shard_dtype)own[t].image : h->image;
}

static uint64_t numel(uint32_t t)
{
	return tensors[t].shape[0] * (tensors[t].ndim == 2 ? tensors[t].shape[1] : 1);
}

/* Tensor "a" has no gradient from any rank in every third step. */
static bool absent(const struct how *h, uint64_t step, uint32_t rank, uint32_t t)
{
	return h->absent &&
	       ((step % 3 == 0 && t == 1) || (step % 2 == 1 && (t + rank + step / 2) % 3 == 0));
}

static float gradient(const struct how *h, uint64_t step, uint32_t rank, uint32_t t, uint64_t i,
		      float w)
{
	if (h->bad && step % 4 == 2 && t == 3 && i == 77 && rank == 0)
		return step % 8 == 2 ? (float)INFINITY : (float)NAN;
	return w * (0.25f + 0.125f * (float)rank) +
	       ((float)((step * 31 + rank * 7 + i + t) % 13) - 6) * 0.0625f;
}

/* --- training --- */

static void settings_of(const struct training *t, char settings[300])
{
	snprintf(settings, 300,
		 "optimizer=adamw lr=0.0625 min_world=%u max_world=%u chunk_elems=%u timeout=20s "
		 "replicas=%u %s",
		 t->ranks_nr, t->ranks_nr, t->how->chunk, t->copies,
		 t->how->settings ? t->how->settings : "");
}

static void spec_of(const struct training *t, struct shard_spec *s, char settings[300])
{
	settings_of(t, settings);
	*s = (struct shard_spec){.size = sizeof(*s),
				 .name = "m",
				 .tensors = t->how->own ? own : tensors,
				 .tensors_nr = TENSORS,
				 .image = t->how->image,
				 .grad = t->how->grad,
				 .settings = settings};
}

static void write_weights(shard_model *m, float plus)
{
	float *w = malloc(numel(0) * sizeof(*w));

	for (uint64_t i = 0; i < numel(0); i++)
		w[i] = (float)(i % 97) * 0.25f - 10 + plus;
	for (uint32_t t = 0; t < TENSORS; t++)
		MUST(shard_write(m, SHARD_MASTER, t, 0, numel(t), SHARD_F32, w));
	free(w);
}

static void push(struct rank *r, shard_model *m, uint64_t step, uint32_t t)
{
	const struct how *h = r->of->how;
	enum shard_dtype dt = image_of(h, t);
	size_t in = dtype_bytes(dt), out = dtype_bytes(h->grad);
	const char *image = shard_image(m, t);
	char *g = shard_grad(m, t);

	CHECK(image != NULL && g != NULL);
	for (uint64_t i = 0; i < numel(t); i++) {
		float w;

		dtype_convert(&w, SHARD_F32, image + i * in, dt, 1);
		w = gradient(h, step, r->nr, t, i, w);
		dtype_convert(g + i * out, h->grad, &w, SHARD_F32, 1);
	}
	MUST(shard_push(m, t, 0, numel(t), NULL, h->grad, 0, NULL));
}

static void *train(void *arg)
{
	struct rank *r = arg;
	const struct how *h = r->of->how;
	shard_client *client = crew_connect(r->of->cluster.node[r->node].unix_address);
	struct shard_world w = SHARD_INIT(struct shard_world);
	char settings[300];
	struct shard_spec s;
	shard_model *m;
	int created;

	spec_of(r->of, &s, settings);
	MUST(shard_define(client, &s, &m, &created));
	if (created) {
		write_weights(m, 0);
		MUST(shard_seal(m, 0));
	}
	MUST(shard_join(m, (int)r->nr, pace_ms(20000), &w));
	for (uint64_t n = 1; n <= STEPS; n++) {
		struct shard_step is = SHARD_INIT(struct shard_step);
		struct shard_result res = SHARD_INIT(struct shard_result);
		shard_ticket ticket;

		MUST(shard_begin(m, NULL, &is));
		CHECK(is.step == n && is.rank == r->nr);
		for (uint32_t t = TENSORS; t-- > 0;)
			if (t == FROZEN || absent(h, n, r->nr, t))
				MUST(shard_push_none(m, t));
			else
				push(r, m, n, t);
		MUST(shard_commit(m, &ticket));
		MUST(shard_result(m, ticket, pace_ms(20000), &res));
		CHECK((res.outcome == SHARD_APPLIED) == !(h->bad && n % 4 == 2));
		CHECK(res.outcome == SHARD_APPLIED || res.bad_rank == 0);
	}
	MUST(shard_leave(m, pace_ms(20000)));
	shard_disconnect(&client);
	return NULL;
}

static float *read_all(const char *address, enum shard_kind kind)
{
	shard_client *client = crew_connect(address);
	float *all = calloc(TOTAL, sizeof(*all));
	uint64_t at = 0;
	shard_model *m;

	MUST(shard_attach(client, "m", &m));
	for (uint32_t t = 0; t < TENSORS; at += numel(t++)) {
		uint64_t step = 0;

		if (t == FROZEN && kind != SHARD_MASTER && kind != SHARD_IMAGE)
			continue;
		MUST(shard_read(m, kind, t, 0, numel(t), SHARD_F32, all + at, &step));
	}
	CHECK(at == TOTAL);
	shard_disconnect(&client);
	return all;
}

/* --- what the daemons hold --- */

static struct model *model_of(struct inproc_node *n)
{
	json_decref(inproc_status(n)); /* The loop has finished what it was asked before. */
	return model_by_name(n->server, "m");
}

static void same_chunk(const struct model *a, const struct model *b, uint32_t c)
{
	const struct layout *l = a->layout;

	for (uint32_t s = l->chunk_segment[c]; s < l->chunk_segment[c + 1]; s++) {
		const struct segment *g = &l->segment[s];
		size_t bytes = g->n * sizeof(float);

		assert_memory_equal(store_master(a->store, c) + g->start,
				    store_master(b->store, c) + g->start, bytes);
		for (uint32_t i = 0; i < a->set.optim->states_nr; i++)
			if (store_state(a->store, c, i) != NULL)
				assert_memory_equal(store_state(a->store, c, i) + g->start,
						    store_state(b->store, c, i) + g->start, bytes);
	}
}

/* Each chunk has so many copies, all with the same bits. */
static void copies_are(struct inproc *c, uint32_t copies)
{
	const struct model *m[INPROC_NODES_MAX];
	uint32_t compared = 0, kept[INPROC_NODES_MAX] = {0};

	for (uint32_t n = 0; n < c->nodes; n++)
		assert_non_null(m[n] = model_of(&c->node[n]));
	for (uint32_t k = 0; k < m[0]->layout->chunks_nr; k++) {
		uint64_t keepers = place_keepers(&m[0]->place, k);
		uint32_t first = (uint32_t)__builtin_ctzll(keepers);

		assert_int_equal(__builtin_popcountll(keepers), copies);
		for (uint32_t n = 0; n < c->nodes; n++) {
			assert_int_equal(place_keepers(&m[n]->place, k), keepers);
			assert_int_equal(store_holds(m[n]->store, k), keepers >> n & 1);
			kept[n] += keepers >> n & 1;
			if (n == first || !(keepers >> n & 1))
				continue;
			same_chunk(m[first], m[n], k);
			compared++;
		}
	}
	assert_int_equal(compared, (copies - 1) * m[0]->layout->chunks_nr);
	for (uint32_t n = 1; n < c->nodes; n++)
		assert_in_range(kept[n] + 1, kept[0], kept[0] + 2);
}

static uint64_t figure(struct inproc_node *n, const char *key)
{
	json_t *s = inproc_status(n), *m = json_array_get(json_object_get(s, "models"), 0);
	json_t *v = json_object_get(json_object_get(m, "last_step"), key);
	uint64_t is;

	if (!json_is_integer(v))
		fail_msg("no figure %s in the status", key);
	is = (uint64_t)json_integer_value(v);
	json_decref(s);
	return is;
}

/* The formula of proto/wire/README.md. */
static void count_bytes(struct training *t)
{
	const struct model *m = model_of(&t->cluster.node[0]);
	uint64_t p = 0, g = dtype_bytes(t->how->grad), i = 0; /* i: all of the image. */
	uint32_t nodes = t->how->nodes, with = 0;

	for (uint32_t s = 0; s < m->layout->segments_nr; s++) {
		uint64_t of = layout_frozen(m->layout, s) ? 0 : m->layout->segment[s].n;

		p += of;
		i += of * dtype_bytes(image_of(t->how, m->layout->segment_tensor[s]));
	}
	for (uint32_t n = 0; n < nodes; n++) {
		with += t->how->ranks[n] > 0;
		t->in_bytes += figure(&t->cluster.node[n], "contrib_in_bytes") +
			       figure(&t->cluster.node[n], "grad_in_bytes") +
			       figure(&t->cluster.node[n], "image_in_bytes");
	}
	t->want_bytes = p * with * g * (nodes - 1) / nodes + p * (t->copies - 1) * g +
			i * (nodes - t->copies);
}

static void run(struct training *t, const struct how *h, uint32_t copies)
{
	*t = (struct training){.how = h, .copies = copies};
	inproc_start(&t->cluster, &(struct inproc_conf){.nodes = h->nodes, .net = h->net});
	for (uint32_t n = 0; n < h->nodes; n++)
		for (uint32_t k = 0; k < h->ranks[n]; k++, t->ranks_nr++)
			t->rank[t->ranks_nr] = (struct rank){.of = t, .nr = t->ranks_nr, .node = n};
	for (uint32_t i = 0; i < t->ranks_nr; i++)
		CHECK(pthread_create(&t->rank[i].thread, NULL, train, &t->rank[i]) == 0);
	for (uint32_t i = 0; i < t->ranks_nr; i++)
		pthread_join(t->rank[i].thread, NULL);
	for (uint32_t n = 0; n < h->nodes; n++) {
		for (int k = 0; k < KINDS; k++)
			t->all[n][k] = read_all(t->cluster.node[n].unix_address, kinds[k]);
		t->all[n][KINDS] = read_all(t->cluster.node[n].unix_address, SHARD_IMAGE);
	}
	copies_are(&t->cluster, copies);
	count_bytes(t);
	inproc_stop(&t->cluster);
}

static void free_all(struct training *t)
{
	for (uint32_t n = 0; n < t->how->nodes; n++)
		for (int k = 0; k <= KINDS; k++)
			free(t->all[n][k]);
}

static void same_as_one_copy(void **state)
{
	static struct training one, several;
	const struct how *h = *state;

	run(&one, h, 1);
	run(&several, h, h->copies);
	for (uint32_t n = 0; n < h->nodes; n++)
		for (int k = 0; k <= KINDS; k++)
			assert_memory_equal(several.all[n][k], one.all[0][k],
					    TOTAL * sizeof(float));
	/* In steps with absent tensors less travels. A chunk is the unit in which it is spread. */
	if (!h->absent && TOTAL / h->chunk > 100) {
		assert_in_range(one.in_bytes * 100, one.want_bytes * 98, one.want_bytes * 102);
		assert_in_range(several.in_bytes * 100, several.want_bytes * 98,
				several.want_bytes * 102);
	}
	free_all(&one);
	free_all(&several);
}

static const struct how hows[] = {
	{"two nodes",
	 2,
	 {1, 1},
	 2,
	 SHARD_BF16,
	 SHARD_BF16,
	 1024,
	 false,
	 false,
	 "clip=0.5",
	 NULL,
	 false},
	{"two nodes, several ranks, absent tensors",
	 2,
	 {3, 2},
	 2,
	 SHARD_F32,
	 SHARD_BF16,
	 2048,
	 true,
	 false,
	 "clip=0.25",
	 NULL,
	 false},
	{"two nodes, one chunk",
	 2,
	 {1, 1},
	 2,
	 SHARD_F32,
	 SHARD_F32,
	 1u << 20,
	 true,
	 true,
	 NULL,
	 NULL,
	 false},
	{"two nodes, ranks on the second only",
	 2,
	 {0, 2},
	 2,
	 SHARD_F32,
	 SHARD_F32,
	 65536,
	 true,
	 true,
	 NULL,
	 NULL,
	 false},
	{"two nodes, not finite",
	 2,
	 {2, 1},
	 2,
	 SHARD_BF16,
	 SHARD_F16,
	 16384,
	 true,
	 true,
	 "loss_scale=1 max_skips=0",
	 NULL,
	 false},
	{"two nodes, delayed",
	 2,
	 {1, 2},
	 2,
	 SHARD_F32,
	 SHARD_BF16,
	 1024,
	 true,
	 true,
	 "max_staleness=1 clip=0.5",
	 NULL,
	 false},
	{"three nodes, two copies",
	 3,
	 {1, 1, 1},
	 2,
	 SHARD_F32,
	 SHARD_BF16,
	 1024,
	 false,
	 false,
	 "clip=0.5",
	 NULL,
	 false},
	{"three nodes, two copies, ranks on two of them",
	 3,
	 {2, 0, 1},
	 2,
	 SHARD_BF16,
	 SHARD_F32,
	 1024,
	 false,
	 true,
	 NULL,
	 "connections = 3",
	 false},
	{"three nodes, two copies, delayed",
	 3,
	 {2, 1, 1},
	 2,
	 SHARD_BF16,
	 SHARD_BF16,
	 4096,
	 true,
	 true,
	 "max_staleness=1",
	 NULL,
	 false},
	{.name = "two nodes, own image dtypes",
	 .nodes = 2,
	 .ranks = {2, 1},
	 .copies = 2,
	 .image = SHARD_BF16,
	 .grad = SHARD_BF16,
	 .chunk = 1024,
	 .settings = "clip=0.5",
	 .own = true},
	{.name = "three nodes, own image dtypes",
	 .nodes = 3,
	 .ranks = {1, 1, 1},
	 .copies = 2,
	 .image = SHARD_BF16,
	 .grad = SHARD_F32,
	 .chunk = 1024,
	 .settings = "clip=0.5",
	 .own = true},
	{.name = "three nodes, own image dtypes, delayed",
	 .nodes = 3,
	 .ranks = {2, 0, 1},
	 .copies = 2,
	 .image = SHARD_F16,
	 .grad = SHARD_BF16,
	 .chunk = 16384,
	 .absent = true,
	 .settings = "max_staleness=1",
	 .own = true},
	{"three nodes, two copies, large chunks",
	 3,
	 {1, 2, 1},
	 2,
	 SHARD_F32,
	 SHARD_F32,
	 65536,
	 true,
	 false,
	 "clip=0.5 predivide=3",
	 NULL,
	 false},
	{"three nodes, three copies",
	 3,
	 {1, 1, 1},
	 3,
	 SHARD_F32,
	 SHARD_F32,
	 1024,
	 false,
	 false,
	 NULL,
	 NULL,
	 false},
};

/* --- saves --- */

static const struct how saved = {"saved", 2,    {1, 1}, 2,    SHARD_F32, SHARD_BF16,
				 4096,    true, false,  NULL, NULL,      false};

static void train_in(struct training *t)
{
	for (uint32_t n = 0; n < 2; n++, t->ranks_nr++)
		t->rank[n] = (struct rank){.of = t, .nr = n, .node = n};
	for (uint32_t i = 0; i < t->ranks_nr; i++)
		CHECK(pthread_create(&t->rank[i].thread, NULL, train, &t->rank[i]) == 0);
	for (uint32_t i = 0; i < t->ranks_nr; i++)
		pthread_join(t->rank[i].thread, NULL);
}

/* Saves with some copies, and restores where the configuration wants others. */
static void save_and_restore(uint32_t from, uint32_t nodes, uint32_t to)
{
	static struct training t;
	struct inproc other;
	struct keep keep;
	char tail[64];
	float *before[KINDS], *after;

	keep_init(&keep);
	t = (struct training){.how = &saved, .copies = from};
	inproc_start(&t.cluster, NULL);
	train_in(&t);
	for (int k = 0; k < KINDS; k++)
		before[k] = read_all(t.cluster.node[0].unix_address, kinds[k]);
	keep_must_save(t.cluster.node[1].unix_address, "m", keep.dir, NULL);
	inproc_stop(&t.cluster);
	snprintf(tail, sizeof(tail), "[model]\nreplicas = %u\n", to);
	inproc_start(&other, &(struct inproc_conf){.nodes = nodes, .tail = tail});
	keep_must_restore(other.node[0].unix_address, keep.dir, NULL, NULL);
	for (uint32_t n = 0; n < nodes; n++) {
		for (int k = 0; k < KINDS; k++) {
			after = read_all(other.node[n].unix_address, kinds[k]);
			assert_memory_equal(after, before[k], TOTAL * sizeof(float));
			free(after);
		}
	}
	copies_are(&other, to);
	inproc_stop(&other);
	for (int k = 0; k < KINDS; k++)
		free(before[k]);
	keep_free(&keep);
}

static void other_copies_from_a_save(void **state)
{
	(void)state;
	save_and_restore(2, 2, 1);
	save_and_restore(1, 2, 2);
	save_and_restore(2, 3, 3);
	save_and_restore(2, 1, 1);
}

/* --- what is refused --- */

static void more_copies_than_nodes(void **state)
{
	static struct training t;
	struct how h = saved;
	struct keep keep;
	struct inproc alone;
	shard_client *client;
	char settings[300];
	struct shard_spec s;
	shard_model *m;
	int created;

	(void)state;
	keep_init(&keep);
	t = (struct training){.how = &h, .copies = 2};
	inproc_start(&t.cluster, NULL);
	train_in(&t);
	keep_must_save(t.cluster.node[1].unix_address, "m", keep.dir, NULL);
	client = crew_connect(t.cluster.node[1].unix_address);
	t.copies = 3;
	spec_of(&t, &s, settings);
	s.name = "n";
	EXPECT(SHARD_BAD_ARG, shard_define(client, &s, &m, &created));
	EXPECT_TEXT("\"n\" has replicas = 3, and this cluster has 2 nodes");
	shard_disconnect(&client);
	inproc_stop(&t.cluster);
	/* Where a file asks for them, a checkpoint does not get by with fewer either. */
	inproc_start(&alone, &(struct inproc_conf){.nodes = 1, .tail = "[model]\nreplicas = 2\n"});
	EXPECT(SHARD_BAD_ARG, keep_restore(alone.node[0].unix_address, keep.dir, NULL, NULL));
	EXPECT_TEXT("\"m\" has replicas = 2, and this cluster has 1 node with capacity:");
	inproc_stop(&alone);
	keep_free(&keep);
}

/* A copy that a write did not reach, as where a link fell in mid-way. */
static void copies_that_differ_are_not_sealed(void **state)
{
	static struct training t;
	shard_client *client;
	char settings[300];
	struct shard_spec s;
	struct model *a;
	shard_model *m;
	int created;
	float was;

	(void)state;
	t = (struct training){.how = &saved, .copies = 2, .ranks_nr = 1};
	inproc_start(&t.cluster, NULL);
	client = crew_connect(t.cluster.node[1].unix_address);
	spec_of(&t, &s, settings);
	MUST(shard_define(client, &s, &m, &created));
	assert_int_equal(created, 1);
	EXPECT(SHARD_MISSING, shard_seal(m, 0));
	EXPECT_TEXT("177169 elements are not written"); /* Once, and not once for each copy. */
	write_weights(m, 0);
	a = model_of(&t.cluster.node[0]);
	for (uint32_t c = 0; c < 2; c++) { /* One of which node a is the primary, and one not. */
		was = store_master(a->store, c)[3];
		store_master(a->store, c)[3] = was + 1;
		EXPECT(SHARD_MISSING, shard_seal(m, 0));
		EXPECT_TEXT("the copies of its weights on several nodes differ");
		store_master(a->store, c)[3] = was;
	}
	assert_true(place_primary(&a->place, 0) != place_primary(&a->place, 1));
	for (uint32_t c = 0; c < 2; c++) {
		was = store_master(a->store, c)[3];
		store_master(a->store, c)[3] = (float)NAN;
		EXPECT(SHARD_MISSING, shard_seal(m, 0));
		EXPECT_TEXT(place_primary(&a->place, c) == 0 ? "1 are not finite"
							     : "1 lack in the copies");
		store_master(a->store, c)[3] = was;
	}
	MUST(shard_seal(m, 0));
	copies_are(&t.cluster, 2);
	shard_disconnect(&client);
	inproc_stop(&t.cluster);
}

/* A warm start takes memory over only if it was made for the same tables. */
static void tables_are_compared(void **state)
{
	uint32_t runs[] = {0, 1, 1, 1}, others[] = {1, 1, 0, 1};
	uint64_t holders[] = {3, 2}, less[] = {3, 1, 5, 1};
	Shard__Model a = SHARD__MODEL__INIT, b;

	(void)state;
	a.n_place_runs = 4;
	a.place_runs = runs;
	a.n_holder_runs = 2;
	a.holder_runs = holders;
	b = a;
	assert_true(spec_same_place(&a, &b));
	b.place_runs = others;
	assert_false(spec_same_place(&a, &b));
	b = a;
	b.n_holder_runs = 0;
	assert_false(spec_same_place(&a, &b));
	b.n_holder_runs = 4;
	b.holder_runs = less;
	assert_false(spec_same_place(&a, &b));
	b.n_holder_runs = 2;
	less[0] = 5;
	assert_false(spec_same_place(&a, &b));
}

int main(void)
{
	static const struct CMUnitTest more[] = {
		cmocka_unit_test(other_copies_from_a_save),
		cmocka_unit_test(more_copies_than_nodes),
		cmocka_unit_test(copies_that_differ_are_not_sealed),
		cmocka_unit_test(tables_are_compared),
	};
	struct CMUnitTest tests[NR(hows) + NR(more)];

	for (size_t i = 0; i < NR(hows); i++)
		tests[i] = (struct CMUnitTest){hows[i].name, same_as_one_copy, NULL, NULL,
					       (void *)(uintptr_t)&hows[i]};
	memcpy(tests + NR(hows), more, sizeof(more));
	return cmocka_run_group_tests_name("copies", tests, NULL, NULL);
}
