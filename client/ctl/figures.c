/* SPDX-License-Identifier: Apache-2.0 */
/* Two snapshots of a daemon become rates. top.c calls figures_make() once per interval and prints
 * what it returns, as JSON or through figures_print(). A field that an older daemon does not send
 * is left out or 0. Bytes of a rank are the gradients that it pushed; bytes of a node are what its
 * connections carried. */
#include "ctl/figures.h"

#include "ctl/ctl.h"
#include "ctl/json.h"

#include "base/check.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static double real(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

/* The element of list whose key is name, or NULL. */
static const json_t *named(const json_t *list, const char *name)
{
	size_t i;
	json_t *o;

	json_array_foreach((json_t *)(uintptr_t)list, i, o)
		if (strcmp(ctl_text(o, "name"), name) == 0)
			return o;
	return NULL;
}

/* A counter that went down is from another start of its owner and gives no rate. */
static double rate(double before, double now, double seconds)
{
	return now > before && seconds > 0 ? (now - before) / seconds : 0;
}

static json_t *node_make(const json_t *before, const json_t *n, double seconds)
{
	json_t *o = json_pack("{s:s, s:s, s:b, s:f}", "name", ctl_text(n, "name"), "state",
			      ctl_text(n, "state"), "coordinator",
			      json_is_true(json_object_get(n, "coordinator")), "since_s",
			      real(n, "since_s"));

	if (!before)
		before = n;
	if (json_object_get(n, "in_bytes")) {
		json_object_set_new(
			o, "in_bytes_per_s",
			json_real(rate(real(before, "in_bytes"), real(n, "in_bytes"), seconds)));
		json_object_set_new(
			o, "out_bytes_per_s",
			json_real(rate(real(before, "out_bytes"), real(n, "out_bytes"), seconds)));
	}
	return o;
}

/* Chunks that a rank has pushed since the model's first step. */
static double chunks_ever(const json_t *model, const json_t *rank)
{
	return real(model, "step") * real(json_object_get(model, "chunks"), "nr") +
	       real(rank, "chunks_pushed");
}

static const json_t *same_rank(const json_t *before, const json_t *rank)
{
	size_t i;
	json_t *r;

	json_array_foreach(json_object_get(before, "world"), i, r)
		if (ctl_whole(r, "rank") == ctl_whole(rank, "rank") &&
		    ctl_whole(r, "pid") == ctl_whole(rank, "pid"))
			return r;
	return NULL;
}

static json_t *rank_make(const json_t *before, const json_t *m, const json_t *r, double seconds)
{
	double elem = strcmp(ctl_text(m, "grad"), "fp32") == 0 ? 4 : 2,
	       nr = real(json_object_get(m, "chunks"), "nr");
	const json_t *then = same_rank(before, r);
	json_t *o = json_pack("{s:I, s:s, s:I}", "rank", (json_int_t)ctl_whole(r, "rank"), "node",
			      ctl_text(r, "node"), "pid", (json_int_t)ctl_whole(r, "pid"));

	if (!json_object_get(r, "chunks_pushed"))
		return o; /* Only the daemon of the rank's own node knows the rest. */
	json_object_set_new(o, "state", json_string(ctl_text(r, "state")));
	json_object_set_new(o, "chunks_pushed", json_integer(ctl_whole(r, "chunks_pushed")));
	json_object_set_new(o, "wait_s", json_real(real(r, "wait_s")));
	json_object_set_new(o, "bytes_per_s",
			    json_real(then && nr > 0 ? rate(chunks_ever(before, then),
							    chunks_ever(m, r), seconds) /
							       nr * real(m, "numel") * elem
						     : 0));
	return o;
}

