// SPDX-License-Identifier: Apache-2.0
/* The life of a handle. shard_define() makes one, manage.c makes others from a reply of ATTACH or
 * RESTORE, and shard_detach() or the end of the connection frees it. Happy path of define: check
 * the spec, ask, make the chunk table. A detached model whose arena or image the stream still uses
 * stays on the list of zombies, until handle_reap() can free it. It fails on what the caller wrote
 * wrongly, on what the daemon refuses (SHARD_MISMATCH, SHARD_BUDGET ... in its words), and without
 * memory. */
#include "define.h"

#include "ckpt.h"
#include "image.h"
#include "push.h"
#include "spawn/spawn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void handle_forget(struct shard_model *m)
{
	struct shm *both[2] = {&m->arena, &m->image};

	/* Because of MADV_DONTFORK nothing is mapped here, and something else may be at that
	 * address. */
	for (int i = 0; i < 2; i++) {
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
	free(m->holes);
	free(m->absent);
	free(m->shares);
	free(m->device);
	free(m->lr);
	free(m->blob);
	layout_free(&m->layout);
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

/* Between two questions whether another caller has defined the model. */
#define DEFINER_PAUSE_NS     (10 * NS_PER_MS)
#define DEFINER_PAUSE_MAX_NS (500 * NS_PER_MS)

static enum shard_status define_send(struct request *r, const struct shard_spec *s, struct wait *w)
{
	size_t bytes = s->tensors_nr * (sizeof(Shard__Tensor) + sizeof(Shard__Tensor *) +
					8 * sizeof(uint64_t)) +
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
		t[i].name =
			(char *)(uintptr_t)s->tensors[i]
				.name; /* protobuf-c's structs are not const. Packing only reads. */
		t[i].shape = shapes + 8 * (size_t)i;
		t[i].n_shape = s->tensors[i].ndim;
		t[i].group = s->tensors[i].group;
		t[i].flags = layout_flags(&s->tensors[i], s->image);
		tp[i] = &t[i];
	}
	for (uint32_t i = 0; i < s->groups_nr; i++) {
		g[i] = (Shard__Group)SHARD__GROUP__INIT;
		g[i].name = (char *)(uintptr_t)s->groups[i].name;
		g[i].settings =
			(char *)(uintptr_t)(s->groups[i].settings ? s->groups[i].settings : "");
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
	d.attach_only = s->wait_ms != 0;
	rc = request_send(r, (struct wire_head){0}, &d.base, w);
	free(memory);
	return rc;
}

static enum shard_status cannot_be_read(const struct request *r)
{
	return text_fail(SHARD_PROTOCOL, "shardd at %s answered %s with what cannot be read",
			 r->c->address, wire_op(r->op)->name);
}

static enum shard_status take_defined(struct shard_model *m, const struct request *r,
				      const Shard__Defined *d)
{
	enum shard_status rc;
	struct err e;

	m->id = d->model;
	m->born = d->born;
	m->generation = r->head.generation;
	m->defined = true;
	m->created = d->created;
	m->sealed = d->sealed;
	m->scheduled = d->scheduled;
	m->sealed_step = d->step;
	m->staleness = d->max_staleness;
	m->staleness_after = d->staleness_after;
	m->timeout_ms = d->timeout_ms > 0 && d->timeout_ms < INT64_MAX / 2 ? (int64_t)d->timeout_ms
									   : CLIENT_REQUEST_MS;
	m->quorum_ms = d->quorum_ms < INT64_MAX / 2 / NS_PER_MS ? (int64_t)d->quorum_ms : 0;
	if (d->max_staleness >= MODEL_IMAGES)
		return text_fail(SHARD_PROTOCOL,
				 "\"%s\" has max_staleness = %u: this library knows 0 and 1",
				 m->spec.name, d->max_staleness);
	rc = spec_chunks(&m->spec, m->layout, d->chunk_elems, &e);
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

/* Asks again after a pause whether another caller has defined the model by now. */
static enum shard_status define_later(const struct request *r, const struct shard_spec *s,
				      const struct wait *w, uint64_t *pause_ns)
{
	enum shard_status rc;

	*pause_ns = *pause_ns == 0 ? DEFINER_PAUSE_NS : 2 * *pause_ns;
	if (*pause_ns > DEFINER_PAUSE_MAX_NS)
		*pause_ns = DEFINER_PAUSE_MAX_NS;
	rc = pump_pause(r->c, w, *pause_ns);
	if (rc != SHARD_TIMEOUT)
		return rc == SHARD_OK ? SHARD_AGAIN : rc;
	return text_fail(rc,
			 "shard_define of \"%s\" waited %.1f s for the caller that holds its "
			 "weights: nobody has defined it at %s; look whether that rank runs and "
			 "gives the same name, as this one has set wait_ms and defines nothing",
			 s->name, wait_seconds(w), r->c->address);
}

static enum shard_status define_ask(struct shard_model *m, const struct shard_spec *s)
{
	struct shard_client *c = m->client;
	struct request *r = NULL;
	uint64_t pause_ns = 0, later_ns = 0;
	enum shard_status rc;
	struct wait w;

	wait_begin(c, &w, s->wait_ms > 0 ? s->wait_ms : c->timeout_ms);
	do {
		request_free(r);
		if ((r = request_new(c, OP_DEFINE, 0)) == NULL)
			return SHARD_SYSTEM;
		if ((rc = define_send(r, s, &w)) == SHARD_OK)
			rc = request_wait_alive(r, &w, s->name);
		if (rc == SHARD_NOT_FOUND && s->wait_ms != 0)
			rc = define_later(r, s, &w, &later_ns);
		else
			rc = request_again(r, &w, &pause_ns, rc);
	} while (rc == SHARD_AGAIN);
	if (rc == SHARD_OK)
		rc = define_reply(m, r);
	if (rc == SHARD_OK && s->wait_ms != 0 && m->created)
		rc = text_fail(SHARD_UNSUPPORTED,
			       "shard_define of \"%s\": a daemon is too old for wait_ms, and has "
			       "made the model for this caller: disconnect, and upgrade it",
			       s->name);
	else if (rc == SHARD_BUDGET && spawn_is(c->address))
		spawn_advise(c->address);
	request_free(r);
	return rc;
}

/* Takes the layout from the caller (s) or from the daemon (w). */
static enum shard_status handle_new(struct shard_model **out, struct shard_client *c,
				    const struct shard_spec *s, const Shard__Spec *w)
{
	struct shard_model *m = calloc(1, sizeof(*m));
	enum shard_status rc;
	struct err e;

	if (m == NULL)
		return text_no_memory("a model");
	list_init(&m->node);
	list_init(&m->saves);
	m->client = c;
	m->arena.fd = m->image.fd = m->device_versions.fd = -1;
	atomic_flag_clear(&m->busy);
	pthread_mutex_init(&m->adding, NULL);
	if ((rc = s ? spec_init(&m->spec, &m->layout, s, &e)
		    : spec_init_wire(&m->spec, &m->layout, w, &e)) != SHARD_OK) {
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

		if (strcmp(m->spec.name, n->spec.name) == 0)
			return text_fail(SHARD_EXISTS,
					 "\"%s\" is attached to this connection already: "
					 "shard_detach() it first, or use its handle",
					 n->spec.name);
	}
	return SHARD_OK;
}

enum shard_status shard_define(shard_client *c, const struct shard_spec *spec, shard_model **out,
			       int *created)
{
	struct shard_model *m = NULL;
	struct shard_spec s;
	enum shard_status rc;

	if (c == NULL || out == NULL || created == NULL)
		return text_fail(
			SHARD_BAD_ARG,
			"shard_define: the connection, the model's place or created is NULL");
	*out = NULL;
	*created = 0;
	if ((rc = text_struct_in(&s, sizeof(s), spec, "shard_spec")) != SHARD_OK)
		return rc;
	if ((rc = handle_new(&m, c, &s, NULL)) != SHARD_OK)
		return rc;
	if ((rc = client_enter(c)) != SHARD_OK) {
		handle_free(m);
		return rc;
	}
	if ((rc = not_twice(c, m)) == SHARD_OK)
		/* With id 0 no frame finds it until the reply is here. */
		list_push(&c->models, &m->node);
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

enum shard_status handle_of_reply(struct shard_client *c, const struct request *r,
				  struct shard_model **out)
{
	Shard__Defined *d = shard__defined__unpack(NULL, r->body_bytes, r->body);
	struct shard_model *m = NULL;
	enum shard_status rc;

	if (d == NULL || d->spec == NULL)
		rc = cannot_be_read(r);
	else if ((rc = handle_new(&m, c, NULL, d->spec)) == SHARD_OK &&
		 (rc = not_twice(c, m)) == SHARD_OK)
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

/* The daemon has no "detach". A trainer in a world gives its attempt up and leaves, without waiting
 * for the answer. */
static void say_goodbye(struct shard_model *m)
{
	Shard__Why why = SHARD__WHY__INIT;
	struct request *r;
	struct wait w;

	if (!m->joined || m->presence.is == PRESENCE_AWAY || m->lost.status != SHARD_OK ||
	    m->client->over.status != SHARD_OK)
		return;
	why.why = (char *)(uintptr_t) "the trainer detached the model";
	if (m->offered.no != 0) {
		struct wire_head h = m->offered.id;

		h.op = OP_ABANDON;
		(void)stream_send_control(m->client->stream, &h, &why.base);
	}
	wait_begin(m->client, &w, 0);
	w.polled = true; /* It never waits. */
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
	/* Not client_enter(), because a handle can be detached even when its connection is over. */
	pthread_mutex_lock(&c->lock);
	push_drop(m);
	say_goodbye(m);
	list_remove(&m->node);
	list_push(&c->zombies, &m->node);
	/* When the connection is over, the stream keeps its bodies until it is freed. */
	if (c->over.status == SHARD_OK)
		handle_reap(c);
	pthread_mutex_unlock(&c->lock);
}
