/* SPDX-License-Identifier: Apache-2.0 */
/* Memory in large pieces: shared (sealed memfds and files) and private, with huge pages where there
 * are any. The daemon calls it when a model is reserved, and the client library when it joins.
 * Happy path: memfd of exact size -> map it writable here -> touch every page, so that a lack of
 * memory shows now -> seal. It fails where there is no memory, or where huge pages are required and
 * missing. At the client it fails if a descriptor is not what a daemon makes. */
#include "net/shm.h"

#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define SHMEM_HUGE     "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
#define TMPFS_TYPE     0x01021994
#define HUGETLBFS_TYPE 0x958458f6

#define HUGE_BYTES  ((size_t)2 << 20)
#define TOUCH_BYTES ((size_t)64 << 20) /* Enough for a thread. */
/* Of one call, as it keeps other threads, such as the daemon's loop, from mapping memory. A machine
 * that gets its memory from a busy host may take 100 ms for 16 MiB. */
#define PIECE_BYTES HUGE_BYTES
#define SEALS       (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

enum { TOUCH_THREADS = 8, TOUCH_NOT = -1 };

static size_t round_up(size_t bytes, size_t to)
{
	return (bytes + to - 1) / to * to;
}

static size_t page_bytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

static unsigned long long read_number(const char *path)
{
	unsigned long long n = 0;
	FILE *f = fopen(path, "re");

	if (!f)
		return 0;
	if (fscanf(f, "%llu", &n) != 1)
		n = 0;
	fclose(f);
	return n;
}

/* Reads "always [madvise] never". True if the word in brackets allows huge pages. */
static bool thp_allowed(const char *path)
{
	char line[128] = "";
	FILE *f = fopen(path, "re");

	if (!f)
		return false;
	if (!fgets(line, sizeof(line), f))
		line[0] = '\0';
	fclose(f);
	return strstr(line, "[always]") || strstr(line, "[advise]") || strstr(line, "[madvise]") ||
	       strstr(line, "[within_size]") || strstr(line, "[force]");
}

/* Makes every page present, or fails with errno. For memory that existed before, how is
 * MADV_POPULATE_READ, which maps many pages at once, also for writing. */
static int touch_all(char *base, size_t bytes, int how)
{
	for (size_t at = 0, n; at < bytes; at += n) {
		n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
		if (madvise(base + at, n, how) == 0)
			continue;
		if (errno != EINVAL)
			return -1;
		for (size_t i = at; i < at + n; i += page_bytes()) /* Kernels before 5.14. */
			how == MADV_POPULATE_READ ? (void)((volatile char *)base)[i]
						  : (void)(((volatile char *)base)[i] = 0);
	}
	return 0;
}

/* Unmaps piece by piece. Memory that cannot be cut like that, as in pages of 1 GiB, goes at
 * once. */
static int unmap_all(char *base, size_t bytes)
{
	for (; bytes > PIECE_BYTES && munmap(base, PIECE_BYTES) == 0; bytes -= PIECE_BYTES)
		base += PIECE_BYTES;
	return munmap(base, bytes);
}

struct touched {
	pthread_t thread;
	void *base;
	size_t bytes;
	int how, error;
};

static void *touch_part(void *arg)
{
	struct touched *t = arg;

	t->error = touch_all(t->base, t->bytes, t->how) == 0 ? 0 : errno;
	return NULL;
}

static size_t touch_parts(size_t bytes)
{
	long processors = sysconf(_SC_NPROCESSORS_ONLN);
	size_t parts = processors < 1               ? 1
		       : processors < TOUCH_THREADS ? (size_t)processors
						    : TOUCH_THREADS;

	return bytes / TOUCH_BYTES < parts ? bytes / TOUCH_BYTES : parts;
}

/* Touches memory in threads. Making pages is mostly clearing them, which one processor does at a
 * fraction of the memory's speed. This thread takes the last part, and the parts for which no
 * thread could be made. */
