/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's side of `shardctl verify`: all copies of each chunk are compared as of one
 * step. Happy path: the core holds, so that nothing after one step is decided. Every member makes
 * the digests of the copies that it holds, with its workers, while trainers compute. Then the core
 * goes on, and the requester hears how many copies are equal and which differ. It is an operation
 * like a save, and a model has one of them at a time. Nothing is repaired and nothing stops. A
 * member without a link, a lost link, LOST, a view that changes, or no progress ends it with a
 * sentence, and so does the end of the requester. Then the core goes on at once, too. */
#include "ckpt/verify.h"

#include "base/check.h"
#include "base/clock.h"
#include "ckpt/auto.h"
#include "ckpt/op.h"
#include "control/access.h"
#include "control/unmade.h"
#include "core/core.h"
#include "link/call.h"
#include "link/peer.h"
#include "link/session.h"
#include "model/lead.h"
#include "model/lost.h"
#include "wire/ops.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIFFERS_MAX 64 /* Chunks that an answer names. */

struct ckpt_verify {
	struct placement place; /* As the nodes were asked. Its tables are those of the model. */
	uint64_t term;
	uint32_t seq;
	uint64_t *digest[CORE_NODES_MAX]; /* [chunks that the node holds] NULL: it is owed. */
	uint32_t at[CORE_NODES_MAX];      /* While the chunks are walked: the next digest. */
	uint64_t chunks, copies, alone, differ, bytes;
	json_t *differs; /* An array, of the first chunks that differ. */
};

static void verify_free(struct ckpt_op *op)
{
	struct ckpt_verify *v = op->verify;

	if (v == NULL)
		return;
	for (uint16_t n = 0; n < CORE_NODES_MAX; n++)
		free(v->digest[n]);
	json_decref(v->differs);
	free(v);
	op->verify = NULL;
}

static uint32_t held_nr(const struct placement *p, uint16_t node)
{
	uint32_t nr = 0;

	for (uint32_t c = 0; c < p->chunks_nr; c++)
		nr += place_holds(p, c, node);
	return nr;
}

static enum shard_status verify_take(struct ckpt_op *op, uint16_t node, uint64_t term, uint32_t seq,
				     const uint64_t *digest, uint64_t nr, struct err *e)
{
	struct ckpt_verify *v = op->verify;

	CHECK(op->kind == CKPT_VERIFY && v && v->digest[node] == NULL);
	if (term != v->term || seq != v->seq)
		return err_set(e, SHARD_BUSY, "the members have changed meanwhile: try again");
	if (nr != held_nr(&v->place, node))
		return err_set(e, SHARD_PROTOCOL, "it has digests of %lu chunks, and holds %u",
			       (unsigned long)nr, held_nr(&v->place, node));
	v->digest[node] = malloc((nr + 1) * sizeof(*digest));
	if (v->digest[node] == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the digests of %lu chunks",
			       (unsigned long)nr);
	if (nr > 0)
		memcpy(v->digest[node], digest, nr * sizeof(*digest));
	return SHARD_OK;
}

/* --- comparing --- */

/* Returns the digest that most copies have, and in *nr how many. */
static uint64_t most(const struct ckpt_verify *v, uint64_t copies, uint32_t *nr)
{
	uint64_t best = 0;

	*nr = 0;
	for (uint64_t a = copies; a != 0; a &= a - 1) {
		uint16_t n = (uint16_t)__builtin_ctzll(a);
		uint64_t sum = v->digest[n][v->at[n]];
		uint32_t same = 0;

		for (uint64_t b = copies; b != 0; b &= b - 1) {
			uint16_t k = (uint16_t)__builtin_ctzll(b);

			same += v->digest[k][v->at[k]] == sum;
		}
		if (same <= *nr)
			continue;
		*nr = same;
		best = sum;
	}
	return best;
}

