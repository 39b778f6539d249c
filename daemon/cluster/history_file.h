/* SPDX-License-Identifier: Apache-2.0 */
/* history_file.h: the files of the history that this node keeps of a model, in the folder `history`
 * of the state folder: MODEL.NUMBER, both in hexadecimal. wire/history.h says what is in them. All
 * of them together take at most `limit` bytes: the oldest goes when a new one begins. Every
 * function may wait for the disk, so it is called in a thread, by one thread at a time for a
 * struct. */
#ifndef SHARD_CLUSTER_HISTORY_FILE_H
#define SHARD_CLUSTER_HISTORY_FILE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HISTORY_FILES 8 /* So many files share the limit, or more if it is large. */
/* The least limit. Two of the largest entries fit into a file of it. */
#define HISTORY_LIMIT_MIN (1u << 20)
/* So much of the file system is left to what the node needs more: views, first of all. Of a small
 * one, an eighth. */
#define HISTORY_SPARE_MAX  (64ull << 20)
#define HISTORY_PATH_BYTES 600

struct history_file {
	char dir[HISTORY_PATH_BYTES]; /* The folder `history`. */
	uint32_t model;
	uint64_t limit; /* In bytes. */
	/* A whole entry with which each file begins. The caller's, from malloc() or NULL. */
	void *first;
	size_t first_bytes;

	int fd;                /* -1: not open. */
	uint32_t file, oldest; /* The number of the file that is written, and of the oldest one. */
	uint64_t bytes;        /* Of the file that is written: what is whole and synced. */
	uint64_t older;        /* Of all files before it. */
	uint64_t number;       /* Of the next entry. */
	/* What the last opening found at the end of the last file, until the caller has told it:
	 * the bytes that it cut off, or what it left because it is damaged. */
	uint64_t cut;
	char damage[160];
};

void history_file_init(struct history_file *f, const char *state, uint32_t model, uint64_t limit);
void history_file_close(struct history_file *f);
/* Numbers the entries in bytes (whole ones, whose heads say only how long they are), appends them
 * and syncs. All or nothing: after a failure the file ends where it ended, and the same bytes may
 * be given again. SHARD_SYSTEM: the disk is full, or fails. */
enum shard_status history_file_append(struct history_file *f, void *bytes, size_t nr,
				      struct err *e);
/* Opens the last file, so that .cut and .damage are known. Appending does it by itself. */
enum shard_status history_file_open(struct history_file *f, struct err *e);
/* Removes all files of the model. */
enum shard_status history_file_remove(struct history_file *f, struct err *e);

struct history_span {
	uint32_t file;   /* 0: the oldest. If it is gone, the next one that is there. */
	uint64_t offset; /* In it. */
	uint32_t last;   /* Nothing is read beyond this offset of this file. 0: not known. */
	uint64_t last_bytes;
	size_t nr; /* How many bytes were read. */
	uint32_t next_file;
	uint64_t next_offset;
	bool end; /* There is no more before the last offset. */
};
/* Reads at most `room` bytes into `to`. Needs no open file, and changes nothing of f. */
enum shard_status history_file_read(const struct history_file *f, struct history_span *at, void *to,
				    size_t room, struct err *e);

#endif
