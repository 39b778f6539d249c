/* SPDX-License-Identifier: Apache-2.0 */
/* Accepted connections during their handshake. The listeners of server.c hand over descriptors with
 * accept_one(). Until the handshake is complete a connection may send only HELLO and, if a secret
 * is asked for, AUTH (secret.c), of at most WIRE_HELLO_MAX bytes each. Then it becomes a session,
 * if its user or address has a place left (places.c), or a part of a link to another node (peer.c).
 * A connection that sends something else, fails a check, or needs longer than SERVER_HELLO_NS is
 * closed. At most PLACES_OPENING connections may be in their handshake. When there are more, the
 * user or address that has most of them loses those that hung up, or else one that is silent. */
#include "link/accept.h"

#include "base/check.h"
#include "base/clock.h"
#include "link/channel.h"
#include "link/hello.h"
#include "link/intake.h"
#include "link/session.h"
#include "node/limits.h"
#include "link/peer.h"
#include "link/places.h"
#include "link/secret.h"
#include "wire/control.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SILENT_NS NS_PER_SEC       /* A connection silent for so long is closed first. */
#define SLOW_NS   (2 * NS_PER_SEC) /* Next is one whose handshake has taken so long. */

struct opening { /* A connection during its handshake. */
	struct list link;
	struct server *server;
	struct conn *conn;
	struct guest *guest;
	uint64_t since_ns;
	bool evicted;  /* No longer counted. */
	bool answered; /* It has what it came for, and is being closed. */
	bool refused;  /* There was no place for it. */
	bool quiet;    /* That it is refused is no news. */
	struct prove prove;
};

/* One that was refused is in its list until its socket is closed, and may have to make room. */
static void count_refused(struct opening *g)
{
	g->server->conns.refused += !g->refused;
	g->refused = true;
}

static enum shard_status opening_head(void *owner, struct stream *st, const struct wire_head *h,
				      void **to, struct err *e)
{
	struct opening *g = owner;

	(void)st, (void)to;
	if (h->op != (g->prove.asked ? OP_AUTH : OP_HELLO) || (h->flags & WIRE_REPLY))
		return err_set(e, SHARD_PROTOCOL, "frame %s before %s", wire_op(h->op)->name,
			       g->prove.asked ? "auth" : "hello");
	return SHARD_OK;
}

/* A connection that was told to go is in its list until its socket is closed, and not counted. */
void server_conns_check(const struct server_conns *c)
{
	CHECK(c->openings_nr <= PLACES_OPENING);
	CHECK(c->openings_nr == 0 || !list_empty(&c->openings));
	CHECK(c->sessions_nr == 0 || !list_empty(&c->sessions));
	CHECK(c->first_session <= c->next_session);
}

/* The connection is no longer counted among those in their handshake. */
static void opened(struct opening *g)
{
	CHECK(!g->evicted && g->server->conns.openings_nr > 0);
	g->server->conns.openings_nr--;
	g->guest->openings_nr--;
	g->evicted = true;
	server_conns_check(&g->server->conns);
}

/* A node that is in no list asks for the list of nodes. It gets it when it is in there. */
static enum shard_status joins(struct opening *g, const struct hello_asked *asked,
			       const Shard__Hello *hello, struct err *e)
{
	enum shard_status st = intake_joins(g->server, hello, e);

	g->quiet = st == SHARD_BUSY; /* It asks again and again. */
	if (st != SHARD_OK || (st = hello_answer(g->server, g->conn, asked, hello, e)) != SHARD_OK)
		return st;
	g->answered = true;
	conn_close(g->conn, NULL, SERVER_LINGER_MS);
	return SHARD_OK;
}

static enum shard_status take_over(struct opening *g, const struct hello_asked *asked,
				   const Shard__Hello *hello, struct err *e)
{
	struct server *s = g->server;
	struct conn *c = g->conn;
	enum shard_status st = hello_check(s, hello, c, e);

	if (st == SHARD_OK && hello->role == ROLE_NODE)
		st = channel_is_node(s->conf, c, hello->node, e);
	if (st != SHARD_OK && hello->role == ROLE_NODE)
		peer_turned_away(s, hello->node, e);
	if (st != SHARD_OK)
		return st;
	if (s->stop.on) /* Checked before the answer, because a process that got one relies on it.
			 */
		return err_set(e, SHARD_CLOSED, "node %s stops: %s", members_name(s, s->self),
			       s->stop.why);
	if (hello->role == ROLE_NODE && hello->joins[0] != 0)
		return joins(g, asked, hello, e);
	if (hello->role == ROLE_NODE)
		return peer_greeted(s, c, asked, hello, e);
	if (hello->role != ROLE_TRAINER && hello->role != ROLE_CTL)
		return err_set(e, SHARD_PROTOCOL, "hello with role %u", hello->role);
	st = places_sit(s, g->guest, hello->role, stream_fd(conn_stream(c)), e);
	if (st != SHARD_OK)
		count_refused(g);
	if (st != SHARD_OK || (st = hello_answer(s, c, asked, hello, e)) != SHARD_OK)
		return st;
	return session_greeted(s, c, g->guest, hello, e);
}

