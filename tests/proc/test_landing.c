// SPDX-License-Identifier: Apache-2.0
/* Tests bodies that are still on their way when their purpose ends: answers of another node, WRITEs
 * of a model that is sealed, dropped, lost or restored meanwhile, gradients for a model that is
 * dropped, and bodies with a wrong sum. None may reach memory that serves something else by then.
 * Under a sanitizer a write into freed memory ends the program. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/evil.h"
#include "lib/inproc.h"
#include "lib/keep.h"
#include "lib/rawnode.h"
#include "lib/rawpeer.h"
#include "shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { ELEMS = 1 << 17, CHUNK = 1 << 16, PART = CHUNK * 4 };

/* --- definitions, frame by frame: "m" has two chunks of 256 KiB --- */

struct writer {
	struct raw r;
	uint32_t model, generation, tag;
};

static void define(struct writer *w, const char *address)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = 1};
	Shard__Tensor t, *list[1];
	Shard__Defined *got;
	Shard__Define d;
	Shard__Spec s;
	uint64_t shape;

	memset(w, 0, sizeof(*w));
	raw_connect(&w->r, address);
	raw_hello(&w->r, ROLE_TRAINER);
	evil_spec(&d, &s, &t, list, &shape);
	shape = ELEMS;
	s.name = (char *)(uintptr_t) "m";
	s.settings = (char *)(uintptr_t) "optimizer=sgd lr=1 chunk_elems=65536 min_world=1 "
					 "max_world=1 timeout=20s";
	raw_send(&w->r, &h, &d.base);
	if (!raw_expect(&w->r, OP_DEFINE))
		fail_msg("DEFINE was not answered");
	got = shard__defined__unpack(NULL, w->r.head.body_bytes, w->r.body);
	w->model = got->model;
	w->generation = w->r.head.generation;
	w->tag = 1;
	shard__defined__free_unpacked(got, NULL);
}

static struct wire_head write_head(struct writer *w, uint32_t chunk)
{
	return (struct wire_head){.op = OP_WRITE,
				  .attempt = ++w->tag,
				  .model = w->model,
				  .generation = w->generation,
				  .step = (uint64_t)chunk * CHUNK,
				  .chunk = SHARD_MASTER};
}

static float *filled(float with)
{
	float *v = malloc(PART);

	CHECK(v != NULL);
	for (int i = 0; i < CHUNK; i++)
		v[i] = with;
	return v;
}

static void write_chunk(struct writer *w, uint32_t chunk, float with)
{
	struct wire_head h = write_head(w, chunk);
	float *v = filled(with);

	raw_head(&w->r, &h, v, PART);
	assert_true(raw_expect(&w->r, OP_WRITE));
	free(v);
}

static void write_all(struct writer *w, float with)
{
	for (uint32_t c = 0; c < ELEMS / CHUNK; c++)
		write_chunk(w, c, with);
}

/* Sends the header and the first bytes of a WRITE. finish_body() sends the rest. */
static float *begin_write(struct writer *w, uint32_t chunk, float with, size_t first)
{
	struct wire_head h = write_head(w, chunk);
	float *v = filled(with);

	h.body_bytes = PART;
	wire_seal(&h, v, w->r.sent++, true);
	raw_bytes(&w->r, &h, sizeof(h));
	raw_bytes(&w->r, v, first);
	return v;
}

static void finish_body(struct raw *r, float *v, size_t first)
{
	raw_bytes(r, (char *)v + first, PART - first);
	free(v);
}

static void seal(struct writer *w)
{
	raw_send(&w->r, &(struct wire_head){.op = OP_SEAL, .attempt = ++w->tag, .model = w->model},
		 NULL);
	if (!raw_expect(&w->r, OP_SEAL))
		fail_msg("SEAL was not answered");
}

static void read_send(struct raw *r, uint32_t model, uint64_t first, uint32_t count, uint32_t tag)
{
	Shard__Read q = SHARD__READ__INIT;

	q.kind = SHARD_MASTER;
	q.first = first;
	q.count = count;
	raw_send(r, &(struct wire_head){.op = OP_READ, .attempt = tag, .model = model}, &q.base);
}

