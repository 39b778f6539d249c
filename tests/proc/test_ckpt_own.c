// SPDX-License-Identifier: Apache-2.0
/* Tests which checkpoints a model takes by itself. Names of models and folders repeat, so a folder
 * may hold checkpoints of other runs and other clusters, also of later steps. After LOST only the
 * model's own checkpoints come back, and pruning removes only them. restore_at_start begins again
 * from nothing only where there is no checkpoint. When an older checkpoint replaces a damaged one,
 * the log and the status say so. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "lib/tool.h"
#include "lib/yard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { ELEMS = 64 };

static shard_client *define(const struct cluster *c, shard_model **m, enum shard_status *rc,
			    int *created)
{
	static const struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {ELEMS}};
	const struct shard_spec spec = {.size = sizeof(spec),
					.name = "m",
					.tensors = &tensor,
					.tensors_nr = 1,
					.image = SHARD_F32,
					.grad = SHARD_F32,
					.settings = "optimizer=sgd"};
	shard_client *client = crew_connect(c->node[0].unix_address);
	uint64_t until = pace_by(20);

	/* A model that was refused or dropped may still be going away. */
	do
		*rc = shard_define(client, &spec, m, created);
	while (*rc == SHARD_BUSY && clock_ns() < until);
	return client;
}

/* Begins a run. All weights are `value`, at `step`. */
static void begin(const struct cluster *c, float value, uint64_t step)
{
	float w[ELEMS];
	enum shard_status rc;
	shard_model *m;
	int created = 0;
	shard_client *client = define(c, &m, &rc, &created);

	crew_must(rc, SHARD_OK, "define");
	assert_int_equal(created, 1);
	for (int i = 0; i < ELEMS; i++)
		w[i] = value;
	MUST(shard_write(m, SHARD_MASTER, 0, 0, ELEMS, SHARD_F32, w));
	MUST(shard_seal(m, step));
	shard_disconnect(&client);
}

static void save(const struct cluster *c)
{
	keep_must_save(c->node[0].unix_address, "m", NULL, NULL);
}

static void drop(const struct cluster *c)
{
	shard_client *client = crew_connect(c->node[0].unix_address);

	MUST(shard_drop(client, "m", 1));
	shard_disconnect(&client);
}

static void must_be(const struct cluster *c, float value)
{
	shard_client *client = crew_connect(c->node[0].unix_address);
	float w[ELEMS];
	uint64_t step = 0;
	shard_model *m;

	MUST(shard_attach(client, "m", &m));
	MUST(shard_read(m, SHARD_MASTER, 0, 0, ELEMS, SHARD_F32, w, &step));
	for (int i = 0; i < ELEMS; i++)
		if (w[i] != value)
			fail_msg("weight %d is %g, not %g", i, (double)w[i], (double)value);
	shard_disconnect(&client);
}

/* Kills the daemon. Its memory does not outlive it, so every model is lost. */
static void lose(struct cluster *c, const char *then, uint32_t times)
{
	cluster_kill(c, 0);
	cluster_spawn(c, 0);
	cluster_ready(c, 0);
	cluster_wait_log(c, 0, then, times);
}

static void in_folder(const struct yard *y, const char *command)
{
	char all[300];

	snprintf(all, sizeof(all), "cd %s && %s", y->keep.dir, command);
	assert_int_equal(system(all), 0);
}

static void start(struct yard *y, const char *more)
{
	char model[256];

	snprintf(model, sizeof(model), "checkpoint_dir = %s\n%s", y->keep.dir, more);
	y->cluster = cluster_start(1, model, NULL);
}

