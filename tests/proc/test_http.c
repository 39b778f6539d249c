// SPDX-License-Identifier: Apache-2.0
/* Tests a real daemon's HTTP: each path, unknown paths and requests that are not HTTP, many at a
 * time, slow readers while steps go on, right figures, and health that changes. Also tests the HTTP
 * thread alone beside a loop that is stuck. promtool checks the format where it is installed. */
#include "lib/ports.h"
#include "lib/proc.h"
#include "lib/tool.h"
#include "lib/trainer.h"
#include "lib/web.h"

#include "base/check.h"
#include "base/clock.h"
#include "config/config.h"
#include "lib/pace.h"
#include "obs/http.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define WAIT_S 10

/* --- a trainer --- */

static void train(struct trainer *t, int steps)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket ticket;

	for (int i = 0; i < steps; i++) {
		trainer_begin(t);
		trainer_push_all(t, 0.5f);
		EXPECT(SHARD_OK, shard_commit(t->model, &ticket));
		EXPECT(SHARD_OK, shard_result(t->model, ticket, pace_ms(10000), &r));
		assert_int_equal(r.outcome, SHARD_APPLIED);
		EXPECT(SHARD_OK, shard_world_get(t->model, &t->world));
	}
}

/* --- tests --- */

static void paths(void **state)
{
	struct web s;
	char *text;

	(void)state;
	web_serve(&s, 1);
	WEB_EXPECT(s.port[0], "GET", "/", "HTTP/1.1 200 ", "text/html; charset=utf-8",
		   "Content-Security-Policy: default-src 'none'", "<title>shardd");
	WEB_EXPECT(s.port[0], "GET", "/metrics", "HTTP/1.1 200 ", "text/plain; version=0.0.4",
		   "# TYPE shardd_build_info gauge\n");
	WEB_EXPECT(s.port[0], "GET", "/status", "HTTP/1.1 200 ", "application/json",
		   "{\"format\":1,\"node\":\"a\"");
	WEB_EXPECT(s.port[0], "GET", "/healthz", "HTTP/1.1 200 ", "\r\n\r\nok\n");
	WEB_EXPECT(s.port[0], "GET", "/metrics?x=1", "HTTP/1.1 200 ");
	WEB_EXPECT(s.port[0], "GET", "/no", "HTTP/1.1 404 ", "/healthz");
	WEB_EXPECT(s.port[0], "GET", "/metrics/", "HTTP/1.1 404 ");
	WEB_EXPECT(s.port[0], "POST", "/metrics", "HTTP/1.1 405 ", "Allow: GET, HEAD");
	WEB_EXPECT(s.port[0], "DELETE", "/", "HTTP/1.1 405 ");
	text = web_fetch(s.port[0], "HEAD", "/metrics");
	assert_non_null(strstr(text, "HTTP/1.1 200 "));
	assert_non_null(strstr(text, "Content-Length: "));
	assert_string_equal(web_body(text), "");
	free(text);
	cluster_stop(s.c);
}

static char *answer(uint16_t port, const char *headers)
{
	int fd = web_dial(port);
	char request[300];

	snprintf(request, sizeof(request),
		 "GET /status HTTP/1.1\r\n%s\r\nConnection: close\r\n\r\n", headers);
	web_say(fd, request);
	return web_hear(fd);
}

/* libmicrohttpd says 501 or 400, by its release. */
static void refused(uint16_t port, const char *headers)
{
	char *text = answer(port, headers);

	if (strncmp(text, "HTTP/1.1 501 ", 13) != 0 && strncmp(text, "HTTP/1.1 400 ", 13) != 0)
		fail_msg("%s is answered with\n%.600s", headers, text);
	free(text);
}

static void answered(uint16_t port, const char *headers, const char *part)
{
	char *text = answer(port, headers);

	if (strstr(text, part) == NULL)
		fail_msg("%s: no \"%s\" in\n%.600s", headers, part, text);
	free(text);
}

