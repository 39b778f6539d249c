// SPDX-License-Identifier: Apache-2.0
/* Tests what a trainer may ask for beside the plain step, with real daemons: its own learning rate
 * per group, weights per rank, division before the sum, schedules, frozen tensors, and
 * accumulation. Two trainers are on one node or on two, over unix sockets or tcp. SGD and small
 * numbers make every weight known exactly. One thread drives both trainers, because only begin and
 * result wait for the other one. */
#include "base/check.h"
#include "lib/inproc.h"
#include "lib/pace.h"
#include "lib/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { W, FROZEN, B, TAIL, TENSORS, LARGEST = 3000 };

static const struct shard_tensor tensors[TENSORS] = {
	{.name = "w", .ndim = 1, .shape = {2000}},
	{.name = "frozen",
	 .ndim = 1,
	 .shape = {LARGEST},
	 .flags = SHARD_FROZEN}, /* It fills whole chunks. */
	{.name = "b", .ndim = 1, .shape = {70}, .group = 1},
	{.name = "tail", .ndim = 1, .shape = {5}, .group = 1, .flags = SHARD_FROZEN},
};
static const struct shard_group groups[] = {{"main", ""}, {"bias", "lr_factor=0.5 weight_decay=0"}};

static const struct place {
	const char *what;
	uint32_t nodes;
	bool tcp;
} places[] = {{"one node", 1, false}, {"two nodes", 2, false}, {"two nodes, tcp", 2, true}};

struct pair {
	struct inproc cluster;
	struct trainer t[2];
};

static float written(uint32_t tensor, uint64_t i)
{
	return (float)(tensor + i % 50);
}

static void define(struct trainer *t, const char *address, enum shard_dtype grad,
		   const char *settings)
{
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	float w[LARGEST];

	s.name = "options";
	s.tensors = tensors;
	s.tensors_nr = TENSORS;
	s.groups = groups;
	s.groups_nr = NR(groups);
	s.image = SHARD_F32;
	s.grad = grad;
	s.settings = settings;
	trainer_connect(t, address);
	EXPECT(SHARD_OK, shard_define(t->client, &s, &t->model, &t->created));
	for (uint32_t i = 0; t->created && i < TENSORS; i++) {
		for (uint64_t k = 0; k < tensors[i].shape[0]; k++)
			w[k] = written(i, k);
		EXPECT(SHARD_OK, shard_write(t->model, SHARD_MASTER, i, 0, tensors[i].shape[0],
					     SHARD_F32, w));
	}
	if (t->created)
		EXPECT(SHARD_OK, shard_seal(t->model, 0));
}

static void start(struct pair *p, const struct place *at, enum shard_dtype grad, const char *more)
{
	const struct inproc_conf conf = {.nodes = at->nodes};
	char settings[512];

	snprintf(settings, sizeof(settings),
		 "optimizer=sgd min_world=2 max_world=2 chunk_elems=1024 %s", more);
	inproc_start(&p->cluster, &conf);
	for (int i = 0; i < 2; i++) {
		const struct inproc_node *n = &p->cluster.node[at->nodes == 1 ? 0 : i];

		define(&p->t[i], at->tcp ? n->tcp_address : n->unix_address, grad, settings);
	}
	EXPECT(SHARD_TIMEOUT, shard_join(p->t[0].model, 0, 0, &p->t[0].world));
	EXPECT(SHARD_OK, shard_join(p->t[1].model, 1, pace_ms(10000), &p->t[1].world));
	EXPECT(SHARD_OK, shard_join(p->t[0].model, 0, pace_ms(10000), &p->t[0].world));
}

static void stop(struct pair *p)
{
	for (int i = 0; i < 2; i++)
		trainer_end(&p->t[i]);
	inproc_stop(&p->cluster);
}

static void begin(struct trainer *t, double weight, const double *lr)
{
	struct shard_begin_opts o = SHARD_INIT(struct shard_begin_opts);

	o.weight = weight;
	o.lr = lr;
	EXPECT(SHARD_OK, shard_begin(t->model, &o, &t->step));
}

