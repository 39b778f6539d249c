// SPDX-License-Identifier: Apache-2.0
/* A handle on a model: made by shard_define(), ended by shard_detach() or with its connection. It owns layout, maps, tickets and the
 * state of the step in hand. Happy path of define: check the spec, ask, make the chunk table. Ways to fail: what the caller
 * wrote, what the daemon refuses (SHARD_MISMATCH, SHARD_BUDGET ... in its words), memory. A detached model whose arena or image the
 * stream still uses stays as a zombie until that is over. */
#include "handle.h"
#include "ckpt.h"
#include "image.h"
#include "push.h"
#include "spawn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum shard_status handle_enter(struct shard_model *m)
{
	enum shard_status rc;

	if (m == NULL)
		return text_fail(SHARD_BAD_ARG, "the model is NULL");
	if ((rc = client_enter(m->client)) != SHARD_OK)
		return rc;
	if (m->lost.status == SHARD_OK)
		return SHARD_OK;
	rc = text_fail_err(&m->lost);
	client_leave(m->client);
	return rc;
}

enum shard_status handle_enter_one(struct shard_model *m)
{
	enum shard_status rc = handle_enter(m);

	if (rc != SHARD_OK || !atomic_flag_test_and_set(&m->busy))
		return rc;
	client_leave(m->client);
	return text_fail(SHARD_BUSY, "another thread is in a call on \"%s\" that only one may make at a time", m->space.name);
}

void handle_leave_one(struct shard_model *m)
{
	atomic_flag_clear(&m->busy);
	client_leave(m->client);
}

struct wire_head handle_head(const struct shard_model *m)
{
	return (struct wire_head){.model = m->id, .generation = m->generation};
}

int64_t handle_timeout(const struct shard_model *m, int64_t timeout_ms)
{
	return timeout_ms < 0 ? m->timeout_ms : timeout_ms;
}

enum shard_status handle_wait(struct shard_model *m, struct wait *w)
{
	uint64_t before = clock_ns();
	enum shard_status rc = pump_wait(m->client, w);

	m->wait_ns += clock_ns() - before;
	if (rc == SHARD_OK && m->lost.status != SHARD_OK)
		return text_fail_err(&m->lost);
	return rc;
}

void handle_waits_text(struct shard_model *m, char *text, size_t bytes)
{
	struct request *r = request_new(m->client, OP_WAITS, 0);
	Shard__Text *t = NULL;
	struct wait w;

	snprintf(text, bytes, "shardd did not say for whom");
	wait_begin(m->client, &w, CLIENT_WAITS_MS);
	if (r != NULL && request_send(r, handle_head(m), NULL, &w) == SHARD_OK && request_wait(r, &w) == SHARD_OK)
		t = shard__text__unpack(NULL, r->body_bytes, r->body);
	if (t != NULL && t->text[0] != 0)
		snprintf(text, bytes, "%s", t->text);
	if (t != NULL)
		shard__text__free_unpacked(t, NULL);
	request_free(r);
}

struct shard_model *handle_find(struct shard_client *c, const struct wire_head *h)
{
	list_each(it, &c->models) {
		struct shard_model *m = list_of(it, struct shard_model, node);

		if (m->defined && m->id == h->model && m->generation == h->generation)
			return m;
	}
	return NULL;
}

void handle_lost(struct shard_model *m, uint32_t status, const char *why)
{
	if (m->lost.status != SHARD_OK)
		return;
	if (status == SHARD_NOT_FOUND) {
		err_set(&m->lost, SHARD_NOT_FOUND, "%.300s (shard_detach() it; shard_define() makes a new one)", why);
		return;
	}
	err_set(&m->lost, SHARD_LOST, "\"%s\" is lost: %.300s (shard_detach() and shard_define() first)", m->space.name, why);
}

void handle_forget(struct shard_model *m)
{
	struct shm *both[2] = {&m->arena, &m->image};

	for (int i = 0; i < 2; i++) { /* MADV_DONTFORK: nothing is mapped here, and the address may be somebody else's by now */
		if (both[i]->fd >= 0)
			close(both[i]->fd);
		both[i]->fd = -1;
	}
}