static json_t *model_make(const json_t *before, const json_t *m, double seconds)
{
	const json_t *last = json_object_get(m, "last_step");
	json_t *ranks = json_array(), *r, *o;
	size_t i;

	if (before && ctl_whole(before, "generation") != ctl_whole(m, "generation"))
		before = NULL;
	json_array_foreach(json_object_get(m, "world"), i, r)
		json_array_append_new(ranks, rank_make(before, m, r, seconds));
	o = json_pack("{s:s, s:s, s:I, s:I, s:s, s:I, s:f, s:f, s:f, s:o}", "name",
		      ctl_text(m, "name"), "state", ctl_text(m, "state"), "step",
		      (json_int_t)ctl_whole(m, "step"), "attempt",
		      (json_int_t)ctl_whole(m, "attempt"), "phase", ctl_text(m, "phase"), "chunks",
		      (json_int_t)ctl_whole(json_object_get(m, "chunks"), "nr"), "steps_per_s",
		      before ? rate(real(before, "step"), real(m, "step"), seconds) : 0.0, "step_s",
		      real(last, "step_s"), "wait_s", real(last, "wait_s"), "ranks", ranks);
	if (o && ctl_text(m, "waits")[0])
		json_object_set_new(o, "waits", json_string(ctl_text(m, "waits")));
	if (o && json_object_get(m, "late"))
		json_object_set_new(o, "late",
				    json_boolean(json_is_true(json_object_get(m, "late")) ||
						 strcmp(ctl_text(m, "state"), "training") != 0));
	if (o && ctl_text(m, "lost")[0])
		json_object_set_new(o, "lost", json_string(ctl_text(m, "lost")));
	return o;
}

json_t *figures_make(const json_t *before, const json_t *now, double seconds)
{
	const json_t *budget = json_object_get(now, "budget");
	json_t *nodes = json_array(), *models = json_array(), *x, *o;
	size_t i;

	if (before && ctl_whole(before, "incarnation") != ctl_whole(now, "incarnation"))
		before = NULL;
	json_array_foreach(json_object_get(now, "nodes"), i, x)
		json_array_append_new(nodes, node_make(named(json_object_get(before, "nodes"),
							     ctl_text(x, "name")),
						       x, seconds));
	json_array_foreach(json_object_get(now, "models"), i, x)
		json_array_append_new(models, model_make(named(json_object_get(before, "models"),
							       ctl_text(x, "name")),
							 x, seconds));
	o = json_pack("{s:s, s:I, s:f, s:I, s:I, s:I, s:f, s:o, s:o}", "node",
		      ctl_text(now, "node"), "pid", (json_int_t)ctl_whole(now, "pid"), "uptime_s",
		      real(now, "uptime_s"), "connections",
		      (json_int_t)ctl_whole(now, "connections"), "memory_used",
		      (json_int_t)ctl_whole(budget, "used"), "memory_total",
		      (json_int_t)ctl_whole(budget, "total"), "interval_s", seconds, "nodes", nodes,
		      "models", models);
	if (o && json_object_get(now, "health"))
		json_object_set(o, "health", json_object_get(now, "health"));
	return o;
}

/* --- in an order, and not all --- */

static const char *const sorts[] = {
	[FIGURES_WAIT] = "wait", [FIGURES_RANK] = "rank",     [FIGURES_NODE] = "node",
	[FIGURES_RATE] = "rate", [FIGURES_CHUNKS] = "chunks",
};

const char *figures_sort_name(enum figures_sort sort)
{
	CHECK((size_t)sort < NR(sorts));
	return sorts[sort];
}

bool figures_sort_parse(const char *name, enum figures_sort *out)
{
	for (size_t i = 0; i < NR(sorts); i++)
		if (strcmp(sorts[i], name) == 0) {
			*out = (enum figures_sort)i;
			return true;
		}
	return false;
}

/* Lower is worse. */
static int grade(const json_t *o)
{
	const char *tone = palette_of_model(&palette_marks, ctl_text(o, "state"),
					    json_is_true(json_object_get(o, "late")));

	return tone == palette_marks.bad    ? 0
	       : tone == palette_marks.warn ? 1
	       : tone == palette_marks.good ? 3
					    : 2;
}

static int less(double a, double b)
{
	return (a > b) - (a < b);
}

