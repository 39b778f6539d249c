/* SPDX-License-Identifier: Apache-2.0 */
/* Tests folders of checkpoints. A crash before any system call that changes a file system leaves
 * the older complete checkpoint or the newer one, and the next save works. A full disk leaves what
 * was there. Lists, the newest checkpoint, `latest` and pruning are tested, too. The system calls
 * are wrapped (tests/ckpt.mk). */
#include "base/check.h"
#include "lib/ckpts.h"
#include "lib/sanitized.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

static struct {
	uint32_t calls, stop_at; /* All calls from the stop_at-th on fail. 0: none does. */
	uint32_t fail_at;        /* Only this call fails. 0: none does. */
	uint64_t bytes_left;     /* The room on the disk, if `full` is set. */
	bool full, no_exchange;
} disk;

static struct { /* Folders, in the order of their syncs. */
	ino_t folder[64];
	uint32_t nr;
} synced;

static bool stopped(void)
{
	__atomic_add_fetch(&disk.calls, 1, __ATOMIC_RELAXED);
	errno = EIO;
	return (disk.stop_at > 0 && disk.calls >= disk.stop_at) ||
	       (disk.fail_at > 0 && disk.calls == disk.fail_at);
}

#define WRAP(name, params, args)                                                                   \
	int __real_##name params;                                                                  \
	int __wrap_##name params;                                                                  \
	int __wrap_##name params                                                                   \
	{                                                                                          \
		return stopped() ? -1 : __real_##name args;                                        \
	}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	struct stat s;

	if (stopped())
		return -1;
	if (fstat(fd, &s) == 0 && S_ISDIR(s.st_mode))
		synced.folder[synced.nr++ % NR(synced.folder)] = s.st_ino;
	return __real_fsync(fd);
}

static bool was_synced(ino_t folder)
{
	for (uint32_t i = 0; i < synced.nr && i < NR(synced.folder); i++)
		if (synced.folder[i] == folder)
			return true;
	return false;
}

WRAP(rename, (const char *a, const char *b), (a, b))
WRAP(renameat, (int fd, const char *a, int to, const char *b), (fd, a, to, b))
WRAP(unlink, (const char *a), (a))
WRAP(unlinkat, (int fd, const char *a, int flags), (fd, a, flags))
WRAP(rmdir, (const char *a), (a))
WRAP(mkdir, (const char *a, mode_t mode), (a, mode))
WRAP(ftruncate, (int fd, off_t n), (fd, n))

int __real_renameat2(int fd, const char *a, int to, const char *b, unsigned flags);
int __wrap_renameat2(int fd, const char *a, int to, const char *b, unsigned flags);
int __wrap_renameat2(int fd, const char *a, int to, const char *b, unsigned flags)
{
	if (stopped())
		return -1;
	if (disk.no_exchange) {
		errno = EINVAL;
		return -1;
	}
	return __real_renameat2(fd, a, to, b, flags);
}

int __wrap_fallocate(int fd, int mode, off_t at, off_t n);
int __wrap_fallocate(int fd, int mode, off_t at, off_t n)
{
	(void)fd;
	(void)mode;
	(void)at;
	(void)n;
	errno = EOPNOTSUPP; /* So a full disk shows in the middle of a write. */
	return -1;
}

ssize_t __real_pwrite(int fd, const void *p, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at)
{
	if (stopped())
		return -1;
	if (disk.full && n > disk.bytes_left)
		n = disk.bytes_left & ~4095ull;
	if (disk.full && n == 0) {
		errno = ENOSPC;
		return -1;
	}
	disk.bytes_left -= disk.full ? n : 0;
	return __real_pwrite(fd, p, n, at);
}

ssize_t __real_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n)
{
	if (fd <= 2)
		return __real_write(fd, p, n);
	if (stopped())
		return -1;
	if (disk.full && disk.bytes_left == 0) {
		errno = ENOSPC;
		return -1;
	}
	return __real_write(fd, p, n);
}

static void make_file(const char *dir, const char *name, const char *text);

/* --- crashes --- */

/* A reader finds the older or the newer checkpoint as the newest one. Every checkpoint in the list,
 * the newest one and the one that `latest` names are whole. */
