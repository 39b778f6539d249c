// SPDX-License-Identifier: Apache-2.0
/* Chunks that move between real daemons while a crew trains: a node is drained and holds chunks
 * again, the chunks of a node that does not come back get copies elsewhere, nodes are killed -9
 * meanwhile, and a node without room refuses. At the end masters, moments and image equal the
 * reference of the crew bit by bit on each node, and all copies are equal. All trainers are on
 * node a. */
#include "base/clock.h"
#include "core/msg.h"
#include "lib/crew.h"
#include "lib/cutter.h"
#include "lib/hold.h"
#include "lib/moved.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"
#include "wire/ops.h"

#include <jansson.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define BEAT "[cluster]\nheartbeat_timeout = 5s\nlost_timeout = 60s\n"
#define SOON "[cluster]\nheartbeat_timeout = 5s\nlost_timeout = 2s\n"

static const char quorum[] =
	"[cluster]\nmembership = quorum\nelection_timeout = 300ms\nheartbeat_timeout = 5s\n"
	"lost_timeout = 60s\n";

static struct cluster *cluster;
static struct crew *crew;

static void more(uint64_t steps)
{
	crew_wait_step(crew, crew_step(crew) + steps);
}

static uint16_t http_port[CLUSTER_NODES_MAX];

static void begin(const struct moved_plan *p)
{
	moved_begin(&cluster, &crew, p);
}

static int ctl(int node, const char *what)
{
	return moved_ctl(cluster, node, what);
}

static void ends(bool copied)
{
	moved_ends(&cluster, &crew, copied);
}

/* The model, as that node says. The caller gives it back. */
static json_t *model_at(int at)
{
	char words[200], *out = NULL;
	json_t *status, *m;
	json_error_t e;

	snprintf(words, sizeof(words), "status --json --address %s",
		 cluster->node[at].unix_address);
	assert_true(tool_run(&out, "shardctl", words) <= 1); /* 1: something is ill. */
	if ((status = json_loads(out, 0, &e)) == NULL)
		fail_msg("%s", out);
	m = json_incref(json_array_get(json_object_get(status, "models"), 0));
	json_decref(status);
	free(out);
	return m;
}

static long long held(int at, int node)
{
	return moved_held(cluster, at, node);
}

static void wait_held(int at, int node, long long from, long long to)
{
	moved_wait(cluster, at, node, from, to);
}

/* Waits until each chunk has two copies that count, so that the next node may be lost. */
static void wait_copies(int at)
{
	moved_copied(cluster, at);
}

/* Each node is drained in turn, the coordinator too, and holds its share again. */
static void in_turn(const struct moved_plan *p)
{
	char what[64];
	long long share;

	begin(p);
	for (int n = p->nodes - 1; n >= 0; n--) {
		share = held(0, n);
		assert_true(share > 0);
		snprintf(what, sizeof(what), "drain %c", 'a' + n);
		assert_int_equal(ctl(n == 0 ? 1 : 0, what), 0);
		assert_int_equal(held(0, n), 0);
		cluster_wait_log(cluster, n, "event=room_given_back", 1);
		more(5);
		snprintf(what, sizeof(what), "drain --undo %c", 'a' + n);
		assert_int_equal(ctl(0, what), 0);
		assert_in_range(held(0, n), share - 1, share + 1); /* It has waited. */
		more(5);
	}
	ends(strstr(p->extra, "replicas=1") == NULL);
}

static void test_two_copies(void **state)
{
	(void)state;
	in_turn(&(struct moved_plan){.nodes = 3, .conf = BEAT, .extra = "replicas=2", .scale = 1});
}

static void test_large_chunks(void **state)
{
	(void)state;
	in_turn(&(struct moved_plan){.nodes = 3,
				     .conf = BEAT,
				     .extra = "replicas=2 chunk_elems=32768",
				     .scale = 12,
				     .warm = true});
}

static void test_three_copies(void **state)
{
	(void)state;
	in_turn(&(struct moved_plan){.nodes = 4,
				     .conf = BEAT,
				     .extra = "replicas=3 image_codec=int8",
				     .scale = 4,
				     .warm = true});
}

static void test_one_copy(void **state)
{
	(void)state;
	in_turn(&(struct moved_plan){.nodes = 2, .conf = BEAT, .extra = "replicas=1", .scale = 1});
}

