/* SPDX-License-Identifier: Apache-2.0 */
/* Starts and stops the daemons of a benchmark and asks for their status. fleet.c trains with them.
 * Happy path: it makes a folder with one configuration per node, starts shardd in the background,
 * waits until its socket accepts, and sends SIGTERM at the end. What fails ends the program with a
 * sentence. */
#include "bench/daemons.h"

#include "base/check.h"
#include "lib/fdstore.h"

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <libgen.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

void bench_fail(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

void bench_processors(int node)
{
	long all = sysconf(_SC_NPROCESSORS_ONLN), half = all / 2;
	cpu_set_t set;

	CPU_ZERO(&set);
	for (int cpu = 0; cpu < all && cpu < CPU_SETSIZE; cpu++)
		if (node < 0 || all < 2 || (cpu < half) == (node == 0))
			CPU_SET(cpu, &set);
	/* A cpuset may forbid it, and then the figures vary more. */
	(void)sched_setaffinity(0, sizeof(set), &set);
}

static uint16_t free_port(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0 ||
	    getsockname(fd, (struct sockaddr *)&at, &bytes) != 0)
		bench_fail("no port: %s", strerror(errno));
	close(fd);
	return ntohs(at.sin_port);
}

/* joins: it is in no list, and asks node a. */
static void configure(const struct daemons *d, int i, bool joins)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%c.conf", d->dir, 'a' + i);
	f = fopen(path, "w");
	if (f == NULL)
		bench_fail("%s: %s", path, strerror(errno));
	fprintf(f,
		"[daemon]\nnode = %c\nlisten = 127.0.0.1:%u\nsocket = %s/%c.sock\nstate = "
		"%s/%c.state\nmemory = %lluKiB\nhttp = off\n"
		"allow_unauthenticated = yes\n",
		'a' + i, d->port[i], d->dir, 'a' + i, d->dir, 'a' + i,
		(unsigned long long)sysconf(_SC_PHYS_PAGES) *
			(unsigned long long)(sysconf(_SC_PAGESIZE) >> 10));
	fprintf(f, "warm_restart = %s\n", d->warm ? d->warm : "off");
	if (d->warm_dir[0] != 0)
		fprintf(f, "warm_dir = %s/%c\n", d->warm_dir, 'a' + i);
	if (d->workers > 0)
		fprintf(f, "workers = %u\n", d->workers);
	if (joins)
		fprintf(f, "[cluster]\njoin = 127.0.0.1:%u\n", d->port[0]);
	else
		fprintf(f, "[cluster]\nrun_id = bench\n[nodes]\n");
	for (int n = 0; n < d->nr && !joins; n++)
		fprintf(f, "%c = 127.0.0.1:%u\n", 'a' + n, d->port[n]);
	/* The figures are those of one copy. A bench of copies says so in the model's settings. */
	fprintf(f, "[model]\nreplicas = 1\n");
	fclose(f);
}

void daemons_configure(const struct daemons *d, const char *lines)
{
	char path[128];

	for (int i = 0; i < d->nr; i++) {
		FILE *f;

		snprintf(path, sizeof(path), "%s/%c.conf", d->dir, 'a' + i);
		f = fopen(path, "a");
		if (f == NULL || fputs(lines, f) < 0 || fclose(f) != 0)
			bench_fail("%s: %s", path, strerror(errno));
	}
}

void daemons_launch(struct daemons *d, int i)
{
	char program[600], conf[128], log[128];

	snprintf(program, sizeof(program), "%s/shardd", d->build);
	snprintf(conf, sizeof(conf), "%s/%c.conf", d->dir, 'a' + i);
	snprintf(log, sizeof(log), "%s/%c.log", d->dir, 'a' + i);
	if (d->store[i] != NULL)
		fdstore_begin(d->store[i]);
	fflush(NULL); /* The child would flush its copies, too. */
	d->pid[i] = fork();
	if (d->pid[i] < 0)
		bench_fail("fork: %s", strerror(errno));
	if (d->pid[i] > 0)
		return;
	if (d->nr == 2)
		bench_processors(i);
	/* The daemon ends with the benchmark in any case. */
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (freopen(log, "w", stderr) == NULL || freopen("/dev/null", "w", stdout) == NULL)
		_exit(126);
	if (d->store[i] != NULL)
		fdstore_child(d->store[i]);
	execl(program, program, "--config", conf, (char *)NULL);
	_exit(127);
}

void daemons_wait(const struct daemons *d, int i)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	shard_client *c;
	int status;

	o.address = d->address[i];
	for (int tries = 0; shard_connect(&c, &o) != SHARD_OK; tries++) {
		if (tries == 600 || waitpid(d->pid[i], &status, WNOHANG) != 0)
			bench_fail("shardd of node %c does not start: see %s", 'a' + i, d->dir);
		usleep(50000);
	}
	shard_disconnect(&c);
}

