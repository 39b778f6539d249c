/* SPDX-License-Identifier: Apache-2.0 */
/* The checkers, named after what they watch (DESIGN section 4): one_verdict, exactly_once, no_tear,
 * no_partial_effect, durable_view, told_stays_true, record_pure, image_open, nonfinite_kept,
 * deadline_named. slot_one_writer and arena_one_writer are in bulk.c and shell.c, where the bytes
 * move, and liveness is in fault.c, sim.c and here. The checkers look at every action of every
 * node. They know what no node knows, namely what all other nodes did. */
#include "sim/sim.h"

#include "core/inner.h"

#include <math.h>
#include <string.h>

static bool same(const struct core_id *a, const struct core_id *b)
{
	return core_id_cmp(a, b) == 0;
}

uint64_t truth_gradient(const struct core_id *id, uint64_t session, uint32_t chunk)
{
	return sim_mix(sim_mix(id->step * 1000 + id->attempt, id->term * 64 + id->seq),
		       sim_mix(session, chunk));
}

double truth_clip(const struct core_id *id)
{
	static const double clips[] = {-1, -1, -1, 0, 1e-7, 0.5, 1e3};

	return clips[truth_gradient(id, 0, 3000) % NR(clips)];
}

/* Numbers of many sizes, so that another order gives another sum, and what no sum can be compared
 * with. Some trainers give nothing. */
double truth_value(const struct core_id *id, uint64_t session, uint32_t i)
{
	uint64_t h = truth_gradient(id, session, 1000 + i);

	if (session % 5 == 0 || i > 10 + session % 6 || h % 16 == 0)
		return 0;
	if (h % 64 == 1)
		return h & 64 ? (double)INFINITY : (double)-INFINITY;
	if (h % 64 == 2) { /* A NaN with bits of its own. */
		uint64_t nan = 0xfff4000000000000 | h >> 20;
		double d;

		memcpy(&d, &nan, sizeof(d));
		return d;
	}
	if (h % 64 == 3)
		return -0.0;
	return ldexp((double)(int64_t)h, -(int)(h % 61));
}

uint64_t truth_updated(uint64_t weights, uint64_t gradient, const struct optim_args *args)
{
	uint32_t word[OPTIM_ARGS_WORDS];
	uint64_t hash = sim_mix(weights, gradient);

	memcpy(word, args, sizeof(word));
	for (uint32_t i = 0; i < OPTIM_ARGS_WORDS; i++)
		hash = sim_mix(hash, word[i]);
	return hash;
}

static bool records_equal(const struct record *a, const struct record *b)
{
	if (!same(&a->id, &b->id) || a->outcome != b->outcome || a->content != b->content ||
	    a->content_old != b->content_old || a->applied != b->applied ||
	    a->skipped_in_row != b->skipped_in_row || a->diverged != b->diverged ||
	    a->world.size != b->world.size || a->groups_nr != b->groups_nr)
		return false;
	if (!truth_bits(a->grad_norm, b->grad_norm) ||
	    !truth_bits(a->clip_factor, b->clip_factor) ||
	    !truth_bits(a->weight_sum, b->weight_sum) ||
	    !truth_bits(a->loss_scale, b->loss_scale) ||
	    !truth_bits(a->scaler.scale, b->scaler.scale) || a->scaler.iter != b->scaler.iter ||
	    a->scaler.hysteresis != b->scaler.hysteresis ||
	    a->scaler.last_overflow != b->scaler.last_overflow)
		return false;
	for (uint32_t i = 0; i < a->world.size; i++) {
		if (a->world.rank[i].session != b->world.rank[i].session ||
		    a->world.rank[i].node != b->world.rank[i].node ||
		    !truth_bits(a->world.rank[i].weight, b->world.rank[i].weight))
			return false;
	}
	return memcmp(a->args, b->args, sizeof(a->args)) == 0;
}

struct truth *truth_of(struct sim *s, uint32_t generation)
{
	if (generation >= GENERATIONS)
		sim_fail(s, "liveness", "generation %u", generation);
	return &s->m->truth[generation];
}

