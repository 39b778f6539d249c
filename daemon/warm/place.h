/* SPDX-License-Identifier: Apache-2.0 */
/* place.h: named pieces of memory that outlive the process. They lie in systemd's file descriptor
 * store, or in files of a folder of this node on a tmpfs. Private to warm.c and place.c. The names
 * are "node" and those of regions. What anybody else put into the store is not seen; what anybody
 * else put into the folder is removed by a sweep. */
#ifndef SHARD_WARM_PLACE_H
#define SHARD_WARM_PLACE_H

#include "net/shm.h"
#include "warm/warm.h"

#define WARM_NAME_BYTES 40
#define WARM_PAGE_NAME  "node"

struct warm_found { /* A descriptor that systemd has passed. */
	char name[WARM_NAME_BYTES];
	int fd;
};

struct warm_place {
	enum warm_mode mode;
	struct static_dir *state; /* Keeps the folder's name. */
	int dir;                  /* The folder on the tmpfs; -1: not open. */
	/* path empty: no folder is known. */
	char root[CONFIG_PATH_BYTES], path[CONFIG_PATH_BYTES + 64];
	struct static_warm warm;      /* As the state folder knows it. */
	char boot[STATIC_BOOT_BYTES]; /* The current boot. */
	bool moved; /* The folder lies below an earlier warm_dir, not below the current one. */
	bool busy;  /* A running daemon has locked the folder. It may only be looked at. */
	struct err unknown; /* SHARD_OK: it is known whether there is a folder. Else why not. */
	struct warm_found *found;
	uint32_t found_nr;
};

/* Opens both places, whatever the mode is. Takes what the store passed, once per process, and opens
 * the folder if it is there. */
void warm_place_open(struct warm_place *p, const struct config *conf, struct static_dir *state,
		     const char *boot);
/* Only if `moved` is set and nothing there is worth keeping. Removes that folder; the place is
 * below `root` from now on. */
void warm_place_follow(struct warm_place *p, const char *root);
bool warm_place_systemd(const struct config *conf); /* Does `auto` mean systemd here? */
/* Makes the place of this mode ready for use; on a tmpfs that is the folder, made and checked.
 * Empties the other place. */
enum shard_status warm_place_use(struct warm_place *p, enum warm_mode mode, struct err *e);
void warm_place_empty(struct warm_place *p); /* Empties both places and removes the folder. */
void warm_place_close(struct warm_place *p);

enum shard_status warm_place_make(struct warm_place *p, const char *name, size_t bytes, size_t room,
				  enum shm_huge huge, struct shm *m, struct err *e);
/* bytes and room 0: of any size, without room (net/shm.h). SHARD_NOT_FOUND: there is none.
 * SHARD_MISMATCH: it cannot be used. */
enum shard_status warm_place_take(struct warm_place *p, const char *name, uint64_t bytes,
				  uint64_t room, enum shm_huge huge, struct shm *m, struct err *e);
/* Descriptors, with WARM_SYSTEMD only. Several may have one name. */
enum shard_status warm_place_keep_fd(struct warm_place *p, const char *name, int fd, struct err *e);
uint32_t warm_place_fds(const struct warm_place *p, const char *name, int *fd, uint32_t max);
void warm_place_remove(struct warm_place *p, const char *name); /* Does nothing if there is none. */
void warm_place_sweep(struct warm_place *p, bool (*keep)(void *arg, const char *name), void *arg);
/* In bytes; 0: there is none. */
uint64_t warm_place_taken(const struct warm_place *p, const char *name);
uint64_t warm_place_free(const struct warm_place *p); /* In bytes; UINT64_MAX: no limit is known. */

#endif
