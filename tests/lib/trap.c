// SPDX-License-Identifier: Apache-2.0
/* Breakpoints in another process, with ptrace(). Tests call it. The address comes from the symbols
 * of the program, and a breakpoint instruction is written there. Each time a traced thread meets it
 * the arguments are looked at. A call that is not the one that the test waits for is made to go on
 * by one instruction without the breakpoint. Only traced threads may call the function: others
 * would end the process. A function without a symbol, or a thread that cannot be traced, fails the
 * test. */
#include "lib/trap.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "link/peer.h"
#include "wire/frame.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#ifdef __x86_64__

#define LOOK_NS 50000 /* Between two looks at the threads. */

bool trap_here(void)
{
	return true;
}

/* --- where the function is --- */

static uint64_t in_symbols(const char *file, size_t bytes, const char *function)
{
	const Elf64_Ehdr *e = (const void *)file;
	const Elf64_Shdr *s = (const void *)(file + e->e_shoff);
	uint64_t at = 0, nr = 0;

	CHECK(bytes > sizeof(*e) && memcmp(e->e_ident, ELFMAG, SELFMAG) == 0);
	for (uint32_t i = 0; i < e->e_shnum; i++) {
		const Elf64_Sym *y = (const void *)(file + s[i].sh_offset);
		const char *names;

		if (s[i].sh_type != SHT_SYMTAB)
			continue;
		names = file + s[s[i].sh_link].sh_offset;
		for (uint64_t k = 0; k < s[i].sh_size / sizeof(*y); k++) {
			if (ELF64_ST_TYPE(y[k].st_info) != STT_FUNC ||
			    strcmp(names + y[k].st_name, function) != 0)
				continue;
			at = y[k].st_value;
			nr++;
		}
	}
	if (nr != 1)
		fail_msg("%lu functions of the program have the name %s", (unsigned long)nr,
			 function);
	return at;
}

/* Where the program begins in the memory of the process. */
static uint64_t begins_at(pid_t pid, const char *exe)
{
	char path[64], line[1024];
	unsigned long at = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	f = fopen(path, "re");
	CHECK(f != NULL);
	while (at == 0 && fgets(line, sizeof(line), f) != NULL)
		if (strstr(line, exe) != NULL)
			at = strtoul(line, NULL, 16);
	fclose(f);
	CHECK(at != 0);
	return at;
}

static uint64_t address_of(pid_t pid, const char *function)
{
	char path[64], exe[1024];
	struct stat st;
	uint64_t at;
	ssize_t n;
	void *file;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
	n = readlink(path, exe, sizeof(exe) - 1);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(n > 0 && fd >= 0 && fstat(fd, &st) == 0);
	exe[n] = 0;
	file = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	CHECK(file != MAP_FAILED);
	at = in_symbols(file, (size_t)st.st_size, function);
	munmap(file, (size_t)st.st_size);
	close(fd);
	return begins_at(pid, exe) + at;
}

/* --- threads --- */

static long peek(pid_t tid, uint64_t at)
{
	long word;

	errno = 0;
	word = ptrace(PTRACE_PEEKDATA, tid, (void *)(uintptr_t)at, NULL);
	CHECK(errno == 0);
	return word;
}

static void poke(pid_t tid, uint64_t at, long word)
{
	CHECK(ptrace(PTRACE_POKEDATA, tid, (void *)(uintptr_t)at, (void *)(uintptr_t)word) == 0);
}

static void arm(const struct trap *t, pid_t tid, bool on)
{
	poke(tid, t->address, on ? (t->word & ~0xffl) | 0xcc : t->word);
}

static void seize(struct trap *t, pid_t tid)
{
	int status;

	CHECK(t->nr < TRAP_THREADS_MAX);
	if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) != 0 ||
	    ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) != 0)
		fail_msg("thread %d cannot be traced: this test needs ptrace() of its own children",
			 (int)tid);
	CHECK(waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status));
	t->tid[t->nr++] = tid;
}

