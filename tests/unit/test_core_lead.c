/* SPDX-License-Identifier: Apache-2.0 */
/* Tests a coordinator alone that has started again. It gets answers, votes and orders that are
 * late, of another process, of another generation, or of steps that no longer exist. Each case
 * sends one thing that must not count, and then the same thing correctly. As in test_core_guard.c,
 * the simulator hardly reaches most of this. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/lone.h"

#include <string.h>

/* --- what is said to the coordinator a, which started again in term 9 over view 5.2 --- */

struct said { /* The answer of one member. */
	struct core_answer answer;
	double sumsq, weights[2], lr;
	uint8_t finite;
	bool of_none; /* Of no generation. Otherwise of the first. */
	bool other_weight;
	bool at_a; /* The only rank is at a, and not at b. */
};

static void say_answer(struct lone *l, uint16_t from, uint64_t term, struct said *s,
		       uint32_t attempt)
{
	if (!s->of_none)
		s->answer.generation = 1;
	s->answer.has_record = true;
	s->answer.record = lone_record(5, 1, 4);
	s->sumsq = s->weights[0] = s->weights[1] = 1;
	s->weights[1] += s->other_weight;
	s->finite = 1;
	s->answer.prepared = attempt > 0;
	s->answer.id = lone_id(5, 2, 5, attempt);
	s->answer.vote.sumsq = &s->sumsq;
	s->answer.vote.finite = &s->finite;
	s->answer.vote.chunks_nr = 1;
	s->answer.vote.weights = s->weights;
	s->answer.vote.bad_tensor = -1;
	if (!s->answer.world.size)
		s->answer.world.size = 1;
	s->answer.vote.ranks_nr = s->answer.world.size;
	s->answer.world.rank[0] = (struct core_rank){.session = SESSION, .node = s->at_a ? A : B};
	lone_msg(l, from,
		 (struct core_msg){.op = CORE_ANSWER, .id = {.term = term}, .answer = &s->answer});
}

static void coordinator_init(struct lone *l)
{
	struct record seal = lone_record(5, 1, 4);
	struct core_view v = lone_view(5, 2, &seal);

	v.members.node[A].incarnation =
		50; /* It came back without memory, and none that it had counts. */
	lone_init(l, A, 9, &v);
	lone_event(l, (struct core_event){.type = CORE_EV_TICK});
}

static void test_answer_to_an_older_question(void **state)
{
	struct said b = {0}, c = {0};
	struct lone l;

	(void)state;
	coordinator_init(&l);
	say_answer(&l, C, 9, &c, 1);
	say_answer(&l, B, 8, &b, 0);
	assert_null(
		lone_acted(&l, CORE_ACT_PERSIST)); /* b has not promised anything to this term. */
	say_answer(&l, B, 9, &b, 1);
	assert_int_equal(lone_acted(&l, CORE_ACT_PERSIST)->view->record.id.step, 5);
	lone_deinit(&l);
}

/* A member that is not of this generation has dropped what it voted for. */
static void test_answer_of_an_older_generation(void **state)
{
	struct lone l;

	(void)state;
	for (int older = 1; older >= 0; older--) {
		struct said b = {.of_none = older != 0}, c = {0};

		coordinator_init(&l);
		say_answer(&l, C, 9, &c, 1);
		say_answer(&l, B, 9, &b, 1);
		assert_int_equal(lone_acted(&l, CORE_ACT_PERSIST)->view->record.id.step,
				 older ? 4 : 5);
		lone_deinit(&l);
	}
}

/* Both other nodes have answered and adopted the view. */
static void opened(struct lone *l, uint64_t join_ns)
{
	struct said b = {0}, c = {0};

	coordinator_init(l);
	l->core->conf.join_timeout_ns = join_ns;
	say_answer(l, B, 9, &b, 0);
	say_answer(l, C, 9, &c, 0);
	lone_event(l, (struct core_event){.type = CORE_EV_PERSISTED});
	for (uint16_t n = B; n <= C; n++) {
		struct core_id id = {.term = 9, .seq = l->core->coord.view.seq, .generation = 1};

		lone_msg(l, n, (struct core_msg){.op = CORE_VIEW_OK, .id = id});
	}
	assert_int_equal(l->core->coord.state, COORD_OPEN);
}