static void check_whole(const char *dir, uint64_t older, uint64_t newer, uint32_t at)
{
	struct checkpoint_found *found;
	struct err e = {.text = ""};
	char tag[CHECKPOINT_TAG_MAX + 1];
	uint64_t step = 0;
	uint32_t nr;

	MUST(checkpoint_list(dir, "gpt", &found, &nr, &e));
	for (uint32_t i = 0; i < nr; i++)
		if (!found[i].complete || found[i].client_why[0] != 0)
			fail_msg("crash at call %u: %s: %s%s", at, found[i].tag, found[i].why,
				 found[i].client_why);
	free(found);
	MUST(checkpoint_newest(dir, "gpt", UINT64_MAX, tag, &step, &e));
	if (step != older && step != newer)
		fail_msg("crash at call %u: the newest is of step %llu", at,
			 (unsigned long long)step);
	MUST(ckpts_load(dir, tag, "gpt", 4096, &e));
	MUST(checkpoint_latest(dir, tag, &e));
	MUST(ckpts_load(dir, tag, "gpt", 4096, &e));
}

static uint32_t entries(const char *dir)
{
	char text[200];
	uint32_t nr = 0;
	FILE *f;

	snprintf(text, sizeof(text), "ls -A %s | wc -l", dir);
	f = popen(text, "r");
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%u", &nr), 1);
	pclose(f);
	return nr;
}

/* Saves `newer` beside or over `older`, with a crash before each call in turn. After each crash a
 * save without one works. */
static void walk(uint64_t older, uint64_t newer)
{
	bool done = false;

	for (uint32_t at = 1; !done; at += SANITIZED ? 7 : 1) {
		struct err e = {.text = ""};
		char dir[64];

		ckpts_folder(dir);
		MUST(ckpts_save(dir, "gpt", older, 2, 1024, &e));
		disk.calls = 0;
		disk.stop_at = at;
		done = ckpts_save(dir, "gpt", newer, 1, 2048, &e) == SHARD_OK && disk.calls < at;
		disk.stop_at = 0;
		check_whole(dir, older, newer, at);
		/* The leftovers of the crash do not hinder the next save. */
		MUST(ckpts_save(dir, "gpt", newer, 1, 4096, &e));
		check_whole(dir, newer, newer, at);
		assert_int_equal(entries(dir), older == newer ? 2 : 3);
		ckpts_remove(dir);
		assert_true(at < 200);
	}
}

/* The newer checkpoint has another tag than the older one. */
static void test_crash(void **state)
{
	(void)state;
	walk(5, 9);
}

/* The newer checkpoint replaces the older one under the same tag. */
static void test_crash_same_tag(void **state)
{
	(void)state;
	walk(5, 5);
}

/* The same with files of trainers in both. */
static void test_crash_client(void **state)
{
	char folder[64];

	(void)state;
	ckpts_folder(folder);
	make_file(folder, "rank0.pt", "generator");
	make_file(folder, "buffers.safetensors", "");
	ckpts_give(folder);
	walk(5, 9);
	walk(5, 5);
	ckpts_give(NULL);
	ckpts_remove(folder);
}

static bool in_memory;

/* For tests that save a hundred times and do not need a disk. */
static int to_memory(void **state)
{
	(void)state;
	in_memory = getenv("TMPDIR") == NULL && access("/dev/shm", W_OK) == 0;
	if (in_memory)
		setenv("TMPDIR", "/dev/shm", 1);
	return 0;
}

static int from_memory(void **state)
{
	(void)state;
	if (in_memory)
		unsetenv("TMPDIR");
	return 0;
}

/* One call fails, however late it is. If the save reports a failure, the checkpoint from before is
 * still under its tag. */
static void test_late_failure(void **state)
{
	bool done = false;

	(void)state;
	for (uint32_t at = 1; !done; at += SANITIZED ? 7 : 1) {
		struct err e = {.text = ""};
		struct manifest *m;
		enum shard_status st;
		char dir[64];

		ckpts_folder(dir);
		MUST(ckpts_save(dir, "gpt", 5, 2, 1024, &e));
		disk.calls = 0;
		disk.fail_at = at;
		st = ckpts_save(dir, "gpt", 5, 1, 1024, &e);
		done = disk.calls < at;
		disk.fail_at = 0;
		MUST(ckpts_load(dir, "global_step5", "gpt", 4096, &e));
		MUST(checkpoint_open(dir, "global_step5", "gpt", &m, &e));
		if (m->files_nr != (st == SHARD_OK ? 1 : 2))
			fail_msg("failure of call %u: the save ended with %s, and the checkpoint "
				 "has %u files",
				 at, status_name(st), m->files_nr);
		manifest_free(&m);
		ckpts_remove(dir);
		assert_true(at < 200);
	}
}