static void push(struct trainer *t, float value)
{
	float g[LARGEST];
	shard_ticket ticket;

	for (int i = 0; i < LARGEST; i++)
		g[i] = value;
	for (uint32_t i = 0; i < TENSORS; i++)
		if (!(tensors[i].flags & SHARD_FROZEN))
			EXPECT(SHARD_OK, shard_push(t->model, i, 0, tensors[i].shape[0], g,
						    SHARD_F32, SHARD_CAST, &ticket));
}

static struct shard_result finish(struct pair *p, enum shard_status want)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket ticket[2];

	for (int i = 0; i < 2; i++)
		EXPECT(SHARD_OK, shard_commit(p->t[i].model, &ticket[i]));
	for (int i = 0; i < 2; i++)
		EXPECT(want, shard_result(p->t[i].model, ticket[i], pace_ms(10000), &r));
	return r;
}

static struct shard_result step(struct pair *p, const double *weight, const double *const *lr,
				const float *grad)
{
	for (int i = 0; i < 2; i++)
		begin(&p->t[i], weight ? weight[i] : 0, lr ? lr[i] : NULL);
	for (int i = 0; i < 2; i++)
		push(&p->t[i], grad[i]);
	return finish(p, SHARD_OK);
}

/* Every weight of both tensors is lower by so much in all. Frozen ones are unchanged in masters and
 * images. */
static void check(struct pair *p, float w, float b)
{
	const float moved[TENSORS] = {[W] = w, [B] = b};
	float got[LARGEST];
	uint64_t at = 0;

	for (int i = 0; i < 2; i++) {
		for (uint32_t k = 0; k < TENSORS; k++) {
			EXPECT(SHARD_OK,
			       shard_read(p->t[i].model, i ? SHARD_IMAGE : SHARD_MASTER, k, 0,
					  tensors[k].shape[0], SHARD_F32, got, &at));
			for (uint64_t j = 0; j < tensors[k].shape[0]; j++)
				if (got[j] != written(k, j) - moved[k])
					fail_msg(
						"trainer %d tensor %s element %lu: %g, expected %g",
						i, tensors[k].name, (unsigned long)j,
						(double)got[j], (double)(written(k, j) - moved[k]));
		}
	}
}

static void own_lr(void **state)
{
	static const double one[] = {0.5, 0.25}, two[] = {0.25, 0};
	static const float ones[] = {1, 1};
	struct shard_result r;
	struct pair p;

	(void)state;
	for (size_t i = 0; i < NR(places); i++) {
		start(&p, &places[i], SHARD_F32, "lr=2");
		r = step(&p, NULL, (const double *const[]){one, one}, ones);
		assert_true(r.lr == 0.5);
		check(&p, 0.5f, 0.25f);
		r = step(&p, NULL, (const double *const[]){two, two}, ones);
		assert_true(r.lr == 0.25);
		check(&p, 0.75f, 0.25f);
		r = step(&p, NULL, NULL,
			 ones); /* Without one: that of the settings, times the group's factor. */
		assert_true(r.lr == 2 && r.applied == 3);
		check(&p, 2.75f, 1.25f);
		stop(&p);
	}
}

/* The attempt ends without effect for all. The rank that differs is named, and the step can be
 * tried again. */
static void odd_lr(void **state)
{
	static const double one[] = {0.5, 0.25}, odd[] = {0.5, 0.125};
	const double *const gives[][2] = {{one, odd}, {one, NULL}, {NULL, one}};
	static const float ones[] = {1, 1};
	struct shard_result r;
	struct pair p;

	(void)state;
	for (size_t i = 0; i < NR(places); i++) {
		start(&p, &places[i], SHARD_F32, "lr=2");
		for (size_t k = 0; k < NR(gives); k++) {
			for (int t = 0; t < 2; t++) {
				begin(&p.t[t], 0, gives[k][t]);
				push(&p.t[t], 1);
			}
			finish(&p, SHARD_MISMATCH);
			EXPECT_TEXT(k == 0 ? "lr of group 1: rank " : "lr: rank ");
			EXPECT_TEXT(k == 0 ? "gave 0.125" : "gave none");
			EXPECT_TEXT("rank 1 (pid ");
			EXPECT_TEXT(places[i].nodes == 1 ? "node a)" : "node b)");
			for (int t = 0; t < 2; t++)
				EXPECT(SHARD_OK, shard_world_get(p.t[t].model, &p.t[t].world));
			assert_int_equal(p.t[0].world.step, 1);
			check(&p, 0, 0);
		}
		r = step(&p, NULL, (const double *const[]){one, one}, ones);
		assert_true(r.attempts > NR(gives) && r.step == 1);
		check(&p, 0.5f, 0.25f);
		stop(&p);
	}
}