static void test_staleness(void **state)
{
	(void)state;
	in_turn(&(struct moved_plan){.nodes = 3,
				     .conf = BEAT,
				     .extra = "replicas=2 max_staleness=1 image_codec=int4",
				     .scale = 4,
				     .warm = true});
}

static void test_own_types(void **state)
{
	(void)state;
	in_turn(&(struct moved_plan){.nodes = 3,
				     .conf = BEAT,
				     .extra = "replicas=2",
				     .scale = 4,
				     .warm = true,
				     .own = true});
	in_turn(&(struct moved_plan){.nodes = 3,
				     .conf = BEAT,
				     .extra = "replicas=1 max_staleness=1",
				     .scale = 4,
				     .warm = true,
				     .own = true});
}

static void test_elected(void **state)
{
	(void)state;
	in_turn(&(struct moved_plan){
		.nodes = 3, .conf = quorum, .extra = "replicas=2", .scale = 1, .warm = true});
}

/* A drained node may be killed for good, and training does not notice. */
static void test_drained_is_killed(void **state)
{
	(void)state;
	begin(&(struct moved_plan){.nodes = 3, .conf = BEAT, .extra = "replicas=2", .scale = 1});
	assert_int_equal(ctl(1, "drain c"), 0);
	cluster_kill(cluster, 2);
	more(10);
	ends(true);
}

/* A drained node that starts again is still drained, with and without the memory before. */
static void test_drained_starts_again(bool warm)
{
	char words[200];

	begin(&(struct moved_plan){
		.nodes = 3, .conf = BEAT, .extra = "replicas=2", .scale = 1, .warm = warm});
	assert_int_equal(ctl(0, "drain c"), 0);
	cluster_kill(cluster, 2);
	more(3);
	cluster_spawn(cluster, 2);
	cluster_ready(cluster, 2);
	more(10);
	assert_int_equal(held(0, 2), 0);
	snprintf(words, sizeof(words), "drain --undo --no-wait c --address %s",
		 cluster->node[2].unix_address);
	tool_expect(0, "node c gets its share of chunks again", "shardctl", words);
	wait_held(0, 2, 1, 1000);
	ends(true);
}

static void test_drained_cold(void **state)
{
	(void)state;
	test_drained_starts_again(false);
}

static void test_drained_warm(void **state)
{
	(void)state;
	test_drained_starts_again(true);
}

/* All nodes are killed after a move and start again, with the memory before. */
static void test_all_warm(void **state)
{
	(void)state;
	begin(&(struct moved_plan){
		.nodes = 3, .conf = BEAT, .extra = "replicas=2", .scale = 1, .warm = true});
	for (int i = 0; i < 2; i++)
		crew->member[i].reconnects = true;
	assert_int_equal(ctl(0, "drain b"), 0);
	more(3);
	for (int n = 0; n < 3; n++)
		cluster_kill(cluster, n);
	for (int n = 0; n < 3; n++)
		cluster_spawn(cluster, n);
	for (int n = 0; n < 3; n++)
		cluster_ready(cluster, n);
	more(5);
	assert_int_equal(held(0, 1), 0);
	assert_int_equal(ctl(0, "drain --undo --no-wait b"), 0);
	wait_held(0, 1, 1, 1000);
	more(3);
	ends(true);
}

/* A node does not come back: after lost_timeout the others have all copies, and the next one may
 * be lost. */
static void test_made_elsewhere(void **state)
{
	(void)state;
	begin(&(struct moved_plan){.nodes = 4, .conf = SOON, .extra = "replicas=2", .scale = 4});
	cluster_kill(cluster, 3);
	cluster_wait_log(cluster, 0, "event=moved", 1);
	more(3);
	assert_int_equal(ctl(0, "verify moved"), 0);
	cluster_kill(cluster, 2);
	cluster_wait_log(cluster, 0, "event=moved", 2);
	more(3);
	ends(true);
}

