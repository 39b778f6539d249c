/* SPDX-License-Identifier: Apache-2.0 */
/* node/state.h: struct server, what one daemon owns. Only files in daemon/ that act on the loop
 * thread include it; what decides (core/) and what computes (optim/, jobs of worker.h) never sees
 * it. */
#ifndef SHARD_STATE_H
#define SHARD_STATE_H

#include "base/arena.h"
#include "base/clock.h"
#include "base/isa.h"
#include "base/list.h"
#include "cluster/static.h"
#include "config/config.h"
#include "core/core.h"
#include "net/auth.h"
#include "net/conn.h"
#include "node/job.h"
#include "server.h"
#include "store/budget.h"
#include "node/worker.h"

#define SERVER_HELLO_NS                                                                            \
	(5 * NS_PER_SEC)      /* a connection that has not said HELLO by then is closed */
#define SERVER_LINGER_MS 200  /* so that an ERROR reaches its peer before the socket closes */
#define SERVER_QUEUE_MAX 4096 /* frames queued on one connection */
#define SERVER_SMALL_ELEMS                                                                         \
	(16u << 10)           /* chunks up to this many elements are computed on the loop */
#define SERVER_CALLS_MAX 4096 /* requests to other nodes that are not answered */
#define SERVER_QUEUED_MAX                                                                          \
	(64ull << 20) /* bytes held to be sent, all connections; beyond it one answer for each of  \
			 them. Less where that is more than half of the budget's share */
#define SERVER_QUEUED_SHARE 16 /* of the budget: at most one part in so many is for them */
#define SESSION_QUEUED_MAX                                                                         \
	(4ull << 20) /* of one session; it is not read until half of them are taken */
#define PEER_QUEUED_MAX (16ull << 20) /* of a link; a READ beyond them is BUSY */

struct peer;
struct session;
struct model;
struct warm;
struct data_events;
struct link_events;
struct model_watch;

struct server {
	const struct config *conf;
	struct log *log;
	uv_loop_t *loop;
	struct static_dir *dir;
	struct budget budget;
	struct rdma_local *rdma; /* RDMA */
	struct auth
		*auth[AUTH_FOR_NR]; /* The keys of [cluster] secret and node_secret; NULL: none. */
	struct worker_pool *pool;
	enum isa isa;
	uint16_t self, nodes_nr, coordinator; /* indices into conf->node_list */
	uint64_t incarnation, start; /* of this member; which start of this node it is: the term of
					a coordinator */
	uint64_t started_ns;
	struct warm *warm; /* memory that outlives the process; NULL: none does */

	struct conn_listener *tcp, *local;
	struct http *http;              /* NULL: off */
	bool http_closing, made_folder; /* made_folder: of the unix socket, by this start */
	struct list openings, sessions, guests, models, makings, calls, defines, held, drops, ckpts,
		mr, voided;
	struct peer *peer[CONFIG_NODES_MAX]; /* NULL: self */
	struct stream_account queued; /* what connections hold to be sent, and answers that other
					 nodes were asked for */
	uint64_t next_session, first_session, idle_ns; /* idle_ns: PLACES_IDLE_NS, but for tests */
	uint32_t next_tag, next_model, openings_nr, sessions_nr, calls_nr,
		asked_nr; /* calls_nr: all that are open; asked_nr: those of sessions */

	uv_timer_t core_timer, beat;
	struct core_out out; /* of the core event in hand */
	bool in_event;       /* what its actions raise waits in later */
	struct server_later {
		struct model *m;
		struct core_event ev; /* without pointers */
	} * later;
	uint32_t later_nr, later_cap; /* in use, and what there is memory for */
	uint32_t later_room;          /* what the models that are there may need */
	struct arena tx, rx;  /* control messages being packed, being read; reset for each */
	size_t scratch_bytes; /* of each */

	struct log_bucket refused_bucket, accept_bucket, auth_bucket;
	uint64_t auth_refused; /* connections whose other end did not prove that it knows the secret
				*/
	uint64_t refused_frames, copied_bytes, past_in_bytes,
		past_out_bytes; /* of connections that are gone; status adds the live ones */
	uint64_t core_due, beat_due, beat_ns;
	const struct link_events *events;                   /* what links tell; given by server.c */
	const struct data_events *data;                     /* what data/ tells; likewise */
	const struct model_watch *const *watches;           /* what models tell; ends with NULL */
	void (*on_beat)(struct server *s, uint64_t now_ns); /* every module; given by server.c */
	uint64_t slept_ns, core_seen_ns; /* core time stands still while this process does not run;
					    the cores' last event in it */
	uint64_t ran_ns;                 /* when this process was last seen to run, by the clock */
	bool stopping, conns_closed, pool_open, stopped_all;
	uint64_t stop_by_ns;
	char stop_why[128],
		stop_text[320]; /* who asked; what that means for the models, in words */
	void (*stopped)(void *arg);
	void *stopped_arg;
	struct job_queue jobs[JOB_KINDS]; /* node/job.c */
	unsigned closing;                 /* handles still to close */
	unsigned persists; /* files of models that a thread writes, or reads for their figures */
	unsigned closing_parts; /* shares of checkpoints, until their timers are closed */
};

/* The scratch arenas hold at least this; called when a model is made, never on the step path. */
enum shard_status server_scratch(struct server *s, size_t bytes, struct err *e);
void server_deadline(struct server *s);             /* some core's deadline may have moved */
uint64_t server_core_ns(struct server *s);          /* now, for the cores; notices a sleep */
void server_wake(struct server *s, uint64_t at_ns); /* a beat no later than this */
void server_alive(struct server *s, uint64_t now);  /* tells who waits for a word; dials */
void server_later(struct server *s, struct model *m, const struct core_event *ev);
void server_run_later(struct server *s);
enum shard_status server_later_room(struct server *s, uint32_t more,
				    struct err *e);      /* when a model is made */
void server_later_less(struct server *s, uint32_t less); /* when it goes */
const char *server_node_name(const struct server *s, uint16_t node);
/* A control body: in the scratch rx, or, of HELLO, AUTH, DEFINE and MODEL (as large as a model has
 * tensors; not on the step path), in *memory, which the caller frees in any case. type NULL: *msg
 * is NULL. */
enum shard_status server_unpack(struct server *s, const struct wire_head *h,
				const ProtobufCMessageDescriptor *type, const void *body,
				const ProtobufCMessage **msg, void **memory, struct err *e);
void server_forget_conn(struct server *s, struct conn *c); /* its counters go into the totals */

#endif
