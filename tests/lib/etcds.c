/* SPDX-License-Identifier: Apache-2.0 */
/* Runs members of etcd as processes. Their elections are faster than etcd's own default, so that a
 * lease may be as short as one second. They do not sync, because tests kill processes and not
 * machines. Requests of the test itself go over a socket of their own, so that they share nothing
 * with the code under test. */
#include "lib/etcds.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "lib/ports.h"
#include "lib/proc.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { HEARTBEAT_MS = 50, ELECTION_MS = 500 };

__attribute__((format(printf, 1, 2))) static int run(const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	CHECK((size_t)vsnprintf(text, sizeof(text), fmt, ap) < sizeof(text));
	va_end(ap);
	return system(text);
}

bool etcds_here(void)
{
	if (run("command -v etcd etcdctl >/dev/null") == 0)
		return true;
	print_message("etcd or etcdctl is not installed: make deps\n");
	return false;
}

static void list(const struct etcds *e, char *text, size_t bytes)
{
	size_t nr = 0;

	for (int i = 0; i < e->nr; i++)
		nr += (size_t)snprintf(text + nr, bytes - nr, "%sm%d=http://127.0.0.1:%u",
				       i > 0 ? "," : "", i, e->member[i].peer);
	CHECK(nr < bytes);
}

static void become(const struct etcds *e, int i)
{
	char client[64], peer[64], all[256], text[2048], quota[32] = "0", tls[256] = "";

	snprintf(client, sizeof(client), "http%s://127.0.0.1:%u", e->tls ? "s" : "",
		 e->member[i].client);
	if (e->tls)
		snprintf(tls, sizeof(tls), "--cert-file %s/cert --key-file %s/key", e->dir, e->dir);
	snprintf(peer, sizeof(peer), "http://127.0.0.1:%u", e->member[i].peer);
	if (e->quota_bytes > 0)
		snprintf(quota, sizeof(quota), "%llu", (unsigned long long)e->quota_bytes);
	list(e, all, sizeof(all));
	/* The shell ends with its child's place: exec. */
	snprintf(text, sizeof(text),
		 "exec etcd --name m%d --data-dir %s/m%d --listen-client-urls %s "
		 "--advertise-client-urls %s --listen-peer-urls %s "
		 "--initial-advertise-peer-urls %s --initial-cluster %s "
		 "--initial-cluster-token %s --heartbeat-interval %d --election-timeout %d "
		 "--unsafe-no-fsync --quota-backend-bytes %s %s >>%s/m%d.log 2>&1",
		 i, e->dir, i, client, client, peer, peer, all, e->token, HEARTBEAT_MS, ELECTION_MS,
		 quota, tls, e->dir, i);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	execl("/bin/sh", "sh", "-c", text, (char *)NULL);
	_exit(127);
}

void etcds_start(struct etcds *e, int i)
{
	pid_t pid;

	CHECK(e->member[i].pid == 0);
	fflush(NULL);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		become(e, i);
	e->member[i].pid = pid;
}

static void prepare(struct etcds *e, int nr, uint64_t quota_bytes, bool tls)
{
	size_t at = 0;

	memset(e, 0, sizeof(*e));
	e->nr = nr;
	e->token = "one";
	e->quota_bytes = quota_bytes;
	e->tls = tls;
	snprintf(e->dir, sizeof(e->dir), "/tmp/shard-etcd-XXXXXX");
	CHECK(nr <= ETCDS_MAX && mkdtemp(e->dir) != NULL);
	for (int i = 0; i < nr; i++) {
		e->member[i].client = ports_take();
		e->member[i].peer = ports_take();
		at += (size_t)snprintf(e->endpoints + at, sizeof(e->endpoints) - at,
				       "%shttp%s://127.0.0.1:%u", i > 0 ? "," : "", tls ? "s" : "",
				       e->member[i].client);
	}
}

void etcds_make(struct etcds *e, int nr, uint64_t quota_bytes)
{
	prepare(e, nr, quota_bytes, false);
	for (int i = 0; i < nr; i++)
		etcds_start(e, i);
	for (int i = 0; i < nr; i++)
		etcds_ready(e, i);
}

bool etcds_make_tls(struct etcds *e)
{
	if (run("command -v openssl >/dev/null") != 0) {
		print_message("openssl is not installed\n");
		return false;
	}
	prepare(e, 1, 0, true);
	CHECK(run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "
		  "-days 2 -subj /CN=etcd -addext subjectAltName=IP:127.0.0.1 -keyout %s/key "
		  "-out %s/cert >%s/openssl.log 2>&1",
		  e->dir, e->dir, e->dir) == 0);
	etcds_start(e, 0);
	return true;
}

