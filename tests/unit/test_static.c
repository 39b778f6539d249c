/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the state directory: lock, identity, incarnation, model files, every kind of damage, and
 * every allocation that can fail. */
#include "cluster/static.h"
#include "lib/fault.h"
#include "lib/rmtree.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct place {
	char top[64], dir[96];
};

static int make_place(void **state)
{
	struct place *p = calloc(1, sizeof(*p));

	snprintf(p->top, sizeof(p->top), "/tmp/shard-static-XXXXXX");
	if (!mkdtemp(p->top))
		return -1;
	snprintf(p->dir, sizeof(p->dir), "%s/new/state", p->top);
	*state = p;
	return 0;
}

static int remove_place(void **state)
{
	struct place *p = *state;

	rmtree(p->top);
	free(p);
	return 0;
}

static struct static_dir *opened(const struct place *p)
{
	struct static_dir *d = NULL;
	struct err e = {.text = ""};

	if (static_open(&d, p->dir, &e) != SHARD_OK || static_count(d, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	return d;
}

static char *file_path(const struct place *p, const char *name)
{
	static _Thread_local char path[200];

	snprintf(path, sizeof(path), "%s/%s", p->dir, name);
	return path;
}

static void identity(void **state)
{
	struct static_dir *d = opened(*state);
	uint8_t uuid[STATIC_UUID_BYTES];
	struct stat info;

	memcpy(uuid, static_uuid(d), sizeof(uuid));
	assert_int_equal(static_start(d), 1);
	assert_int_equal(uuid[6] >> 4, 4);
	assert_int_equal(stat(((struct place *)*state)->dir, &info), 0);
	assert_int_equal(info.st_mode & 0777, 0700);
	static_close(&d);
	assert_null(d);
	static_close(&d);
	for (uint64_t i = 2; i < 5; i++) {
		d = opened(*state);
		assert_int_equal(static_start(d), i);
		assert_memory_equal(uuid, static_uuid(d), sizeof(uuid));
		static_close(&d);
	}
}

/* A start that opens the folder and is refused may come again, with the same number. */
static void refused_start(void **state)
{
	struct place *p = *state;
	struct static_dir *d;
	struct err e;

	for (int i = 0; i < 3; i++) {
		assert_int_equal(static_open(&d, p->dir, &e), SHARD_OK);
		assert_int_equal(static_start(d), 1);
		static_close(&d);
	}
	d = opened(p);
	static_close(&d);
	d = opened(p);
	assert_int_equal(static_start(d), 2);
	static_close(&d);
}

static void locked(void **state)
{
	struct place *p = *state;
	struct static_dir *d = opened(p), *second = NULL;
	char want[400];
	struct err e;

	assert_int_equal(static_open(&second, p->dir, &e), SHARD_BUSY);
	snprintf(want, sizeof(want),
		 "state directory %s is in use by pid %d: stop that daemon, or give this one "
		 "another folder by [daemon] state",
		 p->dir, (int)getpid());
	assert_string_equal(e.text, want);
	static_close(&d);
	d = opened(p);
	assert_int_equal(static_start(d), 2); /* The start that was refused did not count. */
	static_close(&d);
}

struct loaded {
	uint32_t nr, model[8];
	char text[8][32];
	uint32_t fail_at;
};

static enum shard_status keep(void *arg, uint32_t model, const void *bytes, size_t nr,
			      struct err *e)
{
	struct loaded *l = arg;

	if (l->fail_at && l->nr + 1 == l->fail_at)
		return err_set(e, SHARD_BAD_STATE, "no more");
	l->model[l->nr] = model;
	snprintf(l->text[l->nr++], 32, "%.*s", (int)nr, (const char *)bytes);
	return SHARD_OK;
}

static void models(void **state)
{
	struct static_dir *d = opened(*state);
	struct loaded l = {.nr = 0};
	struct err e;
	char left[64];

	assert_int_equal(static_save(d, 300, "three", 5, &e), SHARD_OK);
	assert_int_equal(static_save(d, 7, "old", 3, &e), SHARD_OK);
	assert_int_equal(static_save(d, 7, "seven", 5, &e), SHARD_OK);
	assert_int_equal(static_save(d, 0xffffffff, "", 0, &e), SHARD_OK);
	static_close(&d);
	d = opened(*state);
	assert_int_equal(close(open(file_path(*state, "model-7"), O_CREAT | O_WRONLY, 0600)),
			 0); /* It is not one of ours. */
	assert_int_equal(static_load(d, keep, &l, &e), SHARD_OK);
	assert_int_equal(l.nr, 3);
	assert_int_equal(l.model[0], 7);
	assert_string_equal(l.text[0], "seven");
	assert_int_equal(l.model[1], 300);
	assert_string_equal(l.text[2], "");
	l = (struct loaded){.fail_at = 2};
	assert_int_equal(static_load(d, keep, &l, &e), SHARD_BAD_STATE);
	assert_int_equal(l.nr, 1);
	assert_int_equal(static_drop(d, 7, &e), SHARD_OK);
	assert_int_equal(static_drop(d, 7, &e), SHARD_OK);
	l = (struct loaded){.nr = 0};
	assert_int_equal(static_load(d, keep, &l, &e), SHARD_OK);
	assert_int_equal(l.nr, 2);
	assert_int_equal(static_leave(d, 300, left, sizeof(left), &e), SHARD_OK);
	assert_int_equal(access(file_path(*state, left), R_OK), 0);
	assert_int_equal(static_leave(d, 300, left, sizeof(left), &e),
			 SHARD_SYSTEM); /* It is not there any more. */
	l = (struct loaded){.nr = 0};
	assert_int_equal(static_load(d, keep, &l, &e), SHARD_OK);
	assert_int_equal(l.nr, 1);
	static_close(&d);
}

struct bad {
	uint32_t nr, model;
	char why[512];
	struct loaded good;
};

static enum shard_status keep_good(void *arg, uint32_t model, const void *bytes, size_t nr,
				   struct err *e)
{
	struct bad *b = arg;

	if (bytes != NULL)
		return keep(&b->good, model, bytes, nr, e);
	b->nr++;
	b->model = model;
	snprintf(b->why, sizeof(b->why), "%s", e->text);
	return SHARD_OK;
}

/* A definition has a file of its own beside the model's. One that is damaged is told, and does not
 * hide the others. */
static void definitions(void **state)
{
	struct place *p = *state;
	struct static_dir *d = opened(p);
	struct bad b = {.nr = 0};
	struct loaded l = {.nr = 0};
	struct err e;

	assert_int_equal(static_save(d, 7, "view", 4, &e), SHARD_OK);
	assert_int_equal(static_define(d, 9, "nine", 4, &e), SHARD_OK);
	assert_int_equal(static_define(d, 7, "seven", 5, &e), SHARD_OK);
	assert_int_equal(static_define(d, 8, "eight", 5, &e), SHARD_OK);
	assert_int_equal(truncate(file_path(p, "definition-00000008"), 27), 0);
	assert_int_equal(static_load_definitions(d, keep_good, &b, &e), SHARD_OK);
	assert_int_equal(b.good.nr, 2);
	assert_string_equal(b.good.text[0], "seven");
	assert_string_equal(b.good.text[1], "nine");
	assert_int_equal(b.nr, 1);
	assert_int_equal(b.model, 8);
	assert_non_null(strstr(b.why, "definition-00000008 is damaged (its length is wrong)"));
	assert_int_equal(static_load(d, keep, &l, &e), SHARD_OK);
	assert_int_equal(l.nr, 1);
	assert_string_equal(l.text[0], "view");
	assert_int_equal(static_undefine(d, 8, &e), SHARD_OK);
	assert_int_equal(static_undefine(d, 8, &e), SHARD_OK);
	b = (struct bad){.good = {.fail_at = 2}};
	assert_int_equal(static_load_definitions(d, keep_good, &b, &e), SHARD_BAD_STATE);
	assert_int_equal(b.nr, 0);
	static_close(&d);
}

/* Changes one byte, or the length, at every place of a model's file. No change may go unnoticed.
 * */
static void damaged_model(void **state)
{
	struct place *p = *state;
	struct static_dir *d = opened(p);
	struct loaded l = {.nr = 0};
	unsigned char bytes[64];
	struct err e;
	int fd;

	assert_int_equal(static_save(d, 5, "weights", 7, &e), SHARD_OK);
	fd = open(file_path(p, "model-00000005"), O_RDWR);
	assert_int_equal(pread(fd, bytes, sizeof(bytes), 0), 31);
	for (off_t i = 0; i < 31; i++) {
		unsigned char b = bytes[i] ^ 0x10;

		assert_int_equal(pwrite(fd, &b, 1, i), 1);
		assert_int_equal(static_load(d, keep, &l, &e), SHARD_PROTOCOL);
		assert_non_null(strstr(e.text, "model-00000005 is damaged ("));
		assert_int_equal(pwrite(fd, &bytes[i], 1, i), 1);
	}
	for (off_t n = 0; n < 31; n++) {
		assert_int_equal(ftruncate(fd, n), 0);
		assert_int_equal(static_load(d, keep, &l, &e), SHARD_PROTOCOL);
	}
	assert_int_equal(pwrite(fd, bytes, 31, 0), 31);
	assert_int_equal(ftruncate(fd, 32), 0);
	assert_int_equal(static_load(d, keep, &l, &e), SHARD_PROTOCOL);
	assert_int_equal(l.nr, 0);
	assert_int_equal(ftruncate(fd, 31), 0);
	assert_int_equal(static_load(d, keep, &l, &e), SHARD_OK);
	assert_int_equal(l.nr, 1);
	close(fd);
	static_close(&d);
}

static void damaged_identity(void **state)
{
	static const char *const names[] = {"uuid", "incarnation"};
	struct place *p = *state;

	for (int i = 0; i < 2; i++) {
		struct static_dir *d = opened(p);
		struct err e;
		int fd;

		static_close(&d);
		fd = open(file_path(p, names[i]), O_RDWR);
		assert_int_equal(pwrite(fd, "x", 1, 26), 1);
		assert_int_equal(static_open(&d, p->dir, &e), SHARD_PROTOCOL);
		assert_non_null(strstr(e.text, names[i]));
		assert_non_null(strstr(e.text, "its sum is wrong"));
		close(fd);
		assert_int_equal(unlink(file_path(p, names[i])), 0);
	}
}

static void not_a_directory(void **state)
{
	struct place *p = *state;
	struct static_dir *d = NULL;
	char path[600];
	struct err e;

	snprintf(path, sizeof(path), "%s/file", p->top);
	assert_int_equal(close(open(path, O_CREAT | O_WRONLY, 0600)), 0);
	assert_int_equal(static_open(&d, path, &e), SHARD_SYSTEM);
	snprintf(path, sizeof(path), "%s/file/below", p->top);
	assert_int_equal(static_open(&d, path, &e), SHARD_SYSTEM);
	assert_int_equal(static_open(&d, "", &e), SHARD_BAD_ARG);
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = 0;
	assert_int_equal(static_open(&d, path, &e), SHARD_BAD_ARG);
	assert_null(d);
}

static void no_memory(void **state)
{
	struct place *p = *state;
	struct static_dir *d = opened(p);
	uint64_t before = static_start(d);
	struct loaded l;
	struct fault f;
	struct err e;

	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(static_save(d, i, "x", 1, &e), SHARD_OK);
	for (fault_begin(&f); fault_next(&f);) {
		l = (struct loaded){.nr = 0};
		enum shard_status st = static_load(d, keep, &l, &e);

		assert_int_equal(st, fault_end(&f) ? SHARD_SYSTEM : SHARD_OK);
	}
	assert_int_equal(l.nr, 3);
	static_close(&d);
	for (fault_begin(&f); fault_next(&f);) {
		enum shard_status st = static_open(&d, p->dir, &e);

		if (!fault_end(&f)) {
			assert_int_equal(st, SHARD_OK);
			assert_int_equal(static_count(d, &e), SHARD_OK);
		}
		static_close(&d);
	}
	d = opened(p);
	assert_true(static_start(d) > before + 1);
	static_close(&d);
}

/* A folder, a link or a pipe with the name of a model's file is not ours, and keeps no daemon
 * from starting. */
static void no_plain_file(void **state)
{
	struct place *p = *state;
	struct static_dir *d = opened(p);
	struct loaded l = {.nr = 0};
	char path[300];
	struct err e;

	assert_int_equal(static_save(d, 7, "x", 1, &e), SHARD_OK);
	snprintf(path, sizeof(path), "%s/model-00000063", p->dir);
	assert_int_equal(mkdir(path, 0755), 0);
	snprintf(path, sizeof(path), "%s/model-00000064", p->dir);
	assert_int_equal(symlink("model-00000007", path), 0);
	snprintf(path, sizeof(path), "%s/model-00000065", p->dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	if (static_load(d, keep, &l, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	assert_int_equal(l.nr, 1);
	static_close(&d);
	snprintf(path, sizeof(path), "rm -r %s/model-0000006*", p->dir);
	assert_int_equal(system(path), 0);
}

/* What an older release wrote, without the last field, is read. Any other length is damage. */
static void test_warm(void **state)
{
	const size_t old = offsetof(struct static_warm, root);
	struct static_warm w = {.name = "it", .boot = "boot", .root = "/dev/shm"}, got;
	struct place *p = *state;
	struct static_dir *d = opened(p);
	char from[200];
	struct err e;

	assert_int_equal(static_warm(d, &got, &e), SHARD_NOT_FOUND);
	assert_int_equal(static_set_warm(d, &w, &e), SHARD_OK);
	assert_int_equal(static_warm(d, &got, &e), SHARD_OK);
	assert_memory_equal(&got, &w, sizeof(w));
	snprintf(from, sizeof(from), "%s", file_path(p, "model-00000001"));
	for (size_t n = old - 1; n <= old + 1; n++) {
		assert_int_equal(static_save(d, 1, &w, n, &e), SHARD_OK);
		assert_int_equal(rename(from, file_path(p, "warm")), 0);
		assert_int_equal(static_warm(d, &got, &e), n == old ? SHARD_OK : SHARD_PROTOCOL);
	}
	memset(w.root, 0, sizeof(w.root));
	assert_int_equal(static_save(d, 1, &w, old, &e), SHARD_OK);
	assert_int_equal(rename(from, file_path(p, "warm")), 0);
	assert_int_equal(static_warm(d, &got, &e), SHARD_OK);
	assert_memory_equal(&got, &w, sizeof(w));
	static_close(&d);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_place, remove_place)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(identity),      TEST(refused_start),    TEST(locked),          TEST(models),
		TEST(damaged_model), TEST(damaged_identity), TEST(not_a_directory), TEST(no_memory),
		TEST(no_plain_file), TEST(test_warm),        TEST(definitions),
	};

	return cmocka_run_group_tests_name("static", tests, NULL, NULL);
}
