/* SPDX-License-Identifier: Apache-2.0 */
/* The history of a model, as `shardctl history` prints it, on real daemons. Three nodes elect their
 * coordinator and train two models, and nodes are killed -9 at any moment and start again with
 * their memory or without it. Then each step is in the history of each node that decided it, once,
 * and is the same on all of them. What a killed process had no time to write is missing right
 * before the next start, and nowhere else, and no step is missing on all nodes. A restore to an
 * older step, a drop, `history = off` and wrong words have a test each. The checker itself is
 * tested with histories that are wrong. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"

#include <dirent.h>
#include <fcntl.h>
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

enum { NODES = 3, STEPS_MAX = 100000 };

static struct cluster *cluster;
static char folder[64];

/* --- a history --- */

/* Of all nodes, an array of entries. The exit code of shardctl must be rc. */
static json_t *ask(int node, const char *model, const char *more, int rc)
{
	char words[256], *out = NULL;
	json_t *all = json_array();

	snprintf(words, sizeof(words), "history %s --json --address %s%s", model,
		 cluster->node[node].unix_address, more);
	assert_int_equal(tool_run(&out, "shardctl", words), rc);
	for (char *line = strtok(out, "\n"); line != NULL; line = strtok(NULL, "\n")) {
		json_t *e = json_loads(line, 0, NULL);

		if (e == NULL)
			fail_msg("no JSON: %s", line);
		json_array_append_new(all, e);
	}
	free(out);
	return all;
}

static const char *text(const json_t *o, const char *key)
{
	const char *t = json_string_value(json_object_get(o, key));

	return t != NULL ? t : "";
}

static json_int_t whole(const json_t *o, const char *key)
{
	return json_integer_value(json_object_get(o, key));
}

static bool is(const json_t *e, const char *kind)
{
	return strcmp(text(e, "kind"), kind) == 0;
}

struct judge {
	json_t *records; /* "generation.step" -> the record */
	char wrong[512];
	json_int_t last; /* The last step of the last generation. */
};

static void wrong(struct judge *j, const json_t *e, const char *why)
{
	char *line = json_dumps(e, JSON_COMPACT | JSON_PRESERVE_ORDER);

	if (j->wrong[0] == 0)
		snprintf(j->wrong, sizeof(j->wrong), "%s: %.400s", why, line);
	free(line);
}

static void judge_record(struct judge *j, const json_t *e)
{
	json_t *r = json_object_get(e, "record"), *before;
	char key[64];

	if (r == NULL)
		return;
	snprintf(key, sizeof(key), "%lld.%lld", (long long)whole(r, "generation"),
		 (long long)whole(r, "step"));
	before = json_object_get(j->records, key);
	if (before != NULL && !json_equal(before, r))
		wrong(j, e, "two nodes have different records");
	json_object_set(j->records, key, r);
}

/* One node's entries in their order. */
static void judge_node(struct judge *j, const json_t *all, const char *node, bool lives, bool ended)
{
	json_int_t number = 0, step = -1, generation = 0;
	const json_t *skips = NULL;
	json_t *e;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)all, i, e) {
		const json_t *r = json_object_get(e, "record");

		if (strcmp(text(e, "node"), node) != 0)
			continue;
		if (is(e, "damaged") || is(e, "unknown") || is(e, "gap"))
			wrong(j, e, "damage or a gap");
		if (is(e, "missing")) {
			skips = e;
			if (lives)
				wrong(j, e, "a step is missing though the node was never killed");
			if (ended && strstr(text(e, "text"), "with a view") == NULL)
				wrong(j, e, "a step is missing though the node ended well");
			continue;
		}
		if (number != 0 && whole(e, "number") != number + 1)
			wrong(j, e, "entries are not numbered one after the other");
		number = whole(e, "number");
		if (skips != NULL && !is(e, "start") && !is(e, "view"))
			wrong(j, skips, "a step is missing, and no start or view follows");
		skips = NULL;
		judge_record(j, e);
		if (is(e, "step") && whole(r, "generation") == generation && step >= 0 &&
		    whole(r, "step") != step + 1)
			wrong(j, e, "a step does not follow the one before");
		if (r != NULL &&
		    (whole(r, "generation") > generation || whole(r, "step") >= step)) {
			step = whole(r, "step");
			generation = whole(r, "generation");
		}
	}
	if (number == 0 && j->wrong[0] == 0)
		snprintf(j->wrong, sizeof(j->wrong), "node %s has no history", node);
	j->last = step > j->last ? step : j->last;
}

