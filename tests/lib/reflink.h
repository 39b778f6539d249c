/* SPDX-License-Identifier: Apache-2.0 */
/* reflink.h: a file system that shares parts of files, for tests on one that cannot. The test links
 * with --wrap=ioctl (ckpt.mk). What is shared is copied, and counted. */
#ifndef SHARD_TESTS_REFLINK_H
#define SHARD_TESTS_REFLINK_H

#include <stdint.h>

enum reflink {
	REFLINK_REAL,    /* As the file system has it. */
	REFLINK_COPIES,  /* It can. */
	REFLINK_REFUSES, /* It cannot. */
	REFLINK_ENDS,    /* It can once. Then it does half of what is asked for, and fails. */
};

void reflink_is(enum reflink how); /* Counts from 0 again. */
/* The file that goes when the next part is to be shared. Its name must stay valid. */
void reflink_removes(const char *path);
/* Calls after the first `nr` wait until another reflink_is(). */
void reflink_stops(uint32_t nr);
uint64_t reflink_bytes(void); /* Shared so far. */
uint32_t reflink_calls(void); /* Asked for so far, in vain or not. */

#endif
