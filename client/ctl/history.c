/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl history` prints what nodes have written down about a model: each decided step with all
 * that a replay needs beside the gradients, views, seals, restores, saves, and what is missing. The
 * daemons send the bytes of their files, page by page, and history_read.c makes entries of them.
 * With --json each entry is an object in a line of its own, for `shardctl replay` and for scripts.
 * Damage ends with exit code 1, after all that is whole was printed. A node that cannot be asked
 * is said, and the others are printed all the same. One that is gone for good is left out. */
#include "ctl/history.h"
#include "ctl/json.h"

#include "base/clock.h"
#include "ctl/saves.h"
#include "request.h"
#include "wire/history.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NODE, FROM, TO };

const struct argp_option ctl_history_options[] = {
	{"node", CTL_KEY + NODE, "NODE", 0, "of this node, or of all (default: the one asked)", 0},
	{"from", CTL_KEY + FROM, "STEP", 0, "from this step on", 0},
	{"to", CTL_KEY + TO, "STEP", 0, "up to this step", 0},
	{0},
};

struct show {
	const struct ctl_options *o;
	uint64_t from, to;
	bool damaged;
};

/* --- what people read --- */

static void print_world(const json_t *world)
{
	json_t *r;
	size_t i;

	json_array_foreach(world, i, r) {
		double w = json_number_value(json_object_get(r, "weight"));

		printf("%s%s:%lld", i == 0 ? ", world " : " ", ctl_text(r, "node"),
		       ctl_whole(r, "pid"));
		if (w != 1.0)
			printf("*%g", w);
	}
}

/* A number, or the word that stands for one which JSON does not have. */
static void print_number(const char *what, const json_t *x)
{
	if (json_is_string(x))
		printf(", %s %s", what, json_string_value(x));
	else
		printf(", %s %g", what, json_number_value(x));
}

static void print_record(const json_t *e)
{
	const json_t *r = json_object_get(e, "record");

	if (r == NULL)
		return;
	printf(" %lld %s, generation %lld, view %lld.%lld, attempt %lld", ctl_whole(r, "step"),
	       ctl_text(r, "outcome"), ctl_whole(r, "generation"), ctl_whole(r, "term"),
	       ctl_whole(r, "seq"), ctl_whole(r, "attempt"));
	print_world(json_object_get(r, "world"));
	if (strcmp(ctl_text(r, "outcome"), "seal") == 0)
		return;
	print_number("lr", json_object_get(r, "lr"));
	print_number("norm", json_object_get(r, "grad_norm"));
	print_number("clip", json_object_get(r, "clip_factor"));
	print_number("loss scale", json_object_get(r, "loss_scale"));
	if (json_is_true(json_object_get(r, "diverged")))
		printf(", diverged");
}

static void print_view(const json_t *e)
{
	json_t *n;
	size_t i;

	printf(" %lld.%lld, generation %lld", ctl_whole(e, "term"), ctl_whole(e, "seq"),
	       ctl_whole(e, "generation"));
	json_array_foreach(json_object_get(e, "members"), i, n)
		printf("%s%s%s", i == 0 ? ", members " : " ", ctl_text(n, "name"),
		       strcmp(ctl_text(n, "name"), ctl_text(e, "coordinator")) == 0
			       ? " (coordinates)"
			       : "");
	if (!json_is_true(json_object_get(e, "counts")))
		printf(", copies here do not count");
	if (json_object_get(e, "record") != NULL)
		printf(", at step %lld", ctl_whole(json_object_get(e, "record"), "step"));
}

static void print(const json_t *e)
{
	long long at = ctl_whole(e, "unix_ns");
	time_t seconds = (time_t)(at / (long long)NS_PER_SEC);
	const char *kind = ctl_text(e, "kind"), *text = ctl_text(e, "text");
	char clock[32] = "-";
	struct tm tm;

	if (at != 0 && localtime_r(&seconds, &tm) != NULL)
		strftime(clock, sizeof(clock), "%Y-%m-%d %H:%M:%S", &tm);
	printf("%s %s %s", ctl_text(e, "node"), clock, kind);
	if (strcmp(kind, "step") == 0 || strcmp(kind, "seal") == 0)
		print_record(e);
	else if (strcmp(kind, "view") == 0 || strcmp(kind, "start") == 0)
		print_view(e);
	else if (strcmp(kind, "model") == 0)
		printf(" \"%s\", optimizer %s", ctl_text(e, "name"), ctl_text(e, "optimizer"));
	else if (strcmp(kind, "saved") == 0)
		printf(" step %lld", ctl_whole(e, "last"));
	if (json_object_get(e, "first") != NULL)
		printf(" steps %lld to %lld", ctl_whole(e, "first"), ctl_whole(e, "last"));
	printf("%s%s\n", text[0] != 0 ? ": " : "", text);
}

/* --- one node after the other --- */

static void show(void *arg, json_t *e, uint64_t first, uint64_t last)
{
	struct show *s = arg;
	bool wanted = first <= s->to && last >= s->from;

	if (wanted && s->o->json) {
		ctl_print(json_incref(e));
	} else if (wanted) {
		print(e);
	}
	s->damaged |= wanted && strcmp(ctl_text(e, "kind"), "damaged") == 0;
	json_decref(e);
}

static enum shard_status page(shard_client *c, Shard__History *q, int64_t timeout_ms,
			      Shard__HistoryPage **out)
{
	struct request *r = request_new(c, OP_HISTORY, 0);
	enum shard_status rc = r != NULL ? SHARD_OK : SHARD_SYSTEM;
	struct wait w;

	*out = NULL;
	wait_begin(c, &w, timeout_ms);
	if (rc == SHARD_OK)
		rc = request_send(r, (struct wire_head){0}, &q->base, &w);
	if (rc == SHARD_OK)
		rc = request_wait(r, &w);
	if (rc == SHARD_TIMEOUT)
		text_fail(rc, "no answer for %.1f s from shardd at %s", wait_seconds(&w),
			  c->address);
	if (rc == SHARD_OK)
		*out = shard__history_page__unpack(NULL, r->body_bytes, r->body);
	if (rc == SHARD_OK && *out == NULL)
		rc = text_fail(SHARD_PROTOCOL, "shardd at %s answered with what cannot be read",
			       c->address);
	request_free(r);
	return rc;
}

/* Reads all that the node has. A daemon that turns in circles is not followed. */
static enum shard_status read_node(shard_client *c, const struct ctl_options *o, const char *node,
				   struct show *s)
{
	struct history_reader *r = history_reader_new(show, s);
	Shard__History q = SHARD__HISTORY__INIT;
	enum shard_status rc = r != NULL ? SHARD_OK : text_fail(SHARD_SYSTEM, "no memory");
	char *word = (char *)(uintptr_t)o->words[0]; /* Packing only reads. */
	bool end = false;

	q.name = word;
	q.node = (char *)(uintptr_t)node;
	while (rc == SHARD_OK && !end) {
		Shard__HistoryPage *p;

		rc = page(c, &q, (int64_t)(o->timeout_ns / NS_PER_MS) + 1, &p);
		if (rc != SHARD_OK)
			break;
		end = p->end;
		if (!history_reader_page(r, p) ||
		    (!end && (p->next_file < q.file ||
			      (p->next_file == q.file && p->next_offset <= q.offset))))
			rc = text_fail(SHARD_PROTOCOL, "node %s sends its history in circles",
				       p->node);
		q.file = p->next_file;
		q.offset = p->next_offset;
		shard__history_page__free_unpacked(p, NULL);
	}
	if (r != NULL)
		history_reader_free(r);
	return rc;
}

static enum ctl_exit read_one(shard_client *c, const struct ctl_options *o, const char *node,
			      struct show *s)
{
	enum shard_status rc;
	char where[128];

	pthread_mutex_lock(&c->lock);
	rc = read_node(c, o, node, s);
	pthread_mutex_unlock(&c->lock);
	if (rc == SHARD_OK)
		return CTL_OK;
	snprintf(where, sizeof(where), "history%s%s", node[0] != 0 ? " of node " : "", node);
	return ctl_fail_as(o, rc, where, shard_error());
}

static enum ctl_exit read_all(shard_client *c, const struct ctl_options *o, struct show *s)
{
	enum ctl_exit exit = CTL_OK;
	json_t *status, *n;
	struct err e;
	size_t i;

	if (ctl_ask_status(o, &status, &e) != SHARD_OK)
		return ctl_fail_as(o, e.status, "", e.text);
	json_array_foreach(json_object_get(status, "nodes"), i, n) {
		enum ctl_exit one;

		/* It will never answer, and what it had of the steps others have, too. */
		if (strcmp(ctl_text(n, "state"), "gone") == 0) {
			fprintf(stderr, "node %s is gone for good: its history is left out\n",
				ctl_text(n, "name"));
			continue;
		}
		one = read_one(c, o, ctl_text(n, "name"), s);
		exit = exit == CTL_OK ? one : exit;
	}
	json_decref(status);
	return exit;
}

static bool step_of(const struct ctl_options *o, int option, uint64_t otherwise, uint64_t *out)
{
	const char *text = o->value[option];
	char *end;

	*out = otherwise;
	if (text == NULL)
		return true;
	errno = 0;
	*out = strtoull(text, &end, 10);
	if (text[0] >= '0' && text[0] <= '9' && *end == 0 && errno == 0)
		return true;
	ctl_fail(o, CTL_USAGE, "--%s %s: choose the number of a step",
		 ctl_history_options[option].name, text);
	return false;
}

enum ctl_exit ctl_history(const struct ctl_options *o)
{
	const char *node = o->value[NODE] != NULL ? o->value[NODE] : "";
	struct show s = {.o = o};
	shard_client *c = NULL;
	enum ctl_exit exit;

	if (!step_of(o, FROM, 0, &s.from) || !step_of(o, TO, UINT64_MAX, &s.to))
		return CTL_USAGE;
	if ((exit = saves_connect(o, &c)) != CTL_OK || c == NULL)
		return exit;
	exit = strcmp(node, "all") == 0 ? read_all(c, o, &s) : read_one(c, o, node, &s);
	shard_disconnect(&c);
	return exit == CTL_OK && s.damaged ? CTL_FAILED : exit;
}
