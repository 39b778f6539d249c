/* SPDX-License-Identifier: Apache-2.0 */
/* Converts core messages to protobuf and back, for the links between nodes and the coordinator's
 * file. model.c packs the messages that the core sends and unpacks those that arrive. view_file.c
 * packs a view for the file, and resume.c unpacks it. Packing fails only if the arena is too small.
 * Every count from outside is compared with what this node knows of the model before it is used. A
 * body that does not fit is refused with SHARD_PROTOCOL, which closes the link or ends the start.
 */
#include "model/corewire.h"

#include "base/check.h"
#include "model/tablewire.h"
#include "wire/ops.h"
#include "wire/place.h"

#include <math.h>
#include <string.h>

static void *take(struct arena *a, size_t n, size_t bytes)
{
	return arena_take(a, n * bytes);
}

static void pack_id(Shard__Id *out, const struct core_id *id)
{
	shard__id__init(out);
	out->term = id->term;
	out->step = id->step;
	out->seq = id->seq;
	out->generation = id->generation;
	out->attempt = id->attempt;
}

/* This node counts on from these numbers, so there must be room above them. */
static enum shard_status unpack_id(struct core_id *id, const Shard__Id *in, struct err *e)
{
	if (in->step > INT64_MAX || in->generation > INT32_MAX || in->attempt > INT32_MAX)
		return err_set(e, SHARD_PROTOCOL,
			       "generation %u step %lu attempt %u: no model gets that far",
			       in->generation, (unsigned long)in->step, in->attempt);
	*id = (struct core_id){in->term, in->step, in->seq, in->generation, in->attempt};
	return SHARD_OK;
}

static Shard__Rank **pack_world(const struct core_world *w, struct arena *a)
{
	Shard__Rank **list = take(a, w->size + 1, sizeof(*list));
	Shard__Rank *ranks = take(a, w->size + 1, sizeof(*ranks));

	CHECK(w->size <= CORE_RANKS_MAX);
	if (list == NULL || ranks == NULL)
		return NULL;
	for (uint32_t i = 0; i < w->size; i++) {
		list[i] = &ranks[i];
		shard__rank__init(&ranks[i]);
		ranks[i].session = w->rank[i].session;
		ranks[i].pid = w->rank[i].pid;
		ranks[i].node = w->rank[i].node;
		ranks[i].weight = w->rank[i].weight;
	}
	return list;
}

static enum shard_status unpack_world(struct core_world *w, Shard__Rank **list, size_t nr,
				      const struct corewire_limits *l, struct err *e)
{
	const char *wrong;

	CHECK(l->max_world <= CORE_RANKS_MAX);
	if (nr > CORE_RANKS_MAX)
		return err_set(e, SHARD_PROTOCOL, "a world of %zu ranks: at most %d", nr,
			       CORE_RANKS_MAX);
	w->size = (uint32_t)nr;
	for (size_t i = 0; i < nr; i++)
		w->rank[i] = (struct core_rank){
			.session = list[i]->session,
			.weight = list[i]->weight,
			.pid = list[i]->pid,
			.node = list[i]->node < CORE_NODES_MAX ? (uint16_t)list[i]->node
							       : UINT16_MAX,
		};
	wrong = core_world_wrong(w, l->nodes_nr, l->max_world, l->local_world);
	return wrong == NULL ? SHARD_OK
			     : err_set(e, SHARD_PROTOCOL, "a world of %zu ranks: %s", nr, wrong);
}

/* How many of the values of each rank travel: those behind the last one that is not +0 do not. */
static uint32_t values_width(const double *values, uint32_t nr)
{
	static const double zero;
	uint32_t width = 0;

	for (uint32_t i = 0; i < nr; i++)
		if (i % CORE_VALUES_NR >= width && memcmp(&values[i], &zero, sizeof(zero)) != 0)
			width = i % CORE_VALUES_NR + 1;
	return width;
}

static double *pack_values(const double *values, uint32_t nr, struct arena *a, size_t *packed_nr)
{
	uint32_t width = values_width(values, nr), rows = nr / CORE_VALUES_NR;
	double *out = take(a, (size_t)rows * width + 1, sizeof(*out));

	CHECK(nr % CORE_VALUES_NR == 0);
	if (out == NULL)
		return NULL;
	for (uint32_t r = 0; r < rows && width > 0; r++)
		memcpy(out + (size_t)r * width, values + (size_t)r * CORE_VALUES_NR,
		       width * sizeof(*out));
	*packed_nr = (size_t)rows * width;
	return out;
}

