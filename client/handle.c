// SPDX-License-Identifier: Apache-2.0
/* What every call on a handle begins and ends with, and the calls that only read what never
 * changes. A call enters the handle, which takes the client's lock, waits by handle_wait(), and
 * leaves. handle_find() finds the model of a frame. Entering fails in a forked child, when the
 * connection is over, when the model is lost, and on a second call where only one may be made at a
 * time. define.c makes and frees the handle. */
#include "world.h"

#include <stdio.h>
#include <string.h>

typedef unsigned long long ull;

/* The connection broke. A rollback that the caller was not told of comes first. */
static enum shard_status broken(struct shard_model *m)
{
	enum shard_status rc = SHARD_WORLD_CHANGED; /* Its sentence is there already. */

	pthread_mutex_lock(&m->client->lock);
	if (m->lost.status != SHARD_OK)
		rc = text_fail_err(&m->lost);
	else if (m->rolled_back)
		rc = handle_changed(m);
	client_leave(m->client);
	return rc;
}

enum shard_status handle_enter(struct shard_model *m)
{
	enum shard_status rc;

	if (m == NULL)
		return text_fail(SHARD_BAD_ARG, "the model is NULL");
	if ((rc = client_enter(m->client)) == SHARD_WORLD_CHANGED)
		return broken(m);
	if (rc != SHARD_OK)
		return rc;
	if (m->lost.status == SHARD_OK)
		return SHARD_OK;
	rc = text_fail_err(&m->lost);
	client_leave(m->client);
	return rc;
}

static enum shard_status busy(const struct shard_model *m)
{
	return text_fail(SHARD_BUSY,
			 "another thread is in a call on \"%s\" that only one may make at a time",
			 m->spec.name);
}

enum shard_status handle_enter_one(struct shard_model *m)
{
	enum shard_status rc = handle_enter(m);

	if (rc != SHARD_OK || !atomic_flag_test_and_set(&m->busy))
		return rc;
	client_leave(m->client);
	return busy(m);
}

enum shard_status handle_enter_broken(struct shard_model *m)
{
	struct shard_client *c = m != NULL ? m->client : NULL;
	enum shard_status rc = SHARD_OK;

	if (c == NULL || client_forked(c))
		return handle_enter(m); /* It fails and sets the text. */
	text_begin();
	pthread_mutex_lock(&c->lock);
	if (c->over.status != SHARD_OK && c->over.status != SHARD_WORLD_CHANGED)
		rc = text_fail_err(&c->over);
	else if (m->lost.status != SHARD_OK)
		rc = text_fail_err(&m->lost);
	else if (atomic_flag_test_and_set(&m->busy))
		rc = busy(m);
	if (rc != SHARD_OK)
		client_leave(c);
	return rc;
}

enum shard_status handle_enter_joined(struct shard_model *m, const char *what)
{
	enum shard_status rc;

	if (m == NULL || client_forked(m->client))
		return handle_enter(m); /* It fails and sets the text. */
	text_begin();
	pthread_mutex_lock(&m->client->lock);
	if (m->joined)
		return SHARD_OK;
	pthread_mutex_unlock(&m->client->lock);
	if ((rc = handle_enter(m)) != SHARD_OK)
		return rc;
	client_leave(m->client);
	return text_fail(SHARD_BAD_STATE, "%s of \"%s\", which is not joined", what, m->spec.name);
}

void handle_leave_one(struct shard_model *m)
{
	atomic_flag_clear(&m->busy);
	client_leave(m->client);
}

bool handle_offered(const struct shard_model *m)
{
	return m->offered.no > m->begun.no && !m->offered_over;
}

enum shard_status handle_changed(struct shard_model *m)
{
	const char *why = m->why[0] ? m->why : "the world changed";

	if (m->rolled_back)
		return text_fail(SHARD_ROLLED_BACK,
				 "%s; \"%s\" is rolled back to step %llu, step %llu begins next",
				 why, m->spec.name, (ull)m->offered.id.step - 1,
				 (ull)m->offered.id.step);
	if (m->presence.is == PRESENCE_AWAY)
		return text_fail(SHARD_WORLD_CHANGED, "%s; shard_world_get() joins again", why);
	if (handle_offered(m))
		return text_fail(SHARD_WORLD_CHANGED,
				 "%s; world is now %u, this is rank %u, step %llu is next", why,
				 m->offered.world_size, m->offered.rank, (ull)m->offered.id.step);
	/* Nodes that had voted may still decide the attempt where a coordinator was lost. So this
	 * does not promise that the step comes again. */
	return text_fail(SHARD_WORLD_CHANGED,
			 "%s; step %llu is over here: shard_world_get() says which one is next",
			 why, (ull)m->begun.id.step);
}

enum shard_status handle_range(const struct shard_model *m, const char *what, uint32_t tensor,
			       uint64_t first, uint64_t count)
{
	const struct layout_tensor *t;

	if (tensor >= m->layout->tensors_nr)
		return text_fail(SHARD_RANGE, "%s: tensor %u of \"%s\", which has %u", what, tensor,
				 m->spec.name, m->layout->tensors_nr);
	t = &m->layout->tensor[tensor];
	if (count == 0 && t->numel == 0 && first == 0)
		return SHARD_OK;
	if (count == 0 || first >= t->numel || count > t->numel - first)
		return text_fail(
			SHARD_RANGE,
			"%s of \"%.200s\": first %llu, count %llu, but it has %llu elements", what,
			t->name, (ull)first, (ull)count, (ull)t->numel);
	return SHARD_OK;
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
	enum shard_status rc;

	if (m->lost.status != SHARD_OK) /* LOST came before this call began to wait. */
		return text_fail_err(&m->lost);
	rc = pump_wait(m->client, w);
	m->wait_ns += clock_ns() - before;
	if (rc == SHARD_OK && m->lost.status != SHARD_OK)
		return text_fail_err(&m->lost);
	return rc;
}

