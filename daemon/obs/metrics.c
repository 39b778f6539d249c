/* SPDX-License-Identifier: Apache-2.0 */
/* Writes counters and histograms in Prometheus' text format 0.0.4, as in "name{label="value"} 1".
 * scrape.c calls on the loop, for each request that needs a new snapshot. Label values may hold any
 * text: backslash, quote and newline are escaped. A histogram's buckets are written as running
 * sums. Nothing here can fail but the stream, which its owner checks. */
#include "obs/metrics.h"

#include "base/check.h"
#include "base/clock.h"

#include <inttypes.h>
#include <math.h>

const char *metrics_skip_name(enum metrics_skip reason)
{
	static const char *const names[METRICS_SKIPS] = {
		[METRICS_SKIP_NONFINITE] = "nonfinite", [METRICS_SKIP_VOTE] = "vote"};

	CHECK((unsigned)reason < METRICS_SKIPS);
	return names[reason];
}

void metrics_family(FILE *f, const char *name, enum metrics_type type, const char *help)
{
	static const char *const words[] = {[METRICS_COUNTER] = "counter",
					    [METRICS_GAUGE] = "gauge",
					    [METRICS_HISTOGRAM] = "histogram"};

	fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, words[type]);
}

static void escaped(FILE *f, const char *text)
{
	for (; *text; text++) {
		if (*text == '\n')
			fputs("\\n", f);
		else if (*text == '\\' || *text == '"')
			fprintf(f, "\\%c", *text);
		else
			fputc(*text, f);
	}
}

/* le: the bound of a histogram's bucket, in the same braces. NULL: none. */
static void head(FILE *f, const char *name, const char *suffix, const struct metrics_label *labels,
		 const char *le)
{
	const char *glue = "{";

	fprintf(f, "%s%s", name, suffix);
	for (; labels != NULL && labels->name != NULL; labels++) {
		fprintf(f, "%s%s=\"", glue, labels->name);
		escaped(f, labels->value);
		fputc('"', f);
		glue = ",";
	}
	if (le != NULL) {
		fprintf(f, "%sle=\"%s\"", glue, le);
		glue = ",";
	}
	fputs(*glue == '{' ? " " : "} ", f);
}

void metrics_sample(FILE *f, const char *name, const struct metrics_label *labels, double value)
{
	head(f, name, "", labels, NULL);
	if (isnan(value))
		fputs("NaN\n", f);
	else if (isinf(value))
		fputs(value > 0 ? "+Inf\n" : "-Inf\n", f);
	else
		fprintf(f, "%.12g\n", value);
}

void metrics_count(FILE *f, const char *name, const struct metrics_label *labels, uint64_t value)
{
	head(f, name, "", labels, NULL);
	fprintf(f, "%" PRIu64 "\n", value);
}

void metrics_histogram(FILE *f, const char *name, const struct metrics_label *labels,
		       const struct histogram *h)
{
	uint64_t sum = 0;
	char le[32];

	for (uint32_t i = 0; i <= HISTOGRAM_BOUNDS; i++) {
		if (i < HISTOGRAM_BOUNDS)
			snprintf(le, sizeof(le), "%g", (double)histogram_bound_ns(i) / NS_PER_SEC);
		else
			snprintf(le, sizeof(le), "+Inf");
		sum += h->bucket[i];
		head(f, name, "_bucket", labels, le);
		fprintf(f, "%" PRIu64 "\n", sum);
	}
	CHECK(sum == h->count);
	head(f, name, "_sum", labels, NULL);
	fprintf(f, "%.9f\n", (double)h->sum_ns / NS_PER_SEC);
	head(f, name, "_count", labels, NULL);
	fprintf(f, "%" PRIu64 "\n", h->count);
}
