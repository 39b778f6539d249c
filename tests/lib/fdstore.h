/* SPDX-License-Identifier: Apache-2.0 */
/* fdstore.h: in place of systemd (252) for one service: a notification socket, and a store of
 * descriptors that outlives the service's processes. Speaks the real protocol: READY, STATUS,
 * FDSTORE, FDSTOREREMOVE, FDNAME, BARRIER in; NOTIFY_SOCKET, LISTEN_PID, LISTEN_FDS and
 * LISTEN_FDNAMES out. What it hears it takes in a thread of its own; what went out before a process
 * died counts. */
#ifndef SHARD_TESTS_FDSTORE_H
#define SHARD_TESTS_FDSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FDSTORE_MAX = 512, FDSTORE_NAME = 256 };

struct fdstore;

struct fdstore *fdstore_start(const char *path, uint32_t max); /* max: FileDescriptorStoreMax */
void fdstore_stop(struct fdstore **s);                         /* NULL is fine */
/* In a child that is about to exec the service: environment, and the descriptors from 3 on, newest
 * first, as systemd passes them. */
void fdstore_child(struct fdstore *s);
/* Before the fork: waits until all that was sent is taken, forgets that the service was ready. */
void fdstore_begin(struct fdstore *s);

uint32_t fdstore_count(struct fdstore *s);
uint32_t fdstore_refused(struct fdstore *s); /* more than max */
void fdstore_name(struct fdstore *s, uint32_t i, char name[FDSTORE_NAME]);
int fdstore_fd(struct fdstore *s,
	       const char *name); /* a duplicate of the newest of that name; -1: none */
uint32_t fdstore_forget(struct fdstore *s,
			const char *name); /* NULL: all, as when the service is stopped; how many */
void fdstore_put(struct fdstore *s, const char *name, int fd); /* takes fd over */
uint64_t fdstore_ready_ns(
	struct fdstore *s,
	int ms); /* when READY=1 was heard since fdstore_begin(); 0: not within ms */

#endif