void handle_free(struct shard_model *m)
{
	list_remove(&m->node);
	request_free(m->join_request);
	request_free(m->leave_request);
	ckpt_forget(m);
	shm_unmap(&m->arena);
	shm_unmap(&m->image);
	image_deinit(m);
	cover_deinit(&m->cover);
	adds_deinit(&m->adds);
	pthread_mutex_destroy(&m->adding);
	free(m->queue);
	free(m->forced);
	free(m->absent);
	free(m->lr);
	free(m->blob);
	space_deinit(&m->space);
	free(m);
}

void handle_reap(struct shard_client *c)
{
	list_each(it, &c->zombies) {
		struct shard_model *m = list_of(it, struct shard_model, node);

		if (m->sends_out == 0 && c->landing != m)
			handle_free(m);
	}
}

/* --- define --- */

static enum shard_status define_send(struct request *r, const struct shard_spec *s, struct wait *w)
{
	size_t bytes = s->tensors_nr * (sizeof(Shard__Tensor) + sizeof(Shard__Tensor *) + 8 * sizeof(uint64_t)) +
		       s->groups_nr * (sizeof(Shard__Group) + sizeof(Shard__Group *));
	char *memory = malloc(bytes);
	Shard__Tensor *t = (void *)memory;
	Shard__Group *g = (void *)(t + s->tensors_nr);
	uint64_t *shapes = (void *)(g + s->groups_nr);
	Shard__Tensor **tp = (void *)(shapes + 8 * (size_t)s->tensors_nr);
	Shard__Group **gp = (void *)(tp + s->tensors_nr);
	Shard__Define d = SHARD__DEFINE__INIT;
	Shard__Spec spec = SHARD__SPEC__INIT;
	enum shard_status rc;

	if (memory == NULL)
		return text_no_memory("a definition");
	for (uint32_t i = 0; i < s->tensors_nr; i++) {
		memcpy(shapes + 8 * (size_t)i, s->tensors[i].shape, sizeof(s->tensors[i].shape));
		t[i] = (Shard__Tensor)SHARD__TENSOR__INIT;
		t[i].name = (char *)(uintptr_t)s->tensors[i].name; /* protobuf-c's structs are not const; packing only reads */
		t[i].shape = shapes + 8 * (size_t)i;
		t[i].n_shape = s->tensors[i].ndim;
		t[i].group = s->tensors[i].group;
		t[i].flags = s->tensors[i].flags;
		tp[i] = &t[i];
	}
	for (uint32_t i = 0; i < s->groups_nr; i++) {
		g[i] = (Shard__Group)SHARD__GROUP__INIT;
		g[i].name = (char *)(uintptr_t)s->groups[i].name;
		g[i].settings = (char *)(uintptr_t)(s->groups[i].settings ? s->groups[i].settings : "");
		gp[i] = &g[i];
	}
	spec.name = (char *)(uintptr_t)s->name;
	spec.n_tensors = s->tensors_nr;
	spec.tensors = tp;
	spec.n_groups = s->groups_nr;
	spec.groups = gp;
	spec.image = s->image;
	spec.grad = s->grad;
	spec.settings = (char *)(uintptr_t)(s->settings ? s->settings : "");
	d.spec = &spec;
	d.pid = (uint32_t)getpid();
	rc = request_send(r, (struct wire_head){0}, &d.base, w);
	free(memory);
	return rc;
}

static enum shard_status cannot_be_read(const struct request *r)
{
	return text_fail(SHARD_PROTOCOL, "shardd at %s answered %s with what cannot be read", r->c->address, wire_op(r->op)->name);
}

static enum shard_status take_defined(struct shard_model *m, const struct request *r, const Shard__Defined *d)
{
	enum shard_status rc;
	struct err e;

	m->id = d->model;
	m->generation = r->head.generation;
	m->defined = true;
	m->created = d->created;
	m->sealed = d->sealed;
	m->scheduled = strstr(d->settings, "schedule=") != NULL && strstr(d->settings, "schedule=none") == NULL;
	m->sealed_step = d->step;
	m->staleness = d->max_staleness;
	m->timeout_ms = d->timeout_ms > 0 && d->timeout_ms < INT64_MAX / 2 ? (int64_t)d->timeout_ms : CLIENT_REQUEST_MS;
	if (d->max_staleness >= MODEL_IMAGES)
		return text_fail(SHARD_PROTOCOL, "\"%s\" has max_staleness = %u: this library knows 0 and 1", m->space.name,
				 d->max_staleness);
	rc = space_chunks(&m->space, d->chunk_elems, &e);
	return rc == SHARD_OK ? SHARD_OK : text_fail_err(&e);
}