/* rows: how many ranks they are of. */
static enum shard_status unpack_values(double *values, const double *in, size_t nr, size_t rows,
				       struct err *e)
{
	size_t width = rows > 0 ? nr / rows : 0;

	if (width > CORE_VALUES_NR || width * rows != nr)
		return err_set(e, SHARD_PROTOCOL,
			       "%zu values of %zu ranks: each gives equally many, and at most %d",
			       nr, rows, CORE_VALUES_NR);
	memset(values, 0, rows * CORE_VALUES_NR * sizeof(*values));
	for (size_t r = 0; r < rows && width > 0; r++)
		memcpy(values + r * CORE_VALUES_NR, in + r * width, width * sizeof(*values));
	return SHARD_OK;
}

Shard__Record *corewire_pack_record(const struct record *r, struct arena *a)
{
	Shard__Record *out = take(a, 1, sizeof(*out));
	Shard__Id *id = take(a, 1, sizeof(*id));
	Shard__Scaler *scaler = take(a, 1, sizeof(*scaler));
	uint32_t *args = take(a, r->groups_nr, sizeof(struct optim_args));

	CHECK(r->groups_nr <= CORE_GROUPS_MAX);
	if (out == NULL || id == NULL || scaler == NULL || args == NULL)
		return NULL;
	shard__record__init(out);
	pack_id(id, &r->id);
	out->id = id;
	out->outcome = r->outcome;
	out->diverged = r->diverged;
	out->content = r->content;
	out->content_old = r->content_old + 1;
	out->applied = r->applied;
	out->skipped_in_row = r->skipped_in_row;
	out->attempts = r->attempts;
	out->grad_norm = r->grad_norm;
	out->clip_factor = r->clip_factor;
	out->weight_sum = r->weight_sum;
	out->loss_scale = r->loss_scale;
	out->lr = r->lr;
	out->bad_tensor = r->bad_tensor;
	out->bad_rank = r->bad_rank;
	shard__scaler__init(scaler);
	scaler->scale = r->scaler.scale;
	scaler->hysteresis = r->scaler.hysteresis;
	scaler->last_overflow = r->scaler.last_overflow;
	scaler->iter = r->scaler.iter;
	out->scaler = scaler;
	out->values = pack_values(r->values, CORE_VALUES_NR, a, &out->n_values);
	if (out->values == NULL)
		return NULL;
	memcpy(args, r->args, r->groups_nr * sizeof(r->args[0]));
	out->n_args = (size_t)r->groups_nr * OPTIM_ARGS_WORDS;
	out->args = args;
	out->n_world = r->world.size;
	out->world = pack_world(&r->world, a);
	return out->world != NULL ? out : NULL;
}

static enum shard_status unpack_record(struct record *r, const Shard__Record *in,
				       const struct corewire_limits *l, struct err *e)
{
	if (in->id == NULL || in->scaler == NULL || in->outcome > RECORD_SKIP)
		return err_set(e, SHARD_PROTOCOL,
			       "a record without id or scaler, or with outcome %u", in->outcome);
	if (in->n_args != (size_t)l->groups_nr * OPTIM_ARGS_WORDS)
		return err_set(e, SHARD_PROTOCOL,
			       "a record with %zu optimizer words: %u groups need %u", in->n_args,
			       l->groups_nr, l->groups_nr * OPTIM_ARGS_WORDS);
	memset(r, 0, sizeof(*r));
	if (unpack_id(&r->id, in->id, e) != SHARD_OK)
		return e->status;
	r->outcome = (enum record_outcome)in->outcome;
	r->diverged = in->diverged;
	r->content = in->content;
	r->content_old = in->content_old > 0 ? in->content_old - 1 : in->content;
	r->applied = in->applied;
	r->skipped_in_row = in->skipped_in_row;
	r->attempts = in->attempts;
	r->grad_norm = in->grad_norm;
	r->clip_factor = in->clip_factor;
	r->weight_sum = in->weight_sum;
	r->loss_scale = in->loss_scale;
	r->lr = in->lr;
	r->bad_tensor = in->bad_tensor;
	r->bad_rank = in->bad_rank;
	r->scaler = (struct scaler){in->scaler->scale, in->scaler->hysteresis,
				    in->scaler->last_overflow, in->scaler->iter};
	r->groups_nr = l->groups_nr;
	memcpy(r->args, in->args, in->n_args * 4);
	if (unpack_values(r->values, in->values, in->n_values, 1, e) != SHARD_OK)
		return e->status;
	if (!record_content_ok(r))
		return err_set(
			e, SHARD_PROTOCOL,
			"a record of step %lu with outcome %u whose weights are of step %lu, "
			"and of step %lu before",
			(unsigned long)r->id.step, in->outcome, (unsigned long)r->content,
			(unsigned long)r->content_old);
	if (r->outcome == RECORD_SEAL && in->n_world == 0)
		return SHARD_OK;
	return unpack_world(&r->world, in->world, in->n_world, l, e);
}

