// SPDX-License-Identifier: Apache-2.0
/* A cluster with a secret: nodes and trainers that know it train; who has another or none, or meets somebody on the way who changes what is
 * said, is refused with a sentence, counted and logged; a secret can be changed while it is in use. */
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/proc.h"
#include "lib/proxy.h"
#include "lib/rawpeer.h"
#include "lib/tool.h"
#include "net/prove.h"
#include "state.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define RIGHT "aa00112233445566778899aabbccddeeff00112233445566778899aabbccddee\n"
#define WRONG "bb00112233445566778899aabbccddeeff00112233445566778899aabbccddee\n"

static struct {
	char dir[32], right[48], wrong[48], both[48], used[48], line[80]; /* used: what the daemons' configuration names */
} f;

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static int files(void **state)
{
	(void)state;
	strcpy(f.dir, "/tmp/shardd-secret.XXXXXX");
	if (mkdtemp(f.dir) == NULL)
		return 1;
	snprintf(f.right, sizeof(f.right), "%s/r", f.dir);
	snprintf(f.wrong, sizeof(f.wrong), "%s/w", f.dir);
	snprintf(f.both, sizeof(f.both), "%s/b", f.dir);
	snprintf(f.used, sizeof(f.used), "%s/u", f.dir);
	snprintf(f.line, sizeof(f.line), "secret = %s", f.used);
	put(f.right, RIGHT);
	put(f.wrong, WRONG);
	put(f.both, WRONG RIGHT);
	put(f.used, RIGHT);
	unsetenv("SHARD_SECRET");
	return 0;
}

static int no_files(void **state)
{
	(void)state;
	unlink(f.right);
	unlink(f.wrong);
	unlink(f.both);
	unlink(f.used);
	return rmdir(f.dir);
}

static void meets(enum shard_status want, const char *address, const char *secret, const char *part)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	shard_client *c = NULL;
	enum shard_status got;

	o.address = address;
	o.secret = secret;
	got = shard_connect(&c, &o);
	shard_disconnect(&c);
	if (got != want || (want != SHARD_OK && strstr(shard_error(), part) == NULL))
		fail_msg("%s with %s: %s %s, not %s with \"%s\"", address, secret != NULL ? secret : "none", shard_name(got),
			 shard_error(), shard_name(want), part);
}

/* --- who knows it --- */

static void test_train(void **state)
{
	struct inproc_conf conf = {.nodes = 2, .cluster = f.line, .net = "connections = 3"};
	struct inproc c;
	struct crew crew;

	(void)state;
	put(f.used, RIGHT);
	setenv("SHARD_SECRET", f.right, 1);
	inproc_start(&c, &conf);
	crew_init(&crew, "known");
	crew_add(&crew, c.node[0].unix_address, 0);
	crew_add(&crew, c.node[0].tcp_address, 0);
	crew_add(&crew, c.node[1].tcp_address, 1);
	crew_start(&crew, 6);
	crew_finish(&crew);
	crew_check(&crew, c.node[1].tcp_address, 6);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(inproc_count(&c.node[i], "refused_frames"), 0);
		assert_int_equal(inproc_logged(&c.node[i], "event=auth_refused"), 0);
	}
	unsetenv("SHARD_SECRET");
	inproc_stop(&c);
}

static void tool(int rc, const char *text, const char *secret, const struct inproc_node *n)
{
	char words[256];

	snprintf(words, sizeof(words), "-a 127.0.0.1:%u%s%s status", n->port, secret != NULL ? " --secret " : "",
		 secret != NULL ? secret : "");
	tool_expect(rc, text, "shardctl", words);
	snprintf(words, sizeof(words), "model list -a 127.0.0.1:%u%s%s", n->port, secret != NULL ? " --secret " : "",
		 secret != NULL ? secret : "");
	tool_expect(rc, rc == 0 ? "NAME" : text, "shardctl", words);
}

