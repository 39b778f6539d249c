// SPDX-License-Identifier: Apache-2.0
/* Tests a node that held chunks and is replaced. Its memory is gone, and its state folder is gone
 * with it or is an older one. It counts its starts again from where the folder stands, so that it
 * comes to the very number of the start that held the chunks. It is another memory all the same.
 * The model is lost on both nodes with the name of that node, and nobody waits for weights that no
 * longer exist. A node with a copy of another node's folder is waited for, and a coordinator whose
 * folder has views of another node does not start. */
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

static void change_state(struct warm *w, int node, const char *how)
{
	char command[600];

	snprintf(command, sizeof(command), "cd '%s' && %s", w->cluster->node[node].state, how);
	assert_int_equal(system(command), 0);
}

/* Node b has the same incarnation number as before, and the model is lost. */
static void is_another(struct warm *w)
{
	struct shard_step step = SHARD_INIT(struct shard_step);

	warm_spawn(w, 1u << B);
	assert_in_range(warm_logged(w, B, " incarnation=1 listen="), 2, 3);
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
	change_state(w, B, "rm -rf \"$PWD\"");
	is_another(w);
}

/* The folder comes from a backup, so its uuid is the one that the other nodes know. */
static void test_older_folder(void **state)
{
	struct warm *w = *state;

	trained(w);
	change_state(w, B, "rm incarnation member");
	is_another(w);
}

/* The model waits for the operator. Nothing is given up before b is a node of its own. */
static void test_folder_of_another_node(void **state)
{
	struct warm *w = *state;
	char copy[300];

	trained(w);
	snprintf(copy, sizeof(copy), "rm incarnation member && mv uuid kept && cp '%s/uuid' uuid",
		 w->cluster->node[A].state);
	change_state(w, B, copy);
	warm_spawn(w, 1u << B);
	assert_true(warm_says(w, A, "nodes a and b, one of which has a copy of the other's state",
			      60000));
	assert_int_equal(warm_logged(w, A, "event=lost "), 0);
	warm_kill(w, 1u << B);
	change_state(w, B, "rm incarnation member && mv kept uuid");
	is_another(w);
}

/* The views in its folder have another node as their coordinator. */
static void test_coordinator_without_its_uuid(void **state)
{
	struct warm *w = *state;
	unsigned loaded = warm_logged(w, A, "event=model_loaded model=m");

	trained(w);
	warm_kill(w, 1u << A);
	change_state(w, A, "mv uuid kept");
	cluster_spawn(w->cluster, A);
	warm_wait_log(w, A, "event=start_failed ", 1);
	assert_int_not_equal(cluster_wait(w->cluster, A, 10000), 0);
	assert_int_equal(warm_logged(w, A, "names its coordinator by another uuid than the file"),
			 1);
	change_state(w, A, "mv kept uuid");
	warm_spawn(w, 1u << A | 1u << B);
	assert_int_equal(warm_logged(w, A, "event=model_loaded model=m"), loaded + 1);
	warm_finish(w);
}

int main(void)
{
	void *off = (void *)(uintptr_t)CLUSTER_WARM_NR, *tmpfs = (void *)(uintptr_t)CLUSTER_TMPFS;
	const struct CMUnitTest tests[] = {
		{"test_new_folder", test_new_folder, warm_setup, warm_teardown, off},
		{"test_new_folder tmpfs", test_new_folder, warm_setup, warm_teardown, tmpfs},
		{"test_older_folder", test_older_folder, warm_setup, warm_teardown, off},
		{"test_folder_of_another_node", test_folder_of_another_node, warm_setup,
		 warm_teardown, off},
		{"test_coordinator_without_its_uuid", test_coordinator_without_its_uuid, warm_setup,
		 warm_teardown, off},
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