static void seize_workers(struct trap *t)
{
	char path[300], comm[32];
	struct dirent *d;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)t->pid);
	dir = opendir(path);
	CHECK(dir != NULL);
	while ((d = readdir(dir)) != NULL) {
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%d/task/%.16s/comm", (int)t->pid, d->d_name);
		f = atoi(d->d_name) > 0 && atoi(d->d_name) != t->pid ? fopen(path, "re") : NULL;
		if (f == NULL)
			continue;
		if (fgets(comm, sizeof(comm), f) != NULL &&
		    strncmp(comm, t->at.workers, strlen(t->at.workers)) == 0)
			seize(t, (pid_t)atoi(d->d_name));
		fclose(f);
	}
	closedir(dir);
}

void trap_set(struct trap *t, pid_t pid, const struct trap_point *at)
{
	*t = (struct trap){.at = *at, .pid = pid};
	t->at.nth += t->at.nth == 0;
	t->address = address_of(pid, at->function);
	seize(t, pid);
	if (at->workers != NULL)
		seize_workers(t);
	t->word = peek(pid, t->address);
	arm(t, pid, true);
	for (uint32_t i = 0; i < t->nr; i++)
		CHECK(ptrace(PTRACE_CONT, t->tid[i], NULL, NULL) == 0);
}

/* --- what it meets --- */

static bool of_op(const struct trap *t, pid_t tid, uint64_t head)
{
	uint64_t at = head + offsetof(struct wire_head, op);
	long word = peek(tid, at & ~7ull);

	return (uint16_t)((uint64_t)word >> (at & 7) * 8) == t->at.op;
}

static bool of_node(const struct trap *t, uint64_t node)
{
	return t->at.node == TRAP_ANY || (uint16_t)node == (uint16_t)t->at.node;
}

/* The arguments are those that the calling convention has in rsi and rdx. */
static bool awaited(struct trap *t, pid_t tid, const struct user_regs_struct *r)
{
	uint64_t peer = r->rsi + offsetof(struct peer, node);
	bool is = true;

	if (t->at.what == TRAP_FRAME)
		is = of_op(t, tid, r->rsi);
	else if (t->at.what == TRAP_SEND)
		is = of_op(t, tid, r->rdx) && of_node(t, r->rsi);
	else if (t->at.what == TRAP_HEAR)
		is = of_op(t, tid, r->rdx) &&
		     of_node(t, (uint64_t)peek(tid, peer & ~7ull) >> (peer & 7) * 8);
	return is && ++t->seen >= t->at.nth;
}

/* The thread makes the instruction that the trap stands for. */
static void step_over(struct trap *t, pid_t tid)
{
	int status;

	arm(t, tid, false);
	CHECK(ptrace(PTRACE_SINGLESTEP, tid, NULL, NULL) == 0);
	CHECK(waitpid(tid, &status, __WALL) == tid);
	CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
	arm(t, tid, true);
	CHECK(ptrace(PTRACE_CONT, tid, NULL, NULL) == 0);
}

static void stopped(struct trap *t, pid_t tid, int status)
{
	struct user_regs_struct r;
	int sig = WSTOPSIG(status);

	if (!WIFSTOPPED(status))
		fail_msg("process %d has ended on its way to %s: wait status 0x%x", (int)t->pid,
			 t->at.function, (unsigned)status);
	CHECK(ptrace(PTRACE_GETREGS, tid, NULL, &r) == 0);
	if (sig != SIGTRAP || r.rip != t->address + 1) { /* A signal of somebody else. */
		CHECK(ptrace(PTRACE_CONT, tid, NULL, (void *)(uintptr_t)(status >> 16 ? 0 : sig)) ==
		      0);
		return;
	}
	r.rip = t->address;
	CHECK(ptrace(PTRACE_SETREGS, tid, NULL, &r) == 0);
	if (awaited(t, tid, &r))
		t->hit = tid;
	else
		step_over(t, tid);
}

