/* SPDX-License-Identifier: Apache-2.0 */
/* tls_api.h: the functions of tls.h as a table, by which libshard gets them from libshard-tls.so.0.
 * So a trainer without TLS loads nothing of it, and libshard stays small. A program that is linked
 * with tls.o itself needs none of this. */
#ifndef SHARD_NET_TLS_API_H
#define SHARD_NET_TLS_API_H

#include "net/tls.h"

#define TLS_LIBRARY "libshard-tls.so.0"
#define TLS_SYMBOL  "shard_tls_0"

struct tls_api {
	const char *release; /* SHARD_RELEASE of both, because they share structs. */
	__typeof__(&tls_open) open;
	__typeof__(&tls_close) close;
	__typeof__(&tls_mode) mode;
	__typeof__(&tls_io) io;
	__typeof__(&tls_io_undo) io_undo;
	__typeof__(&tls_is) is;
	__typeof__(&tls_channel) channel;
	__typeof__(&tls_names) names;
};

#endif
