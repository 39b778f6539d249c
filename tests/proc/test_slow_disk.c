// SPDX-License-Identifier: Apache-2.0
/* Tests a disk that stalls while a view is written. The coordinator goes on talking to its peers
 * and to tools for longer than a heartbeat may take, nothing is lost, and training begins when the
 * disk is back. In a folder of checkpoints a stalling disk, or pipes in the place of files, stop
 * only the caller that asked for them. fsync() is replaced in this program and waits while the test
 * says so. */
#include "base/check.h"
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/keep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct disk {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool stalls;
	char folder[64]; /* Stalls only what is below it. Empty: everything. */
	uint32_t waiting, refusals, removals_refused;
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static bool stalled(const char *path)
{
	return disk.stalls && strncmp(path, disk.folder, strlen(disk.folder)) == 0;
}

int fsync(int fd)
{
	char link[64], path[256] = "";
	bool refuse;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	(void)!readlink(link, path, sizeof(path) - 1);
	pthread_mutex_lock(&disk.lock);
	if (stalled(path)) {
		disk.waiting++;
		pthread_cond_broadcast(&disk.changed);
		while (stalled(path))
			pthread_cond_wait(&disk.changed, &disk.lock);
		disk.waiting--;
	}
	refuse = disk.refusals > 0;
	disk.refusals -= refuse;
	pthread_mutex_unlock(&disk.lock);
	if (refuse) {
		errno = ENOSPC;
		return -1;
	}
	return (int)syscall(SYS_fsync, fd);
}

int unlinkat(int dir, const char *name, int flags)
{
	bool refuse;

	pthread_mutex_lock(&disk.lock);
	refuse = disk.removals_refused > 0 && strncmp(name, "model-", 6) == 0;
	disk.removals_refused -= refuse;
	pthread_mutex_unlock(&disk.lock);
	if (refuse) {
		errno = EROFS;
		return -1;
	}
	return (int)syscall(SYS_unlinkat, dir, name, flags);
}

static void disk_stall(bool stalls)
{
	pthread_mutex_lock(&disk.lock);
	disk.stalls = stalls;
	pthread_cond_broadcast(&disk.changed);
	pthread_mutex_unlock(&disk.lock);
}

/* Waits until so many threads are stalled. */
static void disk_wait(uint32_t nr)
{
	pthread_mutex_lock(&disk.lock);
	while (disk.waiting < nr)
		pthread_cond_wait(&disk.changed, &disk.lock);
	pthread_mutex_unlock(&disk.lock);
}

/* Returns when the model is sealed. */
static void *starts(void *arg)
{
	crew_start(arg, 4);
	return NULL;
}

static void test_stall(void **state)
{
	/* Links must not end because this machine is busy. A loop that stands still shows by its
	 * status, which is then not answered. */
	const struct inproc_conf conf = {.cluster = "heartbeat_timeout = 20s\n"};
	struct crew *crew = test_malloc(sizeof(*crew));
	struct timespec until, now;
	struct inproc c;
	pthread_t thread;

	(void)state;
	inproc_start(&c, &conf);
	crew_init(crew, "slow");
	crew_add(crew, c.node[0].unix_address, 0);
	crew_add(crew, c.node[1].unix_address, 1);
	disk_stall(true);
	assert_int_equal(pthread_create(&thread, NULL, starts, crew), 0);
	disk_wait(1);
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += 2; /* Several beats of each loop, which are one second apart at most. */
	do {
		for (int n = 0; n < 2; n++) /* They answer while their disk does not. */
			json_decref(inproc_status(&c.node[n]));
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec < until.tv_sec);
	assert_int_equal(inproc_logged(&c.node[0], "event=view "), 0);
	disk_stall(false);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(crew_finish(crew), 4);
	inproc_stop(&c);
	test_free(crew);
}

/* A full disk has room again. */
static void test_refused(void **state)
{
	struct crew *crew = test_malloc(sizeof(*crew));
	struct inproc c;

	(void)state;
	inproc_start(&c, NULL);
	crew_init(crew, "full");
	crew_add(crew, c.node[0].unix_address, 0);
	crew_add(crew, c.node[1].unix_address, 1);
	pthread_mutex_lock(&disk.lock);
	disk.refusals = 2;
	pthread_mutex_unlock(&disk.lock);
	crew_start(crew, 2);
	assert_int_equal(crew_finish(crew), 2);
	assert_int_equal(inproc_logged(&c.node[0], "event=view_not_durable"), 2);
	inproc_stop(&c);
	test_free(crew);
}

/* A daemon is stopped while the disk stalls. It waits for the file, which no other process may
 * touch. */
static void test_stop(void **state)
{
	struct crew *crew = test_malloc(sizeof(*crew));
	struct inproc c;

	(void)state;
	inproc_start(&c, NULL);
	crew_init(crew, "stop");
	crew_add(crew, c.node[0].unix_address, 0);
	crew_add(crew, c.node[1].unix_address, 1);
	crew_start(crew, 2);
	assert_int_equal(crew_finish(crew), 2);
	disk_stall(true);
	/* It held chunks, so the model is lost, and a view is written. */
	inproc_node_stop(&c.node[1]);
	disk_stall(false);
	inproc_stop(&c);
	test_free(crew);
}

static void *drops(void *arg)
{
	shard_client *client = crew_connect(arg);

	MUST(shard_drop(client, "stays", 1));
	shard_disconnect(&client);
	return NULL;
}

/* A model is dropped while its file is being written, and then removing the file fails. The drop
 * stays in hand with the model's memory and its name, so that a start in between would find both or
 * neither. */
static void test_file_stays(void **state)
{
	struct crew *crew = test_malloc(sizeof(*crew));
	struct inproc c;
	pthread_t thread;

	(void)state;
	inproc_start(&c, NULL);
	crew_init(crew, "stays");
	crew_add(crew, c.node[0].unix_address, 0);
	crew_start(crew, 2);
	assert_int_equal(crew_finish(crew), 2);
	disk_stall(true);
	inproc_node_stop(&c.node[1]); /* The model is lost, and a view is written. */
	disk_wait(1);
	assert_int_equal(pthread_create(&thread, NULL, drops, c.node[0].unix_address), 0);
	while (inproc_logged(&c.node[0], "event=drop ") == 0)
		usleep(1000);
	pthread_mutex_lock(&disk.lock);
	disk.removals_refused = 2;
	pthread_mutex_unlock(&disk.lock);
	disk_stall(false);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(inproc_logged(&c.node[0], "event=drop_file "), 1);
	assert_int_equal(inproc_logged(&c.node[0], "event=drop_file_gone "), 1);
	assert_int_equal(inproc_logged(&c.node[0], "event=dropped "), 1);
	inproc_stop(&c);
	test_free(crew);
}

/* A model that does not train is dropped, and the disk stalls when its file is removed. The loop
 * goes on. */
static void test_drop_stalls(void **state)
{
	const struct inproc_conf conf = {.nodes = 1};
	struct crew *crew = test_malloc(sizeof(*crew));
	struct inproc c;
	pthread_t thread;

	(void)state;
	inproc_start(&c, &conf);
	crew_init(crew, "stays");
	crew_add(crew, c.node[0].unix_address, 0);
	crew_start(crew, 2);
	assert_int_equal(crew_finish(crew), 2);
	disk_stall(true);
	assert_int_equal(pthread_create(&thread, NULL, drops, c.node[0].unix_address), 0);
	disk_wait(1);
	json_decref(inproc_status(&c.node[0])); /* It answers. */
	assert_int_equal(inproc_logged(&c.node[0], "event=dropped "), 0);
	assert_int_equal(pthread_tryjoin_np(thread, NULL), EBUSY);
	disk_stall(false);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(inproc_logged(&c.node[0], "event=dropped "), 1);
	inproc_stop(&c);
	test_free(crew);
}

/* --- the folder of checkpoints --- */

struct saving {
	const char *address, *dir;
};

static void *saves_one(void *arg)
{
	const struct saving *s = arg;

	keep_must_save(s->address, "noted", s->dir, "t");
	return NULL;
}

/* The model is dropped only when it is saved, or else by force. */
static void drop_waits(const char *address, enum shard_status want)
{
	shard_client *client = crew_connect(address);
	enum shard_status rc = shard_drop(client, "noted", 0);

	if (rc != want || (rc != SHARD_OK && strstr(shard_error(), "is being saved") == NULL))
		fail_msg("%s: %s", shard_name(rc), shard_error());
	shard_disconnect(&client);
}

/* The folder of a save is written into the model's file. The disk stalls there and the loop goes
 * on. The save is answered when a new start would know of the checkpoint. */
static void test_folder_stalls(void **state)
{
	const struct inproc_conf conf = {.nodes = 1};
	struct crew *crew = test_malloc(sizeof(*crew));
	struct saving saving;
	struct keep keep;
	struct inproc c;
	pthread_t thread;

	(void)state;
	inproc_start(&c, &conf);
	keep_init(&keep);
	crew_init(crew, "noted");
	crew_add(crew, c.node[0].unix_address, 0);
	crew_start(crew, 2);
	assert_int_equal(crew_finish(crew), 2);
	saving = (struct saving){c.node[0].unix_address, keep.dir};
	snprintf(disk.folder, sizeof(disk.folder), "%s", c.dir);
	disk_stall(true);
	assert_int_equal(pthread_create(&thread, NULL, saves_one, &saving), 0);
	disk_wait(1);
	json_decref(inproc_status(&c.node[0])); /* It answers. */
	drop_waits(c.node[0].unix_address, SHARD_BUSY);
	assert_int_equal(pthread_tryjoin_np(thread, NULL), EBUSY);
	assert_int_equal(inproc_logged(&c.node[0], "event=saved "), 0);
	disk_stall(false);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(inproc_logged(&c.node[0], "event=saved "), 1);
	drop_waits(c.node[0].unix_address, SHARD_OK);
	disk.folder[0] = 0;
	inproc_stop(&c);
	keep_free(&keep);
	test_free(crew);
}

/* So many models, which are more than the pool of a test's process has threads. */
enum { SAVED = 5 };

static const char *saved_name(int i)
{
	static const char *const names[SAVED] = {"m0", "m1", "m2", "m3", "m4"};

	return names[i];
}

static void define_saved(const char *address)
{
	static const struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {64}};
	shard_client *c = crew_connect(address);

	for (int i = 0; i < SAVED; i++) {
		struct shard_spec s = {.size = sizeof(s),
				       .name = saved_name(i),
				       .tensors = &tensor,
				       .tensors_nr = 1,
				       .image = SHARD_F32,
				       .grad = SHARD_F32,
				       .settings = "optimizer=sgd"};
		shard_model *m;
		float w[64] = {1};
		int created;

		MUST(shard_define(c, &s, &m, &created));
		MUST(shard_write(m, SHARD_MASTER, 0, 0, 64, SHARD_F32, w));
		MUST(shard_seal(m, 3));
	}
	shard_disconnect(&c);
}

