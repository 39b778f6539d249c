// SPDX-License-Identifier: Apache-2.0
/* Three real daemons that elect their coordinator lose all their memory at once. The value of the
 * register names the model, and each node has its definition on disk. So the model is there again
 * without a trainer that defines it: a checkpoint brings its weights back, by itself or by order,
 * and the further steps equal the reference bit by bit. Tests also files that must not be used: of
 * a model that was dropped while its node was away, damaged ones, one that is another definition,
 * and a disk that takes no more. tests/proc/test_elected_etcd.c has the same with etcd. */
#include "base/check.h"
#include "base/clock.h"
#include "cluster/static.h"
#include "lib/drill.h"
#include "lib/pace.h"
#include "lib/tool.h"
#include "lib/yard.h"
#include "shard.pb-c.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define QUORUM "[cluster]\nmembership = quorum\nelection_timeout = 300ms\nheartbeat_timeout = 2s\n"

static const int per[] = {1, 1, 0};

static void kill_all(struct cluster *c)
{
	for (int n = 0; n < c->nodes_nr; n++)
		if (c->node[n].pid != 0)
			cluster_kill(c, n);
}

static uint32_t logged(struct cluster *c, const char *part)
{
	uint32_t nr = 0;

	for (int n = 0; n < c->nodes_nr; n++)
		nr += cluster_logged(c, n, part);
	return nr;
}

static void await(struct cluster *c, const char *part, uint32_t times)
{
	uint64_t until = pace_by(20);

	while (logged(c, part) < times) {
		if (clock_ns() > until)
			fail_msg("the nodes have not logged \"%s\" %u times", part, times);
		usleep(10000);
	}
}

/* How many definitions a node has on disk. The path is that of one of them. */
static int files_of(const struct cluster *c, int n, char *path, size_t bytes)
{
	DIR *dir = opendir(c->node[n].state);
	int nr = 0;

	CHECK(dir != NULL);
	for (struct dirent *it; (it = readdir(dir)) != NULL;) {
		if (strncmp(it->d_name, "definition-", 11) != 0)
			continue;
		snprintf(path, bytes, "%s/%s", c->node[n].state, it->d_name);
		nr++;
	}
	closedir(dir);
	return nr;
}

static void await_files(const struct cluster *c, int n, int nr)
{
	uint64_t until = pace_by(20);
	char path[400];

	while (files_of(c, n, path, sizeof(path)) != nr) {
		if (clock_ns() > until)
			fail_msg("node %d does not have %d definitions on disk", n, nr);
		usleep(10000);
	}
}

static void run(struct yard *y, const char *extra)
{
	y->cluster = cluster_start(3, NULL, extra);
	crew_init(&y->crew, "m");
	y->crew.extra = "replicas=2";
	yard_add(&y->crew, y->cluster, per, true);
	crew_start(&y->crew, 5);
	(void)crew_finish(&y->crew);
}

/* The crew goes on after a restore of its last step. */
static void goes_on(struct yard *y, uint64_t last)
{
	crew_start(&y->crew, last);
	(void)crew_finish(&y->crew);
	for (int n = 0; n < 3; n++)
		crew_check(&y->crew, y->cluster->node[n].unix_address, last);
}

static enum shard_status define(struct yard *y, int *created)
{
	shard_client *client = crew_connect(y->cluster->node[1].unix_address);
	enum shard_status st = SHARD_BUSY;
	uint64_t until = pace_by(20);
	char settings[256];
	struct shard_spec s;
	shard_model *m;

	crew_spec(&s, "m", settings, sizeof(settings), y->crew.nr);
	strcat(settings, " replicas=2");
	while ((st == SHARD_BUSY || st == SHARD_UNREACHABLE) && clock_ns() < until) {
		usleep(20000);
		st = shard_define(client, &s, &m, created);
	}
	shard_disconnect(&client);
	return st;
}

