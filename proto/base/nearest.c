/* SPDX-License-Identifier: Apache-2.0 */
/* Finds what somebody who mistyped a word meant, for "did you mean". The configuration's loader
 * asks for keys and sections, and shardctl for commands. It compares the word with each candidate
 * in turn, allocates nothing and cannot fail: a word that is near to nothing has no answer. */
#include "base/nearest.h"

#include "base/check.h"

#include <string.h>

/* The Levenshtein distance, in one row. Longer words than 63 characters are near to none. */
static size_t distance(const char *a, const char *b)
{
	size_t row[64], na = strlen(a), nb = strlen(b);

	if (na >= NR(row) || nb >= NR(row))
		return SIZE_MAX;
	for (size_t j = 0; j <= nb; j++)
		row[j] = j;
	for (size_t i = 1; i <= na; i++) {
		size_t corner = row[0];

		row[0] = i;
		for (size_t j = 1; j <= nb; j++) {
			size_t best = corner + (a[i - 1] != b[j - 1]);

			corner = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[nb];
}

const char *nearest_word(const char *word, const char *(*candidate)(const void *arg, uint32_t i),
			 const void *arg)
{
	size_t best = strlen(word) / 2 + 1; /* What is further away is hardly a typing error. */
	const char *found = NULL;

	CHECK(candidate);
	for (uint32_t i = 0;; i++) {
		const char *c = candidate(arg, i);

		if (!c)
			return found;
		size_t d = distance(word, c);
		if (d < best) {
			best = d;
			found = c;
		}
	}
}
