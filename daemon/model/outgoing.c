/* SPDX-License-Identifier: Apache-2.0 */
/* Sends the messages of one core event to other nodes. model.c calls it for each run of messages in
 * the list of actions. Happy path: a message is packed once, as long as those that follow say the
 * same to other nodes (BEGIN, COMMIT, VIEW), it is copied into the queue of each link, and in the
 * end each link is written once. On a coordinator these writes are most of what a step costs
 * (tests/bench/README.md). A message that a link does not take is dropped, because the core repeats
 * it. */
#include "model/outgoing.h"

#include "base/check.h"
#include "data/blobs.h"
#include "data/model.h"
#include "data/slowest.h"
#include "link/peer.h"
#include "model/corewire.h"
#include "model/tables.h"

struct outgoing {
	struct model *m;
	const struct core_msg *packed; /* The message that .body says. NULL: none does. */
	struct wire_head head;
	Shard__Core body; /* In the scratch arena, as .bytes. */
	void *bytes;      /* NULL: the arena has no room, so .body is packed for each node. */
	size_t bytes_nr;
	uint64_t queued;             /* A bit for each node whose link has something to write. */
	uint16_t op[CORE_NODES_MAX]; /* [node] Of the first of that. */
	bool now;
};

static bool pack(struct outgoing *o, const struct core_msg *msg)
{
	struct arena *a = &o->m->server->scratch.tx;

	o->packed = NULL;
	arena_reset(a);
	if (corewire_pack(msg, o->m->tables.defined.sum, a, &o->head, &o->body) != SHARD_OK)
		return false;
	o->head.model = o->m->id;
	if (msg->op == CORE_VOTE || msg->op == CORE_COMMIT)
		slowest_say(&o->m->slowest, &msg->id, &o->body);
	o->bytes_nr = protobuf_c_message_get_packed_size(&o->body.base);
	o->bytes = arena_take(a, o->bytes_nr);
	if (o->bytes != NULL)
		protobuf_c_message_pack(&o->body.base, o->bytes);
	o->packed = msg;
	return true;
}

static void send_one(struct outgoing *o, const struct core_msg *msg)
{
	struct model *m = o->m;
	enum shard_status st;
	struct err e;

	/* Who asked for RANKS asks again. What blobs_tell() sends may use the arena, but RANKS are
	 * packed for each node anyway. */
	if (!tables_may_send(m, msg->to, msg->view) ||
	    (msg->op == CORE_RANKS && !blobs_tell(m, msg->to)))
		return;
	if ((o->packed == NULL || !corewire_same(o->packed, msg)) && !pack(o, msg)) {
		log_line(m->server->log, LOG_LEVEL_ERROR, "event=control_too_large model=%s op=%d",
			 m->name, msg->op);
		return;
	}
	st = o->bytes != NULL
		     ? peer_queue_bytes(m->server, msg->to, &o->head, o->bytes, o->bytes_nr, &e)
		     : peer_queue(m->server, msg->to, &o->head, &o->body.base, &e);
	if (st == SHARD_OK && !(o->queued >> msg->to & 1))
		o->op[msg->to] = o->head.op;
	if (st == SHARD_OK)
		o->queued |= 1ull << msg->to;
	else
		log_line(m->server->log, LOG_LEVEL_DEBUG,
			 "event=control_dropped model=%s op=%d why=%s", m->name, msg->op, e.text);
	/* At once, so that both nodes apply. */
	o->now = o->now || msg->op == CORE_COMMIT;
}

uint32_t outgoing_send(struct model *m, struct core_out *out, uint32_t first)
{
	struct outgoing o = {.m = m};
	uint32_t at = first;

	CHECK(first < out->nr && out->act[first].type == CORE_ACT_SEND);
	for (; at < out->nr && out->act[at].type == CORE_ACT_SEND; at++)
		send_one(&o, &out->act[at].msg);
	arena_reset(&m->server->scratch.tx);
	for (; o.queued; o.queued &= o.queued - 1) {
		uint16_t node = (uint16_t)__builtin_ctzll(o.queued);
		struct wire_head h = {.op = o.op[node]};

		peer_write(m->server, node, &h, o.now);
	}
	return at;
}
