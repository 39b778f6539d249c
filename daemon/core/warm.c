/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a core that outlives its process. It is saved after each event that changed it, and
 * taken over by the next process. The shell calls both through core.h, and warm.h says when saved
 * state counts. Happy path: one of the numbers that warm_words() compares changes, and everything
 * is written with a checksum over it. The process dies, and the next one copies and checks the
 * state and goes on with the step. It fails if the state is impossible: torn, of another model or
 * member, or with parts that do not fit together. It is then refused as a whole, because a part of
 * it is of no use. */
#include "core/warm.h"

#include "core/inner.h"
#include "wire/xxh.h"

#include <assert.h>
#include <string.h>

#define VALUES_BYTES (CORE_VALUES_NR * sizeof(double))

/* "srdwarmC". Its last letter grows with each change of struct warm. */
#define WARM_MAGIC 0x446d726177647273ull

enum {
	WARM_SEALED = 1,
	WARM_RESTORING = 2,
	WARM_RECORD = 4,
	WARM_SKIP = 8,
	WARM_LOST = 16,
	WARM_CAUGHT = 32,
	WARM_CLIP = 64,
	WARM_RECALLED = 128,
	WARM_FLAGS_ALL = 255
};

/* Of arrays only what is in use is written and read (warm_used), because they are as long as the
 * limits of this release. PREPARED: the sums of squares of the chunks of this node follow it, then
 * a byte for each that says whether it is finite, then what each rank of this node gave with the
 * step. */
struct warm {
	uint64_t magic, sum; /* .sum covers everything after it. */
	uint64_t incarnation;
	struct view_members members;
	uint64_t place; /* The sum of the tables of the placement. */
	uint64_t learns, moves;
	uint16_t self, groups_nr;
	uint32_t chunks_nr, held_nr, leader;
	uint64_t promised, term;
	uint32_t seq, generation, part, flags;
	struct core_id id, aborted;
	int64_t bad_tensor;
	int32_t bad_rank;
	uint32_t lr_nr, lr_rank;
	uint32_t ranks_nr; /* PREPARED: the ranks of this node, whose values follow. Else 0. */
	struct core_tune tune;
	double lr[CORE_GROUPS_MAX], clip, values[CORE_VALUES_NR];
	struct core_world world;
	struct record record;
};

/* Tests have lower limits. */
static_assert(CORE_RANKS_MAX < 256 || (sizeof(struct warm) == 44216 && VALUES_BYTES == 128),
	      "WARM_MAGIC, and WARM_FORMAT of warm/warm.c, grow when this does");

size_t core_warm_bytes(const struct core_conf *conf)
{
	/* Enough if this node holds all chunks and has all ranks. */
	size_t votes = conf->chunks_nr * (sizeof(double) + 1) + CORE_RANKS_MAX * VALUES_BYTES;

	return (sizeof(struct warm) + votes + 63) & ~(size_t)63;
}

/* A part of struct warm. */
struct piece {
	size_t at, bytes;
};
enum { PIECES = 6 };

/* What of w is in use beside its first words. Returns false if its numbers are impossible. */
static bool warm_used(const struct warm *w, struct piece p[PIECES])
{
	uint32_t groups = w->groups_nr, size = w->world.size, last = w->record.world.size;
	size_t begin = offsetof(struct warm, incarnation), clip = offsetof(struct warm, clip),
	       record = offsetof(struct warm, record), world = offsetof(struct warm, record.world);

	if (groups > CORE_GROUPS_MAX || size > CORE_RANKS_MAX || last > CORE_RANKS_MAX)
		return false;
	p[0] = (struct piece){begin, offsetof(struct warm, tune.set[groups]) - begin};
	p[1] = (struct piece){offsetof(struct warm, tune.hyper), groups * sizeof(w->tune.hyper[0])};
	p[2] = (struct piece){offsetof(struct warm, lr), groups * sizeof(w->lr[0])};
	p[3] = (struct piece){clip, offsetof(struct warm, world.rank[size]) - clip};
	p[4] = (struct piece){record, offsetof(struct warm, record.args[groups]) - record};
	p[5] = (struct piece){world, offsetof(struct warm, record.world.rank[last]) - world};
	return true;
}

