// SPDX-License-Identifier: Apache-2.0
/* What libshard-tls.so.0 exports: one table, with the functions of proto/net/tls.c and tls_io.c.
 * client/tls/load.c finds it when a trainer asks for TLS. There is nothing here that could fail. */
#include "net/tls_api.h"

extern const struct tls_api shard_tls_0;

__attribute__((visibility("default"))) const struct tls_api shard_tls_0 = {
	.release = SHARD_RELEASE,
	.open = tls_open,
	.close = tls_close,
	.mode = tls_mode,
	.io = tls_io,
	.io_undo = tls_io_undo,
	.is = tls_is,
	.channel = tls_channel,
	.names = tls_names,
};