static Shard__Vote *pack_vote(const struct core_vote *v, struct arena *a)
{
	Shard__Vote *out = take(a, 1, sizeof(*out));
	size_t bytes = (v->chunks_nr + 7) / 8;
	uint8_t *bits = take(a, bytes + 1, 1);

	if (out == NULL || bits == NULL)
		return NULL;
	memset(bits, 0, bytes + 1);
	for (uint32_t i = 0; i < v->chunks_nr; i++)
		bits[i / 8] |= (uint8_t)((v->finite[i] != 0) << (i % 8));
	shard__vote__init(out);
	out->n_sumsq = v->chunks_nr;
	out->sumsq = (double *)(uintptr_t)
			     v->sumsq; /* Packed from where it is: protobuf-c has no const. */
	out->finite = (ProtobufCBinaryData){bytes, bits};
	out->n_weights = v->ranks_nr;
	out->weights = (double *)(uintptr_t)v->weights;
	out->n_lr = v->lr_nr;
	out->lr = (double *)(uintptr_t)v->lr;
	out->has_clip = v->has_clip;
	out->clip = v->clip;
	out->values = pack_values(v->values, v->values_nr, a, &out->n_values);
	if (out->values == NULL)
		return NULL;
	out->skip = v->skip;
	out->bad_tensor = v->bad_tensor;
	out->bad_rank = v->bad_rank;
	return out;
}

/* rows: of so many ranks it has values. */
static enum shard_status unpack_vote(struct core_vote *v, const Shard__Vote *in, size_t rows,
				     const struct corewire_limits *l, struct arena *a,
				     struct err *e)
{
	uint8_t *finite;
	double *values;

	if (in->n_sumsq > l->chunks_nr || in->finite.len != (in->n_sumsq + 7) / 8 ||
	    in->n_weights > CORE_RANKS_MAX)
		return err_set(e, SHARD_PROTOCOL,
			       "a vote with %zu sums, %zu bytes of flags, %zu weights: the model "
			       "has %u chunks",
			       in->n_sumsq, in->finite.len, in->n_weights, l->chunks_nr);
	if (in->n_lr != 0 && in->n_lr != l->groups_nr)
		return err_set(e, SHARD_PROTOCOL,
			       "a vote with %zu learning rates: the model has %u groups", in->n_lr,
			       l->groups_nr);
	for (size_t i = 0; i < in->n_weights; i++)
		if (!(in->weights[i] >= 0) || in->weights[i] > 1e300)
			return err_set(e, SHARD_PROTOCOL,
				       "a vote with weight %g: no trainer could give that",
				       in->weights[i]);
	for (size_t i = 0; i < in->n_lr; i++)
		if (!(in->lr[i] >= 0 && in->lr[i] <= 1e30))
			return err_set(e, SHARD_PROTOCOL,
				       "a vote with learning rate %g: no trainer could give that",
				       in->lr[i]);
	if (!(in->clip >= 0 && in->clip <= 1e300) || (!in->has_clip && in->clip != 0))
		return err_set(e, SHARD_PROTOCOL,
			       "a vote with clip %g, given %d: no trainer could give that",
			       in->clip, in->has_clip);
	finite = take(a, in->n_sumsq + 1, 1);
	values = take(a, rows * CORE_VALUES_NR + 1, sizeof(*values));
	if (finite == NULL || values == NULL)
		return err_set(e, SHARD_PROTOCOL, "a vote larger than this node's control memory");
	if (unpack_values(values, in->values, in->n_values, rows, e) != SHARD_OK)
		return e->status;
	for (size_t i = 0; i < in->n_sumsq; i++)
		finite[i] = in->finite.data[i / 8] >> (i % 8) & 1;
	*v = (struct core_vote){
		.sumsq = in->sumsq,
		.finite = finite,
		.chunks_nr = (uint32_t)in->n_sumsq,
		.weights = in->weights,
		.ranks_nr = (uint32_t)in->n_weights,
		.lr = in->lr,
		.lr_nr = (uint32_t)in->n_lr,
		.has_clip = in->has_clip,
		.clip = in->clip,
		.values = values,
		.values_nr = (uint32_t)rows * CORE_VALUES_NR,
		.skip = in->skip,
		.bad_tensor = in->bad_tensor,
		.bad_rank = in->bad_rank,
	};
	return SHARD_OK;
}

