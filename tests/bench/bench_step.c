/* SPDX-License-Identifier: Apache-2.0 */
/* step_local_1, step_local_2: one daemon and one or two trainers with 64 Mi parameters, bf16, AdamW
 * and clipping. The trainers write their gradients in place, tensor by tensor as a backward pass
 * does, and push each tensor when it is written. The time runs from the last push until the image
 * is complete at every trainer. step_burst_1, step_burst_2: nothing is written and everything is
 * pushed at once. The time runs from the first push, so that it contains sum and norm of every
 * chunk. Both have memory that outlives the daemon, which is the default. step_local_unkept_1,
 * step_local_unkept_2: the first figures with warm_restart = off. The limit is the bare kernel over
 * as many parameters in this process. It has as many threads, which take chunks from one counter,
 * and the same kinds of pages as the daemon (image and gradient in shared memory). Rounds alternate
 * and figures are medians. --quick: 4 Mi parameters and few rounds. */
#include "base/check.h"
#include "base/clock.h"
#include "bench/daemons.h"
#include "node/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 15, ROUNDS_MAX = 999 };

/* Processors that were idle a moment ago can be half as fast as busy ones. So the limit is taken in
 * the state in which the step finds them. */
static double bare_limit(struct bare *b, bool busy)
{
	if (busy)
		bare_round(b);
	return bare_round(b);
}

static void measure(const char *argv0, int trainers, bool burst, const char *warm,
		    uint32_t chunks_nr, int rounds)
{
	struct fleet_spec spec = {.name = "bench",
				  .tensors_nr = chunks_nr,
				  .numel = BARE_CHUNK,
				  .dtype = SHARD_BF16,
				  .trainers = trainers,
				  .write = !burst};
	double ours[ROUNDS_MAX], limit[ROUNDS_MAX], reduce[ROUNDS_MAX], apply[ROUNDS_MAX], o, l;
	uint32_t workers = worker_processors();
	const char *name = burst ? "burst" : warm != NULL ? "local" : "local_unkept";
	char settings[128];
	struct fleet_times t;
	struct daemons d;
	struct fleet *f;
	struct bare *b;

	snprintf(settings, sizeof(settings),
		 "optimizer=adamw lr=1e-3 clip=1.0 min_world=%d local_world=%d", trainers,
		 trainers);
	spec.settings = settings;
	daemons_make(&d, argv0, 1, workers, warm);
	daemons_launch(&d, 0);
	daemons_wait(&d, 0);
	f = fleet_begin(&d, &spec);
	b = bare_begin(chunks_nr, workers);
	bare_round(b);
	fleet_step(f, &t);
	fleet_step(f, &t);
	for (int i = 0; i < rounds; i++) {
		limit[i] = bare_limit(b, !burst);
		fleet_step(f, &t);
		ours[i] = (double)(burst ? t.step : t.after) * 1e-6;
		reduce[i] = daemons_figure(&d, 0, "last_step.reduce_s") * 1e3;
		apply[i] = daemons_figure(&d, 0, "last_step.apply_s") * 1e3;
	}
	bare_end(&b);
	fleet_end(&f);
	daemons_stop(&d);
	o = bench_median(ours, rounds);
	l = bench_median(limit, rounds);
	fprintf(stderr, "step_%s_%d: sums and norm %.2f ms, optimizer %.2f ms\n", name, trainers,
		bench_median(reduce, rounds), bench_median(apply, rounds));
	printf("bench: step_%s_%d %.2f ms limit %.2f ratio %.3f\n", name, trainers, o, l, o / l);
}

int main(int argc, char **argv)
{
	static const struct {
		bool burst;
		const char *warm;
	} way[] = {{false, "tmpfs"}, {true, "tmpfs"}, {false, NULL}};
	bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
	/* The arguments TRAINERS ROUNDS are for a closer look. */
	int only = argc > 2 ? atoi(argv[1]) : 0, rounds = argc > 2 ? atoi(argv[2]) : ROUNDS;

	CHECK(rounds > 0 && rounds <= ROUNDS_MAX);
	for (int trainers = 1; trainers <= 2; trainers++)
		for (uint32_t i = 0; i < NR(way) && (only == 0 || only == trainers); i++)
			measure(argv[0], trainers, way[i].burst, way[i].warm, quick ? 4 : 64,
				quick ? 3 : rounds);
	return 0;
}