static void chunk_is(struct writer *w, uint32_t chunk, float want)
{
	const float *v;

	read_send(&w->r, w->model, (uint64_t)chunk * CHUNK, CHUNK, ++w->tag);
	assert_true(raw_expect(&w->r, OP_READ));
	assert_int_equal(w->r.head.body_bytes, PART);
	v = (const float *)(void *)w->r.body;
	for (int i = 0; i < CHUNK; i++)
		if (memcmp(&v[i], &want, sizeof(want)) != 0)
			fail_msg("master %u of chunk %u is %g, not %g", i, chunk, (double)v[i],
				 (double)want);
}

static void masters_are(struct writer *w, float want)
{
	for (uint32_t c = 0; c < ELEMS / CHUNK; c++)
		chunk_is(w, c, want);
}

static void refused(struct raw *r, const char *part)
{
	char *text = raw_error(r);

	if (text == NULL || strstr(text, part) == NULL)
		fail_msg("answered with \"%s\", not with \"%s\"", text != NULL ? text : "nothing",
			 part);
}

/* --- WRITE --- */

static void start_one(struct inproc *c)
{
	struct inproc_conf conf = {.nodes = 1, .cluster = "heartbeat_timeout = 20s"};

	inproc_start(c, &conf);
}

/* The session that seals goes on writing: the header of a WRITE comes before the model is sealed,
 * and the rest after that. */
static void test_write_over_the_seal(void **state)
{
	enum { BEFORE = 4096 };
	struct wire_head h[2] = {{.op = OP_SEAL, .attempt = 500}};
	char both[sizeof(h) + BEFORE];
	struct inproc c;
	struct writer w;
	float *v = filled(666);

	(void)state;
	start_one(&c);
	define(&w, c.node[0].unix_address);
	write_all(&w, 0.5f);
	h[0].model = w.model;
	h[1] = write_head(&w, 1);
	h[1].body_bytes = PART;
	wire_seal(&h[0], NULL, w.r.sent++, true);
	wire_seal(&h[1], v, w.r.sent++, true);
	memcpy(both, h, sizeof(h));
	memcpy(both + sizeof(h), v, BEFORE);
	/* The daemon gets both in one read, and the seal waits for the disk. */
	raw_bytes(&w.r, both, sizeof(both));
	if (!raw_expect(&w.r, OP_SEAL))
		fail_msg("SEAL was not answered");
	finish_body(&w.r, v, BEFORE);
	refused(&w.r, "weights are written before the seal");
	masters_are(&w, 0.5f);
	raw_close(&w.r);
	inproc_stop(&c);
}

/* The WRITE ends the connection, so everything that it wrote is void. */
static void test_write_with_a_wrong_sum(void **state)
{
	struct inproc c;
	struct writer w, next;
	struct wire_head h;
	float *v;

	(void)state;
	start_one(&c);
	define(&w, c.node[0].unix_address);
	h = write_head(&w, 0);
	h.body_bytes = PART;
	v = filled(1);
	wire_seal(&h, v, w.r.sent++, true);
	v[CHUNK - 1] = 2;
	raw_bytes(&w.r, &h, sizeof(h));
	raw_bytes(&w.r, v, PART);
	free(v);
	refused(&w.r, "body checksum");
	raw_expect_closed(&w.r);
	raw_close(&w.r);
	inproc_wait_log(&c.node[0], "event=session_closed", 1);
	define(&next, c.node[0].unix_address);
	raw_send(&next.r,
		 &(struct wire_head){.op = OP_SEAL, .attempt = ++next.tag, .model = next.model},
		 NULL);
	refused(&next.r, "131072 elements are not written");
	write_all(&next, 0.5f);
	seal(&next);
	masters_are(&next, 0.5f);
	raw_close(&next.r);
	inproc_stop(&c);
}

static void test_write_over_a_drop(void **state)
{
	struct wire_head h = {.op = OP_MANAGE, .attempt = 99};
	Shard__Manage m = SHARD__MANAGE__INIT;
	struct inproc c;
	struct writer w, other;
	float *v;

	(void)state;
	start_one(&c);
	define(&w, c.node[0].unix_address);
	define(&other, c.node[0].unix_address);
	v = begin_write(&w, 0, 666, 1000);
	/* Each turn of the loop reads from all connections. So after this answer the bytes of the
	 * WRITE are there before the drop. */
	free(raw_status(&other.r));
	m.name = (char *)(uintptr_t) "m";
	m.action = 1;
	m.force = true;
	raw_send(&other.r, &h, &m.base);
	assert_true(raw_expect(&other.r, OP_MANAGE));
	finish_body(&w.r, v, 1000);
	refused(&w.r, "no model");
	raw_close(&w.r);
	raw_close(&other.r);
	inproc_stop(&c);
}

