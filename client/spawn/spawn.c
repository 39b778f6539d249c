// SPDX-License-Identifier: Apache-2.0
/* Connects to spawn:NAME and starts its daemon where needed. shard_connect() calls it, and shardctl
 * for the path. Happy path: a daemon answers at the socket in the name's folder. Otherwise the
 * folder's lock is taken, for which other processes wait until its holder has connected. The socket
 * is then tried again. If still no daemon answers, one is started and tried until it answers. The
 * daemon ends by itself when nothing has been connected for a while, and only while it holds that
 * lock (daemon/linger.c). A process that connects at that moment gets SHARD_CLOSED or finds no
 * socket. It waits for the lock, which is free when the old daemon is gone, and starts the next
 * one. A daemon that was killed leaves socket and state behind. Both are removed before the next
 * start, because the memory of that daemon is gone, too. It fails on an invalid name or path, on a
 * folder that is not this user's, without a shardd to start, on a shardd that ends at once (its
 * last words are in the sentence), and at the deadline. */
#include "spawn/spawn.h"

#include "client.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SHARD_PREFIX
#define SHARD_PREFIX "/usr/local"
#endif

#define SOCKET_PATH_MAX 107 /* Bytes of sun_path without the NUL. */
#define LINGER          "5min"
#define TURN_MS         5

/* One call of spawn_connect(). */
struct start {
	struct spawn where;
	uint64_t began_ns, deadline_ns;
	int lock_fd, pid_fd;
	pid_t pid;
	char program[512];
};

bool spawn_is(const char *address)
{
	return strncmp(address, "spawn:", 6) == 0;
}

/* --- the folder --- */

/* Refuses a folder that another user could have made or may change, because a daemon is trusted
 * with everything. SHARD_OK also if it does not exist. */
static enum shard_status check_folder(const struct spawn *s, const char *path, struct err *e)
{
	struct stat st;

	if (lstat(path, &st) != 0)
		return errno == ENOENT ? SHARD_OK
				       : err_set(e, SHARD_SYSTEM, "spawn:%s: %s: %s", s->name, path,
						 strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return err_set(e, SHARD_DENIED, "spawn:%s: %s is no folder%s: remove it", s->name,
			       path, S_ISLNK(st.st_mode) ? " but a link" : "");
	if (st.st_uid != geteuid())
		return err_set(e, SHARD_DENIED,
			       "spawn:%s: %s belongs to user %u, this process runs as %u: have it "
			       "removed, or set XDG_RUNTIME_DIR to "
			       "a folder of your own",
			       s->name, path, (unsigned)st.st_uid, (unsigned)geteuid());
	if ((st.st_mode & 077) != 0)
		return err_set(
			e, SHARD_DENIED,
			"spawn:%s: %s has mode %04o, so that others could get in: chmod 700 %s",
			s->name, path, (unsigned)st.st_mode & 07777, path);
	return SHARD_OK;
}

/* A runtime folder of another user is what su leaves behind, and is not used. One of this user's
 * that others may write is refused. There they could replace the daemon's folder by one of theirs
 * between two checks. */
static enum shard_status own_runtime(const struct spawn *s, const char *dir, bool *own,
				     struct err *e)
{
	struct stat st;

	*own = dir != NULL && dir[0] == '/' && stat(dir, &st) == 0 && S_ISDIR(st.st_mode) &&
	       st.st_uid == geteuid();
	if (!*own || (st.st_mode & 022) == 0)
		return SHARD_OK;
	return err_set(e, SHARD_DENIED,
		       "spawn:%s: XDG_RUNTIME_DIR = %.200s has mode %04o, so that others may "
		       "change what is in it: chmod 700 it",
		       s->name, dir, (unsigned)st.st_mode & 07777);
}

enum shard_status spawn_peer(const char *address, int fd, struct err *e)
{
	struct ucred who = {.uid = (uid_t)-1};
	socklen_t bytes = sizeof(who);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.uid == geteuid())
		return SHARD_OK;
	return err_set(e, SHARD_DENIED,
		       "%.70s is answered by a process of user %d, this process runs as %u: nobody "
		       "else may",
		       address, (int)who.uid, (unsigned)geteuid());
}

enum shard_status spawn_find(struct spawn *s, const char *address, struct err *e)
{
	const char *name = address + 6, *runtime = secure_getenv("XDG_RUNTIME_DIR");
	size_t n = strlen(name);
	char base[512];
	bool own;
	int bytes;

