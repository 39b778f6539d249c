/* SPDX-License-Identifier: Apache-2.0 */
/* secrets.h: a folder of files with secrets for tests, and clients that connect with one of
 * them. */
#ifndef SHARD_TESTS_SECRETS_H
#define SHARD_TESTS_SECRETS_H

#include "shard.h"

#define SECRETS_RIGHT "aa00112233445566778899aabbccddeeff00112233445566778899aabbccddee\n"
#define SECRETS_NODES "dd00112233445566778899aabbccddeeff00112233445566778899aabbccddee\n"
#define SECRETS_WRONG "bb00112233445566778899aabbccddeeff00112233445566778899aabbccddee\n"

struct secrets {
	char dir[32], right[48], wrong[48]; /* Files with SECRETS_RIGHT and SECRETS_WRONG. */
	/* What daemons read: `secret`, and `node_secret` with SECRETS_NODES. */
	char used[48], node[48];
	char line[160]; /* Their lines of [cluster], which name both. */
	char other[48]; /* A file that is not there yet. */
};

int secrets_make(struct secrets *f);   /* 0, or the setup has failed. */
int secrets_remove(struct secrets *f); /* The same for a teardown. */
void secrets_put(const char *path, const char *text);
/* shard_connect() with this secret (NULL: none) must return `want`. The sentence of a failure must
 * contain `part`. */
void secrets_meet(enum shard_status want, const char *address, const char *secret,
		  const char *part);

#endif
