// SPDX-License-Identifier: Apache-2.0
/* Tests with real daemons where checkpoints may be. Users may use folders below the roots only, and
 * through no link. Nobody may use the state folder. Root of the node and the daemon's own user may
 * use any other place. What is there and is no checkpoint stays. The owner of the weights counts
 * when they are restored. What another user does is tried where the test runs as root. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/drill.h"
#include "lib/keep.h"
#include "lib/pace.h"
#include "lib/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NOBODY = 65534 };

struct place {
	struct cluster *c;
	struct keep keep; /* keep.dir/roots is the root. The rest is outside. */
	char root[80], other[80];
};

static int setup(void **state)
{
	struct place *p = calloc(1, sizeof(*p));

	CHECK(p != NULL);
	keep_init(&p->keep);
	CHECK(chmod(p->keep.dir, 0755) == 0);
	snprintf(p->root, sizeof(p->root), "%s/roots", p->keep.dir);
	snprintf(p->other, sizeof(p->other), "%s/other", p->keep.dir);
	CHECK(mkdir(p->root, 0777) == 0 && mkdir(p->other, 0777) == 0);
	CHECK(chmod(p->root, 0777) == 0 && chmod(p->other, 0777) == 0);
	*state = p;
	return 0;
}

static int teardown(void **state)
{
	struct place *p = *state;

	cluster_put_away(&p->c);
	keep_free(&p->keep);
	free(p);
	return 0;
}

static void expect(enum shard_status rc, enum shard_status want, const char *part)
{
	if (rc != want || (part != NULL && strstr(shard_error(), part) == NULL))
		fail_msg("%s: %s, expected %s with \"%s\"", shard_name(rc),
			 rc != SHARD_OK ? shard_error() : "", shard_name(want),
			 part != NULL ? part : "");
}

/* Defines "m" by that address. It is private to the user over the unix socket, and has no owner
 * over TCP. The returned connection has the model. */
static shard_client *define_at(const char *address, const char *settings, uint64_t step,
			       enum shard_status want, const char *part)
{
	static const struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {64}};
	struct shard_spec s = {.size = sizeof(s),
			       .name = "m",
			       .tensors = &tensor,
			       .tensors_nr = 1,
			       .image = SHARD_F32,
			       .grad = SHARD_F32,
			       .settings = settings};
	uint64_t until = pace_by(20);
	shard_client *c = crew_connect(address);
	enum shard_status rc;
	shard_model *m;
	float w[64] = {1, 2, 3};
	int created;

	/* A model that was refused may still be going away. */
	do
		rc = shard_define(c, &s, &m, &created);
	while (rc == SHARD_BUSY && clock_ns() < until);
	expect(rc, want, part);
	if (want == SHARD_OK) {
		assert_int_equal(created, 1);
		MUST(shard_write(m, SHARD_MASTER, 0, 0, 64, SHARD_F32, w));
		MUST(shard_seal(m, step));
	}
	return c;
}

static void drop(const char *address)
{
	shard_client *c = crew_connect(address);

	MUST(shard_drop(c, "m", 1));
	shard_disconnect(&c);
}

/* Starts nodes with this root. NULL: the default. Any user may connect to their sockets. */
static void begin_nodes(struct place *p, int nodes, const char *root, const char *settings,
			const char *extra)
{
	char command[600], lines[200];
	shard_client *c;

	p->c = cluster_make(nodes, NULL, extra);
	for (int n = 0; n < nodes; n++) {
		const char *conf = p->c->node[n].conf;

		if (root != NULL)
			snprintf(command, sizeof(command),
				 "sed -i 's|^checkpoint_roots = .*|checkpoint_roots = %s|' %s",
				 root, conf);
		else
			snprintf(command, sizeof(command), "sed -i '/^checkpoint_roots/d' %s",
				 conf);
		assert_int_equal(system(command), 0);
		snprintf(lines, sizeof(lines), "[daemon]\nsocket_mode = 0666\n");
		drill_conf(p->c, n, lines);
	}
	CHECK(chmod(p->c->dir, 0755) == 0);
	for (int n = 0; n < nodes; n++)
		cluster_spawn(p->c, n);
	for (int n = 0; n < nodes; n++)
		cluster_ready(p->c, n);
	c = define_at(p->c->node[0].unix_address, settings, 3, SHARD_OK, NULL);
	shard_disconnect(&c);
}

