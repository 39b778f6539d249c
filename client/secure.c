// SPDX-License-Identifier: Apache-2.0
/* TLS of a connection that this process dials: shard_connect() and shardctl call it, over tcp only.
 * Happy path: `tls` of the options says psk, or names a folder in the manner of a Kubernetes
 * secret, net/tls.c makes of it what it needs, and the stream goes through it. What the daemon has
 * and this end has not is refused on the other side, with a text. */
#include "secure.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES 4096

/* "certificate,key,ca". */
static bool split(char *cert, char *key, char *ca, const char *how)
{
	char end;

	return sscanf(how, "%4000[^,],%4000[^,],%4000[^,]%c", cert, key, ca, &end) == 3;
}

enum shard_status secure_open(struct tls **out, const char *how, const struct auth *auth,
			      struct err *e)
{
	char cert[FILE_BYTES], key[FILE_BYTES], ca[FILE_BYTES];
	struct tls_conf conf = {.mode = TLS_MTLS,
				.dials = auth,
				.cert = cert,
				.key = key,
				.ca = ca,
				/* A connection whose sending the kernel encrypts ends after
				 * 64 GiB, in the middle of a step. */
				.kernel = false};

	*out = NULL;
	if (!how || how[0] == 0 || strcmp(how, "off") == 0)
		return SHARD_OK;
	if (strcmp(how, "psk") == 0)
		conf.mode = TLS_PSK;
	if (conf.mode == TLS_PSK || split(cert, key, ca, how))
		return tls_open(out, &conf, e);
	if (!strchr(how, '/') || strlen(how) + 16 > FILE_BYTES)
		return err_set(e, SHARD_BAD_ARG,
			       "tls = %.100s: off, psk, or the path of a folder with tls.crt, "
			       "tls.key and ca.crt",
			       how);
	snprintf(cert, sizeof(cert), "%s/tls.crt", how);
	snprintf(key, sizeof(key), "%s/tls.key", how);
	snprintf(ca, sizeof(ca), "%s/ca.crt", how);
	return tls_open(out, &conf, e);
}

enum shard_status secure_stream(struct stream **out, struct tls *tls, struct stream_conf *conf,
				struct err *e)
{
	enum shard_status st = SHARD_OK;

	conf->io = NULL;
	if (tls)
		st = tls_io(&conf->io, tls, TLS_DIALLER, conf->fd, NULL, e);
	if (st == SHARD_OK)
		st = stream_open(out, conf, e);
	if (st == SHARD_OK)
		return st;
	tls_io_undo(&conf->io);
	close(conf->fd);
	return st;
}

enum shard_status secure_check(const struct stream *s, const struct tls *tls, const char *node,
			       const char *address, struct err *e)
{
	if (tls_mode(tls) != TLS_MTLS || tls_names(stream_io(s), node))
		return SHARD_OK;
	return err_set(e, SHARD_DENIED,
		       "shardd at %s says that it is node \"%.64s\", and its certificate does not "
		       "name that node: something else answers there",
		       address, node);
}
