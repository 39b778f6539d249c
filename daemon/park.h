/* SPDX-License-Identifier: Apache-2.0 */
/* park.h: memory of models that outlives the process: where it is (systemd's store of descriptors, or files on a tmpfs), who wrote it and
 * for which models, and whether a start may have it again. All or nothing: a start that takes it is the member that wrote it. */
#ifndef SHARD_PARK_H
#define SHARD_PARK_H

#include "cluster/static.h"
#include "config.h"

#include <stdbool.h>

#define PARK_MODELS_MAX 1024

enum park_mode { PARK_SYSTEMD, PARK_TMPFS };
enum park_region { PARK_META, PARK_STATE, PARK_SUMS, PARK_SLOTS, PARK_IMAGES, PARK_REGIONS };

struct park; /* opaque */

struct park_conf {
	const struct config *conf;
	struct log *log;
	const uint8_t *uuid; /* [STATIC_UUID_BYTES] of this node */
	uint64_t start;      /* which start of this node this is */
	uint64_t member;     /* what incarnation the start before was; 0: none */
};

/* Finds what the start before left. *out NULL: nothing outlives this process (warm_restart = off, or auto and there is no place).
 * Fails if a place that was asked for by name cannot be used; what is not whole is no failure: it is given back, and said. */
enum shard_status park_open(struct park **out, const struct park_conf *conf, struct err *e);
void park_close(struct park **p); /* unmaps, keeps */
/* warm_restart = tmpfs, of a node that does not run. */
void park_forget_all(const struct config *conf, const uint8_t *uuid);

bool park_warm(const struct park *p); /* NULL: false */
uint64_t park_incarnation(const struct park *p);
uint64_t park_warm_starts(const struct park *p); /* of this member, this one included */
enum park_mode park_mode(const struct park *p);
const char *park_place(const struct park *p); /* "systemd", or the folder */
uint64_t park_bytes(const struct park *p);    /* mapped now */

/* The models of the start before, or of this one. */
uint32_t park_models(const struct park *p, uint32_t *ids, uint32_t max);
bool park_has(const struct park *p, uint32_t model);
/* A region of a model that is there, or a new one, of a model that park_keep() has not listed. bytes 0, of one that is there: as it is. */
enum shard_status park_map(struct park *p, uint32_t model, enum park_region what, uint64_t bytes, enum shm_huge huge, struct shm *m,
			   struct err *e);
enum shard_status park_room(const struct park *p, uint64_t bytes, const char *model, struct err *e); /* for new regions */
enum shard_status park_keep(struct park *p, uint32_t model, const struct shm *regions,
			    struct err *e);       /* [PARK_REGIONS] from now on */
void park_forget(struct park *p, uint32_t model); /* it, and its regions if they are nowhere mapped */

void park_begun(struct park *p); /* the start came through: what is left of no model is given back */
/* nothing of it may be mapped: all goes, this start is a new member */
enum shard_status park_cold(struct park *p, const char *why, struct err *e);
void park_void(struct park *p, const char *why); /* something that counts is not in it: the next start is cold */
void park_unvoid(struct park *p);                /* it is gone */

#endif
