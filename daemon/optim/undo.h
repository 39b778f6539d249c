/* SPDX-License-Identifier: Apache-2.0 */
/* undo.h: keeps the old values of the vector that a kernel is about to overwrite, so that memory
 * can be repaired after a process was killed at any instruction. Everything before .at is new, the
 * kept vector goes back to .at, and everything after it is old. */
#ifndef SHARD_OPTIM_UNDO_H
#define SHARD_OPTIM_UNDO_H

#include <stdatomic.h>
#include <stdint.h>

enum { UNDO_LANES = 16 }; /* The lanes of the widest kernel. */

struct optim_undo {
	_Atomic uint64_t at; /* position << 8 | place << 7 | lanes. 0: nothing is kept. */
	/* The position of the first element of a call. The caller chooses what positions count. */
	uint64_t origin;
	uint64_t spare[6];
	/* Each place has master, s1 and s2. The two places take turns, so that the one that counts
	 * is not overwritten. */
	float place[2][3][UNDO_LANES];
};

static inline uint64_t undo_position(uint64_t at)
{
	return at >> 8;
}

static inline uint32_t undo_lanes(uint64_t at)
{
	return at & 0x7f;
}

static inline uint32_t undo_place(uint64_t at)
{
	return at >> 7 & 1;
}

/* Keeps the stores of this thread before this point ahead of those after it, for a process that
 * looks at the memory when the thread is dead. The processor keeps the order of its stores by
 * itself, so that only the compiler must be stopped. Stores that bypass the caches are of images
 * only, which are made again. */
#define UNDO_ORDER() atomic_signal_fence(memory_order_seq_cst)

/* The caller has written .place[place]. From here on it counts. */
static inline void undo_keep(struct optim_undo *u, uint64_t position, uint32_t place,
			     uint32_t lanes)
{
	UNDO_ORDER();
	atomic_store_explicit(&u->at, position << 8 | place << 7 | lanes, memory_order_relaxed);
	UNDO_ORDER();
}

#endif