static void truth_weights(struct sim *s, struct truth *t, const struct record *r)
{
	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		uint64_t before = t->weights[(r->id.step + 1) % 2][c], g = 0;

		for (uint32_t i = 0; i < r->world.size; i++)
			g += sim_mix(truth_gradient(&r->id, r->world.rank[i].session, c), i);
		t->weights[r->id.step % 2][c] =
			r->outcome == RECORD_APPLIED
				? truth_updated(before, g, &r->args[c % r->groups_nr])
				: before;
	}
}

/* A step must be committed in the newest durable view. A recovery that made the newest view may
 * also commit a step of the view before. */
static void truth_of_view(struct sim *s, const struct record *r)
{
	uint32_t nr = s->m->views_nr, back = nr > 1 && s->m->recovers ? 2 : 1;
	char a[64];

	if (!nr || s->m->view[(nr - back) % VIEWS].term != r->id.term ||
	    s->m->view[(nr - back) % VIEWS].seq != r->id.seq)
		sim_fail(s, "durable_view", "%s is committed, but its view is over: %llu.%u is",
			 sim_id(&r->id, a), (unsigned long long)s->m->view[(nr - 1) % VIEWS].term,
			 s->m->view[(nr - 1) % VIEWS].seq);
}

void truth_record(struct sim *s, const struct record *r)
{
	struct truth *t = truth_of(s, r->id.generation);
	char a[64], b[64];

	if (r->outcome == RECORD_SEAL) {
		if (t->sealed && (t->seal_step != r->id.step || t->last < r->id.step))
			sim_fail(s, "one_verdict", "generation %u is sealed twice",
				 r->id.generation);
		if (t->sealed)
			return;
		t->sealed = true;
		t->seal_step = t->last = r->id.step;
		t->record[r->id.step % 2] = *r;
		for (uint32_t c = 0; c < s->m->chunks_nr; c++)
			t->weights[r->id.step % 2][c] = t->restoring || t->loaded
								? t->checkpoint.weights[c]
								: sim_mix(r->id.generation, c);
		if (!t->restoring && !t->loaded && (r->applied != r->id.step || r->skipped_in_row))
			sim_fail(s, "record_pure", "%s: a seal with %llu applied",
				 sim_id(&r->id, a), (unsigned long long)r->applied);
		truth_seal(s, t, r);
		return;
	}
	/* Its votes were complete before its successor gave up a member. It is void with the rest
	 * of the generation. */
	if (r->id.generation < s->m->generation && (s->zombies_nr || s->elected))
		return;
	if (!t->sealed)
		sim_fail(s, "one_verdict", "%s is committed to a model that is not sealed",
			 sim_id(&r->id, a));
	if (r->id.step + 1 < t->last || r->id.step < t->seal_step)
		return; /* This is an old copy of a message. */
	if (r->id.step <= t->last) {
		const struct record *known = &t->record[r->id.step % 2];

		if (!records_equal(known, r))
			sim_fail(s, "one_verdict", "step %llu is committed as %s and as %s",
				 (unsigned long long)r->id.step, sim_id(&known->id, a),
				 sim_id(&r->id, b));
		return;
	}
	if (r->id.step != t->last + 1)
		sim_fail(s, "exactly_once", "%s is committed after step %llu", sim_id(&r->id, a),
			 (unsigned long long)t->last);
	if (r->id.generation < s->m->generation)
		sim_fail(s, "durable_view", "%s is committed in a generation that was LOST",
			 sim_id(&r->id, a));
	truth_of_view(s, r);
	truth_votes(s, r, &t->of[r->id.step % 2]);
	truth_pure(s, &t->record[t->last % 2], r);
	t->last = r->id.step;
	t->record[r->id.step % 2] = *r;
	truth_weights(s, t, r);
	truth_view_of(s, &r->id)->voted = true;
	s->m->commits++;
	s->m->progress_at = s->now;
	lively_committed(s, r);
	if (!s->faults && s->now >= s->faults_end)
		s->m->healed_commits++;
}

void truth_sealed(struct sim *s, uint16_t n, uint32_t chunk, const struct record *r)
{
	const struct truth *t = truth_of(s, r->id.generation);
	uint64_t weights = t->restoring || t->loaded ? t->checkpoint.weights[chunk]
						     : sim_mix(r->id.generation, chunk);

	if (shell_of(s, n)->weights[chunk] != weights)
		sim_fail(s, "no_tear",
			 "n%u seals chunk %u, which is not what was written for generation %u", n,
			 chunk, r->id.generation);
}

