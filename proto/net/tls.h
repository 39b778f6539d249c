/* SPDX-License-Identifier: Apache-2.0 */
/* tls.h: TLS 1.3 below the frames of a connection over TCP. A struct tls holds what one end shows
 * and accepts: keys that are made of the cluster's secrets, or a certificate. tls_io() makes the
 * row of stream_io.h for one connection from it. What is older than TLS 1.3 is never spoken, and no
 * connection is ever carried on without TLS. */
#ifndef SHARD_NET_TLS_H
#define SHARD_NET_TLS_H

#include "net/auth.h"
#include "net/stream_io.h"

struct tls;

enum tls_mode { TLS_OFF, TLS_PSK, TLS_MTLS };

enum {
	/* Memory of one connection at most, for what is encrypted. */
	TLS_CONN_BYTES = 640 << 10,
	TLS_SAID_BYTES = 96,
};

struct tls_conf {
	enum tls_mode mode; /* Not TLS_OFF. */
	/* TLS_PSK: the dialler uses the first key of dials, and a listener takes those of dials and
	 * those of takes. takes may be NULL. */
	const struct auth *dials, *takes;
	/* TLS_MTLS: files in PEM. The key's must be one that nobody else may read. */
	const char *cert, *key, *ca;
	const char *name; /* A node's, which its certificate must have. NULL: of no node. */
	bool kernel;      /* Let the kernel encrypt what is sent, where it can. */
	/* A connection gets a new key after it has sent so many bytes. 0: TLS_REKEY_BYTES. */
	uint64_t rekey_bytes;
};

/* RFC 8446 5.5: a key of AES-GCM is for 2^24.5 records. Here it is for 2^22 records of 16 KiB. */
#define TLS_REKEY_BYTES (64ull << 30)

/* SHARD_BAD_ARG names the file and what is wrong with it: it cannot be read, has expired, is not
 * signed by the CA, does not have the name. SHARD_SYSTEM: a file cannot be read, or OpenSSL cannot
 * be loaded. The keys are copied. */
enum shard_status tls_open(struct tls **out, const struct tls_conf *conf, struct err *e);
/* One more that has it, who closes it, too. NULL stays NULL. */
struct tls *tls_use(struct tls *t);
/* Connections that were made from it go on. NULL is fine. */
void tls_close(struct tls **t);
enum tls_mode tls_mode(const struct tls *t);
/* When the certificate expires, in seconds since 1970. 0: there is none. */
int64_t tls_expires(const struct tls *t);

enum tls_side { TLS_DIALLER, TLS_LISTENER };
/* For stream_conf.io. peer NULL: any name. Otherwise the other end's certificate, where there are
 * certificates, must have this name of a node. After a failure the caller still owns fd. */
enum shard_status tls_io(struct stream_io **out, struct tls *t, enum tls_side side, int fd,
			 const char *peer, struct err *e);

/* Frees what tls_io() made, and leaves the descriptor open. NULL is fine. */
void tls_io_undo(struct stream_io **io);

/* --- about a connection; io may be one without TLS --- */
bool tls_is(const struct stream_io *io);
/* 32 bytes that both ends of this connection know, and nobody else. False: the handshake is under
 * way. */
bool tls_channel(const struct stream_io *io, unsigned char out[AUTH_BYTES]);
/* True: the other end has shown a certificate that has this name of a node. */
bool tls_names(const struct stream_io *io, const char *name);
bool tls_has_cert(const struct stream_io *io);
/* "TLSv1.3 TLS_AES_128_GCM_SHA256 psk", or "off". Returns out. */
const char *tls_said(const struct stream_io *io, char out[TLS_SAID_BYTES]);

#endif
