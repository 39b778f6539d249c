/* SPDX-License-Identifier: Apache-2.0 */
/* data.h: a text in memory and the samples of it. Sample i of a step's global batch is a function
 * of (seed, step, i); a rank takes a contiguous share of the batch. So when the world changes the
 * global batch stays the same, only its shares move. */
#ifndef EXAMPLES_DATA_H
#define EXAMPLES_DATA_H

#include "base/status.h"

struct data {
	uint8_t *text;
	uint64_t bytes;
	const char *path; /* the caller's */
};

/* SYSTEM: the file cannot be read. */
enum shard_status data_load(struct data *d, const char *path, struct err *e);
void data_deinit(struct data *d);

/* NULL, or why sequences of seq bytes cannot be drawn from it. */
const char *data_too_short(const struct data *d, uint32_t seq);

/* seq + 1 bytes. The text must be long enough. */
const uint8_t *data_sample(const struct data *d, uint32_t seq, uint64_t seed, uint64_t step,
			   uint64_t index);

/* Which samples of a batch are this rank's: equal shares, and one more for each of the first ranks
 * if it does not come out even. */
void data_share(uint64_t batch, uint32_t rank, uint32_t world, uint64_t *first, uint64_t *count);

double data_entropy(const struct data *d); /* order 0, in nats per byte */

#endif
