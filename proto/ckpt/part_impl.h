/* SPDX-License-Identifier: Apache-2.0 */
/* part_impl.h: what the sources of part.h share: files that a few threads read and write in pieces,
 * and the index of what files hold. */
#ifndef SHARD_CKPT_PART_IMPL_H
#define SHARD_CKPT_PART_IMPL_H

#include "ckpt/part.h"
#include "ckpt/safetensors.h"

#include <pthread.h>
#include <sys/types.h>

enum { PART_THREADS = 4, PART_ALIGN = 4096, PART_PATH_BYTES = 1024 + 80 };

/* --- part_io.c --- */

struct part_fd {
	int fd; /* -1: not open. */
	_Atomic bool direct;
};

enum shard_status part_open(struct part_fd *f, const char *path, int flags,
			    struct err *e); /* With O_DIRECT where the file system has it. */
void part_close(struct part_fd *f);
/* Memory is aligned to PART_ALIGN and has room up to the next multiple of it. Offsets are multiples
 * of it. Both return the number of bytes, or -1 with errno. A read returns fewer at the end of the
 * file. A write of a length that is no multiple also writes the memory that follows, so the file
 * must be cut to its length. */
ssize_t part_pread(struct part_fd *f, void *to, size_t bytes, uint64_t offset);
ssize_t part_pwrite(struct part_fd *f, const void *from, size_t bytes, uint64_t offset);
/* Both files have these bytes from now on, and the file system keeps them once (a reflink). False:
 * it cannot, and what `to` has there is not known. */
bool part_share(const struct part_fd *to, const struct part_fd *from, uint64_t offset,
		uint64_t bytes);

/* Items 0 to nr-1, each taken by one thread with a buffer of PART_PIECE_BYTES. */
struct part_job {
	uint64_t nr;
	bool twice;                     /* The buffer has room for two pieces. */
	struct part_progress *progress; /* May be NULL. */
	/* *done: bytes for the progress. */
	enum shard_status (*item)(struct part_job *j, uint64_t i, void *buffer, uint64_t *done,
				  struct err *e);
	void *owner;
	_Atomic uint64_t next;
	_Atomic bool stop;
	pthread_mutex_t lock; /* Protects the fields below: the first failure. */
	enum shard_status st;
	int error;
	struct err err;
};

enum shard_status part_run(
	struct part_job *j,
	struct err *e); /* All threads have ended when it returns. errno is that of the failure. */
enum shard_status part_no_memory(struct err *e, const char *what);

/* --- part_index.c --- */

struct part_span { /* A tensor's elements [first, end) lie in `file` from `offset` on. */
	enum shard_kind kind;
	const char *tensor; /* Ends at tensor_len. */
	uint32_t tensor_len, file;
	uint64_t first, end, offset;
};

struct part_index {
	const char *dir;
	const struct part_file *files;
	uint32_t files_nr;
	struct safetensors **header; /* Of each file. */
	struct part_span *span;      /* Sorted by kind, tensor and first. They do not overlap. */
	uint64_t spans_nr;
};

/* Opens every file, compares the pieces of its header with their sums, and parses the header. May
 * answer SHARD_NOT_FOUND or SHARD_PROTOCOL. */
enum shard_status part_index_open(struct part_index *x, const char *dir,
				  const struct part_file *files, uint32_t files_nr, struct err *e);
void part_index_close(struct part_index *x);
/* The span of that kind and tensor that has element `at`, or the first one after it. NULL: none. */
const struct part_span *part_index_find(const struct part_index *x, enum shard_kind kind,
					const char *tensor, uint64_t at);

/* Reads piece `i` of a file and compares it with its sum. h is for the text and may be NULL. */
enum shard_status part_read_piece(struct part_fd *f, const char *dir, const struct part_file *file,
				  uint64_t i, void *buffer, size_t *bytes,
				  const struct safetensors *h, struct err *e);
enum shard_status part_open_file(struct part_fd *f, const char *dir, const struct part_file *file,
				 struct err *e);
void part_path(char path[PART_PATH_BYTES], const char *dir, const char *name);
/* The name of the tensor there, or "the header". */
const char *part_name_at(const struct safetensors *h, uint64_t offset);

#endif
