/* SPDX-License-Identifier: Apache-2.0 */
/* What LOST means on a node: the weights and blobs here are void, a new generation begins. Without a checkpoint (SHARD_LOST) trainers are
 * out of the world, define and join anew. With one (SHARD_ROLLED_BACK) they stay joined and keep their arenas: their attempt ends, and
 * when the weights are back (lost_sealed) they hear the step, before any attempt of the new generation. */
#include "lost.h"

#include "blobs.h"
#include "define.h"
#include "manage.h"
#include "session.h"
#include "wire/ops.h"

#include <stdio.h>
#include <string.h>

static void tell(struct model *m, const struct core_id *id, enum shard_status st, const char *why)
{
	Shard__Why body = SHARD__WHY__INIT;

	body.why = (char *)(uintptr_t)why;
	body.status = st;
	list_each(it, &m->server->sessions) {
		struct session *t = list_of(it, struct session, link);

		if (t->role != ROLE_TRAINER || !t->defined)
			continue;
		session_event(t, OP_LOST, m, id, &body.base);
		if (st != SHARD_LOST)
			continue;
		if (t->join_model == m)
			t->join_model = NULL;
		if (t->model != m)
			continue;
		session_gone(t, false, NULL); /* it joins anew, if it does */
		session_detach(t);
	}
}

/* They stay: what they compute now is void, and the next image comes to them whole. */
static void end_attempt(struct model *m, bool was_on)
{
	Shard__Why body = SHARD__WHY__INIT;

	body.why = m->lost;
	body.status = SHARD_WORLD_CHANGED;
	for (uint32_t i = 0; was_on && i < m->gather.local_nr; i++)
		if (m->gather.local[i].session != NULL)
			session_event(m->gather.local[i].session, OP_ENDED, m, &m->id_now, &body.base);
	list_each(it, &m->server->sessions)
		if (list_of(it, struct session, link)->model == m)
			session_out_of_world(list_of(it, struct session, link));
	snprintf(m->why, sizeof(m->why), "%s", m->lost);
}

void lost_act(struct model *m, const struct core_action *a)
{
	bool back = a->status == SHARD_ROLLED_BACK, was_on = m->attempt_on;

	model_close_attempt(m);
	snprintf(m->lost, sizeof(m->lost), "%s", a->why != NULL ? a->why : "");
	if (back)
		end_attempt(m, was_on);
	m->voted = false;
	m->sealed = m->sealing = false;
	m->generation = a->id.generation;
	m->apply_left = m->image_lacking = m->old_lacking = 0;
	m->writer_session = 0;
	log_line(m->server->log, LOG_LEVEL_ERROR, "event=lost model=%s generation=%u restoring=%d why=%s", m->name, m->generation,
		 back, m->lost);
	blobs_reset(m);
	ckpt_reset(m);
	store_image_generation(m->store, m->generation);
	if (!back)
		tell(m, &a->id, SHARD_LOST, m->lost);
	define_lost(m, back ? SHARD_ROLLED_BACK : SHARD_LOST);
	manage_lost(m, a->status, m->lost);
	ckpt_lost(m, back);
}

void lost_sealed(struct model *m, const struct record *r)
{
	char why[sizeof(m->lost)];

	if (m->ckpt.rolled_back) {
		snprintf(why, sizeof(why), "the model was lost (%.200s) and restored from %.200s", m->lost, m->ckpt.from);
		tell(m, &r->id, SHARD_ROLLED_BACK, why);
	}
	m->lost[0] = 0;
	ckpt_sealed(m);
}
