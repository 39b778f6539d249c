// SPDX-License-Identifier: Apache-2.0
/* Codes of gradients and images go by RDMA, and every bit is that of the reference. Nodes a and b
 * have a trainer each, and node c, which has none, holds chunks and may vote before it has seen an
 * image. The crew computes the result without any daemon. The verbs are those of rdma/fake.h, and
 * the test counts the frames that they carry. */
#include "base/check.h"
#include "base/clock.h"
#include "data/deltas.h"
#include "data/events.h"
#include "data/images.h"
#include "data/mr.h"
#include "data/patches.h"
#include "lib/crewed.h"
#include "lib/linked.h"
#include "lib/pace.h"
#include "link/peer.h"
#include "model/model.h"
#include "lib/rmtree.h"
#include "rdma/fake.h"
#include "store/tier.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NODES = 3, OPS = 128 };

/* --- what goes by RDMA --- */

struct counted {
	_Atomic uint64_t frames[OPS], short_ones;
	_Atomic uint16_t
		shorten; /* The op of the next frame that is to say fewer bytes. 0: none. */
};

static struct counted counted;

/* Finds the ordinal of a sealed header, and seals it anew with one byte less. */
static bool say_less(struct wire_head *h)
{
	size_t bytes = offsetof(struct wire_head, head_sum);

	for (uint64_t qp = 0; qp < 4; qp++)
		for (uint64_t n = 0; n < 100000; n++) {
			if (h->head_sum != (uint32_t)xxh_sum(h, bytes, qp << 56 | n))
				continue;
			h->body_bytes--;
			h->head_sum = (uint32_t)xxh_sum(h, bytes, qp << 56 | n);
			return true;
		}
	return false;
}

static void count(void *arg, uint32_t qpn, struct ibv_send_wr *wr)
{
	struct wire_head *h;

	(void)arg;
	(void)qpn;
	if (wr->opcode != IBV_WR_SEND_WITH_IMM || wr->num_sge == 0 ||
	    wr->sg_list->length < sizeof(*h))
		return;
	h = (struct wire_head *)(uintptr_t)wr->sg_list->addr;
	CHECK(h->op < OPS);
	counted.frames[h->op]++;
	if (counted.shorten != 0 && counted.shorten == h->op) {
		counted.shorten = 0;
		counted.short_ones += say_less(h);
	}
}

/* --- a cluster that trains --- */

struct how {
	const char *name, *extra, *net;
	bool gradients, images; /* Which of them are codes. */
};

/* of_c: lines of the configuration of node c. */
static struct crewed *begin_with(const struct how *h, bool start, const char *daemon,
				 const char *of_c)
{
	struct crewed *r = calloc(1, sizeof(*r));
	struct inproc_node *c = &r->cluster.node[2];
	char *text = NULL;

	assert_non_null(r);
	fake_reset();
	counted = (struct counted){.shorten = 0};
	fake_hook(count, NULL);
	inproc_prepare(&r->cluster, &(struct inproc_conf){.nodes = NODES,
							  .net = h->net,
							  .daemon = daemon,
							  .cluster = "heartbeat_timeout = 5s\n"
								     "lost_timeout = 1000s\n"
								     "membership = static"});
	CHECK(asprintf(&text, "%s\n%s\n", c->text, of_c) > 0);
	free(c->text);
	c->text = text;
	for (uint32_t i = 0; i < NODES; i++)
		if (inproc_node_start(&r->cluster.node[i]) != SHARD_OK)
			fail_msg("%s", r->cluster.node[i].why.text);
	crew_init(&r->crew, "coded");
	crew_larger(&r->crew, 4);
	r->crew.extra = h->extra;
	for (uint32_t i = 0; i < 2; i++)
		crew_add(&r->crew, r->cluster.node[i].unix_address, i)->reconnects = true;
	if (h->net == NULL || strstr(h->net, "tcp") == NULL)
		linked_by_rdma(&r->cluster);
	if (start)
		crew_start(&r->crew, UINT64_MAX);
	return r;
}

static struct crewed *begin(const struct how *h, bool start, const char *daemon)
{
	return begin_with(h, start, daemon, "");
}

static void one_more(struct crewed *r, uint64_t by)
{
	assert_true(clock_ns() < by);
	crewed_steps(r, 1);
}

/* Trains until codes have gone by RDMA, so many frames more. */
static void until_coded(struct crewed *r, const struct how *h)
{
	uint64_t by = pace_by(60);
	uint64_t contribs = counted.frames[OP_CONTRIB_DATA] + 20,
		 codes = counted.frames[OP_IMAGE_CODES] + 20;

	while ((h->gradients && counted.frames[OP_CONTRIB_DATA] < contribs) ||
	       (h->images && counted.frames[OP_IMAGE_CODES] < codes))
		one_more(r, by);
}

