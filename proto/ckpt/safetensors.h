/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.h: the header of Hugging Face's safetensors format. A file is 8 bytes (little-endian
 * length), a JSON object, then the tensors' bytes one after the other without gaps. No I/O. What is
 * parsed comes from outside, so lengths, offsets and shapes are checked before they are used. */
#ifndef SHARD_CKPT_SAFETENSORS_H
#define SHARD_CKPT_SAFETENSORS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* The format's own library refuses longer headers (MAX_HEADER_SIZE of its tensor.rs). The first
 * release wrote headers of up to 100 MiB, so such a file is still read. */
#define SAFETENSORS_HEADER_MAX      100000000u
#define SAFETENSORS_READ_HEADER_MAX (100u << 20)
#define SAFETENSORS_DIMS_MAX        8
#define SAFETENSORS_ALIGN           4096u /* Of the data that we write. Blanks pad the header. */

struct safetensors_entry {
	const char *name;
	enum shard_dtype dtype; /* 0: another type, whose size `bytes` has. */
	char dtype_name[8];     /* As in the file: F32, BF16, F16, U8 ... */
	uint32_t ndim;
	uint64_t shape[SAFETENSORS_DIMS_MAX];
	uint64_t offset, bytes; /* Of the file, header included. */
};

struct safetensors { /* entry is in the order of offsets. */
	struct safetensors_entry *entry;
	uint32_t entries_nr;
	uint64_t data_offset, file_bytes;
	void *memory; /* Names. */
};

/* Reads from the first 8 bytes of a file how many more bytes belong to the header. SHARD_PROTOCOL:
 * the file is not of this format. */
enum shard_status safetensors_header_bytes(const uint8_t first[8], uint64_t file_bytes,
					   const char *path, uint64_t *bytes, struct err *e);
/* json is the header without the first 8 bytes. path is for texts. */
enum shard_status safetensors_parse(struct safetensors **out, const char *json, size_t bytes,
				    uint64_t file_bytes, const char *path, struct err *e);
void safetensors_free(struct safetensors **s);

/* Makes the header of a file with these tensors in this order. It reads name, dtype_name, shape and
 * bytes of each entry, and fills in offset. metadata has pairs of key and value, and may be NULL.
 * *out is malloc'ed and starts with the 8 bytes. *bytes is a multiple of SAFETENSORS_ALIGN. */
enum shard_status safetensors_make(void **out, size_t *bytes, struct safetensors_entry *entry,
				   uint32_t entries_nr, const char *const (*metadata)[2],
				   uint32_t metadata_nr, struct err *e);

#endif
