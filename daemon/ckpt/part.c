/* SPDX-License-Identifier: Apache-2.0 */
/* This node's share of a checkpoint: what the node holds of a model is written into one file, or
 * read from the files of all nodes. Or it is hashed, for a comparison of the copies. The
 * coordinator asks with SAVE_PART, LOAD_PART or VERIFY_PART. Happy path:
 * the share waits until the weights stand still, lists its runs, and begins one job that copies
 * straight from or into the store. It sends PROGRESS meanwhile, and then its answer. A save waits
 * for its step to be applied, and a load until nobody uses the memory. Shares of a model run one
 * after the other. If the share is cancelled, the coordinator's link ends or the generation
 * changes, the job ends soon and the answer says why. The model's memory stays until
 * ckpt_quiet(). */
#include "data/apply.h"
#include "base/check.h"
#include "base/clock.h"
#include "data/blobs.h"
#include "ckpt/arrays.h"
#include "ckpt/hash.h"
#include "ckpt/older.h"
#include "ckpt/op.h"
#include "link/peer.h"
#include "model/spare.h"
#include "store/hold.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLL_MS     10
#define DIGESTS_MAX ((WIRE_CONTROL_MAX - 64) / 8u)

struct ckpt_part {
	struct list link; /* In model.ckpt.parts. */
	struct model *m;
	struct server *server;
	struct job job;
	uv_timer_t timer;
	struct caller who; /* The coordinator: this node, or another one over its link. */
	uint16_t op;
	uint32_t generation;
	bool running, ended;
	char path[CHECKPOINT_PATH_MAX], name[80];
	struct ckpt_place place; /* How path may be opened. */
	bool anywhere;
	uint64_t step, sum;       /* step: of a save. sum: of a load, the manifest's. */
	struct placement holders; /* As it was when the runs were listed. */
	struct ckpt_view view;    /* The same. */
	struct part_run *runs;
	struct arrays arrays;
	bool covered; /* Of a save: as the coordinator was told. */
	struct part_blob *blobs;
	uint8_t *blob_bytes;
	uint32_t runs_nr, blobs_nr;
	struct part_file file;
	struct part_progress progress;
	struct hash hash; /* Of a comparison. */
	uint64_t total_bytes, told_ns, told_bytes;
	enum shard_status st;
	struct err why;
};

/* --- what is held here --- */

/* Each chunk is saved once, by its primary, and loaded by every node that has memory for it. */
static bool has_part(const struct ckpt_part *p, uint32_t chunk)
{
	uint16_t self = p->server->self;

	return p->op == OP_SAVE_PART ? place_primary(&p->holders, chunk) == self
				     : place_keeps(&p->holders, chunk, self);
}

/* With one copy of each chunk a blob is on the node of its rank, and a restore gives all of them to
 * the coordinator. */
static bool has_blob(const struct ckpt_part *p, uint32_t rank)
{
	if (p->holders.holders == NULL)
		return p->op == OP_SAVE_PART;
	return rank < p->m->set.max_world && has_part(p, place_blob_chunk(&p->holders, rank));
}

/* array: 0 for the master. */
static void add_runs(struct ckpt_part *p, enum shard_kind kind, uint32_t array)
{
	struct model *m = p->m;
	const struct layout *l = m->layout;

	for (uint32_t c = 0; c < l->chunks_nr; c++) {
		if (!has_part(p, c) || array > store_states(m->store, c))
			continue;
		for (uint32_t s = l->chunk_segment[c]; s < l->chunk_segment[c + 1]; s++) {
			const struct layout_tensor *t = &l->tensor[l->segment_tensor[s]];

			if (array > 0 && layout_frozen(l, s))
				continue;
			p->runs[p->runs_nr] = (struct part_run){
				.kind = kind,
				.tensor = t->name,
				.first = layout_chunk_start(l, c) + l->segment[s].start - t->offset,
				.count = l->segment[s].n,
			};
			arrays_run(&p->arrays, c, array, l->segment[s].start,
				   &p->runs[p->runs_nr++]);
		}
	}
}