/* Asks for whom the model waits. text may be NULL. False: shardd did not say. */
static bool handle_ask_waits(struct shard_model *m, char *text, size_t bytes, bool *too_few)
{
	struct request *r = request_new(m->client, OP_WAITS, 0);
	Shard__Text *t = NULL;
	struct wait w;
	bool said;

	*too_few = false;
	wait_begin(m->client, &w, CLIENT_WAITS_MS);
	if (r != NULL && request_send(r, handle_head(m), NULL, &w) == SHARD_OK &&
	    request_wait(r, &w) == SHARD_OK)
		t = shard__text__unpack(NULL, r->body_bytes, r->body);
	said = t != NULL && t->text[0] != 0;
	if (said && text != NULL)
		snprintf(text, bytes, "%s", t->text);
	if (t != NULL) {
		*too_few = t->too_few;
		shard__text__free_unpacked(t, NULL);
	}
	request_free(r);
	return said;
}

bool handle_waits_text(struct shard_model *m, char *text, size_t bytes)
{
	bool too_few;

	snprintf(text, bytes, "shardd did not say for whom");
	return handle_ask_waits(m, text, bytes, &too_few);
}

void handle_quorum_begin(const struct shard_model *m, int64_t timeout_ms, struct wait *w,
			 struct quorum *q)
{
	uint64_t began = clock_ns();

	*q = (struct quorum){.call_ns = w->deadline_ns, .quorum_ns = UINT64_MAX};
	if (timeout_ms >= 0 || m->quorum_ms == 0)
		return;
	q->quorum_ns = began + (uint64_t)m->quorum_ms * NS_PER_MS;
	if (q->quorum_ns < w->deadline_ns)
		w->deadline_ns = q->quorum_ns;
}

enum shard_status handle_wait_quorum(struct shard_model *m, struct wait *w, struct quorum *q)
{
	enum shard_status rc = handle_wait(m, w);
	uint64_t now = clock_ns();
	bool too_few;

	if (rc != SHARD_TIMEOUT || q->quorum_ns == UINT64_MAX)
		return rc;
	/* Every answer may be a second old, so it is asked for again until the last deadline. */
	(void)handle_ask_waits(m, NULL, 0, &too_few);
	if (now >= (too_few ? q->quorum_ns : q->call_ns))
		return SHARD_TIMEOUT;
	w->deadline_ns = now + NS_PER_SEC;
	if (w->deadline_ns > (too_few ? q->quorum_ns : q->call_ns))
		w->deadline_ns = too_few ? q->quorum_ns : q->call_ns;
	return SHARD_OK;
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
		err_set(&m->lost, SHARD_NOT_FOUND,
			"%.300s (shard_detach() it; shard_define() makes a new one)", why);
		return;
	}
	err_set(&m->lost, SHARD_LOST, "\"%s\" is lost: %.400s (shard_detach() this handle)",
		m->spec.name, why);
}

/* --- what never changes --- */

static bool readable(const shard_model *m)
{
	text_begin();
	if (m != NULL && !client_forked(m->client))
		return true;
	text_fail(m ? SHARD_FORKED : SHARD_BAD_ARG, "%s",
		  m ? "this model belongs to the parent process: connect again here"
		    : "the model is NULL");
	return false;
}

uint32_t shard_tensors(const shard_model *m)
{
	return readable(m) ? m->layout->tensors_nr : 0;
}

enum shard_status shard_tensor_info(const shard_model *m, uint32_t tensor, struct shard_info *info)
{
	struct shard_info i = {.size = sizeof(i)};
	const struct layout_tensor *t;
	enum shard_status rc;

	if (!readable(m))
		return m ? SHARD_FORKED : SHARD_BAD_ARG;
	if ((rc = text_struct_ok(info, "shard_info")) != SHARD_OK)
		return rc;
	if (tensor >= m->layout->tensors_nr)
		return text_fail(SHARD_RANGE, "tensor %u of \"%s\", which has %u", tensor,
				 m->spec.name, m->layout->tensors_nr);
	t = &m->layout->tensor[tensor];
	i.name = t->name;
	i.offset = t->offset;
	i.numel = t->numel;
	i.group = t->group;
	i.flags = t->flags;
	i.image = t->image;
	i.grad = m->spec.grad;
	i.image_offset = layout_image_at(m->layout, t->offset);
	i.mapped = atomic_load(&m->presence.mapped);
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
		return text_fail(SHARD_BAD_ARG,
				 "shard_find: the name or the index's place is NULL");
	for (uint32_t i = 0; i < m->layout->tensors_nr; i++)
		if (strcmp(m->layout->tensor[i].name, tensor) == 0) {
			*index = i;
			return SHARD_OK;
		}
	return text_fail(SHARD_NOT_FOUND, "\"%s\" has no tensor \"%.300s\"", m->spec.name, tensor);
}