/* w: warm_used() holds for it. */
static uint64_t warm_sum(const struct warm *w, const double *sumsq, const uint8_t *finite,
			 const void *values)
{
	/* The seed is the size of the struct, so that another layout has another sum. */
	uint64_t sum = sizeof(*w);
	struct piece p[PIECES];

	CHECK(warm_used(w, p));
	for (unsigned i = 0; i < PIECES; i++)
		sum = xxh_sum((const char *)w + p[i].at, p[i].bytes, sum);
	if (w->part != CORE_PREPARED)
		return sum;
	sum = xxh_sum(sumsq, w->held_nr * sizeof(*sumsq), sum);
	sum = xxh_sum(finite, w->held_nr, sum);
	return w->ranks_nr ? xxh_sum(values, w->ranks_nr * VALUES_BYTES, sum) : sum;
}

/* --- saving --- */

static uint64_t *words_id(uint64_t *to, const struct core_id *id)
{
	*to++ = id->term;
	*to++ = id->step;
	*to++ = (uint64_t)id->seq << 32 | id->attempt;
	*to++ = id->generation;
	return to;
}

/* Nothing else that is saved changes unless one of these numbers does. A view has a number, a
 * record comes with a view or makes PREPARED APPLYING, and votes are final in PREPARED. That all
 * copies are here is saved before anybody hears of it, because they may count from then on. */
static void warm_words(const struct core *c, uint64_t word[WARM_WORDS])
{
	const struct step *s = &c->step;
	const struct member *m = &c->member;
	uint64_t *to = word;

	*to++ = WARM_MAGIC; /* An empty memory never has this value. */
	*to++ = m->promised;
	*to++ = m->term;
	*to++ = (uint64_t)m->seq << 32 | m->generation;
	*to++ = (uint64_t)s->part << 2 | (uint64_t)m->recalled << 1 | s->caught;
	to = words_id(to, &s->id);
	to = words_id(to, &s->aborted);
	CHECK(to == word + WARM_WORDS);
}

/* The parts of the core that have arrays. */
static void warm_fill_arrays(const struct core *c, struct warm *w)
{
	const struct core_tune *tune = &c->member.tune;
	const struct step *s = &c->step;
	uint32_t groups = w->groups_nr;

	memcpy(&w->tune, tune, offsetof(struct core_tune, set[groups]));
	memcpy(w->tune.hyper, tune->hyper, groups * sizeof(tune->hyper[0]));
	memcpy(w->lr, s->lr, groups * sizeof(s->lr[0]));
	memcpy(&w->world, &s->world, offsetof(struct core_world, rank[s->world.size]));
	memcpy(&w->record, &s->record, offsetof(struct record, args[groups]));
	memcpy(&w->record.world, &s->record.world,
	       offsetof(struct core_world, rank[s->record.world.size]));
}

static void warm_fill(struct core *c, struct warm *w)
{
	const struct step *s = &c->step;
	const struct member *m = &c->member;

	memset(w, 0, offsetof(struct warm, tune));
	w->magic = WARM_MAGIC;
	w->incarnation = c->conf.who.incarnation;
	w->self = c->conf.self;
	w->members = m->members;
	w->place = m->place.sum;
	w->learns = m->place.learns;
	w->moves = m->place.moves;
	w->groups_nr = (uint16_t)c->conf.record.groups_nr;
	w->chunks_nr = c->conf.chunks_nr;
	w->held_nr = c->held_nr[c->conf.self];
	w->promised = m->promised;
	w->leader = m->leader;
	w->term = m->term;
	w->seq = m->seq;
	w->generation = m->generation;
	w->part = s->part;
	w->flags = (m->sealed ? WARM_SEALED : 0u) | (m->restoring ? WARM_RESTORING : 0u) |
		   (s->has_record ? WARM_RECORD : 0u) | (s->skip ? WARM_SKIP : 0u) |
		   (m->lost ? WARM_LOST : 0u) | (s->caught ? WARM_CAUGHT : 0u) |
		   (s->has_clip ? WARM_CLIP : 0u) | (m->recalled ? WARM_RECALLED : 0u);
	w->id = s->id;
	w->aborted = s->aborted;
	w->bad_tensor = s->bad_tensor;
	w->bad_rank = s->bad_rank;
	w->lr_nr = s->lr_nr;
	w->lr_rank = s->lr_rank;
	w->ranks_nr = s->part == CORE_PREPARED ? s->ranks_nr : 0;
	w->clip = s->clip;
	memcpy(w->values, s->values, sizeof(w->values));
	warm_fill_arrays(c, w);
}

