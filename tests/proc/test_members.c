// SPDX-License-Identifier: Apache-2.0
/* Nodes of different capacity. Each holds its share of the chunks, and a node without capacity
 * holds none: its trainers train all the same, and where the coordinator is elected it votes, so
 * that two nodes with memory and one without go on after any of them is killed. `shardctl members`
 * shows all of it. */
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define QUORUM                                                                                     \
	"[cluster]\nmembership = quorum\nelection_timeout = 300ms\nheartbeat_timeout = 5s\n"       \
	"lost_timeout = 60s\n"

static struct cluster *cluster;

/* Before the node is spawned. */
static void capacity(int node, unsigned is)
{
	FILE *f = fopen(cluster->node[node].conf, "a");

	assert_non_null(f);
	fprintf(f, "\n[daemon]\ncapacity = %u\n", is);
	assert_int_equal(fclose(f), 0);
}

/* `shardctl members --json` of the node. The caller frees it. */
static json_t *members(int node)
{
	char words[256], *out;
	json_error_t wrong;
	json_t *o;

	snprintf(words, sizeof(words), "members --json -a %s", cluster->node[node].unix_address);
	assert_int_equal(tool_run(&out, "shardctl", words), 0);
	o = json_loads(out, 0, &wrong);
	assert_non_null(o);
	free(out);
	return o;
}

static json_t *member(json_t *all, int node)
{
	return json_array_get(json_object_get(all, "members"), (size_t)node);
}

static json_int_t number(json_t *o, const char *key)
{
	assert_true(json_is_integer(json_object_get(o, key)));
	return json_integer_value(json_object_get(o, key));
}

/* What the node holds of the only model, as node a says. */
static json_int_t chunks_of(json_t *all, int node, json_int_t *of)
{
	json_t *models = json_object_get(member(all, node), "models");

	assert_int_equal(json_array_size(models), 1);
	*of = number(json_array_get(models, 0), "chunks_nr");
	return number(json_array_get(models, 0), "chunks");
}

static void test_shares(void **state)
{
	static const unsigned is[] = {1, 0, 3};
	struct crew *c = calloc(1, sizeof(*c));
	json_int_t of, held, sum = 0;
	char words[256];
	uint64_t last;
	json_t *all;

	(void)state;
	assert_non_null(c);
	crew_init(c, "shares");
	c->extra = "replicas=1 chunk_elems=1024";
	crew_larger(c, 8);
	cluster = cluster_make(3, NULL, NULL);
	for (int n = 0; n < 3; n++)
		capacity(n, is[n]);
	cluster_up(cluster);
	for (int n = 0; n < 3; n++)
		crew_add(c, cluster->node[n].unix_address, (uint32_t)n);
	crew_start(c, UINT64_MAX);
	crew_wait_step(c, 5);
	all = members(0);
	for (int n = 0; n < 3; n++) {
		assert_int_equal(number(member(all, n), "capacity"), is[n]);
		held = chunks_of(all, n, &of);
		assert_in_range(held, of * is[n] / 4, (of * is[n] + 3) / 4);
		sum += held;
	}
	assert_int_equal(sum, of);
	assert_true(of >= 40);
	json_decref(all);
	last = crew_finish(c);
	for (int n = 0; n < 3; n++)
		crew_check(c, cluster->node[n].unix_address, last);
	snprintf(words, sizeof(words), "members -a %s", cluster->node[1].unix_address);
	tool_expect(0, "CAPACITY", "shardctl", words);
	tool_expect(0, "\"shares\": 0 of ", "shardctl", words);
	cluster_done(&cluster);
	free(c);
}

/* Defines a model where it has no place. The error names what is missing. */
static void refused(unsigned first, unsigned second, const char *extra, const char *why)
{
	struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {1000}};
	char settings[512];
	struct shard_spec spec;
	shard_client *client;
	shard_model *model;
	size_t used;
	int created;

	cluster = cluster_make(2, NULL, NULL);
	capacity(0, first);
	capacity(1, second);
	cluster_up(cluster);
	client = crew_connect(cluster->node[0].unix_address);
	crew_spec(&spec, "refused", settings, sizeof(settings), 1);
	used = strlen(settings);
	snprintf(settings + used, sizeof(settings) - used, " %s", extra);
	spec.tensors = &tensor;
	spec.tensors_nr = 1;
	crew_must(shard_define(client, &spec, &model, &created), SHARD_BAD_ARG, extra);
	assert_non_null(strstr(shard_error(), why));
	shard_disconnect(&client);
	cluster_done(&cluster);
}

static void test_refused(void **state)
{
	(void)state;
	refused(1, 0, "replicas=2", "this cluster has 1 node with capacity");
	refused(0, 0, "replicas=1", "every node of this cluster has [daemon] capacity = 0");
}

/* Node c is the witness, and the trainers are there. Each of the others is killed with its memory,
 * comes back, and is a holder again. */
static void test_witness(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));
	uint64_t last;
	json_t *all;

	(void)state;
	assert_non_null(c);
	crew_init(c, "witness");
	c->extra = "replicas=2";
	c->pause_us = 2000;
	cluster = cluster_make(3, NULL, QUORUM);
	capacity(2, 0);
	cluster_up(cluster);
	for (int i = 0; i < 2; i++)
		crew_add(c, cluster->node[2].unix_address, 2)->reconnects = true;
	crew_start(c, UINT64_MAX);
	crew_wait_step(c, 5);
	for (int k = 0; k < 4; k++) {
		int victim = k % 2;

		cluster_kill(cluster, victim);
		crew_wait_step(c, crew_step(c) + 5);
		cluster_spawn(cluster, victim);
		cluster_wait_log(cluster, victim, "event=learned", 1 + (uint32_t)k / 2);
		crew_wait_step(c, crew_step(c) + 5);
	}
	all = members(2);
	for (int n = 0; n < 3; n++)
		assert_true(json_is_true(json_object_get(member(all, n), "votes")));
	json_decref(all);
	last = crew_finish(c);
	crew_check(c, cluster->node[2].unix_address, last);
	assert_int_equal(cluster_logged(cluster, 2, "event=lost "), 0);
	cluster_done(&cluster);
	free(c);
}

static int put_away(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_shares, put_away),
					   cmocka_unit_test_teardown(test_refused, put_away),
					   cmocka_unit_test_teardown(test_witness, put_away)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