/* The folders, the address and the service manager of a node. */
static void place(struct daemons *d, int i)
{
	char path[128];

	snprintf(path, sizeof(path), "unix:%s/%c.sock", d->dir, 'a' + i);
	memcpy(d->address[i], path, sizeof(path));
	snprintf(path, sizeof(path), "%s/%c.notify", d->dir, 'a' + i);
	if (d->warm != NULL && strcmp(d->warm, "systemd") == 0)
		d->store[i] = fdstore_start(path, FDSTORE_MAX);
	snprintf(path, sizeof(path), "%s/%c", d->warm_dir, 'a' + i);
	if (d->warm_dir[0] != 0 && mkdir(path, 0700) != 0)
		bench_fail("%s: %s", path, strerror(errno));
}

int daemons_joiner(struct daemons *d)
{
	int i = d->nr++;

	CHECK(d->nr <= 26);
	d->port[i] = free_port();
	place(d, i);
	configure(d, i, true);
	return i;
}

void daemons_make(struct daemons *d, const char *argv0, int nr, uint32_t workers, const char *warm)
{
	char self[512];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	CHECK(nr >= 1 && nr <= 26); /* Their names are letters. */
	if (n <= 0)
		bench_fail("%s: where is it?", argv0);
	self[n] = 0;
	*d = (struct daemons){.nr = nr, .warm = warm, .workers = workers};
	snprintf(d->build, sizeof(d->build), "%s/../..", dirname(self));
	snprintf(d->dir, sizeof(d->dir), "/tmp/shardd-bench.XXXXXX");
	if (mkdtemp(d->dir) == NULL)
		bench_fail("%s: %s", d->dir, strerror(errno));
	if (warm != NULL && strcmp(warm, "tmpfs") == 0) {
		snprintf(d->warm_dir, sizeof(d->warm_dir), "/dev/shm/shardd-bench.XXXXXX");
		if (mkdtemp(d->warm_dir) == NULL)
			bench_fail("%s: %s", d->warm_dir, strerror(errno));
	}
	for (int i = 0; i < nr; i++)
		d->port[i] = free_port();
	for (int i = 0; i < nr; i++) {
		place(d, i);
		configure(d, i, false);
	}
}

void daemons_start(struct daemons *d, const char *argv0, int nr, uint32_t workers)
{
	daemons_make(d, argv0, nr, workers, NULL);
	daemons_configure(d, "[cluster]\nmembership = static\n");
	for (int i = 0; i < nr; i++)
		daemons_launch(d, i);
	for (int i = 0; i < nr; i++)
		daemons_wait(d, i);
}

void daemons_kill(struct daemons *d, int i)
{
	if (kill(d->pid[i], SIGKILL) != 0 || waitpid(d->pid[i], NULL, 0) != d->pid[i])
		bench_fail("shardd of node %c cannot be killed", 'a' + i);
	d->pid[i] = 0;
}

void daemons_forget(const struct daemons *d, int i)
{
	char command[160];

	snprintf(command, sizeof(command), "rm -rf %s/%c/*", d->warm_dir, 'a' + i);
	CHECK(d->pid[i] == 0 && d->warm_dir[0] != 0);
	if (system(command) != 0)
		bench_fail("cannot empty %s/%c", d->warm_dir, 'a' + i);
}

void daemons_stop(struct daemons *d)
{
	char command[160];
	int status;

	for (int i = 0; i < d->nr; i++)
		if (d->pid[i] > 0)
			kill(d->pid[i], SIGTERM);
	for (int i = 0; i < d->nr; i++) {
		if (d->pid[i] > 0 && (waitpid(d->pid[i], &status, 0) != d->pid[i] || status != 0))
			bench_fail("shardd of node %c ended with status 0x%x: see %s", 'a' + i,
				   status, d->dir);
		fdstore_stop(&d->store[i]);
	}
	snprintf(command, sizeof(command), "rm -rf %s %s", d->dir, d->warm_dir);
	if (system(command) != 0)
		bench_fail("cannot remove %s", d->dir);
}

/* -1: there is no such figure. */
static double look_up(const struct daemons *d, int i, const char *path)
{
	char command[1024], word[64];
	json_error_t je;
	json_t *all, *at;
	double value;
	FILE *f;

	snprintf(command, sizeof(command), "%s/shardctl status --json --timeout 60 --address %s",
		 d->build, d->address[i]);
	f = popen(command, "r");
	all = f != NULL ? json_loadf(f, JSON_DISABLE_EOF_CHECK, &je) : NULL;
	if (f != NULL)
		(void)pclose(f);
	at = path[0] == '/' ? all : json_array_get(json_object_get(all, "models"), 0);
	for (const char *p = path + (path[0] == '/'); at != NULL && *p != 0;) {
		size_t n = strcspn(p, ".");

		snprintf(word, sizeof(word), "%.*s", (int)n, p);
		at = json_is_array(at) ? json_array_get(at, strtoul(word, NULL, 10))
				       : json_object_get(at, word);
		p += n + (p[n] == '.');
	}
	value = json_is_array(at)     ? (double)json_array_size(at)
		: json_is_boolean(at) ? json_is_true(at)
		: json_is_number(at)  ? json_number_value(at)
				      : -1;
	json_decref(all);
	return value;
}

double daemons_figure(const struct daemons *d, int i, const char *path)
{
	double value = look_up(d, i, path);

	if (value < 0)
		bench_fail("no figure %s in the status of node %c", path, 'a' + i);
	return value;
}

bool daemons_has(const struct daemons *d, int i, const char *path)
{
	return look_up(d, i, path) >= 0;
}