/* A foreign page in a browser on this machine may make its own name point here. */
static void hosts(void **state)
{
	char machine[200] = "", header[300];
	struct web s;

	(void)state;
	web_serve(&s, 1);
	answered(s.port[0], "Host: localhost", "HTTP/1.1 200 ");
	answered(s.port[0], "Host: LOCALHOST:29701", "HTTP/1.1 200 ");
	answered(s.port[0], "Host: 127.0.0.1:29701", "HTTP/1.1 200 ");
	answered(s.port[0], "Host: [::1]:29701", "HTTP/1.1 200 ");
	answered(s.port[0], "Host: 10.1.2.3", "HTTP/1.1 200 ");
	assert_int_equal(gethostname(machine, sizeof(machine) - 1), 0);
	snprintf(header, sizeof(header), "Host: %s:29701", machine);
	answered(s.port[0], header, "HTTP/1.1 200 ");
	snprintf(header, sizeof(header), "Host: %s.example", machine);
	answered(s.port[0], header, "HTTP/1.1 200 ");
	answered(s.port[0], "Host: evil.example", "HTTP/1.1 421 ");
	answered(s.port[0], "Host: localhost.evil.example", "HTTP/1.1 421 ");
	answered(s.port[0], "Host: 127.0.0.1.evil.example", "HTTP/1.1 421 ");
	answered(s.port[0], "Host: evil.example", "or by the host in [daemon] http");
	answered(s.port[0], "Host: ", "HTTP/1.1 421 ");
	refused(s.port[0], "Host: localhost\r\nTransfer-Encoding: xchunked");
	cluster_stop(s.c);
}

/* Sends a request from that address, which may be closed before it is sent. */
static char *from(const char *source, uint16_t port)
{
	static const char request[] =
		"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
	int fd = web_dial_from(source, port);

	(void)!send(fd, request, strlen(request), MSG_NOSIGNAL);
	return web_hear(fd);
}

/* 127.0.0.1 is answered always. The other addresses of this machine stand for other machines. */
static void allowed(void **state)
{
	static const struct {
		const char *source;
		bool answered;
	} rows[] = {{"127.0.0.1", true},
		    {"127.0.0.2", true},
		    {"127.0.0.3", false},
		    {"127.0.4.255", true},
		    {"127.0.5.0", false}};
	struct web s = {.c = cluster_make(1, NULL, NULL), .port = {ports_take()}};
	char address[32];

	(void)state;
	snprintf(address, sizeof(address), "0.0.0.0:%u", s.port[0]);
	setenv("SHARD_HTTP", address, 1);
	setenv("SHARD_HTTP_ALLOW", "127.0.0.2, 127.0.4.0/24, fd00::/8", 1);
	cluster_spawn(s.c, 0);
	unsetenv("SHARD_HTTP");
	unsetenv("SHARD_HTTP_ALLOW");
	cluster_ready(s.c, 0);
	for (size_t i = 0; i < NR(rows); i++) {
		char *text = from(rows[i].source, s.port[0]);

		if ((strstr(text, "HTTP/1.1 200 ") != NULL) != rows[i].answered ||
		    (text[0] != 0) != rows[i].answered)
			fail_msg("%s: \"%s\"", rows[i].source, text);
		free(text);
	}
	cluster_wait_log(s.c, 0, "event=http_refused from=127.0.0.3:", 1);
	cluster_wait_log(s.c, 0, "event=http_refused", 2);
	/* Nobody is warned that everybody is answered. */
	assert_int_equal(cluster_logged(s.c, 0, "event=unauthenticated http="), 0);
	cluster_stop(s.c);
}

static void base64(const char *hex, char out[64])
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	unsigned char bytes[33] = {0};
	char *to = out;

	for (int i = 0; i < 32; i++)
		assert_int_equal(sscanf(hex + (ptrdiff_t)2 * i, "%2hhx", &bytes[i]), 1);
	for (int i = 0; i < 33; i += 3) {
		uint32_t x = (uint32_t)bytes[i] << 16 | (uint32_t)bytes[i + 1] << 8 | bytes[i + 2];

		for (int k = 3; k >= 0; k--)
			*to++ = digits[x >> 6 * k & 63];
	}
	to[-1] = '=';
	*to = 0;
}

