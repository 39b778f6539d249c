// SPDX-License-Identifier: Apache-2.0
/* A copy of a state folder has the name of the folder with the memory, and the same uuid. A daemon
 * that is started with the copy must not take the memory of the daemon that runs. It must not take
 * the memory of one that ran either, as long as that one's own state folder is there. A folder that
 * was moved is not a copy, so the memory goes with it. A daemon that is refused changes nothing. */
#include "base/check.h"
#include "lib/ports.h"
#include "lib/tool.h"
#include "lib/warm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { FIRST, COPY };

static void shell(const char *command, const char *a, const char *b)
{
	char all[600];

	snprintf(all, sizeof(all), "%s '%s' '%s'", command, a, b);
	assert_int_equal(system(all), 0);
}

static int teardown(void **state)
{
	struct warm *w = *state;

	if (w->cluster != NULL)
		w->cluster->node[COPY].store = NULL; /* It belongs to the first node. */
	return warm_teardown(state);
}

static void begin(struct warm *w)
{
	warm_start(w, 1, (int[]){1}, NULL);
	w->numel = 3000;
	w->settings = "optimizer=sgd chunk_elems=1024";
	warm_all(w);
	warm_train(w, 2);
}

/* Copies the state folder and the configuration, which gets another port and socket and is
 * otherwise the same. */
static void copy(struct warm *w)
{
	struct cluster_node *n = w->cluster->node;
	char command[600];

	n[COPY] = (struct cluster_node){.port = ports_take(), .name = "a2", .store = n->store};
	snprintf(n[COPY].conf, sizeof(n->conf), "%s/a2.conf", w->cluster->dir);
	snprintf(n[COPY].socket, sizeof(n->socket), "%s/a2.sock", w->cluster->dir);
	snprintf(n[COPY].log, sizeof(n->log), "%s/a2.log", w->cluster->dir);
	snprintf(n[COPY].state, sizeof(n->state), "%s/a2.state", w->cluster->dir);
	snprintf(n[COPY].unix_address, sizeof(n->unix_address), "unix:%s", n[COPY].socket);
	snprintf(command, sizeof(command),
		 "sed 's#/a\\.sock#/a2.sock#;s#/a\\.state#/a2.state#;s#:%u$#:%u#' '%s' >'%s'",
		 n[FIRST].port, n[COPY].port, n[FIRST].conf, n[COPY].conf);
	assert_int_equal(system(command), 0);
	shell("cp -a", n[FIRST].state, n[COPY].state);
	w->cluster->nodes_nr = 2;
}

static void refused(struct warm *w, const char *why, bool forget)
{
	char words[300];

	cluster_spawn(w->cluster, COPY);
	warm_wait_log(w, COPY, why, 1);
	if (w->how == CLUSTER_SYSTEMD) /* Under a service manager it ends late. */
		cluster_kill(w->cluster, COPY);
	else
		assert_int_not_equal(cluster_wait(w->cluster, COPY, 10000), 0);
	assert_int_equal(warm_logged(w, COPY, "event=start "), 0);
	snprintf(words, sizeof(words), "--config %s --forget-memory", w->cluster->node[COPY].conf);
	if (forget)
		tool_expect(1, why, "shardd", words);
}

static void test_while_it_runs(void **state)
{
	struct warm *w = *state;
	char why[100];

	begin(w);
	copy(w);
	snprintf(why, sizeof(why), " belongs to the daemon with pid %d that runs now",
		 (int)w->cluster->node[FIRST].pid);
	refused(w, why, true);
	w->cluster->nodes_nr = 1;
	warm_train(w, 4);
	warm_check(w, 4);
	warm_kill(w, 1u << FIRST); /* The lock is given back with this. */
	warm_spawn(w, 1u << FIRST);
	assert_int_equal(warm_logged(w, FIRST, "event=warm_start models=1"), 1);
	assert_int_equal(warm_back(w, 1u << FIRST), 5);
	warm_train(w, 6);
	warm_check(w, 6);
	warm_finish(w);
}

static void test_after_its_end(void **state)
{
	struct warm *w = *state;
	struct cluster_node *n;
	char away[160];

	begin(w);
	n = w->cluster->node;
	copy(w);
	warm_kill(w, 1u << FIRST);
	refused(w, " is a copy of it: start with state = ", w->how == CLUSTER_TMPFS);
	snprintf(away, sizeof(away), "%s.away", n[FIRST].state);
	shell("mv", n[FIRST].state, away); /* The folder is now no longer a copy. */
	warm_spawn(w, 1u << COPY);
	assert_int_equal(warm_logged(w, COPY, "event=warm_start models=1"), 1);
	cluster_signal(w->cluster, COPY, SIGTERM);
	assert_int_equal(cluster_wait(w->cluster, COPY, 10000), 0);
	w->cluster->nodes_nr = 1;
	shell("mv", n[COPY].state, n[FIRST].state); /* The folder is back at its old path. */
	warm_spawn(w, 1u << FIRST);
	assert_int_equal(warm_logged(w, FIRST, "event=warm_start models=1"), 1);
	assert_int_equal(warm_back(w, 1u << FIRST), 3);
	warm_check(w, 2);
	warm_train(w, 4);
	warm_finish(w);
}

int main(void)
{
	void *systemd = (void *)(uintptr_t)CLUSTER_SYSTEMD,
	     *tmpfs = (void *)(uintptr_t)CLUSTER_TMPFS;
	const struct CMUnitTest tests[] = {
		{"test_while_it_runs", test_while_it_runs, warm_setup, teardown, tmpfs},
		{"test_after_its_end systemd", test_after_its_end, warm_setup, teardown, systemd},
		{"test_after_its_end tmpfs", test_after_its_end, warm_setup, teardown, tmpfs},
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
