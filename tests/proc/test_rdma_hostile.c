// SPDX-License-Identifier: Apache-2.0
/* Tests RAIL and REGION frames of a hostile node, frame by frame. Each ends the link with a
 * sentence, nothing of it is used, and the daemon goes on. The node is this test, and the verbs are
 * those of rdma/fake.h. */
#include "base/check.h"
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/rawpeer.h"
#include "rdma/fake.h"
#include "wire/xxh.h"

#include "shard.pb-c.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { CHUNKS = 8, MODEL_CHUNK = 1024 };

struct harm {
	struct inproc c;
	struct raw r;
	struct config conf; /* Of the node that this test plays. */
	pthread_t definer;
	const char *settings; /* Of the model. */
	uint32_t model;
	uint64_t incarnation;
};

static void hello(struct harm *x, uint64_t features, const char *no_rdma)
{
	static uint8_t uuid[16] = {7};
	struct wire_head h = {.op = OP_HELLO};
	Shard__Hello m = SHARD__HELLO__INIT;

	m.wire_min = m.wire_max = WIRE_VERSION;
	m.features = FEATURE_BODY_SUM | features;
	m.role = ROLE_NODE;
	m.run_id = (char *)(uintptr_t) "test";
	m.node = (char *)(uintptr_t) "b";
	m.uuid = (ProtobufCBinaryData){sizeof(uuid), uuid};
	m.incarnation = ++x->incarnation;
	m.config_hash = config_hash(&x->conf);
	m.release = (char *)(uintptr_t) "raw";
	m.rdma_queue_pairs = 2;
	m.no_rdma = (char *)(uintptr_t)no_rdma;
	raw_send(&x->r, &h, &m.base);
}

static void link_anew(struct harm *x)
{
	for (bool linked = false; !linked;) { /* The previous link may still be closing. */
		raw_connect(&x->r, x->c.node[0].tcp_address);
		hello(x, FEATURE_RDMA | FEATURE_RDMA_SUM, "");
		linked = raw_recv(&x->r) && x->r.head.op == OP_HELLO;
		if (!linked)
			raw_close(&x->r);
	}
}

static Shard__Rail an_offer(uint32_t qpn[17], uint32_t psn[17], uint8_t gid[16])
{
	Shard__Rail m = SHARD__RAIL__INIT;

	for (uint32_t i = 0; i < 17; i++)
		qpn[i] = 1000 + i, psn[i] = i;
	memset(gid, 0, 16);
	gid[10] = gid[11] = 0xff;
	gid[12] = 127, gid[15] = 1;
	m.offer = 1;
	m.n_qpn = m.n_psn = 2;
	m.qpn = qpn;
	m.psn = psn;
	m.gid = (ProtobufCBinaryData){16, gid};
	m.mtu = 1024;
	return m;
}

static void send_rail(struct harm *x, Shard__Rail *m)
{
	raw_send(&x->r, &(struct wire_head){.op = OP_RAIL}, &m->base);
}

/* Offers RDMA, and the daemon accepts it. */
static void rdma_link_up(struct harm *x)
{
	uint32_t qpn[17], psn[17];
	Shard__Rail m, *answer;
	uint8_t gid[16];

	link_anew(x);
	m = an_offer(qpn, psn, gid);
	send_rail(x, &m);
	assert_true(raw_expect(&x->r, OP_RAIL));
	answer = shard__rail__unpack(NULL, x->r.head.body_bytes, x->r.body);
	assert_non_null(answer);
	if (answer->why[0] != 0)
		fail_msg("the offer is not taken: %s", answer->why);
	assert_int_equal(answer->n_qpn, 2);
	shard__rail__free_unpacked(answer, NULL);
}

static void refused(struct harm *x, const char *part)
{
	char *text = raw_error(&x->r);

	if (text == NULL || strstr(text, part) == NULL)
		fail_msg("the link ends with \"%s\", not with \"%s\"",
			 text != NULL ? text : "nothing", part);
	raw_expect_closed(&x->r);
	raw_close(&x->r);
}

/* --- a model --- */

static void *define(void *arg)
{
	static const struct shard_tensor t = {
		.name = "w", .ndim = 1, .shape = {CHUNKS * MODEL_CHUNK}};
	struct harm *x = arg;
	shard_client *client = crew_connect(x->c.node[0].unix_address);
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	shard_model *m;
	int created;

	s.name = "m";
	s.tensors = &t;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = x->settings;
	MUST(shard_define(client, &s, &m, &created));
	shard_disconnect(&client);
	return NULL;
}