/* Nodes are killed at many moments of a move. */
static void test_killed_meanwhile(void **state)
{
	(void)state;
	begin(&(struct moved_plan){.nodes = 4,
				   .conf = BEAT,
				   .extra = "replicas=2 chunk_elems=1024",
				   .scale = 8,
				   .warm = true});
	for (int i = 0; i < 8; i++) {
		int victim = 1 + i % 3;

		assert_int_equal(ctl(0, i % 2 ? "drain --undo --no-wait d" : "drain --no-wait d"),
				 0);
		usleep((useconds_t)(3000 * i)); /* Some moment of it. */
		cluster_kill(cluster, victim);
		more(2);
		cluster_spawn(cluster, victim);
		cluster_ready(cluster, victim);
		wait_copies(0);
	}
	wait_held(0, 3, 1, 1000);
	ends(false);
}

/* No chunk that it is to hold has come when a node is killed, so that it makes no image again. */
static void test_killed_before_the_first_chunk(void **state)
{
	uint32_t learning;

	(void)state;
	begin(&(struct moved_plan){.nodes = 4,
				   .conf = BEAT,
				   .extra = "replicas=2 chunk_elems=1024",
				   .scale = 8,
				   .warm = true,
				   .between = true});
	assert_int_equal(ctl(0, "drain d"), 0);
	learning = cluster_logged(cluster, 3, "event=learning ");
	cutter_lose(cluster->cutter, OP_COPY_DATA);
	assert_int_equal(ctl(0, "drain --undo --no-wait d"), 0);
	cluster_wait_log(cluster, 3, "event=learning ", learning + 1);
	more(2);
	cluster_kill(cluster, 3);
	cluster_spawn(cluster, 3);
	cluster_ready(cluster, 3);
	cutter_lose(cluster->cutter, 0);
	wait_held(0, 3, 1, 1000);
	more(3);
	ends(true);
}

/* A node that comes back with its memory has lost its chunks meanwhile, and hears of that while it
 * still makes the images of its older step again. */
static void test_drained_while_it_settles(void **state)
{
	struct hold before = {0}, h = {0};
	uint32_t begun;

	(void)state;
	begin(&(struct moved_plan){.nodes = 4,
				   .conf = BEAT,
				   .extra = "replicas=2 chunk_elems=1024",
				   .scale = 8,
				   .warm = true});
	assert_true(held(0, 3) > 0);
	hold_threads(&before, cluster->node[3].pid, "shardd-w"); /* No step ends, and so no move. */
	assert_int_equal(ctl(0, "drain --no-wait d"), 0);
	hold_kill(&before, cluster->node[3].pid);
	cluster_kill(cluster, 3);
	begun = cluster_logged(cluster, 3, "event=begin model=");
	more(5);
	cluster_spawn(cluster, 3);
	hold_start(&h, cluster->node[3].pid, "shardd-w", 1);
	cluster_wait_log(cluster, 3, "event=model_kept", 1);
	/* It has taken the view, and a step. Only if it was killed in the middle of a step does it
	 * need its worker before it takes a view. */
	if (cluster_logged(cluster, 3, " phase=0") > 0)
		cluster_wait_log(cluster, 3, "event=begin model=", begun + 1);
	hold_release(&h);
	cluster_ready(cluster, 3);
	more(5);
	assert_int_equal(ctl(0, "drain --undo --no-wait d"), 0);
	wait_held(0, 3, 1, 1000);
	ends(true);
}

/* The coordinator is killed at many moments of a move, and another one goes on with it. */
static void test_coordinator_killed(void **state)
{
	(void)state;
	begin(&(struct moved_plan){.nodes = 4,
				   .conf = quorum,
				   .extra = "replicas=2 chunk_elems=1024",
				   .scale = 8,
				   .warm = true});
	for (int i = 0; i < 2; i++)
		crew->member[i].reconnects = true;
	for (int i = 0; i < 6; i++) {
		int victim = i % 3;

		assert_int_equal(ctl(victim == 0 ? 1 : 0,
				     i % 2 ? "drain --undo --no-wait d" : "drain --no-wait d"),
				 0);
		usleep((useconds_t)(5000 * i)); /* Some moment of it. */
		cluster_kill(cluster, victim);
		cluster_spawn(cluster, victim);
		cluster_ready(cluster, victim);
		more(3);
	}
	wait_held(0, 3, 1, 1000);
	ends(false);
}