static int touch(void *base, size_t bytes, int how)
{
	struct touched t[TOUCH_THREADS];
	size_t parts = touch_parts(bytes),
	       each = parts > 1 ? bytes / parts / HUGE_BYTES * HUGE_BYTES : 0, made = 0;
	sigset_t all, before;
	int error;

	sigfillset(&all); /* Signals are for the threads that the program knows of. */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (made + 1 < parts) {
		t[made] = (struct touched){
			.base = (char *)base + made * each, .bytes = each, .how = how};
		if (pthread_create(&t[made].thread, NULL, touch_part, &t[made]) != 0)
			break;
		made++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	error = touch_all((char *)base + made * each, bytes - made * each, how) == 0 ? 0 : errno;
	while (made > 0) {
		pthread_join(t[--made].thread, NULL);
		error = t[made].error ? t[made].error : error;
	}
	errno = error;
	return error ? -1 : 0;
}

static enum shard_status no_huge(const char *name, size_t bytes, struct err *e)
{
	return err_set(e, SHARD_BUDGET,
		       "huge pages for %s: %zu needed, %llu of %llu are free: raise "
		       "/proc/sys/vm/nr_hugepages or set huge_pages = try",
		       name, bytes / HUGE_BYTES,
		       read_number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"),
		       read_number("/proc/sys/vm/nr_hugepages"));
}

static enum shard_status no_memory(const char *name, size_t bytes, struct err *e)
{
	int error = errno == EFAULT ? ENOMEM : errno; /* of a page that cannot be made */

	return err_set(e, error == ENOMEM || error == ENOSPC ? SHARD_BUDGET : SHARD_SYSTEM,
		       "%zu bytes for %s: %s", bytes, name, strerror(error));
}

/* Maps and touches. It advises huge pages unless huge is NO. A failure leaves nothing. */
static int map_touched(struct shm *m, int fd, size_t bytes, int flags, enum shm_huge huge,
		       const char *thp, int how)
{
	int error;

	m->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
	if (m->base == MAP_FAILED) {
		m->base = NULL;
		return -1;
	}
	m->bytes = bytes;
	(void)madvise(m->base, bytes, MADV_DONTFORK);
	if (!(flags & MAP_HUGETLB) && thp && huge != SHM_HUGE_NO && bytes >= HUGE_BYTES &&
	    thp_allowed(thp) && madvise(m->base, bytes, MADV_HUGEPAGE) == 0)
		m->got = SHM_PAGES_THP;
	if (how == TOUCH_NOT || touch(m->base, bytes, how) == 0)
		return 0;
	error = errno;
	unmap_all(m->base, bytes);
	m->base = NULL;
	errno = error;
	return -1;
}

uint64_t shm_room_start(uint64_t bytes)
{
	return round_up(bytes, HUGE_BYTES);
}

static size_t file_bytes(size_t bytes, size_t room)
{
	return room > 0 ? shm_room_start(bytes) + room : bytes;
}

/* Maps the room behind the first part of a file, and touches nothing. -1: errno says why. */
static int map_room(struct shm *m, int fd, size_t room)
{
	void *at;

	if (room == 0)
		return 0;
	at = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd,
		  (off_t)shm_room_start(m->bytes));
	if (at == MAP_FAILED)
		return -1;
	(void)madvise(at, room, MADV_DONTFORK);
	/* A huge page would reach into chunks that are not held. */
	(void)madvise(at, room, MADV_NOHUGEPAGE);
	m->room = at;
	m->room_bytes = room;
	return 0;
}

static void unmap_both(struct shm *m)
{
	if (m->base != NULL)
		CHECK(unmap_all(m->base, m->bytes) == 0);
	if (m->room != NULL)
		CHECK(munmap(m->room, m->room_bytes) == 0);
}

static int create_fd(const char *name, size_t bytes, unsigned flags)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags), error;

	if (fd >= 0 && ftruncate(fd, (off_t)bytes) != 0) {
		error = errno;
		close(fd);
		errno = error;
		return -1;
	}
	return fd;
}

