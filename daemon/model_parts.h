/* SPDX-License-Identifier: Apache-2.0 */
/* model_parts.h: small pieces of struct model, and how chunks are cut for the wire. */
#ifndef SHARD_MODEL_PARTS_H
#define SHARD_MODEL_PARTS_H

#include "base/list.h"
#include "core/core.h"

struct model_asker { /* who waits for an answer: a session here, or a node that relays for one there */
	struct list link;
	uint16_t node;
	uint64_t session;
	uint32_t tag, pid;
};

struct model_flow { /* tensor bytes that came from other nodes for one step */
	uint64_t began_ns, ended_ns, bytes;
};

struct model_manage {        /* manage.c, on the coordinator */
	struct list waiting; /* who hears of CORE_ACT_TUNED */
	struct core_tune wanted;
	bool tuning; /* wanted does not hold yet */
};

struct model;
void model_flow_add(struct model_flow *f, uint32_t bytes); /* 0: its first header is here */

/* parts of a chunk on the wire */
uint32_t model_parts(const struct model *m, uint32_t chunk, uint32_t elem_bytes);
uint32_t model_part_bytes(const struct model *m, uint32_t chunk, uint32_t elem_bytes, uint32_t part);

#endif