static bool pack_hyper(Shard__Tune *out, const struct core_tune *t, struct arena *a)
{
	Shard__Hyper *hyper;
	size_t nr = 0;

	for (uint32_t g = 0; g < CORE_GROUPS_MAX; g++)
		nr += (size_t)__builtin_popcount(t->set[g]);
	hyper = take(a, nr + 1, sizeof(*hyper));
	out->hyper = take(a, nr + 1, sizeof(*out->hyper));
	if (hyper == NULL || out->hyper == NULL)
		return false;
	for (uint32_t g = 0; g < CORE_GROUPS_MAX; g++)
		for (uint32_t i = 0; i < HYPER_NR; i++) {
			if (!(t->set[g] >> i & 1))
				continue;
			shard__hyper__init(hyper);
			hyper->group = g;
			hyper->key = i;
			hyper->value = t->hyper[g][i];
			out->hyper[out->n_hyper++] = hyper++;
		}
	return true;
}

static bool pack_tune(Shard__Tune *out, const struct core_tune *t, struct arena *a)
{
	shard__tune__init(out);
	out->paused = t->paused;
	out->has_lr = t->has_lr;
	out->has_clip = t->has_clip;
	out->lr = t->lr;
	out->clip = t->clip;
	out->resumed_step = t->resumed_step;
	out->resumed_skips = t->resumed_skips;
	return pack_hyper(out, t, a);
}

static enum shard_status unpack_tune(struct core_tune *t, const Shard__Tune *in, uint32_t groups_nr,
				     struct err *e)
{
	if (!isfinite(in->lr) || !isfinite(in->clip) || in->lr < 0 || in->clip < 0)
		return err_set(
			e, SHARD_PROTOCOL,
			"a view with lr %g and clip %g: neither may be negative or not finite",
			in->lr, in->clip);
	*t = (struct core_tune){
		.paused = in->paused,
		.has_lr = in->has_lr,
		.has_clip = in->has_clip,
		.lr = in->lr,
		.clip = in->clip,
		.resumed_step = in->resumed_step,
		.resumed_skips = in->resumed_skips,
	};
	for (size_t i = 0; i < in->n_hyper; i++) {
		const Shard__Hyper *h = in->hyper[i];

		if (h->group >= groups_nr || h->key >= HYPER_NR || !(TUNE_HYPERS >> h->key & 1) ||
		    !(h->value >= 0) || isinf(h->value))
			return err_set(e, SHARD_PROTOCOL,
				       "a view with hyper-parameter %u of group %u at %g: nobody "
				       "could set that",
				       h->key, h->group, h->value);
		t->set[h->group] |= 1u << h->key;
		t->hyper[h->group][h->key] = h->value;
	}
	CHECK(tune_hyper_ok(t, groups_nr));
	return SHARD_OK;
}

static bool pack_members(const struct view_members *v, struct arena *a, Shard__View *out)
{
	out->members = v->nodes;
	out->coordinator = view_coordinator(v);
	out->incarnation = take(a, view_members_nr(v), sizeof(*out->incarnation));
	out->uuid = take(a, view_members_nr(v), sizeof(*out->uuid));
	if (out->incarnation == NULL || out->uuid == NULL)
		return false;
	view_each(n, v) {
		out->incarnation[out->n_incarnation++] = v->node[n].incarnation;
		out->uuid[out->n_uuid++] = (ProtobufCBinaryData){
			VIEW_UUID_BYTES, (uint8_t *)(uintptr_t)v->node[n].uuid};
	}
	return true;
}

