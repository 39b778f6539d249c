/* SPDX-License-Identifier: Apache-2.0 */
/* parked.h: what outlives the daemon of a cluster of one node, piece by piece, whichever keeps it:
 * descriptors of a store, or files. For tests that look at it, take some of it away and put other
 * things in its place while no daemon runs. */
#ifndef SHARD_TESTS_PARKED_H
#define SHARD_TESTS_PARKED_H

#include "lib/warm.h"

enum { PARKED_MAX = 64, PARKED_NAME = 256 };

typedef char parked_name[PARKED_NAME];

uint32_t parked_list(struct warm *w,
		     parked_name *names);          /* of PARKED_MAX; in the order of the alphabet */
int parked_open(struct warm *w, const char *name); /* to read and write; the caller's */
size_t parked_bytes(struct warm *w, const char *name);
void parked_remove(struct warm *w, const char *name);
void parked_replace(struct warm *w, const char *name, size_t bytes); /* by so many zeros */
/* Every place of `bytes` in it gets one bit flipped; how many there were. */
uint32_t parked_flip(struct warm *w, const char *name, const void *bytes, size_t nr);

#endif
