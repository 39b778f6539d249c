// SPDX-License-Identifier: Apache-2.0
/* A step from shard_begin() to its result. Begin waits for an ATTEMPT newer than the one in hand,
 * until nothing of the old one uses the arena, and until the image holds the step before. Commit
 * (or vote_skip) sends READY after the last chunk. The daemon answers with RESULT or ENDED, which
 * shard_result() reports. Abandon gives the attempt up for all ranks. It fails on calls out of
 * order, missing pushes, a changed world, and at deadlines, whose texts name what the step waits
 * for. */
#include "step.h"

#include "blob.h"
#include "image.h"
#include "push.h"
#include "ticket.h"
#include "verdict.h"
#include "world.h"

#include "wire/control.h"
#include "wire/dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

static enum shard_outcome outcome_of(uint32_t n)
{
	return n == SHARD_APPLIED        ? SHARD_APPLIED
	       : n == SHARD_SKIPPED_VOTE ? SHARD_SKIPPED_VOTE
					 : SHARD_SKIPPED_NONFINITE;
}

void step_result(struct shard_model *m, const struct wire_head *h, const Shard__Result *r)
{
	bool flight = m->flight.no != 0 && verdict_same(h, &m->flight.id);
	struct verdict *v = verdict_find(m, flight ? m->flight.no : m->begun.no);

	image_decided(m, h->step, outcome_of(r->outcome) == SHARD_APPLIED);
	if (v == NULL || !verdict_same(h, flight ? &m->flight.id : &m->begun.id) || v->decided ||
	    v->ended)
		return;
	v->decided = true;
	v->diverged = r->diverged;
	v->result = (struct shard_result){
		.size = sizeof(v->result),
		.outcome = outcome_of(r->outcome),
		.step = h->step,
		.applied = r->applied,
		.attempts = r->attempts,
		.skipped_in_row = r->skipped_in_row,
		.grad_norm = r->grad_norm,
		.clip_factor = r->clip_factor,
		.weight_sum = r->weight_sum,
		.loss_scale = r->loss_scale,
		.next_loss_scale = r->next_loss_scale,
		.lr = r->lr,
		.bad_tensor = r->bad_tensor,
		.bad_rank = r->bad_rank,
		.wait_ns = m->wait_ns,
		.reduce_ns = r->reduce_ns,
		.apply_ns = r->apply_ns,
		.pushed_bytes = m->pushed_bytes,
		.pulled_bytes = m->pulled_bytes,
		.world_size = r->world_size,
		.slowest_rank = r->slowest_rank,
	};
	for (size_t i = 0; i < r->n_values && i < SHARD_VALUES; i++)
		v->result.values[i] = r->values[i];
	m->pulled_bytes = 0;
	blob_decided(m, h->step);
	if (flight) {
		m->flight.no = 0; /* The step in hand is the one after it. */
	} else {
		m->phase = PHASE_DECIDED;
		push_drop(m);
	}
	ticket_settle(m);
}

/* --- begin --- */

/* lr: what the caller of `what` gives. Makes room for it. */
static enum shard_status check_lr(struct shard_model *m, const char *what, const double *lr)
{
	if (lr == NULL)
		return SHARD_OK;
	if (m->scheduled)
		return text_fail(SHARD_BAD_ARG,
				 "%s: lr, but the settings of \"%s\" name a schedule: "
				 "choose one of them",
				 what, m->spec.name);
	for (uint32_t g = 0; g < m->spec.groups_nr; g++)
		if (!(lr[g] >= 0) || lr[g] > 1e30)
			return text_fail(SHARD_BAD_ARG,
					 "%s: lr[%u] is %g: a finite number of at least "
					 "0 is needed",
					 what, g, lr[g]);
	if (m->lr == NULL && (m->lr = calloc(m->spec.groups_nr, sizeof(*m->lr))) == NULL)
		return text_no_memory("learning rates");
	return SHARD_OK;
}