struct saver {
	pthread_t thread;
	const char *address, *name;
	char dir[80], why[300]; /* In `why`, empty means that it was saved. */
};

static void *saves(void *arg)
{
	struct saver *s = arg;

	if (keep_save(s->address, s->name, s->dir, "t") != SHARD_OK)
		snprintf(s->why, sizeof(s->why), "%s", shard_error());
	return NULL;
}

static void begin_saves(struct saver saver[SAVED], const char *address, const char *dir)
{
	for (int i = 0; i < SAVED; i++) {
		saver[i] = (struct saver){.address = address, .name = saved_name(i)};
		snprintf(saver[i].dir, sizeof(saver[i].dir), "%s/%s", dir, saver[i].name);
		assert_int_equal(pthread_create(&saver[i].thread, NULL, saves, &saver[i]), 0);
	}
}

/* As many saves as may run at once stall in their file system. A model is defined, sealed and
 * trained all the same. The saves end when the disk is back. */
static void test_saves_stall(void **state)
{
	const struct inproc_conf conf = {.nodes = 1};
	struct crew *crew = test_malloc(sizeof(*crew));
	struct saver saver[SAVED];
	struct keep keep;
	struct inproc c;

	(void)state;
	inproc_start(&c, &conf);
	keep_init(&keep);
	define_saved(c.node[0].unix_address);
	snprintf(disk.folder, sizeof(disk.folder), "%s", keep.dir);
	disk_stall(true);
	begin_saves(saver, c.node[0].unix_address, keep.dir);
	disk_wait(3);
	crew_init(crew, "trains");
	crew_add(crew, c.node[0].unix_address, 0);
	crew_start(crew, 4);
	assert_int_equal(crew_finish(crew), 4);
	disk_stall(false);
	for (int i = 0; i < SAVED; i++) {
		assert_int_equal(pthread_join(saver[i].thread, NULL), 0);
		if (saver[i].why[0] != 0)
			fail_msg("%s: %s", saver[i].name, saver[i].why);
	}
	disk.folder[0] = 0;
	inproc_stop(&c);
	keep_free(&keep);
	test_free(crew);
}

