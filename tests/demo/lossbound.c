// SPDX-License-Identifier: Apache-2.0
/* lossbound.c: `lossbound TEXT LOG...` says whether a training run learned something: the mean
 * training loss of its last 20 steps, over all ranks' step logs, against 0.80 of the text's order-0
 * entropy. Used by `make demo`. Status 0: at most that; 1: above, or a log lacks a step; 2: wrong
 * use. */
#include "examples/data.h"
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define LAST  20
#define SHARE 0.80

struct mean {
	uint64_t last, lines, samples; /* last: the highest step of all logs */
	double loss;                   /* times samples */
};

static bool line_of(FILE *f, uint64_t *step, uint64_t *samples, double *loss)
{
	char line[1024];

	return fgets(line, sizeof(line), f) &&
	       sscanf(line, "step=%" SCNu64 " rank=%*u world=%*u samples=%" SCNu64 " loss=%lf",
		      step, samples, loss) == 3;
}

/* Twice over each log: the last step first, then the lines near it. */
static bool add_log(struct mean *m, const char *path, bool count)
{
	FILE *f = fopen(path, "re");
	uint64_t step, samples, lines = 0;
	double loss;

	if (!f) {
		fprintf(stderr, "lossbound: cannot read %s\n", path);
		return false;
	}
	while (line_of(f, &step, &samples, &loss)) {
		if (!count)
			m->last = step > m->last ? step : m->last;
		else if (step + LAST > m->last) {
			m->loss += loss * (double)samples;
			m->samples += samples;
			lines++;
		}
	}
	fclose(f);
	if (count && lines != LAST)
		fprintf(stderr, "lossbound: %s has %" PRIu64 " of the last %d steps\n", path, lines,
			LAST);
	return !count || lines == LAST;
}

int main(int argc, char **argv)
{
	struct mean m = {0};
	struct data d;
	struct err e;
	double bound;

	if (argc < 3) {
		fprintf(stderr, "usage: lossbound TEXT LOG...\n");
		return 2;
	}
	if (data_load(&d, argv[1], &e) != SHARD_OK) {
		fprintf(stderr, "lossbound: %s\n", e.text);
		return 1;
	}
	bound = SHARE * data_entropy(&d);
	for (int pass = 0; pass < 2; pass++) {
		for (int i = 2; i < argc; i++) {
			if (!add_log(&m, argv[i], pass))
				return 1;
		}
	}
	m.loss /= (double)m.samples;
	printf("mean loss of the last %d steps: %.3f nats per byte; bound: %.3f = %.2f x order-0 "
	       "entropy %.3f\n",
	       LAST, m.loss, bound, SHARE, bound / SHARE);
	data_deinit(&d);
	if (!(m.loss <= bound)) {
		printf("lossbound: the loss is above its bound\n");
		return 1;
	}
	return 0;
}
