/* SPDX-License-Identifier: Apache-2.0 */
/* Sealing. dispatch.c brings SEAL, which the trainer's node passes to the coordinator. Happy path:
 * the coordinator counts the elements of its own chunks that are not written or not finite, and
 * asks every other node for the same (WRITTEN). When nothing is missing it gives the core
 * CORE_EV_WRITTEN. The trainer's node answers the SEAL when the image is whole there. Each node
 * counts in slices, one per turn of the loop, and a model has one seal at a time. A node that
 * falls, or a tensor that lacks weights, refuses the seal. The weights of a restore are counted in
 * the same way (ckpt/shares.c). What a restore left never counts for a trainer's seal, and is reset
 * first. A node that finds weights missing when the view seals the model reports that to the
 * coordinator until the model is LOST, because such weights must never be trained on. */
#include "control/seal.h"
#include "model/lead.h"
#include "model/spec.h"
#include "model/writer.h"
#include "control/control.h"

#include "data/apply.h"
#include "base/check.h"
#include "data/data.h"
#include "model/corewire.h"
#include "control/define.h"
#include "model/lost.h"
#include "link/peer.h"
#include "link/call.h"
#include "data/trainer.h"
#include "link/session.h"
#include "control/transfer.h"
#include "model/watch.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEAL_STEP_MAX (1ull << 62) /* Later steps need numbers above it. */
#define COUNT_ELEMS   (4u << 20) /* Elements counted in one turn of the loop: a few milliseconds. */

struct count { /* A count of the elements that are not written here. */
	enum {
		COUNT_SEAL /* For a trainer's seal, on the coordinator. */,
		COUNT_WRITTEN /* For another node. */,
		COUNT_RESTORE
	} why;
	struct model *m;
	struct tier_pin pin;     /* Of the chunk that is counted. */
	struct caller requester; /* The sender of the SEAL or the WRITTEN. */
	uint32_t generation, chunk,
		load; /* chunk: the next one. load: tag of the restore's load; 0: no restore. */
	/* Of chunks whose primary is this node, and of other copies. A restore does not tell them
	 * apart. */
	struct store_missing missing, copies;
	uint64_t balance;          /* As in WRITTEN. */
	seal_counted_fn *restored; /* For COUNT_RESTORE: called with the count. */
};

static void counted(struct count *c, const struct err *e);

static enum shard_status count_check(const struct count *c,
				     struct err *e) /* Is the count still wanted? */
{
	const struct model *m = c->m;
	const struct caller *a = m->control->sealer;

	if (m->dropping || m->generation != c->generation || m->server->stop.on)
		return err_set(e, SHARD_STALE, "node %s: generation %u of \"%s\" is over",
			       members_name(m->server, m->server->self), c->generation, m->name);
	if (c->why == COUNT_SEAL && (a == NULL || !caller_same(a, &c->requester)))
		return err_set(e, SHARD_STALE, "nobody seals \"%s\" any more", m->name);
	return c->load != 0 ? watch_may_count(m, c->requester.node, c->load, e) : SHARD_OK;
}

static void count_turn(void *args)
{
	(void)args; /* The job only gives the loop a turn. */
}

/* A restore reads the same file for every copy, and its bytes have been checked. */
static bool compares(const struct count *c)
{
	return (c->m->place.holders != NULL || c->m->place.to != NULL) && c->load == 0;
}

/* Nothing of the chunk is written, as the writer knows. The weights of a restore have none. */
static bool count_blind(const struct count *c, uint32_t chunk)
{
	return c->load == 0 && !c->m->sealed && writer_void(c->m, chunk);
}

static void count_chunk(struct count *c, uint32_t chunk)
{
	struct model *m = c->m;
	uint64_t others = place_followers(&m->place, chunk);
	bool copy = compares(c) && others >> m->server->self & 1;
	struct store_missing *to = copy ? &c->copies : &c->missing;

	if (count_blind(c, chunk)) {
		store_missing_all(m->store, chunk, to);
		return;
	}
	store_missing(m->store, chunk, to);
	if (copy)
		c->balance -= store_digest(m->store, chunk);
	else if (compares(c))
		c->balance +=
			store_digest(m->store, chunk) * (uint64_t)__builtin_popcountll(others);
}

static void count_pinned(struct tier_pin *p);

/* The state of the chunk is in memory, or count_pinned() goes on when it is. */
static bool count_pins(struct count *c, uint32_t chunk)
{
	if (c->pin.at == TIER_PINNED && c->pin.chunk == chunk)
		return true;
	tier_unpin(c->m->tier, &c->pin);
	c->pin.chunk = chunk;
	c->pin.done = count_pinned;
	return count_blind(c, chunk) || tier_pin(c->m->tier, &c->pin);
}

