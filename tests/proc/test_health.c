// SPDX-License-Identifier: Apache-2.0
/* What goes wrong is seen from every node, and by everything that shows health: `shardctl status`
 * and its exit code, doctor's check "cluster", /healthz and the JSON of /status. Each test brings
 * one fault about: a rank that does nothing, a dead node, a lost model, trainers that are missing,
 * a checkpoint that fails, a pause, another secret, other settings, too little memory. What has set
 * a model back is told afterwards, and the events are kept. */
#include "base/clock.h"
#include "lib/keep.h"
#include "lib/moved.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/secrets.h"
#include "lib/tool.h"
#include "lib/trainer.h"
#include "lib/web.h"

#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define WAIT_S     40
#define SAID_BYTES 4096

static struct cluster *cluster;
static uint16_t http_port[2];

static void spawn(int node)
{
	web_spawn(cluster, node, &http_port[node]);
}

static void serve(const char *extra)
{
	cluster = cluster_make(2, "chunk_elems = 1Ki\n", extra);
	web_spawn_all(cluster, http_port);
}

/* --- what each of the tools says --- */

/* The line of the text that begins with `begin` and has `part` in it. */
static bool has_line(const char *text, const char *begin, const char *part)
{
	const char *end;

	for (; *text != 0; text = *end != 0 ? end + 1 : end) {
		const char *found;

		end = text + strcspn(text, "\n");
		found = strstr(text, part);
		if (strncmp(text, begin, strlen(begin)) == 0 && found != NULL && found < end)
			return true;
	}
	return false;
}

/* level NULL: nothing is wrong. Takes the text of a tool, and keeps it in `why` if it is not ok. */
static bool judged(bool ok, char *text, char why[SAID_BYTES])
{
	if (!ok)
		snprintf(why, SAID_BYTES, "%s", text);
	free(text);
	return ok;
}

static bool all_say(int node, const char *level, const char *part, char why[SAID_BYTES])
{
	bool ill = level != NULL && strcmp(level, "ill") == 0;
	char line[16], doctor[300], *out = NULL;
	int rc;

	snprintf(line, sizeof(line), "%s: ", level != NULL ? level : "");
	out = moved_said(cluster, node, "status --timeout 30", &rc);
	if (!judged(rc == ill && (level != NULL ? has_line(out, line, part)
						: strncmp(out, "ok\n", 3) == 0),
		    out, why))
		return false;
	out = strdup(moved_http(http_port[node], "/healthz"));
	if (!judged(strstr(out, ill ? " 503 " : " 200 OK") != NULL &&
			    (level != NULL ? has_line(out, line, part)
					   : strstr(out, "\r\n\r\nok\n") != NULL),
		    out, why))
		return false;
	snprintf(doctor, sizeof(doctor), "doctor --timeout 30 --config %s --address %s",
		 cluster->node[node].conf, cluster->node[node].unix_address);
	rc = tool_run(&out, "shardctl", doctor);
	snprintf(line, sizeof(line), "%s  cluster", ill ? "fail" : level != NULL ? "warn" : "ok  ");
	return judged((!ill || rc == 1) && has_line(out, line, part), out, why);
}

static void seen_at(int node, const char *level, const char *part)
{
	uint64_t until = pace_by(WAIT_S);
	char why[SAID_BYTES];

	while (!all_say(node, level, part, why)) {
		if (clock_ns() > until)
			fail_msg("node %c does not say \"%s: %s\": %s", 'a' + node,
				 level != NULL ? level : "ok", part, why);
		(void)poll(NULL, 0, 50); /* Not to ask thousands of times. */
	}
}

static void seen(const char *level, const char *part)
{
	seen_at(0, level, part);
	seen_at(1, level, part);
}

static void well(void)
{
	seen(NULL, "");
}

static void says(int node, const char *what, int rc, const char *part)
{
	int is;
	char *out = moved_said(cluster, node, what, &is);

	if (is != rc || strstr(out, part) == NULL)
		fail_msg("%s: %d, not %d with \"%s\": %s", what, is, rc, part, out);
	free(out);
}

static void train(struct trainer *t, int steps)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket ticket;

	for (int i = 0; i < steps; i++) {
		trainer_begin(t);
		trainer_push_all(t, 0.5f);
		EXPECT(SHARD_OK, shard_commit(t->model, &ticket));
		EXPECT(SHARD_OK, shard_result(t->model, ticket, 20000, &r));
	}
}

/* --- the faults --- */

