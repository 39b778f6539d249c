/* SPDX-License-Identifier: Apache-2.0 */
/* How a daemon ends when it is told to. main.c and tests call server_stop(). Happy path: the
 * listeners close and every core gets STOP. Attempts that are not decided are aborted by whoever
 * decides them, and nothing new begins. Trainers hear which node stops and why. If a step of their
 * model is decided or voted for, they hear it after that step. A decided step is finished: every
 * chunk is updated, its image and DONE are sent, and the coordinator waits for DONE of every node.
 * A node that has voted cannot take that back and waits for the verdict. Then the other nodes hear
 * the same reason, and connections, workers and handles close. If a step in progress does not end
 * within [daemon] stop_timeout, the log says which step is left and what that means. */
#include "node/state.h"
#include "ckpt/ckpt.h"
#include "control/anew.h"
#include "control/drop.h"
#include "control/seal.h"

#include "base/check.h"
#include "base/clock.h"
#include "link/accept.h"
#include "model/model.h"
#include "model/lead.h"
#include "node/gpus.h"
#include "obs/history.h"
#include "obs/http.h"
#include "warm/warm.h"
#include "link/peer.h"
#include "data/device_memory.h"
#include "data/feed.h"
#include "data/trainer.h"
#include "link/session.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STOP_TICK_MS 5

static void check_stopped(struct server *s);

enum in_hand { NOTHING, UNDECIDED, VOTED, DECIDED, UNHEARD };

static enum in_hand in_hand(const struct model *m)
{
	struct core_state c;

	if (m->defining || m->dropping)
		return NOTHING;
	core_state(m->core, &c);
	if (c.part == CORE_APPLYING || m->img.applying)
		return DECIDED;
	if (c.part == CORE_PREPARED && !c.coordinator)
		return VOTED;
	if (c.part != CORE_FREE) /* Until the core gets STOP. */
		return UNDECIDED;
	return c.unheard ? UNHEARD : NOTHING;
}

static bool waits(enum in_hand h)
{
	return h == VOTED || h == DECIDED || h == UNHEARD;
}

static void phase_words(const struct model *m, char *out, size_t bytes)
{
	unsigned long next = (unsigned long)m->attempt.id.step, step = (unsigned long)m->step;

	switch (in_hand(m)) {
	case NOTHING:
		snprintf(out, bytes, "free: no step is in hand");
		return;
	case UNDECIDED:
		snprintf(out, bytes, "attempt %u at step %lu: not decided, it is aborted",
			 m->attempt.id.attempt, next);
		return;
	case VOTED:
		snprintf(out, bytes,
			 "prepared: step %lu is voted for, the verdict of node %s is waited for",
			 next, members_name(m->server, server_coordinator(m->server)));
		return;
	case DECIDED:
		snprintf(out, bytes, "applying: the decided step is finished first");
		return;
	case UNHEARD:
		snprintf(out, bytes, "decided: first every node is to have applied step %lu", step);
		return;
	}
}

/* --- what is left --- */

struct undone {
	/* kept: what it means if the model's memory outlives the process. */
	const char *event, *means, *kept;
};

/* The time is over. The text depends on what was decided, because a vote stands whatever becomes of
 * the node that gave it. */
static void log_undone(struct server *s, const struct model *m, enum in_hand h)
{
	static const struct undone words[] = {
		[VOTED] = {"stop_undecided",
			   "this node has voted: the step may be committed all the same",
			   "the vote is kept: the next start hears the verdict"},
		[DECIDED] = {"stop_unfinished",
			     "the step is committed, and its weights here are not whole",
			     "the step is committed: the next start finishes it"},
		[UNHEARD] = {"stop_unheard",
			     "the step is committed; a node may learn it only from who has it",
			     "the step is committed; who has not heard of it hears it from the "
			     "next start"},
	};
	double seconds = (double)s->conf->stop_timeout_ns / NS_PER_SEC;
	char why[200];

	if (h == VOTED)
		snprintf(why, sizeof(why), "no verdict of node %s within %.1f s",
			 members_name(s, server_coordinator(s)), seconds);
	else if (h == DECIDED)
		snprintf(why, sizeof(why),
			 "%u chunks to do and %u parts of the image on their way after %.1f s",
			 m->img.apply_left, m->img.sends, seconds);
	else
		snprintf(why, sizeof(why),
			 "not every node has said within %.1f s that it applied the step", seconds);
	log_line(s->log, LOG_LEVEL_WARN, "event=%s model=%s step=%lu why=%s means=%s",
		 words[h].event, m->name,
		 (unsigned long)(h == VOTED ? m->attempt.id.step : m->step), why,
		 meta_persistent(&m->meta) ? words[h].kept : words[h].means);
}

