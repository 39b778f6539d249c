/* SPDX-License-Identifier: Apache-2.0 */
/* channel.h: TLS of this daemon: what it shows and accepts, by [net] tls. Connections over TCP get
 * it, those over the unix socket never do. */
#ifndef SHARD_CHANNEL_H
#define SHARD_CHANNEL_H

#include "node/state.h"

/* Makes it of the configuration, of the secrets that are given, and of the files. *out is NULL with
 * [net] tls = off. self NULL: no certificate has to name a node yet. */
enum shard_status channel_make(struct tls **out, const struct config *conf, const char *self,
			       const struct auth *client, const struct auth *node, struct err *e);
void channel_log(const struct config *conf, const struct tls *t, struct log *log);
/* Whoever says that it is this node must have a certificate with that name, where there are
 * certificates. It is for either end. */
enum shard_status channel_is_node(const struct config *conf, struct conn *c, const char *name,
				  struct err *e);

#endif
