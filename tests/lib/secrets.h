/* SPDX-License-Identifier: Apache-2.0 */
/* secrets.h: a folder of files with secrets for tests, and clients that come with one of them. */
#ifndef SHARD_TESTS_SECRETS_H
#define SHARD_TESTS_SECRETS_H

#include "shard.h"

#define SECRETS_RIGHT "aa00112233445566778899aabbccddeeff00112233445566778899aabbccddee\n"
#define SECRETS_NODES "dd00112233445566778899aabbccddeeff00112233445566778899aabbccddee\n"
#define SECRETS_WRONG "bb00112233445566778899aabbccddeeff00112233445566778899aabbccddee\n"

struct secrets {
	char dir[32], right[48], wrong[48]; /* files of SECRETS_RIGHT and SECRETS_WRONG */
	char used[48],
		node[48]; /* what daemons read: `secret`, and `node_secret` with SECRETS_NODES */
	char line[160];   /* their lines of [cluster] that name both */
	char other[48];   /* not there yet */
};

int secrets_make(struct secrets *f);   /* 0, or a setup that failed */
int secrets_remove(struct secrets *f); /* the same of a teardown */
void secrets_put(const char *path, const char *text);
/* shard_connect() with this secret (NULL: none) ends so; a failure's sentence has this part. */
void secrets_meet(enum shard_status want, const char *address, const char *secret,
		  const char *part);

#endif