static void end(struct crewed *r, const struct how *h)
{
	crewed_end(r);
	fake_hook(NULL, NULL);
	assert_int_equal(fake_rnr(), 0);
	if (h->images)
		assert_int_equal(counted.frames[OP_IMAGE_DATA], 0);
	else
		assert_int_equal(counted.frames[OP_IMAGE_CODES], 0);
}

static const struct how hows[] = {
	{"gradients, int8", "grad_codec=int8", NULL, true, false},
	{"gradients, int4", "grad_codec=int4 codec_block=64", NULL, true, false},
	{"images, int8", "image_codec=int8", NULL, false, true},
	{"images, int4", "image_codec=int4", NULL, false, true},
	{"both, int8, two copies", "grad_codec=int8 image_codec=int8 replicas=2", NULL, true, true},
	{"both, int4, two copies", "grad_codec=int4 image_codec=int4 replicas=2", NULL, true, true},
	{"both, int8, two images", "grad_codec=int8 image_codec=int8 max_staleness=1",
	 "connections = 2\nrdma_queue_pairs = 3", true, true},
	{"both, int4, without sums", "grad_codec=int4 image_codec=int4", "rdma_checksum = no", true,
	 true},
};

static void equals_the_reference(void **state)
{
	const struct how *h = *state;
	struct crewed *r = begin(h, true, NULL);

	until_coded(r, h);
	crewed_steps(r, 5);
	end(r, h);
}

/* Both other nodes hold all chunks, so all codes of images go to node c. */
static void to_a_node_without_chunks(void **state)
{
	static const struct how h = {"", "image_codec=int8 replicas=2", NULL, false, true};
	struct crewed *r = begin_with(&h, true, NULL, "[daemon]\ncapacity = 0");

	(void)state;
	until_coded(r, &h);
	crewed_steps(r, 5);
	end(r, &h);
}

/* --- links that fall --- */

static void falls_back(void **state)
{
	static const struct how h = {"", "grad_codec=int8 image_codec=int4", NULL, true, true};
	struct crewed *r = begin(&h, true, NULL);

	(void)state;
	for (int i = 0; i < 2; i++) {
		uint32_t qpn[16], nr;

		until_coded(r, &h);
		nr = fake_qps(qpn, 16);
		assert_true(nr > 0);
		fake_break_qp(qpn[nr / 2]);
		crewed_steps(r, 3); /* By TCP. */
		linked_by_rdma(&r->cluster);
	}
	until_coded(r, &h);
	end(r, &h);
}

/* Node b is stopped in mid-run and comes back, with its memory or without, which has what its codes
 * have lost. */
static void started_again(void **state)
{
	bool warm = *state != NULL;
	const struct how h = {
		"",
		warm ? "grad_codec=int4 image_codec=int8 replicas=2"
		     : "grad_codec=int4 image_codec=int8 replicas=2 error_feedback=no",
		NULL, true, true};
	char folder[] = "/dev/shm/shard-codes-XXXXXX", daemon[128];
	struct crewed *r;

	assert_non_null(mkdtemp(folder));
	snprintf(daemon, sizeof(daemon), "warm_restart = tmpfs\nwarm_dir = %s", folder);
	r = begin(&h, true, warm ? daemon : NULL);
	until_coded(r, &h);
	inproc_node_stop(&r->cluster.node[1]);
	assert_int_equal(inproc_node_start(&r->cluster.node[1]), SHARD_OK);
	if (warm)
		inproc_wait_log(&r->cluster.node[1], "event=warm_start models=1", 1);
	else
		inproc_wait_log(&r->cluster.node[1], "event=learned model=coded", 1);
	linked_by_rdma(&r->cluster);
	until_coded(r, &h);
	end(r, &h);
	rmtree(folder);
}

/* --- a peer that says what is not so --- */

static void short_codes(void **state)
{
	static const struct how h = {"", "grad_codec=int8 image_codec=int8", NULL, true, true};
	uint16_t op = (uint16_t)(uintptr_t)*state;
	struct crewed *r = begin(&h, true, NULL);
	uint64_t by = pace_by(60);
	uint32_t refused = 0;

	until_coded(r, &h);
	counted.shorten = op;
	while (counted.short_ones == 0)
		one_more(r, by);
	while (refused == 0) {
		for (uint32_t i = 0; i < NODES; i++)
			refused += inproc_logged(&r->cluster.node[i], op == OP_IMAGE_CODES
									      ? "no such part"
									      : "(contrib_data)");
		one_more(r, by);
	}
	crewed_steps(r, 3);
	linked_by_rdma(&r->cluster);
	until_coded(r, &h);
	end(r, &h);
}

/* --- a vote while an image is being made of codes --- */

/* Node c holds back the job of one chunk until it has voted for the next step. From then on a
 * primary that was told where the codes are may write over them, so what came of them must count
 * for nothing. Over TCP nobody does, and it counts. */