static void test_clients(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .cluster = f.line}, open_conf = {.nodes = 1};
	struct inproc c, d;
	const char *at;

	(void)state;
	put(f.used, WRONG RIGHT);
	inproc_start(&c, &conf);
	inproc_start(&d, &open_conf);
	at = c.node[0].tcp_address;
	meets(SHARD_OK, at, f.right, "");
	meets(SHARD_OK, at, f.wrong, ""); /* both are accepted for a while */
	put(f.both, "cc00112233445566778899aabbccddeeff00112233445566778899aabbccddee\n");
	meets(SHARD_DENIED, at, f.both, "did not prove that it knows the secret of node a");
	put(f.both, WRONG RIGHT);
	meets(SHARD_DENIED, at, NULL, "node a asks over tcp for the cluster secret, 127.0.0.1:");
	meets(SHARD_SYSTEM, at, "/nowhere/s", "secret /nowhere/s: cannot be opened");
	meets(SHARD_BAD_ARG, at, "/etc/hostname", "others may read or change it: chmod 600");
	meets(SHARD_OK, c.node[0].unix_address, NULL, "");
	meets(SHARD_OK, c.node[0].unix_address, "/nowhere/s", "");
	meets(SHARD_DENIED, d.node[0].tcp_address, f.right, "has a cluster secret, node a has none");
	meets(SHARD_OK, d.node[0].tcp_address, NULL, "");
	setenv("SHARD_SECRET", f.right, 1);
	meets(SHARD_OK, at, NULL, "");
	unsetenv("SHARD_SECRET");
	assert_int_equal(inproc_logged(&c.node[0], "event=auth_refused"), 2);
	assert_int_equal(inproc_logged(&c.node[0], "event=hello_failed"), 0);
	assert_int_equal(inproc_logged(&d.node[0], "event=auth_refused"), 1);
	tool(0, "127.0.0.1", f.right, &c.node[0]);
	tool(5, "asks over tcp for the cluster secret", NULL, &c.node[0]);
	tool(5, "has a cluster secret, node a has none", f.right, &d.node[0]);
	put(f.used, RIGHT);
	inproc_node_stop(&c.node[0]);
	assert_int_equal(inproc_node_start(&c.node[0]), SHARD_OK);
	tool(5, "did not prove that it knows the secret", f.wrong, &c.node[0]);
	inproc_stop(&c);
	inproc_stop(&d);
}

static void must_start(struct inproc_node *n)
{
	if (inproc_node_start(n) != SHARD_OK)
		fail_msg("%s", n->why.text);
}

static void test_nodes(void **state)
{
	struct inproc_conf conf = {.nodes = 2, .cluster = f.line};
	struct inproc c;
	char *with, *without;

	(void)state;
	inproc_prepare(&c, &conf);
	put(f.used, RIGHT);
	must_start(&c.node[0]);
	put(f.used, WRONG);
	must_start(&c.node[1]);
	inproc_wait_log(&c.node[0], "did not prove that it knows the secret of node a", 2);
	inproc_wait_log(&c.node[1], "node a refused: ", 1);
	inproc_node_stop(&c.node[1]);

	with = c.node[1].text; /* none on b */
	without = strdup(with);
	assert_non_null(without);
	memcpy(strstr(without, "secret"), ";ecret", 6);
	c.node[1].text = without;
	must_start(&c.node[1]);
	inproc_wait_log(&c.node[0], "has none: set [cluster] secret on both nodes", 1);
	inproc_node_stop(&c.node[1]);
	assert_int_equal(inproc_logged(&c.node[0], "event=link_up"), 0);

	c.node[1].text = with;
	put(f.used, RIGHT);
	must_start(&c.node[1]);
	inproc_wait_log(&c.node[0], "event=link_up", 1);
	inproc_node_stop(&c.node[0]); /* none on a */
	free(without);
	without = c.node[0].text;
	memcpy(strstr(without, "secret"), ";ecret", 6);
	must_start(&c.node[0]);
	inproc_wait_log(&c.node[0], "has a cluster secret, node a has none: set [cluster] secret on node a", 1);
	assert_int_equal(inproc_logged(&c.node[1], "event=link_up"), 1);
	inproc_stop(&c);
}

