// SPDX-License-Identifier: Apache-2.0
/* Models with tier = gpu whose nodes write gradients into the memory of one another's GPUs by RDMA.
 * The verbs are those of rdma/fake.h and the driver is that of tests/cuda, where such a write is
 * not seen before a flush, so all daemons are threads of this process. All bits of every node equal
 * the reference: with one copy and with several, with a part of the chunks on GPUs, over links that
 * fail, while chunks move, when a node joins, and where some gradients come over TCP. Where a GPU,
 * a device, a peer or an option does not allow it, gradients land in main memory as ever, and the
 * log says why. */
#include "base/check.h"
#include "base/clock.h"
#include "gpu/device.h"
#include "lib/crewed.h"
#include "lib/fakegpu.h"
#include "lib/linked.h"
#include "lib/pace.h"
#include "lib/tool.h"
#include "node/state.h"
#include "rdma/fake.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { STEPS = 8 };

#define NET    "rdma_checksum = no\n"
#define TIER   "tier=gpu chunk_elems=1024 "
#define GPU_OF "GPU-fa4e6e6f-2047-5055-2068-6572652e000" /* And the number of the device. */

static struct fakegpu fake;
static const char *daemon_lines = "gpu = auto\n";

static uint64_t sums(const struct inproc_node *n)
{
	uint64_t nr = 0;

	for (uint32_t i = 0; i < n->server->gpus_nr; i++) {
		struct gpu_about about;

		gpu_tell(n->server->gpu[i], &about);
		nr += about.sums;
	}
	return nr;
}

/* Nodes that are not started, and their crew. As begin(). */
static struct crewed *prepare(uint32_t nodes, uint32_t ranks, const char *settings,
			      const char *const net[])
{
	struct crewed *r = calloc(1, sizeof(*r));
	struct inproc_conf conf = {.nodes = nodes,
				   .daemon = daemon_lines,
				   .cluster = "heartbeat_timeout = 5s\nlost_timeout = 1000s\n"
					      "membership = static"};

	CHECK(r != NULL);
	fake_reset();
	conf.net = net[0]; /* The harness gives all nodes the same. */
	inproc_prepare(&r->cluster, &conf);
	for (uint32_t i = 1; i < nodes; i++) {
		struct inproc_node *n = &r->cluster.node[i];
		char *at = strstr(n->text, net[0]), *text;
		int bytes;

		if (strcmp(net[i], net[0]) == 0)
			continue;
		CHECK(at != NULL);
		bytes = asprintf(&text, "%.*s%s%s", (int)(at - n->text), n->text, net[i],
				 at + strlen(net[0]));
		CHECK(bytes > 0);
		free(n->text);
		n->text = text;
	}
	for (uint32_t i = 0; i < nodes; i++) {
		char *gpu = strstr(r->cluster.node[i].text, GPU_OF);

		if (gpu != NULL)
			gpu[strlen(GPU_OF)] = (char)('0' + i);
	}
	crew_init(&r->crew, "m");
	crew_larger(&r->crew, 8);
	r->crew.extra = settings;
	for (uint32_t i = 0; i < nodes * ranks; i++)
		crew_add(&r->crew, r->cluster.node[i / ranks].unix_address, i / ranks)->reconnects =
			true;
	return r;
}

static void start(struct inproc_node *n)
{
	if (inproc_node_start(n) != SHARD_OK)
		fail_msg("%s", n->why.text);
}

/* Nodes with a crew that has `ranks` trainers on each, before its first step. net: of node i. */
static struct crewed *begin(uint32_t nodes, uint32_t ranks, const char *settings,
			    const char *const net[])
{
	struct crewed *r = prepare(nodes, ranks, settings, net);

	for (uint32_t i = 0; i < nodes; i++)
		start(&r->cluster.node[i]);
	linked_by_rdma(&r->cluster);
	return r;
}

