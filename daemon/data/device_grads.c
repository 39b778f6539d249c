// SPDX-License-Identifier: Apache-2.0
/* Gradients on the GPUs of trainers. model/join.c brings requests for memory, and contrib.c the
 * pushes. Happy path: a thread maps memory that a trainer can map as well, as large as its arena.
 * PUSH says which tensors of a chunk lie there. When all local ranks have closed the chunk, and all
 * of it lies on one GPU, a job sums it there, each rank times pre and in the order of ranks, into
 * memory that no trainer has, and the sum alone comes to the host: what follows is as after a sum
 * of processors. Otherwise, and where the sum is not finite, each part is copied to the arena of
 * its rank, and the host sums. So it is where a contribution leaves from the arena. It fails
 * where the GPU has no chunk of the model, or no room. If a GPU fails, this node's copy of the
 * model ends at once: a GPU that hangs may still write to the memory of sums, which no other
 * attempt may use then. */
#include "data/device_grads.h"

#include "base/check.h"
#include "data/data.h"
#include "data/device_images.h"
#include "data/model.h"
#include "data/trainer.h"
#include "gpu/device.h"
#include "link/caller.h"
#include "link/session.h"
#include "node/job.h"
#include "store/share.h"
#include "store/tier_gpu.h"
#include "wire/ops.h"

#include <stdlib.h>
#include <string.h>

enum { WORKS_MAX = 4 }; /* Of one model, under way. node/gpus.c counts on it. */

#define SUMS (1u << 31)
static_assert(LAYOUT_CHUNKS_MAX < SUMS, "a chunk fits beside it");

struct device_arena { /* Of one slot. */
	struct model *m;
	struct gpu *gpu;
	uint32_t slot;
	bool making;
	bool closed;        /* Its trainer went while it was being made. */
	bool makes_scratch; /* The thread makes that of the GPU, too. */
	uint8_t *there;     /* [segments_nr] The rank's gradient lies here. */
	bool asked;         /* .asker is to be answered when it is there. */
	struct caller asker;
	/* While a thread makes or frees it, the thread's alone. */
	struct job job;
	struct err e;
	uint64_t bytes, scratch_bytes;
	struct gpu_mem mem, scratch;
};

struct scratch { /* Of one GPU: where sums are made, a chunk for each work. */
	struct gpu *gpu;
	struct gpu_mem mem; /* .gpu NULL: it is being made. */
};

struct work { /* A chunk. */
	bool used;
	bool adds; /* The job that is under way is a sum. */
	uint32_t chunk, epoch;
	uint32_t rank, segment; /* What is to be copied next, by local index. */
	struct gpu *gpu;        /* Of the job that is under way. */
	struct gpu_add add;
};

struct device_grads {
	struct device_arena *arena[CONTRIB_LOCAL_MAX]; /* [slot] */
	struct scratch scratch[GPU_DEVICES_MAX];
	uint32_t scratch_nr;
	const struct device_grads_up *up;
	uint32_t threads; /* That make or free memory. */
	bool stopped;     /* No job is begun any more. */
	struct work work[WORKS_MAX];
	uint32_t *ring; /* [chunks_nr] Chunks that wait for a work, with SUMS if it may be a sum. */
	uint32_t first, nr;
};

/* --- memory --- */

static void arena_free(struct device_arena *a)
{
	gpu_unmap(&a->mem);
	gpu_unmap(&a->scratch);
	free(a->there);
	free(a);
}

static struct device_arena *arena_new(struct model *m, struct gpu *g, uint32_t slot)
{
	struct device_arena *a = calloc(1, sizeof(*a));

	if (a == NULL)
		return NULL;
	*a = (struct device_arena){.m = m,
				   .gpu = g,
				   .slot = slot,
				   .making = true,
				   .there = calloc(m->layout->segments_nr, 1),
				   .bytes = m->layout->elems * m->grad_bytes,
				   .scratch_bytes = (uint64_t)m->layout->chunk_elems *
						    m->grad_bytes * WORKS_MAX,
				   .mem = {.fd = -1},
				   .scratch = {.fd = -1}};
	if (a->there != NULL)
		return a;
	arena_free(a);
	return NULL;
}

static struct scratch *scratch_of(struct device_grads *d, const struct gpu *g)
{
	for (uint32_t k = 0; k < d->scratch_nr; k++)
		if (d->scratch[k].gpu == g)
			return &d->scratch[k];
	return NULL;
}