/* Real daemons, so that SIGHUP reaches one alone. The link is made anew each time. */
static void link_again(struct cluster *c, const char *secret)
{
	char words[192];

	put(f.used, secret);
	cluster_signal(c, 1, SIGTERM);
	cluster_wait(c, 1, 10000);
	cluster_spawn(c, 1);
	cluster_ready(c, 1);
	for (int i = 0; i < 500; i++) {
		char *out;

		snprintf(words, sizeof(words), "-a %s status", c->node[0].unix_address);
		tool_run(&out, "shardctl", words);
		if (strstr(out, " up ") != NULL && strstr(out, " down ") == NULL && strstr(out, "127.0.0.1") != NULL) {
			free(out);
			return;
		}
		free(out);
		usleep(20000);
	}
	fail_msg("the nodes do not meet");
}

static uint32_t lines(struct cluster *c, const char *part, uint32_t want)
{
	uint32_t nr = 0;

	for (int i = 0; i < 500; i++) {
		char *log = cluster_log(c, 0);

		nr = 0;
		for (char *at = log; (at = strstr(at, part)) != NULL; at++)
			nr++;
		free(log);
		if (nr >= want)
			break;
		usleep(10000);
	}
	assert_int_equal(nr, want);
	return nr;
}

static void reload(struct cluster *c, const char *secret, uint32_t times)
{
	put(f.used, secret);
	cluster_signal(c, 0, SIGHUP);
	lines(c, "event=reload taken", times);
}

static void test_rotation(void **state)
{
	char extra[128];
	struct cluster *c;
	const char *at;

	(void)state;
	snprintf(extra, sizeof(extra), "[cluster]\n%s", f.line);
	put(f.used, RIGHT);
	c = cluster_start(2, NULL, extra);
	at = c->node[0].tcp_address;
	meets(SHARD_OK, at, f.right, "");
	meets(SHARD_DENIED, at, f.wrong, "did not prove");
	reload(c, RIGHT WRONG, 1);
	meets(SHARD_OK, at, f.right, "");
	meets(SHARD_OK, at, f.wrong, "");
	link_again(c, RIGHT); /* old with both */
	link_again(c, WRONG); /* new with both */
	reload(c, WRONG, 2);
	meets(SHARD_DENIED, at, f.right, "did not prove");
	meets(SHARD_OK, at, f.wrong, "");
	put(f.used, "nonsense\n");
	cluster_signal(c, 0, SIGHUP);
	lines(c, "event=reload_failed", 1);
	meets(SHARD_OK, at, f.wrong, ""); /* what it had */
	put(f.used, WRONG);
	cluster_stop(c);
}

/* --- somebody on the way --- */

static const struct proxy_fault forgeries[] = {
	{PROXY_FORGE, false, 0, 0, "\x18\x03", "\x18\x01"}, /* "I have no secret" */
	{PROXY_FORGE, true, 0, 0, "\x18\x03", "\x18\x01"},
	{PROXY_FORGE, false, 0, 0, SHARD_RELEASE, "9.9.9"},
	{PROXY_FORGE, true, 0, 0, SHARD_RELEASE, "9.9.9"},
	{PROXY_FORGE, false, 1, 0, SHARD_RELEASE, "9.9.9"}, /* of the whole Hello, beside the proof */
	{PROXY_FORGE, true, 1, 0, SHARD_RELEASE, "9.9.9"},
	{PROXY_FORGE, false, 1, 0, "\x0a\x20", "\x0a\x1f"}, /* a proof that is cut */
};