/* What a tool sees of the GPUs of a node. why: NULL, or why nobody writes to them. */
static void says(struct inproc_node *n, const char *why)
{
	json_t *status = inproc_status(n), *g;
	size_t i;

	assert_int_equal(json_array_size(json_object_get(status, "gpus")), 3);
	json_array_foreach(json_object_get(status, "gpus"), i, g) {
		const char *text = json_string_value(json_object_get(g, "not_direct"));

		assert_int_equal(json_is_true(json_object_get(g, "direct")), why == NULL);
		assert_int_equal(text != NULL, why != NULL);
		if (why != NULL && strstr(text, why) == NULL)
			fail_msg("status says \"%s\", and not \"%s\"", text, why);
	}
	json_decref(status);
}

static void direct_everywhere(struct crewed *r)
{
	for (uint32_t i = 0; i < r->cluster.nodes; i++) {
		says(&r->cluster.node[i], NULL);
		inproc_wait_log(&r->cluster.node[i], "event=gpu_direct model=m", 1);
		assert_int_equal(inproc_logged(&r->cluster.node[i], "event=gpu_direct_off"), 0);
	}
}

/* Each node has summed gradients on its GPUs. */
static void summed_everywhere(struct crewed *r)
{
	for (uint32_t i = 0; i < r->cluster.nodes; i++)
		if (sums(&r->cluster.node[i]) == 0)
			fail_msg("node %u has summed nothing on its GPUs:\n%s", i,
				 r->cluster.node[i].lines);
}

static const char *const plain[INPROC_NODES_MAX] = {NET, NET, NET};

struct how {
	const char *name;
	uint32_t nodes, ranks;
	const char *settings;
	int ordering;
};

static void bits(void **state)
{
	const struct how *h = *state;
	uint32_t flushes = fake.fake_cuda_flushes();
	struct crewed *r;

	fake.fake_cuda_attribute(118, h->ordering);
	r = begin(h->nodes, h->ranks, h->settings, plain);
	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, STEPS);
	direct_everywhere(r);
	summed_everywhere(r);
	assert_int_equal(fake.fake_cuda_flushes() > flushes, h->ordering == 0);
	crewed_end(r);
	assert_int_equal(fake_rnr(), 0);
	fake.fake_cuda_attribute(118, 0);
}

static const struct how hows[] = {
	{"bits, two nodes", 2, 1, TIER "replicas=1", 0},
	{"bits, two ranks on each", 2, 2, TIER "replicas=1 predivide=2", 0},
	{"bits, two copies", 2, 2, TIER "replicas=2", 0},
	{"bits, three nodes", 3, 1, TIER "replicas=1", 0},
	{"bits, three nodes, two copies", 3, 2, TIER "replicas=2", 0},
	{"bits, half of the chunks", 3, 1, TIER "replicas=2 gpu_share=50", 0},
	{"bits, stale", 2, 1, TIER "replicas=2 max_staleness=1", 0},
	{"bits, large chunks", 2, 1, "tier=gpu chunk_elems=16384 replicas=1", 0},
	{"bits, writes are ordered", 2, 1, TIER "replicas=2", 100},
};

/* --- where it is not possible --- */

/* Trains without any sum on GPUs, and each node says why. */
static void off(const char *const net[], const char *why)
{
	struct crewed *r = begin(2, 1, TIER "replicas=1", net);

	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, STEPS);
	for (uint32_t i = 0; i < 2; i++) {
		struct inproc_node *n = &r->cluster.node[i];
		char part[200];

		snprintf(part, sizeof(part), "event=gpu_direct_off model=m why=\"%s", why);
		assert_int_equal(inproc_logged(n, "event=gpu_direct model=m"), 0);
		if (inproc_logged(n, part) != 1)
			fail_msg("node %u does not say \"%s\":\n%s", i, part, n->lines);
		assert_int_equal(sums(n), 0);
		says(n, why);
		assert_true(linked_figure(n, i ? "a" : "b", "rdma_in_bytes") > 0);
	}
	crewed_end(r);
}

