/* SPDX-License-Identifier: Apache-2.0 */
/* ckpts.h: small checkpoints for tests of files. The model has odd tensors whose elements can be
 * computed from their place. They are written as the parts of several nodes and read back with
 * other boundaries. Failures end the test. */
#ifndef SHARD_TESTS_CKPTS_H
#define SHARD_TESTS_CKPTS_H

#include "ckpt/checkpoint.h"

enum { CKPTS_TENSORS = 7, CKPTS_KINDS = 3, CKPTS_BLOBS = 2 };

extern const uint64_t ckpts_elems[CKPTS_TENSORS];
extern const char *const ckpts_names[CKPTS_TENSORS];
extern const enum shard_dtype ckpts_images[CKPTS_TENSORS]; /* The model's is SHARD_BF16. */
extern const enum shard_kind ckpts_kinds[CKPTS_KINDS];

float ckpts_value(uint64_t salt, int kind, int tensor, uint64_t element);

/* Writes the parts of `nodes` nodes into path. Chunks of `chunk` elements go to the nodes in turn.
 * The files are added to *m, which ckpts_free() frees. */
enum shard_status ckpts_write(const char *path, struct manifest *m, int nodes, uint64_t chunk,
			      uint64_t salt, struct err *e);
/* Begins a checkpoint, writes its parts and finishes it. */
enum shard_status ckpts_save(const char *dir, const char *model, uint64_t step, int nodes,
			     uint64_t chunk, struct err *e);
/* The same for the model with this identity. */
enum shard_status ckpts_save_of(const char *dir, const char *model, uint64_t id, uint64_t step,
				struct err *e);
/* Reads all of DIR/TAG in runs of `run` elements and compares it. The status is what the reading
 * functions say. A wrong element ends the test. */
enum shard_status ckpts_load(const char *dir, const char *tag, const char *model, uint64_t run,
			     struct err *e);
/* From now on saves have the files of this folder in `client`, and loads compare them with their
 * sums. NULL: saves have none. */
void ckpts_give(const char *folder);
void ckpts_free(struct manifest *m);
void ckpts_folder(char dir[64]); /* Makes a new folder. */
void ckpts_remove(const char *dir);

#endif
