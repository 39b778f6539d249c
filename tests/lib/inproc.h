/* SPDX-License-Identifier: Apache-2.0 */
/* inproc.h: daemons as threads of the test's process, so that a sanitizer sees daemon and client at
 * the same time. Each daemon has a loop, a state directory and a socket of its own. The lines of
 * the log are kept in memory. */
#ifndef SHARD_TESTS_INPROC_H
#define SHARD_TESTS_INPROC_H

#include "config/config.h"
#include "server.h"

#include <jansson.h>
#include <pthread.h>

#define INPROC_NODES_MAX 3

/* Lines of the configuration beside those of the harness. NULL: none. */
struct inproc_conf {
	uint32_t nodes; /* 0: two. */
	const char *daemon, *net, *cluster, *tail;
	uint16_t port[INPROC_NODES_MAX]; /* 0: any free port. */
	/* What [nodes] says instead of 127.0.0.1, where a proxy is. NULL: 127.0.0.1. */
	const char *host_in_nodes[INPROC_NODES_MAX];
};

struct inproc_node {
	struct inproc *cluster;
	char name[8], socket[128], unix_address[140], tcp_address[64];
	char *text; /* Its configuration. */
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
	struct err why; /* Why the start failed. */
	char *lines;    /* Lines of the log. */
	size_t lines_bytes, lines_room;
};

struct inproc {
	char dir[64];
	uint32_t nodes;
	struct inproc_node node[INPROC_NODES_MAX];
};

/* Starts all nodes. conf NULL: two nodes with nothing special. */
void inproc_start(struct inproc *c, const struct inproc_conf *conf);
void inproc_stop(struct inproc *c); /* Stops what runs, and removes the folder. */
/* These start one node at a time, for tests of the start, and of nodes that join the others.
 * inproc_prepare() only writes the configurations. */
void inproc_prepare(struct inproc *c, const struct inproc_conf *conf);
enum shard_status inproc_node_start(
	struct inproc_node *n); /* n->text is its configuration. n->why has the error. */
void inproc_node_stop(struct inproc_node *n);

uint32_t inproc_logged(struct inproc_node *n, const char *part); /* The lines with `part` so far. */
/* Waits until there are so many such lines. The test fails after 10 s. */
void inproc_wait_log(struct inproc_node *n, const char *part, uint32_t times);
/* The status as a tool sees it. The caller frees it. */
json_t *inproc_status(struct inproc_node *n);
/* A number at the top of the status. */
int64_t inproc_count(struct inproc_node *n, const char *key);

#endif
