/* SPDX-License-Identifier: Apache-2.0 */
/* nearest.h: which of some words is meant by one that is none of them. */
#ifndef SHARD_BASE_NEAREST_H
#define SHARD_BASE_NEAREST_H

#include <stdint.h>

/* The candidate with the fewest edits from word, or NULL if each needs more than half of its
 * letters. candidate(arg, i) is the i-th one, and NULL after the last. */
const char *nearest_word(const char *word, const char *(*candidate)(const void *arg, uint32_t i),
			 const void *arg);

#endif
