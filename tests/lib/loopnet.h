/* SPDX-License-Identifier: Apache-2.0 */
/* loopnet.h: connections on a loop in one process. One end dials, a listener on a unix socket
 * accepts the others, and each end notes what it was told. */
#ifndef SHARD_TESTS_LOOPNET_H
#define SHARD_TESTS_LOOPNET_H

#include "base/clock.h"
#include "lib/frames.h"
#include "lib/pace.h"
#include "net/conn.h"

enum { LOOPNET_MAX = 64 };

struct loopend {
	struct conn *c;
	struct frames got; /* What frames_handler got, to which this end forwards. */
	int opened, closed, rooms, given_back;
	struct err why;
	struct stream_stats stats;
	bool close_on_open, close_on_frame, answer;
	int refills;
	void (*refill)(struct loopend *n, struct conn *c); /* Called by on_room(). May be NULL. */
};

struct loopnet {
	uv_loop_t loop;
	struct conn_listener *l;
	struct conn_conf conf;
	struct loopend dialled, accepted[LOOPNET_MAX];
	int accepted_nr;
	/* Counts down to the allocation that a test makes fail. It spares the accepted end. */
	int *fail_alloc_in;
	char dir[32], path[80];
};

int loopnet_up(void **state);   /* *state is a struct loopnet that listens at its path. */
int loopnet_down(void **state); /* Everything must be closed or closing. */
/* owner is a struct loopnet. For a listener of the test itself. */
void loopnet_accepted(void *owner, int fd);
void loopnet_dial(struct loopnet *t, const char *where); /* Dials with t->dialled. */
/* Also waits until both ends are open. */
void loopnet_connected(struct loopnet *t, const char *where);
void loopnet_ping(struct conn *c);
int loopnet_raw(const struct loopnet *t); /* Returns a plain socket. */

/* Waits until the loop has something to do, for some milliseconds at most. UV_RUN_ONCE would not
 * do: it may run the timer that makes the condition true, and then wait for something else. */
void loopnet_wait(const struct loopnet *t);

#define RUN_UNTIL(t, x)                                                                            \
	do {                                                                                       \
		uint64_t limit_ns = pace_by(10);                                                   \
		while (!(x)) {                                                                     \
			assert_true(clock_ns() < limit_ns);                                        \
			if (uv_run(&(t)->loop, UV_RUN_NOWAIT) && !(x))                             \
				loopnet_wait(t);                                                   \
		}                                                                                  \
	} while (0)

#endif