/* --- answers of another node --- */

struct definer {
	struct rawnode *x;
	struct writer w;
	pthread_t thread;
};

static void *define_there(void *arg)
{
	struct definer *d = arg;

	define(&d->w, d->x->daemon->unix_address);
	return NULL;
}

/* Defines a model at node a. The test is node b, which holds the second chunk. */
static void link_and_define(struct rawnode *x, struct writer *w, uint32_t connections)
{
	struct inproc_conf conf = {.cluster = "heartbeat_timeout = 20s"};
	struct definer d = {.x = x};

	rawnode_start(x, false, &conf, connections);
	CHECK(pthread_create(&d.thread, NULL, define_there, &d) == 0);
	rawnode_hold(x);
	pthread_join(d.thread, NULL);
	*w = d.w;
}

/* The answer to a READ comes on one connection. Before its body is complete, the other connection
 * says that the READ is refused. */
static void test_answer_that_is_taken_back(void **state)
{
	struct wire_head h = {.op = OP_READ, .flags = WIRE_REPLY, .body_bytes = PART},
			 no = {.op = OP_ERROR, .flags = WIRE_REPLY};
	Shard__Error why = SHARD__ERROR__INIT;
	struct rawnode x;
	struct writer w;
	float *v = filled(1);

	(void)state;
	why.status = SHARD_STALE;
	why.text = (char *)(uintptr_t) "once more";
	link_and_define(&x, &w, 2);
	read_send(&w.r, x.model, CHUNK, CHUNK, 55);
	rawnode_expect(&x, OP_READ);
	h.attempt = no.attempt = x.r[0].head.attempt;
	wire_seal(&h, v, x.r[1].sent++, true);
	raw_bytes(&x.r[1], &h, sizeof(h));
	raw_bytes(&x.r[1], v, 1000);
	raw_send(&x.r[0], &no, &why.base);
	/* The answer was taken back, or the link ended. */
	assert_non_null(raw_error(&w.r));
	finish_body(&x.r[1], v, 1000);
	inproc_wait_log(x.daemon,
			"frame read on connection 1 of the link: it belongs on connection 0", 1);

	/* The same on the connection where the answer belongs. There only the end of the trainer
	 * can come in between. */
	rawnode_link(&x);
	rawnode_hold(&x);
	v = filled(2);
	read_send(&w.r, x.model, CHUNK, CHUNK, 56);
	rawnode_expect(&x, OP_READ);
	h.attempt = x.r[0].head.attempt;
	wire_seal(&h, v, x.r[0].sent++, true);
	raw_bytes(&x.r[0], &h, sizeof(h));
	raw_bytes(&x.r[0], v, 1000);
	raw_close(&w.r);
	inproc_wait_log(x.daemon, "event=session_closed", 1);
	finish_body(&x.r[0], v, 1000);
	raw_send(&x.r[0], &no, &why.base); /* Nobody waits for it any more, so it is dropped. */
	rawnode_stop(&x);
}

/* Sends frames of chunks and of the core on the wrong connection of a link. */
static void test_wrong_connection(void **state)
{
	static const uint16_t ops[] = {OP_CONTRIB_DATA, OP_IMAGE_DATA, OP_CONTRIB};
	char bytes[8] = {0}, part[128];
	struct rawnode x;

	(void)state;
	rawnode_start(&x, false, &(struct inproc_conf){.cluster = "heartbeat_timeout = 20s"}, 2);
	for (uint32_t i = 0; i < 6; i++) {
		uint32_t chunk = 6 + i % 2;
		struct wire_head h = {.op = ops[i / 2], .chunk = chunk, .model = 1};

		raw_head(&x.r[1 - chunk % 2], &h, bytes, h.op == OP_CONTRIB ? 0 : sizeof(bytes));
		snprintf(part, sizeof(part),
			 "on connection %u of the link: it belongs on connection %u", 1 - chunk % 2,
			 chunk % 2);
		rawnode_refused(&x, 1 - chunk % 2, part);
		rawnode_link(&x);
		/* There is no such model, so the frame is dropped. */
		raw_head(&x.r[chunk % 2], &h, bytes, h.op == OP_CONTRIB ? 0 : sizeof(bytes));
	}
	raw_send(&x.r[1], &(struct wire_head){.op = OP_PING}, NULL);
	raw_send(&x.r[1], &(struct wire_head){.op = OP_CORE + CORE_ASK, .term = 1, .model = 1},
		 NULL);
	rawnode_refused(&x, 1, "frame ask on connection 1 of the link");
	rawnode_stop(&x);
}