static void bad_lr(void **state)
{
	static const double negative[] = {0.5, -1}, fine[] = {1, 1};
	static const char *const folders[] = {
		"checkpoint_dir=/tmp/schedule=WarmupLR",
		"schedule=WarmupLR checkpoint_dir=/tmp/schedule=none",
	};
	struct shard_begin_opts o = SHARD_INIT(struct shard_begin_opts);
	struct pair p;

	(void)state;
	start(&p, &places[0], SHARD_F32, "schedule=WarmupLR");
	o.lr = fine;
	EXPECT(SHARD_BAD_ARG, shard_begin(p.t[0].model, &o, &p.t[0].step));
	EXPECT_TEXT("name a schedule: choose one of them");
	stop(&p);
	for (size_t i = 0; i < NR(folders); i++) { /* That word may be part of any value. */
		start(&p, &places[0], SHARD_F32, folders[i]);
		EXPECT(i == 0 ? SHARD_OK : SHARD_BAD_ARG,
		       shard_begin(p.t[0].model, &o, &p.t[0].step));
		stop(&p);
	}
	start(&p, &places[0], SHARD_F32, "");
	o.lr = negative;
	EXPECT(SHARD_BAD_ARG, shard_begin(p.t[0].model, &o, &p.t[0].step));
	EXPECT_TEXT("lr[1] is -1");
	stop(&p);
}

/* 40000 + 40000 is beyond fp16. Divided by 8 before the sum it is 10000. Norm, clip and update are
 * those of the true mean. */
static void predivide(void **state)
{
	static const float grad[] = {40000, 40000}, small[] = {8, 24};
	struct shard_result r;
	struct pair p;

	(void)state;
	for (size_t i = 0; i < NR(places); i++) {
		start(&p, &places[i], SHARD_F16, "loss_scale=1 lr=0.0001220703125");
		r = step(&p, NULL, NULL, grad);
		assert_int_equal(r.outcome, SHARD_SKIPPED_NONFINITE);
		check(&p, 0, 0);
		stop(&p);
		start(&p, &places[i], SHARD_F16, "loss_scale=1 lr=0.0001220703125 predivide=8");
		r = step(&p, NULL, NULL, grad);
		assert_int_equal(r.outcome, SHARD_APPLIED);
		assert_true(fabs(r.grad_norm - 40000 * sqrt(2070)) < 1e-6 * r.grad_norm);
		check(&p, 40000 * 0.0001220703125f, 20000 * 0.0001220703125f);
		stop(&p);
		start(&p, &places[i], SHARD_F32, "lr=1 clip=1 predivide=4");
		r = step(&p, NULL, NULL, small); /* The mean is 16 everywhere. */
		assert_true(fabs(r.grad_norm - 16 * sqrt(2070)) < 1e-9 * r.grad_norm);
		assert_true(fabs(r.clip_factor * r.grad_norm - 1) < 1e-6);
		stop(&p);
	}
}

/* The update uses sum(g) / sum(weight). */
static void weights(void **state)
{
	static const double weight[] = {3, 1};
	static const float sums[] = {3, 5};
	struct shard_result r;
	struct pair p;

	(void)state;
	for (size_t i = 0; i < NR(places); i++) {
		start(&p, &places[i], SHARD_F32, "lr=1");
		r = step(&p, weight, NULL, sums);
		assert_true(r.weight_sum == 4);
		check(&p, 2, 1);
		stop(&p);
	}
}

static void schedule(void **state)
{
	static const float ones[] = {1, 1};
	static const double lr[] = {0, 0, 0.25, 0.5, 0.75, 1, 1};
	float moved = 0;
	struct pair p;

	(void)state;
	start(&p, &places[1], SHARD_F32,
	      "lr=1 schedule=WarmupLR warmup_type=linear warmup_num_steps=4");
	for (size_t i = 0; i < NR(lr); i++) {
		struct shard_result r = step(&p, NULL, NULL, ones);

		assert_true(r.lr == lr[i]);
		moved += (float)lr[i];
		check(&p, moved, moved / 2);
		if (i != 3)
			continue;
		for (int t = 0; t < 2; t++) { /* A skipped step does not move the schedule. */
			begin(&p.t[t], 0, NULL);
			EXPECT(SHARD_OK, shard_vote_skip(p.t[t].model, "test"));
		}
		for (int t = 0; t < 2; t++)
			EXPECT(SHARD_OK, shard_result(p.t[t].model, 0, pace_ms(10000), &r));
		assert_true(r.outcome == SHARD_SKIPPED_VOTE && r.lr == lr[i + 1] &&
			    r.applied == i + 1);
	}
	stop(&p);
}

