// SPDX-License-Identifier: Apache-2.0
/* Tests max_staleness = 1 with a node that comes back without its memory. It gets both images of
 * the other nodes: the newest one and the one before it. So it still has both when the node that
 * they came from is killed for good, and a rank that joins there computes on the older one, as it
 * would have elsewhere. The same holds on a node that has no chunks at all. The weights of each
 * step equal the reference bit by bit. */
#include "lib/crew.h"
#include "lib/drill.h"
#include "lib/moved.h"
#include "lib/pace.h"
#include "lib/proc.h"

#include <math.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NUMEL = 5000, A = 0, B = 1, C = 2, LEARNT = 10, LAST = 16, WAIT_MS = 20000 };
#define LR 0.125f

static struct cluster *cluster;
static float image[LAST + 1][NUMEL]; /* [step] What its rank computed on. */

static float weight(uint32_t i)
{
	return (float)(i % 97) * 0.25f - 10;
}

static float gradient(uint64_t step, uint32_t i, float w)
{
	return w * 0.25f + (float)((step * 31 + i) % 13) * 0.0625f;
}

static shard_model *defined(shard_client *client)
{
	static const struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {NUMEL}};
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	shard_model *model = NULL;
	int created = 0;
	float w[NUMEL];

	s.name = "m";
	s.tensors = &tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = "optimizer=sgd lr=0.125 max_staleness=1 replicas=2 min_world=1 max_world=2 "
		     "chunk_elems=1024 timeout=15s";
	MUST(shard_define(client, &s, &model, &created));
	for (uint32_t i = 0; i < NUMEL; i++)
		w[i] = weight(i);
	if (created) {
		MUST(shard_write(model, SHARD_MASTER, 0, 0, NUMEL, SHARD_F32, w));
		MUST(shard_seal(model, 0));
	}
	return model;
}

/* One rank trains at that node up to the step `last`, and leaves. */
static void train(int node, uint64_t last)
{
	struct shard_world world = SHARD_INIT(struct shard_world);
	struct shard_result res = SHARD_INIT(struct shard_result);
	struct shard_step s = SHARD_INIT(struct shard_step);
	shard_client *client = crew_connect(cluster->node[node].unix_address);
	shard_model *model = defined(client);
	shard_ticket ticket;

	MUST(shard_join(model, 0, pace_ms(WAIT_MS), &world));
	while (s.step < last) {
		float *g;

		MUST(shard_begin(model, NULL, &s));
		memcpy(image[s.step], shard_image(model, 0), sizeof(image[0]));
		g = shard_grad(model, 0);
		for (uint32_t i = 0; i < NUMEL; i++)
			g[i] = gradient(s.step, i, image[s.step][i]);
		MUST(shard_push(model, 0, 0, NUMEL, NULL, SHARD_F32, 0, NULL));
		MUST(shard_commit(model, &ticket));
		MUST(shard_result(model, ticket, pace_ms(WAIT_MS), &res));
	}
	MUST(shard_leave(model, pace_ms(WAIT_MS)));
	shard_disconnect(&client);
}

/* Each step is computed on the weights of `late` steps before: of 2, or of 1 at a node that has the
 * newest weights only. Returns the first step that was not, or 0. */
static uint64_t differs(uint64_t late)
{
	static float p[LAST + 1][NUMEL];

	for (uint32_t i = 0; i < NUMEL; i++)
		p[0][i] = weight(i);
	for (uint64_t step = 1; step <= LAST; step++) {
		const float *w = p[step > late ? step - late : 0];

		if (memcmp(w, image[step], sizeof(p[0])) != 0)
			return step;
		for (uint32_t i = 0; i < NUMEL; i++)
			p[step][i] = fmaf(-LR, gradient(step, i, w[i]), p[step - 1][i]);
	}
	return 0;
}

static void test_learns_both_images(void **state)
{
	(void)state;
	cluster =
		cluster_start(3, NULL, "[cluster]\nmembership = quorum\nheartbeat_timeout = 1s\n");
	train(C, LEARNT);
	moved_copied(cluster, C);
	cluster_kill(cluster, B);
	cluster_spawn(cluster, B);
	cluster_ready(cluster, B);
	cluster_wait_log(cluster, B, "event=learned", 1);
	moved_copied(cluster, C);
	cluster_kill(cluster, A); /* Of some chunks it has the only other copy. */
	train(B, LAST);
	assert_int_equal(differs(2), 0);
	assert_int_not_equal(differs(1), 0);
	cluster_done(&cluster);
}

static void test_without_chunks(void **state)
{
	(void)state;
	cluster = cluster_make(3, NULL, "[cluster]\nmembership = quorum\nheartbeat_timeout = 1s\n");
	drill_conf(cluster, B, "[daemon]\ncapacity = 0\n");
	cluster_up(cluster);
	train(C, LEARNT);
	cluster_kill(cluster, B);
	cluster_spawn(cluster, B);
	cluster_ready(cluster, B);
	train(B, LAST);
	assert_int_equal(differs(2), 0);
	assert_int_not_equal(differs(1), 0);
	cluster_done(&cluster);
}

static int teardown(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_learns_both_images, teardown),
		cmocka_unit_test_teardown(test_without_chunks, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
