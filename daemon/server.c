/* SPDX-License-Identifier: Apache-2.0 */
/* One daemon: what it owns and how it starts; stop.c has how it stops. main.c and tests call.
 * Start: the secret, workers and links, the listeners and HTTP, then the state folder with its
 * incarnation and the memory of the start before, and last the models that were kept. Two timers
 * drive everything that is not a frame: one for the next deadline of the cores, and a beat of about
 * a second for heartbeats, dialling and requests that wait. A start that fails leaves nothing
 * behind. */
#include "node/state.h"
#include "ckpt/ckpt.h"
#include "ckpt/copying.h"

#include "data/apply.h"
#include "data/patches.h"
#include "base/check.h"
#include "base/clock.h"
#include "control/anew.h"
#include "control/define.h"
#include "control/define_wait.h"
#include "dispatch.h"
#include "control/drop.h"
#include "link/accept.h"
#include "link/call.h"
#include "control/manage.h"
#include "control/moving.h"
#include "model/model.h"
#include "model/lead.h"
#include "model/odd.h"
#include "model/pinned.h"
#include "obs/cluster.h"
#include "obs/events.h"
#include "obs/health.h"
#include "obs/history.h"
#include "obs/http.h"
#include "obs/progress.h"
#include "obs/scrape.h"
#include "warm/warm.h"
#include "link/gone.h"
#include "link/intake.h"
#include "link/nodes.h"
#include "link/peer.h"
#include "link/places.h"
#include "model/watch.h"
#include "model/resume.h"
#include "model/view_file.h"
#include "node/gpus.h"
#include "control/seal.h"
#include "link/secret.h"
#include "link/session.h"
#include "control/transfer.h"
#include "control/blob.h"
#include "control/control.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SERVER_BEAT_MAX_NS NS_PER_SEC
#define SERVER_SCRATCH     (1u << 20)
#define SERVER_JOBS_MAX    4096
/* Least peak of queued bytes after which memory is given back to the kernel. */
#define TRIM_BYTES (4u << 20)

/* --- time --- */

void server_alive(struct server *s, uint64_t now)
{
	struct wire_head ping = {.op = OP_PING};

	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (s->peer[n] != NULL)
			peer_beat(s->peer[n], now);
	list_each(it, &s->conns.sessions) {
		struct session *t = list_of(it, struct session, link);

		if (!t->local && stream_send_control(conn_stream(t->conn), &ping, NULL) == SHARD_OK)
			conn_kick(t->conn);
	}
}

/* Gives the memory of answers back to the kernel when nobody waits for any. It is little more than
 * SERVER_QUEUED_MAX, so this takes milliseconds. */
static void give_back(struct server *s)
{
	if (s->conns.queued.bytes > 0 || s->conns.queued.peak < TRIM_BYTES)
		return;
	s->conns.queued.peak = 0;
	malloc_trim(0);
}

static void fault_beat(struct server *s)
{
	void (*cb)(void *arg, const char *why) = s->on_fault;

	if (s->fault[0] == 0 || cb == NULL)
		return;
	s->on_fault = NULL;
	cb(s->fault_arg, s->fault);
}

/* Who is told of models, in this order. A watcher that answers waiting requests comes before one
 * that ends them. */
static const struct model_watch *const watches[] = {
	&history_watch, &scrape_watch, &progress_watch, &transfer_watch, &seal_watch, &manage_watch,
	&blob_watch,    &ckpt_watch,   &moving_watch,   &control_watch,  NULL};

static void on_beat(struct server *s, uint64_t now)
{
	char ill[NODES_ILL_BYTES];

	(void)server_core_ns(s); /* Notes that the loop runs. */
	s->clock.beat_cpu_ns = clock_thread_ns();
	server_alive(s, now);
	list_each(it, &s->models)
		model_beat(list_of(it, struct model, link), now);
	accept_beat(s, now);
	lead_beat(s);
	persist_ill(s, ill, sizeof(ill));
	intake_ill(s, ill);
	intake_beat(s, now);
	gone_beat(s, now);
	call_beat(s, now);
	define_beat(s, now);
	manage_beat(s, now);
	ckpt_beat(s, now);
	gpus_beat(s);
	health_beat(s);
	anew_beat(s, now);
	drop_beat(s, now);
	give_back(s);
	odd_beat(s, now);
	fault_beat(s); /* Last, because it may begin the stop. */
}

