// SPDX-License-Identifier: Apache-2.0
/* Tests that what does not fit together is refused with a sentence that names the thing, both
 * values and what to do. It tries definitions against the model that exists, nodes against each
 * other, addresses in use, options and lines of a configuration, and pushes. */
#include "base/check.h"
#include "lib/inproc.h"
#include "lib/pace.h"
#include "lib/rawpeer.h"
#include "lib/trainer.h"
#include "shard.pb-c.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* --- definitions --- */

static void other(const char *address, const struct shard_spec *s, enum shard_status st,
		  const char *a, const char *b)
{
	struct trainer t;

	trainer_connect(&t, address);
	EXPECT(st, shard_define(t.client, s, &t.model, &t.created));
	EXPECT_TEXT(a);
	EXPECT_TEXT(b);
	trainer_end(&t);
}

static void test_definitions(void **state)
{
	struct shard_tensor tensors[TRAINER_TENSORS + 1];
	struct shard_group groups[2] = {{"matrices", ""}, {"norms", "weight_decay=0"}};
	struct inproc c;
	struct trainer t;
	struct shard_spec s;

	(void)state;
	inproc_start(&c, NULL);
	trainer_define(&t, c.node[1].unix_address, SHARD_BF16, SHARD_BF16);
	for (uint32_t n = 0; n < 2; n++) { /* At the coordinator and at the other node. */
		const char *at = c.node[n].unix_address;

		trainer_spec(&s, SHARD_BF16, SHARD_BF16);
		memcpy(tensors, s.tensors, sizeof(tensors[0]) * TRAINER_TENSORS);
		s.tensors = tensors;
		tensors[2].shape[1] = 51;
		other(at, &s, SHARD_MISMATCH, "tensor \"h.0.attn.weight\": shape [50, 51] here",
		      "[50, 50] in \"gpt\" as it was defined: choose another name, or drop that "
		      "model (`shardctl model drop`)");
		tensors[2].shape[1] = 50;
		tensors[1].name = "h.0.ln_2.weight";
		other(at, &s, SHARD_MISMATCH, "tensor 1: name \"h.0.ln_2.weight\" here",
		      "\"h.0.ln_1.weight\" in \"gpt\"");
		tensors[1].name = "h.0.ln_1.weight";
		tensors[3].flags = SHARD_FROZEN;
		other(at, &s, SHARD_MISMATCH, "tensor \"ln_f.weight\": flags 0x1 here",
		      "0x0 in \"gpt\"");
		tensors[3].flags = 0;
		tensors[TRAINER_TENSORS] =
			(struct shard_tensor){.name = "more", .ndim = 1, .shape = {3}};
		s.tensors_nr = TRAINER_TENSORS + 1;
		other(at, &s, SHARD_MISMATCH, "5 tensors here", "4 in \"gpt\"");
		s.tensors_nr = TRAINER_TENSORS;
		s.grad = SHARD_F16;
		other(at, &s, SHARD_MISMATCH, "gradients fp16 and image bf16 here",
		      "bf16 and bf16 in \"gpt\"");
		s.grad = SHARD_BF16;
		s.image = SHARD_F32;
		other(at, &s, SHARD_MISMATCH, "image fp32 here", "bf16 and bf16 in \"gpt\"");
		s.image = SHARD_BF16;
		s.settings = "optimizer=sgd lr=2";
		other(at, &s, SHARD_MISMATCH, "lr", "2 here");
		EXPECT_TEXT("1 in \"gpt\" as it was defined: define it as it was and change it "
			    "by `shardctl model set gpt lr`, or save it, ");
		s.settings = "optimizer=lion lr=1";
		other(at, &s, SHARD_MISMATCH, "optimizer", "lion here");
		s.settings = "optimizer=sgd lr=1 min_world=2";
		other(at, &s, SHARD_MISMATCH, "setting min_world: 2 here, 1 in \"gpt\"",
		      ": define it as it was, or save it, drop it and define it anew with "
		      "restore_at_start, or choose another name");
		s.settings = "optimizer=sgd lr=1 max_world=8";
		other(at, &s, SHARD_MISMATCH, "setting max_world: 8 here, 256 in \"gpt\"", "");
		s.settings = "optimizer=sgd lr=1 lr=2";
		other(at, &s, SHARD_BAD_ARG, "lr", "");
		s.settings = "optimizer=sgd betas=0.9,0.99";
		other(at, &s, SHARD_BAD_ARG, "optimizer sgd has no such key", "momentum");
		s.settings = "optimizer=sgd lr=1";
		s.groups = groups;
		s.groups_nr = 2;
		tensors[1].group = 1;
		other(at, &s, SHARD_MISMATCH, "tensor \"h.0.ln_1.weight\": group 1 here",
		      "0 in \"gpt\"");
	}
	trainer_end(&t);
	inproc_stop(&c);
}

