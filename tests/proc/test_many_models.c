// SPDX-License-Identifier: Apache-2.0
/* Tests many models of mixed size over one link at once. Some are trained, the others rest, and
 * daemons are killed. A model must never wait because of the traffic of another one. Trained
 * weights must be right to the bit (lib/crew.h), and the image of each resting model must be on
 * every node soon after every start. `test_many_models SECONDS` trains for so much longer and kills
 * meanwhile. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/skipper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { RESTING_MAX = 120, TRAINED_BESIDE = 3, TRAINED_MAX = 11 };
#define LATE_S 30
#define EXTRA  "[cluster]\nheartbeat_timeout = 5s\n"

struct many {
	struct cluster *cluster;
	struct skipper skipper[SKIPPERS];
	struct crew crew[TRAINED_MAX];
	uint32_t resting, trained;
	char names[TRAINED_MAX][16];
};

static uint64_t seconds; /* How long to train beyond what a check has time for. */

static int setup(void **state)
{
	*state = calloc(1, sizeof(struct many));
	return *state == NULL;
}

static int teardown(void **state)
{
	struct many *t = *state;

	cluster_put_away(&t->cluster);
	free(t);
	return 0;
}

static const char *address(struct many *t, uint32_t node)
{
	return t->cluster->node[node].unix_address;
}

/* --- models that rest --- */

static uint64_t resting_numel(uint32_t i)
{
	static const uint64_t numel[] = {64, 1, 1000, 4096, 20000, 70001, 513};

	return numel[i % (sizeof(numel) / sizeof(numel[0]))];
}

static float resting_weight(uint32_t model, uint64_t i)
{
	return (float)((i * 31 + model * 7) % 4093) * 0.125f - 200;
}

/* Defines models of one chunk each, so that node a holds them all, and what node b lacks comes over
 * one connection. */
static void resting_define(struct many *t, uint32_t nr)
{
	shard_client *c = crew_connect(t->cluster->node[0].unix_address);
	float *w = malloc(70001 * sizeof(*w));

	assert_non_null(w);
	for (uint32_t k = 0; k < nr; k++) {
		struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {resting_numel(k)}};
		struct shard_spec s = SHARD_INIT(struct shard_spec);
		char name[32], conf[112];
		shard_model *m;
		int created;

		snprintf(name, sizeof(name), "rest%03u", k);
		snprintf(conf, sizeof(conf),
			 "optimizer=sgd timeout=30s max_world=1 max_staleness=%u", k % 2);
		s.name = name;
		s.tensors = &tensor;
		s.tensors_nr = 1;
		s.image = s.grad = SHARD_F32;
		s.settings = conf;
		MUST(shard_define(c, &s, &m, &created));
		assert_int_equal(created, 1);
		for (uint64_t i = 0; i < resting_numel(k); i++)
			w[i] = resting_weight(k, i);
		MUST(shard_write(m, SHARD_MASTER, 0, 0, resting_numel(k), SHARD_F32, w));
		MUST(shard_seal(m, 5));
		shard_detach(&m);
	}
	free(w);
	shard_disconnect(&c);
	t->resting = nr;
}

/* Checks that every image is complete and right on the node. */
static void resting_check(struct many *t, int node)
{
	shard_client *c = crew_connect(t->cluster->node[node].unix_address);
	float *w = malloc(70001 * sizeof(*w));
	uint64_t until = pace_by(LATE_S);

	assert_non_null(w);
	for (uint32_t k = 0; k < t->resting; k++) {
		uint64_t step = 0, nr = resting_numel(k);
		char name[32];
		shard_model *m;
		enum shard_status st;

		snprintf(name, sizeof(name), "rest%03u", k);
		while ((st = shard_attach(c, name, &m)) == SHARD_NOT_FOUND && clock_ns() < until)
			usleep(1000);
		crew_must(st, SHARD_OK, "attach");
		/* A node that starts cold is told of the model first, and of its weights later. */
		do
			st = shard_read(m, SHARD_IMAGE, 0, 0, nr, SHARD_F32, w, &step);
		while (st == SHARD_BAD_STATE && clock_ns() < until && usleep(1000) == 0);
		crew_must(st, SHARD_OK, "the image of a model that rests");
		assert_int_equal(step, 5);
		for (uint64_t i = 0; i < nr; i++)
			if (w[i] != resting_weight(k, i))
				fail_msg("%s[%lu] on node %d", name, (unsigned long)i, node);
		shard_detach(&m);
	}
	free(w);
	shard_disconnect(&c);
}

