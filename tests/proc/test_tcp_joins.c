// SPDX-License-Identifier: Apache-2.0
/* A trainer that joins over tcp gets the image as it stands, also where the last steps changed
 * nothing (skipped by vote, or because a gradient was not finite), on the node that coordinates and
 * on another one. Every join is followed by steps, which it begins on the weights that are right.
 */
#include "base/check.h"
#include "base/clock.h"
#include "core/inner.h"
#include "data/model.h"
#include "lib/inproc.h"
#include "lib/pace.h"
#include "lib/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum skip_how { SKIP_NO, SKIP_VOTE, SKIP_NONFINITE };

struct yard {
	struct inproc cluster;
	struct trainer a, b;
	uint32_t applied; /* Steps applied so far. Each takes 1 from every weight. */
	char settings[160];
};

static void define(struct yard *y, struct trainer *t, const char *address)
{
	struct shard_spec s;

	trainer_connect(t, address);
	trainer_spec(&s, SHARD_F32, SHARD_F32);
	s.settings = y->settings;
	EXPECT(SHARD_OK, shard_define(t->client, &s, &t->model, &t->created));
	for (uint32_t k = 0; k < TRAINER_TENSORS && t->created; k++) {
		float w[3000];

		for (uint64_t i = 0; i < trainer_numel[k]; i++)
			w[i] = trainer_weight(k, i);
		EXPECT(SHARD_OK,
		       shard_write(t->model, SHARD_MASTER, k, 0, trainer_numel[k], SHARD_F32, w));
	}
	if (t->created)
		EXPECT(SHARD_OK, shard_seal(t->model, 0));
}

static void yard_start(struct yard *y, const struct inproc_conf *conf, int staleness)
{
	memset(y, 0, sizeof(*y));
	snprintf(y->settings, sizeof(y->settings),
		 "optimizer=sgd lr=1 loss_scale=1 min_world=1 max_world=2 chunk_elems=1024 "
		 "timeout=120s max_staleness=%d",
		 staleness);
	inproc_start(&y->cluster, conf);
	define(y, &y->a, y->cluster.node[0].unix_address);
	EXPECT(SHARD_OK, shard_join(y->a.model, 0, pace_ms(10000), &y->a.world));
}

static void yard_stop(struct yard *y)
{
	trainer_end(&y->a);
	inproc_stop(&y->cluster);
}

static void finish_step(struct trainer *t, enum skip_how how)
{
	if (how == SKIP_VOTE) {
		EXPECT(SHARD_OK, shard_vote_skip(t->model, "test"));
		return;
	}
	trainer_push_all(t, how == SKIP_NO ? 1 : INFINITY);
	EXPECT(SHARD_OK, shard_commit(t->model, NULL));
}

static void result(struct yard *y, struct trainer *t, enum skip_how how)
{
	static const enum shard_outcome outcome[] = {SHARD_APPLIED, SHARD_SKIPPED_VOTE,
						     SHARD_SKIPPED_NONFINITE};
	struct shard_result r = SHARD_INIT(struct shard_result);

	EXPECT(SHARD_OK, shard_result(t->model, 0, pace_ms(10000), &r));
	assert_int_equal(r.outcome, outcome[how]);
	y->applied += how == SKIP_NO && t == &y->a;
}

/* Takes one step of trainer a, which ends in this way. */
static void alone(struct yard *y, enum skip_how how)
{
	trainer_begin(&y->a);
	finish_step(&y->a, how);
	result(y, &y->a, how);
}

static void changed(struct trainer *t)
{
	EXPECT(SHARD_OK, shard_world_get(t->model, &t->world));
}