#define SETTINGS "optimizer=sgd lr=1 chunk_elems=1024 timeout=20s replicas=2"

static void start_with(struct harm *x, const char *settings)
{
	Shard__Memory held = SHARD__MEMORY__INIT;
	struct err e;

	memset(x, 0, sizeof(*x));
	x->settings = settings;
	fake_reset();
	inproc_prepare(&x->c, NULL);
	assert_int_equal(inproc_node_start(&x->c.node[0]), SHARD_OK);
	assert_int_equal(
		config_load_text(&x->conf, "b", x->c.node[1].text, strlen(x->c.node[1].text), &e),
		SHARD_OK);
	link_anew(x);
	CHECK(pthread_create(&x->definer, NULL, define, x) == 0);
	assert_true(raw_expect(&x->r, OP_MODEL));
	x->model = x->r.head.model;
	held.incarnation = 7;
	raw_send(&x->r,
		 &(struct wire_head){.op = OP_MODEL,
				     .flags = WIRE_REPLY,
				     .attempt = x->r.head.attempt,
				     .model = x->model},
		 &held.base);
	pthread_join(x->definer, NULL);
	raw_close(&x->r);
}

static void start(struct harm *x)
{
	start_with(x, SETTINGS);
}

static void stop(struct harm *x)
{
	json_t *o = inproc_status(&x->c.node[0]); /* It lives and has its model. */

	assert_int_equal(json_array_size(json_object_get(o, "models")), 1);
	json_decref(o);
	config_free(&x->conf);
	inproc_stop(&x->c);
}

/* --- offers --- */

static void bad_offers(void **state)
{
	struct harm x;
	uint32_t qpn[17], psn[17];
	uint8_t gid[16];

	(void)state;
	start(&x);
	for (int i = 0; i < 4; i++) {
		Shard__Rail m = an_offer(qpn, psn, gid);

		m.n_qpn = i == 0 ? 0 : i == 1 ? 17 : 2;
		m.n_psn = i == 1 ? 17 : i == 2 ? 1 : 2;
		m.gid.len = i == 3 ? 5 : 16;
		link_anew(&x);
		send_rail(&x, &m);
		refused(&x, "an offer of RDMA with");
	}
	stop(&x);
}

/* Queue pair numbers that no device has are accepted, or refused with a reason, and the link
 * stays. */
static void strange_ends(void **state)
{
	struct harm x;
	uint32_t qpn[17], psn[17];
	uint8_t gid[16];

	(void)state;
	start(&x);
	for (int i = 0; i < 5; i++) {
		Shard__Rail m = an_offer(qpn, psn, gid);

		if (i == 0)
			m.mtu = 7;
		if (i == 1)
			m.mtu = UINT32_MAX;
		if (i == 2)
			memset(gid, 0, sizeof(gid));
		if (i == 3)
			qpn[0] = psn[0] = UINT32_MAX;
		if (i == 4)
			m.n_qpn = m.n_psn = 16; /* More than HELLO said. */
		link_anew(&x);
		send_rail(&x, &m);
		assert_true(raw_expect(&x.r, OP_RAIL));
		raw_close(&x.r);
	}
	stop(&x);
}

static void offered_twice(void **state)
{
	struct harm x;
	uint32_t qpn[17], psn[17];
	uint8_t gid[16];
	Shard__Rail m = an_offer(qpn, psn, gid);
	Shard__Regions told = SHARD__REGIONS__INIT;

	(void)state;
	start(&x);
	rdma_link_up(&x);
	send_rail(&x, &m); /* No REGION was sent yet, so this offer replaces the first one. */
	assert_true(raw_expect(&x.r, OP_RAIL));
	raw_send(&x.r, &(struct wire_head){.op = OP_REGION, .model = x.model}, &told.base);
	send_rail(&x, &m);
	refused(&x, "RDMA is offered anew, or taken back, while it is up");
	rdma_link_up(&x);
	raw_send(&x.r, &(struct wire_head){.op = OP_REGION, .model = x.model}, &told.base);
	m.n_qpn = m.n_psn = 0;
	m.why = (char *)(uintptr_t) "changed my mind";
	send_rail(&x, &m);
	refused(&x, "RDMA is offered anew, or taken back, while it is up");
	stop(&x);
}

/* --- regions --- */

