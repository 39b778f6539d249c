/* SPDX-License-Identifier: Apache-2.0 */
/* node/state.h: struct server, everything that one daemon owns. Only files of daemon/ that run on
 * the loop thread include it. The core (core/) and the kernels (optim/, jobs of worker.h) never see
 * it. */
#ifndef SHARD_STATE_H
#define SHARD_STATE_H

#include "base/clock.h"
#include "base/isa.h"
#include "cluster/static.h"
#include "config/config.h"
#include "net/conn.h"
#include "node/job.h"
#include "node/parts.h"
#include "node/worker.h"
#include "server.h"
#include "store/budget.h"

struct peer;
struct session;
struct model;
struct warm;
struct data_events;
struct link_events;
struct model_watch;
struct lead;
struct nodes;
struct definitions;
struct gone;

struct server {
	/* Owner: server.c. Nothing of it changes once the daemon runs. */
	const struct config *conf;
	struct log *log;
	uv_loop_t *loop;
	struct static_dir *dir;
	enum isa isa;
	uint16_t self;
	/* Of this node as a member. A warm restart keeps it. */
	uint64_t incarnation;
	/* start counts every start of this node, and is the term of a coordinator. */
	uint64_t start, started_ns;
	/* Owner: control/move.c. This node shall hold no chunks. draining: it is being written. */
	bool drained, draining;
	struct conn_listener *tcp, *local;
	struct http *http;                        /* NULL: off. */
	struct cluster_view *cluster;             /* Owner: obs/cluster.c. NULL: nobody asked. */
	bool made_folder;                         /* This start made the unix socket's folder. */
	const struct link_events *events;         /* Events of links. */
	const struct data_events *data;           /* Events of data/. */
	const struct model_watch *const *watches; /* Events of models. Ends with NULL. */
	void (*on_beat)(struct server *s, uint64_t now_ns);
	/* Why this process must end: model/odd.c or model/lead.c says so, whoever is first. Empty:
	 * it need not. on_fault() is called once then, and NULL if nobody wants to know. */
	char fault[400];
	void (*on_fault)(void *arg, const char *why);
	void *fault_arg;

	/* Owner: link/nodes.c. All nodes, by number. The list only grows. */
	struct config_node node[CONFIG_NODES_MAX];
	uint16_t nodes_nr;
	struct nodes *nodes;
	struct health *health;       /* Owner: obs/health.c. */
	struct events *events_kept;  /* Owner: obs/events.c. */
	struct gone *gone;           /* Owner: link/gone.c, also of gone_nodes: */
	uint64_t gone_nodes;         /* A bit for each node that was drained while it was away. */
	struct server_admits admits; /* Owner: control/admit.c. */

	struct budget budget;     /* Owner: store/budget.c. */
	struct warm *warm;        /* Memory that outlives the process; NULL: there is none. */
	struct worker_pool *pool; /* Owner: node/worker.c. */
	struct job_queue jobs[JOB_KINDS];      /* Owner: node/job.c. */
	struct rdma_local *rdma;               /* The RDMA device. Owner: link/rdma_local.c. */
	struct gpu *gpu[GPU_DEVICES_MAX];      /* Owner: node/gpus.c, from the start to the stop. */
	uint32_t gpus_nr, gpus_lost, gpus_out; /* lost: bits of those told of. out: not opened. */
	struct server_gpus_missing gpus_missing; /* Owner: node/gpus.c. */
	struct server_conns conns;
	struct server_past past;
	struct peer *peer[CONFIG_NODES_MAX]; /* Owner: link/peer.c. NULL: this node. */
	struct server_calls calls;
	struct server_secret secret;
	struct server_reload reload;
	struct server_clock clock;
	struct server_later later;
	struct server_scratch scratch;
	struct server_stopping stop;

	/* Owner: model/lead.c. The node that coordinates, as far as this one knows. It may change
	 * if there are elections. */
	uint16_t coordinator;
	struct lead *lead;               /* NULL: the first node coordinates, always. */
	struct definitions *definitions; /* model/definitions.c. NULL: as above. */
	uint64_t term; /* In which it coordinates or did, and models are made from now on. */
	/* Makes the file of a model durable, and calls done later. NULL: the state folder. */
	void (*save_file)(struct server *s, uint32_t model, const void *file, size_t bytes,
			  void (*done)(void *arg, const struct err *e), void *arg);
	/* The number of the newest value of the membership source that this node has. */
	uint64_t member_seq;

	/* Models by what is done with them, each list with its owner. */
	struct list models;    /* model/make.c: those with memory. */
	struct list makings;   /* model/make.c: their memory is being made. */
	struct list defines;   /* control/define_wait.c: definitions that wait for room. */
	struct list held;      /* control/held.c: requests that wait for memory to come back. */
	struct list drops;     /* control/drop.c: their memory is about to be given back. */
	struct list ckpts;     /* ckpt/ckpt.c: saves and restores. */
	struct list mr;        /* data/mr.c: memory that is registered for RDMA. */
	struct list histories; /* obs/history.c: one for each model, and for some that are gone. */
	struct server_anew anew; /* Models that lose their copy here while the daemon runs. */
	uint32_t next_model;     /* control/define.c and model/resume.c: the next id. */

	/* What a stop waits for, counted by who begins it. */
	unsigned persists; /* Jobs in threads on files of models, or on checkpoints for status. */
	unsigned closing_parts; /* Shares of checkpoints whose timers are not closed yet. */
};

/* Which node coordinates, and whether it is this one. Ask each time, because it is one node for all
 * models but need not be the same for ever. */
static inline uint16_t server_coordinator(const struct server *s)
{
	return s->coordinator;
}

/* Was the node drained while it was away (link/gone.h)? */
static inline bool server_gone(const struct server *s, uint16_t node)
{
	return s->gone_nodes >> node & 1;
}

/* The share of a model that this node shall hold. 0: none. */
static inline uint32_t server_capacity(const struct server *s)
{
	return s->drained || server_gone(s, s->self) ? 0 : s->conf->capacity;
}

static inline bool server_leads(const struct server *s)
{
	return s->self == s->coordinator;
}

/* Makes the scratch arenas hold at least so many bytes. Called when a model is made. */
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
const char *members_name(const struct server *s, uint16_t node);
/* Unpacks a control body into the scratch arena rx. HELLO, AUTH, DEFINE and MODEL, which may be
 * large, go into *memory, which the caller frees in any case. type NULL: *msg is NULL. */
enum shard_status server_unpack(struct server *s, const struct wire_head *h,
				const ProtobufCMessageDescriptor *type, const void *body,
				const ProtobufCMessage **msg, void **memory, struct err *e);
void server_forget_conn(struct server *s, struct conn *c); /* Adds its counters to the totals. */

#endif