/* Counts one slice per turn of the loop, so that gigabytes of weights do not delay a heartbeat. It
 * runs on the loop because trainers may still write. */
static void count_go(void *owner, void *args)
{
	struct exec_job next = {.run = count_turn, .done = count_go, .owner = owner};
	struct count *c = owner;
	struct model *m = c->m;
	struct exec turns = worker_exec(m->server->pool);
	uint64_t elems = 0;
	struct err e;
	enum shard_status st = count_check(c, &e);

	(void)args;
	for (; st == SHARD_OK && c->chunk < m->layout->chunks_nr; c->chunk++) {
		if (!place_keeps(&m->place, c->chunk, m->server->self))
			continue;
		if (elems > 0 && elems + layout_chunk_elems(m->layout, c->chunk) > COUNT_ELEMS &&
		    exec_submit(&turns, &next) == SHARD_OK)
			return;
		if (!count_pins(c, c->chunk)) {
			m->control->counts_wait++;
			return;
		}
		elems += layout_chunk_elems(m->layout, c->chunk) * (compares(c) ? 4 : 1);
		count_chunk(c, c->chunk);
	}
	tier_unpin(m->tier, &c->pin);
	counted(c, st != SHARD_OK ? &e : NULL);
	free(c);
	data_release(m);
}

static void count_pinned(struct tier_pin *p)
{
	struct count *c = list_of(p, struct count, pin);

	c->m->control->counts_wait--;
	count_go(c, NULL);
}

bool seal_waits(const struct model *m)
{
	return m->control->counts_wait > 0;
}

/* Starts a count. For a trainer's seal, weights that a restore left here must not count. */
static enum shard_status count_start(struct model *m, const struct count *as, struct err *e)
{
	struct count *c;

