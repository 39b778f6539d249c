/* SPDX-License-Identifier: Apache-2.0 */
/* source.h: the weights that `shardctl import` reads: one safetensors file, an index with its
 * shards, or a folder that has one of them. */
#ifndef SHARD_CTL_SOURCE_H
#define SHARD_CTL_SOURCE_H

#include "ckpt/safetensors.h"

struct source_file {
	char *name; /* As in the index, or the last part of the path. */
	int fd;
	struct safetensors *header;
};

struct source {
	char *dir;
	struct source_file *file;
	uint32_t files_nr;
	struct {
		const struct safetensors_entry *entry;
		uint32_t file;
	} * tensor; /* By file, then by offset. */
	uint32_t tensors_nr;
	uint64_t bytes; /* Of all tensors. */
	void *buffer;
};

/* Fails with SHARD_NOT_FOUND, SHARD_PROTOCOL (no safetensors file, or a contradiction),
 * SHARD_DTYPE, SHARD_DUPLICATE, SHARD_RANGE or SHARD_SYSTEM. The text names the file and the
 * tensor. The caller calls source_close() after a failure, too. */
enum shard_status source_open(struct source **s, const char *path, struct err *e);
enum shard_status source_read(struct source *s, uint32_t tensor, uint64_t first, uint64_t count,
			      float *to, struct err *e);
void source_close(struct source **s);

#endif
