/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl replay`: from a checkpoint, the history of all nodes and the gradients of each rank it
 * computes the steps again, and finds every bit of later checkpoints. Meanwhile nodes were killed,
 * others coordinated, and the model was restored to an older step. Then each input is made wrong in
 * every way, one at a time, and the answer names what is wrong. The crew of the test knows the
 * right weights itself, so the checkpoints are the reference's, too. */
#include "base/check.h"
#include "ckpt/safetensors.h"
#include "lib/crew.h"
#include "lib/keep.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/rmtree.h"
#include "lib/tool.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define QUORUM                                                                                     \
	"[cluster]\nmembership = quorum\nelection_timeout = 300ms\nheartbeat_timeout = 5s\n"       \
	"lost_timeout = 60s\n"

static struct cluster *cluster;
static struct crew *crew;
static struct keep keep;
static char gradients[96], history[96];
static uint64_t early, late;

/* --- the inputs --- */

/* What one rank pushed in a step, with the difference that the test wants. */
enum odd { AS_IT_WAS, SIGNS, OTHER_TENSOR, SHORT_TENSOR, NO_TENSOR };

static void write_rank(uint64_t step, uint32_t rank, enum odd odd)
{
	struct safetensors_entry entry[CREW_TENSORS];
	uint32_t nr = 0, at = 0;
	uint16_t *to = calloc(CREW_NUMEL_MAX, sizeof(*to));
	size_t bytes = 0;
	void *head = NULL;
	char path[160];
	struct err e;
	FILE *f;

	assert_non_null(to);
	for (uint32_t t = odd == NO_TENSOR; t < CREW_TENSORS; t++) {
		uint32_t n = crew->numel[t] - (odd == SHORT_TENSOR && t == 0);

		entry[nr++] = (struct safetensors_entry){
			.name = odd == OTHER_TENSOR && t == 0 ? "other" : crew->tensors[t].name,
			.dtype_name = "BF16",
			.ndim = 1,
			.shape = {n},
			.bytes = 2ull * n};
		crew_gradient(crew, step, rank, t, to + at);
		at += n;
	}
	for (int i = 0; odd == SIGNS && i < 64; i++)
		to[i] ^= 0x8000;
	assert_int_equal(safetensors_make(&head, &bytes, entry, nr, NULL, 0, &e), SHARD_OK);
	snprintf(path, sizeof(path), "%s/step%lu-rank%u.safetensors", gradients,
		 (unsigned long)step, rank);
	assert_non_null(f = fopen(path, "w"));
	assert_int_equal(fwrite(head, 1, bytes, f), bytes);
	assert_int_equal(fwrite(to, 2, at, f), at);
	assert_int_equal(fclose(f), 0);
	free(head);
	free(to);
}

static void write_history(const char *text)
{
	FILE *f = fopen(history, "w");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static char *ask_history(void)
{
	char words[200], *out = NULL;

	snprintf(words, sizeof(words), "history again --node all --json --address %s",
		 cluster->node[2].unix_address);
	assert_int_equal(tool_run(&out, "shardctl", words), 0);
	return out;
}

static void expect(int rc, const char *says)
{
	char words[600];

	snprintf(words, sizeof(words), "replay --history %s --from %s/early --gradients %s %s/late",
		 history, keep.dir, gradients, keep.dir);
	tool_expect(rc, says, "shardctl", words);
}

/* --- the run --- */

static void more(uint64_t steps)
{
	crew_wait_step(crew, crew_step(crew) + steps);
}

/* Trains, and leaves the checkpoints "early" and "late" and everything between them. */
static void train(bool restored)
{
	keep_init(&keep);
	snprintf(gradients, sizeof(gradients), "%s/gradients", keep.dir);
	snprintf(history, sizeof(history), "%s/history", keep.dir);
	assert_int_equal(mkdir(gradients, 0700), 0);
	crew = calloc(1, sizeof(*crew));
	assert_non_null(crew);
	crew_init(crew, "again");
	crew->extra = "replicas=2";
	crew->pause_us = 1000;
	cluster = cluster_make(3, NULL, QUORUM);
	cluster_warm(cluster, CLUSTER_TMPFS);
	cluster_up(cluster);
	for (int n = 0; n < 3; n++) /* Two ranks on node c. */
		crew_add(crew, cluster->node[n == 0 ? 0 : 2].unix_address, n == 0 ? 0 : 2)
			->reconnects = true;
	crew_start(crew, UINT64_MAX);
	more(5);
	keep_must_save(cluster->node[0].unix_address, "again", keep.dir, "early");
	for (int k = 0; k < 3; k++) {
		more(5);
		cluster_kill(cluster, k);
		cluster_spawn(cluster, k);
		more(5);
	}
	if (restored) { /* What came after "early" is void, and begins again. */
		char words[256];

		snprintf(words, sizeof(words),
			 "restore %s --tag early --name again --force --address %s", keep.dir,
			 cluster->node[1].unix_address);
		tool_expect(0, "", "shardctl", words);
		more(10);
	}
	late = crew_finish(crew);
	keep_must_save(cluster->node[1].unix_address, "again", keep.dir, "late");
	crew_check(crew, cluster->node[1].unix_address, late);
}

static void write_all(void)
{
	char *text = ask_history();

	write_history(text);
	free(text);
	early = 0;
	for (uint64_t step = 1; step <= late; step++)
		for (uint32_t r = 0; r < 3; r++)
			write_rank(step, r, AS_IT_WAS);
}

static void end(void)
{
	cluster_done(&cluster);
	keep_free(&keep);
	free(crew);
	crew = NULL;
}

static void test_exact(void **state)
{
	(void)state;
	train(false);
	write_all();
	expect(0, " applied, 0 skipped; all 16857 elements are equal");
	end();
}

static void test_restored(void **state)
{
	(void)state;
	train(true);
	write_all();
	expect(0, " applied, 0 skipped; all ");
	end();
}

/* --- what is wrong --- */

/* The history without the lines that have `part`, or with them changed. */
static void spoil_history(const char *part, const char *from, const char *to)
{
	char *text = ask_history(), *out = NULL;
	size_t bytes = 0;
	FILE *f = open_memstream(&out, &bytes);
	bool first = true;

	assert_non_null(f);
	for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
		char *at = strstr(line, part) != NULL && from != NULL ? strstr(line, from) : NULL;

		if (at != NULL && first)
			fprintf(f, "%.*s%s%s\n", (int)(at - line), line, to, at + strlen(from));
		else if (strstr(line, part) == NULL || from != NULL)
			fprintf(f, "%s\n", line);
		first = first && at == NULL;
	}
	fclose(f);
	write_history(out);
	free(out);
	free(text);
}

static void test_wrong(void **state)
{
	char part[64], says[200], words[600], path[160];
	uint64_t step;

	(void)state;
	train(false);
	write_all();
	step = late - 3;
	snprintf(part, sizeof(part), "\"step\":%lu,", (unsigned long)step);

	/* Gradients. */
	write_rank(step, 1, SIGNS);
	snprintf(says, sizeof(says), "the gradients of step %lu in %s are not those",
		 (unsigned long)step, gradients);
	expect(1, says);
	write_rank(step, 1, OTHER_TENSOR);
	expect(1, "the model has no tensor \"other\"");
	write_rank(step, 1, SHORT_TENSOR);
	expect(1, "is no gradient of ");
	write_rank(step, 1, NO_TENSOR); /* As if it had pushed none. */
	expect(1, says);
	snprintf(path, sizeof(path), "%s/step%lu-rank1.safetensors", gradients,
		 (unsigned long)step);
	assert_int_equal(truncate(path, 100), 0);
	expect(1, "SHARD_PROTOCOL: ");
	assert_int_equal(unlink(path), 0);
	expect(1, "rank1.safetensors: No such file");
	write_rank(step, 1, AS_IT_WAS);
	expect(0, "are equal");

	/* The history. */
	spoil_history(part, NULL, NULL);
	snprintf(says, sizeof(says), "no node has step %lu in its history", (unsigned long)step);
	expect(1, says);
	spoil_history(part, "\"lr\":0.01", "\"lr\":0.02");
	snprintf(says, sizeof(says), "has another record of step %lu", (unsigned long)step);
	expect(1, says);
	write_history("no JSON\n");
	expect(1, "history:1: no entry of a history");
	write_history("");
	expect(1, "no node has step ");
	spoil_history("nothing", NULL, NULL);
	expect(0, "are equal");

	/* A moment, a bit of a checkpoint. */
	keep_flip(keep.dir, "late", "node-b.safetensors", -1);
	expect(1, "node-b.safetensors");
	keep_flip(keep.dir, "late", "node-b.safetensors", -1);

	/* Words. */
	snprintf(words, sizeof(words), "replay --history %s --from %s/late --gradients %s %s/early",
		 history, keep.dir, gradients, keep.dir);
	tool_expect(1, "before that of", "shardctl", words);
	snprintf(words, sizeof(words), "replay --history %s --from %s/early %s/late", history,
		 keep.dir, keep.dir);
	tool_expect(2, "--gradients DIR is missing", "shardctl", words);
	end();
}

/* A line of a generation that no cluster ever reaches. What is read of the other steps stays, and
 * it comes in the time that a tool has: nothing counts from one generation to the other. */
static void test_generations(void **state)
{
	FILE *f;

	(void)state;
	train(false);
	write_all();
	assert_non_null(f = fopen(history, "a"));
	fprintf(f, "{\"node\":\"a\",\"record\":{\"generation\":9000000000000000000,\"step\":0,"
		   "\"outcome\":\"applied\"}}\n");
	assert_int_equal(fclose(f), 0);
	expect(0, " applied, 0 skipped; all 16857 elements are equal");
	end();
}

/* All nodes agree on a record that is not what they applied. Then the weights show it. */
static void test_weights(void **state)
{
	char part[64], *text, *out = NULL;
	size_t bytes = 0;
	FILE *f;

	(void)state;
	train(false);
	write_all();
	text = ask_history();
	snprintf(part, sizeof(part), "\"step\":%lu,", (unsigned long)late - 1);
	assert_non_null(f = open_memstream(&out, &bytes));
	for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
		json_t *e = json_loads(line, 0, NULL),
		       *args = json_object_get(json_object_get(e, "record"), "args");

		if (strstr(line, part) != NULL && args != NULL) /* The last bit of step_size. */
			json_array_set_new(
				args, 9,
				json_integer(json_integer_value(json_array_get(args, 9)) ^ 1));
		json_dumpf(e, f, JSON_COMPACT | JSON_PRESERVE_ORDER);
		fprintf(f, "\n");
		json_decref(e);
	}
	fclose(f);
	write_history(out);
	expect(1, " elements of master of ");
	free(out);
	free(text);
	end();
}

static int put_away(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

int main(void)
{
#define T(fn) cmocka_unit_test_teardown(fn, put_away)
	const struct CMUnitTest tests[] = {T(test_exact), T(test_restored), T(test_wrong),
					   T(test_weights), T(test_generations)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
