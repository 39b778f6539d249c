// SPDX-License-Identifier: Apache-2.0
/* Tests the files of trainers in a checkpoint: what is taken from a folder, and what is refused by
 * name because it is a link, a device, another user's or too much. A file that changes while it is
 * copied is refused. Damage is found. Whoever removes or replaces the checkpoint takes the files
 * along, and nothing else that lies there. */
#include "base/check.h"
#include "ckpt/client.h"
#include "lib/ckpts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
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

/* Refused, with these words in the sentence. */
#define REFUSED(st, x, words)                                                                      \
	do {                                                                                       \
		enum shard_status st_ = (x);                                                       \
		if (st_ != (st) || strstr(e.text, words) == NULL)                                  \
			fail_msg("%s: %s: %s", #x, status_name(st_), e.text);                      \
	} while (0)

struct place {
	char given[64], dir[64];
	struct client_from from;
};

/* A file that grows by a byte at the next write of anybody, as if its trainer had not ended. */
static char grows[200];

ssize_t __real_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n)
{
	if (grows[0] != 0) {
		int own = open(grows, O_WRONLY | O_APPEND | O_CLOEXEC);

		grows[0] = 0;
		CHECK(own >= 0 && __real_write(own, "x", 1) == 1);
		close(own);
	}
	return __real_write(fd, p, n);
}

static char *at(char path[200], const char *folder, const char *name)
{
	CHECK(snprintf(path, 200, "%s/%s", folder, name) < 200);
	return path;
}

static void make(const char *folder, const char *name, const char *text)
{
	char path[200];
	FILE *f = fopen(at(path, folder, name), "we");

	CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

static int setup(void **state)
{
	struct place *p = calloc(1, sizeof(*p));

	CHECK(p != NULL);
	ckpts_folder(p->given);
	ckpts_folder(p->dir);
	p->from = (struct client_from){.path = p->given, .uid = geteuid()};
	*state = p;
	return 0;
}

static int teardown(void **state)
{
	struct place *p = *state;

	ckpts_give(NULL);
	ckpts_remove(p->given);
	ckpts_remove(p->dir);
	free(p);
	return 0;
}

static enum shard_status copy(struct place *p, struct err *e)
{
	struct part_progress progress = {.cancel = false};
	struct manifest m = {.step = 1};
	enum shard_status st = client_copy(&p->from, p->dir, &m, &progress, e);
	char path[200];

	for (uint32_t i = 0; i < m.client_nr; i++)
		part_file_free(&m.client[i]);
	free(m.client);
	ckpts_remove(at(path, p->dir, "client"));
	return st;
}

static void test_taken(void **state)
{
	struct place *p = *state;
	struct err e = {.text = ""};
	struct checkpoint_found *found;
	struct manifest *m;
	char path[200], *large = malloc((9u << 20) + 1);
	uint32_t nr;

	CHECK(large != NULL);
	memset(large, 'a', 9u << 20);
	large[9u << 20] = 0;
	make(p->given, "rank0.pt", "generator");
	make(p->given, "empty", "");
	make(p->given, "buffers.safetensors", large);
	ckpts_give(p->given);
	MUST(ckpts_save(p->dir, "gpt", 5, 1, 1024, &e));
	MUST(checkpoint_open(p->dir, "global_step5", "gpt", &m, &e));
	assert_int_equal(m->client_nr, 3);
	assert_string_equal(m->client[0].name, "buffers.safetensors");
	assert_int_equal(m->client[0].bytes, 9u << 20);
	assert_int_equal(m->client[0].sums_nr, 2);
	assert_int_equal(m->client[1].bytes, 0);
	assert_int_equal(m->client[1].sums_nr, 0);
	assert_string_equal(m->client[2].name, "rank0.pt");
	manifest_free(&m);
	MUST(checkpoint_list(p->dir, NULL, &found, &nr, &e));
	assert_int_equal(nr, 1);
	assert_true(found->complete);
	assert_int_equal(found->client_nr, 3);
	assert_int_equal(found->client_bytes, (9u << 20) + 9);
	assert_string_equal(found->client_why, "");
	free(found);
	free(large);
	assert_int_equal(access(at(path, p->dir, "global_step5/client/rank0.pt"), R_OK), 0);
}

static void test_refused(void **state)
{
	struct place *p = *state;
	struct err e = {.text = ""};
	char path[200];

	make(p->given, "good.pt", "good");
	assert_int_equal(symlink("/etc/passwd", at(path, p->given, "link")), 0);
	REFUSED(SHARD_DENIED, client_look(&p->from, &e), "link is no plain file");
	REFUSED(SHARD_DENIED, copy(p, &e), "link is no plain file");
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkdir(at(path, p->given, "sub"), 0755), 0);
	REFUSED(SHARD_DENIED, client_look(&p->from, &e), "sub is no plain file");
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(mkfifo(at(path, p->given, "pipe"), 0644), 0);
	REFUSED(SHARD_DENIED, client_look(&p->from, &e), "pipe is no plain file");
	assert_int_equal(unlink(path), 0);
	if (geteuid() == 0 && mknod(at(path, p->given, "device"), S_IFCHR | 0644, makedev(1, 5)) ==
				      0) { /* /dev/zero */
		REFUSED(SHARD_DENIED, client_look(&p->from, &e), "device is no plain file");
		assert_int_equal(unlink(path), 0);
	}
	make(p->given, ".hidden", "");
	REFUSED(SHARD_BAD_ARG, client_look(&p->from, &e), "\".hidden\": a name has");
	assert_int_equal(unlink(at(path, p->given, ".hidden")), 0);
	make(p->given, "a b", "");
	REFUSED(SHARD_BAD_ARG, client_look(&p->from, &e), "\"a b\": a name has");
	assert_int_equal(unlink(at(path, p->given, "a b")), 0);
	MUST(copy(p, &e));
}

