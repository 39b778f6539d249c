/* SPDX-License-Identifier: Apache-2.0 */
/* cluster.h: what a node keeps of its cluster in its state folder, once a node has joined it. It
 * says which nodes have joined since [nodes] was written, and what counts where nobody has set an
 * option that must be equal on all nodes. It is a source of the configuration
 * (config_args.cluster). */
#ifndef SHARD_CONFIG_CLUSTER_H
#define SHARD_CONFIG_CLUSTER_H

#include "config/config.h"

/* Can a list of the first nodes_nr nodes have become this one because nodes have joined? */
static inline bool config_joined(const struct config *c, uint32_t nodes_nr)
{
	return nodes_nr <= c->nodes_nr && (nodes_nr == c->nodes_nr || c->kept_nr >= c->nodes_nr);
}

/* As config_shared(), but only the options that somebody has set, and no nodes. */
void config_shared_set(const struct config *c,
		       void (*fn)(void *arg, const char *key, const char *value), void *arg);
/* The same for what a node that joins is offered: options that are set here, and may differ. */
void config_offered(const struct config *c,
		    void (*fn)(void *arg, const char *key, const char *value), void *arg);
/* Fills in the name and the address of a node. SHARD_BAD_ARG: they cannot be one, and e says why.
 */
enum shard_status config_node_parse(struct config_node *n, const char *name, const char *address,
				    struct err *e);
/* What a node has to keep of its cluster once a node has joined, in the syntax of the file, for
 * config_args.cluster: all that config_shared() and config_offered() would say, given one key at a
 * time, as it says it. Keys that are not known here are left out. SHARD_PROTOCOL: a key or a value
 * cannot be one. SHARD_MISMATCH: it is of nodes that speak otherwise. SHARD_RANGE: it is too long.
 */
#define CONFIG_CLUSTER_BYTES 24576
struct config_cluster {
	char text[CONFIG_CLUSTER_BYTES];
	size_t used;
	uint32_t nodes_nr;
	size_t nodes_at; /* Of the end of the line "[nodes]". 0: it is not there yet. */
};
enum shard_status config_cluster_put(struct config_cluster *to, const char *key, const char *value,
				     struct err *e);

#endif
