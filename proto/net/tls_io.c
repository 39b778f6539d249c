/* SPDX-License-Identifier: Apache-2.0 */
/* One connection of TLS, as a row of stream_io.h. OpenSSL encrypts into a buffer and decrypts from
 * one, both of this file, so that one system call moves many records, nothing waits inside OpenSSL,
 * and no write raises SIGPIPE in a trainer. Happy path: the first read or write begins the
 * handshake, each following one carries it on, and then the bytes of frames go through in records
 * of 16 KiB. Small frames share a record. Where the kernel encrypts what is sent, it gets the bytes
 * as they are. It fails with a sentence that says what is wrong with the other end, or on which
 * side what has to be set. The other end is told by an alert. */
#include "net/tls.h"

#include "base/check.h"
#include "net/tls_impl.h"

#include <errno.h>
#include <linux/tls.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
	RECORD_BYTES = SSL3_RT_MAX_PLAIN_LENGTH,
	RECORD_ROOM = RECORD_BYTES + 256, /* With what a record adds, and a KeyUpdate before it. */
	IN_BYTES = 256 << 10,
	OUT_BYTES = (256 << 10) + 2 * RECORD_ROOM,
	SEND_BYTES = 128 << 10, /* So much is sent while it is in cache. */
	/* So much is taken from the socket in one read(). A peer may send records with hardly
	 * anything in them as fast as they are read, and others need their turns. */
	TURN_BYTES = 2 * IN_BYTES,
	/* A new key takes as long as some 16 KiB of data. So the other end may send one for so much
	 * data, and a few more, with those of the handshake. */
	MESSAGES_FREE = 64,
	/* Controls of a BIO by which OpenSSL has the kernel encrypt. bio.h has them as a comment.
	 */
	CTRL_SET_KTLS = 72,
	CTRL_KTLS_TYPE = 74,
	CTRL_KTLS_TYPE_END = 75,
	FIRST_OF_RECORD = 0x16,
	FIRST_OF_ALERT = 0x15,
	FIRST_OF_FRAME = 'S', /* WIRE_MAGIC. */
};

struct tls_io {
	struct stream_io io;
	struct tls_seen seen;
	const struct openssl *ssl;
	enum tls_side side;
	SSL *conn;
	BIO *socket;     /* OpenSSL's own, by which it asks for kernel TLS. NULL: not asked for. */
	bool begun;      /* The first byte has come. */
	bool strange;    /* And it was not one of TLS. */
	bool open;       /* The handshake is done, and checked. */
	bool wants_read; /* It goes on when the peer sends something. */
	bool drained;    /* The last read() took all that was there. */
	bool ended;      /* The peer has closed. */
	bool kernel;     /* It encrypts what is sent. */
	int record_type; /* Of what OpenSSL gives to the kernel. 0: data. */
	int error;       /* errno of a call on the socket. */
	bool flooded;    /* The peer sends keys, and hardly anything else. */
	uint32_t pulled; /* Bytes that this read() has taken from the socket. */
	uint64_t came;   /* Bytes of data that were decrypted. */
	uint64_t under_key; /* Bytes that were sent with the present key. */
	uint32_t in_at, in_nr, out_at, out_nr;
	/* IN_BYTES and OUT_BYTES behind them. Only pages that are used are there. It is a mapping
	 * of its own, so that all of it goes with the connection. */
	unsigned char *in, *out;
	unsigned char record[RECORD_BYTES];
};

static struct tls_io *of(struct stream_io *io)
{
	return (struct tls_io *)(void *)io;
}

static const struct tls_io *of_const(const struct stream_io *io)
{
	return (const struct tls_io *)(const void *)io;
}

/* --- between OpenSSL and the socket --- */