static void test_too_much(void **state)
{
	struct place *p = *state;
	struct err e = {.text = ""};
	char path[200], name[16];

	make(p->given, "large", "");
	assert_int_equal(truncate(at(path, p->given, "large"), (off_t)CLIENT_BYTES_MAX), 0);
	MUST(client_look(&p->from, &e));
	make(p->given, "more", "1");
	REFUSED(SHARD_RANGE, client_look(&p->from, &e), "more than 17179869184 bytes");
	assert_int_equal(unlink(path), 0);
	for (int i = 1; i < CLIENT_FILES_MAX; i++) {
		snprintf(name, sizeof(name), "%d", i);
		make(p->given, name, "");
	}
	MUST(client_look(&p->from, &e));
	make(p->given, "0", "");
	REFUSED(SHARD_RANGE, client_look(&p->from, &e), "more than 1024 files");
}

/* A daemon of root takes nothing but what belongs to who asks. */
static void test_owners(void **state)
{
	struct place *p = *state;
	struct err e = {.text = ""};
	char path[200], link[200];

	if (geteuid() != 0)
		skip(); /* It takes root to give files away. */
	make(p->given, "mine", "");
	make(p->given, "roots", "secret");
	p->from.uid = 12345;
	REFUSED(SHARD_DENIED, client_look(&p->from, &e), "is no folder of uid 12345");
	assert_int_equal(chown(p->given, 12345, 12345), 0);
	assert_int_equal(chown(at(path, p->given, "mine"), 12345, 12345), 0);
	REFUSED(SHARD_DENIED, client_look(&p->from, &e), "roots belongs to another user");
	/* A hard link does not make it his. */
	assert_int_equal(rename(at(path, p->given, "roots"), at(link, p->dir, "roots")), 0);
	assert_int_equal(linkat(AT_FDCWD, link, AT_FDCWD, path, 0), 0);
	REFUSED(SHARD_DENIED, copy(p, &e), "roots belongs to another user");
	assert_int_equal(unlink(path), 0);
	MUST(copy(p, &e));
	/* What there is, and what there is not, sounds the same. */
	p->from.path = "/root";
	REFUSED(SHARD_DENIED, client_look(&p->from, &e), "/root: is no folder of uid 12345");
	p->from.path = "/nowhere";
	REFUSED(SHARD_DENIED, client_look(&p->from, &e), "/nowhere: is no folder of uid 12345");
	assert_int_equal(symlink(p->given, at(link, p->dir, "way")), 0);
	p->from.path = link;
	REFUSED(SHARD_DENIED, client_look(&p->from, &e), "is no folder of uid 12345");
	p->from.anyones = true;
	REFUSED(SHARD_DENIED, client_look(&p->from, &e), "is no folder that the daemon can read");
	p->from.path = "client";
	REFUSED(SHARD_BAD_ARG, client_look(&p->from, &e), "absolute path");
	p->from.path = "/nowhere";
	REFUSED(SHARD_NOT_FOUND, client_look(&p->from, &e), "No such file");
}

static void test_changes(void **state)
{
	struct part_progress progress = {.cancel = true};
	struct place *p = *state;
	struct manifest m = {.step = 1};
	struct err e = {.text = ""};

	make(p->given, "rank0.pt", "generator");
	at(grows, p->given, "rank0.pt");
	REFUSED(SHARD_STALE, copy(p, &e), "rank0.pt changed while it was copied");
	MUST(copy(p, &e));
	assert_int_equal(client_copy(&p->from, p->dir, &m, &progress, &e), SHARD_INTERRUPTED);
	part_file_free(&m.client[0]);
	free(m.client);
}

