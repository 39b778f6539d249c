/* SPDX-License-Identifier: Apache-2.0 */
/* poke.h: changes the memory of another process, as a failing DIMM does. It works on processes of
 * this user. Failures end the test. */
#ifndef SHARD_TESTS_POKE_H
#define SHARD_TESTS_POKE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Flips one bit of the first byte of each place in the writable memory of the process that has
 * these bytes. Returns how many there were. */
uint32_t poke_flip(pid_t pid, const void *bytes, size_t n, int bit);

#endif
