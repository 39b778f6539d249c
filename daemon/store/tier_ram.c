// SPDX-License-Identifier: Apache-2.0
/* State in main memory. data/ calls it, through the row of tier.h. Each call becomes one job by
 * value of an exec: the pointers of master, moments and image are looked up here, on the loop
 * thread, and a thread runs the kernels over the segments of the chunk. With memory that outlives
 * the process the update goes by tiles (tile.c), so that a kill leaves it repairable. The exec may
 * be full: the caller hears that, and comes again. Nothing else fails. */
#include "store/tier.h"

#include "base/check.h"
#include "optim/reduce.h"
#include "store/away.h"
#include "store/hold.h"
#include "store/share.h"
#include "store/store_impl.h"
#include "store/store_missing.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct ram {
	struct tier tier;
	struct store *store;
	const struct layout *layout;
	const struct tiles *tiles;
	struct exec exec;
	reduce_fn *reduce;
	const struct quant_kernels *quant;
	/* By the dtype of a chunk's image. */
	optim_apply *kernel[DTYPE_NR + 1];
	optim_apply_undo *kernel_undo[DTYPE_NR + 1];
	enum shard_dtype grad;
	uint32_t grad_bytes;
};

struct job {
	struct tier_call call;
	struct tier_result result;
};

struct sum_job {
	struct job job;
	struct tier_sum sum;
	const struct layout *layout;
	reduce_fn *reduce;
	const struct quant_kernels *quant;
	enum shard_dtype grad;
	uint32_t grad_bytes;
};

/* An image that is the one before and what codes stand for. */
struct image_job {
	struct job job;
	const struct layout *layout;
	const struct quant_kernels *quant;
	const struct codes *codes; /* NULL: there are none. */
	uint32_t chunk;
	enum shard_dtype dt;
	const float *master; /* The codes are made from it. NULL: they are there. */
	uint8_t *coded;
	const uint8_t *before; /* May be .image. */
	uint8_t *image;
};

struct apply_job {
	struct job job;
	struct tile_update update;
	struct image_job image; /* Its .job is of no use. */
	const struct tiles *tiles;
	struct store *store;
	uint64_t stamp;
	uint32_t slot, half, before;
	bool finish, kept, older;
};

static_assert(sizeof(struct sum_job) <= EXEC_ARGS_BYTES, "a job travels by value");
static_assert(sizeof(struct apply_job) <= EXEC_ARGS_BYTES, "a job travels by value");
static_assert(sizeof(struct image_job) <= EXEC_ARGS_BYTES, "a job travels by value");

static struct ram *ram_of(const struct tier *t)
{
	return (struct ram *)(uintptr_t)t; /* The first field. */
}

static void job_done(void *owner, void *args)
{
	const struct job *j = args; /* The first field of every kind of job. */

	j->call.done(owner, j->call.tag, &j->result);
}

static enum shard_status submit(const struct ram *r, void (*run)(void *), struct job *j,
				size_t bytes)
{
	struct exec_job job;

	CHECK(j->call.done != NULL && bytes <= sizeof(job.args));
	job.run = run;
	job.done = job_done;
	job.owner = j->call.owner;
	memcpy(job.args, j, bytes);
	if (!j->call.here)
		return exec_submit(&r->exec, &job);
	exec_here(&r->exec, &job);
	return SHARD_OK;
}

/* --- sums --- */

static bool finite(const struct sum_job *j, const struct segment *s, const void *const *src)
{
	if (j->sum.how == TIER_DECODE)
		return quant_finite(&j->sum.codes->quant, s->n, *src);
	return j->reduce(s->n, 1, src, NULL, 1, false).finite;
}

/* Finds the sources that are not finite. They are read again, because that is rare. */
static uint64_t blame(const struct sum_job *j, const struct segment *s, uint32_t k,
		      const void *const *src, const uint32_t *who)
{
	uint64_t bad = 0;

	for (uint32_t i = 0; i < k; i++)
		if (k == 1 || !finite(j, s, &src[i]))
			bad |= 1ull << who[i];
	return bad;
}

static struct quant_residual residual_of(const struct tier_sum *a, const struct segment *s)
{
	struct quant_residual r = a->residual;

