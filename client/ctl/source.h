/* SPDX-License-Identifier: Apache-2.0 */
/* source.h: weights from outside for import: one safetensors file, an index with its shards, or a
 * folder that has one of them. */
#ifndef SHARD_CTL_SOURCE_H
#define SHARD_CTL_SOURCE_H

#include "ckpt/safetensors.h"

struct source_file {
	char *name; /* as in the index, or the path's last part */
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
	} * tensor; /* by file, then offset */
	uint32_t tensors_nr;
	uint64_t bytes; /* of all tensors */
	void *buffer;
};

/* SHARD_NOT_FOUND, SHARD_PROTOCOL (no such file, contradictions), SHARD_DTYPE, SHARD_DUPLICATE: the
 * text names file and tensor. */
enum shard_status source_open(struct source **s, const char *path, struct err *e);
enum shard_status source_read(struct source *s, uint32_t tensor, uint64_t first, uint64_t count,
			      float *to, struct err *e);
void source_close(struct source **s);

#endif
