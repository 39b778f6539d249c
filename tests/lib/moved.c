/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of moved.h. What goes wrong is a failure of the test, with the node's words. */
#include "lib/moved.h"

#include "base/clock.h"
#include "lib/pace.h"
#include "lib/tool.h"
#include "lib/web.h"

#include <arpa/inet.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

void moved_begin(struct cluster **c, struct crew **crew, const struct moved_plan *p)
{
	*crew = test_calloc(1, sizeof(**crew));
	crew_init(*crew, "moved");
	(*crew)->extra = p->extra;
	if (p->scale > 1)
		crew_larger(*crew, p->scale);
	if (p->own)
		crew_own_types(*crew);
	(*crew)->pause_us = p->pause_us != 0 ? p->pause_us : 5000;
	*c = cluster_make(p->nodes, NULL, p->conf);
	if (p->between)
		cluster_between(*c);
	if (p->warm)
		cluster_warm(*c, CLUSTER_TMPFS);
	if (p->http_port != NULL)
		web_spawn_all(*c, p->http_port);
	else
		cluster_up(*c);
	for (int n = 0; n < p->nodes && strstr(p->conf, "membership = quorum") != NULL; n++)
		moved_elected(*c, n);
	for (int i = 0; i < 2; i++)
		crew_add(*crew, (*c)->node[0].unix_address, 0)->reconnects = p->reconnects;
	crew_start(*crew, UINT64_MAX);
	crew_wait_step(*crew, crew_step(*crew) + 5);
}

char *moved_said(struct cluster *c, int node, const char *what, int *rc)
{
	char words[600], *out = NULL;

	snprintf(words, sizeof(words), "%s --address %s", what, c->node[node].unix_address);
	*rc = tool_run(&out, "shardctl", words);
	return out;
}

int moved_ctl(struct cluster *c, int node, const char *what)
{
	int rc;
	char *out = moved_said(c, node, what, &rc);

	if (rc != 0)
		fprintf(stderr, "shardctl %s at %c: %d: %s\n", what, 'a' + node, rc, out);
	free(out);
	return rc;
}

void moved_elected(struct cluster *c, int node)
{
	uint64_t until = pace_by(20);
	int rc = 1;

	while (rc != 0) {
		free(moved_said(c, node, "rebalance --dry-run", &rc));
		if (clock_ns() > until)
			fail_msg("node %c hears of no coordinator", 'a' + node);
		usleep(10000);
	}
}

long long moved_held(struct cluster *c, int at, int node)
{
	json_t *status, *m;
	json_error_t e;
	long long nr;
	int rc;
	char *out = moved_said(c, at, MOVED_STATUS, &rc);

	if (rc > 1) /* 1: something is ill. */
		fail_msg("status at %c: %d: %s", 'a' + at, rc, out);
	if ((status = json_loads(out, 0, &e)) == NULL)
		fail_msg("%s", out);
	m = json_array_get(json_object_get(status, "models"), 0);
	nr = json_integer_value(
		json_object_get(json_object_get(json_object_get(m, "chunks"), "per_node"),
				(char[]){(char)('a' + node), 0}));
	json_decref(status);
	free(out);
	return nr;
}

void moved_wait(struct cluster *c, int at, int node, long long from, long long to)
{
	uint64_t until = pace_by(30);
	long long nr;

	while ((nr = moved_held(c, at, node)) < from || nr > to) {
		if (clock_ns() > until)
			fail_msg("node %c has %lld chunks by node %c, not %lld to %lld", 'a' + node,
				 nr, 'a' + at, from, to);
		usleep(20000);
	}
}

static long number(const char *json, const char *key)
{
	const char *at = strstr(json, key);

	return at != NULL ? strtol(at + strlen(key), NULL, 10) : -1;
}

void moved_copied(struct cluster *c, int at)
{
	uint64_t until = pace_by(30);
	bool there = false;
	int rc;

	while (!there) {
		char *out = moved_said(c, at, MOVED_STATUS, &rc);

		there = rc <= 1 && number(out, "\"copies\":") > 1 &&
			number(out, "\"least\":") == number(out, "\"copies\":") &&
			strstr(out, "\"moving\":") == NULL;
		if (clock_ns() > until)
			fail_msg("chunks have too few copies by node %c: %s", 'a' + at, out);
		free(out);
		usleep(10000);
	}
}

char *moved_http(uint16_t port, const char *path)
{
	struct sockaddr_in in = {.sin_family = AF_INET,
				 .sin_port = htons(port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	static char text[1 << 20];
	size_t used = 0;
	char ask[200];
	ssize_t n;

	n = snprintf(ask, sizeof(ask),
		     "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
	assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof(in)), 0);
	assert_int_equal(send(fd, ask, (size_t)n, MSG_NOSIGNAL), n);
	while ((n = recv(fd, text + used, sizeof(text) - 1 - used, 0)) > 0)
		used += (size_t)n;
	close(fd);
	text[used] = 0;
	return text;
}

double moved_metric(uint16_t port, const char *name, const char *more)
{
	const char *text = moved_http(port, "/metrics"), *found;
	char line[200];

	snprintf(line, sizeof(line), "\n%s{model=\"moved\"%s} ", name, more);
	found = strstr(text, line);
	return found != NULL ? strtod(found + strlen(line), NULL) : -1;
}

void moved_wait_metric(uint16_t port, const char *name, const char *more, double least, double most)
{
	uint64_t until = pace_by(30);
	double is;

	while ((is = moved_metric(port, name, more)) < least || is > most) {
		if (clock_ns() > until)
			fail_msg("%s%s at port %u is %g, not %g to %g", name, more, port, is, least,
				 most);
		usleep(50000);
	}
}

void moved_ends(struct cluster **c, struct crew **crew, bool copied)
{
	uint64_t last;

	if (copied)
		assert_int_equal(moved_ctl(*c, 0, "verify moved"), 0);
	last = crew_finish(*crew);
	for (int n = 0; n < (*c)->nodes_nr; n++) {
		if ((*c)->node[n].pid == 0)
			continue;
		crew_check(*crew, (*c)->node[n].unix_address, last);
		assert_int_equal(cluster_logged(*c, n, "event=lost"), 0);
	}
	for (int n = 0; n < (*c)->nodes_nr; n++)
		assert_int_equal(cluster_logged(*c, n, "event=check_failed"), 0);
	cluster_done(c);
	test_free(*crew);
	*crew = NULL;
}