static void test_rank_stands(void **state)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket ticket;
	struct trainer t;

	(void)state;
	serve(NULL);
	well();
	for (int n = 0; n < 2; n++) /* Behind each other node: what carries tensors, and why. */
		says(n, "status", 0, ", tensors by tcp: ");
	trainer_join(&t, cluster->node[0].unix_address, SHARD_F32, SHARD_F32);
	train(&t, 6);
	trainer_begin(&t); /* And it pushes nothing. */
	seen("warn", "\"gpt\" has made no step for ");
	seen("warn", "; it waits for rank 0 (pid ");
	trainer_push_all(&t, 0.5f);
	EXPECT(SHARD_OK, shard_commit(t.model, &ticket));
	EXPECT(SHARD_OK, shard_result(t.model, ticket, 20000, &r));
	train(&t, 1);
	trainer_end(&t);
	seen("warn", "\"gpt\" waits at step 8 for 1 more trainer: 0 of at least 1 joined");
	for (int n = 0; n < 2; n++) /* Nobody is in a world, whoever was in the last one. */
		says(n, "model list", 0, " 8    1      0 waiting ");
	says(1, "status --json", 0, "\"world\":[],\"joined\":0");
	says(1, "model drop gpt", 0, "");
	well();
	cluster_done(&cluster);
}

/* How long the model has made no step, as status says it. Negative: it does not. */
static double stood(void)
{
	static const char words[] = "\"gpt\" has made no step for ";
	int rc;
	char *out = moved_said(cluster, 0, "status", &rc), *at = strstr(out, words);
	double s = at != NULL ? strtod(at + sizeof(words) - 1, NULL) : -1;

	free(out);
	return s;
}

static double await_stood(double at_least)
{
	uint64_t until = pace_by(WAIT_S);
	double s;

	while ((s = stood()) < at_least) {
		if (clock_ns() > until)
			fail_msg("\"gpt\" has stood for %g s, not %g s", s, at_least);
		(void)poll(NULL, 0, 50);
	}
	return s;
}

/* Trainers come and die before they have made a step, again and again. */
static void test_crash_loop(void **state)
{
	struct trainer t;

	(void)state;
	serve(NULL);
	trainer_join(&t, cluster->node[0].unix_address, SHARD_F32, SHARD_F32);
	train(&t, 6);
	trainer_begin(&t);
	(void)await_stood(8);
	shard_detach(&t.model);
	shard_disconnect(&t.client);
	seen("warn", "\"gpt\" waits at step 6 for 1 more trainer");
	trainer_join(&t, cluster->node[0].unix_address, SHARD_F32, SHARD_F32);
	trainer_begin(&t);
	assert_true(await_stood(0) >= 8); /* What it stood before counts. */
	shard_detach(&t.model);
	shard_disconnect(&t.client);
	cluster_done(&cluster);
}

static void test_node_dead(void **state)
{
	(void)state;
	serve(NULL);
	cluster_kill(cluster, 1);
	seen_at(0, "ill", "node b is down: ");
	assert_non_null(strstr(moved_http(http_port[0], "/livez"), " 200 OK"));
	assert_non_null(strstr(moved_http(http_port[0], "/readyz"), " 200 OK"));
	spawn(1);
	cluster_ready(cluster, 1);
	well();
	cluster_kill(cluster, 0); /* It coordinates. */
	seen_at(1, "ill", "node a is down: ");
	assert_non_null(strstr(moved_http(http_port[1], "/livez"), " 200 OK"));
	assert_non_null(strstr(moved_http(http_port[1], "/readyz"), " 503 "));
	spawn(0);
	cluster_ready(cluster, 0);
	well();
	cluster_done(&cluster);
}

static void test_lost(void **state)
{
	struct trainer t;

	(void)state;
	serve(NULL);
	trainer_join(&t, cluster->node[0].unix_address, SHARD_F32, SHARD_F32);
	train(&t, 3);
	cluster_kill(cluster, 1);
	spawn(1); /* Without its memory. */
	cluster_ready(cluster, 1);
	seen("ill", "\"gpt\" is lost: node b started again");
	seen("ill", "`shardctl restore DIR`");
	seen("ill", "`shardctl model drop gpt`");
	shard_detach(&t.model);
	shard_disconnect(&t.client);
	says(1, "model drop gpt", 0, "");
	well();
	cluster_done(&cluster);
}

