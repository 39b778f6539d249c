/* SPDX-License-Identifier: Apache-2.0 */
/* Takes a model of this node from its file after a loss of power. resume.c calls it for each model
 * that has no memory. Happy path: the definition says nvme_durable = step, the newest superblock
 * that is whole is read, and the region of the model is made of the copy in it. A view names the
 * step of these weights, an earlier one, or the next one: a record may be durable in the state
 * folder before the disk has its chunks, and the vote for a second one does not leave before that.
 * The view then goes back by that step, which is the step that a loss of power costs. A node that
 * does not coordinate has no views. It takes what its file has, and the cores of all nodes see to
 * it that they have the same step (core/back.h). It fails with SHARD_MISMATCH if the weights are
 * lost, and otherwise the start ends and the file stays. */
#include "model/recall.h"

#include "model/disk.h"
#include "model/model.h"
#include "model/resume.h"
#include "model/voided.h"
#include "server.h"
#include "warm/warm.h"

#include <stdlib.h>
#include <string.h>

/* New memory of the model, with what its file kept of it. */
static enum shard_status unpack(struct server *s, uint32_t id, const struct super_found *super,
				struct meta_found *found, struct err *e)
{
	const void *packed = super_payload(super->at, super->of.cells_nr);
	uint64_t bytes = meta_packed_region(packed, super->of.payload_bytes);
	enum shard_status st;

	*found = (struct meta_found){.super = super};
	if (bytes == 0)
		return err_set(e, SHARD_MISMATCH,
			       "what it has of the model is not of this release");
	warm_forget(s->warm, id);
	if ((st = warm_make(s->warm, id, WARM_META, bytes, 0, SHM_HUGE_NO, &found->shm, e)) !=
	    SHARD_OK)
		return st;
	if ((st = meta_unpack(&found->shm, packed, super->of.payload_bytes, e)) == SHARD_OK)
		st = meta_peek(found, id, e);
	if (st != SHARD_OK)
		shm_unmap(&found->shm);
	return st;
}

/* Do view and file agree? */
static enum shard_status agree(const struct server *s, const struct meta_found *found,
			       struct core_view *view, struct err *e)
{
	const struct core_id *id = &view->record.id;
	struct meta_mark mark;

	if (!meta_found_mark(found, &mark) || !view->sealed ||
	    view->generation != mark.id.generation || id->step > mark.step + 1)
		return err_set(e, SHARD_MISMATCH,
			       "its superblock has step %lu, and %s knows of other or later "
			       "weights",
			       (unsigned long)found->super->of.step, s->conf->state);
	if (id->step <= mark.step)
		return SHARD_OK;
	if (found->core == NULL ||
	    !core_warm_record(found->core, found->core_bytes, &view->record) ||
	    core_id_cmp(id, &mark.id) != 0)
		return err_set(e, SHARD_MISMATCH,
			       "its superblock has step %lu, and no record of it",
			       (unsigned long)found->super->of.step);
	return SHARD_OK;
}

/* Has this node no chunk of the model, and so no file? */
static bool has_none(const struct server *s, const Shard__Model *spec, const struct core_view *view)
{
	for (uint32_t c = 0; view->place.primary != NULL && c < view->place.chunks_nr; c++)
		if (place_keeps(&view->place, c, s->self))
			return false;
	for (size_t i = 0; view->place.primary == NULL && i + 1 < spec->n_place_runs; i += 2)
		if (spec->place_runs[i] == s->self && spec->place_runs[i + 1] > 0)
			return false;
	return true;
}

enum shard_status recall_file(struct meta_found *found, struct super_found *super, struct server *s,
			      const struct disk_of *of, struct err *e)
{
	enum shard_status st = disk_recall(super, s, of, e);
	struct meta_mark mark;

	if (st == SHARD_OK)
		st = unpack(s, of->model, super, found, e);
	if (st == SHARD_OK && (!meta_found_mark(found, &mark) || found->incarnation != of->id ||
			       mark.step != super->of.step)) {
		free(found->spec);
		shm_unmap(&found->shm);
		st = err_set(e, SHARD_MISMATCH, "what it has of the model is of another memory");
	}
	if (st != SHARD_OK)
		super_free(super);
	return st;
}

enum shard_status recall(struct meta_found *found, struct super_found *super, struct server *s,
			 const Shard__Model *spec, struct core_view *view, uint64_t most,
			 struct err *e)
{
	struct disk_of of = {.name = spec->spec->name, .model = spec->model, .most = most};
	enum shard_status st;

	/* The settings are the canonical ones. */
	if (s->warm == NULL || view == NULL || spec->spec->settings == NULL ||
	    strstr(spec->spec->settings, " nvme_durable=step") == NULL || has_none(s, spec, view))
		return err_set(e, SHARD_MISMATCH, "no file of this node has a part of it");
	of.id = view->members.node[s->self].incarnation;
	of.sealed = view->sealed;
	if ((st = recall_file(found, super, s, &of, e)) == SHARD_OK &&
	    (st = agree(s, found, view, e)) != SHARD_OK) {
		free(found->spec);
		shm_unmap(&found->shm);
	}
	if (st != SHARD_OK)
		recall_made(super, s, of.name, NULL, e);
	return st;
}

void recall_made(struct super_found *super, const struct server *s, const char *name,
		 const struct model *m, const struct err *e)
{
	if (m != NULL)
		log_line(s->log, LOG_LEVEL_INFO,
			 "event=nvme_recalled model=%s generation=%u step=%lu superblock=%lu", name,
			 m->generation, (unsigned long)super->of.step,
			 (unsigned long)super->of.seq);
	else if (e->status == SHARD_MISMATCH)
		log_line(s->log, LOG_LEVEL_WARN, "event=nvme_void model=%s why=%s", name, e->text);
	super_free(super);
}

enum shard_status recall_one(struct server *s, uint32_t id, uint64_t incarnation, struct err *e)
{
	char name[72];
	struct disk_of of = {.name = name,
			     .model = id,
			     .id = incarnation,
			     .sealed = true,
			     .most = voided_most(s, id)};
	struct super_found super;
	struct meta_found found;
	struct model *m = NULL;
	enum shard_status st;

	snprintf(name, sizeof(name), "%u", id);
	/* Without a note it has no weights, or they are given up. So it need not be read. */
	if (model_find(s, id) != NULL || !disk_noted(s, id, incarnation))
		return SHARD_OK;
	st = recall_file(&found, &super, s, &of, e);
	if (st == SHARD_MISMATCH)
		recall_made(&super, s, name, NULL, e);
	if (st == SHARD_MISMATCH) /* disk_sweep() judges it. */
		return SHARD_OK;
	if (st != SHARD_OK)
		return st;
	st = resume_make(s, id, &found, &m, name, e);
	recall_made(&super, s, name, st == SHARD_OK ? m : NULL, e);
	return st == SHARD_MISMATCH ? SHARD_OK : st;
}
