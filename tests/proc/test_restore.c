// SPDX-License-Identifier: Apache-2.0
/* Restoring on more and on fewer nodes than saved: ten further steps equal the reference continued from there, moments, counters, loss scale
 * and schedule included. What is damaged, short, missing or of another model is named, and the newest good checkpoint offered. */
#include "base/check.h"
#include "ckpt/checkpoint.h"
#include "lib/crew.h"
#include "lib/keep.h"
#include "lib/proc.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

struct yard {
	struct cluster *cluster;
	struct keep keep;
	struct crew crew, next;
};

static int setup(void **state)
{
	struct yard *y = calloc(1, sizeof(*y));

	keep_init(&y->keep);
	*state = y;
	return 0;
}

static int teardown(void **state)
{
	struct yard *y = *state;

	if (y->cluster != NULL) { /* the test did not come to its end */
		cluster_dump(y->cluster);
		for (int i = 0; i < y->cluster->nodes_nr; i++)
			if (y->cluster->node[i].pid > 0) {
				cluster_signal(y->cluster, i, SIGKILL);
				cluster_wait(y->cluster, i, 5000);
			}
		cluster_stop(y->cluster);
	}
	keep_free(&y->keep);
	free(y);
	return 0;
}

static void done(struct yard *y)
{
	cluster_stop(y->cluster);
	y->cluster = NULL;
}

static void train(struct yard *y, struct crew *crew, const int *per, uint64_t last)
{
	struct cluster *c = y->cluster;

	crew->nr = 0;
	for (int n = 0; n < c->nodes_nr; n++)
		for (int i = 0; i < per[n]; i++)
			crew_add(crew, c->node[n].unix_address, (uint32_t)n);
	crew_start(crew, last);
	crew_finish(crew);
}

/* Two nodes, three ranks, seven steps. */
static void save_seven(struct yard *y, const char *model)
{
	y->cluster = cluster_start(2, model, NULL);
	crew_init(&y->crew, "m");
	train(y, &y->crew, (const int[]){2, 1, 0}, 7);
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	crew_check(&y->crew, y->cluster->node[1].unix_address, 7);
	done(y);
}

static void go_on(struct yard *y, int nodes, const int *per, int ask)
{
	const char *at;

	y->cluster = cluster_start(nodes, NULL, NULL);
	at = y->cluster->node[ask].unix_address;
	keep_must_restore(at, y->keep.dir, NULL, NULL);
	y->next = y->crew;
	crew_check(&y->next, at, 7);
	train(y, &y->next, per, 17);
	crew_check(&y->next, at, 17);
	done(y);
}

static void on_one_and_three_nodes(void **state)
{
	struct yard *y = *state;

	save_seven(y, NULL);
	go_on(y, 1, (const int[]){3, 0, 0}, 0);
	go_on(y, 3, (const int[]){1, 1, 1}, 2);
	go_on(y, 2, (const int[]){1, 2, 0}, 1);
}

/* The comparison can fail: a checkpoint of step 7 is not the reference of step 6. */
static void a_step_off_is_seen(void **state)
{
	struct yard *y = *state;
	shard_client *c;
	shard_model *m;
	uint64_t step = 6;
	float w[1];

	save_seven(y, NULL);
	y->cluster = cluster_start(1, NULL, NULL);
	keep_must_restore(y->cluster->node[0].unix_address, y->keep.dir, NULL, NULL);
	c = crew_connect(y->cluster->node[0].unix_address);
	MUST(shard_attach(c, "m", &m));
	crew_must(shard_read(m, SHARD_MASTER, 0, 0, 1, SHARD_F32, w, &step), SHARD_STALE, "an old step");
	shard_disconnect(&c);
	done(y);
}

/* --- what is wrong with a checkpoint --- */

static void refused(const char *at, const char *dir, const char *tag, const char *name, enum shard_status want, const char *part,
		    const char *offer)
{
	enum shard_status rc = keep_restore(at, dir, tag, name);

	if (rc != want || strstr(shard_error(), part) == NULL || (offer != NULL && strstr(shard_error(), offer) == NULL))
		fail_msg("%s: %s (expected %s with \"%s\" and \"%s\")", shard_name(rc), shard_error(), shard_name(want), part,
			 offer != NULL ? offer : "");
}