/* The model comes back from a checkpoint within milliseconds, and every node tells of it. */
static void test_set_back(void **state)
{
	static const char *const at_the_end[] = {"lost", "set_back", "link_down"};
	char save[200], words[64];
	struct trainer t;
	struct keep keep;

	(void)state;
	serve(NULL);
	keep_init(&keep);
	trainer_join(&t, cluster->node[0].unix_address, SHARD_F32, SHARD_F32);
	train(&t, 3);
	snprintf(save, sizeof(save), "save gpt --dir %s", keep.dir);
	says(0, save, 0, "");
	train(&t, 4);
	for (int n = 0; n < 2; n++)
		says(n, "status", 0, "  checkpoint: global_step3, ");
	cluster_kill(cluster, 1);
	spawn(1);
	cluster_ready(cluster, 1);
	cluster_wait_log(cluster, 0, "event=set_back", 1);
	snprintf(words, sizeof(words), "event=set_back model=gpt from=7 to=3");
	assert_int_equal(cluster_logged(cluster, 0, words), 1);
	says(0, "status", 0, "  set back: came back from global_step3 at ");
	says(0, "status", 0, ", step 7 -> 3, because node b started again");
	for (size_t i = 0; i < sizeof(at_the_end) / sizeof(at_the_end[0]); i++)
		says(0, "events", 0, at_the_end[i]);
	says(0, "status --json", 0, "\"losses\":1,\"steps_lost\":4,\"set_back\":{\"at\":");
	assert_non_null(strstr(moved_http(http_port[0], "/events"), "\"event\":\"set_back\""));
	shard_detach(&t.model);
	shard_disconnect(&t.client);
	cluster_done(&cluster);
	keep_free(&keep);
}

static void test_checkpoint_fails(void **state)
{
	struct trainer t;

	(void)state;
	serve(NULL);
	trainer_join(&t, cluster->node[0].unix_address, SHARD_F32, SHARD_F32);
	train(&t, 2);
	says(0, "save gpt --dir /proc/nowhere", 1, "");
	seen("warn", "the last save or restore of \"gpt\" failed: ");
	seen("warn", "there is no checkpoint of it");
	for (int n = 0; n < 2; n++)
		says(n, "status", 0, "  checkpoint: none; FAILED: ");
	train(&t, 1);
	trainer_end(&t);
	cluster_done(&cluster);
}

static void test_paused(void **state)
{
	struct trainer t;

	(void)state;
	serve(NULL);
	trainer_join(&t, cluster->node[0].unix_address, SHARD_F32, SHARD_F32);
	train(&t, 2);
	trainer_end(&t); /* A pause waits for a step that has begun. */
	says(1, "model pause gpt", 0, "");
	seen("warn", "an operator paused \"gpt\" at step 2: `shardctl model resume gpt`");
	for (int n = 0; n < 2; n++) /* Who coordinates knows who has left, and tells it. */
		says(n, "model list", 0, "      0 paused ");
	says(0, "model resume gpt", 0, "");
	seen("warn", "\"gpt\" waits at step 2 for 1 more trainer");
	cluster_done(&cluster);
}

/* From either node: the rank that stands is on the other one. Node b cannot be asked later. */
static void test_everywhere(void **state)
{
	struct trainer t;
	char *out, part[64];
	int rc;

	(void)state;
	serve(NULL);
	trainer_join(&t, cluster->node[1].unix_address, SHARD_F32, SHARD_F32);
	train(&t, 2);
	trainer_begin(&t);
	for (int n = 0; n < 2; n++) {
		says(n, "status --all", 0, "  rank 0   node b");
		out = moved_said(cluster, n, "status --all", &rc);
		if (strstr(out, " computing, 0 of 6 chunks pushed") == NULL)
			fail_msg("%s", out);
		free(out);
		snprintf(part, sizeof(part), "\n%c %*s %s", n == 0 ? 'b' : 'a', 14, "",
			 SHARD_RELEASE);
		says(n, "status --all", 0, part);
		says(n, "top --all --once", 0, " b                ");
	}
	says(0, "status", 0, "node b            pid");
	/* /cluster has what the rank's own node knows of it, and what went over that node's links.
	 */
	web_await(http_port[0], "/cluster", "\"everywhere\":{\"b\":{\"release\"");
	web_await(http_port[0], "/cluster", "\"links\":{\"a\":{\"in_bytes\":");
	web_await(http_port[0], "/cluster", "\"state\":\"computing\",\"chunks_pushed\":0");
	out = web_fetch(http_port[0], "GET", "/status");
	assert_null(strstr(out, "chunks_pushed"));
	assert_null(strstr(out, "everywhere"));
	free(out);
	cluster_kill(cluster, 1);
	seen_at(0, "ill", "node b is down: ");
	says(0, "status --all", 1, "\nb                did not answer: ");
	says(0, "status --all --json", 1, "\"everywhere\":{\"b\":{\"error\":");
	web_await(http_port[0], "/cluster", "\"everywhere\":{\"b\":{\"error\":");
	shard_detach(&t.model);
	shard_disconnect(&t.client);
	cluster_done(&cluster);
}

/* Who asks over HTTP may not read the model: that it is ill is said, and not why, and its events
 * are not there. Another model at the same daemons is shown as ever. */