void device_grads_free(struct device_grads **dp)
{
	struct device_grads *d = *dp;

	*dp = NULL;
	if (d == NULL)
		return;
	CHECK(d->threads == 0);
	for (uint32_t i = 0; i < WORKS_MAX; i++)
		CHECK(!d->work[i].used);
	for (uint32_t k = 0; k < CONTRIB_LOCAL_MAX; k++)
		if (d->arena[k] != NULL)
			arena_free(d->arena[k]);
	for (uint32_t k = 0; k < d->scratch_nr; k++)
		gpu_unmap(&d->scratch[k].mem);
	free(d->ring);
	free(d);
}

bool device_grads_working(const struct model *m)
{
	return m->on_gpus.grads != NULL && m->on_gpus.grads->threads > 0;
}

static void thread_begin(struct device_arena *a, void (*run)(struct job *),
			 void (*done)(struct job *))
{
	struct model *m = a->m;

	m->on_gpus.grads->threads++;
	job_begin(&a->job, m->server, a->bytes <= JOB_SMALL_BYTES ? JOB_SMALL : JOB_MEMORY, run,
		  done);
}

static void thread_ended(struct model *m)
{
	CHECK(m->on_gpus.grads->threads > 0);
	if (--m->on_gpus.grads->threads == 0 && (m->dropping || m->server->stop.on))
		server_wake(m->server, 1);
}

static void free_run(struct job *j)
{
	struct device_arena *a = list_of(j, struct device_arena, job);

	gpu_unmap(&a->mem);
	gpu_unmap(&a->scratch);
}

static void free_done(struct job *j)
{
	struct device_arena *a = list_of(j, struct device_arena, job);
	struct model *m = a->m;

	arena_free(a);
	thread_ended(m);
}

void device_grads_close(struct model *m, uint32_t slot)
{
	struct device_grads *d = m->on_gpus.grads;
	struct device_arena *a = d != NULL ? d->arena[slot] : NULL;

	if (a == NULL)
		return;
	d->arena[slot] = NULL;
	if (a->making)
		a->closed = true;
	else
		thread_begin(a, free_run, free_done);
}

/* --- one more --- */

static void make_run(struct job *j)
{
	struct device_arena *a = list_of(j, struct device_arena, job);

	if (gpu_map(a->gpu, a->bytes, true, &a->mem, &a->e) != SHARD_OK)
		return;
	if (!a->makes_scratch ||
	    gpu_map(a->gpu, a->scratch_bytes, false, &a->scratch, &a->e) == SHARD_OK)
		a->e.status = SHARD_OK;
	else
		gpu_unmap(&a->mem);
}

static void answer(struct device_arena *a, const struct caller *who)
{
	Shard__DeviceMemory body = SHARD__DEVICE_MEMORY__INIT;
	struct session *t;

	body.grad_bytes = a->mem.bytes;
	t = device_images_answer(a->m, who, &a->slot, &body, &a->mem.fd, 1);
	if (t != NULL)
		t->trainer->device_arena = a;
}

/* The scratch memory is all of the GPU's, whose arena it came with. */
static void take_scratch(struct device_arena *a, bool made)
{
	struct device_grads *d = a->m->on_gpus.grads;
	struct scratch *s = scratch_of(d, a->gpu);

	if (!a->makes_scratch)
		return;
	CHECK(s != NULL && s->mem.gpu == NULL);
	if (made)
		s->mem = a->scratch;
	else
		*s = d->scratch[--d->scratch_nr]; /* The next arena tries it again. */
	if (made)
		a->scratch = (struct gpu_mem){.fd = -1};
}

static void say(const struct device_arena *a)
{
	struct model *m = a->m;
	char uuid[GPU_UUID_TEXT];
	struct gpu_about about;

	if (a->e.status != SHARD_OK) {
		log_line(m->server->log, LOG_LEVEL_WARN, "event=no_device_grads model=%s why=%s",
			 m->name, a->e.text);
		return;
	}
	gpu_tell(a->gpu, &about);
	log_line(m->server->log, LOG_LEVEL_INFO, "event=device_grads model=%s gpu=%s bytes=%lu",
		 m->name, gpu_uuid_text(about.uuid, uuid), (unsigned long)a->mem.bytes);
}

