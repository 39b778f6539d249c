/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the service manager about the daemon. main.c owns one struct notify. Happy path: READY=1 is
 * sent once the server listens. A timer on the loop sends STATUS= when its text has changed, at
 * most once a second, and WATCHDOG=1 at half of WATCHDOG_USEC. A loop that hangs does not send it,
 * and systemd ends the process. main.c announces SIGHUP and SIGTERM. A message that cannot be sent
 * is lost, and systemd's own time limits decide. */
#include "notify.h"

#include "base/check.h"
#include "base/clock.h"
#include "obs/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_NS   NS_PER_SEC
#define NS_PER_US 1000ull

#ifdef SHARD_SYSTEMD
#include <systemd/sd-daemon.h>

static uint64_t watchdog(void)
{
	uint64_t us = 0;

	return sd_watchdog_enabled(0, &us) > 0 ? us / 2 * NS_PER_US : 0;
}

static void tell(const char *text)
{
	(void)sd_notify(0, text);
}

static bool can_tell(const struct log *log)
{
	(void)log;
	return getenv("NOTIFY_SOCKET") != NULL;
}
#else
static uint64_t watchdog(void)
{
	return 0;
}

static void tell(const char *text)
{
	(void)text;
}

static bool can_tell(const struct log *log)
{
	if (getenv("NOTIFY_SOCKET") != NULL)
		log_line(log, LOG_LEVEL_WARN, "event=not_notified why=%s",
			 "this shardd is built without libsystemd: a unit of Type=notify will time "
			 "out; use Type=exec");
	return false;
}
#endif

static void say_status(struct notify *n, uint64_t now)
{
	char text[NOTIFY_STATUS_BYTES], line[NOTIFY_STATUS_BYTES + 16];

	if (now - n->said_ns < LOOK_NS)
		return;
	status_line(n->server, text, sizeof(text));
	if (strcmp(text, n->said) == 0)
		return;
	snprintf(line, sizeof(line), "STATUS=%s", text);
	tell(line);
	memcpy(n->said, text, sizeof(text));
	n->said_ns = now;
}

static void look(uv_timer_t *timer)
{
	struct notify *n = timer->data;
	uint64_t now = clock_ns();

	if (n->watchdog_ns > 0 && now - n->alive_ns >= n->watchdog_ns) {
		tell("WATCHDOG=1");
		n->alive_ns = now;
	}
	if (!n->over)
		say_status(n, now);
}

void notify_start(struct notify *n, const struct server *server, uv_loop_t *loop,
		  const struct log *log)
{
	char line[NOTIFY_STATUS_BYTES + 64];
	uint64_t ms = LOOK_NS / NS_PER_MS;

	*n = (struct notify){.server = server};
	if (!can_tell(log))
		return;
	n->watchdog_ns = watchdog();
	n->alive_ns = n->said_ns = clock_ns();
	status_line(server, n->said, sizeof(n->said));
	snprintf(line, sizeof(line), "READY=1\nSTATUS=%s%s", n->said,
		 n->watchdog_ns > 0 ? "\nWATCHDOG=1" : "");
	tell(line);
	/* The timer rings four times within half of the watchdog's time, so that WATCHDOG=1 is late
	 * by a quarter of that half at most. */
	if (n->watchdog_ns > 0 && n->watchdog_ns / 4 < LOOK_NS)
		ms = n->watchdog_ns / 4 / NS_PER_MS + 1;
	CHECK(uv_timer_init(loop, &n->timer) == 0);
	n->timer.data = n;
	CHECK(uv_timer_start(&n->timer, look, ms, ms) == 0);
	n->started = true;
}

void notify_reloading(struct notify *n)
{
	char line[80];

	if (!n->started || n->over)
		return;
	snprintf(line, sizeof(line), "RELOADING=1\nMONOTONIC_USEC=%lu",
		 (unsigned long)(clock_ns() / NS_PER_US));
	tell(line);
}

void notify_reloaded(struct notify *n)
{
	if (n->started && !n->over)
		tell("READY=1");
}

void notify_stopping(struct notify *n, uint64_t limit_ns)
{
	const char *text = server_stopping(n->server);
	char line[NOTIFY_STATUS_BYTES];

	if (!n->started || n->over)
		return;
	n->over = true;
	snprintf(line, sizeof(line), "STOPPING=1\nSTATUS=%.320s\nEXTEND_TIMEOUT_USEC=%lu",
		 text != NULL ? text : "stopping", (unsigned long)(limit_ns / NS_PER_US));
	tell(line);
}

void notify_failed(const char *why)
{
	char line[NOTIFY_STATUS_BYTES];

	snprintf(line, sizeof(line), "STATUS=not started, the models are kept: %.400s", why);
	tell(line);
}

void notify_close(struct notify *n)
{
	if (n->started)
		uv_close((uv_handle_t *)&n->timer, NULL);
	n->started = false;
}
