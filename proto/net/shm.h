/* SPDX-License-Identifier: Apache-2.0 */
/* shm.h: memory shared between a daemon and the trainers on its node: sealed memfds that the daemon
 * makes. An arena is written by one trainer and the daemon; an image is written by the daemon alone
 * (F_SEAL_FUTURE_WRITE) and read by all. */
#ifndef SHARD_NET_SHM_H
#define SHARD_NET_SHM_H

#include "base/status.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum shm_huge { SHM_HUGE_TRY, SHM_HUGE_REQUIRE, SHM_HUGE_NO };
enum shm_pages { SHM_PAGES_NORMAL, SHM_PAGES_THP, SHM_PAGES_HUGETLB };

struct shm {
	int fd; /* -1: private memory */
	void *base;
	size_t bytes; /* mapped, whole pages */
	enum shm_pages got;
};

/* Who else maps it. A trainer that may write its arena may also punch holes into it. In a file of
 * reserved huge pages a hole gives the reservation back, and where the pool is empty by then, the
 * daemon's next read is a SIGBUS. So arenas never have reserved pages, at most transparent ones. */
enum shm_use {
	SHM_IMAGE, /* trainers read it */
	SHM_ARENA, /* one trainer writes it too */
	SHM_KEPT,  /* the next process of this daemon reads and writes it, and nobody else */
};

/* Sealed against shrinking, growing and further seals, an image against new writers too. The
 * mapping here is writable, touched (so that memory is reserved now, not at the first step) and
 * MADV_DONTFORK. REQUIRE, which is TRY for an arena, fails with what to set. */
enum shard_status shm_create(struct shm *m, const char *name, size_t bytes, enum shm_use use,
			     enum shm_huge huge, struct err *e);
/* Private memory with the same huge page policy: masters, moments, landing slots. */
enum shard_status shm_private(struct shm *m, size_t bytes, enum shm_huge huge, struct err *e);
/* Memory that outlives the process: a new file of a tmpfs or hugetlbfs folder; hugetlbfs: REQUIRE
 * is met, else it is not. */
enum shard_status shm_file(struct shm *m, int dir, const char *name, size_t bytes,
			   enum shm_huge huge, struct err *e);
/* Such a file again, or (sealed) a memfd of shm_create(): its type, owner, seals and size are
 * checked before it is mapped, nothing of what is in it. SHARD_MISMATCH: it is not that. Takes over
 * fd. */
enum shard_status shm_again(struct shm *m, int fd, int sealed, size_t bytes, enum shm_huge huge,
			    struct err *e);
/* Client side: checks seals and size before it maps (a shrinkable memfd would be a SIGBUS later).
 * Takes over fd. */
enum shard_status shm_map(struct shm *m, int fd, size_t bytes, int writable, struct err *e);
void shm_unmap(struct shm *m); /* harmless twice */
/* Client side, when the peer is gone: the same addresses are private memory from now on, zero, made
 * at the first touch; what others share is out of reach, whoever still writes. Where the kernel
 * refuses, all stays as it is. */
void shm_cut(struct shm *m);
const char *shm_pages_name(enum shm_pages p);

/* The first bytes of an image: what version each chunk has. A reader outside the world copies a
 * chunk, then checks that its version did not move and was not open (odd counters are open). With
 * max_staleness = 1 there are two images behind one another, and version[chunk] of the first is
 * followed by version[chunk] of the second: the step whose record wrote these very bytes. */
struct image_head {
	uint32_t magic;
	_Atomic uint32_t generation; /* changes before the versions do, and they before the bytes */
	uint64_t chunks_nr, data_offset; /* bytes from the start of the image to element 0 */
	_Atomic uint64_t open; /* grows by one when a step opens the image and by one when it is
				  whole again */
	_Atomic uint64_t published; /* grows at each publication: what waiters watch */
	uint64_t slot_bytes; /* from element 0 of the first image to that of the second; 0: there is
				one */
	uint64_t reserved[2];
	_Atomic uint64_t version[]; /* [images][chunks_nr] step whose parameters the chunk holds;
				       UINT64_MAX: none yet */
};
#define IMAGE_MAGIC 0x494d4731u
size_t image_data_offset(uint64_t versions); /* chunks of all images; page-aligned */
/* From one half of an arena, or one image, to the next: whole pages. */
size_t shm_half_bytes(uint64_t bytes);

#endif