/* One attempt, with or without reserved huge pages. -1: errno says why, and nothing is left. */
static int create_once(struct shm *m, const char *name, size_t bytes, size_t room, enum shm_use use,
		       bool tlb, enum shm_huge huge)
{
	int fd = create_fd(name, file_bytes(bytes, room), tlb ? MFD_HUGETLB : 0), error;

	if (fd < 0)
		return -1;
	if (bytes > 0 && map_touched(m, fd, bytes, MAP_SHARED, huge, tlb ? NULL : SHMEM_HUGE,
				     MADV_POPULATE_WRITE) != 0)
		goto err_fd;
	if (map_room(m, fd, room) != 0)
		goto err_map;
	/* For the image, this mapping stays writable and no later one can be. */
	if (fcntl(fd, F_ADD_SEALS, SEALS | (use == SHM_IMAGE ? F_SEAL_FUTURE_WRITE : 0)) != 0)
		goto err_map;
	m->fd = fd;
	if (tlb)
		m->got = SHM_PAGES_HUGETLB;
	return 0;
err_map:
	error = errno;
	unmap_both(m);
	errno = error;
err_fd:
	error = errno;
	close(fd);
	memset(m, 0, sizeof(*m));
	m->fd = -1;
	errno = error;
	return -1;
}

static enum shard_status create(struct shm *m, const char *name, size_t bytes, size_t room,
				enum shm_use use, enum shm_huge huge, struct err *e)
{
	bool tlb = use != SHM_ARENA &&
		   (huge == SHM_HUGE_REQUIRE || (huge == SHM_HUGE_TRY && bytes >= HUGE_BYTES));

	CHECK(bytes > 0 || room > 0);
	memset(m, 0, sizeof(*m));
	m->fd = -1;
	if (tlb) {
		if (create_once(m, name, round_up(bytes, HUGE_BYTES), room, use, true, huge) == 0)
			return SHARD_OK;
		if (huge == SHM_HUGE_REQUIRE)
			return no_huge(name, round_up(bytes, HUGE_BYTES), e);
	}
	bytes = round_up(bytes, page_bytes());
	return create_once(m, name, bytes, room, use, false, huge) == 0 ? SHARD_OK
									: no_memory(name, bytes, e);
}

enum shard_status shm_create(struct shm *m, const char *name, size_t bytes, enum shm_use use,
			     enum shm_huge huge, struct err *e)
{
	return create(m, name, bytes, 0, use, huge, e);
}

enum shard_status shm_keep(struct shm *m, const char *name, size_t bytes, size_t room,
			   enum shm_huge huge, struct err *e)
{
	return create(m, name, bytes, room, SHM_KEPT, huge, e);
}

enum shard_status shm_private(struct shm *m, size_t bytes, enum shm_huge huge, struct err *e)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS;

	CHECK(bytes > 0);
	memset(m, 0, sizeof(*m));
	m->fd = -1;
	if (huge == SHM_HUGE_REQUIRE || (huge == SHM_HUGE_TRY && bytes >= HUGE_BYTES)) {
		if (map_touched(m, -1, round_up(bytes, HUGE_BYTES), flags | MAP_HUGETLB, huge, NULL,
				MADV_POPULATE_WRITE) == 0) {
			m->got = SHM_PAGES_HUGETLB;
			return SHARD_OK;
		}
		if (huge == SHM_HUGE_REQUIRE)
			return no_huge("private memory", round_up(bytes, HUGE_BYTES), e);
	}
	bytes = round_up(bytes, page_bytes());
	if (map_touched(m, -1, bytes, flags, huge, "/sys/kernel/mm/transparent_hugepage/enabled",
			MADV_POPULATE_WRITE) == 0)
		return SHARD_OK;
	return no_memory("private memory", bytes, e);
}

enum shard_status shm_room(struct shm *m, size_t room, struct err *e)
{
	void *at;

	CHECK(m->fd < 0 && m->room == NULL && room > 0);
	/* What may not be touched is not counted under strict overcommit. */
	at = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return no_memory("the address space of chunks that may come", room, e);
	(void)madvise(at, room, MADV_DONTFORK);
	(void)madvise(at, room, MADV_NOHUGEPAGE);
	m->room = at;
	m->room_bytes = room;
	return SHARD_OK;
}

void shm_room_huge(const struct shm *m, size_t bytes)
{
	if (m->room != NULL && m->got == SHM_PAGES_THP && bytes > 0)
		(void)madvise(m->room, bytes, MADV_HUGEPAGE);
}