/* --- start --- */

/* The folder of the unix socket, such as /run/shardd. It is made here if no systemd unit makes it,
 * but not the folders above it. */
static char *socket_folder(const struct server *s)
{
	char *folder = strdup(s->conf->socket),
	     *slash = folder != NULL ? strrchr(folder, '/') : NULL;

	if (slash == NULL || slash == folder) {
		free(folder);
		return NULL;
	}
	*slash = 0;
	return folder;
}

static void make_socket_folder(struct server *s)
{
	char *folder = socket_folder(s);

	/* If it cannot be made, listening says what is wrong. */
	s->made_folder = folder != NULL && mkdir(folder, 0755) == 0;
	free(folder);
}

static void unmake_socket_folder(struct server *s)
{
	char *folder = s->made_folder ? socket_folder(s) : NULL;

	if (folder != NULL)
		(void)rmdir(folder);
	free(folder);
}

static enum shard_status listen_all(struct server *s, struct err *e)
{
	struct conn_address local = {.unix_path = true};
	enum shard_status st = SHARD_OK;

	CHECK(s->tcp == NULL && s->local == NULL);
	if (s->conf->listen.host[0] != 0 &&
	    (st = conn_listen(&s->tcp, s->loop, &s->conf->listen, 0, accept_one, s, e)) != SHARD_OK)
		return st;
	snprintf(local.text, sizeof(local.text), "unix:%.100s", s->conf->socket);
	if (strlen(s->conf->socket) >= sizeof(local.host))
		st = err_set(e, SHARD_BAD_ARG, "[daemon] socket = %s: a path of at most %zu bytes",
			     s->conf->socket, sizeof(local.host) - 1);
	else
		memcpy(local.host, s->conf->socket, strlen(s->conf->socket) + 1);
	if (st == SHARD_OK)
		make_socket_folder(s);
	if (st == SHARD_OK)
		st = conn_listen(&s->local, s->loop, &local, s->conf->socket_mode, accept_one, s,
				 e);
	if (st != SHARD_OK)
		conn_listener_close(&s->tcp);
	return st;
}

static enum shard_status start_http(struct server *s, struct err *e)
{
	struct http_conf conf = {
		.config = s->conf,
		.log = s->log,
		.loop = s->loop,
		.stall_ns = s->conf->heartbeat_timeout_ns,
		.render = scrape_render,
		.arg = s,
	};

	CHECK(s->http == NULL);
	if (s->conf->http.host[0] == 0)
		return SHARD_OK;
	return http_open(&s->http, &conf, e);
}

/* Jobs are done, so that what waits finds room. */
static void turn(void *server)
{
	apply_turn(server);
	patches_turn(server);
}

static enum shard_status start(struct server *s, struct err *e)
{
	struct worker_conf workers = {.threads = s->conf->workers,
				      .jobs_max = SERVER_JOBS_MAX,
				      .pin = true,
				      .turn = turn,
				      .turn_arg = s};
	struct warm_conf warm;
	enum shard_status st;

	/* What can be wrong with the configuration comes first, so that a start that fails leaves
	 * nothing behind and does not count. */
	if ((st = secret_open(s, e)) != SHARD_OK || (st = copying_check(s->conf, e)) != SHARD_OK ||
	    (st = static_in_use(s->conf->state, e)) != SHARD_OK)
		return st;
	if ((st = server_scratch(s, SERVER_SCRATCH, e)) != SHARD_OK ||
	    (st = server_later_room(s, 64, e)) != SHARD_OK)
		return st;
	if ((st = worker_init(&s->pool, &workers, s->loop, e)) != SHARD_OK)
		return st;
	gpus_open(s);
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (n != s->self && (st = peer_init(s, n, e)) != SHARD_OK)
			return st;
	if ((st = rdma_local_open(s, e)) != SHARD_OK)
		return st;
	if ((st = listen_all(s, e)) != SHARD_OK || (st = start_http(s, e)) != SHARD_OK)
		return st;
	if ((st = static_open(&s->dir, s->conf->state, e)) != SHARD_OK)
		return st;
	s->incarnation = s->start = s->term = static_start(s->dir);
	s->drained = static_drained(s->dir);
	if ((st = gone_init(s, e)) != SHARD_OK)
		return st;
	if ((st = lead_init(s, e)) != SHARD_OK)
		return st;
	warm = (struct warm_conf){.conf = s->conf,
				  .log = s->log,
				  .dir = s->dir,
				  .uuid = static_uuid(s->dir),
				  .start = s->start,
				  .member = static_member(s->dir)};
	if ((st = warm_open(&s->warm, &warm, e)) != SHARD_OK ||
	    (st = static_count(s->dir, e)) != SHARD_OK)
		return st;
	return resume_load(s, e);
}

