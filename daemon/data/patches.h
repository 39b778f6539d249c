/* SPDX-License-Identifier: Apache-2.0 */
/* patches.h: codes of images that come from other nodes, and the images that are made of them
 * (data/deltas.h). */
#ifndef SHARD_DATA_PATCHES_H
#define SHARD_DATA_PATCHES_H

#include "base/status.h"
#include "wire/frame.h"

struct model;
struct peer;
struct server;

/* As apply_image_head() and apply_image_part(). p: who sends them. */
enum shard_status patches_head(struct model *m, const struct peer *p, const struct wire_head *h,
			       void **to, struct err *e);
enum shard_status patches_part(struct model *m, const struct wire_head *h, struct err *e);
void patches_turn(struct server *s); /* The tiers may have room again. */

#endif