static const struct bad_region {
	Shard__Region r;
	uint32_t times;
	const char *text;
} bad_regions[] = {
#define REGION(...)                                                                                \
	{                                                                                          \
		.base = PROTOBUF_C_MESSAGE_INIT(&shard__region__descriptor), __VA_ARGS__           \
	}
	{REGION(.kind = 4, .address = 4096, .bytes = 1 << 20), 1, "there is nothing of that kind"},
	{REGION(.kind = 3, .address = 4096, .bytes = 1 << 20), 1, "there are no such chunks"},
	{REGION(.kind = 3, .address = 4096, .bytes = 1 << 20, .first = CHUNKS, .chunks = 1), 1,
	 "there are no such chunks"},
	{REGION(.kind = 3, .address = 4096, .bytes = 1 << 20, .first = UINT32_MAX, .chunks = 2), 1,
	 "there are no such chunks"},
	{REGION(.kind = 3, .address = 4096, .bytes = 1 << 20, .first = 1, .chunks = CHUNKS), 1,
	 "more chunks than are held there"},
	{REGION(.kind = 3, .address = 4096, .bytes = 1 << 20, .first = 1, .chunks = UINT32_MAX), 1,
	 "more chunks than are held there"},
	{REGION(.kind = 3, .address = 4096, .bytes = 2 * 4 * MODEL_CHUNK - 1, .first = 1,
		.chunks = 2),
	 1, "too few for them"},
	{REGION(.kind = 3, .address = 4096, .bytes = 4 * MODEL_CHUNK, .first = 1, .chunks = 1), 17,
	 "too many regions"},
	{REGION(.kind = 3, .address = 0, .bytes = 1 << 20, .first = 1, .chunks = 1), 1,
	 "no address"},
	{REGION(.kind = 1, .address = 4096, .bytes = 64), 1, "too few for the chunks held there"},
	{REGION(.kind = 1, .address = 4096, .bytes = 1 << 20), 2, "there is nothing of that kind"},
	{REGION(.kind = 1, .address = 0, .bytes = 1 << 20), 1, "no address"},
	{REGION(.kind = 1, .address = UINT64_MAX - 100, .bytes = 1 << 20), 1, "no address"},
	{REGION(.kind = 2, .address = 4096, .bytes = 1 << 20, .first = CHUNKS, .chunks = 1), 1,
	 "there are no such chunks"},
	{REGION(.kind = 2, .address = 4096, .bytes = 1 << 20, .first = 1, .chunks = CHUNKS), 1,
	 "there are no such chunks"},
	{REGION(.kind = 2, .address = 4096, .bytes = 1 << 20, .first = 1, .chunks = UINT32_MAX), 1,
	 "there are no such chunks"},
	{REGION(.kind = 2, .address = 4096, .bytes = 1 << 20), 1, "there are no such chunks"},
	{REGION(.kind = 2, .address = 4096, .bytes = 1 << 20, .chunks = 1, .image = 1), 1,
	 "there are no such chunks"},
	{REGION(.kind = 2, .address = 4096, .bytes = 4 * MODEL_CHUNK - 1, .chunks = 1), 1,
	 "too few for them"},
	{REGION(.kind = 2, .address = 4096, .bytes = 4 * MODEL_CHUNK, .chunks = 1), 129,
	 "too many regions"},
};

static void tell(struct harm *x, const Shard__Region *r, uint32_t times, uint32_t model)
{
	Shard__Region *list[256], one = *r;
	Shard__Regions m = SHARD__REGIONS__INIT;

	for (uint32_t c = 0; one.kind == 3 && c < CHUNKS; c++) /* That node has all of them. */
		one.placed = xxh_sum(&c, sizeof(c), one.placed);
	for (m.n_region = 0; m.n_region < times; m.n_region++)
		list[m.n_region] = &one;
	m.region = list;
	raw_send(&x->r, &(struct wire_head){.op = OP_REGION, .model = model}, &m.base);
}

static void hostile_regions(void **state)
{
	struct harm x;

	(void)state;
	start(&x);
	for (size_t i = 0; i < NR(bad_regions); i++) {
		rdma_link_up(&x);
		tell(&x, &bad_regions[i].r, bad_regions[i].times, x.model);
		refused(&x, bad_regions[i].text);
	}
	stop(&x);
}

/* The codes of a chunk are 1024 bytes and four scales. */
enum { CODES = MODEL_CHUNK + 4 * 4 };

