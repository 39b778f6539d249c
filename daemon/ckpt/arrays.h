/* SPDX-License-Identifier: Apache-2.0 */
/* arrays.h: how the threads of a share get at masters and moments. A load writes them where they
 * are. A save reads them as they were when it began, whatever steps do meanwhile (store/hold.h). */
#ifndef SHARD_CKPT_ARRAYS_H
#define SHARD_CKPT_ARRAYS_H

#include "ckpt/borrow.h"
#include "ckpt/part.h"
#include "store/store_missing.h"

struct arrays {
	struct model *m;
	struct borrow borrow;         /* The owner closes it. */
	uint64_t *held;               /* [chunks_nr] Of a save: the bytes of each chunk. */
	struct part_memory memory;    /* Of a save, and of runs in chunks that are away. */
	pthread_mutex_t lock;         /* Covers the field below, while threads use the arrays. */
	struct store_missing missing; /* In the masters that were read or looked at. */
};

/* Loop thread. */
void arrays_init(struct arrays *a, struct model *m);
void arrays_deinit(struct arrays *a);
enum shard_status arrays_begin(struct arrays *a, bool saves, struct err *e);
/* Says where the elements of a run are. array: 0 for the master. start: the first element of the
 * chunk that it has. */
void arrays_run(struct arrays *a, uint32_t chunk, uint32_t array, uint32_t start,
		struct part_run *r);

/* A thread of the share. Looks for weights of the chunk that are not finite. A save need not ask,
 * because it finds them while it reads. */
void arrays_look(struct arrays *a, uint32_t chunk);

#endif