static enum shard_status list_runs(struct ckpt_part *p, struct err *e)
{
	const struct optim_row *optim = p->m->set.optim;

	p->holders = p->m->place;
	p->view = ckpt_view(p->m);
	p->runs = calloc((size_t)p->m->layout->segments_nr * (1 + optim->states_nr) + 1,
			 sizeof(*p->runs));
	if (p->runs == NULL || arrays_begin(&p->arrays, p->op == OP_SAVE_PART, NULL) != SHARD_OK)
		return err_set(e, SHARD_SYSTEM, "no memory to list what node %s holds of \"%s\"",
			       members_name(p->server, p->server->self), p->m->name);
	add_runs(p, SHARD_MASTER, 0);
	for (uint32_t i = 0; i < optim->states_nr; i++)
		add_runs(p, optim->states[i], i + 1);
	return SHARD_OK;
}

/* Copies the blobs, because the next verdict may change them while the file is written. Of several
 * copies of a blob one is saved. */
static enum shard_status list_blobs(struct ckpt_part *p, struct err *e)
{
	uint32_t room = CORE_RANKS_MAX;
	size_t bytes = 0, at = 0;

	p->blobs = calloc(room, sizeof(*p->blobs));
	if (p->blobs == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory to list blobs");
	room = blobs_committed(p->m, p->blobs, room);
	for (uint32_t i = 0; i < room; i++)
		if (has_blob(p, p->blobs[i].rank))
			p->blobs[p->blobs_nr++] = p->blobs[i];
	for (uint32_t i = 0; i < p->blobs_nr; i++)
		bytes += p->blobs[i].bytes;
	p->blob_bytes = malloc(bytes + 1);
	if (p->blob_bytes == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for %zu bytes of blobs", bytes);
	for (uint32_t i = 0; i < p->blobs_nr; i++) {
		memcpy(p->blob_bytes + at, p->blobs[i].data, p->blobs[i].bytes);
		p->blobs[i].data = p->blob_bytes + at;
		at += p->blobs[i].bytes;
	}
	return SHARD_OK;
}

/* --- the jobs --- */

/* Are all masters finite that were read or looked at? If not, e names the first one. */
static enum shard_status check_finite(const struct ckpt_part *p, enum shard_status otherwise,
				      const char *text, struct err *e)
{
	const struct layout *l = p->m->layout;
	const struct store_missing *missing = &p->arrays.missing;
	uint64_t nr = missing->unwritten + missing->nonfinite;
	uint32_t t;

	if (nr == 0)
		return SHARD_OK;
	t = layout_tensor_at(l, missing->first);
	return err_set(e, otherwise,
		       "%s: %lu weights are not finite, the first in tensor \"%s\" at %lu%s",
		       p->path, (unsigned long)nr, t != UINT32_MAX ? l->tensor[t].name : "?",
		       (unsigned long)(t != UINT32_MAX ? missing->first - l->tensor[t].offset
						       : missing->first),
		       text);
}

static void look_at_all(struct ckpt_part *p)
{
	for (uint32_t c = 0; c < p->m->layout->chunks_nr; c++)
		if (has_part(p, c) && !atomic_load(&p->progress.cancel))
			arrays_look(&p->arrays, c);
}

static void write_share(struct ckpt_part *p)
{
	const struct part_older *older;
	struct older o;

	if ((p->st = ckpt_place_open(&p->place, false, &p->why)) != SHARD_OK)
		return;
	if (!checkpoint_begun(p->place.at, p->m->name))
		p->st = err_set(&p->why, SHARD_SYSTEM,
				"%s: is no checkpoint of \"%s\" that was begun: is the folder of "
				"checkpoints shared by all nodes?",
				p->path, p->m->name);
	if (p->st == SHARD_OK) {
		older = older_open(&o, p->place.fd, p->m->name, p->name);
		p->st = part_write(p->place.at, p->name, p->runs, p->runs_nr, p->blobs, p->blobs_nr,
				   older, &p->file, &p->progress, &p->why);
		older_close(&o);
	}
	ckpt_place_close(&p->place, p->st != SHARD_OK ? &p->why : NULL);
}

static void run_save(struct job *j)
{
	struct ckpt_part *p = list_of(j, struct ckpt_part, job);

	CHECK(p->op == OP_SAVE_PART);
	write_share(p);
	if (!hold_end(p->m->store) && p->st == SHARD_OK)
		p->st = err_set(&p->why, SHARD_BUSY,
				"node %s: weights that were to be saved have changed before they "
				"were copied: try again",
				members_name(p->server, p->server->self));
	if (p->st == SHARD_OK)
		p->st = check_finite(
			p, SHARD_BAD_STATE,
			": such weights are not saved, the checkpoints before this one stay",
			&p->why);
}

/* Reads the blobs of which a copy is kept here. They become the model's when the job is done. */
static enum shard_status load_blobs(struct ckpt_part *p, const struct manifest *c, struct err *e)
{
	enum shard_status st = SHARD_OK;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < c->blobs_nr; i++)
		bytes += has_blob(p, c->blobs[i].rank) ? c->blobs[i].bytes : 0;
	p->blobs = calloc((size_t)c->blobs_nr + 1, sizeof(*p->blobs));
	p->blob_bytes = malloc(bytes + 1);
	if (p->blobs == NULL || p->blob_bytes == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for %lu bytes of blobs",
			       (unsigned long)bytes);
	bytes = 0;
	for (uint32_t i = 0; i < c->blobs_nr && st == SHARD_OK; i++) {
		const struct manifest_blob *b = &c->blobs[i];

		if (!has_blob(p, b->rank))
			continue;
		if (b->file >= c->files_nr || b->bytes > PART_BLOB_BYTES || b->step == 0)
			return err_set(e, SHARD_PROTOCOL,
				       "%s: a blob of rank %u that no file can have", p->path,
				       b->rank);
		p->blobs[p->blobs_nr++] = (struct part_blob){.rank = b->rank,
							     .bytes = b->bytes,
							     .step = b->step,
							     .data = p->blob_bytes + bytes};
		st = manifest_blob(p->place.at, c, i, p->blob_bytes + bytes, e);
		bytes += b->bytes;
	}
	return st;
}

static void run_load(struct job *j)
{
	struct ckpt_part *p = list_of(j, struct ckpt_part, job);
	struct manifest *c = NULL;

	CHECK(p->op == OP_LOAD_PART);
	if (p->runs_nr == 0)
		return; /* It holds nothing, so it need not see the folder. */
	if ((p->st = ckpt_place_open(&p->place, false, &p->why)) != SHARD_OK)
		return;
	p->st = manifest_read(p->place.at, &c, &p->why);
	if (p->st == SHARD_OK && c->sum != p->sum)
		p->st = err_set(&p->why, SHARD_MISMATCH,
				"%s/%s is another one on node %s than on the coordinator: all "
				"nodes must see the same folder",
				p->path, MANIFEST_NAME, members_name(p->server, p->server->self));
	if (p->st == SHARD_OK)
		p->st = part_load(p->place.at, c->files, c->files_nr, p->runs, p->runs_nr,
				  c->kinds_nr == 1, &p->progress, &p->why);
	if (p->st == SHARD_OK) {
		look_at_all(p);
		p->st = check_finite(p, SHARD_PROTOCOL, "", &p->why);
	}
	if (p->st == SHARD_OK)
		p->st = load_blobs(p, c, &p->why);
	ckpt_place_close(&p->place, p->st != SHARD_OK ? &p->why : NULL);
	if (p->st == SHARD_PROTOCOL || p->st == SHARD_NOT_FOUND)
		ckpt_offer(p->path, p->m->name, &p->why);
	manifest_free(&c);
}

/* --- answers --- */

static bool for_self(const struct ckpt_part *p)
{
	return p->who.node == p->server->self;
}

static void answer_file(struct ckpt_part *p)
{
	struct wire_head h = {
		.op = p->op, .model = p->m->id, .term = p->view.term, .seq = p->view.seq};
	Shard__PartFile body = SHARD__PART_FILE__INIT;
	Shard__BlobIs *is = calloc(p->blobs_nr + 1, sizeof(*is)),
		      **list = calloc(p->blobs_nr + 1, sizeof(*list));

	CHECK(p->op == OP_SAVE_PART && p->st == SHARD_OK);
	if (is == NULL || list == NULL) {
		caller_refuse(
			p->server, &p->who,
			&(struct err){.status = SHARD_SYSTEM, .text = "no memory for an answer"});
	} else {
		body.name = p->file.name;
		body.bytes = p->file.bytes;
		body.header_bytes = p->file.header_bytes;
		body.piece_bytes = p->file.piece_bytes;
		body.shared_bytes = p->file.shared_bytes;
		body.sums = p->file.sums;
		body.n_sums = p->file.sums_nr;
		for (uint32_t i = 0; i < p->blobs_nr; i++) {
			shard__blob_is__init(&is[i]);
			is[i].rank = p->blobs[i].rank;
			is[i].step = p->blobs[i].step;
			is[i].offset = p->blobs[i].offset;
			is[i].data_bytes = p->blobs[i].bytes;
			is[i].sum = xxh_sum(p->blobs[i].data, p->blobs[i].bytes, 0);
			list[i] = &is[i];
		}
		body.blobs = list;
		body.n_blobs = p->blobs_nr;
		caller_answer(p->server, &p->who, &h, &body.base);
	}
	free(is);
	free(list);
}

static void keep_file(struct ckpt_part *p)
{
	struct manifest_blob *blobs = calloc(p->blobs_nr + 1, sizeof(*blobs));

	if (blobs == NULL) {
		p->st = err_set(&p->why, SHARD_SYSTEM, "no memory for a manifest");
		return;
	}
	for (uint32_t i = 0; i < p->blobs_nr; i++)
		blobs[i] = (struct manifest_blob){
			.rank = p->blobs[i].rank,
			.bytes = p->blobs[i].bytes,
			.step = p->blobs[i].step,
			.offset = p->blobs[i].offset,
			.sum = xxh_sum(p->blobs[i].data, p->blobs[i].bytes, 0)};
	ckpt_share_file(p->m, p->who.tag, &p->view, &p->file, blobs, p->blobs_nr);
}

static bool bad_files(enum shard_status st)
{
	return st == SHARD_PROTOCOL || st == SHARD_NOT_FOUND || st == SHARD_MISMATCH ||
	       st == SHARD_SYSTEM;
}

/* The view by which this node held what it has hashed goes with the digests. It has not changed
 * since, or the coordinator takes the answer for a late one. */
static void answer_digests(struct ckpt_part *p)
{
	struct wire_head h = {.op = p->op, .model = p->m->id};
	Shard__PartFile body = SHARD__PART_FILE__INIT;
	struct core_state core;

	core_state(p->m->core, &core);
	h.term = core.term;
	h.seq = core.seq;
	body.sums = p->hash.digest;
	body.n_sums = p->hash.nr;
	if (for_self(p))
		ckpt_share_digests(p->m, p->who.tag, h.term, h.seq, p->hash.digest, p->hash.nr);
	else
		caller_answer(p->server, &p->who, &h, &body.base);
}

static void answer(struct ckpt_part *p)
{
	struct wire_head h = {.op = p->op, .model = p->m->id};

	if (p->op == OP_VERIFY_PART && p->st == SHARD_OK)
		answer_digests(p);
	if (p->op == OP_SAVE_PART && p->st == SHARD_OK && for_self(p))
		keep_file(p);
	if (for_self(p))
		ckpt_share_done(p->m, p->who.tag, bad_files(p->st),
				p->st != SHARD_OK ? &p->why : NULL);
	else if (p->st != SHARD_OK)
		caller_refuse(p->server, &p->who, &p->why);
	else if (p->op == OP_SAVE_PART)
		answer_file(p);
	else if (p->op == OP_LOAD_PART)
		caller_answer(p->server, &p->who, &h, NULL);
}

static void borrow_closed(struct borrow *b)
{
	struct ckpt_part *p = list_of(b, struct ckpt_part, arrays.borrow);

	p->server->closing_parts--;
	hash_deinit(&p->hash);
	part_file_free(&p->file);
	arrays_deinit(&p->arrays);
	free(p->runs);
	free(p->blobs);
	free(p->blob_bytes);
	free(p);
}

static void timer_closed(uv_handle_t *h)
{
	struct ckpt_part *p = h->data;

	borrow_close(&p->arrays.borrow, borrow_closed);
}

static void take_load(struct ckpt_part *p)
{
	blobs_reset(p->m); /* Those of an earlier load. */
	for (uint32_t i = 0; i < p->blobs_nr; i++)
		blobs_restore(p->m, p->blobs[i].rank, p->blobs[i].step, p->blobs[i].data,
			      p->blobs[i].bytes);
	ckpt_load_read(p->m, p->who.node, p->who.tag);
}

static void end(struct ckpt_part *p)
{
	struct model *m = p->m;

	CHECK(!p->running && !p->ended);
	p->ended = true;
	hash_stop(&p->hash);
	if (p->st != SHARD_OK)
		log_line(p->server->log,
			 p->st == SHARD_INTERRUPTED ? LOG_LEVEL_INFO : LOG_LEVEL_WARN,
			 "event=checkpoint_share_failed model=%s op=%s why=%s", m->name,
			 wire_op(p->op)->name, p->why.text);
	list_remove(&p->link);
	if (p->op == OP_LOAD_PART && m->generation == p->generation && p->st == SHARD_OK)
		take_load(p);
	/* What it has read in part is nobody's weights. */
	else if (p->op == OP_LOAD_PART && m->generation == p->generation)
		ckpt_load_forget(m, p->who.node, p->who.tag);
	answer(p);
	uv_close((uv_handle_t *)&p->timer, timer_closed);
	ckpt_boundary(m); /* Begins the next share, or a reset that waited. */
}

static void after(struct job *j)
{
	struct ckpt_part *p = list_of(j, struct ckpt_part, job);

	p->running = false;
	if (p->op == OP_SAVE_PART)
		spare_end(p->m);
	end(p);
}

static enum shard_status given_up(const struct ckpt_part *p, struct err *e)
{
	return err_set(e, SHARD_INTERRUPTED,
		       "node %s: its share was given up, because another node's failed or "
		       "the coordinator's link ended",
		       members_name(p->server, p->server->self));
}

/* A job of the workers is back. */
static void hash_back(struct hash *h)
{
	struct ckpt_part *p = list_of(h, struct ckpt_part, hash);
	bool cancel = atomic_load(&p->progress.cancel);

	atomic_store(&p->progress.done_bytes, h->bytes);
	if (!cancel)
		hash_go(h);
	if (h->flying > 0 || (!cancel && !hash_whole(h)))
		return;
	if (cancel)
		p->st = given_up(p, &p->why);
	p->running = false;
	end(p);
}

/* --- begin --- */

static enum shard_status stale(const struct ckpt_part *p, struct err *e)
{
	if (p->op == OP_LOAD_PART)
		return err_set(e, SHARD_STALE,
			       "node %s: \"%s\" has weights at generation %u, where a restore was "
			       "to bring those of generation %u",
			       members_name(p->server, p->server->self), p->m->name,
			       p->m->generation, p->generation);
	return err_set(e, SHARD_STALE,
		       "node %s: \"%s\" is at generation %u step %lu, not %u and %lu any more",
		       members_name(p->server, p->server->self), p->m->name, p->m->generation,
		       (unsigned long)p->m->step, p->generation, (unsigned long)p->step);
}

/* SHARD_AGAIN: the share has to wait. */
static enum shard_status may_begin(const struct ckpt_part *p, struct err *e)
{
	const struct model *m = p->m;
	bool save = p->op != OP_LOAD_PART; /* Or a comparison, which needs the same. */

