/* SPDX-License-Identifier: Apache-2.0 */
/* Taking models up again. Happy path after a warm start: for each model the regions are mapped, the definition in them makes it
 * as it was, its core is loaded, tiles that were being updated are put back, those that lack the step in hand get it, the image is made
 * from the masters, all by threads, before anybody is answered; then CORE_EV_WARM. On the coordinator its files say which models there are,
 * and must agree. All or nothing: SHARD_MISMATCH of one, and this start is a new member without any (cold). Other failures end the
 * start, and the memory stays where it is. What is read here is another process's, perhaps of another release: it is checked first. */
#include "resume.h"

#include "apply.h"
#include "base/check.h"
#include "blobs.h"
#include "corewire.h"
#include "optim/ftz.h"
#include "park.h"
#include "peer.h"
#include "tile.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MODELS_SHIFT 10 /* models that one start of the coordinator defines before it runs into the numbers of the next */

static const uint8_t nobody[STATIC_UUID_BYTES];

void resume_from(struct model *m, const struct peer *p)
{
	if (memcmp(m->from, nobody, sizeof(nobody)) != 0)
		return;
	memcpy(m->from, p->uuid, sizeof(m->from));
	if (model_parked(m))
		meta_from(&m->meta, m->from);
}

/* --- weights and image --- */

struct settle {
	struct model *m;
	bool apply, old; /* tiles that lack the record's step get it; there is an image before the newest */
	_Atomic uint32_t next;
	_Atomic uint64_t kept;
};

static void *settle_chunks(void *arg)
{
	struct settle *s = arg;
	struct model *m = s->m;
	unsigned before = ftz_on();
	uint32_t c;

	while ((c = atomic_fetch_add(&s->next, 1)) < m->layout->chunks_nr) {
		if (m->owner[c] != m->server->self)
			continue;
		if (s->apply)
			atomic_fetch_add(&s->kept, tile_apply(m, c, m->slot));
		store_seal_chunk(m->store, m->slot, c);
		store_image_keep(m->store, m->slot, c);
		store_image_version(m->store, m->slot, c, apply_version(m));
		if (!s->old)
			continue;
		store_image_again(m->store, m->slot ^ 1, c);
		store_image_version(m->store, m->slot ^ 1, c, m->content_old);
	}
	ftz_restore(before);
	return NULL;
}

/* Before the loop runs, so nobody waits for it. A thread that cannot be made is one less. */
static void settle_all(struct model *m, bool apply)
{
	struct settle s = {.m = m, .apply = apply, .old = m->set.max_staleness > 0 && m->content_old != m->content_step};
	pthread_t thread[WORKER_MAX];
	uint32_t nr = 0, want = m->server->conf->workers - 1;
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (nr < want && nr < WORKER_MAX && nr + 1 < store_owned(m->store) &&
	       pthread_create(&thread[nr], NULL, settle_chunks, &s) == 0)
		nr++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	settle_chunks(&s);
	while (nr > 0)
		pthread_join(thread[--nr], NULL);
	m->kept_total += s.kept;
}

/* What the tensors are as of, and whether the record in hand has begun to change them. */
static enum shard_status agree(struct model *m, const struct core_state *core, bool *begun, struct err *e)
{
	const struct record *r = core->record;
	struct meta_mark mark = m->meta.mark;
	bool applying = core->part == CORE_APPLYING;

	*begun = core_id_cmp(&mark.id, &r->id) == 0;
	if (*begun)
		return SHARD_OK;
	if (!applying && r->outcome == RECORD_SEAL) { /* sealed, and the process died before it said so to itself */
		mark.id = r->id;
		mark.step = mark.content_step = mark.content_old = r->id.step;
		mark.cleared = r->id.generation;
		meta_mark(&m->meta, &mark);
		*begun = true;
		return SHARD_OK;
	}
	if (applying && mark.id.generation == r->id.generation && mark.id.step + 1 == r->id.step)
		return SHARD_OK;
	return err_set(e, SHARD_MISMATCH, "its tensors are of generation %u step %lu, its record of generation %u step %lu",
		       mark.id.generation, (unsigned long)mark.id.step, r->id.generation, (unsigned long)r->id.step);
}

