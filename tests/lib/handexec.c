/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs in a list, for tests of what gives jobs to threads. The test takes them out in any order and
 * runs them on its own thread. Nothing fails: a list that is full says AGAIN, as a pool does. */
#include "lib/handexec.h"

#include "base/check.h"

#include <string.h>

static enum shard_status hand_submit(void *self, const struct exec_job *job)
{
	struct hand *h = self;

	if (h->nr == HAND_JOBS || h->full)
		return SHARD_AGAIN;
	h->job[h->nr++] = *job;
	return SHARD_OK;
}

static void hand_here(void *self, const struct exec_job *job)
{
	struct exec_job mine = *job;

	(void)self;
	mine.run(mine.args);
	mine.done(mine.owner, mine.args);
}

static uint32_t hand_lanes(const void *self)
{
	(void)self;
	return 2;
}

const struct exec_row hand_row = {
	.name = "hand", .submit = hand_submit, .here = hand_here, .lanes = hand_lanes};

void hand_run(struct hand *h, uint32_t i)
{
	struct exec_job job = h->job[i];

	CHECK(i < h->nr);
	h->nr--;
	memmove(&h->job[i], &h->job[i + 1], (h->nr - i) * sizeof(job));
	job.run(job.args);
	job.done(job.owner, job.args);
}
