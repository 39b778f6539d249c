/* SPDX-License-Identifier: Apache-2.0 */
/* scrape_model.h: the metrics of models, in Prometheus' text format. */
#ifndef SHARD_OBS_SCRAPE_MODEL_H
#define SHARD_OBS_SCRAPE_MODEL_H

#include <stdbool.h>
#include <stdio.h>

struct model;
struct server;

/* May everybody who reaches HTTP see it? */
bool scrape_shown(const struct model *m);
void scrape_models(FILE *f, const struct server *s);

#endif
