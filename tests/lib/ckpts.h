/* SPDX-License-Identifier: Apache-2.0 */
/* ckpts.h: small checkpoints for tests of files: a model of odd tensors, its elements computable
 * from their place, written as several nodes' parts, and read back with other boundaries. Failures
 * end the test. */
#ifndef SHARD_TESTS_CKPTS_H
#define SHARD_TESTS_CKPTS_H

#include "ckpt/checkpoint.h"

enum { CKPTS_TENSORS = 7, CKPTS_KINDS = 3, CKPTS_BLOBS = 2 };

extern const uint64_t ckpts_elems[CKPTS_TENSORS];
extern const char *const ckpts_names[CKPTS_TENSORS];
extern const enum shard_kind ckpts_kinds[CKPTS_KINDS];

float ckpts_value(uint64_t salt, int kind, int tensor, uint64_t element);

/* Parts of `nodes` nodes in DIR/.TAG.tmp: chunks of `chunk` elements dealt round robin, as runs. *m
 * is filled, for ckpts_free(). */
enum shard_status ckpts_write(const char *path, struct manifest *m, int nodes, uint64_t chunk,
			      uint64_t salt, struct err *e);
/* begin, write, finish. */
enum shard_status ckpts_save(const char *dir, const char *model, uint64_t step, int nodes,
			     uint64_t chunk, struct err *e);
/* The same, of the model that has this identity. */
enum shard_status ckpts_save_of(const char *dir, const char *model, uint64_t id, uint64_t step,
				struct err *e);
/* Reads all of DIR/TAG in runs of `run` elements and compares; a status says what reading said. A
 * wrong element ends the test. */
enum shard_status ckpts_load(const char *dir, const char *tag, const char *model, uint64_t run,
			     struct err *e);
void ckpts_free(struct manifest *m);
void ckpts_folder(char dir[64]); /* a new one */
void ckpts_remove(const char *dir);

#endif
