// SPDX-License-Identifier: Apache-2.0
/* Tests [daemon] checkpoint_hook with a shell script that copies checkpoints to another folder. The
 * copy is restored bit by bit. While the script fails, hangs or outlives its time, training goes
 * on, and status, metrics and health say what is missing. A daemon that was killed in the middle
 * knows after its start what was not copied, and a node that does not coordinate any more ends it.
 */
#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "lib/tool.h"
#include "lib/yard.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

struct away {
	struct yard *y;
	char script[96], saved[96], dir[96]; /* Where checkpoints are saved, and copied to. */
};

static const char script[] =
	"#!/bin/sh\n"
	"cd %s/away\n"
	"echo \"$$ $1 $2 $SHARDD_MODEL $SHARDD_STEP $SHARDD_TAG $SHARDD_DIR [$NOTIFY_SOCKET]\" "
	">>calls\n"
	"[ ! -e fail ] || { echo trying >&2; echo no such bucket >&2; exit 3; }\n"
	"[ ! -e slow ] || { sleep 3600 & echo $$ $! >pid.tmp; mv pid.tmp pid; wait; }\n"
	"cp -r \"$2\" .$SHARDD_TAG && mv .$SHARDD_TAG $SHARDD_TAG\n";

static void prepare(struct away *a, void **state)
{
	FILE *f;

	a->y = *state;
	snprintf(a->script, sizeof(a->script), "%s/hook", a->y->keep.dir);
	snprintf(a->saved, sizeof(a->saved), "%s/saved", a->y->keep.dir);
	snprintf(a->dir, sizeof(a->dir), "%s/away", a->y->keep.dir);
	assert_int_equal(mkdir(a->dir, 0755), 0);
	assert_non_null(f = fopen(a->script, "w"));
	fprintf(f, script, a->y->keep.dir);
	fclose(f);
	assert_int_equal(chmod(a->script, 0755), 0);
}

static const char *with_hook(const struct away *a, const char *options)
{
	static char extra[512];

	snprintf(extra, sizeof(extra), "[daemon]\ncheckpoint_hook = %s\n%s", a->script, options);
	return extra;
}

static void begin(struct away *a, void **state, const char *model, const char *options)
{
	prepare(a, state);
	assert_int_equal(setenv("NOTIFY_SOCKET", "/nowhere", 1), 0);
	a->y->cluster = cluster_start(1, model, with_hook(a, options));
	unsetenv("NOTIFY_SOCKET");
	crew_init(&a->y->crew, "m");
	a->y->crew.pause_us = 2000;
	yard_add(&a->y->crew, a->y->cluster, (const int[]){2}, true);
	crew_start(&a->y->crew, UINT64_MAX);
	crew_wait_step(&a->y->crew, 3);
}

static void more(struct away *a)
{
	crew_wait_step(&a->y->crew, crew_step(&a->y->crew) + 3);
}

static void put(const struct away *a, const char *name, bool there)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", a->dir, name);
	if (!there) {
		assert_int_equal(unlink(path), 0);
		return;
	}
	assert_non_null(f = fopen(path, "w"));
	fclose(f);
}

static void save(struct away *a, const char *tag)
{
	keep_must_save(a->y->cluster->node[0].unix_address, "m", a->saved, tag);
}

static void waits(struct away *a, const char *line, uint32_t times)
{
	cluster_wait_log(a->y->cluster, 0, line, times);
}

static bool is_marked(const struct away *a, const char *tag)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s/.copied", a->saved, tag);
	return access(path, F_OK) == 0;
}

static char *calls(const struct away *a)
{
	static char text[4096];
	char path[128];
	size_t n;
	FILE *f;

	snprintf(path, sizeof(path), "%s/calls", a->dir);
	assert_non_null(f = fopen(path, "r"));
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	fclose(f);
	return text;
}

struct slow { /* The script, which is in its sleep, and the sleep. */
	pid_t script, sleep;
};

static struct slow slow(const struct away *a)
{
	uint64_t by = pace_by(20);
	char path[128];
	struct slow p;
	FILE *f;

	snprintf(path, sizeof(path), "%s/pid", a->dir);
	while ((f = fopen(path, "r")) == NULL && clock_ns() < by)
		usleep(10000);
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%d %d", &p.script, &p.sleep), 2);
	fclose(f);
	unlink(path);
	return p;
}

/* Nobody but init need have waited for it. */
static bool runs(pid_t pid)
{
	char path[64], state = 'Z';
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	if ((f = fopen(path, "r")) == NULL)
		return false;
	assert_int_equal(fscanf(f, "%*d %*s %c", &state), 1);
	fclose(f);
	return state != 'Z' && state != 'X';
}