/* Logs what becomes of the weights. */
static void log_left(struct server *s, const struct model *m)
{
	uint32_t held = m->store != NULL ? store_owned(m->store) : 0;
	bool kept = meta_persistent(&m->meta) && !meta_voided(&m->meta);
	char why[320];

	if (!m->sealed || m->defining || held == 0)
		return;
	if (kept)
		snprintf(why, sizeof(why), "kept for the next start in %.200s",
			 warm_place(s->warm));
	else
		snprintf(why, sizeof(why), "what memory holds ends with this process");
	if (m->ckpt->last.path[0] != 0)
		snprintf(why + strlen(why), sizeof(why) - strlen(why),
			 "; the newest checkpoint is of step %lu",
			 (unsigned long)m->ckpt->last.step);
	log_line(s->log, LOG_LEVEL_INFO,
		 "event=left model=%s step=%lu chunks=%u of=%u kept=%d why=%s", m->name,
		 (unsigned long)m->step, held, m->layout->chunks_nr, kept, why);
}

/* --- closing --- */

/* Closes the sessions of models without a step that they have to wait for, or all of them. Each
 * session hears it once. */
static void close_sessions(struct server *s, bool all)
{
	struct err e;

	err_set(&e, SHARD_CLOSED, "node %s stops: %s", members_name(s, s->self), s->stop.why);
	list_each(it, &s->conns.sessions) {
		struct session *t = list_of(it, struct session, link);
		enum in_hand h = t->trainer->model != NULL ? in_hand(t->trainer->model) : NOTHING;

		if (t->leaves || (!all && (h == VOTED || h == DECIDED)))
			continue;
		t->leaves = true;
		session_close(t, SHARD_CLOSED, e.text);
	}
}

static bool step_in_hand(struct server *s, bool late)
{
	bool any = false;

	list_each(it, &s->models) {
		const struct model *m = list_of(it, struct model, link);
		enum in_hand h = in_hand(m);

		if (!waits(h))
			continue;
		any = true;
		if (late)
			log_undone(s, m, h);
	}
	return any && !late;
}

static void close_connections(struct server *s)
{
	struct err e;

	CHECK(s->stop.on);
	err_set(&e, SHARD_CLOSED, "node %s stops: %s", members_name(s, s->self), s->stop.why);
	list_each(it, &s->models)
		log_left(s, list_of(it, struct model, link));
	close_sessions(s, true);
	accept_close_all(s);
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (s->peer[n] != NULL)
			peer_leave(s->peer[n], &e);
	s->stop.conns_closed = true;
}

static bool links_closed(const struct server *s)
{
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		for (uint32_t i = 0; s->peer[n] != NULL && i < s->peer[n]->conns_nr; i++)
			if (s->peer[n]->conns[i].conn != NULL)
				return false;
	return list_empty(&s->conns.sessions) && list_empty(&s->conns.openings);
}

/* Connections end first, then the threads, then the timers. */
void server_stopping_check(const struct server_stopping *stop)
{
	CHECK(!stop->on || (stop->done != NULL && stop->why[0] != 0));
	CHECK(!stop->all || (stop->conns_closed && !stop->pool_open && !stop->http_closing));
	CHECK(stop->closing == 0 || stop->all);
}

static void handle_closed(uv_handle_t *h)
{
	struct server *s = h->data;

	s->stop.closing--;
	check_stopped(s);
}

static void http_closed(void *arg)
{
	struct server *s = arg;

	s->stop.http_closing = false;
	check_stopped(s);
}

static void pool_closed(void *arg)
{
	struct server *s = arg;

	s->stop.pool_open = false;
	check_stopped(s);
}

static void gpu_closed(void *arg)
{
	struct server *s = arg;

	CHECK(s->stop.gpus_closing > 0);
	s->stop.gpus_closing--;
	check_stopped(s);
}

/* Chunks of a decided step still wait for a place in the queue of the workers, for their state to
 * be in memory or on a disk, or for the images that are being made again before. So may what counts
 * weights. */
static bool feeding(const struct server *s)
{
	list_each(it, &s->models) {
		const struct model *m = list_of(it, struct model, link);

		if (feed_open(m) || m->img.feed.in_hand > 0 || seal_waits(m) ||
		    m->memory.durable.busy ||
		    (m->img.applying && m->memory.settle.on && !m->dropping))
			return true;
	}
	return false;
}

/* What uses a tier that is lost never ends, and a model of model/odd.c does nothing. Whoever
 * stops the daemon was told so. */
static bool ends_anyway(const struct server *s)
{
	list_each(it, &s->models) {
		const struct model *m = list_of(it, struct model, link);

		if (m->memory.tier_lost || m->memory.ends)
			return true;
	}
	return false;
}

