/* SPDX-License-Identifier: Apache-2.0 */
/* Tests an RDMA peer that is wrong or hostile in its ends, headers, lengths, immediates and writes.
 * Everything is refused with a text that says what is wrong, and it is counted. Nothing of it
 * reaches the owner. The hook of the fake verbs changes what is changed on the wire. */
#include "base/check.h"
#include "base/rng.h"
#include "lib/rails.h"
#include "rdma/fake.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static int reset(void **state)
{
	(void)state;
	fake_reset();
	return 0;
}

/* What the hook does to the frame number `at` of the queue pair with this number. Before that
 * frame it saves a copy. */
struct evil {
	uint32_t qpn;
	uint64_t frames, at;
	void (*harm)(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h);
	void (*harm_body)(struct evil *v, struct ibv_send_wr *wr);
	struct wire_head first;
	struct rng rng;
	unsigned char *land;
};

static void reseal(struct wire_head *h, uint64_t ordinal)
{
	h->head_sum = (uint32_t)xxh_sum(h, offsetof(struct wire_head, head_sum), ordinal);
}

static void hook(void *arg, uint32_t qpn, struct ibv_send_wr *wr)
{
	struct evil *v = arg;
	struct wire_head *h;

	if (qpn != v->qpn)
		return;
	if (wr->opcode == IBV_WR_RDMA_WRITE) {
		if (v->frames == v->at && v->harm_body)
			v->harm_body(v, wr);
		return;
	}
	h = (void *)(uintptr_t)wr->sg_list->addr;
	if (wr->num_sge == 0)
		return;
	if (v->frames == 0)
		v->first = *h;
	if (v->frames == v->at && v->harm)
		v->harm(v, wr, h);
	v->frames++;
}

/* End 0 sends ten frames on queue pair 0, bulk and control in turn. Harm is done to frame `at`.
 * If it is even, that is a bulk frame. */
static void run(struct rails *r, struct evil *v)
{
	uint32_t qpn[8];

	assert_true(fake_qps(qpn, 8) >= 4);
	v->qpn = qpn[0];
	v->frames = 0;
	v->land = r->end[1].land_at;
	fake_hook(hook, v);
	for (int i = 0; i < 10; i++)
		assert_int_equal(i % 2 ? rails_control(r, 0, 0, 20)
				       : rails_send(r, 0, 0, 1000, (uint64_t)i),
				 SHARD_OK);
	rails_kick(r, 0);
	for (int i = 0; i < 50 && r->end[1].fails == 0; i++)
		rails_turn(r, 1);
	fake_hook(NULL, NULL);
}

static void refused(const char *what, uint32_t at, const struct rails_conf *conf, struct evil *v)
{
	struct rails r;

	fake_reset();
	rails_begin(&r, conf);
	v->at = at;
	run(&r, v);
	if (r.end[1].fails != 1 || !strstr(r.end[1].why.text, what))
		fail_msg("\"%s\" was expected, at %u: %s", what, at, r.end[1].why.text);
	assert_int_equal(r.end[1].why.status, SHARD_PROTOCOL);
	assert_int_equal(r.end[1].bad, 0);
	assert_int_equal(r.end[1].frames + r.end[1].controls,
			 at); /* Those before it, and no other. */
	assert_int_equal(rails_send(&r, 1, 0, 10, 1), SHARD_CLOSED);
	rails_close(&r);
	fake_reset();
}

static void flip(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h)
{
	(void)wr;
	((unsigned char *)h)[rng_below(&v->rng, 64)] ^=
		(unsigned char)(1u << rng_below(&v->rng, 8));
}
static void replay(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h)
{
	(void)wr;
	*h = v->first;
}
static void other_op(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h)
{
	(void)wr;
	h->op = 127;
	reseal(h, v->at);
}
static void longer(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h)
{
	(void)wr;
	h->body_bytes += 7;
	reseal(h, v->at);
}
static void huge(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h)
{
	(void)wr;
	h->body_bytes = 0xfffffff0;
	reseal(h, v->at);
}
static void elsewhere(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h)
{
	(void)wr;
	h->chunk = RDMA_LOCAL_SLOTS;
	reseal(h, v->at);
}
static void becomes_control(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h)
{
	(void)wr;
	h->op = OP_ABANDON;
	reseal(h, v->at);
}
static void becomes_bulk(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h)
{
	(void)wr;
	h->op = OP_CONTRIB_DATA;
	reseal(h, v->at);
}
static void control_body(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h)
{
	(void)v;
	(void)wr;
	((unsigned char *)(h + 1))[3] ^= 4;
}
static void short_message(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h)
{
	(void)h;
	wr->sg_list->length = 1 + (uint32_t)rng_below(&v->rng, 63);
}
static void no_immediate(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h)
{
	(void)v;
	(void)h;
	wr->opcode = IBV_WR_SEND;
}
static void written_immediate(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h)
{
	(void)v;
	(void)h;
	wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr->num_sge = 0;
}
static void took_too_many(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h)
{
	(void)v;
	(void)h;
	wr->imm_data = htonl(1);
}
static void took_less(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h)
{
	(void)v;
	(void)h;
	wr->imm_data = htonl(0xffffffff);
}
static void sum_of_nothing(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h)
{
	(void)wr;
	h->body_sum = 0;
	reseal(h, v->at);
}