/* out points into v. */
enum shard_status corewire_pack_view(const struct core_view *v, uint64_t defined, struct arena *a,
				     Shard__View *out)
{
	shard__view__init(out);
	out->term = v->term;
	out->seq = v->seq;
	out->generation = v->generation;
	if (!pack_members(&v->members, a, out))
		return SHARD_AGAIN;
	out->place = v->place.sum;
	out->learns = v->place.learns;
	out->moves = v->place.moves;
	if (v->place.primary != NULL && v->place.sum != defined) {
		out->tables = take(a, 1, sizeof(*out->tables));
		if (out->tables == NULL || tablewire_pack(&v->place, a, out->tables) != SHARD_OK)
			return SHARD_AGAIN;
	}
	out->sealed = v->sealed;
	out->restoring = v->restoring;
	out->lost = v->lost;
	if ((out->tune = take(a, 1, sizeof(*out->tune))) == NULL)
		return SHARD_AGAIN;
	if (!pack_tune(out->tune, &v->tune, a))
		return SHARD_AGAIN;
	if (v->sealed && (out->record = corewire_pack_record(&v->record, a)) == NULL)
		return SHARD_AGAIN;
	return SHARD_OK;
}

static enum shard_status unpack_slots(const Shard__View *in, const struct corewire_limits *l,
				      struct view_members *v, struct err *e)
{
	v->nodes = in->members;
	v->coordinator = in->coordinator;
	if (view_members_ok(v, view_first(l->nodes_nr, 0).nodes) &&
	    in->n_incarnation == view_members_nr(v) && in->n_uuid == view_members_nr(v))
		return SHARD_OK;
	return err_set(e, SHARD_PROTOCOL,
		       "a view of the members %#lx, led by node %lu, with %zu incarnations and "
		       "%zu uuids: this cluster has %u nodes",
		       (unsigned long)v->nodes, (unsigned long)v->coordinator, in->n_incarnation,
		       in->n_uuid, l->nodes_nr);
}

/* Nothing of the members is used before all of it is checked against this cluster's nodes. */
static enum shard_status unpack_members(const Shard__View *in, const struct corewire_limits *l,
					struct view_members *v, struct err *e)
{
	uint16_t a, b;
	size_t k = 0;

	if (unpack_slots(in, l, v, e) != SHARD_OK)
		return e->status;
	view_each(n, v) {
		if (in->uuid[k].len != VIEW_UUID_BYTES)
			return err_set(e, SHARD_PROTOCOL,
				       "a view that names node %u by a uuid of %zu bytes", n,
				       in->uuid[k].len);
		memcpy(v->node[n].uuid, in->uuid[k].data, VIEW_UUID_BYTES);
		v->node[n].incarnation = in->incarnation[k++];
	}
	if ((a = view_unnamed(v)) < CORE_NODES_MAX)
		return err_set(e, SHARD_PROTOCOL, "a view in which node %u has no uuid", a);
	if (view_twins(v, &a, &b))
		return err_set(e, SHARD_PROTOCOL,
			       "a view that names nodes %u and %u by the same uuid", a, b);
	if (l->uuid != NULL && view_is_member(v, l->self) &&
	    memcmp(v->node[l->self].uuid, l->uuid, VIEW_UUID_BYTES) != 0)
		return err_set(e, SHARD_PROTOCOL,
			       "a view that names node %u, which is this one, by a uuid that is "
			       "not its own",
			       l->self);
	return SHARD_OK;
}

/* Which tables a view has: those that it brings, or those of the definition. */
static enum shard_status unpack_which(const Shard__View *in, const struct corewire_limits *l,
				      struct arena *a, struct placement *p, struct err *e)
{
	if (in->tables == NULL) {
		*p = l->place;
		p->sum = in->place;
		if (l->place.primary == NULL || in->place == l->place.sum)
			return SHARD_OK;
		return err_set(e, SHARD_PROTOCOL,
			       "a view whose tables, which it does not bring, are not those of the "
			       "definition");
	}
	if (tablewire_unpack(in->tables, l->chunks_nr, l->nodes_nr, a, p, e) != SHARD_OK)
		return e->status;
	if (p->sum == in->place)
		return SHARD_OK;
	return err_set(e, SHARD_PROTOCOL,
		       "a view with tables of the sum %016lx, which names those of %016lx",
		       (unsigned long)p->sum, (unsigned long)in->place);
}

static enum shard_status unpack_place(const Shard__View *in, const struct corewire_limits *l,
				      struct arena *a, struct core_view *v, struct err *e)
{
	struct placement *p = &v->place;

