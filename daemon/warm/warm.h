/* SPDX-License-Identifier: Apache-2.0 */
/* warm.h: memory of models that outlives the process: where it is (systemd's store of descriptors,
 * or files on a tmpfs), who wrote it and for which models, and whether a start may have it again.
 * Each model counts for itself: one that cannot be taken is forgotten alone. */
#ifndef SHARD_PARK_H
#define SHARD_PARK_H

#include "cluster/static.h"
#include "config/config.h"

#include <stdbool.h>

#define WARM_MODELS_MAX 1024

enum warm_mode { WARM_SYSTEMD, WARM_TMPFS };
enum warm_region { WARM_META, WARM_STATE, WARM_SUMS, WARM_SLOTS, WARM_IMAGES, WARM_REGIONS };

struct warm; /* opaque */

struct warm_conf {
	const struct config *conf;
	struct log *log;
	struct static_dir *dir; /* of this node; open until warm_close() */
	const uint8_t *uuid;    /* [STATIC_UUID_BYTES] of this node */
	uint64_t start;         /* which start of this node this is */
	uint64_t member;        /* what incarnation the start before was; 0: none */
};

/* Finds what the start before left. *out NULL: nothing outlives this process (warm_restart = off,
 * or auto and there is no place). Fails if a place that was asked for by name cannot be used, and
 * with SHARD_BAD_STATE if models are there that are whole and of another `node` or [nodes], of
 * another state folder or a newer one than that which is open, or in a place that warm_restart does
 * not use now: they stay. SHARD_BUSY: a daemon that runs has the memory. What is not whole is no
 * failure: it is given back, and said. */
enum shard_status warm_open(struct warm **out, const struct warm_conf *conf, struct err *e);
void warm_close(struct warm **p); /* unmaps, keeps */
/* Has the service manager memory of models for this process, and not only the page that says which?
 * Before warm_open(), which takes it. */
bool warm_parked(void);
/* warm_restart = tmpfs, of a node that does not run. SHARD_BUSY, SHARD_BAD_STATE: it is not this
 * state folder's to forget. */
enum shard_status warm_forget_all(const struct config *conf, struct static_dir *dir, struct err *e);

bool warm_here(const struct warm *p); /* NULL: false */
uint64_t warm_incarnation(const struct warm *p);
uint64_t warm_counted(const struct warm *p); /* of this member, this one included */
enum warm_mode warm_mode(const struct warm *p);
const char *warm_place(const struct warm *p); /* "systemd", or the folder */
uint64_t warm_bytes(const struct warm *p);    /* mapped now */

/* The models of the start before, or of this one. */
uint32_t warm_models(const struct warm *p, uint32_t *ids, uint32_t max);
bool warm_has(const struct warm *p, uint32_t model);
/* Before anything of a model of the start before is looked at. SHARD_MISMATCH: it is not there, or
 * starts have died of it. */
enum shard_status warm_try(struct warm *p, uint32_t model, struct err *e);
void warm_taken(
	struct warm *p,
	uint32_t model); /* all of it was looked at and is right: what follows only computes */
/* A region of a model that is there. bytes 0: as large as it is. */
enum shard_status warm_map(struct warm *p, uint32_t model, enum warm_region what, uint64_t bytes,
			   enum shm_huge huge, struct shm *m, struct err *e);
/* A new region, of a model that warm_keep() has not listed, and of whose name warm_forget() has
 * left nothing. Any thread may call: it reads where the place is and no more. */
enum shard_status warm_make(struct warm *p, uint32_t model, enum warm_region what, uint64_t bytes,
			    enum shm_huge huge, struct shm *m, struct err *e);
/* Of what is free there, so much has gone to that model; a thread may be taking more meanwhile. */
uint64_t warm_taken_bytes(const struct warm *p, uint32_t model);
enum shard_status warm_room(const struct warm *p, uint64_t bytes, const char *model,
			    struct err *e); /* for new regions */
/* warm_make() failed with e for a model that takes so many bytes in all. Was the tmpfs full,
 * because others took the room after warm_room() had looked? Then e says so. Any thread may call.
 */
bool warm_full(const struct warm *p, uint32_t id, uint64_t bytes, const char *model, struct err *e);
/* The regions that warm_make() made of it, which warm_keep() has not listed. Any thread may call.
 */
void warm_unmake(struct warm *p, uint32_t model);
enum shard_status warm_keep(struct warm *p, uint32_t model, const struct shm *regions,
			    struct err *e); /* [WARM_REGIONS] from now on */
/* Its file goes before its memory, so that a start which finds the memory alone must know why. */
void warm_dropped(struct warm *p, uint32_t model, bool dropped);
bool warm_was_dropped(const struct warm *p, uint32_t model);
const char *warm_forget_how(const struct warm *p); /* what an operator does to give all back */
/* It, and the names of its regions. What is mapped of them is given back when it is unmapped. */
void warm_forget(struct warm *p, uint32_t model);

/* The start came through and counts: the memory is its own from now on, and what is left of no
 * model is given back. */
void warm_begun(struct warm *p);

#endif