	if (n == 0 || n >= sizeof(s->name) ||
	    strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") != n || name[0] == '.')
		return err_set(e, SHARD_BAD_ARG,
			       "address \"%.100s\": a name has 1 to 64 of a-z 0-9 . _ - and does "
			       "not begin with a dot",
			       address);
	memcpy(s->name, name, n + 1);
	if (own_runtime(s, runtime, &own, e) != SHARD_OK)
		return e->status;
	if (own)
		bytes = snprintf(base, sizeof(base), "%.480s/shardd", runtime);
	else
		bytes = snprintf(base, sizeof(base), "/tmp/shardd-%u", (unsigned)geteuid());
	if ((size_t)bytes + 1 + n + strlen("/shardd.sock") > SOCKET_PATH_MAX)
		return err_set(e, SHARD_BAD_ARG,
			       "address \"spawn:%s\": the socket %.200s/%s/shardd.sock would have "
			       "a path of %zu bytes, %d are "
			       "possible: choose a shorter name, or a shorter XDG_RUNTIME_DIR",
			       s->name, base, s->name,
			       (size_t)bytes + 1 + n + strlen("/shardd.sock"), SOCKET_PATH_MAX);
	snprintf(s->base, sizeof(s->base), "%.*s", (int)sizeof(s->base) - 1, base);
	snprintf(s->dir, sizeof(s->dir), "%.*s/%s", (int)(sizeof(s->dir) - n - 2), base, name);
	snprintf(s->address, sizeof(s->address), "unix:%s/shardd.sock", s->dir);
	if (check_folder(s, s->base, e) != SHARD_OK)
		return e->status;
	return check_folder(s, s->dir, e);
}

static enum shard_status make_folders(const struct spawn *s)
{
	const char *const both[] = {s->base, s->dir};
	struct err e;

	for (int i = 0; i < 2; i++) {
		if (mkdir(both[i], 0700) != 0 && errno != EEXIST)
			return text_fail(SHARD_SYSTEM, "spawn:%s: %s cannot be made: %s", s->name,
					 both[i], strerror(errno));
		/* Another process may have made it first. */
		if (check_folder(s, both[i], &e) != SHARD_OK)
			return text_fail_err(&e);
	}
	return SHARD_OK;
}

static double waited(const struct start *t)
{
	return (double)(clock_ns() - t->began_ns) / NS_PER_SEC;
}

/* flock() with a deadline. */
static enum shard_status lock_by(const struct start *t, int fd, const char *path, const char *who)
{
	while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return text_fail(SHARD_SYSTEM, "spawn:%s: %s cannot be locked: %s",
					 t->where.name, path, strerror(errno));
		if (clock_ns() >= t->deadline_ns)
			return text_fail(SHARD_TIMEOUT,
					 "spawn:%s: %s has kept %s locked for %.1f s: see %s/log",
					 t->where.name, who, path, waited(t), t->where.dir);
		(void)poll(NULL, 0, TURN_MS);
	}
	return SHARD_OK;
}

static enum shard_status take_lock(struct start *t)
{
	char path[SPAWN_DIR_BYTES + 8];
	struct stat opened, there;
	enum shard_status rc;

	snprintf(path, sizeof(path), "%s/lock", t->where.dir);
	/* Until it is the file that others find, too, because a clean-up of /tmp may have removed
	 * it. */
	do {
		if ((rc = make_folders(&t->where)) != SHARD_OK)
			return rc;
		if (t->lock_fd >= 0)
			close(t->lock_fd);
		t->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (t->lock_fd < 0)
			return text_fail(SHARD_SYSTEM, "spawn:%s: %s cannot be opened: %s",
					 t->where.name, path, strerror(errno));
		if ((rc = lock_by(t, t->lock_fd, path, "another process")) != SHARD_OK)
			return rc;
	} while (fstat(t->lock_fd, &opened) != 0 || stat(path, &there) != 0 ||
		 opened.st_ino != there.st_ino);
	return SHARD_OK;
}

/* --- the program --- */

static bool program_at(struct start *t, const char *dir, size_t n)
{
	struct stat st;

	return (size_t)snprintf(t->program, sizeof(t->program), "%.*s/shardd", (int)n, dir) <
		       sizeof(t->program) &&
	       stat(t->program, &st) == 0 && S_ISREG(st.st_mode) && access(t->program, X_OK) == 0;
}

/* Looks for shardd in the installation that this library is part of, which may have been moved
 * since it was built. The library is in PREFIX/lib or a folder in it. A program that is linked with
 * libshard.a is in PREFIX/bin itself. */
