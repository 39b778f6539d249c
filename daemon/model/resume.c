/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the models of earlier starts again. server.c calls resume_load() and then resume_begin().
 * Happy path of a warm start: for each model the regions are mapped, the definition in them makes
 * the model as it was, its core is loaded, and tiles that threads were overwriting when they died
 * are repaired. Then the core gets CORE_EV_WARM, and the loop answers. Meanwhile the workers finish
 * a step that was being applied, tile by tile, and make the images from the masters (apply_settle).
 * On the coordinator its files say which models there are, and the memory must agree with them.
 * SHARD_MISMATCH voids that model's memory on this node. The coordinator then makes it new from its
 * file, another node when MODEL comes, and a new incarnation tells all nodes. A model whose file
 * has every step comes from there instead, on each node (recall.c). Other failures end the start,
 * and the memory stays. All of it was written by another process, perhaps of another release, so it
 * is checked first. */
#include "model/resume.h"
#include "model/definitions.h"
#include "model/lead.h"

#include "data/apply.h"
#include "config/cluster.h"
#include "base/check.h"
#include "data/blobs.h"
#include "data/deltas.h"
#include "data/feed.h"
#include "model/corewire.h"
#include "model/disk.h"
#include "model/tablewire.h"
#include "model/lost.h"
#include "model/recall.h"
#include "warm/warm.h"
#include "link/peer.h"
#include "link/session.h"
#include "model/view_file.h"
#include "model/voided.h"
#include "model/watch.h"
#include "model/spec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MODELS_SHIFT                                                                               \
	10 /* log2 of the models that one start of the coordinator may define before their numbers \
	      reach those of the next start. */

static const uint8_t nobody[STATIC_UUID_BYTES];

void resume_free(struct server *s)
{
	voided_free(s);
	definitions_free(s);
}

/* Gives up this node's memory of one model. Nothing of it may be mapped. */
static void void_model(struct server *s, uint32_t id, const char *name,
		       const struct meta_found *was, const struct err *e)
{
	log_line(s->log, LOG_LEVEL_WARN, "event=model_void model=%s id=%u why=%s", name, id,
		 e->text);
	if (was->odd) /* First: the memory alone says that its file is no better. */
		disk_give_up(s, id);
	warm_forget(s->warm, id);
	voided_add(s, id, e->text, was->goes_back ? was->back_step : UINT64_MAX);
}

void resume_from(struct model *m, const struct peer *p)
{
	if (memcmp(m->memory.from, nobody, sizeof(nobody)) != 0)
		return;
	memcpy(m->memory.from, p->uuid, sizeof(m->memory.from));
	if (meta_persistent(&m->meta))
		meta_from(&m->meta, m->memory.from);
}

enum shard_status resume_check(const struct model *m, const struct peer *p, struct err *e)
{
	const struct server *s = m->server;

	/* Any node may coordinate. Its promise keeps the core from an older one. */
	if (lead_on(s) || memcmp(m->memory.from, nobody, sizeof(nobody)) == 0 ||
	    memcmp(m->memory.from, p->uuid, sizeof(m->memory.from)) == 0)
		return SHARD_OK;
	return err_set(
		e, SHARD_EXISTS,
		"node %s holds model %u, \"%s\", of a coordinator with another state "
		"directory: start node %s with the one that it had, or stop node %s and clear "
		"its state, which gives up the weights there",
		members_name(s, s->self), m->id, m->name, members_name(s, p->node),
		members_name(s, s->self));
}

/* --- weights and image --- */

/* Checks that the tensors fit the record that the core has. *begun: the tensors have that record's
 * step, or it has begun to change them. */
static enum shard_status agree(struct model *m, const struct core_state *core, bool *begun,
			       struct err *e)
{
	const struct record *r = core->record;
	struct meta_mark mark = m->meta.mark;
	bool applying = core->part == CORE_APPLYING;