	r.last = r.last != NULL ? r.last + s->start : NULL;
	r.next = r.next != NULL ? r.next + s->start : NULL;
	return r;
}

/* The node has no gradient for the segment, so its codes lose nothing. */
static void keep_residual(const struct tier_sum *a, const struct segment *s)
{
	struct quant_residual r = residual_of(a, s);

	for (uint32_t i = 0; r.next != NULL && i < s->n; i++)
		r.next[i] =
			r.last != NULL ? dtype_to_bf16(dtype_from_bf16(r.last[i]) * r.factor) : 0;
}

static struct reduce_sum sum_of(const struct sum_job *j, const struct segment *s, uint32_t k,
				const void *const *src, uint32_t segment)
{
	const struct tier_sum *a = &j->sum;
	void *to = a->to + (size_t)s->start * j->grad_bytes;
	struct quant_residual r;

	if (a->how == TIER_PLAIN)
		return j->reduce(s->n, k, src, to, a->pre, a->norm);
	if (a->how == TIER_DECODE)
		return j->quant->sum(&a->codes->quant, s->n, k, src, to, j->grad, a->norm);
	CHECK(k == 1);
	r = residual_of(a, s);
	j->quant->encode(&a->codes->quant, s->n, src[0], j->grad, &r,
			 a->to + a->codes->at[segment]);
	return (struct reduce_sum){0, true};
}

static const struct share *share_of(const struct sum_job *j, uint32_t source, uint32_t segment)
{
	return &j->sum.share[(size_t)source * j->layout->segments_nr + segment];
}

/* Brings the shares of a segment together where its sum goes, as its only operand. */
static const void *gather(const struct sum_job *j, uint32_t segment, uint32_t k,
			  const uint32_t *who)
{
	const struct tier_sum *a = &j->sum;
	size_t at = (size_t)j->layout->segment[segment].start * j->grad_bytes;

	for (uint32_t i = 0; i < k; i++) {
		const struct share *s = share_of(j, who[i], segment);
		size_t from = at + (size_t)s->start * j->grad_bytes;

		CHECK(a->source[who[i]].at != a->to);
		memcpy(a->to + from, a->source[who[i]].at + from, (size_t)s->n * j->grad_bytes);
	}
	return a->to + at;
}

static bool share_finite(const struct sum_job *j, uint32_t source, uint32_t segment)
{
	const struct share *s = share_of(j, source, segment);
	const uint8_t *from =
		j->sum.source[source].at +
		((size_t)j->layout->segment[segment].start + s->start) * j->grad_bytes;
	float x;

	for (uint32_t i = 0; i < s->n; i++) {
		dtype_convert(&x, SHARD_F32, from + (size_t)i * j->grad_bytes, j->grad, 1);
		if (!dtype_finite(x))
			return false;
	}
	return true;
}

/* Whose share of a segment is not finite. */
static uint64_t blame_shares(const struct sum_job *j, uint32_t segment, uint32_t k,
			     const uint32_t *who)
{
	uint64_t bad = 0;

	for (uint32_t i = 0; i < k; i++)
		if (!share_finite(j, who[i], segment))
			bad |= 1ull << who[i];
	return bad;
}

static void sum_segment(struct sum_job *j, uint32_t segment)
{
	const struct tier_sum *a = &j->sum;
	const struct segment *s = &j->layout->segment[segment];
	size_t at =
		a->how == TIER_DECODE ? a->codes->at[segment] : (size_t)s->start * j->grad_bytes;
	const void *src[TIER_SOURCES_MAX];
	uint32_t who[TIER_SOURCES_MAX], k = 0, shares = 0;
	struct reduce_sum sum;

	for (uint32_t i = 0; i < a->sources_nr; i++) {
		if (a->source[i].absent[segment])
			continue;
		who[k] = i;
		src[k++] = a->source[i].at + at;
	}
	if (k == 0 && a->how == TIER_ENCODE)
		keep_residual(a, s);
	if (k == 0)
		return;
	if (k > 1 && a->share != NULL && share_of(j, who[0], segment)->n != SHARE_WHOLE) {
		src[0] = gather(j, segment, k, who);
		shares = k;
		k = 1;
	}
	sum = sum_of(j, s, k, src, segment);
	j->job.result.sumsq += sum.sq;
	if (sum.finite || !j->job.result.finite)
		return;
	j->job.result.finite = false;
	j->job.result.bad_segment = segment;
	j->job.result.bad_sources =
		shares > 0 ? blame_shares(j, segment, shares, who) : blame(j, s, k, src, who);
}

