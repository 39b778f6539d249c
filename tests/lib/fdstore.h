/* SPDX-License-Identifier: Apache-2.0 */
/* fdstore.h: stands in for systemd (252) for one service. It has a notification socket, and a store
 * of descriptors that outlives the service's processes. It speaks the real protocol: READY, STATUS,
 * FDSTORE, FDSTOREREMOVE, FDNAME and BARRIER come in, and NOTIFY_SOCKET, LISTEN_PID, LISTEN_FDS and
 * LISTEN_FDNAMES go out. A thread of its own takes the messages. A message that a process sent
 * before it died still counts. */
#ifndef SHARD_TESTS_FDSTORE_H
#define SHARD_TESTS_FDSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FDSTORE_MAX = 512, FDSTORE_NAME = 256 };

struct fdstore;

struct fdstore *fdstore_start(const char *path, uint32_t max); /* max is FileDescriptorStoreMax. */
void fdstore_stop(struct fdstore **s);                         /* NULL is allowed. */
/* Called in a child that is about to exec the service. Sets the environment, and the descriptors
 * from 3 on, newest first, as systemd passes them. */
void fdstore_child(struct fdstore *s);
/* Called before the fork. Takes all that was sent, and forgets that the service was ready. */
void fdstore_begin(struct fdstore *s);

uint32_t fdstore_count(struct fdstore *s);
uint32_t fdstore_refused(struct fdstore *s); /* Those beyond max. */
void fdstore_name(struct fdstore *s, uint32_t i, char name[FDSTORE_NAME]);
/* Returns a duplicate of the newest descriptor of that name. -1: there is none. */
int fdstore_fd(struct fdstore *s, const char *name);
/* Closes those of that name and returns how many. NULL: all, as when the service is stopped. */
uint32_t fdstore_forget(struct fdstore *s, const char *name);
void fdstore_put(struct fdstore *s, const char *name, int fd); /* Takes over fd. */
uint64_t fdstore_ready_ns(
	struct fdstore *s,
	int ms); /* The time of READY=1 after fdstore_begin(). 0: it did not come within ms. */

#endif