static int compare_ranks(const void *left, const void *right, void *arg)
{
	const json_t *a = *(json_t *const *)left, *b = *(json_t *const *)right;
	const struct figures_view *v = arg;
	int by = 0;

	if (v->sort == FIGURES_WAIT)
		by = less(real(b, "wait_s"), real(a, "wait_s"));
	else if (v->sort == FIGURES_NODE)
		by = strcmp(ctl_text(a, "node"), ctl_text(b, "node"));
	else if (v->sort == FIGURES_RATE)
		by = less(real(a, "bytes_per_s"), real(b, "bytes_per_s"));
	else if (v->sort == FIGURES_CHUNKS)
		by = less(real(a, "chunks_pushed"), real(b, "chunks_pushed"));
	if (by == 0)
		by = less(real(a, "rank"), real(b, "rank"));
	return v->reverse ? -by : by;
}

static int compare_grades(const void *left, const void *right, void *arg)
{
	const json_t *a = *(json_t *const *)left, *b = *(json_t *const *)right;
	const struct figures_view *v = arg;
	int by = v->sort == FIGURES_WAIT ? grade(a) - grade(b) : 0;

	if (by == 0)
		by = strcmp(ctl_text(a, "name"), ctl_text(b, "name"));
	return v->reverse ? -by : by;
}

/* A word of the line has the filter. Numbers are words, too. */
static bool has(const json_t *o, const char *filter)
{
	char number[32];
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)o, key, v) {
		const char *text = json_string_value(v);

		if (json_is_integer(v) && (strcmp(key, "rank") == 0 || strcmp(key, "pid") == 0)) {
			snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(v));
			text = number;
		}
		if (text != NULL && strcmp(key, "waits") != 0 && strcasestr(text, filter) != NULL)
			return true;
	}
	return false;
}

static json_t *in(const json_t *list, const struct figures_view *v, bool all,
		  int (*compare)(const void *, const void *, void *))
{
	size_t nr = 0, i;
	json_t **at = calloc(json_array_size(list) + 1, sizeof(*at)), *out = json_array(), *x;

	json_array_foreach((json_t *)(uintptr_t)list, i, x)
		if (at != NULL &&
		    (all || v->filter[0] == 0 || json_array_size(json_object_get(x, "ranks")) > 0 ||
		     has(x, v->filter)))
			at[nr++] = x;
	if (nr > 0)
		qsort_r(at, nr, sizeof(struct json_t *), compare, (void *)(uintptr_t)v);
	for (i = 0; i < nr; i++)
		json_array_append(out, at[i]);
	free(at);
	return out;
}

json_t *figures_in(const json_t *f, const struct figures_view *view)
{
	json_t *out = json_copy((json_t *)(uintptr_t)f), *models = json_array(), *m;
	size_t i;

	json_array_foreach(json_object_get(f, "models"), i, m) {
		json_t *copy = json_copy(m);

		json_object_set_new(
			copy, "ranks",
			in(json_object_get(m, "ranks"), view, has(m, view->filter), compare_ranks));
		json_array_append_new(models, copy);
	}
	json_object_set_new(out, "nodes",
			    in(json_object_get(f, "nodes"), view, false, compare_grades));
	json_object_set_new(out, "models", in(models, view, false, compare_grades));
	json_decref(models);
	return out;
}

/* --- as text --- */

static void print_rate(FILE *out, const json_t *o, const char *key)
{
	char number[CTL_NUMBER_BYTES];

	if (json_object_get(o, key))
		fprintf(out, " %12s", ctl_bytes(number, real(o, key)));
	else
		fprintf(out, " %12s", "-");
}