/* Copies what the ranks of this node gave to that memory, or takes it from there. */
static void warm_values(struct core *c, void *packed, bool take)
{
	const struct step *s = &c->step;
	char *gave = core_at(c, c->at_values), *at = packed;

	for (uint32_t i = 0; i < s->world.size; i++) {
		char *rank = gave + i * VALUES_BYTES;

		if (s->world.rank[i].node != c->conf.self)
			continue;
		memcpy(take ? rank : at, take ? at : rank, VALUES_BYTES);
		at += VALUES_BYTES;
	}
}

bool core_warm_save(struct core *c, void *to)
{
	uint64_t word[WARM_WORDS];
	struct warm *w = to;
	double *sumsq = (double *)(void *)(w + 1);
	uint8_t *finite = (uint8_t *)(sumsq + c->held_nr[c->conf.self]),
		*values = finite + c->held_nr[c->conf.self];

	CHECK((uintptr_t)to % 64 == 0);
	warm_words(c, word);
	if (!memcmp(word, c->warm_word, sizeof(word)))
		return false;
	memcpy(c->warm_word, word, sizeof(word));
	warm_fill(c, w);
	if (w->part == CORE_PREPARED && w->held_nr) {
		memcpy(sumsq, core_at(c, c->at_sumsq), w->held_nr * sizeof(*sumsq));
		memcpy(finite, core_at(c, c->at_finite), w->held_nr);
	}
	if (w->part == CORE_PREPARED)
		warm_values(c, values, false);
	w->sum = warm_sum(w, sumsq, finite, values);
	return true;
}

/* --- loading: w is a copy that nobody changes, of bytes that anybody may have written --- */

/* Copies what is in use of what was saved. What is not is 0. Returns false if there is no telling
 * what is. */
static bool warm_read(struct warm *w, const void *from)
{
	const struct warm *saved = from;
	uint16_t groups = saved->groups_nr;
	uint32_t size = saved->world.size, last = saved->record.world.size;
	struct piece p[PIECES];

	memset(w, 0, sizeof(*w));
	w->groups_nr = groups;
	w->world.size = size;
	w->record.world.size = last;
	if (!warm_used(w, p))
		return false;
	w->magic = saved->magic;
	w->sum = saved->sum;
	for (unsigned i = 0; i < PIECES; i++)
		memcpy((char *)w + p[i].at, (const char *)from + p[i].at, p[i].bytes);
	w->groups_nr = groups; /* So much was copied, whoever writes there meanwhile. */
	w->world.size = size;
	w->record.world.size = last;
	return true;
}

static bool bool_ok(const bool *b)
{
	return *(const unsigned char *)(const void *)b <= 1;
}

/* warm_read() of memory of which nothing is known. *sum: what .sum should be. */
static bool warm_find(struct warm *w, const void *from, size_t bytes, uint64_t *sum)
{
	const char *votes = (const char *)from + sizeof(struct warm), *finite, *values;

	if (bytes < sizeof(*w) || !warm_read(w, from) || w->magic != WARM_MAGIC ||
	    w->held_nr > (bytes - sizeof(*w)) / (sizeof(double) + 1))
		return false;
	finite = votes + w->held_nr * sizeof(double);
	values = finite + w->held_nr;
	if (w->ranks_nr > (bytes - (size_t)(values - (const char *)from)) / VALUES_BYTES)
		return false;
	*sum = warm_sum(w, (const double *)(const void *)votes, (const uint8_t *)finite, values);
	return true;
}

bool warm_sign(void *saved, size_t bytes)
{
	struct warm w;
	uint64_t sum;

	if (!warm_find(&w, saved, bytes, &sum))
		return false;
	memcpy((char *)saved + offsetof(struct warm, sum), &sum, sizeof(sum));
	return true;
}

bool core_warm_view(const void *from, size_t bytes, struct core_warm_view *v)
{
	struct warm w;
	uint64_t sum;

	if (!warm_find(&w, from, bytes, &sum) || w.sum != sum)
		return false;
	*v = (struct core_warm_view){
		.term = w.term, .seq = w.seq, .generation = w.generation, .place = w.place};
	return true;
}

bool core_warm_record(const void *from, size_t bytes, struct record *r)
{
	struct warm w;
	uint64_t sum;

	if (!warm_find(&w, from, bytes, &sum) || w.sum != sum || !(w.flags & WARM_RECORD))
		return false;
	*r = w.record;
	return true;
}

static struct placement warm_place(const struct core *c, const struct warm *w)
{
	struct placement p = c->conf.place;