static void sum_run(void *args)
{
	struct sum_job *j = args;
	const struct layout *l = j->layout;
	uint32_t end = l->chunk_segment[j->sum.chunk + 1];

	for (uint32_t s = l->chunk_segment[j->sum.chunk]; s < end; s++)
		if (!layout_frozen(l, s))
			sum_segment(j, s);
}

static enum shard_status ram_sum(struct tier *t, const struct tier_sum *s,
				 const struct tier_call *c)
{
	const struct ram *r = ram_of(t);
	struct sum_job j = {.job = {*c, {.finite = true}},
			    .sum = *s,
			    .layout = r->layout,
			    .reduce = r->reduce,
			    .quant = r->quant,
			    .grad = r->grad,
			    .grad_bytes = r->grad_bytes};

	CHECK(s->chunk < r->layout->chunks_nr && s->to != NULL);
	CHECK(s->how == TIER_PLAIN || (s->codes->at != NULL && s->pre == 1));
	CHECK(s->sources_nr > 0 && s->sources_nr <= TIER_SOURCES_MAX);
	return submit(r, sum_run, &j.job, sizeof(j));
}

/* --- updates and images --- */

static struct tile_update update_of(const struct ram *r, const struct tier_apply *a)
{
	enum shard_dtype image;

	CHECK(a->chunk < r->layout->chunks_nr && store_holds(r->store, a->chunk) && a->slot < 2);
	image = layout_image(r->layout, a->chunk);
	return (struct tile_update){
		.layout = r->layout,
		.chunk = a->chunk,
		.grad_bytes = r->grad_bytes,
		.image_bytes = (uint32_t)dtype_bytes(image),
		.args = a->args,
		.zero = a->zero,
		.grad = a->grad,
		.tensor = {store_master(r->store, a->chunk), store_state(r->store, a->chunk, 0),
			   store_state(r->store, a->chunk, 1)},
		.image = a->codes == NULL ? store_image(r->store, a->slot, a->chunk) : NULL,
		.kernel = r->kernel[image],
		.kernel_undo = r->kernel_undo[image]};
}

/* Updates a part of a segment in memory that ends with the process. from: an element of the chunk.
 */
static uint64_t update_part(const struct tile_update *u, uint32_t segment, uint32_t from,
			    uint32_t n, uint8_t *image)
{
	const struct segment *g = &u->layout->segment[segment];

	return u->kernel(&u->args[g->group], n,
			 u->zero[segment] ? NULL : u->grad + (size_t)from * u->grad_bytes,
			 u->tensor[0] + from, u->tensor[1] != NULL ? u->tensor[1] + from : NULL,
			 u->tensor[2] != NULL ? u->tensor[2] + from : NULL, image);
}

/* Updates what a segment has in [from, to) of its chunk. */
static uint64_t update_within(const struct tile_update *u, uint32_t segment, uint32_t from,
			      uint32_t to)
{
	const struct segment *g = &u->layout->segment[segment];
	uint8_t nowhere[TILE_ELEMS * sizeof(float)];

	from = g->start > from ? g->start : from;
	to = g->start + g->n < to ? g->start + g->n : to;
	if (from >= to || layout_frozen(u->layout, segment))
		return 0;
	return update_part(u, segment, from, to - from,
			   u->image != NULL ? u->image + (size_t)from * u->image_bytes : nowhere);
}

/* The kernels write an image in any case. Of one that is made later the bytes go nowhere, so the
 * chunk is cut, as it is where a save keeps it. */