static void print_rank(const json_t *m, const json_t *r, const struct palette *p, FILE *out)
{
	const char *state = ctl_text(r, "state");

	fprintf(out, "%4lld %-16.16s %8lld ", ctl_whole(r, "rank"), ctl_text(r, "node"),
		ctl_whole(r, "pid"));
	if (!json_object_get(r, "state")) {
		fprintf(out, "%s(its node knows)%s\n", p->soft, p->end);
		return;
	}
	fprintf(out, "%s%-10.10s%s %7lld/%-7lld %7.1f s", palette_of(p, state),
		strcmp(state, "waits for the image") == 0 ? "for image" : state, p->end,
		ctl_whole(r, "chunks_pushed"), ctl_whole(m, "chunks"), real(r, "wait_s"));
	print_rate(out, r, "bytes_per_s");
	fprintf(out, "\n");
}

static void print_model(const json_t *m, const struct palette *p, FILE *out)
{
	const json_t *ranks = json_object_get(m, "ranks");
	size_t i;
	json_t *r;

	const char *state = ctl_text(m, "state");

	fprintf(out,
		"\n%s%smodel \"%s\"%s: %s%s%s, step %lld, %.2f step/s, last step %.3f s, waits "
		"%.3f s\n",
		p->sentence, p->head, ctl_text(m, "name"), p->end,
		palette_of_model(p, state, json_is_true(json_object_get(m, "late"))), state, p->end,
		ctl_whole(m, "step"), real(m, "steps_per_s"), real(m, "step_s"), real(m, "wait_s"));
	if (ctl_text(m, "lost")[0])
		fprintf(out, "%s%slost%s: %s\n", p->sentence, p->bad, p->end, ctl_text(m, "lost"));
	if (ctl_text(m, "waits")[0] && !json_is_false(json_object_get(m, "late")))
		fprintf(out, "%s%s\n", p->sentence, ctl_text(m, "waits"));
	if (json_array_size(ranks) > 0)
		fprintf(out, "%s%4s %-16s %8s %-10s %15s %9s %12s%s\n", p->soft, "RANK", "NODE",
			"PID", "STATE", "CHUNKS PUSHED", "WAIT", "BYTES/S", p->end);
	json_array_foreach((json_t *)(uintptr_t)ranks, i, r)
		print_rank(m, r, p, out);
}

void figures_print(const json_t *f, const struct palette *p, FILE *out)
{
	const json_t *nodes = json_object_get(f, "nodes"), *models = json_object_get(f, "models");
	char used[CTL_NUMBER_BYTES], total[CTL_NUMBER_BYTES], age[CTL_NUMBER_BYTES];
	size_t i;
	json_t *x;

	json_array_foreach(json_object_get(json_object_get(f, "health"), "findings"), i, x)
		fprintf(out, "%s%s%s%s: %s\n", p->sentence, palette_of(p, ctl_text(x, "level")),
			ctl_text(x, "level"), p->end, ctl_text(x, "text"));
	fprintf(out, "%s%snode %s%s: pid %lld, up %s, %lld connection%s, %s of %s promised\n",
		p->sentence, p->head, ctl_text(f, "node"), p->end, ctl_whole(f, "pid"),
		ctl_age(age, real(f, "uptime_s")), ctl_whole(f, "connections"),
		ctl_whole(f, "connections") == 1 ? "" : "s",
		ctl_bytes(used, real(f, "memory_used")), ctl_bytes(total, real(f, "memory_total")));
	fprintf(out, "\n%s%-16s %-6s %12s %12s  %s%s\n", p->soft, "NODE", "STATE", "IN/S", "OUT/S",
		"SINCE", p->end);
	json_array_foreach((json_t *)(uintptr_t)nodes, i, x) {
		fprintf(out, "%-16.16s %s%-6s%s", ctl_text(x, "name"),
			palette_of(p, ctl_text(x, "state")), ctl_text(x, "state"), p->end);
		print_rate(out, x, "in_bytes_per_s");
		print_rate(out, x, "out_bytes_per_s");
		fprintf(out, "  %s%s\n", ctl_age(age, real(x, "since_s")),
			json_is_true(json_object_get(x, "coordinator")) ? ", coordinates" : "");
	}
	json_array_foreach((json_t *)(uintptr_t)models, i, x)
		print_model(x, p, out);
	if (json_array_size(models) == 0)
		fprintf(out, "\nno models\n");
}