/* The node that leads, by its log. */
static int leads(void)
{
	uint64_t until = pace_by(20);

	while (clock_ns() < until) {
		for (int n = 0; n < cluster->nodes_nr; n++)
			if (cluster_logged(cluster, n, "event=leading") >
			    cluster_logged(cluster, n, "event=not_leading"))
				return n;
		usleep(10000);
	}
	fail_msg("no node leads");
	return -1;
}

/* A view that gives chunks to others is durable, and its coordinator dies for good before anybody
 * hears of it. All others start again. Whoever leads then makes the memory that the view gives to
 * it before it adopts the view. */
static void test_led_without_room(void **state)
{
	char what[64];
	int leader, drained;
	uint32_t views;

	(void)state;
	begin(&(struct moved_plan){.nodes = 4,
				   .conf = quorum,
				   .extra = "replicas=2",
				   .scale = 4,
				   .warm = true,
				   .between = true});
	for (int i = 0; i < 2; i++)
		crew->member[i].reconnects = true;
	leader = leads();
	drained = leader == 3 ? 2 : 3;
	views = cluster_logged(cluster, leader, "event=view ");
	cutter_lose(cluster->cutter, OP_CORE + CORE_VIEW);
	snprintf(what, sizeof(what), "drain --no-wait %c", 'a' + drained);
	assert_int_equal(ctl(leader, what), 0);
	cluster_wait_log(cluster, leader, "event=view ", views + 1);
	for (int n = 0; n < 4; n++)
		cluster_kill(cluster, n);
	cutter_lose(cluster->cutter, 0);
	for (int n = 0; n < 4; n++)
		if (n != leader || n == 0) /* The trainers are on node a. */
			cluster_spawn(cluster, n);
	for (int n = 0; n < 4; n++)
		if (n != leader || n == 0)
			cluster_ready(cluster, n);
	more(3);
	if (leader != 0)
		cluster_spawn(cluster, leader);
	wait_held(0, drained, 0, 0);
	more(3);
	ends(false);
}

/* The file of the model in the state folder of node a. It is replaced, never written anew. */
static ino_t model_file(void)
{
	struct dirent *d;
	struct stat st;
	ino_t found = 0;
	DIR *dir = opendir(cluster->node[0].state);

	assert_non_null(dir);
	while ((d = readdir(dir)) != NULL)
		if (strncmp(d->d_name, "model-", 6) == 0 && strstr(d->d_name, ".tmp") == NULL &&
		    fstatat(dirfd(dir), d->d_name, &st, 0) == 0)
			found = st.st_ino;
	closedir(dir);
	return found;
}

/* Kills node a when the view that gives it chunks is on its disk and before it adopts it. False:
 * the moment was missed. */
static bool killed_with_view(void)
{
	struct hold h = {.nr = 0};
	ino_t file = model_file();
	uint32_t views = cluster_logged(cluster, 0, "event=view ");
	uint64_t until = pace_by(30);

	assert_int_equal(ctl(1, "drain --undo --no-wait a"), 0);
	while (model_file() == file)
		if (clock_ns() > until)
			fail_msg("no view is written");
	hold_main(&h, cluster->node[0].pid);
	if (cluster_logged(cluster, 0, "event=view ") == views) {
		hold_kill(&h, cluster->node[0].pid);
		(void)cluster_wait(cluster, 0, 5000);
		return true;
	}
	hold_release(&h);
	return false;
}

/* A coordinator that starts with a view on its disk that gives it more than its memory was made
 * for makes that first. */
static void test_started_without_room(void **state)
{
	bool killed = false;

	(void)state;
	begin(&(struct moved_plan){
		.nodes = 3, .conf = BEAT, .extra = "replicas=2", .scale = 4, .warm = true});
	for (int i = 0; i < 2; i++)
		crew->member[i].reconnects = true;
	for (int i = 0; i < 50 && !killed; i++) {
		assert_int_equal(ctl(1, "drain a"), 0);
		killed = killed_with_view();
	}
	assert_true(killed);
	cluster_spawn(cluster, 0);
	cluster_ready(cluster, 0);
	wait_held(0, 0, 1, 1000);
	more(3);
	ends(true);
}

