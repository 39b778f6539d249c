// SPDX-License-Identifier: Apache-2.0
/* The world of a trainer: shard_join(), shard_world_get(), shard_leave(), shard_samples(), and the
 * ATTEMPT and ENDED frames that say what the world is. Joining maps the arena and the image (unix)
 * or makes private memory for both (tcp) and waits for the first ATTEMPT. An attempt in hand that
 * ends without effect makes every waiting call return SHARD_WORLD_CHANGED until shard_world_get().
 * A call that gives up on its deadline may be made again. Its request is still under way and is
 * used again. */
#include "world.h"

#include "again.h"
#include "blob.h"
#include "image.h"
#include "push.h"
#include "ticket.h"
#include "verdict.h"

#include "wire/dtype.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define JOIN_PAUSE_NS (50 * NS_PER_MS)
#define ATTEMPT_NS    (2 * NS_PER_SEC)

typedef unsigned long long ull;

static struct wire_head id_of(const struct wire_head *h)
{
	return (struct wire_head){.model = h->model,
				  .generation = h->generation,
				  .seq = h->seq,
				  .term = h->term,
				  .step = h->step,
				  .attempt = h->attempt};
}

static void why_set(struct shard_model *m, const char *why)
{
	/* The reason of a rollback says more than later reasons. */
	if (why != NULL && why[0] != 0 && !m->rolled_back)
		snprintf(m->why, sizeof(m->why), "%s", why);
}

/* --- a step before its turn --- */

/* Only where the model has max_staleness = 1. Happy path: step t is committed and all of it is
 * sent. Then t + 1 begins on the weights that t's ATTEMPT called the newest, with the world and
 * loss scale of t. RESULT comes for t, and the ATTEMPT of t + 1 confirms what was assumed. What was
 * pushed meanwhile is then sent. Otherwise the work was for another world or scale. The caller is
 * told SHARD_WORLD_CHANGED, and begins the step again. At most one step is ahead. */
bool world_ahead_may(const struct shard_model *m, uint32_t *chunk)
{
	uint64_t first = (uint64_t)*chunk * m->layout->chunk_elems;

	return m->staleness > 0 && m->begun.id.step >= m->staleness_after &&
	       m->phase == PHASE_COMMITTED && !m->ahead && m->copying == 0 && m->queue_nr == 0 &&
	       !m->ready_due &&
	       image_has(m, first, m->layout->elems - first, m->begun.newest, chunk);
}

void world_ahead_begin(struct shard_model *m)
{
	m->flight = m->begun;
	m->ahead = true;
	m->abandon_due = false;
	m->begun.no = ++m->attempts;
	m->begun.id.step++;
	m->begun.id.attempt = 0;
	m->begun.weights = m->flight.newest;
}

/* The step in flight ended without effect, and so did the one ahead. The former is the one in hand
 * again. */
static void ahead_back(struct shard_model *m, enum shard_status status, const char *why)
{
	verdict_end(m, m->begun.no, status == SHARD_MISMATCH ? SHARD_WORLD_CHANGED : status,
		    why && why[0] ? why : "the step before it ended");
	m->begun = m->flight;
	m->flight.no = 0;
	m->ahead = m->abandon_due = false;
	m->phase = PHASE_COMMITTED;
}

/* --- what the daemon says --- */

void world_ended(struct shard_model *m, const struct wire_head *h, enum shard_status status,
		 const char *why)
{
	if (m->offered.no != 0 && verdict_same(h, &m->offered.id))
		m->offered_over = true;
	if (m->flight.no != 0 && verdict_same(h, &m->flight.id))
		ahead_back(m, status, why);
	if (m->begun.no == 0 || !verdict_same(h, &m->begun.id) || m->phase == PHASE_DECIDED ||
	    m->phase == PHASE_ENDED) {
		why_set(m, why);
		return;
	}
	m->changed = m->phase != PHASE_ABANDONED; /* The caller that abandoned it knows. */
	m->phase = PHASE_ENDED;
	m->ahead = m->abandon_due = false;
	snprintf(m->why, sizeof(m->why), "%s", why && why[0] ? why : "the attempt ended");
	verdict_end(m, m->begun.no, status, m->why);
	push_drop(m);
	ticket_settle(m);
}

