/* SPDX-License-Identifier: Apache-2.0 */
/* config.h: what an operator set. The command line wins over SHARD_* variables of the environment,
 * these win over files, and files win over defaults. Of two files the later one wins. All options
 * are rows of one table (options.c), and README.md in this folder lists them. */
#ifndef SHARD_CONFIG_CONFIG_H
#define SHARD_CONFIG_CONFIG_H

#include "base/log.h"
#include "base/status.h"
#include "net/address.h"
#include "net/shm.h"
#include "net/tls.h"

#include <stdio.h>

#define CONFIG_NODES_MAX     64
#define CONFIG_QUORUM_NODES  3   /* From so many nodes on the coordinator is elected by default. */
#define CONFIG_MODELS_MAX    256 /* Sections that begin with "model". */
#define CONFIG_WORKERS_MAX   256
#define CONFIG_CAPACITY_MAX  (1u << 20)
#define CONFIG_NAME_BYTES    65 /* Of the name of a node, a model or a group, with its end. */
#define CONFIG_PATH_BYTES    512
#define CONFIG_WHERE_BYTES   160
#define CONFIG_CHECKPOINTS   "checkpoints" /* The folder in `state` where anybody may save. */
#define CONFIG_UNKNOWN_BYTES 300

enum config_warm { CONFIG_WARM_AUTO, CONFIG_WARM_SYSTEMD, CONFIG_WARM_TMPFS, CONFIG_WARM_OFF };
enum config_membership {
	CONFIG_MEMBERSHIP_STATIC,
	CONFIG_MEMBERSHIP_QUORUM,
	CONFIG_MEMBERSHIP_ETCD,
};
enum config_transport { CONFIG_TRANSPORT_AUTO, CONFIG_TRANSPORT_TCP, CONFIG_TRANSPORT_RDMA };

struct config_node {
	char name[CONFIG_NAME_BYTES];
	struct conn_address address;
	char where[CONFIG_WHERE_BYTES]; /* Where it was set, as in "shardd.conf:12". */
};

struct config_model {                    /* One [model ...] section. */
	char name[CONFIG_NAME_BYTES];    /* Empty: these are defaults of all models. */
	char group[CONFIG_NAME_BYTES];   /* Empty: the section is about the model itself. */
	char *settings;                  /* "key=value key=value", each checked where it stood. */
	struct settings_origin *origins; /* Where each of these words was set. */
	uint32_t words_nr;
	char where[CONFIG_WHERE_BYTES]; /* Where the section's first line is. */
};

/* The options' meanings stand in options.c; here is what a row cannot say. */
struct config {
	/* [daemon] */
	char node[CONFIG_NAME_BYTES];
	struct conn_address listen, http;   /* Without a host: off. */
	char http_allow[CONFIG_PATH_BYTES]; /* "10.0.0.0/8, fd00::/8"; empty: everybody. */
	bool http_private_models;
	char socket[CONFIG_PATH_BYTES];
	uint32_t socket_mode;
	char state[CONFIG_PATH_BYTES];
	uint64_t history;            /* In bytes, of each model. 0: none is kept. */
	uint64_t memory, gpu_memory; /* In bytes. gpu_memory: of each; 0: as is free. */
	enum shm_huge huge_pages;
	uint32_t capacity; /* Of this node, beside those of the others. 0: it holds nothing. */
	uint32_t workers;
	enum log_level log_level;
	bool allow_unauthenticated, prune_copied_only;
	uint32_t connections_max;
	uint64_t linger_ns; /* 0: the daemon never ends by itself. */
	uint64_t stop_timeout_ns, checkpoint_hook_timeout_ns;
	enum config_warm warm;
	char warm_dir[CONFIG_PATH_BYTES], nvme_dir[CONFIG_PATH_BYTES], gpu[CONFIG_PATH_BYTES];
	char checkpoint_roots[CONFIG_PATH_BYTES], checkpoint_hook[CONFIG_PATH_BYTES]; /* "/a:/b" */
	/* [net] */
	enum config_transport transport;
	uint32_t connections;
	bool body_checksum;
	char rdma_device[CONFIG_NAME_BYTES]; /* "auto": any. */
	int32_t rdma_gid_index;              /* -1: the best one. */
	uint32_t rdma_queue_pairs, rdma_busy_poll_us;
	bool rdma_checksum, rdma_gpu, rdma_with_tls, tls_kernel;
	enum tls_mode tls;
	char tls_cert[CONFIG_PATH_BYTES], tls_key[CONFIG_PATH_BYTES], tls_ca[CONFIG_PATH_BYTES];
	/* [cluster] */
	char run_id[CONFIG_NAME_BYTES];
	char secret[CONFIG_PATH_BYTES], node_secret[CONFIG_PATH_BYTES]; /* Empty: none. */
	struct conn_address join;                                       /* Without a host: off. */
	/* join is set, and this node is in no list of nodes yet. It is alone in node_list. */
	bool joins, listen_chosen; /* listen_chosen: somebody has set `listen`. */
	uint64_t set; /* A bit for each option, in the order of the table, that somebody has set. */
	bool trust_remote_root;
	enum config_membership membership;
	bool membership_chosen; /* Nobody has set it, and there are nodes enough for an election. */
	uint64_t election_timeout_ns;
	char etcd_endpoints[CONFIG_PATH_BYTES]; /* "http://a:2379,http://b:2379" */
	char etcd_ca[CONFIG_PATH_BYTES], etcd_cert[CONFIG_PATH_BYTES], etcd_key[CONFIG_PATH_BYTES];
	uint64_t heartbeat_timeout_ns, lost_timeout_ns, step_timeout_ns;
	/* [nodes], in the order of the file: the first one coordinates. Without the section this
	 * node is alone in the list. */
	uint32_t nodes_nr, self;
	struct config_node node_list[CONFIG_NODES_MAX];
	uint32_t kept_nr; /* How many of them config_args.cluster lists. */
	/* [model ...] */
	uint32_t models_nr;
	struct config_model *model;
	/* What the daemon has to warn of when it starts. */
	bool listen_open, nodes_open; /* Trainers and tools, or other nodes prove nothing. */
	bool http_beyond_loopback;    /* HTTP answers everybody who reaches it from elsewhere. */
	bool http_tls, http_certs;    /* HTTP speaks TLS, and wants a certificate from elsewhere. */
	/* SHARD_* variables that nothing reads, as in "SHARD_WORKER, SHARD_X". */
	char unknown[CONFIG_UNKNOWN_BYTES];
};