/* Logs and keeps the copies of a chunk. */
static void note(const struct ckpt_op *op, uint32_t chunk, uint64_t copies, uint64_t best,
		 bool majority)
{
	struct ckpt_verify *v = op->verify;
	json_t *list = json_array();

	for (; copies != 0; copies &= copies - 1) {
		uint16_t n = (uint16_t)__builtin_ctzll(copies);
		const char *node = members_name(op->server, n);
		uint64_t sum = v->digest[n][v->at[n]];
		bool odd = majority && sum != best;
		char digest[17];

		snprintf(digest, sizeof(digest), "%016lx", (unsigned long)sum);
		log_line(op->server->log, LOG_LEVEL_ERROR,
			 "event=copy_differs model=%s chunk=%u step=%lu node=%s digest=%s odd=%s",
			 op->name, chunk, (unsigned long)op->step, node, digest,
			 !majority ? "unknown"
			 : odd     ? "yes"
				   : "no");
		json_array_append_new(list, json_pack("{s:s, s:s, s:b}", "node", node, "digest",
						      digest, "odd", odd));
	}
	json_array_append_new(v->differs, json_pack("{s:I, s:b, s:o}", "chunk", (json_int_t)chunk,
						    "majority", majority, "copies", list));
}

static void compare(struct ckpt_op *op)
{
	struct ckpt_verify *v = op->verify;
	uint64_t elem_bytes = sizeof(float) * (1 + op->m->set.optim->states_nr);

	for (uint32_t c = 0; c < v->place.chunks_nr; c++) {
		uint64_t copies = place_copies(&v->place, c), left = copies, best;
		uint32_t all = (uint32_t)__builtin_popcountll(copies), same;

		best = most(v, copies, &same);
		v->chunks++;
		v->bytes += all * elem_bytes * layout_chunk_elems(op->m->layout, c);
		v->copies += all > 1 ? all : 0;
		v->alone += all == 1;
		v->differ += same < all;
		if (same < all && json_array_size(v->differs) < DIFFERS_MAX)
			note(op, c, copies, best, 2 * same > all);
		for (; left != 0; left &= left - 1)
			v->at[__builtin_ctzll(left)]++;
	}
}

/* --- the end --- */

static void verify_end(struct ckpt_op *op)
{
	struct model *m = op->m;

	round_end(&op->shares, op->server); /* A node that stands still need not answer. */
	CHECK(op->failed && op->why.status != SHARD_OK);
	ckpt_op_hold(op, false);
	log_line(op->server->log, LOG_LEVEL_WARN,
		 "event=verify_failed model=%s seconds=%.1f why=%s", op->name,
		 (double)(clock_ns() - op->began_ns) / NS_PER_SEC, op->why.text);
	ckpt_op_refuse(op, &op->why);
	ckpt_op_free(op);
	if (m != NULL)
		ckpt_auto_late(m);
}

/* Of the nodes whose copies were compared, or of those whose copies do not count. */
static json_t *names(const struct ckpt_op *op, bool compared)
{
	const struct ckpt_verify *v = op->verify;
	json_t *list = json_array();

	for (uint16_t n = 0; n < op->server->nodes_nr; n++) {
		if (place_kept_nr(&v->place, n) > 0 && (v->at[n] > 0) == compared)
			json_array_append_new(list, json_string(members_name(op->server, n)));
	}
	return list;
}

static void answer(struct ckpt_op *op)
{
	const struct ckpt_verify *v = op->verify;
	struct wire_head h = {.op = OP_VERIFY,
			      .model = op->m->id,
			      .generation = op->m->generation,
			      .step = op->step};
	json_t *j =
		json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:o, s:o, s:O}", "name",
			  op->name, "step", (json_int_t)op->step, "chunks", (json_int_t)v->chunks,
			  "copies", (json_int_t)v->copies, "alone", (json_int_t)v->alone, "differ",
			  (json_int_t)v->differ, "bytes", (json_int_t)v->bytes, "hold_seconds",
			  (double)op->hold_ns / NS_PER_SEC, "nodes", names(op, true), "without",
			  names(op, false), "differs", v->differs);

	log_line(op->server->log, v->differ > 0 ? LOG_LEVEL_ERROR : LOG_LEVEL_INFO,
		 "event=verified model=%s step=%lu chunks=%lu copies=%lu differ=%lu bytes=%lu "
		 "held=%.3f",
		 op->name, (unsigned long)op->step, (unsigned long)v->chunks,
		 (unsigned long)v->copies, (unsigned long)v->differ, (unsigned long)v->bytes,
		 (double)op->hold_ns / NS_PER_SEC);
	if (op->asked)
		caller_answer_json(op->server, &op->requester, &h, j);
	else
		json_decref(j);
}

/* All nodes have answered, or given up. */
static void hashed(struct ckpt_op *op)
{
	struct model *m = op->m;

	ckpt_op_hold(op, false); /* At once: the weights may change again. */
	if (op->failed) {
		verify_end(op);
		return;
	}
	compare(op);
	answer(op);
	ckpt_op_free(op);
	ckpt_auto_late(m);
}