/* A frozen tensor is only in the image. No gradient of it may be pushed, none is missing, and
 * neither decay nor momentum changes it. */
static void frozen(void **state)
{
	static const float zero[] = {0, 0};
	struct shard_info info = SHARD_INIT(struct shard_info);
	shard_ticket ticket;
	float g[LARGEST] = {0};
	struct pair p;

	(void)state;
	for (size_t i = 0; i < NR(places); i++) {
		start(&p, &places[i], SHARD_BF16, "lr=0.5 weight_decay=1 momentum=0.5");
		EXPECT(SHARD_OK, shard_tensor_info(p.t[0].model, FROZEN, &info));
		assert_int_equal(info.flags, SHARD_FROZEN);
		begin(&p.t[0], 0, NULL);
		EXPECT(SHARD_BAD_ARG,
		       shard_push(p.t[0].model, FROZEN, 0, 10, g, SHARD_BF16, 0, &ticket));
		EXPECT_TEXT("\"frozen\", which is frozen");
		EXPECT(SHARD_BAD_ARG,
		       shard_push(p.t[0].model, TAIL, 0, 5, g, SHARD_F32, SHARD_CAST, &ticket));
		EXPECT(SHARD_OK, shard_push_none(p.t[0].model, FROZEN));
		EXPECT(SHARD_MISSING, shard_commit(p.t[0].model, &ticket));
		EXPECT_TEXT("2 of 2 tensors were not pushed: w, b");
		push(&p.t[0], 0);
		begin(&p.t[1], 0, NULL);
		push(&p.t[1], 0);
		finish(&p, SHARD_OK);
		step(&p, NULL, NULL, zero);
		for (uint32_t k = 0; k < TENSORS; k++) {
			bool still = tensors[k].flags & SHARD_FROZEN;
			uint64_t at = 0;

			EXPECT(SHARD_OK, shard_read(p.t[1].model, SHARD_IMAGE, k, 0,
						    tensors[k].shape[0], SHARD_F32, g, &at));
			for (uint64_t j = 0; j < tensors[k].shape[0]; j++)
				assert_true(written(k, j) == 0 || k == B ||
					    (g[j] == written(k, j)) == still);
			EXPECT(still ? SHARD_NOT_FOUND : SHARD_OK,
			       shard_read(p.t[1].model, SHARD_MOMENTUM, k, 0, tensors[k].shape[0],
					  SHARD_F32, g, &at));
			if (still)
				EXPECT_TEXT("is frozen: the optimizer keeps nothing for it");
		}
		stop(&p);
	}
}

static void add(struct trainer *t, uint32_t tensor, uint64_t first, uint64_t count, float value)
{
	float g[LARGEST];
	shard_ticket ticket;

	for (uint64_t i = 0; i < count; i++)
		g[i] = value;
	EXPECT(SHARD_OK, shard_push(t->model, tensor, first, count, g, SHARD_F32,
				    SHARD_ADD | SHARD_CAST, &ticket));
}

static void begin_micro(struct trainer *t, uint32_t micro_steps)
{
	struct shard_begin_opts o = SHARD_INIT(struct shard_begin_opts);

	o.micro_steps = micro_steps;
	EXPECT(SHARD_OK, shard_begin(t->model, &o, &t->step));
}

