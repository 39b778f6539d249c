/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what `shardctl doctor` says of a daemon that runs: its own limits and not those of the
 * shell of whoever asks, and no fault of a healthy daemon where this user may only not look. A
 * daemon whose file of options was not named is not judged by the default ones without a word. */
#include "base/check.h"
#include "lib/proc.h"
#include "lib/tool.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* Runs the doctor about the first node, as this user or as uid. NULL: that user may not run it. */
static json_t *examine(struct cluster *c, unsigned uid, const char *more)
{
	char words[400], *out;
	json_t *o;
	int rc;

	snprintf(words, sizeof(words), "doctor --json -a %s %s", c->node[0].unix_address, more);
	rc = uid ? tool_run_as(uid, &out, "shardctl", words) : tool_run(&out, "shardctl", words);
	o = rc == 97 ? NULL : json_loads(out, 0, NULL);
	if (rc != 97 && !o)
		fail_msg("exit %d: %s", rc, out);
	free(out);
	return o;
}

/* The row of a check must have this result, unless it is NULL, and its found or remedy the text. */
static void is(const json_t *o, const char *check, const char *result, const char *text)
{
	size_t i;
	json_t *row;

	json_array_foreach(json_object_get(o, "checks"), i, row) {
		const char *found = json_string_value(json_object_get(row, "found")),
			   *remedy = json_string_value(json_object_get(row, "remedy"));

		if (strcmp(json_string_value(json_object_get(row, "check")), check) != 0)
			continue;
		if ((result &&
		     strcmp(json_string_value(json_object_get(row, "result")), result) != 0) ||
		    (!strstr(found, text) && !strstr(remedy, text)))
			fail_msg("%s: %s, %s (%s); expected %s, %s", check,
				 json_string_value(json_object_get(row, "result")), found, remedy,
				 result ? result : "any", text);
		return;
	}
	fail_msg("%s is not there", check);
}

static void test_limits(void **state)
{
	struct rlimit lock = {.rlim_cur = 65536, .rlim_max = 65536},
		      files = {.rlim_cur = 90, .rlim_max = 90};
	struct cluster *c = cluster_start(1, NULL, NULL);
	char more[200];
	json_t *o;

	(void)state;
	snprintf(more, sizeof(more), "--config %s", c->node[0].conf);
	CHECK(prlimit(c->node[0].pid, RLIMIT_MEMLOCK, &lock, NULL) == 0);
	CHECK(prlimit(c->node[0].pid, RLIMIT_NOFILE, &files, NULL) == 0);
	o = examine(c, 0, more);
	is(o, "memlock", "warn", "64.0 KiB may be locked for the daemon that runs");
	is(o, "memlock", "warn", "in the shell that starts it, then restart it");
	is(o, "descriptors", "warn", "90 may be open for the daemon that runs");
	json_decref(o);
	snprintf(more, sizeof(more), "--config %s --root /nonexistent", c->node[0].conf);
	o = examine(c, 0, more);
	is(o, "memlock", "ok", "not known for the daemon that runs");
	is(o, "descriptors", "ok", "cannot be read here");
	json_decref(o);
	cluster_stop(c);
}

static void test_ordinary_user(void **state)
{
	struct cluster *c;
	char more[200];
	json_t *o;

	(void)state;
	if (geteuid() != 0)
		skip();
	c = cluster_start(1, NULL, NULL);
	snprintf(more, sizeof(more), "--config %s", c->node[0].conf);
	CHECK(chmod(c->dir, 0755) == 0 && chmod(c->node[0].conf, 0644) == 0);
	CHECK(chmod(c->node[0].socket, 0600) == 0); /* It is not for that user. */
	o = examine(c, 65534, more);
	if (o) {
		is(o, "state", "warn", "sudo shardctl doctor");
		is(o, "port", "warn", "is in use, and this user may not ask the daemon");
		is(o, "socket", "warn", "this user may not connect");
		json_decref(o);
	}
	CHECK(chmod(c->node[0].socket, 0666) == 0);
	o = examine(c, 65534, more);
	if (o) {
		is(o, "state", "ok", "of the daemon that runs; this user may not look");
		is(o, "port", "ok", "a daemon runs (pid ");
		is(o, "memlock", NULL, "for the daemon that runs");
		json_decref(o);
	}
	cluster_stop(c);
}

static void test_other_configuration(void **state)
{
	struct cluster *c = cluster_start(1, NULL, NULL);
	json_t *o = examine(c, 0, "");

	(void)state;
	is(o, "config", "warn", "not that of the daemon at unix:");
	is(o, "config", "warn", "--config FILE");
	json_decref(o);
	cluster_stop(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_limits),
					   cmocka_unit_test(test_ordinary_user),
					   cmocka_unit_test(test_other_configuration)};

	return cmocka_run_group_tests_name("ctl_doctor_daemon", tests, NULL, NULL);
}