/* Takes HELLO. If a proof is needed, AUTH has to follow. Before the proof only versions are
 * compared, because an error text of the other checks names values of this node. */
static enum shard_status said_hello(struct opening *g, const struct wire_head *h, const void *body,
				    const Shard__Hello *hello, struct err *e)
{
	struct server *s = g->server;
	enum shard_status st = hello_check_version(s, hello, e);

	if (st == SHARD_OK)
		st = secret_hello(s, g->conn, &g->prove, h, body, hello, e);
	if (st == SHARD_OK && !g->prove.asked)
		st = take_over(g, &(struct hello_asked){h->attempt, NULL}, hello, e);
	return st;
}

static enum shard_status opening_frame(void *owner, struct stream *stream,
				       const struct wire_head *h, const void *body, struct err *e)
{
	struct opening *g = owner;
	struct server *s = g->server;
	const Shard__Hello *hello;
	const ProtobufCMessage *msg;
	void *memory; /* Not the scratch memory: this HELLO may complete a link, and then models use
			 it. */
	enum shard_status st;

	(void)stream;
	if (h->op == OP_AUTH) {
		st = secret_auth(s, g->conn, &g->prove, h, body, &hello, &memory, e);
		if (st == SHARD_OK)
			st = take_over(g, &(struct hello_asked){h->attempt, &g->prove}, hello, e);
	} else {
		st = server_unpack(s, h, &shard__hello__descriptor, body, &msg, &memory, e);
		if (st == SHARD_OK)
			st = said_hello(g, h, body, (const Shard__Hello *)msg, e);
	}
	free(memory);
	if (st != SHARD_OK || g->answered || (h->op == OP_HELLO && g->prove.asked))
		return st;
	CHECK(!g->evicted); /* A closing connection delivers no frames. */
	prove_end(&g->prove);
	list_remove(&g->link);
	opened(g);
	places_leave(g->guest);
	free(g);
	return SHARD_OK;
}

static void opening_closed(void *owner, struct conn *c, const struct err *why)
{
	struct opening *g = owner;

	if (!g->prove.denied && !g->answered && !g->quiet)
		log_limited(g->server->log, &g->server->conns.refused_bucket, clock_ns(),
			    LOG_LEVEL_WARN, "event=hello_failed from=%s why=%s", conn_name(c),
			    why->text);
	list_remove(&g->link);
	prove_end(&g->prove);
	if (!g->evicted)
		opened(g);
	places_leave(g->guest);
	server_forget_conn(g->server, c);
	free(g);
}

static const struct conn_handler opening_handler = {
	.frames = {.on_head = opening_head, .on_frame = opening_frame},
	.on_close = opening_closed,
};

static void evict(struct opening *g, const char *why)
{
	struct err e;

	CHECK(!g->evicted && why != NULL);
	err_set(&e, SHARD_BUSY, "%s", why);
	opened(g);
	conn_close(g->conn, &e, 0);
}

/* Makes room among the guest's connections in their handshake. It closes all that have hung up but
 * were not closed yet. If there are none it closes one that has sent nothing for a while, or else
 * one that began long ago, or else the newest. A connection whose bytes have not been read yet
 * stays, because the next turn of the loop reads them. False: nothing was closed. */
static bool evict_of(struct server *s, const struct guest *guest)
{
	struct opening *old = NULL, *slow = NULL, *newest = NULL;
	uint64_t now = clock_ns();
	bool room = false;

	list_each(it, &s->conns.openings) {
		struct opening *g = list_of(it, struct opening, link);
		uint64_t age = now - g->since_ns;
		enum conn_pulse pulse;

		if (g->evicted || g->guest != guest || (pulse = conn_pulse(g->conn)) == CONN_TALKS)
			continue;
		if (pulse == CONN_GONE) {
			evict(g, "it hung up");
			room = true;
			continue;
		}
		if (old == NULL && age > SILENT_NS && !g->prove.asked &&
		    !stream_mid_frame(conn_stream(g->conn)))
			old = g;
		if (slow == NULL && age > SLOW_NS)
			slow = g;
		newest = g;
	}
	newest = old != NULL ? old : slow != NULL ? slow : newest;
	if (!room && newest != NULL) {
		count_refused(newest);
		evict(newest,
		      "too many connections are at their opening, and this one does not go on");
	}
	return room || newest != NULL;
}

/* Makes room for one more handshake. The guest that has most of them pays for it, so that one guest
 * cannot keep others out. */