	*begun = core_id_cmp(&mark.id, &r->id) == 0;
	if (mark.residual.half > 1 ||
	    (mark.residual.step > 0 && !(mark.residual.scale > 0 && isfinite(mark.residual.scale))))
		return err_set(
			e, SHARD_MISMATCH,
			"what it says of the residuals of its codes cannot be: half %u, loss "
			"scale %g",
			mark.residual.half, mark.residual.scale);
	if (mark.step != mark.id.step || mark.content_step > mark.step ||
	    mark.content_old > mark.content_step)
		return err_set(
			e, SHARD_MISMATCH,
			"what it says of its tensors contradicts itself: weights of steps %lu and "
			"%lu at step %lu, and a record of step %lu",
			(unsigned long)mark.content_old, (unsigned long)mark.content_step,
			(unsigned long)mark.step, (unsigned long)mark.id.step);
	if (*begun && mark.content_step == r->content)
		return SHARD_OK;
	if (*begun)
		return err_set(e, SHARD_MISMATCH,
			       "its tensors are of step %lu, its record's of step %lu",
			       (unsigned long)mark.content_step, (unsigned long)r->content);
	/* A seal, or a record on a node that holds no chunk, changes no tensor. The process died
	 * before it wrote the mark, so that is done now. */
	if (!applying && (r->outcome == RECORD_SEAL || store_owned(m->store) == 0)) {
		mark.id = r->id;
		mark.step = r->id.step;
		mark.content_step = r->content;
		mark.content_old = r->content_old;
		mark.cleared = r->id.generation;
		mark.load = META_LOAD_NONE;
		if (core_id_cmp(m->meta.facts_id, &r->id) == 0)
			contrib_lost(m, r, &mark.residual);
		meta_mark(&m->meta, &mark);
		*begun = true;
		return SHARD_OK;
	}
	if (applying && mark.id.generation == r->id.generation && mark.id.step + 1 == r->id.step)
		return SHARD_OK;
	return err_set(
		e, SHARD_MISMATCH,
		"its tensors are of generation %u step %lu, its record of generation %u step %lu",
		mark.id.generation, (unsigned long)mark.id.step, r->id.generation,
		(unsigned long)r->id.step);
}

static enum shard_status attempt_again(struct model *m, const struct core_state *core,
				       struct err *e)
{
	enum shard_status st;

	if (core->part == CORE_FREE)
		return blobs_again(m, NULL, e);
	m->attempt.id = core->id;
	m->attempt.world = *core->world;
	m->attempt.epoch++;
	m->attempt.on = core->part == CORE_PREPARED;
	if ((st = contrib_again(m, e)) != SHARD_OK ||
	    (st = blobs_again(m, &core->id, e)) != SHARD_OK)
		return st;
	if (core->part == CORE_APPLYING)
		blobs_decided(m, core->id.step, true);
	return SHARD_OK;
}

static enum shard_status settle_sealed(struct model *m, const struct core_state *core,
				       struct err *e)
{
	const struct record *r = core->record;
	bool begun, moves = core->part == CORE_APPLYING && r->outcome == RECORD_APPLIED;
	enum shard_status st;

	if ((st = agree(m, core, &begun, e)) != SHARD_OK ||
	    (st = attempt_again(m, core, e)) != SHARD_OK)
		return st;
	m->sealed = true;
	m->record = *r;
	m->step = m->meta.mark.step;
	m->content_step = m->meta.mark.content_step;
	m->content_old = m->meta.mark.content_old;
	m->residual = m->meta.mark.residual;
	m->img.slot = apply_slot(m, r) ^ (m->set.max_staleness > 0 && moves && !begun);
	m->img.half = (r->applied & 1) ^ (moves && !begun);
	m->img.coded = moves && begun && deltas_made(m, r);
	store_image_newest(m->store, m->img.slot);
	m->img.slot_content[m->img.slot] = m->content_step;
	m->img.slot_content[m->img.slot ^ 1] = UINT64_MAX;
	m->img.lacking = m->img.others = m->layout->chunks_nr - store_owned(m->store);
	if (m->set.max_staleness > 0 && m->content_old != m->content_step) {
		m->img.slot_content[m->img.slot ^ 1] = m->content_old;
		m->img.old_lacking = m->img.lacking;
	}
	if ((st = feed_repair(m, moves && begun, e)) == SHARD_OK)
		m->memory.settle = (struct model_settle){.on = store_owned(m->store) > 0,
							 .apply = moves && begun};
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
	m->rolled_back = core.restoring;
	if (core.sealed)
		st = settle_sealed(m, &core, e);
	else if (m->meta.mark.cleared < m->generation)
		model_reset(m); /* LOST was decided, but not carried out. */
	else if ((st = blobs_again(m, NULL, e)) == SHARD_OK)
		WATCH_TELL(m->server, resumed, m, core.seals);
	m->again = true;
	m->memory.doubted = core.sealed;
	if (st == SHARD_OK)
		log_line(m->server->log, LOG_LEVEL_INFO,
			 "event=model_kept model=%s generation=%u sealed=%d step=%lu phase=%d",
			 m->name, m->generation, core.sealed, (unsigned long)m->step,
			 (int)core.part);
	return st;
}