static bool beside_library(struct start *t)
{
	static const char *const from[] = {"../libexec/shardd", "../bin", "../../libexec/shardd",
					   "../../bin"};
	char dir[sizeof(t->program)];
	const char *slash;
	Dl_info info;

	if (getauxval(AT_SECURE) != 0) /* The caller of such a program chooses its name. */
		return false;
	if (dladdr((const void *)(uintptr_t)spawn_is, &info) == 0 || info.dli_fname == NULL ||
	    info.dli_fname[0] != '/')
		return false;
	slash = strrchr(info.dli_fname, '/');
	for (size_t i = 0; i < NR(from); i++) {
		int n = snprintf(dir, sizeof(dir), "%.*s/%s", (int)(slash - info.dli_fname),
				 info.dli_fname, from[i]);

		if (n > 0 && (size_t)n < sizeof(dir) && program_at(t, dir, (size_t)n))
			return true;
	}
	return false;
}

static enum shard_status find_program(struct start *t)
{
	static const char *const installed[] = {SHARD_PREFIX "/libexec/shardd",
						SHARD_PREFIX "/bin"};
	const char *own = secure_getenv("SHARD_DAEMON"), *path = secure_getenv("PATH");
	struct stat st;

	if (own != NULL && own[0] != 0) {
		int error = strlen(own) >= sizeof(t->program) ? ENAMETOOLONG
			    : stat(own, &st) != 0             ? errno
			    : !S_ISREG(st.st_mode)            ? EISDIR
			    : access(own, X_OK) != 0          ? errno
							      : 0;

		if (error != 0)
			return text_fail(SHARD_NOT_FOUND,
					 "spawn:%s: SHARD_DAEMON = %.300s cannot be run (%s): set "
					 "it to the path of shardd",
					 t->where.name, own, strerror(error));
		memcpy(t->program, own, strlen(own) + 1);
		return SHARD_OK;
	}
	if (beside_library(t))
		return SHARD_OK;
	for (size_t i = 0; i < NR(installed); i++)
		if (program_at(t, installed[i], strlen(installed[i])))
			return SHARD_OK;
	for (const char *at = path; at != NULL && *at != 0;) {
		size_t n = strcspn(at, ":");

		if (n > 0 && program_at(t, at, n))
			return SHARD_OK;
		at += n + (at[n] == ':');
	}
	return text_fail(SHARD_NOT_FOUND,
			 "spawn:%s: no shardd to start: SHARD_DAEMON is not set, it is not "
			 "installed beside the library, not in %s or "
			 "%s, and not in PATH: install it, or set SHARD_DAEMON to its path",
			 t->where.name, installed[0], installed[1]);
}

/* --- starting --- */

/* Removes what a killed daemon left, which is of no use to the next one. The daemon may not be
 * quite gone when its socket is, so this takes the lock of its state first. */
static enum shard_status clear(const struct start *t)
{
	char path[SPAWN_DIR_BYTES + 16];
	enum shard_status rc = SHARD_OK;
	struct dirent *entry;
	int fd, dir_fd;
	DIR *dir;

	snprintf(path, sizeof(path), "%s/state/lock", t->where.dir);
	fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (fd >= 0 && (rc = lock_by(t, fd, path, "a daemon that does not answer")) != SHARD_OK) {
		close(fd);
		return rc;
	}
	snprintf(path, sizeof(path), "%s/state", t->where.dir);
	dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	dir = dir_fd < 0 ? NULL : fdopendir(dir_fd);
	while (dir != NULL && (entry = readdir(dir)) != NULL)
		if (strcmp(entry->d_name, "lock") != 0)
			(void)unlinkat(dir_fd, entry->d_name, 0);
	if (dir != NULL)
		closedir(dir);
	snprintf(path, sizeof(path), "%s/shardd.sock", t->where.dir);
	(void)unlink(path);
	if (fd >= 0)
		close(fd);
	return SHARD_OK;
}

static enum shard_status run(struct start *t, int null_fd, int log_fd)
{
	char socket[SPAWN_DIR_BYTES + 16], state[SPAWN_DIR_BYTES + 16];
	const char *const words[] = {
		"shardd",
		"--config",
		"/dev/null",
		"--node",
		"local",
		"--listen",
		"off",
		"--set",
		"daemon.http=off",
		"--set",
		"daemon.socket_mode=0600",
		"--socket",
		socket,
		"--state",
		state,
		secure_getenv("SHARD_LINGER") != NULL ? NULL : "--linger",
		LINGER,
		NULL, /* SHARD_LINGER is read by the daemon, too. */
	};
	struct launch l = {.path = t->program,
			   .argv = (char *const *)(uintptr_t)words,
			   .envp = environ,
			   .null_fd = null_fd,
			   .log_fd = log_fd};
	int error;

	snprintf(socket, sizeof(socket), "%s/shardd.sock", t->where.dir);
	snprintf(state, sizeof(state), "%s/state", t->where.dir);
	error = launch(&l);
	if (error != 0)
		return text_fail(SHARD_SYSTEM, "spawn:%s: %s cannot be run: %s", t->where.name,
				 t->program, strerror(error));
	t->pid = l.pid;
	/* The descriptor is close-on-exec. On a kernel without pidfd_open() only the deadline ends
	 * the wait. */
	t->pid_fd = (int)syscall(SYS_pidfd_open, l.pid, 0);
	if (t->pid_fd < 0 && errno == ESRCH)
		t->pid_fd = -2;
	return SHARD_OK;
}

