/* SPDX-License-Identifier: Apache-2.0 */
/* nodes.h: the list of all nodes of the cluster, in server.node. It begins as the configuration has
 * it, and grows at its end when a node joins. The place of a node in it is its number, which is the
 * same on all nodes and for ever. Each node keeps the list in its state folder, and says it in
 * HELLO, so that a node that was away hears of those that joined. Loop thread only. */
#ifndef SHARD_NODES_H
#define SHARD_NODES_H

#include "node/state.h"
#include "shard.pb-c.h"

/* The caller has to call nodes_free() even if it fails. */
enum shard_status nodes_init(struct server *s, struct err *e);
void nodes_free(struct server *s);
/* What has to be equal on all nodes, as config_shared() says it, with the list as it is now.
 * offers: also what config_offered() says. */
void nodes_shared(const struct server *s, bool offers,
		  void (*fn)(void *arg, const char *key, const char *value), void *arg);
/* The number of the node with this name. nodes_nr: there is none. */
uint16_t nodes_find(const struct server *s, const char *name);
/* The same for a name that a user gave. SHARD_NOT_FOUND: there is none, and e says where the names
 * are. */
enum shard_status nodes_named(const struct server *s, const char *name, uint16_t *node,
			      struct err *e);
/* Fills *n in from a name and an address, which may come from anywhere. */
enum shard_status nodes_parse(struct config_node *n, const char *name, const char *address,
			      struct err *e);
/* What is wrong with a node that is up, as it says itself. "": nothing. */
#define NODES_ILL_BYTES 400
const char *nodes_ill(const struct server *s, uint16_t node);
/* How many nodes there are when all that is known of is taken in. Memory is made for so many. */
uint16_t nodes_planned(const struct server *s);
/* The node that is to be taken in next, and what it waits for. NULL: there is none. */
const struct config_node *nodes_next(const struct server *s, const char **why);
/* May that node be added? SHARD_NOT_FOUND, without a text: yes. SHARD_OK: it is in the list, also
 * if it is not taken in here yet. SHARD_BUSY: it is being added. */
enum shard_status nodes_may_add(const struct server *s, const struct config_node *node,
				struct err *e);
/* Does this list of nodes[i], as it came in HELLO or NODES, go together with the list here? If it
 * is longer, this node takes what it has more. SHARD_MISMATCH: it does not, and e names the node.
 */
enum shard_status nodes_heard(struct server *s, size_t nr, Shard__Setting *const *config,
			      const char *from, struct err *e);
uint16_t nodes_of(const Shard__Hello *hello); /* How many nodes it lists. */
/* Adds a node at the end of the list, which is durable elsewhere. */
void nodes_append(struct server *s, const struct config_node *n);
/* The list as it shall be, and *more (NULL: nobody) behind it, as messages have it. Returns how
 * many there are. */
struct nodes_text {
	Shard__Setting setting[CONFIG_NODES_MAX], *list[CONFIG_NODES_MAX];
	char key[CONFIG_NODES_MAX][16], value[CONFIG_NODES_MAX][256];
};
uint16_t nodes_fill(const struct server *s, const struct config_node *more, struct nodes_text *t);
#endif
