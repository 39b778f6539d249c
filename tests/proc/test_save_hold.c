// SPDX-License-Identifier: Apache-2.0
/* Saves while steps go on. A trap holds up the thread of node b that is about to write its share,
 * before it has read anything. The trainers go on for several steps, and what is then written is
 * the state of the step of the save, bit by bit. It is also whole, or says why not, where meanwhile
 * the chunks of the node move away, the node dies, the model is dropped or a second save is asked
 * for. A node whose memory is all used has training wait until it has read what it saves. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "lib/rmtree.h"
#include "lib/tool.h"
#include "lib/trap.h"
#include "lib/yard.h"
#include "node/state.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NODES = 3, WRITER = 1, STEPS = 6 };
#define BEAT "[cluster]\nmembership = static\nheartbeat_timeout = 5s\nlost_timeout = 60s\n"

static const struct trap_point writes = {.function = "part_write", .workers = ""};

struct held {
	struct yard y;
	char folder[4096]; /* Of the files of the tier on disks: not in /tmp. */
	uint64_t memory_kib;
	uint32_t chunk_elems;
	bool warm; /* Memory outlives the daemons, and steps go through it tile by tile. */
	struct yard_save save;
	struct trap trap;
};

static int setup(void **state)
{
	char name[] = "build/hold-test-XXXXXX";
	struct held *h = calloc(1, sizeof(*h));

	CHECK(h != NULL && mkdtemp(name) != NULL);
	CHECK(realpath(name, h->folder) != NULL);
	keep_init(&h->y.keep);
	h->memory_kib = 256 << 10;
	h->chunk_elems = 1024;
	*state = h;
	return 0;
}

static int teardown(void **state)
{
	struct held *h = *state;

	trap_end(&h->trap);
	cluster_put_away(&h->y.cluster);
	cluster_put_away(&h->y.other);
	keep_free(&h->y.keep);
	rmtree(h->folder);
	free(h);
	return 0;
}

static const char *at(const struct held *h)
{
	return h->y.cluster->node[0].unix_address;
}

static void more(struct held *h, uint64_t steps)
{
	crew_wait_step(&h->y.crew, crew_step(&h->y.crew) + steps);
}

static struct cluster *start(const struct held *h, int nodes, uint32_t replicas)
{
	char extra[5000], model[64];
	struct cluster *c;

	snprintf(extra, sizeof(extra), BEAT "[daemon]\nnvme_dir = %s\nmemory = %luKiB\n", h->folder,
		 (unsigned long)h->memory_kib);
	snprintf(model, sizeof(model), "replicas = %u\nchunk_elems = %u\n", replicas,
		 h->chunk_elems);
	c = cluster_make(nodes, model, extra);
	if (h->warm)
		cluster_warm(c, CLUSTER_TMPFS);
	cluster_up(c);
	return c;
}

static void begin(struct held *h, uint32_t replicas, const char *settings)
{
	h->y.cluster = start(h, NODES, replicas);
	crew_init(&h->y.crew, "m");
	crew_larger(&h->y.crew, CREW_SCALE_MAX);
	h->y.crew.extra = settings;
	h->y.crew.pause_us = 1000;
	yard_add(&h->y.crew, h->y.cluster, (const int[]){2, 0, 0}, true);
	crew_start(&h->y.crew, UINT64_MAX);
	more(h, 3);
	/* The threads that write are there from now on, so that they can be trapped. */
	keep_must_save(at(h), "m", h->y.keep.dir, "before");
}

static void *save(void *arg)
{
	struct yard_save *s = arg;

	s->rc = keep_save(s->address, "m", s->dir, s->tag);
	snprintf(s->text, sizeof(s->text), "%s", shard_error());
	return NULL;
}

/* Returns when node b has what it is to save, and has read none of it. */
static void save_begins(struct held *h)
{
	trap_set(&h->trap, h->y.cluster->node[WRITER].pid, &writes);
	h->save = (struct yard_save){.address = at(h), .dir = h->y.keep.dir, .tag = "held"};
	CHECK(pthread_create(&h->save.thread, NULL, save, &h->save) == 0);
	if (!trap_wait(&h->trap, 20000))
		fail_msg("node b does not write its share");
}

static void save_ends(struct held *h)
{
	trap_end(&h->trap);
	pthread_join(h->save.thread, NULL);
}

/* Another cluster gets the weights of the checkpoint, which must be those of its step. */
static void check_saved(struct held *h, uint64_t step)
{
	h->y.next = h->y.crew;
	h->y.other = start(h, 1, 1);
	keep_must_restore(h->y.other->node[0].unix_address, h->y.keep.dir, "held", NULL);
	crew_check(&h->y.next, h->y.other->node[0].unix_address, step);
	cluster_done(&h->y.other);
}

