// SPDX-License-Identifier: Apache-2.0
/* Tests restoring on more and on fewer nodes than saved. Ten further steps must equal the reference
 * continued from there, with moments, counters, loss scale and schedule. What is damaged, short,
 * missing or of another model is named, and the newest good checkpoint is offered. */
#include "base/check.h"
#include "ckpt/checkpoint.h"
#include "lib/drill.h"
#include "lib/trainer.h"
#include "lib/yard.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* Saves a model of two nodes and three ranks after seven steps. */
static void save_seven(struct yard *y, const char *model)
{
	y->cluster = cluster_start(2, model, NULL);
	crew_init(&y->crew, "m");
	yard_train(&y->crew, y->cluster, (const int[]){2, 1, 0}, 7);
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	crew_check(&y->crew, y->cluster->node[1].unix_address, 7);
	cluster_done(&y->cluster);
}

static void go_on(struct yard *y, int nodes, const int *per, int ask)
{
	const char *at;

	y->cluster = cluster_start(nodes, NULL, NULL);
	at = y->cluster->node[ask].unix_address;
	keep_must_restore(at, y->keep.dir, NULL, NULL);
	y->next = y->crew;
	crew_check(&y->next, at, 7);
	yard_train(&y->next, y->cluster, per, 17);
	crew_check(&y->next, at, 17);
	cluster_done(&y->cluster);
}

static void on_one_and_three_nodes(void **state)
{
	struct yard *y = *state;

	save_seven(y, NULL);
	go_on(y, 1, (const int[]){3, 0, 0}, 0);
	go_on(y, 3, (const int[]){1, 1, 1}, 2);
	go_on(y, 2, (const int[]){1, 2, 0}, 1);
}

static void without_node_b(const struct cluster *c)
{
	char command[512];

	snprintf(command, sizeof(command), "sed -i '/^b = /d' %s", c->node[0].conf);
	assert_int_equal(system(command), 0);
}

/* Starts the same state folder with one node less. Its file of the model is put aside, and the
 * checkpoint makes the model again. */
static void where_there_were_more_nodes(void **state)
{
	struct yard *y = *state;
	const char *at, *left = NULL;
	struct shard_spec bare;
	struct trainer t;
	char *log, want[300];

	y->cluster = cluster_start(2, NULL, NULL);
	at = y->cluster->node[0].unix_address;
	crew_init(&y->crew, "m");
	yard_train(&y->crew, y->cluster, (const int[]){2, 1}, 7);
	keep_must_save(at, "m", y->keep.dir, NULL);
	crew_check(&y->crew, at, 7);
	trainer_spec(&bare, SHARD_BF16, SHARD_BF16);
	bare.name = "bare";
	trainer_define_as(&t, at, &bare);
	trainer_end(&t);
	for (int i = 1; i >= 0; i--) {
		cluster_signal(y->cluster, i, SIGTERM);
		assert_int_equal(cluster_wait(y->cluster, i, 10000), 0);
	}
	without_node_b(y->cluster);
	/* The file is put aside once, and is not found by the second start. */
	for (int start = 0; start < 2; start++) {
		cluster_spawn(y->cluster, 0);
		cluster_ready(y->cluster, 0);
		if (start == 0) {
			cluster_signal(y->cluster, 0, SIGTERM);
			assert_int_equal(cluster_wait(y->cluster, 0, 10000), 0);
		}
	}
	log = cluster_log(y->cluster, 0);
	assert_non_null(strstr(
		log, "event=model_left model=m why=\"it was made for 2 nodes and [nodes] has 1"));
	snprintf(want, sizeof(want), "bring the model back by `shardctl restore` from %s",
		 y->keep.dir);
	assert_non_null(strstr(log, want));
	assert_non_null(strstr(log, "event=model_left model=bare why=\"it was made for 2 nodes and "
				    "[nodes] has 1"));
	assert_non_null(strstr(log, "it was never saved, so put [nodes] back to keep it"));
	for (int i = 0; i < 2; i++)
		left = strstr(left ? left + 1 : log, "event=model_left");
	assert_null(strstr(left + 1, "event=model_left"));
	free(log);
	keep_must_restore(at, y->keep.dir, NULL, NULL);
	y->next = y->crew;
	crew_check(&y->next, at, 7);
	yard_train(&y->next, y->cluster, (const int[]){3, 0}, 17);
	crew_check(&y->next, at, 17);
	cluster_done(&y->cluster);
}