static void test_private(void **state)
{
	static const char *const paths[] = {"/status", "/cluster", "/events", "/healthz",
					    "/samples"};
	struct shard_spec spec;
	struct trainer t, open;

	(void)state;
	serve(NULL);
	trainer_connect(&t, cluster->node[0].unix_address);
	trainer_spec(&spec, SHARD_F32, SHARD_F32);
	spec.name = "mine";
	spec.settings = "optimizer=sgd lr=1 mode=0600";
	trainer_define_as(&t, cluster->node[0].unix_address, &spec);
	trainer_join(&open, cluster->node[0].unix_address, SHARD_F32, SHARD_F32);
	train(&open, 2);
	cluster_kill(cluster, 1);
	spawn(1); /* Both models are lost. */
	cluster_ready(cluster, 1);
	for (int n = 0; n < 2; n++) {
		web_await(http_port[n], "/healthz",
			  "ill: \"mine\" is ill (lost): its owner may ask");
		web_await(http_port[n], "/healthz", "ill: \"gpt\" is lost: node b started again");
		web_await(http_port[n], "/events", "\"event\":\"lost\",\"model\":\"gpt\"");
		for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
			char *text = web_fetch(http_port[n], "GET", paths[i]);

			assert_null(strstr(text, "\"mine\" is lost"));
			assert_null(strstr(text, "model=mine"));
			assert_null(strstr(text, "\"model\":\"mine\",\"text\":\"generation"));
			free(text);
		}
		says(n, "status", 1,
		     "ill: \"mine\" is lost: node b started again"); /* Root asks. */
		says(n, "events", 0, "model=mine");
	}
	shard_disconnect(&t.client);
	shard_disconnect(&open.client);
	cluster_done(&cluster);
}

/* --- faults of a start: one command on either node finds each --- */

static void test_other_secret(void **state)
{
	char lines[200];
	struct secrets f;

	(void)state;
	assert_int_equal(secrets_make(&f), 0);
	snprintf(lines, sizeof(lines), "[cluster]\n%s", f.line);
	serve(lines);
	well();
	secrets_meet(SHARD_DENIED, cluster->node[1].tcp_address, f.wrong, "secret");
	seen("warn", "node b turned away a connection lately: ");
	cluster_done(&cluster);
	assert_int_equal(secrets_remove(&f), 0);
}

/* The node that is dialled knows why the other one cannot come. */
static void test_other_settings(void **state)
{
	static const struct {
		const char *variable, *value, *part;
	} rows[] = {{"SHARD_CLUSTER_LOST_TIMEOUT", "77s", "cluster.lost_timeout is "},
		    {"SHARD_CLUSTER_RUN_ID", "other", "run_id is "}};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		cluster = cluster_make(2, NULL, NULL);
		http_port[0] = http_port[1] = 0;
		spawn(0);
		cluster_ready(cluster, 0);
		setenv(rows[i].variable, rows[i].value, 1);
		spawn(1);
		unsetenv(rows[i].variable);
		for (int n = 0; n < 2; n++)
			seen_at(n, "ill", rows[i].part);
		cluster_done(&cluster);
	}
}

static void test_small_budget(void **state)
{
	struct shard_spec spec;
	struct trainer t;

	(void)state;
	setenv("SHARD_MEMORY", "1MiB", 1);
	serve(NULL);
	unsetenv("SHARD_MEMORY");
	trainer_connect(&t, cluster->node[1].unix_address);
	trainer_spec(&spec, SHARD_F32, SHARD_F32);
	spec.settings = "optimizer=sgd max_world=64 local_world=64"; /* Many arenas. */
	EXPECT(SHARD_BUDGET, shard_define(t.client, &spec, &t.model, &t.created));
	seen("warn", "a model was refused lately, for want of memory: \"gpt\" needs ");
	seen("warn", "raise [daemon] memory");
	shard_disconnect(&t.client);
	cluster_done(&cluster);
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
		cmocka_unit_test_teardown(test_rank_stands, cleanup),
		cmocka_unit_test_teardown(test_crash_loop, cleanup),
		cmocka_unit_test_teardown(test_node_dead, cleanup),
		cmocka_unit_test_teardown(test_lost, cleanup),
		cmocka_unit_test_teardown(test_set_back, cleanup),
		cmocka_unit_test_teardown(test_checkpoint_fails, cleanup),
		cmocka_unit_test_teardown(test_paused, cleanup),
		cmocka_unit_test_teardown(test_everywhere, cleanup),
		cmocka_unit_test_teardown(test_private, cleanup),
		cmocka_unit_test_teardown(test_other_secret, cleanup),
		cmocka_unit_test_teardown(test_other_settings, cleanup),
		cmocka_unit_test_teardown(test_small_budget, cleanup),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