/* --- models that are trained --- */

/* Trains models of many small chunks, of a single chunk, and with two images. Both nodes have a
 * trainer of each. */
static void train(struct many *t, uint32_t nr)
{
	static const char *const extra[] = {"", "chunk_elems=65536",
					    "chunk_elems=2048 max_staleness=1", "max_staleness=1"};
	static const uint32_t scale[TRAINED_MAX] = {6, 1, 2, 1, 3, 1, 4, 2, 1, 5, 1};

	t->trained = nr;
	for (uint32_t i = 0; i < nr; i++) {
		snprintf(t->names[i], sizeof(t->names[i]), "trained%u", i);
		crew_init(&t->crew[i], t->names[i]);
		/* A larger model takes long to compute in the reference. */
		crew_larger(&t->crew[i], nr == 2 && i == 0 ? CREW_SCALE_MAX : scale[i]);
		t->crew[i].extra = extra[i % (sizeof(extra) / sizeof(extra[0]))];
		for (uint32_t n = 0; n < 2; n++)
			crew_add(&t->crew[i], address(t, n), n)->reconnects = true;
		crew_start(&t->crew[i], UINT64_MAX);
	}
}

static void trained_more(struct many *t, uint64_t steps)
{
	uint64_t from[TRAINED_MAX];

	for (uint32_t i = 0; i < t->trained; i++)
		from[i] = crew_step(&t->crew[i]);
	for (uint32_t i = 0; i < t->trained; i++)
		crew_wait_step(&t->crew[i], from[i] + steps);
}

static void trained_check(struct many *t)
{
	uint64_t last[TRAINED_MAX];

	/* No model trains on while another one is checked. */
	for (uint32_t i = 0; i < t->trained; i++)
		last[i] = crew_finish(&t->crew[i]);
	for (uint32_t i = 0; i < t->trained; i++)
		for (int n = 0; n < 2; n++)
			crew_check(&t->crew[i], t->cluster->node[n].unix_address, last[i]);
}

static void skips_start(struct many *t)
{
	skipper_start(t->skipper, (const char *[]){address(t, 0), address(t, 1)});
}

static void killed(struct many *t, unsigned nodes)
{
	for (int n = 0; n < 2; n++)
		if (nodes >> n & 1)
			cluster_kill(t->cluster, n);
	for (int n = 0; n < 2; n++)
		if (nodes >> n & 1)
			cluster_spawn(t->cluster, n);
	for (int n = 0; n < 2; n++)
		if (nodes >> n & 1)
			cluster_ready(t->cluster, n);
}

static void start(struct many *t, bool warm)
{
	t->cluster = cluster_make(2, NULL, EXTRA);
	if (warm)
		cluster_warm(t->cluster, CLUSTER_TMPFS);
	for (int n = 0; n < 2; n++)
		cluster_spawn(t->cluster, n);
	for (int n = 0; n < 2; n++)
		cluster_ready(t->cluster, n);
}

/* --- tests --- */

static void test_two_trained(void **state)
{
	struct many *t = *state;
	uint64_t until = clock_ns() + seconds * NS_PER_SEC;

	start(t, true);
	train(t, 2);
	do
		trained_more(t, 40);
	while (clock_ns() < until);
	for (unsigned nodes = 1; nodes <= 3; nodes++) {
		killed(t, nodes);
		trained_more(t, 5);
	}
	trained_check(t);
	cluster_done(&t->cluster);
}

static void resting(void **state, uint32_t nr, bool warm)
{
	struct many *t = *state;

	start(t, warm);
	resting_define(t, nr);
	resting_check(t, 1);
	killed(t, 2);
	resting_check(t, 1);
	if (warm) {
		killed(t, 3);
		resting_check(t, 1);
		killed(t, 1);
		resting_check(t, 1);
		resting_check(t, 0);
	}
	cluster_done(&t->cluster);
}