static bool in_room(const struct shm *m, const char *at, size_t bytes)
{
	return m->room != NULL && at >= m->room && at < m->room + m->room_bytes &&
	       bytes <= (size_t)(m->room + m->room_bytes - at);
}

static bool in_base(const struct shm *m, const char *at, size_t bytes)
{
	const char *base = m->base;

	return base != NULL && at >= base && at < base + m->bytes &&
	       bytes <= (size_t)(base + m->bytes - at);
}

enum shard_status shm_touch(const struct shm *m, void *at, size_t bytes, struct err *e)
{
	CHECK(bytes > 0 && (in_base(m, at, bytes) || in_room(m, at, bytes)));
	return touch(at, bytes, MADV_POPULATE_READ) == 0
		       ? SHARD_OK
		       : no_memory("memory of the start before this one", bytes, e);
}

enum shard_status shm_more(const struct shm *m, void *at, size_t bytes, struct err *e)
{
	bool room = in_room(m, at, bytes);
	enum shard_status st;

	CHECK(bytes > 0 && (room || in_base(m, at, bytes)));
	CHECK((uintptr_t)at % page_bytes() == 0);
	if (room && m->fd < 0 && mprotect(at, bytes, PROT_READ | PROT_WRITE) != 0)
		return no_memory("chunks that come", bytes, e);
	/* Kernels that do not know the call would find a full tmpfs by a signal. */
	if (m->fd >= 0 && madvise(NULL, 0, MADV_POPULATE_WRITE) != 0) {
		uint64_t from = room ? shm_room_start(m->bytes) + (uint64_t)((char *)at - m->room)
				     : (uint64_t)((char *)at - (char *)m->base);

		if (fallocate(m->fd, 0, (off_t)from, (off_t)bytes) != 0)
			goto err;
	}
	if (touch(at, bytes, MADV_POPULATE_WRITE) == 0)
		return SHARD_OK;
err:
	st = no_memory("chunks that come", bytes, e);
	shm_less(m, at, bytes);
	return st;
}

void shm_less(const struct shm *m, void *at, size_t bytes)
{
	bool room = in_room(m, at, bytes);

	CHECK(bytes > 0 && (room || in_base(m, at, bytes)));
	if (m->fd >= 0) {
		(void)madvise(at, bytes, MADV_REMOVE);
		return;
	}
	(void)madvise(at, bytes, MADV_DONTNEED);
	if (room)
		(void)mprotect(at, bytes, PROT_NONE);
}

/* The size of the pages of fd. 0: fd is not memory. */
static size_t memory_pages(int fd)
{
	struct statfs fs;

	if (fstatfs(fd, &fs) != 0 || (fs.f_type != TMPFS_TYPE && fs.f_type != HUGETLBFS_TYPE))
		return 0;
	return fs.f_type == HUGETLBFS_TYPE ? (size_t)fs.f_bsize : page_bytes();
}

static enum shard_status map_file(struct shm *m, int fd, const char *name, size_t bytes,
				  size_t room, enum shm_huge huge, int how, struct err *e)
{
	bool tlb = memory_pages(fd) > page_bytes();
	enum shard_status st = SHARD_OK;

	if ((bytes > 0 && map_touched(m, fd, bytes, MAP_SHARED, tlb ? SHM_HUGE_NO : huge,
				      SHMEM_HUGE, how) != 0) ||
	    map_room(m, fd, room) != 0) {
		st = no_memory(name, bytes, e);
		unmap_both(m);
		close(fd);
		memset(m, 0, sizeof(*m));
		m->fd = -1;
		return st;
	}
	m->fd = fd;
	if (tlb)
		m->got = SHM_PAGES_HUGETLB;
	return st;
}

/* Makes all of it now, since a full tmpfs is a SIGBUS later. Where the kernel knows
 * MADV_POPULATE_WRITE (5.14), touching in threads finds that out as well, so ftruncate() is
 * enough. */
static int make_bytes(int fd, size_t bytes, size_t room)
{
	if (bytes > 0 && madvise(NULL, 0, MADV_POPULATE_WRITE) != 0 &&
	    fallocate(fd, 0, 0, (off_t)bytes) != 0)
		return -1;
	return ftruncate(fd, (off_t)file_bytes(bytes, room));
}

