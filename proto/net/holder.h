/* SPDX-License-Identifier: Apache-2.0 */
/* holder.h: who has an address that cannot be bound, for the texts that say so. */
#ifndef SHARD_NET_HOLDER_H
#define SHARD_NET_HOLDER_H

#include <sys/socket.h>

enum { HOLDER_BYTES = 160 };

/* Says who on this machine has a TCP address, or one that is in its way, as " by pid 712 (nginx)".
 * Where this process may not see that, it is the uid, or nothing, and the command that tells.
 * Returns out. It reads all of /proc: call it when something has failed. */
const char *holder_of(const struct sockaddr *at, char out[HOLDER_BYTES]);

#endif
