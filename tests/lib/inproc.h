/* SPDX-License-Identifier: Apache-2.0 */
/* inproc.h: daemons as threads of the test's process, each with a loop, a state directory and a
 * socket of its own; so that a sanitizer sees daemon and client at once. Lines of the log are kept
 * in memory. */
#ifndef SHARD_TESTS_INPROC_H
#define SHARD_TESTS_INPROC_H

#include "config/config.h"
#include "server.h"

#include <jansson.h>
#include <pthread.h>

#define INPROC_NODES_MAX 3

struct inproc_conf {    /* lines of the configuration beside those of the harness; NULL: none */
	uint32_t nodes; /* 0: two */
	const char *daemon, *net, *cluster, *tail;
	uint16_t port[INPROC_NODES_MAX];             /* 0: any that is free */
	const char *host_in_nodes[INPROC_NODES_MAX]; /* what [nodes] says instead of 127.0.0.1: a
							proxy is there */
};

struct inproc_node {
	struct inproc *cluster;
	char name[8], socket[128], unix_address[140], tcp_address[64];
	char *text; /* its configuration */
	uint16_t port;
	struct config conf;
	struct log log;
	uv_loop_t loop;
	uv_async_t wake;
	struct server *server;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool running, decided, ok, stopping;
	struct err why; /* of a start that failed */
	char *lines;    /* of the log */
	size_t lines_bytes, lines_room;
};

struct inproc {
	char dir[64];
	uint32_t nodes;
	struct inproc_node node[INPROC_NODES_MAX];
};

void inproc_start(struct inproc *c,
		  const struct inproc_conf *conf); /* all nodes; NULL: two, nothing special */
void inproc_stop(struct inproc *c);                /* what runs, and its folder */
/* One at a time, for what happens at a start. prepare writes configurations only. */
void inproc_prepare(struct inproc *c, const struct inproc_conf *conf);
enum shard_status inproc_node_start(
	struct inproc_node *n); /* text is its configuration; failure: n->why */
void inproc_node_stop(struct inproc_node *n);

uint32_t inproc_logged(struct inproc_node *n, const char *part); /* lines with it so far */
void inproc_wait_log(struct inproc_node *n, const char *part,
		     uint32_t times); /* until there are so many; 10 s, then the test fails */
json_t *inproc_status(struct inproc_node *n); /* as a tool sees it; the caller's */
int64_t inproc_count(struct inproc_node *n,
		     const char *key); /* a number at the top of the status */

#endif
