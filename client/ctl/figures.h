/* SPDX-License-Identifier: Apache-2.0 */
/* figures.h: what `shardctl top` shows, from two answers of a daemon to STATUS. Pure: JSON in, JSON
 * or text out. */
#ifndef SHARD_CTL_FIGURES_H
#define SHARD_CTL_FIGURES_H

#include <jansson.h>
#include <stdio.h>

/* before: NULL or of another start of the daemon: rates are 0. A new reference; NULL: no memory. */
json_t *figures_make(const json_t *before, const json_t *now, double seconds);
void figures_print(const json_t *figures, FILE *out);

#endif