void truth_applied(struct sim *s, uint16_t n, uint32_t chunk)
{
	struct shell *sh = shell_of(s, n);
	const struct record *r = &sh->record;
	struct truth *t = truth_of(s, r->id.generation);
	char a[64];

	if (sh->version[chunk] != r->id.step)
		sim_fail(s, "exactly_once", "n%u applies %s to chunk %u, which is then at %llu", n,
			 sim_id(&r->id, a), chunk, (unsigned long long)sh->version[chunk]);
	if (r->id.generation == s->m->generation && r->id.step + 1 >= t->last &&
	    sh->weights[chunk] != t->weights[r->id.step % 2][chunk])
		sim_fail(s, "no_tear",
			 "n%u: chunk %u after %s is not what the committed steps make of it", n,
			 chunk, sim_id(&r->id, a));
}

static void truth_note_view(struct sim *s, const struct core_view *v)
{
	const struct sim_view *was =
		s->m->views_nr ? &s->m->view[(s->m->views_nr - 1) % VIEWS] : NULL;
	struct sim_view *to = &s->m->view[s->m->views_nr++ % VIEWS];

	s->m->several = v->place.holders || v->place.to;

	*to = (struct sim_view){.term = v->term,
				.seq = v->seq,
				.generation = v->generation,
				.sealed = v->sealed,
				.tune = v->tune,
				.nodes = v->members.nodes,
				.counts = v->members.nodes & ~(v->place.learns | v->place.moves),
				.to = v->place.to,
				.moves_since =
					was && was->to == v->place.to ? was->moves_since : v->term};
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		to->incarnation[n] = v->members.node[n].incarnation;
	for (uint32_t c = 0; c < s->m->chunks_nr; c++)
		to->copies[c] = truth_counted(&v->place, v->members.nodes, c);
}

/* A durable view names every member, none twice, and none by the uuid of a folder that is not the
 * one of the memory that it lists. */
static void truth_names(struct sim *s, const struct core_view *v)
{
	if (!view_names_ok(&v->members))
		sim_fail(s, "view_names", "view %llu.%u does not tell its members apart",
			 (unsigned long long)v->term, v->seq);
	view_each(n, &v->members) {
		struct view_node is = shell_who(s, n);

		if (v->members.node[n].incarnation == is.incarnation &&
		    !view_same(&v->members.node[n], &is))
			sim_fail(s, "view_names", "view %llu.%u names n%u by another folder",
				 (unsigned long long)v->term, v->seq, n);
	}
}

/* A node is a member if the view that it has adopted names it, and not only its slot. */
static void truth_is_in(struct sim *s, uint16_t n)
{
	const struct member *m = &shell_of(s, n)->core->member;
	struct view_node is = shell_who(s, n);

	if (m->term && !view_same(&m->members.node[s->node[n].self], &is))
		sim_fail(s, "view_names", "n%u has adopted view %llu.%u, which names another node",
			 n, (unsigned long long)m->term, m->seq);
}

/* An operator put an old state folder back. What was ordered since is forgotten. If members adopted
 * a view since, or decided anything in it, the model becomes LOST. */
void truth_put_back(struct sim *s, const struct core_view *v)
{
	s->m->put_back = true;
	s->m->orders.tuned_lr = orders_number(&v->tune);
	truth_note_view(s, v);
}

void truth_durable(struct sim *s, const struct core_view *v)
{
	struct truth *t;

	if (v->generation > s->m->generation)
		s->m->put_back = false;
	if (v->generation > s->m->generation || sim_chance(s, s->put_back ? 200 : 0))
		s->m->copy = *v;
	if (v->generation > s->m->generation) {
		if (s->m->generation)
			s->m->losts++;
		s->m->generation = v->generation;
	}
	truth_place(s, v);
	truth_joined(s, v);
	truth_note_view(s, v);
	truth_names(s, v);
	truth_view(s, v);
	if (!v->sealed)
		return;
	t = truth_of(s, v->generation);
	/* The recovery rule committed what nobody had seen. */
	s->m->forwards += t->sealed && v->record.id.step > t->last;
	s->m->recovers = v;
	truth_record(s, &v->record);
	s->m->recovers = NULL;
	if (v->record.id.step < t->last)
		sim_fail(s, "told_stays_true", "a view at step %llu, but step %llu was committed",
			 (unsigned long long)v->record.id.step, (unsigned long long)t->last);
}

