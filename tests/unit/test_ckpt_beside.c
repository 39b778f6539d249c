/* SPDX-License-Identifier: Apache-2.0 */
/* Tests several models and daemons that save into one folder at the same time, and one that prunes
 * there. Before each system call of the first save or of the pruning that changes a file system,
 * the other save does all of its work. Whatever happens, the checkpoint that `latest` names exists
 * and is whole. The system calls are wrapped (tests/ckpt.mk). */
#include "base/check.h"
#include "lib/ckpts.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define MUST(x)                                                                                    \
	do {                                                                                       \
		enum shard_status st_ = (x);                                                       \
		if (st_ != SHARD_OK)                                                               \
			fail_msg("%s: %s: %s", #x, status_name(st_), e.text);                      \
	} while (0)

/* --- the calls --- */

static uint32_t calls;

static struct {
	void (*save)(void);
	uint32_t at; /* The number of the call before which `save` runs. 0: it never runs. */
} beside;

static void called(void)
{
	uint32_t call = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);

	if (beside.at > 0 && call == beside.at) {
		beside.at = 0;
		beside.save();
	}
}

#define WRAP(type, name, params, args)                                                             \
	type __real_##name params;                                                                 \
	type __wrap_##name params;                                                                 \
	type __wrap_##name params                                                                  \
	{                                                                                          \
		called();                                                                          \
		return __real_##name args;                                                         \
	}

WRAP(int, fsync, (int fd), (fd))
WRAP(int, rename, (const char *a, const char *b), (a, b))
WRAP(int, renameat, (int fd, const char *a, int to, const char *b), (fd, a, to, b))
WRAP(int, renameat2, (int fd, const char *a, int to, const char *b, unsigned flags),
     (fd, a, to, b, flags))