/* Returns 0, or -1 with errno. */
static int push_out(struct tls_io *t)
{
	CHECK(t->out_at + t->out_nr <= OUT_BYTES);
	while (t->out_nr > 0) {
		ssize_t n =
			send(t->io.fd, t->out + t->out_at, t->out_nr, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		t->io.taken += (uint64_t)n;
		t->out_at += (uint32_t)n;
		t->out_nr -= (uint32_t)n;
	}
	t->out_at = 0;
	return 0;
}

/* Room for so many bytes behind those that wait. */
static bool out_fits(struct tls_io *t, size_t bytes)
{
	CHECK(t->out_at + t->out_nr <= OUT_BYTES);
	if (t->out_nr + bytes > OUT_BYTES)
		return false;
	if (t->out_at + t->out_nr + bytes > OUT_BYTES) {
		memmove(t->out, t->out + t->out_at, t->out_nr);
		t->out_at = 0;
	}
	return true;
}

/* The kernel encrypts, and this is no data: an alert. */
static int send_typed(struct tls_io *t, const char *bytes, int nr)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(1)];
	} control = {.bytes = {0}};
	struct iovec iov = {.iov_base = (char *)(uintptr_t)bytes, .iov_len = (size_t)nr};
	struct msghdr m = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control.bytes,
			   .msg_controllen = sizeof(control.bytes)};

	CMSG_FIRSTHDR(&m)->cmsg_level = SOL_TLS;
	CMSG_FIRSTHDR(&m)->cmsg_type = TLS_SET_RECORD_TYPE;
	CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(1);
	*CMSG_DATA(CMSG_FIRSTHDR(&m)) = (unsigned char)t->record_type;
	return (int)sendmsg(t->io.fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static int bio_write(BIO *b, const char *bytes, int nr)
{
	const struct openssl *o;
	struct tls_io *t;

	CHECK(openssl_load(&o, NULL) == SHARD_OK && nr >= 0);
	t = o->BIO_get_data(b);
	o->BIO_clear_flags(b, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
	if (t->kernel)
		return send_typed(t, bytes, nr);
	if (!out_fits(t, (size_t)nr) && (push_out(t), !out_fits(t, (size_t)nr))) {
		o->BIO_set_flags(b, BIO_FLAGS_WRITE | BIO_FLAGS_SHOULD_RETRY);
		return -1;
	}
	memcpy(t->out + t->out_at + t->out_nr, bytes, (size_t)nr);
	t->out_nr += (uint32_t)nr;
	return nr;
}

/* 1: something is there. 0: the end. -1: nothing, or t->error. */
static int pull_in(struct tls_io *t)
{
	ssize_t n;

	do
		n = recv(t->io.fd, t->in, IN_BYTES, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
		t->error = errno;
	if (n == 0)
		t->ended = true;
	if (n <= 0)
		return (int)n;
	t->in_at = 0;
	t->in_nr = (uint32_t)n;
	t->pulled += t->in_nr;
	if (!t->begun) {
		t->begun = true;
		t->strange = t->in[0] != FIRST_OF_RECORD && t->in[0] != FIRST_OF_ALERT;
		t->io.plain_peer = t->in[0] == FIRST_OF_FRAME;
	}
	return 1;
}

/* Decrypting one record after another, OpenSSL returns only when there is data. So this is asked
 * for each record. */
static bool floods(const struct tls_io *t)
{
	return t->open && t->seen.messages > MESSAGES_FREE + t->came / RECORD_BYTES;
}

static int bio_read(BIO *b, char *to, int nr)
{
	const struct openssl *o;
	struct tls_io *t;
	int rc = 1;

	CHECK(openssl_load(&o, NULL) == SHARD_OK && nr >= 0);
	t = o->BIO_get_data(b);
	o->BIO_clear_flags(b, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
	t->flooded = floods(t);
	if (t->flooded)
		return -1;
	if (t->in_nr == 0)
		rc = t->pulled < TURN_BYTES ? pull_in(t) : -1;
	if (rc < 0 && t->error == 0)
		o->BIO_set_flags(b, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY);
	if (rc <= 0 || t->strange)
		return rc <= 0 ? rc : -1;
	if ((uint32_t)nr > t->in_nr)
		nr = (int)t->in_nr;
	memcpy(to, t->in + t->in_at, (size_t)nr);
	t->in_at += (uint32_t)nr;
	t->in_nr -= (uint32_t)nr;
	return nr;
}

/* OpenSSL goes on after the flush, or asks why not. */
static long bio_flush(struct tls_io *t, BIO *b)
{
	if (!t->socket || push_out(t) == 0)
		return 1;
	if (errno == EAGAIN || errno == EWOULDBLOCK)
		t->ssl->BIO_set_flags(b, BIO_FLAGS_WRITE | BIO_FLAGS_SHOULD_RETRY);
	else
		t->error = errno;
	return 0;
}

/* OpenSSL asks for kernel TLS by controls that its own BIO of a socket understands. Only sending is
 * given to the kernel. What was encrypted before has to be in the socket first. */
static long bio_ctrl(BIO *b, int cmd, long num, void *arg)
{
	const struct openssl *o;
	struct tls_io *t;
	long rc;

	CHECK(openssl_load(&o, NULL) == SHARD_OK);
	t = o->BIO_get_data(b);
	switch (cmd) {
	case BIO_CTRL_FLUSH:
		return bio_flush(t, b);
	case CTRL_SET_KTLS:
		rc = t->socket && num != 0 && t->out_nr == 0 ? o->BIO_ctrl(t->socket, cmd, num, arg)
							     : 0;
		t->kernel = t->kernel || rc > 0;
		return rc;
	case BIO_CTRL_GET_KTLS_SEND:
		return t->kernel;
	case CTRL_KTLS_TYPE:
		t->record_type = (int)num;
		return 0;
	case CTRL_KTLS_TYPE_END:
		t->record_type = 0;
		return 0;
	default:
		return 0;
	}
}

BIO_METHOD *tls_io_method(const struct openssl *o)
{
	BIO_METHOD *m = o->BIO_meth_new(BIO_TYPE_SOURCE_SINK, "shardd");

	if (m && o->BIO_meth_set_write(m, bio_write) && o->BIO_meth_set_read(m, bio_read) &&
	    o->BIO_meth_set_ctrl(m, bio_ctrl))
		return m;
	o->BIO_meth_free(m);
	return NULL;
}

/* --- why it fails --- */

/* What the other end says of this one by an alert. */
static const char *alerted(const struct tls_io *t, int reason)
{
	bool psk = t->seen.tls->mode == TLS_PSK;

	switch (reason) {
	case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
		return "it refuses this end's certificate: it is not signed by the CA there";
	case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
		return "it refuses this end's certificate: it has expired";
	case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
	case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
		return "it refuses this end's certificate: its log says why";
	case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
		return "it asks for a certificate: set tls = mtls at this end, too";
	case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
		return psk ? "it does not know the secret of this end, or [net] tls is another one "
			     "there"
			   : "it speaks no TLS with this end: is [net] tls = mtls there, too?";
	default:
		return NULL;
	}
}

static const char *strangeness(const struct tls_io *t)
{
	static const char *const frames[][2] = {
		[TLS_PSK] =
			{"it speaks no TLS, and this end does: set [net] tls = psk there, or "
			 "take tls away here",
			 "it speaks no TLS, and [net] tls = psk at this node: set that on the "
			 "other node, or give the trainer or tool tls = psk (SHARD_TLS, --tls)"},
		[TLS_MTLS] =
			{"it speaks no TLS, and this end does: set [net] tls = mtls there, or "
			 "take tls away here",
			 "it speaks no TLS, and [net] tls = mtls at this node: set that on the "
			 "other node, or give the trainer or tool a certificate (SHARD_TLS, "
			 "--tls)"},
	};

	return t->io.plain_peer ? frames[t->seen.tls->mode][t->side == TLS_LISTENER]
				: "what it has sent is no TLS, and nothing that a node, trainer or "
				  "tool says";
}

/* Not what an end says on purpose. As when the connection is cut, it may be made again. */
static bool is_damage(int reason)
{
	return reason == SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC ||
	       reason == SSL_R_SSLV3_ALERT_BAD_RECORD_MAC;
}

static void explain(struct tls_io *t)
{
	const struct openssl *o = t->ssl;
	unsigned long error = o->ERR_peek_last_error();
	long cert = t->open ? X509_V_OK : o->SSL_get_verify_result(t->conn);
	bool psk = t->seen.tls->mode == TLS_PSK;
	const char *said = alerted(t, ERR_GET_REASON(error)), *name;
	struct err *why = &t->io.why;

	name = o->ERR_reason_error_string(error);
	if (t->strange)
		err_set(why, SHARD_DENIED, "%s", strangeness(t));
	else if (t->flooded)
		err_set(why, SHARD_PROTOCOL,
			"TLS: it has changed its key %u times, and sent hardly anything else",
			t->seen.messages);
	else if (t->ended && !t->open)
		err_set(why, SHARD_CLOSED,
			"it closed the connection in the handshake of TLS: is [net] tls set there, "
			"and the same?");
	else if (said)
		err_set(why, SHARD_DENIED, "%s", said);
	else if (psk && t->side == TLS_LISTENER && !t->open && !t->seen.known)
		err_set(why, SHARD_DENIED, "%s",
			t->seen.offered
				? "it has another secret than this node"
				: "it names no secret, and [net] tls = psk at this node: is "
				  "it another one there?");
	else if (!psk && ERR_GET_REASON(error) == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE)
		err_set(why, SHARD_DENIED,
			"it shows no certificate, and [net] tls = mtls at this node");
	else if (psk && cert != X509_V_OK)
		err_set(why, SHARD_DENIED,
			"it shows a certificate, and tls = psk at this end: is [net] tls = mtls "
			"there?");
	else if (cert == X509_V_ERR_HOSTNAME_MISMATCH)
		err_set(why, SHARD_DENIED,
			"its certificate does not name the node that was dialled: DNS:NAME is "
			"missing in subjectAltName, or another node is at this address");
	else if (cert != X509_V_OK)
		tls_wrong_cert(o, cert, "its certificate", why);
	else if (t->open || is_damage(ERR_GET_REASON(error)))
		err_set(why, SHARD_CLOSED, "bytes were changed on the way: TLS: %s",
			name ? name : "no record of it");
	else
		err_set(why, SHARD_PROTOCOL, "TLS: %s", name ? name : "it failed without a reason");
}

/* A call of OpenSSL has returned rc <= 0. Returns -1 with errno, or 0 at the end. */
static int failed(struct tls_io *t, int rc)
{
	int code = t->ssl->SSL_get_error(t->conn, rc);

	t->wants_read = code == SSL_ERROR_WANT_READ;
	if (code == SSL_ERROR_WANT_READ || code == SSL_ERROR_WANT_WRITE) {
		errno = EAGAIN;
		return -1;
	}
	if (t->error != 0) {
		errno = t->error;
		return -1;
	}
	if (t->open && (code == SSL_ERROR_ZERO_RETURN || t->ended)) {
		t->ended = true;
		return 0;
	}
	explain(t);
	(void)push_out(t); /* The alert. */
	t->ssl->ERR_clear_error();
	errno = EPROTO;
	return -1;
}

/* --- the row --- */

/* What OpenSSL has checked is checked here once more, because the rest relies on it. */
static bool is_proved(const struct tls_io *t)
{
	if (t->seen.tls->mode == TLS_PSK)
		return t->ssl->SSL_session_reused(t->conn) == 1;
	return tls_has_cert(&t->io) && t->ssl->SSL_get_verify_result(t->conn) == X509_V_OK;
}

/* Returns 1 once the handshake is done, and else as failed() does. */
static int handshake(struct tls_io *t)
{
	int rc;

	if (t->open)
		return 1;
	t->pulled = 0;
	if (t->io.why.status != SHARD_OK) {
		errno = EPROTO;
		return -1;
	}
	rc = t->ssl->SSL_do_handshake(t->conn);
	if (rc != 1)
		rc = failed(t, rc);
	else if (!is_proved(t))
		rc = (err_set(&t->io.why, SHARD_DENIED, "it proved nothing in the handshake"),
		      errno = EPROTO, -1);
	else
		t->open = true;
	if (rc != 1) {
		int error = errno;

		(void)push_out(t);
		errno = error;
	}
	return rc;
}

static ssize_t row_read(struct stream_io *io, struct msghdr *m)
{
	struct tls_io *t = of(io);
	size_t all = 0, got;
	int rc = handshake(t);

	t->pulled = 0;
	t->drained = true;
	if (rc != 1)
		return rc;
	if (io->why.status != SHARD_OK || t->error != 0) {
		errno = t->error ? t->error : EPROTO;
		return -1;
	}
	for (size_t i = 0; i < m->msg_iovlen; i++) {
		for (size_t at = 0; at < m->msg_iov[i].iov_len; at += got, all += got) {
			rc = t->ssl->SSL_read_ex(t->conn, (char *)m->msg_iov[i].iov_base + at,
						 m->msg_iov[i].iov_len - at, &got);
			t->came += rc == 1 ? got : 0;
			if (rc == 1)
				continue;
			rc = failed(t, rc);
			return all > 0 ? (ssize_t)all : rc;
		}
	}
	t->drained = false;
	return (ssize_t)all;
}

/* Where in the vectors of a message the next byte is. */
struct cursor {
	const struct msghdr *m;
	size_t i, at;
};

/* The next record's bytes: as they lie, if they lie together, and else copied. */
static const void *next_record(struct tls_io *t, const struct cursor *from, size_t *bytes)
{
	struct cursor c = *from;

	*bytes = 0;
	while (c.i < c.m->msg_iovlen && *bytes < RECORD_BYTES) {
		const struct iovec *v = &c.m->msg_iov[c.i];
		size_t n = v->iov_len - c.at;

		if (*bytes == 0 && n >= RECORD_BYTES) {
			*bytes = RECORD_BYTES;
			return (const char *)v->iov_base + c.at;
		}
		if (n > RECORD_BYTES - *bytes)
			n = RECORD_BYTES - *bytes;
		memcpy(t->record + *bytes, (const char *)v->iov_base + c.at, n);
		*bytes += n;
		c.at = 0;
		c.i++;
	}
	return t->record;
}

static void advance(struct cursor *c, size_t bytes)
{
	while (bytes > 0) {
		size_t left = c->m->msg_iov[c->i].iov_len - c->at;

		if (bytes < left) {
			c->at += bytes;
			return;
		}
		bytes -= left;
		c->at = 0;
		c->i++;
	}
}

/* A key is not used for ever. The kernel's stays what it is, so such a connection ends. */
static bool renew_key(struct tls_io *t)
{
	if (t->under_key < t->seen.tls->rekey_bytes)
		return true;
	t->under_key = 0;
	if (!t->kernel)
		return t->ssl->SSL_key_update(t->conn, SSL_KEY_UPDATE_NOT_REQUESTED) == 1;
	err_set(&t->io.why, SHARD_CLOSED,
		"the kernel has sent as much with one key as is safe: the connection is made anew");
	errno = EPROTO;
	return false;
}

static ssize_t write_kernel(struct tls_io *t, const struct msghdr *m)
{
	ssize_t n;

	if (push_out(t) != 0 || !renew_key(t))
		return -1;
	do
		n = sendmsg(t->io.fd, m, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	t->io.taken += n > 0 ? (uint64_t)n : 0;
	t->under_key += n > 0 ? (uint64_t)n : 0;
	return n;
}

static ssize_t row_write(struct stream_io *io, const struct msghdr *m)
{
	struct tls_io *t = of(io);
	struct cursor c = {.m = m};
	size_t all = 0, bytes, taken;
	int rc = handshake(t);

	if (rc != 1)
		return rc == 0 ? (errno = EPIPE, -1) : -1;
	if (t->kernel)
		return write_kernel(t, m);
	while (c.i < m->msg_iovlen) {
		const void *from;

		if ((t->out_nr >= SEND_BYTES || !out_fits(t, RECORD_ROOM)) && push_out(t) != 0 &&
		    errno != EAGAIN && errno != EWOULDBLOCK)
			return -1;
		if (!out_fits(t, RECORD_ROOM) || !renew_key(t))
			break;
		from = next_record(t, &c, &bytes);
		if (bytes == 0)
			break;
		rc = t->ssl->SSL_write_ex(t->conn, from, bytes, &taken);
		if (rc != 1) {
			rc = failed(t, rc);
			break;
		}
		t->under_key += taken;
		all += taken;
		advance(&c, taken);
	}
	if (push_out(t) != 0 && errno != EAGAIN && errno != EWOULDBLOCK)
		return -1;
	if (all > 0)
		return (ssize_t)all;
	errno = io->why.status != SHARD_OK ? EPROTO : EAGAIN;
	return -1;
}

static int row_flush(struct stream_io *io)
{
	return push_out(of(io));
}

static bool row_pending(const struct stream_io *io)
{
	const struct tls_io *t = of_const(io);

	return !t->drained && (t->in_nr > 0 || t->ssl->SSL_has_pending(t->conn) == 1);
}

static bool row_unsent(const struct stream_io *io)
{
	return of_const(io)->out_nr > 0;
}

static bool row_blocked(const struct stream_io *io)
{
	const struct tls_io *t = of_const(io);

	return !t->open && t->wants_read && io->why.status == SHARD_OK;
}

static void row_finish(struct stream_io *io)
{
	struct tls_io *t = of(io);

	if (t->open && io->why.status == SHARD_OK && t->error == 0)
		(void)t->ssl->SSL_shutdown(t->conn);
	t->ssl->ERR_clear_error();
	(void)push_out(t);
	(void)shutdown(io->fd, SHUT_WR);
}

static void tls_io_free(struct tls_io *t)
{
	struct tls *tls = t->seen.tls;

	t->ssl->SSL_free(t->conn); /* And with it our BIO. */
	(void)t->ssl->BIO_free(t->socket);
	if (t->in)
		(void)munmap(t->in, IN_BYTES + OUT_BYTES);
	explicit_bzero(t->record, sizeof(t->record));
	free(t);
	tls_close(&tls);
}

static void row_close(struct stream_io *io)
{
	close(io->fd);
	tls_io_free(of(io));
}

static const struct stream_io_row tls_row = {
	.name = "tls",
	.read = row_read,
	.write = row_write,
	.flush = row_flush,
	.pending = row_pending,
	.unsent = row_unsent,
	.blocked = row_blocked,
	.finish = row_finish,
	.close = row_close,
};

/* --- life --- */

static bool connect_bio(struct tls_io *t, const struct tls *tls)
{
	BIO *bio = t->ssl->BIO_new(tls->method);

	if (!bio)
		return false;
	t->ssl->BIO_set_data(bio, t);
	t->ssl->BIO_set_init(bio, 1);
	t->ssl->SSL_set_bio(t->conn, bio, bio);
	if (tls->kernel)
		t->socket = t->ssl->BIO_new_socket(t->io.fd, BIO_NOCLOSE);
	return true;
}

enum shard_status tls_io(struct stream_io **out, struct tls *tls, enum tls_side side, int fd,
			 const char *peer, struct err *e)
{
	struct tls_io *t = calloc(1, sizeof(*t));
	const struct openssl *o = tls->ssl;

	*out = NULL;
	if (!t)
		return err_set(e, SHARD_SYSTEM, "no memory for TLS");
	t->io = (struct stream_io){.row = &tls_row, .fd = fd};
	t->ssl = o;
	t->side = side;
	t->seen.tls = tls_use(tls);
	t->wants_read = side == TLS_LISTENER;
	t->in = mmap(NULL, IN_BYTES + OUT_BYTES, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	t->in = t->in == MAP_FAILED ? NULL : t->in;
	t->out = t->in ? t->in + IN_BYTES : NULL;
	t->conn = o->SSL_new(tls->ctx);
	if (!t->in || !t->conn || !connect_bio(t, tls) ||
	    o->SSL_set_ex_data(t->conn, 0, &t->seen) != 1 ||
	    (peer && tls->mode == TLS_MTLS && o->SSL_set1_host(t->conn, peer) != 1)) {
		tls_io_free(t);
		return err_set(e, SHARD_SYSTEM, "no memory for TLS");
	}
	o->SSL_set_hostflags(t->conn, TLS_HOSTFLAGS);
	if (side == TLS_DIALLER)
		o->SSL_set_connect_state(t->conn);
	else
		o->SSL_set_accept_state(t->conn);
	*out = &t->io;
	return SHARD_OK;
}

void tls_io_undo(struct stream_io **io)
{
	if (*io)
		tls_io_free(of(*io));
	*io = NULL;
}

/* --- about a connection --- */

bool tls_is(const struct stream_io *io)
{
	return io->row == &tls_row;
}

bool tls_channel(const struct stream_io *io, unsigned char out[AUTH_BYTES])
{
	static const char label[] = "EXPORTER-shardd-auth";
	const struct tls_io *t = of_const(io);

	return tls_is(io) && t->open &&
	       t->ssl->SSL_export_keying_material(t->conn, out, AUTH_BYTES, label,
						  sizeof(label) - 1, NULL, 0, 0) == 1;
}

bool tls_names(const struct stream_io *io, const char *name)
{
	const struct tls_io *t = of_const(io);
	X509 *cert;
	bool named;

	if (!tls_is(io) || !t->open || !name[0])
		return false;
	cert = t->ssl->SSL_get1_peer_certificate(t->conn);
	named = cert && t->ssl->X509_check_host(cert, name, 0, TLS_HOSTFLAGS, NULL) == 1;
	t->ssl->X509_free(cert);
	return named;
}

bool tls_has_cert(const struct stream_io *io)
{
	const struct tls_io *t = of_const(io);
	X509 *cert = tls_is(io) ? t->ssl->SSL_get1_peer_certificate(t->conn) : NULL;

	if (cert)
		t->ssl->X509_free(cert);
	return cert != NULL;
}

const char *tls_said(const struct stream_io *io, char out[TLS_SAID_BYTES])
{
	const struct tls_io *t = of_const(io);

	if (!tls_is(io) || !t->open)
		snprintf(out, TLS_SAID_BYTES, "%s", tls_is(io) ? "handshake" : "off");
	else
		snprintf(out, TLS_SAID_BYTES, "TLSv1.3 %s %s%s",
			 t->ssl->SSL_CIPHER_get_name(t->ssl->SSL_get_current_cipher(t->conn)),
			 t->seen.tls->mode == TLS_PSK ? "psk" : "mtls", t->kernel ? " kernel" : "");
	return out;
}