static void gpu_lacks(void **state)
{
	(void)state;
	fake.fake_cuda_attribute(124, 0);
	off(plain, "GPU-");
	fake.fake_cuda_attribute(124, 1);
}

static void sums_are_on(void **state)
{
	static const char *const net[] = {"rdma_queue_pairs = 2\n", "rdma_queue_pairs = 2\n"};

	(void)state;
	off(net, "[net] rdma_checksum = yes");
}

static void option_is_off(void **state)
{
	static const char *const net[] = {NET "rdma_gpu = off\n", NET "rdma_gpu = off\n"};

	(void)state;
	off(net, "[net] rdma_gpu = off");
}

/* The state has room on the devices, and nothing beside it. */
static void no_room(void **state)
{
	struct crewed *r;

	(void)state;
	daemon_lines = "gpu = auto\ngpu_memory = 2MiB\n";
	r = begin(2, 1, TIER "replicas=1", plain);
	daemon_lines = "gpu = auto\n";
	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, STEPS);
	for (uint32_t i = 0; i < 2; i++) {
		struct inproc_node *n = &r->cluster.node[i];

		assert_int_equal(inproc_logged(n, "event=gpu_tier model=m gpus=3"), 1);
		if (inproc_logged(n, "event=gpu_direct_off model=m why=") != 1 ||
		    inproc_logged(n, "2097152 are in use for models of 2097152 that may be") != 1)
			fail_msg("%s", n->lines);
		assert_int_equal(sums(n), 0);
	}
	crewed_end(r);
}

/* The reference of the crew has no codes, so bits are not compared. */
static void codes(void **state)
{
	struct crewed *r = begin(2, 1, TIER "replicas=1 grad_codec=int8", plain);

	(void)state;
	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, STEPS);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(inproc_logged(&r->cluster.node[i],
					       "event=gpu_direct_off model=m why=\"its grad_codec"),
				 1);
		assert_int_equal(sums(&r->cluster.node[i]), 0);
	}
	(void)crew_finish(&r->crew);
	inproc_stop(&r->cluster);
	free(r);
}

/* The RDMA device cannot. */
static void device_lacks(void **state)
{
	static const struct fake_device old = {
		.gid = {{"fe80::1", IBV_GID_TYPE_ROCE_V1}, {"127.0.0.1", IBV_GID_TYPE_ROCE_V2}},
		.no_dma_buf = true};
	struct inproc_node *n;
	struct crewed *r;

	(void)state;
	fake_reset();
	fake_devices(&old, 1);
	r = calloc(1, sizeof(*r));
	CHECK(r != NULL);
	inproc_start(&r->cluster,
		     &(struct inproc_conf){.nodes = 2, .daemon = "gpu = auto\n", .net = NET});
	crew_init(&r->crew, "m");
	r->crew.extra = TIER "replicas=1";
	for (uint32_t i = 0; i < 2; i++)
		crew_add(&r->crew, r->cluster.node[i].unix_address, i);
	linked_by_rdma(&r->cluster);
	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, STEPS);
	n = &r->cluster.node[1];
	assert_int_equal(inproc_logged(n, "takes no memory of other devices"), 1);
	assert_int_equal(sums(n), 0);
	crewed_end(r);
}

/* The memory is there, and cannot be registered: gradients land in main memory, by RDMA. */
static void not_registered(void **state)
{
	struct crewed *r = begin(2, 1, TIER "replicas=2", plain);

	(void)state;
	fake_fail_always(FAKE_REG_DMABUF_MR, EINVAL);
	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, STEPS);
	for (uint32_t i = 0; i < 2; i++) {
		struct inproc_node *n = &r->cluster.node[i];

		assert_int_equal(inproc_logged(n, "event=gpu_direct model=m"), 1);
		assert_true(inproc_logged(n, "event=gpu_direct_off model=m peer=") > 0);
		assert_int_equal(sums(n), 0);
		assert_true(linked_figure(n, i ? "a" : "b", "rdma_in_bytes") > 0);
	}
	fake_fail_always(FAKE_REG_DMABUF_MR, 0);
	crewed_end(r);
}