/* --- the steps of it --- */

static void verify_held(struct ckpt_op *op, const struct record *r)
{
	struct ckpt_verify *v = op->verify;
	struct core_state core;

	core_state(op->m->core, &core);
	op->phase = CKPT_HASHING;
	op->step = r->id.step;
	v->place = op->m->place;
	v->term = core.term;
	v->seq = core.seq;
	ckpt_op_ask(op, OP_VERIFY_PART, NULL, hashed);
}

static bool verify_wanted(const struct ckpt_op *op)
{
	return caller_waits(op->server, &op->requester);
}

static const struct ckpt_doing verifies = {.end = verify_end,
					   .held = verify_held,
					   .wanted = verify_wanted,
					   .abrupt = true,
					   .free = verify_free,
					   .digests_are = verify_take};

void verify_unwanted(struct peer *p, const struct wire_head *h)
{
	struct model *m = model_find(p->server, h->model);
	struct ckpt_op *op = m != NULL ? m->ckpt->op : NULL;
	struct err e;

	if (op == NULL || op->kind != CKPT_VERIFY || op->requester.node != p->node ||
	    op->requester.tag != h->attempt)
		return;
	err_set(&e, SHARD_INTERRUPTED, "who asked for it is gone");
	ckpt_op_fail(op, &e); /* The beat ends it. */
}

/* --- requests --- */

static enum shard_status may_verify(const struct model *m, struct err *e)
{
	if (ckpt_op_may(m, "compare", e) != SHARD_OK)
		return e->status;
	if (m->set.replicas < 2)
		return err_set(e, SHARD_BAD_STATE,
			       "\"%s\" has one copy of each chunk (replicas = 1), so there is "
			       "nothing to compare",
			       m->name);
	return SHARD_OK;
}

static enum shard_status verify_here(struct server *s, const struct caller *a,
				     const Shard__Attach *body, struct err *e)
{
	struct model *m = model_by_name(s, body->name);
	const struct peer *away;
	struct ckpt_op *op;
	enum shard_status st;

	if (unmade_check(s, body->name, e) != SHARD_OK)
		return e->status;
	if (m == NULL || m->defining)
		return err_set(
			e, SHARD_NOT_FOUND,
			"no model \"%s\" here: `shardctl model list` shows those that there are",
			body->name);
	if ((st = may_verify(m, e)) != SHARD_OK ||
	    (st = ckpt_op_new(&op, s, m, CKPT_VERIFY, &verifies, e)) != SHARD_OK)
		return st;
	op->phase = CKPT_HOLDING;
	op->verify = calloc(1, sizeof(*op->verify));
	if (op->verify != NULL)
		op->verify->differs = json_array();
	away = ckpt_away(op);
	if (op->verify == NULL || op->verify->differs == NULL)
		st = err_set(e, SHARD_SYSTEM, "no memory for a comparison");
	else if (away != NULL)
		st = err_set(e, SHARD_UNREACHABLE,
			     "the copies of \"%s\" cannot be compared: node %s %s%.200s", m->name,
			     members_name(s, away->node),
			     away->up ? "makes its memory anew" : "is down: ", away->why);
	if (st != SHARD_OK) {
		ckpt_op_free(op);
		return st;
	}
	op->asked = true;
	op->requester = *a;
	ckpt_op_hold(op, true);
	return SHARD_OK;
}

enum shard_status verify_request(struct session *t, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e)
{
	struct server *s = t->server;
	struct caller a = caller_session(t, h->attempt);
	Shard__Attach body = *(const Shard__Attach *)msg;
	Shard__Cred cred = SHARD__CRED__INIT;
	uint32_t groups[SESSION_GROUPS_MAX];

	access_cred(t, &cred, groups);
	body.cred = &cred;
	if (server_leads(s))
		return verify_here(s, &a, &body, e);
	if (lead_known(s, e) != SHARD_OK)
		return e->status;
	return call_pass(t, server_coordinator(s), h, &body.base, NULL, e);
}

enum shard_status verify_node(struct peer *p, const struct wire_head *h,
			      const ProtobufCMessage *msg, struct err *e)
{
	struct caller a = caller_node(p, h->attempt);

	if (!server_leads(p->server))
		return lead_refuse(p->server, e);
	return verify_here(p->server, &a, (const Shard__Attach *)msg, e);
}