static void join(struct lone *l, uint64_t session)
{
	lone_msg(l, B,
		 (struct core_msg){.op = CORE_JOIN,
				   .id = {.term = 9},
				   .trainer = {.session = session, .pid = 1, .hint = -1}});
}

/* The first step after a seal waits for trainers beyond min_world, until there are max_world or the
 * time is over. No later one does. */
static void test_first_step_gathers(void **state)
{
	enum { JOIN_NS = 500000000 };
	struct core_id id = {.term = 9, .seq = 3, .generation = 1};
	struct core_state s;
	struct lone l;

	(void)state;
	for (int all = 0; all < 2; all++) {
		opened(&l, JOIN_NS);
		join(&l, SESSION);
		assert_null(lone_sent(&l, CORE_BEGIN));
		core_state(l.core, &s);
		assert_non_null(strstr(s.waits, "1 of at most 2 joined"));
		assert_true(core_deadline(l.core) <= l.now + JOIN_NS);
		if (all) {
			join(&l, SESSION + 1);
		} else {
			l.now += JOIN_NS;
			lone_event(&l, (struct core_event){.type = CORE_EV_TICK});
		}
		assert_non_null(lone_sent(&l, CORE_BEGIN));
		assert_int_equal(lone_sent(&l, CORE_BEGIN)->world->size, 1 + all);
		/* An attempt that ends is followed by another one at once. */
		id = l.core->coord.id;
		lone_msg(&l, B, (struct core_msg){.op = CORE_ABANDON, .id = id, .why = "a test"});
		assert_non_null(lone_sent(&l, CORE_ABORT));
		assert_non_null(lone_sent(&l, CORE_BEGIN));
		lone_deinit(&l);
	}
}

/* The only rank was at a, which holds no chunk and came back without memory. Both holders voted, so
 * the step may have been decided. Their votes have its weight. */
static void test_rank_of_a_node_that_is_gone(void **state)
{
	struct said b = {.at_a = true}, c = {.at_a = true};
	const struct core_view *v;
	struct lone l;

	(void)state;
	coordinator_init(&l);
	say_answer(&l, C, 9, &c, 1);
	say_answer(&l, B, 9, &b, 1);
	v = lone_acted(&l, CORE_ACT_PERSIST)->view;
	assert_true(v->sealed && !v->lost && v->record.id.step == 5);
	assert_true(v->record.world.rank[0].weight == 1 && v->record.weight_sum == 1);
	lone_deinit(&l);
}

/* Such votes were never committed, because the coordinator compares them, NaNs bit by bit. */
static void test_votes_that_differ(void **state)
{
	(void)state;
	for (int what = 0; what < 8; what++) {
		const double sums[][CORE_VALUES_NR] = {{1, __builtin_nan("")}, {1, 2}};
		struct said b = {.lr = 0.5, .answer.world.size = 2}, c;
		struct core_vote *v = &c.answer.vote;
		struct lone l;

		coordinator_init(&l);
		b.answer.vote.lr_nr = 1;
		b.answer.vote.values_nr = CORE_VALUES_NR;
		b.answer.world.rank[1] = (struct core_rank){.session = SESSION + 1, .node = C};
		c = b;
		c.lr = what == 1 ? 0.25 : 0.5;
		b.answer.vote.lr = &b.lr;
		b.answer.vote.values = sums[0];
		v->lr = &c.lr;
		v->skip = what == 2;
		v->values = sums[what == 4];
		v->values_nr -= what == 5 ? CORE_VALUES_NR : what == 6;
		v->has_clip = what == 7;
		say_answer(&l, C, 9, &c, 1);
		b.other_weight = what == 3;
		say_answer(&l, B, 9, &b, 1);
		assert_int_equal(lone_acted(&l, CORE_ACT_PERSIST)->view->record.id.step,
				 what ? 4 : 5);
		lone_deinit(&l);
	}
}

