// SPDX-License-Identifier: Apache-2.0
/* A step before its turn. Called by step.c and world.c with the client's lock, only where the model has max_staleness = 1. Happy path:
 * step t is committed and all of it is sent → t + 1 begins on the weights that t's ATTEMPT called the newest, with world and loss scale
 * as t has them → t's RESULT → the ATTEMPT of t + 1 says the same → what was pushed meanwhile goes out. Otherwise the work was for
 * another world or scale: SHARD_WORLD_CHANGED, and the step is begun again. At most one step is ahead. */
#include "ahead.h"

#include "step.h"
#include "weights.h"
#include "world.h"

#include <stdio.h>
#include <string.h>

bool ahead_may(const struct shard_model *m, uint32_t *chunk)
{
	uint64_t first = (uint64_t)*chunk * m->space.chunk_elems;

	return m->staleness > 0 && m->phase == PHASE_COMMITTED && !m->ahead && m->copying == 0 && m->queue_nr == 0 &&
	       !m->ready_due && weights_here(m, first, m->space.elems - first, m->begun.newest, chunk);
}

void ahead_begin(struct shard_model *m)
{
	m->flight = m->begun;
	m->ahead = true;
	m->abandon_due = false;
	m->begun.no = ++m->attempts;
	m->begun.id.step++;
	m->begun.id.attempt = 0;
	m->begun.weights = m->flight.newest;
}

static void over(struct shard_model *m, enum shard_status status, const char *why)
{
	struct verdict *v = step_verdict(m, m->begun.no);

	if (v == NULL || v->decided || v->ended)
		return;
	v->ended = true;
	v->ended_as = status;
	snprintf(v->why, sizeof(v->why), "%s", why && why[0] ? why : "the step before it ended");
}

void ahead_back(struct shard_model *m, enum shard_status status, const char *why)
{
	over(m, status == SHARD_MISMATCH ? SHARD_WORLD_CHANGED : status, why);
	m->begun = m->flight;
	m->flight.no = 0;
	m->ahead = m->abandon_due = false;
	m->phase = PHASE_COMMITTED;
}

bool ahead_attempt(struct shard_model *m, const struct attempt *a, const char *why)
{
	const struct attempt *b = &m->begun;
	struct wire_head id = b->id;
	char text[MODEL_WHY_BYTES];

	if (a->id.step == b->id.step && a->rank == b->rank && a->world_size == b->world_size && a->loss_scale == b->loss_scale &&
	    a->weights == b->weights && a->id.generation == b->id.generation) {
		uint64_t no = b->no;

		m->begun = *a;
		m->begun.no = no;
		m->offered = m->begun;
		m->offered_over = false;
		m->ahead = false;
		return true;
	}
	if (why != NULL && why[0] != 0)
		snprintf(text, sizeof(text), "%s", why);
	else if (a->loss_scale != b->loss_scale)
		snprintf(text, sizeof(text), "the loss scale is %g now, and was %g when the step began", a->loss_scale,
			 b->loss_scale);
	else
		snprintf(text, sizeof(text), "the world changed");
	m->ahead = m->abandon_due = false;
	world_ended(m, &id, SHARD_WORLD_CHANGED, text);
	return false;
}