	if (as->load == 0 && !m->sealed)
		WATCH_TELL(m->server, forget, m);
	if (m->reset_due)
		return err_set(e, SHARD_BUSY, "node %s gives up what \"%s\" had there: try again",
			       members_name(m->server, m->server->self), m->name);
	if ((c = malloc(sizeof(*c))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	*c = *as;
	c->m = m;
	c->generation = m->generation;
	c->chunk = 0;
	store_missing_init(&c->missing);
	store_missing_init(&c->copies);
	m->attempt.busy++;
	count_go(c, NULL);
	return SHARD_OK;
}

static void seal_answer(struct session *t, struct model *m)
{
	Shard__Defined body = SHARD__DEFINED__INIT;

	t->trainer->seal_model = NULL;
	if (!t->trainer->seal_restores) {
		model_reply(t, OP_SEAL, t->trainer->seal_tag, m, NULL);
		return;
	}
	t->trainer->seal_restores = false;
	spec_say(m, &body);
	body.spec = m->spec->spec;
	model_reply(t, OP_RESTORE, t->trainer->seal_tag, m, &body.base);
}

/* Answers the sessions that sealed, once the image is whole here. */
static void seal_progress(struct model *m)
{
	if (!apply_image_whole(m))
		return;
	list_each(it, &m->server->conns.sessions) {
		struct session *t = list_of(it, struct session, link);

		if (t->trainer->seal_model == m && m->step >= t->trainer->seal_step)
			seal_answer(t, m);
	}
}

static void seal_accepted(struct session *t, uint32_t model, uint32_t tag, uint64_t step)
{
	struct model *m = model_find(t->server, model);

	if (m == NULL)
		return;
	t->trainer->seal_model = m;
	t->trainer->seal_tag = tag;
	t->trainer->seal_step = step;
	seal_progress(m);
}

static void done(struct model *m, const struct err *e)
{
	struct server *s = m->server;
	struct caller *a = m->control->sealer;
	struct wire_head h = {.op = OP_SEAL,
			      .model = m->id,
			      .generation = m->generation,
			      .step = m->control->seal_step};
	struct session *t = caller_here(s, a);

	m->control->sealer = NULL;
	round_end(&m->control->written, s);
	if (e != NULL)
		caller_refuse(s, a, e);
	else if (t != NULL)
		seal_accepted(t, m->id, a->tag, m->control->seal_step);
	else
		caller_answer(s, a, &h, NULL);
	free(a);
}

/* A write that failed at one node is the only way to get here, and sending it again mends it. */
static void refuse_copies(struct model *m)
{
	uint64_t nr = m->control->missing_copies;
	struct err e;

	if (nr > 0)
		err_set(&e, SHARD_MISSING,
			"\"%s\" cannot be sealed: every element is written at one node, and %lu "
			"lack "
			"in the copies of other nodes: write those again whose write was refused",
			m->name, (unsigned long)nr);
	else
		err_set(&e, SHARD_MISSING,
			"\"%s\" cannot be sealed: the copies of its weights on several nodes "
			"differ: "
			"write those again whose write was refused",
			m->name);
	done(m, &e);
}

/* All nodes have counted: seals the model, or refuses. */
static void decide(struct model *m)
{
	const struct store_missing *w = &m->control->missing;
	uint64_t nr = w->unwritten + w->nonfinite;
	uint32_t tensor = nr > 0 ? layout_tensor_at(m->layout, w->first) : UINT32_MAX;
	struct err e;

	if (nr == 0 && (m->control->missing_copies > 0 || m->control->balance != 0)) {
		refuse_copies(m);
		return;
	}
	if (nr == 0) {
		model_event(m, &(struct core_event){.type = CORE_EV_WRITTEN,
						    .step = m->control->seal_step,
						    .id.generation = m->generation});
		done(m, NULL);
		return;
	}
	err_set(&e, SHARD_MISSING,
		"\"%s\" cannot be sealed: %lu elements are not written and %lu are not finite, the "
		"first in tensor \"%s\" at %lu",
		m->name, (unsigned long)w->unwritten, (unsigned long)w->nonfinite,
		tensor != UINT32_MAX ? m->layout->tensor[tensor].name : "?",
		(unsigned long)(tensor != UINT32_MAX ? w->first - m->layout->tensor[tensor].offset
						     : w->first));
	done(m, &e);
}

static void seal_add(struct model *m, const struct store_missing *w, uint64_t copies,
		     uint64_t balance)
{
	m->control->missing_copies += copies;
	m->control->balance += balance;
	m->control->missing.unwritten += w->unwritten;
	m->control->missing.nonfinite += w->nonfinite;
	if (w->unwritten + w->nonfinite > 0 && w->first < m->control->missing.first)
		m->control->missing.first = w->first;
	if (m->control->written.out == 0)
		decide(m);
}

static void counted(struct count *c, const struct err *e)
{
	struct model *m = c->m;
	struct wire_head reply = {.op = OP_WRITTEN, .model = m->id, .generation = m->generation};
	Shard__Written body = SHARD__WRITTEN__INIT;

	if (c->why == COUNT_SEAL && e == NULL && round_took(&m->control->written, m->server->self))
		seal_add(m, &c->missing, c->copies.unwritten + c->copies.nonfinite, c->balance);
	if (c->why == COUNT_RESTORE)
		c->restored(m, c->load, &c->missing, e);
	if (c->why == COUNT_WRITTEN && e != NULL)
		caller_refuse(m->server, &c->requester, e);
	if (c->why != COUNT_WRITTEN || e != NULL)
		return;
	body.missing = c->missing.unwritten;
	body.nonfinite = c->missing.nonfinite;
	body.element = c->missing.first;
	body.copies = c->copies.unwritten + c->copies.nonfinite;
	body.balance = c->balance;
	caller_answer(m->server, &c->requester, &reply, &body.base);
}

static const struct round_ops written;

static enum shard_status seal_here(struct model *m, const struct caller *from,
				   const struct wire_head *by, uint64_t step, struct err *e)
{
	struct server *s = m->server;
	struct caller *a;
	enum shard_status st = SHARD_OK;

	if (step > SEAL_STEP_MAX)
		return err_set(e, SHARD_RANGE, "\"%s\" cannot be sealed at step %lu: at most %lu",
			       m->name, (unsigned long)step, (unsigned long)SEAL_STEP_MAX);
	if (watch_restoring(m))
		return err_set(e, SHARD_BUSY, "\"%s\" is being restored", m->name);
	if (lost_check(m, e) != SHARD_OK)
		return SHARD_LOST;
	if (m->sealed)
		return err_set(e, SHARD_BAD_STATE, "\"%s\" is sealed already, at step %lu", m->name,
			       (unsigned long)m->step);
	if (m->control->sealer != NULL)
		return err_set(e, SHARD_BUSY, "\"%s\" is being sealed", m->name);
	if ((st = writer_check(m, by, e)) != SHARD_OK)
		return st;
	if ((a = malloc(sizeof(*a))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	*a = *from;
	m->control->sealer = a;
	m->control->seal_step = step;
	store_missing_init(&m->control->missing);
	m->control->missing_copies = m->control->balance = 0;
	m->control->written.ops = &written;
	round_own(&m->control->written, s);
	for (uint16_t n = 0; n < s->nodes_nr && st == SHARD_OK; n++) {
		struct wire_head h = {.op = OP_WRITTEN,
				      .model = m->id,
				      .generation = m->generation,
				      .term = by->term,
				      .seq = by->seq};
		Shard__Written body = SHARD__WRITTEN__INIT;

		if (n == s->self || !place_is_member(&m->place, n))
			continue;
		if (s->peer[n]->up && m->memory.there[n] == 0)
			st = err_set(e, SHARD_UNREACHABLE,
				     "node %s has started again, and makes its memory of \"%s\" "
				     "anew",
				     members_name(s, n), m->name);
		else
			st = round_ask(&m->control->written, s, n, &h, &body.base, NULL, e);
	}
	if (st == SHARD_OK)
		st = count_start(m, &(struct count){.why = COUNT_SEAL, .requester = *a}, e);
	if (st != SHARD_OK)
		done(m, e);
	return SHARD_OK;
}

static void seal_passed_on(struct server *s, const struct call *c, const struct wire_head *h,
			   const void *body, const struct err *e)
{
	struct session *t = session_find(s, c->session);

	(void)body;
	if (t != NULL && e == NULL)
		seal_accepted(t, c->model, c->session_tag, h->step);
	else if (t != NULL)
		session_refuse(t, c->session_tag, e);
}

static const struct call_ops seal_passed = {.answered = seal_passed_on};

enum shard_status define_seal_request(struct session *t, const struct wire_head *h,
				      const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Seal *body = (const Shard__Seal *)msg;
	struct server *s = t->server;
	struct model *m = model_find(s, h->model);
	struct caller a = caller_session(t, h->attempt);
	struct wire_head by = *h;

	if (m == NULL || m->defining)
		return err_set(e, SHARD_NOT_FOUND, "no model %u here", h->model);
	(void)writer_stamp(m, t, &by); /* Without a grant the coordinator names the writer. */
	if (t->trainer->seal_model != NULL)
		return err_set(e, SHARD_BUSY, "this connection is sealing \"%s\"",
			       t->trainer->seal_model->name);
	if (server_leads(s))
		return seal_here(m, &a, &by, body->step, e);
	if (lead_known(s, e) != SHARD_OK)
		return e->status;
	return call_pass(t, server_coordinator(s), &by, msg, &seal_passed, e);
}

enum shard_status define_node_seal(struct peer *p, const struct wire_head *h,
				   const Shard__Seal *body, struct err *e)
{
	struct model *m = model_find(p->server, h->model);
	struct caller a = caller_node(p, h->attempt);

	if (m == NULL || m->defining || !server_leads(p->server))
		return err_set(e, SHARD_NOT_FOUND, "no model %u on the coordinator", h->model);
	return seal_here(m, &a, h, body->step, e);
}

/* The restore is accepted. The answer follows when the image is whole here. */
static void restore_accepted(struct session *t, uint32_t tag, const struct wire_head *h)
{
	bool seals = t->trainer->seal_model != NULL;
	struct err e;

	if (seals || model_find(t->server, h->model) == NULL) {
		err_set(&e, seals ? SHARD_BUSY : SHARD_NOT_FOUND,
			"the restored model is gone, or this connection seals another one");
		session_refuse(t, tag, &e);
		return;
	}
	t->trainer->seal_restores = true;
	seal_accepted(t, h->model, tag, h->step);
}

static void restore_passed_on(struct server *s, const struct call *c, const struct wire_head *h,
			      const void *body, const struct err *e)
{
	struct session *t = session_find(s, c->session);

	(void)body; /* seal_answer() makes the same body from this node's model. */
	if (t != NULL && e == NULL)
		restore_accepted(t, c->session_tag, h);
	else if (t != NULL)
		session_refuse(t, c->session_tag, e);
}

const struct call_ops restore_passed = {.answered = restore_passed_on};

enum shard_status seal_count_restored(struct model *m, uint32_t load, seal_counted_fn *restored,
				      struct err *e)
{
	return count_start(m,
			   &(struct count){.why = COUNT_RESTORE,
					   .requester.node = m->server->self,
					   .load = load,
					   .restored = restored},
			   e);
}

/* --- sealed without its weights --- */

static void give_up(struct model *m, uint16_t node, uint64_t missing)
{
	char why[128];

	snprintf(why, sizeof(why), "node %s found %lu weights missing when the model was sealed",
		 members_name(m->server, node), (unsigned long)missing);
	model_event(m, &(struct core_event){.type = CORE_EV_ROLLBACK, .on = true, .why = why});
}

static void void_tell(struct model *m)
{
	struct wire_head h = {.op = OP_WRITTEN, .model = m->id, .generation = m->generation};
	Shard__Written body = SHARD__WRITTEN__INIT;
	struct server *s = m->server;

	log_line(s->log, LOG_LEVEL_ERROR,
		 "event=sealed_without_weights model=%s generation=%u missing=%lu", m->name,
		 m->generation, (unsigned long)m->sealed_without);
	if (server_leads(s)) {
		give_up(m, s->self, m->sealed_without);
		return;
	}
	body.missing = m->sealed_without;
	(void)peer_send(s, server_coordinator(s), &h, &body.base, NULL); /* The beat repeats it. */
}

enum shard_status define_written(struct peer *p, const struct wire_head *h,
				 const Shard__Written *body, struct err *e)
{
	struct model *m = model_find(p->server, h->model);
	struct count as = {
		.why = COUNT_WRITTEN, .requester = caller_node(p, h->attempt), .load = body->load};

	if (m != NULL && server_leads(p->server)) {
		if (m->sealed && m->generation == h->generation && body->missing > 0)
			give_up(m, p->node, body->missing);
		return SHARD_OK;
	}
	if (m == NULL || m->generation != h->generation)
		return err_set(e, SHARD_STALE, "node %s has no generation %u of model %u",
			       members_name(p->server, p->server->self), h->generation, h->model);
	if (as.load == 0 && !m->sealed &&
	    writer_turn(m, (struct writer_grant){h->term, h->seq}, e) != SHARD_OK)
		return e->status;
	return count_start(m, &as, e);
}

static void seal_answered(struct round *r, struct server *s, const struct call *c,
			  const struct wire_head *h, const void *body, const struct err *e)
{
	struct model *m = model_find(s, c->model);
	const ProtobufCMessage *msg;
	const Shard__Written *w;
	struct store_missing missing;
	uint64_t copies, balance;
	struct err why;

	CHECK(m != NULL && m->control->sealer != NULL && r == &m->control->written);
	if (e != NULL) {
		done(m, e);
		return;
	}
	if (control_unpack(&msg, &shard__written__descriptor, body, h->body_bytes,
			   &m->server->scratch.tx, &why) != SHARD_OK) {
		arena_reset(&m->server->scratch.tx);
		done(m, &why);
		return;
	}
	w = (const Shard__Written *)msg;
	missing = (struct store_missing){
		.unwritten = w->missing, .nonfinite = w->nonfinite, .first = w->element};
	copies = w->copies;
	balance = w->balance;
	arena_reset(&m->server->scratch.tx);
	seal_add(m, &missing, copies, balance);
}

static const struct round_ops written = {.answered = seal_answered};

/* Refuses the sessions here that wait for the image of a seal. */
static void refuse_sealers(struct model *m, const struct err *e)
{
	list_each(it, &m->server->conns.sessions) {
		struct session *t = list_of(it, struct session, link);

		if (t->trainer->seal_model != m)
			continue;
		t->trainer->seal_model = NULL;
		t->trainer->seal_restores = false;
		session_refuse(t, t->trainer->seal_tag, e);
	}
}

void seal_writer_gone(struct model *m)
{
	struct err e;

	err_set(&e, SHARD_CLOSED, "who wrote the weights of \"%s\" has ended", m->name);
	if (m->control->sealer != NULL)
		done(m, &e);
}

void define_fail(struct model *m, const struct err *e)
{
	if (m->control->sealer != NULL)
		done(m, e);
	refuse_sealers(m, e);
	transfer_fail(m, e);
}

void seal_coordinator_gone(struct model *m, const struct err *e)
{
	if (!m->sealed)
		refuse_sealers(m, e);
}

static void seal_lost(struct model *m, bool back, const struct err *e)
{
	(void)back;
	define_fail(m, e);
}

static void seal_beat(struct model *m, uint64_t now_ns)
{
	(void)now_ns;
	if (m->sealed && m->sealed_without > 0)
		void_tell(m);
}

static void seal_resigned(struct model *m)
{
	struct err e;

	if (m->sealed)
		return;
	err_set(&e, SHARD_UNREACHABLE,
		"node %s does not coordinate any more: define \"%s\" again, and who gets created = "
		"1 writes all weights and seals",
		members_name(m->server, m->server->self), m->name);
	define_fail(m, &e);
}

const struct model_watch seal_watch = {
	.whole = seal_progress,
	.resigned = seal_resigned,
	.lost = seal_lost,
	.beat = seal_beat,
};