static uint64_t update_plain(const struct tile_update *u)
{
	const struct layout *l = u->layout;
	uint32_t elems = layout_chunk_elems(l, u->chunk), s = l->chunk_segment[u->chunk],
		 piece = u->image != NULL && u->keep[0] == NULL ? elems : TILE_ELEMS;
	uint64_t kept = 0;

	CHECK(u->kernel != NULL && u->grad != NULL && u->tensor[0] != NULL);
	for (uint32_t from = 0, to; from < elems; from = to) {
		to = elems - from < piece ? elems : from + piece;
		tile_keep(u, from, to);
		while (s < l->chunk_segment[u->chunk + 1] &&
		       l->segment[s].start + l->segment[s].n <= from)
			s++;
		for (uint32_t i = s; i < l->chunk_segment[u->chunk + 1] && l->segment[i].start < to;
		     i++)
			kept += update_within(u, i, from, to);
	}
	return kept;
}

/* What is frozen is the same in both images. */
static void code_image(const struct image_job *j)
{
	const struct layout *l = j->layout;
	size_t elem = dtype_bytes(j->dt);

	for (uint32_t s = l->chunk_segment[j->chunk]; s < l->chunk_segment[j->chunk + 1]; s++) {
		const struct segment *g = &l->segment[s];
		const uint8_t *before = j->before + g->start * elem;
		uint8_t *image = j->image + g->start * elem, *coded = j->coded + j->codes->at[s];

		if (layout_frozen(l, s)) {
			if (before != image)
				memcpy(image, before, g->n * elem);
		} else if (j->master != NULL) {
			j->quant->delta(&j->codes->quant, g->n, j->master + g->start, before, image,
					j->dt, coded);
		} else {
			j->quant->patch(&j->codes->quant, g->n, coded, before, image, j->dt);
		}
	}
}

static void apply_run(void *args)
{
	struct apply_job *j = args;

	bool keeps = hold_keep(j->store, j->update.chunk, j->update.keep);

	j->job.result.kept = j->tiles == NULL ? update_plain(&j->update)
					      : tile_apply(j->tiles, j->stamp, &j->update);
	if (keeps)
		hold_kept(j->store, j->update.chunk);
	if (j->image.codes != NULL)
		code_image(&j->image);
	store_image_keep(j->store, j->slot, j->half, j->update.chunk);
}

static void make_run(void *args)
{
	struct apply_job *j = args;
	struct store_missing missing;
	uint32_t chunk = j->update.chunk;

	store_missing_init(&missing);
	store_missing(j->store, chunk, &missing);
	j->job.result.unwritten = missing.unwritten;
	j->job.result.nonfinite = missing.nonfinite;
	if (j->finish && missing.unwritten == 0)
		j->job.result.kept = tile_apply(j->tiles, j->stamp, &j->update);
	if (j->older || j->image.codes != NULL)
		store_image_again(j->store, j->before, j->half ^ 1, chunk);
	if (j->kept)
		store_image_again(j->store, j->slot, j->half, chunk);
	else if (j->image.codes != NULL)
		code_image(&j->image);
	else
		store_seal_chunk(j->store, j->slot, chunk);
	store_image_keep(j->store, j->slot, j->half, chunk);
}

static struct image_job image_job(const struct ram *r, const struct tier_apply *a)
{
	return (struct image_job){.layout = r->layout,
				  .quant = r->quant,
				  .codes = a->codes,
				  .chunk = a->chunk,
				  .dt = layout_image(r->layout, a->chunk),
				  .master = store_master(r->store, a->chunk),
				  .coded = a->coded,
				  .before = store_image(r->store, a->before, a->chunk),
				  .image = store_image(r->store, a->slot, a->chunk)};
}

static struct apply_job apply_job(const struct ram *r, const struct tier_apply *a,
				  const struct tier_call *c)
{
	return (struct apply_job){.job = {*c, {.finite = true}},
				  .update = update_of(r, a),
				  .image = image_job(r, a),
				  .tiles = r->tiles,
				  .store = r->store,
				  .stamp = a->stamp,
				  .slot = a->slot,
				  .half = a->half,
				  .before = a->before};
}

static enum shard_status ram_apply(struct tier *t, const struct tier_apply *a,
				   const struct tier_call *c)
{
	struct apply_job j = apply_job(ram_of(t), a, c);

	CHECK(a->args != NULL && a->zero != NULL && a->grad != NULL);
	return submit(ram_of(t), apply_run, &j.job, sizeof(j));
}