/* Handles an ATTEMPT while a step is ahead. True: it is that step's, which is now like any other.
 * False: the step ahead is over. */
static bool ahead_attempt(struct shard_model *m, const struct attempt *a, const char *why)
{
	const struct attempt *b = &m->begun;
	struct wire_head id = b->id;
	char text[MODEL_WHY_BYTES];

	if (a->id.step == b->id.step && a->rank == b->rank && a->world_size == b->world_size &&
	    a->loss_scale == b->loss_scale && a->weights == b->weights &&
	    a->id.generation == b->id.generation) {
		uint64_t no = b->no;

		m->begun = *a;
		m->begun.no = no;
		m->offered = m->begun;
		m->offered_over = false;
		m->ahead = false;
		return true;
	}
	if (why != NULL && why[0] != 0)
		snprintf(text, sizeof(text), "%s", why);
	else if (a->loss_scale != b->loss_scale)
		snprintf(text, sizeof(text),
			 "the loss scale is %g now, and was %g when the step began", a->loss_scale,
			 b->loss_scale);
	else
		snprintf(text, sizeof(text), "the world changed");
	m->ahead = m->abandon_due = false;
	world_ended(m, &id, SHARD_WORLD_CHANGED, text);
	return false;
}

void world_attempt(struct shard_model *m, const struct wire_head *h, const Shard__Attempt *a)
{
	struct attempt next = {
		.id = id_of(h),
		.rank = a->rank,
		.world_size = a->world_size,
		.local_rank = a->local_rank,
		.local_size = a->local_size,
		.loss_scale = a->loss_scale,
		.weights = a->weights,
		.newest = a->newest,
	};
	struct wire_head old = m->flight.no != 0 ? m->flight.id : m->begun.id;

	image_attempt(m, &next);
	if (m->ahead && m->flight.no == 0 && ahead_attempt(m, &next, a->why)) {
		push_flush(m);
		return;
	}
	if (m->begun.no != 0 &&
	    (m->phase == PHASE_OPEN || m->phase == PHASE_COMMITTED || m->phase == PHASE_ABANDONED))
		/* A new ATTEMPT came without a verdict on the old one. */
		world_ended(m, &old, SHARD_WORLD_CHANGED, a->why);
	m->offered = next;
	m->offered.no = ++m->attempts;
	m->offered_over = false;
	if (m->presence.is == PRESENCE_BACK)
		m->presence.is = PRESENCE_HERE;
	why_set(m, a->why);
}

/* The attempt in hand is over, and so are image, tickets and everything else of the old generation.
 * Until the first ATTEMPT of the new generation the world stays as it was, and its step is the one
 * after the restored step. */
static void world_back(struct shard_model *m, uint64_t step, const char *why)
{
	struct wire_head begun = m->flight.no != 0 ? m->flight.id : m->begun.id;

	m->rolled_back = false; /* For a second rollback the newer reason counts. */
	if (m->begun.no != 0)
		world_ended(m, &begun, SHARD_ROLLED_BACK, why);
	why_set(m, why);
	m->offered.no = ++m->attempts;
	m->offered.id.generation = m->generation;
	m->offered.id.step = step + 1;
	m->offered_over = true;
	m->changed = m->rolled_back = m->introduced;
	m->committed_step = step;
	image_anew(m);
	ticket_void(m, SHARD_ROLLED_BACK);
	push_drop(m);
	blob_drop(m);
}

void world_rolled_back(struct shard_model *m, const struct wire_head *h, const char *why)
{
	m->generation = h->generation;
	m->sealed = true;
	m->sealed_step = h->step;
	if (m->joined)
		world_back(m, h->step, why && why[0] ? why : "the model was lost");
}

