// SPDX-License-Identifier: Apache-2.0
/* Tests with real daemons the files of trainers in a checkpoint. They are there when it gets its
 * name, whichever node is asked, and what is no plain file of who asks costs the save, and no older
 * checkpoint. A coordinator that is killed while it copies leaves nothing that can be seen, and the
 * next save clears it away. An older release refuses. What another user does is tried where the
 * test runs as root. */
#include "base/check.h"
#include "lib/drill.h"
#include "lib/keep.h"
#include "lib/crew.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"

#include <fcntl.h>
#include <poll.h>
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
	struct keep keep; /* keep.dir/saved has the checkpoints, keep.dir/given the files. */
	char saved[80], given[80];
};

static int setup(void **state)
{
	struct place *p = calloc(1, sizeof(*p));

	CHECK(p != NULL);
	keep_init(&p->keep);
	CHECK(chmod(p->keep.dir, 0755) == 0);
	snprintf(p->saved, sizeof(p->saved), "%s/saved", p->keep.dir);
	snprintf(p->given, sizeof(p->given), "%s/given", p->keep.dir);
	CHECK(mkdir(p->given, 0755) == 0);
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

static void make(const char *folder, const char *name, const char *text)
{
	char path[300];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	f = fopen(path, "we");
	CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0 && chmod(path, 0644) == 0);
}

static bool there(const char *dir, const char *name)
{
	char path[300];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return access(path, F_OK) == 0;
}

static void has(const struct place *p, const char *name, const char *text)
{
	char path[300], line[64] = "";
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", p->saved, name);
	f = fopen(path, "re");
	if (f == NULL)
		fail_msg("%s is not there", path);
	(void)!fgets(line, sizeof(line), f);
	fclose(f);
	assert_string_equal(line, text);
}

/* Starts nodes below whose root the checkpoints may be, and whose sockets are for everybody. */
static void begin(struct place *p, int nodes, const char *older)
{
	static const struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {64}};
	const struct shard_spec s = {.size = sizeof(s),
				     .name = "m",
				     .tensors = &tensor,
				     .tensors_nr = 1,
				     .image = SHARD_F32,
				     .grad = SHARD_F32,
				     .settings = "optimizer=sgd mode=0666"};
	shard_client *c;
	shard_model *m;
	float w[64] = {1, 2, 3};
	int created;

	p->c = cluster_make(nodes, NULL, NULL);
	for (int n = 0; n < nodes; n++) {
		char command[400];

		snprintf(command, sizeof(command),
			 "sed -i 's|^checkpoint_roots = .*|checkpoint_roots = %s|' %s", p->saved,
			 p->c->node[n].conf);
		assert_int_equal(system(command), 0);
		drill_conf(p->c, n,
			   "[daemon]\nsocket_mode = 0666\n[cluster]\ntrust_remote_root = yes\n");
	}
	CHECK(chmod(p->c->dir, 0755) == 0);
	for (int n = 0; n < nodes; n++) {
		p->c->daemon = n == 0 ? older : NULL;
		cluster_spawn(p->c, n);
	}
	p->c->daemon = NULL;
	for (int n = 0; n < nodes; n++)
		cluster_ready(p->c, n);
	c = crew_connect(p->c->node[nodes - 1].unix_address);
	MUST(shard_define(c, &s, &m, &created));
	assert_int_equal(created, 1);
	MUST(shard_write(m, SHARD_MASTER, 0, 0, 64, SHARD_F32, w));
	MUST(shard_seal(m, 3));
	shard_disconnect(&c);
}

static enum shard_status save(const struct place *p, const char *address, const char *tag)
{
	struct shard_save_opts o = SHARD_INIT(struct shard_save_opts);
	shard_client *c = crew_connect(address);
	enum shard_status rc;
	shard_ticket ticket;
	shard_model *m;

	o.dir = p->saved;
	o.tag = tag;
	o.client = p->given;
	MUST(shard_attach(c, "m", &m));
	rc = shard_save_as(m, &o, &ticket);
	if (rc == SHARD_OK)
		rc = shard_wait(m, ticket, pace_ms(20000));
	shard_disconnect(&c);
	return rc;
}

