// SPDX-License-Identifier: Apache-2.0
/* Daemons as threads. Tests call it. The thread of a node owns the node's loop and server from
 * start to stop. Other threads reach the node by its sockets and by uv_async_send(), and they read
 * its log under the lock. Every failure fails the test. */
#include "lib/inproc.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/logfmt.h"
#include "lib/pace.h"
#include "lib/ports.h"
#include "lib/proc.h"
#include "lib/rawpeer.h"
#include "lib/rmtree.h"
#include "link/enrol.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define WAIT_S 10

static void keep_line(void *arg, enum log_level level, const char *line)
{
	struct inproc_node *n = arg;
	size_t bytes = strlen(line);

	(void)level;
	pthread_mutex_lock(&n->lock);
	if (n->lines_bytes + bytes + 2 > n->lines_room) {
		n->lines_room = 2 * (n->lines_room + bytes) + 4096;
		n->lines = realloc(n->lines, n->lines_room);
		CHECK(n->lines != NULL);
	}
	memcpy(n->lines + n->lines_bytes, line, bytes);
	memcpy(n->lines + n->lines_bytes + bytes, "\n", 2);
	n->lines_bytes += bytes + 1;
	pthread_cond_broadcast(&n->changed);
	pthread_mutex_unlock(&n->lock);
}

static uint32_t count_lines(const struct inproc_node *n, const char *part)
{
	uint32_t nr = 0;

	for (const char *at = n->lines; at != NULL && (at = strstr(at, part)) != NULL; nr++) {
		at = strchr(at, '\n');
	}
	return nr;
}

uint32_t inproc_logged(struct inproc_node *n, const char *part)
{
	uint32_t nr;

	pthread_mutex_lock(&n->lock);
	nr = count_lines(n, part);
	pthread_mutex_unlock(&n->lock);
	return nr;
}

void inproc_wait_log(struct inproc_node *n, const char *part, uint32_t times)
{
	struct timespec until;
	uint32_t nr;
	int rc = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += (time_t)(pace_ns(WAIT_S * NS_PER_SEC) / NS_PER_SEC);
	pthread_mutex_lock(&n->lock);
	while ((nr = count_lines(n, part)) < times && rc == 0)
		rc = pthread_cond_timedwait(&n->changed, &n->lock, &until);
	pthread_mutex_unlock(&n->lock);
	if (nr < times)
		fail_msg("node %s logged \"%s\" %u times, not %u:\n%s", n->name, part, nr, times,
			 n->lines != NULL ? n->lines : "");
}

/* --- one node's thread --- */

static void on_wake_closed(uv_handle_t *h)
{
	(void)h;
}

static void on_stopped(void *arg)
{
	struct inproc_node *n = arg;

	uv_close((uv_handle_t *)&n->wake, on_wake_closed);
}

static void on_wake(uv_async_t *a)
{
	struct inproc_node *n = a->data;

	if (n->stopping)
		return;
	n->stopping = true;
	server_stop(n->server, "the test ends", on_stopped, n);
}

static void decided(struct inproc_node *n, enum shard_status st)
{
	pthread_mutex_lock(&n->lock);
	n->decided = true;
	n->ok = st == SHARD_OK;
	pthread_cond_broadcast(&n->changed);
	pthread_mutex_unlock(&n->lock);
}

static void *run(void *arg)
{
	struct inproc_node *n = arg;
	enum shard_status st;

	CHECK(uv_loop_init(&n->loop) == 0);
	st = server_init(&n->server, &n->conf, &n->log, &n->loop, &n->why);
	if (st == SHARD_OK) {
		CHECK(uv_async_init(&n->loop, &n->wake, on_wake) == 0);
		n->wake.data = n;
	}
	decided(n, st);
	uv_run(&n->loop, UV_RUN_DEFAULT);
	server_free(&n->server);
	CHECK(uv_loop_close(&n->loop) == 0);
	return NULL;
}

/* As a daemon does before it starts, but nothing is kept: a node that starts again asks again. */
static enum shard_status join(struct inproc_node *n)
{
	static char list[CONFIG_CLUSTER_BYTES];
	char path[128];
	struct config_args args = {.file = path, .cluster = list};
	enum shard_status st;
	uv_loop_t loop;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s.conf", n->cluster->dir, n->name);
	f = fopen(path, "we");
	CHECK(f != NULL && fputs(n->text, f) >= 0 && fclose(f) == 0);
	CHECK(uv_loop_init(&loop) == 0);
	st = enrol(&n->conf, &n->log, &loop, list, &n->why);
	CHECK(uv_loop_close(&loop) == 0);
	config_free(&n->conf);
	return st == SHARD_OK ? config_load(&n->conf, &args, &n->why) : st;
}

enum shard_status inproc_node_start(struct inproc_node *n)
{
	enum shard_status st =
		config_load_text(&n->conf, n->name, n->text, strlen(n->text), &n->why);

	CHECK(!n->running);
	if (st != SHARD_OK)
		return st;
	log_init(&n->log, -1, n->conf.log_level, n->name);
	n->log.sink = keep_line;
	n->log.sink_arg = n;
	if (n->conf.joins && (st = join(n)) != SHARD_OK)
		return st;
	n->decided = n->stopping = false;
	CHECK(pthread_create(&n->thread, NULL, run, n) == 0);
	pthread_mutex_lock(&n->lock);
	while (!n->decided)
		pthread_cond_wait(&n->changed, &n->lock);
	pthread_mutex_unlock(&n->lock);
	if (n->ok) {
		n->running = true;
		return SHARD_OK;
	}
	pthread_join(n->thread, NULL);
	config_free(&n->conf);
	return n->why.status;
}

