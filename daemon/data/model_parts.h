/* SPDX-License-Identifier: Apache-2.0 */
/* model_parts.h: small pieces of struct model. */
#ifndef SHARD_MODEL_PARTS_H
#define SHARD_MODEL_PARTS_H

#include "base/list.h"
#include "cluster/static.h"
#include "core/core.h"

struct model_settle {  /* A warm start: workers make the images again while the loop answers. */
	bool on;       /* An image here is not made yet: no vote may leave, no step be applied. */
	bool apply;    /* First they finish the step that was being applied: tiles lack it. */
	uint32_t next; /* The first chunk that no worker has been given. */
	uint32_t in_hand; /* Jobs at the workers, also of a generation that was lost meanwhile. */
	uint64_t asked; /* Nodes that asked for image chunks: they get each one when it is made. */
};

struct model_memory {         /* of one model, as each node has it */
	uint64_t incarnation; /* drawn at random when it is made: no other memory has it */
	char *why;            /* what became of the one before; NULL: nothing that is known */
	uint64_t there[CORE_NODES_MAX];  /* incarnation on another node that answers; 0: no link, or
					    not heard yet */
	uint64_t asked;                  /* coordinator: nodes that owe the answer to MODEL */
	uint8_t from[STATIC_UUID_BYTES]; /* other nodes: the coordinator whose MODEL it is */
	struct model_settle settle;
};

struct model_flow { /* tensor bytes that came from other nodes for one step */
	uint64_t began_ns, ended_ns, bytes;
	uint64_t total; /* Bytes since the daemon started. */
};

struct writer_grant { /* Numbered by the coordinator; term 0: none. */
	uint64_t term;
	uint32_t seq;
};

struct writer { /* model/writer.c */
	/* The newest grant, and whose it is: on the coordinator of any node's session, elsewhere of
	 * a session of this node. session 0: it has ended. */
	struct writer_grant grant;
	uint64_t session;
	uint32_t pid;
	uint16_t node;
	/* The newest under which something was written here or counted. */
	struct writer_grant here;
	/* A number of this node for `here` since the last reset; and [chunks_nr] for that of what
	 * is in each chunk: where they differ, the chunk counts as unwritten and is cleared before
	 * the first write. */
	uint32_t now, *of;
};

#endif