static void drop(struct yard *y, int n, const char *force)
{
	char words[300];

	snprintf(words, sizeof(words), "model drop m %s--address %s", force,
		 y->cluster->node[n].unix_address);
	tool_expect(0, "", "shardctl", words);
}

/* The folder of its last save is in the value, too. */
static void test_comes_back(void **state)
{
	struct yard *y = *state;

	run(y, QUORUM);
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	for (uint64_t k = 0; k < 2; k++) {
		kill_all(y->cluster);
		cluster_up(y->cluster);
		/* Nobody has defined it. */
		await(y->cluster, "event=model_known", (uint32_t)k + 1);
		await(y->cluster, "event=restored model=m", (uint32_t)k + 1);
		goes_on(y, 5 + 3 * (k + 1));
		keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	}
	cluster_done(&y->cluster);
}

/* A fourth node has joined since the model was made, and is gone with the memory of all. */
static void test_grown(void **state)
{
	struct yard *y = *state;
	int d;

	run(y, QUORUM "lost_timeout = 4s\n");
	d = cluster_joiner(y->cluster, 1, NULL);
	cluster_spawn(y->cluster, d);
	cluster_ready(y->cluster, d);
	cluster_wait_log(y->cluster, d, "event=learned", 1);
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	kill_all(y->cluster);
	for (int n = 0; n < d; n++)
		cluster_spawn(y->cluster, n);
	await(y->cluster, "event=model_known", 1);
	await(y->cluster, "event=restored model=m", 1);
	goes_on(y, 8);
	assert_int_equal(logged(y->cluster, "event=definition_bad"), 0);
	cluster_done(&y->cluster);
}

/* No checkpoint is where the last one was saved. The model waits for an operator. */
static void test_restored_by_order(void **state)
{
	struct yard *y = *state;
	char elsewhere[64];
	int created;

	run(y, QUORUM);
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	kill_all(y->cluster);
	snprintf(elsewhere, sizeof(elsewhere), "%.50s-moved", y->keep.dir);
	CHECK(rename(y->keep.dir, elsewhere) == 0);
	snprintf(y->keep.dir, sizeof(y->keep.dir), "%s", elsewhere);
	cluster_up(y->cluster);
	for (int n = 0; n < 3; n++)
		cluster_says(y->cluster, n, "\"state\":\"lost\"");
	assert_int_equal(define(y, &created), SHARD_LOST);
	assert_non_null(strstr(shard_error(), "shardctl restore DIR"));
	keep_must_restore(y->cluster->node[2].unix_address, y->keep.dir, NULL, NULL);
	goes_on(y, 9);
	/* The same after all of them start again: the restore is what the value names now. */
	kill_all(y->cluster);
	cluster_up(y->cluster);
	await(y->cluster, "event=model_known", 2);
	cluster_done(&y->cluster);
}

/* It was never saved. An operator may give it up as any other model, and define it anew. */
static void test_given_up(void **state)
{
	struct yard *y = *state;
	uint64_t until = pace_by(20);
	int created = 0;

	run(y, QUORUM);
	kill_all(y->cluster);
	cluster_up(y->cluster);
	/* Nobody may begin it anew before it is known what became of its weights, nor after. */
	while (define(y, &created) == SHARD_OK && clock_ns() < until)
		assert_int_equal(created, 0);
	for (int n = 0; n < 3; n++)
		cluster_says(y->cluster, n, "\"state\":\"lost\"");
	assert_int_equal(define(y, &created), SHARD_LOST);
	drop(y, 2, "");
	for (int n = 0; n < 3; n++)
		await_files(y->cluster, n, 0);
	assert_int_equal(define(y, &created), SHARD_OK);
	assert_int_equal(created, 1);
	cluster_done(&y->cluster);
}

/* A node is away while the model is dropped, and another one is replaced by a new machine before.
 * The first has a file of a model that is gone, and the second got one with the model. */