/* The policy allows the page's own script by its hash, and nothing else that might get into the
 * page. */
static void policy(void **state)
{
	char path[] = "/tmp/shard-script-XXXXXX", command[80], hex[80] = "", hash[64], want[100],
	     *text, *from, *to, *line;
	struct web s;
	FILE *f;
	int fd;

	(void)state;
	web_serve(&s, 1);
	text = web_fetch(s.port[0], "GET", "/");
	from = strstr(text, "<script>");
	assert_non_null(from);
	from += strlen("<script>");
	to = strstr(from, "</script>");
	assert_non_null(to);
	assert_null(strstr(to, "<script"));
	fd = mkstemp(path);
	assert_true(fd >= 0 && write(fd, from, (size_t)(to - from)) == to - from && close(fd) == 0);
	snprintf(command, sizeof(command), "sha256sum %s", path);
	f = popen(command, "r");
	assert_non_null(f);
	assert_non_null(fgets(hex, sizeof(hex), f));
	pclose(f);
	unlink(path);
	base64(hex, hash);
	snprintf(want, sizeof(want), "script-src 'sha256-%s';", hash);
	line = strstr(text, "Content-Security-Policy:");
	assert_non_null(line);
	if (strstr(line, want) == NULL)
		fail_msg("no %s in %.300s", want, line);
	free(text);
	cluster_stop(s.c);
}

static void garbage(void **state)
{
	static const char *const lines[] = {
		"\r\n\r\nx\r\n\r\n", "\x16\x03\x01\x02garbage \xff\xfe\r\n\r\n", "GET\r\n\r\n",
		"GET /metrics HTTP/9.9\r\n\r\n", "SHRD not a frame either\r\nx\r\n\r\n"};
	struct web s;
	char *large;

	(void)state;
	web_serve(&s, 1);
	for (size_t i = 0; i < NR(lines); i++) {
		int fd = web_dial(s.port[0]);
		char *text;

		web_say(fd, lines[i]);
		shutdown(fd, SHUT_WR);
		text = web_hear(fd); /* The answer is an error or empty, and the connection ends. */
		assert_null(strstr(text, " 200 "));
		free(text);
	}
	large = malloc(100001);
	assert_non_null(large);
	memset(large, 'a', 100000);
	memcpy(large, "GET /", 5);
	large[100000] = 0;
	for (int i = 0; i < 3; i++) {
		int fd = web_dial(s.port[0]);
		char *text;

		(void)!send(fd, large, 100000, MSG_NOSIGNAL);
		text = web_hear(fd);
		assert_null(strstr(text, " 200 "));
		free(text);
	}
	free(large);
	WEB_EXPECT(s.port[0], "GET", "/healthz", "HTTP/1.1 200 ");
	cluster_stop(s.c);
}

static void many(void **state)
{
	enum { MANY = 100 };
	struct web s;
	int fd[MANY];

	(void)state;
	web_serve(&s, 1);
	for (int i = 0; i < MANY; i++)
		fd[i] = web_dial(s.port[0]);
	for (int i = 0; i < MANY; i++)
		web_ask(fd[i], "GET", i % 2 ? "/metrics" : "/status");
	for (int i = MANY - 1; i >= 0; i--) {
		char *text = web_hear(fd[i]);

		assert_non_null(strstr(text, "HTTP/1.1 200 "));
		free(text);
	}
	cluster_stop(s.c);
}

/* One client reads a byte per step, one writes a byte per step, one never sends anything, and one
 * stops reading. */