/* The need of that model on that node, as its daemon has logged. */
static unsigned long long need_of(int node)
{
	char *log = cluster_log(cluster, node), *at = strstr(log, " event=model model=moved ");
	unsigned long long bytes = 0;

	assert_non_null(at);
	assert_non_null(at = strstr(at, " bytes="));
	assert_int_equal(sscanf(at, " bytes=%llu", &bytes), 1);
	free(log);
	return bytes;
}

/* A node that joins has no room for chunks. It is started again with more memory, and gets them at
 * once. */
static void test_more_memory(void **state)
{
	char conf[100];
	uint64_t step;
	int d, e;

	(void)state;
	begin(&(struct moved_plan){.nodes = 2, .conf = BEAT, .extra = "replicas=2", .scale = 12});
	d = cluster_joiner(cluster, 1, "[daemon]\ncapacity = 0\n");
	cluster_spawn(cluster, d);
	cluster_wait_log(cluster, d, " event=model model=moved ", 1);
	snprintf(conf, sizeof(conf), "[daemon]\nmemory = %lluKiB\n",
		 (need_of(d) + (64 << 10)) * 16 / 15 / 1024);
	e = cluster_joiner(cluster, 1, conf);
	cluster_spawn(cluster, e);
	cluster_wait_log(cluster, 0, "event=not_moved model=moved", 1);
	cluster_kill(cluster, e);
	setenv("SHARD_MEMORY", "256MiB", 1);
	cluster_spawn(cluster, e);
	unsetenv("SHARD_MEMORY");
	cluster_wait_log(cluster, e, " event=model model=moved ", 2);
	step = crew_step(crew);
	wait_held(0, e, 1, 1000);
	/* Without a reason to, a node that refused is asked again after 15 s, which are some 1,100
	 * steps. */
	assert_in_range(crew_step(crew) - step, 0, 300);
	ends(true);
}

/* The next table is wanted before the step in hand is over, at whose end the move to the first one
 * begins. */
static void test_changed_early(void **state)
{
	(void)state;
	begin(&(struct moved_plan){.nodes = 4,
				   .conf = BEAT,
				   .extra = "replicas=2",
				   .scale = 4,
				   .warm = true,
				   .pause_us = 300000});
	for (int i = 0; i < 3; i++) {
		uint32_t moves = cluster_logged(cluster, 0, "event=moving ");

		assert_int_equal(ctl(0, "drain --no-wait c"), 0);
		cluster_wait_log(cluster, 0, "event=moving ", moves + 1);
		assert_int_equal(ctl(0, "drain --no-wait d"), 0);
		assert_int_equal(ctl(0, "drain --undo --no-wait c"), 0);
		wait_held(0, 3, 0, 0);
		wait_held(0, 2, 1, 1000);
		assert_int_equal(ctl(0, "drain --undo --no-wait d"), 0);
		wait_held(0, 3, 1, 1000);
	}
	ends(true);
}

/* A save while chunks move is whole, and the model comes back from it. */
static void test_saved(void **state)
{
	char what[200];

	(void)state;
	begin(&(struct moved_plan){.nodes = 3, .conf = BEAT, .extra = "replicas=2", .scale = 4});
	assert_int_equal(ctl(0, "drain --no-wait c"), 0);
	snprintf(what, sizeof(what), "save moved --dir %s/saved", cluster->dir);
	assert_int_equal(ctl(0, what), 0);
	wait_held(0, 2, 0, 0);
	assert_int_equal(ctl(0, what), 0);
	snprintf(what, sizeof(what), "checkpoints --verify %s/saved", cluster->dir);
	assert_int_equal(tool_run(NULL, "shardctl", what), 0);
	ends(true);
}

static long long of_moving(int at, const char *key)
{
	json_t *m = model_at(at), *o = json_object_get(json_object_get(m, "moving"), key);
	long long nr =
		json_is_real(o) ? (long long)(json_real_value(o) * 1000) : json_integer_value(o);

	json_decref(m);
	return nr;
}