static void begin(struct place *p, const char *root, const char *settings)
{
	begin_nodes(p, 1, root, settings, NULL);
}

static bool there(const char *dir, const char *name)
{
	char path[300];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return access(path, F_OK) == 0;
}

/* Runs a tool as another user over the unix socket. Exit status 5 is a refusal. */
static void nobody(const struct place *p, int rc, const char *text, const char *words)
{
	char all[600], *out;
	int got;

	if (geteuid() != 0)
		return;
	snprintf(all, sizeof(all), "%s --address %s", words, p->c->node[0].unix_address);
	got = tool_run_as(NOBODY, &out, "shardctl", all);
	/* 97: that user may not read the folder of this build. */
	if (got != 97 && (got != rc || strstr(out, text) == NULL))
		fail_msg("shardctl %s: exit %d, expected %d with \"%s\":\n%s", all, got, rc, text,
			 out);
	free(out);
}

static void below_the_roots(void **state)
{
	struct place *p = *state;
	const char *tcp, *own;
	char dir[200], words[300];

	begin(p, p->root, "optimizer=sgd");
	tcp = p->c->node[0].tcp_address;
	own = p->c->node[0].unix_address;
	snprintf(dir, sizeof(dir), "%s/a/b", p->root);
	expect(keep_save(tcp, "m", dir, "t"), SHARD_OK, NULL);
	assert_true(there(dir, "t/manifest.json"));
	/* Elsewhere a user that this node does not know may not write. */
	expect(keep_save(tcp, "m", p->other, "t"), SHARD_DENIED, "checkpoint_roots");
	assert_false(there(p->other, "t"));
	snprintf(dir, sizeof(dir), "%s/../other", p->root);
	expect(keep_save(tcp, "m", dir, "t"), SHARD_DENIED, "checkpoint_roots");
	snprintf(dir, sizeof(dir), "%ss", p->root); /* The name begins like the root. */
	expect(keep_save(tcp, "m", dir, "t"), SHARD_DENIED, "checkpoint_roots");
	expect(keep_restore(tcp, p->other, "t", "n"), SHARD_DENIED, "checkpoint_roots");
	/* No user may go through a link. */
	snprintf(dir, sizeof(dir), "%s/link", p->root);
	CHECK(symlink(p->other, dir) == 0);
	expect(keep_save(tcp, "m", dir, "t"), SHARD_DENIED, "leads through a link");
	expect(keep_save(own, "m", dir, "t"), SHARD_DENIED, "leads through a link");
	snprintf(dir, sizeof(dir), "%s/link/deep", p->root);
	expect(keep_save(tcp, "m", dir, "t"), SHARD_DENIED, "leads through a link");
	expect(keep_restore(tcp, dir, "t", "m"), SHARD_DENIED, "leads through a link");
	assert_false(there(p->other, "t") || there(p->other, "deep"));
	/* Another user of this machine may do no more than a user over TCP. */
	snprintf(words, sizeof(words), "save m --dir %s --tag t", p->other);
	nobody(p, 5, "checkpoint_roots", words);
	snprintf(words, sizeof(words), "save m --dir %s/n --tag t", p->root);
	nobody(p, 0, "", words);
	/* The daemon's own user is root here, or the user of this test. */
	expect(keep_save(own, "m", p->other, "t"), SHARD_OK, NULL);
	assert_true(there(p->other, "t/manifest.json"));
	cluster_done(&p->c);
}