/* --- WRITE while the model is lost, and restored --- */

enum { FIRST = 1000 /* FIRST bytes of a body are sent before the event that ends its purpose. */ };

struct late {
	struct rawnode x; /* The test is node b, with the second chunk. */
	struct writer w, other;
	float *body; /* Of w's WRITE into the first chunk. */
};

/* The model is lost while the body is on its way, because node b comes back with other memory. */
static void lose(struct late *l)
{
	link_and_define(&l->x, &l->w, 1);
	rawnode_obey(&l->x, OP_CORE + CORE_VIEW, 0);
	l->body = begin_write(&l->w, 0, 666, FIRST);
	memset(&l->other, 0, sizeof(l->other));
	raw_connect(&l->other.r, l->x.daemon->unix_address);
	raw_hello(&l->other.r, ROLE_TRAINER);
	free(raw_status(&l->other.r)); /* What was sent before has been read. */
	l->other.model = l->x.model;
	l->x.incarnation++;
	rawnode_link(&l->x);
	rawnode_obey(&l->x, OP_CORE + CORE_VIEW, 0);
	inproc_wait_log(l->x.daemon, "event=lost model=m", 1);
}

static void late_body(struct late *l, const char *part)
{
	finish_body(&l->w.r, l->body, FIRST);
	refused(&l->w.r, part);
}

static void late_end(struct late *l)
{
	raw_close(&l->w.r);
	raw_close(&l->other.r);
	rawnode_stop(&l->x);
}

/* Another writer has written the chunk again by then. */
static void test_write_over_a_loss(void **state)
{
	struct writer next;
	struct late l;

	(void)state;
	lose(&l);
	define(&next, l.x.daemon->unix_address);
	write_chunk(&next, 0, 0.5f);
	late_body(&l, "define it again");
	raw_send(&next.r,
		 &(struct wire_head){.op = OP_SEAL, .attempt = ++next.tag, .model = next.model},
		 NULL);
	rawnode_obey(&l.x, OP_CORE + CORE_VIEW, 0);
	inproc_wait_log(l.x.daemon, "event=sealed model=m", 1);
	chunk_is(&next, 0, 0.5f);
	raw_close(&next.r);
	late_end(&l);
}

static void save_elsewhere(const char *dir, float with)
{
	struct inproc c;
	struct writer w;

	start_one(&c);
	define(&w, c.node[0].unix_address);
	write_all(&w, with);
	seal(&w);
	keep_must_save(c.node[0].unix_address, "m", dir, NULL);
	raw_close(&w.r);
	inproc_stop(&c);
}

/* The chunk has come from the checkpoint by then, and the seal waits for the other node. */
static void test_write_over_a_restore(void **state)
{
	struct wire_head h = {.op = OP_RESTORE, .attempt = 77}, done;
	static const Shard__Written nothing = SHARD__WRITTEN__INIT;
	Shard__Restore body = SHARD__RESTORE__INIT;
	struct keep k;
	struct late l;

	(void)state;
	keep_init(&k);
	save_elsewhere(k.dir, 0.5f);
	lose(&l);
	body.dir = k.dir;
	raw_send(&l.other.r, &h, &body.base);
	rawnode_obey(&l.x, OP_LOAD_PART, 0);
	done = (struct wire_head){.op = OP_LOAD_PART,
				  .flags = WIRE_REPLY,
				  .model = l.x.model,
				  .attempt = l.x.r[0].head.attempt};
	raw_send(&l.x.r[0], &done, NULL);
	rawnode_expect(&l.x, OP_WRITTEN);
	late_body(&l, "is being restored");
	done.op = OP_WRITTEN;
	done.attempt = l.x.r[0].head.attempt;
	raw_send(&l.x.r[0], &done, &nothing.base);
	rawnode_obey(&l.x, OP_CORE + CORE_VIEW, 0);
	inproc_wait_log(l.x.daemon, "event=sealed model=m", 1);
	chunk_is(&l.other, 0, 0.5f);
	late_end(&l);
	keep_free(&k);
}

