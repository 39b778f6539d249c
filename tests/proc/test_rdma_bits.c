// SPDX-License-Identifier: Apache-2.0
/* Training over RDMA gives the same bits as over TCP. The same training runs in whole daemons with
 * transport = tcp and with the verbs of rdma/fake.h, which carry every tensor byte once they are
 * connected. Gradients depend on the image that the trainer reads, so one wrong byte in either
 * direction changes what is compared: the master weights, and the image of every node. */
#include "base/check.h"
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/linked.h"
#include "lib/pace.h"
#include "rdma/fake.h"
#include "wire/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { TENSORS = 6, RANKS_MAX = 6, STEPS = 8, TOTAL = 150001 + 64 + 1 + 5000 + 3 + 20000 };

static const struct shard_tensor tensors[TENSORS] = {
	{.name = "wide", .ndim = 1, .shape = {150001}},
	{.name = "a", .ndim = 1, .shape = {64}},
	{.name = "one", .ndim = 1, .shape = {1}},
	{.name = "mid", .ndim = 2, .shape = {50, 100}},
	{.name = "few", .ndim = 1, .shape = {3}},
	{.name = "last", .ndim = 1, .shape = {20000}},
};
static const struct shard_tensor own[TENSORS] = {
	{.name = "wide", .ndim = 1, .shape = {150001}},
	{.name = "a", .ndim = 1, .shape = {64}, .image = SHARD_F32},
	{.name = "one", .ndim = 1, .shape = {1}},
	{.name = "mid", .ndim = 2, .shape = {50, 100}, .image = SHARD_F16},
	{.name = "few", .ndim = 1, .shape = {3}, .image = SHARD_F32},
	{.name = "last", .ndim = 1, .shape = {20000}, .image = SHARD_F32},
};

static const struct shard_tensor frozen[TENSORS] = {
	{.name = "wide", .ndim = 1, .shape = {150001}},
	{.name = "a", .ndim = 1, .shape = {64}},
	{.name = "one", .ndim = 1, .shape = {1}},
	{.name = "mid", .ndim = 2, .shape = {50, 100}},
	{.name = "few", .ndim = 1, .shape = {3}},
	{.name = "last", .ndim = 1, .flags = SHARD_FROZEN, .shape = {20000}}, /* Whole chunks. */
};

struct how {
	const char *name;
	uint32_t nodes, ranks; /* `ranks` is the number on each node. */
	enum shard_dtype image, grad;
	uint32_t chunk;
	bool absent;
	const char *settings, *net;
	/* Some tensors have an image dtype of their own, or the last one is frozen. */
	enum { PLAIN, OWN, FROZEN } set;
};

struct training;

struct rank {
	struct training *of;
	pthread_t thread;
	uint32_t nr;
};

struct training {
	const struct how *how;
	struct inproc cluster;
	struct rank rank[RANKS_MAX];
	float *master, *image[INPROC_NODES_MAX];
};

static enum shard_dtype image_of(const struct how *h, uint32_t t)
{
	return h->set == OWN && own[t].image != 0 ? (enum shard_dtype)own[t].image : h->image;
}

static uint64_t numel(uint32_t t)
{
	return tensors[t].shape[0] * (tensors[t].ndim == 2 ? tensors[t].shape[1] : 1);
}

/* Gradients are absent in half of the steps, differently for each rank. Tensor "a" has none from
 * any rank in every third step. */
static bool absent(const struct how *h, uint64_t step, uint32_t rank, uint32_t t)
{
	return h->absent &&
	       ((step % 3 == 0 && t == 1) || (step % 2 == 1 && (t + rank + step / 2) % 3 == 0));
}

static float gradient(uint64_t step, uint32_t rank, uint32_t t, uint64_t i, float w)
{
	return w * (0.25f + 0.125f * (float)rank) +
	       ((float)((step * 31 + rank * 7 + i + t) % 13) - 6) * 0.0625f;
}

static void connect_rank(struct rank *r, shard_client **client, shard_model **m)
{
	const struct how *h = r->of->how;
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	struct shard_world w = SHARD_INIT(struct shard_world);
	uint32_t world = h->nodes * h->ranks;
	char settings[256];
	int created;

	*client = crew_connect(r->of->cluster.node[r->nr / h->ranks].unix_address);
	snprintf(settings, sizeof(settings),
		 "optimizer=sgd lr=0.125 min_world=%u max_world=%u local_world=%u chunk_elems=%u "
		 "timeout=20s %s",
		 world, world, h->ranks, h->chunk, h->settings ? h->settings : "");
	s.name = "m";
	s.tensors = h->set == OWN ? own : h->set == FROZEN ? frozen : tensors;
	s.tensors_nr = TENSORS;
	s.image = h->image;
	s.grad = h->grad;
	s.settings = settings;
	MUST(shard_define(*client, &s, m, &created));
	if (created) {
		float *w0 = malloc(numel(0) * sizeof(*w0));

		for (uint64_t i = 0; i < numel(0); i++)
			w0[i] = (float)(i % 97) * 0.25f - 10;
		for (uint32_t t = 0; t < TENSORS; t++)
			MUST(shard_write(*m, SHARD_MASTER, t, 0, numel(t), SHARD_F32, w0));
		free(w0);
		MUST(shard_seal(*m, 0));
	}
	MUST(shard_join(*m, (int)r->nr, pace_ms(20000), &w));
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
		w = gradient(step, r->nr, t, i, w);
		dtype_convert(g + i * out, h->grad, &w, SHARD_F32, 1);
	}
	MUST(shard_push(m, t, 0, numel(t), NULL, h->grad, 0, NULL));
}