static enum shard_status check_commit(struct shard_model *m, const struct shard_commit_opts *o)
{
	if (o->values_nr > SHARD_VALUES || (o->values_nr > 0 && o->values == NULL))
		return text_fail(SHARD_BAD_ARG,
				 "shard_commit_opts(): %u values%s: at most %d of them",
				 o->values_nr, o->values == NULL ? " at NULL" : "", SHARD_VALUES);
	if (o->clip != NULL && (!(*o->clip >= 0) || *o->clip > 1e300))
		return text_fail(SHARD_BAD_ARG,
				 "shard_commit_opts(): clip is %g: a finite number of at least 0 "
				 "is needed",
				 *o->clip);
	if ((o->values_nr > 0 || o->clip != NULL) && m->client->wire_minor < WIRE_VALUES)
		return text_fail(SHARD_UNSUPPORTED,
				 "shard_commit_opts(): %s, which the release of shardd at %s does "
				 "not know: upgrade it",
				 o->clip != NULL ? "clip" : "values", m->client->address);
	return check_lr(m, "shard_commit_opts()", o->lr);
}

static enum shard_status begin_check(struct shard_model *m, const struct shard_begin_opts *o)
{
	struct err e;

	if (m->changed)
		return handle_changed(m);
	if (!m->introduced)
		return text_fail(SHARD_BAD_STATE,
				 "shard_begin() of \"%s\", which is not joined: shard_join() first",
				 m->spec.name);
	if (m->leave_request != NULL)
		return text_fail(SHARD_BAD_STATE, "shard_begin() of \"%s\", which is being left",
				 m->spec.name);
	if (m->phase == PHASE_OPEN)
		return text_fail(SHARD_BAD_STATE,
				 "step %llu of \"%s\" is begun already: shard_commit() or "
				 "shard_abandon() it first",
				 (ull)m->begun.id.step, m->spec.name);
	if (o->weight != SHARD_NO_SAMPLES && (!(o->weight >= 0) || isinf(o->weight)))
		return text_fail(
			SHARD_BAD_ARG,
			"shard_begin(): weight %g: a finite number above 0 is needed (0 takes 1.0)",
			o->weight);
	if (o->micro_steps > 1 && m->adds.sum == NULL &&
	    adds_init(&m->adds, m->layout, &e) != SHARD_OK)
		return text_fail_err(&e);
	return check_lr(m, "shard_begin()", o->lr);
}

/* The weights that a begin waits for, and the first chunk that was missing. */
struct look {
	uint64_t weights; /* UINT64_MAX: it has not looked yet. */
	uint32_t chunk;
};

static uint64_t weights_awaited(const struct shard_model *m)
{
	if (m->phase == PHASE_COMMITTED)
		return m->begun.newest;
	return m->staleness > 0 ? m->offered.weights : m->offered.id.step;
}

/* Versions only grow, so no chunk is checked twice for the same weights. The attempt may change
 * while a begin waits, and the step with it. Then all chunks are checked again. */
static bool begin_ready(struct shard_model *m, struct look *look)
{
	uint32_t *chunk = &look->chunk;
	uint64_t first, weights = weights_awaited(m);

	if (weights != look->weights)
		*look = (struct look){.weights = weights};
	first = (uint64_t)*chunk * m->layout->chunk_elems;
	if (m->phase == PHASE_COMMITTED)
		return world_ahead_may(m, chunk);
	if (!handle_offered(m) || m->copying > 0 || m->sends_out > 0)
		return false;
	if (m->staleness > 0)
		return image_has(m, first, m->layout->elems - first, m->offered.weights, chunk);
	return m->offered.id.step == 0 ||
	       image_holds(m, first, m->layout->elems - first, m->offered.id.step - 1, chunk);
}

/* The chunk that a begin waited for last. It is kept because its attempt may end just before the
 * begin times out. */
struct late {
	uint64_t step; /* 0: no attempt waited for a chunk. */
	uint32_t chunk;
};

static void begin_look(const struct shard_model *m, uint32_t chunk, struct late *late)
{
	if (handle_offered(m) && m->copying == 0 && m->sends_out == 0)
		*late = (struct late){m->offered.id.step, chunk};
}

