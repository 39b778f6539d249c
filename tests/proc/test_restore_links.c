// SPDX-License-Identifier: Apache-2.0
/* Tests three nodes and a link that is cut in each phase of a restore: one that an operator asks
 * for, restore_at_start, and the way back of a lost model. The cut comes right after a certain
 * frame. The other links stand still until the cut link is back, so that the node behind it has
 * always seen both before the restore ends. Afterwards all weights and moments equal the
 * checkpoint, or the restore failed with a sentence and the next one is right. Each cut must have
 * happened. If CHECK_ALL is set, every link is cut at every frame, which takes about a minute. */
#include "base/check.h"
#include "base/clock.h"
#include "core/msg.h"
#include "lib/cutter.h"
#include "lib/pace.h"
#include "lib/yard.h"
#include "wire/ops.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { STEPS = 5, LIMIT_S = 30 };

struct frame {
	uint16_t op;
	bool reply;
	uint32_t nth;
	const char *name;
};

static const struct frame frames[] = {
	{OP_MODEL, false, 1, "model"},
	{OP_MODEL, true, 1, "model's answer"},
	{OP_LOAD_PART, false, 1, "load_part"},
	{OP_LOAD_PART, true, 1, "load_part's answer"},
	{OP_WRITTEN, false, 1, "written"},
	{OP_WRITTEN, true, 1, "written's answer"},
	{OP_CORE + CORE_VIEW, false, 2, "the view that seals"},
	{OP_CORE + CORE_VIEW_OK, false, 2, "its answer"},
};
static const int links[3][2] = {{0, 1}, {0, 2}, {1, 2}};

static bool all; /* Whether every link is cut at every frame. */

struct place {
	struct yard *y;
	struct cutter *k;
	char dir[128];
};

static void place_start(struct place *p, struct yard *y, bool at_start)
{
	char model[256];

	*p = (struct place){.y = y};
	snprintf(model, sizeof(model), "checkpoint_dir = %s\nrestore_at_start = %s\n", y->keep.dir,
		 at_start ? "yes" : "no");
	snprintf(p->dir, sizeof(p->dir), "%s/m", y->keep.dir);
	y->cluster = cluster_make(3, model, "[cluster]\nheartbeat_timeout = 30s\n");
	p->k = cutter_start(y->cluster);
	for (int n = 0; n < 3; n++)
		cluster_spawn(y->cluster, n);
	for (int n = 0; n < 3; n++)
		cluster_ready(y->cluster, n);
	crew_init(&y->crew, "m");
	yard_train(&y->crew, y->cluster, (const int[]){1, 1, 1}, STEPS);
	keep_must_save(y->cluster->node[0].unix_address, "m", NULL, NULL);
}

static void place_end(struct place *p)
{
	cluster_done(&p->y->cluster);
	cutter_stop(&p->k);
}

static void drop(const struct place *p)
{
	uint64_t until = pace_by(LIMIT_S);
	shard_client *c = crew_connect(p->y->cluster->node[0].unix_address);
	enum shard_status rc;

	do
		rc = shard_drop(c, "m", 0);
	while (rc != SHARD_OK && rc != SHARD_NOT_FOUND && clock_ns() < until);
	if (rc != SHARD_OK && rc != SHARD_NOT_FOUND)
		fail_msg("drop: %s", shard_error());
	shard_disconnect(&c);
}

static void check(struct place *p)
{
	yard_linked(p->y->cluster);
	crew_check(&p->y->crew, p->y->cluster->node[2].unix_address, STEPS);
}

/* --- the three kinds of restore --- */

static enum shard_status ask(const struct place *p)
{
	return keep_restore(p->y->cluster->node[0].unix_address, p->dir, NULL, "m");
}

static enum shard_status define(const struct place *p)
{
	shard_client *c = crew_connect(p->y->cluster->node[0].unix_address);
	struct shard_spec s;
	char settings[256];
	shard_model *m;
	int created = 0;
	enum shard_status rc;

	crew_spec(&s, "m", settings, sizeof(settings), p->y->crew.nr);
	rc = shard_define(c, &s, &m, &created);
	if (rc == SHARD_OK && created)
		fail_msg("the definition began at step 0: there was a checkpoint");
	shard_disconnect(&c);
	return rc;
}