static void slow_clients(void **state)
{
	static const char request[] =
		"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
	struct trainer t;
	struct web s;
	int reader, writer, silent, gone, little = 1;
	char *text, byte;
	uint64_t began;

	(void)state;
	web_serve(&s, 1);
	trainer_join(&t, s.c->node[0].unix_address, SHARD_F32, SHARD_F32);
	reader = web_dial(s.port[0]);
	setsockopt(reader, SOL_SOCKET, SO_RCVBUF, &little, sizeof(little));
	writer = web_dial(s.port[0]);
	silent = web_dial(s.port[0]);
	gone = web_dial(s.port[0]);
	web_ask(reader, "GET", "/metrics");
	web_ask(gone, "GET", "/");
	began = clock_ns();
	for (size_t i = 0; i < sizeof(request) - 1; i++) {
		train(&t, 1);
		assert_int_equal(recv(reader, &byte, 1, 0), 1);
		assert_int_equal(send(writer, &request[i], 1, MSG_NOSIGNAL), 1);
	}
	/* A step of this model takes a millisecond. */
	assert_true(clock_ns() - began < pace_ns(WAIT_S * NS_PER_SEC));
	assert_int_equal(t.world.step, sizeof(request));
	text = web_hear(reader);
	assert_non_null(strstr(text, "# TYPE process_resident_memory_bytes gauge\n"));
	free(text);
	text = web_hear(writer);
	assert_non_null(strstr(text, "HTTP/1.1 200 "));
	free(text);
	trainer_end(&t);
	cluster_stop(s.c); /* It stops with two connections open. */
	close(silent);
	close(gone);
}

static void figures(void **state)
{
	struct trainer t;
	struct web s;

	(void)state;
	web_serve(&s, 2);
	web_await(s.port[0], "/metrics", "shardd_link_up{peer=\"b\"} 1\n");
	trainer_join(&t, s.c->node[0].unix_address, SHARD_F32, SHARD_F32);
	train(&t, 7);
	web_await(s.port[0], "/metrics", "shardd_steps_applied_total{model=\"gpt\"} 7\n");
	web_await(s.port[0], "/metrics", "shardd_apply_seconds_count{model=\"gpt\"} 7\n");
	WEB_EXPECT(s.port[0], "GET", "/metrics", "shardd_step{model=\"gpt\"} 7\n",
		   "shardd_step_seconds_count{model=\"gpt\"} 7\n",
		   "shardd_wait_seconds_count{model=\"gpt\"} 7\n",
		   "shardd_reduce_seconds_bucket{model=\"gpt\",le=\"+Inf\"} 7\n",
		   "shardd_steps_skipped_total{model=\"gpt\",reason=\"nonfinite\"} 0\n",
		   "shardd_model_state{model=\"gpt\",state=\"training\"} 1\n",
		   "shardd_rank_lag_seconds{model=\"gpt\",rank=\"0\"} 0\n",
		   "shardd_waiting_for{model=\"gpt\",rank=\"0\"} ",
		   "shardd_waiting_chunks{model=\"gpt\",rank=\"0\"} ",
		   "shardd_rank_info{model=\"gpt\",rank=\"0\",node=\"a\",pid=\"",
		   "shardd_world_size{model=\"gpt\"} 1\n", "shardd_joined{model=\"gpt\"} 1\n",
		   "shardd_min_world{model=\"gpt\"} 1\n", "shardd_max_world{model=\"gpt\"} ",
		   "shardd_model_memory_bytes{model=\"gpt\",item=\"landing_slots\"} ",
		   "shardd_checkpoint_in_progress_bytes{model=\"gpt\"} 0\n",
		   "shardd_health{level=\"ok\"} ", "shardd_log_lines_total{level=\"error\"} 0\n",
		   "shardd_starts_total 1\n", "shardd_warm_starts_total ",
		   "shardd_connections_refused_total 0\n",
		   "shardd_model_chunks{model=\"gpt\",owner=\"b\"} ",
		   "shardd_connections{state=\"greeted\"} 1\n",
		   "shardd_peer_bytes_total{peer=\"b\",direction=\"out\"} ");
	/* Without ranks the node has steps and applies, and no waits. */
	web_await(s.port[1], "/metrics", "shardd_steps_applied_total{model=\"gpt\"} 7\n");
	WEB_EXPECT(s.port[1], "GET", "/metrics", "shardd_wait_seconds_count{model=\"gpt\"} 0\n");
	WEB_EXPECT(s.port[0], "GET", "/status", "\"last_step\":{", "\"outcome\":\"applied\"",
		   "\"step_s\":");
	trainer_end(&t);
	cluster_stop(s.c);
}