static void make_done(struct job *j)
{
	struct device_arena *a = list_of(j, struct device_arena, job);
	struct model *m = a->m;
	bool ends = a->closed || m->dropping || m->server->stop.on;

	take_scratch(a, a->scratch.gpu != NULL);
	if (!ends)
		say(a);
	if (!ends && a->e.status == SHARD_OK) {
		a->making = false;
		if (a->asked)
			answer(a, &a->asker);
		a->asked = false;
		thread_ended(m);
		return;
	}
	if (a->e.status == SHARD_OK)
		err_set(&a->e, SHARD_CLOSED, "the trainer or \"%s\" ends on this node", m->name);
	if (!a->closed)
		m->on_gpus.grads->arena[a->slot] = NULL;
	if (a->asked)
		caller_refuse(m->server, &a->asker, &a->e);
	if (a->mem.gpu != NULL && !m->server->stop.on)
		thread_begin(a, free_run, free_done);
	else
		arena_free(a);
	thread_ended(m);
}

static struct device_grads *grads_of(struct model *m)
{
	struct device_grads *d = m->on_gpus.grads;

	if (d != NULL || (d = calloc(1, sizeof(*d))) == NULL)
		return d;
	d->ring = calloc(m->layout->chunks_nr, sizeof(*d->ring));
	if (d->ring == NULL) {
		free(d);
		return NULL;
	}
	return m->on_gpus.grads = d;
}

static enum shard_status make(struct model *m, struct gpu *g, uint32_t slot,
			      struct device_arena **out, struct err *e)
{
	struct device_grads *d = m->on_gpus.grads;
	struct device_arena *a = arena_new(m, g, slot);

	if (a == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	if (scratch_of(d, g) == NULL) {
		CHECK(d->scratch_nr < GPU_DEVICES_MAX); /* There are no more GPUs. */
		d->scratch[d->scratch_nr++] = (struct scratch){.gpu = g, .mem = {.fd = -1}};
		a->makes_scratch = true;
	}
	*out = d->arena[slot] = a;
	thread_begin(a, make_run, make_done);
	return SHARD_OK;
}

enum shard_status device_grads_ask(struct model *m, const struct device_grads_up *up,
				   const uint8_t *uuid, struct session *who, uint32_t tag,
				   struct err *e)
{
	uint32_t slot = who->trainer->slot;
	struct caller caller = caller_session(who, tag);
	struct device_arena *a;
	enum shard_status st;
	struct gpu *g;

	CHECK(who->trainer->model == m);
	if ((st = device_images_gpu(m, "memory for gradients", uuid, who, &g, e)) != SHARD_OK)
		return st;
	if (grads_of(m) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	m->on_gpus.grads->up = up;
	a = m->on_gpus.grads->arena[slot];
	if (a == NULL && (st = make(m, g, slot, &a, e)) != SHARD_OK)
		return st;
	if (a->gpu != g)
		return err_set(e, SHARD_BAD_STATE,
			       "this trainer has memory for gradients of \"%s\" on another GPU",
			       m->name);
	if (a->asked)
		return err_set(e, SHARD_BUSY, "this trainer has asked for that memory already");
	if (!a->making) {
		answer(a, &caller);
		return SHARD_OK;
	}
	a->asker = caller;
	a->asked = true;
	return SHARD_OK;
}

/* --- what lies there --- */

void device_grads_begin(struct model *m)
{
	struct device_grads *d = m->on_gpus.grads;

	if (d == NULL)
		return;
	d->first = d->nr = 0;
	for (uint32_t k = 0; k < CONTRIB_LOCAL_MAX; k++)
		if (d->arena[k] != NULL)
			memset(d->arena[k]->there, 0, m->layout->segments_nr);
}

static const uint8_t *absent_of(const struct model *m, uint32_t i)
{
	return m->contrib.absent_local + (size_t)i * m->layout->segments_nr;
}

enum shard_status device_grads_take(struct model *m, uint32_t chunk, const struct trainer *t,
				    const Shard__Push *body, struct err *e)
{
	const struct layout *l = m->layout;
	const uint8_t *absent = absent_of(m, t->local_index);
	const struct share *share = m->contrib.share + (size_t)t->local_index * l->segments_nr;
	uint32_t s = l->chunk_segment[chunk];

	if (body->n_device > 0 && t->device_arena == NULL)
		return err_set(e, SHARD_PROTOCOL,
			       "gradients of chunk %u on a GPU, where this trainer has no memory",
			       chunk);
	for (size_t k = 0; k < body->n_device; k++) {
		if (!layout_find_segment(l, chunk, body->device[k], &s))
			return err_set(e, SHARD_PROTOCOL,
				       "a gradient on a GPU of tensor %u in chunk %u, where it has "
				       "no element",
				       body->device[k], chunk);
		if (layout_frozen(l, s) || absent[s] || share[s].n != SHARE_WHOLE ||
		    t->device_arena->there[s])
			return err_set(e, SHARD_PROTOCOL,
				       "a gradient on a GPU of tensor %u in chunk %u, which is "
				       "frozen, absent, pushed in shares, or named twice",
				       body->device[k], chunk);
		t->device_arena->there[s] = 1;
	}
	return SHARD_OK;
}

static struct device_arena *arena_of(const struct model *m, uint32_t i)
{
	return m->on_gpus.grads->arena[m->contrib.local[i].slot];
}

/* The gradient of local rank i lies in its arena of a GPU. */
static bool lies_there(const struct model *m, uint32_t i, uint32_t segment)
{
	uint32_t slot = m->contrib.local[i].slot;

	return slot < CONTRIB_LOCAL_MAX && arena_of(m, i) != NULL &&
	       arena_of(m, i)->there[segment] && !absent_of(m, i)[segment];
}

bool device_grads_has(const struct model *m, uint32_t chunk)
{
	const struct layout *l = m->layout;

	for (uint32_t i = 0; m->on_gpus.grads != NULL && i < m->contrib.local_nr; i++)
		for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++)
			if (lies_there(m, i, s))
				return true;
	return false;
}

/* Does local rank i have a gradient in the chunk? */
static bool has_some(const struct model *m, uint32_t i, uint32_t chunk)
{
	const struct layout *l = m->layout;
	const uint8_t *absent = absent_of(m, i);

	for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++)
		if (!layout_frozen(l, s) && !absent[s])
			return true;
	return false;
}

