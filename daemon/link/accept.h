/* SPDX-License-Identifier: Apache-2.0 */
/* accept.h: accepted connections whose handshake is not over yet. */
#ifndef SHARD_LINK_ACCEPT_H
#define SHARD_LINK_ACCEPT_H

#include "node/state.h"

void accept_one(void *server, int fd); /* A conn_accepted_fn, which takes fd over. */
void accept_beat(struct server *s, uint64_t now_ns);
void accept_close_all(struct server *s);

#endif
