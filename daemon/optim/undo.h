/* SPDX-License-Identifier: Apache-2.0 */
/* undo.h: the vector that a kernel is about to overwrite, as it was, so that a process killed at
 * any instruction leaves memory that can be made whole: everything before .at is new, what is kept
 * goes back there, everything behind it is old. */
#ifndef SHARD_OPTIM_UNDO_H
#define SHARD_OPTIM_UNDO_H

#include <stdatomic.h>
#include <stdint.h>

enum { UNDO_LANES = 16 }; /* the widest kernel */

struct optim_undo {
	_Atomic uint64_t at; /* position << 8 | place << 7 | lanes; 0: nothing is kept */
	uint64_t origin;     /* position of a call's first element: whatever the caller counts in */
	uint64_t spare[6];
	float place[2][3][UNDO_LANES]; /* master, s1, s2; in turn, so that the one that counts stays
					  as it is */
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

/* Stores of this thread before it stay before those after it, for whoever looks when the thread is
 * dead. This processor keeps their order by itself, so it is the compiler's that counts; stores
 * that pass the caches are of images, which are made again. */
#define UNDO_ORDER() atomic_signal_fence(memory_order_seq_cst)

/* .place is written; from here on it counts. */
static inline void undo_keep(struct optim_undo *u, uint64_t position, uint32_t place,
			     uint32_t lanes)
{
	UNDO_ORDER();
	atomic_store_explicit(&u->at, position << 8 | place << 7 | lanes, memory_order_relaxed);
	UNDO_ORDER();
}

#endif