	p.learns = w->learns;
	p.moves = w->moves;
	p.gone = ~w->members.nodes;
	return p;
}

/* A node none of whose copies counted does not know how far it came, and what it has does not count
 * anyway. It begins anew, as another member. One that got chunks beside those that it held keeps
 * these, and fetches what is new to it again, unless it had said that it has all. */
static bool warm_of_this(const struct core *c, const struct warm *w)
{
	struct placement place = warm_place(c, w);

	return w->magic == WARM_MAGIC && w->incarnation == c->conf.who.incarnation &&
	       w->self == c->conf.self && view_members_ok(&w->members, c->conf.slots) &&
	       (c->conf.elected ? w->leader < CORE_NODES_MAX
				: w->leader == view_coordinator(&c->conf.members) &&
					  view_coordinator(&w->members) == w->leader) &&
	       (w->term ? view_names_ok(&w->members) && member_is_in(c, &w->members)
			: w->members.nodes == c->conf.members.nodes) &&
	       w->groups_nr == c->conf.record.groups_nr && w->chunks_nr == c->conf.chunks_nr &&
	       w->place == place.sum && w->held_nr == c->held_nr[c->conf.self] &&
	       place_ok(&place, &w->members) && !(w->held_nr && place.learns >> w->self & 1);
}

static bool warm_view_ok(const struct core *c, const struct warm *w, const struct core_view *view)
{
	bool sealed = w->flags & WARM_SEALED;

	if (w->flags & ~(uint32_t)WARM_FLAGS_ALL || !bool_ok(&w->tune.paused) ||
	    !bool_ok(&w->tune.has_lr) || !bool_ok(&w->tune.has_clip) ||
	    !tune_hyper_ok(&w->tune, w->groups_nr))
		return false;
	if (w->promised < w->term || sealed != ((w->flags & WARM_RECORD) != 0) ||
	    (sealed && w->flags & (WARM_RESTORING | WARM_LOST)) || !w->term != !w->generation ||
	    (!w->term && (sealed || w->part != CORE_FREE)))
		return false;
	if (!core_coordinates(c))
		return true;
	if (c->conf.term <= w->promised)
		return false;
	return !w->term ||
	       (view && view->generation >= w->generation &&
		(view->term > w->term || (view->term == w->term && view->seq >= w->seq)));
}

static bool warm_record_ok(const struct core *c, const struct warm *w)
{
	const struct record *r = &w->record;

	if (!(w->flags & WARM_RECORD))
		return true;
	if ((unsigned)r->outcome > RECORD_SKIP || !bool_ok(&r->diverged) ||
	    r->groups_nr != c->conf.record.groups_nr || r->id.generation != w->generation ||
	    r->id.term > w->term || !record_content_ok(r))
		return false;
	return r->outcome == RECORD_SEAL ? r->world.size == 0
					 : core_world_ok(c, &r->world, c->conf.slots);
}

static bool warm_step_ok(const struct core *c, const struct warm *w)
{
	const struct core_id *id = &w->id, *last = &w->record.id;
	const uint8_t *finite = core_at((struct core *)(uintptr_t)c, c->at_finite);

	if (w->flags & WARM_CAUGHT &&
	    (!(w->moves >> w->self & 1) || !(w->flags & WARM_RECORD) || w->part == CORE_APPLYING))
		return false;
	if (w->part >= CORE_PART_NR ||
	    (w->world.size && !core_world_ok(c, &w->world, c->conf.slots)))
		return false;
	if (!(w->clip >= 0 && w->clip <= 1e300) || (!(w->flags & WARM_CLIP) && w->clip != 0))
		return false;
	if (w->ranks_nr != (w->part == CORE_PREPARED ? core_local_ranks(&w->world, w->self) : 0))
		return false;
	if (w->part == CORE_FREE)
		return true;
	if (!(w->flags & WARM_RECORD) || !w->world.size || !id->step || id->term != w->term ||
	    id->seq != w->seq || id->generation != w->generation || !id->attempt)
		return false;
	if (w->part == CORE_APPLYING)
		return !core_id_cmp(last, id);
	if (last->step + 1 != id->step || core_id_cmp(id, &w->aborted) <= 0 ||
	    (w->lr_nr && (w->lr_nr != w->groups_nr || w->lr_rank >= w->world.size)))
		return false;
	for (uint32_t i = 0; w->part == CORE_PREPARED && i < w->held_nr; i++) {
		if (finite[i] > 1)
			return false;
	}
	return true;
}

