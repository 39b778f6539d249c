/* SPDX-License-Identifier: Apache-2.0 */
/* figures.h: the figures of `shardctl top`, from two answers of a daemon to STATUS. The functions
 * are pure: they take JSON and make JSON or text. */
#ifndef SHARD_CTL_FIGURES_H
#define SHARD_CTL_FIGURES_H

#include "ctl/palette.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* Returns a new reference, or NULL without memory. All rates are 0 where before is NULL or from
 * another start of the daemon. */
json_t *figures_make(const json_t *before, const json_t *now, double seconds);

enum figures_sort { FIGURES_WAIT, FIGURES_RANK, FIGURES_NODE, FIGURES_RATE, FIGURES_CHUNKS };
enum { FIGURES_SORTS = FIGURES_CHUNKS + 1, FIGURES_FILTER_BYTES = 64 };

/* What is shown, and in which order. By wait, the ranks that others wait for longest come first,
 * and so do nodes that are down and models that do not train. */
struct figures_view {
	enum figures_sort sort;
	bool reverse;
	char filter[FIGURES_FILTER_BYTES]; /* "": all. */
};

const char *figures_sort_name(enum figures_sort sort);
/* False: there is none of this name. */
bool figures_sort_parse(const char *name, enum figures_sort *out);
/* The same figures in that order. With a filter only the nodes, models and ranks that have it in
 * their line. A model whose name has it keeps all of its ranks. A new reference, or NULL. */
json_t *figures_in(const json_t *figures, const struct figures_view *view);
void figures_print(const json_t *figures, const struct palette *p, FILE *out);

#endif