static void expect(enum shard_status rc, enum shard_status want, const char *part)
{
	if (rc != want || strstr(shard_error(), part) == NULL)
		fail_msg("%s: %s, expected %s with \"%s\"", shard_name(rc),
			 rc != SHARD_OK ? shard_error() : "", shard_name(want), part);
}

static void comes_and_goes(void **state)
{
	struct place *p = *state;
	char words[300], *out;
	shard_client *c;

	begin(p, 2, NULL);
	make(p->given, "rank0.pt", "generator");
	make(p->given, "rank1.pt", "another");
	MUST(save(p, p->c->node[1].unix_address, "one")); /* It does not coordinate. */
	has(p, "one/client/rank0.pt", "generator");
	has(p, "one/client/rank1.pt", "another");
	has(p, "latest", "one\n");
	snprintf(words, sizeof(words), "checkpoints %s --verify", p->saved);
	tool_expect(0, "complete, verified, with 2 files of trainers", "shardctl", words);
	/* A save without files replaces them by none. */
	keep_must_save(p->c->node[0].unix_address, "m", p->saved, "one");
	assert_false(there(p->saved, "one/client"));
	assert_false(there(p->saved, ".one.tmp"));
	/* With other files: those of the last save. */
	MUST(save(p, p->c->node[0].unix_address, "one"));
	make(p->given, "rank0.pt", "later");
	snprintf(words, sizeof(words), "%s/rank1.pt", p->given);
	assert_int_equal(unlink(words), 0);
	MUST(save(p, p->c->node[0].unix_address, "one"));
	has(p, "one/client/rank0.pt", "later");
	assert_false(there(p->saved, "one/client/rank1.pt"));
	keep_flip(p->saved, "one/client", "rank0.pt", 2);
	snprintf(words, sizeof(words), "checkpoints %s --verify", p->saved);
	assert_int_equal(tool_run(&out, "shardctl", words), 1);
	assert_non_null(strstr(out, "client/rank0.pt: damaged"));
	free(out);
	/* They have nothing to do with the weights. */
	c = crew_connect(p->c->node[0].unix_address);
	MUST(shard_drop(c, "m", 1));
	shard_disconnect(&c);
	keep_must_restore(p->c->node[1].unix_address, p->saved, "one", NULL);
	cluster_done(&p->c);
}

static void costs_the_save_alone(void **state)
{
	struct place *p = *state;
	char path[300];

	begin(p, 2, NULL);
	make(p->given, "rank0.pt", "generator");
	MUST(save(p, p->c->node[0].unix_address, "one"));
	snprintf(path, sizeof(path), "%s/way", p->given);
	assert_int_equal(symlink("/etc/passwd", path), 0);
	for (int n = 0; n < 2; n++) {
		expect(save(p, p->c->node[n].unix_address, "one"), SHARD_DENIED,
		       "way is no plain file");
		expect(save(p, p->c->node[n].unix_address, "two"), SHARD_DENIED,
		       "way is no plain file");
	}
	has(p, "one/client/rank0.pt", "generator");
	assert_false(there(p->saved, "two"));
	assert_false(there(p->saved, ".one.tmp") || there(p->saved, ".two.tmp"));
	expect(save(p, p->c->node[0].tcp_address, "two"), SHARD_DENIED, "only a unix socket says");
	assert_int_equal(unlink(path), 0);
	MUST(save(p, p->c->node[1].unix_address, "two"));
	has(p, "two/client/rank0.pt", "generator");
	cluster_done(&p->c);
}

/* Runs `shardctl save` as another user. Exit status 5 is a refusal. */
static void nobody(const struct place *p, int rc, const char *text, const char *folder)
{
	char all[600], *out;
	int got;

	snprintf(all, sizeof(all), "save m --dir %s --tag his --client %s --address %s", p->saved,
		 folder, p->c->node[1].unix_address);
	got = tool_run_as(NOBODY, &out, "shardctl", all);
	/* 97: that user may not read the folder of this build. */
	if (got != 97 && (got != rc || strstr(out, text) == NULL))
		fail_msg("shardctl %s: exit %d, expected %d with \"%s\":\n%s", all, got, rc, text,
			 out);
	free(out);
}