/* --- one model --- */

static enum shard_status take(struct server *s, uint32_t id, struct meta_found *found,
			      struct err *e)
{
	enum shard_status st;

	*found = (struct meta_found){.undo_nr = 0};
	if ((st = warm_try(s->warm, id, e)) == SHARD_OK)
		st = warm_map(s->warm, id, WARM_META, 0, 0, SHM_HUGE_NO, &found->shm, e);
	if (st != SHARD_OK)
		return st;
	st = meta_peek(found, id, e);
	if (st == SHARD_OK && found->incarnation == 0) {
		free(found->spec);
		st = err_set(e, SHARD_MISMATCH, "its head does not say which memory it is");
	}
	if (st != SHARD_OK)
		shm_unmap(&found->shm);
	return st;
}

/* Takes spec and found over. */
static enum shard_status make(struct server *s, Shard__Model *spec, const struct core_view *view,
			      struct meta_found *found, struct model **m, struct err *e)
{
	enum shard_status st;

	if ((st = model_make(m, s, spec, view, found, e)) != SHARD_OK)
		return st;
	memcpy((*m)->memory.from, found->from, sizeof((*m)->memory.from));
	if ((st = settle(*m, e)) != SHARD_OK) {
		(*m)->keep = true;
		model_free(m);
	}
	return st;
}

/* Takes found over. */
enum shard_status resume_make(struct server *s, uint32_t id, struct meta_found *found,
			      struct model **m, char name[72], struct err *e)
{
	Shard__Model *spec = shard__model__unpack(NULL, found->spec_bytes, found->spec);

	free(found->spec);
	if (spec != NULL && spec->spec != NULL && spec->model == id) {
		snprintf(name, 72, "%s", spec->spec->name);
		return make(s, spec, NULL, found, m, e);
	}
	if (spec != NULL)
		shard__model__free_unpacked(spec, NULL);
	shm_unmap(&found->shm);
	return err_set(e, SHARD_MISMATCH, "the definition of model %u is not one of this release",
		       id);
}

static enum shard_status kept_one(struct server *s, uint32_t id, struct err *e)
{
	struct meta_found found;
	char name[72];
	struct model *m;
	enum shard_status st = take(s, id, &found, e);

	snprintf(name, sizeof(name), "%u", id);
	if (st == SHARD_OK)
		st = resume_make(s, id, &found, &m, name, e);
	if (st != SHARD_MISMATCH)
		return st;
	void_model(s, id, name, &found, e);
	return SHARD_OK;
}

/* True: the memory has the same definition as the file, except for the generation, which grows, and
 * was defined with the chunks on the same nodes. Where they are now the view says. */
