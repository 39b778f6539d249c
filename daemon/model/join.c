/* SPDX-License-Identifier: Apache-2.0 */
/* The trainers of a model on this node. dispatch.c brings their requests, and model.c calls when an
 * attempt ends. Happy path: JOIN is answered with an arena and the image, and the core is told of
 * the trainer. In each step gradients come (data/contrib.c), and READY follows the last one. LEAVE
 * is answered at the boundary. A request that is wrong is refused with an error. When a connection
 * is lost, the trainer's rank leaves the world, and its arena is kept until nothing reads it. A
 * thread then renews the arena for the next trainer, whose JOIN waits for that and is refused if
 * there is no memory. */
#include "model/join.h"

#include "data/apply.h"
#include "base/check.h"
#include "base/clock.h"
#include "data/blobs.h"
#include "data/contrib.h"
#include "data/device_grads.h"
#include "data/device_images.h"
#include "data/feed.h"
#include "link/peer.h"
#include "link/session.h"
#include "model/lost.h"
#include "model/model.h"
#include "data/mr.h"
#include "data/reduce.h"
#include "wire/ops.h"

#include <stdlib.h>
#include <string.h>

/* Frames of a trainer that wait for it to read, when it asks for memory on a GPU. Each answer holds
 * descriptors of this process until it is sent. */
enum { DEVICE_QUEUED_MAX = 64 };

bool join_opened(struct session *who)
{
	CHECK(who->trainer == NULL);
	who->trainer = calloc(1, sizeof(*who->trainer));
	if (who->trainer == NULL)
		return false;
	*who->trainer = (struct trainer){.session = who, .rank = -1};
	return true;
}

void join_closed(struct session *who, const char *why)
{
	struct trainer *t = who->trainer;

	CHECK(t != NULL && t->session == who);
	if (t->model != NULL) {
		/* Taken out first, because OP_ENDED must not be sent to a trainer whose stream is
		 * closed. */
		contrib_trainer_gone(t->model, t);
		trainer_gone(t, false, why);
		trainer_detach(t);
	}
	send_queue_free(&t->image);
	free(t);
	who->trainer = NULL;
}

/* --- joining and leaving --- */

void trainer_detach(struct trainer *t)
{
	struct model *m = t->model;

	if (m == NULL) /* It has left, and its LEAVE was answered. */
		return;
	contrib_trainer_gone(m, t);
	t->model = NULL;
	t->left_model = m->id;
	t->rank = -1;
	t->has_image = false;
	t->device_image = NULL;
	t->device_arena = NULL;
	send_queue_detach(&t->image);
	model_orphan(m, t->slot);
}

void join_slot_closed(struct model *m, uint32_t slot)
{
	mr_arena_closed(m, slot);
	device_grads_close(m, slot);
	store_arena_close(m->store, slot);
}

void trainer_out_of_world(struct trainer *t)
{
	t->rank = -1;
	if (!t->has_image)
		return;
	t->has_image = false; /* The next one may be written while this one is being sent. */
	send_queue_detach(&t->image);
}

void trainer_left(struct trainer *t)
{
	if (t->model == NULL || t->leave_tag == 0)
		return;
	model_reply(t->session, OP_LEAVE, t->leave_tag, t->model, NULL);
	t->leave_tag = 0;
	trainer_detach(t);
}

static enum shard_status join_image_room(struct trainer *t, struct model *m, struct err *e)
{
	if (t->session->local || (t->image.ring != NULL && t->image.model == m))
		return SHARD_OK;
	if (t->image.inflight > 0)
		return err_set(
			e, SHARD_BUSY,
			"the image of the model joined before is still on its way: try again");
	send_queue_free(&t->image);
	return send_queue_init(&t->image, m, &apply_images,
			       m->layout->chunks_nr * (m->set.max_staleness + 1), e);
}

