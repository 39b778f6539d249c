// SPDX-License-Identifier: Apache-2.0
/* Processes for tests. Only tests/proc and tests/lib call it. Every child is killed with the test
 * (PR_SET_PDEATHSIG), and every wait has a deadline. The stderr of a daemon goes to a file, which
 * is shown when something fails. */
#include "lib/proc.h"

#include "base/check.h"
#include "base/clock.h"
#include "cluster/source.h"
#include "lib/cutter.h"
#include "lib/fdstore.h"
#include "lib/logfmt.h"
#include "lib/pace.h"
#include "lib/ports.h"
#include "shard.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define READY_S 10
#define EVENT_S 20
#define WARM_IS "warm_restart = "

void proc_beside(char *path, size_t bytes, const char *name)
{
	char self[512];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	CHECK(n > 0);
	self[n] = 0;
	for (int up = 0; up < 3; up++) { /* The program is BUILD/tests/proc/test_x. */
		char *slash = strrchr(self, '/');

		CHECK(slash != NULL);
		*slash = 0;
	}
	snprintf(path, bytes, "%s/%s", self, name);
}

/* --- processes --- */

pid_t proc_fork(int (*fn)(void *arg), void *arg)
{
	pid_t parent = getpid(), pid;

	fflush(NULL);
	pid = fork();
	CHECK(pid >= 0);
	if (pid > 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(99);
	_exit(fn(arg));
}

int proc_wait(pid_t pid, int ms)
{
	struct pollfd p = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
	int status = -1, n;

	CHECK(p.fd >= 0);
	do
		n = poll(&p, 1, pace_ms(ms));
	while (n < 0 && errno == EINTR);
	close(p.fd);
	if (n == 1)
		CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}

/* The character is T, or t of a thread that a test traces. Z and X: it has ended. */
static bool thread_runs(pid_t pid, const char *tid)
{
	char path[64], text[256], *at = NULL;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%.16s/stat", (int)pid, tid);
	if ((f = fopen(path, "r")) == NULL)
		return false;
	if (fgets(text, sizeof(text), f) != NULL)
		at = strrchr(text, ')');
	fclose(f);
	return at != NULL && strchr("TtZX", at[2]) == NULL;
}

static bool runs(pid_t pid)
{
	char path[32];
	struct dirent *d;
	bool any = false;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	CHECK((dir = opendir(path)) != NULL);
	while (!any && (d = readdir(dir)) != NULL)
		any = d->d_name[0] != '.' && thread_runs(pid, d->d_name);
	closedir(dir);
	return any;
}

void proc_signal(pid_t pid, int signal)
{
	uint64_t until = pace_by(20);

	CHECK(pid > 0 && kill(pid, signal) == 0);
	while (signal == SIGSTOP && runs(pid)) {
		CHECK(clock_ns() < until);
		usleep(100);
	}
}

void proc_expect_exit(pid_t pid, int code, int ms)
{
	int status = proc_wait(pid, ms);

	if (status == -1) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		fail_msg("process %d did not end within %d ms", (int)pid, ms);
	}
	if (!WIFEXITED(status) || WEXITSTATUS(status) != code)
		fail_msg("process %d ended with %s %d, expected exit %d", (int)pid,
			 WIFEXITED(status) ? "exit" : "signal",
			 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), code);
}

uint64_t proc_cpu_ns(pid_t pid)
{
	struct timespec ts;
	clockid_t id;

	CHECK(clock_getcpuclockid(pid, &id) == 0 && clock_gettime(id, &ts) == 0);
	return (uint64_t)ts.tv_sec * NS_PER_SEC + (uint64_t)ts.tv_nsec;
}

/* --- clusters --- */

/* Writes a lost_timeout that is as long as the heartbeat_timeout, so that a test does not wait for
 * two minutes. */