static void check_stopped(struct server *s)
{
	CHECK(s->stop.on);
	server_stopping_check(&s->stop);
	if (!s->stop.on || s->stop.closing > 0)
		return;
	if (s->pool != NULL)
		anew_stop(s);
	if (!s->stop.conns_closed) {
		close_sessions(s, false);
		if (step_in_hand(s, clock_ns() >= s->stop.by_ns))
			return; /* stop_tick() calls again. */
		close_connections(s);
	}
	if (ends_anyway(s))
		_exit(1);
	lead_stop(s);
	if (!links_closed(s) || !lead_ended(s) || !history_stopped(s) || !ckpt_stopped(s) ||
	    s->persists > 0 || !job_idle(s, JOB_MEMORY) || !job_idle(s, JOB_SMALL) ||
	    !rdma_local_closed(s))
		return;
	if (s->http != NULL) {
		s->stop.http_closing = true;
		http_close(&s->http, http_closed, s);
	}
	if (feeding(s))
		return;
	if (s->pool != NULL) {
		list_each(it, &s->models) {
			struct model *m = list_of(it, struct model, link);

			device_memory_stop(m);
			tier_stop(m->tier);
		}
		drop_stop(s);
		worker_close(&s->pool, pool_closed, s);
		return;
	}
	if (s->stop.pool_open || s->stop.http_closing)
		return;
	if (s->gpus_nr > 0) {
		s->stop.gpus_closing = s->gpus_nr;
		gpus_close(s, gpu_closed, s);
	}
	if (s->stop.gpus_closing > 0)
		return;
	if (!s->stop.all) {
		s->stop.all = true;
		s->stop.closing = 3;
		uv_close((uv_handle_t *)&s->clock.core_timer, handle_closed);
		uv_close((uv_handle_t *)&s->clock.beat, handle_closed);
		uv_close((uv_handle_t *)&s->clock.history_timer, handle_closed);
		return;
	}
	log_line(s->log, LOG_LEVEL_INFO, "event=stopped why=%s", s->stop.why);
	s->stop.on = false;
	s->stop.done(s->stop.arg);
}

/* A node that waits for a verdict still has to send PINGs. */
static void stop_tick(uv_timer_t *timer)
{
	struct server *s = timer->data;
	uint64_t now = clock_ns();

	(void)server_core_ns(s); /* Notes that the loop runs. */
	s->clock.beat_cpu_ns = clock_thread_ns();
	if (!s->stop.conns_closed && now >= s->clock.beat_due) {
		s->clock.beat_due = now + s->clock.beat_ns;
		server_alive(s, now);
	}
	check_stopped(s);
}

static void tell_core(struct server *s, struct model *m)
{
	struct err e;

	CHECK(s->stop.on);
	err_set(&e, SHARD_CLOSED, "node %s stops: %s", members_name(s, s->self), s->stop.why);
	if (!m->defining)
		model_event(m, &(struct core_event){.type = CORE_EV_STOP, .why = e.text});
}

void server_stop(struct server *s, const char *why, void (*stopped)(void *arg), void *arg)
{
	size_t used;

	CHECK(!s->stop.on);
	s->stop.on = true;
	s->stop.done = stopped;
	s->stop.arg = arg;
	s->stop.by_ns = clock_ns() + s->conf->stop_timeout_ns;
	s->clock.beat_due = 0;
	snprintf(s->stop.why, sizeof(s->stop.why), "%s", why);
	used = (size_t)snprintf(s->stop.text, sizeof(s->stop.text), "stopping: %s", s->stop.why);
	list_each(it, &s->models) {
		const struct model *m = list_of(it, struct model, link);
		char phase[160];

		phase_words(m, phase, sizeof(phase));
		log_line(s->log, LOG_LEVEL_INFO, "event=stopping model=%s step=%lu phase=%s why=%s",
			 m->name, (unsigned long)m->step, phase, why);
		if (in_hand(m) != NOTHING && used < sizeof(s->stop.text))
			used += (size_t)snprintf(s->stop.text + used, sizeof(s->stop.text) - used,
						 "; %s: %s", m->name, phase);
	}
	if (list_empty(&s->models))
		log_line(s->log, LOG_LEVEL_INFO, "event=stopping why=%s", why);
	/* Trainers hear this reason before they hear that the attempt is over. */
	close_sessions(s, false);
	list_each(it, &s->models)
		tell_core(s, list_of(it, struct model, link));
	list_each(it, &s->makings)
		model_give_up(list_of(it, struct model, link));
	ckpt_stop(s);
	conn_listener_close(&s->tcp);
	conn_listener_close(&s->local);
	uv_timer_start(&s->clock.beat, stop_tick, 1, STOP_TICK_MS);
}

const char *server_stopping(const struct server *s)
{
	return s->stop.text[0] != 0 ? s->stop.text : NULL;
}