void world_found(struct shard_model *m, const struct shard_model *t)
{
	m->sealed = t->sealed;
	m->scheduled = t->scheduled;
	m->timeout_ms = t->timeout_ms;
	m->quorum_ms = t->quorum_ms;
	if (t->generation == m->generation)
		return;
	m->generation = t->generation;
	m->sealed_step = t->sealed_step;
	if (m->joined)
		world_back(m, t->sealed_step, "the model was lost");
}

/* The connection broke, and will be made again. Arena and image stay where they are. Gradients are
 * of no use any more, and what pulls wait for comes in another image. */
static void world_away(struct shard_model *m)
{
	struct wire_head begun = m->flight.no != 0 ? m->flight.id : m->begun.id;

	if (!m->joined)
		return;
	m->presence.is = PRESENCE_AWAY;
	if (m->begun.no != 0)
		world_ended(m, &begun, SHARD_WORLD_CHANGED, m->client->over.text);
	why_set(m, m->client->over.text);
	m->offered_over = true;
	m->changed = m->introduced;
	push_drop(m);
	blob_drop(m); /* Its step may be decided by now. */
	ticket_settle(m);
	ticket_void(m, SHARD_WORLD_CHANGED);
}

/* --- join --- */

/* Over a unix socket: maps the daemon's memory, once more at the same place. */
static enum shard_status map_shared(struct shard_model *m, struct request *r,
				    const Shard__Joined *j, struct err *e)
{
	const struct layout *l = m->layout;
	uint64_t arena = l->elems * dtype_bytes(m->spec.grad) + m->staleness * m->arena_half;
	uint64_t image = l->image_bytes + m->staleness * m->image_half;
	enum shard_status rc;

	if (r->fds_nr != 2)
		return err_set(e, SHARD_PROTOCOL, "JOIN brought %d descriptors, 2 are needed",
			       r->fds_nr);
	if (j->arena_bytes < arena || j->image_data > j->image_bytes ||
	    j->image_bytes - j->image_data < image)
		return err_set(
			e, SHARD_PROTOCOL,
			"arena of %llu bytes, image of %llu at %llu: \"%s\" needs %llu and %llu",
			(ull)j->arena_bytes, (ull)j->image_bytes, (ull)j->image_data, m->spec.name,
			(ull)arena, (ull)image);
	if (m->joined && j->image_data != m->image_data)
		return err_set(e, SHARD_MISMATCH,
			       "the image of \"%s\" begins at byte %llu now, at %llu before: start "
			       "this trainer again",
			       m->spec.name, (ull)j->image_data, (ull)m->image_data);
	m->image_data = j->image_data;
	r->fds_nr = 0; /* They are taken over below. */
	rc = m->joined ? shm_map_over(&m->arena, r->fds[0], arena, 1, e)
		       : shm_map(&m->arena, r->fds[0], j->arena_bytes, 1, e);
	if (rc != SHARD_OK) {
		r->fds[0] = r->fds[1];
		r->fds_nr = 1;
		return rc;
	}
	return m->joined ? shm_map_over(&m->image, r->fds[1], j->image_data + image, 0, e)
			 : shm_map(&m->image, r->fds[1], j->image_bytes, 0, e);
}

/* Over tcp: makes memory of this process before JOIN is sent, because the image may follow the
 * reply at once. */
static enum shard_status map_private(struct shard_model *m, struct err *e)
{
	enum shard_status rc =
		shm_private(&m->arena, m->arena_half * (m->staleness + 1), SHM_HUGE_TRY, e);

	m->image_data = 0;
	if (rc == SHARD_OK)
		rc = shm_private(&m->image, m->image_half * (m->staleness + 1), SHM_HUGE_TRY, e);
	return rc == SHARD_OK ? image_init(m, e) : rc;
}

static void world_unmap(struct shard_model *m)
{
	shm_unmap(&m->arena);
	shm_unmap(&m->image);
	m->arena.fd = m->image.fd = -1;
	image_deinit(m);
	ticket_drop(m); /* Copies that pulls have made stay. */
}