static void test_eleven_at_rest(void **state)
{
	resting(state, 11, true);
}

/* If CHECK_ALL is set, eleven models of mixed sizes are trained, as many rest, and one skips
 * steps. */
static void test_eleven_trained(void **state)
{
	struct many *t = *state;

	if (getenv("CHECK_ALL") == NULL || *getenv("CHECK_ALL") == 0)
		skip();
	start(t, true);
	resting_define(t, TRAINED_MAX);
	train(t, TRAINED_MAX);
	skips_start(t);
	for (unsigned nodes = 3; nodes > 0; nodes--) {
		trained_more(t, 3);
		skipper_more(t->skipper, 4);
		killed(t, nodes);
		resting_check(t, 1);
	}
	trained_more(t, 3);
	skipper_more(t->skipper, 4);
	skipper_end(t->skipper);
	trained_check(t);
	cluster_done(&t->cluster);
}

static void test_forty_at_rest_cold(void **state)
{
	resting(state, 40, false);
}

/* There are more definitions than fit into the queue of a link that comes up. None may be lost for
 * good. */
static void test_large_definitions(void **state)
{
	enum { MODELS = 48, TENSORS = 1500 };
	static struct shard_tensor tensors[TENSORS];
	static char names[TENSORS][128], name[MODELS][16];
	uint64_t until;
	struct many *t = *state;
	shard_client *c;
	shard_model *m;
	int created;

	start(t, false);
	for (uint32_t i = 0; i < TENSORS; i++) {
		snprintf(names[i], sizeof(names[i]), "%0100u.weight", i);
		tensors[i] = (struct shard_tensor){.name = names[i], .ndim = 1, .shape = {1}};
	}
	c = crew_connect(t->cluster->node[0].unix_address);
	for (uint32_t k = 0; k < MODELS; k++) {
		struct shard_spec s = SHARD_INIT(struct shard_spec);

		snprintf(name[k], sizeof(name[k]), "large%u", k);
		s.name = name[k];
		s.tensors = tensors;
		s.tensors_nr = TENSORS;
		s.image = s.grad = SHARD_BF16;
		s.settings = "optimizer=sgd max_world=1";
		MUST(shard_define(c, &s, &m, &created));
		shard_detach(&m);
	}
	shard_disconnect(&c);
	killed(t, 2);
	c = crew_connect(t->cluster->node[1].unix_address);
	until = pace_by(LATE_S);
	for (uint32_t k = 0; k < MODELS; k++) {
		enum shard_status st;

		while ((st = shard_attach(c, name[k], &m)) == SHARD_NOT_FOUND && clock_ns() < until)
			usleep(1000);
		crew_must(st, SHARD_OK, name[k]);
		shard_detach(&m);
	}
	shard_disconnect(&c);
	cluster_done(&t->cluster);
}

static void test_all(void **state)
{
	struct many *t = *state;
	uint64_t until = clock_ns() + seconds * NS_PER_SEC;

	start(t, true);
	resting_define(t, RESTING_MAX - TRAINED_BESIDE);
	train(t, TRAINED_BESIDE);
	skips_start(t);
	do {
		trained_more(t, 5);
		skipper_more(t->skipper, 4);
		killed(t, 3);
		resting_check(t, 1);
		trained_more(t, 5);
		skipper_more(t->skipper, 4);
		killed(t, 1);
		resting_check(t, 1);
	} while (clock_ns() < until);
	skipper_more(t->skipper, 4);
	skipper_end(t->skipper);
	trained_check(t);
	cluster_done(&t->cluster);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		T(test_two_trained),        T(test_eleven_at_rest),    T(test_eleven_trained),
		T(test_forty_at_rest_cold), T(test_large_definitions), T(test_all),
	};

	seconds = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
	if (getenv("CMOCKA_TEST_FILTER") != NULL)
		cmocka_set_test_filter(getenv("CMOCKA_TEST_FILTER"));
	return cmocka_run_group_tests_name("many_models", tests, NULL, NULL);
}
