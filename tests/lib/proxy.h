/* SPDX-License-Identifier: Apache-2.0 */
/* proxy.h: stands between two ends of a connection, knows where frames begin, and damages one frame
 * of each connection as its list of faults says; a connection that an end closes after that has
 * done its part, and the next one gets the next fault. */
#ifndef SHARD_TESTS_PROXY_H
#define SHARD_TESTS_PROXY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum proxy_kind {
	PROXY_HEAD_BIT,  /* flips .bit of the header */
	PROXY_BODY_BIT,  /* flips bit .bit, modulo the body's length, of the next frame that has a
			    body */
	PROXY_VERSION,   /* the next wire version, correctly sealed */
	PROXY_OVERSIZED, /* 2 GiB announced, correctly sealed */
	PROXY_DROP,
	PROXY_TWICE,
	PROXY_SWAP,  /* with the frame behind it */
	PROXY_CUT,   /* half of it, then the end */
	PROXY_LOSE,  /* every frame of op .bit from .frame on, as if it had never been sent */
	PROXY_FORGE, /* puts .put where .find stands in the body, with sums that are right */
	PROXY_KINDS
};

struct proxy_fault {
	enum proxy_kind kind;
	bool back;      /* a frame of the end that was dialled; else of the one that dials */
	uint32_t frame; /* the first of that direction, from 0, that may be it */
	uint32_t bit;
	const char *find, *put; /* of one length */
};

struct proxy {
	uint16_t port, target_port;
	const char *host; /* where it listens; the target is 127.0.0.1 */
	const struct proxy_fault *fault;
	uint32_t faults_nr;
	_Atomic uint32_t next; /* faults that are through */
	_Atomic uint32_t
		stuck; /* connections that nobody closed within 8 s after the fault: must stay 0 */
	_Atomic uint32_t done[PROXY_KINDS], done_back[PROXY_KINDS];
	_Atomic uint32_t ops[128]; /* how many frames of each op were damaged */
	_Atomic uint32_t spared;   /* damaged contributions that did not end the connection, as it
				      should be: it is ended here */
	pthread_t thread;
	int listen_fd, stop[2];
};

void proxy_start(struct proxy *p, const char *host, uint16_t port, uint16_t target_port,
		 const struct proxy_fault *fault, uint32_t nr);
void proxy_wait(struct proxy *p, uint32_t seconds); /* until every fault is through */
void proxy_stop(struct proxy *p);
uint32_t proxy_ops(const struct proxy *p); /* how many kinds of frames were damaged */

#endif
