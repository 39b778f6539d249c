/* SPDX-License-Identifier: Apache-2.0 */
/* again.h: a connection that broke is made again. The daemon of a trainer was killed, started again
 * or upgraded, and kept the models. So the handle, and every pointer that it gave, go on. */
#ifndef SHARD_CLIENT_AGAIN_H
#define SHARD_CLIENT_AGAIN_H

#include "client.h"

/* --- client.c, which is below, for again.c --- */
/* Connects once. parent NULL: for a caller. Otherwise for again.c, without a thread, and what
 * interrupts the parent interrupts this one, too. */
enum shard_status client_connect(const struct shard_connect_opts *o, struct shard_client *parent,
				 uint64_t deadline_ns, struct shard_client **out);
/* Lets shard_fd() watch a new stream. */
enum shard_status client_watch(struct shard_client *c);

/* --- again.c --- */

/* What look_ms of the caller's options means, in nanoseconds. 0: a connection that breaks is over.
 */
uint64_t again_look_ns(int64_t look_ms);
/* The first connection of a caller, which waits for a daemon that is not there yet if o->look_ms
 * says so. A failure has its sentence. */
enum shard_status again_first(const struct shard_connect_opts *o, struct shard_client **out);
/* With the lock. The connection is ending. True: a trainer of it is in a world, or asks to be, and
 * its next shard_world_get() or shard_join() will make the connection again. */
bool again_heals(const struct shard_client *c);
/* With the lock, which it gives up meanwhile. Looks for the daemon until until_ns, attaches to all
 * models of the connection, and compares them. SHARD_OK: the connection is alive, and what became
 * of each model is in its handle. What cannot be had again has a sentence that says what to do. w
 * is the caller's wait, which shard_interrupt() ends. */
enum shard_status again_connect(struct shard_client *c, uint64_t until_ns, const struct wait *w);

#endif