static void both_end(struct slow p)
{
	uint64_t by = pace_by(20);

	while ((runs(p.script) || runs(p.sleep)) && clock_ns() < by)
		usleep(10000);
	assert_false(runs(p.script) || runs(p.sleep));
}

static void status_says(const struct away *a, const char *text)
{
	char words[200];

	snprintf(words, sizeof(words), "status --address %s", a->y->cluster->node[0].unix_address);
	tool_expect(0, text, "shardctl", words);
}

static void copies(void **state)
{
	struct away a;
	char want[512];
	uint64_t step;
	char tag[65];

	begin(&a, state, NULL, "");
	save(&a, "first");
	waits(&a, "event=checkpoint_copied", 1);
	assert_true(is_marked(&a, "first"));
	step = keep_newest(a.dir, tag);
	snprintf(want, sizeof(want), " copy %s/first m %lu first %s []\n", a.saved,
		 (unsigned long)step, a.saved);
	assert_non_null(strstr(calls(&a), want));
	cluster_says(a.y->cluster, 0, "\"copied\":{\"running\":false,\"left\":0");
	crew_finish(&a.y->crew);
	/* The copy is a checkpoint. */
	a.y->next = a.y->crew;
	a.y->other = cluster_start(1, NULL, NULL);
	keep_must_restore(a.y->other->node[0].unix_address, a.dir, "first", NULL);
	crew_check(&a.y->next, a.y->other->node[0].unix_address, step);
	cluster_done(&a.y->other);
	/* A checkpoint that replaces it under its tag is copied again. */
	save(&a, "first");
	waits(&a, "event=checkpoint_copied", 2);
	assert_true(is_marked(&a, "first"));
	cluster_done(&a.y->cluster);
}

static void fails(void **state)
{
	struct away a;
	const char *second, *first;

	begin(&a, state, NULL, "");
	put(&a, "fail", true);
	save(&a, "first");
	waits(&a, "why=\"it exited with 3: trying no such bucket\"", 1);
	assert_false(is_marked(&a, "first"));
	more(&a);
	cluster_says(a.y->cluster, 0, "\"failures\":1,\"last_error\":\"it exited with 3");
	cluster_says(a.y->cluster, 0,
		     "checkpoint_hook has not copied a checkpoint of \\\"m\\\": it exited with 3");
	status_says(&a, "; NOT COPIED: it exited with 3: trying no such bucket\n");
	put(&a, "fail", false);
	save(&a, "second");
	waits(&a, "event=checkpoint_copied", 2);
	first = strstr(calls(&a), "/first m");
	assert_non_null(first);
	second = strstr(first, "/second m");
	assert_true(second != NULL && strstr(second, "/first m") != NULL);
	assert_true(is_marked(&a, "first") && is_marked(&a, "second"));
	status_says(&a, "; copied\n");
	crew_finish(&a.y->crew);
	cluster_done(&a.y->cluster);
}

/* It is ended when its time is over, with all that it has begun. */
static void is_late(void **state)
{
	struct away a;
	struct slow p;

	begin(&a, state, NULL, "checkpoint_hook_timeout = 200ms\n");
	put(&a, "slow", true);
	save(&a, "first");
	p = slow(&a);
	waits(&a, "event=checkpoint_not_copied", 1);
	waits(&a, "it did not end within 0.2 s", 1);
	both_end(p);
	more(&a);
	crew_finish(&a.y->crew);
	cluster_done(&a.y->cluster);
}

/* A save goes on while it runs, and so does training. A stop ends it. */
static void ends_with_a_stop(void **state)
{
	struct away a;
	struct slow p;

	begin(&a, state, NULL, "");
	put(&a, "slow", true);
	save(&a, "first");
	p = slow(&a);
	save(&a, "second");
	more(&a);
	cluster_says(a.y->cluster, 0, "\"copied\":{\"running\":true,\"left\":1");
	crew_finish(&a.y->crew);
	cluster_signal(a.y->cluster, 0, SIGTERM);
	assert_int_equal(cluster_wait(a.y->cluster, 0, 20000), 0);
	both_end(p);
	assert_false(is_marked(&a, "first") || is_marked(&a, "second"));
	cluster_done(&a.y->cluster);
}

static void is_killed(void **state)
{
	struct away a;
	struct slow p;

	begin(&a, state, NULL, "");
	save(&a, "first");
	waits(&a, "event=checkpoint_copied", 1);
	put(&a, "slow", true);
	save(&a, "second");
	p = slow(&a);
	cluster_kill(a.y->cluster, 0);
	kill(-p.script, SIGKILL); /* systemd would have done so. */
	put(&a, "slow", false);
	cluster_spawn(a.y->cluster, 0);
	cluster_ready(a.y->cluster, 0);
	/* Nobody saves. */
	waits(&a, "event=checkpoint_copied", 2);
	assert_true(is_marked(&a, "first") && is_marked(&a, "second"));
	assert_null(strstr(strstr(calls(&a), "/second m"), "/first m"));
	crew_finish(&a.y->crew);
	cluster_done(&a.y->cluster);
}