static enum shard_status begin_timeout(struct shard_model *m, const struct wait *w,
				       const struct late *late)
{
	double seconds = wait_seconds(w);
	char waits[300], ended[300] = "";
	bool said;

	if (late->step != 0 && !handle_offered(m) && m->why[0] != 0)
		snprintf(ended, sizeof(ended), "; its attempt has ended: %.260s", m->why);
	said = handle_waits_text(m, waits, sizeof(waits));
	if (late->step == 0)
		return text_fail(SHARD_TIMEOUT, "begin after step %llu of \"%s\" waited %.1f s: %s",
				 (ull)m->begun.id.step, m->spec.name, seconds, waits);
	return text_fail(SHARD_TIMEOUT,
			 "begin of step %llu of \"%s\" waited %.1f s for chunk %u of %u of the "
			 "image of step %llu%s%s%s",
			 (ull)late->step, m->spec.name, seconds, late->chunk, m->layout->chunks_nr,
			 (ull)late->step - 1, ended, said ? "; shardd waits for " : "",
			 said ? waits : "");
}

static bool world_differs(const struct shard_model *m)
{
	return m->offered.rank != m->seen.rank || m->offered.world_size != m->seen.world_size ||
	       (m->presence.guess != 0 && m->offered.id.step != m->presence.guess);
}

/* Makes the offered attempt, or the step ahead, the one in hand. */
static void begin_take(struct shard_model *m, const struct shard_begin_opts *o,
		       struct shard_step *theirs)
{
	struct shard_step s = {.size = sizeof(s)};
	uint64_t before = m->begun.id.step;

	if (m->phase == PHASE_COMMITTED)
		world_ahead_begin(m);
	else
		m->begun = m->offered;
	if (!m->client->tcp && m->begun.id.step != before)
		/* The image that is read in place now. */
		m->pulled_bytes += m->layout->image_bytes;
	m->phase = PHASE_OPEN;
	m->weight = o->weight == 0 ? 1.0 : o->weight == SHARD_NO_SAMPLES ? 0 : o->weight;
	m->adds.micro_steps = o->micro_steps && m->weight > 0 ? o->micro_steps : 1;
	m->lr_given = o->lr != NULL;
	if (m->lr_given)
		memcpy(m->lr, o->lr, m->spec.groups_nr * sizeof(*m->lr));
	m->clip_given = false;
	m->values_nr = 0;
	m->why[0] = 0;
	verdict_open(m, m->begun.no);
	push_begin(m);
	if (m->weight == 0)
		push_absent(m);
	s.step = m->begun.id.step;
	s.attempt = m->begun.id.attempt;
	s.rank = m->begun.rank;
	s.world_size = m->begun.world_size;
	s.loss_scale = m->begun.loss_scale;
	text_struct_out(theirs, &s, sizeof(s));
}

enum shard_status shard_begin(shard_model *m, const struct shard_begin_opts *opts,
			      struct shard_step *step)
{
	struct shard_begin_opts o = {.size = sizeof(o)};
	enum shard_status rc = text_struct_ok(step, "shard_step");
	struct look look = {.weights = UINT64_MAX};
	struct late late = {0};
	struct quorum q;
	struct wait w;

	if (rc == SHARD_OK && opts != NULL)
		rc = text_struct_in(&o, sizeof(o), opts, "shard_begin_opts");
	if (rc != SHARD_OK || (rc = handle_enter_one(m)) != SHARD_OK)
		return rc;
	if (!m->client->tcp)
		rc = pump_look(m->client); /* The attempt may be over already. */
	if (rc == SHARD_OK)
		rc = begin_check(m, &o);
	m->wait_ns = 0;
	wait_begin(m->client, &w, m->timeout_ms);
	handle_quorum_begin(m, SHARD_DEFAULT, &w, &q);
	while (rc == SHARD_OK && !begin_ready(m, &look)) {
		begin_look(m, look.chunk, &late);
		rc = handle_wait_quorum(m, &w, &q);
		if (m->changed)
			rc = handle_changed(m);
	}
	if (rc == SHARD_OK)
		rc = client_alive(m->client);
	if (rc == SHARD_OK && m->phase != PHASE_COMMITTED && world_differs(m)) {
		m->changed = true;
		rc = handle_changed(m);
	}
	if (rc == SHARD_OK)
		begin_take(m, &o, step);
	else if (rc == SHARD_TIMEOUT)
		begin_timeout(m, &w, &late);
	handle_leave_one(m);
	return rc;
}