static void the_state(void **state)
{
	struct place *p = *state;
	const char *own, *tcp;
	char dir[300];

	begin(p, NULL, "optimizer=sgd");
	own = p->c->node[0].unix_address;
	tcp = p->c->node[0].tcp_address;
	expect(keep_save(own, "m", p->c->node[0].state, "model-00000063"), SHARD_DENIED,
	       "own state");
	snprintf(dir, sizeof(dir), "%s/x", p->c->node[0].state);
	expect(keep_save(own, "m", dir, "t"), SHARD_DENIED, "own state");
	snprintf(dir, sizeof(dir), "%s/in", p->other); /* By a link, which root may use. */
	CHECK(symlink(p->c->node[0].state, dir) == 0);
	expect(keep_save(own, "m", dir, "model-00000063"), SHARD_DENIED, "own state");
	assert_false(there(p->c->node[0].state, "model-00000063"));
	snprintf(dir, sizeof(dir), "%s/checkpoints/m", p->c->node[0].state);
	expect(keep_save(tcp, "m", dir, "t"), SHARD_OK, NULL); /* This is the default folder. */
	cluster_signal(p->c, 0, SIGTERM);
	assert_int_equal(cluster_wait(p->c, 0, 10000), 0);
	cluster_spawn(p->c, 0); /* The daemon starts again. */
	cluster_ready(p->c, 0);
	cluster_done(&p->c);
}

static void put(const char *dir, const char *name, const char *text)
{
	char path[300];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "we");
	CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void what_is_no_checkpoint(void **state)
{
	struct place *p = *state;
	char dir[200], words[300];

	begin(p, p->root, "optimizer=sgd");
	snprintf(dir, sizeof(dir), "%s/webapp", p->root);
	CHECK(mkdir(dir, 0777) == 0);
	put(dir, "manifest.json", "{\"name\": \"a web application\"}");
	put(dir, "index.html", "hello");
	for (int fresh = 0; fresh < 2; fresh++) {
		char *out;

		snprintf(words, sizeof(words), "save m --dir %s --tag webapp%s --address %s",
			 p->root, fresh ? "" : " --force", p->c->node[0].unix_address);
		if (tool_run(&out, "shardctl", words) == 0 ||
		    strstr(out, "is no checkpoint") == NULL)
			fail_msg("%s: %s", words, out);
		free(out);
		assert_true(there(dir, "index.html") && there(dir, "manifest.json") &&
			    !there(p->root, ".webapp.tmp"));
	}
	cluster_done(&p->c);
}

static void whose_it_is(void **state)
{
	struct place *p = *state;
	const char *own, *tcp;
	char words[300], json[65536];
	size_t bytes = sizeof(json);
	shard_client *c;
	struct stat s;

	begin(p, p->root, "optimizer=sgd mode=0600");
	own = p->c->node[0].unix_address;
	tcp = p->c->node[0].tcp_address;
	keep_must_save(own, "m", p->root, "t");
	snprintf(words, sizeof(words), "%s/t/manifest.json", p->root);
	assert_true(stat(words, &s) == 0 && (s.st_mode & 0777) == 0600);
	c = crew_connect(own);
	MUST(shard_drop(c, "m", 1));
	expect(keep_restore(tcp, p->root, "t", NULL), SHARD_DENIED, "mode 0600");
	snprintf(words, sizeof(words), "restore %s --tag t", p->root);
	nobody(p, 5, "mode 0600", words);
	expect(keep_restore(own, p->root, "t", NULL), SHARD_OK, NULL);
	MUST(shard_stats(c, json, &bytes));
	assert_non_null(strstr(json, "mode=0600"));
	/* The model has its owner again. */
	expect(keep_save(tcp, "m", p->root, "u"), SHARD_DENIED, "mode 0600");
	shard_disconnect(&c);
	cluster_done(&p->c);
}

/* A private checkpoint outlives its model. A model of another user with the same name must not
 * replace it. */
