// SPDX-License-Identifier: Apache-2.0
/* Starts a program that is independent of this process. spawn.c calls it, from any thread of any
 * kind of host. Nothing of the host may be affected: its children, its SIGCHLD handler, its atfork
 * handlers and its memory, which may be large or pinned for a GPU. fork() would run the atfork
 * handlers and copy page tables. posix_spawn() makes a child whose end the host hears of. So this
 * does what posix_spawn() does inside, twice: clone() with CLONE_VM and CLONE_VFORK and without an
 * exit signal. This thread sleeps while an intermediate process makes the real one, which sets
 * itself up and execs. Then the intermediate process ends and is waited for with __WCLONE, which
 * the host's own wait calls do not use. init inherits the real process. Both run on stacks of their
 * own with all signals blocked, call only async-signal-safe functions, and write to nothing but *l.
 * A failure is an errno, in *l for the steps after clone(). The environment is that of the host at
 * that moment. setenv() in another thread at the same time is an error of the host, as with every
 * getenv(). */
#include "spawn/spawn.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_BYTES (64u << 10) /* Of each stack. */

struct stacks {
	struct launch *l;
	unsigned char *outer, *inner; /* The ends of the stacks. */
};

static void close_rest(void)
{
	struct rlimit limit = {.rlim_cur = 1024};

	if (close_range(3, ~0u, 0) == 0)
		return;
	(void)getrlimit(RLIMIT_NOFILE, &limit); /* Kernels before 5.9. */
	for (rlim_t fd = 3; fd < limit.rlim_cur && fd < 65536; fd++)
		close((int)fd);
}

/* Resets signals by the bare system call. A sigaction() that the host has replaced (a JVM, a
 * sanitizer) keeps a table in the memory that is shared here, and would forget the host's own
 * handlers. */
static int become(void *arg)
{
	struct launch *l = ((struct stacks *)arg)->l;
	const unsigned long normal[4] = {
		0}; /* The kernel's struct sigaction: SIG_DFL, no flags, no mask. */
	sigset_t none;

	for (int i = 1; i < NSIG; i++) /* A signal that the host ignores would stay ignored. */
		(void)syscall(SYS_rt_sigaction, i, normal, NULL, sizeof(normal[3]));
	(void)setsid();
	if (dup2(l->null_fd, 0) >= 0 && dup2(l->null_fd, 1) >= 0 && dup2(l->log_fd, 2) >= 0) {
		close_rest();
		sigemptyset(&none);
		(void)sigprocmask(SIG_SETMASK, &none, NULL);
		(void)execve(l->path, l->argv, l->envp);
	}
	l->error = errno;
	return 127; /* Ends this process. */
}

static int between(void *arg)
{
	struct stacks *s = arg;

	s->l->pid = clone(become, s->inner, CLONE_VM | CLONE_VFORK, s);
	if (s->l->pid < 0)
		s->l->error = errno;
	return 0;
}

int launch(struct launch *l)
{
	unsigned char *memory = mmap(NULL, (size_t)2 * STACK_BYTES, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	struct stacks s = {l, memory + STACK_BYTES, memory + (size_t)2 * STACK_BYTES};
	sigset_t all, before;
	int error = 0;
	pid_t pid;

	l->pid = -1;
	l->error = 0;
	if (memory == MAP_FAILED)
		return errno;
	sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	pid = clone(between, s.outer, CLONE_VM | CLONE_VFORK, &s);
	if (pid < 0)
		error = errno;
	else
		while (waitpid(pid, NULL, __WCLONE) < 0 && errno == EINTR)
			;
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	munmap(memory, (size_t)2 * STACK_BYTES);
	return error ? error : l->error;
}
