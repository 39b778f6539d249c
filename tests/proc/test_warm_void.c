// SPDX-License-Identifier: Apache-2.0
/* Damage to one model's memory on one node costs that model and no other, and the log has its name
 * and the reason. The cases are a region that is gone (on the coordinator, on another node, on a
 * node without chunks), a wrong row of the page, a file without memory, memory without a file, and
 * a model that did not fit into the place that outlives the process. There are three models on
 * three nodes, and what is left trains on. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/pace.h"
#include "lib/proc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NODES = 3, MODELS = 3, BIG = 0, PROBE = 1, IDLE = 2 };

struct yard {
	struct cluster *cluster;
	struct crew crew[MODELS], more;
	uint64_t last[MODELS];
	bool mounted;
};

static const struct plan {
	const char *name, *extra;
	uint32_t scale;
	unsigned on; /* Bits of nodes that have one trainer each. */
} plans[MODELS] = {
	{"big", "chunk_elems=4096", 8, 6},   /* It has chunks on every node. */
	{"probe", "chunk_elems=8192", 1, 3}, /* It has one chunk, on the coordinator. */
	{"idle", "chunk_elems=2048", 1, 1},  /* It has one chunk per node. */
};

static int setup(void **state)
{
	*state = calloc(1, sizeof(struct yard));
	return *state == NULL;
}

static int teardown(void **state)
{
	struct yard *y = *state;

	if (y->mounted && y->cluster != NULL)
		(void)umount2(y->cluster->warm_dir, MNT_DETACH);
	cluster_put_away(&y->cluster);
	free(y);
	return 0;
}

/* --- trainers --- */

/* Trains each model for so many more steps. `without` has the bits of lost models. */
static void train(struct yard *y, uint64_t steps, unsigned without)
{
	for (int i = 0; i < MODELS; i++) {
		struct crew *c = &y->crew[i];

		if (without >> i & 1)
			continue;
		c->nr = 0;
		for (uint32_t n = 0; n < NODES; n++)
			if (plans[i].on >> n & 1)
				crew_add(c, y->cluster->node[n].unix_address, n)->reconnects = true;
		crew_start(c, y->last[i] += steps);
		crew_finish(c);
		for (int n = 0; n < NODES; n++)
			crew_check(c, y->cluster->node[n].unix_address, y->last[i]);
	}
}

static void start_all(struct yard *y)
{
	for (int n = 0; n < NODES; n++)
		cluster_spawn(y->cluster, n);
	for (int n = 0; n < NODES; n++)
		cluster_ready(y->cluster, n);
}

static void begin(struct yard *y)
{
	for (int i = 0; i < MODELS; i++) {
		crew_init(&y->crew[i], plans[i].name);
		crew_larger(&y->crew[i], plans[i].scale);
		y->crew[i].extra = plans[i].extra;
	}
	if (y->cluster == NULL) {
		y->cluster = cluster_make(NODES, NULL, NULL);
		cluster_warm(y->cluster, CLUSTER_TMPFS);
	}
	start_all(y);
	train(y, 3, 0);
}

/* --- logs --- */

static uint32_t logged(struct yard *y, int node, const char *part)
{
	char *text = cluster_log(y->cluster, node);
	uint32_t nr = 0;

	for (const char *at = text; (at = strstr(at, part)) != NULL; at++)
		nr++;
	free(text);
	return nr;
}

static void wait_logged(struct yard *y, int node, const char *part)
{
	uint64_t by = pace_by(20);

	while (logged(y, node, part) == 0) {
		if (clock_ns() > by)
			fail_msg("node %s did not log \"%s\"", y->cluster->node[node].name, part);
		usleep(2000);
	}
}

/* The model is lost on every node, node a says why, and no other model is lost. */
static void only_lost(struct yard *y, int model, const char *why)
{
	char line[64];

	snprintf(line, sizeof(line), "event=lost model=%s ", plans[model].name);
	for (int n = 0; n < NODES; n++)
		wait_logged(y, n, line);
	if (why != NULL && logged(y, 0, why) == 0)
		fail_msg("node a does not say \"%s\"", why);
	for (int i = 0; i < MODELS; i++) {
		snprintf(line, sizeof(line), "event=lost model=%s ", plans[i].name);
		assert_int_equal(logged(y, 0, line), i == model);
	}
}

static void end(struct yard *y)
{
	if (y->mounted)
		(void)umount2(y->cluster->warm_dir, MNT_DETACH);
	y->mounted = false;
	cluster_done(&y->cluster);
}

/* --- regions --- */

