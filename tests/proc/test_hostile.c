// SPDX-License-Identifier: Apache-2.0
/* Tests what anybody who reaches a daemon's sockets can do to it: noise, frames out of order, half
 * frames, crowds, and nonsense in every field. After each case honest trainers train on and end
 * with the right bits, and no descriptor is left. */
#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "lib/crew.h"
#include "lib/evil.h"
#include "lib/frames.h"
#include "lib/inproc.h"
#include "lib/pace.h"
#include "lib/rawpeer.h"
#include "link/places.h"
#include "shard.pb-c.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { CROWD = 1000, FUZZ = 2000 };

static struct {
	struct inproc c;
	struct crew crew;
	uint64_t step;
	uint32_t fds;
	const char *address[2];
} g; /* cmocka gives each case the same daemon. */

/* Honest trainers train two more steps. After that every descriptor of the case must be closed. */
static void still_well(void)
{
	uint64_t until = pace_by(8);

	g.step += 2;
	crew_start(&g.crew, g.step);
	crew_finish(&g.crew);
	crew_check(&g.crew, g.address[0], g.step);
	while (frames_open_fds() > g.fds && clock_ns() < until)
		usleep(2000);
	if (frames_open_fds() > g.fds)
		fail_msg("%u descriptors are open, %u before", frames_open_fds(), g.fds);
}

static void make_evil(void);

static int start(void **state)
{
	struct inproc_conf conf = {.nodes = 1,
				   .daemon = "connections_max = 64",
				   .cluster = "heartbeat_timeout = 500ms\nstep_timeout = 20s"};
	struct rlimit files;

	(void)state;
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	inproc_start(&g.c, &conf);
	g.address[0] = g.c.node[0].unix_address;
	g.address[1] = g.c.node[0].tcp_address;
	crew_init(&g.crew, "honest");
	crew_add(&g.crew, g.address[0], 0);
	crew_add(&g.crew, g.address[1], 0);
	g.fds = UINT32_MAX;
	make_evil(); /* The memory of its models has descriptors that stay. */
	still_well();
	g.fds = frames_open_fds();
	return 0;
}

static int stop(void **state)
{
	(void)state;
	inproc_stop(&g.c);
	return 0;
}

/* --- noise --- */

static void test_noise(void **state)
{
	unsigned char noise[4096];

	(void)state;
	for (uint32_t i = 0; i < 20; i++) {
		struct raw r;

		frames_fill(noise, sizeof(noise), i);
		raw_connect(&r, g.address[i % 2]);
		if (i >= 10)
			raw_hello(&r, i % 3 ? ROLE_TRAINER : ROLE_CTL);
		raw_bytes(&r, noise, i % 4 ? sizeof(noise) : 64);
		assert_non_null(strstr(raw_error(&r), "not a shardd frame"));
		raw_expect_closed(&r);
		raw_close(&r);
	}
	still_well();
}

/* A text with a line break costs only its own request and not the connection. */
static void test_unclean_text(void **state)
{
	struct wire_head h = {.op = OP_SAVE, .attempt = 7},
			 attach = {.op = OP_ATTACH, .attempt = 8};
	Shard__Save save = SHARD__SAVE__INIT;
	Shard__Attach name = SHARD__ATTACH__INIT;

	(void)state;
	save.name = (char *)(uintptr_t) "honest";
	save.dir = (char *)(uintptr_t) "/tmp/a\nlevel=error";
	name.name = (char *)(uintptr_t) "\xff";
	for (int i = 0; i < 2; i++) {
		struct raw r;
		char *status;

		raw_connect(&r, g.address[i]);
		raw_hello(&r, ROLE_TRAINER);
		raw_send(&r, &h, &save.base);
		assert_non_null(strstr(raw_error(&r), "dir \"/tmp/a...\" has a control character "
						      "(0x0a) at byte 6"));
		assert_true((r.head.flags & WIRE_REPLY) && r.head.attempt == 7);
		raw_send(&r, &attach, &name.base);
		assert_true(raw_expect(&r, OP_ERROR) && r.head.attempt == 8);
		status = raw_status(&r);
		assert_non_null(strstr(status, "honest"));
		free(status);
		raw_close(&r);
	}
	still_well();
}