enum shard_status shm_file(struct shm *m, int dir, const char *name, size_t bytes, size_t room,
			   enum shm_huge huge, struct err *e)
{
	int fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	size_t unit = fd >= 0 ? memory_pages(fd) : 0;
	enum shard_status st;

	CHECK(bytes > 0 || room > 0);
	memset(m, 0, sizeof(*m));
	m->fd = -1;
	if (fd < 0)
		return err_set(e, SHARD_SYSTEM, "%s: cannot be made: %s", name, strerror(errno));
	bytes = unit > 0 ? round_up(bytes, unit) : bytes;
	if (unit == 0)
		st = err_set(e, SHARD_SYSTEM, "%s: not on a tmpfs or hugetlbfs", name);
	else if (huge == SHM_HUGE_REQUIRE && unit == page_bytes())
		st = err_set(e, SHARD_BUDGET,
			     "%s: huge_pages = require, and this is a tmpfs: name a hugetlbfs, or "
			     "set huge_pages = try",
			     name);
	else if (make_bytes(fd, bytes, room) != 0)
		st = no_memory(name, bytes, e);
	else
		return map_file(m, fd, name, bytes, room, huge, MADV_POPULATE_WRITE, e);
	close(fd);
	return st;
}

enum shard_status shm_again(struct shm *m, int fd, int sealed, size_t bytes, size_t room,
			    enum shm_huge huge, struct err *e)
{
	size_t unit = memory_pages(fd);
	struct stat st;

	memset(m, 0, sizeof(*m));
	m->fd = -1;
	if (unit == 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
		err_set(e, SHARD_MISMATCH, "it is not memory");
	else if (sealed ? (fcntl(fd, F_GET_SEALS) & SEALS) != SEALS
			: st.st_uid != geteuid() || (st.st_mode & 077) != 0)
		err_set(e, SHARD_MISMATCH, "%s", sealed ? "it lacks seals" : "others may write it");
	else if ((uint64_t)st.st_size != file_bytes(round_up(bytes, unit), room) || st.st_size == 0)
		err_set(e, SHARD_MISMATCH, "it has %lld bytes, not %zu", (long long)st.st_size,
			file_bytes(round_up(bytes, unit), room));
	else
		return map_file(m, fd, "memory of the start before this one", round_up(bytes, unit),
				room, huge, room > 0 ? TOUCH_NOT : MADV_POPULATE_READ, e);
	close(fd);
	return SHARD_MISMATCH;
}

enum shard_status shm_map(struct shm *m, int fd, size_t bytes, int writable, struct err *e)
{
	int seals = fcntl(fd, F_GET_SEALS), need = SEALS | (writable ? 0 : F_SEAL_FUTURE_WRITE),
	    error;
	struct stat st;