/* Opens a descriptor above 2. A host may have closed 0, 1 or 2, and launch() would overwrite one
 * with the other. */
static int open_high(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC, 0600), high = fd;

	if (fd >= 0 && fd <= STDERR_FILENO) {
		high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
		close(fd);
	}
	return high;
}

static enum shard_status start_daemon(struct start *t)
{
	char log[SPAWN_DIR_BYTES + 8];
	enum shard_status rc;
	int null_fd, log_fd;

	if ((rc = find_program(t)) != SHARD_OK || (rc = clear(t)) != SHARD_OK)
		return rc;
	snprintf(log, sizeof(log), "%s/log", t->where.dir);
	log_fd = open_high(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW);
	null_fd = log_fd < 0 ? -1 : open_high("/dev/null", O_RDWR);
	if (null_fd < 0)
		rc = text_fail(SHARD_SYSTEM, "spawn:%s: %s cannot be opened: %s", t->where.name,
			       log_fd < 0 ? log : "/dev/null", strerror(errno));
	else
		rc = run(t, null_fd, log_fd);
	if (null_fd >= 0)
		close(null_fd);
	if (log_fd >= 0)
		close(log_fd);
	return rc;
}

/* Sets a text with the last line of the log: what follows "event=", or all of a line without it. */
static enum shard_status last_words(const struct start *t)
{
	char path[SPAWN_DIR_BYTES + 8], text[1024], *line = text, *event;
	ssize_t n = -1;
	int fd;

	snprintf(path, sizeof(path), "%s/log", t->where.dir);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd >= 0) {
		off_t end = lseek(fd, 0, SEEK_END),
		      from = end > (off_t)sizeof(text) - 1 ? end - (off_t)sizeof(text) + 1 : 0;

		n = pread(fd, text, sizeof(text) - 1, from);
		close(fd);
	}
	while (n > 0 && text[n - 1] == '\n')
		n--;
	text[n > 0 ? n : 0] = 0;
	for (char *at = text; (at = strchr(at, '\n')) != NULL;)
		line = ++at;
	event = strstr(line, "event=");
	return text_fail(SHARD_SYSTEM, "spawn:%s: %s ended at once: %.300s (%s)", t->where.name,
			 t->program,
			 line[0] == 0 ? "without a word"
			 : event      ? event
				      : line,
			 path);
}

/* Waits a moment between two attempts. A failure says why another attempt is useless. */
static enum shard_status still_starting(const struct start *t)
{
	struct pollfd p = {.fd = t->pid_fd, .events = POLLIN};

	if (t->pid_fd == -2 || (poll(&p, t->pid_fd < 0 ? 0 : 1, TURN_MS) == 1 && p.revents != 0))
		return last_words(t);
	if (clock_ns() >= t->deadline_ns)
		return text_fail(SHARD_TIMEOUT,
				 "spawn:%s: shardd (pid %d) was started, but has not answered in "
				 "%.1f s: see %s/log",
				 t->where.name, (int)t->pid, waited(t), t->where.dir);
	return SHARD_OK;
}

static bool nobody(enum shard_status rc)
{
	return rc == SHARD_UNREACHABLE || rc == SHARD_CLOSED;
}

enum shard_status spawn_connect(const char *address, uint64_t deadline_ns, spawn_attempt attempt,
				void *arg)
{
	struct start t = {
		.began_ns = clock_ns(), .deadline_ns = deadline_ns, .lock_fd = -1, .pid_fd = -1};
	enum shard_status rc = attempt(arg);
	struct err e;

	if (!nobody(rc))
		return rc;
	if (spawn_find(&t.where, address, &e) != SHARD_OK)
		return text_fail_err(&e);
	if ((rc = take_lock(&t)) == SHARD_OK && nobody(rc = attempt(arg))) {
		rc = start_daemon(&t);
		while (rc == SHARD_OK && nobody(rc = attempt(arg)))
			rc = still_starting(&t);
	}
	if (t.pid_fd >= 0)
		close(t.pid_fd);
	if (t.lock_fd >= 0)
		close(t.lock_fd);
	return rc;
}

void spawn_advise(const char *address)
{
	char said[400];

	snprintf(said, sizeof(said), "%s", shard_error());
	text_fail(SHARD_BUDGET,
		  "%s; SHARD_MEMORY=SIZE, in the environment of the process that starts %.70s, "
		  "raises it",
		  said, address);
}