/* A daemon that put this trainer out may still send pushed gradients, straight from the arena. So
 * what the trainer writes from now on, through pointers that it still holds, goes to memory of its
 * own. */
void world_over(struct shard_client *c)
{
	list_each(it, &c->models) {
		struct shard_model *m = list_of(it, struct shard_model, node);

		shm_cut(&m->arena);
		if (c->over.status == SHARD_WORLD_CHANGED)
			world_away(m);
	}
	list_each(it, &c->zombies)
		shm_cut(&list_of(it, struct shard_model, node)->arena);
}

static enum shard_status ask_image(struct shard_model *m, struct wait *w)
{
	Shard__Chunks all = SHARD__CHUNKS__INIT;
	struct wire_head h = handle_head(m);
	enum shard_status rc;

	h.op = OP_IMAGE_ASK;
	while ((rc = stream_send_control(m->client->stream, &h, &all.base)) == SHARD_AGAIN)
		if ((rc = handle_wait(m, w)) != SHARD_OK)
			return rc;
	if (rc != SHARD_OK)
		return text_fail(rc, "cannot ask for the image of \"%s\": %s", m->spec.name,
				 status_name(rc));
	pump_kick(m->client);
	return SHARD_OK;
}

/* Of a trainer that joins again the user has pointers, which stay valid. */
static void join_undo(struct shard_model *m)
{
	if (!m->joined)
		world_unmap(m);
}

static enum shard_status join_failed(struct shard_model *m, const struct err *e)
{
	join_undo(m);
	return text_fail_err(e);
}

static enum shard_status join_reply(struct shard_model *m, struct request *r, struct wait *w)
{
	Shard__Joined *j = shard__joined__unpack(NULL, r->body_bytes, r->body);
	enum shard_status rc = SHARD_OK;
	struct err e;

	if (j == NULL)
		rc = err_set(&e, SHARD_PROTOCOL,
			     "shardd at %s answered JOIN with what cannot be read",
			     m->client->address);
	else if (!m->client->tcp && (rc = map_shared(m, r, j, &e)) == SHARD_OK)
		rc = image_init(m, &e);
	if (rc == SHARD_OK)
		rc = push_init(m, &e);
	if (j != NULL)
		shard__joined__free_unpacked(j, NULL);
	if (rc != SHARD_OK)
		return join_failed(m, &e);
	m->joined = true;
	atomic_fetch_add(&m->presence.mapped, 1);
	m->presence.step = r->head.step;
	if (m->presence.is == PRESENCE_AWAY) /* Its ATTEMPT may have come with the reply. */
		m->presence.is = handle_offered(m) ? PRESENCE_HERE : PRESENCE_BACK;
	return m->client->tcp ? ask_image(m, w) : SHARD_OK;
}

static enum shard_status join_send(struct shard_model *m, int rank_hint, struct wait *w)
{
	struct request *r = request_new(m->client, OP_JOIN, 0);
	Shard__Join j = SHARD__JOIN__INIT;
	enum shard_status rc;
	struct err e;

	if (r == NULL)
		return SHARD_SYSTEM;
	m->arena_half = shm_half_bytes(m->layout->elems * dtype_bytes(m->spec.grad));
	m->image_half = shm_half_bytes(m->layout->image_bytes);
	if (m->client->tcp && m->joined)
		image_anew(m); /* All of it comes again. */
	else if (m->client->tcp && map_private(m, &e) != SHARD_OK) {
		request_free(r);
		return join_failed(m, &e);
	}
	j.rank_hint = rank_hint < 0 ? -1 : rank_hint;
	if ((rc = request_send(r, handle_head(m), &j.base, w)) != SHARD_OK) {
		request_free(r);
		join_undo(m);
		return rc;
	}
	m->join_request = r;
	return SHARD_OK;
}

