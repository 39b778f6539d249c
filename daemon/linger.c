/* SPDX-License-Identifier: Apache-2.0 */
/* Ends a daemon that nobody uses. main.c owns one watch. Happy path: a timer looks a few times
 * within the linger. When no session has been there for that long, it locks the file "lock" in the
 * socket's folder and calls over(). Whoever starts such daemons (libshard, for spawn:NAME) holds
 * that lock while it starts one or connects to it, so that nobody is sent to a daemon that is
 * ending. While another process has the lock the daemon goes on, and once the daemon has it, it
 * keeps it until the process is gone. If there is no such file, there is nobody to agree with. If
 * the file cannot be opened for another reason, the daemon stays alive. */
#include "linger.h"

#include "base/check.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define LOOKS  8 /* Within one linger. */
#define MIN_MS 2
#define MAX_MS 500

static bool may_end(const struct linger_watch *l)
{
	int fd = open(l->lock, O_RDWR | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0)
		return errno == ENOENT;
	if (flock(fd, LOCK_EX | LOCK_NB) == 0)
		return true; /* Never closed here: the kernel does that at the very end. */
	close(fd);
	return false;
}

static void look(uv_timer_t *timer)
{
	struct linger_watch *l = timer->data;
	uint64_t now = clock_ns(), ever;

	if (server_connected(l->server, &ever) > 0 || ever != l->ever) {
		l->since_ns = now;
		l->ever = ever;
		return;
	}
	if (now - l->since_ns < l->linger_ns || !may_end(l))
		return;
	uv_timer_stop(timer);
	l->over(l->arg);
}

void linger_start(struct linger_watch *l, const struct config *conf, const struct server *server,
		  uv_loop_t *loop, void (*over)(void *arg), void *arg)
{
	const char *slash = strrchr(conf->socket, '/');
	uint64_t ms = conf->linger_ns / NS_PER_MS / LOOKS;

	*l = (struct linger_watch){.server = server,
				   .linger_ns = conf->linger_ns,
				   .since_ns = clock_ns(),
				   .over = over,
				   .arg = arg};
	if (conf->linger_ns == 0)
		return;
	snprintf(l->lock, sizeof(l->lock), "%.*slock", slash ? (int)(slash + 1 - conf->socket) : 0,
		 conf->socket);
	ms = ms < MIN_MS ? MIN_MS : ms > MAX_MS ? MAX_MS : ms;
	CHECK(uv_timer_init(loop, &l->timer) == 0);
	l->timer.data = l;
	CHECK(uv_timer_start(&l->timer, look, ms, ms) == 0);
	l->started = true;
}

void linger_close(struct linger_watch *l)
{
	if (l->started)
		uv_close((uv_handle_t *)&l->timer, NULL);
	l->started = false;
}
