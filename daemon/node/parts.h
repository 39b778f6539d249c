/* SPDX-License-Identifier: Apache-2.0 */
/* node/parts.h: the parts of struct server (node/state.h). Each has an owner, which alone writes it
 * and checks it after each change. The others read it. */
#ifndef SHARD_NODE_PARTS_H
#define SHARD_NODE_PARTS_H

#include "base/arena.h"
#include "base/list.h"
#include "core/core.h"
#include "gpu/uuid.h"
#include "net/auth.h"
#include "net/conn.h"

#include <time.h>
#include <uv.h>

struct gpu; /* gpu/device.h */

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

struct model;

/* Connections. Owner: link/accept.c, session.c and places.c. */
struct server_conns {
	struct list openings; /* Connections whose handshake is not over. */
	struct list sessions;
	struct list guests; /* The users and addresses that they come from (link/places.h). */
	uint32_t openings_nr, sessions_nr;
	uint64_t first_session, next_session;
	uint64_t idle_ns; /* PLACES_IDLE_NS, except in tests. */
	/* Queued bytes of all connections, and expected bytes of answers that other nodes were
	 * asked for. */
	struct stream_account queued;
	uint64_t refused; /* Connections for which there was no place. */
	struct log_bucket refused_bucket, accept_bucket;
};

/* Counters of closed connections. status adds those of open ones. Owner: node/node.c. */
struct server_past {
	uint64_t refused_frames, copied_bytes, in_bytes, out_bytes;
};

/* When the configuration was read. Owner: server.c. */
struct server_reload {
	time_t started_at, at; /* By the start, and by the last reload that took it. */
	bool failed;           /* A later reload did not take it. */
};

/* Requests to other nodes that wait for an answer. Owner: link/call.c. */
struct server_calls {
	struct list open;
	uint32_t nr;       /* Of `open`. */
	uint32_t asked_nr; /* Those of `open` that sessions asked for. Owner: link/places.c. */
	uint32_t next_tag;
};

/* The keys of [cluster] secret and node_secret. Owner: link/secret.c. */
struct server_secret {
	struct auth *auth[AUTH_FOR_NR]; /* NULL: none. */
	struct tls *tls;                /* For new connections over TCP. NULL: [net] tls = off. */
	struct log_bucket bucket;
	struct log_fold fold;
	/* Connections refused because the other end did not prove that it knows the secret. */
	uint64_t refused;
	uint64_t last_ns; /* When the last one was. 0: none was. */
	char last_why[ERR_TEXT_BYTES];
};

/* Nodes that ask to be taken in. Owner: control/admit.c. */
struct server_admits {
	bool adding; /* On the coordinator: one is being made durable. */
	bool asking; /* The coordinator is asked about .asked. */
	char asked[CONFIG_NAME_BYTES];
	/* Why .name was refused. It is told when that node asks again. SHARD_OK: nobody was. */
	struct err refused;
	char name[CONFIG_NAME_BYTES];
};

/* The beat, and core time. Core time stands still while this process does not run. Owner:
 * node/node.c for the beat, model/model.c for core time. */
struct server_clock {
	uv_timer_t beat, core_timer;
	uv_timer_t history_timer; /* obs/history.c: the next time that one is written. */
	uint64_t beat_ns, beat_due;
	uint64_t beat_cpu_ns; /* Processor time of the loop's thread at the last beat. */
	uint64_t core_due;
	uint64_t slept_ns;     /* How far core time is behind the clock. */
	uint64_t core_seen_ns; /* Core time of the last core event. */
	uint64_t ran_ns;       /* When this process last ran, by the clock. */
	uint64_t end_ns; /* Owner: model/odd.c. When the process ends, not in order. 0: it need not.
			  */
};

/* Core events that the actions of a core event raise. They wait until it is handled. Owner:
 * model/model.c. */
struct server_later {
	struct core_out out; /* Actions of the core event that is being handled. */
	bool in_event;       /* A core event is being handled. */
	struct later_event {
		struct model *m;
		struct core_event ev; /* Holds no pointers. */
	} * queue;
	uint32_t nr, cap; /* Entries in use, and allocated. */
	uint32_t room;    /* Entries that the existing models may need. */
};

/* Memory to pack and to unpack control messages. Reset for each message. Owner: node/node.c. */
struct server_scratch {
	struct arena tx, rx;
	size_t bytes; /* Of each of the two. */
};

struct server_gpus_missing { /* Owner: node/gpus.c. */
	uint32_t gone;       /* Those that the driver does not show, though they were named. */
	char why[512];       /* Of the first named one that is not used. */
};

struct server_anew {        /* Models of which this node has lost its copy. */
	struct list voided; /* model/voided.c: what became of it. */
	struct list unmade; /* control/unmade.c: those that wait to be made again. */
	struct list making; /* control/anew.c: of those, the one that is just being made. */
	struct list pinned; /* model/pinned.c: memory that drivers do not let go of. */
};

/* How far a stop has come. Owner: stop.c. */
struct server_stopping {
	bool on, conns_closed, pool_open, http_closing, all;
	uint64_t by_ns;
	char why[400];  /* Why this daemon stops. */
	char text[640]; /* What that means for the models, in words. */
	void (*done)(void *arg);
	void *arg;
	unsigned closing;      /* Handles that are still to be closed. */
	unsigned gpus_closing; /* Devices, too. */
};

/* CHECK the invariants of the parts. Their owners call them after each change. */
void server_conns_check(const struct server_conns *c);
void server_calls_check(const struct server_calls *c);
void server_clock_check(const struct server_clock *c);
void server_later_check(const struct server_later *l);
void server_stopping_check(const struct server_stopping *stop);

#endif
