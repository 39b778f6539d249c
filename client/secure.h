/* SPDX-License-Identifier: Apache-2.0 */
/* secure.h: TLS of a connection that libshard or shardctl dials. */
#ifndef SHARD_SECURE_H
#define SHARD_SECURE_H

#include "net/auth.h"
#include "net/stream.h"
#include "net/tls.h"

/* how: "off" or "psk", a folder with tls.crt, tls.key and ca.crt, or these three files with commas
 * between. NULL and "" are off, and *out is NULL then. auth: the secret, or NULL. SHARD_BAD_ARG:
 * there is no such choice, a file is wrong, or psk has no secret. */
enum shard_status secure_open(struct tls **out, const char *how, const struct auth *auth,
			      struct err *e);
/* The stream over fd, and over TLS if there is any. After a failure fd is closed. */
enum shard_status secure_stream(struct stream **out, struct tls *tls, struct stream_conf *conf,
				struct err *e);
/* Where there are certificates, the daemon's must have the node's name that its HELLO says. */
enum shard_status secure_check(const struct stream *s, const struct tls *tls, const char *node,
			       const char *address, struct err *e);

#endif