/* Shows that the comparison can fail: a checkpoint of step 7 differs from the reference of step
 * 6. */
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
	crew_must(shard_read(m, SHARD_MASTER, 0, 0, 1, SHARD_F32, w, &step), SHARD_STALE,
		  "an old step");
	shard_disconnect(&c);
	cluster_done(&y->cluster);
}

/* --- damaged checkpoints --- */

static void refused(const char *at, const char *dir, const char *tag, const char *name,
		    enum shard_status want, const char *part, const char *offer)
{
	enum shard_status rc = keep_restore(at, dir, tag, name);

	if (rc != want || strstr(shard_error(), part) == NULL ||
	    (offer != NULL && strstr(shard_error(), offer) == NULL))
		fail_msg("%s: %s (expected %s with \"%s\" and \"%s\")", shard_name(rc),
			 shard_error(), shard_name(want), part, offer != NULL ? offer : "");
}

static void damage(void **state)
{
	static const char *const files[] = {"node-a.safetensors", "node-b.safetensors",
					    "manifest.json"};
	struct yard *y = *state;
	const char *at;

	y->cluster = cluster_start(2, NULL, NULL);
	at = y->cluster->node[0].unix_address;
	crew_init(&y->crew, "m");
	yard_train(&y->crew, y->cluster, (const int[]){1, 1, 0}, 4);
	keep_must_save(at, "m", y->keep.dir, NULL);
	for (int i = 0; i < 9; i++) {
		char tag[8];

		snprintf(tag, sizeof(tag), "bad%d", i);
		keep_must_save(at, "m", y->keep.dir, tag);
	}
	cluster_done(&y->cluster);
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
		refused(at, y->keep.dir, tag, NULL, i % 3 == 2 ? SHARD_NOT_FOUND : SHARD_PROTOCOL,
			files[i / 3], "the newest complete checkpoint");
	}
	refused(at, y->keep.dir, "nothing", NULL, SHARD_NOT_FOUND, "nothing",
		"the newest complete checkpoint");
	refused(at, y->keep.dir, "global_step4", "other", SHARD_MISMATCH, "other", NULL);
	refused(at, "/tmp/shardd-there-is-none", NULL, NULL, SHARD_NOT_FOUND,
		"/tmp/shardd-there-is-none", NULL);
	refused(at, "relative", NULL, NULL, SHARD_BAD_ARG, "absolute", NULL);
	/* None of the failed restores has left anything behind. */
	keep_must_restore(at, y->keep.dir, "global_step4", "m");
	crew_check(&y->crew, at, 4);
	refused(at, y->keep.dir, "global_step4", "m", SHARD_EXISTS, "force", NULL);
	cluster_done(&y->cluster);
}

/* Restores into a model that is defined and has no weights. Its layout must match. */
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
	/* This error comes before the one about the writer. */
	refused(at, y->keep.dir, NULL, NULL, SHARD_MISMATCH, "tensor", NULL);
	shard_disconnect(&c);
	refused(at, y->keep.dir, NULL, NULL, SHARD_MISMATCH, "tensor", NULL);
	cluster_done(&y->cluster);
}

/* Makes DIR/nan from DIR/global_step7, with a last weight that is not a number. Its checksums are
 * right. */