static void release(struct server *s)
{
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		peer_free(&s->peer[n]);
	rdma_local_free(s);
	resume_free(s);
	lead_free(s);
	warm_close(&s->warm);
	static_close(&s->dir);
	secret_close(s);
	nodes_free(s);
	health_free(s);
	events_free(s);
	cluster_free(s);
	gone_free(s);
	free(s->scratch.tx.base);
	free(s->scratch.rx.base);
	free(s->later.queue);
}

static void failed_pool_closed(void *arg)
{
	free(arg);
}

/* Undoes what there is of a start, and frees s. */
static void start_failed(struct server *s)
{
	struct worker_pool *pool = s->pool;

	while (!list_empty(&s->models)) {
		struct model *m = list_of(s->models.next, struct model, link);

		m->keep = true;
		model_free(&m);
	}
	conn_listener_close(&s->tcp);
	conn_listener_close(&s->local);
	unmake_socket_folder(s);
	if (s->http != NULL)
		http_close(&s->http, NULL, NULL);
	gpus_close(s, NULL, NULL);
	release(s);
	if (pool != NULL)
		worker_close(&pool, failed_pool_closed, s);
	else
		free(s);
}

static void init_lists(struct server *s)
{
	list_init(&s->conns.openings);
	list_init(&s->conns.sessions);
	list_init(&s->conns.guests);
	list_init(&s->models);
	list_init(&s->makings);
	list_init(&s->calls.open);
	list_init(&s->defines);
	list_init(&s->held);
	list_init(&s->drops);
	list_init(&s->ckpts);
	job_init(s);
	list_init(&s->mr);
	list_init(&s->anew.voided);
	list_init(&s->anew.unmade);
	list_init(&s->anew.making);
	list_init(&s->anew.pinned);
	list_init(&s->histories);
}

/* Reserves room in the budget for data that waits to be sent: a common amount, and beyond it one
 * answer for each connection, and the buffers of TLS. A small budget reserves only a share of
 * itself. A peer that does not take its answers is then stopped sooner. */
static void reserve_queues(struct server *s)
{
	uint64_t places = s->conf->connections_max + s->nodes_nr - 1u;
	uint64_t each = WIRE_PART_BYTES + (s->conf->tls != TLS_OFF ? TLS_CONN_BYTES : 0);
	uint64_t all = SERVER_QUEUED_MAX + places * each;
	uint64_t share = s->budget.total / SERVER_QUEUED_SHARE;

	s->budget.queues = share < all ? share : all;
	s->budget.used = s->budget.queues;
	s->conns.queued.most = SERVER_QUEUED_MAX;
	if (s->conns.queued.most > s->budget.queues / 2)
		s->conns.queued.most = s->budget.queues / 2;
}

static void init_timers(struct server *s)
{
	uv_timer_init(s->loop, &s->clock.core_timer);
	uv_timer_init(s->loop, &s->clock.beat);
	uv_timer_init(s->loop, &s->clock.history_timer);
	s->clock.core_timer.data = s->clock.beat.data = s->clock.history_timer.data = s;
}

/* With mtls both read the same files, and what is wrong with them the first one finds. But what one
 * library takes the other may refuse, and then neither takes it. */
enum shard_status server_reload_secret(struct server *s, struct err *e)
{
	struct secret_fresh fresh;
	enum shard_status st = secret_read(s, &fresh, e);

	if (st == SHARD_OK && s->http != NULL)
		st = http_reload(s->http, e);
	if (st == SHARD_OK)
		secret_take(s, &fresh);
	else
		secret_drop(&fresh);
	return st;
}