static uint32_t id_of(struct yard *y, int model)
{
	char *text = cluster_log(y->cluster, 0), line[64], *at;
	uint32_t id;

	snprintf(line, sizeof(line), "event=model model=%s id=", plans[model].name);
	at = strstr(text, line);
	assert_non_null(at);
	id = (uint32_t)strtoul(at + strlen(line), NULL, 10);
	free(text);
	return id;
}

/* Reads the folder of a node from the log of its first start. */
static void place_of(struct yard *y, int node, char *path, size_t bytes)
{
	char *text = cluster_log(y->cluster, node), *at = strstr(text, "place=");

	assert_non_null(at);
	at += strlen("place=");
	snprintf(path, bytes, "%.*s", (int)strcspn(at, " \n"), at);
	free(text);
}

static void remove_piece(struct yard *y, int node, int model, const char *what)
{
	char path[256], file[300];

	place_of(y, node, path, sizeof(path));
	snprintf(file, sizeof(file), "%s/%08x-%s", path, id_of(y, model), what);
	assert_int_equal(unlink(file), 0);
}

static void kill_and(struct yard *y, int node, int model, const char *what)
{
	cluster_kill(y->cluster, node);
	remove_piece(y, node, model, what);
	cluster_spawn(y->cluster, node);
	cluster_ready(y->cluster, node);
}

static void test_piece_of_member(void **state)
{
	struct yard *y = *state;

	begin(y);
	kill_and(y, 2, BIG, "state");
	only_lost(y, BIG,
		  "node c has lost its memory of this model (state of model 1: it is "
		  "not there), which held ");
	assert_int_equal(logged(y, 2, "event=model_void model=big "), 1);
	train(y, 3, 1 << BIG);
	end(y);
}

static void test_piece_of_coordinator(void **state)
{
	struct yard *y = *state;

	begin(y);
	kill_and(y, 0, IDLE, "meta");
	only_lost(y, IDLE,
		  "node a has lost its memory of this model (meta of model 3: it is "
		  "not there), which held ");
	train(y, 3, 1 << IDLE);
	end(y);
}

/* The layout of a model's row in the page of a node: whether it counts, the model's number, two
 * more words, and then the size of each region, meta first. */
enum { ROW_WORDS = 14, ROW_MODEL = 1, ROW_META = 4 };

static void change_row(struct yard *y, int node, int model,
		       void (*change)(uint32_t *row, uint32_t *other))
{
	static uint32_t text[12 * 4096 / 4];
	uint32_t row[] = {1, id_of(y, model), 0, 0}, at = 0, other = 0;
	char path[256], file[300];
	FILE *f;
	size_t n;

	place_of(y, node, path, sizeof(path));
	snprintf(file, sizeof(file), "%s/node", path);
	f = fopen(file, "r+e");
	CHECK(f != NULL);
	n = fread(text, sizeof(text[0]), sizeof(text) / sizeof(text[0]), f);
	while (memcmp(&text[at], row, sizeof(row)) != 0)
		assert_in_range(++at, 1, n - 2 * ROW_WORDS);
	other = at;
	while (text[other] == 1) /* Goes to the first free row. */
		assert_in_range(other += ROW_WORDS, 1, n - ROW_WORDS);
	change(&text[at], &text[other]);
	CHECK(fseek(f, 0, SEEK_SET) == 0 && fwrite(text, sizeof(text[0]), n, f) == n &&
	      fclose(f) == 0);
}

static void damage(uint32_t *row, uint32_t *other)
{
	(void)other;
	row[0] = 7;
}

static void without_meta(uint32_t *row, uint32_t *other)
{
	(void)other;
	row[ROW_META] = row[ROW_META + 1] = 0;
}

static void twice(uint32_t *row, uint32_t *other)
{
	memcpy(other, row, ROW_WORDS * sizeof(*row));
	other[ROW_META + 2] ^= 4096; /* The size of the state region differs. */
}

static void test_row(void **state)
{
	static const struct {
		void (*change)(uint32_t *row, uint32_t *other);
		const char *why;
		int node;
	} cases[] = {{damage, "of the page is damaged)", 2},
		     {without_meta, "of the page is damaged)", 0},
		     {twice, "(it is in the page twice)", 2}};
	struct yard *y = *state;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		memset(y, 0, sizeof(*y));
		begin(y);
		cluster_kill(y->cluster, cases[i].node);
		change_row(y, cases[i].node, BIG, cases[i].change);
		cluster_spawn(y->cluster, cases[i].node);
		cluster_ready(y->cluster, cases[i].node);
		only_lost(y, BIG, cases[i].why);
		train(y, 3, 1 << BIG);
		end(y);
	}
}