static void join_now(struct trainer *t, struct model *m, uint32_t tag, int32_t hint)
{
	Shard__Joined body = SHARD__JOINED__INIT;
	struct wire_head h = {.op = OP_JOIN,
			      .flags = WIRE_REPLY,
			      .attempt = tag,
			      .model = m->id,
			      .generation = m->generation,
			      .step = m->step};
	const struct shm *arena = store_arena_shm(m->store, t->slot),
			 *image = store_image_shm(m->store);
	int fds[2] = {arena->fd, image->fd};
	enum shard_status st;

	CHECK(t->model == NULL || t->model == m);
	t->model = m;
	t->id = session_number(t->session->server);
	t->rank = -1;
	body.arena_bytes = arena->bytes;
	body.image_bytes = image->bytes;
	body.image_data =
		image_data_offset((uint64_t)m->layout->chunks_nr * (m->set.max_staleness + 1));
	body.image_step = m->step;
	st = t->session->local
		     ? stream_send_fds(conn_stream(t->session->conn), &h, &body.base, fds, 2)
		     : stream_send_control(conn_stream(t->session->conn), &h, &body.base);
	if (st != SHARD_OK) {
		session_close(t->session, SHARD_SYSTEM, "cannot pass it the arena");
		return;
	}
	conn_kick(t->session->conn);
	mr_arena_opened(m, t->slot);
	log_line(t->session->server->log, LOG_LEVEL_INFO,
		 "event=join model=%s session=%lu pid=%u hint=%d", m->name,
		 (unsigned long)t->session->id, t->session->pid, hint);
	model_event(m, &(struct core_event){
			       .type = CORE_EV_JOIN,
			       .session = t->id,
			       .trainer = {.session = t->id,
					   .pid = t->session->pid,
					   .hint = hint,
					   .node = t->session->server->self},
		       });
}

/* --- arenas that had a trainer --- */

struct renewal { /* A job that renews an arena for its next trainer. */
	struct job job;
	struct model *m; /* Its memory is not freed before this job is done. */
	struct store_renewal r;
};

static void renewal_run(struct job *j)
{
	store_renewal_run(&list_of(j, struct renewal, job)->r);
}

static struct trainer *first_waiting(const struct model *m)
{
	list_each(it, &m->server->conns.sessions) {
		struct trainer *t = list_of(it, struct session, link)->trainer;

		if (t->join_model == m)
			return t;
	}
	return NULL;
}

static void refuse_first(struct model *m, const struct err *e)
{
	struct trainer *t = first_waiting(m);

	if (t == NULL)
		return;
	t->join_model = NULL;
	session_refuse(t->session, t->join_tag, e);
}

static void renewal_done(struct job *j)
{
	struct renewal *w = list_of(j, struct renewal, job);
	struct model *m = w->m;

	store_renewal_end(m->store, &w->r);
	if (m->dropping)
		server_wake(m->server, 1);
	else if (!m->server->stop.on && w->r.e.status != SHARD_OK)
		refuse_first(m, &w->r.e);
	free(w);
	if (!m->dropping && !m->server->stop.on)
		join_waiting(m);
}

/* Begins one renewal for each JOIN that waits. A JOIN for which there is no memory is refused. */
static void renew(struct model *m)
{
	uint32_t waiting = 0;
	struct renewal *w;

	list_each(it, &m->server->conns.sessions)
		waiting += list_of(it, struct session, link)->trainer->join_model == m;
	while (store_renewals(m->store) < waiting) {
		if ((w = calloc(1, sizeof(*w))) == NULL) {
			refuse_first(m, &(struct err){.status = SHARD_SYSTEM,
						      .text = "no memory for a request"});
			waiting--;
			continue;
		}
		w->m = m;
		if (!store_renewal_begin(m->store, &w->r)) {
			free(w);
			return;
		}
		job_begin(&w->job, m->server,
			  w->r.bytes <= JOB_SMALL_BYTES ? JOB_SMALL : JOB_MEMORY, renewal_run,
			  renewal_done);
	}
}

enum shard_status join_request(struct session *who, const struct wire_head *h,
			       const ProtobufCMessage *msg, struct err *e)
{
	struct trainer *t = who->trainer;
	const Shard__Join *body = (const Shard__Join *)msg;
	struct model *m = model_find(t->session->server, h->model);
	enum shard_status st;

	if (m == NULL || m->defining)
		return err_set(e, SHARD_NOT_FOUND, "no model %u on node %s%s", h->model,
			       members_name(t->session->server, t->session->server->self),
			       m != NULL || model_making(t->session->server, h->model) != NULL
				       ? " yet: it is being made"
				       : ": define it first");
	who->uses = true;
	if (t->model != NULL || t->join_model != NULL)
		return err_set(e, SHARD_BAD_STATE, "this connection has joined \"%s\" already",
			       (t->model ? t->model : t->join_model)->name);
	if ((st = lost_check(m, e)) != SHARD_OK || (st = join_image_room(t, m, e)) != SHARD_OK)
		return st;
	st = store_arena_open(m->store, &t->slot, e);
	if (st == SHARD_OK) {
		join_now(t, m, h->attempt, body->rank_hint);
		return SHARD_OK;
	}
	/* The arena of a trainer that is gone becomes free when its attempt is over. Then a thread
	 * has to renew it. */
	if (m->attempt.orphans == 0 && !store_renewable(m->store))
		return st;
	t->join_model = m;
	t->join_tag = h->attempt;
	t->join_hint = body->rank_hint;
	log_line(t->session->server->log, LOG_LEVEL_INFO,
		 "event=join_waits model=%s session=%lu pid=%u hint=%d", m->name,
		 (unsigned long)who->id, who->pid, t->join_hint);
	renew(m);
	return SHARD_OK;
}