/* Who does not say how many may train takes what the model has, and any number may train in a model
 * of which nobody has said it. */
static void test_worlds(void **state)
{
	struct inproc_conf conf = {.nodes = 1};
	struct trainer first, t;
	struct shard_spec s;
	struct inproc c;

	(void)state;
	inproc_start(&c, &conf);
	trainer_spec(&s, SHARD_BF16, SHARD_BF16);
	s.settings = "optimizer=sgd lr=1 max_world=4 local_world=2";
	trainer_connect(&first, c.node[0].unix_address);
	EXPECT(SHARD_OK, shard_define(first.client, &s, &first.model, &first.created));
	s.settings = "optimizer=sgd lr=1";
	trainer_connect(&t, c.node[0].unix_address);
	EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
	trainer_end(&t);
	other(c.node[0].unix_address,
	      &(struct shard_spec){.size = s.size,
				   .name = s.name,
				   .tensors = s.tensors,
				   .tensors_nr = s.tensors_nr,
				   .grad = s.grad,
				   .image = s.image,
				   .settings = "optimizer=sgd lr=1 local_world=3"},
	      SHARD_MISMATCH, "setting local_world: 3 here, 2 in \"gpt\"", "");
	trainer_end(&first);
	inproc_stop(&c);
}

static void test_budget(void **state)
{
	struct shard_tensor tensor = {.name = "big", .ndim = 2, .shape = {1 << 14, 1 << 13}};
	struct shard_spec s;
	struct inproc c;

	(void)state;
	inproc_start(&c, NULL);
	trainer_spec(&s, SHARD_BF16, SHARD_BF16);
	s.tensors = &tensor;
	s.tensors_nr = 1;
	for (uint32_t n = 0; n < 2; n++) {
		other(c.node[n].unix_address, &s, SHARD_BUDGET, "\"gpt\" needs ", "GiB are free");
		EXPECT_TEXT("on node a (state ");
		EXPECT_TEXT("image ");
		EXPECT_TEXT("arenas ");
	}
	inproc_stop(&c);
}

/* --- nodes --- */

static void swap_text(struct inproc_node *n, const char *what, const char *with)
{
	char *at = strstr(n->text, what), *made = malloc(strlen(n->text) + strlen(with) + 1);

	CHECK(at != NULL && made != NULL);
	sprintf(made, "%.*s%s%s", (int)(at - n->text), n->text, with, at + strlen(what));
	free(n->text);
	n->text = made;
}

/* Node a refuses node b, in which one thing differs. Both say why, and so does a request that needs
 * both nodes. */