/* The node holds nothing of the model. It makes its memory of the model again, and the model is not
 * lost. */
static void test_piece_without_chunks(void **state)
{
	struct yard *y = *state;

	begin(y);
	kill_and(y, 1, PROBE, "meta");
	wait_logged(y, 1, "event=model_void model=");
	train(y, 3, 0);
	assert_int_equal(logged(y, 0, "event=lost"), 0);
	end(y);
}

/* --- files and memory that do not agree --- */

/* Memory without a file: somebody took the file away or put back an older state folder. Only an
 * operator knows which of the two, so the node does not start. When the operator gives the model up
 * on this node, it is dropped on every node, and the other models are whole. */
static void test_no_file(void **state)
{
	struct yard *y = *state;
	char path[200], left[200], aside[220];

	begin(y);
	cluster_kill(y->cluster, 0);
	snprintf(path, sizeof(path), "%s/model-%08x", y->cluster->node[0].state, id_of(y, IDLE));
	snprintf(left, sizeof(left), "%s/left-model-%08x", y->cluster->node[0].state,
		 id_of(y, IDLE));
	snprintf(aside, sizeof(aside), "%s.aside", path);
	assert_int_equal(rename(path, aside), 0);
	cluster_spawn(y->cluster, 0);
	assert_int_not_equal(cluster_wait(y->cluster, 0, 10000), 0);
	assert_int_equal(logged(y, 0, " has no file of it: it is an older copy"), 1);
	assert_int_equal(rename(aside, left), 0);
	cluster_spawn(y->cluster, 0);
	cluster_ready(y->cluster, 0);
	wait_logged(y, 1, "event=dropped model=idle ");
	wait_logged(y, 2, "event=dropped model=idle ");
	train(y, 3, 1 << IDLE);
	assert_int_equal(logged(y, 0, "event=lost"), 0);
	end(y);
}

/* --- no room --- */

/* Replaces a text in a file by one of the same length. */
static void edit(const char *path, const char *from, const char *to)
{
	FILE *f = fopen(path, "r+e");
	char text[4096], *at;
	size_t n;

	CHECK(f != NULL && strlen(from) == strlen(to));
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	at = strstr(text, from);
	CHECK(at != NULL && fseek(f, at - text, SEEK_SET) == 0 && fputs(to, f) >= 0 &&
	      fclose(f) == 0);
}

/* Shrinks the tmpfs so that only a page of it is free. */
static void fill(const char *dir)
{
	struct statvfs fs;
	char size[40];

	CHECK(statvfs(dir, &fs) == 0);
	snprintf(size, sizeof(size), "size=%lu",
		 (unsigned long)((fs.f_blocks - fs.f_bfree + 1) * fs.f_frsize));
	assert_int_equal(mount("tmpfs", dir, "tmpfs", MS_REMOUNT, size), 0);
}

/* With warm_restart = auto, a model that does not fit into warm_dir is accepted all the same. A
 * kill costs this model only. */
static void test_does_not_fit(void **state)
{
	struct yard *y = *state;

	y->cluster = cluster_make(NODES, NULL, NULL);
	cluster_warm(y->cluster, CLUSTER_TMPFS);
	for (int n = 0; n < NODES; n++)
		edit(y->cluster->node[n].conf, "warm_restart = tmpfs", "warm_restart = auto ");
	if (mount("tmpfs", y->cluster->warm_dir, "tmpfs", 0, "size=64m,mode=0700") != 0) {
		cluster_put_away(&y->cluster);
		skip(); /* Not root, or in a container. */
	}
	y->mounted = true;
	begin(y);
	fill(y->cluster->warm_dir);
	crew_init(&y->more, "more");
	crew_larger(&y->more, 16);
	crew_add(&y->more, y->cluster->node[2].unix_address, 2)->reconnects = true;
	crew_start(&y->more, 3);
	crew_finish(&y->more);
	wait_logged(y, 2, "event=warm_restart_void model=more why=");
	cluster_kill(y->cluster, 2);
	cluster_spawn(y->cluster, 2);
	cluster_ready(y->cluster, 2);
	wait_logged(y, 0, "event=lost model=more ");
	train(y, 3, 0);
	assert_int_equal(logged(y, 0, "event=lost"), 1);
	assert_int_equal(logged(y, 2, "event=warm_start"), 1);
	end(y);
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {T(test_piece_of_member),
					   T(test_piece_of_coordinator),
					   T(test_piece_without_chunks),
					   T(test_row),
					   T(test_no_file),
					   T(test_does_not_fit)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