static enum shard_status define_reply(struct shard_model *m, const struct request *r)
{
	Shard__Defined *d = shard__defined__unpack(NULL, r->body_bytes, r->body);
	enum shard_status rc = d ? take_defined(m, r, d) : cannot_be_read(r);

	if (d != NULL)
		shard__defined__free_unpacked(d, NULL);
	return rc;
}

static enum shard_status define_ask(struct shard_model *m, const struct shard_spec *s)
{
	struct shard_client *c = m->client;
	struct request *r = request_new(c, OP_DEFINE, 0);
	enum shard_status rc;
	struct wait w;

	if (r == NULL)
		return SHARD_SYSTEM;
	wait_begin(c, &w, c->timeout_ms);
	if ((rc = define_send(r, s, &w)) == SHARD_OK)
		rc = request_wait(r, &w);
	if (rc == SHARD_OK)
		rc = define_reply(m, r);
	else if (rc == SHARD_TIMEOUT)
		text_fail(rc, "definition of \"%s\" waited %.1f s for shardd at %s: disconnect before you try again", s->name,
			  wait_seconds(&w), c->address);
	else if (rc == SHARD_BUDGET && spawn_is(c->address))
		spawn_advise(c->address);
	request_free(r);
	return rc;
}

/* The layout is the caller's (s), or what the daemon says (w). */
static enum shard_status handle_new(struct shard_model **out, struct shard_client *c, const struct shard_spec *s,
				    const Shard__Spec *w)
{
	struct shard_model *m = calloc(1, sizeof(*m));
	enum shard_status rc;
	struct err e;

	if (m == NULL)
		return text_no_memory("a model");
	list_init(&m->node);
	list_init(&m->saves);
	m->client = c;
	m->arena.fd = m->image.fd = -1;
	atomic_flag_clear(&m->busy);
	pthread_mutex_init(&m->adding, NULL);
	if ((rc = s ? space_init(&m->space, s, &e) : space_init_wire(&m->space, w, &e)) != SHARD_OK) {
		pthread_mutex_destroy(&m->adding);
		free(m);
		errno = rc == SHARD_SYSTEM ? ENOMEM : errno;
		return text_fail_err(&e);
	}
	*out = m;
	return SHARD_OK;
}

static enum shard_status not_twice(struct shard_client *c, const struct shard_model *n)
{
	list_each(it, &c->models) {
		struct shard_model *m = list_of(it, struct shard_model, node);

		if (strcmp(m->space.name, n->space.name) == 0)
			return text_fail(
				SHARD_EXISTS,
				"\"%s\" is attached to this connection already: shard_detach() it first, or use its handle",
				n->space.name);
	}
	return SHARD_OK;
}

enum shard_status shard_define(shard_client *c, const struct shard_spec *spec, shard_model **out, int *created)
{
	struct shard_model *m = NULL;
	struct shard_spec s;
	enum shard_status rc;
	struct err e;

	if (c == NULL || out == NULL || created == NULL)
		return text_fail(SHARD_BAD_ARG, "shard_define: the connection, the model's place or created is NULL");
	*out = NULL;
	*created = 0;
	if ((rc = text_struct_in(&s, sizeof(s), spec, "shard_spec")) != SHARD_OK)
		return rc;
	if (space_check(&s, &e) != SHARD_OK)
		return text_fail_err(&e);
	if ((rc = client_enter(c)) != SHARD_OK)
		return rc;
	if ((rc = handle_new(&m, c, &s, NULL)) != SHARD_OK)
		goto out;
	if ((rc = not_twice(c, m)) == SHARD_OK)
		list_push(&c->models, &m->node); /* id 0 finds nothing until the reply is here */
	if (rc == SHARD_OK)
		rc = define_ask(m, &s);
	if (rc != SHARD_OK) {
		handle_free(m);
		goto out;
	}
	*created = m->created;
	*out = m;
out:
	client_leave(c);
	return rc;
}

