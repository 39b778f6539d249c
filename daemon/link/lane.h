/* SPDX-License-Identifier: Apache-2.0 */
/* lane.h: who may send next over one connection, or over one RDMA queue pair. Senders that hold
 * something wait in a list and are served in turn, one frame each, whenever the lane's queue is
 * below a bound. So no sender can keep another one waiting, and control frames do not wait behind a
 * whole model. The rule: a lane on which somebody waits has frames queued, whose leaving serves it
 * again, or is closed. lane_check() states it. Loop thread only. */
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
	/* Sends one frame, if its next one leaves on this lane; SHARD_OK otherwise too.
	 * SHARD_AGAIN: the queue is full, it keeps its turn. Any other status closes the
	 * connection, with describe()'s text, because what waits would wait for ever. */
	enum shard_status (*send)(struct lane_sender *s, struct lane *l);
	/* The lane on which its next frame leaves. NULL: it holds nothing. */
	struct lane *(*where)(struct lane_sender *s);
	void (*describe)(const struct lane_sender *s, char *text, size_t bytes);
};

struct lane_sender {
	struct list link; /* In lane.waiting while it holds something. */
	const struct lane_sender_ops *ops;
};

struct lane {
	struct list waiting;      /* Senders, in the order of their turns. */
	struct conn *conn;        /* NULL: it is a queue pair's, or not open. */
	struct rdma_rail *queues; /* NULL: it is a connection's, or not open. */
	uint32_t qp;              /* Which of the queue pairs. */
	bool serving;             /* lane_serve() is at work. */
	bool open;                /* It takes frames. */
	void (*fail)(void *owner, const struct err *why); /* Closes what it goes over. */
	void *owner;
};

void lane_init(struct lane *l, void (*fail)(void *owner, const struct err *why), void *owner);
void lane_open(struct lane *l, struct conn *c);
void lane_open_rdma(struct lane *l, struct rdma_rail *queues, uint32_t qp);
/* It takes nothing more. Its senders are still on its list: whoever owns them takes them off. */
void lane_close(struct lane *l);
/* There may be room: to be called after each write and each batch of completions. */
void lane_serve(struct lane *l);
/* The sender holds something and waits nowhere: it waits on the lane of its next frame now. */
void lane_wait(struct lane_sender *s);
void lane_check(const struct lane *l);

#endif