void proc_lost_timeout(FILE *f, const char *lines)
{
	static const char key[] = "heartbeat_timeout = ";
	const char *at = lines != NULL ? strstr(lines, key) : NULL;

	if (at != NULL)
		at += sizeof(key) - 1;
	fprintf(f, "[cluster]\nlost_timeout = %.*s\n", at != NULL ? (int)strcspn(at, "\n ") : 2,
		at != NULL ? at : "5s");
}

void proc_one_copy(FILE *f, const char *lines, const char *more)
{
	if ((lines == NULL || strstr(lines, "replicas") == NULL) &&
	    (more == NULL || strstr(more, "replicas") == NULL))
		fprintf(f, "[model]\nreplicas = 1\n");
}

void proc_first_leads(FILE *f, const char *lines)
{
	if (lines == NULL || strstr(lines, "membership") == NULL)
		fprintf(f, "[cluster]\nmembership = static\n");
}

static FILE *begin_conf(const struct cluster_node *n, const char *extra)
{
	FILE *f = fopen(n->conf, "we");

	CHECK(f != NULL);
	fprintf(f,
		"[daemon]\nnode = %s\nsocket = %s\nstate = %s\nworkers = "
		"1\nlog_level = debug\nhttp = off\n"
		"checkpoint_roots = /tmp\n",
		n->name, n->socket, n->state);
	if (extra == NULL || strstr(extra, "memory = ") == NULL)
		fprintf(f, "memory = 256MiB\n");
	if (extra == NULL || strstr(extra, "secret") == NULL)
		fprintf(f, "allow_unauthenticated = yes\n");
	fprintf(f, WARM_IS "off    \n"); /* Room for any other word. */
	return f;
}

static void write_conf(struct cluster *c, int node, const char *model, const char *extra)
{
	FILE *f = begin_conf(&c->node[node], extra);

	fprintf(f, "[cluster]\nrun_id = test\n[nodes]\n");
	for (int i = 0; i < c->nodes_nr; i++)
		fprintf(f, "%s = 127.0.0.1:%u\n", c->node[i].name, c->node[i].port);
	if (model != NULL)
		fprintf(f, "[model]\n%s\n", model);
	if (extra != NULL)
		fprintf(f, "%s\n", extra);
	if (extra == NULL || strstr(extra, "lost_timeout") == NULL)
		proc_lost_timeout(f, extra);
	if (c->nodes_nr > 1)
		proc_one_copy(f, model, extra);
	if (c->nodes_nr > 2)
		proc_first_leads(f, extra);
	CHECK(fclose(f) == 0);
}

static void name_node(struct cluster *c, int node)
{
	struct cluster_node *n = &c->node[node];
	char dir[sizeof(c->dir)], name[sizeof(n->name)];

	n->port = ports_take();
	memcpy(dir, c->dir, sizeof(dir));
	snprintf(name, sizeof(name), "%c", 'a' + node);
	memcpy(n->name, name, sizeof(name));
	snprintf(n->conf, sizeof(n->conf), "%s/%s.conf", dir, name);
	snprintf(n->socket, sizeof(n->socket), "%s/%s.sock", dir, name);
	snprintf(n->log, sizeof(n->log), "%s/%s.log", dir, name);
	snprintf(n->state, sizeof(n->state), "%s/%s.state", dir, name);
	snprintf(n->unix_address, sizeof(n->unix_address), "unix:%s/%s.sock", dir, name);
	snprintf(n->tcp_address, sizeof(n->tcp_address), "tcp://127.0.0.1:%u", n->port);
}

struct cluster *cluster_make(int nodes_nr, const char *model, const char *extra)
{
	struct cluster *c = calloc(1, sizeof(*c));

