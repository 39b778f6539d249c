// SPDX-License-Identifier: Apache-2.0
/* Plays one of two nodes by hand. Tests call it. Until the test sends something wrong, a daemon
 * that does not do what it owes to any node fails the test. As coordinator it goes the short way of
 * a cluster that has just been started: MODEL, ASK, a first view, and a sealed view. */
#include "lib/rawnode.h"

#include "base/check.h"
#include "model/corewire.h"
#include "shard.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { PACKING_BYTES = 1 << 20 };

struct view_node rawnode_who(const struct rawnode *x)
{
	return (struct view_node){.uuid = {(uint8_t)(7 + x->folder)},
				  .incarnation = x->incarnation};
}

static void hello_of(const struct rawnode *x, Shard__Hello *m, uint32_t connection)
{
	static struct view_node mine;

	mine = rawnode_who(x);
	shard__hello__init(m);
	m->wire_min = m->wire_max = WIRE_VERSION;
	m->features = FEATURE_BODY_SUM;
	m->role = ROLE_NODE;
	m->run_id = (char *)(uintptr_t) "test";
	m->node = (char *)(uintptr_t)(x->coordinates ? "a" : "b");
	m->uuid = (ProtobufCBinaryData){sizeof(mine.uuid), mine.uuid};
	m->incarnation = x->incarnation;
	m->connection = connection;
	m->config_hash = config_hash(&x->conf);
	m->release = (char *)(uintptr_t) "raw";
}

static bool dial(struct rawnode *x)
{
	struct wire_head h = {.op = OP_HELLO};
	Shard__Hello mine;

	for (uint32_t i = 0; i < x->connections; i++) {
		raw_connect(&x->r[i], x->daemon->tcp_address);
		hello_of(x, &mine, i);
		raw_send(&x->r[i], &h, &mine.base);
		if (raw_recv(&x->r[i]) && x->r[i].head.op == OP_HELLO)
			continue;
		for (uint32_t k = 0; k <= i; k++)
			raw_close(&x->r[k]);
		return false; /* The link before this one is still being closed. */
	}
	return true;
}

static bool answer_dials(struct rawnode *x)
{
	struct wire_head h = {.op = OP_HELLO, .flags = WIRE_REPLY};
	Shard__Hello mine, *theirs;

	for (uint32_t i = 0; i < x->connections; i++) {
		struct raw r = {.fd = accept(x->listener, NULL, NULL)};

		if (r.fd < 0 || !raw_recv(&r) || r.head.op != OP_HELLO)
			fail_msg("node b does not dial");
		theirs = shard__hello__unpack(NULL, r.head.body_bytes, r.body);
		assert_non_null(theirs);
		assert_true(theirs->connection < x->connections);
		x->daemon_who.incarnation = theirs->incarnation;
		assert_int_equal(theirs->uuid.len, VIEW_UUID_BYTES);
		memcpy(x->daemon_who.uuid, theirs->uuid.data, VIEW_UUID_BYTES);
		hello_of(x, &mine, theirs->connection);
		raw_send(&r, &h, &mine.base);
		x->r[theirs->connection] = r;
		shard__hello__free_unpacked(theirs, NULL);
	}
	return true;
}

void rawnode_link(struct rawnode *x)
{
	for (uint32_t i = 0; i < x->connections; i++)
		raw_close(&x->r[i]);
	while (!(x->coordinates ? answer_dials(x) : dial(x)))
		usleep(1000);
	/* On a new link MODEL says which memory is where before anything else of the model. */
	if (x->chunks_nr > 0)
		rawnode_define(x, x->chunks_nr, x->settings);
}

void rawnode_held(struct rawnode *x)
{
	struct wire_head h = {.op = OP_MODEL, .flags = WIRE_REPLY, .attempt = x->r[0].head.attempt};
	Shard__Memory body = SHARD__MEMORY__INIT;

	h.model = x->model = x->r[0].head.model;
	body.incarnation = x->incarnation;
	raw_send(&x->r[0], &h, &body.base);
}

void rawnode_hold(struct rawnode *x)
{
	rawnode_expect(x, OP_MODEL);
	rawnode_held(x);
}