static enum shard_status join_ask(struct shard_model *m, int rank_hint, struct wait *w)
{
	enum shard_status rc = m->join_request ? SHARD_OK : join_send(m, rank_hint, w);
	struct request *r = m->join_request;

	while (rc == SHARD_OK && !r->answered)
		rc = handle_wait(m, w);
	if (rc != SHARD_OK)
		return rc; /* The request stays, and the next shard_join() waits for its answer. */
	m->join_request = NULL;
	if ((rc = request_wait(r, w)) == SHARD_OK && (rc = client_alive(m->client)) == SHARD_OK)
		rc = join_reply(m, r, w);
	else
		join_undo(m);
	request_free(r);
	return rc;
}

/* The connection broke in the call that returned rc. It can be made again. */
static bool broke(const struct shard_model *m, enum shard_status rc)
{
	return rc == SHARD_WORLD_CHANGED && m->client->over.status == SHARD_WORLD_CHANGED;
}

/* A daemon that was started a moment ago, or that has not noticed the end of the connection before,
 * refuses with what passes. */
static enum shard_status join_again(struct shard_model *m, uint64_t until_ns, struct wait *w)
{
	enum shard_status rc;

	for (;;) {
		rc = join_ask(m, m->presence.rank_hint, w);
		if ((rc != SHARD_BUSY && rc != SHARD_UNREACHABLE && rc != SHARD_STALE) ||
		    m->client->over.status != SHARD_OK || clock_ns() >= until_ns)
			return rc;
		if ((rc = pump_pause(m->client, w, JOIN_PAUSE_NS)) != SHARD_OK)
			return rc;
	}
}

/* Is in the model when it returns SHARD_OK, over a connection that may be broken or break
 * meanwhile. Looks for the daemon until look_ns. */
static enum shard_status reach(struct shard_model *m, uint64_t look_ns, struct wait *w)
{
	struct shard_client *c = m->client;
	enum shard_status rc;

	do {
		if (c->over.status == SHARD_WORLD_CHANGED &&
		    (rc = again_connect(c, look_ns, w)) != SHARD_OK)
			return rc;
		if ((rc = client_alive(c)) == SHARD_OK && m->lost.status != SHARD_OK)
			rc = text_fail_err(&m->lost);
		if (rc == SHARD_OK && m->presence.is == PRESENCE_AWAY)
			rc = join_again(m, look_ns, w);
		else if (rc == SHARD_OK && !m->joined)
			rc = join_ask(m, m->presence.rank_hint, w);
	} while (broke(m, rc) && clock_ns() < look_ns);
	return rc;
}

static void world_fill(struct shard_model *m, struct shard_world *theirs)
{
	const struct attempt *a = m->offered.no >= m->begun.no ? &m->offered : &m->begun;
	struct shard_world w = {.size = sizeof(w)};

	m->seen = *a;
	snprintf(m->why_shown, sizeof(m->why_shown), "%s", m->why);
	w.rank = a->rank;
	w.world_size = a->world_size;
	w.local_rank = a->local_rank;
	w.local_size = a->local_size;
	w.term = a->id.term;
	w.seq = a->id.seq;
	w.step = a->id.step + (a->no == m->begun.no && m->phase == PHASE_DECIDED);
	m->presence.guess = m->presence.is == PRESENCE_BACK ? m->presence.step + 1 : 0;
	if (m->presence.guess != 0 && !m->rolled_back && m->presence.guess <= m->known_step)
		m->presence.guess = m->known_step + 1; /* The daemon has not heard of it yet. */
	if (m->presence.guess != 0)
		w.step = m->presence.guess;
	w.why = m->why_shown;
	m->changed = m->rolled_back = false;
	text_struct_out(theirs, &w, sizeof(w));
}

enum shard_status shard_join(shard_model *m, int rank_hint, int64_t timeout_ms,
			     struct shard_world *world)
{
	enum shard_status rc = text_struct_ok(world, "shard_world");
	uint64_t look_ns;
	char waits[300];
	struct quorum q;
	struct wait w;

