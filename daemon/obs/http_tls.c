/* SPDX-License-Identifier: Apache-2.0 */
/* TLS of the HTTP port. http.c calls it. Happy path: the files of [net] tls_cert, tls_key and
 * tls_ca are read at the start and at SIGHUP and given to libmicrohttpd, which asks each client for
 * a certificate where there is a CA. Whether one is needed is for http.c to say. It fails with a
 * sentence about the file. What GnuTLS does not like about it shows when the daemon of
 * libmicrohttpd starts. */
#include "obs/http_tls.h"

#include "net/secret_file.h"

#include <errno.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEY_MAX    (64 << 10)
#define PRIORITIES "SECURE128:-VERS-ALL:+VERS-TLS1.3"

static enum shard_status read_public(char **out, const char *name, const char *path, struct err *e)
{
	int fd;
	enum shard_status st = public_file_open(name, path, &fd, e);
	char *text = st == SHARD_OK ? malloc(PUBLIC_FILE_MAX + 1) : NULL;
	size_t got = 0;
	ssize_t n = 0;

	*out = text;
	if (st != SHARD_OK)
		return st;
	while (text != NULL && got < PUBLIC_FILE_MAX &&
	       (n = read(fd, text + got, PUBLIC_FILE_MAX - got)) > 0)
		got += (size_t)n;
	close(fd);
	if (text == NULL || n < 0)
		return err_set(e, SHARD_SYSTEM, "%s %.200s: cannot be read: %s", name, path,
			       strerror(errno));
	text[got] = 0;
	return SHARD_OK;
}

static enum shard_status read_key(char **out, const char *path, struct err *e)
{
	static const struct secret_kind kind = {"[net] tls_key", "a private key in PEM"};
	char *text = malloc(KEY_MAX + 1);
	enum shard_status st;

	*out = text;
	if (text == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a key");
	st = secret_file_read(&kind, path, text, KEY_MAX + 1, e);
	return st;
}

enum shard_status http_tls_read(struct http_tls *t, const struct config *conf, struct err *e)
{
	enum shard_status st = SHARD_OK;

	*t = (struct http_tls){.cert = NULL};
	if (!conf->http_tls)
		return SHARD_OK;
	if ((st = read_public(&t->cert, "[net] tls_cert", conf->tls_cert, e)) == SHARD_OK &&
	    conf->tls_ca[0] != 0)
		st = read_public(&t->ca, "[net] tls_ca", conf->tls_ca, e);
	if (st == SHARD_OK)
		st = read_key(&t->key, conf->tls_key, e);
	if (st != SHARD_OK)
		http_tls_free(t);
	return st;
}

void http_tls_free(struct http_tls *t)
{
	if (t->key != NULL)
		explicit_bzero(t->key, strlen(t->key));
	free(t->cert);
	free(t->key);
	free(t->ca);
	*t = (struct http_tls){.cert = NULL};
}

void http_tls_options(const struct http_tls *t, struct MHD_OptionItem out[HTTP_TLS_OPTIONS])
{
	int n = 0;

	if (t->cert != NULL) {
		out[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_CERT, 0, t->cert};
		out[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_KEY, 0, t->key};
		out[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_PRIORITIES, 0,
						   (void *)(uintptr_t)PRIORITIES};
	}
	if (t->ca != NULL)
		out[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_TRUST, 0, t->ca};
	out[n] = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
}

bool http_tls_proved(struct MHD_Connection *c)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(c, MHD_CONNECTION_INFO_GNUTLS_SESSION);
	/* As between nodes, that of a web server of the same CA proves no client. */
	gnutls_typed_vdata_st purpose = {
		.type = GNUTLS_DT_KEY_PURPOSE_OID,
		.data = (unsigned char *)(uintptr_t)GNUTLS_KP_TLS_WWW_CLIENT};
	unsigned nr = 0, status = GNUTLS_CERT_INVALID;

	if (info == NULL || info->tls_session == NULL)
		return false;
	return gnutls_certificate_get_peers(info->tls_session, &nr) != NULL && nr > 0 &&
	       gnutls_certificate_verify_peers(info->tls_session, &purpose, 1, &status) == 0 &&
	       status == 0;
}
