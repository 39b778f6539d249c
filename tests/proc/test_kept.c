/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on a tmpfs of nodes that are not there any more. A daemon that runs, or whose next start
 * takes its memory up, is named as such and keeps it. When its state folder is gone, or has other
 * memory, the folder is an orphan: `shardd --forget-memory --list` and `shardctl doctor` say whose
 * it was, and it is given back by its name. */
#include "base/check.h"
#include "lib/tool.h"
#include "lib/warm.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* The one folder of warm_dir. */
static void find_folder(struct warm *w, char path[200])
{
	DIR *dir = opendir(w->cluster->warm_dir);

	assert_non_null(dir);
	path[0] = 0;
	for (struct dirent *d; (d = readdir(dir)) != NULL;) {
		if (strncmp(d->d_name, "shardd-", 7) != 0)
			continue;
		assert_int_equal(path[0], 0);
		snprintf(path, 200, "%.80s/%.80s", w->cluster->warm_dir, d->d_name);
	}
	closedir(dir);
}

static void ask(struct warm *w, int rc, const char *option, const char *want)
{
	char words[600];

	snprintf(words, sizeof(words), "--config %s %s", w->cluster->node[0].conf, option);
	tool_expect(rc, want, "shardd", words);
}

static void doctor(struct warm *w, const char *want)
{
	char words[300], *out;

	snprintf(words, sizeof(words), "doctor --config %s -a %s", w->cluster->node[0].conf,
		 w->cluster->node[0].unix_address);
	(void)tool_run(&out, "shardctl", words); /* This machine may have other faults. */
	if (!strstr(out, want))
		fail_msg("\"%s\" is not in:\n%s", want, out);
	free(out);
}

static void test_former_node(void **state)
{
	struct warm *w = *state;
	char path[200], want[500], forget[300], aside[300];

	warm_start(w, 1, (int[]){1}, NULL);
	w->numel = 3000;
	w->settings = "optimizer=sgd chunk_elems=1024";
	warm_all(w);
	warm_train(w, 2);
	find_folder(w, path);
	assert_int_not_equal(path[0], 0);
	snprintf(forget, sizeof(forget), "--forget-memory=%s", path);
	snprintf(aside, sizeof(aside), "%s.aside", w->cluster->node[0].state);

	snprintf(want, sizeof(want), "%s: runs, ", path);
	ask(w, 0, "--forget-memory --list", want);
	snprintf(want, sizeof(want), "%s stays: it belongs to the daemon with pid %d", path,
		 (int)w->cluster->node[0].pid);
	ask(w, 1, forget, want);
	snprintf(want, sizeof(want), "no memory of former nodes is in %s", w->cluster->warm_dir);
	doctor(w, want);

	warm_kill(w, 1);
	ask(w, 0, "--forget-memory --list", ", 1 model, made 0.0 h ago by uid ");
	snprintf(want, sizeof(want),
		 ", node a of a: the next start with the state folder %s takes it",
		 w->cluster->node[0].state);
	ask(w, 0, "--forget-memory --list", want);
	ask(w, 0, "--forget-memory --list --json", "\"verdict\": \"kept\"");
	ask(w, 1, forget, "stays: the next start with the state folder");
	doctor(w, "no memory of former nodes");
	warm_spawn(w, 1); /* Looking has taken nothing away. */
	assert_int_equal(warm_back(w, 1), 3);
	warm_kill(w, 1);

	assert_int_equal(rename(w->cluster->node[0].state, aside), 0);
	ask(w, 0, "--forget-memory --list", "is not there: unless it was moved");
	ask(w, 0, "--forget-memory --list --json", "\"verdict\": \"orphan\"");
	snprintf(want, sizeof(want), "shardd --forget-memory=%s` gives this one back", path);
	doctor(w, "of 1 former nodes, ");
	doctor(w, want);
	ask(w, 1, "--forget-memory=/dev/shm/none", "there is no such memory");
	ask(w, 1, "--forget-memory=shardd-0123456789abcdef0123456789abcdef", "there is no such");
	ask(w, 2, "--list", "write --forget-memory --list");
	assert_int_equal(access(path, F_OK), 0);
	ask(w, 0, forget, "");
	assert_int_not_equal(access(path, F_OK), 0);
	find_folder(w, path);
	assert_int_equal(path[0], 0);
	doctor(w, "no memory of former nodes");
	ask(w, 1, forget, "there is no such memory");
	assert_int_equal(rename(aside, w->cluster->node[0].state), 0);
	warm_finish(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		{"test_former_node", test_former_node, warm_setup, warm_teardown,
		 (void *)(uintptr_t)CLUSTER_TMPFS},
	};

	return cmocka_run_group_tests_name("kept", tests, NULL, NULL);
}