static void odd_node(const char *what, const char *with, const char *part)
{
	struct inproc_conf conf = {.cluster = "heartbeat_timeout = 600ms\nlost_timeout = 60s\n"
					      "step_timeout = 20s",
				   .net = "connections = 1"};
	struct shard_spec s;
	struct inproc c;

	inproc_prepare(&c, &conf);
	swap_text(&c.node[1], what, with);
	for (uint32_t i = 0; i < 2; i++)
		if (inproc_node_start(&c.node[i]) != SHARD_OK)
			fail_msg("%s", c.node[i].why.text);
	inproc_wait_log(&c.node[1], part, 1);
	inproc_wait_log(&c.node[0], part, 1);
	assert_int_equal(inproc_logged(&c.node[0], "event=link_up"), 0);
	trainer_spec(&s, SHARD_BF16, SHARD_BF16);
	/* Node a does not know who comes from another cluster. */
	other(c.node[0].unix_address, &s, SHARD_UNREACHABLE,
	      "needs every node, and node b (127.0.0.1:",
	      strcmp(what, "run_id = test") ? part : "");
	other(c.node[1].unix_address, &s, SHARD_UNREACHABLE, "which coordinates and is down", part);
	inproc_stop(&c);
}

static void test_nodes(void **state)
{
	(void)state;
	odd_node("step_timeout = 20s", "step_timeout = 21s",
		 "cluster.step_timeout is 20s on node a, 21s on node b: it must be equal on all "
		 "nodes");
	odd_node("connections = 1", "connections = 2",
		 "net.connections is 1 on node a, 2 on node b");
	odd_node("connections = 1", "body_checksum = no",
		 "net.body_checksum is yes on node a, no on node b");
	odd_node("run_id = test", "run_id = other", "another cluster");
}

/* Without checksums between nodes, trainers keep theirs. */
static void test_no_sums(void **state)
{
	struct inproc_conf conf = {.net = "body_checksum = no"};
	struct inproc c;

	(void)state;
	inproc_start(&c, &conf);
	for (uint32_t n = 0; n < 2; n++) {
		struct trainer t;

		trainer_define(&t, n ? c.node[n].tcp_address : c.node[n].unix_address, SHARD_BF16,
			       SHARD_BF16);
		assert_int_equal(t.created, n == 0);
		trainer_end(&t);
	}
	inproc_stop(&c);
}

/* The addresses are exchanged, so a is found where b is expected. */
static void test_names(void **state)
{
	struct inproc_conf conf = {.nodes = 3, .cluster = "heartbeat_timeout = 600ms"};
	char line[2][64], with[2][64];
	struct inproc c;

	(void)state;
	inproc_prepare(&c, &conf);
	for (int i = 0; i < 2; i++) {
		snprintf(line[i], sizeof(line[i]), "%s = 127.0.0.1:%u", c.node[i].name,
			 c.node[i].port);
		snprintf(with[i], sizeof(with[i]), "%s = 127.0.0.1:%u", c.node[!i].name,
			 c.node[i].port);
	}
	swap_text(&c.node[2], line[0], with[0]);
	swap_text(&c.node[2], line[1], with[1]);
	for (uint32_t i = 0; i < 3; i++)
		if (inproc_node_start(&c.node[i]) != SHARD_OK)
			fail_msg("%s", c.node[i].why.text);
	inproc_wait_log(&c.node[2], "nodes[0] is ", 1);
	inproc_stop(&c);
}

static void test_trainer_hello(void **state)
{
	struct wire_head h = {.op = OP_HELLO};
	Shard__Hello hello = SHARD__HELLO__INIT;
	struct inproc c;
	char *why;

	(void)state;
	inproc_start(&c, NULL);
	hello.release = (char *)(uintptr_t) "9.9";
	for (int i = 0; i < 3; i++) {
		struct raw r;

		hello.wire_min = hello.wire_max = i == 0 ? 2 : 1;
		hello.role = i == 2 ? 9 : ROLE_TRAINER;
		hello.run_id = (char *)(uintptr_t)(i == 1 ? "other" : "");
		raw_connect(&r, i % 2 ? c.node[0].unix_address : c.node[0].tcp_address);
		raw_send(&r, &h, &hello.base);
		why = raw_error(&r);
		assert_non_null(why);
		assert_non_null(
			strstr(why, i == 0 ? "speaks wire version 1, the peer (release 9.9) 2 to 2"
				    : i == 1 ? "run_id is \"test\" on node a, \"other\" at the peer"
					     : "role 9"));
		raw_close(&r);
	}
	inproc_stop(&c);
}

