/* SPDX-License-Identifier: Apache-2.0 */
/* ring.h: reads and writes of one file past the page cache, from and to memory that is registered
 * once. It is io_uring, or four threads where the kernel, a container or the build has none. A
 * request is whole or failed: what the kernel moved in part is asked for again from there. */
#ifndef SHARD_STORE_RING_H
#define SHARD_STORE_RING_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>
#include <uv.h>

#define RING_ALIGN 4096u /* Of addresses, offsets and lengths. */

struct ring; /* Opaque. */

/* What a request comes to: its bytes, or an errno below zero. -ENODATA: the file ends before.
 * Called on the loop thread. */
typedef void ring_done(void *owner, uint64_t tag, int64_t result);

/* The file of a ring. */
struct ring_file {
	const char *dir, *name;
	uint64_t bytes;    /* 0: any, if .there. */
	bool there;        /* It has to exist, as a start before left it. Else it is made anew. */
	uint64_t fence_ns; /* So long the start waits for the lock. */
};

/* Opens dir/name with O_DIRECT, reserves its bytes on the disk, and locks it. The lock is a fence:
 * requests of a killed process may still be running after waitpid() has returned, they hold the
 * open file, and so the lock is free only when the last of them is done. Blocks, on any thread.
 * SHARD_BUDGET: there is no room on the disk, with figures. SHARD_BUSY: another process has the
 * lock, with its number. SHARD_NOT_FOUND: .there, and it is not. SHARD_MISMATCH: .there, and it has
 * another length. SHARD_UNSUPPORTED: the file system has no O_DIRECT. */
enum shard_status ring_file_open(int *fd, const struct ring_file *f, struct err *e);

struct ring_conf {
	int fd;                     /* Of ring_file_open(). The ring closes it. */
	const struct iovec *buffer; /* [buffers_nr] Aligned memory that requests use. */
	uint32_t buffers_nr;
	uint32_t entries; /* So many requests at a time. */
	bool threads;     /* No io_uring. */
};

/* Registers the memory, which takes longer the more it is. Blocks, on any thread. If there is no
 * io_uring, it takes threads, and ring_kind() says so. On failure the descriptor stays open. */
enum shard_status ring_open(struct ring **out, const struct ring_conf *conf, struct err *e);
/* From now on the loop calls each done(). Before that no request may be made. */
enum shard_status ring_start(struct ring *r, uv_loop_t *loop, struct err *e);
/* SHARD_AGAIN: .entries requests are under way. `at` is in bytes, inside the buffer. */
enum shard_status ring_read(struct ring *r, uint32_t buffer, uint64_t at, uint64_t bytes,
			    uint64_t offset, ring_done *done, void *owner, uint64_t tag);
enum shard_status ring_write(struct ring *r, uint32_t buffer, uint64_t at, uint64_t bytes,
			     uint64_t offset, ring_done *done, void *owner, uint64_t tag);
/* What is written and done when this is called outlives a loss of power when this is done. */
enum shard_status ring_sync(struct ring *r, ring_done *done, void *owner, uint64_t tag);
uint32_t ring_flying(const struct ring *r);  /* Requests that are not done. */
const char *ring_kind(const struct ring *r); /* "io_uring" or "threads". */
const char *ring_why(const struct ring *r);  /* Why it is threads. Empty: it was asked for. */

/* On the loop thread: no done() is called any more, whatever is under way. */
void ring_stop(struct ring *r);
/* After ring_stop(), or without ring_start(). Waits for what is under way, so that the memory may
 * go, and closes the file. Blocks, on any thread. NULL is fine. */
void ring_close(struct ring **r);

#endif
