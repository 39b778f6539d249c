/* SPDX-License-Identifier: Apache-2.0 */
/* recall.h: what a file of this node has of a model after a loss of power (nvme_durable = step).
 * resume.c makes the model of it. */
#ifndef SHARD_MODEL_RECALL_H
#define SHARD_MODEL_RECALL_H

#include "model/model.h"
#include "warm/meta.h"

struct disk_of;

/* On the coordinator, which has a file of the model's definition and view. Fills *found with new
 * memory and *super with the superblock that it points to. If the view is a step ahead of the file,
 * it gets the record of the file. most: the newest step that counts. SHARD_MISMATCH: no file of
 * this node has such weights. Any other failure ends the start. Blocks. */
enum shard_status recall(struct meta_found *found, struct super_found *super, struct server *s,
			 const Shard__Model *spec, struct core_view *view, uint64_t most,
			 struct err *e);
/* The same on another node, which knows nothing but that there is such a file. */
enum shard_status recall_file(struct meta_found *found, struct super_found *super, struct server *s,
			      const struct disk_of *of, struct err *e);
/* After recall() has succeeded: logs what became of it. m: the model that was made of it. NULL: e
 * says why there is none. */
void recall_made(struct super_found *super, const struct server *s, const char *name,
		 const struct model *m, const struct err *e);
/* disk_each_fn: on a node that does not coordinate. Makes the model of the file, if that counts and
 * no model of that number is here. What its memory was void for may say more of the file. */
enum shard_status recall_one(struct server *s, uint32_t model, uint64_t incarnation, struct err *e);

#endif