static struct voting {
	struct tier_row row;
	const struct tier_row *real;
	uv_check_t check;
	struct model *m;
	struct tier_patch patch;
	struct tier_call call;
	bool open, held, by_tcp;
	_Atomic uint32_t ended; /* Jobs that were held back until a vote. */
} voting;

static void after_each_turn(uv_check_t *check)
{
	struct voting *v = check->data;
	struct model *m = v->m;
	uint64_t step = m->deltas->step[v->patch.chunk];
	uint32_t chunk = v->patch.chunk;
	struct tier_result result = {.sumsq = 0};

	if (!v->held || (!m->attempt.voted && step == m->content_step))
		return;
	v->held = false;
	if (m->attempt.voted && step == m->content_step) {
		if (v->ended == 2)
			mr_forget(m->server); /* What was written before has landed. */
		CHECK(deltas_fit(m, step, chunk) == v->by_tcp);
		m->attempt.voted = false; /* Nothing but the vote is in the way. */
		CHECK(deltas_fit(m, step, chunk));
		m->attempt.voted = true;
	}
	v->call.here = true;
	if (v->by_tcp)
		CHECK(v->real->patch(m->tier, &v->patch, &v->call) == SHARD_OK);
	else
		v->call.done(v->call.owner, v->call.tag, &result);
	if (m->attempt.voted && step == m->content_step) {
		CHECK(!deltas_busy(m, chunk) && images_here(m, chunk) == v->by_tcp);
		CHECK(v->by_tcp || !deltas_fit(m, step, chunk));
		v->ended++;
	}
}

static enum shard_status patch_later(struct tier *t, const struct tier_patch *p,
				     const struct tier_call *c)
{
	struct voting *v = &voting;

	if (v->held || v->m->deltas->step[p->chunk] != v->m->content_step)
		return v->real->patch(t, p, c);
	v->patch = *p;
	v->call = *c;
	v->held = true;
	return SHARD_OK;
}

/* On the loop of node c. */
static void take_over(struct model *m)
{
	struct voting *v = &voting;

	v->m = m;
	v->real = m->tier->row;
	v->row = *v->real;
	v->row.patch = patch_later;
	m->tier->row = &v->row;
}

static struct data_events events;
static const struct data_events *real_events;

static void applied(struct model *m)
{
	struct voting *v = &voting;

	if (!v->open && v->ended == 0) {
		take_over(m);
		CHECK(uv_check_init(m->server->loop, &v->check) == 0);
		CHECK(uv_check_start(&v->check, after_each_turn) == 0);
		v->check.data = v;
		v->open = true;
	} else if (v->open && !v->held && v->ended >= 3) {
		m->tier->row = v->real;
		uv_close((uv_handle_t *)&v->check, NULL);
		v->open = false;
	}
	real_events->applied(m);
}

static void voted_meanwhile(void **state)
{
	const bool by_tcp = *state != NULL;
	const struct how h = {"", "image_codec=int8", by_tcp ? "transport = tcp" : NULL, false,
			      !by_tcp};
	struct crewed *r = begin(&h, false, NULL);
	struct server *c = r->cluster.node[2].server;
	uint64_t by = pace_by(60);

	voting = (struct voting){.by_tcp = by_tcp};
	real_events = c->data;
	events = *real_events;
	events.applied = applied;
	c->data = &events; /* It has no model yet. */
	crew_start(&r->crew, UINT64_MAX);
	while (voting.ended < 3)
		one_more(r, by);
	crewed_steps(r, 5);
	until_coded(r, &h);
	end(r, &h);
}

int main(int argc, char **argv)
{
	struct CMUnitTest tests[NR(hows) + 8];
	size_t nr = 0;

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);

	for (; nr < NR(hows); nr++)
		tests[nr] = (struct CMUnitTest){hows[nr].name, equals_the_reference, NULL, NULL,
						(void *)(uintptr_t)&hows[nr]};
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(to_a_node_without_chunks);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(falls_back);
	tests[nr++] =
		(struct CMUnitTest){"started without memory", started_again, NULL, NULL, NULL};
	tests[nr++] =
		(struct CMUnitTest){"started with memory", started_again, NULL, NULL, (void *)1};
	tests[nr++] = (struct CMUnitTest){"short codes of an image", short_codes, NULL, NULL,
					  (void *)OP_IMAGE_CODES};
	tests[nr++] = (struct CMUnitTest){"short codes of a gradient", short_codes, NULL, NULL,
					  (void *)OP_CONTRIB_DATA};
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(voted_meanwhile);
	tests[nr++] = (struct CMUnitTest){"voted meanwhile, over TCP", voted_meanwhile, NULL, NULL,
					  (void *)1};
	assert_int_equal(nr, NR(tests));
	return cmocka_run_group_tests_name("rdma_codes", tests, NULL, NULL);
}