static void *train(void *arg)
{
	struct rank *r = arg;
	shard_client *client;
	shard_model *m;

	connect_rank(r, &client, &m);
	for (uint64_t n = 1; n <= STEPS; n++) {
		struct shard_step s = SHARD_INIT(struct shard_step);
		struct shard_result res = SHARD_INIT(struct shard_result);
		shard_ticket ticket;

		MUST(shard_begin(m, NULL, &s));
		CHECK(s.step == n && s.rank == r->nr);
		for (uint32_t t = TENSORS; t-- > 0;)
			if (r->of->how->set == FROZEN && (frozen[t].flags & SHARD_FROZEN))
				continue;
			else if (absent(r->of->how, n, r->nr, t))
				MUST(shard_push_none(m, t));
			else
				push(r, m, n, t);
		MUST(shard_commit(m, &ticket));
		MUST(shard_result(m, ticket, pace_ms(20000), &res));
		CHECK(res.outcome == SHARD_APPLIED);
	}
	MUST(shard_leave(m, pace_ms(20000)));
	shard_disconnect(&client);
	return NULL;
}

static float *read_all(const char *address, enum shard_kind kind)
{
	shard_client *client = crew_connect(address);
	float *all = malloc(TOTAL * sizeof(*all));
	uint64_t at = 0, step = STEPS;
	shard_model *m;

	MUST(shard_attach(client, "m", &m));
	for (uint32_t t = 0; t < TENSORS; at += numel(t++))
		MUST(shard_read(m, kind, t, 0, numel(t), SHARD_F32, all + at, &step));
	CHECK(at == TOTAL);
	shard_disconnect(&client);
	return all;
}

/* Checks that the contributions and image chunks of every step went by RDMA. Those of the first
 * steps may have gone over TCP, before the memory was known. */
static void went_by_rdma(struct training *t)
{
	const struct how *h = t->how;

	for (uint32_t n = 0; n < h->nodes; n++)
		for (uint32_t k = 0; k < h->nodes; k++) {
			if (n == k)
				continue;
			assert_true(linked_says(&t->cluster.node[n], t->cluster.node[k].name,
						"transport", "rdma"));
			if (linked_figure(&t->cluster.node[n], t->cluster.node[k].name,
					  "rdma_in_bytes") <= 0)
				fail_msg("nothing came to node %u from node %u by RDMA:\n%s", n, k,
					 t->cluster.node[n].lines);
		}
}

static void run(struct training *t, const struct how *how, bool rdma)
{
	char net[256];

	*t = (struct training){.how = how};
	snprintf(net, sizeof(net), "transport = %s\n%s", rdma ? "rdma" : "tcp",
		 how->net ? how->net : "");
	inproc_start(&t->cluster, &(struct inproc_conf){.nodes = how->nodes, .net = net});
	if (rdma)
		linked_by_rdma(&t->cluster);
	for (uint32_t i = 0; i < how->nodes * how->ranks; i++) {
		t->rank[i] = (struct rank){.of = t, .nr = i};
		CHECK(pthread_create(&t->rank[i].thread, NULL, train, &t->rank[i]) == 0);
	}
	for (uint32_t i = 0; i < how->nodes * how->ranks; i++)
		pthread_join(t->rank[i].thread, NULL);
	t->master = read_all(t->cluster.node[0].unix_address, SHARD_MASTER);
	for (uint32_t n = 0; n < how->nodes; n++)
		t->image[n] = read_all(t->cluster.node[n].unix_address, SHARD_IMAGE);
	if (rdma)
		went_by_rdma(t);
	inproc_stop(&t->cluster);
}

static void free_bits(struct training *t)
{
	free(t->master);
	for (uint32_t n = 0; n < t->how->nodes; n++)
		free(t->image[n]);
}

static void equal_bits(void **state)
{
	static struct training tcp, rdma;
	const struct how *h = *state;

	fake_reset();
	run(&tcp, h, false);
	run(&rdma, h, true);
	assert_memory_equal(tcp.master, rdma.master, TOTAL * sizeof(float));
	for (uint32_t n = 0; n < h->nodes; n++)
		assert_memory_equal(tcp.image[n], rdma.image[n], TOTAL * sizeof(float));
	assert_memory_equal(rdma.image[0], rdma.image[1], TOTAL * sizeof(float));
	assert_int_equal(fake_rnr(), 0);
	free_bits(&tcp);
	free_bits(&rdma);
}