static void check_trained(struct held *h)
{
	uint64_t last = crew_finish(&h->y.crew);

	for (int n = 0; n < NODES; n++)
		if (h->y.cluster->node[n].pid != 0)
			crew_check(&h->y.crew, h->y.cluster->node[n].unix_address, last);
	cluster_done(&h->y.cluster);
}

static void steps_go_on(struct held *h, uint32_t replicas, const char *settings)
{
	uint64_t step, saved;
	char tag[65];

	if (!trap_here())
		skip();
	begin(h, replicas, settings);
	save_begins(h);
	step = crew_step(&h->y.crew);
	more(h, STEPS);
	save_ends(h);
	if (h->save.rc != SHARD_OK)
		fail_msg("%s", h->save.text);
	saved = keep_newest(h->y.keep.dir, tag);
	assert_string_equal(tag, "held");
	assert_true(saved <= step);
	check_saved(h, saved);
	check_trained(h);
}

static void in_memory(void **state)
{
	steps_go_on(*state, 1, NULL);
}

static void copies(void **state)
{
	steps_go_on(*state, 2, NULL);
}

static void image_codes(void **state)
{
	steps_go_on(*state, 2, "image_codec=int8");
}

static void on_disks(void **state)
{
	steps_go_on(*state, 2, "tier=nvme nvme_cache=4");
}

static void kept_memory(void **state)
{
	struct held *h = *state;

	h->warm = true;
	steps_go_on(h, 1, NULL);
}

/* Chunks of several tiles, of which the last one is short. */
static void large_chunks(void **state)
{
	struct held *h = *state;

	h->chunk_elems = 32768;
	steps_go_on(h, 2, NULL);
}

static void large_chunks_kept(void **state)
{
	struct held *h = *state;

	h->chunk_elems = 32768;
	h->warm = true;
	steps_go_on(h, 2, "image_codec=int8");
}

static void second_save(void **state)
{
	struct held *h = *state;

	if (!trap_here())
		skip();
	begin(h, 2, NULL);
	save_begins(h);
	more(h, 1);
	assert_int_equal(keep_save(at(h), "m", h->y.keep.dir, "second"), SHARD_BUSY);
	if (strstr(shard_error(), "is being saved to") == NULL)
		fail_msg("%s", shard_error());
	save_ends(h);
	assert_int_equal(h->save.rc, SHARD_OK);
	assert_int_equal(keep_count(h->y.keep.dir), 2);
	check_trained(h);
}

static void node_dies(void **state)
{
	struct held *h = *state;

	if (!trap_here())
		skip();
	begin(h, 2, NULL);
	save_begins(h);
	more(h, STEPS);
	trap_kill(&h->trap);
	cluster_wait(h->y.cluster, WRITER, 5000);
	pthread_join(h->save.thread, NULL);
	assert_int_not_equal(h->save.rc, SHARD_OK);
	if (strstr(h->save.text, "node b") == NULL)
		fail_msg("%s", h->save.text);
	assert_int_equal(keep_count(h->y.keep.dir), 1);
	more(h, STEPS); /* Without it. */
	keep_must_save(at(h), "m", h->y.keep.dir, "held");
	check_trained(h);
}

/* Node c comes back without the only copies of its chunks. Node b may not clear its own before the
 * thread that reads them has ended. Then the model comes back from the checkpoint before. */
static void lost(void **state)
{
	struct held *h = *state;

	if (!trap_here())
		skip();
	begin(h, 1, NULL);
	save_begins(h);
	more(h, STEPS);
	cluster_kill(h->y.cluster, 2);
	cluster_spawn(h->y.cluster, 2);
	cluster_wait_log(h->y.cluster, WRITER, "event=lost", 1);
	save_ends(h);
	assert_int_not_equal(h->save.rc, SHARD_OK);
	if (strstr(h->save.text, "node c") == NULL && strstr(h->save.text, "lost") == NULL)
		fail_msg("%s", h->save.text);
	assert_int_equal(keep_count(h->y.keep.dir), 1);
	cluster_wait_log(h->y.cluster, 0, "event=restored", 1);
	more(h, 3);
	check_trained(h);
}

static void chunks_move(void **state)
{
	struct held *h = *state;
	char words[256], tag[65];

	if (!trap_here())
		skip();
	begin(h, 2, NULL);
	save_begins(h);
	snprintf(words, sizeof(words), "drain b --address %s", at(h));
	tool_expect(0, "", "shardctl", words);
	more(h, STEPS);
	save_ends(h);
	if (h->save.rc != SHARD_OK)
		fail_msg("%s", h->save.text);
	check_saved(h, keep_newest(h->y.keep.dir, tag));
	/* Its memory was kept for the save only. */
	cluster_wait_log(h->y.cluster, WRITER, "event=room_given_back", 1);
	check_trained(h);
}

