/* SPDX-License-Identifier: Apache-2.0 */
/* Two snapshots of a daemon become rates. top.c calls figures_make() once per interval and prints
 * what it returns, as JSON or through figures_print(). A field that an older daemon does not send
 * is left out or 0. Bytes of a rank are the gradients that it pushed; bytes of a node are what its
 * connections carried. */
#include "ctl/figures.h"

#include "ctl/ctl.h"
#include "ctl/json.h"

#include <stdbool.h>
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

/* Those that keep others waiting come first: of the ranks that are not ready, the longest wait. */
static json_t *worst_first(json_t *ranks)
{
	json_t *sorted = json_array();

	while (json_array_size(ranks) > 0) {
		size_t worst = 0;

		for (size_t i = 1; i < json_array_size(ranks); i++)
			if (real(json_array_get(ranks, i), "wait_s") >
			    real(json_array_get(ranks, worst), "wait_s"))
				worst = i;
		json_array_append(sorted, json_array_get(ranks, worst));
		json_array_remove(ranks, worst);
	}
	json_decref(ranks);
	return sorted;
}

static json_t *model_make(const json_t *before, const json_t *m, double seconds, bool sort)
{
	const json_t *last = json_object_get(m, "last_step");
	json_t *ranks = json_array(), *r, *o;
	size_t i;

	if (before && ctl_whole(before, "generation") != ctl_whole(m, "generation"))
		before = NULL;
	json_array_foreach(json_object_get(m, "world"), i, r)
		json_array_append_new(ranks, rank_make(before, m, r, seconds));
	if (sort)
		ranks = worst_first(ranks);
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
		json_array_append_new(
			models,
			model_make(named(json_object_get(before, "models"), ctl_text(x, "name")), x,
				   seconds, json_object_get(now, "everywhere") != NULL));
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

/* --- as text --- */

static void print_rate(FILE *out, const json_t *o, const char *key)
{
	char number[CTL_NUMBER_BYTES];

	if (json_object_get(o, key))
		fprintf(out, " %12s", ctl_bytes(number, real(o, key)));
	else
		fprintf(out, " %12s", "-");
}

static void print_model(const json_t *m, FILE *out)
{
	const json_t *ranks = json_object_get(m, "ranks");
	size_t i;
	json_t *r;

	fprintf(out, "\nmodel \"%s\": %s, step %lld, %.2f step/s, last step %.3f s, waits %.3f s\n",
		ctl_text(m, "name"), ctl_text(m, "state"), ctl_whole(m, "step"),
		real(m, "steps_per_s"), real(m, "step_s"), real(m, "wait_s"));
	if (ctl_text(m, "lost")[0])
		fprintf(out, "lost: %s\n", ctl_text(m, "lost"));
	if (ctl_text(m, "waits")[0] && !json_is_false(json_object_get(m, "late")))
		fprintf(out, "%s\n", ctl_text(m, "waits"));
	if (json_array_size(ranks) > 0)
		fprintf(out, "%4s %-16s %8s %-10s %15s %9s %12s\n", "RANK", "NODE", "PID", "STATE",
			"CHUNKS PUSHED", "WAIT", "BYTES/S");
	json_array_foreach((json_t *)(uintptr_t)ranks, i, r) {
		fprintf(out, "%4lld %-16.16s %8lld ", ctl_whole(r, "rank"), ctl_text(r, "node"),
			ctl_whole(r, "pid"));
		if (!json_object_get(r, "state")) {
			fprintf(out, "(its node knows)\n");
			continue;
		}
		fprintf(out, "%-10s %7lld/%-7lld %7.1f s", ctl_text(r, "state"),
			ctl_whole(r, "chunks_pushed"), ctl_whole(m, "chunks"), real(r, "wait_s"));
		print_rate(out, r, "bytes_per_s");
		fprintf(out, "\n");
	}
}

void figures_print(const json_t *f, FILE *out)
{
	const json_t *nodes = json_object_get(f, "nodes"), *models = json_object_get(f, "models");
	char used[CTL_NUMBER_BYTES], total[CTL_NUMBER_BYTES];
	size_t i;
	json_t *x;

	json_array_foreach(json_object_get(json_object_get(f, "health"), "findings"), i, x)
		fprintf(out, "%s: %s\n", ctl_text(x, "level"), ctl_text(x, "text"));
	fprintf(out, "node %s: pid %lld, up %.0f s, %lld connections, %s of %s promised\n",
		ctl_text(f, "node"), ctl_whole(f, "pid"), real(f, "uptime_s"),
		ctl_whole(f, "connections"), ctl_bytes(used, real(f, "memory_used")),
		ctl_bytes(total, real(f, "memory_total")));
	fprintf(out, "\n%-16s %-6s %12s %12s  %s\n", "NODE", "STATE", "IN/S", "OUT/S", "SINCE");
	json_array_foreach((json_t *)(uintptr_t)nodes, i, x) {
		fprintf(out, "%-16.16s %-6s", ctl_text(x, "name"), ctl_text(x, "state"));
		print_rate(out, x, "in_bytes_per_s");
		print_rate(out, x, "out_bytes_per_s");
		fprintf(out, "  %.0f s%s\n", real(x, "since_s"),
			json_is_true(json_object_get(x, "coordinator")) ? ", coordinates" : "");
	}
	json_array_foreach((json_t *)(uintptr_t)models, i, x)
		print_model(x, out);
	if (json_array_size(models) == 0)
		fprintf(out, "\nno models\n");
}
