/* SPDX-License-Identifier: Apache-2.0 */
/* scaler.h: the loss scale of fp16 training by DeepSpeed's DynamicLossScaler rules. Only record.c
 * calls it. */
#ifndef SHARD_CORE_SCALER_H
#define SHARD_CORE_SCALER_H

#include "core/record.h"

void scaler_start(struct scaler *s, const struct record_conf *conf);
/* One decided step. false: an overflow with the scale already at its floor; the state is then left
 * as it was. */
bool scaler_update(struct scaler *s, const struct record_conf *conf, bool overflow);

#endif