static void headers(void **state)
{
	static const struct {
		const char *what;
		uint32_t at;
		void (*harm)(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h);
	} rows[] = {
		{"header checksum", 4, replay},
		{"header checksum", 7, replay},
		{"unknown op", 2, other_op},
		{"length is not what its header says", 3, longer},
		{"body checksum", 2, longer},
		{"body too large", 2, huge},
		{"body too large", 3, huge},
		{"no such slot", 6, elsewhere},
		{"length is not what its header says", 2, becomes_control},
		{"length is not what its header says", 3, becomes_bulk},
		{"body checksum", 5, control_body},
		{"shorter than a header", 4, short_message},
		{"a kind of message", 4, no_immediate},
		{"a kind of message", 5, written_immediate},
		{"frames that were never sent", 4, took_too_many},
		{"frames that were never sent", 4, took_less},
		{"body checksum", 4, sum_of_nothing},
	};

	(void)state;
	for (size_t i = 0; i < NR(rows); i++) {
		struct evil v = {.harm = rows[i].harm, .rng = {i}};

		refused(rows[i].what, rows[i].at, NULL, &v);
	}
}

static void flipped_bits(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 200; i++) {
		struct evil v = {.harm = flip, .rng = {i}};

		refused("frame", (uint32_t)i % 10, NULL, &v);
	}
}

/* --- bodies: what is read from the sender's memory, or lies at the receiver, is not what was
 * hashed --- */

static void source_changed(struct evil *v, struct ibv_send_wr *wr)
{
	((unsigned char *)(uintptr_t)wr->sg_list->addr)[rng_below(&v->rng, wr->sg_list->length)] ^=
		1;
}
static void land_changed(struct evil *v, struct ibv_send_wr *wr, struct wire_head *h)
{
	(void)wr;
	v->land[(size_t)h->chunk * 4096 + rng_below(&v->rng, h->body_bytes)] ^=
		0x80; /* After the write of the body, and before its header. */
}

static void bodies(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 20; i++) {
		struct evil source = {.harm_body = source_changed, .rng = {i}},
			    there = {.harm = land_changed, .rng = {i}};

		refused("body checksum", (uint32_t)i * 2 % 10, NULL, &source);
		refused("body checksum", (uint32_t)i * 2 % 10, NULL, &there);
	}
}

/* Without sums only the sum of this test sees it. So the checks above come from the sums of the
 * product, and not from elsewhere. */
static void bodies_without_sums(void **state)
{
	struct rails_conf conf = {.no_checksum = true};
	struct evil v = {.harm_body = source_changed, .rng = {1}, .at = 4};
	struct rails r;

	(void)state;
	rails_begin(&r, &conf);
	run(&r, &v);
	assert_string_equal(r.end[1].why.text, "");
	assert_int_equal(r.end[1].frames + r.end[1].controls, 10);
	assert_int_equal(r.end[1].bad, 1);
	rails_close(&r);
}

static void sums_that_were_not_agreed(void **state)
{
	struct rails_conf conf = {.no_checksum = true};
	struct evil v = {.harm = NULL};
	struct rails r;
	struct err e = {0};

	(void)state;
	rails_begin(&r, &conf);
	for (int i = 0; i < 2; i++) {
		rdma_rail_free(&r.end[i].rail);
		assert_int_equal(rails_rail(&r, i, i == 0, &e),
				 SHARD_OK); /* End 0 takes sums all the same. */
	}
	assert_int_equal(rails_connect(&r, &e), SHARD_OK);
	run(&r, &v);
	assert_int_equal(r.end[1].fails, 1);
	assert_non_null(strstr(r.end[1].why.text, "body checksum where there is none"));
	rails_close(&r);
}

/* --- memory: an address or key that the peer may not write to --- */