/* c voted to skip an older attempt and then started again without memory. Only b says what the
 * newer attempt was. */
static void test_skip_of_an_older_vote(void **state)
{
	static const uint16_t all_of_b[2] = {B, B};
	struct said b = {0}, c = {0}, again = {0};
	struct view_node other_c = lone_who(C);
	double sumsq[2] = {1, 1};
	uint8_t finite[2] = {1, 1};
	struct lone l;

	(void)state;
	coordinator_init(&l);
	l.core->member.place.primary = l.core->coord.view.place.primary = all_of_b;
	l.core->coord.votes_nr[B] = l.core->coord.held_nr[B] = 2;
	l.core->coord.votes_nr[C] = l.core->coord.held_nr[C] = 0;
	c.answer.vote.skip = true;
	c.weights[0] = 1;
	c.answer.vote.weights = c.weights;
	c.answer.vote.ranks_nr = 1;
	c.answer.world.rank[0].node = C;
	c.answer.vote.chunks_nr = 0;
	c.answer.generation = 1;
	c.answer.has_record = c.answer.prepared = true;
	c.answer.record = lone_record(5, 1, 4);
	c.answer.id = lone_id(5, 2, 5, 1);
	c.answer.vote.bad_tensor = -1;
	c.answer.world.size = 1;
	c.answer.world.rank[0] = (struct core_rank){.session = SESSION, .node = B};
	lone_msg(&l, C,
		 (struct core_msg){.op = CORE_ANSWER, .id = {.term = 9}, .answer = &c.answer});
	other_c.incarnation = 202;
	lone_event(&l, (struct core_event){.type = CORE_EV_LINK_UP, .node = C, .who = other_c});
	lone_msg(&l, C,
		 (struct core_msg){.op = CORE_ANSWER,
				   .id = {.term = 9},
				   .answer = &again.answer,
				   .from_incarnation = 202});
	b.answer.has_record = b.answer.prepared = true;
	b.answer.generation = 1;
	b.answer.record = lone_record(5, 1, 4);
	b.answer.id = lone_id(5, 2, 5, 2);
	b.answer.world = c.answer.world;
	b.weights[0] = 1;
	b.answer.vote = (struct core_vote){.sumsq = sumsq,
					   .finite = finite,
					   .chunks_nr = 2,
					   .weights = b.weights,
					   .ranks_nr = 1,
					   .bad_tensor = -1};
	lone_msg(&l, B,
		 (struct core_msg){.op = CORE_ANSWER, .id = {.term = 9}, .answer = &b.answer});
	assert_int_equal(lone_acted(&l, CORE_ACT_PERSIST)->view->record.id.step, 5);
	assert_int_equal(lone_acted(&l, CORE_ACT_PERSIST)->view->record.outcome, RECORD_APPLIED);
	lone_deinit(&l);
}

/* The state folder of the coordinator was put back, and members have decided steps since.
 * Nothing is taken back without a word. */
static void test_view_older_than_the_members(void **state)
{
	struct said b = {0}, c = {0};
	struct lone l;

	(void)state;
	coordinator_init(&l);
	say_answer(&l, C, 9, &c, 0);
	b.answer.generation = 1;
	b.answer.has_record = true;
	b.answer.record = lone_record(5, 3, 7);
	lone_msg(&l, B,
		 (struct core_msg){.op = CORE_ANSWER, .id = {.term = 9}, .answer = &b.answer});
	assert_int_equal(lone_acted(&l, CORE_ACT_PERSIST)->view->generation, 2);
	assert_false(lone_acted(&l, CORE_ACT_PERSIST)->view->sealed);
	lone_event(&l, (struct core_event){.type = CORE_EV_PERSISTED});
	assert_non_null(strstr(lone_sent(&l, CORE_VIEW)->why, "node b has a newer one"));
	lone_deinit(&l);
}

/* The same where nothing was decided since. What an operator ordered in the newer view, such as
 * a pause, is not known here. */
