/* SPDX-License-Identifier: Apache-2.0 */
/* What every module of the daemon needs: the names of nodes, the scratch memory for control
 * messages, and the beat. The beat is a timer that calls server.on_beat, which server.c sets and
 * which calls every module. server.c starts it. A module can ask for a beat no later than a given
 * time with server_wake(), and without that it comes every beat_ns. The functions fail only if
 * memory is missing, with an error. This file knows neither links nor models. */
#include "node/state.h"

#include "base/check.h"
#include "base/clock.h"
#include "net/conn.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdlib.h>

const char *members_name(const struct server *s, uint16_t node)
{
	return s->node[node].name;
}

enum shard_status server_unpack(struct server *s, const struct wire_head *h,
				const ProtobufCMessageDescriptor *type, const void *body,
				const ProtobufCMessage **msg, void **memory, struct err *e)
{
	bool large =
		h->op == OP_HELLO || h->op == OP_AUTH || h->op == OP_DEFINE || h->op == OP_MODEL;
	struct arena own, *a = large ? &own : &s->scratch.rx;

	*msg = NULL;
	*memory = NULL;
	if (type == NULL)
		return SHARD_OK;
	if (large) {
		*memory = malloc(CONTROL_ARENA_BYTES(h->body_bytes));
		if (*memory == NULL)
			return err_set(e, SHARD_SYSTEM, "no memory for a %s of %u bytes",
				       wire_op(h->op)->name, h->body_bytes);
		arena_init(&own, *memory, CONTROL_ARENA_BYTES(h->body_bytes));
	}
	return control_unpack(msg, type, body, h->body_bytes, a, e);
}

void server_forget_conn(struct server *s, struct conn *c)
{
	const struct stream_stats *st = conn_stats(c);

	s->past.refused_frames += st->refused;
	s->past.copied_bytes += st->copied_bytes;
	s->past.in_bytes += st->bytes_in;
	s->past.out_bytes += st->bytes_out;
}

enum shard_status server_scratch(struct server *s, size_t bytes, struct err *e)
{
	void *tx, *rx;

	if (bytes <= s->scratch.bytes)
		return SHARD_OK;
	CHECK(s->scratch.tx.used ==
	      0); /* rx may be in use: nothing of it is read after this call, because
	     the definition that is being handled has memory of its own. */
	tx = malloc(bytes);
	rx = malloc(bytes);
	if (tx == NULL || rx == NULL) {
		free(tx);
		free(rx);
		return err_set(e, SHARD_SYSTEM, "no memory for control messages of %zu bytes",
			       bytes);
	}
	free(s->scratch.tx.base);
	free(s->scratch.rx.base);
	arena_init(&s->scratch.tx, tx, bytes);
	arena_init(&s->scratch.rx, rx, bytes);
	s->scratch.bytes = bytes;
	return SHARD_OK;
}

/* --- the beat --- */

static void on_beat(uv_timer_t *timer)
{
	struct server *s = timer->data;
	uint64_t now = clock_ns();

	s->clock.beat_due = 0;
	s->on_beat(s, now);
	server_wake(s, now + s->clock.beat_ns);
}

void server_wake(struct server *s, uint64_t at_ns)
{
	uint64_t now = clock_ns();

	if (at_ns == 0) /* At once. 0 would mean that no beat is due. */
		at_ns = 1;
	if (s->stop.on || (s->clock.beat_due != 0 && s->clock.beat_due <= at_ns))
		return;
	s->clock.beat_due = at_ns;
	uv_timer_start(&s->clock.beat, on_beat, at_ns > now ? (at_ns - now) / NS_PER_MS + 1 : 1, 0);
}