static void test_forged_trainer(void **state)
{
	static const char *const part[] = {"asks over tcp for the cluster secret",
					   "asks for no secret",
					   "did not prove",
					   "did not prove",
					   "did not prove",
					   "did not prove",
					   "cannot be parsed"};
	struct inproc_conf conf = {.nodes = 1, .cluster = f.line};
	struct inproc c;
	struct proxy p = {0};
	char address[64];

	(void)state;
	put(f.used, RIGHT);
	inproc_start(&c, &conf);
	proxy_start(&p, "127.0.0.2", c.node[0].port, c.node[0].port, forgeries, 6);
	snprintf(address, sizeof(address), "tcp://127.0.0.2:%u", c.node[0].port);
	for (uint32_t i = 0; i < 6; i++)
		meets(SHARD_DENIED, address, f.right, part[i]);
	proxy_wait(&p, 20);
	meets(SHARD_OK, address, f.right, "");
	assert_int_equal(p.stuck, 0);
	assert_int_equal(inproc_logged(&c.node[0], "event=auth_refused"), 4); /* the client saw the others */
	proxy_stop(&p);
	inproc_stop(&c);
}

static void test_forged_link(void **state)
{
	struct inproc_conf conf = {.nodes = 2, .cluster = f.line, .host_in_nodes = {"127.0.0.2"}};
	struct proxy p = {0};
	struct inproc c;

	(void)state;
	put(f.used, RIGHT);
	inproc_prepare(&c, &conf);
	proxy_start(&p, "127.0.0.2", c.node[0].port, c.node[0].port, forgeries, 7);
	must_start(&c.node[0]);
	must_start(&c.node[1]);
	inproc_wait_log(&c.node[1], "event=link_up", 1);
	assert_int_equal(atomic_load(&p.next), 7); /* none of the seven was taken for a link */
	inproc_wait_log(&c.node[0], "did not prove that it knows the secret of node a", 2);
	inproc_wait_log(&c.node[1], "event=auth_refused", 2);
	assert_int_equal(p.stuck, 0);
	proxy_stop(&p);
	inproc_stop(&c);
}

/* Something else at the address: it says the right things, and sends the proof back that it was given, or another. */
static void *mirror(void *arg)
{
	int listener = *(int *)arg;
	struct auth *wrong;
	struct raw r = {.fd = -1};
	struct err e;

	assert_int_equal(auth_open(&wrong, f.wrong, &e), SHARD_OK);
	for (int i = 0; i < 3; i++) {
		Shard__Hello whole = SHARD__HELLO__INIT, brief, *theirs;
		struct wire_head h = {.op = OP_HELLO, .flags = WIRE_REPLY};
		Shard__Auth mine;
		struct prove p;

		memset(&r, 0, sizeof(r));
		r.fd = accept(listener, NULL, NULL);
		if (!raw_recv(&r))
			break;
		prove_begin(&p, AUTH_LISTENER);
		whole.wire_min = whole.wire_max = WIRE_VERSION;
		whole.features = FEATURE_BODY_SUM;
		whole.role = ROLE_NODE;
		theirs = shard__hello__unpack(NULL, r.head.body_bytes, r.body);
		(void)prove_heard(&p, wrong, theirs, r.body, r.head.body_bytes, &e);
		shard__hello__free_unpacked(theirs, NULL);
		(void)prove_brief(&p, wrong, &whole, &brief, &e);
		h.attempt = r.head.attempt;
		raw_send(&r, &h, &brief.base);
		if (raw_recv(&r)) {
			h.op = OP_AUTH;
			h.attempt = r.head.attempt;
			(void)prove_own(&p, wrong, &whole, &mine, &e);
			if (i == 0)
				raw_head(&r, &h, r.body, r.head.body_bytes);
			else if (i == 1)
				raw_send(&r, &h, &mine.base);
			else
				raw_head(&r, &h, NULL, 0);
			(void)raw_recv(&r);
		}
		prove_end(&p);
		raw_close(&r);
	}
	auth_close(&wrong);
	return NULL;
}

