/* SPDX-License-Identifier: Apache-2.0 */
/* Two trainers of a model of which every third step is skipped, because rank 0 then gives a
 * gradient that is not a number. Tests call it. A trainer connects, defines, joins and steps. It
 * checks the weights that it reads and the outcome of each step. It connects again after a lost
 * connection, as often as it takes. */
#include "lib/skipper.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "shard.h"

#include <math.h>
#include <stdbool.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { NUMEL = 500, EVERY = 3, LATE_S = 30 };

static bool model(struct skipper *x, shard_client *c, shard_model **m, struct shard_world *w)
{
	struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {NUMEL}};
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	static const float zero[NUMEL];
	int created = 0;

	s.name = "skips";
	s.tensors = &tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = "optimizer=sgd lr=1 min_world=2 max_world=2 timeout=20s";
	if (shard_define(c, &s, m, &created) != SHARD_OK)
		return false;
	if (created && (shard_write(*m, SHARD_MASTER, 0, 0, NUMEL, SHARD_F32, zero) != SHARD_OK ||
			shard_seal(*m, 0) != SHARD_OK))
		return false;
	return shard_join(*m, x->rank, pace_ms(20000), w) == SHARD_OK;
}

/* The weights are minus the number of steps that were applied. */
static enum shard_status step(struct skipper *x, shard_model *m, uint64_t step)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct shard_step s = SHARD_INIT(struct shard_step);
	bool skip = step % EVERY == 0;
	enum shard_status st = shard_begin(m, NULL, &s);
	const float *w = st == SHARD_OK ? shard_image(m, 0) : NULL;
	float *g = st == SHARD_OK ? shard_grad(m, 0) : NULL;

	if (st != SHARD_OK)
		return st;
	if (w == NULL || g == NULL)
		return SHARD_WORLD_CHANGED;
	for (uint32_t i = 0; i < NUMEL; i++) {
		if (w[i] != -(float)(step - 1 - (step - 1) / EVERY))
			fail_msg("skips[%u] before step %lu is %g", i, (unsigned long)step,
				 (double)w[i]);
		g[i] = skip && x->rank == 0 && i == 7 ? NAN : 1;
	}
	if ((st = shard_push(m, 0, 0, NUMEL, NULL, SHARD_F32, 0, NULL)) != SHARD_OK ||
	    (st = shard_commit(m, NULL)) != SHARD_OK ||
	    (st = shard_result(m, 0, pace_ms(20000), &r)) != SHARD_OK)
		return st;
	CHECK((r.outcome == SHARD_APPLIED) == !skip && r.step == step);
	return SHARD_OK;
}

/* True: its last step is done. */
static bool session(struct skipper *x, shard_client **c)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_world w = SHARD_INIT(struct shard_world);
	enum shard_status st = SHARD_OK;
	shard_model *m;

	o.address = x->address;
	o.look_ms = -1; /* What broke is told, and not made again. */
	if (shard_connect(c, &o) != SHARD_OK || !model(x, *c, &m, &w))
		return false;
	while (w.step <= atomic_load(&x->last)) {
		atomic_store(&x->step, w.step);
		st = step(x, m, w.step);
		if (st != SHARD_OK && st != SHARD_WORLD_CHANGED)
			return false;
		if (shard_world_get(m, &w) != SHARD_OK)
			return false;
	}
	return true;
}

static void *skips(void *arg)
{
	struct skipper *x = arg;
	bool done = false;

	while (!done) {
		shard_client *c = NULL;

		done = session(x, &c);
		shard_disconnect(&c);
		done = done || atomic_load(&x->step) > atomic_load(&x->last);
		usleep(200);
	}
	return NULL;
}

void skipper_start(struct skipper *of, const char *const *address)
{
	for (int i = 0; i < SKIPPERS; i++) {
		of[i] = (struct skipper){.address = address[i], .rank = i, .last = UINT64_MAX};
		CHECK(pthread_create(&of[i].thread, NULL, skips, &of[i]) == 0);
	}
}

void skipper_more(struct skipper *of, uint64_t steps)
{
	uint64_t from = atomic_load(&of[0].step), until = pace_by(LATE_S);

	while (atomic_load(&of[0].step) < from + steps) {
		if (clock_ns() > until)
			fail_msg("\"skips\" stands at step %lu",
				 (unsigned long)atomic_load(&of[0].step));
		usleep(500);
	}
}

void skipper_end(struct skipper *of)
{
	uint64_t last = atomic_load(&of[0].step) + 3;

	for (int i = 0; i < SKIPPERS; i++)
		atomic_store(&of[i].last, last);
	for (int i = 0; i < SKIPPERS; i++)
		pthread_join(of[i].thread, NULL);
}