	if (unpack_which(in, l, a, p, e) != SHARD_OK)
		return e->status;
	p->learns = in->learns;
	p->moves = in->moves;
	p->gone = ~v->members.nodes;
	if (in->learns & ~v->members.nodes || (in->learns != 0 && !in->sealed))
		return err_set(e, SHARD_PROTOCOL,
			       "a view in which the nodes %#lx catch up, of the members %#lx, and "
			       "sealed %d",
			       (unsigned long)in->learns, (unsigned long)v->members.nodes,
			       in->sealed);
	if (in->moves & (~v->members.nodes | in->learns) ||
	    (in->moves != 0 && (!in->sealed || p->to == NULL)))
		return err_set(e, SHARD_PROTOCOL,
			       "a view in which chunks move to the nodes %#lx, of the members "
			       "%#lx, where %#lx catch up, sealed %d and with a table to move to "
			       "%d",
			       (unsigned long)in->moves, (unsigned long)v->members.nodes,
			       (unsigned long)in->learns, in->sealed, p->to != NULL);
	if (in->tables != NULL && !place_ok(p, &v->members))
		return err_set(e, SHARD_PROTOCOL,
			       "a view with tables in which a chunk has no copy at a member");
	return SHARD_OK;
}

enum shard_status corewire_unpack_view(const Shard__View *in, const struct corewire_limits *l,
				       struct arena *a, struct core_view *v, struct err *e)
{
	enum shard_status st;

	CHECK(l->nodes_nr <= CORE_NODES_MAX);
	memset(v, 0, sizeof(*v));
	if ((st = unpack_members(in, l, &v->members, e)) != SHARD_OK ||
	    (st = unpack_place(in, l, a, v, e)) != SHARD_OK)
		return st;
	if (in->sealed != (in->record != NULL))
		return err_set(e, SHARD_PROTOCOL, "a view that is sealed %d, with a record %d",
			       in->sealed, in->record != NULL);
	if (in->sealed && (in->restoring || in->lost))
		return err_set(e, SHARD_PROTOCOL, "a view that is sealed and %s",
			       in->restoring ? "restoring" : "lost");
	if (in->tune != NULL && (st = unpack_tune(&v->tune, in->tune, l->groups_nr, e)) != SHARD_OK)
		return st;
	v->term = in->term;
	v->seq = in->seq;
	v->generation = in->generation;
	v->sealed = in->sealed;
	v->restoring = in->restoring;
	v->lost = in->lost;
	if (!v->sealed)
		return SHARD_OK;
	if ((st = unpack_record(&v->record, in->record, l, e)) != SHARD_OK)
		return st;
	/* A view without weights has no record, and the first weights are of generation 1. */
	if (v->generation == 0 || v->record.id.generation != v->generation)
		return err_set(e, SHARD_PROTOCOL,
			       "a view of generation %u with a record of generation %u",
			       v->generation, v->record.id.generation);
	return SHARD_OK;
}

static Shard__Answer *pack_answer(const struct core_answer *s, struct arena *a)
{
	Shard__Answer *out = take(a, 1, sizeof(*out));
	Shard__Id *id = take(a, 1, sizeof(*id));

	if (out == NULL || id == NULL)
		return NULL;
	shard__answer__init(out);
	out->incarnation = s->incarnation;
	out->term = s->term;
	out->seq = s->seq;
	out->generation = s->generation;
	if (s->has_record && (out->record = corewire_pack_record(&s->record, a)) == NULL)
		return NULL;
	if (!s->prepared)
		return out;
	pack_id(id, &s->id);
	out->prepared = id;
	out->vote = pack_vote(&s->vote, a);
	out->n_world = s->world.size;
	out->world = pack_world(&s->world, a);
	return out->vote != NULL && out->world != NULL ? out : NULL;
}

static enum shard_status unpack_answer(struct core_answer *s, const Shard__Answer *in,
				       const struct corewire_limits *l, struct arena *a,
				       struct err *e)
{
	enum shard_status st;

	memset(s, 0, sizeof(*s));
	s->incarnation = in->incarnation;
	s->term = in->term;
	s->seq = in->seq;
	s->generation = in->generation;
	s->has_record = in->record != NULL;
	if (s->has_record && (st = unpack_record(&s->record, in->record, l, e)) != SHARD_OK)
		return st;
	if (in->generation > INT32_MAX ||
	    (s->has_record && s->record.id.generation != in->generation))
		return err_set(e, SHARD_PROTOCOL,
			       "an answer of generation %u with a record of generation %u",
			       in->generation, s->record.id.generation);
	s->prepared = in->prepared != NULL;
	if (!s->prepared)
		return SHARD_OK;
	if (in->vote == NULL)
		return err_set(e, SHARD_PROTOCOL, "an answer that is prepared without a vote");
	if ((st = unpack_id(&s->id, in->prepared, e)) != SHARD_OK)
		return st;
	if ((st = unpack_vote(&s->vote, in->vote, 1, l, a, e)) != SHARD_OK)
		return st;
	return unpack_world(&s->world, in->world, in->n_world, l, e);
}

