/* SPDX-License-Identifier: Apache-2.0 */
/* loopnet.h: connections on a loop in one process: one end dials, a listener on a unix socket
 * accepts the others, and each end writes down what it was told. */
#ifndef SHARD_TESTS_LOOPNET_H
#define SHARD_TESTS_LOOPNET_H

#include "base/clock.h"
#include "lib/frames.h"
#include "lib/pace.h"
#include "net/conn.h"

enum { LOOPNET_MAX = 64 };

struct loopend {
	struct conn *c;
	struct frames got; /* not the owner: forwards */
	int opened, closed, rooms, given_back;
	struct err why;
	struct stream_stats stats;
	bool close_on_open, close_on_frame, answer;
	int refills;
	void (*refill)(struct loopend *n, struct conn *c); /* at on_room(); may be NULL */
};

struct loopnet {
	uv_loop_t loop;
	struct conn_listener *l;
	struct conn_conf conf;
	struct loopend dialled, accepted[LOOPNET_MAX];
	int accepted_nr;
	int *fail_alloc_in; /* of a test whose allocations fail: not those of the accepted end */
	char dir[32], path[80];
};

int loopnet_up(void **state);   /* *state: struct loopnet, listening at its path */
int loopnet_down(void **state); /* everything must be closed, or closing */
void loopnet_accepted(void *owner,
		      int fd); /* owner: struct loopnet; for listeners of a test's own */
void loopnet_dial(struct loopnet *t, const char *where);      /* t->dialled */
void loopnet_connected(struct loopnet *t, const char *where); /* and both ends are open */
void loopnet_ping(struct conn *c);
int loopnet_raw(const struct loopnet *t); /* a plain socket */

#define RUN_UNTIL(t, x)                                                                            \
	do {                                                                                       \
		uint64_t limit_ns = pace_by(10);                                                   \
		while (!(x)) {                                                                     \
			assert_true(clock_ns() < limit_ns);                                        \
			if (uv_run(&(t)->loop, UV_RUN_NOWAIT) &&                                   \
			    !(x)) /* a timer alone may have done it */                             \
				uv_run(&(t)->loop, UV_RUN_ONCE);                                   \
		}                                                                                  \
	} while (0)

#endif