static void save_nan(struct yard *y)
{
	char from[CHECKPOINT_PATH_MAX], to[CHECKPOINT_PATH_MAX];
	struct part_progress progress = {.done_bytes = 0};
	struct part_run run[64];
	struct part_file file;
	struct manifest *m;
	uint32_t nr = 0;
	struct err e;

	assert_int_equal(checkpoint_open(y->keep.dir, "global_step7", "m", &m, &e), SHARD_OK);
	assert_int_equal(checkpoint_path(from, y->keep.dir, "global_step7", &e), SHARD_OK);
	assert_int_equal(checkpoint_begin(to, y->keep.dir, "nan", "m", NULL, &e), SHARD_OK);
	for (uint32_t k = m->kinds_nr; k-- > 0;) {
		for (uint32_t t = 0; t < m->tensors_nr; t++) {
			uint64_t numel = 1;

			for (uint32_t d = 0; d < m->tensors[t].ndim; d++)
				numel *= m->tensors[t].shape[d];
			assert_true(nr < NR(run));
			run[nr++] = (struct part_run){.kind = m->kinds[k],
						      .tensor = m->tensors[t].name,
						      .count = numel,
						      .at = calloc(numel, sizeof(float))};
		}
	}
	assert_int_equal(part_load(from, m->files, m->files_nr, run, nr, false, &progress, &e),
			 SHARD_OK);
	assert_int_equal(run[nr - 1].kind, SHARD_MASTER);
	run[nr - 1].at[run[nr - 1].count - 1] = NAN;
	assert_int_equal(
		part_write(to, "node-a.safetensors", run, nr, NULL, 0, NULL, &file, &progress, &e),
		SHARD_OK);
	for (uint32_t i = 0; i < m->files_nr; i++)
		part_file_free(&m->files[i]);
	m->files[0] = file;
	m->files_nr = 1;
	m->blobs_nr = 0;
	assert_int_equal(checkpoint_finish(y->keep.dir, "nan", m, &e), SHARD_OK);
	while (nr > 0)
		free(run[--nr].at);
	manifest_free(&m);
}

/* Everything was read when the last weight turned out not to be a number. None of it counts as
 * written. */
static void nothing_of_a_failed_one_counts(void **state)
{
	struct yard *y = *state;
	struct shard_spec s;
	char settings[512];
	shard_client *c;
	shard_model *m;
	const char *at;
	int created;

	save_seven(y, NULL);
	save_nan(y);
	y->cluster = cluster_start(1, NULL, NULL);
	at = y->cluster->node[0].unix_address;
	c = crew_connect(at);
	crew_spec(&s, "m", settings, sizeof(settings), y->crew.nr);
	MUST(shard_define(c, &s, &m, &created));
	assert_int_equal(created, 1);
	shard_disconnect(&c);
	refused(at, y->keep.dir, "nan", NULL, SHARD_PROTOCOL, "not finite",
		"the newest complete checkpoint");
	c = crew_connect(at);
	MUST(shard_define(c, &s, &m, &created));
	assert_int_equal(created, 1);
	crew_must(shard_seal(m, 0), SHARD_MISSING, "seal");
	assert_non_null(strstr(shard_error(), "\"wte\" at 0"));
	shard_disconnect(&c);
	cluster_done(&y->cluster);
}