static void test_impostor(void **state)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(sa);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pthread_t thread;
	char address[64];

	(void)state;
	assert_int_equal(bind(fd, (struct sockaddr *)&sa, bytes), 0);
	assert_int_equal(listen(fd, 4), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &bytes), 0);
	snprintf(address, sizeof(address), "tcp://127.0.0.1:%u", ntohs(sa.sin_port));
	assert_int_equal(pthread_create(&thread, NULL, mirror, &fd), 0);
	for (int i = 0; i < 3; i++)
		meets(SHARD_DENIED, address, f.right, "did not prove that it knows the secret: something else answers there");
	pthread_join(thread, NULL);
	close(fd);
}

/* --- who speaks the protocol, and wants in --- */

struct knock { /* a raw peer that begins as one with the secret does */
	struct raw r;
	struct prove p;
	Shard__Hello whole;
	unsigned char hello[256];
	uint32_t hello_bytes;
};

static void knock(struct knock *k, const char *address, const struct auth *a)
{
	struct wire_head h = {.op = OP_HELLO};
	Shard__Hello brief, *theirs;
	struct err e;

	raw_connect(&k->r, address);
	prove_begin(&k->p, AUTH_DIALLER);
	shard__hello__init(&k->whole);
	k->whole.wire_min = k->whole.wire_max = WIRE_VERSION;
	k->whole.features = FEATURE_BODY_SUM;
	k->whole.role = ROLE_CTL;
	assert_int_equal(prove_brief(&k->p, a, &k->whole, &brief, &e), SHARD_OK);
	k->hello_bytes = (uint32_t)shard__hello__pack(&brief, k->hello);
	raw_head(&k->r, &h, k->hello, k->hello_bytes);
	assert_true(raw_recv(&k->r));
	assert_int_equal(k->r.head.op, OP_HELLO);
	theirs = shard__hello__unpack(NULL, k->r.head.body_bytes, k->r.body);
	assert_non_null(theirs);
	assert_string_equal(theirs->run_id, ""); /* nothing of the cluster before the proof */
	assert_int_equal(theirs->n_config, 0);
	assert_int_equal(prove_heard(&k->p, a, theirs, k->r.body, k->r.head.body_bytes, &e), SHARD_OK);
	shard__hello__free_unpacked(theirs, NULL);
}

static void put_out(struct knock *k, const char *part)
{
	char *why = raw_error(&k->r);

	if (why == NULL || strstr(why, part) == NULL)
		fail_msg("\"%s\" is not in \"%s\"", part, why != NULL ? why : "(nothing)");
	raw_expect_closed(&k->r);
	raw_close(&k->r);
	prove_end(&k->p);
}