void server_reloaded(struct server *s, bool ok)
{
	s->reload.failed = !ok;
	if (ok)
		s->reload.at = time(NULL);
}

/* What runs from now on, and what an operator may not have meant. */
static void log_start(const struct server *s)
{
	const struct config *conf = s->conf;

	log_line(s->log, LOG_LEVEL_INFO,
		 "event=start release=%s incarnation=%lu listen=%s socket=%s isa=%s workers=%u "
		 "memory=%lu",
		 SHARD_RELEASE, (unsigned long)s->incarnation, conf->listen.text, conf->socket,
		 isa_name(s->isa), conf->workers, (unsigned long)conf->memory);
	if (s->http != NULL)
		log_line(s->log, LOG_LEVEL_INFO, "event=http port=%u", http_port(s->http));
	if (conf->unknown[0] != 0)
		log_line(s->log, LOG_LEVEL_WARN, "event=unknown_variables names=%s why=%s",
			 conf->unknown,
			 "nothing reads them: `shardd --help` says how variables are named");
	if (conf->http_beyond_loopback)
		log_line(s->log, LOG_LEVEL_WARN, "event=unauthenticated http=%s why=%s",
			 conf->http.text,
			 "allow_unauthenticated = yes: anyone who reaches this address can see "
			 "models and nodes");
	if (conf->listen_open || conf->nodes_open)
		log_line(s->log, LOG_LEVEL_WARN, "event=unauthenticated listen=%s why=%s",
			 conf->listen.text,
			 conf->nodes_open ? "allow_unauthenticated = yes: anyone who reaches this "
					    "address can read and change models, and do what a "
					    "node does"
					  : "allow_unauthenticated = yes: anyone who reaches this "
					    "address can read and change models");
}

enum shard_status server_init(struct server **out, const struct config *conf, struct log *log,
			      uv_loop_t *loop, struct err *e)
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
	s->budget.total = conf->memory;
	s->started_ns = s->clock.ran_ns = s->clock.core_seen_ns = clock_ns();
	s->reload.started_at = s->reload.at = time(NULL); /* The start has read it. */
	s->clock.core_due = UINT64_MAX;
	s->clock.beat_ns = conf->heartbeat_timeout_ns / 4 < SERVER_BEAT_MAX_NS
				   ? conf->heartbeat_timeout_ns / 4
				   : SERVER_BEAT_MAX_NS;
	s->conns.idle_ns = PLACES_IDLE_NS;
	s->on_beat = on_beat;
	s->events = &dispatch_events;
	s->data = &model_data_events;
	s->watches = watches;
	init_lists(s);
	st = nodes_init(s, e);
	if (st == SHARD_OK)
		st = health_init(s, e);
	if (st == SHARD_OK)
		st = events_init(s, e);
	if (st == SHARD_OK) {
		reserve_queues(s);
		st = start(s, e);
	}
	if (st != SHARD_OK) {
		start_failed(s);
		return st;
	}
	s->stop.pool_open = true;
	init_timers(s);
	log_start(s);
	server_wake(s, 0);
	resume_begin(s);
	lead_start(s);
	ckpt_start(s);
	server_deadline(s);
	*out = s;
	return SHARD_OK;
}

const char *server_failed(const struct server *s)
{
	return s->fault[0] != 0 ? s->fault : NULL;
}

void server_on_fault(struct server *s, void (*cb)(void *arg, const char *why), void *arg)
{
	s->on_fault = cb;
	s->fault_arg = arg;
}

uint32_t server_connected(const struct server *s, uint64_t *ever)
{
	*ever = s->conns.next_session - s->conns.first_session;
	return s->conns.sessions_nr + s->conns.openings_nr;
}

void server_free(struct server **sp)
{
	struct server *s = *sp;

	if (s == NULL)
		return;
	*sp = NULL;
	define_wait_free(s);
	drop_free(s);
	anew_free(s);
	while (!list_empty(&s->makings)) {
		struct model *m = list_of(s->makings.next, struct model, link);

		model_free(&m);
	}
	while (!list_empty(&s->models)) {
		struct model *m = list_of(s->models.next, struct model, link);

		m->keep = true;
		model_free(&m);
	}
	pinned_free(s);
	release(s);
	free(s);
}