/* --- commit, vote_skip, abandon --- */

/* Checks that the attempt in hand is open, after waiting for pushes that are copying. */
static enum shard_status step_open(struct shard_model *m, const char *what)
{
	struct wait w;
	enum shard_status rc = SHARD_OK;

	wait_begin(m->client, &w, m->timeout_ms);
	while (m->copying > 0 && rc == SHARD_OK)
		rc = handle_wait(m, &w);
	if (rc == SHARD_TIMEOUT)
		text_fail(rc, "%s waited %.1f s for %u pushes that other threads are in", what,
			  wait_seconds(&w), m->copying);
	if (rc != SHARD_OK)
		return rc;
	if (m->changed)
		return handle_changed(m);
	if (m->phase == PHASE_OPEN)
		return SHARD_OK;
	if (m->phase == PHASE_NONE)
		return text_fail(SHARD_BAD_STATE, "%s: no step of \"%s\" is begun", what,
				 m->spec.name);
	return text_fail(SHARD_BAD_STATE, "%s: step %llu of \"%s\" is %s", what,
			 (ull)m->begun.id.step, m->spec.name,
			 m->phase == PHASE_COMMITTED ? "committed already"
			 : m->phase == PHASE_DECIDED ? "decided"
						     : "abandoned");
}

static bool commit_ready(struct shard_model *m, const struct ticket *t, uint32_t *chunk)
{
	const struct verdict *v = verdict_find(m, t->attempt);

	(void)chunk;
	return v == NULL || v->decided || v->ended;
}

enum shard_status shard_commit_opts(shard_model *m, const struct shard_commit_opts *opts,
				    shard_ticket *ticket)
{
	struct shard_commit_opts o = {.size = sizeof(o)};
	enum shard_status rc =
		opts == NULL ? SHARD_OK : text_struct_in(&o, sizeof(o), opts, "shard_commit_opts");
	struct ticket *t = NULL;
	struct err e;

	if (rc != SHARD_OK || (rc = handle_enter_one(m)) != SHARD_OK)
		return rc;
	if ((rc = step_open(m, "shard_commit()")) == SHARD_OK)
		rc = check_commit(m, &o);
	if (rc == SHARD_OK && cover_missing(&m->cover, &e) != SHARD_OK)
		rc = m->adds.micro_steps > 1
			     ? text_fail(SHARD_MISSING, "%.400s, in each of %u micro-steps", e.text,
					 m->adds.micro_steps)
			     : text_fail_err(&e);
	if (rc == SHARD_OK && ticket != NULL && (t = ticket_new(m, commit_ready)) == NULL)
		rc = text_fail(SHARD_AGAIN,
			       "%u tickets of \"%s\" are waiting: shard_wait() for one first",
			       m->tickets_nr, m->spec.name);
	if (rc == SHARD_OK) {
		m->phase = PHASE_COMMITTED;
		m->committed_no = m->begun.no;
		m->committed_step = m->begun.id.step;
		if (o.lr != NULL) {
			m->lr_given = true;
			memcpy(m->lr, o.lr, m->spec.groups_nr * sizeof(*m->lr));
		}
		m->clip_given = o.clip != NULL;
		if (o.clip != NULL)
			m->clip = *o.clip;
		m->values_nr = o.values_nr;
		if (o.values_nr > 0)
			memcpy(m->values, o.values, o.values_nr * sizeof(*m->values));
		if (t != NULL) {
			t->kind = TICKET_COMMIT;
			t->attempt = m->begun.no;
			*ticket = verdict_find(m, m->begun.no)->ticket = t->no;
		}
		push_ready(m, false, NULL);
	}
	handle_leave_one(m);
	return rc;
}