	CHECK(c != NULL && nodes_nr >= 1 && nodes_nr <= CLUSTER_NODES_MAX);
	c->nodes_nr = nodes_nr;
	if (nodes_nr >= 3 && extra != NULL && strstr(extra, "membership") != NULL &&
	    strstr(extra, "membership = static") == NULL &&
	    strstr(extra, "membership = etcd") == NULL) /* That is the default. */
		c->voters_nr = nodes_nr < MEMBER_VOTERS_MAX ? 3 : MEMBER_VOTERS_MAX;
	strcpy(c->dir, "/tmp/shard-proc-XXXXXX");
	CHECK(mkdtemp(c->dir) != NULL);
	for (int i = 0; i < nodes_nr; i++)
		name_node(c, i);
	for (int i = 0; i < nodes_nr; i++)
		write_conf(c, i, model, extra);
	return c;
}

static void conf_warm(const struct cluster *c, const struct cluster_node *n, const char *word)
{
	FILE *f = fopen(n->conf, "r+e");
	char text[4096];
	size_t bytes;
	char *at;

	CHECK(f != NULL);
	bytes = fread(text, 1, sizeof(text) - 1, f);
	text[bytes] = 0;
	at = strstr(text, WARM_IS);
	CHECK(at != NULL && fseek(f, at - text + (long)strlen(WARM_IS), SEEK_SET) == 0);
	CHECK(fputs(word, f) >= 0 && fseek(f, 0, SEEK_END) == 0);
	fprintf(f, "\n[daemon]\nwarm_dir = %s\n", c->warm_dir);
	CHECK(fclose(f) == 0);
}

int cluster_joiner(struct cluster *c, int by, const char *extra)
{
	int node = c->nodes_nr++;
	FILE *f;

	CHECK(node < CLUSTER_NODES_MAX);
	name_node(c, node);
	f = begin_conf(&c->node[node], extra);
	fprintf(f, "listen = 127.0.0.1:%u\n[cluster]\njoin = 127.0.0.1:%u\n", c->node[node].port,
		c->node[by].port);
	if (extra != NULL)
		fprintf(f, "%s\n", extra);
	CHECK(fclose(f) == 0);
	if (c->warm_dir[0] != 0)
		conf_warm(c, &c->node[node], "tmpfs");
	return node;
}

void cluster_between(struct cluster *c)
{
	c->cutter = cutter_start(c);
}

void cluster_votes(struct cluster *c, bool pass)
{
	cutter_votes(c->cutter, pass);
}

void cluster_warm(struct cluster *c, enum cluster_warm how)
{
	static const char *const words[CLUSTER_WARM_NR] = {
		[CLUSTER_SYSTEMD] = "systemd", [CLUSTER_TMPFS] = "tmpfs"};

	strcpy(c->warm_dir, "/dev/shm/shard-proc-XXXXXX");
	CHECK(mkdtemp(c->warm_dir) != NULL);
	for (int i = 0; i < c->nodes_nr; i++) {
		struct cluster_node *n = &c->node[i];
		char path[128];

		conf_warm(c, n, words[how]);
		snprintf(path, sizeof(path), "%s/%s.notify", c->dir, n->name);
		if (how == CLUSTER_SYSTEMD)
			n->store = fdstore_start(path, FDSTORE_MAX);
	}
}

struct exec_daemon {
	const char *daemon;
	const struct cluster_node *n;
};