static void write_to(struct rails *r, uint64_t remote, uint32_t rkey, bool allowed)
{
	struct rails_end *e = &r->end[0];
	struct wire_head h = {.op = OP_CONTRIB_DATA, .chunk = 0};

	assert_int_equal(rdma_rail_send(e->rail, 0, &h, e->source, e->source_at, 100, remote, rkey,
					NULL, NULL),
			 SHARD_OK);
	rails_kick(r, 0);
	rails_turn(r, 5);
	assert_int_equal(e->fails, !allowed);
	if (!allowed) {
		assert_non_null(
			strstr(e->why.text,
			       "body of frame 0 (contrib_data, 100 bytes): remote access error"));
		assert_non_null(strstr(e->why.text, "queue pair 0 to 127.0.0.1"));
		assert_int_equal(r->end[1].fails, 1); /* The end of that rail is over, too. */
		assert_non_null(strstr(r->end[1].why.text, "Flushed"));
	}
}

static void memory(void **state)
{
	(void)state;
	for (int i = 0; i < 6; i++) {
		struct rdma_domain *other = NULL;
		struct rdma_region *g = NULL;
		unsigned char before, mine[4096];
		struct rails r;
		uint64_t land;
		uint32_t key;

		fake_reset();
		rails_begin(&r, NULL);
		memset(mine, 7, sizeof(mine));
		assert_int_equal(rdma_domain_new(&other, r.end[1].rdma, NULL), SHARD_OK);
		assert_int_equal(rdma_register(&g, other, mine, sizeof(mine), true, NULL),
				 SHARD_OK);
		land = (uintptr_t)r.end[1].land_at;
		key = rdma_region_rkey(r.end[1].land);
		before = r.end[1].source_at[0];
		switch (i) {
		case 0:
			write_to(&r, land - 1, key, false);
			break;
		case 1:
			write_to(&r, land + r.area - 99, key, false);
			break;
		case 2:
			write_to(&r, land, key + 1, false);
			break;
		case 3:
			write_to(&r, (uintptr_t)r.end[1].source_at,
				 rdma_region_rkey(r.end[1].source), false);
			break; /* It may only be sent. */
		case 4:
			write_to(&r, (uintptr_t)mine, rdma_region_rkey(g), false);
			break; /* It belongs to another peer. */
		default:
			write_to(&r, land, key, true);
			break;
		}
		assert_int_equal(mine[0], 7);
		assert_int_equal(r.end[1].source_at[0], before);
		rdma_deregister(&g);
		rdma_domain_free(&other);
		rails_close(&r);
	}
	fake_reset();
}

/* --- ends --- */

static void ends(void **state)
{
	(void)state;
	for (int i = 0; i < 14; i++) {
		struct rdma_ends t;
		struct err e = {0};
		struct rails r;

		fake_reset();
		rails_init(&r, NULL);
		assert_int_equal(rails_open(&r, &e), SHARD_OK);
		rdma_rail_ends(r.end[1].rail, &t);
		switch (i) {
		case 0:
			t.qps_nr = 0;
			break;
		case 1:
			t.qps_nr = 1;
			break;
		case 2:
			t.qps_nr = 3;
			break;
		case 3:
			t.qps_nr = 0xffffffff;
			break;
		case 4:
			t.mtu = 0;
			break;
		case 5:
			t.mtu = 128;
			break;
		case 6:
			t.mtu = 8192;
			break;
		case 7:
			t.mtu = 1000;
			break;
		case 8:
			t.qpn[1] = 0;
			break;
		case 9:
			t.qpn[0] = 1;
			break;
		case 10:
			t.qpn[1] = 0x1000000;
			break;
		case 11:
			t.psn[0] = 0xffffffff;
			break;
		case 12:
			memset(t.gid, 0, sizeof(t.gid));
			break;
		default:
			t.mtu = 0x80000000;
			break;
		}
		assert_int_equal(rdma_rail_connect(r.end[0].rail, &t, &e), SHARD_PROTOCOL);
		assert_non_null(strstr(e.text, "the peer's end of RDMA: "));
		assert_int_equal(rails_send(&r, 0, 0, 100, 1), SHARD_CLOSED);
		rails_turn(&r, 3);
		assert_int_equal(r.end[0].fails, 0); /* It was said. */
		rails_close(&r);
	}
	fake_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(headers, reset),
		cmocka_unit_test_setup(flipped_bits, reset),
		cmocka_unit_test_setup(bodies, reset),
		cmocka_unit_test_setup(bodies_without_sums, reset),
		cmocka_unit_test_setup(sums_that_were_not_agreed, reset),
		cmocka_unit_test_setup(memory, reset),
		cmocka_unit_test_setup(ends, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
