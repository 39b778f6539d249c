/* SPDX-License-Identifier: Apache-2.0 */
/* shm.h: memory shared between a daemon and the trainers on its node. It lies in sealed memfds that
 * the daemon makes. An arena is written by one trainer and the daemon. An image is written by the
 * daemon alone (F_SEAL_FUTURE_WRITE) and read by all. */
#ifndef SHARD_NET_SHM_H
#define SHARD_NET_SHM_H

#include "base/status.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum shm_huge { SHM_HUGE_TRY, SHM_HUGE_REQUIRE, SHM_HUGE_NO };
enum shm_pages { SHM_PAGES_NORMAL, SHM_PAGES_THP, SHM_PAGES_HUGETLB };

struct shm {
	int fd; /* -1: private memory. */
	void *base;
	size_t bytes; /* Mapped, whole pages. */
	enum shm_pages got;
	int writable; /* Of shm_map(). */
	/* Address space for more of it. It has no pages but those of shm_more(). NULL: none. */
	char *room;
	size_t room_bytes;
};

/* Who else maps it. A trainer that may write its arena may also punch holes into it. In a file of
 * reserved huge pages a hole gives the reservation back. If the pool is empty by then, the daemon's
 * next read is a SIGBUS. So arenas never have reserved pages, at most transparent ones. */
enum shm_use {
	SHM_IMAGE, /* Trainers read it. */
	SHM_ARENA, /* One trainer writes it, too. */
	SHM_KEPT,  /* Only the next process of this daemon reads and writes it. */
};

/* Makes a memfd sealed against shrinking, growing and further seals, an image against new writers,
 * too. The mapping here is writable, touched (so that memory is reserved now, not at the first
 * step) and MADV_DONTFORK. REQUIRE fails with what to set. For an arena it is treated as TRY. */
enum shard_status shm_create(struct shm *m, const char *name, size_t bytes, enum shm_use use,
			     enum shm_huge huge, struct err *e);
/* Private memory with the same huge page policy, for masters, moments and landing slots. */
enum shard_status shm_private(struct shm *m, size_t bytes, enum shm_huge huge, struct err *e);
/* Adds room to private memory, or makes room alone where m is all zero with fd -1. */
enum shard_status shm_room(struct shm *m, size_t room, struct err *e);
/* As shm_create() for SHM_KEPT, with room. bytes may be 0 if room is not. */
enum shard_status shm_keep(struct shm *m, const char *name, size_t bytes, size_t room,
			   enum shm_huge huge, struct err *e);
/* Memory that outlives the process, as a new file in a tmpfs or hugetlbfs folder. REQUIRE can only
 * be met on a hugetlbfs. */
enum shard_status shm_file(struct shm *m, int dir, const char *name, size_t bytes, size_t room,
			   enum shm_huge huge, struct err *e);
/* Maps such a file again, or with sealed a memfd of shm_create(). Its type, owner or seals, and
 * size are checked before it is mapped, its contents are not. SHARD_MISMATCH: it is not that. Takes
 * over fd. With room nothing is touched, because what was given back would be made again: the
 * caller touches what there is. */
enum shard_status shm_again(struct shm *m, int fd, int sealed, size_t bytes, size_t room,
			    enum shm_huge huge, struct err *e);
/* The first so many bytes of the room may have transparent huge pages, if the first part has. */
void shm_room_huge(const struct shm *m, size_t bytes);
/* Makes each page of [at, at + bytes) present that was there before. */
enum shard_status shm_touch(const struct shm *m, void *at, size_t bytes, struct err *e);
/* Makes the pages of [at, at + bytes), which is in the room or in what shm_less() gave back. at is
 * at a page. They are zero, or the call fails and leaves none. SHARD_BUDGET: there is no memory. */
enum shard_status shm_more(const struct shm *m, void *at, size_t bytes, struct err *e);
/* Gives these pages back. What lies there is lost. */
void shm_less(const struct shm *m, void *at, size_t bytes);
/* Bytes from the start of a file of so many bytes to its room. */
uint64_t shm_room_start(uint64_t bytes);

/* Client side. Checks seals and size before it maps, because a memfd that can shrink would be a
 * SIGBUS later. Takes over fd. */
enum shard_status shm_map(struct shm *m, int fd, size_t bytes, int writable, struct err *e);
/* Client side. The addresses of m become other shared memory, in one step: pointers into m stay
 * valid, and never see a hole. Takes over fd. After a failure m is as it was. */
enum shard_status shm_map_over(struct shm *m, int fd, size_t bytes, int writable, struct err *e);
void shm_unmap(struct shm *m); /* Harmless when called twice. */
/* Client side, when the peer is gone. The same addresses become private zero memory, made at the
 * first touch, so that what others still write is out of reach. Where the kernel refuses, the
 * mapping stays as it is. */
void shm_cut(struct shm *m);
/* Private memory of zeros that is made at the first touch. */
enum shard_status shm_zeros(struct shm *m, size_t bytes, struct err *e);
/* Client side. The addresses of m become the memory of own, which has as many bytes, and m is at
 * others from then on. It never leaves a hole. What lies at the old addresses is nobody's here any
 * more: the caller unmaps it, and a forked child has it, too. own is empty afterwards. After a
 * failure both are as they were. */
enum shard_status shm_give(struct shm *m, struct shm *own, struct err *e);
const char *shm_pages_name(enum shm_pages p);

/* The first bytes of an image hold the version of each chunk. A reader outside the world copies a
 * chunk, then checks that its version did not change and that the image was not open (an odd
 * counter means open). With max_staleness = 1 there are two images, and version[] of the first is
 * followed by version[] of the second. There a version is the step whose record wrote these very
 * bytes. */
struct image_head {
	uint32_t magic;
	/* Changes before the versions do, and they change before the bytes. */
	_Atomic uint32_t generation;
	/* data_offset: bytes from the start of the image to element 0. */
	uint64_t chunks_nr, data_offset;
	/* Grows by one when a step opens the image, and by one when it is whole again. */
	_Atomic uint64_t open;
	_Atomic uint64_t published; /* Grows at each publication. Waiters watch it. */
	/* Bytes from element 0 of the first image to that of the second. 0: there is one image. */
	uint64_t slot_bytes;
	uint64_t reserved[2];
	/* [images][chunks_nr] the step whose parameters the chunk holds. UINT64_MAX: none yet. */
	_Atomic uint64_t version[];
};
#define IMAGE_MAGIC 0x494d4731u
size_t image_data_offset(uint64_t versions); /* versions: chunks of all images. Page-aligned. */
/* Bytes from one half of an arena, or one image, to the next, in whole pages. */
size_t shm_half_bytes(uint64_t bytes);

#endif