/* The scratch memory of the GPU that has all of the chunk. NULL: there is none. */
static struct scratch *summed_on(const struct model *m, uint32_t chunk)
{
	const struct layout *l = m->layout;
	struct gpu *g = NULL;
	struct scratch *s;

	for (uint32_t i = 0; i < m->contrib.local_nr; i++) {
		const uint8_t *absent = absent_of(m, i);

		for (uint32_t k = l->chunk_segment[chunk]; k < l->chunk_segment[chunk + 1]; k++) {
			if (layout_frozen(l, k) || absent[k])
				continue;
			if (!lies_there(m, i, k) || (g != NULL && arena_of(m, i)->gpu != g))
				return NULL;
			g = arena_of(m, i)->gpu;
		}
	}
	s = g != NULL ? scratch_of(m->on_gpus.grads, g) : NULL;
	return s != NULL && s->mem.gpu != NULL ? s : NULL;
}

/* --- jobs --- */

static void worked(void *owner, uint64_t tag, enum shard_status st, uint64_t kept);

static void submit(struct model *m, struct work *w, struct gpu *g, struct gpu_job *job)
{
	job->done = worked;
	job->owner = m;
	job->tag = (uint64_t)(w - m->on_gpus.grads->work);
	w->gpu = g;
	m->attempt.busy++;
	m->on_gpus.grads->up->hold(m);
	CHECK(gpu_submit(g, job) == SHARD_OK); /* It takes what all models may. */
}

static void add_begin(struct model *m, struct work *w, const struct scratch *s)
{
	const struct contrib *g = &m->contrib;
	struct gpu_job job = {.what = GPU_ADD, .add = &w->add};
	uint64_t at = layout_chunk_start(m->layout, w->chunk) * m->grad_bytes;
	uint64_t room = (uint64_t)m->layout->chunk_elems * m->grad_bytes;

	w->adds = true;
	w->add = (struct gpu_add){.layout = m->layout,
				  .chunk = w->chunk,
				  .dtype = m->grad,
				  .pre = g->pre,
				  .to = s->mem.at + (uint64_t)(w - m->on_gpus.grads->work) * room,
				  .copy = store_sum(m->store, w->chunk)};
	for (uint32_t i = 0; i < g->local_nr; i++)
		if (has_some(m, i, w->chunk))
			w->add.operand[w->add.operands_nr++] =
				(struct gpu_operand){arena_of(m, i)->mem.at + at, absent_of(m, i)};
	submit(m, w, s->gpu, &job);
}

/* The next range of local rank i that lies on its GPU, from w->segment on. Between segments there
 * is nothing that counts. */