WRAP(int, unlink, (const char *a), (a))
WRAP(int, unlinkat, (int fd, const char *a, int flags), (fd, a, flags))
WRAP(int, rmdir, (const char *a), (a))
WRAP(int, mkdir, (const char *a, mode_t mode), (a, mode))
WRAP(int, ftruncate, (int fd, off_t n), (fd, n))
WRAP(int, fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
WRAP(ssize_t, write, (int fd, const void *p, size_t n), (fd, p, n))
WRAP(ssize_t, pwrite, (int fd, const void *p, size_t n, off_t at), (fd, p, n, at))

/* --- saves --- */

static uint32_t entries(const char *dir)
{
	struct dirent *entry;
	DIR *d = opendir(dir);
	uint32_t nr = 0;

	assert_non_null(d);
	while ((entry = readdir(d)))
		nr += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
	closedir(d);
	return nr;
}

static struct {
	char dir[64];
	const char *model;
	uint64_t step, id;
	uint32_t ran, saved;
} second;

static void second_saves(void)
{
	struct err e = {.text = ""};

	second.ran++;
	second.saved +=
		ckpts_save_of(second.dir, second.model, second.id, second.step, &e) == SHARD_OK;
}

/* The checkpoint that `latest` names exists and is whole. */
static void check_latest(uint32_t at)
{
	char tag[CHECKPOINT_TAG_MAX + 1];
	struct err e = {.text = ""};

	MUST(checkpoint_latest(second.dir, tag, &e));
	if (ckpts_load(second.dir, tag, NULL, 4096, &e) != SHARD_OK)
		fail_msg("a save before call %u of another one: `latest` names %s: %s", at, tag,
			 e.text);
}

/* Another model is saved before each call of a save in turn. Both are saved. */
static void test_two_models(void **state)
{
	(void)state;
	second.model = "bert";
	second.step = 9;
	for (uint32_t at = 1;; at++) {
		struct err e = {.text = ""};
		enum shard_status st;

		ckpts_folder(second.dir);
		second.ran = second.saved = 0;
		beside.save = second_saves;
		calls = 0;
		beside.at = at;
		st = ckpts_save(second.dir, "gpt", 5, 1, 1024, &e);
		beside.at = 0;
		if (st != SHARD_OK || second.saved != second.ran)
			fail_msg("a save before call %u of another one: %s", at, e.text);
		MUST(ckpts_load(second.dir, "global_step5", "gpt", 4096, &e));
		if (second.ran > 0)
			MUST(ckpts_load(second.dir, "global_step9", "bert", 4096, &e));
		check_latest(at);
		assert_int_equal(entries(second.dir), 2 + second.ran);
		ckpts_remove(second.dir);
		if (second.ran == 0)
			break;
		assert_true(at < 200);
	}
}

/* Two daemons save models of one name with one tag, which is the same step of two runs. One of them
 * may be told to wait, but one of them succeeds, and the checkpoint with that tag is whole. */
static void test_two_daemons(void **state)
{
	(void)state;
	second.model = "gpt";
	second.step = 5;
	second.id = 9;
	for (int there = 0; there < 2; there++) {
		for (uint32_t at = 1;; at++) {
			struct err e = {.text = ""};
			enum shard_status st;

			ckpts_folder(second.dir);
			if (there == 1)
				MUST(ckpts_save(second.dir, "gpt", 5, 2, 1024, &e));
			second.ran = second.saved = 0;
			beside.save = second_saves;
			calls = 0;
			beside.at = at;
			st = ckpts_save(second.dir, "gpt", 5, 1, 1024, &e);
			beside.at = 0;
			if (st != SHARD_OK && second.saved == 0)
				fail_msg("a save before call %u of another one: neither is saved: "
					 "%s",
					 at, e.text);
			check_latest(at);
			ckpts_remove(second.dir);
			if (second.ran == 0)
				break;
			assert_true(at < 200);
		}
	}
}

/* Two processes save as fast as they can. Every save succeeds. */
static void test_two_processes(void **state)
{
	enum { SAVES = 100 };
	struct err e = {.text = ""};
	int status;
	pid_t pid;

	(void)state;
	ckpts_folder(second.dir);
	pid = fork();
	for (uint64_t i = 0; i < SAVES; i++) {
		enum shard_status st = ckpts_save(second.dir, pid == 0 ? "bert" : "gpt",
						  4 + 2 * i + (pid == 0), 1, 1024, &e);

		if (pid == 0 && st != SHARD_OK)
			_exit(1);
		if (pid != 0 && st != SHARD_OK) {
			(void)waitpid(pid, &status, 0);
			fail_msg("save %llu: %s", (unsigned long long)i, e.text);
		}
	}
	if (pid == 0)
		_exit(0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	check_latest(0);
	assert_int_equal(entries(second.dir), 2 * SAVES + 1);
	ckpts_remove(second.dir);
}

/* Another daemon saves the tag that a pruning is about to remove. A save that succeeded stays. */
static void test_prune_beside(void **state)
{
	struct manifest of = {.name = "gpt", .step = 9, .run = {{7, 7}, 7}};

	(void)state;
	second.model = "gpt";
	second.step = 8;
	second.id = 9;
	for (uint32_t at = 1;; at++) {
		struct err e = {.text = ""};
		uint32_t removed;

		ckpts_folder(second.dir);
		for (uint64_t s = 8; s <= 9; s++)
			MUST(ckpts_save_of(second.dir, "gpt", 7, s, &e));
		second.ran = second.saved = 0;
		beside.save = second_saves;
		calls = 0;
		beside.at = at;
		MUST(checkpoint_prune(second.dir, &of, 1, false, &removed, &e));
		beside.at = 0;
		check_latest(at);
		if (second.saved > 0)
			MUST(ckpts_load(second.dir, "global_step8", "gpt", 4096, &e));
		ckpts_remove(second.dir);
		if (second.ran == 0)
			break;
		assert_true(at < 200);
	}
}

/* A save in another daemon writes under the temporary name that pruning uses. Pruning leaves the
 * checkpoint of that tag alone until the save has let go of the name. */
static void test_prune_spares_drafts(void **state)
{
	struct manifest of = {.name = "gpt", .step = 9, .run = {{7, 7}, 7}};
	char path[CHECKPOINT_PATH_MAX];
	struct err e = {.text = ""};
	uint32_t removed;
	int held;

	(void)state;
	ckpts_folder(second.dir);
	for (uint64_t s = 8; s <= 9; s++)
		MUST(ckpts_save_of(second.dir, "gpt", 7, s, &e));
	MUST(checkpoint_begin(path, second.dir, "global_step8", "gpt", &held, &e));
	assert_true(held >= 0);
	MUST(checkpoint_prune(second.dir, &of, 1, false, &removed, &e));
	assert_int_equal(removed, 0);
	assert_true(checkpoint_begun(path, "gpt"));
	close(held);
	MUST(checkpoint_prune(second.dir, &of, 1, false, &removed, &e));
	assert_int_equal(removed, 1);
	assert_int_equal(entries(second.dir), 2);
	ckpts_remove(second.dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_models),          cmocka_unit_test(test_two_daemons),
		cmocka_unit_test(test_two_processes),       cmocka_unit_test(test_prune_beside),
		cmocka_unit_test(test_prune_spares_drafts),
	};

	if (getenv("TMPDIR") == NULL && access("/dev/shm", W_OK) == 0)
		setenv("TMPDIR", "/dev/shm",
		       1); /* The test does not need a disk, and memory is faster. */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
