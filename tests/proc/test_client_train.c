// SPDX-License-Identifier: Apache-2.0
/* Tests the library with real daemons. Trainer processes train a small model over unix sockets and
 * TCP with SGD, and every weight is known in advance. Trainers join and leave, a trainer is lost,
 * and a daemon is lost. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"
#include "wire/dtype.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define MODEL_OF(world) "min_world = " #world "\nmax_world = " #world "\nchunk_elems = 1024\n"

/* What a trainer process gets. */
struct task {
	const char *address;
	uint64_t steps;
	int report; /* A pipe, with one byte after each step. */
};

#define MUST(st, call)                                                                             \
	do {                                                                                       \
		enum shard_status must_ = (call);                                                  \
		if (must_ != (st)) {                                                               \
			fprintf(stderr, "pid %d: %s: %s: %s\n", (int)getpid(), #call,              \
				shard_name(must_), shard_error());                                 \
			return 1;                                                                  \
		}                                                                                  \
	} while (0)

static float at(const void *p, uint64_t i, enum shard_dtype dtype)
{
	float f;

	dtype_convert(&f, SHARD_F32, (const char *)p + i * dtype_bytes(dtype), dtype, 1);
	return f;
}

/* With lr = 1 and gradients of 1 of weight 1 each, every step subtracts 1 from every element.
 * Returns 0, or 1 and a sentence. */
static int train(void *arg)
{
	const struct task *task = arg;
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct trainer t = {0};
	struct shard_spec s;
	shard_ticket ticket;
	float ones[3000];

	for (int i = 0; i < 3000; i++)
		ones[i] = 1;
	o.address = task->address;
	o.look_ms = -1; /* What broke is told, and not made again. */
	t.world = SHARD_INIT(struct shard_world);
	t.step = SHARD_INIT(struct shard_step);
	trainer_spec(&s, SHARD_BF16, SHARD_BF16);
	MUST(SHARD_OK, shard_connect(&t.client, &o));
	MUST(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
	for (uint32_t i = 0; t.created && i < TRAINER_TENSORS; i++) {
		float w[3000];

		for (uint64_t k = 0; k < trainer_numel[i]; k++)
			w[k] = trainer_weight(i, k);
		MUST(SHARD_OK,
		     shard_write(t.model, SHARD_MASTER, i, 0, trainer_numel[i], SHARD_F32, w));
	}
	if (t.created)
		MUST(SHARD_OK, shard_seal(t.model, 0));
	MUST(SHARD_OK, shard_join(t.model, -1, pace_ms(20000), &t.world));
	while (t.world.step <= task->steps) {
		enum shard_status rc = shard_begin(t.model, NULL, &t.step);

		if (rc == SHARD_OK) {
			for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
				const void *image = shard_image(t.model, i);

				for (uint64_t k = 0; k < trainer_numel[i]; k++)
					if (at(image, k, SHARD_BF16) !=
					    trainer_weight(i, k) - (float)(t.step.step - 1)) {
						fprintf(stderr,
							"step %lu tensor %u element %lu: %g\n",
							(unsigned long)t.step.step, i,
							(unsigned long)k,
							(double)at(image, k, SHARD_BF16));
						return 1;
					}
				MUST(SHARD_OK, shard_push(t.model, i, 0, trainer_numel[i], ones,
							  SHARD_F32, SHARD_CAST, &ticket));
			}
			rc = shard_commit(t.model, &ticket);
		}
		if (rc == SHARD_OK)
			rc = shard_result(t.model, ticket, SHARD_DEFAULT, &r);
		if (rc == SHARD_OK && (r.outcome != SHARD_APPLIED || r.step != t.step.step))
			return 1;
		/* It is the time of the previous step. */
		if (rc == SHARD_OK && r.step > 1 &&
		    (r.apply_ns == 0 || r.apply_ns > 20 * NS_PER_SEC))
			return 1;
		if (rc == SHARD_OK && task->report >= 0 && write(task->report, "x", 1) != 1)
			return 1;
		if (rc != SHARD_OK && rc != SHARD_WORLD_CHANGED)
			MUST(SHARD_OK, rc);
		MUST(SHARD_OK, shard_world_get(t.model, &t.world));
	}
	MUST(SHARD_OK, shard_leave(t.model, SHARD_DEFAULT));
	shard_disconnect(&t.client);
	return 0;
}

static void check_master(const char *address, float minus)
{
	struct trainer t;
	float back[3000];
	uint64_t step = 0;

	trainer_define(&t, address, SHARD_BF16, SHARD_BF16);
	assert_int_equal(t.created, 0);
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
		EXPECT(SHARD_OK, shard_read(t.model, SHARD_MASTER, i, 0, trainer_numel[i],
					    SHARD_F32, back, &step));
		for (uint64_t k = 0; k < trainer_numel[i]; k++)
			assert_true(back[k] == trainer_weight(i, k) - minus);
	}
	EXPECT(SHARD_NOT_FOUND,
	       shard_read(t.model, SHARD_EXP_AVG, 0, 0, 1, SHARD_F32, back, &step));
	trainer_end(&t);
}

static void run_world(int nodes, bool tcp, int trainers, const char *model)
{
	struct cluster *c = cluster_start(nodes, model, NULL);
	struct task task[4];
	pid_t pid[4];

	for (int i = 0; i < trainers; i++) {
		const struct cluster_node *n = &c->node[i * nodes / trainers];

		task[i] = (struct task){.address = tcp ? n->tcp_address : n->unix_address,
					.steps = 8,
					.report = -1};
		pid[i] = proc_fork(train, &task[i]);
	}
	for (int i = 0; i < trainers; i++) {
		int status = proc_wait(pid[i], 15000);

		if (status != 0) {
			cluster_dump(c);
			fail_msg("trainer %d: wait status 0x%x", i, (unsigned)status);
		}
	}
	check_master(c->node[0].unix_address, 8);
	check_master(c->node[nodes - 1].tcp_address, 8);
	cluster_stop(c);
}

static void test_one_unix(void **state)
{
	(void)state;
	run_world(1, false, 1, MODEL_OF(1));
}

static void test_one_tcp(void **state)
{
	(void)state;
	run_world(1, true, 1, MODEL_OF(1));
}

static void test_two_nodes_unix(void **state)
{
	(void)state;
	run_world(2, false, 4, MODEL_OF(4));
}

static void test_two_nodes_tcp(void **state)
{
	(void)state;
	run_world(2, true, 4, MODEL_OF(4));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_unix),
		cmocka_unit_test(test_one_tcp),
		cmocka_unit_test(test_two_nodes_unix),
		cmocka_unit_test(test_two_nodes_tcp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
