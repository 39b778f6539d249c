/* SPDX-License-Identifier: Apache-2.0 */
/* keep.h: checkpoints in tests. It has a folder of its own, saves and restores through the public
 * API, and damages files. */
#ifndef SHARD_TESTS_KEEP_H
#define SHARD_TESTS_KEEP_H

#include "shard.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct keep {
	char dir[64];
};

void keep_init(struct keep *k); /* Makes the folder under /tmp. */
void keep_free(struct keep *k); /* Removes the folder and all in it. */
/* Saves a model that is defined. dir and tag may be NULL. The sentence of a failure is in
 * shard_error(). */
enum shard_status keep_save(const char *address, const char *model, const char *dir,
			    const char *tag);
/* Connects, restores and disconnects. name may be NULL. */
enum shard_status keep_restore(const char *address, const char *dir, const char *tag,
			       const char *name);
void keep_must_save(const char *address, const char *model, const char *dir, const char *tag);
void keep_must_restore(const char *address, const char *dir, const char *tag, const char *name);
uint64_t keep_newest(
	const char *dir,
	char tag[65]); /* The step of the newest complete one. The test fails if there is none. */
uint32_t keep_count(const char *dir); /* The number of complete ones. */
/* Flips one bit of DIR/TAG/FILE. at < 0 counts from the end. */
void keep_flip(const char *dir, const char *tag, const char *file, long at);
/* Cuts `less` bytes off the end. less < 0 removes the file. */
void keep_cut(const char *dir, const char *tag, const char *file, long less);

#endif
