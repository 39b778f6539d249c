/* SPDX-License-Identifier: Apache-2.0 */
/* One daemon: what it owns and how it starts; how it stops is stop.c's. main.c and tests call. Start: state directory and incarnation,
 * workers, links, what the coordinator kept, listeners last. Two timers drive everything that is not a frame: the cores' next
 * deadline, and a beat of about a second for heartbeats, dialling and held requests. Failing start leaves nothing behind. */
#include "state.h"

#include "apply.h"
#include "base/check.h"
#include "base/clock.h"
#include "define.h"
#include "drop.h"
#include "hello.h"
#include "manage.h"
#include "model.h"
#include "obs/http.h"
#include "obs/scrape.h"
#include "park.h"
#include "peer.h"
#include "resume.h"
#include "secret.h"
#include "session.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERVER_BEAT_MAX_NS NS_PER_SEC
#define SERVER_SCRATCH     (1u << 20)
#define SERVER_JOBS_MAX    4096

const char *server_node_name(const struct server *s, uint16_t node)
{
	return s->conf->node_list[node].name;
}

enum shard_status server_unpack(struct server *s, const struct wire_head *h, const ProtobufCMessageDescriptor *type,
				const void *body, const ProtobufCMessage **msg, void **memory, struct err *e)
{
	bool large = h->op == OP_HELLO || h->op == OP_AUTH || h->op == OP_DEFINE || h->op == OP_MODEL;
	struct arena own, *a = large ? &own : &s->rx;

	*msg = NULL;
	*memory = NULL;
	if (type == NULL)
		return SHARD_OK;
	if (large) {
		*memory = malloc(CONTROL_ARENA_BYTES(h->body_bytes));
		if (*memory == NULL)
			return err_set(e, SHARD_SYSTEM, "no memory for a %s of %u bytes", wire_op(h->op)->name, h->body_bytes);
		arena_init(&own, *memory, CONTROL_ARENA_BYTES(h->body_bytes));
	}
	return control_unpack(msg, type, body, h->body_bytes, a, e);
}

void server_forget_conn(struct server *s, struct conn *c)
{
	const struct stream_stats *st = conn_stats(c);

	s->refused_frames += st->refused;
	s->copied_bytes += st->copied_bytes;
	s->past_in_bytes += st->bytes_in;
	s->past_out_bytes += st->bytes_out;
}

enum shard_status server_scratch(struct server *s, size_t bytes, struct err *e)
{
	void *tx, *rx;

	if (bytes <= s->scratch_bytes)
		return SHARD_OK;
	CHECK(s->tx.used == 0); /* rx may hold the definition in hand, which has memory of its own */
	tx = malloc(bytes);
	rx = malloc(bytes);
	if (tx == NULL || rx == NULL) {
		free(tx);
		free(rx);
		return err_set(e, SHARD_SYSTEM, "no memory for control messages of %zu bytes", bytes);
	}
	free(s->tx.base);
	free(s->rx.base);
	arena_init(&s->tx, tx, bytes);
	arena_init(&s->rx, rx, bytes);
	s->scratch_bytes = bytes;
	return SHARD_OK;
}

/* --- events that actions raise --- */

enum shard_status server_later_room(struct server *s, uint32_t more, struct err *e)
{
	struct server_later *l = realloc(s->later, (s->later_cap + more) * sizeof(*l));