enum shard_status shard_commit(shard_model *m, shard_ticket *ticket)
{
	return shard_commit_opts(m, NULL, ticket);
}

enum shard_status shard_vote_skip(shard_model *m, const char *why)
{
	enum shard_status rc = handle_enter_one(m);

	if (rc != SHARD_OK)
		return rc;
	if ((rc = step_open(m, "shard_vote_skip()")) == SHARD_OK) {
		m->phase = PHASE_COMMITTED;
		m->committed_no = m->begun.no;
		m->committed_step = m->begun.id.step;
		push_rest_absent(m);
		push_ready(m, true, why);
	}
	handle_leave_one(m);
	return rc;
}

enum shard_status shard_abandon(shard_model *m, const char *why)
{
	enum shard_status rc = handle_enter_one(m);
	Shard__Why x = SHARD__WHY__INIT;
	struct wire_head h;
	char text[MODEL_WHY_BYTES];
	struct wait w;

	if (rc != SHARD_OK)
		return rc;
	rc = step_open(m, "shard_abandon()");
	wait_begin(m->client, &w, m->timeout_ms);
	control_clean(text, sizeof(text), why ? why : "");
	x.why = text;
	if (rc == SHARD_OK && m->ahead) { /* Its ATTEMPT is not here. ABANDON follows it. */
		m->phase = PHASE_ABANDONED;
		push_drop(m);
		m->abandon_due = true;
		snprintf(m->ready_why, sizeof(m->ready_why), "%s", text);
	}
	while (rc == SHARD_OK && m->phase == PHASE_OPEN) {
		h = m->begun.id;
		h.op = OP_ABANDON;
		rc = stream_send_control(m->client->stream, &h, &x.base);
		if (rc == SHARD_OK) {
			m->phase = PHASE_ABANDONED;
			push_drop(m);
			pump_kick(m->client);
		} else if (rc == SHARD_AGAIN) {
			rc = handle_wait(m, &w);
		} else {
			text_fail(rc, "shard_abandon() of step %llu of \"%s\": %s", (ull)h.step,
				  m->spec.name, status_name(rc));
		}
	}
	if (rc == SHARD_OK && m->changed)
		rc = handle_changed(m); /* It ended by itself meanwhile. */
	else if (rc == SHARD_TIMEOUT)
		text_fail(rc,
			  "shard_abandon() of step %llu of \"%s\" found no room to send in %.1f s",
			  (ull)m->begun.id.step, m->spec.name, wait_seconds(&w));
	handle_leave_one(m);
	return rc;
}

/* --- result --- */

static enum shard_status result_find(struct shard_model *m, shard_ticket ticket,
				     struct verdict **out)
{
	if (ticket == 0) {
		uint64_t no =
			m->phase == PHASE_OPEN && m->staleness > 0 ? m->committed_no : m->begun.no;

		if (no == 0 || (m->phase == PHASE_OPEN && m->staleness == 0))
			return text_fail(SHARD_BAD_STATE,
					 "shard_result(): no step of \"%s\" is committed",
					 m->spec.name);
		*out = verdict_find(m, no);
		CHECK(*out != NULL);
		return SHARD_OK;
	}
	for (uint32_t i = 0; i < MODEL_VERDICTS; i++)
		if (m->verdicts[i].no != 0 && m->verdicts[i].ticket == ticket) {
			*out = &m->verdicts[i];
			return SHARD_OK;
		}
	return text_fail(ticket > atomic_load(&m->ticket_last) ? SHARD_BAD_ARG : SHARD_STALE,
			 "shard_result(): ticket %llu is of no commit among the last %d of \"%s\"",
			 (ull)ticket, (int)MODEL_VERDICTS, m->spec.name);
}