/* Folders that a save made survive a crash, too, because those above them are synced. */
static void test_new_folders_last(void **state)
{
	struct err e = {.text = ""};
	char dir[64], deep[128], path[128];
	struct stat s;

	(void)state;
	ckpts_folder(dir);
	snprintf(deep, sizeof(deep), "%s/a/b", dir);
	synced.nr = 0;
	MUST(ckpts_save(deep, "gpt", 5, 1, 1024, &e));
	for (int i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s%s", dir, (const char *[]){"", "/a", "/a/b"}[i]);
		assert_int_equal(stat(path, &s), 0);
		if (!was_synced(s.st_ino))
			fail_msg("%s was not synced", path);
	}
	ckpts_remove(dir);
}

/* A folder that somebody else made is neither replaced nor emptied, even if it holds a file with
 * the name of a manifest. */
static void test_foreign(void **state)
{
	static const char foreign[] = "{\"name\": \"a web application\"}";
	struct err e = {.text = ""};
	char dir[64], app[128], path[CHECKPOINT_PATH_MAX];

	(void)state;
	ckpts_folder(dir);
	snprintf(app, sizeof(app), "%s/webapp", dir);
	assert_int_equal(mkdir(app, 0755), 0);
	make_file(app, "manifest.json", foreign);
	assert_int_equal(checkpoint_begin(path, dir, "webapp", "gpt", NULL, &e), SHARD_EXISTS);
	/* Even in a folder whose manifest is ours, the files of others stay. */
	make_file(app, "manifest.json", "{\"format\":\"shardd checkpoint\"}");
	make_file(app, "index.html", "hello");
	assert_int_equal(checkpoint_begin(path, dir, "webapp", "gpt", NULL, &e), SHARD_EXISTS);
	assert_non_null(strstr(e.text, "index.html"));
	assert_int_equal(entries(app), 2);
	/* The folder has the name of an unfinished checkpoint. */
	snprintf(app, sizeof(app), "%s/.x.tmp", dir);
	assert_int_equal(mkdir(app, 0755), 0);
	make_file(app, "a.safetensors", "mine");
	assert_int_equal(checkpoint_begin(path, dir, "x", "gpt", NULL, &e), SHARD_EXISTS);
	checkpoint_abandon(dir, "x");
	assert_int_equal(entries(app), 1);
	/* The folder appears under the tag of a save that is about to finish. */
	MUST(checkpoint_begin(path, dir, "y", "gpt", NULL, &e));
	snprintf(app, sizeof(app), "%s/y", dir);
	assert_int_equal(mkdir(app, 0755), 0);
	make_file(app, "data.db", "mine");
	{
		struct manifest m = {.name = "gpt", .files_nr = 0};

		assert_true(checkpoint_finish(dir, "y", &m, &e) != SHARD_OK);
	}
	assert_int_equal(entries(app), 1);
	ckpts_remove(dir);
}

static uint32_t mode_of(const char *dir, const char *name)
{
	char path[256];
	struct stat s;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	assert_int_equal(stat(path, &s), 0);
	return s.st_mode & 07777;
}

/* Only the daemon's user can read the files, unless the model's mode lets the group read. Without a
 * mode everybody can. */
static void test_modes(void **state)
{
	static const struct {
		bool has;
		uint32_t mode, file, folder;
	} cases[] = {{true, 0600, 0600, 0700},
		     {true, 0640, 0640, 0750},
		     {true, 0666, 0640, 0750},
		     {true, 0604, 0600, 0700},
		     {false, 0, 0644, 0755}};
	struct err e = {.text = ""};

	(void)state;
	for (size_t i = 0; i < NR(cases); i++) {
		struct manifest *m;
		char dir[64], path[CHECKPOINT_PATH_MAX], tag[64];

		ckpts_folder(dir);
		MUST(ckpts_save(dir, "gpt", 5, 1, 1024, &e));
		MUST(checkpoint_open(dir, "global_step5", "gpt", &m, &e));
		m->has_mode = cases[i].has;
		m->mode = cases[i].mode;
		m->owner_known = true;
		m->owner_uid = geteuid();
		m->owner_gid = getegid();
		snprintf(m->owner_node, sizeof(m->owner_node), "a");
		snprintf(tag, sizeof(tag), "t");
		MUST(checkpoint_begin(path, dir, tag, "gpt", NULL, &e));
		part_file_free(&m->files[0]);
		m->files_nr = m->blobs_nr = 0;
		MUST(ckpts_write(path, m, 1, 1024, 5, &e));
		MUST(checkpoint_finish(dir, tag, m, &e));
		manifest_free(&m);
		assert_int_equal(mode_of(dir, "t"), cases[i].folder);
		assert_int_equal(mode_of(dir, "t/node-a.safetensors"), cases[i].file);
		assert_int_equal(mode_of(dir, "t/manifest.json"), cases[i].file);
		MUST(checkpoint_open(dir, "t", "gpt", &m, &e));
		assert_true(m->has_mode == cases[i].has && m->mode == cases[i].mode &&
			    m->owner_known);
		assert_string_equal(m->owner_node, "a");
		manifest_free(&m);
		ckpts_remove(dir);
	}
}