	if (l == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for %u events", s->later_cap + more);
	s->later = l;
	s->later_cap += more;
	return SHARD_OK;
}

void server_later(struct server *s, struct model *m, const struct core_event *ev)
{
	CHECK(s->later_nr < s->later_cap); /* a model made room for every chunk it has */
	s->later[s->later_nr++] = (struct server_later){m, *ev};
}

void server_run_later(struct server *s)
{
	for (uint32_t i = 0; i < s->later_nr; i++) { /* more may come while this runs, behind those that wait */
		struct server_later l = s->later[i];

		model_run(l.m, &l.ev);
	}
	s->later_nr = 0;
}

/* --- time --- */

/* The beat rings at least every beat_ns: a longer gap is a time in which this process did not run, or not enough. Others may have been
 * heard meanwhile, and are not late for that. It is noticed by whatever asks first, a frame too: a core must not see the gap. */
uint64_t server_core_ns(struct server *s)
{
	uint64_t now = clock_ns();

	if (now > s->ran_ns + 2 * s->beat_ns) {
		log_line(s->log, LOG_LEVEL_WARN, "event=slept seconds=%.1f", (double)(now - s->ran_ns) / NS_PER_SEC);
		s->slept_ns = now - s->core_seen_ns;
	}
	s->ran_ns = now;
	return now - s->slept_ns;
}

static void on_core_timer(uv_timer_t *timer)
{
	struct server *s = timer->data;
	uint64_t now = server_core_ns(s);

	s->core_due = UINT64_MAX; /* the timer has rung */
	list_each(it, &s->models)
		model_tick(list_of(it, struct model, link), now);
	server_deadline(s);
}

void server_deadline(struct server *s)
{
	uint64_t due = UINT64_MAX, now = server_core_ns(s);

	list_each(it, &s->models) {
		struct model *m = list_of(it, struct model, link);

		if (!m->defining && core_deadline(m->core) < due)
			due = core_deadline(m->core);
	}
	if (due == s->core_due || s->stopped_all)
		return;
	s->core_due = due;
	if (due == UINT64_MAX)
		uv_timer_stop(&s->core_timer);
	else
		uv_timer_start(&s->core_timer, on_core_timer, due > now ? (due - now + NS_PER_MS - 1) / NS_PER_MS : 0, 0);
}

void server_alive(struct server *s, uint64_t now)
{
	struct wire_head ping = {.op = OP_PING};

	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (s->peer[n] != NULL)
			peer_beat(s->peer[n], now);
	list_each(it, &s->sessions) {
		struct session *t = list_of(it, struct session, link);

		if (!t->local && stream_send_control(conn_stream(t->conn), &ping, NULL) == SHARD_OK)
			conn_kick(t->conn);
	}
}

static void on_beat(uv_timer_t *timer)
{
	struct server *s = timer->data;
	uint64_t now = clock_ns();

	s->beat_due = 0;
	(void)server_core_ns(s); /* it runs */
	server_alive(s, now);
	list_each(it, &s->models)
		model_beat(list_of(it, struct model, link), now);
	hello_beat(s, now);
	define_beat(s, now);
	manage_beat(s, now);
	ckpt_beat(s, now);
	drop_beat(s, now);
	server_wake(s, now + s->beat_ns);
}

void server_wake(struct server *s, uint64_t at_ns)
{
	uint64_t now = clock_ns();

	if (s->stopping || (s->beat_due != 0 && s->beat_due <= at_ns))
		return;
	s->beat_due = at_ns;
	uv_timer_start(&s->beat, on_beat, at_ns > now ? (at_ns - now) / NS_PER_MS + 1 : 1, 0);
}

/* --- start --- */

static enum shard_status listen_all(struct server *s, struct err *e)
{
	struct conn_address local = {.unix_path = true};
	enum shard_status st = SHARD_OK;

	if (s->conf->listen.host[0] != 0 &&
	    (st = conn_listen(&s->tcp, s->loop, &s->conf->listen, 0, hello_accept, s, e)) != SHARD_OK)
		return st;
	snprintf(local.text, sizeof(local.text), "unix:%.100s", s->conf->socket);
	if (strlen(s->conf->socket) >= sizeof(local.host))
		st = err_set(e, SHARD_BAD_ARG, "[daemon] socket = %s: a path of at most %zu bytes", s->conf->socket,
			     sizeof(local.host) - 1);
	else
		memcpy(local.host, s->conf->socket, strlen(s->conf->socket) + 1);
	if (st == SHARD_OK)
		st = conn_listen(&s->local, s->loop, &local, s->conf->socket_mode, hello_accept, s, e);
	if (st != SHARD_OK)
		conn_listener_close(&s->tcp);
	return st;
}

static enum shard_status start_http(struct server *s, struct err *e)
{
	struct http_conf conf = {
		.at = &s->conf->http,
		.loop = s->loop,
		.stall_ns = s->conf->heartbeat_timeout_ns,
		.render = scrape_render,
		.arg = s,
	};

	if (s->conf->http.host[0] == 0)
		return SHARD_OK;
	return http_open(&s->http, &conf, e);
}

static enum shard_status start(struct server *s, struct err *e)
{
	struct worker_conf workers = {
		.threads = s->conf->workers, .jobs_max = SERVER_JOBS_MAX, .pin = true, .turn = apply_turn, .turn_arg = s};
	struct park_conf park;
	enum shard_status st;

