/* SPDX-License-Identifier: Apache-2.0 */
/* Starts daemons as threads and counts their frames. bench_control.c calls it. Each daemon has a
 * loop, a socket and a state folder of its own, and its links go over TCP. Every frame that is sent
 * is sealed, and the header of every frame that comes is checked. The linker sends both calls
 * through here, where the thread says which daemon it is. What fails ends the program. */
#include "bench/crowd.h"

#include "base/check.h"
#include "base/clock.h"
#include "config/config.h"
#include "server.h"
#include "wire/frame.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct crowd_node {
	struct crowd *crowd;
	int index;
	struct config conf;
	struct log log;
	uv_loop_t loop;
	uv_async_t stop;
	struct server *server;
	pthread_t thread;
	struct crowd_count count;
};

struct crowd {
	char dir[64];
	int nr, alone;
	uint16_t port[DAEMONS_MAX];
	pthread_barrier_t started;
	struct crowd_node node[DAEMONS_MAX];
};

static _Thread_local struct crowd_count *here;

void __real_wire_seal(struct wire_head *h, const void *body, uint64_t ordinal, bool body_sum);
void __wrap_wire_seal(struct wire_head *h, const void *body, uint64_t ordinal, bool body_sum);
const char *__real_wire_invalid(const struct wire_head *h, uint64_t ordinal, bool body_sum);
const char *__wrap_wire_invalid(const struct wire_head *h, uint64_t ordinal, bool body_sum);

void __wrap_wire_seal(struct wire_head *h, const void *body, uint64_t ordinal, bool body_sum)
{
	if (here != NULL) {
		here->out_nr[h->op]++;
		here->out_bytes[h->op] += h->body_bytes;
	}
	__real_wire_seal(h, body, ordinal, body_sum);
}

const char *__wrap_wire_invalid(const struct wire_head *h, uint64_t ordinal, bool body_sum)
{
	if (here != NULL && wire_op(h->op) != NULL) {
		here->in_nr[h->op]++;
		here->in_bytes[h->op] += h->body_bytes;
	}
	return __real_wire_invalid(h, ordinal, body_sum);
}

static void on_stopped(void *arg)
{
	uv_close((uv_handle_t *)&((struct crowd_node *)arg)->stop, NULL);
}

static void on_stop(uv_async_t *a)
{
	struct crowd_node *n = a->data;

	server_stop(n->server, "the benchmark ends", on_stopped, n);
}

static void *node_main(void *arg)
{
	struct crowd_node *n = arg;
	struct err e;

	here = &n->count;
	bench_processors(n->index == n->crowd->alone ? 0 : 1);
	CHECK(uv_loop_init(&n->loop) == 0);
	if (server_init(&n->server, &n->conf, &n->log, &n->loop, &e) != SHARD_OK)
		bench_fail("daemon %d does not start: %s", n->index, e.text);
	CHECK(uv_async_init(&n->loop, &n->stop, on_stop) == 0);
	n->stop.data = n;
	pthread_barrier_wait(&n->crowd->started);
	uv_run(&n->loop, UV_RUN_DEFAULT);
	server_free(&n->server);
	CHECK(uv_loop_close(&n->loop) == 0);
	return NULL;
}

static void keep_quiet(void *arg, enum log_level level, const char *line)
{
	(void)arg;
	if (level == LOG_LEVEL_ERROR)
		fprintf(stderr, "%s\n", line);
}

static void free_ports(struct crowd *c)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(at);
	int fd[DAEMONS_MAX];

	for (int i = 0; i < c->nr; i++) {
		at.sin_port = 0;
		fd[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd[i] < 0 || bind(fd[i], (struct sockaddr *)&at, sizeof(at)) != 0 ||
		    getsockname(fd[i], (struct sockaddr *)&at, &bytes) != 0)
			bench_fail("no port: %s", strerror(errno));
		c->port[i] = ntohs(at.sin_port);
	}
	for (int i = 0; i < c->nr; i++)
		close(fd[i]);
}

static void configure(struct crowd *c, struct crowd_node *n)
{
	char *text;
	size_t bytes;
	struct err e;
	FILE *f = open_memstream(&text, &bytes);

	CHECK(f != NULL);
	fprintf(f,
		"[daemon]\nnode = n%d\nlisten = 127.0.0.1:%u\nsocket = %s/%d.sock\n"
		"state = %s/%d.state\nmemory = 1GiB\nhttp = off\nallow_unauthenticated = yes\n"
		"warm_restart = off\nworkers = 1\nhuge_pages = no\n[net]\nconnections = 1\n"
		"[cluster]\nrun_id = bench\nmembership = static\nheartbeat_timeout = 60s\n"
		"lost_timeout = 120s\n[nodes]\n",
		n->index, c->port[n->index], c->dir, n->index, c->dir, n->index);
	for (int i = 0; i < c->nr; i++)
		fprintf(f, "n%d = 127.0.0.1:%u\n", i, c->port[i]);
	CHECK(fclose(f) == 0);
	if (config_load_text(&n->conf, "bench", text, bytes, &e) != SHARD_OK)
		bench_fail("the configuration of a daemon: %s", e.text);
	free(text);
	log_init(&n->log, -1, n->conf.log_level, "n");
	n->log.sink = keep_quiet;
}

struct crowd *crowd_begin(struct daemons *d, int nodes, int alone)
{
	struct crowd *c = calloc(1, sizeof(*c));

	CHECK(c != NULL && nodes >= 1 && nodes <= DAEMONS_MAX);
	*d = (struct daemons){.nr = nodes};
	c->nr = nodes;
	c->alone = alone;
	bench_processors(1); /* The trainers, too. */
	snprintf(c->dir, sizeof(c->dir), "/tmp/shardd-bench.XXXXXX");
	if (mkdtemp(c->dir) == NULL)
		bench_fail("%s: %s", c->dir, strerror(errno));
	free_ports(c);
	pthread_barrier_init(&c->started, NULL, (unsigned)nodes + 1);
	for (int i = 0; i < nodes; i++) {
		c->node[i].crowd = c;
		c->node[i].index = i;
		snprintf(d->address[i], sizeof(d->address[i]), "unix:%s/%d.sock", c->dir, i);
		configure(c, &c->node[i]);
		CHECK(pthread_create(&c->node[i].thread, NULL, node_main, &c->node[i]) == 0);
	}
	pthread_barrier_wait(&c->started);
	return c;
}

void crowd_count(const struct crowd *c, int node, struct crowd_count *count)
{
	struct timespec ts;
	clockid_t clock;

	CHECK(pthread_getcpuclockid(c->node[node].thread, &clock) == 0 &&
	      clock_gettime(clock, &ts) == 0);
	*count = c->node[node].count;
	count->loop_ns = (uint64_t)ts.tv_sec * NS_PER_SEC + (uint64_t)ts.tv_nsec;
}

void crowd_end(struct crowd **cp)
{
	struct crowd *c = *cp;
	char command[96];

	*cp = NULL;
	/* The one that coordinates ends last, so that none of the others has to elect one. */
	for (int i = c->nr; i-- > 0;)
		uv_async_send(&c->node[i].stop);
	for (int i = 0; i < c->nr; i++)
		CHECK(pthread_join(c->node[i].thread, NULL) == 0);
	pthread_barrier_destroy(&c->started);
	bench_processors(-1);
	snprintf(command, sizeof(command), "rm -rf %s", c->dir);
	if (system(command) != 0)
		bench_fail("cannot remove %s", c->dir);
	free(c);
}