static void test_away(void **state)
{
	struct yard *y = *state;
	char path[400];
	int created;

	run(y, QUORUM);
	cluster_kill(y->cluster, 2);
	assert_int_equal(files_of(y->cluster, 2, path, sizeof(path)), 1);
	CHECK(unlink(path) == 0);
	cluster_spawn(y->cluster, 2);
	await_files(y->cluster, 2, 1);
	kill_all(y->cluster);
	cluster_up(y->cluster);
	await(y->cluster, "event=model_known", 1);
	await(y->cluster, "event=lost ", 2); /* Node c may be out of the view. */
	cluster_kill(y->cluster, 0);
	assert_int_equal(define(y, &created), SHARD_LOST);
	drop(y, 1, "--force ");
	await_files(y->cluster, 1, 0);
	await_files(y->cluster, 2, 0);
	assert_int_equal(files_of(y->cluster, 0, path, sizeof(path)), 1);
	kill_all(y->cluster); /* So it may be node a that is elected next. */
	cluster_up(y->cluster);
	await_files(y->cluster, 0, 0);
	cluster_wait_log(y->cluster, 0, "event=definition_gone", 1);
	assert_int_equal(logged(y->cluster, "event=model_known"), 1);
	assert_int_equal(define(y, &created), SHARD_OK);
	assert_int_equal(created, 1);
	cluster_done(&y->cluster);
}

static int leader(struct cluster *c)
{
	static const char part[] = "event=leading term=";
	unsigned long best = 0;
	int found = 0;

	for (int n = 0; n < c->nodes_nr; n++) {
		char *log = cluster_log(c, n);

		for (char *at = log; (at = strstr(at, part)) != NULL; at++) {
			unsigned long term = strtoul(at + sizeof(part) - 1, NULL, 10);

			found = term > best ? n : found;
			best = term > best ? term : best;
		}
		free(log);
	}
	return found;
}

static int restore_by_force(void *arg)
{
	const struct yard *y = arg;
	char words[300];

	snprintf(words, sizeof(words), "restore %s --force --address %s", y->keep.dir,
		 y->cluster->node[leader(y->cluster)].unix_address);
	(void)tool_run(NULL, "shardctl", words);
	return 0;
}

/* The coordinator dies in the middle of a restore that an operator ordered, and no other node has
 * begun it. Who coordinates then does not choose another checkpoint: the operator does. */
static void test_restore_cut(void **state)
{
	struct yard *y = *state;
	int leads, stopped;
	pid_t pid;

	run(y, QUORUM);
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	leads = leader(y->cluster);
	stopped = (leads + 1) % 3;
	cluster_signal(y->cluster, stopped, SIGSTOP);
	pid = proc_fork(restore_by_force, y);
	cluster_wait_log(y->cluster, leads, "restoring=1", 1);
	cluster_kill(y->cluster, leads);
	cluster_signal(y->cluster, stopped, SIGCONT);
	proc_expect_exit(pid, 0, 30000);
	await(y->cluster, "event=restore_cut", 1);
	cluster_spawn(y->cluster, leads);
	cluster_ready(y->cluster, leads);
	for (int n = 0; n < 3; n++)
		cluster_says(y->cluster, n, "\"state\":\"lost\"");
	assert_int_equal(logged(y->cluster, "event=restored model=m"), 0);
	keep_must_restore(y->cluster->node[stopped].unix_address, y->keep.dir, NULL, NULL);
	goes_on(y, 9);
	cluster_done(&y->cluster);
}

/* A node is out of the view when all of them lose their memory. A restore does not wait for it, and
 * afterwards it catches up. */
static void test_out_of_the_view(void **state)
{
	struct yard *y = *state;
	char elsewhere[64];

	run(y, QUORUM);
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	cluster_kill(y->cluster, 2);
	await(y->cluster, "sealed=1 step=5", 1);
	kill_all(y->cluster);
	snprintf(elsewhere, sizeof(elsewhere), "%.50s-moved", y->keep.dir);
	CHECK(rename(y->keep.dir, elsewhere) == 0);
	snprintf(y->keep.dir, sizeof(y->keep.dir), "%s", elsewhere);
	cluster_up(y->cluster);
	await(y->cluster, "restoring=0", 2);
	keep_must_restore(y->cluster->node[1].unix_address, y->keep.dir, NULL, NULL);
	goes_on(y, 9);
	cluster_done(&y->cluster);
}

