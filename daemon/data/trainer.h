/* SPDX-License-Identifier: Apache-2.0 */
/* trainer.h: a session that trains a model, or has asked to. It has an arena slot from JOIN on, and
 * a rank in each attempt whose world it is in. model/join.c makes and changes it. contrib.c and
 * apply.c read it. Loop thread only. */
#ifndef SHARD_TRAINER_H
#define SHARD_TRAINER_H

#include "data/send.h"

#include <stdbool.h>
#include <stdint.h>

struct device_arena;
struct device_image;
struct model;
struct server;
struct session;

struct trainer {
	struct session *session;
	struct model *model;  /* The model that it joined, or NULL. It is one at a time. */
	uint32_t left_model;  /* The number of the model that it was in last, or 0. */
	uint64_t id;          /* Its number in the core. Each join has another one. */
	uint32_t slot;        /* The slot of its arena. */
	int32_t rank;         /* Its rank in the attempt in hand. -1: it is not in that world. */
	uint32_t local_index; /* Its index among the local ranks of the attempt in hand. */
	/* TCP: the image was sent to it, and what is published is sent to it, too. */
	bool has_image;
	/* The one that it reads on its GPU, or NULL. Owner: data/device_images.c. */
	const struct device_image *device_image;
	struct device_arena *device_arena; /* The same for gradients: data/device_grads.c. */
	struct send_queue image;           /* TCP: chunks on their way to it. */

	struct model *join_model; /* A JOIN that waits for an arena, or NULL. */
	uint32_t join_tag;
	int32_t join_hint;
	uint32_t leave_tag; /* The tag of a LEAVE to be answered at the boundary. 0: none. */

	uint32_t reads_nr; /* How many of its READs, of any model, wait for a step. */

	/* The model of a SEAL to be answered when the image is whole, or NULL. */
	struct model *seal_model;
	uint32_t seal_tag;
	uint64_t seal_step;
	bool seal_restores; /* The request was a RESTORE. */
};

/* Returns NULL if no such trainer has joined. */
struct trainer *trainer_find(struct server *s, uint64_t id);

#endif