static void test_view_older_than_one_that_was_adopted(void **state)
{
	struct lone l;

	(void)state;
	for (uint32_t seq = 2; seq <= 3; seq++) {
		struct said b = {.answer = {.term = 5, .seq = seq}}, c = {0};
		const struct core_view *v;

		coordinator_init(&l);
		say_answer(&l, C, 9, &c, 0);
		say_answer(&l, B, 9, &b, 0);
		v = lone_acted(&l, CORE_ACT_PERSIST)->view;
		assert_int_equal(v->generation, seq == 2 ? 1 : 2);
		assert_int_equal(v->sealed, seq == 2);
		lone_event(&l, (struct core_event){.type = CORE_EV_PERSISTED});
		if (seq == 3)
			assert_non_null(
				strstr(lone_sent(&l, CORE_VIEW)->why, "node b has a newer one"));
		lone_deinit(&l);
	}
}

static void coordinator_in_view(struct lone *l) /* View 9.3 is durable and sent. */
{
	struct said b = {0}, c = {0};

	coordinator_init(l);
	say_answer(l, C, 9, &c, 0);
	say_answer(l, B, 9, &b, 0);
	lone_event(l, (struct core_event){.type = CORE_EV_PERSISTED});
	assert_non_null(lone_sent(l, CORE_VIEW));
}

static void say_ok(struct lone *l, uint16_t from)
{
	lone_msg(l, from, (struct core_msg){.op = CORE_VIEW_OK, .id = lone_id(9, 3, 0, 0)});
}

static bool is_open(const struct lone *l)
{
	struct core_state s;

	core_state(l->core, &s);
	return !s.recovering;
}

/* --- a resume counts up to a step that this coordinator knows, not up to what the order says
 * --- */

static void all_adopt(struct lone *l, uint32_t seq)
{
	struct core_id id = lone_id(9, seq, 0, 0);

	lone_event(l, (struct core_event){.type = CORE_EV_PERSISTED});
	id.generation = l->core->coord.view.generation;
	for (uint16_t n = B; n <= C; n++)
		lone_msg(l, n, (struct core_msg){.op = CORE_VIEW_OK, .id = id});
}

static void say_resume(struct lone *l)
{
	struct core_tune t = {.has_lr = true, .lr = 0.25, .resumed_step = 40, .resumed_skips = 4};

	lone_event(l, (struct core_event){.type = CORE_EV_TUNE, .tune = &t, .on = true});
}

/* 9.3 is open after step 5, which was skipped and diverged. */
static void coordinator_diverged(struct lone *l)
{
	struct said b = {0}, c = {0};

	coordinator_init(l);
	c.answer.generation = b.answer.generation = 1;
	c.answer.has_record = b.answer.has_record = true;
	c.answer.record = lone_record(5, 2, 5);
	c.answer.record.outcome = RECORD_SKIP;
	c.answer.record.content = c.answer.record.content_old = c.answer.record.applied = 4;
	c.answer.record.skipped_in_row = 3;
	c.answer.record.diverged = true;
	b.answer.record = c.answer.record;
	lone_msg(l, C,
		 (struct core_msg){.op = CORE_ANSWER, .id = {.term = 9}, .answer = &c.answer});
	lone_msg(l, B,
		 (struct core_msg){.op = CORE_ANSWER, .id = {.term = 9}, .answer = &b.answer});
	assert_int_equal(lone_acted(l, CORE_ACT_PERSIST)->view->record.id.step, 5);
	all_adopt(l, 3);
	assert_true(is_open(l));
}

static bool is_paused(const struct lone *l)
{
	struct core_state s;

	core_state(l->core, &s);
	return s.paused;
}

static void test_resume_counts_up_to_the_last_record(void **state)
{
	struct lone l;

	(void)state;
	coordinator_diverged(&l);
	assert_true(is_paused(&l));
	say_resume(&l);
	assert_int_equal(lone_acted(&l, CORE_ACT_PERSIST)->view->tune.resumed_step, 5);
	assert_int_equal(lone_acted(&l, CORE_ACT_PERSIST)->view->tune.resumed_skips, 3);
	all_adopt(&l, 4);
	assert_non_null(lone_acted(&l, CORE_ACT_TUNED));
	assert_false(is_paused(&l));
	lone_deinit(&l);
}