void trap_next(struct trap *t, const struct trap_point *at)
{
	pid_t tid = t->hit;

	CHECK(tid != 0 && (at->workers != NULL) == (t->at.workers != NULL));
	arm(t, tid, false);
	t->at = *at;
	t->at.nth += t->at.nth == 0;
	t->seen = 0;
	t->hit = 0;
	t->address = address_of(t->pid, at->function);
	t->word = peek(tid, t->address);
	arm(t, tid, true);
	CHECK(ptrace(PTRACE_CONT, tid, NULL, NULL) == 0);
}

bool trap_wait(struct trap *t, int ms)
{
	uint64_t until = clock_ns() + pace_ns((uint64_t)ms * NS_PER_MS);
	struct timespec look = {.tv_nsec = LOOK_NS};

	while (t->hit == 0 && clock_ns() < until) {
		bool any = false;
		int status;

		for (uint32_t i = 0; i < t->nr && t->hit == 0; i++) {
			if (waitpid(t->tid[i], &status, __WALL | WNOHANG) != t->tid[i])
				continue;
			stopped(t, t->tid[i], status);
			any = true;
		}
		if (!any)
			(void)nanosleep(&look, NULL);
	}
	return t->hit != 0;
}

/* All traced threads stand still after it, none of them behind a breakpoint. */
static void stand(struct trap *t)
{
	for (uint32_t i = 0; i < t->nr; i++) {
		struct user_regs_struct r;
		int status;

		if (t->tid[i] == t->hit)
			continue;
		CHECK(ptrace(PTRACE_INTERRUPT, t->tid[i], NULL, NULL) == 0);
		CHECK(waitpid(t->tid[i], &status, __WALL) == t->tid[i] && WIFSTOPPED(status));
		CHECK(ptrace(PTRACE_GETREGS, t->tid[i], NULL, &r) == 0);
		if (WSTOPSIG(status) == SIGTRAP && status >> 16 == 0 && r.rip == t->address + 1) {
			r.rip = t->address;
			CHECK(ptrace(PTRACE_SETREGS, t->tid[i], NULL, &r) == 0);
		}
	}
}

void trap_end(struct trap *t)
{
	if (t->nr == 0)
		return;
	stand(t);
	arm(t, t->tid[0], false);
	for (; t->nr > 0; t->nr--)
		CHECK(ptrace(PTRACE_DETACH, t->tid[t->nr - 1], NULL, NULL) == 0);
	t->hit = 0;
}

void trap_kill(struct trap *t)
{
	CHECK(t->nr > 0 && kill(t->pid, SIGKILL) == 0);
	/* A dead traced thread is reported to this thread. The death of the first thread is
	 * reported to its parent. */
	for (; t->nr > 0; t->nr--) {
		pid_t tid = t->tid[t->nr - 1];
		int status = W_STOPCODE(SIGTRAP); /* Not ended yet. */

		while (tid != t->pid && !WIFSIGNALED(status)) {
			if (waitpid(tid, &status, __WALL) != tid && errno != EINTR)
				fail_msg("thread %d of the killed process %d: %s, after 0x%x",
					 (int)tid, (int)t->pid, strerror(errno), (unsigned)status);
			if (WIFEXITED(status))
				break;
		}
	}
	t->hit = 0;
}

#else

bool trap_here(void)
{
	return false;
}

void trap_set(struct trap *t, pid_t pid, const struct trap_point *at)
{
	(void)t, (void)pid, (void)at;
	fail();
}

void trap_next(struct trap *t, const struct trap_point *at)
{
	(void)t, (void)at;
	fail();
}

bool trap_wait(struct trap *t, int ms)
{
	(void)t, (void)ms;
	return false;
}

void trap_end(struct trap *t)
{
	t->nr = 0;
}

void trap_kill(struct trap *t)
{
	t->nr = 0;
}

#endif