static enum shard_status ram_make(struct tier *t, const struct tier_make *a,
				  const struct tier_call *c)
{
	struct apply_job j = apply_job(ram_of(t), &a->update, c);

	CHECK(!a->finish || (j.tiles != NULL && a->update.grad != NULL));
	j.finish = a->finish;
	j.kept = a->kept;
	j.older = a->older;
	return submit(ram_of(t), make_run, &j.job, sizeof(j));
}

static void patch_run(void *args)
{
	code_image(args);
}

static enum shard_status ram_patch(struct tier *t, const struct tier_patch *p,
				   const struct tier_call *c)
{
	const struct ram *r = ram_of(t);
	struct image_job j = {.job = {*c, {.finite = true}},
			      .layout = r->layout,
			      .quant = r->quant,
			      .codes = p->codes,
			      .chunk = p->chunk,
			      .dt = layout_image(r->layout, p->chunk),
			      .coded = (uint8_t *)(uintptr_t)p->coded,
			      .before = store_image(r->store, p->before, p->chunk),
			      .image = store_image(r->store, p->slot, p->chunk)};

	return submit(r, patch_run, &j.job, sizeof(j));
}

static enum shard_status ram_repair(struct tier *t, uint64_t stamp, bool applying,
				    void (*of)(void *arg, uint32_t chunk, struct tier_apply *a),
				    void *arg, uint64_t *kept, struct err *e)
{
	const struct ram *r = ram_of(t);
	enum shard_status st = SHARD_OK;

	for (uint32_t i = 0; r->tiles != NULL && i < r->tiles->undo_nr && st == SHARD_OK; i++) {
		struct tier_apply a;
		struct tile_update u;
		uint32_t chunk;

		if (!tile_noted(r->tiles, i, stamp, &chunk))
			continue;
		if (chunk >= r->layout->chunks_nr || !store_holds(r->store, chunk))
			return err_set(e, SHARD_MISMATCH,
				       "elements of chunk %u are to be put back, which is not here",
				       chunk);
		if (store_is_away(r->store, chunk) && !store_away_here(r->store, chunk)) {
			/* It left memory after all of it was changed. */
			if (tile_whole(r->tiles, r->layout, chunk, stamp))
				continue;
			return err_set(e, SHARD_MISMATCH,
				       "elements of chunk %u are to be put back, and its state is "
				       "not in memory",
				       chunk);
		}
		of(arg, chunk, &a);
		u = update_of(r, &a);
		st = tile_repair(r->tiles, i, &u, applying, kept, e);
		/* It may leave memory before its step is finished, and takes one stamp along. */
		if (st == SHARD_OK && applying && store_is_away(r->store, chunk))
			*kept += tile_apply(r->tiles, stamp, &u);
	}
	return st;
}

static uint32_t ram_lanes(const struct tier *t)
{
	return exec_lanes(&ram_of(t)->exec);
}

static void ram_close(struct tier *t)
{
	free(ram_of(t));
}

enum shard_status tier_ram_open(struct tier **out, const struct tier_conf *conf, struct err *e)
{
	static const struct tier_row row = {.name = "ram",
					    .sum = ram_sum,
					    .apply = ram_apply,
					    .make = ram_make,
					    .patch = ram_patch,
					    .repair = ram_repair,
					    .lanes = ram_lanes,
					    .close = ram_close};
	const struct store_conf *s = &conf->store->conf;
	struct ram *r = calloc(1, sizeof(*r));

	CHECK(conf->exec.row != NULL);
	if (r == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the tier of \"%s\"", s->name);
	*r = (struct ram){.tier = {&row},
			  .store = conf->store,
			  .layout = s->layout,
			  .tiles = conf->tiles,
			  .exec = conf->exec,
			  .reduce = reduce_kernel(conf->isa, s->grad),
			  .quant = quant_kernels(conf->isa),
			  .grad = s->grad,
			  .grad_bytes = dtype_bytes(s->grad)};
	for (int d = 1; d <= DTYPE_NR; d++) {
		r->kernel[d] = optim_kernel(s->optim, conf->isa, s->grad, (enum shard_dtype)d);
		r->kernel_undo[d] =
			optim_kernel_undo(s->optim, conf->isa, s->grad, (enum shard_dtype)d);
	}
	*out = &r->tier;
	return SHARD_OK;
}
