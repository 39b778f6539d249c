// SPDX-License-Identifier: Apache-2.0
/* A node leaves the view while a model is saved. The link to it breaks at the request for its
 * share, or at the answer, and stays broken. The save fails and names the node, or is whole.
 * Training goes on without the node, and the next save has all weights, from the nodes that are
 * there. When the node is back, one more save has them again, now with its share. What was saved is
 * compared by restoring the model from it. */
#include "lib/crew.h"
#include "lib/cutter.h"
#include "lib/proc.h"
#include "lib/tool.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define BEAT "[cluster]\nmembership = static\nheartbeat_timeout = 5s\nlost_timeout = 60s\n"

static struct cluster *cluster;

static void more(struct crew *c, uint64_t steps)
{
	crew_wait_step(c, crew_step(c) + steps);
}

static int save(const char *tag, char **out)
{
	char words[512];

	snprintf(words, sizeof(words), "save saved --dir %s/ckpt --tag %s --address %s",
		 cluster->dir, tag, cluster->node[0].unix_address);
	return tool_run(out, "shardctl", words);
}

static void must_save(const char *tag)
{
	char words[512], *out;

	if (save(tag, &out) != 0)
		fail_msg("%s: %s", tag, out);
	free(out);
	snprintf(words, sizeof(words), "checkpoints %s/ckpt --verify", cluster->dir);
	tool_expect(0, tag, "shardctl", words);
}

/* The link of node a and this node breaks at the nth such frame of the save. */
static void breaks_at(int node, uint16_t op, bool reply)
{
	struct cutter_rule rule = {.low = 0,
				   .high = node,
				   .op = op,
				   .reply = reply,
				   .nth = 1,
				   .cut_low = 0,
				   .cut_high = node,
				   .instead = true};
	struct crew *c = calloc(1, sizeof(*c));
	char dir[512], name[16], *out;
	uint64_t last;

	assert_non_null(c);
	crew_init(c, "saved");
	crew_larger(c, 8);
	c->extra = "replicas=2 chunk_elems=1024";
	c->pause_us = 2000;
	cluster = cluster_make(3, NULL, BEAT);
	cluster_between(cluster);
	cluster_up(cluster);
	snprintf(dir, sizeof(dir), "%s/ckpt", cluster->dir);
	assert_int_equal(mkdir(dir, 0777), 0);
	for (int i = 0; i < 2; i++)
		crew_add(c, cluster->node[0].unix_address, 0);
	crew_start(c, UINT64_MAX);
	more(c, 3);
	cutter_rule(cluster->cutter, &rule);
	snprintf(name, sizeof(name), "node %c", 'a' + node);
	if (save("broken", &out) != 0 && strstr(out, name) == NULL)
		fail_msg("%s is not named: %s", name, out);
	free(out);
	assert_true(cutter_fired(cluster->cutter));
	more(c, 3); /* Without the node. */
	must_save("without");
	cutter_rule(cluster->cutter, NULL);
	cluster_wait_log(cluster, node, "event=learned", 1);
	more(c, 3);
	must_save("with");
	last = crew_finish(c);
	must_save("last");
	for (int n = 0; n < 3; n++)
		crew_check(c, cluster->node[n].unix_address, last);
	/* What the save says is what all nodes have. */
	snprintf(dir, sizeof(dir), "restore %s/ckpt --tag last --force --address %s", cluster->dir,
		 cluster->node[0].unix_address);
	tool_expect(0, "", "shardctl", dir);
	for (int n = 0; n < 3; n++)
		crew_check(c, cluster->node[n].unix_address, last);
	cluster_done(&cluster);
	free(c);
}

static void test_request(void **state)
{
	(void)state;
	breaks_at(2, OP_SAVE_PART, false);
}

static void test_answer(void **state)
{
	(void)state;
	breaks_at(1, OP_SAVE_PART, true);
}

static int teardown(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_request, teardown),
					   cmocka_unit_test_teardown(test_answer, teardown)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
