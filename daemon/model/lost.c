/* SPDX-License-Identifier: Apache-2.0 */
/* LOST on one node: the weights and blobs here are void, and a new generation begins. model.c calls
 * with the core's action, and control/ and join.c call lost_check(). Without a checkpoint
 * (SHARD_LOST) trainers leave the world. define, join, write and seal are refused by lost_check()
 * until an operator restores or drops the model, so that weights are never begun anew by accident.
 * With when_lost = reinitialize a definition may begin anew. With a checkpoint (SHARD_ROLLED_BACK)
 * trainers stay joined and keep their arenas. Their attempt ends, and when the weights are back,
 * lost_sealed() tells them the step before any attempt of the new generation begins. Nothing else
 * here fails. */
#include "model/lost.h"

#include "base/check.h"
#include "data/blobs.h"
#include "data/catchup.h"
#include "data/device_images.h"
#include "data/durable.h"
#include "data/images.h"
#include "link/session.h"
#include "model/join.h"
#include "model/watch.h"
#include "wire/ops.h"

#include <stdio.h>
#include <string.h>

bool lost_for_good(const struct model *m)
{
	struct core_state core;

	core_state(m->core, &core);
	return core.lost && !m->sealed && !m->rolled_back;
}

const char *lost_why(const struct model *m)
{
	if (m->lost[0] != 0 || m->core == NULL || !lost_for_good(m))
		return m->lost;
	return m->lost_told;
}

void lost_told(struct model *m, const char *why)
{
	snprintf(m->lost_told, sizeof(m->lost_told), "%s", why);
}

/* The text that says what happened and what can be done now. */
static void sentence(const struct model *m, char *out, size_t bytes)
{
	const char *why = lost_why(m);
	const char *what = why[0] != 0             ? why
			   : m->memory.why != NULL ? m->memory.why
						   : "its weights went before this daemon started";

	CHECK(bytes >= 256);
	if (!lost_for_good(m))
		snprintf(out, bytes, "%.200s: define it again, write all weights and seal", what);
	else if (m->set.reinitialize)
		snprintf(out, bytes,
			 "%.200s: define it again, write all weights and seal (when_lost = "
			 "reinitialize)",
			 what);
	else
		snprintf(out, bytes,
			 "%.200s: `shardctl restore DIR` brings it back from a checkpoint, "
			 "`shardctl model drop %s` ends "
			 "it, and then it may be defined anew",
			 what, m->name);
}

static enum shard_status refusal(const struct model *m, struct err *e)
{
	char why[400];

	sentence(m, why, sizeof(why));
	return err_set(e, SHARD_LOST, "\"%s\" is lost: %s", m->name, why);
}

enum shard_status lost_check(const struct model *m, struct err *e)
{
	return m->set.reinitialize || !lost_for_good(m) ? SHARD_OK : refusal(m, e);
}

void lost_loaded(struct model *m, const struct core_view *view, const char *why)
{
	CHECK(view != NULL && why != NULL);
	m->gone = view->lost && !view->restoring;
	if (m->gone)
		snprintf(m->lost, sizeof(m->lost), "%s",
			 why[0] != 0 ? why : "its weights went before this daemon started");
}

static void tell(struct model *m, const struct core_id *id, enum shard_status st, const char *why)
{
	Shard__Why body = SHARD__WHY__INIT;

	CHECK(st == SHARD_LOST || st == SHARD_ROLLED_BACK);
	body.why = (char *)(uintptr_t)why;
	body.status = st;
	list_each(it, &m->server->conns.sessions) {
		struct session *t = list_of(it, struct session, link);

		if (t->role != ROLE_TRAINER || !t->uses)
			continue;
		model_tell(t, OP_LOST, m, id, &body.base);
		if (st != SHARD_LOST)
			continue;
		if (t->trainer->join_model == m)
			t->trainer->join_model = NULL;
		if (t->trainer->model != m)
			continue;
		trainer_gone(t->trainer, false, NULL); /* The trainer may join again. */
		trainer_detach(t->trainer);
	}
}

/* For a rollback: the trainers stay joined. The step that they are computing is void, and they will
 * get the next image whole. */