/* A resume that waits while the model goes back to a checkpoint is about steps that do not exist
 * any more after the seal. It is sent before the rollback, or while the weights come back. A step
 * that diverges below that one must pause the model again. */
static void test_resume_ends_with_its_generation(void **state)
{
	struct core_restored restored = {
		.applied = 2, .scaler.scale = 1, .tune = {.resumed_step = 40, .resumed_skips = 4}};
	struct lone l;

	(void)state;
	for (int early = 0; early < 2; early++) {
		const struct core_view *v;

		coordinator_diverged(&l);
		lone_event(&l, (struct core_event){.type = CORE_EV_CHECKPOINT, .on = true});
		if (early) {
			l.core->coord.node[C].done = false; /* It has to wait for c. */
			say_resume(&l);
			assert_null(lone_acted(&l, CORE_ACT_PERSIST));
		}
		lone_event(&l, (struct core_event){.type = CORE_EV_ROLLBACK, .why = "for once"});
		assert_int_equal(lone_acted(&l, CORE_ACT_PERSIST)->view->generation, 2);
		if (!early)
			say_resume(&l);
		all_adopt(&l, 4);
		lone_event(&l, (struct core_event){
				       .type = CORE_EV_WRITTEN, .step = 2, .restored = &restored});
		v = lone_acted(&l, CORE_ACT_PERSIST)->view;
		assert_true(v->sealed && v->tune.has_lr);
		assert_int_equal(v->tune.resumed_step, 0);
		assert_int_equal(v->tune.resumed_skips, 0);
		lone_deinit(&l);
	}
}

static void test_view_adopted_by_another_member(void **state)
{
	struct lone l;

	(void)state;
	coordinator_in_view(&l);
	say_ok(&l, C);
	l.core->coord.view.members.node[B].incarnation =
		77; /* As if the view named another process of b. */
	{
		struct core_msg ok = {.op = CORE_VIEW_OK,
				      .from = B,
				      .from_incarnation = lone_incarnation(B),
				      .id = lone_id(9, 3, 0, 0)};
		struct ctx x = {.c = l.core, .out = &l.out, .now = l.now};

		/* In a call of its own, because at the end of the event the coordinator would
		 * leave this view. */
		recover_on_view_ok(&x, &ok);
	}
	assert_false(l.core->coord.node[B].view_ok);
	lone_deinit(&l);
	coordinator_in_view(&l);
	say_ok(&l, C);
	say_ok(&l, B);
	assert_true(is_open(&l));
	lone_deinit(&l);
}

static void say_vote_of(struct lone *l, uint16_t from, double weight)
{
	double sumsq = 1;
	uint8_t finite = 1;
	struct core_vote v = {.sumsq = &sumsq,
			      .finite = &finite,
			      .chunks_nr = 1,
			      .weights = &weight,
			      .ranks_nr = 1,
			      .bad_tensor = -1};

	lone_msg(l, from, (struct core_msg){.op = CORE_VOTE, .id = lone_id(9, 3, 5, 1), .vote = v});
}

static void say_vote(struct lone *l, uint16_t from)
{
	say_vote_of(l, from, 1);
}

static void say_ranks(struct lone *l) /* b, whose trainer is ready. */
{
	double weight = 1;

	lone_msg(l, B,
		 (struct core_msg){.op = CORE_RANKS,
				   .id = lone_id(9, 3, 5, 1),
				   .vote = {.weights = &weight, .ranks_nr = 1, .bad_tensor = -1}});
}

static void coordinator_begins(struct lone *l) /* In step 5, with one trainer at b. */
{
	coordinator_in_view(l);
	say_ok(l, C);
	say_ok(l, B);
	lone_msg(l, B,
		 (struct core_msg){.op = CORE_JOIN,
				   .id = {.term = 9},
				   .trainer = {.session = SESSION, .hint = -1}});
	assert_non_null(lone_sent(l, CORE_BEGIN));
	say_ranks(l); /* a holds nothing, so it votes now. */
}