static void who_replaces_it(void **state)
{
	struct place *p = *state;
	const char *own, *tcp;
	char dir[200];
	shard_client *c;

	begin(p, p->root, "optimizer=sgd mode=0600");
	own = p->c->node[0].unix_address;
	tcp = p->c->node[0].tcp_address;
	snprintf(dir, sizeof(dir), "%s/private", p->root);
	keep_must_save(own, "m", dir, "t");
	drop(own);
	c = define_at(tcp, "optimizer=sgd", 9, SHARD_OK, NULL);
	expect(keep_save(tcp, "m", dir, "t"), SHARD_DENIED, "choose another folder");
	/* Otherwise `latest` would name the checkpoint of the other model. */
	expect(keep_save(tcp, "m", dir, "u"), SHARD_DENIED, "mode 0600");
	assert_false(there(dir, "u"));
	for (int i = 0; i < 2; i++) {
		snprintf(dir, sizeof(dir), "%s/private/t%s", p->root, i ? "/deeper" : "");
		expect(keep_save(tcp, "m", dir, "u"), SHARD_EXISTS, "lies in one");
	}
	snprintf(dir, sizeof(dir), "%s/private/t", p->root);
	assert_false(there(dir, "latest") || there(dir, "u") || there(dir, "deeper"));
	snprintf(dir, sizeof(dir), "%s/public", p->root);
	for (int i = 0; i < 2; i++) /* It may replace its own checkpoint. */
		expect(keep_save(tcp, "m", dir, "t"), SHARD_OK, NULL);
	shard_disconnect(&c);
	cluster_done(&p->c);
}

/* A private model of one user must not begin with weights that another user put there before. */
static void who_was_there_before(void **state)
{
	struct place *p = *state;
	const char *own, *tcp;
	char settings[300], dir[200];
	shard_client *c;

	begin(p, p->root, "optimizer=sgd");
	own = p->c->node[0].unix_address;
	tcp = p->c->node[0].tcp_address;
	drop(own);
	c = define_at(tcp, "optimizer=sgd", 1000000, SHARD_OK, NULL);
	snprintf(dir, sizeof(dir), "%s/m", p->root);
	expect(keep_save(tcp, "m", dir, "t"), SHARD_OK, NULL);
	shard_disconnect(&c);
	drop(tcp);
	snprintf(settings, sizeof(settings),
		 "optimizer=sgd mode=0600 restore_at_start=yes checkpoint_dir=%s", p->root);
	c = define_at(own, settings, 0, SHARD_DENIED, "may not change");
	shard_disconnect(&c);
	/* An operator asks for it explicitly. */
	expect(keep_restore(own, dir, "t", NULL), SHARD_OK, NULL);
	cluster_done(&p->c);
}

/* The owner in a manifest is only as good as the users who could write the file. */
static void who_wrote_it(void **state)
{
	static const char *const what[] = {"m", "m/t", "m/t/manifest.json"};
	struct place *p = *state;
	char settings[300], dir[200], path[300];
	shard_client *c;
	const char *own;

	begin(p, p->root, "optimizer=sgd mode=0600");
	own = p->c->node[0].unix_address;
	snprintf(dir, sizeof(dir), "%s/m", p->root);
	keep_must_save(own, "m", dir, "t");
	drop(own);
	snprintf(settings, sizeof(settings),
		 "optimizer=sgd mode=0600 restore_at_start=yes checkpoint_dir=%s", p->root);
	for (size_t i = 0; geteuid() == 0 && i < NR(what); i++) {
		snprintf(path, sizeof(path), "%s/%s", p->root, what[i]);
		CHECK(chown(path, NOBODY, NOBODY) == 0);
		if (i == 0)
			continue; /* A user who may rename the folder has not written the file. */
		c = define_at(own, settings, 0, SHARD_DENIED, "belongs to uid 65534");
		shard_disconnect(&c);
		CHECK(chown(path, 0, 0) == 0);
	}
	/* It waits until the refused model is gone, too. */
	expect(keep_restore(own, dir, "t", NULL), SHARD_OK, NULL);
	cluster_done(&p->c);
}

/* Another node says who asks. Its root is not root here unless the configuration trusts it. Any
 * other user is the same user. */
