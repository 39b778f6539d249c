/* SPDX-License-Identifier: Apache-2.0 */
/* manage.h: requests of the library and of shardctl about a model as a whole. */
#ifndef SHARD_CLIENT_MANAGE_H
#define SHARD_CLIENT_MANAGE_H

#include "client.h"

#include "shard.pb-c.h"

enum manage_action {
	MANAGE_DROP = 1,
	MANAGE_SET,
	MANAGE_PAUSE,
	MANAGE_RESUME,
	MANAGE_KICK,
	MANAGE_KICK_PROCESS
};

/* Sends one MANAGE, which is answered when it holds on every node. Call without the client's
 * lock. */
enum shard_status manage_ask(struct shard_client *c, const Shard__Manage *what, int64_t timeout_ms);

#endif
