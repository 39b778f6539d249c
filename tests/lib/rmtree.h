/* SPDX-License-Identifier: Apache-2.0 */
/* rmtree.h: removes what a test has left in the file system. It starts no process. A test that has
 * threads must not fork only to tidy up: an emulator of user programs may hang in the child. */
#ifndef SHARD_TESTS_RMTREE_H
#define SHARD_TESTS_RMTREE_H

/* Removes the folder with all that is in it, as `rm -rf` does. Links are not followed. It is no
 * failure if there is nothing of that name. Anything else that stays ends the process. */
void rmtree(const char *path);

#endif