/* One node wants sums: its gradients land in main memory, and go up for the sum with those of the
 * third node, which are there. */
static void mixed(void **state)
{
	static const char *const net[] = {"rdma_checksum = yes\n", NET, NET};
	struct crewed *r;

	(void)state;
	r = begin(3, 1, TIER "replicas=2", net);
	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, STEPS);
	assert_int_equal(sums(&r->cluster.node[0]), 0);
	for (uint32_t i = 1; i < 3; i++) {
		assert_int_equal(inproc_logged(&r->cluster.node[i], "event=gpu_direct model=m"), 1);
		assert_int_equal(inproc_logged(&r->cluster.node[i],
					       "event=gpu_direct_off model=m peer=a why=\"bodies"),
				 1);
		assert_true(sums(&r->cluster.node[i]) > 0);
	}
	crewed_end(r);
}

/* --- what happens meanwhile --- */

/* Queue pairs break, and the attempt is made again, over TCP at first. */
static void rails_break(void **state)
{
	struct crewed *r = begin(2, 2, TIER "replicas=2", plain);
	uint64_t before;

	(void)state;
	r->crew.pause_us = 10000;
	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, STEPS);
	for (int turn = 0; turn < 3; turn++) {
		uint32_t qpn[64], nr = fake_qps(qpn, 64);

		assert_true(nr > 0);
		fake_break_qp(qpn[(uint32_t)turn % nr]);
		crewed_steps(r, STEPS);
		linked_by_rdma(&r->cluster);
	}
	before = sums(&r->cluster.node[0]);
	for (uint64_t until = pace_by(20); sums(&r->cluster.node[0]) == before; usleep(10000))
		assert_true(clock_ns() < until);
	crewed_end(r);
}

/* A device writes in the middle of a link's end: bodies are under way. */
static void writes_under_way(void **state)
{
	struct crewed *r = begin(2, 1, TIER "replicas=1", plain);

	(void)state;
	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, STEPS);
	for (int turn = 0; turn < 2; turn++) {
		uint32_t qpn[64], nr;
		uint64_t seed = 5;

		fake_hold(true);
		for (uint64_t until = pace_by(20); fake_deliver(3, &seed) == 0; usleep(1000))
			assert_true(clock_ns() < until);
		nr = fake_qps(qpn, 64);
		assert_true(nr > 0);
		fake_break_qp(qpn[0]);
		fake_hold(false);
		crewed_steps(r, STEPS);
		linked_by_rdma(&r->cluster);
	}
	crewed_end(r);
}

/* The whole of a node goes, with its devices' memory, and comes back. */
static void comes_back(void **state)
{
	struct crewed *r = begin(3, 1, TIER "replicas=2", plain);
	struct inproc_node *c = &r->cluster.node[2];

	(void)state;
	r->crew.member[2].address = r->cluster.node[1].unix_address;
	r->crew.member[2].node = 1;
	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, STEPS);
	inproc_node_stop(c);
	crewed_steps(r, STEPS);
	assert_int_equal(inproc_node_start(c), SHARD_OK);
	linked_by_rdma(&r->cluster);
	for (uint64_t until = pace_by(20); sums(c) == 0; usleep(10000))
		assert_true(clock_ns() < until);
	crewed_steps(r, STEPS);
	crewed_end(r);
}

/* The node's configuration does not have the lines that begin so. */
static void without(struct inproc_node *n, const char *key)
{
	char part[40], *at;

	snprintf(part, sizeof(part), "\n%s = ", key);
	at = strstr(n->text, part);
	CHECK(at != NULL);
	memmove(at, at + 1 + strcspn(at + 1, "\n"), strlen(at + 1 + strcspn(at + 1, "\n")) + 1);
}

