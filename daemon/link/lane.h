/* SPDX-License-Identifier: Apache-2.0 */
/* lane.h: a lane decides which sender may use one connection, or one RDMA queue pair, next. Senders
 * that have frames wait in a list. Whenever the lane's queue is below a bound they are served in
 * turn, one frame each. So no sender can block another one, and control frames do not wait behind a
 * whole model. The invariant: a lane with waiting senders either has queued frames, and each frame
 * that leaves serves the lane again, or it is closed. lane_check() checks it. Loop thread only. */
#ifndef SHARD_LANE_H
#define SHARD_LANE_H

#include "base/list.h"
#include "net/conn.h"
#include "net/rdma.h"

#include <stdbool.h>
#include <stdint.h>

struct lane;
struct lane_sender;

struct lane_sender_ops {
	/* Sends one frame if the sender's next frame leaves on this lane. Otherwise it sends
	 * nothing and returns SHARD_OK too. SHARD_AGAIN: the queue is full, and the sender keeps
	 * its turn. Any other status closes the connection with the text of describe(), because the
	 * sender would wait for ever. */
	enum shard_status (*send)(struct lane_sender *s, struct lane *l);
	/* The lane on which the sender's next frame leaves. NULL: the sender has no frame. */
	struct lane *(*where)(struct lane_sender *s);
	void (*describe)(const struct lane_sender *s, char *text, size_t bytes);
};

struct lane_sender {
	struct list link; /* In lane.waiting while the sender has frames. */
	const struct lane_sender_ops *ops;
};

struct lane {
	struct list waiting;      /* Senders, in the order of their turns. */
	struct conn *conn;        /* NULL: the lane is of a queue pair, or is not open. */
	struct rdma_rail *queues; /* NULL: the lane is of a connection, or is not open. */
	uint32_t qp;              /* Index of the queue pair. */
	bool serving;             /* lane_serve() is running. */
	bool open;                /* The lane takes frames. */
	void (*fail)(void *owner, const struct err *why); /* Closes its connection or link. */
	void *owner;
};

void lane_init(struct lane *l, void (*fail)(void *owner, const struct err *why), void *owner);
void lane_open(struct lane *l, struct conn *c);
void lane_open_rdma(struct lane *l, struct rdma_rail *queues, uint32_t qp);
/* The lane takes no more frames. Its senders stay on its list until their owners take them off. */
void lane_close(struct lane *l);
/* Sends as long as there is room. To be called after each write and each batch of completions. */
void lane_serve(struct lane *l);
/* Puts a sender that has frames, and is on no list, on the list of the lane of its next frame. */
void lane_wait(struct lane_sender *s);
void lane_check(const struct lane *l);

#endif
