// SPDX-License-Identifier: Apache-2.0
/* What a node that lies can do with HEALTH. The test is node b, which does not coordinate. What no
 * honest node sends ends the link. What it says of models counts for nothing, because it is not the
 * coordinator. What it says of itself is shown as long as its link is up, and no longer. */
#include "base/clock.h"
#include "lib/rawnode.h"
#include "wire/ops.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const struct inproc_conf quiet = {.cluster = "heartbeat_timeout = 60s"};
static const struct wire_head health = {.op = OP_HEALTH};

static Shard__Finding *finding(Shard__Finding *f, uint32_t level, const char *text)
{
	shard__finding__init(f);
	f->level = level;
	f->kind = (char *)(uintptr_t) "secret";
	f->about = (char *)(uintptr_t) "b";
	f->text = (char *)(uintptr_t)text;
	return f;
}

/* Waits until the daemon's status has the text as a finding, or has it no more. */
static void shown(struct rawnode *x, const char *text, bool is)
{
	for (;;) { /* The harness ends a test that takes too long. */
		json_t *all = inproc_status(x->daemon);
		char *said = json_dumps(json_object_get(all, "health"), JSON_COMPACT);
		bool there = said != NULL && strstr(said, text) != NULL;

		free(said);
		json_decref(all);
		if (there == is)
			return;
	}
}

static void test_no_such_level(void **state)
{
	static const uint32_t levels[] = {0, 3, UINT32_MAX};
	struct rawnode x;

	(void)state;
	rawnode_start(&x, false, &quiet, 1);
	for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
		Shard__Health body = SHARD__HEALTH__INIT;
		Shard__Finding f, *list = finding(&f, levels[i], "made up");

		body.n_found = 1;
		body.found = &list;
		raw_send(&x.r[0], &health, &body.base);
		rawnode_refused(&x, 0, "HEALTH with a level or a state that is none");
		rawnode_link(&x);
	}
	rawnode_stop(&x);
}

static void test_no_such_state(void **state)
{
	Shard__Health body = SHARD__HEALTH__INIT;
	Shard__Known k = SHARD__KNOWN__INIT, *list = &k;
	struct rawnode x;

	(void)state;
	rawnode_start(&x, false, &quiet, 1);
	k.state = (char *)(uintptr_t) "open";
	body.n_models = 1;
	body.models = &list;
	raw_send(&x.r[0], &health, &body.base);
	rawnode_refused(&x, 0, "HEALTH with a level or a state that is none");
	rawnode_link(&x);
	rawnode_stop(&x);
}

static void test_of_itself(void **state)
{
	Shard__Health body = SHARD__HEALTH__INIT, nothing = SHARD__HEALTH__INIT;
	Shard__Finding f, *list = finding(&f, 2, "node b is on fire");
	struct rawnode x;

	(void)state;
	rawnode_start(&x, false, &quiet, 1);
	body.n_found = 1;
	body.found = &list;
	raw_send(&x.r[0], &health, &body.base);
	shown(&x, "node b is on fire", true);
	raw_send(&x.r[0], &health, &nothing.base);
	shown(&x, "node b is on fire", false);
	raw_send(&x.r[0], &health, &body.base);
	shown(&x, "node b is on fire", true);
	raw_close(&x.r[0]);
	shown(&x, "node b is on fire", false);
	rawnode_link(&x);
	rawnode_stop(&x);
}

/* Node a coordinates, and judges its models by itself. */
static void test_of_models(void **state)
{
	Shard__Health body = SHARD__HEALTH__INIT;
	Shard__Known k = SHARD__KNOWN__INIT, *models = &k;
	Shard__Finding f, *found = finding(&f, 2, "the model is eaten"), own,
			  *mine = finding(&own, 1, "node b has said it");
	struct rawnode x;

	(void)state;
	rawnode_start(&x, false, &quiet, 1);
	k.model = 1;
	k.state = (char *)(uintptr_t) "lost";
	k.n_found = 1;
	k.found = &found;
	body.n_models = 1;
	body.models = &models;
	body.n_found = 1;
	body.found = &mine;
	raw_send(&x.r[0], &health, &body.base);
	shown(&x, "node b has said it", true); /* The message has been read. */
	shown(&x, "the model is eaten", false);
	rawnode_stop(&x);
}

/* Node a says so if node b's clock is ahead of its own. A message that is late looks the same as a
 * clock that is behind, so that is for the other node to say. */
static void test_clock(void **state)
{
	static const char *const says = "the clocks of nodes a and b differ by 3";
	uint64_t hour = 3600 * NS_PER_SEC;
	Shard__Health body = SHARD__HEALTH__INIT;
	Shard__Finding f, *mine = finding(&f, 1, "node b has said it");
	struct rawnode x;

	(void)state;
	rawnode_start(&x, false, &quiet, 1);
	body.clock = clock_unix_ns() + hour;
	raw_send(&x.r[0], &health, &body.base);
	shown(&x, says, true);
	body.clock = clock_unix_ns();
	raw_send(&x.r[0], &health, &body.base);
	shown(&x, says, false);
	body.clock = clock_unix_ns() - hour;
	body.n_found = 1;
	body.found = &mine;
	raw_send(&x.r[0], &health, &body.base);
	shown(&x, "node b has said it", true);
	shown(&x, "the clocks", false);
	body.clock = UINT64_MAX;
	raw_send(&x.r[0], &health, &body.base);
	shown(&x, "the clocks of nodes a and b differ by 1", true);
	raw_close(&x.r[0]);
	shown(&x, "the clocks", false); /* Its link is down. */
	rawnode_link(&x);
	rawnode_stop(&x);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_such_level), cmocka_unit_test(test_no_such_state),
		cmocka_unit_test(test_of_itself),     cmocka_unit_test(test_of_models),
		cmocka_unit_test(test_clock),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