static bool next_range(const struct model *m, struct work *w, uint32_t i, struct gpu_copy *c)
{
	const struct layout *l = m->layout;
	const uint32_t end = l->chunk_segment[w->chunk + 1];
	uint8_t *to_host;
	uint32_t from, to;
	uint64_t at;

	while (w->segment < end && !lies_there(m, i, w->segment))
		w->segment++;
	if (w->segment == end)
		return false;
	from = l->segment[w->segment].start;
	while (w->segment < end && lies_there(m, i, w->segment))
		w->segment++;
	to = l->segment[w->segment - 1].start + l->segment[w->segment - 1].n;
	at = (uint64_t)from * m->grad_bytes;
	to_host = store_arena(m->store, m->contrib.local[i].slot, m->attempt.id.step, w->chunk);
	*c = (struct gpu_copy){to_host + at,
			       arena_of(m, i)->mem.at +
				       layout_chunk_start(l, w->chunk) * m->grad_bytes + at,
			       (uint64_t)(to - from) * m->grad_bytes};
	return true;
}

/* False: all of the chunk is in arenas of the host. */
static bool gather(struct model *m, struct work *w)
{
	struct gpu_job job = {.what = GPU_TO_HOST};

	w->adds = false;
	for (; w->rank < m->contrib.local_nr; w->rank++) {
		while (job.copies_nr < GPU_COPIES_MAX &&
		       next_range(m, w, w->rank, &job.copy[job.copies_nr]))
			job.copies_nr++;
		if (job.copies_nr > 0) {
			submit(m, w, arena_of(m, w->rank)->gpu, &job);
			return true;
		}
		w->segment = m->layout->chunk_segment[w->chunk];
	}
	return false;
}

/* Begins what waits. */
static void go(struct model *m)
{
	struct device_grads *d = m->on_gpus.grads;
	uint32_t i = 0;

	while (d->nr > 0 && !d->stopped && !m->memory.tier_lost && m->attempt.on) {
		const struct scratch *s;
		struct work *w;
		uint32_t chunk;
		bool sums;

		while (i < WORKS_MAX && d->work[i].used)
			i++;
		if (i == WORKS_MAX)
			return;
		w = &d->work[i];
		chunk = d->ring[d->first] & ~SUMS;
		sums = d->ring[d->first] & SUMS;
		d->first = (d->first + 1) % m->layout->chunks_nr;
		d->nr--;
		w->used = true;
		w->chunk = chunk;
		w->epoch = m->attempt.epoch;
		w->rank = 0;
		w->segment = m->layout->chunk_segment[chunk];
		if (sums && (s = summed_on(m, chunk)) != NULL)
			add_begin(m, w, s);
		else
			CHECK(gather(m, w)); /* device_grads_has() said so. */
	}
}

void device_grads_submit(struct model *m, uint32_t chunk, bool sums)
{
	struct device_grads *d = m->on_gpus.grads;
	uint32_t chunks = m->layout->chunks_nr;

	CHECK(m->attempt.on && d->nr < chunks && device_grads_has(m, chunk));
	d->up->begins(m);
	d->ring[(d->first + d->nr++) % chunks] = chunk | (sums ? SUMS : 0);
	go(m);
}

static void worked(void *owner, uint64_t tag, enum shard_status st, uint64_t kept)
{
	struct model *m = owner;
	struct device_grads *d = m->on_gpus.grads;
	struct work *w = &d->work[tag];
	struct tier_result r = {.sumsq = w->add.sumsq, .finite = true};
	uint32_t chunk = w->chunk;
	bool counts = w->epoch == m->attempt.epoch && m->attempt.on && !m->memory.tier_lost &&
		      !d->stopped;

	(void)kept;
	CHECK(w->used);
	if (st != SHARD_OK) {
		w->used = false;
		tier_gpu_lose(m->tier, w->gpu);
	} else if (!counts) {
		w->used = false;
	} else if (w->adds && w->add.finite) {
		w->used = false;
		d->up->added(m, chunk, &r);
	} else if (!gather(m, w)) { /* Of a sum that is not finite, who is to blame is found. */
		w->used = false;
		d->up->gathered(m, chunk);
	}
	go(m);
	data_release(m);
	d->up->release(m);
}

void device_grads_stop(struct model *m)
{
	if (m->on_gpus.grads != NULL)
		m->on_gpus.grads->stopped = true;
}