static void damage(const char *path, long at)
{
	int fd = open(path, O_RDWR);
	struct stat s;
	char byte;

	CHECK(fd >= 0 && fstat(fd, &s) == 0);
	at = at < 0 ? s.st_size + at : at;
	CHECK(pread(fd, &byte, 1, at) == 1);
	byte ^= 4;
	CHECK(pwrite(fd, &byte, 1, at) == 1);
	close(fd);
}

/* Two of the files are damaged. Whoever leads, the model comes back by the third, and the damaged
 * ones are replaced. */
static void test_damaged(void **state)
{
	struct yard *y = *state;
	char path[3][400], words[300];
	int created;

	run(y, QUORUM);
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	kill_all(y->cluster);
	for (int n = 0; n < 3; n++)
		assert_int_equal(files_of(y->cluster, n, path[n], sizeof(path[n])), 1);
	damage(path[0], -7);
	CHECK(truncate(path[1], 11) == 0);
	cluster_up(y->cluster);
	await(y->cluster, "event=restored model=m", 1);
	assert_int_equal(cluster_logged(y->cluster, 0, "event=definition_bad"), 1);
	assert_int_equal(cluster_logged(y->cluster, 1, "event=definition_bad"), 1);
	assert_int_equal(cluster_logged(y->cluster, 2, "event=definition_bad"), 0);
	assert_int_equal(cluster_logged(y->cluster, 2, "event=model_known"), 1);
	goes_on(y, 8);
	/* They are whole again. Now all three are damaged, and the sentence names the file. */
	kill_all(y->cluster);
	for (int n = 0; n < 3; n++)
		damage(path[n], -7);
	cluster_up(y->cluster);
	assert_int_equal(define(y, &created), SHARD_LOST);
	drill_text(shard_error(), "is damaged (its sum is wrong)");
	snprintf(words, sizeof(words), "model drop m --address %s",
		 y->cluster->node[2].unix_address);
	tool_expect(5, "--force", "shardctl", words); /* Nobody knows whose it is. */
	for (int n = 0; n < 3; n++)
		assert_int_equal(cluster_logged(y->cluster, n, "event=definition_bad"),
				 n < 2 ? 2 : 1);
	/* A checkpoint has a definition of its own. */
	keep_must_restore(y->cluster->node[1].unix_address, y->keep.dir, NULL, NULL);
	for (int n = 0; n < 3; n++)
		await_files(y->cluster, n, 1);
	cluster_done(&y->cluster);
}

struct change {
	struct static_dir *dir;
	bool generation;
};

static enum shard_status rewrite(void *arg, uint32_t id, const void *bytes, size_t bytes_nr,
				 struct err *e)
{
	Shard__ModelFile *f = shard__model_file__unpack(NULL, bytes_nr, bytes);
	const struct change *c = arg;
	enum shard_status st;
	uint8_t *packed;
	size_t nr;

	assert_non_null(f);
	if (c->generation)
		f->model->generation += 10;
	else
		f->model->spec->tensors[0]->flags ^= 1;
	nr = shard__model_file__get_packed_size(f);
	packed = malloc(nr);
	assert_non_null(packed);
	shard__model_file__pack(f, packed);
	st = static_define(c->dir, id, packed, nr, e);
	free(packed);
	shard__model_file__free_unpacked(f, NULL);
	return st;
}

/* Nodes a and b have files with a right sum that are not of this model as the value has it: another
 * definition, or one of a newer value. Who of them leads is named, and makes nothing of it. Node c
 * has the right file, and leads when it is up. */
