/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl status` prints one screen about a daemon: what is wrong in the cluster, the daemon
 * itself, its nodes, its models with their view, copies and newest checkpoint, the world of the
 * step in hand, and who is waited for where that is news. The daemon answers in JSON, and --json
 * prints that answer. A field that an older or newer daemon does not send is left out, or shown as
 * 0 or as nothing. It exits with 1 if something is ill, and else fails as every question to a
 * daemon does (ctl_exit_of). */
#include "ctl/ctl.h"
#include "ctl/json.h"
#include "ctl/palette.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static void print_bytes(const char *what, double bytes)
{
	char text[CTL_NUMBER_BYTES];

	printf("%s%s", what, ctl_bytes(text, bytes));
}

/* The verdict comes first. Returns whether something is ill. */
static bool print_health(const json_t *o, const struct palette *p)
{
	const json_t *health = json_object_get(o, "health");
	const char *level = ctl_text(health, "level");
	size_t i;
	json_t *f;

	if (health == NULL)
		return false; /* An older daemon. */
	if (strcmp(level, "ok") == 0)
		printf("%sok%s\n", p->good, p->end);
	json_array_foreach(json_object_get(health, "findings"), i, f)
		printf("%s%s%s: %s\n", palette_of(p, ctl_text(f, "level")), ctl_text(f, "level"),
		       p->end, ctl_text(f, "text"));
	printf("\n");
	return strcmp(level, "ill") == 0;
}

static void print_daemon(const json_t *o)
{
	const json_t *budget = json_object_get(o, "budget");
	char up[CTL_NUMBER_BYTES];

	printf("node %s: shardd %s, pid %lld, up %s, incarnation %lld, %lld connection%s\n",
	       ctl_text(o, "node"), ctl_text(o, "release"), ctl_whole(o, "pid"),
	       ctl_age(up, json_number_value(json_object_get(o, "uptime_s"))),
	       ctl_whole(o, "incarnation"), ctl_whole(o, "connections"),
	       ctl_whole(o, "connections") == 1 ? "" : "s");
	print_bytes("memory: ", (double)ctl_whole(budget, "used"));
	print_bytes(" of ", (double)ctl_whole(budget, "total"));
	printf(" promised to models and queues; %lld frame%s refused, %s "
	       "copied\n",
	       ctl_whole(o, "refused_frames"), ctl_whole(o, "refused_frames") == 1 ? "" : "s",
	       ctl_bytes(up, (double)ctl_whole(o, "copied_bytes")));
}

static void print_gpus(const json_t *list, const struct palette *p)
{
	size_t i;
	json_t *o;

	json_array_foreach(list, i, o) {
		char used[CTL_NUMBER_BYTES], limit[CTL_NUMBER_BYTES], host[CTL_NUMBER_BYTES];
		bool lost = ctl_text(o, "lost")[0] != 0;

		printf("gpu %s: %s, %s of %s for models, buffers of %s in main memory%s%s%s\n",
		       ctl_text(o, "uuid"), ctl_text(o, "name"),
		       ctl_bytes(used, (double)ctl_whole(o, "used")),
		       ctl_bytes(limit, (double)ctl_whole(o, "limit")),
		       ctl_bytes(host, (double)ctl_whole(o, "host")),
		       lost ? palette_of(p, "ill") : "", lost ? ", lost" : "", lost ? p->end : "");
	}
}

static void print_nodes(const json_t *list, const struct palette *p)
{
	char since[CTL_NUMBER_BYTES];
	size_t i;
	json_t *n;

	printf("\n%-16s %-24s %-6s %11s  %s\n", "NODE", "ADDRESS", "STATE", "INCARNATION", "SINCE");
	json_array_foreach(list, i, n) {
		printf("%-16s %-24s %s%-6s%s %11lld  %s%s", ctl_text(n, "name"),
		       ctl_text(n, "address"), palette_of(p, ctl_text(n, "state")),
		       ctl_text(n, "state"), p->end, ctl_whole(n, "incarnation"),
		       ctl_age(since, json_number_value(json_object_get(n, "since_s"))),
		       json_is_true(json_object_get(n, "coordinator")) ? ", coordinates" : "");
		if (ctl_text(n, "why")[0])
			printf(": %s", ctl_text(n, "why"));
		if (ctl_text(n, "transport")[0])
			printf(", tensors by %s%s%s", ctl_text(n, "transport"),
			       ctl_text(n, "tcp_why")[0] ? ": " : "", ctl_text(n, "tcp_why"));
		if (ctl_text(n, "tls")[0] && strcmp(ctl_text(n, "tls"), "off") != 0)
			printf(", %s", ctl_text(n, "tls"));
		printf("\n");
		if (ctl_text(n, "ill")[0] != 0)
			printf("  %sill%s: %s\n", p->bad, p->end, ctl_text(n, "ill"));
	}
}

static void print_world(const json_t *world, long long chunks)
{
	size_t i;
	json_t *r;

	json_array_foreach(world, i, r) {
		printf("  rank %-3lld node %-12s pid %-8lld %s", ctl_whole(r, "rank"),
		       ctl_text(r, "node"), ctl_whole(r, "pid"),
		       ctl_text(r, "state")[0] != 0 ? ctl_text(r, "state")
						    : "its node knows: --all");
		if (json_object_get(r, "chunks_pushed"))
			printf(", %lld of %lld chunks pushed", ctl_whole(r, "chunks_pushed"),
			       chunks);
		if (json_number_value(json_object_get(r, "wait_s")) >= 1)
			printf(", nothing for %.0f s",
			       json_number_value(json_object_get(r, "wait_s")));
		printf("\n");
	}
}

/* The view that the daemon has adopted, as `shardctl history` numbers it, and who is in it. */
static void print_view(const json_t *m)
{
	const json_t *view = json_object_get(m, "view"), *members = json_object_get(m, "members");
	const char *glue = " of ";
	json_t *node;
	size_t i;

	if (ctl_whole(view, "term") == 0)
		return;
	printf("  view %lld.%lld", ctl_whole(view, "term"), ctl_whole(view, "seq"));
	json_array_foreach(members, i, node) {
		printf("%s%s", glue, json_string_value(node));
		glue = ", ";
	}
	printf("\n");
}

/* Who catches up, and for how long. */
static void print_learns(const json_t *m)
{
	const json_t *learns = json_object_get(m, "catching_up"),
		     *times = json_object_get(m, "catching_up_s");
	const char *glue = "; catching up: ";
	json_t *node, *since;
	size_t i;

	json_array_foreach(learns, i, node) {
		printf("%s%s", glue, json_string_value(node));
		if ((since = json_object_get(times, json_string_value(node))) != NULL)
			printf(" for %.1f s", json_number_value(since));
		glue = ", ";
	}
	if (json_object_get(m, "fetched"))
		printf(" (%lld chunks are on this node again)", ctl_whole(m, "fetched"));
}

/* Nothing if each chunk has all its copies, or has one by definition. */
static void print_copies(const json_t *m, const json_t *chunks)
{
	const json_t *learns = json_object_get(m, "catching_up");
	json_int_t wanted = ctl_whole(chunks, "copies"), least = ctl_whole(chunks, "least");

	if (wanted < 2 || (least >= wanted && json_array_size(learns) == 0))
		return;
	printf("  copies: %lld of %lld of the chunk that has fewest", (long long)least,
	       (long long)wanted);
	if (least < ctl_whole(chunks, "min_copies"))
		printf(", and no step begins with fewer than %lld",
		       ctl_whole(chunks, "min_copies"));
	print_learns(m);
	printf("\n");
}

static void print_moving(const json_t *m)
{
	const json_t *o = json_object_get(m, "moving");
	double since = json_number_value(json_object_get(o, "since_s"));

	if (ctl_moving(m) == NULL)
		return;
	printf("  moving: %s", ctl_moving(m));
	if (since > 0)
		printf(", for %.0f s", since);
	if (ctl_whole(o, "copies_left") > 0) {
		printf("; %lld copies of chunks to go", ctl_whole(o, "copies_left"));
		print_bytes(", ", (double)ctl_whole(o, "bytes_left"));
	}
	printf("\n");
}

/* What checkpoint_hook makes of it. The node that runs it knows. */
static void print_copied(const json_t *copied, const struct palette *p)
{
	const char *why = ctl_text(copied, "last_error");
	long long left = ctl_whole(copied, "left");

	if (!json_is_object(copied))
		return;
	if (why[0] != 0)
		printf("; %sNOT COPIED%s: %s", p->bad, p->end, why);
	else if (left > 0)
		printf("; %lld to copy", left);
	else
		printf("; copied");
}

static void print_checkpoint(const json_t *m, const struct palette *p)
{
	const json_t *c = json_object_get(m, "checkpoint"), *last = json_object_get(c, "last");
	const char *path = ctl_text(last, "path"), *tag = strrchr(path, '/');
	char age[CTL_NUMBER_BYTES];

	if (path[0] == 0 && ctl_text(c, "last_error")[0] == 0)
		return;
	if (path[0] != 0)
		printf("  checkpoint: %s, %s ago, %lld steps", tag != NULL ? tag + 1 : path,
		       ctl_age(age, json_number_value(json_object_get(last, "age_seconds"))),
		       ctl_whole(m, "step") - ctl_whole(last, "step"));
	else
		printf("  checkpoint: none");
	if (ctl_text(c, "last_error")[0] != 0)
		printf("; %sFAILED%s: %s", p->bad, p->end, ctl_text(c, "last_error"));
	print_copied(json_object_get(c, "copied"), p);
	printf("\n");
}

/* What has set the model back, if anything has since the daemon started. */
static void print_set_back(const json_t *m)
{
	const json_t *b = json_object_get(m, "set_back");
	const char *path = ctl_text(b, "path"), *tag = strrchr(path, '/');
	time_t at = (time_t)ctl_whole(b, "at");
	char when[32] = "";
	struct tm tm;

	if (b == NULL)
		return;
	if (localtime_r(&at, &tm) != NULL)
		strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm);
	printf("  set back: %s%s at %s, step %lld -> %lld, because %s\n",
	       path[0] != 0 ? "came back from " : "its weights were written again",
	       path[0] == 0  ? ""
	       : tag != NULL ? tag + 1
			     : path,
	       when, ctl_whole(b, "from_step"), ctl_whole(b, "to_step"), ctl_text(b, "why"));
}

static void print_model(const json_t *m, const struct palette *p)
{
	const json_t *chunks = json_object_get(m, "chunks"),
		     *per = json_object_get(chunks, "per_node");
	const json_t *total = json_object_get(json_object_get(m, "memory"), "total");
	double step = json_number_value(json_object_get(m, "median_step_s"));
	const char *node;
	json_t *nr;

	if (strcmp(ctl_text(m, "state"), "private") == 0) {
		printf("\nmodel \"%s\": private, mode %s: its owner, uid %lld, may see more\n",
		       ctl_text(m, "name"), ctl_text(m, "mode"),
		       ctl_whole(json_object_get(m, "owner"), "uid"));
		return;
	}
	printf("\n%smodel \"%s\"%s: %s%s%s, step %lld (%lld applied, %lld skipped)", p->head,
	       ctl_text(m, "name"), p->end,
	       palette_of_model(p, ctl_text(m, "state"), json_is_true(json_object_get(m, "late"))),
	       ctl_text(m, "state"), p->end, ctl_whole(m, "step"), ctl_whole(m, "applied"),
	       ctl_whole(m, "skipped"));
	if (step > 0 && strcmp(ctl_text(m, "state"), "training") == 0)
		printf(", %.3g steps/s", 1 / step);
	printf("\n");
	printf("  %lld parameters, %s, generation %lld, %lld chunks of %lld elements (",
	       ctl_whole(m, "numel"), ctl_text(m, "optimizer"), ctl_whole(m, "generation"),
	       ctl_whole(chunks, "nr"), ctl_whole(chunks, "elems"));
	const char *comma = "";
	json_object_foreach((json_t *)(uintptr_t)per, node, nr) {
		printf("%s%s %lld", comma, node, (long long)json_integer_value(nr));
		comma = ", ";
	}
	printf(")\n");
	print_view(m);
	print_copies(m, chunks);
	if (total) {
		print_bytes("  ", (double)json_integer_value(total));
		printf(" on this node%s%s\n", ctl_text(m, "pages")[0] ? ", pages: " : "",
		       ctl_text(m, "pages"));
	}
	print_checkpoint(m, p);
	print_set_back(m);
	print_world(json_object_get(m, "world"), ctl_whole(chunks, "nr"));
	if (ctl_text(m, "lost")[0])
		printf("  %slost%s: %s\n", p->bad, p->end, ctl_text(m, "lost"));
	/* While steps come as always, whom the next one waits for is no news. */
	if (ctl_text(m, "waits")[0] && (strcmp(ctl_text(m, "state"), "training") != 0 ||
					!json_is_false(json_object_get(m, "late"))))
		printf("  waits: %s\n", ctl_text(m, "waits"));
	print_moving(m);
}

/* Of every node: what it said of itself, or why it did not answer. */
static void print_everywhere(const json_t *all)
{
	char used[CTL_NUMBER_BYTES], total[CTL_NUMBER_BYTES], age[CTL_NUMBER_BYTES];
	const char *node;
	json_t *o;

	if (json_object_size(all) == 0)
		return;
	printf("\n%-16s %-10s %8s %8s %12s %24s\n", "OTHER NODE", "RELEASE", "PID", "UP",
	       "CONNECTIONS", "MEMORY PROMISED");
	json_object_foreach((json_t *)(uintptr_t)all, node, o) {
		const json_t *budget = json_object_get(o, "budget");

		if (ctl_text(o, "error")[0] != 0) {
			printf("%-16s did not answer: %s\n", node, ctl_text(o, "error"));
			continue;
		}
		printf("%-16s %-10s %8lld %8s %12lld %10s of %10s\n", node, ctl_text(o, "release"),
		       ctl_whole(o, "pid"),
		       ctl_age(age, json_number_value(json_object_get(o, "uptime_s"))),
		       ctl_whole(o, "connections"),
		       ctl_bytes(used, (double)ctl_whole(budget, "used")),
		       ctl_bytes(total, (double)ctl_whole(budget, "total")));
	}
}

enum { ALL, COLOR };

const struct argp_option ctl_status_options[] = {
	{"all", CTL_KEY + ALL, NULL, 0, "also ask every other node, through this one", 0},
	PALETTE_OPTION(COLOR),
	{0},
};

enum ctl_exit ctl_status(const struct ctl_options *options)
{
	struct ctl_options copy = *options, *o = &copy;
	const json_t *models;
	enum shard_status st;
	json_t *root = NULL, *m;
	struct err e;
	const struct palette *p;
	bool ill, colour;
	size_t i;

	if (!palette_wanted(o->value[COLOR], stdout, &colour))
		return ctl_fail(o, CTL_USAGE, PALETTE_WRONG, o->value[COLOR]);
	p = colour ? &palette_colour : &palette_plain;
	copy.all = o->value[ALL] != NULL;
	if ((st = ctl_ask_status(o, &root, &e)) != SHARD_OK)
		return ctl_fail_as(o, st, "", e.text);
	if (o->json) {
		ill = strcmp(ctl_text(json_object_get(root, "health"), "level"), "ill") == 0;
		return ctl_print(root) != CTL_OK || ill ? CTL_FAILED : CTL_OK;
	}
	ill = print_health(root, p);
	print_daemon(root);
	print_gpus(json_object_get(root, "gpus"), p);
	print_nodes(json_object_get(root, "nodes"), p);
	print_everywhere(json_object_get(root, "everywhere"));
	if (ctl_text(root, "no_coordinator")[0] != 0)
		printf("%s\n", ctl_text(root, "no_coordinator"));
	models = json_object_get(root, "models");
	json_array_foreach((json_t *)(uintptr_t)models, i, m)
		print_model(m, p);
	json_decref(root);
	return ill ? CTL_FAILED : CTL_OK;
}