static void say_staging(struct lone *l, uint16_t from) /* b lacks a chunk, and no rank is behind. */
{
	lone_msg(l, from,
		 (struct core_msg){
			 .op = CORE_WAITING,
			 .id = lone_id(9, 3, 5, 1),
			 .waits = {.nodes = 1ull << from, .chunks_staged = 0, .chunks_nr = 1}});
}

static void test_vote_of_another_member(void **state)
{
	struct lone l;

	(void)state;
	for (int other = 1; other >= 0; other--) {
		coordinator_begins(&l);
		say_vote(&l, C);
		if (other)
			l.core->coord.view.members.node[B].incarnation = 77;
		say_vote(&l, B);
		assert_int_equal(lone_sent(&l, CORE_COMMIT) != NULL, !other);
		lone_deinit(&l);
	}
}

/* A node that heard other weights than the others has a fault. Nothing is decided from its vote,
 * and its name is in the reason. */
static void test_vote_that_differs(void **state)
{
	struct lone l;

	(void)state;
	coordinator_begins(&l);
	say_vote(&l, C);
	say_vote_of(&l, B, 2);
	assert_null(lone_sent(&l, CORE_COMMIT));
	assert_non_null(lone_sent(&l, CORE_ABORT));
	assert_non_null(strstr(lone_sent(&l, CORE_ABORT)->why, "node b"));
	assert_int_not_equal(lone_sent(&l, CORE_ABORT)->status, SHARD_MISMATCH);
	lone_deinit(&l);
}

/* A node that asks about an attempt hears why that one ended, and not why a newer one did. */
static void test_abort_of_an_older_attempt(void **state)
{
	struct core_id first;
	struct lone l;

	(void)state;
	coordinator_begins(&l);
	first = l.core->coord.id;
	lone_msg(&l, B, (struct core_msg){.op = CORE_ABANDON, .id = first, .why = "bad data"});
	lone_event(&l, (struct core_event){.type = CORE_EV_TICK});
	assert_true(core_id_cmp(&l.core->coord.id, &first) > 0 && l.core->coord.undecided);
	lone_msg(&l, B,
		 (struct core_msg){.op = CORE_ABANDON,
				   .id = l.core->coord.id,
				   .why = "lr of group 0",
				   .status = SHARD_MISMATCH});
	lone_msg(&l, C, (struct core_msg){.op = CORE_WAITING, .id = first});
	assert_non_null(lone_sent(&l, CORE_ABORT));
	assert_int_equal(lone_sent(&l, CORE_ABORT)->status, SHARD_WORLD_CHANGED);
	assert_null(strstr(lone_sent(&l, CORE_ABORT)->why, "lr of group 0"));
	lone_deinit(&l);
}

/* Every trainer did what it had to, and a chunk is still missing, because contributions do not
 * arrive. The attempt is not begun again unchanged. The trainer of the node that did not vote is
 * put out. If that node has none, it is the last trainer of the world. */
static void test_deadline_with_every_trainer_ready(void **state)
{
	const struct core_msg *gone;
	struct lone l;

	(void)state;
	for (uint16_t late = B; late <= C; late++) {
		coordinator_begins(&l);
		say_staging(&l, late);
		say_vote(&l, late == B ? C : B);
		l.now += 900000000;
		lone_event(&l, (struct core_event){.type = CORE_EV_TICK});
		assert_null(lone_sent(&l, CORE_GONE));
		l.now += 200000000;
		lone_event(&l, (struct core_event){.type = CORE_EV_TICK});
		assert_non_null(lone_sent(&l, CORE_ABORT));
		gone = lone_sent(&l, CORE_GONE);
		assert_non_null(gone);
		assert_int_equal(gone->trainer.session, SESSION);
		assert_non_null(strstr(gone->why, late == B ? "for node b: 1 of 2 chunks"
							    : "for node c: 1 of 2 chunks"));
		assert_null(lone_sent(&l, CORE_BEGIN));
		lone_deinit(&l);
	}
}

