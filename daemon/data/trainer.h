/* SPDX-License-Identifier: Apache-2.0 */
/* trainer.h: a session that trains a model, or has asked to. It has an arena slot from JOIN on, and
 * a rank in each attempt whose world it is in. model/join.c makes and changes it; contrib.c and
 * apply.c read it. Loop thread only. */
#ifndef SHARD_TRAINER_H
#define SHARD_TRAINER_H

#include "data/send.h"

#include <stdbool.h>
#include <stdint.h>

struct model;
struct server;
struct session;

struct trainer {
	struct session *session;
	struct model *model;  /* Joined, or NULL; one at a time. */
	uint64_t id;          /* What the core knows it by: another one for each join. */
	uint32_t slot;        /* Of its arena. */
	int32_t rank;         /* In the attempt in hand; -1: not in its world. */
	uint32_t local_index; /* Among the local ranks of the attempt in hand. */
	bool has_image;       /* TCP: it has been sent the image, and is sent what is published. */
	struct send_queue image; /* TCP: chunks on their way to it. */

	struct model *join_model; /* A JOIN that waits for an arena, or NULL. */
	uint32_t join_tag;
	int32_t join_hint;
	uint32_t leave_tag; /* Of a LEAVE to be answered at the boundary; 0: none. */

	uint32_t reads_nr; /* READs, of any model, that wait for a step. */

	struct model *seal_model; /* A SEAL to be answered when the image is whole, or NULL. */
	uint32_t seal_tag;
	uint64_t seal_step;
	bool seal_restores; /* It was a RESTORE. */
};

/* NULL: no such trainer has joined. */
struct trainer *trainer_find(struct server *s, uint64_t id);

#endif
