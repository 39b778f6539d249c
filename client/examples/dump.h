/* SPDX-License-Identifier: Apache-2.0 */
/* dump.h: writes tensors to DIR/<tensor>.<kind>.bin, raw little-endian fp32. */
#ifndef EXAMPLES_DUMP_H
#define EXAMPLES_DUMP_H

#include "base/status.h"

/* Makes the folder where it is missing, but not the folders above it. */
enum shard_status dump_open(const char *dir, struct err *e);

enum shard_status dump_tensor(const char *dir, const char *tensor, enum shard_kind kind,
			      const float *values, uint64_t n, struct err *e);

const char *dump_kind(enum shard_kind kind); /* "master", "exp_avg", ... */

#endif
