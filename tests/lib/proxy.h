/* SPDX-License-Identifier: Apache-2.0 */
/* proxy.h: stands between two ends of a connection, knows where frames begin, and damages one frame
 * of each connection as its list of faults says. A fault is through when an end has closed the
 * connection after it. The next connection gets the next fault. */
#ifndef SHARD_TESTS_PROXY_H
#define SHARD_TESTS_PROXY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum proxy_kind {
	PROXY_HEAD_BIT, /* Flips .bit of the header. */
	/* Flips bit .bit, modulo the body's length, of the next frame that has a body. */
	PROXY_BODY_BIT,
	PROXY_VERSION,   /* Sets the next wire version, with correct sums. */
	PROXY_OVERSIZED, /* Announces 2 GiB, with correct sums. */
	PROXY_DROP,
	PROXY_TWICE,
	PROXY_SWAP, /* Swaps it with the frame behind it. */
	PROXY_CUT,  /* Sends half of it, then closes. */
	/* Loses every frame of op .bit from .frame on, as if it had never been sent. */
	/* Puts .put where .find stands in the body, with correct sums. */
	PROXY_LOSE,
	PROXY_FORGE,
	PROXY_KINDS
};

struct proxy_fault {
	enum proxy_kind kind;
	/* The frame comes from the end that was dialled, otherwise from the one that dials. */
	bool back;
	uint32_t frame; /* The first frame of that direction, from 0, that may be hit. */
	uint32_t bit;
	const char *find, *put; /* Of the same length. */
};

struct proxy {
	uint16_t port, target_port;
	const char *host; /* Where it listens. The target is at 127.0.0.1. */
	const struct proxy_fault *fault;
	uint32_t faults_nr;
	_Atomic uint32_t next; /* The number of faults that are through. */
	/* Connections that nobody closed within 8 s after the fault. It must stay 0. */
	_Atomic uint32_t stuck;
	_Atomic uint32_t done[PROXY_KINDS], done_back[PROXY_KINDS];
	_Atomic uint32_t ops[128]; /* How many frames of each op were damaged. */
	/* Damaged contributions that did not end the connection, as it should be. The proxy ends
	 * it. */
	_Atomic uint32_t spared;
	pthread_t thread;
	int listen_fd, stop[2];
};

void proxy_start(struct proxy *p, const char *host, uint16_t port, uint16_t target_port,
		 const struct proxy_fault *fault, uint32_t nr);
void proxy_wait(struct proxy *p, uint32_t seconds); /* Waits until every fault is through. */
void proxy_stop(struct proxy *p);
uint32_t proxy_ops(const struct proxy *p); /* How many kinds of frames were damaged. */

#endif
