/* SPDX-License-Identifier: Apache-2.0 */
/* sim [--seeds N] [--seed K] [--until CHECKER]: runs seeds K .. K+N-1 (seeds 0 and 1 are fault-free) and some of them a second time, to see
 * that a seed replays exactly. On a failure it prints the seed, the checker and the last trace lines; exit 1. With --until it goes
 * on until that checker finds something: a planted mistake is often found by several. */
#include "sim/sim.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static jmp_buf *stop_at;
static struct sim *running;

static void on_abort(int number) /* a CHECK of the core is a checker like the others */
{
	(void)number;
	running->failed = "core_check";
	snprintf(running->why, sizeof(running->why), "a CHECK failed (above)");
	longjmp(*stop_at, 1);
}

static bool run(struct sim *s, uint64_t seed, bool verbose)
{
	sigset_t set;
	bool ok;

	running = s;
	stop_at = &s->stop;
	sigemptyset(&set);
	sigaddset(&set, SIGABRT);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	ok = sim_run(s, seed, verbose);
	sim_free(s);
	return ok;
}

static int report(struct sim *s, uint64_t seed)
{
	uint32_t from;

	if (run(s, seed, true)) {
		printf("sim: seed %llu failed once and not again: it does not replay\n", (unsigned long long)seed);
		return 1;
	}
	from = s->trace_nr > NR(s->trace) ? s->trace_nr - (uint32_t)NR(s->trace) : 0;
	for (uint32_t i = from; i < s->trace_nr; i++)
		printf("  %s\n", s->trace[i % NR(s->trace)]);
	printf("sim: seed %llu checker %s: %s\n", (unsigned long long)seed, s->failed, s->why);
	return 1;
}

int main(int argc, char **argv)
{
	struct sim *s = calloc(1, sizeof(*s));
	const char *until = NULL;
	uint64_t seed = 0, seeds = 1, hash, commits = 0, forwards = 0, aborts = 0, losts = 0, restarts = 0, events = 0, helds = 0,
		 tuneds = 0, restores = 0, warms = 0;

	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--seeds"))
			seeds = strtoull(argv[i + 1], NULL, 0);
		else if (!strcmp(argv[i], "--seed"))
			seed = strtoull(argv[i + 1], NULL, 0);
		else if (!strcmp(argv[i], "--until"))
			until = argv[i + 1];
	}
	CHECK(s);
	signal(SIGABRT, on_abort);
	for (uint64_t k = seed; k < seed + seeds; k++) {
		if (!run(s, k, false)) {
			if (until && strcmp(until, s->failed))
				continue;
			return report(s, k);
		}
		hash = s->hash;
		commits += s->commits;
		aborts += s->aborts;
		forwards += s->forwards;
		losts += s->losts;
		restarts += s->restarts;
		warms += s->warms;
		helds += s->orders.helds;
		tuneds += s->orders.tuneds;
		restores += s->orders.restores;
		events += s->events_nr;
		if (k % 16)
			continue;
		if (!run(s, k, false) || s->hash != hash) {
			printf("sim: seed %llu does not replay: %016llx and %016llx\n", (unsigned long long)k,
			       (unsigned long long)hash, (unsigned long long)s->hash);
			return 1;
		}
	}
	printf("sim: %llu seeds from %llu: %llu commits (%llu by recovery), %llu attempts ended, %llu restarts (%llu warm), %llu "
	       "times LOST, "
	       "%llu holds, %llu tunes, %llu restored, %llu events, last hash %016llx\n",
	       (unsigned long long)seeds, (unsigned long long)seed, (unsigned long long)commits, (unsigned long long)forwards,
	       (unsigned long long)aborts, (unsigned long long)restarts, (unsigned long long)warms, (unsigned long long)losts,
	       (unsigned long long)helds, (unsigned long long)tuneds, (unsigned long long)restores, (unsigned long long)events,
	       (unsigned long long)s->hash);
	free(s);
	return 0;
}