/* Takes one step of both trainers. The one that begins first may have to begin again. */
static void together(struct yard *y, enum skip_how how)
{
	for (int i = 0; i < 2; i++) {
		struct trainer *t = i ? &y->b : &y->a;
		enum shard_status rc;

		while ((rc = shard_begin(t->model, NULL, &t->step)) == SHARD_WORLD_CHANGED)
			changed(t);
		EXPECT(SHARD_OK, rc);
		if (y->b.step.step != 0 || i)
			assert_int_equal(t->step.world_size, 2);
	}
	assert_int_equal(y->a.step.step, y->b.step.step);
	for (int i = 0; i < 2; i++)
		finish_step(i ? &y->b : &y->a, how);
	for (int i = 0; i < 2; i++)
		result(y, i ? &y->b : &y->a, how);
}

static void check_both(struct yard *y, uint32_t minus)
{
	trainer_check_image(&y->a, SHARD_F32, (float)minus);
	trainer_check_image(&y->b, SHARD_F32, (float)minus);
}

/* How many trainers the coordinator knows, also those that wait for the next world. */
static uint32_t known(struct yard *y)
{
	const struct list *models = &y->cluster.node[0].server->models;
	const struct model *m = list_of(models->next, struct model, link);

	return __atomic_load_n(&m->core->coord.trainers_nr, __ATOMIC_RELAXED);
}

/* b asks to be let in while a is in the middle of a step, which is the last before it is: the
 * coordinator has heard of b before a finishes it. */
static void comes_in(struct yard *y, const char *address, enum skip_how how)
{
	uint64_t give_up = clock_ns() + pace_ns(10 * NS_PER_SEC);

	define(y, &y->b, address);
	trainer_begin(&y->a);
	while (known(y) < 2) {
		CHECK(clock_ns() < give_up);
		EXPECT(SHARD_TIMEOUT, shard_join(y->b.model, 1, 20, &y->b.world));
	}
	finish_step(&y->a, how);
	result(y, &y->a, how);
	EXPECT(SHARD_OK, shard_join(y->b.model, 1, pace_ms(10000), &y->b.world));
}

static void goes(struct yard *y)
{
	trainer_end(&y->b);
	memset(&y->b, 0, sizeof(y->b));
}

/* When b has gone, a takes a step of its own. */
static void a_is_alone(struct yard *y)
{
	enum shard_status rc;

	do {
		rc = shard_begin(y->a.model, NULL, &y->a.step);
		if (rc == SHARD_OK && y->a.step.world_size == 2) {
			finish_step(&y->a, SKIP_VOTE);
			rc = shard_result(y->a.model, 0, pace_ms(10000),
					  &SHARD_INIT(struct shard_result));
		}
		if (rc == SHARD_WORLD_CHANGED)
			changed(&y->a);
		else
			EXPECT(SHARD_OK, rc);
	} while (rc != SHARD_OK || y->a.step.world_size == 2);
	finish_step(&y->a, SKIP_NO);
	result(y, &y->a, SKIP_NO);
}

static void after_a_skip(void **state)
{
	static const enum skip_how hows[] = {SKIP_VOTE, SKIP_NONFINITE, SKIP_NO};

	(void)state;
	for (uint32_t nodes = 1; nodes <= 2; nodes++)
		for (int staleness = 0; staleness < 2; staleness++) {
			const struct inproc_conf conf = {.nodes = nodes};
			struct yard y;

			yard_start(&y, &conf, staleness);
			alone(&y, SKIP_VOTE); /* The weights are still those that were sealed. */
			for (size_t i = 0; i < NR(hows); i++) {
				comes_in(&y, y.cluster.node[nodes - 1].tcp_address, hows[i]);
				together(&y, hows[(i + 1) % NR(hows)]);
				together(&y, SKIP_VOTE);
				together(&y, SKIP_VOTE);
				trainer_begin(&y.a);
				trainer_begin(&y.b);
				check_both(&y, y.applied);
				EXPECT(SHARD_OK, shard_abandon(y.a.model, "test"));
				goes(&y);
				a_is_alone(&y);
			}
			yard_stop(&y);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(after_a_skip),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