/* --- addresses --- */

static void test_in_use(void **state)
{
	struct inproc_conf conf = {.nodes = 1};
	struct inproc first, second;
	char line[200], with[200];

	(void)state;
	inproc_start(&first, &conf);
	conf.port[0] = first.node[0].port;
	inproc_prepare(&second, &conf);
	assert_int_equal(inproc_node_start(&second.node[0]), SHARD_EXISTS);
	snprintf(line, sizeof(line), "127.0.0.1:%u", first.node[0].port);
	assert_non_null(strstr(second.node[0].why.text, line));
	assert_non_null(strstr(second.node[0].why.text, "in use"));
	inproc_stop(&second);
	conf.port[0] = 0;
	inproc_prepare(&second, &conf);
	snprintf(line, sizeof(line), "socket = %s", second.node[0].socket);
	snprintf(with, sizeof(with), "socket = %s", first.node[0].socket);
	swap_text(&second.node[0], line, with);
	assert_int_equal(inproc_node_start(&second.node[0]), SHARD_EXISTS);
	assert_non_null(strstr(second.node[0].why.text, first.node[0].socket));
	assert_non_null(strstr(second.node[0].why.text, "in use"));
	inproc_stop(&second);
	inproc_prepare(&second, &conf);
	snprintf(line, sizeof(line), "state = %s/", second.dir);
	snprintf(with, sizeof(with), "state = %s/", first.dir);
	swap_text(&second.node[0], line, with);
	assert_int_equal(inproc_node_start(&second.node[0]), SHARD_BUSY);
	assert_non_null(strstr(second.node[0].why.text, "is in use by pid"));
	inproc_stop(&second);
	inproc_status(&first.node[0]); /* The first daemon is not affected. */
	inproc_stop(&first);
}

static void test_open_address(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .daemon = "; no allow_unauthenticated"};
	struct inproc c;

	(void)state;
	inproc_prepare(&c, &conf);
	swap_text(&c.node[0], "listen = 127.0.0.1", "listen = 0.0.0.0");
	assert_int_equal(inproc_node_start(&c.node[0]), SHARD_BAD_ARG);
	assert_non_null(strstr(c.node[0].why.text, "a:3: [daemon] listen = 0.0.0.0:"));
	assert_non_null(strstr(c.node[0].why.text,
			       "choose listen = off, or set allow_unauthenticated = yes"));
	swap_text(&c.node[0], "listen = 0.0.0.0", "allow_unauthenticated = yes\nlisten = 0.0.0.0");
	for (uint32_t i = 1; i <= 2; i++) { /* It is logged at each start. */
		assert_int_equal(inproc_node_start(&c.node[0]), SHARD_OK);
		assert_int_equal(
			inproc_logged(&c.node[0],
				      "level=warn node=a event=unauthenticated listen=0.0.0.0:"),
			i);
		inproc_node_stop(&c.node[0]);
	}
	inproc_stop(&c);
}

/* --- the process --- */

struct ran {
	int status;
	char text[8192];
};

static struct ran shardd(const char *const *args)
{
	char path[512], *argv[16] = {path};
	struct ran r = {0};
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
	size_t used = 0;
	int out[2];
	pid_t pid;

	CHECK(n > 0 && pipe(out) == 0);
	path[n] = 0;
	for (int up = 0; up < 3; up++)
		*strrchr(path, '/') = 0; /* The program is BUILD/tests/proc/test_mismatch. */
	strcat(path, "/shardd");
	for (int i = 0; args[i] != NULL; i++)
		argv[i + 1] = (char *)(uintptr_t)args[i];
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		dup2(out[1], STDOUT_FILENO);
		dup2(out[1], STDERR_FILENO);
		execv(path, argv);
		_exit(127);
	}
	close(out[1]);
	while ((n = read(out[0], r.text + used, sizeof(r.text) - 1 - used)) > 0)
		used += (size_t)n;
	close(out[0]);
	CHECK(waitpid(pid, &r.status, 0) == pid);
	r.status = WIFEXITED(r.status) ? WEXITSTATUS(r.status) : -1;
	if (r.status == 127)
		skip(); /* There is no daemon in this build. */
	return r;
}