static void make_pipe(const char *dir, const char *name)
{
	char path[200];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	(void)unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0);
}

static void refused_pipe(enum shard_status rc, const char *name)
{
	if (rc != SHARD_PROTOCOL || strstr(shard_error(), name) == NULL ||
	    strstr(shard_error(), "is no plain file") == NULL)
		fail_msg("%s: %s", shard_name(rc), shard_error());
}

/* A user who may write into the folder of checkpoints puts pipes in the place of their files. A
 * request that would open one is refused at once with the name of the file, and a model beside it
 * trains. */
static void test_pipes(void **state)
{
	static const char *const names[] = {"node-a.safetensors", "manifest.json"};
	const struct inproc_conf conf = {.nodes = 1};
	struct crew *crew = test_malloc(sizeof(*crew));
	const char *at;
	struct keep keep;
	struct inproc c;
	char dir[80], of[100];

	(void)state;
	inproc_start(&c, &conf);
	at = c.node[0].unix_address;
	keep_init(&keep);
	define_saved(at);
	for (int i = 0; i < SAVED; i++) {
		snprintf(dir, sizeof(dir), "%s/%s", keep.dir, saved_name(i));
		assert_int_equal(mkdir(dir, 0755), 0);
		make_pipe(dir, "latest");
		make_pipe(dir, ".latest.tmp");
		/* One pipe is replaced, and the other is not opened. */
		keep_must_save(at, saved_name(i), dir, "t");
	}
	keep_must_save(at, "m0", keep.dir, "t");
	make_pipe(keep.dir, "latest");
	refused_pipe(keep_restore(at, keep.dir, NULL, "m0"), "latest");
	snprintf(of, sizeof(of), "%s/t", keep.dir);
	for (size_t i = 0; i < NR(names); i++) {
		make_pipe(of, names[i]);
		refused_pipe(keep_restore(at, keep.dir, "t", "m0"), names[i]);
	}
	crew_init(crew, "trains");
	crew_add(crew, at, 0);
	crew_start(crew, 4);
	assert_int_equal(crew_finish(crew), 4);
	inproc_stop(&c);
	keep_free(&keep);
	test_free(crew);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stall),       cmocka_unit_test(test_refused),
		cmocka_unit_test(test_stop),        cmocka_unit_test(test_file_stays),
		cmocka_unit_test(test_drop_stalls), cmocka_unit_test(test_folder_stalls),
		cmocka_unit_test(test_saves_stall), cmocka_unit_test(test_pipes)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