/* SHARD_OK: all is there. Otherwise the restore failed with a sentence, and works when it is
 * requested again. */
static void ended(struct place *p, enum shard_status rc,
		  enum shard_status (*again)(const struct place *p))
{
	uint64_t until = pace_by(LIMIT_S);

	if (rc != SHARD_OK && shard_error()[0] == 0)
		fail_msg("%s without a sentence", shard_name(rc));
	cutter_rule(p->k, NULL);
	while (rc != SHARD_OK && rc != SHARD_EXISTS && clock_ns() < until) {
		usleep(20000);
		rc = again(p);
	}
	if (rc != SHARD_OK && rc != SHARD_EXISTS) /* EXISTS: it has been restored meanwhile. */
		fail_msg("not restored: %s: %s", shard_name(rc), shard_error());
	check(p);
}

/* Waits until the link is cut. The restore is over, but its last frames may still be on their way
 * to the other nodes. */
static void fired(struct place *p)
{
	uint64_t until = clock_ns() + LIMIT_S * NS_PER_SEC;

	while (!cutter_fired(p->k)) {
		if (clock_ns() > until)
			fail_msg("nothing was cut: the frame never passed");
		usleep(1000);
	}
}

static void asked(struct place *p, const struct cutter_rule *r)
{
	enum shard_status rc;

	drop(p);
	cutter_rule(p->k, r);
	rc = ask(p);
	fired(p);
	ended(p, rc, ask);
}

static void at_start(struct place *p, const struct cutter_rule *r)
{
	enum shard_status rc;

	drop(p);
	cutter_rule(p->k, r);
	rc = define(p);
	fired(p);
	ended(p, rc, define);
}

static uint32_t restored(const struct place *p)
{
	char *log = cluster_log(p->y->cluster, 0);
	uint32_t nr = 0;

	for (const char *at = log; (at = strstr(at, "event=restored")) != NULL; at++)
		nr++;
	free(log);
	return nr;
}

/* Node c starts again without its memory. */
static void came_back(struct place *p, const struct cutter_rule *r)
{
	uint64_t until = pace_by(LIMIT_S);
	uint32_t before = restored(p);

	cluster_kill(p->y->cluster, 2);
	cutter_rule(p->k, r);
	cluster_spawn(p->y->cluster, 2);
	cluster_ready(p->y->cluster, 2);
	while (restored(p) == before) {
		if (clock_ns() > until)
			fail_msg("it did not come back from its checkpoint");
		usleep(20000);
	}
	fired(p);
	cutter_rule(p->k, NULL);
	check(p);
}

static void each(struct place *p, void (*restore)(struct place *, const struct cutter_rule *),
		 uint32_t from, uint32_t to)
{
	for (uint32_t f = from; f < to; f++) {
		/* The links of the coordinator. The other link carries none of these frames. */
		for (uint32_t of = 0; of < 2; of++) {
			for (uint32_t cut = 0; cut < 3; cut++) {
				struct cutter_rule r = {.low = links[of][0],
							.high = links[of][1],
							.op = frames[f].op,
							.reply = frames[f].reply,
							.nth = frames[f].nth,
							.cut_low = links[cut][0],
							.cut_high = links[cut][1],
							.hold = true};

				if (!all && (cut == 2 || (cut != of && f % 2 == 0) ||
					     (cut == of && of == 1)))
					continue;
				print_message("    %s of %c: %c-%c is cut\n", frames[f].name,
					      'a' + links[of][1], 'a' + links[cut][0],
					      'a' + links[cut][1]);
				restore(p, &r);
			}
		}
	}
}

static void on_request(void **state)
{
	struct place p;

	place_start(&p, *state, false);
	each(&p, asked, 0, sizeof(frames) / sizeof(frames[0]));
	place_end(&p);
}

static void at_a_definition(void **state)
{
	struct place p;

	place_start(&p, *state, true);
	each(&p, at_start, all ? 0 : 2, 7);
	place_end(&p);
}

static void after_a_loss(void **state)
{
	struct place p;

	place_start(&p, *state, false);
	each(&p, came_back, all ? 2 : 3, all ? 8 : 7);
	place_end(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(on_request, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(at_a_definition, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(after_a_loss, yard_setup, yard_teardown),
	};

	all = getenv("CHECK_ALL") != NULL && *getenv("CHECK_ALL") != 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
