/* SPDX-License-Identifier: Apache-2.0 */
/* disk.h: the file of a model whose state is not all in memory (tier = nvme). It lies in [daemon]
 * nvme_dir, belongs to this node alone, and goes with the model's memory. */
#ifndef SHARD_MODEL_DISK_H
#define SHARD_MODEL_DISK_H

#include "config/config.h"
#include "config/settings.h"
#include "store/tier.h"
#include "warm/meta.h"

struct model;
struct ring;
struct server;

/* As long as the model's memory. The thread that makes or frees that uses it, and meanwhile the
 * loop does not. */
struct disk {
	const char *dir;
	char name[80];
	/* nvme_durable = step: a file in the state folder, for as long as this one is there. */
	char note[CONFIG_PATH_BYTES + 40];
	bool there; /* An earlier process made it. */
	bool keep;  /* A later process takes it over. */
	uint64_t fence_ns, id;
	struct ring *ring; /* NULL: there is no file. */
	/* nvme_durable = step. super: memory for the next superblock. found: the one that counts.
	 * recall: it is of a start before a loss of power, and the memory is new. */
	bool durable, recall;
	uint8_t *super;
	struct super_found found;
};

uint32_t disk_share(const struct model_settings *set); /* Of chunks on the disk, in percent. */
/* found: NULL, or what the memory is made of. anew: it is being defined, and not of an earlier
 * start. SHARD_UNSUPPORTED: this node has no nvme_dir, and needs one, or cannot have nvme_durable =
 * step. */
enum shard_status disk_plan(struct disk *d, const struct model *m, const struct meta_found *found,
			    bool anew, struct err *e);
struct disk_of {
	const char *name; /* Of the model. */
	uint32_t model;
	uint64_t id; /* Of the memory that went with the file. */
	bool sealed; /* There were weights, and only that file has them. */
	/* Later steps that it has are given up. UINT64_MAX: it has all that there is. */
	uint64_t most;
};
/* What the file of a model of this node has for a start after a loss of power. Blocks.
 * SHARD_MISMATCH: there are no such weights, or no superblock is whole. Every other failure says
 * nothing of the weights, so it ends the start, and e says what an operator can do.
 * SHARD_BAD_STATE: there were weights, and the file is not there. */
enum shard_status disk_recall(struct super_found *out, const struct server *s,
			      const struct disk_of *of, struct err *e);
/* Before a start of a node that does not coordinate, which has no definitions: is a file not there
 * that may have weights? SHARD_BAD_STATE: yes, and e says what an operator can do. Blocks. */
enum shard_status disk_missing(const struct server *s, struct err *e);
/* This node has lost its copy of that model: no start misses the file or takes weights from it, and
 * disk_sweep() judges it. Blocks. */
void disk_give_up(const struct server *s, uint32_t model);
/* May the file of that memory have weights? Blocks. */
bool disk_noted(const struct server *s, uint32_t model, uint64_t id);
/* For each file of this node that has the name of a model's memory. Ends with the first failure. */
typedef enum shard_status disk_each_fn(struct server *s, uint32_t model, uint64_t id,
				       struct err *e);
enum shard_status disk_each(struct server *s, disk_each_fn *fn, struct err *e);
/* In a thread. SHARD_BUDGET: no room on the disk, with figures. The rest is as ring_file_open().
 * outlives: the memory outlives the process, so the file does, too. */
enum shard_status disk_open(struct disk *d, struct store *st, bool outlives, struct err *e);
/* Fills m->tier, with main memory where no chunk is away. */
enum shard_status disk_tier(struct disk *d, struct model *m, const struct tier_conf *conf,
			    struct err *e);
/* In a thread, before the store is freed. Removes the file, unless .keep. Harmless twice. */
void disk_close(struct disk *d);
/* After a start has taken up its models: removes the files of this node that no model has. One that
 * may have weights (a superblock is whole, or nobody can tell) gets a name that is left alone. */
void disk_sweep(struct server *s);

#endif