static Shard__Trainer *pack_trainer(const struct core_msg *m, struct arena *a)
{
	Shard__Trainer *out = take(a, 1, sizeof(*out));

	if (out == NULL)
		return NULL;
	shard__trainer__init(out);
	out->session = m->trainer.session;
	out->pid = m->trainer.pid;
	out->hint = m->trainer.hint;
	out->leave = m->trainer.leave;
	out->why = m->why != NULL ? (char *)(uintptr_t)m->why : out->why;
	return out;
}

static Shard__Waits *pack_waits(const struct core_msg *m, struct arena *a)
{
	Shard__Waits *out = take(a, 1, sizeof(*out));

	if (out == NULL)
		return NULL;
	shard__waits__init(out);
	out->n_ranks = NR(m->waits.ranks);
	out->ranks = (uint64_t *)(uintptr_t)m->waits.ranks;
	out->nodes = m->waits.nodes;
	out->chunks_staged = m->waits.chunks_staged;
	out->chunks_nr = m->waits.chunks_nr;
	out->image_chunk = m->waits.image_chunk;
	out->image_step = m->waits.image_step;
	out->why = m->why != NULL ? (char *)(uintptr_t)m->why : out->why;
	return out;
}

static bool pack_body(const struct core_msg *m, uint64_t defined, struct arena *a, Shard__Core *out)
{
	if (m->world != NULL) {
		out->n_world = m->world->size;
		if ((out->world = pack_world(m->world, a)) == NULL)
			return false;
	}
	if (m->record != NULL && (out->record = corewire_pack_record(m->record, a)) == NULL)
		return false;
	if (m->view != NULL) {
		out->view = take(a, 1, sizeof(*out->view));
		if (out->view == NULL ||
		    corewire_pack_view(m->view, defined, a, out->view) != SHARD_OK)
			return false;
	}
	if (m->answer != NULL && (out->answer = pack_answer(m->answer, a)) == NULL)
		return false;
	if ((m->op == CORE_VOTE || m->op == CORE_RANKS) &&
	    (out->vote = pack_vote(&m->vote, a)) == NULL)
		return false;
	if ((m->op == CORE_JOIN || m->op == CORE_GONE || m->op == CORE_ABANDON) &&
	    (out->trainer = pack_trainer(m, a)) == NULL)
		return false;
	if (m->op == CORE_WAITING && (out->waits = pack_waits(m, a)) == NULL)
		return false;
	if (m->why != NULL)
		out->why = (char *)(uintptr_t)m->why;
	out->status = m->status;
	out->caught = m->caught;
	out->too_few = m->too_few;
	out->differs = m->differs;
	out->misses = m->misses;
	return true;
}

enum shard_status corewire_pack(const struct core_msg *m, uint64_t defined, struct arena *a,
				struct wire_head *h, Shard__Core *out)
{
	CHECK(m->op < CORE_MSG_NR);
	memset(h, 0, sizeof(*h));
	h->op = (uint16_t)(OP_CORE + m->op);
	h->term = m->id.term;
	h->seq = m->id.seq;
	h->generation = m->id.generation;
	h->step = m->id.step;
	h->attempt = m->id.attempt;
	shard__core__init(out);
	return pack_body(m, defined, a, out) ? SHARD_OK : SHARD_AGAIN;
}

bool corewire_same(const struct core_msg *a, const struct core_msg *b)
{
	const uint32_t to_all = BIT(CORE_ASK) | BIT(CORE_VIEW) | BIT(CORE_BEGIN) |
				BIT(CORE_COMMIT) | BIT(CORE_ABORT) | BIT(CORE_WAITING) |
				BIT(CORE_HEAR);

	return a->op == b->op && to_all & BIT(a->op) && !core_id_cmp(&a->id, &b->id) &&
	       a->world == b->world && a->record == b->record && a->view == b->view && !a->answer &&
	       !b->answer && a->status == b->status && a->too_few == b->too_few &&
	       a->caught == b->caught && a->misses == b->misses && a->differs == b->differs &&
	       !a->why == !b->why && (!a->why || !strcmp(a->why, b->why)) &&
	       !memcmp(&a->waits, &b->waits, sizeof(a->waits));
}