static bool view_durable(struct sim *s, const struct core_id *id)
{
	const struct core_view *v = &shell_of(s, s->lead)->disk;

	return shell_of(s, s->lead)->has_disk && v->term == id->term && v->seq == id->seq &&
	       v->generation == id->generation;
}

static bool view_was_durable(const struct sim *s, const struct core_id *id)
{
	for (uint32_t i = s->m->views_nr; i-- > 0 && i + VIEWS > s->m->views_nr;) {
		if (s->m->view[i % VIEWS].term == id->term && s->m->view[i % VIEWS].seq == id->seq)
			return true;
	}
	return false;
}

static void truth_done(struct sim *s, uint16_t n, const struct core_id *id, bool caught)
{
	const struct shell *sh = shell_of(s, n);
	char a[64];

	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		if ((caught ? shell_keeps(s, n, c) : shell_holds(s, n, c)) &&
		    (sh->version[c] != id->step || sh->generation != id->generation))
			sim_fail(s, "done_is_done",
				 "n%u says that %s is done, but chunk %u is at step %llu", n,
				 sim_id(id, a), c, (unsigned long long)sh->version[c]);
	}
}

static void truth_send(struct sim *s, uint16_t n, const struct core_msg *m)
{
	char a[64];
	struct shell *sh = shell_of(s, n);
	bool coordinator = m->op == CORE_VIEW || m->op == CORE_BEGIN || m->op == CORE_COMMIT;

	truth_leads(s, n, m);
	if (coordinator && n == s->lead && !elect_former(s, n) && !view_durable(s, &m->id) &&
	    !(m->record && m->op == CORE_COMMIT))
		sim_fail(s, "durable_view", "n%u sends %s of a view that is not durable", n,
			 sim_id(&m->id, a));
	if (m->view && (m->view->seq != m->id.seq || m->view->generation != m->id.generation))
		sim_fail(s, "durable_view", "n%u sends a view as %s, which it is not", n,
			 sim_id(&m->id, a));
	if (coordinator && elect_former(s, n) && !view_was_durable(s, &m->id) &&
	    !(m->record && m->op == CORE_COMMIT))
		sim_fail(s, "durable_view", "n%u sends %s of a view that never was durable", n,
			 sim_id(&m->id, a));
	if (m->op == CORE_ANSWER && m->id.term > sh->term_promised)
		sh->term_promised = m->id.term;
	if (m->record && m->record->outcome != RECORD_SEAL)
		truth_record(s, m->record);
	if (m->op == CORE_DONE)
		truth_done(s, n, &m->id, m->caught);
	if (m->op == CORE_VIEW_OK && m->caught)
		truth_done(s, n, &sh->core->step.record.id, true);
	if (m->op == CORE_VOTE)
		truth_ballot(s, n, &m->vote);
	if (m->op == CORE_VOTE && !m->differs && !same(&shell_of(s, n)->open, &m->id))
		sim_fail(s, "image_open", "n%u votes for %s before its image is open", n,
			 sim_id(&m->id, a));
	if (m->op == CORE_VOTE && !m->differs && !same(&shell_of(s, n)->prepared, &m->id))
		sim_fail(s, "one_verdict", "n%u votes for %s without being prepared", n,
			 sim_id(&m->id, a));
}

static void truth_open(struct sim *s, uint16_t n, const struct core_action *a)
{
	struct shell *sh = shell_of(s, n);
	char id[64];

	if (a->id.term < sh->term_promised && !sh->warming)
		sim_fail(s, "promise_kept",
			 "n%u votes for %s after it answered the coordinator of term %llu", n,
			 sim_id(&a->id, id), (unsigned long long)sh->term_promised);
	if (!same(&sh->id, &a->id) || (!sh->running && !sh->warming))
		sim_fail(s, "image_open", "n%u opens its image for %s", n, sim_id(&a->id, id));
	for (uint32_t i = 0; i < sh->world.size; i++) {
		const struct core_rank *k = &sh->world.rank[i];

		if (k->node == s->node[n].self && !truth_gave(&s->m->session[k->session], &a->id))
			sim_fail(s, "no_partial_effect", "n%u votes for %s before its rank %u did",
				 n, sim_id(&a->id, id), i);
	}
	sh->prepared = a->id;
}

