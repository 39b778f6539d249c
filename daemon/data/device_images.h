/* SPDX-License-Identifier: Apache-2.0 */
/* device_images.h: copies of a model's image in the memory of GPUs of this node, one on each, for
 * the trainers there. Loop thread only, but for device_images_free(). */
#ifndef SHARD_DATA_DEVICE_IMAGES_H
#define SHARD_DATA_DEVICE_IMAGES_H

#include "base/status.h"
#include "shard.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

struct device_images; /* Of one model. */
struct caller;
struct gpu;
struct model;
struct session;

struct device_images_up { /* What it tells apply.c and feed.c. They outlive the model. */
	/* A chunk of the image is being read, so that no vote leaves, until left(). */
	void (*leaves)(struct model *m);
	void (*left)(struct model *m);
	void (*tell)(struct model *m); /* Trainers here look at versions. */
	/* A device works for the model: it must stay. */
	void (*hold)(void *model);
	void (*release)(void *model);
};

/* A trainer asks for the image on the GPU with that UUID, [GPU_UUID_BYTES]. SHARD_OK: it is
 * answered, now or when all of the image is there. SHARD_UNSUPPORTED: there cannot be one.
 * SHARD_BUSY: too many ask. */
enum shard_status device_images_ask(struct model *m, const struct device_images_up *up,
				    const uint8_t *uuid, struct session *who, uint32_t tag,
				    struct err *e);

/* May a trainer have memory of the model on the GPU with that UUID? SHARD_UNSUPPORTED: no, and the
 * text says why there is no `what`. */
enum shard_status device_images_gpu(const struct model *m, const char *what, const uint8_t *uuid,
				    const struct session *who, struct gpu **g, struct err *e);

/* Answers DEVICE with descriptors of that memory. NULL: whoever asked is gone, or was refused since
 * it has left the model or, if slot is not NULL, that slot. Otherwise it has them. */
struct session *device_images_answer(struct model *m, const struct caller *who,
				     const uint32_t *slot, const Shard__DeviceMemory *body,
				     const int *fds, int fds_nr);

/* The image has the chunk's new bytes, of this version. They are copied from there, unless the
 * update has made them on the device, too. */
void device_images_publish(struct model *m, uint32_t chunk, uint64_t version);
/* The step is skipped: what was of the version before is of the model's step. */
void device_images_skip(struct model *m, uint64_t before);
/* The weights count no more. To be called before the bytes of the image change. */
void device_images_void(struct model *m);

/* For feed.c. Where an update on the chunk's device makes the image, too. 0: nowhere. Then
 * device_images_written() says that it has, before the chunk is published. */
uint64_t device_images_at(const struct model *m, uint32_t chunk);
void device_images_written(struct model *m, uint32_t chunk);

bool device_images_making(const struct model *m); /* A thread makes memory for one. */
/* No copy is begun any more. Those that are under way come back. */
void device_images_stop(struct model *m);
/* When none is under way. Any thread. Harmless of NULL. */
void device_images_free(struct device_images **d);

#endif
