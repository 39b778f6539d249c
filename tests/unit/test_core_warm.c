/* SPDX-License-Identifier: Apache-2.0 */
/* Golden traces of a process that dies and comes back with its memory: PREPARED and decided without
 * it, PREPARED and aborted, APPLYING, the coordinator before and after its verdict has left, and
 * STAGING. The memory is also filled with hostile bytes. What is impossible is not taken up, and
 * what is taken up breaks nothing. warm.c is compiled into this program, so that the test can give
 * the bytes a correct sum. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/warm.c"

#include "base/rng.h"
#include "lib/duo.h"
#include <math.h>
#include <stdlib.h>

enum { MUTATIONS = 30000 };

static void gone(struct duo *p, unsigned n, const char *what,
		 enum core_event_type type) /* Stops, whatever the caller wants to say then. */
{
	p->unsent = true;
	duo_event(p, n, what,
		  (struct core_event){.type = type,
				      .chunk = n,
				      .sumsq = 16,
				      .finite = true,
				      .bad_tensor = -1,
				      .session = n ? 21 : 11,
				      .weight = 2,
				      .id = p->id[n]});
	p->unsent = false;
}

/* The chunk of the node is staged. What the node says then waits, and may be lost. */
static void staged(struct duo *p, unsigned n)
{
	duo_feed(p, n,
		 &(struct core_event){.type = CORE_EV_STAGED,
				      .chunk = n,
				      .sumsq = 16,
				      .finite = true,
				      .bad_tensor = -1,
				      .id = p->id[n]});
}

static enum core_part part(struct duo *p, unsigned n)
{
	struct core_state s;

	core_state(p->core[n], &s);
	return s.part;
}

static struct record record(struct duo *p, unsigned n)
{
	struct core_state s;

	core_state(p->core[n], &s);
	assert_non_null(s.record);
	return *s.record;
}