static void test_before_hello(void **state)
{
	(void)state;
	for (uint16_t op = 0; op < OP_NR; op++) {
		struct wire_head h = {.op = op};
		unsigned char body[64] = {0};
		struct raw r;

		if (wire_op(op) == NULL)
			continue;
		raw_connect(&r, g.address[op % 2]);
		raw_head(&r, &h, body, wire_op(op)->body_min);
		assert_non_null(raw_error(&r));
		raw_expect_closed(&r);
		raw_close(&r);
	}
	still_well();
}

/* --- time --- */

static void test_stall(void **state)
{
	struct wire_head h = {.op = OP_READ};
	uint64_t began = clock_ns();
	struct raw r[4];
	char *why;

	(void)state;
	wire_seal(&h, NULL, 1, true);
	for (int i = 0; i < 4; i++) { /* Half a header and then silence, or a byte now and then. */
		raw_connect(&r[i], g.address[1]);
		raw_hello(&r[i], ROLE_TRAINER);
		raw_bytes(&r[i], &h, 20);
	}
	for (int i = 20; i < 60 && clock_ns() - began < 5 * NS_PER_SEC; i++) {
		unsigned char byte = 0, *at = (unsigned char *)&h;

		for (int k = 2; k < 4; k++)
			raw_bytes(&r[k], at + i, 1);
		usleep(100000);
		if (recv(r[2].fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1 &&
		    recv(r[3].fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1 && i > 40)
			break;
	}
	for (int i = 0; i < 4; i++) {
		why = raw_error(&r[i]);
		assert_non_null(why);
		assert_non_null(strstr(why, "stalled in mid-frame for 0.5 s"));
		raw_close(&r[i]);
	}
	assert_true(clock_ns() - began < pace_ns(8 * NS_PER_SEC));
	still_well();
}

static void test_crowd(void **state)
{
	static struct raw crowd[CROWD];
	uint64_t most = clock_ns();

	(void)state;
	for (int i = 0; i < CROWD; i++)
		assert_true(raw_try_connect(&crowd[i], g.address[1]));
	g.step += 2; /* The crew trains while all of them are connected. */
	crew_start(&g.crew, g.step);
	crew_finish(&g.crew);
	/* It did not wait for their deadlines. */
	assert_true(clock_ns() - most < pace_ns(4 * NS_PER_SEC));
	assert_true(inproc_count(&g.c.node[0], "connections") <= 64 + PLACES_OPENING);
	for (int i = 0; i < CROWD; i++)
		raw_close(&crowd[i]);
	still_well();
}

/* --- a trainer that knows the protocol and has a model of its own --- */

static void make_evil(void)
{
	struct evil v;

	evil_open(&v, g.address[0], EVIL_JOINED);
	raw_close(&v.r);
	evil_open_parts(&v, g.address[1]);
	raw_close(&v.r);
}

/* The answer is an ERROR, and then the connection ends. */
static void refused(struct evil *v, const char *part)
{
	char *why = raw_error(&v->r);

	if (why == NULL || strstr(why, part) == NULL)
		fail_msg("\"%s\" is not in \"%s\"", part, why != NULL ? why : "(nothing)");
	raw_expect_closed(&v->r);
	raw_close(&v->r);
}

/* The answer is an ERROR, and the connection stays. */
static void answered(struct evil *v, const char *part)
{
	char *why = raw_error(&v->r);
	struct wire_head ping = {.op = OP_PING};

	if (why == NULL || strstr(why, part) == NULL)
		fail_msg("\"%s\" is not in \"%s\"", part, why != NULL ? why : "(nothing)");
	raw_send(&v->r, &ping, NULL);
	assert_true(raw_expect(&v->r, OP_PONG));
}

/* Over a unix socket the gradient is in the arena. */
static void push_chunk(struct evil *v, uint32_t chunk)
{
	struct wire_head h = evil_head(v, OP_PUSH, chunk);

	raw_send(&v->r, &h, NULL);
}

/* A correct trainer pushes and commits while somebody drops its model. It is told that the model is
 * gone, and its connection stays. A model that it never joined is another matter. */
static void test_pushes_to_a_dropped_model(void **state)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	Shard__Ready ready = SHARD__READY__INIT;
	struct wire_head h, ping = {.op = OP_PING};
	shard_client *c;
	struct evil v;

	(void)state;
	evil_open(&v, g.address[0], EVIL_JOINED);
	o.address = g.address[0];
	assert_int_equal(shard_connect(&c, &o), SHARD_OK);
	assert_int_equal(shard_drop(c, v.name, 1), SHARD_OK);
	shard_disconnect(&c);
	push_chunk(&v, 0);
	h = evil_head(&v, OP_READY, 0);
	ready.weight = 1;
	raw_send(&v.r, &h, &ready.base);
	raw_send(&v.r, &ping, NULL);
	do
		assert_true(raw_recv(&v.r));
	while (v.r.head.op != OP_PONG);
	h = evil_head(&v, OP_PUSH, 0);
	h.model += 9;
	raw_send(&v.r, &h, NULL);
	refused(&v, "which this trainer has not joined");
}

/* Shares that are none. Tensor 0 begins with the chunk. */
static void hostile_shares(void)
{
	static uint32_t shares[] = {0, 0, 1, 0, 1, 1}, none = 0;
	static const struct {
		uint32_t n, tensor, start, elems;
		bool absent;
		const char *text;
	} wrong[] = {
		{2, 0, 0, 1, false, "2 numbers for the shares of chunk 0: each has three"},
		{3, 3, 0, 1, false, "a share of tensor 3 in chunk 0, where it has no element"},
		{6, 0, 0, 1, false, "which is frozen, absent, or there already"},
		{3, 0, 0, 1, true, "which is frozen, absent, or there already"},
		{3, 0, UINT32_MAX, 1, false,
		 "a share of 1 elements from 4294967295 on of tensor 0"},
		{3, 0, 1, UINT32_MAX, false,
		 "a share of 4294967295 elements from 1 on of tensor 0"},
	};

	for (size_t i = 0; i < NR(wrong); i++) {
		Shard__Push push = SHARD__PUSH__INIT;
		struct wire_head h;
		struct evil v;

		evil_open(&v, g.address[0], EVIL_JOINED);
		h = evil_head(&v, OP_PUSH, 0);
		shares[0] = wrong[i].tensor;
		shares[1] = wrong[i].start;
		shares[2] = wrong[i].elems;
		push.shares = shares;
		push.n_shares = wrong[i].n;
		push.absent = &none;
		push.n_absent = wrong[i].absent;
		raw_send(&v.r, &h, &push.base);
		refused(&v, wrong[i].text);
	}
}

/* What PUSH leaves out by `skip` is no gradient of zeros, so READY must vote to skip. */
static void unkept_skip(void)
{
	Shard__Ready ready = SHARD__READY__INIT;
	Shard__Push push = SHARD__PUSH__INIT;
	struct wire_head h;
	struct evil v;

	evil_open(&v, g.address[0], EVIL_JOINED);
	push_chunk(&v, 0);
	h = evil_head(&v, OP_PUSH, 1);
	push.skip = true;
	raw_send(&v.r, &h, &push.base);
	push_chunk(&v, 2);
	h = evil_head(&v, OP_READY, 0);
	ready.weight = 1;
	raw_send(&v.r, &h, &ready.base);
	refused(&v, "after a chunk that was pushed with `skip`: READY votes to skip, too");
	evil_open(&v, g.address[0], EVIL_JOINED);
	for (uint32_t c = 0; c < 3; c++) {
		h = evil_head(&v, OP_PUSH, c);
		raw_send(&v.r, &h, &push.base);
	}
	h = evil_head(&v, OP_READY, 0);
	ready.skip = true;
	raw_send(&v.r, &h, &ready.base);
	assert_true(raw_expect(&v.r, OP_RESULT));
	raw_close(&v.r);
}

static void test_pushes(void **state)
{
	static unsigned char body[WIRE_PART_BYTES];
	struct wire_head h, ping = {.op = OP_PING};
	Shard__Ready ready = SHARD__READY__INIT;
	Shard__Push push = SHARD__PUSH__INIT;
	uint32_t absent = 3;
	struct evil v;

	(void)state;
	evil_open(&v, g.address[0], EVIL_JOINED);
	h = evil_head(&v, OP_PUSH, 0);
	h.model += 9;
	raw_send(&v.r, &h, NULL);
	refused(&v, "which this trainer has not joined");
	evil_open(&v, g.address[0], EVIL_JOINED);
	push_chunk(&v, 3);
	refused(&v, "chunk 3 of \"evil\", which has 3");
	evil_open(&v, g.address[0], EVIL_JOINED);
	push_chunk(&v, 0);
	push_chunk(&v, 0);
	refused(&v, "was pushed already");
	evil_open(&v, g.address[0], EVIL_JOINED);
	h = evil_head(&v, OP_PUSH, 0);
	h.attempt++;
	raw_send(&v.r, &h, NULL);
	refused(&v, "which has not begun");
	evil_open(&v, g.address[0], EVIL_JOINED);
	push.n_absent = 1;
	push.absent = &absent;
	h = evil_head(&v, OP_PUSH, 0);
	raw_send(&v.r, &h, &push.base);
	refused(&v, "tensor 3 is absent from chunk 0, where it has no element");
	hostile_shares();
	evil_open(&v, g.address[0], EVIL_JOINED);
	h = evil_head(&v, OP_PUSH, 0);
	h.step--; /* A frame of an earlier step is dropped without any other effect. */
	raw_send(&v.r, &h, NULL);
	raw_send(&v.r, &ping, NULL);
	assert_true(raw_expect(&v.r, OP_PONG));
	h = evil_head(&v, OP_READY, 0);
	ready.weight = 1;
	raw_send(&v.r, &h, &ready.base);
	refused(&v, "with 0 of 3 chunks pushed");
	evil_open(&v, g.address[0], EVIL_JOINED);
	for (uint32_t c = 0; c < 3; c++)
		push_chunk(&v, c);
	h = evil_head(&v, OP_READY, 0);
	ready.weight = -1;
	raw_send(&v.r, &h, &ready.base);
	refused(&v, "it must be at least 0 and finite");
	unkept_skip();
	evil_open(&v, g.address[0], EVIL_JOINED);
	h = evil_head(&v, OP_PUSH_DATA, 0);
	raw_head(&v.r, &h, body, 4096);
	refused(&v, "they belong in the arena");
	evil_open(&v, g.address[1], EVIL_JOINED);
	h = evil_head(&v, OP_PUSH_DATA, 0);
	h.flags = WIRE_PART_FLAG(7);
	raw_head(&v.r, &h, body, 4096);
	refused(&v, "part 7 (4096 bytes) of chunk 0");
	evil_open(&v, g.address[1], EVIL_JOINED);
	h = evil_head(&v, OP_PUSH_DATA, 2);
	raw_head(&v.r, &h, body, 4096);
	refused(&v, "part 0 (4096 bytes) of chunk 2");
	evil_open(&v, g.address[1], EVIL_JOINED);
	push_chunk(&v, 0);
	refused(&v, "chunk 0 closed without part 0 of 1");
	still_well();
}

static void push_part(struct evil *v, uint32_t part)
{
	static unsigned char body[WIRE_PART_BYTES];
	struct wire_head h = evil_head(v, OP_PUSH_DATA, 0);

	h.flags = WIRE_PART_FLAG(part);
	raw_head(&v->r, &h, body, sizeof(body));
}

/* The number of parts must be right, and so must the parts. */
static void test_parts(void **state)
{
	struct wire_head h, ping = {.op = OP_PING};
	Shard__Push push = SHARD__PUSH__INIT;
	uint32_t absent = 0;
	struct evil v;

	(void)state;
	evil_open_parts(&v, g.address[1]);
	push_part(&v, 0);
	push_part(&v, 1);
	push_part(&v, 1); /* Three parts came of three, but part 2 never came. */
	push_chunk(&v, 0);
	refused(&v, "part 1 of chunk 0 came twice");
	evil_open_parts(&v, g.address[1]);
	push_part(&v, 2);
	push_part(&v, 0);
	push_chunk(&v, 0);
	refused(&v, "chunk 0 closed without part 1 of 3");
	evil_open_parts(&v, g.address[1]);
	push_part(&v, 1);
	push.n_absent = 1;
	push.absent = &absent;
	h = evil_head(&v, OP_PUSH, 0);
	raw_send(&v.r, &h, &push.base);
	refused(&v, "part 1 came, but its tensors are absent");
	evil_open_parts(&v, g.address[1]);
	for (uint32_t p = EVIL_PARTS; p-- > 0;) /* Parts may come in any order. */
		push_part(&v, p);
	push_chunk(&v, 0);
	raw_send(&v.r, &ping, NULL);
	assert_true(raw_expect(&v.r, OP_PONG));
	raw_close(&v.r);
	still_well();
}

static void test_transfers(void **state)
{
	static const struct {
		uint32_t kind, count;
		uint64_t first, step;
		const char *part;
	} reads[] = {
		{77, 10, 0, 0, "77"},
		{SHARD_MASTER, 10, 1ull << 60, 0, "inside"},
		{SHARD_MASTER, 0, 0, 0, "inside"},
		{SHARD_MASTER, 70000, 0, 0, "inside"},
		{SHARD_MASTER, 2048, 2048, 0, ""},
		{SHARD_EXP_AVG, 10, 0, 0, ""},
		{SHARD_GRAD, 10, 0, 0, ""},
	};
	struct wire_head h;
	Shard__Read body = SHARD__READ__INIT;
	float w[16] = {0};
	struct evil v;

	(void)state;
	evil_open(&v, g.address[0], EVIL_DEFINED);
	h = (struct wire_head){.op = OP_WRITE,
			       .attempt = 9,
			       .model = v.model,
			       .generation = v.generation,
			       .chunk = SHARD_MASTER};
	raw_head(&v.r, &h, w, 64);
	answered(&v, "sealed");
	h.model = 99;
	raw_head(&v.r, &h, w, 64);
	answered(&v, "no model 99");
	for (size_t i = 0; i < sizeof(reads) / sizeof(reads[0]); i++) {
		h = (struct wire_head){.op = OP_READ, .attempt = 10, .model = v.model};
		body.kind = reads[i].kind;
		body.count = reads[i].count;
		body.first = reads[i].first;
		body.step = reads[i].step;
		raw_send(&v.r, &h, &body.base);
		answered(&v, reads[i].part);
	}
	body.kind = SHARD_MASTER;
	body.count = 1;
	body.first = 0;
	body.step = 1u << 30; /* This step never comes. A few reads may wait for it. */
	for (int i = 0; i < 65; i++) {
		h = (struct wire_head){
			.op = OP_READ, .attempt = 100 + (uint32_t)i, .model = v.model};
		raw_send(&v.r, &h, &body.base);
	}
	answered(&v, "64 reads of this connection wait");
	h = (struct wire_head){.op = OP_SEAL, .attempt = 11, .model = v.model};
	raw_send(&v.r, &h, NULL);
	answered(&v, "sealed already");
	h = (struct wire_head){.op = OP_LEAVE, .attempt = 12, .model = v.model};
	raw_send(&v.r, &h, NULL);
	answered(&v, "leave without join");
	h = (struct wire_head){.op = OP_JOIN, .attempt = 13, .model = 99};
	raw_send(&v.r, &h, NULL);
	answered(&v, "no model 99");
	raw_close(&v.r);
	still_well();
}

static void test_node_ops(void **state)
{
	(void)state;
	for (uint16_t op = 1; op < OP_NR; op++) {
		struct wire_head h = {.op = op};
		unsigned char body[64] = {0};
		struct evil v;

		if (wire_op(op) == NULL || (wire_op(op)->from & BIT(ROLE_TRAINER)))
			continue;
		evil_open(&v, g.address[op % 2], EVIL_GREETED);
		raw_head(&v.r, &h, body, wire_op(op)->body_min);
		refused(&v, "from a trainer");
	}
	still_well();
}

/* --- definitions --- */

static void try_define(const char *settings, uint64_t dim, const char *name, const char *part)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = 1};
	Shard__Tensor t, *list[2];
	Shard__Define d;
	Shard__Spec s;
	uint64_t shape, dims[12];
	struct evil v;

	evil_open(&v, g.address[0], EVIL_GREETED);
	evil_spec(&d, &s, &t, list, &shape);
	s.name = (char *)(uintptr_t) "fresh";
	if (settings != NULL)
		s.settings = (char *)(uintptr_t)settings;
	for (int i = 0; i < 12; i++)
		dims[i] = dim;
	if (dim > 0) {
		t.shape = dims;
		t.n_shape = dim == 1 ? 12 : 4;
	}
	if (name != NULL)
		t.name = (char *)(uintptr_t)name;
	list[1] = &t;
	s.n_tensors = name != NULL && name[0] == '2' ? 2 : name != NULL && name[0] == '0' ? 0 : 1;
	raw_send(&v.r, &h, &d.base);
	answered(&v, part);
	raw_close(&v.r);
}