void join_waiting(struct model *m)
{
	uint32_t slot;
	struct err e;

	CHECK(!m->dropping);
	list_each(it, &m->server->conns.sessions) {
		struct trainer *t = list_of(it, struct session, link)->trainer;

		if (t->join_model != m || store_arena_open(m->store, &t->slot, NULL) != SHARD_OK)
			continue;
		t->join_model = NULL;
		join_now(t, m, t->join_tag, t->join_hint);
	}
	renew(m);
	if (m->attempt.orphans != 0 || store_renewable(m->store))
		return;
	while (first_waiting(m) != NULL) { /* Other trainers have all arenas. */
		(void)store_arena_open(m->store, &slot, &e);
		refuse_first(m, &e);
	}
}

void trainer_gone(struct trainer *t, bool leave, const char *why)
{
	CHECK(t->model != NULL);
	model_event(t->model, &(struct core_event){
				      .type = CORE_EV_GONE,
				      .session = t->id,
				      .trainer = {.session = t->id,
						  .pid = t->session->pid,
						  .node = t->session->server->self,
						  .leave = leave},
				      .why = why,
			      });
}

enum shard_status join_leave(struct session *who, const struct wire_head *h,
			     const ProtobufCMessage *msg, struct err *e)
{
	struct trainer *t = who->trainer;

	(void)msg;
	if (t->model == NULL || t->leave_tag != 0)
		return err_set(e, SHARD_BAD_STATE,
			       t->model == NULL ? "leave without join" : "leave twice");
	t->leave_tag = h->attempt;
	trainer_gone(t, true, CORE_LEFT); /* CORE_ACT_LEFT answers it. */
	return SHARD_OK;
}

enum shard_status join_device(struct session *who, const struct wire_head *h,
			      const ProtobufCMessage *msg, struct err *e)
{
	static const struct device_images_up up = {.leaves = apply_image_leaves,
						   .left = apply_image_left,
						   .tell = apply_tell,
						   .hold = feed_hold,
						   .release = feed_release};
	static const struct device_grads_up grads = {.gathered = contrib_gathered,
						     .begins = reduce_begins,
						     .added = reduce_added,
						     .hold = feed_hold,
						     .release = feed_release};
	const Shard__Device *body = (const Shard__Device *)msg;
	struct model *m = who->trainer->model;

	if (body->uuid.len != GPU_UUID_BYTES)
		return err_set(e, SHARD_PROTOCOL, "the UUID of a GPU with %zu bytes",
			       body->uuid.len);
	if (m == NULL || m->id != h->model)
		return err_set(e, SHARD_BAD_STATE,
			       "memory on a GPU of model %u, which this trainer has not joined",
			       h->model);
	if (stream_queued(conn_stream(who->conn)) > DEVICE_QUEUED_MAX)
		return err_set(e, SHARD_BUSY,
			       "memory on a GPU for a trainer that does not read what it is sent");
	if (body->kind == WIRE_DEVICE_GRADS)
		return device_grads_ask(m, &grads, body->uuid.data, who, h->attempt, e);
	if (body->kind == WIRE_DEVICE_IMAGE)
		return device_images_ask(m, &up, body->uuid.data, who, h->attempt, e);
	return err_set(e, SHARD_UNSUPPORTED,
		       "memory of kind %u on a GPU, which this release does not know: upgrade "
		       "shardd",
		       body->kind);
}

/* --- the step --- */

static bool in_attempt(const struct trainer *t, const struct wire_head *h)
{
	struct core_id id = {h->term, h->step, h->seq, h->generation, h->attempt};

	return t->model != NULL && t->model->id == h->model && t->rank >= 0 &&
	       t->model->attempt.on && core_id_cmp(&id, &t->model->attempt.id) == 0;
}

enum shard_status join_push(struct session *who, const struct wire_head *h,
			    const ProtobufCMessage *msg, struct err *e)
{
	return contrib_push(who->trainer, h, (const Shard__Push *)msg, e);
}

