/* SPDX-License-Identifier: Apache-2.0 */
/* part.h: one node's file of a checkpoint. It is a safetensors file with runs of elements of master
 * and moments as fp32, then blobs as bytes. Entries are named "master/h.0.attn.weight[0:1048576]"
 * and "blob/3[812]" (rank 3, committed with step 812). It is written and read with O_DIRECT where
 * the file system can. That happens in pieces of PART_PIECE_BYTES over the whole file, header
 * included, each with an XXH3-64 that the manifest keeps. Calls block and use threads of their own,
 * so they must never be made on a loop. */
#ifndef SHARD_CKPT_PART_H
#define SHARD_CKPT_PART_H

#include "base/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PART_PIECE_BYTES (8u << 20)
#define PART_BLOB_BYTES  (64u << 10)

/* Memory that is not always there. */
struct part_run;
struct part_memory {
	/* Brings these bytes of the run, and calls with() with the address of its first element
	 * before it returns. Several threads call it, and with() does not call it again. A save
	 * uses each byte once. */
	void (*use)(void *arg, const struct part_run *r, uint64_t skip, uint64_t bytes, bool writes,
		    void (*with)(void *ctx, float *at), void *ctx);
	void *arg;
};

/* Elements of one tensor. The memory is the caller's and holds count elements as fp32. */
struct part_run {
	enum shard_kind kind;
	const char *tensor;
	uint64_t first, count;
	float *at; /* NULL: .memory brings them. */
	const struct part_memory *memory;
	uint64_t tag; /* For .memory. */
	/* part_write() begins with the runs of the least turn. 0 everywhere: as they lie in the
	 * file. */
	uint32_t turn;
};

struct part_blob {
	uint32_t rank, bytes;
	uint64_t step, offset; /* offset: in the file. */
	const void *data;
};

struct part_file { /* What the manifest keeps of it. sums is malloc'ed. */
	char name[80];
	uint64_t bytes, header_bytes;
	uint32_t piece_bytes, sums_nr;
	uint64_t *sums;
	uint64_t
		shared_bytes; /* Of part_write(): not written, see part_older. Not in a manifest. */
};

/* The node's file of an earlier checkpoint. Where it has the same bytes at the same place, the file
 * system is asked to let both files have them, and they are not written again. The earlier file may
 * be removed at any time. */
struct part_older {
	const char *dir;
	const struct part_file *file;
};

struct part_progress { /* Shared with another thread. */
	_Atomic uint64_t done_bytes,
		shared_bytes; /* shared_bytes: of done_bytes, of part_write(). */
	_Atomic bool cancel;  /* When it is set, the call soon ends with SHARD_INTERRUPTED. */
};

const char *part_kind_name(
	enum shard_kind kind); /* "master", "exp_avg", "exp_avg_sq" or "momentum", or else "?" */

/* Bytes of the file that part_write() would make, for progress and for a check of the free
 * space. */
uint64_t part_bytes(const struct part_run *runs, uint32_t runs_nr, const struct part_blob *blobs,
		    uint32_t blobs_nr);
/* Writes dir/name and syncs it. Fills *out, and the blobs' offsets. SHARD_SYSTEM keeps errno and
 * names path and reason (ENOSPC ...), and the file is removed. Runs of a kind and tensor that
 * follow each other in the list and in the tensor become one entry. older may be NULL; if its file
 * is missing, damaged or another one, all is written. */
enum shard_status part_write(const char *dir, const char *name, const struct part_run *runs,
			     uint32_t runs_nr, struct part_blob *blobs, uint32_t blobs_nr,
			     const struct part_older *older, struct part_file *out,
			     struct part_progress *p, struct err *e);

/* Fills every run from those files of a checkpoint that hold it. Only the pieces that are needed
 * are read, and each is compared with its sum first. SHARD_PROTOCOL: a piece differs or a file has
 * another length, with path, offset and tensor. SHARD_NOT_FOUND: a file is missing, or no file has
 * certain elements, with tensor and range. With moments_may_lack a moment that no file has becomes
 * zero. */
enum shard_status part_load(const char *dir, const struct part_file *files, uint32_t files_nr,
			    const struct part_run *runs, uint32_t runs_nr, bool moments_may_lack,
			    struct part_progress *p, struct err *e);
/* Bytes that part_load() would read. Opens the headers. */
enum shard_status part_load_bytes(const char *dir, const struct part_file *files, uint32_t files_nr,
				  const struct part_run *runs, uint32_t runs_nr, uint64_t *bytes,
				  struct err *e);
/* Compares every piece of every file with its sum. */
enum shard_status part_verify(const char *dir, const struct part_file *files, uint32_t files_nr,
			      struct part_progress *p, struct err *e);
void part_file_free(struct part_file *f);

#endif
