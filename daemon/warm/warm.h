/* SPDX-License-Identifier: Apache-2.0 */
/* warm.h: memory of models that outlives the process. It knows where that memory is (systemd's file
 * descriptor store, or files on a tmpfs), which node wrote it and for which models, and whether a
 * start may take it up again. Each model is judged alone: if one cannot be taken up, the others
 * stay. */
#ifndef SHARD_WARM_H
#define SHARD_WARM_H

#include "cluster/static.h"
#include "config/config.h"

#include <stdbool.h>

#define WARM_MODELS_MAX 1024

enum warm_mode { WARM_SYSTEMD, WARM_TMPFS };
enum warm_region { WARM_META, WARM_STATE, WARM_SUMS, WARM_SLOTS, WARM_IMAGES, WARM_REGIONS };

struct warm; /* Opaque. */

struct warm_conf {
	const struct config *conf;
	struct log *log;
	struct static_dir *dir; /* The state folder of this node, open until warm_close(). */
	const uint8_t *uuid;    /* [STATIC_UUID_BYTES] of this node */
	uint64_t start;         /* Number of this start of the node. */
	uint64_t member;        /* Incarnation of the start before; 0: none. */
};

/* Finds what the start before left. *out NULL: nothing outlives this process, because warm_restart
 * is off, or because it is auto and there is no place or the daemon ends when unused ([daemon]
 * linger). Fails if a place that was asked for by name cannot be used. SHARD_BAD_STATE: whole
 * models are there that this start may not take, and they stay. They are of another `node` or
 * [nodes], of another state folder or a newer one than the open one, of another release, or in a
 * place that warm_restart does not use now. SHARD_BUSY: a running daemon has the memory. Memory
 * that is not whole is no failure: it is given back, and the log says so. */
enum shard_status warm_open(struct warm **out, const struct warm_conf *conf, struct err *e);
/* Unmaps the page. Memory of models stays. If there is no model, the place is emptied. */
void warm_close(struct warm **p);
/* Does the service manager keep memory of models for this process, and not only the page that lists
 * them? To be called before warm_open(), which takes that memory. */
bool warm_parked(void);
/* Gives back the memory that warm_restart = tmpfs keeps for a stopped node. SHARD_BUSY: a running
 * daemon has it. SHARD_BAD_STATE: it belongs to another state folder. */
enum shard_status warm_forget_all(const struct config *conf, struct static_dir *dir, struct err *e);

/* Memory that warm_restart = tmpfs keeps for a node, whichever it is: a folder of warm_dir. */
struct warm_kept {
	char path[CONFIG_PATH_BYTES + 64];
	const char *verdict; /* Of the table in kept.c: "orphan", and so on. */
	char why[CONFIG_PATH_BYTES + 200];
	char whose[400];               /* "node a of a b"; "": not known. */
	char state[STATIC_ROOT_BYTES]; /* The state folder of that node; "": not known. */
	uint64_t bytes, models, age_s; /* How long ago the newest piece of it was made. */
	uint32_t uid;
	bool seen; /* False: this process may not look into it, and only path and uid are known. */
};
/* Calls fn for each of them, in no order. Looks only. SHARD_SYSTEM: warm_dir cannot be read. */
enum shard_status warm_kept_list(const struct config *conf,
				 void (*fn)(void *arg, const struct warm_kept *k), void *arg,
				 struct err *e);
/* Gives back the memory in that folder of warm_dir, which must be an orphan. */
enum shard_status warm_kept_forget(const struct config *conf, const char *path, struct err *e);

bool warm_here(const struct warm *p); /* This start took up memory. NULL: false. */
uint64_t warm_incarnation(const struct warm *p);
uint64_t warm_counted(const struct warm *p); /* Warm starts of this incarnation, with this one. */
enum warm_mode warm_mode(const struct warm *p);
const char *warm_place(const struct warm *p); /* "systemd" or the folder's path */
uint64_t warm_bytes(const struct warm *p);    /* Of the page and all listed regions. */

/* Models that the start before left, or that this one has kept. Returns how many there are. */
uint32_t warm_models(const struct warm *p, uint32_t *ids, uint32_t max);
bool warm_has(const struct warm *p, uint32_t model);
/* To be called before anything of a model of the start before is read. SHARD_MISMATCH: it is not
 * there, its row is damaged, or too many starts died while they took it. */
enum shard_status warm_try(struct warm *p, uint32_t model, struct err *e);
void warm_taken(
	struct warm *p,
	uint32_t model); /* Everything of it was read and is right. What follows only computes. */
/* Maps a region of a listed model. room: as in net/shm.h. bytes and room 0: in its full size. */
enum shard_status warm_map(struct warm *p, uint32_t model, enum warm_region what, uint64_t bytes,
			   uint64_t room, enum shm_huge huge, struct shm *m, struct err *e);
/* Makes a new region for a model that warm_keep() has not listed, and whose old regions
 * warm_forget() has removed. Any thread may call, because this only reads where the place is. */
enum shard_status warm_make(struct warm *p, uint32_t model, enum warm_region what, uint64_t bytes,
			    uint64_t room, enum shm_huge huge, struct shm *m, struct err *e);
/* Bytes of the place that this model has taken so far. Another thread may be taking more. */
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
/* Memory of devices, as descriptors. Only with WARM_SYSTEMD. It goes with the model's regions. The
 * caller keeps fd. Any thread may call. */
enum shard_status warm_devices_keep(struct warm *p, uint32_t model, int fd, struct err *e);
/* Those of a listed model: duplicates, in no order, which the caller closes. Returns how many. */
uint32_t warm_devices(struct warm *p, uint32_t model, int *fd, uint32_t max);
enum shard_status warm_keep(struct warm *p, uint32_t model, const struct shm *regions,
			    struct err *e);
/* A drop removes a model's file before its memory. This note tells a start that finds only the
 * memory why. */
void warm_dropped(struct warm *p, uint32_t model, bool dropped);
bool warm_was_dropped(const struct warm *p, uint32_t model);
/* What an operator does to give everything back. */
const char *warm_forget_how(const struct warm *p);
/* Removes the model from the list and its regions from the place. Regions that are still mapped are
 * freed when they are unmapped. */
void warm_forget(struct warm *p, uint32_t model);

/* The start has succeeded and counts. From now on the memory is its own. Regions of no model are
 * given back. */
void warm_begun(struct warm *p);

#endif
