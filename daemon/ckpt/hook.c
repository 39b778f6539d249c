/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a program for copying.c. Happy path: hook_spawn() starts it by posix_spawn(), which copies
 * no page tables of a process that holds hundreds of gigabytes → the loop polls its pidfd, and its
 * stderr → it exits with 0 → done. It fails where it cannot be started, exits with anything else,
 * dies of a signal, takes too long, cannot be watched, or outlives SIGKILL while the daemon stops.
 * The reason then ends with the last lines of its stderr. It is waited for by its own pid alone. */
#include "ckpt/hook.h"

#include "base/check.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define PIPE_BYTES 65536 /* What a pipe holds where nobody has changed it. */
#define HEAR_BYTES 512
#define LOOK_MS    10 /* Between looks for the end of a program that cannot be watched. */

/* What a service manager says to this process, and to nobody else. */
static const char *const withheld[] = {"NOTIFY_SOCKET=", "WATCHDOG_", "LISTEN_", "FDSTORE",
				       "CREDENTIALS_DIRECTORY="};

static bool is_withheld(const char *variable)
{
	for (size_t i = 0; i < NR(withheld); i++)
		if (strncmp(variable, withheld[i], strlen(withheld[i])) == 0)
			return true;
	return false;
}

static char **environment(const char *const more[])
{
	size_t nr = 1, at = 0;
	char **all;

	for (char **v = environ; v != NULL && *v != NULL; v++)
		nr++;
	for (const char *const *v = more; *v != NULL; v++)
		nr++;
	if ((all = calloc(nr, sizeof(*all))) == NULL)
		return NULL;
	for (const char *const *v = more; *v != NULL; v++)
		all[at++] = (char *)(uintptr_t)*v;
	for (char **v = environ; v != NULL && *v != NULL; v++)
		if (!is_withheld(*v))
			all[at++] = *v;
	CHECK(at < nr);
	return all;
}

/* Both descriptors are for the child. Returns an error number. */
static int start(pid_t *pid, char *const argv[], char *const env[], int stderr_fd, int held_fd)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t how;
	sigset_t none, all;
	int error;

	sigemptyset(&none);
	sigfillset(&all);
	if ((error = posix_spawn_file_actions_init(&files)) != 0)
		return error;
	if ((error = posix_spawnattr_init(&how)) != 0)
		goto files;
	if ((error = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0)) != 0 ||
	    (error = posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0)) != 0 ||
	    (error = posix_spawn_file_actions_adddup2(&files, stderr_fd, 2)) != 0 ||
	    (error = posix_spawn_file_actions_adddup2(&files, held_fd, HOOK_HELD_FD)) != 0 ||
	    (error = posix_spawn_file_actions_addclosefrom_np(&files, HOOK_HELD_FD + 1)) != 0 ||
	    (error = posix_spawnattr_setsigmask(&how, &none)) != 0 ||
	    (error = posix_spawnattr_setsigdefault(&how, &all)) != 0 ||
	    (error = posix_spawnattr_setpgroup(&how, 0)) != 0 ||
	    (error = posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
							    POSIX_SPAWN_SETPGROUP)) != 0)
		goto how;
	error = posix_spawn(pid, argv[0], &files, &how, argv, env);
how:
	posix_spawnattr_destroy(&how);
files:
	posix_spawn_file_actions_destroy(&files);
	return error;
}

enum shard_status hook_spawn(struct hook *h, char *const argv[], const char *const more[],
			     int held_fd, struct err *e)
{
	char **env = environment(more);
	int stderr_fd[2] = {-1, -1}, error = ENOMEM;

	*h = (struct hook){.ends_fd = -1, .says_fd = -1};
	if (env == NULL || pipe2(stderr_fd, O_CLOEXEC) != 0) {
		error = env == NULL ? ENOMEM : errno;
		goto failed;
	}
	if ((error = start(&h->pid, argv, env, stderr_fd[1], held_fd)) != 0)
		goto failed;
	h->ends_fd = (int)syscall(SYS_pidfd_open, h->pid, 0);
	if (h->ends_fd < 0) {
		error = errno;
		kill(-h->pid, SIGKILL);
		(void)waitpid(h->pid, NULL, 0);
		goto failed;
	}
	h->says_fd = stderr_fd[0];
	close(stderr_fd[1]);
	free(env);
	return SHARD_OK;
failed:
	if (stderr_fd[0] >= 0)
		close(stderr_fd[0]);
	if (stderr_fd[1] >= 0)
		close(stderr_fd[1]);
	free(env);
	return err_sys(e, error, "%.200s: cannot be run: %s", argv[0], strerror(error));
}

/* --- on the loop --- */

static void closed(uv_handle_t *handle)
{
	struct hook *h = handle->data;

	CHECK(h->handles > 0);
	if (--h->handles > 0)
		return;
	close(h->ends_fd);
	close(h->says_fd);
	h->ends_fd = h->says_fd = -1;
	h->watched = false;
	h->done(h);
}

static void close_all(struct hook *h)
{
	h->told = h->leaves = true; /* Its pid may be another's soon. */
	if (h->polls > 0)
		uv_close((uv_handle_t *)&h->ends, closed);
	if (h->polls > 1)
		uv_close((uv_handle_t *)&h->says, closed);
	uv_close((uv_handle_t *)&h->timer, closed);
}

/* Keeps the end. False: there is nothing more to read now, or at all. */
static bool hear(struct hook *h)
{
	char text[HEAR_BYTES];
	ssize_t n = read(h->says_fd, text, sizeof(text));
	size_t room = sizeof(h->said) - 1, skip, keep;

	if (n <= 0)
		return n < 0 && errno == EINTR;
	skip = (size_t)n > room ? (size_t)n - room : 0;
	keep = h->said_nr + (size_t)n - skip > room ? room - ((size_t)n - skip) : h->said_nr;
	memmove(h->said, h->said + h->said_nr - keep, keep);
	memcpy(h->said + keep, text + skip, (size_t)n - skip);
	h->said_nr = keep + (size_t)n - skip;
	return true;
}