/* What is wrong with a history, or NULL. lives: the nodes that were never killed, as letters. One
 * that ended in order and came back is a large letter: others go on without it meanwhile. */
static const char *judge(struct judge *j, const json_t *all, const char *lives, json_int_t last)
{
	*j = (struct judge){.records = json_object()};
	for (const char *n = "abc"; *n != 0; n++) {
		const char name[] = {*n, 0};

		judge_node(j, all, name, strchr(lives, *n) != NULL,
			   strchr(lives, *n - 'a' + 'A') != NULL);
	}
	for (json_int_t s = 1; s <= last && j->wrong[0] == 0; s++) {
		char key[64];

		snprintf(key, sizeof(key), "1.%lld", (long long)s);
		if (json_object_get(j->records, key) == NULL)
			snprintf(j->wrong, sizeof(j->wrong), "step %lld is on no node",
				 (long long)s);
	}
	json_decref(j->records);
	return j->wrong[0] != 0 ? j->wrong : NULL;
}

static void expect(const char *model, const char *lives, uint64_t last)
{
	json_t *all = ask(0, model, " --node all", 0);
	struct judge j;

	if (judge(&j, all, lives, (json_int_t)last) != NULL)
		fail_msg("%s: %s", model, j.wrong);
	assert_int_equal(j.last, last);
	json_decref(all);
}

/* --- killing --- */

static void more(struct crew *c, uint64_t steps)
{
	crew_wait_step(c, crew_step(c) + steps);
}

static void begin(struct crew *c, const char *name, const char *extra)
{
	crew_init(c, name);
	c->extra = extra;
	c->pause_us = 1000;
	for (int n = 0; n < 2; n++)
		crew_add(c, cluster->node[0].unix_address, 0)->reconnects = true;
	crew_start(c, UINT64_MAX);
}

/* Trainers and their node live, so that steps come fast. Nodes b and c are killed. */
static void killed(bool warm, const char *lives)
{
	struct crew *one = calloc(1, sizeof(*one)), *two = calloc(1, sizeof(*two));
	uint32_t learned[NODES] = {0};
	uint64_t last[2];

	assert_true(one != NULL && two != NULL);
	cluster = cluster_make(NODES, NULL, QUORUM);
	if (warm)
		cluster_warm(cluster, CLUSTER_TMPFS);
	cluster_up(cluster);
	begin(one, "one", "replicas=2");
	begin(two, "two", "replicas=3");
	more(one, 20);
	for (int k = 0; k < 6; k++) {
		int victim = lives[0] == 'a' ? 1 + k % 2 : k % 3;

		usleep((useconds_t)(k * 3700));
		cluster_kill(cluster, victim);
		if (!warm && victim != 0)
			more(one, 3);
		cluster_spawn(cluster, victim);
		if (!warm) {
			learned[victim] += 2;
			cluster_wait_log(cluster, victim, "event=learned", learned[victim]);
		}
		more(one, 10);
		more(two, 10);
	}
	last[0] = crew_finish(one);
	last[1] = crew_finish(two);
	for (int n = 0; n < NODES; n++) {
		crew_check(one, cluster->node[n].unix_address, last[0]);
		crew_check(two, cluster->node[n].unix_address, last[1]);
	}
	expect("one", lives, last[0]);
	expect("two", lives, last[1]);
	for (int n = 0; n < NODES; n++)
		assert_int_equal(cluster_logged(cluster, n, "event=history_gap"), 0);
	cluster_done(&cluster);
	free(one);
	free(two);
}