static void test_hostile(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .cluster = f.line};
	struct wire_head auth = {.op = OP_AUTH}, hello = {.op = OP_HELLO}, reply = {.op = OP_AUTH, .flags = WIRE_REPLY};
	unsigned char body[128] = {0}, recorded[256];
	uint32_t recorded_bytes;
	struct auth *right;
	struct inproc c;
	struct knock k;
	Shard__Auth mine;
	struct err e;
	const char *at;

	(void)state;
	put(f.used, RIGHT);
	assert_int_equal(auth_open(&right, f.right, &e), SHARD_OK);
	inproc_start(&c, &conf);
	at = c.node[0].tcp_address;
	for (uint16_t op = 0; op < OP_NR; op++) { /* anything but a proof, behind HELLO */
		struct wire_head h = {.op = op};

		if (wire_op(op) == NULL || op == OP_AUTH)
			continue;
		knock(&k, at, right);
		raw_head(&k.r, &h, body, wire_op(op)->body_min);
		put_out(&k, "before auth");
	}
	raw_connect(&k.r, at); /* a proof before HELLO */
	raw_head(&k.r, &auth, body, 34);
	put_out(&k, "frame auth before hello");
	knock(&k, at, right);
	raw_head(&k.r, &reply, body, 34);
	put_out(&k, "frame auth before auth");
	knock(&k, at, right); /* the proof of nobody, and an empty one */
	raw_head(&k.r, &auth,
		 "\x0a\x20"
		 "0123456789abcdef0123456789abcdef",
		 34);
	put_out(&k, "did not prove that it knows the secret of node a");
	knock(&k, at, right);
	raw_head(&k.r, &auth,
		 "\x12\x20"
		 "0123456789abcdef0123456789abcdef",
		 34);
	put_out(&k, "did not prove that it knows the secret of node a");

	knock(&k, at, right); /* a good one, recorded */
	assert_int_equal(prove_own(&k.p, right, &k.whole, &mine, &e), SHARD_OK);
	recorded_bytes = (uint32_t)shard__auth__pack(&mine, recorded);
	assert_true(recorded_bytes <= sizeof(recorded));
	raw_head(&k.r, &auth, recorded, recorded_bytes);
	assert_true(raw_recv(&k.r));
	assert_int_equal(k.r.head.op, OP_AUTH);
	free(raw_status(&k.r));
	raw_head(&k.r, &auth, recorded, recorded_bytes); /* once is enough */
	put_out(&k, "auth");
	raw_connect(&k.r, at); /* the same bytes on a new connection */
	raw_head(&k.r, &hello, k.hello, k.hello_bytes);
	assert_true(raw_recv(&k.r));
	raw_head(&k.r, &auth, recorded, recorded_bytes);
	put_out(&k, "did not prove that it knows the secret of node a");
	assert_int_equal(inproc_logged(&c.node[0], "event=auth_refused"), 3);
	meets(SHARD_OK, at, f.right, "");
	auth_close(&right);
	inproc_stop(&c);
}

static void test_deadline(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .cluster = f.line};
	struct auth *right;
	struct inproc c;
	struct knock k;
	struct err e;
	uint64_t began;

	(void)state;
	put(f.used, RIGHT);
	assert_int_equal(auth_open(&right, f.right, &e), SHARD_OK);
	inproc_start(&c, &conf);
	began = clock_ns();
	knock(&k, c.node[0].tcp_address, right);
	raw_expect_closed(&k.r);
	raw_close(&k.r);
	prove_end(&k.p);
	assert_true(clock_ns() - began >= SERVER_HELLO_NS && clock_ns() - began < SERVER_HELLO_NS + 4 * NS_PER_SEC);
	inproc_wait_log(&c.node[0], "no proof of the secret within 5 s", 1);
	auth_close(&right);
	inproc_stop(&c);
}

static void test_new(void **state)
{
	char words[128], *one, *two;

	(void)state;
	unlink(f.both);
	snprintf(words, sizeof(words), "secret new %s", f.both);
	tool_expect(0, "", "shardctl", words);
	meets(SHARD_UNREACHABLE, "tcp://127.0.0.1:1", f.both, "ECONNREFUSED"); /* it can be read: the address is next */
	tool_expect(1, "is there already: --force replaces it", "shardctl", words);
	snprintf(words, sizeof(words), "secret new %s --force", f.both);
	tool_expect(0, "", "shardctl", words);
	tool_expect(1, "cannot be made", "shardctl", "secret new /nowhere/s");
	tool_expect(2, "write secret new", "shardctl", "secret old");
	assert_int_equal(tool_run(&one, "shardctl", "secret new"), 0);
	assert_int_equal(tool_run(&two, "shardctl", "secret new"), 0);
	assert_int_equal(strlen(one), 65);
	assert_string_not_equal(one, two);
	free(one);
	free(two);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_train),    cmocka_unit_test(test_clients),        cmocka_unit_test(test_nodes),
		cmocka_unit_test(test_rotation), cmocka_unit_test(test_forged_trainer), cmocka_unit_test(test_forged_link),
		cmocka_unit_test(test_impostor), cmocka_unit_test(test_hostile),        cmocka_unit_test(test_deadline),
		cmocka_unit_test(test_new),
	};

	return cmocka_run_group_tests(tests, files, no_files);
}