static int exec_daemon(void *arg)
{
	const struct exec_daemon *x = arg;
	const struct cluster_node *n = x->n;
	int fd = open(n->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	char path[600];

	proc_beside(path, sizeof(path), x->daemon ? x->daemon : "shardd");
	if (fd < 0 || dup2(fd, 2) < 0 || dup2(fd, 1) < 0)
		return 98;
	if (n->store != NULL)
		fdstore_child(n->store);
	execl(path, "shardd", "--config", n->conf, (char *)NULL);
	return 97;
}

void cluster_spawn(struct cluster *c, int node)
{
	struct exec_daemon x = {.daemon = c->daemon, .n = &c->node[node]};

	CHECK(node < c->nodes_nr && c->node[node].pid == 0);
	if (x.n->store != NULL)
		fdstore_begin(x.n->store);
	c->node[node].pid = proc_fork(exec_daemon, &x);
}

static bool still_there(struct cluster_node *n)
{
	return waitpid(n->pid, NULL, WNOHANG) == 0;
}

void cluster_ready(struct cluster *c, int node)
{
	uint64_t deadline = pace_by(READY_S);
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	enum shard_status rc;
	shard_client *client;

	o.address = c->node[node].unix_address;
	o.timeout_ms = 1000;
	while ((rc = shard_connect(&client, &o)) != SHARD_OK) {
		bool there = still_there(&c->node[node]);

		if (!there)
			c->node[node].pid = 0;
		if (!there || clock_ns() > deadline) {
			cluster_dump(c);
			fail_msg("node %s %s: %s", c->node[node].name,
				 there ? "does not answer" : "has ended", shard_error());
		}
		/* There is nothing to wait on before the socket is there. */
		(void)poll(NULL, 0, 10);
	}
	shard_disconnect(&client);
}

static int voters_known(struct cluster *c, int node)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	char json[65536];
	size_t bytes = sizeof(json);
	shard_client *client;
	int nr = 0;

	o.address = c->node[node].unix_address;
	CHECK(shard_connect(&client, &o) == SHARD_OK);
	CHECK(shard_stats(client, json, &bytes) == SHARD_OK);
	for (const char *at = json; (at = strstr(at, "\"votes\":true")) != NULL; at++)
		nr++;
	shard_disconnect(&client);
	return nr;
}

void cluster_voters(struct cluster *c)
{
	uint64_t by = pace_by(READY_S);

	for (int i = 0; voters_known(c, i) < c->voters_nr; i = (i + 1) % c->nodes_nr) {
		if (clock_ns() > by) {
			cluster_dump(c);
			fail_msg("fewer than %d nodes vote", c->voters_nr);
		}
		(void)poll(NULL, 0, 10);
	}
}

void cluster_up(struct cluster *c)
{
	for (int i = 0; i < c->nodes_nr; i++)
		cluster_spawn(c, i);
	for (int i = 0; i < c->nodes_nr; i++)
		cluster_ready(c, i);
	cluster_voters(c);
}

struct cluster *cluster_start(int nodes_nr, const char *model, const char *extra)
{
	struct cluster *c = cluster_make(nodes_nr, model, extra);

	cluster_up(c);
	return c;
}

void cluster_signal(struct cluster *c, int node, int signal)
{
	proc_signal(c->node[node].pid, signal);
}

void cluster_kill(struct cluster *c, int node)
{
	int status;

	cluster_signal(c, node, SIGKILL);
	status = cluster_wait(c, node, 10000);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

int cluster_wait(struct cluster *c, int node, int ms)
{
	int status = proc_wait(c->node[node].pid, ms);

	if (status == -1) {
		cluster_dump(c);
		fail_msg("node %s did not end within %d ms", c->node[node].name, ms);
	}
	c->node[node].pid = 0;
	c->node[node].killed |= WIFSIGNALED(status);
	return status;
}

char *cluster_log(struct cluster *c, int node)
{
	FILE *f = fopen(c->node[node].log, "re");
	size_t bytes = 0;
	char *text = NULL;

	if (f == NULL || getdelim(&text, &bytes, '\0', f) < 0) {
		free(text);
		text = strdup("");
	}
	if (f != NULL)
		fclose(f);
	CHECK(text != NULL);
	return text;
}

uint32_t cluster_logged(struct cluster *c, int node, const char *part)
{
	char *text = cluster_log(c, node);
	uint32_t nr = 0;

	for (const char *at = text; (at = strstr(at, part)) != NULL; at++)
		nr++;
	free(text);
	return nr;
}

void cluster_wait_log(struct cluster *c, int node, const char *part, uint32_t times)
{
	uint64_t by = pace_by(EVENT_S);

	while (cluster_logged(c, node, part) < times) {
		if (clock_ns() > by)
			fail_msg("node %s did not log \"%s\" %u times", c->node[node].name, part,
				 times);
		(void)poll(NULL, 0, 2);
	}
}

void cluster_says(struct cluster *c, int node, const char *part)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	uint64_t by = pace_by(EVENT_S);
	shard_client *client;
	char json[65536];
	bool there;

	o.address = c->node[node].unix_address;
	CHECK(shard_connect(&client, &o) == SHARD_OK);
	do {
		size_t bytes = sizeof(json);

		CHECK(shard_stats(client, json, &bytes) == SHARD_OK);
		there = strstr(json, part) != NULL;
		if (!there && clock_ns() > by)
			fail_msg("node %s does not say %s: %s", c->node[node].name, part, json);
		if (!there)
			(void)poll(NULL, 0, 2);
	} while (!there);
	shard_disconnect(&client);
}