static enum shard_status attempt_again(struct model *m, const struct core_state *core, struct err *e)
{
	enum shard_status st;

	if (core->part == CORE_FREE)
		return blobs_again(m, NULL, e);
	m->id_now = core->id;
	m->world = *core->world;
	m->epoch++;
	m->attempt_on = core->part == CORE_PREPARED;
	if ((st = gather_again(m, e)) != SHARD_OK || (st = blobs_again(m, &core->id, e)) != SHARD_OK)
		return st;
	if (core->part == CORE_APPLYING)
		blobs_decided(m, core->id.step, true);
	return SHARD_OK;
}

static enum shard_status settle_sealed(struct model *m, const struct core_state *core, struct err *e)
{
	const struct record *r = core->record;
	bool begun, moves = core->part == CORE_APPLYING && r->outcome == RECORD_APPLIED;
	enum shard_status st;

	if ((st = agree(m, core, &begun, e)) != SHARD_OK || (st = attempt_again(m, core, e)) != SHARD_OK)
		return st;
	m->sealed = true;
	m->record = *r;
	m->step = m->meta.mark.step;
	m->content_step = m->meta.mark.content_step;
	m->content_old = m->meta.mark.content_old;
	m->slot = apply_slot(m, r) ^ (m->set.max_staleness > 0 && moves && !begun);
	store_image_newest(m->store, m->slot);
	m->slot_content[m->slot] = m->content_step;
	m->slot_content[m->slot ^ 1] = UINT64_MAX;
	m->image_lacking = m->layout->chunks_nr - store_owned(m->store);
	if (m->set.max_staleness > 0 && m->content_old != m->content_step) {
		m->slot_content[m->slot ^ 1] = m->content_old;
		m->old_lacking = m->image_lacking;
	}
	m->applying = moves && begun; /* by threads, or by this one, as if a worker did */
	if ((st = tile_finish(m, e)) == SHARD_OK)
		settle_all(m, m->applying);
	m->applying = false; /* until its core says so */
	return st;
}

static enum shard_status settle(struct model *m, struct err *e)
{
	struct core_state core;
	enum shard_status st = SHARD_OK;

	core_state(m->core, &core);
	if (core.generation != 0)
		m->generation = core.generation;
	store_image_generation(m->store, m->generation);
	m->ckpt.rolled_back = core.restoring;
	if (core.sealed)
		st = settle_sealed(m, &core, e);
	else if (m->meta.mark.cleared < m->generation)
		model_reset(m); /* LOST was decided, and not carried out */
	m->again = true;
	if (st == SHARD_OK)
		log_line(m->server->log, LOG_LEVEL_INFO, "event=model_kept model=%s generation=%u sealed=%d step=%lu phase=%d",
			 m->name, m->generation, core.sealed, (unsigned long)m->step, (int)core.part);
	return st;
}

/* --- one model --- */

static enum shard_status take(struct server *s, uint32_t id, struct meta_found *found, struct err *e)
{
	enum shard_status st;

	*found = (struct meta_found){.undo_nr = 0};
	if (!park_has(s->park, id))
		return err_set(e, SHARD_MISMATCH, "model %u is in %s, and not in it", id, s->conf->state);
	st = park_map(s->park, id, PARK_META, 0, SHM_HUGE_NO, &found->shm, e);
	if (st == SHARD_OK && (st = meta_peek(found, id, e)) != SHARD_OK)
		shm_unmap(&found->shm);
	return st;
}

/* spec and found are taken over. */
static enum shard_status make(struct server *s, Shard__Model *spec, const struct core_view *view, struct meta_found *found,
			      struct model **m, struct err *e)
{
	enum shard_status st;

