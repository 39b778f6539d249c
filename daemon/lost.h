/* SPDX-License-Identifier: Apache-2.0 */
/* lost.h: a model's generation is over. model.c calls with the core's word. */
#ifndef SHARD_LOST_H
#define SHARD_LOST_H

#include "model.h"

void lost_act(struct model *m, const struct core_action *a);
void lost_sealed(struct model *m, const struct record *r); /* before the image is published: the weights may be back */

#endif