/* 256 + 1 + 1 is 258 in fp32 and in bf16. Rounded to bf16 in between, it would stay 256. */
static void accumulation(void **state)
{
	struct shard_result r;
	uint16_t one = 0x3f80;
	shard_ticket ticket;
	struct pair p;

	(void)state;
	for (size_t i = 0; i < NR(places); i++) {
		start(&p, &places[i], SHARD_BF16, "lr=0.5");
		for (int t = 0; t < 2; t++) {
			struct trainer *tr = &p.t[t];

			begin_micro(tr, 3);
			add(tr, W, 0, 2000, 256);
			add(tr, W, 500, 1500,
			    1); /* Parts, in any order, over several micro-steps. */
			add(tr, W, 400, 300, 1);
			EXPECT(SHARD_BAD_ARG,
			       shard_push(tr->model, W, 0, 1, &one, SHARD_BF16, 0, &ticket));
			EXPECT_TEXT("without SHARD_ADD in a step of 3 micro-steps");
			EXPECT(SHARD_MISSING, shard_commit(tr->model, &ticket));
			EXPECT_TEXT("in each of 3 micro-steps");
			add(tr, W, 0, 400, 1);
			add(tr, W, 0, 500, 1);
			EXPECT(SHARD_DUPLICATE, shard_push(tr->model, W, 450, 1, &one, SHARD_BF16,
							   SHARD_ADD, &ticket));
			EXPECT_TEXT("elements 450 to 450 were pushed in all 3 micro-steps already");
			EXPECT(SHARD_DUPLICATE, shard_push_none(tr->model, W));
			add(tr, W, 700, 1300, 1);
			*(uint16_t *)shard_grad(tr->model, B) =
				one; /* In place: the arena is the operand. */
			for (int k = 1; k < 70; k++)
				((uint16_t *)shard_grad(tr->model, B))[k] = one;
			EXPECT(SHARD_OK, shard_push(tr->model, B, 0, 70, NULL, SHARD_BF16,
						    SHARD_ADD, &ticket));
			EXPECT(SHARD_OK,
			       shard_push_none(tr->model, B)); /* One micro-step without it. */
			add(tr, B, 0, 70, 3);
			EXPECT(SHARD_DUPLICATE, shard_push_none(tr->model, B));
		}
		r = finish(&p, SHARD_OK);
		assert_int_equal(r.outcome, SHARD_APPLIED);
		check(&p, 129, 1); /* 0.5 * 258; 0.25 * 4 */
		for (int t = 0; t < 2;
		     t++) { /* The last micro-step has none, and then none at all does. */
			begin_micro(&p.t[t], 2);
			add(&p.t[t], W, 0, 2000, 2);
			EXPECT(SHARD_OK, shard_push_none(p.t[t].model, W));
			EXPECT(SHARD_OK, shard_push_none(p.t[t].model, B));
			EXPECT(SHARD_OK, shard_push_none(p.t[t].model, B));
		}
		r = finish(&p, SHARD_OK);
		check(&p, 130, 1);
		for (int t = 0; t < 2; t++) /* the next step has one micro-step again; ADD is a push
					       like any other then */
			begin(&p.t[t], 0, NULL), push(&p.t[t], 1);
		finish(&p, SHARD_OK);
		check(&p, 130.5f, 1.25f);
		stop(&p);
	}
}

static void *two_micro_steps(void *arg)
{
	for (int i = 0; i < 2; i++) {
		add(arg, W, 0, 1000, 1);
		add(arg, B, 0, 70, 1);
		add(arg, W, 1000, 1000, 1);
	}
	return NULL;
}

static void adding_threads(void **state) /* as many as there are layers whose backward is done:
					    nothing is lost or counted twice */
{
	pthread_t thread[4];
	struct pair p;

	(void)state;
	start(&p, &places[2], SHARD_F32, "lr=1");
	for (int step = 1; step <= 3; step++) {
		for (int t = 0; t < 2; t++) {
			begin_micro(&p.t[t], 8);
			for (size_t i = 0; i < NR(thread); i++)
				assert_int_equal(
					pthread_create(&thread[i], NULL, two_micro_steps, &p.t[t]),
					0);
			for (size_t i = 0; i < NR(thread); i++)
				pthread_join(thread[i], NULL);
		}
		finish(&p, SHARD_OK);
		check(&p, 8 * (float)step, 4 * (float)step);
	}
	stop(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(own_lr),         cmocka_unit_test(odd_lr),
		cmocka_unit_test(bad_lr),         cmocka_unit_test(predivide),
		cmocka_unit_test(weights),        cmocka_unit_test(schedule),
		cmocka_unit_test(frozen),         cmocka_unit_test(accumulation),
		cmocka_unit_test(adding_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