static void test_warm(void **state)
{
	(void)state;
	killed(true, "-");
}

static void test_cold(void **state)
{
	(void)state;
	killed(false, "a");
}

/* A daemon that is asked to end has written everything. */
static void test_stopped(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));
	uint64_t last;

	(void)state;
	assert_non_null(c);
	cluster = cluster_make(NODES, NULL, QUORUM);
	cluster_warm(cluster, CLUSTER_TMPFS);
	cluster_up(cluster);
	begin(c, "one", "replicas=2");
	for (int k = 0; k < NODES; k++) {
		more(c, 20);
		cluster_signal(cluster, k, SIGTERM);
		assert_int_equal(cluster_wait(cluster, k, pace_ms(20000)), 0);
		cluster_spawn(cluster, k);
		cluster_ready(cluster, k);
	}
	more(c, 5);
	last = crew_finish(c);
	expect("one", "ABC", last);
	cluster_done(&cluster);
	free(c);
}

/* --- other ways --- */

static size_t files_of(int node)
{
	char path[160];
	size_t nr = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "%s/history", cluster->node[node].state);
	if ((dir = opendir(path)) == NULL)
		return 0;
	for (struct dirent *e; (e = readdir(dir)) != NULL;)
		nr += e->d_name[0] != '.';
	closedir(dir);
	return nr;
}

static const json_t *first_of(const json_t *all, const char *node, const char *kind)
{
	json_t *e;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)all, i, e)
		if (strcmp(text(e, "node"), node) == 0 && is(e, kind))
			return e;
	return NULL;
}

/* A save, steps, and back to it. Every node says so, and the steps that begin again are of another
 * generation. A drop takes the files. */
static void test_restore(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));
	char words[320], tag[32];
	struct judge j;
	const json_t *saved, *lost, *seal;
	uint64_t last;
	json_t *all;

	(void)state;
	assert_non_null(c);
	snprintf(folder, sizeof(folder), "/tmp/shard-histories-XXXXXX");
	assert_non_null(mkdtemp(folder));
	cluster = cluster_make(NODES, NULL, QUORUM);
	cluster_up(cluster);
	begin(c, "one", "replicas=2");
	more(c, 10);
	snprintf(words, sizeof(words), "save one --dir %s --tag early --address %s", folder,
		 cluster->node[1].unix_address);
	tool_expect(0, "", "shardctl", words);
	more(c, 10);
	last = crew_finish(c);
	snprintf(words, sizeof(words), "restore %s --tag early --name one --force --address %s",
		 folder, cluster->node[2].unix_address);
	tool_expect(0, "", "shardctl", words);
	all = ask(1, "one", " --node all", 0);
	if (judge(&j, all, "abc", (json_int_t)last) != NULL)
		fail_msg("%s", j.wrong);
	for (int n = 0; n < NODES; n++) {
		lost = first_of(all, cluster->node[n].name, "lost");
		assert_int_equal(whole(lost, "generation"), 2);
	}
	saved = NULL;
	for (int n = 0; n < NODES; n++)
		if (saved == NULL)
			saved = first_of(all, cluster->node[n].name, "saved");
	assert_non_null(saved);
	snprintf(tag, sizeof(tag), "/early");
	assert_non_null(strstr(text(saved, "text"), tag));
	for (int n = 0; n < NODES; n++) {
		size_t i;
		json_t *e;

		seal = NULL;
		json_array_foreach(all, i, e)
			if (strcmp(text(e, "node"), cluster->node[n].name) == 0 && is(e, "seal"))
				seal = e; /* The last one. */
		assert_non_null(seal);
		assert_string_equal(text(seal, "text"), text(saved, "text"));
		assert_int_equal(whole(json_object_get(seal, "record"), "generation"), 2);
		assert_int_equal(whole(json_object_get(seal, "record"), "step"),
				 whole(saved, "last"));
		assert_int_equal(files_of(n), 1);
	}
	json_decref(all);
	snprintf(words, sizeof(words), "model drop one --force --address %s",
		 cluster->node[0].unix_address);
	tool_expect(0, "", "shardctl", words);
	for (int n = 0; n < NODES; n++)
		for (uint64_t until = pace_by(20); files_of(n) != 0; usleep(10000))
			if (clock_ns() > until)
				fail_msg("the history of a dropped model is still at node %d", n);
	snprintf(words, sizeof(words), "rm -rf %s", folder);
	assert_int_equal(system(words), 0);
	cluster_done(&cluster);
	free(c);
}