	if (rc != SHARD_OK || (rc = handle_enter_broken(m)) != SHARD_OK)
		return rc;
	if (m->introduced || m->leave_request != NULL) {
		rc = text_fail(SHARD_BAD_STATE,
			       m->introduced ? "\"%s\" is joined already, as rank %u"
					     : "\"%s\" is being left (rank %u)",
			       m->spec.name, m->seen.rank);
		goto out;
	}
	if (m->created && !m->sealed) { /* Nobody else may seal it, so this would wait in vain. */
		rc = text_fail(SHARD_BAD_STATE,
			       "join of \"%s\", which has no weights yet, and this trainer has to "
			       "write them (created is 1): shard_write() and shard_seal() first",
			       m->spec.name);
		goto out;
	}
	wait_begin(m->client, &w, handle_timeout(m, timeout_ms));
	m->presence.rank_hint = rank_hint;
	do {
		look_ns = clock_ns() + m->client->look_ns;
		rc = reach(m, look_ns < w.deadline_ns ? look_ns : w.deadline_ns, &w);
		handle_quorum_begin(m, timeout_ms, &w, &q);
		while (rc == SHARD_OK && !handle_offered(m))
			rc = handle_wait_quorum(m, &w, &q);
		w.deadline_ns = q.call_ns;
		rc = rc == SHARD_OK ? client_alive(m->client) : rc;
	} while (broke(m, rc) && clock_ns() < w.deadline_ns);
	if (rc == SHARD_OK) {
		m->introduced = true;
		world_fill(m, world);
	} else if (rc == SHARD_TIMEOUT) {
		double seconds = wait_seconds(&w);

		handle_waits_text(m, waits, sizeof(waits));
		text_fail(rc, "join of \"%s\" waited %.1f s: %s", m->spec.name, seconds, waits);
	}
out:
	handle_leave_one(m);
	return rc;
}

static enum shard_status not_joined(struct shard_model *m, const char *what)
{
	return text_fail(SHARD_BAD_STATE, "%s of \"%s\", which is not joined: shard_join() first",
			 what, m->spec.name);
}

/* Joins again. Others may have to come before there is an attempt, or have all gone after the last
 * step. So its ATTEMPT is not waited for long: without it the step that comes next is known, and
 * shard_begin() waits for the rest. */
static enum shard_status world_again(struct shard_model *m, struct shard_world *world)
{
	uint64_t look_ns = clock_ns() + m->client->look_ns;
	enum shard_status rc;
	struct wait w;
	bool back;

	wait_begin(m->client, &w, m->timeout_ms);
	w.deadline_ns += m->client->look_ns;
	do {
		struct wait brief = w;

		rc = reach(m, look_ns, &w);
		brief.deadline_ns = clock_ns() + ATTEMPT_NS;
		while (rc == SHARD_OK && !handle_offered(m))
			rc = handle_wait(m, &brief);
	} while (broke(m, rc) && clock_ns() < look_ns);
	if (rc == SHARD_TIMEOUT && m->presence.is == PRESENCE_AWAY)
		return text_fail(rc, "join of \"%s\" waited %.1f s: %s", m->spec.name,
				 wait_seconds(&w), m->client->address);
	if (rc != SHARD_OK && rc != SHARD_TIMEOUT)
		return rc;
	back = m->rolled_back;
	world_fill(m, world);
	/* The caller was told of the connection alone. The next call says the rest. */
	m->changed = m->rolled_back = back;
	return SHARD_OK;
}

enum shard_status shard_world_get(shard_model *m, struct shard_world *world)
{
	enum shard_status rc = text_struct_ok(world, "shard_world");

	if (rc != SHARD_OK || (rc = handle_enter_broken(m)) != SHARD_OK)
		return rc;
	if (!m->introduced)
		rc = not_joined(m, "shard_world_get()");
	else if (m->presence.is == PRESENCE_HERE)
		world_fill(m, world);
	else
		rc = world_again(m, world);
	handle_leave_one(m);
	return rc;
}