static void says(uv_poll_t *poll, int status, int events)
{
	(void)events;
	if (status != 0 || !hear(poll->data))
		uv_poll_stop(poll); /* What comes later is read at the end. */
}

/* One line of it, without what a log cannot have. */
static const char *last_words(struct hook *h)
{
	h->said[h->said_nr] = 0;
	for (char *p = h->said; *p; p++)
		if ((unsigned char)*p < ' ' || (unsigned char)*p >= 0x7f)
			*p = ' ';
	for (char *p = h->said + h->said_nr; p > h->said && p[-1] == ' ';)
		*--p = 0;
	return h->said + strspn(h->said, " ");
}

static void judge(struct hook *h, int status)
{
	const char *said = last_words(h), *colon = said[0] != 0 ? ": " : "";
	struct err was = h->why;

	if (was.status != SHARD_OK)
		err_set(&h->why, was.status, "%.200s%s%s", was.text, colon, said);
	else if (WIFSIGNALED(status))
		err_set(&h->why, SHARD_INTERRUPTED, "it died of signal %d%s%s", WTERMSIG(status),
			colon, said);
	else if (WEXITSTATUS(status) != 0)
		err_set(&h->why, SHARD_INTERRUPTED, "it exited with %d%s%s", WEXITSTATUS(status),
			colon, said);
}

/* False: it still runs. */
static bool reap(struct hook *h)
{
	size_t heard = 0;
	int status = 0;
	pid_t pid;

	kill(-h->pid, SIGKILL); /* Those that it left. Its pid is still its own. */
	if ((pid = waitpid(h->pid, &status, WNOHANG)) == 0)
		return false;
	if (pid < 0 && h->why.status == SHARD_OK) /* As where SIGCHLD is ignored. */
		err_set(&h->why, SHARD_SYSTEM, "how it ended is not known: %s", strerror(errno));
	/* What it began in another session may write for ever. */
	while (h->polls > 1 && heard < PIPE_BYTES && hear(h))
		heard += HEAR_BYTES;
	judge(h, status);
	close_all(h);
	return true;
}

static void ended(uv_poll_t *poll, int polled, int events)
{
	(void)polled;
	(void)events;
	(void)reap(poll->data);
}

static void leave(struct hook *h)
{
	struct err was = h->why;

	CHECK(was.status != SHARD_OK);
	err_set(&h->why, was.status,
		"%.200s; it outlives SIGKILL, as where its storage hangs, and is left behind as "
		"pid %d",
		was.text, (int)h->pid);
	close_all(h);
}

static void left(uv_timer_t *timer)
{
	leave(timer->data);
}

static void grace_over(uv_timer_t *timer)
{
	struct hook *h = timer->data;

	kill(-h->pid, SIGKILL);
	if (h->leaves)
		uv_timer_start(timer, left, HOOK_LEFT_MS, 0);
}

void hook_end(struct hook *h, const struct err *why)
{
	CHECK(h->watched && why->status != SHARD_OK);
	if (h->told)
		return;
	h->told = true;
	h->why = *why;
	kill(-h->pid, SIGTERM);
	uv_timer_start(&h->timer, grace_over, HOOK_GRACE_MS, HOOK_GRACE_MS);
}

void hook_leave(struct hook *h, const struct err *why)
{
	hook_end(h, why);
	if (h->leaves)
		return;
	h->leaves = true;
	if (h->polls > 1) /* Otherwise look() leaves it. */
		uv_timer_start(&h->timer, grace_over, HOOK_GRACE_MS, 0);
}

static void late(uv_timer_t *timer)
{
	struct hook *h = timer->data;
	struct err e;

	err_set(&e, SHARD_TIMEOUT, "it did not end within %.1f s", h->seconds);
	hook_end(h, &e);
}

static void look(uv_timer_t *timer)
{
	struct hook *h = timer->data;

	if (!reap(h) && ++h->looks >= HOOK_LEFT_MS / LOOK_MS)
		leave(h);
}

/* It has got SIGKILL, so this takes a moment. */
static void unwatchable(struct hook *h, int error)
{
	h->told = true;
	err_set(&h->why, SHARD_SYSTEM, "it cannot be watched: %s", uv_strerror(error));
	kill(-h->pid, SIGKILL);
	uv_timer_start(&h->timer, look, LOOK_MS, LOOK_MS);
}

void hook_watch(struct hook *h, uv_loop_t *loop, uint64_t timeout_ns, void (*done)(struct hook *h))
{
	int error;

	CHECK(h->ends_fd >= 0 && !h->watched && done != NULL);
	h->done = done;
	h->watched = true;
	h->seconds = (double)timeout_ns / NS_PER_SEC;
	h->ends.data = h->says.data = h->timer.data = h;
	uv_timer_init(loop, &h->timer);
	/* The kernel may have no memory for it, or the user no watches left. */
	if ((error = uv_poll_init(loop, &h->ends, h->ends_fd)) == 0) {
		h->polls++;
		if ((error = uv_poll_init(loop, &h->says, h->says_fd)) == 0)
			h->polls++;
	}
	h->handles = h->polls + 1;
	if (error != 0) {
		unwatchable(h, error);
		return;
	}
	CHECK(uv_poll_start(&h->ends, UV_READABLE, ended) == 0);
	CHECK(uv_poll_start(&h->says, UV_READABLE | UV_DISCONNECT, says) == 0);
	uv_timer_start(&h->timer, late, timeout_ns / NS_PER_MS + 1, 0);
}