/* A save over a checkpoint of the same tag also works where a file system cannot exchange two
 * names. */
static void test_no_exchange(void **state)
{
	struct err e = {.text = ""};
	char dir[64];

	(void)state;
	ckpts_folder(dir);
	disk.no_exchange = true;
	MUST(ckpts_save(dir, "gpt", 5, 2, 1024, &e));
	MUST(ckpts_save(dir, "gpt", 5, 1, 1024, &e));
	disk.no_exchange = false;
	check_whole(dir, 5, 5, 0);
	assert_int_equal(entries(dir), 2);
	ckpts_remove(dir);
}

/* A save on a full disk names the folder and the reason, leaves no files, and does not harm the
 * older checkpoint. */
static void test_full_disk(void **state)
{
	struct err e = {.text = ""};
	char dir[64];

	(void)state;
	ckpts_folder(dir);
	MUST(ckpts_save(dir, "gpt", 5, 2, 1024, &e));
	for (uint64_t bytes = 0; bytes <= 32768; bytes += 8192) {
		disk.full = true;
		disk.bytes_left = bytes;
		errno = 0;
		assert_int_equal(ckpts_save(dir, "gpt", 9, 2, 1024, &e), SHARD_SYSTEM);
		disk.full = false;
		if (!strstr(e.text, dir) || !strstr(e.text, strerror(ENOSPC)))
			fail_msg("%s", e.text);
		check_whole(dir, 5, 5, 0);
		assert_int_equal(entries(dir), 2);
	}
	ckpts_remove(dir);
}

/* --- lists and pruning --- */

static void make_file(const char *dir, const char *name, const char *text)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

/* Marks it as copied, by the sum of its manifest or by another one. */
static void mark(const char *dir, const char *tag, uint64_t off)
{
	char path[CHECKPOINT_PATH_MAX];
	struct err e = {.text = ""};
	struct manifest *m;

	MUST(checkpoint_path(path, dir, tag, &e));
	MUST(manifest_read(path, &m, &e));
	MUST(checkpoint_mark(path, m->sum + off, &e));
	manifest_free(&m);
}

/* A list has the newest step first and says why a checkpoint is not complete. Pruning removes old
 * complete checkpoints of the same run, and nothing else. */