/* A node joins when the others have their direct slots, which have no place for its gradients: they
 * come over TCP, and are added in main memory to those that others have written to the device. */
static void joins(void **state)
{
	struct crewed *r = prepare(3, 1, TIER "replicas=1", plain);
	struct inproc_node *n = r->cluster.node, *c = &n[2];
	char *text = NULL;

	(void)state;
	for (uint32_t i = 0; i < 2; i++)
		without(&n[i], "c");
	without(c, "a");
	without(c, "b");
	without(c, "c");
	without(c, "membership");
	CHECK(asprintf(&text, "%s\n[cluster]\njoin = 127.0.0.1:%u\n", c->text, n[0].port) > 0);
	free(c->text);
	c->text = text;
	start(&n[0]);
	start(&n[1]);
	linked_await(&n[0], "b", "transport", "rdma");
	linked_await(&n[1], "a", "transport", "rdma");
	crew_start(&r->crew, UINT64_MAX); /* It takes three trainers. */
	for (uint32_t i = 0; i < 2; i++)
		inproc_wait_log(&n[i], "event=gpu_direct model=m", 1);
	start(c);
	crewed_steps(r, 3 * STEPS);
	for (uint32_t i = 0; i < 2; i++) {
		assert_true(linked_figure(&n[i], i ? "a" : "b", "rdma_in_bytes") > 0);
		assert_int_equal(sums(&n[i]), 0);
		/* Which the operator hears, and how to end it. */
		assert_int_equal(inproc_logged(&n[i], "event=gpu_direct_short model=m chunks="), 1);
	}
	assert_int_equal(inproc_logged(c, "event=gpu_direct_short"), 0);
	crewed_end(r);
}

/* A GPU fails while others write to it. Its node alone has lost its copy, and makes it again where
 * it has room, with other slots. The driver keeps what it had pinned for that GPU until the process
 * ends, and other memory must not come there, so this test is the last one. */
static void device_fails(void **state)
{
	struct crewed *r;
	uint32_t lost = 0;

	(void)state;
	daemon_lines = "gpu = " GPU_OF "0\n"; /* Of the first node: begin() gives each its own. */
	r = begin(3, 1, TIER "replicas=2", plain);
	daemon_lines = "gpu = auto\n";
	r->crew.pause_us = 10000;
	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, STEPS);
	summed_everywhere(r);
	fake.fake_cuda_fail("cuFlushGPUDirectRDMAWrites", 1, 700);
	crewed_steps(r, STEPS);
	for (uint64_t until = pace_by(20); lost == 0; usleep(10000)) {
		assert_true(clock_ns() < until);
		for (uint32_t i = 0; i < 3; i++)
			lost += inproc_logged(&r->cluster.node[i], "event=gpu_state_lost model=m");
	}
	assert_int_equal(lost, 1);
	crewed_steps(r, 2 * STEPS);
	for (uint32_t i = 0; i < 3; i++)
		if (inproc_logged(&r->cluster.node[i], "event=gpu_state_lost model=m"))
			inproc_wait_log(&r->cluster.node[i], "event=gpu_to_memory model=m", 1);
	crewed_end(r);
	fake.fake_cuda_fail(NULL, 0, 0);
}

static void drain(struct crewed *r, const char *what, const char *part)
{
	char line[240];

	snprintf(line, sizeof(line), "drain %s --timeout 20 --address %s", what,
		 r->cluster.node[0].unix_address);
	tool_expect(0, part, "shardctl", line);
}