	if (atomic_load(&p->progress.cancel))
		return given_up(p, e);
	if (m->generation > p->generation || (save && m->sealed && m->step > p->step))
		return stale(p, e);
	if (m->ckpt->parts.next != &p->link || m->generation < p->generation)
		return SHARD_AGAIN;
	if (save)
		return m->sealed && m->step == p->step && !m->img.applying && !m->img.sealing
			       ? SHARD_OK
			       : SHARD_AGAIN;
	if (m->sealed)
		return stale(p, e);
	return m->attempt.busy == 0 && m->img.sends == 0 && !m->img.applying && !m->reset_due
		       ? SHARD_OK
		       : SHARD_AGAIN;
}

static enum shard_status prepare(struct ckpt_part *p, struct err *e)
{
	enum shard_status st = list_runs(p, e);

	if (st == SHARD_OK && p->op == OP_SAVE_PART)
		st = list_blobs(p, e);
	if (st == SHARD_OK && (p->runs_nr > 0 || p->blobs_nr > 0))
		st = ckpt_place_set(&p->place, p->server, p->path, p->anywhere, 1, e);
	if (st != SHARD_OK)
		return st;
	if (p->op == OP_SAVE_PART)
		p->total_bytes = part_bytes(p->runs, p->runs_nr, p->blobs, p->blobs_nr);
	for (uint32_t i = 0; p->op == OP_LOAD_PART && i < p->runs_nr; i++)
		p->total_bytes += p->runs[i].count * sizeof(float);
	if (p->op == OP_LOAD_PART)
		snprintf(p->m->restored_from, sizeof(p->m->restored_from), "%s", p->path);
	return SHARD_OK;
}

static void begin_hash(struct ckpt_part *p)
{
	p->st = hash_init(&p->hash, p->m, hash_back, &p->why);
	if (p->st == SHARD_OK && p->hash.nr > DIGESTS_MAX) {
		p->st = err_set(&p->why, SHARD_RANGE,
				"node %s holds %u chunks, and an answer has room for %u: choose "
				"larger chunks",
				members_name(p->server, p->server->self), p->hash.nr, DIGESTS_MAX);
	}
	p->total_bytes = p->hash.total;
	if (p->st != SHARD_OK || p->hash.nr == 0) {
		end(p);
		return;
	}
	p->running = true;
	hash_go(&p->hash); /* If the queue is full, tick() goes on. */
}

/* The coordinator lets steps go on when all nodes have said that their saves are covered. */
static void tell_progress(struct ckpt_part *p)
{
	uint64_t done = atomic_load(&p->progress.done_bytes), now = clock_ns();
	bool covered = p->op == OP_SAVE_PART && hold_covered(p->m->store);
	struct wire_head h = {.op = OP_PROGRESS, .model = p->m->id};
	Shard__Progress body = SHARD__PROGRESS__INIT;

	if (covered == p->covered &&
	    (now - p->told_ns < CKPT_PROGRESS_NS || (p->told_ns != 0 && done == p->told_bytes)))
		return;
	p->told_ns = now;
	p->told_bytes = done;
	p->covered = covered;
	body.done_bytes = done;
	body.total_bytes = p->total_bytes;
	body.shared_bytes = atomic_load(&p->progress.shared_bytes);
	body.covered = covered;
	if (for_self(p))
		ckpt_progress(p->m, p->who.tag, &body);
	else
		caller_progress(p->server, &p->who, &h, &body.base);
}

static void try_begin(struct ckpt_part *p)
{
	if (p->running || p->ended)
		return;
	p->st = may_begin(p, &p->why);
	if (p->st == SHARD_AGAIN)
		return;
	if (p->st == SHARD_OK && p->op == OP_VERIFY_PART) {
		begin_hash(p);
		return;
	}
	if (p->st == SHARD_OK)
		p->st = prepare(p, &p->why);
	if (p->st != SHARD_OK || (p->op == OP_SAVE_PART && p->runs_nr == 0 && p->blobs_nr == 0)) {
		/* A node that holds nothing writes nothing, and answers with a file that has no
		 * name. */
		end(p);
		return;
	}
	if (p->op == OP_LOAD_PART)
		ckpt_load_begins(p->m, p->who.node, p->who.tag); /* Before the first byte moves. */
	if (p->op == OP_SAVE_PART) /* From here on it has the weights of its step. */
		spare_begin(p->m, p->arrays.held);
	p->running = true;
	job_begin(&p->job, p->server, JOB_FILES, p->op == OP_SAVE_PART ? run_save : run_load,
		  after);
	tell_progress(p); /* It may begin a step. */
}

static void tick(uv_timer_t *timer)
{
	struct ckpt_part *p = timer->data;

	if (!p->running) {
		try_begin(p);
		return;
	}
	tell_progress(p);
	if (p->op == OP_VERIFY_PART && p->hash.flying == 0)
		hash_back(&p->hash);
}

void ckpt_part_begin(struct model *m, const struct caller *who, uint16_t wire_op,
		     uint32_t generation, const char *path, uint64_t step_or_sum, bool anywhere)
{
	struct ckpt_part *p = calloc(1, sizeof(*p));
	struct err e;

	CHECK(wire_op == OP_SAVE_PART || wire_op == OP_LOAD_PART || wire_op == OP_VERIFY_PART);
	if (p == NULL) {
		err_set(&e, SHARD_SYSTEM, "node %s: no memory for a share of a checkpoint",
			members_name(m->server, m->server->self));
		if (who->node == m->server->self)
			ckpt_share_done(m, who->tag, false, &e);
		else
			caller_refuse(m->server, who, &e);
		return;
	}
	p->m = m;
	p->server = m->server;
	p->who = *who;
	p->op = wire_op;
	p->generation = generation;
	p->anywhere = anywhere;
	p->step = wire_op != OP_LOAD_PART ? step_or_sum : 0;
	p->sum = wire_op == OP_LOAD_PART ? step_or_sum : 0;
	snprintf(p->path, sizeof(p->path), "%s", path);
	snprintf(p->name, sizeof(p->name), "node-%s.safetensors",
		 members_name(m->server, m->server->self));
	/* Cancels shares that the coordinator does not know of any more. */
	ckpt_part_end(m, UINT16_MAX, 0);
	if (wire_op == OP_LOAD_PART && m->generation == generation)
		ckpt_load_superseded(m, who->node, who->tag);
	list_push(&m->ckpt->parts, &p->link);
	m->server->closing_parts++;
	arrays_init(&p->arrays, m);
	uv_timer_init(m->server->loop, &p->timer);
	p->timer.data = p;
	uv_timer_start(&p->timer, tick, 0, POLL_MS);
}

void ckpt_part_end(struct model *m, uint16_t requester, uint32_t tag)
{
	list_each(it, &m->ckpt->parts) {
		struct ckpt_part *p = list_of(it, struct ckpt_part, link);

		if (requester == UINT16_MAX ||
		    (p->who.node == requester && (tag == 0 || p->who.tag == tag)))
			atomic_store(&p->progress.cancel, true);
	}
}

/* --- of the model --- */

bool ckpt_quiet(const struct model *m)
{
	return list_empty(&m->ckpt->parts);
}

void ckpt_cancel(struct model *m, const struct err *why)
{
	CHECK(why->status != SHARD_OK);
	ckpt_part_end(m, UINT16_MAX, 0);
	if (m->ckpt->op != NULL)
		ckpt_op_fail(m->ckpt->op, why);
}

static bool running(const struct model *m) /* Shares run in the order of the list. */
{
	return !ckpt_quiet(m) && list_of(m->ckpt->parts.next, struct ckpt_part, link)->running;
}

void ckpt_clear(struct model *m)
{
	CHECK(m->ckpt != NULL);
	m->reset_due = m->attempt.busy > 0 || running(m);
	if (!m->reset_due)
		model_reset(m);
}

void ckpt_reset(struct model *m)
{
	ckpt_part_end(m, UINT16_MAX, 0);
	ckpt_clear(m);
}

void ckpt_boundary(struct model *m)
{
	if (m->reset_due && !m->sealed && m->attempt.busy == 0 && !running(m)) {
		m->reset_due = false;
		model_reset(m);
	}
	if (!ckpt_quiet(m))
		try_begin(list_of(m->ckpt->parts.next, struct ckpt_part, link));
}