/* Only a part is printed, people can read it, and mistakes are said. */
static void test_words(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));
	char words[320], *out = NULL;
	json_t *all, *e;
	size_t i, steps = 0;

	(void)state;
	assert_non_null(c);
	cluster = cluster_make(2, NULL, NULL);
	cluster_up(cluster);
	begin(c, "one", NULL);
	more(c, 12);
	crew_finish(c);
	all = ask(0, "one", " --node b --from 3 --to 5", 0);
	json_array_foreach(all, i, e) {
		assert_string_equal(text(e, "node"), "b");
		steps += is(e, "step");
		if (is(e, "step"))
			assert_in_range(whole(json_object_get(e, "record"), "step"), 3, 5);
	}
	assert_int_equal(steps, 3);
	json_decref(all);
	snprintf(words, sizeof(words), "history one --address %s --from 2 --to 2",
		 cluster->node[1].unix_address);
	assert_int_equal(tool_run(&out, "shardctl", words), 0);
	assert_non_null(strstr(out, "b "));
	assert_non_null(strstr(out, " step 2 applied, generation 1, view "));
	assert_non_null(strstr(out, ", world a:"));
	free(out);
#define SAYS(rc, more, what)                                                                       \
	snprintf(words, sizeof(words), "history " more " --address %s",                            \
		 cluster->node[0].unix_address);                                                   \
	tool_expect(rc, what, "shardctl", words)
	SAYS(5, "none", "no model \"none\"");
	SAYS(5, "none --node b", "no model \"none\"");
	SAYS(5, "one --node z", "no node \"z\": `shardctl members` shows them");
	SAYS(2, "one --from x", "--from x: choose the number of a step");
	SAYS(2, "one --to 18446744073709551616", "choose the number of a step");
	SAYS(2, "one two", "write history NAME");
	cluster_kill(cluster, 1);
	cluster_wait_log(cluster, 0, "event=link_down", 1);
	SAYS(3, "one --node b", "history of node b: SHARD_UNREACHABLE");
	SAYS(3, "one --node all", "a 20"); /* What the other one has is printed all the same. */
	cluster_done(&cluster);
	free(c);
}

static void test_off(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));
	char words[320];

	(void)state;
	assert_non_null(c);
	cluster = cluster_make(2, NULL, "[daemon]\nhistory = off\n");
	cluster_up(cluster);
	begin(c, "one", NULL);
	more(c, 5);
	crew_finish(c);
	assert_int_equal(files_of(0) + files_of(1), 0);
	SAYS(5, "one", "node a keeps no history: its [daemon] history is off");
	SAYS(5, "one --node b", "node b keeps no history: its [daemon] history is off");
	cluster_done(&cluster);
	free(c);
}

/* A bit of a file flips while its daemon is down. It is named, with exit code 1, and all that is
 * whole is printed. */
