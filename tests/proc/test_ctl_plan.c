/* SPDX-License-Identifier: Apache-2.0 */
/* Compares `shardctl plan` with real daemons. Two daemons hold a model of that size. What they
 * account for and what the kernel reports for them must be within 2 % of the plan. Also tests the
 * command's errors. */
#include "lib/proc.h"
#include "lib/tool.h"
#include "lib/trainer.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NUMEL 3000000ull

static json_t *ask(const char *words)
{
	json_error_t wrong;
	json_t *o;
	char *out;

	assert_int_equal(tool_run(&out, "shardctl", words), 0);
	o = json_loads(out, 0, &wrong);
	if (!o)
		fail_msg("%s: %s:\n%s", words, wrong.text, out);
	free(out);
	return o;
}

/* Returns the private and shared memory of the process that is in RAM. */
static double resident(pid_t pid)
{
	unsigned long anon = 0, shmem = 0;
	char path[64], line[128];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "re");
	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "RssAnon: %lu", &anon) != 1)
			(void)sscanf(line, "RssShmem: %lu", &shmem);
	fclose(f);
	return 1024.0 * (double)(anon + shmem);
}

static void define(shard_client **client, shard_model **model, const char *address, int staleness)
{
	struct shard_tensor t = {.name = "w", .ndim = 1, .shape = {NUMEL}};
	struct shard_spec spec = SHARD_INIT(struct shard_spec);
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	float *weights = calloc(NUMEL, sizeof(*weights));
	char settings[128];
	int created;

	assert_non_null(weights);
	o.address = address;
	spec.name = "planned";
	spec.tensors = &t;
	spec.tensors_nr = 1;
	spec.image = spec.grad = SHARD_BF16;
	snprintf(settings, sizeof(settings),
		 "optimizer=adamw max_world=4 local_world=2 chunk_elems=65536 max_staleness=%d",
		 staleness);
	spec.settings = settings;
	EXPECT(SHARD_OK, shard_connect(client, &o));
	EXPECT(SHARD_OK, shard_define(*client, &spec, model, &created));
	assert_true(created);
	EXPECT(SHARD_OK, shard_write(*model, SHARD_MASTER, 0, 0, NUMEL, SHARD_F32, weights));
	EXPECT(SHARD_OK, shard_seal(*model, 0));
	free(weights);
}

static void close_to(double got, double want, double part, const char *what)
{
	if (!(fabs(got - want) <= part * want))
		fail_msg("%s: %.0f, planned were %.0f: %+.2f %%", what, got, want,
			 100 * (got / want - 1));
}

static void real(int staleness)
{
	struct cluster *c =
		cluster_start(2, NULL, "; the default of replicas\n[daemon]\nhuge_pages = no");
	char words[400];
	shard_client *client;
	shard_model *model;
	double before[2], planned;
	json_t *plan, *status;

	for (int n = 0; n < 2; n++)
		before[n] = resident(c->node[n].pid);
	define(&client, &model, c->node[0].unix_address, staleness);
	snprintf(words, sizeof(words),
		 "plan --params 3000000 --ranks 4 --nodes 2 --local 2 --dtype bf16 --chunk-elems "
		 "64Ki --huge-pages no --json "
		 "--max-staleness %d",
		 staleness);
	plan = ask(words);
	planned = (double)json_integer_value(json_object_get(
		json_object_get(json_object_get(plan, "shardd"), "node_bytes"), "total"));
	assert_true(planned > 12 * NUMEL / 2);
	for (int n = 0; n < 2; n++) {
		const json_t *m;

		snprintf(words, sizeof(words), "status --json --address %s",
			 c->node[n].unix_address);
		status = ask(words);
		m = json_array_get(json_object_get(status, "models"), 0);
		close_to((double)json_integer_value(
				 json_object_get(json_object_get(m, "memory"), "total")),
			 planned, 0.02, "what the daemon accounts for");
		json_decref(status);
		close_to(resident(c->node[n].pid) - before[n], planned, 0.02,
			 "what the daemon has in memory");
	}
	json_decref(plan);
	shard_detach(&model);
	shard_disconnect(&client);
	cluster_stop(c);
}

static void test_real(void **state)
{
	(void)state;
	real(0);
	real(1);
}

static void test_texts(void **state)
{
	(void)state;
	tool_expect(0, "ZeRO-3, optimizer offloaded", "shardctl", "plan --params 7.5B --ranks 8");
	tool_expect(0, "28 bytes per parameter", "shardctl", "plan --params 7.5B");
	tool_expect(0, "\"zero3_offload_params_init\"", "shardctl",
		    "--json plan --params 2851e6 --layer 32e6 --local 8");
	tool_expect(0, "largest layer", "shardctl", "plan --help");
	tool_expect(2, "write --params N", "shardctl", "plan");
	tool_expect(2, "--params 0: choose a number from 1", "shardctl", "plan --params 0");
	tool_expect(2, "--dtype int8: choose bf16, fp16 or fp32", "shardctl",
		    "plan --params 1M --dtype int8");
	tool_expect(2, "--grad-dtype x: choose bf16", "shardctl",
		    "plan --params 1M --grad-dtype x");
	tool_expect(2, "--optimizer adamax: choose adamw", "shardctl",
		    "plan --params 1M --optimizer adamax");
	tool_expect(2, "--chunk-elems 3000: choose a power of two", "shardctl",
		    "plan --params 1M --chunk-elems 3000");
	tool_expect(2, "2 replicas on 1 nodes: a node holds at most one copy of a chunk",
		    "shardctl", "plan --params 1M --replicas 2");
	tool_expect(0, "holds 1048576 parameters", "shardctl",
		    "plan --params 1Mi --nodes 2 --replicas 2");
	tool_expect(0, "2 on one; replicas = 1\n", "shardctl", "plan --params 1Mi --ranks 2");
	tool_expect(0, "1 on one; replicas = 2\n", "shardctl", "plan --params 1Mi --nodes 2");
	tool_expect(0, "2 ranks on 2 nodes, 1 on one; replicas = 1\n", "shardctl",
		    "plan --params 1Mi --nodes 2 --replicas 1");
	tool_expect(2, "8 ranks on 2 nodes with at most 3 each", "shardctl",
		    "plan --params 1M --ranks 8 --nodes 2 --local 3");
	tool_expect(2, "raise --chunk-elems", "shardctl", "plan --params 10T --chunk-elems 1Ki");
	tool_expect(2, "--gpu-direct yes takes --gpu-share", "shardctl",
		    "plan --params 1M --gpu-direct yes");
	tool_expect(2, "--gpu-direct on: choose yes or no", "shardctl",
		    "plan --params 1M --gpu-share 10 --gpu-direct on");
	tool_expect(2, "write plan", "shardctl", "plan --params 1M word");
	tool_expect(2, "unrecognized option", "shardctl", "status --params 1M");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {cmocka_unit_test(test_real),
						  cmocka_unit_test(test_texts)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