/* Chunks that moved travel as before, beside those that were there from the beginning. */
static void moves(void **state)
{
	struct crewed *r = begin(3, 1, TIER "replicas=2", plain);

	(void)state;
	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, STEPS);
	for (int turn = 0; turn < 2; turn++) {
		drain(r, "c", "node c is drained: it holds no chunks, and may be stopped");
		crewed_steps(r, STEPS);
		drain(r, "--undo c", "node c holds its share of chunks again");
		crewed_steps(r, STEPS);
	}
	summed_everywhere(r);
	crewed_end(r);
}

/* --- a gradient that is not finite --- */

struct pusher { /* The only trainer of a node. */
	struct crewed *r;
	uint32_t rank;
	pthread_t thread;
};

/* In step 2 rank 1 has an infinite element, and in step 3 both have, in another tensor. */
static void *push(void *arg)
{
	static const struct shard_tensor tensors[] = {
		{.name = "a", .ndim = 1, .shape = {3000}},
		{.name = "b", .ndim = 1, .shape = {5000}},
	};
	struct pusher *p = arg;
	shard_client *client = crew_connect(p->r->cluster.node[p->rank].unix_address);
	struct shard_spec s = {.size = sizeof(s),
			       .name = "bad",
			       .tensors = tensors,
			       .tensors_nr = 2,
			       .image = SHARD_F32,
			       .grad = SHARD_F32,
			       .settings = "optimizer=sgd lr=0.125 min_world=2 max_world=2 "
					   "timeout=20s replicas=1 " TIER};
	struct shard_world w = SHARD_INIT(struct shard_world);
	float *g = calloc(5000, sizeof(*g));
	shard_model *m;
	int created;

	CHECK(g != NULL);
	MUST(shard_define(client, &s, &m, &created));
	if (created) {
		for (uint32_t t = 0; t < 2; t++)
			MUST(shard_write(m, SHARD_MASTER, t, 0, tensors[t].shape[0], SHARD_F32, g));
		MUST(shard_seal(m, 0));
	}
	MUST(shard_join(m, (int)p->rank, pace_ms(20000), &w));
	for (uint64_t step = 1; step <= 4; step++) {
		struct shard_step at = SHARD_INIT(struct shard_step);
		struct shard_result res = SHARD_INIT(struct shard_result);
		shard_ticket ticket;

		MUST(shard_begin(m, NULL, &at));
		for (uint32_t t = 2; t-- > 0;) {
			for (uint32_t i = 0; i < 5000; i++)
				g[i] = (float)(i % 7 + p->rank) * 0.5f;
			if (step == 2 && t == 1 && p->rank == 1)
				g[4321] = INFINITY;
			if (step == 3 && t == 0)
				g[5] = p->rank ? INFINITY : -INFINITY;
			MUST(shard_push(m, t, 0, tensors[t].shape[0], g, SHARD_F32, 0, NULL));
		}
		MUST(shard_commit(m, &ticket));
		MUST(shard_result(m, ticket, pace_ms(20000), &res));
		CHECK(res.outcome == (step % 4 > 1 ? SHARD_SKIPPED_NONFINITE : SHARD_APPLIED));
		if (step == 2)
			CHECK(res.bad_tensor == 1 && res.bad_rank == 1);
		if (step == 3)
			CHECK(res.bad_tensor == 0 && res.bad_rank == 0);
	}
	MUST(shard_leave(m, pace_ms(20000)));
	shard_disconnect(&client);
	free(g);
	return NULL;
}

static void not_finite(void **state)
{
	struct crewed *r = begin(2, 1, TIER "replicas=1", plain);
	struct pusher p[2] = {{r, 0, 0}, {r, 1, 0}};

	(void)state;
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&p[i].thread, NULL, push, &p[i]) == 0);
	for (int i = 0; i < 2; i++)
		pthread_join(p[i].thread, NULL);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(inproc_logged(&r->cluster.node[i], "event=gpu_direct model=bad"),
				 1);
		assert_true(sums(&r->cluster.node[i]) > 0);
	}
	inproc_stop(&r->cluster);
	free(r);
}