	if ((st = model_make(m, s, spec, view, found, e)) != SHARD_OK)
		return st;
	memcpy((*m)->from, found->from, sizeof((*m)->from));
	if ((st = settle(*m, e)) != SHARD_OK) {
		(*m)->keep = true;
		model_free(m);
	}
	return st;
}

static enum shard_status kept_one(struct server *s, uint32_t id, struct err *e)
{
	struct meta_found found;
	Shard__Model *spec;
	struct model *m;
	enum shard_status st = take(s, id, &found, e);

	if (st != SHARD_OK)
		return st;
	spec = shard__model__unpack(NULL, found.spec_bytes, found.spec);
	free(found.spec);
	if (spec != NULL && spec->spec != NULL && spec->model == id)
		return make(s, spec, NULL, &found, &m, e);
	if (spec != NULL)
		shard__model__free_unpacked(spec, NULL);
	shm_unmap(&found.shm);
	return err_set(e, SHARD_MISMATCH, "the definition of model %u is not one of this release", id);
}

/* Is it the definition that the file has? Its generation goes on. */
static bool same_definition(const Shard__Model *file, const struct meta_found *found)
{
	Shard__Model *kept = shard__model__unpack(NULL, found->spec_bytes, found->spec), copy = *file;
	bool same = false;
	uint8_t *a, *b;
	size_t bytes;

	if (kept == NULL)
		return false;
	copy.generation = kept->generation;
	bytes = shard__model__get_packed_size(kept);
	a = malloc(bytes + 1);
	b = malloc(bytes + 1);
	if (a != NULL && b != NULL && shard__model__get_packed_size(&copy) == bytes) {
		shard__model__pack(kept, a);
		shard__model__pack(&copy, b);
		same = memcmp(a, b, bytes) == 0;
	}
	free(a);
	free(b);
	shard__model__free_unpacked(kept, NULL);
	return same;
}

/* --- the coordinator's files --- */

static enum shard_status make_loaded(struct server *s, Shard__ModelFile *file, uint32_t id, const struct core_view *view,
				     struct model **m, struct err *e)
{
	struct meta_found found;
	Shard__Model *spec = file->model;
	enum shard_status st;
	bool same;

	if (!park_warm(s->park)) {
		file->model = NULL;
		return model_make(m, s, spec, view, NULL, e);
	}
	if ((st = take(s, id, &found, e)) != SHARD_OK)
		return st;
	same = same_definition(spec, &found);
	free(found.spec);
	if (!same) {
		shm_unmap(&found.shm);
		return err_set(e, SHARD_MISMATCH, "the definition of \"%s\" is another one in %s", spec->spec->name,
			       s->conf->state);
	}
	file->model = NULL;
	return make(s, spec, view, &found, m, e);
}

/* Its chunks are on nodes that are no more, or not on those that are new: what it had comes back from a checkpoint. */
static enum shard_status leave(struct server *s, uint32_t id, const Shard__ModelFile *file, struct err *e)
{
	char name[64];
	struct err why;
	enum shard_status st = static_leave(s->dir, id, name, sizeof(name), e);

	if (st != SHARD_OK)
		return st;
	(void)err_set(&why, SHARD_MISMATCH,
		      "it was made for %zu nodes and [nodes] has %u; its definition stays as %s/%s: bring the model back by "
		      "`shardctl restore`",
		      file->view->n_incarnation, s->nodes_nr, s->conf->state, name);
	log_line(s->log, LOG_LEVEL_WARN, "event=model_left model=%s why=%s", file->model->spec->name, why.text);
	return SHARD_OK;
}

static enum shard_status load_one(void *arg, uint32_t id, const void *bytes, size_t bytes_nr, struct err *e)
{
	struct server *s = arg;
	Shard__ModelFile *file = shard__model_file__unpack(NULL, bytes_nr, bytes);
	struct core_view *view = calloc(1, sizeof(*view));
	struct corewire_limits limits = {.nodes_nr = s->nodes_nr};
	enum shard_status st = SHARD_OK;
	struct model *m = NULL;