/* Checks that the message has the parts that its op needs, because the core relies on them. */
static enum shard_status check_body(const struct core_msg *m, struct err *e)
{
	bool world = m->op == CORE_BEGIN, record = m->op == CORE_COMMIT, view = m->op == CORE_VIEW,
	     answer = m->op == CORE_ANSWER;

	if ((world && m->world == NULL) || (record && m->record == NULL) ||
	    (view && m->view == NULL) || (answer && m->answer == NULL))
		return err_set(e, SHARD_PROTOCOL, "core message %d without its body", m->op);
	return SHARD_OK;
}

static enum shard_status unpack_parts(const Shard__Core *in, const struct corewire_limits *l,
				      struct arena *a, struct core_msg *m, struct err *e)
{
	struct core_world *world =
		in->n_world > 0 || m->op == CORE_BEGIN ? take(a, 1, sizeof(*world)) : NULL;
	struct record *record = in->record != NULL ? take(a, 1, sizeof(*record)) : NULL;
	struct core_view *view = in->view != NULL ? take(a, 1, sizeof(*view)) : NULL;
	struct core_answer *answer = in->answer != NULL ? take(a, 1, sizeof(*answer)) : NULL;
	enum shard_status st = SHARD_OK;

	if ((in->record != NULL && record == NULL) || (in->view != NULL && view == NULL) ||
	    (in->answer != NULL && answer == NULL) || (in->n_world > 0 && world == NULL))
		return err_set(e, SHARD_PROTOCOL,
			       "a control message larger than this node's control memory");
	if (world != NULL)
		st = unpack_world(world, in->world, in->n_world, l, e);
	if (st == SHARD_OK && record != NULL)
		st = unpack_record(record, in->record, l, e);
	if (st == SHARD_OK && view != NULL)
		st = corewire_unpack_view(in->view, l, a, view, e);
	if (st == SHARD_OK && answer != NULL)
		st = unpack_answer(answer, in->answer, l, a, e);
	if (st == SHARD_OK && in->vote != NULL)
		st = unpack_vote(&m->vote, in->vote, m->op == CORE_RANKS ? in->vote->n_weights : 1,
				 l, a, e);
	m->world = world;
	m->record = record;
	m->view = view;
	m->answer = answer;
	return st;
}

enum shard_status corewire_unpack(const struct wire_head *h, const Shard__Core *in,
				  const struct corewire_limits *l, struct arena *a,
				  struct core_msg *m, struct err *e)
{
	enum shard_status st;
	int op = h->op - OP_CORE;

	CHECK(h->op >= OP_CORE);
	memset(m, 0, sizeof(*m));
	if (op <= 0 || op >= CORE_MSG_NR)
		return err_set(e, SHARD_PROTOCOL, "no core message %d", op);
	m->op = (enum core_op)op;
	m->id = (struct core_id){h->term, h->step, h->seq, h->generation, h->attempt};
	m->why = in->why != NULL && in->why[0] != 0 ? in->why : NULL;
	m->caught = in->caught;
	m->too_few = in->too_few;
	m->differs = in->differs;
	m->misses = in->misses;
	m->status = in->status == SHARD_MISMATCH ? SHARD_MISMATCH
						 : SHARD_OK; /* No other status is sent. */
	if ((st = unpack_parts(in, l, a, m, e)) != SHARD_OK)
		return st;
	if (in->trainer != NULL) {
		m->trainer.session = in->trainer->session;
		m->trainer.pid = in->trainer->pid;
		m->trainer.hint = in->trainer->hint;
		m->trainer.leave = in->trainer->leave;
	}
	if (in->waits != NULL) {
		for (size_t i = 0; i < in->waits->n_ranks && i < NR(m->waits.ranks); i++)
			m->waits.ranks[i] = in->waits->ranks[i];
		m->waits.nodes = in->waits->nodes;
		m->waits.chunks_staged = in->waits->chunks_staged;
		m->waits.chunks_nr = in->waits->chunks_nr;
		m->waits.image_chunk = in->waits->image_chunk;
		m->waits.image_step = in->waits->image_step;
	}
	return check_body(m, e);
}
