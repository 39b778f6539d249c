/* SPDX-License-Identifier: Apache-2.0 */
/* relay.h: stands before one node of lib/inproc.h, between it and the nodes that dial it, and
 * passes on bytes. It makes what goes to these nodes stand still in the middle of a certain frame,
 * as a slow network would, or cuts one of them off. */
#ifndef SHARD_TESTS_RELAY_H
#define SHARD_TESTS_RELAY_H

#include "wire/frame.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { RELAY_MAX = 16 };

struct relay_way {
	int from, to;
	unsigned char *bytes; /* What was read and not written. */
	size_t nr, room;
	size_t left; /* So much of the frame in hand is still to pass. */
};

struct relay_pair {
	struct relay_way way[2]; /* To the node, and to the one that has dialled. */
	char name[8];            /* Who has dialled. Empty: it has not said yet. */
	bool stands, counts;
	uint32_t frames; /* .counts: so many frames pass before it stands again. */
};

/* The first frame with this op and part, of any chunk. */
struct relay_stall {
	uint16_t op;
	uint32_t part;
	size_t pass; /* So many bytes of it pass, its header included, if they have come. */
	/* Then, when it goes on: the rest of it and so many frames more, before it stands again. */
	uint32_t more;
};

struct relay {
	uint16_t port;
	int listen_fd, wake[2];
	pthread_t thread;
	pthread_mutex_t lock; /* Of all below. */
	pthread_cond_t changed;
	bool stops, stalls, stood;
	struct relay_stall stall;
	char cut[8]; /* Who is cut off. */
	struct relay_pair pair[RELAY_MAX];
	uint32_t pairs_nr;
};

/* The node listens at 127.0.0.1 and that port. host is what [nodes] says instead. */
void relay_start(struct relay *r, const char *host, uint16_t port);
/* What goes to whoever gets that frame stands still from there on, and the sender notices nothing.
 */
void relay_stall(struct relay *r, const struct relay_stall *s);
void relay_stood(struct relay *r);   /* Waits until it stands. */
void relay_release(struct relay *r); /* It goes on. May be called by a thread of a daemon. */
/* Ends the connections of the node with that name, now and when it dials again. NULL: it may dial
 * again. */
void relay_cut(struct relay *r, const char *name);
void relay_stop(struct relay *r);

#endif