	if (file == NULL || view == NULL || file->model == NULL || file->model->spec == NULL || file->view == NULL) {
		st = err_set(e, SHARD_PROTOCOL, "model file %u in %s is not one of this release", id, s->conf->state);
	} else if (file->view->n_incarnation != s->nodes_nr) {
		st = leave(s, id, file, e);
		shard__model_file__free_unpacked(file, NULL);
		free(view);
		return st;
	} else {
		limits.groups_nr = file->model->spec->n_groups > 0 ? (uint32_t)file->model->spec->n_groups : 1;
		st = corewire_unpack_view(file->view, &limits, &s->rx, view, e);
	}
	if (st == SHARD_OK)
		st = make_loaded(s, file, id, view, &m, e);
	if (st == SHARD_OK) {
		ckpt_loaded(m, file->checkpoint_dir, view, bytes, bytes_nr);
		s->next_model = id > s->next_model ? id : s->next_model;
		log_line(s->log, LOG_LEVEL_INFO, "event=model_loaded model=%s generation=%u step=%lu", m->name, view->generation,
			 (unsigned long)(view->sealed ? view->record.id.step : 0));
	}
	if (file != NULL)
		shard__model_file__free_unpacked(file, NULL);
	free(view);
	return st;
}

/* --- all of them --- */

/* What the coordinator has no file of was dropped, or never durable. */
static enum shard_status load_kept(struct server *s, struct err *e)
{
	uint32_t ids[PARK_MODELS_MAX], nr = park_models(s->park, ids, PARK_MODELS_MAX);
	enum shard_status st = SHARD_OK;

	if (s->self != s->coordinator) {
		for (uint32_t i = 0; i < nr && st == SHARD_OK; i++)
			st = kept_one(s, ids[i], e);
		return st;
	}
	if ((st = static_load(s->dir, load_one, s, e)) != SHARD_OK)
		return st;
	for (uint32_t i = 0; i < nr; i++)
		if (model_find(s, ids[i]) == NULL)
			park_forget(s->park, ids[i]);
	return SHARD_OK;
}

static enum shard_status go_cold(struct server *s, struct err *e)
{
	struct err why = *e;

	while (!list_empty(&s->models)) {
		struct model *m = list_of(s->models.next, struct model, link);

		m->keep = true;
		model_free(&m);
	}
	return park_cold(s->park, why.text, e);
}

enum shard_status resume_load(struct server *s, struct err *e)
{
	enum shard_status st = SHARD_OK;

	/* a number means one model for ever, also one that was dropped and that a node which was away still has */
	s->next_model = (uint32_t)((s->start - 1) << MODELS_SHIFT) & INT32_MAX;
	s->incarnation = park_warm(s->park) ? park_incarnation(s->park) : s->start;
	if (park_warm(s->park) && (st = load_kept(s, e)) == SHARD_MISMATCH && (st = go_cold(s, e)) == SHARD_OK)
		s->incarnation = s->start;
	if (st != SHARD_OK || (st = static_set_member(s->dir, s->incarnation, e)) != SHARD_OK)
		return st;
	s->next_session = s->first_session = (s->start - s->incarnation) << 32; /* none of this member is used twice */
	if (!park_warm(s->park) && s->self == s->coordinator && (st = static_load(s->dir, load_one, s, e)) != SHARD_OK)
		return st;
	park_begun(s->park);
	return SHARD_OK;
}

void resume_begin(struct server *s)
{
	list_each(it, &s->models) {
		struct model *m = list_of(it, struct model, link);

		if (!m->again)
			continue;
		model_event(m, &(struct core_event){.type = CORE_EV_WARM});
		m->again = false;
	}
}