static void another_run_is_not_its_own(void **state)
{
	struct yard *y = *state;
	char dir[80];
	enum shard_status rc;
	shard_client *client;
	shard_model *m;
	int created;

	snprintf(dir, sizeof(dir), "%s/m", y->keep.dir);
	start(y, "");
	begin(y->cluster, 1, 50);
	save(y->cluster);
	drop(y->cluster);
	begin(y->cluster, 2, 5);
	save(y->cluster);
	in_folder(y, "rm m/latest");
	lose(y->cluster, "event=restored model=m", 1);
	must_be(y->cluster, 2);
	keep_flip(dir, "global_step5", "manifest.json", 300);
	lose(y->cluster, "event=no_way_back model=m", 1);
	cluster_wait_log(y->cluster, 0, "event=lost model=m generation=4", 1);
	client = define(y->cluster, &m, &rc, &created);
	crew_must(rc, SHARD_LOST, "define");
	assert_non_null(strstr(shard_error(), "global_step5"));
	shard_disconnect(&client);
	/* An operator restores it explicitly. From then on it is the model's own. */
	keep_must_restore(y->cluster->node[0].unix_address, dir, "global_step50", NULL);
	must_be(y->cluster, 1);
	lose(y->cluster, "event=restored model=m", 3);
	must_be(y->cluster, 1);
	cluster_done(&y->cluster);
}

/* After an operator set a model back, the later steps are not its own any more. */
static void what_it_was_set_back_from(void **state)
{
	static const int one[] = {1};
	struct yard *y = *state;
	char words[300];
	const char *at;

	start(y, "");
	at = y->cluster->node[0].unix_address;
	crew_init(&y->crew, "m");
	yard_train(&y->crew, y->cluster, one, 3);
	save(y->cluster);
	y->next = y->crew;
	yard_train(&y->next, y->cluster, one, 6);
	save(y->cluster);
	snprintf(words, sizeof(words), "restore %s/m --tag global_step3 --force --address %s",
		 y->keep.dir, at);
	tool_expect(0, "", "shardctl", words);
	lose(y->cluster, "event=restored model=m", 2);
	crew_check(&y->crew, at, 3);
	cluster_done(&y->cluster);
}

static void another_cluster_is_not_its_own(void **state)
{
	struct yard *y = *state;
	char model[256];

	start(y, "");
	snprintf(model, sizeof(model), "checkpoint_dir = %s\n", y->keep.dir);
	y->other = cluster_start(1, model, NULL);
	begin(y->cluster, 1, 10);
	save(y->cluster);
	begin(y->other, 2, 30);
	save(y->other);
	lose(y->cluster, "event=restored model=m", 1);
	must_be(y->cluster, 1);
	cluster_done(&y->cluster);
	cluster_done(&y->other);
}

static void no_good_at_the_start(void **state)
{
	static const struct {
		const char *harm, *text;
		enum shard_status rc;
	} cases[] = {
		{"printf X | dd of=m/global_step20/manifest.json bs=1 seek=300 conv=notrunc "
		 "status=none",
		 "damaged", SHARD_PROTOCOL},
		{"truncate -s 200 m/global_step20/manifest.json", "damaged", SHARD_PROTOCOL},
		{"rm m/global_step20/manifest.json", "is not there", SHARD_PROTOCOL},
		{"rm m/global_step20/node-a.safetensors", "node-a", SHARD_PROTOCOL},
		{"truncate -s 100 m/global_step20/node-a.safetensors", "node-a", SHARD_PROTOCOL},
		{"rm -r m/global_step20", "global_step20", SHARD_PROTOCOL},
		{"rm m/latest m/global_step20/manifest.json", "global_step20", SHARD_PROTOCOL},
		{"printf .. > m/latest", "latest", SHARD_PROTOCOL},
		{"mv m n && ln -s n m", "leads through a link", SHARD_DENIED},
	};
	struct yard *y = *state;
	enum shard_status rc;
	shard_client *client;
	shard_model *m;
	int created;

	start(y, "restore_at_start = yes\n");
	begin(y->cluster, 1, 20); /* There is no checkpoint. */
	cluster_wait_log(y->cluster, 0, "event=begins_anew model=m", 1);
	save(y->cluster);
	in_folder(y, "cp -a m good");
	for (size_t i = 0; i <= NR(cases); i++) {
		drop(y->cluster);
		in_folder(y, "rm -rf m n && cp -a good m");
		if (i < NR(cases)) {
			in_folder(y, cases[i].harm);
			client = define(y->cluster, &m, &rc, &created);
			if (rc != cases[i].rc || strstr(shard_error(), cases[i].text) == NULL ||
			    strstr(shard_error(), "restore_at_start: ") == NULL ||
			    strstr(shard_error(), "shardctl restore") == NULL)
				fail_msg("%s: %s: %s", cases[i].harm, shard_name(rc),
					 rc != SHARD_OK ? shard_error() : "");
			shard_disconnect(&client);
			in_folder(y, "rm -rf m n && cp -a good m");
		}
		client = define(y->cluster, &m, &rc, &created);
		crew_must(rc, SHARD_OK, "define");
		assert_int_equal(created, 0);
		shard_disconnect(&client);
		must_be(y->cluster, 1);
	}
	cluster_done(&y->cluster);
}

