/* SPDX-License-Identifier: Apache-2.0 */
/* pinned.h: memory of models that are gone, which the driver of a GPU that failed has pinned and
 * does not let go of. It stays where it is as long as the process lives: a call of the driver that
 * hangs may go on and use it, and other memory at its addresses would be taken for it. */
#ifndef SHARD_MODEL_PINNED_H
#define SHARD_MODEL_PINNED_H

#include <stdbool.h>

struct model;
struct server;
struct store;

/* Takes the memory over. It goes on counting in the budget. hangs: a call has not come back. */
void pinned_keep(struct model *m, struct store **memory, bool hangs);
void pinned_free(struct server *s); /* At the end of the server, but for what hangs. */

#endif