struct config_args {            /* What a command line and an environment may bring. */
	const char *file;       /* NULL: /etc/shardd/shardd.conf if it is there. */
	uint64_t pipe_ns;       /* How long file may take if it is a pipe. 0: it may be none. */
	const char *const *set; /* "section.key=value" from --set and other options, in order. */
	uint32_t set_nr;
	const char *const *environ_; /* "SHARD_LOG_LEVEL=debug" and so on, then NULL; NULL: none. */
	const char *folder; /* Its *.conf come next. NULL: conf.d beside /etc/shardd/shardd.conf. */
	void (*wrong)(void *arg, const char *text); /* Hears errors after which loading goes on. */
	void *wrong_arg;
	/* What config_cluster() wrote, NULL: nothing did: the nodes that have joined since [nodes]
	 * was written, and what counts where nobody has set a shared option. */
	const char *cluster;
};

/* After a failure there is nothing to free, and e names place, key, value and choices. */
enum shard_status config_load(struct config *c, const struct config_args *args, struct err *e);
/* The same for a file's text in memory. Texts call it name. */
enum shard_status config_load_text(struct config *c, const char *name, const char *text,
				   size_t bytes, struct err *e);
void config_free(struct config *c);

struct config_changes { /* As in "daemon.log_level, [model]"; empty: none. */
	char taken[CONFIG_UNKNOWN_BYTES], left[CONFIG_UNKNOWN_BYTES];
};
/* Loads everything again. After a failure c is as it was. Else c has the new values of the options
 * that may change while a daemon runs, and the new [model ...] sections, which count for models
 * that are defined from now on. What else differs waits for the next start. */
enum shard_status config_reload(struct config *c, const struct config_args *args,
				struct config_changes *what, struct err *e);

/* The section [model] (name "", group ""), [model "name"] or [model "name" group "g"]; NULL: there
 * is none. */
const struct config_model *config_model(const struct config *c, const char *name,
					const char *group);
void config_help(FILE *out);                          /* All keys, for --help. */
void config_manual(FILE *out);                        /* All keys, as README.md. */
void config_print(const struct config *c, FILE *out); /* Effective values, in the file's syntax. */
/* Loads, and prints each option with its value and who set it, as "default" or FILE:LINE. */
enum shard_status config_explain(const struct config_args *args, bool json, FILE *out,
				 struct err *e);

/* Calls fn once for each thing that must be equal on all nodes, in a fixed order. */
void config_shared(const struct config *c,
		   void (*fn)(void *arg, const char *key, const char *value), void *arg);
uint64_t config_hash(const struct config *c); /* Of all of these. */
uint64_t config_machine_memory(void);         /* In bytes, or the limit of the cgroup if less. */

#endif
