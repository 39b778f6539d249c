// SPDX-License-Identifier: Apache-2.0
/* Starting a program that has nothing to do with this process any more. Called by spawn.c, from any
 * thread of any kind of host, so nothing of the host may show: its children, its SIGCHLD handler,
 * its atfork handlers and its memory (which may be large, or pinned for a GPU) stay out of it.
 * fork() would run the atfork handlers and copy page tables; posix_spawn() makes a child whose end
 * the host hears of. So, as posix_spawn() does inside: clone() with CLONE_VM and CLONE_VFORK,
 * twice, without an exit signal: this thread sleeps while a process in between makes the real one,
 * which sets itself up and execs; then the one in between ends and is waited for
 * (__WCLONE: the host's own wait calls do not see it), and init inherits the other. Both run on
 * stacks of their own with all signals blocked, call only what is async-signal-safe, and write to
 * nothing but *l. The variables of the host go along as they are at that moment: setenv() in
 * another thread at the same time is a mistake, as with every getenv(). */
#include "spawn/spawn.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_BYTES (64u << 10) /* of each */

struct stacks {
	struct launch *l;
	unsigned char *outer, *inner; /* their ends */
};

static void close_rest(void)
{
	struct rlimit limit = {.rlim_cur = 1024};

	if (close_range(3, ~0u, 0) == 0)
		return;
	(void)getrlimit(RLIMIT_NOFILE, &limit); /* a kernel before 5.9 */
	for (rlim_t fd = 3; fd < limit.rlim_cur && fd < 65536; fd++)
		close((int)fd);
}

/* Signals are reset by the bare system call: whoever stands before sigaction() in the host (a JVM,
 * a sanitizer) keeps a table in the memory that is shared here, and would forget the host's own
 * handlers. */
static int become(void *arg)
{
	struct launch *l = ((struct stacks *)arg)->l;
	const unsigned long normal[4] = {
		0}; /* the kernel's struct sigaction: SIG_DFL, no flags, no mask */
	sigset_t none;

	for (int i = 1; i < NSIG; i++) /* what the host ignores would stay ignored */
		(void)syscall(SYS_rt_sigaction, i, normal, NULL, sizeof(normal[3]));
	(void)setsid();
	if (dup2(l->null_fd, 0) >= 0 && dup2(l->null_fd, 1) >= 0 && dup2(l->log_fd, 2) >= 0) {
		close_rest();
		sigemptyset(&none);
		(void)sigprocmask(SIG_SETMASK, &none, NULL);
		(void)execve(l->path, l->argv, l->envp);
	}
	l->error = errno;
	return 127; /* ends this process */
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