static void truth_ended(struct sim *s, uint16_t n, const struct core_action *a)
{
	struct truth *t = truth_of(s, a->id.generation);
	/* A zombie may have no rank that it could tell. */
	bool told = n != ZOMBIE || core_local_ranks(a->world, s->node[n].self) > 0;
	uint64_t of = t->of[a->id.step % 2];
	char id[64];

	s->m->aborts++;
	if (!a->why || !a->why[0])
		sim_fail(s, "deadline_named", "%s ends without a reason", sim_id(&a->id, id));
	if (a->status == SHARD_MISMATCH && !truth_lr_differs(s, &a->id))
		sim_fail(s, "lr_voted",
			 "%s ends because of its learning rates, but all gave the same",
			 sim_id(&a->id, id));
	/* Whoever was out of the view does not know what was decided. SHARD_WORLD_CHANGED says that
	 * the step may count. */
	if ((n == ZOMBIE || sim_several(s)) && !(of >> s->node[n].self & 1) &&
	    a->status == SHARD_WORLD_CHANGED)
		told = false;
	if (told && a->id.generation == s->m->generation && a->id.step <= t->last &&
	    a->id.step + 1 >= t->last && same(&t->record[a->id.step % 2].id, &a->id))
		sim_fail(s, "told_stays_true", "n%u drops %s, which was committed", n,
			 sim_id(&a->id, id));
}

static bool coord_lists_now(struct sim *s, const struct coord *co, uint16_t n)
{
	struct view_node is = shell_who(s, n);

	return view_same(&co->view.members.node[n], &is);
}

/* A coordinator is open when every member of its view has adopted the view. It begins nothing that
 * it cannot or may not end. */
static void truth_coordinates(struct sim *s, uint16_t n)
{
	const struct coord *co = &shell_of(s, n)->core->coord;
	struct shell *sh = shell_of(s, n);
	char a[64];

	for (uint16_t i = 0;
	     i < s->nodes_nr && co->state == COORD_OPEN && sh->opened != co->view.seq; i++) {
		const struct core *c = shell_of(s, i == s->node[n].self ? n : i)->core;

		if (s->node[i].alive && coord_lists_now(s, co, i) &&
		    (c->member.term < co->view.term ||
		     (c->member.term == co->view.term && c->member.seq < co->view.seq)))
			sim_fail(s, "view_adopted",
				 "n%u opens view %llu.%u, which n%u has not adopted", n,
				 (unsigned long long)co->view.term, co->view.seq, i);
	}
	if (co->state == COORD_OPEN)
		sh->opened = co->view.seq;
	truth_stragglers(s, n);
	if (!co->undecided || core_id_cmp(&co->id, &sh->begun) <= 0)
		return;
	if (s->node[n].stopping)
		sim_fail(s, "stops", "n%u begins %s though it was told to stop", n,
			 sim_id(&co->id, a));
	for (uint16_t i = 0; i < s->nodes_nr; i++) {
		if (i != s->node[n].self && !s->node[n].link[i] &&
		    view_is_member(&co->view.members, i))
			sim_fail(s, "begins_linked", "n%u begins %s without a link to n%u", n,
				 sim_id(&co->id, a), i);
	}
	truth_begins(s, n, &co->id, &co->world);
}

/* A trainer that leaves has committed the attempt, or its own node drops the attempt and says
 * so. */
static void truth_leaves(struct sim *s, uint16_t n, const struct core_event *e)
{
	const struct shell *sh = shell_of(s, n);
	const struct coord *co = &sh->core->coord;
	char a[64];

	if (e->type == CORE_EV_MSG && e->msg->op == CORE_GONE && e->msg->trainer.leave &&
	    sh->was_undecided && !co->undecided && !co->reports.out &&
	    core_id_cmp(&co->id, &co->last.id))
		sim_fail(s, "leave_waits", "n%u ends %s because a trainer leaves after it", n,
			 sim_id(&co->id, a));
}