static void test_list_and_prune(void **state)
{
	char dir[64], path[CHECKPOINT_PATH_MAX], tag[CHECKPOINT_TAG_MAX + 1];
	struct checkpoint_found *found;
	struct err e = {.text = ""};
	struct manifest of = {.name = "gpt", .step = 12, .run = {{7, 7}, 7}};
	uint32_t nr, removed;
	uint64_t step;

	(void)state;
	ckpts_folder(dir);
	assert_int_equal(checkpoint_newest(dir, NULL, UINT64_MAX, tag, &step, &e), SHARD_NOT_FOUND);
	assert_int_equal(checkpoint_latest(dir, tag, &e), SHARD_NOT_FOUND);
	for (uint64_t s = 8; s <= 12; s++)
		MUST(ckpts_save_of(dir, "gpt", 7, s, &e));
	MUST(ckpts_save(dir, "bert", 99, 1, 1024, &e));
	snprintf(path, sizeof(path), "%s/global_step11/node-a.safetensors", dir);
	assert_int_equal(truncate(path, 100), 0);
	snprintf(path, sizeof(path), "%s/global_step7", dir);
	assert_int_equal(mkdir(path, 0755), 0);
	snprintf(path, sizeof(path), "%s/notes", dir);
	assert_int_equal(mkdir(path, 0755), 0);
	make_file(dir, "notes/x", "mine");
	make_file(dir, "readme", "mine");
	MUST(checkpoint_list(dir, "gpt", &found, &nr, &e));
	assert_int_equal(nr, 6); /* Step 7 is an empty folder, and belongs to no model. */
	assert_string_equal(found[0].tag, "global_step12");
	assert_true(found[0].complete && found[0].step == 12 && found[0].bytes > 0 &&
		    !found[0].latest);
	assert_true(!found[1].complete && strstr(found[1].why, "100 bytes"));
	assert_true(!found[5].complete && found[5].name[0] == 0);
	free(found);
	MUST(checkpoint_newest(dir, "gpt", 12, tag, &step, &e));
	assert_string_equal(tag, "global_step10");
	MUST(checkpoint_newest(dir, NULL, UINT64_MAX, tag, &step, &e));
	assert_int_equal(step, 99);
	MUST(checkpoint_latest(dir, tag, &e));
	assert_string_equal(tag, "global_step99");
	MUST(checkpoint_prune(dir, &of, 0, false, &removed, &e));
	assert_int_equal(removed, 0);
	of.run.id[1]++; /* Another run of a model of that name. */
	MUST(checkpoint_prune(dir, &of, 1, false, &removed, &e));
	assert_int_equal(removed, 0);
	of.run.id[1]--;
	of.step = 7; /* The model was rolled back to before all of them. */
	MUST(checkpoint_prune(dir, &of, 1, false, &removed, &e));
	assert_int_equal(removed, 0);
	of.step = 12;
	MUST(checkpoint_prune(dir, &of, 2, true, &removed, &e));
	assert_int_equal(removed, 0);
	mark(dir, "global_step8", 0);
	mark(dir, "global_step9", 1); /* Of another manifest. */
	MUST(checkpoint_prune(dir, &of, 2, true, &removed, &e));
	assert_int_equal(removed, 1); /* Step 8. */
	MUST(checkpoint_prune(dir, &of, 2, false, &removed, &e));
	assert_int_equal(removed,
			 1); /* Step 9, with its mark. Step 11 is not complete, and stays. */
	MUST(checkpoint_list(dir, "gpt", &found, &nr, &e));
	assert_int_equal(nr, 4);
	free(found);
	/* Steps 7, 10, 11, 12 and 99, notes, readme and latest. */
	assert_int_equal(entries(dir), 8);
	ckpts_remove(dir);
}

static bool unfinished(const char *dir, const char *tag)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/.%s.tmp", dir, tag);
	return access(path, F_OK) == 0;
}