static void test_definitions(void **state)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = 1};
	enum { MANY = 1000000 };
	unsigned char *body = malloc(MANY * 6 + 64), *at = body;
	struct evil v;
	uint32_t bytes;

	(void)state;
	try_define(NULL, 0, "0", "tensor");
	try_define(NULL, 0, "2", "\"2\"");
	try_define(NULL, 1, NULL, "12 dimensions");
	try_define(NULL, 1ull << 40, NULL, "more than 17592186044416 elements");
	try_define(NULL, UINT64_MAX, NULL, "more than 17592186044416 elements");
	try_define(NULL, 0, "\xff\xfe", "UTF-8");
	try_define(NULL, 0, "a\nb", "name \"a...\" has a control character (0x0a) at byte 1");
	try_define(NULL, 0, "", "name");
	try_define("optimizer=magic", 0, NULL, "choose adamw");
	try_define("lr", 0, NULL, "lr");
	try_define("lr=nan", 0, NULL, "lr");
	try_define("chunk_elems=1000", 0, NULL, "power of two");
	try_define("min_world=5 max_world=2", 0, NULL, "max_world");
	try_define("local_world=200 max_world=200", 0, NULL, "at most");
	try_define("====", 0, NULL, "");
	try_define("nope=1", 0, NULL, "nope");
	/* 2^44 elements are too many, or over the budget. */
	try_define("chunk_elems=1024 min_world=64 max_world=64", 1 << 11, NULL, "");
	try_define("optimizer=adamw", 1 << 8, NULL, "needs"); /* 2^32 elements exceed the budget. */
	/* A million empty tensors in 2 MB. */
	assert_non_null(body);
	bytes = 2 * MANY + 7;
	*at++ = 0x0a; /* The field Define.spec. */
	for (uint32_t n = bytes;; n >>= 7) {
		*at++ = (unsigned char)(n < 0x80 ? n : (n & 0x7f) | 0x80);
		if (n < 0x80)
			break;
	}
	memcpy(at,
	       "\x0a\x05"
	       "fresh",
	       7);
	at += 7;
	for (int i = 0; i < MANY; i++)
		*at++ = 0x12, *at++ = 0;
	evil_open(&v, g.address[0], EVIL_GREETED);
	raw_head(&v.r, &h, body, (uint32_t)(at - body));
	answered(&v, "");
	raw_close(&v.r);
	free(body);
	still_well();
}

