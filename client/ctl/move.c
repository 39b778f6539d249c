/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl rebalance` and `shardctl drain`. The daemon answers what is wanted, and this command
 * then looks at its status until the chunks lie that way, with a line whenever that changes. It
 * ends with 1 if nothing changes for --timeout (60 s where it is not given). Stopping it stops no
 * move. */
#include "ctl/json.h"
#include "base/clock.h"
#include "ctl/saves.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { DRY_RUN, NO_WAIT, UNDO };
enum { PLAN = 1, REBALANCE, DRAIN, DRAIN_END }; /* enum move_action of the daemon */

#define STILL_NS  (60 * NS_PER_SEC)
#define LOOK_NS   (200 * NS_PER_MS)
#define SETTLE_NS (3 * NS_PER_SEC) /* By then the coordinator has looked at what is wanted. */

const struct argp_option ctl_rebalance_options[] = {
	{"dry-run", CTL_KEY + DRY_RUN, NULL, 0, "say what would move, and move nothing", 0},
	{"no-wait", CTL_KEY + NO_WAIT, NULL, 0, "do not wait until the chunks have moved", 0},
	{0},
};
const struct argp_option ctl_drain_options[] = {
	{"undo", CTL_KEY + UNDO, NULL, 0, "the node holds its share of chunks again", 0},
	{"no-wait", CTL_KEY + NO_WAIT, NULL, 0, "do not wait until the chunks have moved", 0},
	{0},
};

/* --- the request --- */

/* refused: gets the sentence, and nothing is printed then. NULL: it is printed. */
static enum ctl_exit request(const struct ctl_options *o, Shard__Move *q, json_t **out,
			     struct err *refused)
{
	struct ckpt_ask a = {.name = "a move", .timeout_ms = (int64_t)(o->timeout_ns / NS_PER_MS)};
	shard_client *c = NULL;
	enum ctl_exit exit = saves_connect(o, &c);
	enum shard_status rc;

	if (c == NULL)
		return exit;
	pthread_mutex_lock(&c->lock);
	rc = saves_ask_json(c, OP_MOVE, &q->base, &a, out);
	pthread_mutex_unlock(&c->lock);
	if (rc != SHARD_OK && refused != NULL)
		(void)err_set(refused, rc, "%.500s", shard_error());
	shard_disconnect(&c);
	if (rc == SHARD_OK)
		return CTL_OK;
	return refused != NULL ? ctl_exit_of(rc) : ctl_fail_as(o, rc, "", shard_error());
}

/* --- until it is so --- */

/* How many chunks the node has of all models that this user may see, and what each model that moves
 * waits for. */
static long long held(const json_t *status, const char *node, char *text, size_t bytes, bool *any)
{
	long long nr = 0;
	size_t i, used = 0;
	json_t *m;

	text[0] = 0;
	*any = false;
	json_array_foreach(json_object_get(status, "models"), i, m) {
		const json_t *per = json_object_get(json_object_get(m, "chunks"), "per_node");

		nr += node != NULL ? ctl_whole(per, node) : 0;
		if (ctl_moving(m) == NULL)
			continue;
		*any = true;
		if (used < bytes)
			used += (size_t)snprintf(text + used, bytes - used, "%s\"%s\": %s",
						 used > 0 ? "; " : "", ctl_text(m, "name"),
						 ctl_moving(m));
	}
	return nr;
}

/* Does each node have as many chunks as the plan says? */
static bool as_planned(const json_t *status, const json_t *plan)
{
	size_t i, k, j;
	json_t *m, *n, *now;

	json_array_foreach(json_object_get(status, "models"), i, now)
		json_array_foreach(json_object_get(plan, "models"), k, m) {
			const json_t *per =
				json_object_get(json_object_get(now, "chunks"), "per_node");

			if (strcmp(ctl_text(now, "name"), ctl_text(m, "name")) != 0)
				continue;
			json_array_foreach(json_object_get(m, "nodes"), j, n)
				if (ctl_whole(per, ctl_text(n, "node")) != ctl_whole(n, "then"))
					return false;
		}
	return true;
}

/* Asks the coordinator whether it would move anything now, and why it has not: only the coordinator
 * knows that before a view has begun the move. A model that it cannot plan for counts as one that
 * does not move. weights: so does one without weights, of which there is nothing to copy. */
static enum ctl_exit would_move(const struct ctl_options *o, bool weights, char *text, size_t bytes,
				bool *would)
{
	Shard__Move q = SHARD__MOVE__INIT;
	struct err e = {.status = SHARD_OK};
	json_t *plan = NULL, *m;
	enum ctl_exit exit;
	size_t i, used = 0;

	q.action = PLAN;
	*would = false;
	text[0] = 0;
	if ((exit = request(o, &q, &plan, &e)) != CTL_OK) {
		snprintf(text, bytes, "%s: %s", status_name(e.status), e.text);
		return exit;
	}
	json_array_foreach(json_object_get(plan, "models"), i, m) {
		const char *why = ctl_text(m, "trouble");

		if (weights && json_is_false(json_object_get(m, "weights")))
			continue;
		*would = *would || ctl_whole(m, "copies") > 0 || ctl_whole(m, "primaries") > 0;
		if (why[0] == 0)
			why = ctl_text(m, "error");
		if (why[0] != 0 && used < bytes)
			used += (size_t)snprintf(text + used, bytes - used, "%s\"%s\": %s",
						 used > 0 ? "; " : "", ctl_text(m, "name"), why);
	}
	json_decref(plan);
	return CTL_OK;
}

/* The node in the status. NULL: it is not there. */
static const json_t *node_in(const json_t *status, const char *name)
{
	size_t i;
	json_t *n;

	json_array_foreach(json_object_get(status, "nodes"), i, n)
		if (strcmp(ctl_text(n, "name"), name) == 0)
			return n;
	return NULL;
}

/* Has somebody ended the drain while this command waits for it? The node may hear of a drain later
 * than this command, so it has to be seen drained first. */
static bool drain_ended(const json_t *status, const char *name, bool *seen)
{
	const json_t *n = node_in(status, name);

	if (json_object_get(n, "capacity") == NULL)
		return false;
	if (ctl_whole(n, "capacity") == 0)
		*seen = true;
	return *seen && ctl_whole(n, "capacity") > 0;
}

static enum ctl_exit stands_still(const struct ctl_options *o, uint64_t still, const char *node,
				  const char *now)
{
	char undo[320] = "";

	if (node != NULL)
		snprintf(undo, sizeof(undo), " until `shardctl drain --undo %.255s`", node);
	return ctl_fail(o, CTL_FAILED,
			"nothing has changed for %.0f s%s%s: it goes on without this command%s; "
			"--timeout says how long to wait",
			(double)still / NS_PER_SEC, now[0] != 0 ? ": " : "", now, undo);
}

/* Until the node has no chunks, or the plan is carried out. Also, without a node, until nothing has
 * moved for a while and the coordinator would not move anything either: on a busy machine it may
 * take long until the first chunk moves. drained: this node is. If it is not `node`, its copies are
 * made on others, and the coordinator may not lack nodes for them. */
static enum ctl_exit wait_moved(const struct ctl_options *o, const char *node, const json_t *plan,
				const char *drained, json_t **status)
{
	bool copied = drained != NULL && node == NULL, seen = false;
	uint64_t changed = clock_ns(), moved = changed, still = STILL_NS;
	char last[1024] = "", now[1024], held_up[1024] = "";
	const struct timespec look = {.tv_nsec = LOOK_NS};
	struct err e;

	if (o->timeout_given)
		still = o->timeout_ns;
	for (;;) {
		long long nr;
		bool any;

		json_decref(*status);
		if (ctl_ask_status(o, status, &e) != SHARD_OK)
			return ctl_fail_as(o, e.status, "", e.text);
		if (drained != NULL && drain_ended(*status, drained, &seen))
			return ctl_fail(o, CTL_FAILED,
					"node %s is not drained: somebody has ended its drain "
					"meanwhile (`shardctl drain --undo %s`)",
					drained, drained);
		nr = held(*status, node, now, sizeof(now), &any);
		if (any)
			moved = clock_ns();
		if (!any && (node != NULL ? nr == 0 : plan != NULL && as_planned(*status, plan)))
			return CTL_OK;
		/* Another plan may have taken the place of this one, because nodes came or went. */
		if (!any && clock_ns() - moved > SETTLE_NS) {
			/* Nobody may coordinate for a while, and what was asked for stays asked. */
			if (would_move(o, copied, held_up, sizeof(held_up), &any) == CTL_OK &&
			    node == NULL && !any && !(copied && held_up[0] != 0))
				return CTL_OK;
			moved = clock_ns();
		}
		if (now[0] == 0)
			snprintf(now, sizeof(now), "%s", held_up);
		if (strcmp(now, last) != 0) {
			changed = clock_ns();
			snprintf(last, sizeof(last), "%s", now);
			if (!o->json && now[0] != 0)
				fprintf(stderr, "%s\n", now);
		}
		if (clock_ns() - changed > still)
			return stands_still(o, still, node, now);
		nanosleep(&look, NULL);
	}
}

/* --- rebalance --- */

static void print_model(const json_t *m)
{
	char bytes[CTL_NUMBER_BYTES];
	size_t i;
	json_t *n;

	if (json_object_get(m, "error") != NULL) {
		printf("\"%s\": %s\n", ctl_text(m, "name"), ctl_text(m, "error"));
		return;
	}
	printf("\"%s\": %lld copies to make, %s; %lld chunks get another primary\n",
	       ctl_text(m, "name"), ctl_whole(m, "copies"),
	       ctl_bytes(bytes, (double)ctl_whole(m, "bytes")), ctl_whole(m, "primaries"));
	json_array_foreach(json_object_get(m, "nodes"), i, n) {
		bool down = json_is_true(json_object_get(n, "down"));

		printf("  %-16s %8lld -> %lld chunks%s\n", ctl_text(n, "node"),
		       ctl_whole(n, "chunks"), ctl_whole(n, "then"),
		       !down || (ctl_whole(n, "chunks") == 0 && ctl_whole(n, "then") == 0)
			       ? ""
			       : "; it is down, and nothing is copied from it or to it before it "
				 "is back");
	}
	if (ctl_text(m, "trouble")[0] != 0)
		printf("  not now: %s\n", ctl_text(m, "trouble"));
}

static bool any_error(const json_t *plan)
{
	size_t i;
	json_t *m;

	json_array_foreach(json_object_get(plan, "models"), i, m)
		if (json_object_get(m, "error") != NULL)
			return true;
	return false;
}

enum ctl_exit ctl_rebalance(const struct ctl_options *o)
{
	Shard__Move q = SHARD__MOVE__INIT;
	bool dry = o->value[DRY_RUN] != NULL, wrong;
	json_t *plan = NULL, *status = NULL, *m;
	enum ctl_exit exit;
	size_t i;

	q.action = dry ? PLAN : REBALANCE;
	if (o->words_nr > 0)
		q.name = o->words[0];
	if ((exit = request(o, &q, &plan, NULL)) != CTL_OK)
		return exit;
	json_array_foreach(json_object_get(plan, "models"), i, m)
		if (!o->json)
			print_model(m);
	wrong = any_error(plan);
	if (!wrong && !dry && o->value[NO_WAIT] == NULL)
		exit = wait_moved(o, NULL, plan, NULL, &status);
	if (o->json && exit == CTL_OK)
		exit = ctl_print(json_incref(plan));
	exit = wrong ? CTL_REFUSED : exit;
	json_decref(plan);
	json_decref(status);
	return exit;
}

/* --- drain --- */

/* status: how it was at the end of the wait. NULL: nothing was waited for. */
static void drained(const struct ctl_options *o, const char *node, const json_t *answer,
		    const json_t *status)
{
	bool gone = json_is_true(json_object_get(answer, "gone")), wait = !o->value[NO_WAIT];
	bool back = strcmp(ctl_text(node_in(status, node), "state"), "up") == 0;

	if (o->value[UNDO] && gone)
		printf("node %s is waited for again\n", node);
	else if (o->value[UNDO] && json_object_get(answer, "capacity") != NULL &&
		 ctl_whole(answer, "capacity") == 0)
		printf("node %s is not drained any more, but holds no chunks: its capacity is 0 "
		       "([daemon] capacity)\n",
		       node);
	else if (o->value[UNDO])
		printf("node %s %s its share of chunks again\n", node, wait ? "holds" : "gets");
	else if (gone && !back)
		printf("node %s is drained, gone: nobody waits for it%s%s\n", node,
		       wait ? "" : ", and its chunks get copies on other nodes",
		       json_is_true(json_object_get(answer, "votes"))
			       ? "; it has its vote until another node joins, and a majority of "
				 "the voters has to be up"
			       : "");
	else
		printf("node %s is drained: it holds no chunks%s\n", node,
		       wait ? ", and may be stopped" : " as soon as they have moved");
}

/* A node that writes an earlier drain to its disk, as it does when it hears of its own after a
 * start, is asked again. */
static enum ctl_exit ask(const struct ctl_options *o, Shard__Move *q, json_t **out)
{
	const struct timespec look = {.tv_nsec = LOOK_NS};
	uint64_t until = clock_ns() + o->timeout_ns;
	enum ctl_exit exit;
	struct err e;

	for (;;) {
		e = (struct err){.status = SHARD_OK};
		exit = request(o, q, out, &e);
		if (e.status != SHARD_BUSY || clock_ns() > until)
			break;
		nanosleep(&look, NULL);
	}
	return e.status == SHARD_OK ? exit : ctl_fail_as(o, e.status, "", e.text);
}

enum ctl_exit ctl_drain(const struct ctl_options *o)
{
	Shard__Move q = SHARD__MOVE__INIT;
	bool undo = o->value[UNDO] != NULL, gone;
	json_t *answer = NULL, *status = NULL;
	enum ctl_exit exit;

	q.action = undo ? DRAIN_END : DRAIN;
	q.node = o->words[0];
	if ((exit = ask(o, &q, &answer)) != CTL_OK)
		return exit;
	gone = json_is_true(json_object_get(answer, "gone"));
	if (o->value[NO_WAIT] == NULL && !(undo && gone))
		exit = wait_moved(o, undo || gone ? NULL : q.node, NULL, undo ? NULL : q.node,
				  &status);
	if (o->json && exit == CTL_OK)
		exit = ctl_print(json_incref(answer));
	else if (exit == CTL_OK)
		drained(o, q.node, answer, status);
	json_decref(answer);
	json_decref(status);
	return exit;
}