static void persisted(struct duo *p)
{
	duo_event(p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
}

static void applied(struct duo *p, unsigned n)
{
	duo_event(p, n, "applied", (struct core_event){.type = CORE_EV_APPLIED});
}

/* b voted and died. Meanwhile a decides, and b hears of it as the member that it was. */
static void test_prepared(void **state)
{
	struct duo p;
	struct core_state s;

	(void)state;
	duo_init(&p);
	duo_first_begin(&p);
	duo_compute(&p, 0, false, true);
	duo_compute(&p, 1, true, true);
	assert_int_equal(part(&p, 1), CORE_PREPARED);
	duo_line(&p, "(what a says to b is lost)\n");
	p.now += 1000000;
	duo_line(&p, "a: staged\n");
	staged(&p, 0);
	duo_dies(&p, 1);
	assert_int_equal(part(&p, 1), CORE_PREPARED);
	duo_link(&p);
	assert_int_equal(part(&p, 1), CORE_APPLYING);
	applied(&p, 1);
	applied(&p, 0);
	core_state(p.core[0], &s);
	assert_true(s.committed == 5 && s.seq == 2 && s.joined == 1 && s.id.step == 6);
	duo_compare(&p, "tests/trace/warm_prepared.txt");
	duo_deinit(&p);
}

/* b voted and died. The step cannot be decided without a, which still waits for the contribution
 * of b. It ends, and the next attempt has no rank of b. */
static void test_aborted(void **state)
{
	struct duo p;
	struct core_state s;

	(void)state;
	duo_init(&p);
	duo_first_begin(&p);
	duo_compute(&p, 0, false, true);
	duo_compute(&p, 1, true, true);
	duo_dies(&p, 1);
	duo_link(&p);
	assert_int_equal(part(&p, 1), CORE_FREE);
	duo_event(&p, 0, "drained", (struct core_event){.type = CORE_EV_DRAINED, .id = p.id[0]});
	duo_dies(&p, 1); /* Once more, after it was dropped and before it was drained. */
	duo_link(&p);
	duo_event(&p, 0, "drained", (struct core_event){.type = CORE_EV_DRAINED, .id = p.id[0]});
	core_state(p.core[1], &s);
	assert_true(s.part == CORE_STAGING && s.world->size == 1 && s.id.step == 5 &&
		    s.generation == 1);
	duo_compute(&p, 1, true, false);
	duo_compute(&p, 0, true, true);
	assert_int_equal(part(&p, 1), CORE_APPLYING);
	duo_compare(&p, "tests/trace/warm_aborted.txt");
	duo_deinit(&p);
}

/* It dies twice, and there is no second RESULT, because a trainer is told only once. */
static void test_applying(void **state)
{
	struct duo p;

	(void)state;
	duo_init(&p);
	duo_first_begin(&p);
	duo_compute(&p, 0, true, true);
	duo_compute(&p, 1, true, true);
	applied(&p, 0);
	assert_int_equal(part(&p, 1), CORE_APPLYING);
	duo_dies(&p, 1);
	duo_dies(&p, 1);
	duo_link(&p);
	gone(&p, 1, "applied, but dies before it says so", CORE_EV_APPLIED);
	duo_dies(&p, 1);
	assert_int_equal(part(&p, 1), CORE_FREE);
	duo_link(&p);
	assert_int_equal(record(&p, 1).id.step, 5);
	duo_compare(&p, "tests/trace/warm_applying.txt");
	duo_deinit(&p);
}

static void test_staging(void **state)
{
	struct duo p;

	(void)state;
	duo_init(&p);
	duo_first_begin(&p);
	duo_compute(&p, 1, true, false);
	duo_dies(&p, 1);
	assert_int_equal(part(&p, 1), CORE_FREE);
	duo_link(&p);
	duo_compare(&p, "tests/trace/warm_staging.txt");
	duo_deinit(&p);
}

/* Nobody dies. This is what the record has to be. */
static void decided(struct duo *p, struct record *r)
{
	duo_init(p);
	duo_first_begin(p);
	duo_compute(p, 1, true, true);
	duo_compute(p, 0, true, true);
	*r = record(p, 1);
	duo_deinit(p);
}

static void same_bits(const struct record *a, const struct record *b)
{
	assert_int_equal(core_id_cmp(&a->id, &b->id), 0);
	assert_memory_equal(&a->clip_factor, &b->clip_factor, sizeof(double));
	assert_memory_equal(&a->weight_sum, &b->weight_sum, sizeof(double));
	assert_memory_equal(a->args, b->args, sizeof(a->args[0]));
	assert_memory_equal(&a->world.rank, &b->world.rank, sizeof(a->world.rank[0]) * 2);
}

/* a decided and died before anybody heard, and it knows what it decided. In the other case both
 * had voted, and a dies without having counted the vote of b. It has to decide the same. */
static void test_coordinator(void **state)
{
	struct duo p;
	struct record want, got;

	(void)state;
	decided(&p, &want);
	duo_init(&p);
	duo_first_begin(&p);
	duo_compute(&p, 0, false, true);
	duo_compute(&p, 1, true, true);
	gone(&p, 0, "staged, decides, but dies before it says so", CORE_EV_STAGED);
	duo_dies(&p, 0);
	duo_link(&p);
	persisted(&p);
	assert_int_equal(part(&p, 0), CORE_APPLYING);
	assert_int_equal(part(&p, 1), CORE_APPLYING);
	got = record(&p, 1);
	same_bits(&got, &want);
	applied(&p, 1);
	applied(&p, 0);
	duo_compare(&p, "tests/trace/warm_decided.txt");
	duo_deinit(&p);

	duo_init(&p);
	duo_first_begin(&p);
	duo_compute(&p, 1, false, true);
	duo_compute(&p, 0, true, true);
	p.now += 1000000;
	duo_line(&p, "b: staged (what it says is lost)\n");
	staged(&p, 1);
	duo_dies(&p, 0);
	duo_link(&p);
	persisted(&p);
	got = record(&p, 0);
	same_bits(&got, &want);
	got = record(&p, 1);
	same_bits(&got, &want);
	duo_compare(&p, "tests/trace/warm_undecided.txt");
	duo_deinit(&p);
}

/* Both voted, nobody heard the verdict, and both die. The record takes the learning rate that
 * the trainers gave, their weights and their wish to skip. */
static void test_votes(void **state)
{
	const double lr = 0.25, clip = 0.125,
		     values[2][CORE_VALUES_NR] = {{1.5, [15] = 3}, {2.5, (double)NAN}};
	struct duo p;
	struct record got;

	(void)state;
	for (unsigned skip = 0; skip < 2; skip++) {
		duo_init(&p);
		duo_first_begin(&p);
		for (unsigned n = 0; n < 2; n++) {
			duo_feed(&p, n,
				 &(struct core_event){.type = CORE_EV_READY,
						      .session = n ? 21 : 11,
						      .weight = 3,
						      .id = p.id[n],
						      .lr = &lr,
						      .lr_nr = 1,
						      .clip = &clip,
						      .values = values[n],
						      .skip = skip && n});
			duo_drain(&p);
		}
		staged(&p, 0);
		staged(&p, 1);
		duo_dies(&p, 1);
		/* Who asks for what its rank gave is told again. */
		assert_memory_equal((double *)core_at(p.core[1], p.core[1]->at_values) +
					    CORE_VALUES_NR,
				    values[1], sizeof(values[1]));
		duo_dies(&p, 0);
		duo_link(&p);
		persisted(&p);
		got = record(&p, 1);
		assert_int_equal(got.id.step, 5);
		assert_true(got.lr == 0.25 && got.weight_sum == 6);
		assert_true(skip || got.clip_factor == clip / (got.grad_norm + 1e-6));
		assert_true(got.values[0] == 4 && isnan(got.values[1]) && got.values[15] == 3);
		assert_int_equal(got.outcome, skip ? RECORD_SKIP : RECORD_APPLIED);
		duo_deinit(&p);
	}
}

/* An event that changes nothing that must survive writes nothing. */
static void test_cheap(void **state)
{
	struct duo p;
	unsigned counts;

	(void)state;
	duo_init(&p);
	duo_first_begin(&p);
	counts = p.counts[1];
	duo_event(&p, 1, "tick", (struct core_event){.type = CORE_EV_TICK});
	duo_compute(&p, 0, false, true);
	duo_compute(&p, 1, true, false);
	assert_int_equal(p.counts[1], counts);
	duo_compute(&p, 1, false, true);
	assert_int_not_equal(p.counts[1], counts);
	duo_deinit(&p);
}

/* --- what a start finds may be anything --- */

static void sign(struct warm *w)
{
	const double *sumsq = (const double *)(const void *)(w + 1);

	const uint8_t *finite = (const uint8_t *)(sumsq + w->held_nr);
	struct piece p[PIECES];

	if (warm_used(w, p)) /* Otherwise no sum is right. */
		w->sum = warm_sum(w, sumsq, finite, finite + w->held_nr);
}

/* Is this byte of what was saved one that the sum covers? */
static bool in_use(const struct warm *w, size_t at)
{
	struct piece p[PIECES] = {0};

	assert_true(warm_used(w, p));
	for (unsigned i = 0; i < PIECES; i++) {
		if (at >= p[i].at && at < p[i].at + p[i].bytes)
			return true;
	}
	return at < sizeof(w->magic) || at >= sizeof(*w);
}

static void prepared(struct duo *p, struct warm **w) /* Starts b. *w is what b saved last. */
{
	duo_init(p);
	duo_first_begin(p);
	duo_compute(p, 0, false, true);
	duo_compute(p, 1, true, true);
	*w = p->saved[1][p->counts[1]];
	assert_int_equal((*w)->part, CORE_PREPARED);
}

#define REFUSED(what)                                                                              \
	do {                                                                                       \
		struct warm was = *w;                                                              \
		what;                                                                              \
		sign(w);                                                                           \
		assert_null(duo_warm(&p, 1, w));                                                   \
		*w = was;                                                                          \
	} while (0)

static void test_refused(void **state)
{
	struct duo p;
	struct warm *w;

	(void)state;
	prepared(&p, &w);
	REFUSED(w->incarnation++);
	REFUSED(w->magic++);
	REFUSED(w->self = 0);
	REFUSED(w->members.nodes = 7);
	REFUSED(w->members.nodes = 1);
	REFUSED(w->members.nodes = 2);
	REFUSED(w->members.coordinator = 1);
	REFUSED(w->members.coordinator = 64);
	REFUSED(w->place ^= 1);
	REFUSED(w->members.node[0].uuid[1]++); /* The uuid of b. */
	REFUSED(w->members.node[1].uuid[0]++); /* The uuid of another node than b. */
	REFUSED(memset(w->members.node[0].uuid, 0, VIEW_UUID_BYTES));
	REFUSED(w->groups_nr = 2);
	REFUSED(w->chunks_nr = 1000000);
	REFUSED(w->part = CORE_PART_NR);
	REFUSED(w->part = CORE_APPLYING);
	REFUSED(w->flags = 16);
	REFUSED(w->flags = 0);
	REFUSED(w->flags |= WARM_RESTORING);
	REFUSED(w->promised = w->term - 1);
	REFUSED(w->term = 0);
	REFUSED(w->generation = 2);
	REFUSED(w->seq++);
	REFUSED(w->id.step++);
	REFUSED(w->id.attempt = 0);
	REFUSED(w->aborted = w->id);
	REFUSED(w->lr_nr = 1; w->lr_rank = 2);
	REFUSED(w->clip = 1);
	REFUSED(w->clip = -1; w->flags |= WARM_CLIP);
	REFUSED(w->clip = (double)NAN; w->flags |= WARM_CLIP);
	REFUSED(w->ranks_nr = 0);
	REFUSED(w->ranks_nr = 2);
	REFUSED(w->world.size = 0);
	REFUSED(w->world.size = CORE_RANKS_MAX + 1);
	REFUSED(w->world.rank[0].node = 2);
	REFUSED(w->record.outcome = (enum record_outcome)4);
	REFUSED(w->record.groups_nr = 17);
	REFUSED(w->record.world.size = 1u << 31);
	REFUSED(*(unsigned char *)&w->record.diverged = 2);
	REFUSED(*(unsigned char *)&w->tune.has_lr = 2);
	REFUSED(w->tune.set[0] = 1u << HYPER_LR);
	REFUSED(w->tune.hyper[0][HYPER_BETA1] = 0.5);
	REFUSED(w->tune.set[0] = 1u << HYPER_EPS; w->tune.hyper[0][HYPER_EPS] = -1);
	REFUSED(((uint8_t *)(w + 1))[sizeof(double)] = 2);
	((uint8_t *)(w + 1))[sizeof(double)] = 1;
	sign(w);
	assert_non_null(duo_warm(&p, 1, w));
	for (size_t i = 0; i < sizeof(*w) + sizeof(double) + 1 + VALUES_BYTES; i += 1 + i % 7) {
		if (!in_use(w, i))
			continue;
		((uint8_t *)w)[i] ^= 1;
		assert_null(duo_warm(&p, 1, w));
		((uint8_t *)w)[i] ^= 1;
	}
	duo_deinit(&p);
}

/* A coordinator knows more. What its disk says is never older than what its memory says, and
 * neither is its term. */
static void test_refused_coordinator(void **state)
{
	struct duo p;
	struct warm *w;
	struct core_view view;
	const unsigned char *c;

	(void)state;
	prepared(&p, &w);
	w = p.saved[0][p.counts[0]];
	view = p.view;
	p.view.seq--;
	assert_null(duo_warm(&p, 0, w));
	c = p.memory[0];
	for (size_t i = 0; i < 4096; i++)
		assert_int_equal(c[i], 0); /* The memory is ready for a cold start. */
	p.view = (struct core_view){0};
	assert_null(duo_warm(&p, 0, w));
	p.view = view;
	p.view.generation = 0;
	assert_null(duo_warm(&p, 0, w));
	p.view = view;
	p.view.seq++;
	assert_non_null(duo_warm(&p, 0, w));
	p.term[0] = view.term - 10; /* The start has the promised term itself. */
	assert_null(duo_warm(&p, 0, w));
	duo_deinit(&p);
}

static void test_mutated(
	/* The sum is right. Whether it is taken or refused, it does not break what follows. */
	void **state)
{
	struct rng rng = {.state = 7};
	struct duo p;
	struct warm *w, *was;
	size_t bytes = sizeof(*w) + sizeof(double) + 1;
	unsigned taken = 0;

	(void)state;
	prepared(&p, &w);
	was = malloc(bytes);
	assert_non_null(was);
	memcpy(was, w, bytes);
	for (unsigned i = 0; i < MUTATIONS; i++) {
		for (unsigned k = 0; k < 1 + i % 3; k++) {
			size_t at = rng_below(&rng, k || i % 2 ? bytes : offsetof(struct warm, lr));

			((uint8_t *)w)[at] =
				(uint8_t)(rng_below(&rng, 2) ? rng_next(&rng) : rng_below(&rng, 4));
		}
		w->held_nr = was->held_nr;
		w->ranks_nr %= CORE_RANKS_MAX + 1;
		sign(w);
		if (duo_warm(&p, 1, w)) {
			taken++;
			p.used = 0;
			p.head = p.tail = 0;
			duo_feed(&p, 1, &(struct core_event){.type = CORE_EV_WARM});
			duo_feed(&p, 1,
				 &(struct core_event){
					 .type = CORE_EV_LINK_UP, .node = 0, .who = duo_who(0)});
			duo_feed(&p, 1, &(struct core_event){.type = CORE_EV_TICK});
			duo_feed(&p, 1,
				 &(struct core_event){.type = CORE_EV_GONE, .trainer.session = 21});
			(void)part(&p, 1);
		}
		memcpy(w, was, bytes);
	}
	assert_true(taken > 100 && taken < MUTATIONS);
	free(was);
	duo_deinit(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_prepared),
					   cmocka_unit_test(test_aborted),
					   cmocka_unit_test(test_applying),
					   cmocka_unit_test(test_staging),
					   cmocka_unit_test(test_cheap),
					   cmocka_unit_test(test_votes),
					   cmocka_unit_test(test_coordinator),
					   cmocka_unit_test(test_refused),
					   cmocka_unit_test(test_refused_coordinator),
					   cmocka_unit_test(test_mutated)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
