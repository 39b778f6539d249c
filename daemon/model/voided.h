/* SPDX-License-Identifier: Apache-2.0 */
/* voided.h: models of which this node had a copy in memory and has lost it, until they are made
 * again: what became of it, for texts. A start says so of memory that it cannot take over, and a
 * GPU that fails of what was in its memory. Without memory for an entry other nodes are not told
 * why. Loop thread only. */
#ifndef SHARD_MODEL_VOIDED_H
#define SHARD_MODEL_VOIDED_H

#include <stdint.h>

struct server;

/* most: the newest step of the model's file that counts, or UINT64_MAX. One entry of a model
 * counts: the last one. */
void voided_add(struct server *s, uint32_t model, const char *why, uint64_t most);
/* The text is returned once, and the caller frees it. A model that could not be made gives it back
 * by voided_add(). NULL: nothing is known. */
char *voided_why(struct server *s, uint32_t model);
const char *voided_look(const struct server *s, uint32_t model); /* It stays. "": as above. */
uint64_t voided_most(const struct server *s, uint32_t model);    /* UINT64_MAX: of no entry, too. */
void voided_free(struct server *s);

#endif