/* Two nodes cannot hold two copies without one of them: the command says so and ends. */
static void test_too_few(void **state)
{
	char words[200];
	json_t *m;

	(void)state;
	begin(&(struct moved_plan){.nodes = 2, .conf = BEAT, .extra = "replicas=2", .scale = 1});
	snprintf(words, sizeof(words), "drain b --timeout 3 --address %s",
		 cluster->node[0].unix_address);
	tool_expect(1, "add a node first", "shardctl", words);
	/* So it is at a node that does not coordinate. */
	snprintf(words, sizeof(words), "drain b --timeout 8 --address %s",
		 cluster->node[1].unix_address);
	tool_expect(1, "add a node first", "shardctl", words);
	assert_true(of_moving(0, "since_s") > 0); /* Over all tries that were refused. */
	m = model_at(0);
	assert_string_equal(
		json_string_value(json_object_get(json_object_get(m, "moving"), "state")),
		"refused");
	json_decref(m);
	more(3);
	assert_int_equal(ctl(0, "drain --undo --no-wait b"), 0);
	ends(true);
}

static double metric(int at, const char *name, const char *more)
{
	return moved_metric(http_port[at], name, more);
}

static void wait_metric(int at, const char *name, const char *more, double least, double most)
{
	moved_wait_metric(http_port[at], name, more, least, most);
}

static void memory_adds_up(int at)
{
	json_t *m = model_at(at), *memory = json_object_get(m, "memory"), *bytes;
	long long sum = 0, total = json_integer_value(json_object_get(memory, "total"));
	const char *item;

	json_object_foreach(memory, item, bytes)
		sum += strcmp(item, "total") != 0 ? json_integer_value(bytes) : 0;
	assert_int_equal(sum, total);
	json_decref(m);
}

/* A drain is looked at while the copies that it makes do not arrive: status and metrics say how
 * many chunks there are to go, and since when. Afterwards they say that nothing moves, and the
 * memory of the chunks that came is among the items of their nodes. */
static void test_seen(void **state)
{
	double before[3];
	char words[200];
	long long copies;

	(void)state;
	begin(&(struct moved_plan){.nodes = 3,
				   .conf = BEAT,
				   .extra = "replicas=2",
				   .scale = 4,
				   .between = true,
				   .http_port = http_port});
	for (int n = 0; n < 3; n++) {
		before[n] = metric(n, "shardd_model_memory_bytes", ",item=\"state\"");
		assert_true(before[n] > 0);
		assert_true(metric(n, "shardd_moving_bytes", "") == 0);
	}
	assert_true(metric(0, "shardd_move_age_seconds", "") == 0);
	assert_true(metric(1, "shardd_move_age_seconds", "") == -1); /* It does not coordinate. */
	copies = held(0, 2);
	cutter_lose(cluster->cutter, OP_COPY_DATA);
	assert_int_equal(ctl(0, "drain --no-wait c"), 0);
	wait_metric(0, "shardd_move_state", ",state=\"moving\"", 1, 1);
	wait_metric(0, "shardd_move_age_seconds", "", 0.001, 1000);
	wait_metric(0, "shardd_moving_bytes", "", 1, 1e12);
	wait_metric(1, "shardd_moving_bytes", "", 1, 1e12);
	assert_true(metric(2, "shardd_moving_bytes", "") == 0);
	assert_true(metric(0, "shardd_moving_copies", "") + metric(1, "shardd_moving_copies", "") ==
		    (double)copies);
	assert_int_equal(of_moving(0, "copies_left"), copies);
	assert_true((double)of_moving(0, "bytes_left") ==
		    metric(0, "shardd_moving_bytes", "") + metric(1, "shardd_moving_bytes", ""));
	assert_true(of_moving(0, "since_s") > 0);
	snprintf(words, sizeof(words), "status --address %s", cluster->node[0].unix_address);
	tool_expect(0, "copies of chunks to go, ", "shardctl", words);
	more(5);
	cutter_lose(cluster->cutter, 0);
	wait_held(0, 2, 0, 0);
	wait_metric(0, "shardd_move_state", ",state=\"moving\"", 0, 0);
	wait_metric(0, "shardd_move_age_seconds", "", 0, 0);
	for (int n = 0; n < 3; n++) {
		wait_metric(n, "shardd_moving_copies", "", 0, 0);
		if (n == 2)
			cluster_wait_log(cluster, n, "event=room_given_back", 1);
		memory_adds_up(n);
	}
	wait_metric(0, "shardd_model_memory_bytes", ",item=\"state\"", before[0] + 1, 1e12);
	wait_metric(1, "shardd_model_memory_bytes", ",item=\"state\"", before[1] + 1, 1e12);
	wait_metric(2, "shardd_model_memory_bytes", ",item=\"state\"", 0, before[2] - 1);
	ends(true);
}