void etcds_ready(struct etcds *e, int i)
{
	uint64_t by = pace_by(20);

	/* A read that a majority has to confirm. */
	while (etcds_ask(e, i, "/v3/kv/range", "{\"key\":\"AA==\"}", NULL, 0) != 200) {
		if (clock_ns() > by) {
			(void)run("tail -20 %s/m%d.log", e->dir, i);
			fail_msg("etcd did not start");
		}
		(void)poll(NULL, 0, 20);
	}
}

void etcds_signal(struct etcds *e, int i, int signal)
{
	proc_signal(e->member[i].pid, signal);
}

void etcds_wait_end(struct etcds *e, int i)
{
	CHECK(waitpid(e->member[i].pid, NULL, 0) == e->member[i].pid);
	e->member[i].pid = 0;
}

void etcds_kill(struct etcds *e, int i)
{
	etcds_signal(e, i, SIGKILL);
	etcds_wait_end(e, i);
}

void etcds_wipe(struct etcds *e, int i)
{
	CHECK(e->member[i].pid == 0 && run("rm -rf %s/m%d", e->dir, i) == 0);
}

void etcds_room(struct etcds *e, int i, bool room)
{
	struct rlimit now, limit;

	CHECK(prlimit(e->member[i].pid, RLIMIT_FSIZE, NULL, &now) == 0);
	limit = (struct rlimit){.rlim_cur = room ? now.rlim_max : 16, .rlim_max = now.rlim_max};
	CHECK(prlimit(e->member[i].pid, RLIMIT_FSIZE, &limit, NULL) == 0);
}

/* --- requests --- */

static int dial(uint16_t port)
{
	struct timeval limit = {.tv_sec = pace_ms(3000) / 1000 + 1};
	struct sockaddr_in to = {.sin_family = AF_INET,
				 .sin_port = htons(port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

int etcds_ask(struct etcds *e, int i, const char *path, const char *body, char *text, size_t bytes)
{
	char head[512], answer[8192];
	size_t nr = 0;
	ssize_t got;
	int status = 0, fd = dial(e->member[i].client);

	if (fd < 0)
		return 0;
	snprintf(head, sizeof(head), "POST %s HTTP/1.0\r\nContent-Length: %zu\r\n\r\n", path,
		 strlen(body));
	if (send(fd, head, strlen(head), MSG_NOSIGNAL) > 0 &&
	    send(fd, body, strlen(body), MSG_NOSIGNAL) > 0)
		while (nr < sizeof(answer) - 1 &&
		       (got = recv(fd, answer + nr, sizeof(answer) - 1 - nr, 0)) > 0)
			nr += (size_t)got;
	close(fd);
	answer[nr] = 0;
	if (sscanf(answer, "HTTP/1.%*d %d", &status) != 1)
		return 0;
	if (text != NULL)
		snprintf(text, bytes, "%s", strstr(answer, "\r\n\r\n") ?: "");
	return status;
}

uint64_t etcds_revision(struct etcds *e)
{
	char text[1024];
	const char *at;

	CHECK(etcds_ask(e, 0, "/v3/kv/range", "{\"key\":\"AA==\"}", text, sizeof(text)) == 200);
	at = strstr(text, "\"revision\":\"");
	CHECK(at != NULL);
	return strtoull(at + 12, NULL, 10);
}

/* --- what an operator does --- */

void etcds_save(struct etcds *e)
{
	CHECK(run("rm -f %s/backup; ETCDCTL_API=3 etcdctl --endpoints http://127.0.0.1:%u "
		  "snapshot save %s/backup >>%s/ctl.log 2>&1",
		  e->dir, e->member[0].client, e->dir, e->dir) == 0);
}

void etcds_restore(struct etcds *e)
{
	char all[256];

	CHECK(e->nr == 1);
	list(e, all, sizeof(all));
	etcds_wipe(e, 0);
	CHECK(run("ETCDCTL_API=3 etcdctl snapshot restore %s/backup --name m0 --data-dir %s/m0 "
		  "--initial-cluster %s --initial-cluster-token %s "
		  "--initial-advertise-peer-urls http://127.0.0.1:%u >>%s/ctl.log 2>&1",
		  e->dir, e->dir, all, e->token, e->member[0].peer, e->dir) == 0);
}

void etcds_end(struct etcds *e)
{
	for (int i = 0; i < e->nr; i++)
		if (e->member[i].pid != 0)
			etcds_kill(e, i);
	CHECK(run("rm -rf %s", e->dir) == 0);
}
