/* SPDX-License-Identifier: Apache-2.0 */
/* etcd_proxy.h: stands between a node and one member of etcd, and loses, delays or forges what they
 * say. A thread serves all connections. The mode may be changed at any time and also counts for
 * connections that are open. */
#ifndef SHARD_TESTS_ETCD_PROXY_H
#define SHARD_TESTS_ETCD_PROXY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum etcd_proxy_mode {
	ETCD_PROXY_PASS,
	ETCD_PROXY_SILENT,     /* Everything is lost. Connections stay open. */
	ETCD_PROXY_NO_ANSWERS, /* Requests arrive, and their answers are lost. */
	ETCD_PROXY_LATE,       /* Requests arrive only when the mode is PASS again. */
	ETCD_PROXY_FULL,       /* Writes arrive, and the answer to each is that there is no room. */
	ETCD_PROXY_LIES,       /* The proxy answers, with one lie after the other. */
};

struct etcd_proxy {
	uint16_t port, target;
	_Atomic int mode;
	_Atomic uint32_t lies_nr; /* That were told. */
	_Atomic uint32_t late_nr; /* Connections with requests that arrived late. */
	pthread_t thread;
	_Atomic int stop;
	int listen_fd;
};

uint32_t etcd_proxy_lies(void); /* How many different lies there are. */
void etcd_proxy_start(struct etcd_proxy *p, uint16_t target);
void etcd_proxy_stop(struct etcd_proxy *p);

#endif
