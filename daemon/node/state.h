/* SPDX-License-Identifier: Apache-2.0 */
/* node/state.h: struct server, everything that one daemon owns. Only files of daemon/ that run on
 * the loop thread include it. The core (core/) and the kernels (optim/, jobs of worker.h) never see
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
	(5 * NS_PER_SEC)      /* A connection whose handshake takes longer than that is closed. */
#define SERVER_LINGER_MS 200  /* For an ERROR to arrive before the close. */
#define SERVER_QUEUE_MAX 4096 /* Frames that one connection may queue. */
#define SERVER_SMALL_ELEMS                                                                         \
	(16u << 10)           /* Chunks with up to this many elements are computed on the loop. */
#define SERVER_CALLS_MAX 4096 /* Open requests to other nodes. */
#define SERVER_QUEUED_MAX                                                                          \
	(64ull << 20) /* Queued bytes of all connections. Beyond it each connection may queue one  \
			 answer. Less where half of the budget's share is less. */
#define SERVER_QUEUED_SHARE 16 /* At most 1/16 of the budget is for queued bytes. */
#define SESSION_QUEUED_MAX                                                                         \
	(4ull << 20) /* Queued bytes of one session. Beyond it nothing is read from the session    \
			until half of them are sent. */
#define PEER_QUEUED_MAX (16ull << 20) /* Queued bytes of a link. A READ beyond that gets BUSY. */

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
	struct rdma_local *rdma; /* The RDMA device. */
	struct auth
		*auth[AUTH_FOR_NR]; /* The keys of [cluster] secret and node_secret; NULL: none. */
	struct worker_pool *pool;
	enum isa isa;
	uint16_t self, nodes_nr, coordinator; /* Indices into conf->node_list. */
	uint64_t incarnation,
		start; /* incarnation: of this node as a member, which a warm restart keeps. start:
			  counts every start of this node, and is the term of a coordinator. */
	uint64_t started_ns;
	struct warm *warm; /* Memory that outlives the process; NULL: there is none. */

	struct conn_listener *tcp, *local;
	struct http *http;              /* NULL: off. */
	bool http_closing, made_folder; /* made_folder: this start made the unix socket's folder. */
	struct list openings, sessions, guests, models, makings, calls, defines, held, drops, ckpts,
		mr, voided;
	struct peer *peer[CONFIG_NODES_MAX]; /* NULL: this node. */
	struct stream_account queued; /* Queued bytes of all connections, and expected bytes of
					 answers that other nodes were asked for. */
	uint64_t next_session, first_session,
		idle_ns; /* idle_ns: PLACES_IDLE_NS, except in tests. */
	uint32_t next_tag, next_model, openings_nr, sessions_nr, calls_nr,
		asked_nr; /* calls_nr: all open calls. asked_nr: those of sessions. */

	uv_timer_t core_timer, beat;
	struct core_out out; /* Actions of the core event that is being handled. */
	bool in_event;       /* A core event is being handled. Events that its actions raise wait in
				`later`. */
	struct server_later {
		struct model *m;
		struct core_event ev; /* Holds no pointers. */
	} * later;
	uint32_t later_nr, later_cap; /* Entries in use, and allocated. */
	uint32_t later_room;          /* Entries that the existing models may need. */
	struct arena tx, rx;  /* Scratch memory to pack and to unpack control messages. Reset for
				 each message. */
	size_t scratch_bytes; /* Of each of the two. */

	struct log_bucket refused_bucket, accept_bucket, auth_bucket;
	uint64_t auth_refused; /* Connections refused because the other end did not prove that it
				  knows the secret. */
	uint64_t refused_frames, copied_bytes, past_in_bytes,
		past_out_bytes; /* Counters of closed connections. status adds those of open ones.
				 */
	uint64_t core_due, beat_due, beat_ns;
	const struct link_events *events;                   /* Events of links. Set by server.c. */
	const struct data_events *data;                     /* Events of data/. Set by server.c. */
	const struct model_watch *const *watches;           /* Events of models. Ends with NULL. */
	void (*on_beat)(struct server *s, uint64_t now_ns); /* Set by server.c. */
	uint64_t slept_ns, core_seen_ns; /* Core time stands still while this process does not run.
					    slept_ns: how far it is behind the clock. core_seen_ns:
					    core time of the last core event. */
	uint64_t ran_ns;                 /* When this process last ran, by the clock. */
	uint64_t beat_cpu_ns;            /* Processor time of the loop's thread at the last beat. */
	bool stopping, conns_closed, pool_open, stopped_all;
	uint64_t stop_by_ns;
	char stop_why[128], stop_text[320]; /* Why this daemon stops, and what that means for the
					       models, in words. */
	void (*stopped)(void *arg);
	void *stopped_arg;
	struct job_queue jobs[JOB_KINDS]; /* Owned by node/job.c. */
	unsigned closing;                 /* Handles that are still to be closed. */
	unsigned persists;      /* Jobs in threads that write or remove files of models, or read
				   checkpoints for status. */
	unsigned closing_parts; /* Shares of checkpoints whose timers are not closed yet. */
};

/* Makes the scratch arenas hold at least this many bytes. Called when a model is made, never on the
 * step path. */
enum shard_status server_scratch(struct server *s, size_t bytes, struct err *e);
void server_deadline(struct server *s);    /* A core's deadline may have moved. */
uint64_t server_core_ns(struct server *s); /* Core time now. Also notices that the process slept. */
void server_wake(struct server *s, uint64_t at_ns); /* Asks for a beat no later than at_ns. */
void server_alive(struct server *s, uint64_t now);  /* Sends PINGs, and dials. */
void server_later(struct server *s, struct model *m, const struct core_event *ev);
void server_run_later(struct server *s);
enum shard_status server_later_room(struct server *s, uint32_t more,
				    struct err *e);      /* When a model is made. */
void server_later_less(struct server *s, uint32_t less); /* When it is freed. */
const char *server_node_name(const struct server *s, uint16_t node);
/* Unpacks a control body into the scratch arena rx. HELLO, AUTH, DEFINE and MODEL are unpacked into
 * *memory instead, because they may be large and are not on the step path. The caller frees *memory
 * in any case. type NULL: *msg is NULL. */
enum shard_status server_unpack(struct server *s, const struct wire_head *h,
				const ProtobufCMessageDescriptor *type, const void *body,
				const ProtobufCMessage **msg, void **memory, struct err *e);
void server_forget_conn(struct server *s, struct conn *c); /* Adds its counters to the totals. */

#endif
