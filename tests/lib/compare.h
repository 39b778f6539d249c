/* SPDX-License-Identifier: Apache-2.0 */
/* compare.h: says whether two folders of dumped tensors (examples/dump.h) are equal, byte by
 * byte. */
#ifndef TEST_COMPARE_H
#define TEST_COMPARE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct compare {
	uint64_t files, bytes, different; /* `different` counts elements. */
};

/* True: both have the same files with the same bytes, and at least one file. Otherwise out says
 * what is wrong. That is every missing file, or the first file by name that differs, with the index
 * and both values of its first difference. */
bool compare_folders(const char *a, const char *b, struct compare *c, FILE *out);

#endif
