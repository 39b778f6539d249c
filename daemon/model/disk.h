/* SPDX-License-Identifier: Apache-2.0 */
/* disk.h: the file of a model whose state is not all in memory (tier = nvme). It lies in [daemon]
 * nvme_dir, belongs to this node alone, and goes with the model's memory. */
#ifndef SHARD_MODEL_DISK_H
#define SHARD_MODEL_DISK_H

#include "config/settings.h"
#include "store/tier.h"

struct model;
struct ring;
struct server;

/* As long as the model's memory. The thread that makes or frees that uses it, and meanwhile the
 * loop does not. */
struct disk {
	const char *dir;
	char name[80];
	bool there; /* An earlier process made it. */
	bool keep;  /* A later process takes it over. */
	uint64_t fence_ns;
	struct ring *ring; /* NULL: there is no file. */
};

uint32_t disk_share(const struct model_settings *set); /* Of chunks on the disk, in percent. */
/* SHARD_UNSUPPORTED: this node has no nvme_dir, and needs one. */
enum shard_status disk_plan(struct disk *d, const struct model *m, bool there, struct err *e);
/* In a thread. SHARD_BUDGET: no room on the disk, with figures. The rest is as ring_file_open().
 * outlives: the memory outlives the process, so the file does, too. */
enum shard_status disk_open(struct disk *d, const struct store *st, bool outlives, struct err *e);
/* Fills m->tier, with main memory where no chunk is away. */
enum shard_status disk_tier(struct disk *d, struct model *m, const struct tier_conf *conf,
			    struct err *e);
/* In a thread, before the store is freed. Removes the file, unless .keep. Harmless twice. */
void disk_close(struct disk *d);
/* After a start has taken up its models: removes the files of this node that no model has. */
void disk_sweep(struct server *s);

#endif