static enum shard_status result_timeout(struct shard_model *m, const struct wait *w,
					int64_t timeout_ms, uint64_t no)
{
	const struct wire_head *id = m->flight.no == no ? &m->flight.id : &m->begun.id;
	double seconds = wait_seconds(w);
	char waits[300];
	bool said;

	if (timeout_ms == 0)
		return text_fail(SHARD_TIMEOUT, "step %llu attempt %u of \"%s\" is undecided",
				 (ull)id->step, id->attempt, m->spec.name);
	said = handle_waits_text(m, waits, sizeof(waits));
	return text_fail(SHARD_TIMEOUT, "step %llu attempt %u of \"%s\" waits %.1f s%s%s",
			 (ull)id->step, id->attempt, m->spec.name, seconds, said ? " for " : ": ",
			 waits);
}

/* Names the first gradient that was not finite, where the result has it. */
static void bad_text(const struct shard_model *m, const struct shard_result *r, char *text,
		     size_t bytes)
{
	char rank[32] = "";

	text[0] = 0;
	if (r->bad_tensor < 0 || (uint64_t)r->bad_tensor >= m->layout->tensors_nr)
		return;
	if (r->bad_rank >= 0)
		snprintf(rank, sizeof(rank), " of rank %d", r->bad_rank);
	snprintf(text, bytes, ", the gradient of \"%.150s\"%s is Inf or NaN",
		 m->layout->tensor[r->bad_tensor].name, rank);
}

static enum shard_status result_say(struct shard_model *m, const struct verdict *v,
				    struct shard_result *theirs)
{
	char bad[256];

	text_struct_out(theirs, &v->result, sizeof(v->result));
	if (!v->diverged)
		return SHARD_OK;
	bad_text(m, &v->result, bad, sizeof(bad));
	return text_fail(SHARD_DIVERGED,
			 "step %llu of \"%s\": %llu steps skipped in a row, loss scale %g%s: the "
			 "model is paused: lower lr, or restore a checkpoint, then `shardctl model "
			 "resume %s`",
			 (ull)v->result.step, m->spec.name, (ull)v->result.skipped_in_row,
			 v->result.next_loss_scale, bad, m->spec.name);
}

/* A decided result is final. It is told even when the connection or the model is gone by now. */
static bool result_known(struct shard_model *m, shard_ticket ticket, struct shard_result *theirs,
			 enum shard_status *rc)
{
	struct verdict *v = NULL;
	bool known;

	if (m == NULL || client_forked(m->client))
		return false;
	pthread_mutex_lock(&m->client->lock);
	text_begin();
	known = result_find(m, ticket, &v) == SHARD_OK && v->decided;
	if (known)
		*rc = result_say(m, v, theirs);
	pthread_mutex_unlock(&m->client->lock);
	return known;
}

enum shard_status shard_result(shard_model *m, shard_ticket ticket, int64_t timeout_ms,
			       struct shard_result *result)
{
	enum shard_status rc = text_struct_ok(result, "shard_result");
	struct verdict *v = NULL;
	uint64_t no;
	struct wait w;

	if (rc != SHARD_OK || result_known(m, ticket, result, &rc) ||
	    (rc = handle_enter(m)) != SHARD_OK)
		return rc;
	rc = result_find(m, ticket, &v);
	no = v ? v->no : 0;
	wait_begin(m->client, &w, handle_timeout(m, timeout_ms));
	while (rc == SHARD_OK && v->no == no && !v->decided && !v->ended)
		rc = handle_wait(m, &w);
	if (v != NULL && v->no != no)
		rc = text_fail(SHARD_STALE, "shard_result(): other threads went on by %d steps",
			       (int)MODEL_VERDICTS);
	else if (v != NULL && v->decided)
		rc = result_say(m, v, result);
	else if (v != NULL && v->ended)
		rc = v->ended_as == SHARD_MISMATCH
			     ? text_fail(v->ended_as, "%s; step %llu may begin again", v->why,
					 (ull)m->begun.id.step)
		     : m->changed || (no == m->begun.no &&
				      v->ended_as ==
					      SHARD_WORLD_CHANGED) /* Of both steps in hand. */
			     ? handle_changed(m)
			     : text_fail(v->ended_as, "%s", v->why);
	else if (rc == SHARD_TIMEOUT)
		rc = result_timeout(m, &w, timeout_ms, no);
	client_leave(m->client);
	return rc;
}