/* --- gradients --- */

struct pusher {
	struct writer w;
	struct wire_head now; /* The head of the current attempt. */
};

static void join(struct pusher *p)
{
	raw_send(&p->w.r,
		 &(struct wire_head){.op = OP_JOIN, .attempt = ++p->w.tag, .model = p->w.model},
		 NULL);
	assert_true(raw_expect(&p->w.r, OP_ATTEMPT));
	p->now = p->w.r.head;
}

static struct wire_head of_attempt(const struct pusher *p, uint16_t op, uint32_t chunk)
{
	struct wire_head h = p->now;

	h.op = op;
	h.flags = 0;
	h.chunk = chunk;
	return h;
}

/* The model is dropped while a part of a gradient is on its way into the trainer's arena. When the
 * rest of it comes, the arena of the next trainer may be at that address. */
static void test_push_over_a_drop(void **state)
{
	struct wire_head h, drop = {.op = OP_MANAGE, .attempt = 99};
	Shard__Manage m = SHARD__MANAGE__INIT;
	Shard__Ready ready = SHARD__READY__INIT;
	float *v = filled(666), *zero = filled(0);
	struct pusher out, next;
	struct writer other;
	struct inproc c;

	(void)state;
	start_one(&c);
	define(&out.w, c.node[0].tcp_address);
	write_all(&out.w, 0.5f);
	seal(&out.w);
	define(&other, c.node[0].tcp_address);
	join(&out);
	h = of_attempt(&out, OP_PUSH_DATA, 0);
	h.body_bytes = PART;
	wire_seal(&h, v, out.w.r.sent++, true);
	raw_bytes(&out.w.r, &h, sizeof(h));
	raw_bytes(&out.w.r, v, FIRST);
	free(raw_status(&other.r)); /* What was sent before has been read. */
	m.name = (char *)(uintptr_t) "m";
	m.action = 1;
	m.force = true;
	raw_send(&other.r, &drop, &m.base);
	assert_true(raw_expect(&other.r, OP_MANAGE));
	define(&next.w, c.node[0].tcp_address);
	write_all(&next.w, 0.5f);
	seal(&next.w);
	join(&next);
	for (uint32_t k = 0; k < ELEMS / CHUNK; k++) {
		h = of_attempt(&next, OP_PUSH_DATA, k);
		raw_head(&next.w.r, &h, zero, PART);
	}
	free(raw_status(&next.w.r));
	finish_body(&out.w.r, v, FIRST);
	free(raw_status(&out.w.r)); /* The rest has come, and the connection is still open. */
	for (uint32_t k = 0; k < ELEMS / CHUNK; k++) {
		h = of_attempt(&next, OP_PUSH, k);
		raw_send(&next.w.r, &h, NULL);
	}
	ready.weight = 1;
	h = of_attempt(&next, OP_READY, 0);
	raw_send(&next.w.r, &h, &ready.base);
	assert_true(raw_expect(&next.w.r, OP_RESULT));
	masters_are(&next.w, 0.5f);
	raw_close(&out.w.r);
	raw_close(&other.r);
	raw_close(&next.w.r);
	free(zero);
	inproc_stop(&c);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_write_over_the_seal),
		cmocka_unit_test(test_write_with_a_wrong_sum),
		cmocka_unit_test(test_write_over_a_drop),
		cmocka_unit_test(test_write_over_a_loss),
		cmocka_unit_test(test_write_over_a_restore),
		cmocka_unit_test(test_push_over_a_drop),
		cmocka_unit_test(test_answer_that_is_taken_back),
		cmocka_unit_test(test_wrong_connection),
	};

	return cmocka_run_group_tests_name("landing", tests, NULL, NULL);
}
