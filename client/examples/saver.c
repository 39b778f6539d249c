// SPDX-License-Identifier: Apache-2.0
/* Asks for a checkpoint every so many steps. gpt.c calls saver_step() after each result and
 * saver_end() after the last step. A step only looks whether the save has finished and does not
 * wait for it, so a slow disk costs no step. There is one save at a time, and a save that becomes
 * due while another one is written is left out. A failure is one line on stderr. */
#include "examples/saver.h"

#include <stdbool.h>
#include <stdio.h>

static void failed(enum shard_status st, unsigned long long step)
{
	fprintf(stderr, "gpt: no checkpoint of step %llu: %s: %s\n", step, shard_name(st),
		shard_error());
}

static bool under_way(struct saver *s, shard_model *m, int64_t timeout_ms)
{
	enum shard_status st;

	if (s->ticket == 0)
		return false;
	st = timeout_ms == 0 ? shard_test(m, s->ticket) : shard_wait(m, s->ticket, timeout_ms);
	if (st == SHARD_AGAIN)
		return true;
	if (st != SHARD_OK)
		failed(st, s->step);
	s->ticket = 0;
	return false;
}

void saver_step(struct saver *s, shard_model *m, uint32_t rank, uint64_t step)
{
	enum shard_status st;

	if (under_way(s, m, 0) || s->every == 0 || rank != 0 || step % s->every != 0)
		return;
	s->step = step;
	/* The next commit has not been made, so the checkpoint is of this step. */
	st = shard_save(m, s->dir, NULL, &s->ticket);
	if (st == SHARD_OK)
		return;
	s->ticket = 0;
	failed(st, step);
}

void saver_end(struct saver *s, shard_model *m)
{
	(void)under_way(s, m, SHARD_DEFAULT);
}
