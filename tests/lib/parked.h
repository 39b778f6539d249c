/* SPDX-License-Identifier: Apache-2.0 */
/* parked.h: the memory that outlives the daemon of a cluster of one node, piece by piece. A store
 * keeps descriptors, or a tmpfs keeps files. Tests look at it, take some of it away, and put other
 * things in its place while no daemon runs. */
#ifndef SHARD_TESTS_PARKED_H
#define SHARD_TESTS_PARKED_H

#include "lib/warm.h"

enum { PARKED_MAX = 64, PARKED_NAME = 256 };

typedef char parked_name[PARKED_NAME];

/* names has room for PARKED_MAX. They come in alphabetical order. */
uint32_t parked_list(struct warm *w, parked_name *names);
/* Opens it for reading and writing. The caller closes it. */
int parked_open(struct warm *w, const char *name);
size_t parked_bytes(struct warm *w, const char *name);
void parked_remove(struct warm *w, const char *name);
void parked_replace(struct warm *w, const char *name, size_t bytes); /* By so many zeros. */
/* Flips one bit in every place where `bytes` stands in it, and returns how many there were. */
uint32_t parked_flip(struct warm *w, const char *name, const void *bytes, size_t nr);

#endif