/* b did not hear that its trainer is out. It is told until it says that it heard. */
static void test_expulsion_is_repeated(void **state)
{
	struct core_msg gone = {
		.op = CORE_GONE, .id = {.term = 9}, .trainer = {.session = SESSION}};
	struct lone l;

	(void)state;
	coordinator_begins(&l);
	lone_event(&l, (struct core_event){.type = CORE_EV_KICK, .rank = 0, .why = "it is slow"});
	assert_non_null(lone_sent(&l, CORE_GONE));
	l.now += 10000000;
	lone_event(&l, (struct core_event){.type = CORE_EV_TICK});
	assert_non_null(lone_sent(&l, CORE_GONE));
	lone_msg(&l, B, gone);
	l.now += 2000000000;
	lone_event(&l, (struct core_event){.type = CORE_EV_TICK});
	assert_null(lone_sent(&l, CORE_GONE));
	lone_deinit(&l);
}

/* b held a chunk and comes back with another memory of the model. The number of the memory only
 * says that it is another one. It may be smaller than that of the memory that is gone. */
static void test_memories_have_no_order(void **state)
{
	static const uint64_t other[] = {1, 100, 102, UINT64_MAX};

	(void)state;
	for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
		struct view_node b = lone_who(B);
		const struct core_action *a;
		struct lone l;

		b.incarnation = other[i];
		coordinator_in_view(&l);
		say_ok(&l, C);
		say_ok(&l, B);
		assert_true(is_open(&l));
		lone_event(&l, (struct core_event){
				       .type = CORE_EV_LINK_UP, .node = B, .who = lone_who(B)});
		assert_null(
			lone_acted(&l, CORE_ACT_PERSIST)); /* The same memory, over a new link. */
		lone_event(&l, (struct core_event){.type = CORE_EV_LINK_UP, .node = B, .who = b});
		a = lone_acted(&l, CORE_ACT_PERSIST);
		assert_non_null(a);
		assert_int_equal(a->view->generation, 2);
		assert_int_equal(a->view->members.node[B].incarnation, other[i]);
		assert_non_null(strstr(a->why, "node b started again"));
		lone_deinit(&l);
	}
}

static const struct core_action *comes(struct lone *l, uint16_t node, struct view_node who)
{
	lone_event(l, (struct core_event){.type = CORE_EV_LINK_UP, .node = node, .who = who});
	return lone_acted(l, CORE_ACT_PERSIST);
}

/* b is replaced by another machine. It has the same slot, and would be another node even if its
 * memory had the same number. */
static void test_replaced_node(void **state)
{
	struct view_node other = lone_who(B);
	const struct core_action *a;
	struct lone l;

	(void)state;
	other.uuid[0] = 'x';
	coordinator_in_view(&l);
	say_ok(&l, C);
	say_ok(&l, B);
	a = comes(&l, B, other);
	assert_non_null(a);
	assert_int_equal(a->view->generation, 2);
	assert_memory_equal(&a->view->members.node[B], &other, sizeof(other));
	assert_null(comes(&l, C, lone_who(C)));
	lone_event(&l, (struct core_event){.type = CORE_EV_PERSISTED});
	assert_memory_equal(&lone_sent(&l, CORE_VIEW)->view->members.node[B], &other,
			    sizeof(other));
	lone_deinit(&l);
}

/* c is away, and b comes with a copy of its state folder. Nothing is given up because of that.
 * An operator has to say which of the two nodes it is. Then c comes with the folder that b had. */
static void test_two_nodes_with_one_folder(void **state)
{
	struct view_node b = lone_who(C), c = lone_who(B);
	const struct core_action *a;
	struct core_state st;
	struct lone l;

	(void)state;
	b.incarnation = 301;
	c.incarnation = 302;
	coordinator_in_view(&l);
	say_ok(&l, C);
	say_ok(&l, B);
	lone_event(&l, (struct core_event){.type = CORE_EV_LINK_DOWN, .node = C});
	assert_null(comes(&l, B, b));
	l.now += 2 * l.core->conf.lost_timeout_ns;
	lone_event(&l, (struct core_event){.type = CORE_EV_ROLLBACK, .on = true});
	assert_null(lone_acted(&l, CORE_ACT_PERSIST));
	assert_true(core_deadline(l.core) > l.now); /* There is nothing to do meanwhile. */
	core_state(l.core, &st);
	assert_non_null(strstr(st.waits, "nodes b and c, one of which has a copy of the other's"));
	a = comes(&l, C, c);
	assert_non_null(a);
	assert_int_equal(a->view->generation, 2);
	assert_memory_equal(&a->view->members.node[B], &b, sizeof(b));
	assert_memory_equal(&a->view->members.node[C], &c, sizeof(c));
	core_state(l.core, &st);
	assert_null(strstr(st.waits, "state folder"));
	lone_deinit(&l);
}

