/* SPDX-License-Identifier: Apache-2.0 */
/* tier_nvme_impl.h: what the tier on a disk is made of. Private to tier_nvme.c, which moves chunks
 * between buffers and slots, and to tier_durable.c, which makes what is there outlive a loss of
 * power. */
#ifndef SHARD_STORE_TIER_NVME_IMPL_H
#define SHARD_STORE_TIER_NVME_IMPL_H

#include "store/away_calls.h"
#include "store/slots.h"
#include "store/tier_nvme.h"

#define NONE       UINT32_MAX
#define WRITES_MAX 8u /* At a time. */
#define TURNS_MIN  3u /* Buffers: for a step, for who writes, and for who reads. */
#define BAD_MAX    3u /* Slots that could not be written. */
#define SLOTS_MORE (WRITES_MAX + BAD_MAX)
#define DIRTY      (1ull << 63) /* In the word of a buffer, beside its chunk + 1. */

enum state {
	FREE,
	READING,
	CHECKING, /* A thread compares what was read with its sum. */
	WARM,
	SUMMING, /* A thread makes the trailer. */
	WRITING,
};

struct buffer {
	struct list link; /* In .turns. */
	enum state state;
	bool dirty;
	uint32_t chunk; /* NONE: it is free. */
	struct away_users users;
	uint32_t voids;    /* store_away_voids() when the transfer began. */
	struct slot_at to; /* Where it is being written to. */
	uint32_t wanted;   /* The last search in which a waiting call wanted its chunk. */
};

/* What is in hand of a tier_nvme_commit(). */
struct commit {
	enum commit_at {
		COMMIT_NONE,
		COMMIT_WRITES, /* Dirty buffers are written. */
		COMMIT_SYNC,   /* They are made to outlive a loss of power. */
		COMMIT_SUPER,  /* The superblock that names them is written. */
		COMMIT_AFTER,  /* That is made to outlive it, too. */
	} at;
	/* A step is being applied: what it has changed is written at once, because it does not
	 * change again before the superblock. */
	bool eager;
	uint32_t from;  /* Where the search for a dirty buffer goes on. */
	uint32_t parts; /* Writes of the superblock under way. */
	uint64_t voids; /* Of all chunks, when it began. */
	struct super_of of;
	tier_nvme_committed *done;
	void *arg;
};

struct nvme {
	struct away_tier away;
	struct exec exec;
	struct tier_nvme_conf conf;
	struct buffer *buffer; /* [buffers_nr] */
	uint32_t *where;       /* [chunks_nr] The buffer that a chunk is in, or comes into. */
	uint32_t chunks_nr, buffers_nr;
	struct slots slots;
	uint32_t writes, bad; /* Slots being written, and those that cannot be. */
	uint32_t staying;     /* So many chunks stay in memory once they are there. */
	uint32_t next;        /* The chunk that the next call is most likely for. */
	uint32_t search;      /* Numbers searches for a buffer. */
	bool ahead;           /* A step is coming, and has not begun. */
	bool serving, again;
	bool lost, stopped; /* Nothing is begun any more. */
	struct tier_nvme_count count;
	struct commit commit;
	struct list waiting; /* Pins. */
	struct list turns;   /* Buffers that are free, or hold a chunk that does not stay. */
};

/* In tier_nvme.c. */
void nvme_write_begin(struct nvme *n, uint32_t buffer); /* It is dirty, and nobody uses it. */
void nvme_serve(struct nvme *n);                        /* After every change. */
bool tier_is_nvme(const struct tier *t);
void nvme_lose(struct nvme *n, const char *what, uint32_t chunk, int64_t result);

static inline bool nvme_over(const struct nvme *n)
{
	return n->lost || n->stopped;
}

static inline bool nvme_idle(const struct buffer *u)
{
	return u->state == WARM && u->users.all == 0;
}

/* In tier_durable.c. */
/* Before any call. */
enum shard_status durable_open(struct nvme *n, struct err *e);
void durable_go(struct nvme *n); /* Something has changed. */
/* True: no buffer is written back now, because a superblock is made of what is on the disk. */
bool durable_pauses(const struct nvme *n);

#endif
