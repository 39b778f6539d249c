/* SPDX-License-Identifier: Apache-2.0 */
/* park_place.h: named pieces of memory that outlive the process, in systemd's store of descriptors or in files of a folder of this node's
 * own on a tmpfs. Private to park.c. Names are "node" and those of regions; what anybody else put there is not seen, or swept. */
#ifndef SHARD_PARK_PLACE_H
#define SHARD_PARK_PLACE_H

#include "net/shm.h"
#include "park.h"

#define PARK_NAME_BYTES 40

struct park_found { /* systemd: what it passed */
	char name[PARK_NAME_BYTES];
	int fd;
};

struct park_place {
	enum park_mode mode;
	int dir; /* tmpfs; -1: none */
	char path[CONFIG_PATH_BYTES + 64];
	struct park_found *found;
	uint32_t found_nr;
};

/* Both places, whatever the mode: what the store passed is taken (once per process), a folder that is there is opened. */
void park_place_open(struct park_place *p, const struct config *conf, const uint8_t *uuid);
bool park_place_systemd(const struct config *conf); /* does auto mean systemd here? */
/* Makes the mode's place ready for use: tmpfs: the folder, checked. The other place is emptied. */
enum shard_status park_place_use(struct park_place *p, enum park_mode mode, struct err *e);
void park_place_empty(struct park_place *p); /* all of both, the folder too */
void park_place_close(struct park_place *p);

enum shard_status park_place_make(struct park_place *p, const char *name, size_t bytes, enum shm_huge huge, struct shm *m,
				  struct err *e);
/* bytes 0: as many as there are. SHARD_NOT_FOUND, SHARD_MISMATCH. */
enum shard_status park_place_take(struct park_place *p, const char *name, uint64_t bytes, enum shm_huge huge, struct shm *m,
				  struct err *e);
void park_place_remove(struct park_place *p, const char *name); /* none: nothing */
void park_place_sweep(struct park_place *p, bool (*keep)(void *arg, const char *name), void *arg);
uint64_t park_place_free(const struct park_place *p); /* bytes; UINT64_MAX: no limit of its own */

#endif
