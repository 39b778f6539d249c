/* SPDX-License-Identifier: Apache-2.0 */
/* history.h: makes JSON of the pages of a node's history of a model. A daemon sends whatever is in
 * its files, so the bytes are checked here. */
#ifndef SHARD_CTL_HISTORY_H
#define SHARD_CTL_HISTORY_H

#include "shard.pb-c.h"

#include <jansson.h>
#include <stdbool.h>

struct history_reader; /* Of one node. Opaque. */

/* Gets each entry, which it frees, and the steps that it is about. Damage may hide any from the
 * last record on, and what is said of the whole history is about all. Beside those that the node
 * wrote there are "missing" (steps or entries that are not in the history, though no gap says so)
 * and "damaged" (bytes that are no entry). */
typedef void history_fn(void *arg, json_t *entry, uint64_t first, uint64_t last);

/* NULL: no memory. */
struct history_reader *history_reader_new(history_fn *fn, void *arg);
/* Takes the next page. False: it does not follow the one before it. */
bool history_reader_page(struct history_reader *r, const Shard__HistoryPage *p);
void history_reader_free(struct history_reader *r);

#endif