/* A full disk, or whatever is in the way. */
static void test_not_made(void **state)
{
	struct place *p = *state;
	struct err e = {.text = ""};
	char path[200];

	make(p->given, "rank0.pt", "generator");
	assert_int_equal(symlink("/tmp", at(path, p->dir, "client")), 0);
	REFUSED(SHARD_SYSTEM, copy(p, &e), "client: cannot be made: File exists");
}

static void test_damage(void **state)
{
	struct part_progress progress = {.cancel = false};
	struct place *p = *state;
	struct checkpoint_found *found;
	struct err e = {.text = ""};
	struct manifest *m;
	char path[200], tag[200];
	uint32_t nr;

	make(p->given, "rank0.pt", "generator");
	ckpts_give(p->given);
	MUST(ckpts_save(p->dir, "gpt", 5, 1, 1024, &e));
	MUST(checkpoint_open(p->dir, "global_step5", "gpt", &m, &e));
	at(tag, p->dir, "global_step5");
	MUST(client_verify(tag, m, &progress, &e));
	assert_int_equal(progress.done_bytes, 9);
	make(p->dir, "global_step5/client/rank0.pt", "generaTor");
	MUST(client_lengths(tag, m, &e));
	REFUSED(SHARD_PROTOCOL, client_verify(tag, m, &progress, &e), "client/rank0.pt: damaged");
	make(p->dir, "global_step5/client/rank0.pt", "gen");
	REFUSED(SHARD_PROTOCOL, client_lengths(tag, m, &e), "has not the 9 bytes");
	assert_int_equal(unlink(at(path, p->dir, "global_step5/client/rank0.pt")), 0);
	REFUSED(SHARD_NOT_FOUND, client_lengths(tag, m, &e), "client/rank0.pt: is not there");
	manifest_free(&m);
	/* The weights are good, and say so. */
	MUST(checkpoint_list(p->dir, NULL, &found, &nr, &e));
	assert_true(nr == 1 && found->complete);
	assert_non_null(strstr(found->client_why, "client/rank0.pt"));
	free(found);
	MUST(checkpoint_open(p->dir, "global_step5", "gpt", &m, &e));
	manifest_free(&m);
}

/* Who replaces or prunes a checkpoint, or clears away what a killed save has left, takes its files
 * along. What nobody of ours put there stays, and is named. */
static void test_removed(void **state)
{
	struct place *p = *state;
	struct err e = {.text = ""};
	char path[CHECKPOINT_PATH_MAX], file[200];
	int held;

	make(p->given, "rank0.pt", "generator");
	ckpts_give(p->given);
	MUST(ckpts_save(p->dir, "gpt", 5, 1, 1024, &e));
	ckpts_give(NULL);
	MUST(ckpts_save(p->dir, "gpt", 5, 1, 1024, &e));
	assert_int_not_equal(access(at(file, p->dir, "global_step5/client"), F_OK), 0);
	assert_int_not_equal(access(at(file, p->dir, ".global_step5.tmp"), F_OK), 0);
	/* A killed save. */
	MUST(checkpoint_begin(path, p->dir, "killed", "gpt", &held, &e));
	assert_int_equal(mkdir(at(file, path, "client"), 0700), 0);
	make(file, "rank0.pt", "gen");
	close(held);
	checkpoint_sweep(p->dir, "gpt");
	assert_int_not_equal(access(path, F_OK), 0);
	/* Something of somebody else's in it. */
	ckpts_give(p->given);
	MUST(ckpts_save(p->dir, "gpt", 5, 1, 1024, &e));
	assert_int_equal(mkdir(at(file, p->dir, "global_step5/client/deep"), 0700), 0);
	REFUSED(SHARD_EXISTS, ckpts_save(p->dir, "gpt", 5, 1, 1024, &e), "client/deep");
	assert_int_equal(rmdir(file), 0);
	assert_int_equal(symlink("/etc/passwd", at(file, p->dir, "global_step5/client/way")), 0);
	REFUSED(SHARD_EXISTS, ckpts_save(p->dir, "gpt", 5, 1, 1024, &e), "client/way");
	assert_int_equal(access(at(file, p->dir, "global_step5/client/rank0.pt"), F_OK), 0);
	assert_int_equal(unlink(at(file, p->dir, "global_step5/client/way")), 0);
	MUST(ckpts_save(p->dir, "gpt", 5, 1, 1024, &e));
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_taken),   TEST(test_refused),  TEST(test_too_much), TEST(test_owners),
		TEST(test_changes), TEST(test_not_made), TEST(test_damage),   TEST(test_removed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