static void damage(void **state)
{
	static const char *const files[] = {"node-a.safetensors", "node-b.safetensors", "manifest.json"};
	struct yard *y = *state;
	const char *at;

	y->cluster = cluster_start(2, NULL, NULL);
	at = y->cluster->node[0].unix_address;
	crew_init(&y->crew, "m");
	train(y, &y->crew, (const int[]){1, 1, 0}, 4);
	keep_must_save(at, "m", y->keep.dir, NULL); /* global_step4 is good */
	for (int i = 0; i < 9; i++) {
		char tag[8];

		snprintf(tag, sizeof(tag), "bad%d", i);
		keep_must_save(at, "m", y->keep.dir, tag);
	}
	done(y);
	y->cluster = cluster_start(2, NULL, NULL);
	for (int i = 0; i < 3; i++) {
		char tag[3][8];

		for (int k = 0; k < 3; k++)
			snprintf(tag[k], sizeof(tag[k]), "bad%d", 3 * i + k);
		keep_flip(y->keep.dir, tag[0], files[i], i == 2 ? 100 : -5);
		keep_cut(y->keep.dir, tag[1], files[i], 1);
		keep_cut(y->keep.dir, tag[2], files[i], -1);
	}
	at = y->cluster->node[1].unix_address;
	for (int i = 0; i < 9; i++) {
		char tag[8];

		snprintf(tag, sizeof(tag), "bad%d", i);
		refused(at, y->keep.dir, tag, NULL, i % 3 == 2 ? SHARD_NOT_FOUND : SHARD_PROTOCOL, files[i / 3],
			"the newest complete checkpoint");
	}
	refused(at, y->keep.dir, "nothing", NULL, SHARD_NOT_FOUND, "nothing", "the newest complete checkpoint");
	refused(at, y->keep.dir, "global_step4", "other", SHARD_MISMATCH, "other", NULL);
	refused(at, "/tmp/shardd-there-is-none", NULL, NULL, SHARD_NOT_FOUND, "/tmp/shardd-there-is-none", NULL);
	refused(at, "relative", NULL, NULL, SHARD_BAD_ARG, "absolute", NULL);
	keep_must_restore(at, y->keep.dir, "global_step4", "m"); /* nothing of all that was left behind */
	crew_check(&y->crew, at, 4);
	refused(at, y->keep.dir, "global_step4", "m", SHARD_EXISTS, "force", NULL);
	done(y);
}

/* Into a model that is defined and has no weights: its layout counts. */
static void another_layout(void **state)
{
	static const struct shard_tensor mine[1] = {{.name = "wte", .ndim = 2, .shape = {37, 63}}};
	struct shard_spec s = {.size = sizeof(s),
			       .name = "m",
			       .tensors = mine,
			       .tensors_nr = 1,
			       .image = SHARD_BF16,
			       .grad = SHARD_BF16,
			       .settings = "chunk_elems=1024"};
	struct yard *y = *state;
	shard_client *c;
	shard_model *m;
	const char *at;
	int created;

	save_seven(y, NULL);
	y->cluster = cluster_start(1, NULL, NULL);
	at = y->cluster->node[0].unix_address;
	c = crew_connect(at);
	MUST(shard_define(c, &s, &m, &created));
	assert_int_equal(created, 1);
	refused(at, y->keep.dir, NULL, NULL, SHARD_MISMATCH, "tensor", NULL); /* said before who writes it counts */
	shard_disconnect(&c);
	refused(at, y->keep.dir, NULL, NULL, SHARD_MISMATCH, "tensor", NULL);
	done(y);
}

static void at_the_start(void **state)
{
	struct yard *y = *state;
	char model[256], wrong[256], dir[128];
	const char *at;

	snprintf(model, sizeof(model), "checkpoint_dir = %s\nrestore_at_start = yes\n", y->keep.dir);
	snprintf(dir, sizeof(dir), "%s/m", y->keep.dir);
	y->cluster = cluster_start(2, model, NULL); /* nothing there: it begins at 0 */
	at = y->cluster->node[0].unix_address;
	crew_init(&y->crew, "m");
	train(y, &y->crew, (const int[]){1, 1, 0}, 5);
	keep_must_save(at, "m", NULL, NULL);
	done(y);
	y->cluster = cluster_start(3, model, NULL);
	y->next = y->crew;
	crew_check(&y->next, y->cluster->node[2].unix_address, 5); /* defines: and finds it there */
	train(y, &y->next, (const int[]){1, 0, 1}, 9);
	crew_check(&y->next, y->cluster->node[1].unix_address, 9);
	done(y);
	keep_flip(dir, "global_step5", "node-a.safetensors", -9);
	y->cluster = cluster_start(1, model, NULL); /* there is one, and it is no good: not silently from 0 */
	{
		struct shard_spec s;
		char settings[256];
		shard_client *c = crew_connect(y->cluster->node[0].unix_address);
		shard_model *m;
		int created;

		crew_spec(&s, "m", settings, sizeof(settings), 2);
		crew_must(shard_define(c, &s, &m, &created), SHARD_PROTOCOL, "a damaged checkpoint at the start");
		if (strstr(shard_error(), "restore_at_start") == NULL || strstr(shard_error(), "node-a") == NULL)
			fail_msg("%s", shard_error());
		shard_disconnect(&c);
	}
	(void)wrong;
	done(y);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(on_one_and_three_nodes, setup, teardown),
		cmocka_unit_test_setup_teardown(a_step_off_is_seen, setup, teardown),
		cmocka_unit_test_setup_teardown(damage, setup, teardown),
		cmocka_unit_test_setup_teardown(another_layout, setup, teardown),
		cmocka_unit_test_setup_teardown(at_the_start, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
