/* SPDX-License-Identifier: Apache-2.0 */
/* image.h: the image that a trainer reads, and tickets. */
#ifndef SHARD_CLIENT_IMAGE_H
#define SHARD_CLIENT_IMAGE_H

#include "handle.h"

enum shard_status image_init(struct shard_model *m, struct err *e);
void image_deinit(struct shard_model *m);
bool image_holds(const struct shard_model *m, uint64_t first, uint64_t count, uint64_t step, uint32_t *chunk); /* else: which not */
enum shard_status image_part(struct shard_model *m, const struct wire_head *h, void **to, struct err *e); /* tcp: where it goes */
void image_part_came(struct shard_model *m, const struct wire_head *h);
void image_anew(struct shard_model *m);                   /* another generation: nothing that was held counts */
void image_skipped(struct shard_model *m, uint64_t step); /* tcp: only versions move */
shard_ticket ticket_done_now(struct shard_model *m);      /* a ticket that is done already */
struct ticket *ticket_new(struct shard_model *m);         /* NULL: MODEL_TICKETS are waiting */
void ticket_settle(struct shard_model *m);
void ticket_void(struct shard_model *m); /* what waits will not come: SHARD_ROLLED_BACK */

#endif
