// SPDX-License-Identifier: Apache-2.0
/* data.c: owns the training text. It loads the text, draws samples from it and measures its order-0
 * entropy. gpt.c and the in-process reference call it. Only data_load() can fail: where the file
 * does not exist, is not a regular file, cannot be read in full, or does not fit in memory. */
#include "examples/data.h"
#include "base/check.h"
#include "base/rng.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum shard_status data_load(struct data *d, const char *path, struct err *e)
{
	FILE *f = fopen(path, "rbe");
	struct stat st;
	enum shard_status rc = SHARD_OK;

	memset(d, 0, sizeof(*d));
	if (!f)
		return err_set(e, SHARD_SYSTEM, "data file %s: %s", path, strerror(errno));
	if (fstat(fileno(f), &st) != 0)
		rc = err_set(e, SHARD_SYSTEM, "data file %s: %s", path, strerror(errno));
	else if (!S_ISREG(st.st_mode))
		rc = err_set(e, SHARD_SYSTEM, "data file %s is not a regular file", path);
	else if (!(d->text = malloc((size_t)st.st_size + 1)))
		rc = err_set(e, SHARD_SYSTEM, "data file %s: no memory for %lld bytes", path,
			     (long long)st.st_size);
	if (rc == SHARD_OK) {
		d->bytes = fread(d->text, 1, (size_t)st.st_size, f);
		d->path = path;
		if (d->bytes != (uint64_t)st.st_size)
			rc = err_set(e, SHARD_SYSTEM, "data file %s: read %llu of %lld bytes", path,
				     (unsigned long long)d->bytes, (long long)st.st_size);
	}
	if (rc != SHARD_OK)
		data_deinit(d);
	fclose(f);
	return rc;
}

void data_deinit(struct data *d)
{
	free(d->text);
	memset(d, 0, sizeof(*d));
}

const char *data_too_short(const struct data *d, uint32_t seq)
{
	return d->bytes < (uint64_t)seq + 1 ? "the text is shorter than one sequence and its last "
					      "target: choose a smaller --seq"
					    : NULL;
}

const uint8_t *data_sample(const struct data *d, uint32_t seq, uint64_t seed, uint64_t step,
			   uint64_t index)
{
	struct rng r = {seed};

	CHECK(d->bytes > seq);
	r.state = rng_next(&r) + step;
	r.state = rng_next(&r) + index;
	return d->text + rng_below(&r, d->bytes - seq);
}

void data_share(uint64_t batch, uint32_t rank, uint32_t world, uint64_t *first, uint64_t *count)
{
	uint64_t each = batch / world, more = batch % world;

	CHECK(rank < world);
	*count = each + (rank < more);
	*first = each * rank + (rank < more ? rank : more);
}

double data_entropy(const struct data *d)
{
	uint64_t seen[256] = {0};
	double h = 0;

	for (uint64_t i = 0; i < d->bytes; i++)
		seen[d->text[i]]++;
	for (unsigned b = 0; b < 256; b++) {
		double p = (double)seen[b] / (double)d->bytes;

		if (seen[b])
			h -= p * log(p);
	}
	return h;
}