/* Trains one step of the model "mine", which only its owner may read. */
static void train_private(struct trainer *t, const char *address)
{
	struct shard_spec spec;

	trainer_spec(&spec, SHARD_F32, SHARD_F32);
	spec.name = "mine";
	spec.settings = "mode=0600";
	trainer_define_as(t, address, &spec);
	EXPECT(SHARD_OK, shard_join(t->model, -1, pace_ms(10000), &t->world));
	train(t, 1);
}

/* HTTP does not tell who asks, so a model that others may not read is left out unless the operator
 * wants it. */
static const char *owner_asks(const struct web *s)
{
	static char words[200];

	snprintf(words, sizeof(words), "status -a %s", s->c->node[0].unix_address);
	return words;
}

static void private_models(void **state)
{
	static const char want[] = "shardd_steps_applied_total{model=\"mine\"} 1\n";
	struct trainer t, open;
	struct web s;
	char *text;

	(void)state;
	web_serve(&s, 1);
	train_private(&t, s.c->node[0].unix_address);
	trainer_join(&open, s.c->node[0].unix_address, SHARD_F32, SHARD_F32);
	train(&open, 1);
	web_await(s.port[0], "/metrics", "shardd_steps_applied_total{model=\"gpt\"} 1\n");
	text = web_fetch(s.port[0], "GET", "/metrics");
	if (strstr(text, "mine"))
		fail_msg("a private model:\n%.300s", strstr(text, "mine"));
	free(text);
	WEB_EXPECT(s.port[0], "GET", "/status", "{\"name\":\"mine\",\"state\":\"private\"");
	web_await(s.port[0], "/metrics", "shardd_health{level=\"ok\"} 1\n");
	trainer_end(&t);
	/* Its owner is warned that the model waits for trainers, and others are not. */
	tool_expect(0, "\"mine\" waits at step 1", "shardctl", owner_asks(&s));
	train(&open, 1); /* What is answered with this step was written after that. */
	web_await(s.port[0], "/metrics", "shardd_steps_applied_total{model=\"gpt\"} 2\n");
	WEB_EXPECT(s.port[0], "GET", "/metrics", "shardd_health{level=\"ok\"} 1\n");
	web_await(s.port[0], "/healthz", "\r\n\r\nok\n");
	trainer_end(&open);
	web_await(s.port[0], "/metrics", "shardd_health{level=\"warn\"} 1\n");
	web_await(s.port[0], "/healthz", "warn: \"gpt\" waits at step 2");
	cluster_stop(s.c);
	setenv("SHARD_HTTP_PRIVATE_MODELS", "yes", 1);
	web_serve(&s, 1);
	unsetenv("SHARD_HTTP_PRIVATE_MODELS");
	train_private(&t, s.c->node[0].unix_address);
	web_await(s.port[0], "/metrics", want);
	text = web_fetch(s.port[0], "GET", "/status");
	assert_null(strstr(text, "\"state\":\"private\""));
	free(text);
	trainer_end(&t);
	cluster_stop(s.c);
}

static void promtool(void **state)
{
	struct trainer t;
	struct web s;
	char *text;
	FILE *p;

	(void)state;
	if (system("PATH=build/promtool:$PATH; command -v promtool >/dev/null 2>&1") != 0)
		skip();
	web_serve(&s, 2);
	trainer_join(&t, s.c->node[1].unix_address, SHARD_BF16, SHARD_BF16);
	train(&t, 3);
	web_await(s.port[1], "/metrics", "shardd_steps_applied_total{model=\"gpt\"} 3\n");
	text = web_fetch(s.port[1], "GET", "/metrics");
	p = popen("PATH=build/promtool:$PATH; promtool check metrics 1>&2", "w");
	assert_non_null(p);
	fputs(web_body(text), p);
	if (pclose(p) != 0)
		fail_msg("promtool refuses\n%s", web_body(text));
	free(text);
	trainer_end(&t);
	cluster_stop(s.c);
}