static void at_the_start(void **state)
{
	struct yard *y = *state;
	char model[256], dir[128];
	const char *at;

	snprintf(model, sizeof(model), "checkpoint_dir = %s\nrestore_at_start = yes\n",
		 y->keep.dir);
	snprintf(dir, sizeof(dir), "%s/m", y->keep.dir);
	/* There is no checkpoint, so it begins at step 0. */
	y->cluster = cluster_start(2, model, NULL);
	at = y->cluster->node[0].unix_address;
	crew_init(&y->crew, "m");
	yard_train(&y->crew, y->cluster, (const int[]){1, 1, 0}, 5);
	keep_must_save(at, "m", NULL, NULL);
	cluster_done(&y->cluster);
	y->cluster = cluster_start(3, model, NULL);
	y->next = y->crew;
	/* It defines the model, which is restored. */
	crew_check(&y->next, y->cluster->node[0].unix_address, 5);
	yard_train(&y->next, y->cluster, (const int[]){1, 0, 1}, 9);
	crew_check(&y->next, y->cluster->node[1].unix_address, 9);
	cluster_done(&y->cluster);
	keep_flip(dir, "global_step5", "node-a.safetensors", -9);
	/* There is a checkpoint and it is damaged. The model must not begin at step 0 without a
	 * word. */
	y->cluster = cluster_start(1, model, NULL);
	{
		struct shard_spec s;
		char settings[256];
		shard_client *c = crew_connect(y->cluster->node[0].unix_address);
		shard_model *m;
		int created;

		crew_spec(&s, "m", settings, sizeof(settings), 2);
		/* At once, while the model before it is still being dropped. */
		for (int i = 0; i < 5; i++) {
			crew_must(shard_define(c, &s, &m, &created), SHARD_PROTOCOL,
				  "a damaged checkpoint at the start");
			if (strstr(shard_error(), "restore_at_start") == NULL ||
			    strstr(shard_error(), "node-a") == NULL)
				fail_msg("%s", shard_error());
		}
		shard_disconnect(&c);
	}
	cluster_done(&y->cluster);
}

/* --- state beside weights: counters, loss scale, schedule, what operators tuned --- */

struct told { /* What a trainer was told of one step. */
	double scale, lr;
	uint64_t applied, outcome;
};

#define FP16                                                                                       \
	"optimizer=adamw chunk_elems=1024 timeout=20s min_world=2 max_world=2 "                    \
	"initial_scale_power=4 loss_scale_window=2 "                                               \
	"min_loss_scale=1 schedule=WarmupLR warmup_num_steps=6 warmup_max_lr=0.5 clip=1"

static void half(struct drill_yard *y, struct told *told, int from, int to, float *w)
{
	static const bool overflow[8] = {true, true, false, false, false, true, true, false};
	struct drill_cmd define = {.op = DRILL_DEFINE, .grad = SHARD_F16, .text = FP16};
	struct drill *t[2];

	for (int i = 0; i < 2; i++) {
		t[i] = drill_new(y, y->cluster->node[i % y->cluster->nodes_nr].unix_address);
		drill_expect(t[i], SHARD_OK, define);
		assert_int_equal(t[i]->last.created, from == 0 && i == 0);
		if (t[i]->last.created) {
			DRILL(t[i], SHARD_OK, .op = DRILL_WRITE);
			DRILL(t[i], SHARD_OK, .op = DRILL_SEAL);
		}
		DRILL_SEND(t[i], .op = DRILL_JOIN, .hint = i);
	}
	for (int i = 0; i < 2; i++)
		drill_get(t[i], SHARD_OK);
	assert_int_equal(t[0]->last.world.step, from + 1);
	for (int s = from; s < to; s++) {
		for (int i = 0; i < 2; i++)
			DRILL(t[i], SHARD_OK, .op = DRILL_BEGIN);
		for (int i = 0; i < 2; i++) {
			DRILL(t[i], SHARD_OK, .op = DRILL_PUSH, .grad = SHARD_F16, .first = 0,
			      .count = 1, .spoil = overflow[s] && i == 1, .bad = 1e6f);
			DRILL(t[i], SHARD_OK, .op = DRILL_PUSH, .grad = SHARD_F16, .first = 1,
			      .count = 3);
		}
		for (int i = 0; i < 2; i++)
			DRILL(t[i], SHARD_OK, .op = DRILL_COMMIT);
		for (int i = 0; i < 2; i++)
			DRILL(t[i], SHARD_OK, .op = DRILL_RESULT);
		told[s] = (struct told){t[0]->last.result.next_loss_scale, t[0]->last.result.lr,
					t[0]->last.result.applied,
					(uint64_t)t[0]->last.result.outcome};
	}
	DRILL(t[1], SHARD_OK, .op = DRILL_READ, .kind = SHARD_MASTER);
	memcpy(w, t[1]->shared->w, DRILL_NUMEL * sizeof(*w));
	for (int i = 0; i < 2; i++)
		drill_end(t[i]);
}