static void says(const struct ran *r, int status, const char *part)
{
	if (r->status != status || strstr(r->text, part) == NULL)
		fail_msg("status %d, not %d, or no \"%s\" in: %s", r->status, status, part,
			 r->text);
}

static void bad_line(const char *text, const char *part)
{
	char path[] = "/tmp/shardd-conf.XXXXXX", want[400];
	const char *args[] = {"--config", path, NULL};
	int fd = mkstemp(path);
	struct ran r;

	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
	r = shardd(args);
	unlink(path);
	snprintf(want, sizeof(want), "%s:%s", path, part);
	says(&r, 4, want);
}

static void test_lines(void **state)
{
	(void)state;
	bad_line("[daemon]\nnode = a\n[net]\ntransport = rmda\n",
		 "4: [net] transport = rmda: choose auto, tcp or rdma");
	bad_line("[daemon]\nnode = a\nlog_level = loud\n",
		 "3: [daemon] log_level = loud: choose error, warn, info or debug");
	bad_line("[daemon]\nnode = a\nmemroy = 1GiB\n",
		 "3: [daemon] memroy = 1GiB: unknown key: did you mean memory");
	bad_line("[deamon]\n", "1: [deamon]");
	bad_line("node = a\n", "1: ");
	bad_line("[daemon]\nnode\n", "2: ");
	bad_line("[daemon]\nnode = a\n[cluster]\nmembership = etcd\n",
		 "4: [cluster] membership = etcd: etcd_endpoints does not say where it is");
	bad_line("[daemon]\nnode = a\nsocket_mode = 0999\n",
		 "3: [daemon] socket_mode = 0999: choose octal");
	bad_line("[daemon]\nnode = a\n[nodes]\na = nonsense\n", "4: ");
	bad_line("[daemon]\nnode = a\n[model \"x\"]\nlr_factor = 2\n",
		 "4: [model \"x\"] lr_factor: only for a group");
	bad_line("[daemon]\nnode = a\nmemory = 12\n",
		 "3: [daemon] memory = 12: choose auto or a size of at least 1MiB with its unit");
	bad_line("[daemon]\nnode = a\nnode = b\n", "3: [daemon] node = b: ");
	bad_line("[daemon]\nnode = c\n[nodes]\na = 127.0.0.1:1\nb = 127.0.0.1:2\n",
		 "2: [daemon] node = c: not in [nodes]: choose one of a, b");
	bad_line("[daemon]\nnode = a\nlisten = 127.0.0.1:5\n[nodes]\na = 127.0.0.1:1\n",
		 "3: [daemon] listen = 127.0.0.1:5: the port is 1 in [nodes]");
	bad_line("[daemon]\nnode = a\n[cluster]\nheartbeat_timeout = 10s\nstep_timeout = 5s\n",
		 "5: [cluster] step_timeout is shorter than heartbeat_timeout");
	bad_line("[daemon]\nnode = a\nlisten = 0.0.0.0:29700\n",
		 "3: [daemon] listen = 0.0.0.0:29700: nobody may come in there");
	bad_line("[daemon]\nnode = a\n[model]\noptimizer = adamx\n",
		 "4: [model] optimizer = adamx: choose adamw");
}