enum shard_status handle_of_reply(struct shard_client *c, const struct request *r, struct shard_model **out)
{
	Shard__Defined *d = shard__defined__unpack(NULL, r->body_bytes, r->body);
	struct shard_model *m = NULL;
	enum shard_status rc;

	if (d == NULL || d->spec == NULL)
		rc = cannot_be_read(r);
	else if ((rc = handle_new(&m, c, NULL, d->spec)) == SHARD_OK && (rc = not_twice(c, m)) == SHARD_OK)
		rc = take_defined(m, r, d);
	if (d != NULL)
		shard__defined__free_unpacked(d, NULL);
	if (rc == SHARD_OK) {
		list_push(&c->models, &m->node);
		*out = m;
	} else if (m != NULL) {
		handle_free(m);
	}
	return rc;
}

/* The daemon knows no "detach": a trainer in a world gives its attempt up and leaves, and does not wait for the answer. */
static void say_goodbye(struct shard_model *m)
{
	Shard__Why why = SHARD__WHY__INIT;
	struct request *r;
	struct wait w;

	if (!m->joined || m->lost.status != SHARD_OK || m->client->over.status != SHARD_OK)
		return;
	why.why = (char *)(uintptr_t) "the trainer detached the model";
	if (m->offered.no != 0) {
		struct wire_head h = m->offered.id;

		h.op = OP_ABANDON;
		(void)stream_send_control(m->client->stream, &h, &why.base);
	}
	wait_begin(m->client, &w, 0);
	w.polled = true; /* never waits */
	r = request_new(m->client, OP_LEAVE, 0);
	if (r != NULL)
		(void)request_send(r, handle_head(m), NULL, &w);
	request_free(r);
	pump_kick(m->client);
}

void shard_detach(shard_model **mp)
{
	struct shard_model *m;
	struct shard_client *c;

	if (mp == NULL || (m = *mp) == NULL)
		return;
	c = m->client;
	*mp = NULL;
	if (client_forked(c)) {
		handle_forget(m);
		return;
	}
	pthread_mutex_lock(&c->lock); /* not client_enter(): a handle goes even when its connection is over */
	push_drop(m);
	say_goodbye(m);
	list_remove(&m->node);
	list_push(&c->zombies, &m->node);
	if (c->over.status == SHARD_OK) /* else the stream keeps its bodies until it is freed */
		handle_reap(c);
	pthread_mutex_unlock(&c->lock);
}

/* --- what never changes --- */

static bool readable(const shard_model *m)
{
	if (m != NULL && !client_forked(m->client))
		return true;
	text_fail(m ? SHARD_FORKED : SHARD_BAD_ARG, "%s",
		  m ? "this model belongs to the parent process: connect again here" : "the model is NULL");
	return false;
}

uint32_t shard_tensors(const shard_model *m)
{
	return readable(m) ? m->space.tensors_nr : 0;
}

enum shard_status shard_tensor_info(const shard_model *m, uint32_t tensor, struct shard_info *info)
{
	struct shard_info i = {.size = sizeof(i)};
	const struct space_tensor *t;
	enum shard_status rc;

	if (!readable(m))
		return m ? SHARD_FORKED : SHARD_BAD_ARG;
	if ((rc = text_struct_ok(info, "shard_info")) != SHARD_OK)
		return rc;
	if (tensor >= m->space.tensors_nr)
		return text_fail(SHARD_RANGE, "tensor %u of \"%s\", which has %u", tensor, m->space.name, m->space.tensors_nr);
	t = &m->space.tensors[tensor];
	i.name = t->name;
	i.offset = t->offset;
	i.numel = t->numel;
	i.group = t->group;
	i.flags = t->flags;
	i.ndim = t->ndim;
	memcpy(i.shape, t->shape, sizeof(i.shape));
	text_struct_out(info, &i, sizeof(i));
	return SHARD_OK;
}

enum shard_status shard_find(const shard_model *m, const char *tensor, uint32_t *index)
{
	if (!readable(m))
		return m ? SHARD_FORKED : SHARD_BAD_ARG;
	if (tensor == NULL || index == NULL)
		return text_fail(SHARD_BAD_ARG, "shard_find: the name or the index's place is NULL");
	if (!space_find(&m->space, tensor, index))
		return text_fail(SHARD_NOT_FOUND, "\"%s\" has no tensor \"%.300s\"", m->space.name, tensor);
	return SHARD_OK;
}
