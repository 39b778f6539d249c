// SPDX-License-Identifier: Apache-2.0
/* What became of the last attempts that this trainer took part in. Call with the client's lock.
 * Each handle remembers a few of them in a ring that is indexed by the attempt's number.
 * shard_begin() opens a row, a RESULT frame decides it, and an ENDED frame or anything else that
 * voids the attempt ends it. Nothing here can fail. An attempt that is no longer remembered has no
 * row. */
#include "verdict.h"

#include <stdio.h>
#include <string.h>

bool verdict_same(const struct wire_head *a, const struct wire_head *b)
{
	return a->term == b->term && a->seq == b->seq && a->step == b->step &&
	       a->attempt == b->attempt;
}

struct verdict *verdict_find(struct shard_model *m, uint64_t attempt_no)
{
	struct verdict *v = &m->verdicts[attempt_no % MODEL_VERDICTS];

	return attempt_no != 0 && v->no == attempt_no ? v : NULL;
}

void verdict_open(struct shard_model *m, uint64_t attempt_no)
{
	struct verdict *v = &m->verdicts[attempt_no % MODEL_VERDICTS];

	CHECK(attempt_no != 0);
	memset(v, 0, sizeof(*v));
	v->no = attempt_no;
}

void verdict_end(struct shard_model *m, uint64_t attempt_no, enum shard_status status,
		 const char *why)
{
	struct verdict *v = verdict_find(m, attempt_no);

	if (v == NULL || v->decided || v->ended)
		return;
	v->ended = true;
	v->ended_as = status;
	snprintf(v->why, sizeof(v->why), "%s", why);
}
