/* SPDX-License-Identifier: Apache-2.0 */
/* config.h: what an operator set: defaults < file < SHARD_* environment < command line. The options are rows of one table
 * (config_options.c); file, environment, command line, --help and `shardctl config check` all read it. */
#ifndef SHARD_CONFIG_H
#define SHARD_CONFIG_H

#include "base/log.h"
#include "base/status.h"
#include "net/address.h"
#include "net/shm.h"

#include <stdio.h>

#define CONFIG_NODES_MAX     64
#define CONFIG_MODELS_MAX    256 /* sections that begin with "model" */
#define CONFIG_NAME_BYTES    65  /* node, model and group names: [a-z0-9._-]{1,64} */
#define CONFIG_PATH_BYTES    512
#define CONFIG_WHERE_BYTES   160
#define CONFIG_UNKNOWN_BYTES 300

enum config_warm { CONFIG_WARM_AUTO, CONFIG_WARM_SYSTEMD, CONFIG_WARM_TMPFS, CONFIG_WARM_OFF };
enum config_membership { CONFIG_MEMBERSHIP_STATIC };
enum config_transport { CONFIG_TRANSPORT_AUTO, CONFIG_TRANSPORT_TCP, CONFIG_TRANSPORT_RDMA };

struct config_node {
	char name[CONFIG_NAME_BYTES];
	struct conn_address address;
	char where[CONFIG_WHERE_BYTES]; /* "shardd.conf:12" */
};

struct config_model {                    /* one [model ...] section; its keys are settings.c's */
	char name[CONFIG_NAME_BYTES];    /* empty: defaults of all models */
	char group[CONFIG_NAME_BYTES];   /* empty: the model itself */
	char *settings;                  /* "key=value key=value", each checked where it stood */
	struct settings_origin *origins; /* of each of these words */
	uint32_t words_nr;
	char where[CONFIG_WHERE_BYTES]; /* of the section's first line */
};

struct config {
	/* [daemon] */
	char node[CONFIG_NAME_BYTES];
	struct conn_address listen, http; /* without a host: off */
	char socket[CONFIG_PATH_BYTES];
	uint32_t socket_mode;
	char state[CONFIG_PATH_BYTES];
	uint64_t memory; /* bytes for all models of this node */
	enum shm_huge huge_pages;
	uint32_t workers;
	enum log_level log_level;
	bool allow_unauthenticated;
	uint32_t connections_max;
	uint64_t linger_ns;       /* 0: never ends by itself */
	uint64_t stop_timeout_ns; /* a stop waits so long for a step that is voted for or decided */
	enum config_warm warm;    /* where memory outlives the process: park.h */
	char warm_dir[CONFIG_PATH_BYTES];
	/* [net] */
	enum config_transport transport;
	uint32_t connections; /* TCP connections per peer */
	bool body_checksum;
	char rdma_device[CONFIG_NAME_BYTES]; /* "auto": any */
	int32_t rdma_gid_index;              /* -1: the best one */
	uint32_t rdma_queue_pairs;           /* per peer */
	uint32_t rdma_busy_poll_us;
	bool rdma_checksum;
	/* [cluster] */
	char run_id[CONFIG_NAME_BYTES];
	char secret[CONFIG_PATH_BYTES]; /* a file; empty: none */
	enum config_membership membership;
	uint64_t heartbeat_timeout_ns, step_timeout_ns;
	/* [nodes]: in the order of the file; the first coordinates. Without the section: this node alone. */
	uint32_t nodes_nr, self;
	struct config_node node_list[CONFIG_NODES_MAX];
	/* [model ...] */
	uint32_t models_nr;
	struct config_model *model;
	/* what start has to say */
	bool listen_open, http_open;        /* beyond loopback without authentication: warn at each start */
	char unknown[CONFIG_UNKNOWN_BYTES]; /* SHARD_* variables that nothing reads: "SHARD_WORKER, SHARD_X" */
};

struct config_args {            /* what a command line and an environment may bring */
	const char *file;       /* NULL: /etc/shardd/shardd.conf if it is there */
	const char *const *set; /* "section.key=value" from --set and the other options, in order */
	uint32_t set_nr;
	const char *const *environ_; /* NULL-terminated "SHARD_LOG_LEVEL=debug" ...; NULL: none */
};

/* All or nothing: on failure there is nothing to free and e names file:line or option, key, value and the choices. */
enum shard_status config_load(struct config *c, const struct config_args *args, struct err *e);
/* The same from memory, for tests and fuzzing; name stands for the file in texts. */
enum shard_status config_load_text(struct config *c, const char *name, const char *text, size_t bytes, struct err *e);
void config_free(struct config *c);

struct config_changes { /* "daemon.log_level, [model]"; empty: none */
	char taken[CONFIG_UNKNOWN_BYTES], left[CONFIG_UNKNOWN_BYTES];
};
/* Reads all of it again. Failure: c stays as it is. Else c has the options that may change while a daemon runs, and [model ...], for
 * models that are defined from now on; what else differs is left for the next start. */
enum shard_status config_reload(struct config *c, const struct config_args *args, struct config_changes *what, struct err *e);

/* Settings of a section for a model: [model] (name "", group ""), [model "name"], [model "name" group "g"]. NULL: none. */
const struct config_model *config_model(const struct config *c, const char *name, const char *group);
void config_help(FILE *out);                          /* the option table, for --help */
void config_print(const struct config *c, FILE *out); /* effective values, in the file's syntax */
/* Loads, and prints each option with its value and who set it: "default", "host name", FILE:LINE, a variable, "command line". */
enum shard_status config_explain(const struct config_args *args, bool json, FILE *out, struct err *e);

/* What must be equal on all nodes: run_id, node list, connections between them. fn is called once per key, in a fixed order. */
void config_shared(const struct config *c, void (*fn)(void *arg, const char *key, const char *value), void *arg);
uint64_t config_hash(const struct config *c);

#endif
