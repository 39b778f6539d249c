/* SPDX-License-Identifier: Apache-2.0 */
/* scaler.h: the loss scale of fp16 training by DeepSpeed's DynamicLossScaler rules. Only record.c
 * calls it. */
#ifndef SHARD_CORE_SCALER_H
#define SHARD_CORE_SCALER_H

#include "core/record.h"

void scaler_start(struct scaler *s, const struct record_conf *conf);
/* Updates the scale for one decided step. Returns false for an overflow with the scale already at
 * its floor. The state then stays as it was. */
bool scaler_update(struct scaler *s, const struct record_conf *conf, bool overflow);

#endif