static void of_another_user(void **state)
{
	struct place *p = *state;
	char path[300];

	if (geteuid() != 0)
		skip(); /* It takes root to be another user. */
	begin(p, 2, NULL);
	make(p->given, "rank0.pt", "generator");
	nobody(p, 5, "is no folder of uid 65534", p->given);
	nobody(p, 5, "is no folder of uid 65534", "/root");
	nobody(p, 5, "is no folder of uid 65534", "/nowhere");
	assert_int_equal(chown(p->given, NOBODY, NOBODY), 0);
	nobody(p, 5, "rank0.pt belongs to another user", p->given);
	assert_false(there(p->saved, "his"));
	snprintf(path, sizeof(path), "%s/rank0.pt", p->given);
	assert_int_equal(chown(path, NOBODY, NOBODY), 0);
	nobody(p, 0, "step 3", p->given);
	if (there(p->saved, "his")) {
		struct stat s;

		has(p, "his/client/rank0.pt", "generator");
		snprintf(path, sizeof(path), "%s/his/client/rank0.pt", p->saved);
		assert_int_equal(stat(path, &s), 0);
		assert_int_equal(s.st_uid, 0); /* A copy, which belongs to the daemon. */
		assert_int_equal(s.st_mode & 0777, 0640);
	}
	cluster_done(&p->c);
}

static void *save_thread(void *arg)
{
	struct place *p = arg;

	(void)save(p, p->c->node[1].unix_address, "two"); /* It fails. */
	return NULL;
}

/* The file has a hole of 4 GiB, so that copying it takes a while. */
static void killed_while_it_copies(void **state)
{
	struct place *p = *state;
	char path[300], words[300];
	pthread_t thread;

	begin(p, 2, NULL);
	keep_must_save(p->c->node[0].unix_address, "m", p->saved, "one");
	make(p->given, "rank0.pt", "");
	snprintf(path, sizeof(path), "%s/rank0.pt", p->given);
	assert_int_equal(truncate(path, (off_t)4 << 30), 0);
	assert_int_equal(pthread_create(&thread, NULL, save_thread, p), 0);
	for (int ms = 0; !there(p->saved, ".two.tmp/client/rank0.pt") && ms < pace_ms(20000); ms++)
		(void)poll(NULL, 0, 1);
	cluster_kill(p->c, 0);
	assert_true(there(p->saved, ".two.tmp/client/rank0.pt"));
	assert_false(there(p->saved, "two"));
	has(p, "latest", "one\n");
	cluster_signal(p->c, 1, SIGKILL);
	assert_int_equal(pthread_join(thread, NULL), 0);
	cluster_wait(p->c, 1, pace_ms(10000));
	snprintf(words, sizeof(words), "checkpoints %s", p->saved);
	tool_expect(0, "one ", "shardctl", words);
	for (int n = 0; n < 2; n++)
		cluster_spawn(p->c, n);
	for (int n = 0; n < 2; n++)
		cluster_ready(p->c, n);
	/* The model comes back from its own checkpoint. A save under another tag sweeps. */
	cluster_wait_log(p->c, 0, "event=restored model=m", 1);
	keep_must_save(p->c->node[0].unix_address, "m", p->saved, "three");
	assert_false(there(p->saved, ".two.tmp"));
	cluster_done(&p->c);
}

/* A daemon that does not know the field would write a checkpoint without the files. */
static void an_older_release(void **state)
{
	struct place *p = *state;

	begin(p, 2, "tests/older/shardd");
	make(p->given, "rank0.pt", "generator");
	expect(save(p, p->c->node[0].unix_address, "one"), SHARD_UNSUPPORTED, "upgrade it");
	expect(save(p, p->c->node[1].unix_address, "one"), SHARD_UNSUPPORTED,
	       "node a coordinates, and its release");
	assert_false(there(p->saved, "one"));
	cluster_done(&p->c);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(comes_and_goes),         TEST(costs_the_save_alone), TEST(of_another_user),
		TEST(killed_while_it_copies), TEST(an_older_release),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
