/* SPDX-License-Identifier: Apache-2.0 */
/* data.h: a text in memory and the samples of it. Sample i of a step's global batch is a function
 * of (seed, step, i), and a rank takes a contiguous share of the batch. So the global batch stays
 * the same when the world changes, and only the shares of the ranks move. */
#ifndef EXAMPLES_DATA_H
#define EXAMPLES_DATA_H

#include "base/status.h"

struct data {
	uint8_t *text;
	uint64_t bytes;
	const char *path; /* Belongs to the caller. */
};

/* SHARD_SYSTEM: the file cannot be read. */
enum shard_status data_load(struct data *d, const char *path, struct err *e);
void data_deinit(struct data *d);

/* Returns NULL, or why sequences of seq bytes cannot be drawn from the text. */
const char *data_too_short(const struct data *d, uint32_t seq);

/* Returns a sample of seq + 1 bytes. The text must be longer than seq (data_too_short()). */
const uint8_t *data_sample(const struct data *d, uint32_t seq, uint64_t seed, uint64_t step,
			   uint64_t index);

/* Says which samples of a batch are this rank's. Shares are equal, and where the division leaves a
 * rest each of the first ranks takes one more. */
void data_share(uint64_t batch, uint32_t rank, uint32_t world, uint64_t *first, uint64_t *count);

double data_entropy(const struct data *d); /* Of order 0, in nats per byte. */

#endif