	if ((st = secret_open(s, e)) != SHARD_OK)
		return st;
	if ((st = static_open(&s->dir, s->conf->state, e)) != SHARD_OK)
		return st;
	s->incarnation = s->start = static_start(s->dir);
	park = (struct park_conf){
		.conf = s->conf, .log = s->log, .uuid = static_uuid(s->dir), .start = s->start, .member = static_member(s->dir)};
	if ((st = park_open(&s->park, &park, e)) != SHARD_OK)
		return st;
	if ((st = server_scratch(s, SERVER_SCRATCH, e)) != SHARD_OK || (st = server_later_room(s, 64, e)) != SHARD_OK)
		return st;
	if ((st = worker_init(&s->pool, &workers, s->loop, e)) != SHARD_OK)
		return st;
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (n != s->self && (st = peer_init(s, n, e)) != SHARD_OK)
			return st;
	if ((st = rails_open(s, e)) != SHARD_OK)
		return st;
	if ((st = listen_all(s, e)) != SHARD_OK || (st = start_http(s, e)) != SHARD_OK)
		return st;
	return resume_load(s, e);
}

static void release(struct server *s)
{
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		peer_free(&s->peer[n]);
	rails_free(s);
	park_close(&s->park);
	static_close(&s->dir);
	auth_close(&s->auth);
	free(s->tx.base);
	free(s->rx.base);
	free(s->later);
}

static void failed_pool_closed(void *arg)
{
	free(arg);
}

enum shard_status server_init(struct server **out, const struct config *conf, struct log *log, uv_loop_t *loop, struct err *e)
{
	struct server *s = calloc(1, sizeof(*s));
	enum shard_status st;

	*out = NULL;
	if (s == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a server");
	s->conf = conf;
	s->log = log;
	s->loop = loop;
	s->isa = isa_best();
	s->self = (uint16_t)conf->self;
	s->nodes_nr = (uint16_t)conf->nodes_nr;
	s->budget.total = conf->memory;
	s->started_ns = s->ran_ns = s->core_seen_ns = clock_ns();
	s->core_due = UINT64_MAX;
	s->beat_ns = conf->heartbeat_timeout_ns / 4 < SERVER_BEAT_MAX_NS ? conf->heartbeat_timeout_ns / 4 : SERVER_BEAT_MAX_NS;
	list_init(&s->greetings);
	list_init(&s->sessions);
	list_init(&s->models);
	list_init(&s->relays);
	list_init(&s->defines);
	list_init(&s->drops);
	list_init(&s->ckpts);
	list_init(&s->regions);
	st = start(s, e);
	if (st != SHARD_OK) {
		struct worker_pool *pool = s->pool;

		while (!list_empty(&s->models)) {
			struct model *m = list_of(s->models.next, struct model, link);

			m->keep = true;
			model_free(&m);
		}
		conn_listener_close(&s->tcp);
		conn_listener_close(&s->local);
		if (s->http != NULL)
			http_close(&s->http, NULL, NULL);
		release(s);
		if (pool != NULL)
			worker_close(&pool, failed_pool_closed, s);
		else
			free(s);
		return st;
	}
	s->pool_open = true;
	uv_timer_init(loop, &s->core_timer);
	uv_timer_init(loop, &s->beat);
	s->core_timer.data = s->beat.data = s;
	log_line(log, LOG_LEVEL_INFO, "event=start release=%s incarnation=%lu listen=%s socket=%s isa=%s workers=%u memory=%lu",
		 SHARD_RELEASE, (unsigned long)s->incarnation, conf->listen.text, conf->socket, isa_name(s->isa), conf->workers,
		 (unsigned long)conf->memory);
	if (s->http != NULL)
		log_line(log, LOG_LEVEL_INFO, "event=http port=%u", http_port(s->http));
	if (conf->unknown[0] != 0)
		log_line(log, LOG_LEVEL_WARN, "event=unknown_variables names=%s why=%s", conf->unknown,
			 "nothing reads them: `shardd --help` says how variables are named");
	if (conf->http_open)
		log_line(log, LOG_LEVEL_WARN, "event=unauthenticated http=%s why=%s", conf->http.text,
			 "allow_unauthenticated = yes: anyone who reaches this address can see models and nodes");
	if (conf->listen_open)
		log_line(log, LOG_LEVEL_WARN, "event=unauthenticated listen=%s why=%s", conf->listen.text,
			 "allow_unauthenticated = yes: anyone who reaches this address can read and change models");
	server_wake(s, 0);
	resume_begin(s);
	ckpt_start(s);
	server_deadline(s);
	*out = s;
	return SHARD_OK;
}

uint32_t server_connected(const struct server *s, uint64_t *ever)
{
	*ever = s->next_session - s->first_session;
	return s->sessions_nr + s->greetings_nr;
}

void server_free(struct server **sp)
{
	struct server *s = *sp;

	if (s == NULL)
		return;
	*sp = NULL;
	define_free(s);
	drop_free(s);
	while (!list_empty(&s->models)) {
		struct model *m = list_of(s->models.next, struct model, link);

		m->keep = true;
		model_free(&m);
	}
	release(s);
	free(s);
}
