/* SPDX-License-Identifier: Apache-2.0 */
/* etcd_steps.h: steps of the tests of the membership source `etcd`: an etcd cluster (etcds.h) and
 * nodes of the source beside it (members.h). Each step waits until it is done, or ends the test. */
#ifndef SHARD_TESTS_ETCD_STEPS_H
#define SHARD_TESTS_ETCD_STEPS_H

#include "lib/etcds.h"
#include "lib/members.h"

enum { STEP_NODES = 3, STEP_LEASE_MS = 1000 };

struct step_both {
	struct etcds etcd;
	struct members m;
};

/* Starts all, and waits until a node leads. Skips the test if there is no etcd. */
void step_make(struct step_both *b, int etcds_nr, int nodes_nr, uint64_t quota_bytes);
/* Waits until all nodes tell the newest value, stops all, and checks the history. */
void step_end(struct step_both *b);
void step_start(struct members *m, int n);
void step_wait_leader(struct members *m, const char *what);
/* Waits until all nodes know who leads, so that they can do something about it. Returns it. */
int step_leader(struct members *m);
/* Waits until ten more values were written by the clients (members.load). */
void step_progress(struct members *m);
/* A client's change, at what the node tells to be current, or at what is given. Return how it
 * ended. */
int step_write(struct members *m, int n, uint32_t bytes_nr);
int step_write_at(struct members *m, int n, uint64_t term, uint64_t seq, uint32_t bytes_nr);
int step_read(struct members *m, int n);
/* For members_wait(). */
bool step_is_ready(struct members *m, int n);
bool step_is_lost(struct members *m, int n);
bool step_was_lost(struct members *m, int n); /* It may lead again by now. */
bool step_another_leads(struct members *m, int n);
/* Prints how long something took until somebody else led. */
void step_say(const char *what, uint64_t *ns, size_t nr);

#endif
