/* SPDX-License-Identifier: Apache-2.0 */
/* nodes_impl.h: the list of nodes, for nodes.c and intake.c alone. */
#ifndef SHARD_NODES_IMPL_H
#define SHARD_NODES_IMPL_H

#include "config/cluster.h"
#include "link/intake.h"
#include "link/nodes.h"

struct nodes {
	struct server *s;
	/* The list as it shall be. The first ones are those of server.node. */
	struct config_node want[CONFIG_NODES_MAX];
	uint16_t want_nr, written_nr;
	bool must;             /* The last of .want is being written, and counts only then. */
	intake_added_fn *done; /* NULL: nobody waits for that. */
	void *done_arg;
	uint64_t again_ns;         /* When to write again. */
	uint64_t told_ns;          /* When to tell again. */
	char why[ERR_TEXT_BYTES];  /* What the next one of .want waits for. */
	char ill[NODES_ILL_BYTES]; /* What is wrong with this node. */
	/* A thread writes, and uses only what follows. */
	uv_work_t work;
	bool writing;
	uint16_t writes_nr;
	struct static_dir *dir;
	struct config_cluster text;
	enum shard_status st;
	struct err e;
};

/* Says what is kept of the cluster: all that has to be equal on all nodes, with the list as it
 * shall be, and what is offered. */
void nodes_say(const struct server *s, void (*fn)(void *arg, const char *key, const char *value),
	       void *arg);

#endif