static const struct bad_region bad_codes[] = {
	{REGION(.address = 4096, .bytes = 1 << 20, .first = CHUNKS, .chunks = 1), 1,
	 "there are no such codes"},
	{REGION(.address = 4096, .bytes = 1 << 20, .first = 1, .chunks = CHUNKS), 1,
	 "there are no such codes"},
	{REGION(.address = 4096, .bytes = 1 << 20, .first = UINT32_MAX, .chunks = UINT32_MAX), 1,
	 "there are no such codes"},
	{REGION(.address = 4096, .bytes = 1 << 20), 1, "there are no such codes"},
	{REGION(.address = 0, .bytes = 1 << 20, .chunks = 1), 1, "no address"},
	{REGION(.address = UINT64_MAX - 100, .bytes = 1 << 20, .chunks = 1), 1, "no address"},
	{REGION(.address = 4096, .bytes = CODES - 1, .chunks = 1), 1, "too few for their codes"},
	/* The second chunk begins at a multiple of 64 bytes. */
	{REGION(.address = 4096, .bytes = 2 * CODES + 47, .chunks = 2), 1,
	 "too few for their codes"},
	{REGION(.address = 4096, .bytes = CODES, .chunks = 1), 65, "too many regions"},
};

static void tell_codes(struct harm *x, const Shard__Region *r, uint32_t times)
{
	Shard__Region *list[65];
	Shard__Regions m = SHARD__REGIONS__INIT;

	CHECK(times <= NR(list));
	for (m.n_codes = 0; m.n_codes < times; m.n_codes++)
		list[m.n_codes] = (Shard__Region *)(uintptr_t)r;
	m.codes = list;
	raw_send(&x->r, &(struct wire_head){.op = OP_REGION, .model = x->model}, &m.base);
}

static void hostile_codes(void **state)
{
	static const struct bad_region good = {
		REGION(.address = 4096, .bytes = 2 * CODES + 48, .chunks = 2), 1, ""};
	struct harm x;

	(void)state;
	start(&x); /* Without a codec. */
	rdma_link_up(&x);
	tell_codes(&x, &good.r, 1);
	refused(&x, "there are no such codes");
	stop(&x);
	start_with(&x, SETTINGS " image_codec=int8");
	for (size_t i = 0; i < NR(bad_codes); i++) {
		rdma_link_up(&x);
		tell_codes(&x, &good.r, 1); /* It replaces nothing that is bad. */
		tell_codes(&x, &bad_codes[i].r, bad_codes[i].times);
		refused(&x, bad_codes[i].text);
	}
	stop(&x);
}

/* Regions of a model that does not exist, regions before an offer, and answers that nobody asked
 * for have no effect. */
static void idle_regions(void **state)
{
	struct harm x;
	Shard__Regions m = SHARD__REGIONS__INIT;

	(void)state;
	start(&x);
	link_anew(&x);
	tell(&x, &bad_regions[0].r, 1, x.model);
	raw_close(&x.r);
	rdma_link_up(&x);
	tell(&x, &bad_regions[0].r, 1, x.model + 5);
	m.released = true;
	raw_send(&x.r, &(struct wire_head){.op = OP_REGION, .model = x.model}, &m.base);
	m.released = false;
	m.release = true;
	raw_send(&x.r, &(struct wire_head){.op = OP_REGION, .model = x.model + 5}, &m.base);
	assert_true(raw_expect(&x.r, OP_REGION)); /* The daemon's own memory. */
	while (x.r.head.model != x.model + 5)
		assert_true(raw_expect(&x.r, OP_REGION));
	raw_close(&x.r);
	stop(&x);
}

static void insists(void **state)
{
	struct harm x = {.incarnation = 0};
	struct err e;

	(void)state;
	fake_reset();
	inproc_prepare(&x.c, &(struct inproc_conf){.net = "transport = rdma"});
	assert_int_equal(inproc_node_start(&x.c.node[0]), SHARD_OK);
	assert_int_equal(
		config_load_text(&x.conf, "b", x.c.node[1].text, strlen(x.c.node[1].text), &e),
		SHARD_OK);
	raw_connect(&x.r, x.c.node[0].tcp_address);
	hello(&x, 0, "");
	refused(&x, "[net] transport is rdma on node a, and node b wants no RDMA");
	raw_connect(&x.r, x.c.node[0].tcp_address);
	hello(&x, FEATURE_RDMA, "no memlock");
	refused(&x, "[net] transport is rdma on node a, and node b has none: no memlock");
	config_free(&x.conf);
	inproc_stop(&x.c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bad_offers),    cmocka_unit_test(strange_ends),
		cmocka_unit_test(offered_twice), cmocka_unit_test(hostile_regions),
		cmocka_unit_test(hostile_codes), cmocka_unit_test(idle_regions),
		cmocka_unit_test(insists),
	};

	return cmocka_run_group_tests_name("rdma_hostile", tests, NULL, NULL);
}
