/* SPDX-License-Identifier: Apache-2.0 */
/* figures.h: the figures of `shardctl top`, from two answers of a daemon to STATUS. The functions
 * are pure: they take JSON and make JSON or text. */
#ifndef SHARD_CTL_FIGURES_H
#define SHARD_CTL_FIGURES_H

#include <jansson.h>
#include <stdio.h>

/* Returns a new reference, or NULL without memory. All rates are 0 where before is NULL or from
 * another start of the daemon. */
json_t *figures_make(const json_t *before, const json_t *now, double seconds);
void figures_print(const json_t *figures, FILE *out);

#endif
