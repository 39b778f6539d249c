/* SPDX-License-Identifier: Apache-2.0 */
/* define.h: how a handle begins and ends. Call with the client's lock. */
#ifndef SHARD_CLIENT_DEFINE_H
#define SHARD_CLIENT_DEFINE_H

#include "handle.h"

/* Makes a handle on the model that a reply of ATTACH or RESTORE describes. SHARD_EXISTS: this
 * connection has one already. */
enum shard_status handle_of_reply(struct shard_client *c, const struct request *r,
				  struct shard_model **out);
void handle_free(struct shard_model *m);
/* Frees the detached models that the stream no longer uses. */
void handle_reap(struct shard_client *c);
/* In a forked child: closes descriptors and touches nothing else. */
void handle_forget(struct shard_model *m);

#endif
