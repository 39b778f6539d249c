/* SPDX-License-Identifier: Apache-2.0 */
/* TLS between this daemon and others. secret.c calls for it at the start and at SIGHUP, with the
 * secrets that it has just read, so that both change together or not at all. enrol.c does the same
 * for a node that joins. Happy path: net/tls.c makes a struct tls, and conn.c puts it below each
 * connection over TCP. With psk, AUTH inside the channel says who is a node. With mtls the name in
 * the certificate does, and AUTH as well where there is a secret. It fails with a sentence that
 * names the option. */
#include "link/channel.h"

#include "base/check.h"
#include "net/tls.h"

#include <stdio.h>
#include <time.h>

enum shard_status channel_make(struct tls **out, const struct config *conf, const char *self,
			       const struct auth *client, const struct auth *node, struct err *e)
{
	struct tls_conf tc = {.mode = conf->tls,
			      .dials = node ? node : client,
			      .takes = node ? client : NULL,
			      .cert = conf->tls_cert,
			      .key = conf->tls_key,
			      .ca = conf->tls_ca,
			      .name = self,
			      .kernel = conf->tls_kernel};
	struct err why;
	enum shard_status st;

	*out = NULL;
	if (conf->tls == TLS_OFF)
		return SHARD_OK;
	st = tls_open(out, &tc, &why);
	return st == SHARD_OK ? st : err_set(e, st, "[net] %.480s", why.text);
}

void channel_log(const struct config *conf, const struct tls *t, struct log *log)
{
	time_t expires = (time_t)tls_expires(t);
	char text[32] = "never";
	struct tm tm;

	if (tls_mode(t) == TLS_OFF)
		return;
	if (expires != 0 && gmtime_r(&expires, &tm))
		(void)strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
	if (tls_mode(t) == TLS_PSK)
		log_line(log, LOG_LEVEL_INFO, "event=tls mode=psk version=TLSv1.3");
	else
		log_line(log, LOG_LEVEL_INFO,
			 "event=tls mode=mtls version=TLSv1.3 cert=%s expires=%s", conf->tls_cert,
			 text);
}

enum shard_status channel_is_node(const struct config *conf, struct conn *c, const char *name,
				  struct err *e)
{
	if (conf->tls != TLS_MTLS || tls_names(stream_io(conn_stream(c)), name))
		return SHARD_OK;
	return err_set(
		e, SHARD_DENIED,
		"%s says that it is node %.64s, and its certificate does not name that node: "
		"it needs DNS:%.64s in subjectAltName",
		conn_name(c), name, name);
}
