/* SPDX-License-Identifier: Apache-2.0 */
/* Senders take turns on a connection or a queue pair. peer.c, session.c and rdma.c own the lanes.
 * They open a lane with its connection and serve it after each write. A module that has frames to
 * send puts its sender on the list with lane_wait(). Happy path: the sender at the head of the list
 * sends one frame and goes to the tail, until the queue has reached its bound. Frames that leave
 * serve the lane again, and a sender without frames leaves the list. When a connection closes its
 * lane is closed too, and the owners of the waiting senders take them off. A connection that
 * refuses a frame for any reason but a full queue is closed. */
#include "link/lane.h"

#include "base/check.h"

#define LANE_QUEUED_MAX 8 /* Frames in the queue of a connection: 2 MiB of parts. */

void lane_init(struct lane *l, void (*fail)(void *owner, const struct err *why), void *owner)
{
	*l = (struct lane){.fail = fail, .owner = owner};
	list_init(&l->waiting);
}

void lane_open(struct lane *l, struct conn *c)
{
	CHECK(list_empty(&l->waiting) && !l->serving && c != NULL);
	l->conn = c;
	l->open = true;
}

void lane_open_rdma(struct lane *l, struct rdma_rail *queues, uint32_t qp)
{
	CHECK(list_empty(&l->waiting) && !l->serving && queues != NULL);
	l->queues = queues;
	l->qp = qp;
	l->open = true;
}

void lane_close(struct lane *l)
{
	l->open = false;
	l->conn = NULL;
	l->queues = NULL;
}

static bool lane_room(const struct lane *l)
{
	if (l->queues != NULL)
		return true; /* send() returns SHARD_AGAIN when the queue pair is full. */
	return stream_queued(conn_stream(l->conn)) < LANE_QUEUED_MAX;
}

/* True: lane_serve() will be called again, or there is no need for it. After a write, and after a
 * batch of completions, on_room() follows even if nothing is queued any more. A connection that
 * ends gives its frames back before its owner closes the lane. */
static bool lane_will_call(const struct lane *l)
{
	const struct stream *s;

	if (!l->open || l->serving)
		return true;
	if (l->queues != NULL)
		return rdma_rail_room_comes(l->queues, l->qp);
	s = conn_stream(l->conn);
	return stream_queued(s) > 0 || stream_writing(s) || stream_out_over(s);
}

void lane_check(const struct lane *l)
{
	CHECK(l->open == (l->conn != NULL || l->queues != NULL));
	CHECK(l->conn == NULL || l->queues == NULL);
	CHECK(list_empty(&l->waiting) || lane_will_call(l));
}

static void lane_kick(struct lane *l)
{
	if (l->conn != NULL)
		conn_kick(l->conn);
	else if (l->queues != NULL)
		rdma_rail_kick(l->queues, l->qp);
}

/* A frame was refused although there was room: there was no memory for it, or it is larger than its
 * op allows. */
static void lane_fail(struct lane *l, const struct lane_sender *s, enum shard_status st)
{
	char what[ERR_TEXT_BYTES];
	struct err e;

	lane_close(l);
	if (st == SHARD_CLOSED)
		return; /* The connection is closing already. */
	s->ops->describe(s, what, sizeof(what));
	err_set(&e, st, "%.400s: %s", what, status_name(st));
	l->fail(l->owner, &e);
}

/* Puts the sender at the tail of the lane of its next frame, and returns that lane. NULL: the
 * sender has no frame. */
static struct lane *enlist(struct lane_sender *s)
{
	struct lane *l = s->ops->where(s);

	CHECK(list_empty(&s->link));
	if (l != NULL)
		list_push(&l->waiting, &s->link);
	return l;
}

void lane_wait(struct lane_sender *s)
{
	struct lane *l = enlist(s);

	CHECK(l != NULL);
	lane_serve(l);
}

void lane_serve(struct lane *l)
{
	enum shard_status st = SHARD_OK;

	if (l->serving || !l->open || list_empty(&l->waiting))
		return; /* A lane_serve() that is already running goes on until nothing waits. */
	l->serving = true;
	while (st == SHARD_OK && l->open && !list_empty(&l->waiting) && lane_room(l)) {
		struct lane_sender *s = list_of(l->waiting.next, struct lane_sender, link);
		struct lane *next;

		st = s->ops->send(s, l);
		if (st == SHARD_OK) {
			list_remove(&s->link);
			next = enlist(s);
			if (next != NULL && next != l)
				lane_serve(next);
		} else if (st != SHARD_AGAIN) {
			lane_fail(l, s, st);
		}
	}
	l->serving = false;
	lane_kick(l);
	lane_check(l);
}