/* Called after each event. A member that answered the ASK of a term does nothing that a coordinator
 * of a lower term says. */
void truth_event(struct sim *s, uint16_t n, const struct core_event *e)
{
	const struct shell *sh = shell_of(s, n);
	const struct core_msg *m = e->msg;
	bool orders = e->type == CORE_EV_MSG &&
		      (m->op == CORE_ASK || m->op == CORE_VIEW || m->op == CORE_BEGIN ||
		       m->op == CORE_COMMIT || m->op == CORE_ABORT);
	char id[64];

	if (s->elected ? core_coordinates(sh->core) : s->node[n].self == s->lead) {
		truth_leaves(s, n, e);
		truth_coordinates(s, n);
	}
	truth_is_in(s, n);
	s->held_off += orders && m->op != CORE_ASK && (s->elected || n != s->lead) &&
		       m->id.term < sh->term_promised;
	if (sh->core->member.promised < sh->term_promised)
		sim_fail(s, "promise_kept",
			 "n%u answered the coordinator of term %llu and now would heed term %llu",
			 n, (unsigned long long)sh->term_promised,
			 (unsigned long long)sh->core->member.promised);
	if (orders && (s->elected ? !core_coordinates(sh->core) : n != s->lead && n != ZOMBIE) &&
	    m->id.term < sh->term_promised && s->out.nr)
		sim_fail(s, "promise_kept",
			 "n%u answered the coordinator of term %llu and heeds message %u of %s", n,
			 (unsigned long long)sh->term_promised, m->op, sim_id(&m->id, id));
}

void truth_action(struct sim *s, uint16_t n, const struct core_action *a)
{
	truth_order(s, n, a);
	switch (a->type) {
	case CORE_ACT_SEND:
		truth_send(s, n, &a->msg);
		truth_begun(s, n, &a->msg);
		break;
	case CORE_ACT_DIFFER:
		truth_differ(s, n, a);
		break;
	case CORE_ACT_ODD:
		truth_odd(s, n, a);
		break;
	case CORE_ACT_OPEN:
		truth_open(s, n, a);
		break;
	case CORE_ACT_APPLY:
	case CORE_ACT_RESULT:
	case CORE_ACT_SEAL:
		truth_record(s, a->record);
		break;
	case CORE_ACT_ENDED:
		truth_ended(s, n, a);
		break;
	case CORE_ACT_LOST:
	case CORE_ACT_EXPEL:
	case CORE_ACT_CUT:
	case CORE_ACT_YIELD:
	case CORE_ACT_BACK:
	case CORE_ACT_AGAIN:
		if (!a->why || !a->why[0])
			sim_fail(s, "deadline_named", "n%u: action %d without a reason", n,
				 a->type);
		break;
	case CORE_ACT_PERSIST:
		if (!elect_former(s, n)) {
			truth_lost(s, a->view);
			truth_expels(s, n, a->view);
			truth_moving(s, n, a->view);
			truth_joining(s, n, a->view);
		}
		break;
	case CORE_ACT_MOVED:
		if (!elect_former(s, n))
			truth_moved(s, a->place);
		break;
	case CORE_ACT_PLACED:
	case CORE_ACT_LEARN:
	case CORE_ACT_HELD:
	case CORE_ACT_TUNED:
	case CORE_ACT_RESIGNED:
	case CORE_ACT_BEGIN:
	case CORE_ACT_CREDIT:
	case CORE_ACT_LEFT:
		break;
	}
}

/* When nothing is wrong any more and the trainer did what it had to, no deadline may pass. */
void truth_expelled(struct sim *s, uint32_t trainer, const char *why)
{
	if (!s->faults && s->now > s->healed_at + 10 * SEC && !s->m->trainer[trainer].stopped)
		sim_fail(s, "liveness", "trainer %u is expelled without a fault: %s", trainer, why);
}

void truth_end(struct sim *s)
{
	if (s->m->healed_commits < HEALED_COMMITS && !truth_excused(s))
		sim_fail(s, "liveness", "the run ended by itself");
	truth_orders_end(s);
}