/* --- what shardctl plan says --- */

/* A model that is large enough for a device's rounding to be little of it. */
static void planned(void **state)
{
	const char *lines = daemon_lines;
	struct shard_tensor t = {.name = "w", .ndim = 1, .shape = {8 << 20}};
	struct shard_spec s = {.size = sizeof(s),
			       .name = "large",
			       .tensors = &t,
			       .tensors_nr = 1,
			       .image = SHARD_BF16,
			       .grad = SHARD_BF16,
			       .settings = "optimizer=adamw lr=1 chunk_elems=65536 tier=gpu "
					   "replicas=1 min_world=2 max_world=2 local_world=1"};
	uint64_t used, plan, direct;
	struct crewed *r;
	shard_client *client;
	shard_model *m;
	char *said = NULL;
	json_t *o, *g;
	int created;

	(void)state;
	daemon_lines = "gpu = " GPU_OF "0\n";
	r = begin(2, 1, TIER, plain);
	daemon_lines = lines;
	client = crew_connect(r->cluster.node[0].unix_address);
	MUST(shard_define(client, &s, &m, &created));
	shard_disconnect(&client);
	assert_int_equal(tool_run(&said, "shardctl",
				  "plan --json --params 8388608 --nodes 2 --local 1 --replicas 1 "
				  "--chunk-elems 65536 --gpu-share 100 --gpu-direct yes"),
			 0);
	o = json_loads(said, 0, NULL);
	assert_non_null(o);
	g = json_object_get(o, "shardd");
	direct = (uint64_t)json_integer_value(json_object_get(g, "gpu_direct_bytes"));
	plan = direct + (uint64_t)json_integer_value(json_object_get(g, "gpu_bytes"));
	json_decref(o);
	free(said);
	assert_int_equal(direct, 2 * (4 << 20) * 2); /* A half of the chunks, of two nodes. */
	for (uint32_t i = 0; i < 2; i++) {
		inproc_wait_log(&r->cluster.node[i], "event=gpu_direct model=large", 1);
		o = inproc_status(&r->cluster.node[i]);
		g = json_array_get(json_object_get(o, "gpus"), 0);
		used = (uint64_t)json_integer_value(json_object_get(g, "used"));
		json_decref(o);
		if (used > plan + plan / 50 || plan > used + used / 50)
			fail_msg("node %u has %lu bytes on its GPU, and the plan says %lu", i,
				 (unsigned long)used, (unsigned long)plan);
	}
	inproc_stop(&r->cluster);
	free(r);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest more[] = {
		cmocka_unit_test(gpu_lacks),      cmocka_unit_test(sums_are_on),
		cmocka_unit_test(option_is_off),  cmocka_unit_test(no_room),
		cmocka_unit_test(codes),          cmocka_unit_test(device_lacks),
		cmocka_unit_test(not_registered), cmocka_unit_test(mixed),
		cmocka_unit_test(rails_break),    cmocka_unit_test(writes_under_way),
		cmocka_unit_test(comes_back),     cmocka_unit_test(moves),
		cmocka_unit_test(joins),          cmocka_unit_test(not_finite),
		cmocka_unit_test(planned),        cmocka_unit_test(device_fails),
	};
	struct CMUnitTest tests[NR(hows) + NR(more)];

	CHECK(setenv("FAKE_CUDA_DEVICES", "3", 0) == 0 &&
	      setenv("FAKE_CUDA_DELAY_US", "20", 0) == 0);
	fakegpu_path(argv);
	fakegpu_find(&fake);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	for (size_t i = 0; i < NR(hows); i++)
		tests[i] = (struct CMUnitTest){hows[i].name, bits, NULL, NULL,
					       (void *)(uintptr_t)&hows[i]};
	memcpy(&tests[NR(hows)], more, sizeof(more));
	return cmocka_run_group_tests_name("rdma_gpu", tests, NULL, NULL);
}