static const struct how hows[] = {
	{"bf16", 2, 1, SHARD_BF16, SHARD_BF16, 16384, false, NULL, NULL, PLAIN},
	{"fp32, two local ranks", 2, 2, SHARD_F32, SHARD_F32, 8192, false, "clip=0.5", NULL, PLAIN},
	{"fp16 gradients, bf16 image", 2, 1, SHARD_BF16, SHARD_F16, 65536, false, "loss_scale=1",
	 NULL, PLAIN},
	{"absent tensors", 2, 2, SHARD_F32, SHARD_BF16, 1024, true, NULL, NULL, PLAIN},
	{"one chunk", 2, 1, SHARD_F32, SHARD_F32, 1u << 20, true, NULL, NULL, PLAIN},
	{"three nodes", 3, 1, SHARD_F32, SHARD_F32, 16384, true, NULL, "rdma_queue_pairs = 3",
	 PLAIN},
	{"three nodes, two ranks, one queue pair", 3, 2, SHARD_BF16, SHARD_BF16, 4096, false, NULL,
	 "rdma_queue_pairs = 1", PLAIN},
	{"stale", 2, 1, SHARD_F32, SHARD_F32, 16384, true, "max_staleness=1", NULL, PLAIN},
	{"stale, three nodes", 3, 1, SHARD_BF16, SHARD_BF16, 4096, false, "max_staleness=1",
	 "connections = 2", PLAIN},
	{"two copies", 2, 2, SHARD_F32, SHARD_BF16, 4096, true, "replicas=2 clip=0.5", NULL, PLAIN},
	{"three nodes, two copies", 3, 1, SHARD_BF16, SHARD_BF16, 8192, true,
	 "replicas=2 max_staleness=1", "connections = 2\nrdma_queue_pairs = 3", PLAIN},
	{"three nodes, three copies", 3, 1, SHARD_F32, SHARD_F32, 65536, false, "replicas=3", NULL,
	 PLAIN},
	{.name = "own image dtypes",
	 .nodes = 2,
	 .ranks = 2,
	 .image = SHARD_BF16,
	 .grad = SHARD_BF16,
	 .chunk = 4096,
	 .set = OWN},
	{.name = "three nodes, own image dtypes, stale",
	 .nodes = 3,
	 .ranks = 1,
	 .image = SHARD_BF16,
	 .grad = SHARD_F32,
	 .chunk = 1024,
	 .absent = true,
	 .settings = "max_staleness=1",
	 .set = OWN},
	{.name = "three nodes, two copies, own image dtypes",
	 .nodes = 3,
	 .ranks = 1,
	 .image = SHARD_F16,
	 .grad = SHARD_BF16,
	 .chunk = 16384,
	 .settings = "replicas=2",
	 .net = "rdma_queue_pairs = 3",
	 .set = OWN},
	{"codes, two ranks", 2, 2, SHARD_BF16, SHARD_BF16, 4096, true,
	 "clip=0.5 grad_codec=int8 image_codec=int4", NULL, PLAIN},
	{"codes, three nodes, two copies", 3, 1, SHARD_F32, SHARD_BF16, 65536, true,
	 "replicas=2 grad_codec=int4 image_codec=int8 codec_block=64", "rdma_queue_pairs = 3",
	 PLAIN},
	{"codes, three nodes, stale", 3, 1, SHARD_F16, SHARD_F32, 16384, false,
	 "max_staleness=1 loss_scale=1 grad_codec=int8 image_codec=int8", "connections = 2", PLAIN},
	{.name = "codes, one chunk, own image dtypes",
	 .nodes = 2,
	 .ranks = 1,
	 .image = SHARD_BF16,
	 .grad = SHARD_F32,
	 .chunk = 1u << 20,
	 .settings = "grad_codec=int8 error_feedback=no image_codec=int8 predivide=2",
	 .set = OWN},
	{.name = "codes, frozen chunks",
	 .nodes = 3,
	 .ranks = 1,
	 .image = SHARD_BF16,
	 .grad = SHARD_BF16,
	 .chunk = 4096,
	 .settings = "grad_codec=int8 image_codec=int8",
	 .set = FROZEN},
	{"no sums", 2, 1, SHARD_BF16, SHARD_BF16, 16384, false, NULL,
	 "rdma_checksum = no\nrdma_busy_poll_us = 20", PLAIN},
};

int main(void)
{
	struct CMUnitTest tests[NR(hows)];

	for (size_t i = 0; i < NR(hows); i++)
		tests[i] = (struct CMUnitTest){hows[i].name, equal_bits, NULL, NULL,
					       (void *)(uintptr_t)&hows[i]};
	return cmocka_run_group_tests_name("rdma_bits", tests, NULL, NULL);
}