void inproc_node_stop(struct inproc_node *n)
{
	if (!n->running)
		return;
	CHECK(uv_async_send(&n->wake) == 0);
	pthread_join(n->thread, NULL);
	config_free(&n->conf);
	n->running = false;
}

/* --- all of them --- */

static void write_text(struct inproc *c, struct inproc_node *n, const struct inproc_conf *conf)
{
	size_t bytes;
	FILE *f;

	free(n->text);
	f = open_memstream(&n->text, &bytes);
	CHECK(f != NULL);
	fprintf(f,
		"[daemon]\nnode = %s\nlisten = 127.0.0.1:%u\nsocket = %s\nstate = "
		"%s/state-%s\n",
		n->name, n->port, n->socket, c->dir, n->name);
	if (conf->daemon == NULL || strstr(conf->daemon, "http = ") == NULL)
		fprintf(f, "http = off\n");
	if (conf->daemon == NULL || strstr(conf->daemon, "memory = ") == NULL)
		fprintf(f, "memory = 256MiB\n");
	if (conf->daemon == NULL || strstr(conf->daemon, "checkpoint_roots") == NULL)
		fprintf(f, "checkpoint_roots = /tmp\n");
	if (conf->daemon == NULL || strstr(conf->daemon, "warm_restart") == NULL)
		fprintf(f, "warm_restart = off\n");
	if ((conf->daemon == NULL || strstr(conf->daemon, "allow_unauthenticated") == NULL) &&
	    (conf->cluster == NULL || strstr(conf->cluster, "secret") == NULL))
		fprintf(f, "allow_unauthenticated = yes\n");
	fprintf(f,
		"workers = 2\nhuge_pages = no\n%s\n[net]\n%s\n[cluster]\nrun_id = "
		"test\n%s\n[nodes]\n",
		conf->daemon ? conf->daemon : "", conf->net ? conf->net : "",
		conf->cluster ? conf->cluster : "");
	for (uint32_t i = 0; i < c->nodes; i++)
		fprintf(f, "%s = %s:%u\n", c->node[i].name,
			conf->host_in_nodes[i] ? conf->host_in_nodes[i] : "127.0.0.1",
			c->node[i].port);
	fprintf(f, "%s\n", conf->tail ? conf->tail : "");
	if (conf->cluster == NULL || strstr(conf->cluster, "lost_timeout") == NULL)
		proc_lost_timeout(f, conf->cluster);
	if (c->nodes > 1)
		proc_one_copy(f, conf->tail, NULL);
	if (c->nodes > 2)
		proc_first_leads(f, conf->cluster);
	CHECK(fclose(f) == 0);
}

void inproc_prepare(struct inproc *c, const struct inproc_conf *conf)
{
	static const struct inproc_conf none = {.nodes = 2};

	if (conf == NULL)
		conf = &none;
	memset(c, 0, sizeof(*c));
	c->nodes = conf->nodes ? conf->nodes : 2;
	CHECK(c->nodes <= INPROC_NODES_MAX);
	snprintf(c->dir, sizeof(c->dir), "/tmp/shardd-test.XXXXXX");
	CHECK(mkdtemp(c->dir) != NULL);
	for (uint32_t i = 0; i < c->nodes; i++) {
		struct inproc_node *n = &c->node[i];

		n->cluster = c;
		snprintf(n->name, sizeof(n->name), "%c", (char)('a' + i));
		n->port = conf->port[i] ? conf->port[i] : ports_take();
		snprintf(n->socket, sizeof(n->socket), "%s/%s.sock", c->dir, n->name);
		snprintf(n->unix_address, sizeof(n->unix_address), "unix:%s", n->socket);
		snprintf(n->tcp_address, sizeof(n->tcp_address), "tcp://127.0.0.1:%u", n->port);
		pthread_mutex_init(&n->lock, NULL);
		pthread_cond_init(&n->changed, NULL);
	}
	for (uint32_t i = 0; i < c->nodes; i++)
		write_text(c, &c->node[i], conf);
}

void inproc_start(struct inproc *c, const struct inproc_conf *conf)
{
	inproc_prepare(c, conf);
	for (uint32_t i = 0; i < c->nodes; i++)
		if (inproc_node_start(&c->node[i]) != SHARD_OK)
			fail_msg("node %s does not start: %s", c->node[i].name,
				 c->node[i].why.text);
}

void inproc_stop(struct inproc *c)
{
	for (uint32_t i = c->nodes; i-- > 0;)
		inproc_node_stop(&c->node[i]);
	for (uint32_t i = 0; i < c->nodes; i++) {
		if (c->node[i].lines != NULL)
			logfmt_check(c->node[i].lines, c->node[i].name);
		free(c->node[i].lines);
		free(c->node[i].text);
		pthread_mutex_destroy(&c->node[i].lock);
		pthread_cond_destroy(&c->node[i].changed);
	}
	rmtree(c->dir);
}

/* --- what a tool sees --- */

json_t *inproc_status(struct inproc_node *n)
{
	struct raw r;
	json_error_t why;
	json_t *o;
	char *text;

	raw_connect(&r, n->unix_address);
	raw_hello(&r, ROLE_CTL);
	text = raw_status(&r);
	raw_close(&r);
	o = json_loads(text, 0, &why);
	if (o == NULL)
		fail_msg("status is no JSON: %s: %s", why.text, text);
	free(text);
	return o;
}

int64_t inproc_count(struct inproc_node *n, const char *key)
{
	json_t *o = inproc_status(n), *v = json_object_get(o, key);
	int64_t nr;

	if (!json_is_integer(v))
		fail_msg("no number \"%s\" in the status", key);
	nr = json_integer_value(v);
	json_decref(o);
	return nr;
}