static void *drop(void *address)
{
	shard_client *c = crew_connect(address);

	MUST(shard_drop(c, "m", 1));
	shard_disconnect(&c);
	return NULL;
}

static void dropped(void **state)
{
	struct held *h = *state;
	pthread_t thread;

	if (!trap_here())
		skip();
	begin(h, 2, NULL);
	save_begins(h);
	(void)crew_finish(&h->y.crew);
	CHECK(pthread_create(&thread, NULL, drop, (void *)(uintptr_t)at(h)) == 0);
	cluster_wait_log(h->y.cluster, WRITER, "event=drop ", 1);
	save_ends(h);
	pthread_join(thread, NULL);
	assert_int_not_equal(h->save.rc, SHARD_OK);
	assert_int_equal(keep_count(h->y.keep.dir), 1);
	cluster_done(&h->y.cluster);
}

/* Of the memory of a node, in bytes. What is not for queues is for models. */
static uint64_t budget(const struct held *h, int node, const char *what)
{
	shard_client *c = crew_connect(h->y.cluster->node[node].unix_address);
	static char json[1 << 16];
	size_t bytes = sizeof(json);
	const char *at;

	MUST(shard_stats(c, json, &bytes));
	shard_disconnect(&c);
	at = strstr(json, "\"budget\"");
	CHECK(at != NULL && (at = strstr(at, what)) != NULL);
	return strtoull(strchr(at, ':') + 1, NULL, 10);
}

/* Makes the nodes' memory as large as so many models need, and 200 KiB more. */
static void be_short(struct held *h, uint64_t models)
{
	uint64_t most = 0;

	begin(h, 1, NULL);
	(void)crew_finish(&h->y.crew);
	for (int n = 0; n < NODES; n++) {
		uint64_t need = budget(h, n, "\"used\"") - budget(h, n, "\"queues\"");

		most = need > most ? need : most;
	}
	cluster_done(&h->y.cluster);
	most = models * ((most >> 10) + 1) + 200;
	h->memory_kib = most + most / (SERVER_QUEUED_SHARE - 1) + 1;
	keep_free(&h->y.keep);
	keep_init(&h->y.keep);
}

static void no_memory(void **state)
{
	struct held *h = *state;
	uint64_t step, saved;
	char tag[65];

	if (!trap_here())
		skip();
	be_short(h, 1); /* There are places for a few chunks only. */
	begin(h, 1, NULL);
	save_begins(h);
	assert_in_range(budget(h, WRITER, "\"total\"") - budget(h, WRITER, "\"used\""), 1,
			250 << 10);
	/* Many steps would take less time. */
	for (int i = 0; i < 40; i++)
		(void)budget(h, 0, "\"used\"");
	step = crew_step(&h->y.crew);
	save_ends(h);
	if (h->save.rc != SHARD_OK)
		fail_msg("%s", h->save.text);
	saved = keep_newest(h->y.keep.dir, tag);
	assert_true(step <= saved + 1);
	more(h, 3);
	h->memory_kib = 256 << 10;
	check_saved(h, saved);
	check_trained(h);
}

/* A model that saves by itself keeps the memory for that, until another model needs it. */
static void memory_is_kept(void **state)
{
	struct held *h = *state;
	uint64_t used, kept;
	char settings[256], error[512];

	be_short(h, 2);
	snprintf(settings, sizeof(settings), "checkpoint_every=1000000 checkpoint_dir=%s",
		 h->y.keep.dir);
	begin(h, 1, settings);
	kept = budget(h, WRITER, "\"used\"");
	keep_must_save(at(h), "m", h->y.keep.dir, NULL);
	assert_int_equal(budget(h, WRITER, "\"used\""), kept);
	crew_init(&h->y.next, "n");
	crew_larger(&h->y.next, CREW_SCALE_MAX);
	yard_add(&h->y.next, h->y.cluster, (const int[]){2, 0, 0}, false);
	if (crew_define(&h->y.next, at(h), error) != SHARD_OK)
		fail_msg("%s", error);
	assert_int_equal(cluster_logged(h->y.cluster, WRITER, "event=refused"), 0);
	/* Saves go on without it, and get what is free. */
	used = budget(h, WRITER, "\"used\"");
	keep_must_save(at(h), "m", h->y.keep.dir, NULL);
	assert_true(budget(h, WRITER, "\"used\"") >= used);
	check_trained(h);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(in_memory),   TEST(copies),         TEST(image_codes),       TEST(on_disks),
		TEST(kept_memory), TEST(large_chunks),   TEST(large_chunks_kept), TEST(second_save),
		TEST(node_dies),   TEST(chunks_move),    TEST(dropped),           TEST(no_memory),
		TEST(lost),        TEST(memory_is_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
