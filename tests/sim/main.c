/* SPDX-License-Identifier: Apache-2.0 */
/* sim [--seeds N] [--seed K] [--until CHECKER]: runs seeds K .. K+N-1 (seeds 0 and 1 are
 * fault-free) and some of them a second time, to see that a seed replays exactly. On a failure it
 * prints the seed, the checker and the last trace lines; exit 1. With --until it goes on until that
 * checker finds something: a planted mistake is often found by several. */
#include "sim/sim.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#define HANG_S 20 /* A seed takes a few milliseconds, and more with a sanitizer. */

static jmp_buf *stop_at;
static struct sim *running;

static void on_abort(int number) /* A failed CHECK of the core counts as a checker. */
{
	(void)number;
	running->failed = "core_check";
	snprintf(running->why, sizeof(running->why), "a CHECK failed (above)");
	longjmp(*stop_at, 1);
}

static void on_hang(int number) /* A core that does not return counts as a checker, too. */
{
	(void)number;
	running->failed = "hang";
	snprintf(running->why, sizeof(running->why), "one seed takes %d s of processor time",
		 HANG_S);
	longjmp(*stop_at, 1);
}

static bool run(struct sim *s, uint64_t seed, bool verbose)
{
	struct itimerval hang = {.it_value.tv_sec = HANG_S};
	sigset_t set;
	bool ok;

	running = s;
	stop_at = &s->stop;
	sigemptyset(&set);
	sigaddset(&set, SIGABRT);
	sigaddset(&set, SIGVTALRM);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	setitimer(ITIMER_VIRTUAL, &hang, NULL);
	ok = sim_run(s, seed, verbose);
	sim_free(s);
	return ok;
}

static int report(struct sim *s, uint64_t seed)
{
	uint32_t from;

	if (run(s, seed, true)) {
		printf("sim: seed %llu failed once and not again: it does not replay\n",
		       (unsigned long long)seed);
		return 1;
	}
	from = s->trace_nr > NR(s->trace) ? s->trace_nr - (uint32_t)NR(s->trace) : 0;
	for (uint32_t i = from; i < s->trace_nr; i++)
		printf("  %s\n", s->trace[i % NR(s->trace)]);
	printf("sim: seed %llu checker %s: %s\n", (unsigned long long)seed, s->failed, s->why);
	return 1;
}

struct totals {
	uint64_t commits, forwards, aborts, losts, restarts, warms, zombies, held_off, events,
		helds, tuneds, restores, expelled, cuts, learned, promoted, stragglers,
		orders_moves, backs, moved, moved_over, replaced, joined, liars, differed, told_odd,
		disputed, elections, late_leads, landed_late, clocks, one_ways, trainers;
};

static void total(struct totals *t, const struct sim *s)
{
	for (uint16_t i = 0; i < s->models_nr; i++) {
		const struct sim_model *m = &s->model[i];

		t->commits += m->commits;
		t->trainers += m->trainers_nr;
		t->aborts += m->aborts;
		t->forwards += m->forwards;
		t->losts += m->losts;
		t->helds += m->orders.helds;
		t->tuneds += m->orders.tuneds;
		t->restores += m->orders.restores;
		t->expelled += m->expelled;
		t->learned += m->learned;
		t->promoted += m->promoted;
		t->stragglers += m->stragglers;
		t->orders_moves += m->orders_moves;
		t->backs += m->backs;
		t->moved += m->moved;
		t->moved_over += m->moved_over;
		t->replaced += m->replaced;
		t->joined += m->joined;
		t->liars += m->liars;
		t->differed += m->differed;
		t->told_odd += m->told_odd;
		t->disputed += m->disputed;
	}
	t->clocks += s->clocks_nr;
	t->one_ways += s->one_ways;
	t->cuts += s->cut.a != s->cut.b;
	t->restarts += s->restarts;
	t->warms += s->warms;
	t->zombies += s->zombies_nr;
	t->held_off += s->held_off;
	t->events += s->events_nr;
	t->elections += s->elections;
	t->late_leads += s->late_leads;
	t->landed_late += s->landed_late;
}

static void print_totals(const struct totals *t)
{
	const struct {
		const char *what;
		uint64_t nr;
	} rows[] = {
		{"commits", t->commits},
		{"by recovery", t->forwards},
		{"attempts ended", t->aborts},
		{"restarts", t->restarts},
		{"warm", t->warms},
		{"coordinators beside another", t->zombies},
		{"orders of it that a promise held off", t->held_off},
		{"times LOST", t->losts},
		{"holds", t->helds},
		{"tunes", t->tuneds},
		{"restored", t->restores},
		{"members expelled", t->expelled},
		{"partial cuts", t->cuts},
		{"learned", t->learned},
		{"counted again", t->promoted},
		{"stragglers", t->stragglers},
		{"moves ordered", t->orders_moves},
		{"called back", t->backs},
		{"replaced under way", t->replaced},
		{"moved", t->moved},
		{"under another term", t->moved_over},
		{"joined", t->joined},
		{"nodes that lie", t->liars},
		{"attempts in which votes differ", t->differed},
		{"nodes that were odd", t->told_odd},
		{"times an operator had to look", t->disputed},
		{"elections", t->elections},
		{"that a node heard of too late", t->late_leads},
		{"views that landed after UNKNOWN", t->landed_late},
		{"clocks that jumped or stood still", t->clocks},
		{"one-way cuts", t->one_ways},
		{"trainers", t->trainers},
		{"events", t->events},
	};

	for (size_t i = 0; i < NR(rows); i++)
		printf("%s %llu %s", i ? "," : "", (unsigned long long)rows[i].nr, rows[i].what);
}

int main(int argc, char **argv)
{
	struct sim *s = calloc(1, sizeof(*s));
	struct totals t = {0};
	const char *until = NULL;
	uint64_t seed = 0, seeds = 1, hash;

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
	signal(SIGVTALRM, on_hang);
	for (uint64_t k = seed; k < seed + seeds; k++) {
		if (!run(s, k, false)) {
			if (until && strcmp(until, s->failed))
				continue;
			return report(s, k);
		}
		hash = s->hash;
		total(&t, s);
		if (k % 16)
			continue;
		if (!run(s, k, false) || s->hash != hash) {
			printf("sim: seed %llu does not replay: %016llx and %016llx\n",
			       (unsigned long long)k, (unsigned long long)hash,
			       (unsigned long long)s->hash);
			return 1;
		}
	}
	printf("sim: %llu seeds from %llu:", (unsigned long long)seeds, (unsigned long long)seed);
	print_totals(&t);
	printf(", last hash %016llx, %.0f seeds in a second of processor time\n",
	       (unsigned long long)s->hash, (double)seeds * CLOCKS_PER_SEC / (double)clock());
	free(s);
	return 0;
}
