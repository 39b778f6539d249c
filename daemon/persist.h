/* SPDX-License-Identifier: Apache-2.0 */
/* persist.h: a model's definition and view go to the coordinator's disk, on a thread of their own: a disk that stalls delays views,
 * and nothing else. */
#ifndef SHARD_PERSIST_H
#define SHARD_PERSIST_H

#include <stdbool.h>

struct core_view;
struct model;

/* Then CORE_EV_PERSISTED. One at a time: the core waits for it. A write that fails is tried again with the beat. */
void persist_view(struct model *m, const struct core_view *v);
bool persist_busy(const struct model *m); /* a thread has its file in hand: nobody else writes or removes it */
bool persist_dir(struct model *m);        /* m->ckpt.dir changed; true: the file that is on its way takes it along */
void persist_beat(struct model *m);
void persist_free(struct model *m); /* CHECK: not busy */

#endif