static bool make_room(struct server *s)
{
	const struct guest *most = NULL;

	if (s->conns.openings_nr < PLACES_OPENING)
		return true;
	log_limited(s->log, &s->conns.accept_bucket, clock_ns(), LOG_LEVEL_WARN,
		    "event=connection_refused connections=%u greeted=%u max=%u",
		    s->conns.openings_nr + s->conns.sessions_nr, s->conns.sessions_nr,
		    s->conf->connections_max);
	list_each(it, &s->conns.guests) {
		const struct guest *g = list_of(it, struct guest, link);

		if (most == NULL || g->openings_nr > most->openings_nr)
			most = g;
	}
	return most != NULL && evict_of(s, most);
}

/* Does whoever has connected read frames before a handshake? */
static bool reads_frames(const struct server *s, int fd)
{
	struct sockaddr_storage at = {.ss_family = AF_UNSPEC};
	socklen_t bytes = sizeof(at);

	return s->conf->tls == TLS_OFF ||
	       (getsockname(fd, (struct sockaddr *)&at, &bytes) == 0 && at.ss_family == AF_UNIX);
}

/* Refuses a connection that would take one of the last descriptors. The error is sent only as far
 * as the socket takes it at once, so that the descriptor can be closed here. Where a handshake of
 * TLS would come first, nothing is sent. */
static void refuse(struct server *s, int fd)
{
	unsigned char frame[sizeof(struct wire_head) + sizeof(struct err) + 32], *body;
	struct wire_head h = {.op = OP_ERROR};
	Shard__Error error = SHARD__ERROR__INIT;
	struct err e;

	error.status = places_no_descriptor(&e);
	error.text = e.text;
	body = frame + sizeof(h);
	CHECK(shard__error__get_packed_size(&error) <= sizeof(frame) - sizeof(h));
	h.body_bytes = (uint32_t)shard__error__pack(&error, body);
	wire_seal(&h, body, 0, true);
	memcpy(frame, &h, sizeof(h));
	if (reads_frames(s, fd))
		(void)!send(fd, frame, sizeof(h) + h.body_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
	close(fd);
	s->conns.refused++;
	log_limited(s->log, &s->conns.accept_bucket, clock_ns(), LOG_LEVEL_WARN,
		    "event=accept_failed why=%s", e.text);
}

void accept_one(void *server, int fd)
{
	struct server *s = server;
	struct conn_conf conf = {.handler = &opening_handler,
				 .queue_max = SERVER_QUEUE_MAX,
				 .body_max = WIRE_HELLO_MAX,
				 .account = &s->conns.queued,
				 .tls = s->secret.tls,
				 .silence_ns = 0,
				 .frame_ns = SERVER_HELLO_NS};
	struct guest *guest;
	struct opening *g;
	struct err e;

	CHECK(fd >= 0 && (s->secret.tls != NULL) == (s->conf->tls != TLS_OFF));
	if (!limits_spare(fd, 0)) {
		refuse(s, fd);
		return;
	}
	if (s->stop.on || !make_room(s) || (guest = places_guest(s, fd)) == NULL) {
		s->conns.refused += !s->stop.on;
		close(fd);
		return;
	}
	g = calloc(1, sizeof(*g));
	if (g == NULL) {
		places_leave(guest);
		close(fd);
		return;
	}
	*g = (struct opening){.server = s, .guest = guest, .since_ns = clock_ns()};
	conf.owner = g;
	if (conn_accept(&g->conn, s->loop, fd, &conf, &e) != SHARD_OK) {
		log_limited(s->log, &s->conns.accept_bucket, clock_ns(), LOG_LEVEL_WARN,
			    "event=accept_failed why=%s", e.text);
		places_leave(guest);
		free(g);
		return;
	}
	list_push(&s->conns.openings, &g->link);
	s->conns.openings_nr++;
	guest->openings_nr++;
	server_conns_check(&s->conns);
}

void accept_beat(struct server *s, uint64_t now_ns)
{
	list_each(it, &s->conns.openings) {
		struct opening *g = list_of(it, struct opening, link);
		struct err e;

		if (now_ns - g->since_ns < SERVER_HELLO_NS)
			continue;
		err_set(&e, SHARD_TIMEOUT, "no %s within %.0f s",
			g->prove.asked                         ? "proof of the secret"
			: stream_blocked(conn_stream(g->conn)) ? "end of the handshake of TLS"
							       : "hello",
			(double)SERVER_HELLO_NS / NS_PER_SEC);
		conn_close(g->conn, &e, 0);
	}
}

void accept_close_all(struct server *s)
{
	list_each(it, &s->conns.openings)
		conn_close(list_of(it, struct opening, link)->conn,
			   &(struct err){.status = SHARD_CLOSED, .text = "the daemon stops"}, 0);
}