static bool same_definition(const Shard__Model *file, const struct meta_found *found)
{
	Shard__Model *kept = shard__model__unpack(NULL, found->spec_bytes, found->spec),
		     copy = *file;
	bool same = false;
	uint8_t *a, *b;
	size_t bytes;

	if (kept == NULL)
		return false;
	copy.generation = kept->generation;
	if (!spec_same_place(file, kept)) {
		shard__model__free_unpacked(kept, NULL);
		return false;
	}
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

/* A view is durable before any member adopts it. So if the file is older than the view in memory,
 * or there is none (view NULL), the state folder is an older copy. */
static enum shard_status check_file(struct server *s, uint32_t id, const struct meta_found *found,
				    const struct core_view *view, struct err *e)
{
	struct core_warm_view kept;
	Shard__Model *spec;
	char has[64] = "no file";

	if (found->core == NULL || !core_warm_view(found->core, found->core_bytes, &kept) ||
	    kept.term == 0)
		return SHARD_OK; /* What is wrong is reported when the model is made of it. */
	if (view != NULL && view->generation >= kept.generation &&
	    (view->term > kept.term || (view->term == kept.term && view->seq >= kept.seq)))
		return SHARD_OK;
	if (view != NULL)
		snprintf(has, sizeof(has), "view %lu.%u", (unsigned long)view->term, view->seq);
	spec = shard__model__unpack(NULL, found->spec_bytes, found->spec);
	(void)err_set(
		e, SHARD_BAD_STATE,
		"model \"%.72s\" in memory (%s) has view %lu.%u, and %s has %s of it: it is an "
		"older copy of the state folder. Put the newer one back, and the model is "
		"there. If this model alone is to go: %s left-model-%08x in that folder. If "
		"the older one is meant: %s on each node, start, restore",
		spec != NULL && spec->spec != NULL ? spec->spec->name : "?", warm_place(s->warm),
		(unsigned long)kept.term, kept.seq, s->conf->state, has,
		view != NULL ? "rename its file to" : "make an empty file", id,
		warm_forget_how(s->warm));
	if (spec != NULL)
		shard__model__free_unpacked(spec, NULL);
	return SHARD_BAD_STATE;
}

/* Takes found over. */
static enum shard_status make_found(struct server *s, const Shard__Model *spec, uint32_t id,
				    const struct core_view *view, struct meta_found *found,
				    struct model **m, struct err *e)
{
	enum shard_status st = check_file(s, id, found, view, e);
	Shard__Model *copy;
	bool same;

	if (st != SHARD_OK) {
		free(found->spec);
		shm_unmap(&found->shm);
		return st;
	}
	same = same_definition(spec, found);
	free(found->spec);
	copy = same ? spec_copy(&spec->base) : NULL;
	if (copy != NULL)
		return make(s, copy, view, found, m, e);
	shm_unmap(&found->shm);
	return same ? err_set(e, SHARD_SYSTEM, "no memory for a definition")
		    : err_set(e, SHARD_MISMATCH, "the definition is another one in %s",
			      s->conf->state);
}

static enum shard_status make_warm(struct server *s, const Shard__Model *spec, uint32_t id,
				   const struct core_view *view, struct model **m,
				   struct meta_found *found, struct err *e)
{
	enum shard_status st = take(s, id, found, e);

	return st == SHARD_OK ? make_found(s, spec, id, view, found, m, e) : st;
}

/* After a loss of power: the model as its file has it. */
static enum shard_status make_durable(struct server *s, const Shard__Model *spec, uint32_t id,
				      struct core_view *view, uint64_t most, struct model **m,
				      struct err *e)
{
	struct super_found super;
	struct meta_found found;
	enum shard_status st = recall(&found, &super, s, spec, view, most, e);

	if (st != SHARD_OK)
		return st;
	st = make_found(s, spec, id, view, &found, m, e);
	recall_made(&super, s, spec->spec->name, st == SHARD_OK ? *m : NULL, e);
	return st;
}

static enum shard_status make_loaded(struct server *s, Shard__ModelFile *file, uint32_t id,
				     struct core_view *view, struct model **m, struct err *e)
{
	Shard__Model *spec = file->model;
	struct meta_found was = {.odd = false};
	enum shard_status st = SHARD_MISMATCH;

	if (warm_has(s->warm, id) && warm_here(s->warm) &&
	    (st = make_warm(s, spec, id, view, m, &was, e)) == SHARD_MISMATCH)
		void_model(s, id, spec->spec->name, &was, e);
	if (st == SHARD_MISMATCH && !was.odd)
		st = make_durable(s, spec, id, view, was.goes_back ? was.back_step : UINT64_MAX, m,
				  e);
	if (st != SHARD_MISMATCH)
		return st;
	file->model = NULL;
	return model_make(m, s, spec, view, NULL, e);
}

/* A view may have fewer members than there are nodes. */
static uint32_t made_for(const Shard__ModelFile *file)
{
	return file->nodes != 0 ? file->nodes : (uint32_t)file->view->n_incarnation;
}

/* The number of nodes has changed, so the placement of the model's chunks is void. Its file is
 * renamed, and a checkpoint can bring the model back. */
static enum shard_status leave(struct server *s, uint32_t id, const Shard__ModelFile *file,
			       struct err *e)
{
	char name[64];
	struct err why;
	enum shard_status st = static_leave(s->dir, id, name, sizeof(name), e);

	if (st != SHARD_OK)
		return st;
	(void)err_set(
		&why, SHARD_MISMATCH,
		"it was made for %u nodes and [nodes] has %u; its definition stays as "
		"%s/%s: %s%s",
		made_for(file), s->nodes_nr, s->conf->state, name,
		file->checkpoint_dir[0] != 0
			? "bring the model back by `shardctl restore` from "
			: "it was never saved, so put [nodes] back to keep it, or define it anew",
		file->checkpoint_dir);
	log_line(s->log, LOG_LEVEL_WARN, "event=model_left model=%s why=%s",
		 file->model->spec->name, why.text);
	return SHARD_OK;
}

/* Is the view one of this node as its coordinator? */
static enum shard_status check_view(const struct server *s, const char *name,
				    const struct core_view *view, struct err *e)
{
	if (view_coordinator(&view->members) != server_coordinator(s))
		return err_set(e, SHARD_MISMATCH,
			       "the view of \"%s\" in %s names node %u as its coordinator, "
			       "and [nodes] has this one first: bring back the list of nodes "
			       "that it was made with",
			       name, s->conf->state, view_coordinator(&view->members));
	if (memcmp(view->members.node[s->self].uuid, static_uuid(s->dir), VIEW_UUID_BYTES) != 0)
		return err_set(e, SHARD_MISMATCH,
			       "the view of \"%s\" in %s names its coordinator by another uuid "
			       "than the file uuid there has: bring back the file uuid that the "
			       "models there were made with",
			       name, s->conf->state);
	return SHARD_OK;
}

/* The view of a file whose model is not made yet. *room has its tables, and the caller frees it.
 * How many chunks the model has is known later. */
static enum shard_status read_view(struct server *s, const Shard__ModelFile *file,
				   struct core_view *view, void **room, struct err *e)
{
	const Shard__Spec *spec = file->model->spec;
	struct corewire_limits limits = {.nodes_nr = s->nodes_nr,
					 .groups_nr =
						 spec->n_groups > 0 ? (uint32_t)spec->n_groups : 1};
	size_t bytes = file->view->tables != NULL ? tablewire_bytes(file->view->tables) : 0;
	struct arena a;
	enum shard_status st;

	if ((*room = malloc(bytes + 1)) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the view of \"%s\"", spec->name);
	arena_init(&a, *room, bytes);
	st = corewire_unpack_view(file->view, &limits, &a, view, e);
	return st == SHARD_OK ? check_view(s, spec->name, view, e) : st;
}

static enum shard_status file_check(const struct resume_file *f, const struct server *s,
				    uint32_t id, struct err *e)
{
	const Shard__ModelFile *file = f->file;

	if (file == NULL || f->view == NULL || file->model == NULL || file->model->spec == NULL ||
	    file->view == NULL)
		return err_set(e, SHARD_PROTOCOL, "model file %u in %s is not one of this release",
			       id, s->conf->state);
	if (file->format != PERSIST_FORMAT)
		return err_set(e, SHARD_PROTOCOL,
			       "model file %u in %s is of format %u, this release reads %u: save "
			       "the model by the release that wrote it, and restore it in an empty "
			       "state directory",
			       id, s->conf->state, file->format, PERSIST_FORMAT);
	return SHARD_OK;
}

static void file_open(struct resume_file *f, const void *bytes, size_t bytes_nr)
{
	*f = (struct resume_file){.file = shard__model_file__unpack(NULL, bytes_nr, bytes),
				  .view = calloc(1, sizeof(*f->view))};
}

static enum shard_status file_view(struct resume_file *f, struct server *s, struct err *e)
{
	enum shard_status st = read_view(s, f->file, f->view, &f->room, e);

	if (st == SHARD_OK)
		WATCH_TELL(s, found, f->file, f->view, f->lost, sizeof(f->lost));
	return st;
}

enum shard_status resume_file_read(struct resume_file *f, struct server *s, uint32_t id,
				   const void *bytes, size_t bytes_nr, struct err *e)
{
	enum shard_status st;

	file_open(f, bytes, bytes_nr);
	st = file_check(f, s, id, e);
	return st == SHARD_OK ? file_view(f, s, e) : st;
}

void resume_file_free(struct resume_file *f)
{
	if (f->file != NULL)
		shard__model_file__free_unpacked(f->file, NULL);
	free(f->view);
	free(f->room);
	memset(f, 0, sizeof(*f));
}

void resume_file_made(const struct resume_file *f, struct model *m, const void *bytes,
		      size_t bytes_nr)
{
	struct server *s = m->server;

	WATCH_TELL(s, loaded, m, f->file, f->view, bytes, bytes_nr);
	lost_loaded(m, f->view, f->lost);
	s->next_model = m->id > s->next_model ? m->id : s->next_model;
	log_line(s->log, LOG_LEVEL_INFO, "event=model_loaded model=%s generation=%u step=%lu",
		 m->name, f->view->generation,
		 (unsigned long)(f->view->sealed ? f->view->record.id.step : 0));
}

static enum shard_status load_one(void *arg, uint32_t id, const void *bytes, size_t bytes_nr,
				  struct err *e)
{
	struct server *s = arg;
	struct resume_file f;
	struct model *m;
	enum shard_status st;

	file_open(&f, bytes, bytes_nr);
	st = file_check(&f, s, id, e);
	if (st == SHARD_OK && !config_joined(s->conf, made_for(f.file)))
		st = leave(s, id, f.file, e);
	else if (st == SHARD_OK && (st = file_view(&f, s, e)) == SHARD_OK &&
		 (st = make_loaded(s, f.file, id, f.view, &m, e)) == SHARD_OK)
		resume_file_made(&f, m, bytes, bytes_nr);
	resume_file_free(&f);
	return st;
}

/* --- all of them --- */

/* Frees the memory of a model that the coordinator has no file of, because it was dropped or never
 * became durable. If the state folder is an older copy, that fails and nothing is freed. */
static enum shard_status forget_unknown(struct server *s, uint32_t id, struct err *e)
{
	struct meta_found found;
	enum shard_status st = SHARD_MISMATCH;

	if (!warm_was_dropped(s->warm, id) && !static_left(s->dir, id))
		st = take(s, id, &found, e);
	if (st == SHARD_OK) {
		st = check_file(s, id, &found, NULL, e);
		free(found.spec);
		shm_unmap(&found.shm);
	}
	if (st != SHARD_OK && st != SHARD_MISMATCH)
		return st;
	warm_forget(s->warm, id);
	return SHARD_OK;
}

static enum shard_status load_kept(struct server *s, struct err *e)
{
	uint32_t ids[WARM_MODELS_MAX], nr = warm_models(s->warm, ids, WARM_MODELS_MAX);
	enum shard_status st = SHARD_OK;

	if (!server_leads(s)) {
		for (uint32_t i = 0; i < nr && st == SHARD_OK; i++)
			st = kept_one(s, ids[i], e);
		return st;
	}
	if ((st = static_load(s->dir, load_one, s, e)) != SHARD_OK)
		return st;
	for (uint32_t i = 0; i < nr && st == SHARD_OK; i++)
		if (model_find(s, ids[i]) == NULL)
			st = forget_unknown(s, ids[i], e);
	return st;
}

/* --- who chose the coordinator of these models --- */

static const char *const sources[] = {[CONFIG_MEMBERSHIP_STATIC] = "static",
				      [CONFIG_MEMBERSHIP_QUORUM] = "quorum",
				      [CONFIG_MEMBERSHIP_ETCD] = "etcd"};

static const char *source_now(const struct server *s)
{
	return sources[lead_on(s) ? s->conf->membership : CONFIG_MEMBERSHIP_STATIC];
}

static enum shard_status other_source(const struct server *s, const char *what, const char *was,
				      struct err *e)
{
	return err_set(
		e, SHARD_MISMATCH,
		"%.400s, of membership = %s, and now it is %s%s, whose coordinator would not "
		"know the models. Set membership = %s on all nodes, and they are there. To "
		"change it: go on so, save and drop the models, stop all nodes, and set "
		"membership = %s on all of them",
		what, was, source_now(s),
		s->conf->membership_chosen ? " because nobody has set it" : "", was, source_now(s));
}

static enum shard_status refuse_one(void *arg, uint32_t id, const void *bytes, size_t bytes_nr,
				    struct err *e)
{
	const struct server *s = arg;
	Shard__ModelFile *file = shard__model_file__unpack(NULL, bytes_nr, bytes);
	bool known = file != NULL && file->model != NULL && file->model->spec != NULL &&
		     file->view != NULL && file->format == PERSIST_FORMAT;
	enum shard_status st = SHARD_OK;
	char what[400];

	if (!known || config_joined(s->conf, made_for(file))) { /* Others are left in any case. */
		snprintf(what, sizeof(what), "%.250s has the file of model %u (\"%.64s\")",
			 s->conf->state, id, known ? file->model->spec->name : "?");
		st = other_source(s, what, sources[CONFIG_MEMBERSHIP_STATIC], e);
	}
	if (file != NULL)
		shard__model_file__free_unpacked(file, NULL);
	return st;
}

/* What is in memory was promised to coordinators of one membership source, and a coordinator of
 * another one does not know its views: it would have the copies dropped, or find them lost. A node
 * without memory and without files of models has nothing to lose, so it may change. */
static enum shard_status check_source(struct server *s, struct err *e)
{
	uint32_t ids[WARM_MODELS_MAX], nr = 0;
	enum shard_status st;
	char was[STATIC_SOURCE_BYTES], what[400];

	if (warm_here(s->warm))
		nr = warm_models(s->warm, ids, WARM_MODELS_MAX);
	if (lead_on(s) && (st = static_load(s->dir, refuse_one, s, e)) != SHARD_OK)
		return st;
	if ((st = static_source(s->dir, was, e)) != SHARD_OK)
		return st;
	if (was[0] == 0 && nr > 0 && !lead_has_file(s)) /* Of a release that did not say. */
		snprintf(was, sizeof(was), "%s", sources[CONFIG_MEMBERSHIP_STATIC]);
	if (nr > 0 && was[0] != 0 && strcmp(was, source_now(s)) != 0) {
		snprintf(what, sizeof(what), "node %s has %u model%s in memory",
			 members_name(s, s->self), nr, nr > 1 ? "s" : "");
		return other_source(s, what, was, e);
	}
	return strcmp(was, source_now(s)) == 0 ? SHARD_OK
					       : static_set_source(s->dir, source_now(s), e);
}

/* Its core knows sessions of starts before the incarnation of this one. */
static bool any_durable(const struct server *s)
{
	list_each(it, (struct list *)(uintptr_t)&s->models)
		if (list_of(it, struct model, link)->set.nvme_durable)
			return true;
	return false;
}

enum shard_status resume_load(struct server *s, struct err *e)
{
	enum shard_status st = check_source(s, e);

	if (st != SHARD_OK)
		return st;

	/* A number is never used for a second model, because a node that was away may still have a
	 * model that was dropped. */
	s->next_model = (uint32_t)((s->start - 1) << MODELS_SHIFT) & INT32_MAX;
	s->incarnation = warm_here(s->warm) ? warm_incarnation(s->warm) : s->start;
	if (lead_on(s) && (st = definitions_load(s, e)) != SHARD_OK)
		return st;
	if (warm_here(s->warm))
		st = load_kept(s, e);
	if (st != SHARD_OK || (st = static_set_member(s->dir, s->incarnation, e)) != SHARD_OK)
		return st;
	if (!warm_here(s->warm) && server_leads(s) &&
	    (st = static_load(s->dir, load_one, s, e)) != SHARD_OK)
		return st;
	if (s->warm != NULL && !lead_on(s) && !server_leads(s) &&
	    ((st = disk_missing(s, e)) != SHARD_OK ||
	     (st = disk_each(s, recall_one, e)) != SHARD_OK))
		return st;
	session_numbers_after(s, (s->start - (any_durable(s) ? 0 : s->incarnation)) << 32);
	warm_begun(s->warm);
	disk_sweep(s);
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
		apply_settle_none(m);
		CHECK(!m->memory.settle.on || m->img.apply_left > 0); /* Else no vote is sent. */
	}
}

struct budget_need resume_unconfirmed(struct server *s)
{
	struct budget_need all = {.total = 0};
	const struct peer *p = s->peer[server_coordinator(s)];
	struct err e;

	if (server_leads(s))
		return all;
	list_each(it, &s->models) {
		const struct model *m = list_of(it, struct model, link);

		if (m->memory.there[server_coordinator(s)] != 0 ||
		    resume_check(m, p, &e) != SHARD_OK)
			continue;
		all.total += m->need.total;
		all.parked += m->need.parked;
	}
	return all;
}