static void listen_as(struct rawnode *x, uint16_t port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
				 .sin_port = htons(port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int one = 1;

	x->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(x->listener >= 0 &&
	      setsockopt(x->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	CHECK(bind(x->listener, (struct sockaddr *)&sa, sizeof(sa)) == 0 &&
	      listen(x->listener, 8) == 0);
}

void rawnode_start(struct rawnode *x, bool coordinates, const struct inproc_conf *lines,
		   uint32_t connections)
{
	struct inproc_conf conf = lines != NULL ? *lines : (struct inproc_conf){0};
	char net[64];
	struct inproc_node *mine;
	struct err e;

	memset(x, 0, sizeof(*x));
	CHECK(connections <= RAWNODE_CONNECTIONS_MAX && conf.net == NULL);
	snprintf(net, sizeof(net), "transport = tcp\nconnections = %u", connections);
	conf.nodes = 2;
	conf.net = net;
	inproc_prepare(&x->c, &conf);
	x->coordinates = coordinates;
	x->connections = connections;
	x->incarnation = 1;
	x->listener = -1;
	x->packing_bytes = malloc(PACKING_BYTES);
	CHECK(x->packing_bytes != NULL);
	arena_init(&x->packing, x->packing_bytes, PACKING_BYTES);
	for (uint32_t i = 0; i < connections; i++)
		x->r[i].fd = -1;
	x->daemon = &x->c.node[coordinates ? 1 : 0];
	mine = &x->c.node[coordinates ? 0 : 1];
	if (config_load_text(&x->conf, mine->name, mine->text, strlen(mine->text), &e) != SHARD_OK)
		fail_msg("%s", e.text);
	if (coordinates)
		listen_as(x, mine->port);
	if (inproc_node_start(x->daemon) != SHARD_OK)
		fail_msg("%s", x->daemon->why.text);
	rawnode_link(x);
}

void rawnode_stop(struct rawnode *x)
{
	json_decref(inproc_status(x->daemon)); /* The daemon still answers. */
	rawnode_free(x);
}

void rawnode_free(struct rawnode *x)
{
	for (uint32_t i = 0; i < x->connections; i++)
		raw_close(&x->r[i]);
	if (x->listener >= 0)
		close(x->listener);
	config_free(&x->conf);
	free(x->packing_bytes);
	inproc_stop(&x->c);
}

void rawnode_refused(struct rawnode *x, uint32_t connection, const char *part)
{
	char *text = raw_error(&x->r[connection]);

	if (text == NULL || strstr(text, part) == NULL)
		fail_msg("the link ends with \"%s\", not with \"%s\"",
			 text != NULL ? text : "nothing", part);
	raw_expect_closed(&x->r[connection]);
}

void rawnode_expect(struct rawnode *x, uint16_t op)
{
	if (!raw_expect(&x->r[0], op))
		fail_msg("the link ended where %s was due", wire_op(op)->name);
}

/* --- as the coordinator --- */

static bool copied(const struct rawnode *x)
{
	return strstr(x->settings, "replicas=2") != NULL;
}

void rawnode_define(struct rawnode *x, uint32_t chunks, const char *settings)
{
	rawnode_define_as(x, 1, "m", chunks, settings);
}

void rawnode_define_as(struct rawnode *x, uint32_t model, const char *name, uint32_t chunks,
		       const char *settings)
{
	struct wire_head h = {.op = OP_MODEL, .attempt = ++x->tag};
	uint32_t runs[] = {0, chunks / 2, 1, chunks - chunks / 2};
	uint64_t holders[] = {3, chunks};
	uint64_t shape[] = {chunks * 1024ull};
	Shard__Tensor t = SHARD__TENSOR__INIT, *list[] = {&t};
	Shard__Model m = SHARD__MODEL__INIT;
	Shard__Spec s = SHARD__SPEC__INIT;

	CHECK(chunks >= 2);
	t.name = (char *)(uintptr_t) "w";
	t.n_shape = 1;
	t.shape = shape;
	s.name = (char *)(uintptr_t)name;
	s.n_tensors = 1;
	s.tensors = list;
	s.image = s.grad = SHARD_F32;
	s.settings = (char *)(uintptr_t)settings;
	m.model = x->model = model;
	m.spec = &s;
	m.chunk_elems = 1024;
	m.n_place_runs = 4;
	m.place_runs = runs;
	m.incarnation = x->incarnation;
	m.generation = 1;
	x->chunks_nr = chunks;
	x->settings = settings;
	m.n_holder_runs = copied(x) ? 2 : 0;
	m.holder_runs = holders;
	raw_send(&x->r[0], &h, &m.base);
	if (!x->silent)
		rawnode_expect(x, OP_MODEL);
}

struct placement rawnode_place(const struct rawnode *x)
{
	uint16_t *primary = calloc(x->chunks_nr, sizeof(*primary));
	uint64_t *holders = calloc(x->chunks_nr, sizeof(*holders));
	struct placement p;

	CHECK(primary != NULL && holders != NULL);
	for (uint32_t c = 0; c < x->chunks_nr; c++) {
		primary[c] = c >= x->chunks_nr / 2;
		holders[c] = 3;
	}
	p = place_of(primary, copied(x) ? holders : NULL, x->chunks_nr);
	p.primary = NULL;
	p.holders = NULL;
	free(primary);
	free(holders);
	return p;
}

void rawnode_say(struct rawnode *x, const struct core_msg *m)
{
	struct wire_head h;
	Shard__Core body;

	CHECK(corewire_pack(m, 0, &x->packing, &h, &body) == SHARD_OK);
	h.model = x->model;
	raw_send(&x->r[0], &h, &body.base);
	arena_reset(&x->packing);
}

static void view(struct rawnode *x)
{
	struct core_msg m = {.op = CORE_VIEW, .view = &x->view};

	x->view.seq++;
	m.id = (struct core_id){
		.term = x->view.term, .seq = x->view.seq, .generation = x->view.generation};
	rawnode_say(x, &m);
	rawnode_expect(x, OP_CORE + CORE_VIEW_OK);
}

/* Writes zeros into the chunks that node b holds. */
static void write_theirs(struct rawnode *x)
{
	static const float zeros[1024];
	struct wire_head h = {.op = OP_WRITE,
			      .model = x->model,
			      .generation = x->view.generation,
			      .term = x->view.term,
			      .seq = 1,
			      .chunk = SHARD_MASTER};

	for (uint64_t c = copied(x) ? 0 : x->chunks_nr / 2; c < x->chunks_nr; c++) {
		h.attempt = ++x->tag;
		h.step = c * 1024;
		raw_head(&x->r[0], &h, zeros, sizeof(zeros));
		rawnode_expect(x, OP_WRITE);
	}
}

void rawnode_seal(struct rawnode *x, uint64_t step)
{
	struct record *r = &x->view.record;

	x->view = (struct core_view){
		.term = 5, .generation = 1, .members = view_first(2, 0), .place = rawnode_place(x)};
	x->view.members.node[0] = rawnode_who(x);
	x->view.members.node[1] = x->daemon_who;
	rawnode_say(x, &(struct core_msg){.op = CORE_ASK, .id = {.term = x->view.term}});
	rawnode_expect(x, OP_CORE + CORE_ANSWER);
	view(x);
	write_theirs(x);
	x->view.sealed = true;
	*r = (struct record){.outcome = RECORD_SEAL,
			     .content = step,
			     .content_old = step,
			     .applied = step,
			     .clip_factor = 1,
			     .bad_tensor = -1,
			     .bad_rank = -1};
	r->id = (struct core_id){.term = 5, .seq = x->view.seq + 1, .generation = 1, .step = step};
	r->scaler.scale = r->loss_scale = 1;
	r->groups_nr = 1;
	view(x);
}

void rawnode_begin(struct rawnode *x, const struct core_world *w, struct core_id *id)
{
	struct core_msg m = {.op = CORE_BEGIN, .world = w, .record = &x->view.record};

	id->term = x->view.term;
	id->seq = x->view.seq;
	id->generation = x->view.generation;
	id->step = x->view.record.id.step + 1;
	id->attempt++;
	m.id = *id;
	rawnode_say(x, &m);
}

/* --- as a member --- */

static struct core_id id_of(const struct wire_head *h)
{
	return (struct core_id){h->term, h->step, h->seq, h->generation, h->attempt};
}

void rawnode_join(struct rawnode *x, uint64_t session)
{
	struct core_msg m = {.op = CORE_JOIN,
			     .trainer = {.session = session, .pid = 1, .hint = -1}};

	m.id.term = x->view.term;
	rawnode_say(x, &m);
}

static void obey(struct rawnode *x, uint64_t session)
{
	static const Shard__Written nothing = SHARD__WRITTEN__INIT;
	struct wire_head *h = &x->r[0].head, reply = {.op = h->op,
						      .flags = WIRE_REPLY,
						      .model = h->model,
						      .attempt = h->attempt};
	struct core_answer answer = {.incarnation = x->incarnation};
	struct core_msg m = {.op = CORE_ANSWER, .id = id_of(h), .answer = &answer};

	switch (h->op) {
	case OP_MODEL:
		rawnode_held(x);
		break;
	case OP_WRITTEN:
		raw_send(&x->r[0], &reply, &nothing.base);
		break;
	case OP_CORE + CORE_ASK:
		rawnode_say(x, &m);
		break;
	case OP_CORE + CORE_VIEW:
		x->view.term = h->term;
		rawnode_say(x, &(struct core_msg){.op = CORE_VIEW_OK, .id = id_of(h)});
		if (session != 0)
			rawnode_join(x, session);
		break;
	case OP_CORE + CORE_ABORT:
		rawnode_say(x, &(struct core_msg){.op = CORE_DRAINED, .id = id_of(h)});
		break;
	default: /* These are repeated until they are answered, or need no answer. */
		break;
	}
}

void rawnode_obey(struct rawnode *x, uint16_t until, uint64_t session)
{
	do {
		if (!raw_recv(&x->r[0]))
			fail_msg("the link ended where %s was due", wire_op(until)->name);
		obey(x, session);
	} while (x->r[0].head.op != until);
}