static enum shard_status check_lr(const struct model *m, const Shard__Ready *body, struct err *e)
{
	if (body->n_lr != 0 && body->n_lr != m->set.groups_nr)
		return err_set(e, SHARD_BAD_ARG, "%zu learning rates: \"%s\" has %u groups",
			       body->n_lr, m->name, m->set.groups_nr);
	if (body->n_lr != 0 && m->set.schedule.id != SCHEDULE_NONE)
		return err_set(e, SHARD_BAD_ARG,
			       "a learning rate from the trainer, but schedule = %s sets it: "
			       "choose one of them",
			       schedule_row(m->set.schedule.id)->name);
	for (size_t g = 0; g < body->n_lr; g++)
		if (!(body->lr[g] >= 0 && body->lr[g] <= 1e30))
			return err_set(e, SHARD_BAD_ARG,
				       "lr of group %zu is %g: choose a number of at least 0", g,
				       body->lr[g]);
	return SHARD_OK;
}

/* The clip and the values. Each node has to know of them: one that does not would vote without
 * them. */
static enum shard_status check_more(const struct model *m, const Shard__Ready *body, struct err *e)
{
	const struct server *s = m->server;
	const struct peer *older;

	if (body->n_values > CORE_VALUES_NR)
		return err_set(e, SHARD_BAD_ARG, "%zu values with a step: at most %d",
			       body->n_values, CORE_VALUES_NR);
	if (!(body->clip >= 0 && body->clip <= 1e300) || (!body->has_clip && body->clip != 0))
		return err_set(e, SHARD_BAD_ARG, "clip is %g: choose a finite number of at least 0",
			       body->clip);
	if ((body->n_values == 0 && !body->has_clip) ||
	    (older = peer_older(s, WIRE_VALUES)) == NULL)
		return SHARD_OK;
	return err_set(e, SHARD_UNSUPPORTED,
		       "%s with a step, which node %s (release %s) does not know: install %s there",
		       body->has_clip ? "clip" : "values", members_name(s, older->node),
		       older->release, SHARD_RELEASE);
}

enum shard_status join_ready(struct session *who, const struct wire_head *h,
			     const ProtobufCMessage *msg, struct err *e)
{
	struct trainer *t = who->trainer;
	const Shard__Ready *body = (const Shard__Ready *)msg;
	struct model *m = t->model;
	double values[CORE_VALUES_NR] = {0};
	enum shard_status st;

	if (!in_attempt(t, h))
		return SHARD_OK; /* The trainer is told that the attempt is over. */
	/* 0 is a trainer that had no samples. */
	if (!(body->weight >= 0) || body->weight > 1e300)
		return err_set(e, SHARD_BAD_ARG,
			       "weight %g of step %lu: it must be at least 0 and finite",
			       body->weight, (unsigned long)h->step);
	if (m->contrib.local[t->local_index].chunks_pushed != m->layout->chunks_nr)
		return err_set(e, SHARD_MISSING, "commit of step %lu with %u of %u chunks pushed",
			       (unsigned long)h->step,
			       m->contrib.local[t->local_index].chunks_pushed,
			       m->layout->chunks_nr);
	/* Otherwise gradients that were left out would count as zeros. */
	if (m->contrib.local[t->local_index].skip && !body->skip)
		return err_set(e, SHARD_PROTOCOL,
			       "commit of step %lu after a chunk that was pushed with `skip`: "
			       "READY votes to skip, too",
			       (unsigned long)h->step);
	if ((st = check_lr(m, body, e)) != SHARD_OK || (st = check_more(m, body, e)) != SHARD_OK ||
	    (st = blobs_check(body, e)) != SHARD_OK)
		return st;
	if (body->n_values > 0)
		memcpy(values, body->values, body->n_values * sizeof(values[0]));
	/* Other nodes may have been sent the blob of the first READY. The core takes that one, too.
	 */
	if (!m->contrib.local[t->local_index].ready)
		blobs_pending(m, t->local_index, body);
	m->contrib.local[t->local_index].ready = true;
	slowest_ready(&m->slowest, &m->attempt.id, m->contrib.local[t->local_index].rank,
		      clock_ns());
	model_event(m, &(struct core_event){.type = CORE_EV_READY,
					    .id = m->attempt.id,
					    .session = t->id,
					    .weight = body->weight,
					    .lr = body->lr,
					    .lr_nr = (uint32_t)body->n_lr,
					    .clip = body->has_clip ? &body->clip : NULL,
					    .values = values,
					    .skip = body->skip});
	return SHARD_OK;
}

enum shard_status join_abandon(struct session *who, const struct wire_head *h,
			       const ProtobufCMessage *msg, struct err *e)
{
	struct trainer *t = who->trainer;
	const Shard__Why *body = (const Shard__Why *)msg;

	(void)e;
	if (in_attempt(t, h))
		model_event(t->model, &(struct core_event){.type = CORE_EV_ABANDON,
							   .id = t->model->attempt.id,
							   .session = t->id,
							   .why = body->why});
	return SHARD_OK;
}