/* --- random frames in any place --- */

/* Reads and ignores what came. */
static bool closed(struct raw *r)
{
	char scratch[65536];
	ssize_t n;

	while ((n = recv(r->fd, scratch, sizeof(scratch), MSG_DONTWAIT)) > 0)
		;
	return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

static void test_fuzz(void **state)
{
	static unsigned char body[8192];
	struct rng rng = {20240607};
	struct evil v;
	bool open = false;

	(void)state;
	for (int i = 0; i < FUZZ; i++) {
		struct wire_head h;
		uint32_t bytes;

		if (open && closed(&v.r)) {
			raw_close(&v.r);
			open = false;
		}
		if (!open)
			evil_open(&v, g.address[rng_below(&rng, 2)],
				  (enum evil_depth)(rng_below(&rng, 8) < 5 ? EVIL_JOINED
									   : rng_below(&rng, 4)));
		open = true;
		h = evil_fuzz_head(&v, &rng);
		bytes = evil_fuzz_body(body, wire_op(h.op), &rng);
		raw_head(&v.r, &h, body, bytes);
	}
	if (open)
		raw_close(&v.r);
	still_well();
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_noise),
		cmocka_unit_test(test_unclean_text),
		cmocka_unit_test(test_before_hello),
		cmocka_unit_test(test_stall),
		cmocka_unit_test(test_crowd),
		cmocka_unit_test(test_pushes),
		cmocka_unit_test(test_pushes_to_a_dropped_model),
		cmocka_unit_test(test_parts),
		cmocka_unit_test(test_transfers),
		cmocka_unit_test(test_node_ops),
		cmocka_unit_test(test_definitions),
		cmocka_unit_test(test_fuzz),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
