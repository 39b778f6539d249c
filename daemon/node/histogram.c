/* SPDX-License-Identifier: Apache-2.0 */
/* Histograms of times, all with the same bounds, from 100 microseconds to five minutes.
 * obs/scrape.c adds to them on the loop thread, and obs/metrics.c writes them when a scrape asks
 * for them. Nothing here can fail. */
#include "node/histogram.h"

#include "base/check.h"

#define US 1000ull
#define MS 1000000ull
#define S  1000000000ull

static const uint64_t bounds[HISTOGRAM_BOUNDS] = {
	100 * US, 250 * US, 500 * US, 1 * MS,   2500 * US, 5 * MS,  10 * MS,
	25 * MS,  50 * MS,  100 * MS, 250 * MS, 500 * MS,  1 * S,   2500 * MS,
	5 * S,    10 * S,   30 * S,   60 * S,   120 * S,   300 * S,
};

uint64_t histogram_bound_ns(uint32_t i)
{
	CHECK(i < HISTOGRAM_BOUNDS);
	return bounds[i];
}

void histogram_add(struct histogram *h, uint64_t ns)
{
	uint32_t i = 0;

	while (i < HISTOGRAM_BOUNDS && ns > bounds[i])
		i++;
	h->bucket[i]++;
	h->count++;
	h->sum_ns += ns;
}