static void end_attempt(struct model *m, bool was_on)
{
	Shard__Why body = SHARD__WHY__INIT;

	CHECK(m->rolled_back);
	body.why = m->lost;
	body.status = SHARD_WORLD_CHANGED;
	for (uint32_t i = 0; was_on && i < m->contrib.local_nr; i++)
		if (m->contrib.local[i].trainer != NULL)
			model_tell(m->contrib.local[i].trainer->session, OP_ENDED, m,
				   &m->attempt.id, &body.base);
	list_each(it, &m->server->conns.sessions)
		if (list_of(it, struct session, link)->trainer->model == m)
			trainer_out_of_world(list_of(it, struct session, link)->trainer);
	snprintf(m->why, sizeof(m->why), "%s", m->lost);
}

void lost_act(struct model *m, const struct core_action *a)
{
	bool back = a->status == SHARD_ROLLED_BACK, was_on = m->attempt.on, ordered;
	char why[400];
	struct err e;

	CHECK(a->type == CORE_ACT_LOST);
	model_close_attempt(m);
	m->rolled_back = back; /* lost_for_good() reads it. */
	if (!m->gone)
		snprintf(m->lost, sizeof(m->lost), "%s", a->why != NULL ? a->why : "");
	if (back)
		end_attempt(m, was_on);
	m->attempt.voted = false;
	m->sealed = m->img.sealing = m->img.seal_due = m->memory.settle.on = false;
	m->generation = a->id.generation;
	m->img.apply_left = m->img.lacking = m->img.old_lacking = 0;
	m->sealed_without = 0;
	m->restored_from[0] = 0;
	m->writer.session = 0;
	ordered = back && strncmp(m->lost, LOST_BY_ORDER, strlen(LOST_BY_ORDER)) == 0;
	log_line(m->server->log, ordered ? LOG_LEVEL_INFO : LOG_LEVEL_ERROR,
		 "event=lost model=%s generation=%u restoring=%d why=%s", m->name, m->generation,
		 back, m->lost);
	landing_end(&m->img.landing);
	images_reset(m);
	catchup_lost(m);
	durable_lost(m);
	blobs_reset(m);
	WATCH_TELL(m->server, voided, m);
	store_image_generation(m->store, m->generation);
	device_images_void(m);
	if (back)
		err_set(&e, SHARD_ROLLED_BACK, "%s", m->lost);
	else
		refusal(m, &e);
	if (!back) {
		sentence(m, why, sizeof(why));
		tell(m, &a->id, SHARD_LOST, why);
	}
	WATCH_TELL(m->server, lost, m, back, &e);
	m->gone = lost_for_good(m);
	if (!back && !m->gone)
		m->lost[0] = 0; /* The model was not sealed yet. A new definition may write it. */
}

void lost_follow(struct model *m)
{
	struct core_action a = {.type = CORE_ACT_LOST,
				.why = "it was lost before this node had its first view"};
	struct core_state core;

	CHECK(!m->server->later.in_event);
	core_state(m->core, &core);
	if (m->sealed || core.generation <= m->generation)
		return;
	a.id = (struct core_id){.term = core.term, .seq = core.seq, .generation = core.generation};
	a.status = core.restoring ? SHARD_ROLLED_BACK : SHARD_LOST;
	lost_act(m, &a);           /* Also for trainers that have attached here meanwhile. */
	server_wake(m->server, 0); /* Shares of a restore may wait for this. */
}

void lost_no_way_back(struct model *m, const char *why)
{
	snprintf(m->lost, sizeof(m->lost), "no checkpoint of it is good: %.400s", why);
	m->rolled_back = false;
}

void lost_sealed(struct model *m, const struct record *r)
{
	char why[sizeof(m->lost)];

	CHECK(m->core != NULL && r->id.generation > 0);
	if (m->rolled_back) {
		if (m->restored_from[0] != 0)
			snprintf(why, sizeof(why),
				 "the model was lost (%.200s) and restored from %.200s", m->lost,
				 m->restored_from);
		else /* It came back without this node. */
			snprintf(why, sizeof(why), "the model went back: %.200s", m->lost);
		tell(m, &r->id, SHARD_ROLLED_BACK, why);
	}
	m->lost[0] = 0;
	m->gone = false;
	WATCH_TELL(m->server, sealed, m);
}