void cluster_phase(struct cluster *c, int node, const char *phase)
{
	char part[40];

	snprintf(part, sizeof(part), "\"phase\":\"%s\"", phase);
	cluster_says(c, node, part);
}

void cluster_dump(struct cluster *c)
{
	for (int i = 0; i < c->nodes_nr; i++) {
		char *text = cluster_log(c, i);
		size_t bytes = strlen(text);

		fprintf(stderr, "--- log of node %s ---\n%s", c->node[i].name,
			bytes > 8000 ? text + bytes - 8000 : text);
		free(text);
	}
}

static void remove_tree(const char *dir)
{
	char *const argv[] = {(char *)(uintptr_t) "rm", (char *)(uintptr_t) "-rf",
			      (char *)(uintptr_t)dir, NULL};
	pid_t pid = fork();

	if (pid == 0) {
		execvp("rm", argv);
		_exit(1);
	}
	CHECK(pid > 0 && waitpid(pid, NULL, 0) == pid);
}

static void check_logs(struct cluster *c)
{
	for (int i = 0; i < c->nodes_nr; i++) {
		char *text;

		if (c->node[i].killed)
			continue;
		text = cluster_log(c, i);
		logfmt_check(text, c->node[i].name);
		free(text);
	}
}

static void stop(struct cluster *c)
{
	int status[CLUSTER_NODES_MAX] = {0};

	for (int i = c->nodes_nr - 1; i >= 0; i--)
		if (c->node[i].pid > 0)
			(void)kill(c->node[i].pid, SIGTERM);
	for (int i = 0; i < c->nodes_nr; i++)
		if (c->node[i].pid > 0)
			status[i] = cluster_wait(c, i, 10000);
	for (int i = 0; i < c->nodes_nr; i++)
		if (status[i] != 0) {
			cluster_dump(c);
			fail_msg("node %s ended with wait status 0x%x after SIGTERM",
				 c->node[i].name, (unsigned)status[i]);
		}
	check_logs(c);
	for (int i = 0; i < c->nodes_nr; i++)
		fdstore_stop(&c->node[i].store);
	cutter_stop(&c->cutter);
	remove_tree(c->dir);
	if (c->warm_dir[0] != 0)
		remove_tree(c->warm_dir);
}

void cluster_stop(struct cluster *c)
{
	stop(c);
	free(c);
}

void cluster_done(struct cluster **c)
{
	cluster_stop(*c);
	*c = NULL;
}

void cluster_put_away(struct cluster **c)
{
	struct cluster *it = *c;

	if (it == NULL)
		return;
	cluster_dump(it);
	for (int i = 0; i < it->nodes_nr; i++)
		if (it->node[i].pid > 0) {
			cluster_signal(it, i, SIGKILL);
			cluster_wait(it, i, 5000);
		}
	stop(it); /* Trainers of the failed test may still read it, so it is not freed. */
	*c = NULL;
}