/* A plan that gives chunks to a node that is down says so, and that is why it is not carried out.
 */
static void test_plan_of_away(void **state)
{
	char *out;
	int rc;

	(void)state;
	begin(&(struct moved_plan){.nodes = 3, .conf = BEAT, .extra = "replicas=2", .scale = 4});
	cluster_kill(cluster, 2);
	setenv("SHARD_CAPACITY", "2", 1);
	cluster_spawn(cluster, 2);
	unsetenv("SHARD_CAPACITY");
	cluster_ready(cluster, 2);
	cluster_wait_log(cluster, 2, "event=learned", 1);
	more(3);
	out = moved_said(cluster, 0, "rebalance --dry-run", &rc);
	assert_null(strstr(out, "down"));
	free(out);
	cluster_kill(cluster, 2);
	more(3);
	out = moved_said(cluster, 1, "rebalance --dry-run", &rc);
	if (rc != 0 || strstr(out, "; it is down, and nothing is copied") == NULL ||
	    strstr(out, "not now: node c is down") == NULL)
		fail_msg("%s", out);
	free(out);
	assert_int_equal(ctl(1, "rebalance --no-wait"), 0);
	cluster_wait_log(cluster, 0, "event=not_moved model=moved why=\"node c is down", 1);
	ends(false);
}

/* What is asked for wrongly is refused by name. */
static void test_refused(void **state)
{
	char words[200];

	(void)state;
	begin(&(struct moved_plan){.nodes = 2, .conf = BEAT, .extra = "replicas=2", .scale = 1});
	snprintf(words, sizeof(words), "drain x --address %s", cluster->node[0].unix_address);
	tool_expect(5, "no node \"x\"", "shardctl", words);
	snprintf(words, sizeof(words), "drain b --address %s", cluster->node[0].tcp_address);
	tool_expect(5, "only root", "shardctl", words);
	snprintf(words, sizeof(words), "rebalance none --address %s",
		 cluster->node[1].unix_address);
	tool_expect(5, "no model \"none\"", "shardctl", words);
	snprintf(words, sizeof(words), "rebalance --dry-run --address %s",
		 cluster->node[1].unix_address);
	tool_expect(0, "0 copies to make", "shardctl", words);
	ends(true);
}

static int cleanup(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_two_copies, cleanup),
		cmocka_unit_test_teardown(test_large_chunks, cleanup),
		cmocka_unit_test_teardown(test_three_copies, cleanup),
		cmocka_unit_test_teardown(test_one_copy, cleanup),
		cmocka_unit_test_teardown(test_staleness, cleanup),
		cmocka_unit_test_teardown(test_own_types, cleanup),
		cmocka_unit_test_teardown(test_elected, cleanup),
		cmocka_unit_test_teardown(test_drained_is_killed, cleanup),
		cmocka_unit_test_teardown(test_drained_cold, cleanup),
		cmocka_unit_test_teardown(test_drained_warm, cleanup),
		cmocka_unit_test_teardown(test_all_warm, cleanup),
		cmocka_unit_test_teardown(test_made_elsewhere, cleanup),
		cmocka_unit_test_teardown(test_killed_meanwhile, cleanup),
		cmocka_unit_test_teardown(test_killed_before_the_first_chunk, cleanup),
		cmocka_unit_test_teardown(test_drained_while_it_settles, cleanup),
		cmocka_unit_test_teardown(test_coordinator_killed, cleanup),
		cmocka_unit_test_teardown(test_led_without_room, cleanup),
		cmocka_unit_test_teardown(test_started_without_room, cleanup),
		cmocka_unit_test_teardown(test_more_memory, cleanup),
		cmocka_unit_test_teardown(test_changed_early, cleanup),
		cmocka_unit_test_teardown(test_saved, cleanup),
		cmocka_unit_test_teardown(test_too_few, cleanup),
		cmocka_unit_test_teardown(test_plan_of_away, cleanup),
		cmocka_unit_test_teardown(test_refused, cleanup),
		cmocka_unit_test_teardown(test_seen, cleanup),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