static void health(void **state)
{
	struct web s;

	(void)state;
	web_serve(&s, 2);
	web_await(s.port[0], "/healthz", "HTTP/1.1 200 ");
	cluster_signal(s.c, 1, SIGKILL);
	(void)cluster_wait(s.c, 1, 10000);
	web_await(s.port[0], "/healthz", "HTTP/1.1 503 ");
	WEB_EXPECT(s.port[0], "GET", "/healthz", "\r\n\r\nill: node b is down: ");
	/* Other nodes are no reason to start this one again, or to send trainers away from it. */
	WEB_EXPECT(s.port[0], "GET", "/livez", "HTTP/1.1 200 ", "\r\n\r\nok\n");
	WEB_EXPECT(s.port[0], "GET", "/readyz", "HTTP/1.1 200 ", "\r\n\r\nok\n");
	web_await(s.port[0], "/metrics", "shardd_link_downs_total{peer=\"b\"} 1\n");
	cluster_spawn(s.c, 1);
	cluster_ready(s.c, 1);
	web_await(s.port[0], "/healthz", "\r\n\r\nok\n");
	cluster_stop(s.c);
}

/* --- the thread alone, beside a loop that the test runs or does not run --- */

static void render(void *arg, struct http_snapshot *s)
{
	++*(int *)arg;
	s->metrics = strdup("m 1\n");
	s->status = strdup("{}");
	s->events = strdup("[]");
	s->samples = strdup("{}");
	s->health = strdup("");
}

static void closed(void *arg)
{
	*(bool *)arg = true;
}

static void stuck_loop(void **state)
{
	struct config *config = calloc(1, sizeof(*config));
	struct http_conf conf = {.config = config, .stall_ns = NS_PER_SEC, .render = render};
	struct http *h, *second;
	int renders = 0;
	bool ended = false;
	struct err e;
	char *text, who[100];
	uv_loop_t loop;
	uint64_t began;

	(void)state;
	assert_int_equal(conn_address_parse(&config->http, "127.0.0.1:0", &e), SHARD_OK);
	assert_int_equal(uv_loop_init(&loop), 0);
	conf.loop = &loop;
	conf.arg = &renders;
	assert_int_equal(http_open(&h, &conf, &e), SHARD_OK);
	/* It waits a second for the loop. */
	WEB_EXPECT(http_port(h), "GET", "/metrics", "HTTP/1.1 503 ",
		   "the loop has not answered for 1.");
	began = clock_ns();
	WEB_EXPECT(http_port(h), "GET", "/healthz", "HTTP/1.1 503 ",
		   "the loop has not answered for ");
	WEB_EXPECT(http_port(h), "GET", "/", "HTTP/1.1 200 ");
	/* These paths do not wait for the loop. */
	assert_true(clock_ns() - began < pace_ns(NS_PER_SEC));
	while (renders == 0)
		uv_run(&loop, UV_RUN_ONCE);
	text = web_fetch(http_port(h), "GET", "/metrics");
	assert_string_equal(web_body(text), "m 1\n");
	free(text);
	for (int i = 0; i < 5; i++)
		WEB_EXPECT(http_port(h), "GET", "/healthz", "HTTP/1.1 200 ", "\r\n\r\nok\n");
	assert_int_equal(renders, 1); /* There is one per second. */

	snprintf(config->http.text, sizeof(config->http.text), "127.0.0.1:%u", http_port(h));
	config->http.port = http_port(h);
	assert_int_equal(http_open(&second, &conf, &e), SHARD_SYSTEM);
	assert_null(second);
	snprintf(who, sizeof(who), "Address already in use by pid %d (test_http): choose another",
		 (int)getpid());
	assert_non_null(strstr(e.text, who));
	http_close(&h, closed, &ended);
	assert_null(h);
	uv_run(&loop, UV_RUN_DEFAULT);
	assert_true(ended);
	assert_int_equal(uv_loop_close(&loop), 0);
	free(config);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(paths),          cmocka_unit_test(hosts),
		cmocka_unit_test(allowed),        cmocka_unit_test(policy),
		cmocka_unit_test(garbage),        cmocka_unit_test(many),
		cmocka_unit_test(slow_clients),   cmocka_unit_test(figures),
		cmocka_unit_test(private_models), cmocka_unit_test(promtool),
		cmocka_unit_test(health),         cmocka_unit_test(stuck_loop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