/* --- leave --- */

static enum shard_status leave_wait(struct shard_model *m, struct wait *w)
{
	struct request *r = m->leave_request;
	enum shard_status rc = SHARD_OK;

	/* The gradients of the step ahead have to be sent first. */
	while (rc == SHARD_OK && m->ahead && m->phase == PHASE_COMMITTED)
		rc = handle_wait(m, w);
	if (rc != SHARD_OK)
		return rc;
	if (r == NULL) {
		if ((r = request_new(m->client, OP_LEAVE, 0)) == NULL)
			return SHARD_SYSTEM;
		if ((rc = request_send(r, handle_head(m), NULL, w)) != SHARD_OK) {
			request_free(r);
			return rc;
		}
		m->leave_request = r;
	}
	/* The stream may still read the arena, or fill the image. */
	while (rc == SHARD_OK &&
	       (!r->answered || m->sends_out > 0 || m->client->landing == m || m->copying > 0))
		rc = handle_wait(m, w);
	if (rc != SHARD_OK)
		return rc;
	m->leave_request = NULL;
	rc = request_wait(r, w);
	request_free(r);
	return rc;
}

/* The daemon took the end of the connection for the end of the trainer. */
static enum shard_status left(struct shard_model *m)
{
	request_free(m->leave_request);
	m->leave_request = NULL;
	return SHARD_OK;
}

enum shard_status shard_leave(shard_model *m, int64_t timeout_ms)
{
	enum shard_status rc = handle_enter_broken(m);
	char waits[300];
	struct wait w;

	if (rc != SHARD_OK)
		return rc;
	wait_begin(m->client, &w, handle_timeout(m, timeout_ms));
	if (!m->joined)
		rc = not_joined(m, "shard_leave()");
	else if (m->presence.is == PRESENCE_AWAY)
		rc = left(m);
	else if (m->phase == PHASE_OPEN)
		rc = text_fail(SHARD_BAD_STATE,
			       "shard_leave() in the middle of step %llu of \"%s\": shard_commit() "
			       "or shard_abandon() it first",
			       (ull)m->begun.id.step, m->spec.name);
	else if ((rc = leave_wait(m, &w)) == SHARD_WORLD_CHANGED && m->presence.is == PRESENCE_AWAY)
		rc = left(m);
	if (rc == SHARD_OK) {
		world_unmap(m);
		push_drop(m);
		blob_drop(m);
		m->joined = m->introduced = m->changed = m->rolled_back = m->offered_over = false;
		m->presence.is = PRESENCE_HERE;
		m->offered = m->begun = m->seen = m->flight = (struct attempt){0};
		m->ahead = m->abandon_due = false;
		m->phase = PHASE_NONE;
	} else if (rc == SHARD_TIMEOUT) {
		double seconds = wait_seconds(&w);

		handle_waits_text(m, waits, sizeof(waits));
		text_fail(rc, "leaving \"%s\" waited %.1f s for a boundary: %s", m->spec.name,
			  seconds, waits);
	}
	handle_leave_one(m);
	return rc;
}

enum shard_status shard_samples(const struct shard_world *world, uint64_t global_batch,
				uint64_t *first, uint64_t *count)
{
	struct shard_world w;
	enum shard_status rc;
	uint64_t each, rest;

	text_begin();
	if ((rc = text_struct_in(&w, sizeof(w), world, "shard_world")) != SHARD_OK)
		return rc;
	if (first == NULL || count == NULL || w.world_size == 0 || w.rank >= w.world_size)
		return text_fail(
			SHARD_BAD_ARG,
			"shard_samples: rank %u in a world of %u: fill the world by shard_join()",
			w.rank, w.world_size);
	each = global_batch / w.world_size;
	rest = global_batch % w.world_size; /* The first ranks take one more. */
	*first = w.rank * each + (w.rank < rest ? w.rank : rest);
	*count = each + (w.rank < rest);
	return SHARD_OK;
}