/* Nobody has ended what it began, so nothing else is begun beside that. */
static void is_orphaned(void **state)
{
	struct away a;
	struct slow p;

	begin(&a, state, NULL, "");
	put(&a, "slow", true);
	save(&a, "first");
	p = slow(&a);
	cluster_kill(a.y->cluster, 0);
	put(&a, "slow", false);
	cluster_spawn(a.y->cluster, 0);
	cluster_ready(a.y->cluster, 0);
	waits(&a, "what checkpoint_hook began earlier still runs", 1);
	assert_true(runs(p.script) && runs(p.sleep));
	assert_false(is_marked(&a, "first"));
	assert_null(strstr(strstr(calls(&a), "/first m") + 1, "/first m"));
	kill(-p.script, SIGKILL);
	both_end(p);
	save(&a, "second");
	waits(&a, "event=checkpoint_copied", 2);
	assert_true(is_marked(&a, "first") && is_marked(&a, "second"));
	crew_finish(&a.y->crew);
	cluster_done(&a.y->cluster);
}

static int leader(struct cluster *c)
{
	uint64_t by = pace_by(20);

	do
		for (int n = 0; n < c->nodes_nr; n++)
			if (cluster_logged(c, n, "event=leading term=") > 0)
				return n;
	while (usleep(10000) == 0 && clock_ns() < by);
	fail_msg("nobody coordinates");
	return -1;
}

static void copied_by_another(const struct away *a, int led)
{
	uint64_t by = pace_by(60);

	while (!is_marked(a, "first") && clock_ns() < by)
		usleep(10000);
	assert_true(is_marked(a, "first"));
	assert_int_equal(cluster_logged(a->y->cluster, led, "event=checkpoint_copied"), 0);
}

/* A node that another one has replaced does not go on copying. */
static void ends_with_the_lead(void **state)
{
	struct away a;
	struct slow p;
	int led;

	prepare(&a, state);
	a.y->cluster = cluster_start(
		3, NULL,
		with_hook(&a, "[cluster]\nmembership = quorum\nelection_timeout = 300ms\n"));
	led = leader(a.y->cluster);
	crew_init(&a.y->crew, "m");
	a.y->crew.pause_us = 2000;
	a.y->crew.extra = "replicas=2";
	crew_add(&a.y->crew, a.y->cluster->node[(led + 1) % 3].unix_address, 1)->reconnects = true;
	crew_start(&a.y->crew, UINT64_MAX);
	crew_wait_step(&a.y->crew, 3);
	put(&a, "slow", true);
	keep_must_save(a.y->cluster->node[led].unix_address, "m", a.saved, "first");
	p = slow(&a);
	put(&a, "slow", false);
	cluster_signal(a.y->cluster, led, SIGSTOP);
	copied_by_another(&a, led);
	cluster_signal(a.y->cluster, led, SIGCONT);
	cluster_wait_log(a.y->cluster, led, "event=checkpoint_not_copied", 1);
	both_end(p);
	crew_finish(&a.y->crew);
	cluster_done(&a.y->cluster);
}

/* Only what was copied is pruned. */
static void keeps_what_is_not_copied(void **state)
{
	struct yard *y = *state;
	char model[256], dir[128];
	struct away a;
	uint64_t by;

	snprintf(model, sizeof(model),
		 "checkpoint_dir = %s/saved\ncheckpoint_every = 5\nkeep_latest = 1\n", y->keep.dir);
	snprintf(dir, sizeof(dir), "%s/saved/m", y->keep.dir);
	snprintf(a.dir, sizeof(a.dir), "%s/away", y->keep.dir);
	begin(&a, state, model, "prune_copied_only = yes\n");
	waits(&a, "event=checkpoint_copied", 2);
	put(&a, "fail", true);
	waits(&a, " left=3 ", 1);
	assert_true(keep_count(dir) >= 3);
	put(&a, "fail", false);
	by = pace_by(20);
	while (keep_count(dir) > 2 && clock_ns() < by)
		usleep(10000);
	assert_true(keep_count(dir) <= 2);
	crew_finish(&y->crew);
	cluster_done(&y->cluster);
	assert_true(keep_count(dir) >= 1);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, yard_setup, yard_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(copies),
		TEST(fails),
		TEST(is_late),
		TEST(ends_with_a_stop),
		TEST(is_killed),
		TEST(is_orphaned),
		TEST(ends_with_the_lead),
		TEST(keeps_what_is_not_copied),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
