/* SPDX-License-Identifier: Apache-2.0 */
/* warm_place.h: named pieces of memory that outlive the process, in systemd's store of descriptors
 * or in files of a folder of this node's own on a tmpfs. Private to warm.c. Names are "node" and
 * those of regions; what anybody else put there is not seen, or swept. */
#ifndef SHARD_PARK_PLACE_H
#define SHARD_PARK_PLACE_H

#include "net/shm.h"
#include "warm/warm.h"

#define WARM_NAME_BYTES 40
#define WARM_PAGE_NAME  "node"

struct warm_found { /* systemd: what it passed */
	char name[WARM_NAME_BYTES];
	int fd;
};

struct warm_place {
	enum warm_mode mode;
	struct static_dir *state; /* keeps the folder's name */
	int dir;                  /* tmpfs; -1: none */
	char root[CONFIG_PATH_BYTES],
		path[CONFIG_PATH_BYTES + 64]; /* path empty: no folder is known */
	struct static_warm warm;              /* as the state folder knows it */
	char boot[STATIC_BOOT_BYTES];         /* this one */
	bool moved;         /* The folder is not below warm_dir, but where warm_dir was before. */
	bool busy;          /* A daemon that runs holds the folder: it may be looked at only. */
	struct err unknown; /* SHARD_OK: it could be told whether there is a folder */
	struct warm_found *found;
	uint32_t found_nr;
};

/* Both places, whatever the mode: what the store passed is taken (once per process), a folder that
 * is there is opened. */
void warm_place_open(struct warm_place *p, const struct config *conf, struct static_dir *state,
		     const char *boot);
/* moved, and nothing there is worth keeping: it goes, and the place is in `root` from now on. */
void warm_place_follow(struct warm_place *p, const char *root);
bool warm_place_systemd(const struct config *conf); /* does auto mean systemd here? */
/* Makes the mode's place ready for use: tmpfs: the folder, checked. The other place is emptied. */
enum shard_status warm_place_use(struct warm_place *p, enum warm_mode mode, struct err *e);
void warm_place_empty(struct warm_place *p); /* all of both, the folder too */
void warm_place_close(struct warm_place *p);

enum shard_status warm_place_make(struct warm_place *p, const char *name, size_t bytes,
				  enum shm_huge huge, struct shm *m, struct err *e);
/* bytes 0: as many as there are. SHARD_NOT_FOUND, SHARD_MISMATCH. */
enum shard_status warm_place_take(struct warm_place *p, const char *name, uint64_t bytes,
				  enum shm_huge huge, struct shm *m, struct err *e);
void warm_place_remove(struct warm_place *p, const char *name); /* none: nothing */
void warm_place_sweep(struct warm_place *p, bool (*keep)(void *arg, const char *name), void *arg);
uint64_t warm_place_taken(const struct warm_place *p, const char *name); /* bytes; 0: none there */
uint64_t warm_place_free(const struct warm_place *p); /* bytes; UINT64_MAX: no limit of its own */

#endif