static void differs(struct yard *y, bool generation)
{
	uint32_t made = logged(y->cluster, "event=model_known"),
		 back = logged(y->cluster, "event=restored model=m");
	struct err e;
	int created;

	kill_all(y->cluster);
	for (int n = 0; n < 2; n++) {
		struct change c = {.generation = generation};

		assert_int_equal(static_open(&c.dir, y->cluster->node[n].state, &e), SHARD_OK);
		assert_int_equal(static_load_definitions(c.dir, rewrite, &c, &e), SHARD_OK);
		static_close(&c.dir);
	}
	cluster_spawn(y->cluster, 0);
	cluster_spawn(y->cluster, 1);
	cluster_ready(y->cluster, 0);
	cluster_ready(y->cluster, 1);
	assert_int_equal(define(y, &created), SHARD_LOST);
	drill_text(shard_error(),
		   generation ? "that value is an older one" : "has another definition of \"m\"");
	assert_int_equal(logged(y->cluster, "event=model_known"), made);
	cluster_spawn(y->cluster, 2);
	await(y->cluster, "event=restored model=m", back + 1);
	assert_int_equal(logged(y->cluster, "event=model_known"), made + 1);
}

static void test_another_definition(void **state)
{
	struct yard *y = *state;

	run(y, QUORUM);
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	differs(y, false);
	goes_on(y, 8);
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	differs(y, true);
	goes_on(y, 11);
	cluster_done(&y->cluster);
}

/* A release that kept no definitions wrote none. A warm start of this one does, for the memory that
 * it takes over. */
static void test_taken_over(void **state)
{
	struct yard *y = *state;
	char path[400];

	y->cluster = cluster_make(3, NULL, QUORUM);
	cluster_warm(y->cluster, CLUSTER_TMPFS);
	cluster_up(y->cluster);
	crew_init(&y->crew, "m");
	yard_add(&y->crew, y->cluster, per, true);
	crew_start(&y->crew, 3);
	(void)crew_finish(&y->crew);
	kill_all(y->cluster);
	for (int n = 0; n < 3; n++) {
		assert_int_equal(files_of(y->cluster, n, path, sizeof(path)), 1);
		CHECK(unlink(path) == 0);
	}
	cluster_up(y->cluster);
	for (int n = 0; n < 3; n++)
		await_files(y->cluster, n, 1);
	goes_on(y, 6);
	assert_int_equal(logged(y->cluster, "event=model_known"), 0);
	cluster_done(&y->cluster);
}

/* No node has the memory for the model any more. Whoever leads says so, stays, and keeps the file:
 * with more memory the model is back. */
static void test_no_room(void **state)
{
	struct yard *y = *state;
	int created;

	y->cluster = cluster_start(3, NULL, QUORUM);
	crew_init(&y->crew, "m");
	crew_larger(&y->crew, 16);
	y->crew.extra = "replicas=2";
	yard_add(&y->crew, y->cluster, per, true);
	crew_start(&y->crew, 3);
	(void)crew_finish(&y->crew);
	keep_must_save(y->cluster->node[0].unix_address, "m", y->keep.dir, NULL);
	kill_all(y->cluster);
	setenv("SHARD_MEMORY", "1MiB", 1);
	cluster_up(y->cluster);
	unsetenv("SHARD_MEMORY");
	await(y->cluster, "event=model_not_made", 1);
	assert_int_equal(define(y, &created), SHARD_LOST);
	drill_text(shard_error(), "\"m\" needs ");
	await(y->cluster, "event=model_not_made", 2); /* It is tried again. */
	assert_int_equal(logged(y->cluster, "event=resigns"), 0);
	kill_all(y->cluster);
	cluster_up(y->cluster);
	await(y->cluster, "event=restored model=m", 1);
	goes_on(y, 6);
	cluster_done(&y->cluster);
}

