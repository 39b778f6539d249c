/* SPDX-License-Identifier: Apache-2.0 */
/* Tests shared memory. A trainer cannot write the image whatever it tries, nobody can change a size
 * or a seal, and the client maps only what a daemon makes. */
#include "base/check.h"
#include "lib/frames.h"
#include "net/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static unsigned made_flags; /* Counts all memfd_create() since it was zero. */

/* Stands in for that of glibc, so that a machine without a pool of huge pages tells who asks for
 * some. */
int memfd_create(const char *name, unsigned flags)
{
	made_flags |= flags;
	return (int)syscall(SYS_memfd_create, name, flags);
}

static void test_image_is_read_only(void **state)
{
	struct shm m, there;
	struct err e;
	char path[64];
	void *p;
	int fd;

	(void)state;
	assert_int_equal(shm_create(&m, "image", 100000, SHM_IMAGE, SHM_HUGE_NO, &e), SHARD_OK);
	memset(m.base, 7, 100000); /* The daemon writes. */
	fd = fcntl(m.fd, F_DUPFD_CLOEXEC, 0);
	assert_ptr_equal(mmap(NULL, m.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
			 MAP_FAILED);
	assert_int_equal(errno, EPERM);
	p = mmap(NULL, m.bytes, PROT_READ, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	assert_int_equal(mprotect(p, m.bytes, PROT_READ | PROT_WRITE), -1);
	assert_int_equal(pwrite(fd, "x", 1, 0), -1);
	assert_int_equal(errno, EPERM);
	snprintf(path, sizeof(path), "/proc/self/fd/%d",
		 fd); /* Opened again with other rights. The seal belongs to the file. */
	int again = open(path, O_RDWR | O_CLOEXEC);
	if (again >= 0) {
		assert_ptr_equal(mmap(NULL, m.bytes, PROT_WRITE, MAP_SHARED, again, 0), MAP_FAILED);
		close(again);
	}
	munmap(p, m.bytes);
	assert_int_equal(shm_map(&there, fd, 100000, 0, &e), SHARD_OK);
	assert_int_equal(((unsigned char *)there.base)[99999], 7);
	((unsigned char *)m.base)[5] = 9;
	assert_int_equal(((unsigned char *)there.base)[5], 9);
	shm_unmap(&there);
	shm_unmap(&there);
	shm_unmap(&m);
}

/* Who had it mapped keeps the addresses. What is written there later belongs to nobody else. */
static void test_cut(void **state)
{
	uint32_t before = frames_open_fds();
	struct shm m, there;
	unsigned char *p;
	struct err e;
	int status;
	pid_t pid;

	(void)state;
	assert_int_equal(shm_create(&m, "arena", 100000, SHM_ARENA, SHM_HUGE_NO, &e), SHARD_OK);
	assert_int_equal(shm_map(&there, fcntl(m.fd, F_DUPFD_CLOEXEC, 0), 100000, 1, &e), SHARD_OK);
	p = there.base;
	memset(p, 5, 100000);
	shm_cut(&there);
	shm_cut(&there);
	assert_ptr_equal(there.base, p);
	assert_int_equal(frames_open_fds(), before + 1); /* The memory is m's own. */
	assert_int_equal(p[99999], 0);
	memset(p, 6, there.bytes);
	for (int i = 0; i < 100000; i++)
		assert_int_equal(((unsigned char *)m.base)[i], 5);
	pid = fork();
	if (pid == 0) { /* A child still does not get it. */
		unsigned char in;

		_exit(mincore(p, 1, &in) != 0 && errno == ENOMEM ? 0 : 1);
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
	assert_int_equal(status, 0);
	shm_unmap(&there);
	shm_unmap(&m);
	assert_int_equal(frames_open_fds(), before);
}

static void test_arena(void **state)
{
	struct shm m, there;
	struct err e;

	(void)state;
	assert_int_equal(shm_create(&m, "arena", 5000, SHM_ARENA, SHM_HUGE_NO, &e), SHARD_OK);
	assert_int_equal(m.bytes, 8192);
	assert_int_equal(fcntl(m.fd, F_GETFD), FD_CLOEXEC);
	assert_int_equal(ftruncate(m.fd, 4096), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(m.fd, 1 << 20), -1);
	assert_int_equal(fcntl(m.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	assert_int_equal(shm_map(&there, fcntl(m.fd, F_DUPFD_CLOEXEC, 0), 5000, 1, &e), SHARD_OK);
	((char *)there.base)[4999] = 'x';
	assert_int_equal(((char *)m.base)[4999], 'x');
	shm_unmap(&there);
	shm_unmap(&m);
}

/* Large enough for several threads to touch it, and no multiple of their parts. */
static void test_touched_large(void **state)
{
	const size_t bytes = ((size_t)200 << 20) + 12345, pages = (bytes + 4095) / 4096;
	unsigned char *in_core = calloc(pages, 1);
	struct shm m;

	(void)state;
	assert_non_null(in_core);
	for (int shared = 0; shared < 2; shared++) {
		assert_int_equal(
			shared ? shm_create(&m, "image", bytes, SHM_KEPT, SHM_HUGE_NO, NULL)
			       : shm_private(&m, bytes, SHM_HUGE_NO, NULL),
			SHARD_OK);
		assert_int_equal(mincore(m.base, bytes, in_core), 0);
		for (size_t i = 0; i < pages; i++)
			assert_true(in_core[i] & 1);
		shm_unmap(&m);
	}
	free(in_core);
}

static void test_not_forked(void **state)
{
	struct shm m;
	int status;
	pid_t pid;

	(void)state;
	assert_int_equal(shm_create(&m, "arena", 4096, SHM_ARENA, SHM_HUGE_NO, NULL), SHARD_OK);
	pid = fork();
	if (pid == 0) {
		unsigned char in_core;

		_exit(mincore(m.base, 4096, &in_core) == -1 && errno == ENOMEM
			      ? 0
			      : 1); /* There is no mapping. */
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	shm_unmap(&m);
}

static int memfd(size_t bytes, int seals)
{
	int fd = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0);
	return fd;
}

static void test_map_refuses(void **state)
{
	const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	uint32_t before = frames_open_fds();
	struct shm m;
	struct err e;
	int pipes[2];

	(void)state;
	assert_int_equal(shm_map(&m, memfd(4096, 0), 4096, 1, &e), SHARD_PROTOCOL);
	assert_non_null(strstr(e.text, "lacks seals"));
	assert_int_equal(shm_map(&m, memfd(4096, F_SEAL_GROW | F_SEAL_SEAL), 4096, 1, &e),
			 SHARD_PROTOCOL); /* It could shrink, which would be a SIGBUS. */
	assert_int_equal(shm_map(&m, memfd(4096, all), 4096, 0, &e),
			 SHARD_PROTOCOL); /* An image that others may write. */
	assert_int_equal(shm_map(&m, memfd(4096, all), 4097, 1, &e), SHARD_PROTOCOL);
	assert_non_null(strstr(e.text, "has 4096 bytes, 4097 expected"));
	assert_int_equal(shm_map(&m, memfd(4096, all), 0, 1, &e), SHARD_PROTOCOL);
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	assert_int_equal(shm_map(&m, pipes[0], 1, 1, &e), SHARD_PROTOCOL);
	close(pipes[1]);
	assert_int_equal(shm_map(&m, open("/dev/zero", O_RDWR | O_CLOEXEC), 4096, 1, &e),
			 SHARD_PROTOCOL);
	assert_int_equal(shm_map(&m, memfd(4096, all), 4096, 1, &e), SHARD_OK);
	shm_unmap(&m);
	assert_int_equal(frames_open_fds(), before);
}

static void test_huge_policy(void **state)
{
	struct shm m;
	struct err e;
	enum shard_status rc;

	(void)state;
	rc = shm_create(&m, "image", 1ull << 50, SHM_IMAGE, SHM_HUGE_REQUIRE,
			&e); /* More than any machine has. */
	assert_int_equal(rc, SHARD_BUDGET);
	assert_non_null(strstr(e.text, "536870912 needed"));
	assert_non_null(strstr(e.text, "/proc/sys/vm/nr_hugepages"));
	assert_int_equal(m.fd, -1);
	shm_unmap(&m);
	assert_int_equal(shm_private(&m, 1ull << 50, SHM_HUGE_REQUIRE, &e), SHARD_BUDGET);
	rc = shm_private(&m, 1ull << 46, SHM_HUGE_NO, &e);
	assert_int_equal(rc, SHARD_BUDGET);
	rc = shm_create(&m, "arena", 5 << 20, SHM_ARENA, SHM_HUGE_TRY, &e);
	assert_int_equal(rc, SHARD_OK);
	assert_true(m.bytes >= 5 << 20);
	memset(m.base, 1, 5 << 20);
	printf("huge pages = try gave %s pages\n", shm_pages_name(m.got));
	shm_unmap(&m);
	assert_int_equal(shm_private(&m, 5 << 20, SHM_HUGE_TRY, &e), SHARD_OK);
	assert_int_equal(m.fd, -1);
	memset(m.base, 1, 5 << 20);
	shm_unmap(&m);
	assert_null(m.base);
	assert_int_equal(shm_private(&m, 5 << 20, SHM_HUGE_NO, &e), SHARD_OK);
	assert_int_equal(m.got, SHM_PAGES_NORMAL);
	shm_unmap(&m);
}

/* A trainer may punch holes into its arena. A hole in reserved huge pages gives them back, and
 * the next read of the daemon may be a SIGBUS. So an arena never has any, whatever the policy says.
 * */
static void test_arena_without_reserved_pages(void **state)
{
	static const enum shm_huge policies[] = {SHM_HUGE_TRY, SHM_HUGE_REQUIRE, SHM_HUGE_NO};
	const size_t bytes = (5 << 20) + 1, whole = (5 << 20) + 4096;
	struct shm m;
	struct err e;

	(void)state;
	for (size_t i = 0; i < NR(policies); i++) {
		made_flags = 0;
		assert_int_equal(shm_create(&m, "arena", bytes, SHM_ARENA, policies[i], &e),
				 SHARD_OK);
		assert_int_equal(made_flags & MFD_HUGETLB, 0);
		assert_int_not_equal(m.got, SHM_PAGES_HUGETLB);
		assert_int_equal(m.bytes, whole);
		assert_int_equal(fallocate(m.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
					   (off_t)whole),
				 0);
		assert_int_equal(((unsigned char *)m.base)[0] | ((unsigned char *)m.base)[bytes],
				 0);
		shm_unmap(&m);
	}
	made_flags = 0; /* The policy is followed where only the daemon writes. */
	if (shm_create(&m, "image", bytes, SHM_IMAGE, SHM_HUGE_REQUIRE, &e) == SHARD_OK)
		shm_unmap(&m);
	assert_int_equal(made_flags & MFD_HUGETLB, MFD_HUGETLB);
}

static void test_touched(void **state)
{
	struct shm m;
	unsigned char in_core[64];

	(void)state;
	assert_int_equal(
		shm_create(&m, "image", sizeof(in_core) * 4096, SHM_IMAGE, SHM_HUGE_NO, NULL),
		SHARD_OK);
	assert_int_equal(mincore(m.base, m.bytes, in_core), 0);
	for (size_t i = 0; i < sizeof(in_core); i++)
		assert_true(in_core[i] & 1);
	shm_unmap(&m);
}

static void test_image_head(void **state)
{
	(void)state;
	assert_int_equal(sizeof(struct image_head), 64 + 8 - 8);
	assert_int_equal(image_data_offset(0) % 4096, 0);
	assert_true(image_data_offset(1000) >= sizeof(struct image_head) + 8000);
	assert_int_equal(image_data_offset(1000) % 4096, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_image_is_read_only),
		cmocka_unit_test(test_cut),
		cmocka_unit_test(test_arena),
		cmocka_unit_test(test_touched_large),
		cmocka_unit_test(test_not_forked),
		cmocka_unit_test(test_map_refuses),
		cmocka_unit_test(test_huge_policy),
		cmocka_unit_test(test_touched),
		cmocka_unit_test(test_image_head),
		cmocka_unit_test(test_arena_without_reserved_pages),
	};

	return cmocka_run_group_tests_name("shm", tests, NULL, NULL);
}
