/* SPDX-License-Identifier: Apache-2.0 */
/* lead_impl.h: what lead.c, with who leads, and lead_saves.c, with what becomes durable, share.
 * Private to these two. */
#ifndef SHARD_MODEL_LEAD_IMPL_H
#define SHARD_MODEL_LEAD_IMPL_H

#include "cluster/source.h"
#include "model/lead.h"
#include "model/voters.h"
#include "node/state.h"

struct lead_save {        /* See server.save_file. */
	struct list link; /* In lead.waiting, or lead.proposed. */
	uint32_t model;
	void *file; /* A packed entry of the value. NULL: the model is forgotten. */
	bool nodes; /* .file is a packed value with a list of nodes, and nothing else. */
	size_t bytes;
	void (*done)(void *arg, const struct err *e); /* NULL: nobody waits for it. */
	void *arg;
};

struct lead {
	struct server *s;
	const struct member_source_ops *ops;
	struct member_source *source; /* NULL: it has not started, or is to end. */
	bool stopping, ended, failed;
	bool known; /* server.coordinator leads, as far as this node knows. */
	/* This node is the first of the list and has no value. It waits until it is sure that no
	 * other node has one. */
	bool may_found;
	uint64_t term;        /* In which this node leads. 0: it does not. */
	uint64_t leader_term; /* In which `leader` leads. 0: nobody does, as far as is known. */
	uint8_t leader[MEMBER_UUID_BYTES];
	uint64_t unknown_ns; /* Since when nobody is known to lead, or when that was last said. */
	uint64_t leads_ns;   /* Since when this node leads. */
	uint64_t seq;        /* Of the newest value that is known here. */
	Shard__Register *value;            /* While this node leads: that value. */
	Shard__Register *next;             /* What is proposed. NULL: nothing is. */
	uint64_t next_term;                /* In which it was. */
	uint8_t writer[MEMBER_UUID_BYTES]; /* Of it. */
	/* etcd has not answered it, and it is proposed again as it was, until etcd says how it
	 * ended. */
	bool again;
	bool asked;          /* The source has it, and will answer. */
	bool keeps;          /* As the cores were told last: CORE_EV_KEEP_VIEW. */
	bool changing;       /* Another voter is proposed. */
	uint64_t refused_ns; /* Since when the disk refuses what is proposed. 0: it does not. */
	struct voters voters;
	struct list waiting;                             /* Saves that no proposal has yet. */
	struct list proposed;                            /* Those of the proposal in hand. */
	uint8_t peer[CORE_NODES_MAX][MEMBER_UUID_BYTES]; /* Of the node that is linked, and own. */
	uint64_t linked;                                 /* A bit for each node that is. */
};

/* server.save_file. */
void lead_save_file(struct server *s, uint32_t model, const void *file, size_t bytes,
		    void (*done)(void *arg, const struct err *e), void *arg);
/* A save that nobody waits for. file NULL: the model is forgotten. NULL: no memory. */
struct lead_save *lead_save_new(uint32_t model, const void *file, size_t bytes);
bool lead_forgets(const struct list *l, uint32_t model); /* Does one of these forget the model? */
/* Changes l->next by all that waits. False: there is no memory for it. */
bool lead_put_waiting(struct lead *l);

#endif