static void fill(const char *dir, uint32_t but_kib)
{
	static char block[1024];
	char path[200], more[200];
	int fd;

	snprintf(path, sizeof(path), "%.128s/ballast", dir);
	snprintf(more, sizeof(more), "%.128s/room", dir);
	CHECK((fd = open(more, O_CREAT | O_WRONLY, 0600)) >= 0);
	for (uint32_t i = 0; i < but_kib; i++)
		CHECK(write(fd, block, sizeof(block)) == (ssize_t)sizeof(block));
	close(fd);
	CHECK((fd = open(path, O_CREAT | O_WRONLY, 0600)) >= 0);
	while (write(fd, block, sizeof(block)) == (ssize_t)sizeof(block))
		;
	CHECK(errno == ENOSPC);
	close(fd);
	CHECK(unlink(more) == 0);
}

enum { MANY = 1000 };

static enum shard_status define_many(struct yard *y)
{
	static char names[MANY][64];
	static struct shard_tensor t[MANY];
	struct shard_spec s = {.size = sizeof(s),
			       .name = "many",
			       .tensors = t,
			       .tensors_nr = MANY,
			       .image = SHARD_BF16,
			       .grad = SHARD_BF16,
			       .settings = "optimizer=sgd lr=1 chunk_elems=1024"};
	shard_client *client = crew_connect(y->cluster->node[0].unix_address);
	enum shard_status st = SHARD_BUSY;
	uint64_t until = pace_by(20);
	shard_model *m;
	int created;

	for (int i = 0; i < MANY; i++) {
		snprintf(names[i], sizeof(names[i]), "a.tensor.with.quite.a.long.name.%d", i);
		t[i] = (struct shard_tensor){.name = names[i], .ndim = 1, .shape = {4}};
	}
	while ((st == SHARD_BUSY || st == SHARD_UNREACHABLE) && clock_ns() < until) {
		usleep(20000);
		st = shard_define(client, &s, &m, &created);
	}
	shard_disconnect(&client);
	return st;
}

/* The disk of node b has room for the register, but not for a definition. */
static void test_full_disk(void **state)
{
	struct yard *y = *state;
	char path[400], ballast[200];

	y->cluster = cluster_make(3, NULL, QUORUM);
	snprintf(path, sizeof(path), "%s", y->cluster->node[1].state);
	if ((mkdir(path, 0700) != 0 && errno != EEXIST) ||
	    mount("none", path, "tmpfs", 0, "size=256k,mode=0700") != 0) {
		print_message("this test needs to mount a tmpfs: %s\n", strerror(errno));
		skip();
	}
	cluster_up(y->cluster);
	await(y->cluster, "event=leading", 1);
	fill(path, 28);
	assert_int_equal(define_many(y), SHARD_SYSTEM);
	drill_text(shard_error(), "\"many\" cannot be made on node b");
	drill_text(shard_error(), "cannot be written: No space left on device");
	await(y->cluster, "event=dropped model=many", 3);
	for (int n = 0; n < 3; n++) {
		assert_int_equal(files_of(y->cluster, n, path, sizeof(path)), 0);
		cluster_says(y->cluster, n, "\"models\":[]");
	}
	snprintf(ballast, sizeof(ballast), "%s/ballast", y->cluster->node[1].state);
	CHECK(unlink(ballast) == 0);
	assert_int_equal(define_many(y), SHARD_OK);
	for (int n = 0; n < 3; n++)
		await_files(y->cluster, n, 1);
	snprintf(path, sizeof(path), "%s", y->cluster->node[1].state);
	kill_all(y->cluster);
	CHECK(umount(path) == 0);
	cluster_done(&y->cluster);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_comes_back, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(test_grown, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(test_restored_by_order, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(test_given_up, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(test_away, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(test_restore_cut, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(test_out_of_the_view, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(test_damaged, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(test_another_definition, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(test_taken_over, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(test_no_room, yard_setup, yard_teardown),
		cmocka_unit_test_setup_teardown(test_full_disk, yard_setup, yard_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
