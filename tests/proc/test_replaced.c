// SPDX-License-Identifier: Apache-2.0
/* Tests a node that held chunks and is replaced. Its memory is gone, and its state folder is gone
 * with it or is an older one. It counts its starts again from where the folder stands, so that it
 * comes to the very number of the start that held the chunks. It is another memory all the same.
 * The model is lost on both nodes with the name of that node, and nobody waits for weights that no
 * longer exist. */
#include "lib/warm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { A, B };

static void trained(struct warm *w)
{
	warm_start(w, 2, (int[]){1, 1}, NULL);
	warm_all(w);
	warm_train(w, 3);
	warm_kill(w, 1u << B);
}

static void remove_state(struct warm *w, const char *what)
{
	char command[300];

	snprintf(command, sizeof(command), "rm -rf '%s'%s", w->cluster->node[B].state, what);
	assert_int_equal(system(command), 0);
}

/* Its number is the one that it had, and the model is lost. */
static void is_another(struct warm *w)
{
	struct shard_step step = SHARD_INIT(struct shard_step);

	warm_spawn(w, 1u << B);
	assert_int_equal(warm_logged(w, B, " incarnation=1 listen="), 2);
	warm_wait_log(w, A, "node b started again, which held ", 1);
	warm_wait_log(w, A, "event=lost model=m ", 1);
	warm_wait_log(w, B, "event=lost model=m ", 1);
	assert_int_equal(shard_begin(w->r[A].model, NULL, &step), SHARD_LOST);
	assert_non_null(strstr(shard_error(), "node b started again"));
	warm_finish(w);
}

static void test_new_folder(void **state)
{
	struct warm *w = *state;

	trained(w);
	remove_state(w, "");
	is_another(w);
}

/* The folder is that of a backup: its uuid is the one that the other nodes know. */
static void test_older_folder(void **state)
{
	struct warm *w = *state;

	trained(w);
	remove_state(w, "/incarnation");
	remove_state(w, "/member");
	is_another(w);
}

int main(void)
{
	void *off = (void *)(uintptr_t)CLUSTER_WARM_NR, *tmpfs = (void *)(uintptr_t)CLUSTER_TMPFS;
	const struct CMUnitTest tests[] = {
		{"test_new_folder", test_new_folder, warm_setup, warm_teardown, off},
		{"test_new_folder tmpfs", test_new_folder, warm_setup, warm_teardown, tmpfs},
		{"test_older_folder", test_older_folder, warm_setup, warm_teardown, off},
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