static void by_way_of_another_node(struct place *p, bool trusted)
{
	bool may = geteuid() != 0 || trusted;

	begin_nodes(p, 2, p->root, "optimizer=sgd",
		    trusted ? "[cluster]\ntrust_remote_root = yes\n" : NULL);
	expect(keep_save(p->c->node[1].unix_address, "m", p->other, trusted ? "t" : "u"),
	       may ? SHARD_OK : SHARD_DENIED,
	       may ? NULL
		   : "only for root of node a, which coordinates, and for uid 0, which its daemon "
		     "runs as: choose one of them, ask there by sudo, or set [daemon] "
		     "checkpoint_roots on all nodes");
	expect(keep_save(p->c->node[1].unix_address, "m", p->root, trusted ? "t" : "u"), SHARD_OK,
	       NULL);
	expect(keep_save(p->c->node[0].unix_address, "m", p->other, "v"), SHARD_OK, NULL);
	if (geteuid() == 0) /* Nobody may make a folder there. */
		expect(keep_save(p->c->node[0].unix_address, "m", "/sys/shard", "v"), SHARD_SYSTEM,
		       "on node a, as on every other one, the folder has to be there, shared, and "
		       "writable for uid 0, which the daemon runs as: `sudo install -d -o 0 "
		       "/sys/shard`");
	cluster_done(&p->c);
}

static void on_another_node(void **state)
{
	by_way_of_another_node(*state, false);
	by_way_of_another_node(*state, true);
}

/* A user who may not name a folder may not name it in a definition either. */
static void by_a_definition(void **state)
{
	static const struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {64}};
	struct place *p = *state;
	char settings[200];
	struct shard_spec s = {.size = sizeof(s),
			       .name = "n",
			       .tensors = &tensor,
			       .tensors_nr = 1,
			       .image = SHARD_F32,
			       .grad = SHARD_F32,
			       .settings = settings};
	shard_client *c;
	shard_model *m;
	int created;

	begin(p, p->root, "optimizer=sgd");
	c = crew_connect(p->c->node[0].tcp_address);
	snprintf(settings, sizeof(settings), "optimizer=sgd checkpoint_dir=%s checkpoint_every=1",
		 p->other);
	expect(shard_define(c, &s, &m, &created), SHARD_DENIED, "checkpoint_roots");
	snprintf(settings, sizeof(settings), "optimizer=sgd checkpoint_dir=%s checkpoint_every=1",
		 p->root);
	expect(shard_define(c, &s, &m, &created), SHARD_OK, NULL);
	shard_disconnect(&c);
	cluster_done(&p->c);
}

/* The root is missing, like a file system that is not mounted. */
static void without_the_root(void **state)
{
	struct place *p = *state;
	char dir[200], away[200];

	begin(p, p->root, "optimizer=sgd");
	snprintf(dir, sizeof(dir), "%s/a", p->root);
	snprintf(away, sizeof(away), "%s.away", p->root);
	expect(keep_save(p->c->node[0].tcp_address, "m", dir, "t"), SHARD_OK, NULL);
	CHECK(rename(p->root, away) == 0);
	expect(keep_restore(p->c->node[0].tcp_address, dir, "t", "m"), SHARD_NOT_FOUND,
	       "there is no such folder");
	CHECK(rename(away, p->root) == 0);
	drop(p->c->node[0].unix_address);
	expect(keep_restore(p->c->node[0].tcp_address, dir, "t", "m"), SHARD_OK, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(below_the_roots, setup, teardown),
		cmocka_unit_test_setup_teardown(the_state, setup, teardown),
		cmocka_unit_test_setup_teardown(what_is_no_checkpoint, setup, teardown),
		cmocka_unit_test_setup_teardown(whose_it_is, setup, teardown),
		cmocka_unit_test_setup_teardown(who_replaces_it, setup, teardown),
		cmocka_unit_test_setup_teardown(who_was_there_before, setup, teardown),
		cmocka_unit_test_setup_teardown(who_wrote_it, setup, teardown),
		cmocka_unit_test_setup_teardown(by_a_definition, setup, teardown),
		cmocka_unit_test_setup_teardown(on_another_node, setup, teardown),
		cmocka_unit_test_setup_teardown(without_the_root, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