static void warm_take(struct core *c, const struct warm *w)
{
	struct step *s = &c->step;
	struct member *m = &c->member;
	struct placement place = warm_place(c, w);

	m->promised = w->promised;
	m->leader = (uint16_t)w->leader;
	m->term = w->term;
	m->seq = w->seq;
	m->generation = w->generation;
	m->members = w->members;
	member_place(c, &place);
	m->sealed = w->flags & WARM_SEALED;
	m->restoring = w->flags & WARM_RESTORING;
	m->lost = w->flags & WARM_LOST;
	m->recalled = w->flags & WARM_RECALLED || c->conf.recalled;
	m->tune = w->tune;
	s->part = (enum core_part)w->part;
	s->id = s->drained = w->id; /* Whatever was on its way died with the process. */
	s->aborted = w->aborted;
	s->has_record = w->flags & WARM_RECORD;
	s->caught = w->flags & WARM_CAUGHT;
	s->skip = w->flags & WARM_SKIP;
	s->has_clip = w->flags & WARM_CLIP;
	s->clip = w->clip;
	s->bad_tensor = w->bad_tensor;
	s->bad_rank = w->bad_rank;
	s->lr_nr = w->lr_nr;
	s->lr_rank = w->lr_rank;
	memcpy(s->lr, w->lr, sizeof(s->lr));
	memcpy(s->values, w->values, sizeof(s->values));
	s->world = w->world;
	s->record = w->record;
	if (s->part == CORE_FREE)
		return;
	if (s->part == CORE_STAGING) { /* It never voted, and its trainers are gone. */
		s->part = CORE_FREE;
		s->aborted = s->id;
		s->dropped = true;
		core_copy_text(
			s->why, sizeof(s->why),
			core_text(c, "node %s started again", core_node_name(c, c->conf.self)));
		return;
	}
	if (s->part == CORE_PREPARED)
		warm_values(c, core_at(c, c->at_ranks_values), true);
	s->drained.attempt--;
	s->kept = true;
	s->chunks_staged = w->held_nr;
	s->ranks_nr = s->ranks_ready = core_local_ranks(&s->world, c->conf.self);
	s->ranked = s->told = core_ranked(&s->world);
	s->has_lr = true;
}

bool warm_load(struct core *c, const void *from, const struct core_view *view)
{
	struct warm w;
	uint32_t held = c->held_nr[c->conf.self];
	const char *votes = (const char *)from + sizeof(w);

	if (!warm_read(&w, from) || !warm_of_this(c, &w) || w.part >= CORE_PART_NR ||
	    w.ranks_nr > CORE_RANKS_MAX)
		return false;
	if (held) {
		memcpy(core_at(c, c->at_sumsq), votes, held * sizeof(double));
		memcpy(core_at(c, c->at_finite), votes + held * sizeof(double), held);
	}
	memcpy(core_at(c, c->at_ranks_values), votes + held * (sizeof(double) + 1),
	       w.ranks_nr * VALUES_BYTES);
	if (w.sum != warm_sum(&w, core_at(c, c->at_sumsq), core_at(c, c->at_finite),
			      core_at(c, c->at_ranks_values)) ||
	    !warm_view_ok(c, &w, view) || !warm_record_ok(c, &w) || !warm_step_ok(c, &w))
		return false;
	warm_take(c, &w);
	c->warm_due = true;
	step_check(c);
	return true;
}

void warm_on_start(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	struct step *s = &c->step;
	struct core_action *a;

	(void)e;
	CHECK(c->warm_due);
	c->warm_due = false;
	if (!place_same(&c->member.place, &c->conf.place))
		core_act(x, CORE_ACT_PLACED)->place = &c->member.place;
	if (s->has_record && s->part != CORE_APPLYING)
		core_act(x, CORE_ACT_SEAL)->record = &s->record;
	if (s->has_record && core_fetches(c) && !s->caught)
		core_act(x, CORE_ACT_LEARN)->record = &s->record;
	/* The vote or the abandon is repeated until it is answered, as before the restart. */
	if (s->part == CORE_PREPARED || s->dropped)
		timer_start(c, &s->timer, x->now);
	if (s->part == CORE_FREE)
		return;
	core_act(x, CORE_ACT_OPEN)->id = s->id;
	if (s->part != CORE_APPLYING)
		return;
	a = core_act(x, CORE_ACT_APPLY);
	a->id = s->id;
	a->record = &s->record;
}
