// SPDX-License-Identifier: Apache-2.0
/* Measures the pace of this machine. Tests and the other files of tests/lib call it. Happy path:
 * the clock on the wall times a walk over a small table, so that a slow processor, other work on it
 * and a sanitizer all count. The walk is short, and a process that has just woken often gets all of
 * a processor for so long. So what waits for a processor or a disk counts, too. The quotient of
 * that time and of the time of a quiet machine is kept for a while. Nothing can fail. */
#include "lib/pace.h"

#include "base/check.h"
#include "base/clock.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum {
	TABLE = 2048,
	TURNS = 4000000,
	QUIET_MS = 10, /* What so many turns take on a quiet machine. */
};
#define FRESH_NS (5 * NS_PER_SEC)

static _Atomic uint64_t measured_ns; /* When it was measured. 0: never. */
static _Atomic uint64_t percent;

static uint64_t walk(void)
{
	uint64_t table[TABLE], x = clock_ns();

	for (uint64_t i = 0; i < TABLE; i++)
		table[i] = i * 2654435761u;
	for (uint32_t i = 0; i < TURNS; i++)
		x = x * 6364136223846793005u + table[x >> 53];
	return x;
}

/* How many times more work there is than the machine does at a time, in percent, at least 100. */
static uint64_t crowd(void)
{
	long processors = sysconf(_SC_NPROCESSORS_ONLN);
	double tasks;

	if (getloadavg(&tasks, 1) != 1 || processors < 1 || tasks < (double)processors)
		return 100;
	return (uint64_t)(tasks * 100 / (double)processors);
}

static uint64_t pace(void)
{
	uint64_t began = clock_ns(), last = atomic_load(&measured_ns), is;
	static _Atomic uint64_t sink; /* The work has a result, so no compiler leaves it out. */

	if (last != 0 && began - last < FRESH_NS)
		return atomic_load(&percent);
	atomic_store(&sink, walk());
	is = (clock_ns() - began) * 100 / (QUIET_MS * NS_PER_MS);
	is = (is < 100 ? 100 : is) * crowd() / 100;
	atomic_store(&percent, is);
	atomic_store(&measured_ns, clock_ns());
	return is;
}

uint64_t pace_ns(uint64_t quiet_ns)
{
	uint64_t percent_now = pace();

	CHECK(quiet_ns <= UINT64_MAX / percent_now);
	return quiet_ns * percent_now / 100;
}

int pace_ms(int64_t quiet_ms)
{
	uint64_t ms = pace_ns((uint64_t)quiet_ms * NS_PER_MS) / NS_PER_MS;

	CHECK(quiet_ms >= 0);
	return ms < INT_MAX ? (int)ms : INT_MAX;
}

uint64_t pace_by(uint64_t quiet_s)
{
	return clock_ns() + pace_ns(quiet_s * NS_PER_SEC);
}
