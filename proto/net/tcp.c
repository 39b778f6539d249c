/* SPDX-License-Identifier: Apache-2.0 */
/* Makes sockets for conn.c, listen.c and the client library. Happy path: a socket is made, tuned,
 * and connects or listens. Everything that fails here was caused by the outside, and the text says
 * what to do: an address is in use, a path is not a socket, or nobody listens. */
#include "net/tcp.h"

#include "base/check.h"
#include "net/holder.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

void tcp_tune(int fd)
{
	/* Keep-alive finds a machine that vanished where the owner set no silence limit. */
	int on = 1, idle = 60, every = 10, times = 6;

	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof(times));
}

static enum shard_status unreachable(const char *name, int error, struct err *e)
{
	const char *hint =
		error == ECONNREFUSED || error == ENOENT ? ": is shardd running there?" : "";

	return err_set(e, error == EACCES || error == EPERM ? SHARD_DENIED : SHARD_UNREACHABLE,
		       "cannot connect to %s: %s%s", name, strerror(error), hint);
}

enum shard_status tcp_dial(int *fd, const struct address_sock *to, const char *name, struct err *e)
{
	int error;

	*fd = socket(to->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (*fd < 0)
		return err_set(e, SHARD_SYSTEM, "no socket to connect to %s: %s", name,
			       strerror(errno));
	if (to->sa.ss_family != AF_UNIX)
		tcp_tune(*fd);
	if (connect(*fd, (const struct sockaddr *)&to->sa, to->bytes) == 0 || errno == EINPROGRESS)
		return SHARD_OK;
	error = errno;
	close(*fd);
	*fd = -1;
	return unreachable(name, error, e);
}

enum shard_status tcp_dialled(int fd, const char *name, struct err *e)
{
	int error = 0;
	socklen_t bytes = sizeof(error);

	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
		error = errno;
	return error ? unreachable(name, error, e) : SHARD_OK;
}

/* Looks at the path of a unix socket. A socket that nobody serves is removed. Anything else that is
 * there is kept, and is an error. */
static enum shard_status clear_path(const struct address_sock *sock, const char *path,
				    struct err *e)
{
	struct ucred cred = {0};
	socklen_t bytes = sizeof(cred);
	struct stat st;
	int fd, rc, error;

	if (lstat(path, &st) != 0)
		return errno == ENOENT ? SHARD_OK
				       : err_set(e, SHARD_SYSTEM, "cannot listen on unix:%s: %s",
						 path, strerror(errno));
	if (!S_ISSOCK(st.st_mode))
		return err_set(e, SHARD_EXISTS,
			       "cannot listen on unix:%s: a file that is not a socket is there: "
			       "remove it or set another path",
			       path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return err_set(e, SHARD_SYSTEM, "no socket for unix:%s: %s", path, strerror(errno));
	rc = connect(fd, (const struct sockaddr *)&sock->sa, sock->bytes);
	error = errno;
	if (rc == 0)
		(void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &bytes);
	close(fd);
	if (rc == 0 || error == EAGAIN) /* EAGAIN: it is alive and its backlog is full. */
		return err_set(
			e, SHARD_EXISTS,
			"unix:%s is in use by pid %d: stop that daemon or set [daemon] socket",
			path, (int)cred.pid);
	if (error != ECONNREFUSED)
		return err_set(e, SHARD_SYSTEM, "cannot tell whether unix:%s is in use: %s", path,
			       strerror(error));
	if (unlink(path) != 0 && errno != ENOENT)
		return err_set(e, SHARD_SYSTEM, "cannot remove the stale socket unix:%s: %s", path,
			       strerror(errno));
	return SHARD_OK;
}

static enum shard_status cannot_listen(const struct conn_address *at,
				       const struct address_sock *sock, int error, struct err *e)
{
	char who[HOLDER_BYTES];

	if (error == EADDRINUSE)
		return err_set(e, SHARD_EXISTS,
			       "%s is in use (EADDRINUSE)%s: stop that, or set [daemon] %s to "
			       "another address",
			       at->text, holder_of((const struct sockaddr *)&sock->sa, who),
			       at->unix_path ? "socket" : "listen");
	if (error == EACCES || error == EPERM)
		return err_set(
			e, SHARD_DENIED,
			"cannot listen on %s: %s: run as the user that owns it, or set [daemon] %s",
			at->text, strerror(error), at->unix_path ? "socket" : "listen");
	if (error == ENOENT && at->unix_path)
		return err_set(e, SHARD_SYSTEM,
			       "cannot listen on %s: its directory is not there: make it, or set "
			       "[daemon] socket",
			       at->text);
	return err_set(e, SHARD_SYSTEM, "cannot listen on %s: %s", at->text, strerror(error));
}

enum shard_status tcp_listen(int *fd, const struct conn_address *at,
			     const struct address_sock *sock, uint32_t mode, struct err *e)
{
	enum shard_status rc = at->unix_path ? clear_path(sock, at->host, e) : SHARD_OK;
	int on = 1, error;

	*fd = -1;
	if (rc != SHARD_OK)
		return rc;
	*fd = socket(sock->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (*fd < 0)
		return cannot_listen(at, sock, errno, e);
	if (at->unix_path)
		/* This comes before bind(), so that the file never has more rights than these. */
		(void)fchmod(*fd, mode);
	else
		(void)setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(*fd, (const struct sockaddr *)&sock->sa, sock->bytes) != 0)
		goto err_fd;
	if (at->unix_path && chmod(at->host, mode) != 0) /* Without the effect of the umask. */
		goto err_path;
	if (listen(*fd, BACKLOG) != 0)
		goto err_path;
	return SHARD_OK;
err_path:
	error = errno;
	if (at->unix_path)
		(void)unlink(at->host);
	errno = error;
err_fd:
	error = errno;
	close(*fd);
	*fd = -1;
	return cannot_listen(at, sock, error, e);
}