static void an_older_one_is_said(void **state)
{
	static const int one[] = {1};
	struct yard *y = *state;
	char dir[80];
	char *log;

	snprintf(dir, sizeof(dir), "%s/m", y->keep.dir);
	start(y, "");
	crew_init(&y->crew, "m");
	yard_train(&y->crew, y->cluster, one, 3);
	save(y->cluster);
	y->next = y->crew;
	yard_train(&y->next, y->cluster, one, 6);
	save(y->cluster);
	keep_flip(dir, "global_step6", "manifest.json", 300);
	lose(y->cluster, "event=restored model=m", 1);
	log = cluster_log(y->cluster, 0);
	if (strstr(log, "event=older_checkpoint model=m") == NULL ||
	    strstr(log, "m/global_step6/manifest.json: damaged") == NULL)
		fail_msg("%s", log);
	free(log);
	cluster_says(y->cluster, 0, "m/global_step3 was restored: ");
	cluster_says(y->cluster, 0, "m/global_step6/manifest.json: damaged");
	cluster_done(&y->cluster);
}

static void pruning_takes_its_own(void **state)
{
	static const int one[] = {1};
	struct yard *y = *state;
	uint64_t until = pace_by(20);
	char dir[80];

	snprintf(dir, sizeof(dir), "%s/m", y->keep.dir);
	start(y, "checkpoint_every = 3\nkeep_latest = 2\n");
	begin(y->cluster, 1, 50);
	save(y->cluster);
	drop(y->cluster);
	crew_init(&y->crew, "m");
	yard_train(&y->crew, y->cluster, one, 3);
	cluster_wait_log(y->cluster, 0, "event=saved model=m", 2);
	y->next = y->crew;
	yard_train(&y->next, y->cluster, one, 6);
	cluster_wait_log(y->cluster, 0, "event=saved model=m", 3);
	y->crew = y->next;
	yard_train(&y->crew, y->cluster, one, 9);
	cluster_wait_log(y->cluster, 0, "event=saved model=m", 4);
	while (keep_count(dir) > 3 && clock_ns() < until)
		usleep(10000);
	in_folder(y, "test -d m/global_step50 -a -d m/global_step9 -a -d m/global_step6 -a "
		     "! -e m/global_step3");
	cluster_done(&y->cluster);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(another_run_is_not_its_own, yard_setup,
						yard_teardown),
		cmocka_unit_test_setup_teardown(what_it_was_set_back_from, yard_setup,
						yard_teardown),
		cmocka_unit_test_setup_teardown(another_cluster_is_not_its_own, yard_setup,
						yard_teardown),
		cmocka_unit_test_setup_teardown(no_good_at_the_start, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(an_older_one_is_said, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(pruning_takes_its_own, yard_setup, yard_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
