/* SPDX-License-Identifier: Apache-2.0 */
/* http_tls.h: HTTP over TLS, with the certificate of [net] tls_cert. libmicrohttpd speaks it by
 * GnuTLS. */
#ifndef SHARD_HTTP_TLS_H
#define SHARD_HTTP_TLS_H

#include "config/config.h"

#include <microhttpd.h>

struct http_tls {
	char *cert, *key, *ca; /* PEM. cert NULL: HTTP is plain. ca NULL: nobody is asked. */
};

/* Reads the files. SHARD_BAD_ARG names the one that is wrong. */
enum shard_status http_tls_read(struct http_tls *t, const struct config *conf, struct err *e);
void http_tls_free(struct http_tls *t);
/* Options for MHD_start_daemon(), by MHD_OPTION_ARRAY. */
enum { HTTP_TLS_OPTIONS = 5 };
void http_tls_options(const struct http_tls *t, struct MHD_OptionItem out[HTTP_TLS_OPTIONS]);
/* The other end has shown a certificate that the CA has signed, and that is valid now. */
bool http_tls_proved(struct MHD_Connection *c);

#endif