	memset(m, 0, sizeof(*m));
	m->fd = -1;
	if (bytes == 0 || fstat(fd, &st) != 0 || seals < 0 || (seals & need) != need) {
		close(fd);
		return err_set(e, SHARD_PROTOCOL,
			       "the daemon's shared memory lacks seals: 0x%x here, 0x%x expected",
			       seals < 0 ? 0 : (unsigned)seals, (unsigned)need);
	}
	if ((uint64_t)st.st_size < bytes) {
		close(fd);
		return err_set(e, SHARD_PROTOCOL,
			       "the daemon's shared memory has %lld bytes, %zu expected",
			       (long long)st.st_size, bytes);
	}
	bytes = (size_t)st.st_size; /* Whole pages of any size. */
	m->base = mmap(NULL, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
	if (m->base == MAP_FAILED) {
		error = errno;
		m->base = NULL;
		close(fd);
		return err_set(e, SHARD_SYSTEM,
			       "cannot map %zu bytes of the daemon's shared memory: %s", bytes,
			       strerror(error));
	}
	(void)madvise(m->base, bytes, MADV_DONTFORK);
	m->fd = fd;
	m->bytes = bytes;
	m->writable = writable;
	return SHARD_OK;
}

void shm_unmap(struct shm *m)
{
	bool there = m->base != NULL || m->room != NULL;

	unmap_both(m);
	if (there && m->fd >= 0)
		close(m->fd);
	memset(m, 0, sizeof(*m));
	m->fd = -1;
}

enum shard_status shm_zeros(struct shm *m, size_t bytes, struct err *e)
{
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	memset(m, 0, sizeof(*m));
	m->fd = -1;
	if (base == MAP_FAILED)
		return no_memory("private memory", bytes, e);
	(void)madvise(base, bytes, MADV_DONTFORK);
	m->base = base;
	m->bytes = bytes;
	return SHARD_OK;
}

/* Memory is made elsewhere and then moved to where the old mapping is. mmap(MAP_FIXED) removes the
 * old mapping before it asks for memory, so that a refusal (strict overcommit) would leave a
 * hole. */
static bool move_over(const struct shm *from, void *to)
{
	return mremap(from->base, from->bytes, from->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) !=
	       MAP_FAILED;
}

void shm_cut(struct shm *m)
{
	struct shm zeros;

	if (!m->base || m->fd < 0 || shm_zeros(&zeros, m->bytes, NULL) != SHARD_OK)
		return;
	if (!move_over(&zeros, m->base)) {
		munmap(zeros.base, zeros.bytes);
		return;
	}
	close(m->fd);
	m->fd = -1;
}

enum shard_status shm_map_over(struct shm *m, int fd, size_t bytes, int writable, struct err *e)
{
	enum shard_status st;
	struct shm anew;

	CHECK(m->base != NULL && m->room == NULL);
	if ((st = shm_map(&anew, fd, bytes, writable, e)) != SHARD_OK)
		return st;
	/* Whole pages of another size may make more or less of it. What is left of the old memory
	 * behind the new one has no bytes that count. */
	if (anew.bytes > m->bytes && bytes <= m->bytes &&
	    munmap((char *)anew.base + m->bytes, anew.bytes - m->bytes) == 0)
		anew.bytes = m->bytes;
	if (anew.bytes > m->bytes || !move_over(&anew, m->base)) {
		shm_unmap(&anew);
		return err_set(e, SHARD_SYSTEM, "shared memory cannot be mapped where it was: %s",
			       strerror(errno));
	}
	if (m->fd >= 0)
		close(m->fd);
	m->fd = anew.fd;
	m->writable = anew.writable;
	return SHARD_OK;
}

/* Private memory needs no other mapping: m and own change places. */
enum shard_status shm_give(struct shm *m, struct shm *own, struct err *e)
{
	void *old = m->base, *anew;

	CHECK(m->base != NULL && m->room == NULL && own->bytes == m->bytes && own->fd < 0);
	if (m->fd < 0) {
		m->base = own->base;
		m->got = own->got;
	} else {
		anew = mmap(NULL, m->bytes, PROT_READ | (m->writable ? PROT_WRITE : 0), MAP_SHARED,
			    m->fd, 0);
		if (anew == MAP_FAILED)
			return err_set(e, SHARD_SYSTEM, "cannot map %zu bytes a second time: %s",
				       m->bytes, strerror(errno));
		(void)madvise(anew, m->bytes, MADV_DONTFORK);
		if (!move_over(own, old)) {
			err_set(e, SHARD_SYSTEM, "cannot move %zu bytes of memory: %s", m->bytes,
				strerror(errno));
			munmap(anew, m->bytes);
			return SHARD_SYSTEM;
		}
		m->base = anew;
	}
	(void)madvise(old, m->bytes, MADV_DOFORK);
	memset(own, 0, sizeof(*own));
	own->fd = -1;
	return SHARD_OK;
}

const char *shm_pages_name(enum shm_pages p)
{
	switch (p) {
	case SHM_PAGES_NORMAL:
		return "normal";
	case SHM_PAGES_THP:
		return "transparent huge";
	case SHM_PAGES_HUGETLB:
		return "huge";
	}
	return "?";
}

size_t image_data_offset(uint64_t versions)
{
	return round_up(sizeof(struct image_head) + versions * sizeof(uint64_t), 4096);
}

size_t shm_half_bytes(uint64_t bytes)
{
	return round_up(bytes, 4096);
}