static void counters_scale_and_schedule(void **state)
{
	static float whole[DRILL_NUMEL], halves[DRILL_NUMEL];
	struct told a[8], b[8];
	struct drill_yard *y = *state;
	struct keep keep;

	keep_init(&keep);
	y->cluster = cluster_start(2, NULL, NULL);
	half(y, a, 0, 8, whole);
	cluster_stop(y->cluster);
	y->cluster = cluster_start(2, NULL, NULL);
	half(y, b, 0, 5, halves);
	keep_must_save(y->cluster->node[0].unix_address, "m", keep.dir, NULL);
	cluster_stop(y->cluster);
	/* Two nodes, because the sums of the uninterrupted run were taken over two nodes, too. */
	y->cluster = cluster_start(2, NULL, NULL);
	keep_must_restore(y->cluster->node[0].unix_address, keep.dir, NULL, NULL);
	half(y, b, 5, 8, halves);
	cluster_done(&y->cluster);
	for (int s = 0; s < 8; s++)
		if (memcmp(&a[s], &b[s], sizeof(a[s])) != 0)
			fail_msg("step %d: scale %g, lr %g, applied %lu, outcome %lu; through a "
				 "checkpoint %g, %g, %lu, %lu",
				 s + 1, a[s].scale, a[s].lr, (unsigned long)a[s].applied,
				 (unsigned long)a[s].outcome, b[s].scale, b[s].lr,
				 (unsigned long)b[s].applied, (unsigned long)b[s].outcome);
	assert_memory_equal(whole, halves, sizeof(whole));
	keep_free(&keep);
}

/* A key that the configuration pins stays as pinned. The folder of checkpoints comes from the
 * configuration, too. */
static void pinned(void **state)
{
	struct yard *y = *state;
	shard_client *c;
	char json[65536];
	size_t bytes = sizeof(json);

	save_seven(y, "checkpoint_dir = /tmp/elsewhere\n");
	y->cluster = cluster_start(1,
				   "weight_decay = 0.25\nclip = 3\npinned = "
				   "weight_decay\ncheckpoint_dir = /tmp/here\n",
				   NULL);
	keep_must_restore(y->cluster->node[0].unix_address, y->keep.dir, NULL, NULL);
	c = crew_connect(y->cluster->node[0].unix_address);
	MUST(shard_stats(c, json, &bytes));
	shard_disconnect(&c);
	assert_non_null(strstr(json, "weight_decay=0.25"));
	assert_non_null(strstr(json, "checkpoint_dir=/tmp/here"));
	assert_non_null(strstr(json, "clip=0")); /* It is only a default of the configuration. */
	assert_non_null(strstr(json, "\"state\":\"idle\""));
	assert_non_null(strstr(json, "global_step7"));
	cluster_done(&y->cluster);
}

/* A restore refuses what a node has no room for, as a definition does. */
static void too_many_trainers(void **state)
{
	struct yard *y = *state;

	save_seven(y, NULL);
	y->cluster = cluster_start(1, "max_world = 65\npinned = max_world,local_world\n", NULL);
	refused(y->cluster->node[0].unix_address, y->keep.dir, NULL, NULL, SHARD_BAD_ARG,
		"local_world 65: at most 256 and 64", NULL);
	cluster_done(&y->cluster);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(on_one_and_three_nodes, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(where_there_were_more_nodes, yard_setup,
						yard_teardown),
		cmocka_unit_test_setup_teardown(a_step_off_is_seen, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(damage, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(another_layout, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(nothing_of_a_failed_one_counts, yard_setup,
						yard_teardown),
		cmocka_unit_test_setup_teardown(at_the_start, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(pinned, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(too_many_trainers, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(counters_scale_and_schedule, drill_setup,
						drill_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
