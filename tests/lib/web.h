/* SPDX-License-Identifier: Apache-2.0 */
/* web.h: daemons with HTTP, and a client of theirs. */
#ifndef SHARD_TESTS_LIB_WEB_H
#define SHARD_TESTS_LIB_WEB_H

#include "lib/proc.h"

#include <stdint.h>

struct web { /* Daemons with HTTP. */
	struct cluster *c;
	uint16_t port[CLUSTER_NODES_MAX];
};

/* Starts so many daemons, each with HTTP on a port of its own. */
void web_serve(struct web *s, int nodes);
/* Starts one of them, which has HTTP at that port of 127.0.0.1. *port 0: it gets a free one. */
void web_spawn(struct cluster *c, int node, uint16_t *port);
void web_spawn_all(struct cluster *c, uint16_t *port); /* All nodes, until they answer. */

/* --- one request at a time --- */

int web_dial(uint16_t port);
/* From that address of this machine. */
int web_dial_from(const char *source, uint16_t port);
void web_say(int fd, const char *text);
void web_ask(int fd, const char *method, const char *path);
char *web_hear(int fd); /* Reads until the other side closes. The caller frees the text. */

/* --- whole requests --- */

char *web_fetch(uint16_t port, const char *method, const char *path);
const char *web_body(const char *text);
void web_expect(uint16_t port, const char *method, const char *path, const char *const *parts);
#define WEB_EXPECT(port, method, path, ...)                                                        \
	web_expect(port, method, path, (const char *const[]){__VA_ARGS__, NULL})
/* Asks until the part is there, because snapshots may be a second old. */
void web_await(uint16_t port, const char *path, const char *part);

#endif