static void killed_while_saving(const char *dir, const char *tag)
{
	char path[CHECKPOINT_PATH_MAX];
	int held, status;
	struct err e;
	pid_t pid = fork();

	if (pid == 0) {
		if (checkpoint_begin(path, dir, tag, "gpt", &held, &e) == SHARD_OK && held >= 0)
			(void)kill(getpid(), SIGKILL);
		_exit(1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && unfinished(dir, tag));
}

/* A sweep removes the unfinished folders of killed saves of the model. It leaves those that a save
 * writes at the moment, and those of other models. */
static void test_sweep(void **state)
{
	char dir[64], path[CHECKPOINT_PATH_MAX], from[200], to[200];
	struct checkpoint_found *found;
	struct err e = {.text = ""};
	uint32_t nr;
	int held;

	(void)state;
	ckpts_folder(dir);
	/* A crash can leave the older checkpoint under the temporary name. */
	MUST(ckpts_save(dir, "gpt", 3, 1, 1024, &e));
	snprintf(from, sizeof(from), "%s/global_step3", dir);
	snprintf(to, sizeof(to), "%s/.global_step3.tmp", dir);
	assert_int_equal(rename(from, to), 0);
	MUST(ckpts_save(dir, "gpt", 4, 1, 1024, &e));
	killed_while_saving(dir, "killed");
	MUST(checkpoint_begin(path, dir, "other", "bert", NULL, &e));
	MUST(checkpoint_begin(path, dir, "now", "gpt", &held, &e));
	assert_true(held >= 0);
	make_file(dir, ".notes.tmp", "mine");
	MUST(checkpoint_list(dir, NULL, &found, &nr, &e));
	assert_int_equal(nr, 1); /* A folder whose name begins with a dot is no checkpoint. */
	assert_string_equal(found[0].tag, "global_step4");
	free(found);
	checkpoint_sweep(dir, "gpt");
	assert_true(unfinished(dir, "now") && unfinished(dir, "other") && unfinished(dir, "notes"));
	assert_false(unfinished(dir, "killed") || unfinished(dir, "global_step3"));
	assert_int_equal(checkpoint_begin(path, dir, "now", "gpt", NULL, &e), SHARD_BUSY);
	assert_non_null(strstr(e.text, "another save"));
	close(held);
	checkpoint_sweep(dir, "gpt");
	assert_false(unfinished(dir, "now"));
	assert_int_equal(entries(dir), 4); /* Step 4, latest, .other.tmp and .notes.tmp. */
	ckpts_remove(dir);
}

/* A save is refused under a tag of another model, of a folder that is no checkpoint, and under a
 * tag that is no plain name. */
static void test_whose(void **state)
{
	char dir[64], path[CHECKPOINT_PATH_MAX], other[128];
	struct err e = {.text = ""};

	(void)state;
	ckpts_folder(dir);
	MUST(ckpts_save(dir, "gpt", 5, 1, 1024, &e));
	assert_int_equal(checkpoint_begin(path, dir, "global_step5", "bert", NULL, &e),
			 SHARD_EXISTS);
	assert_non_null(strstr(e.text, "\"gpt\""));
	MUST(checkpoint_begin(path, dir, "global_step6", "gpt", NULL, &e));
	assert_int_equal(checkpoint_begin(path, dir, "global_step6", "bert", NULL, &e),
			 SHARD_EXISTS);
	snprintf(other, sizeof(other), "%s/mine", dir);
	assert_int_equal(mkdir(other, 0755), 0);
	assert_int_equal(checkpoint_begin(path, dir, "mine", "gpt", NULL, &e), SHARD_EXISTS);
	assert_int_equal(checkpoint_begin(path, dir, "../x", "gpt", NULL, &e), SHARD_BAD_ARG);
	assert_int_equal(checkpoint_begin(path, dir, ".x", "gpt", NULL, &e), SHARD_BAD_ARG);
	assert_int_equal(checkpoint_begin(path, dir, "latest", "gpt", NULL, &e), SHARD_BAD_ARG);
	/* A link in an unfinished folder is not followed, and its target stays. */
	make_file(dir, "precious", "mine");
	MUST(checkpoint_begin(path, dir, "global_step6", "gpt", NULL, &e));
	snprintf(other, sizeof(other), "%s/.global_step6.tmp/sub", dir);
	assert_int_equal(symlink("../precious", other), 0);
	assert_int_equal(checkpoint_begin(path, dir, "global_step6", "gpt", NULL, &e),
			 SHARD_EXISTS);
	assert_non_null(strstr(e.text, "no plain file"));
	snprintf(other, sizeof(other), "%s/precious", dir);
	assert_int_equal(access(other, F_OK), 0);
	ckpts_remove(dir);
}

/* A damaged checkpoint of the same tag does not stop training from saving it again. */
static void test_over_damage(void **state)
{
	struct err e = {.text = ""};
	char dir[64], path[128];

	(void)state;
	ckpts_folder(dir);
	MUST(ckpts_save(dir, "gpt", 5, 1, 1024, &e));
	snprintf(path, sizeof(path), "%s/global_step5/manifest.json", dir);
	assert_int_equal(truncate(path, 50), 0);
	assert_int_equal(ckpts_load(dir, "global_step5", "gpt", 4096, &e), SHARD_PROTOCOL);
	MUST(ckpts_save(dir, "gpt", 5, 1, 1024, &e));
	check_whole(dir, 5, 5, 0);
	ckpts_remove(dir);
}

#define IN_MEMORY(f) cmocka_unit_test_setup_teardown(f, to_memory, from_memory)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_crash),
		cmocka_unit_test(test_crash_same_tag),
		cmocka_unit_test_setup_teardown(test_crash_client, to_memory, from_memory),
		cmocka_unit_test(test_no_exchange),
		cmocka_unit_test(test_full_disk),
		cmocka_unit_test(test_list_and_prune),
		cmocka_unit_test(test_sweep),
		cmocka_unit_test(test_whose),
		cmocka_unit_test(test_over_damage),
		IN_MEMORY(test_late_failure),
		cmocka_unit_test(test_new_folders_last),
		cmocka_unit_test(test_foreign),
		cmocka_unit_test(test_modes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