static void test_options(void **state)
{
	static const struct {
		const char *args[4];
		int status;
		const char *part;
	} rows[] = {
		{{"--nonsense"}, 2, "unrecognized option '--nonsense'"},
		{{"argument"}, 2, "argument: no arguments are expected"},
		{{"--node=a", "--set", "net.transport"},
		 4,
		 "command line: net.transport: write section.key=value"},
		{{"--node=a", "--log-level=loud"},
		 4,
		 "[daemon] log_level = loud: choose error, warn, info or debug"},
		{{"--config=/nonexistent/x"}, 4, "/nonexistent/x"},
		{{"--version"}, 0, "shardd " SHARD_RELEASE},
		{{"--help"}, 0, "connections_max"},
	};

	(void)state;
	for (size_t i = 0; i < NR(rows); i++) {
		struct ran r = shardd(rows[i].args);

		says(&r, rows[i].status, rows[i].part);
	}
}

/* --- pushes to a daemon --- */

static void test_pushes(void **state)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	static float g[3000];
	struct inproc_conf conf = {.nodes = 1};
	struct inproc c;
	shard_ticket ticket;
	struct trainer t;

	inproc_start(&c, &conf);
	trainer_join(&t, *state != NULL ? c.node[0].tcp_address : c.node[0].unix_address,
		     SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_BAD_STATE, shard_push(t.model, 0, 0, 1, g, SHARD_BF16, 0, NULL));
	trainer_begin(&t);
	EXPECT(SHARD_RANGE, shard_push(t.model, 0, 2999, 2, g, SHARD_BF16, 0, NULL));
	EXPECT_TEXT("push of \"wte\": first 2999, count 2, but it has 3000 elements");
	EXPECT(SHARD_DTYPE, shard_push(t.model, 0, 0, 1, g, SHARD_F32, 0, NULL));
	EXPECT_TEXT("push of \"wte\": fp32 is given, gradients of \"gpt\" are bf16");
	/* The first chunks may already be on their way. */
	EXPECT(SHARD_OK, shard_push(t.model, 0, 0, 2000, g, SHARD_F32, SHARD_CAST, NULL));
	EXPECT(SHARD_DUPLICATE, shard_push(t.model, 0, 1999, 10, g, SHARD_F32, SHARD_CAST, NULL));
	EXPECT_TEXT("push of \"wte\": elements 1999 to 1999 were pushed already in this step");
	EXPECT(SHARD_MISSING, shard_commit(t.model, &ticket));
	EXPECT_TEXT("4 of 4 tensors were not pushed: wte (2000 of 3000 elements), h.0.ln_1.weight, "
		    "h.0.attn.weight");
	EXPECT(SHARD_OK, shard_push(t.model, 0, 2000, 1000, g, SHARD_F32, SHARD_CAST, NULL));
	EXPECT(SHARD_OK, shard_push_none(t.model, 1));
	EXPECT(SHARD_OK, shard_push(t.model, 2, 0, 2500, g, SHARD_F32, SHARD_CAST, NULL));
	EXPECT(SHARD_OK, shard_push(t.model, 3, 0, 1, g, SHARD_F32, SHARD_CAST, NULL));
	EXPECT(SHARD_OK, shard_commit(t.model, &ticket));
	EXPECT(SHARD_OK, shard_result(t.model, ticket, pace_ms(10000), &r));
	assert_int_equal(r.outcome, SHARD_APPLIED);
	assert_int_equal(r.step, 1);
	EXPECT(SHARD_STALE, shard_push(t.model, 0, 0, 1, g, SHARD_F32, SHARD_CAST, NULL));
	EXPECT_TEXT("step 1 is decided");
	/* None of the refused pushes was sent. */
	assert_int_equal(inproc_count(&c.node[0], "refused_frames"), 0);
	trainer_end(&t);
	inproc_stop(&c);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_definitions),
		cmocka_unit_test(test_worlds),
		cmocka_unit_test(test_budget),
		cmocka_unit_test(test_nodes),
		cmocka_unit_test(test_no_sums),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_trainer_hello),
		cmocka_unit_test(test_in_use),
		cmocka_unit_test(test_open_address),
		cmocka_unit_test(test_lines),
		cmocka_unit_test(test_options),
		cmocka_unit_test(test_pushes),
		{"test_pushes_tcp", test_pushes, NULL, NULL, (void *)(uintptr_t)1},
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