static void test_damaged(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));
	char path[512], byte;
	struct dirent *entry = NULL;
	struct judge j;
	json_t *all;
	uint64_t last;
	off_t middle;
	DIR *dir;
	int fd;

	(void)state;
	assert_non_null(c);
	cluster = cluster_make(NODES, NULL, QUORUM);
	cluster_warm(cluster, CLUSTER_TMPFS);
	cluster_up(cluster);
	begin(c, "one", "replicas=2");
	more(c, 100);
	cluster_kill(cluster, 1);
	snprintf(path, sizeof(path), "%s/history", cluster->node[1].state);
	assert_non_null(dir = opendir(path));
	while ((entry = readdir(dir)) != NULL && entry->d_name[0] == '.')
		;
	assert_non_null(entry);
	snprintf(path + strlen(path), sizeof(path) - strlen(path), "/%s", entry->d_name);
	closedir(dir);
	assert_true((fd = open(path, O_RDWR)) >= 0);
	middle = lseek(fd, 0, SEEK_END) / 2;
	assert_int_equal(pread(fd, &byte, 1, middle), 1);
	byte ^= 4;
	assert_int_equal(pwrite(fd, &byte, 1, middle), 1);
	close(fd);
	cluster_spawn(cluster, 1);
	cluster_wait_log(cluster, 1, "event=history_cut", 1);
	more(c, 20);
	last = crew_finish(c);
	all = ask(0, "one", " --node all", 1);
	assert_non_null(judge(&j, all, "ac", (json_int_t)last));
	assert_non_null(strstr(
		j.wrong, "damage or a gap: {\"format\":1,\"node\":\"b\",\"kind\":\"damaged\""));
	assert_non_null(first_of(all, "b", "cut"));
	json_decref(all);
	/* Steps before the damage are whole, and it may hide any that follows. */
	all = ask(0, "one", " --node b --from 1 --to 1", 0);
	assert_null(first_of(all, "b", "damaged"));
	json_decref(all);
	all = ask(0, "one", " --node b --from 100", 1);
	assert_non_null(first_of(all, "b", "damaged"));
	json_decref(all);
	cluster_done(&cluster);
	free(c);
}

/* --- the checker --- */

/* Makes the history wrong in one way. */
static void spoil(json_t *all, int how)
{
	json_t *e, *r;
	size_t i, at = 0;

	json_array_foreach(all, i, e)
		if (is(e, "step") && whole(json_object_get(e, "record"), "step") == 7 &&
		    strcmp(text(e, "node"), "b") == 0)
			at = i;
	e = json_array_get(all, at);
	r = json_object_get(e, "record");
	switch (how) {
	case 0:
		json_object_set_new(json_object_get(r, "scaler"), "iter", json_integer(1));
		break;
	case 1:
		json_object_set_new(json_array_get(json_object_get(r, "world"), 1), "weight",
				    json_real(1.0000000000000002));
		break;
	case 2:
		json_array_remove(all, at);
		break;
	case 3:
		json_array_insert(all, at, json_array_get(all, at));
		break;
	case 4:
		json_array_set(json_object_get(r, "args"), 3, json_integer(1));
		break;
	case 5:
		json_array_foreach(all, i, e)
			if (is(e, "step") && whole(json_object_get(e, "record"), "step") == 7)
				json_object_set_new(e, "kind", json_string("lost")),
					json_object_del(e, "record");
		break;
	default:
		json_object_set_new(r, "lr", json_real(0.5));
	}
}

static void test_judge(void **state)
{
	struct crew *c = calloc(1, sizeof(*c));
	struct judge j;
	uint64_t last;
	json_t *all;

	(void)state;
	assert_non_null(c);
	cluster = cluster_make(NODES, NULL, QUORUM);
	cluster_up(cluster);
	begin(c, "one", "replicas=2");
	more(c, 12);
	last = crew_finish(c);
	all = ask(2, "one", " --node all", 0);
	assert_null(judge(&j, all, "abc", (json_int_t)last));
	for (int how = 0; how < 7; how++) {
		json_t *copy = json_deep_copy(all);

		spoil(copy, how);
		if (judge(&j, copy, "abc", (json_int_t)last) == NULL)
			fail_msg("mistake %d is not found", how);
		json_decref(copy);
	}
	assert_non_null(judge(&j, all, "abc", (json_int_t)last + 1));
	json_decref(all);
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
#define T(fn) cmocka_unit_test_teardown(fn, put_away)
	const struct CMUnitTest tests[] = {T(test_warm),    T(test_cold),  T(test_stopped),
					   T(test_restore), T(test_words), T(test_off),
					   T(test_damaged), T(test_judge)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