/* The other way round: c is there, and a trainer of it waits. The trainer is not put out because
 * of that. */
static void test_no_attempt_with_one_folder(void **state)
{
	struct view_node b = lone_who(C);
	struct core_state st;
	struct lone l;

	(void)state;
	b.incarnation = 301;
	coordinator_in_view(&l);
	say_ok(&l, C);
	say_ok(&l, B);
	assert_null(comes(&l, B, b));
	lone_msg(&l, C,
		 (struct core_msg){.op = CORE_JOIN,
				   .id = {.term = 9},
				   .trainer = {.session = SESSION, .hint = -1}});
	assert_null(lone_sent(&l, CORE_BEGIN));
	l.now += 2 * l.core->conf.step_timeout_ns;
	lone_event(&l, (struct core_event){.type = CORE_EV_TICK});
	assert_null(lone_sent(&l, CORE_GONE));
	core_state(l.core, &st);
	assert_non_null(strstr(st.waits, "nodes b and c, one of which has a copy of the other's"));
	assert_null(comes(&l, B, lone_who(B)));
	assert_non_null(lone_sent(&l, CORE_BEGIN));
	lone_deinit(&l);
}

/* The same before there is any view. */
static void test_first_view_of_one_folder(void **state)
{
	struct core_answer nothing = {.generation = 0};
	struct view_node c = lone_who(B);
	struct lone l;

	(void)state;
	c.incarnation = 302;
	lone_init(&l, A, 1, NULL);
	assert_null(comes(&l, C, c));
	lone_event(&l, (struct core_event){.type = CORE_EV_TICK});
	for (uint16_t n = B; n <= C; n++)
		lone_msg(&l, n,
			 (struct core_msg){.op = CORE_ANSWER,
					   .id = {.term = 1},
					   .answer = &nothing,
					   .from_incarnation = n == C ? 302 : 0});
	assert_null(lone_acted(&l, CORE_ACT_PERSIST));
	assert_null(comes(&l, C, lone_who(C)));
	lone_msg(&l, C,
		 (struct core_msg){.op = CORE_ANSWER, .id = {.term = 1}, .answer = &nothing});
	assert_non_null(lone_acted(&l, CORE_ACT_PERSIST));
	lone_deinit(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_answer_to_an_older_question),
		cmocka_unit_test(test_answer_of_an_older_generation),
		cmocka_unit_test(test_first_step_gathers),
		cmocka_unit_test(test_rank_of_a_node_that_is_gone),
		cmocka_unit_test(test_votes_that_differ),
		cmocka_unit_test(test_vote_that_differs),
		cmocka_unit_test(test_abort_of_an_older_attempt),
		cmocka_unit_test(test_skip_of_an_older_vote),
		cmocka_unit_test(test_view_adopted_by_another_member),
		cmocka_unit_test(test_replaced_node),
		cmocka_unit_test(test_two_nodes_with_one_folder),
		cmocka_unit_test(test_no_attempt_with_one_folder),
		cmocka_unit_test(test_first_view_of_one_folder),
		cmocka_unit_test(test_vote_of_another_member),
		cmocka_unit_test(test_deadline_with_every_trainer_ready),
		cmocka_unit_test(test_expulsion_is_repeated),
		cmocka_unit_test(test_view_older_than_the_members),
		cmocka_unit_test(test_view_older_than_one_that_was_adopted),
		cmocka_unit_test(test_resume_counts_up_to_the_last_record),
		cmocka_unit_test(test_resume_ends_with_its_generation),
		cmocka_unit_test(test_memories_have_no_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
