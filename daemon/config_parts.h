/* SPDX-License-Identifier: Apache-2.0 */
/* config_parts.h: what config.c (merging, contradictions), config_file.c (the file) and config_options.c (the table) share. */
#ifndef SHARD_CONFIG_PARTS_H
#define SHARD_CONFIG_PARTS_H

#include "config.h"

#include <stddef.h>

enum config_type {
	CONFIG_NAME,
	CONFIG_PATH,
	CONFIG_ADDRESS,
	CONFIG_ADDRESS_OR_OFF, /* off: no host, the text is "off" */
	CONFIG_BYTES_OR_AUTO,
	CONFIG_DURATION,
	CONFIG_COUNT,
	CONFIG_COUNT_OR_AUTO, /* auto is 0 until config_finish() */
	CONFIG_INDEX_OR_AUTO, /* from 0 on; auto is -1, and stays so */
	CONFIG_BOOL,
	CONFIG_OCTAL,
	CONFIG_CHOICE, /* an int-sized enum: the index of the word */
};

enum config_key {
	CONFIG_DAEMON_NODE,
	CONFIG_DAEMON_LISTEN,
	CONFIG_DAEMON_HTTP,
	CONFIG_DAEMON_SOCKET,
	CONFIG_DAEMON_SOCKET_MODE,
	CONFIG_DAEMON_STATE,
	CONFIG_DAEMON_MEMORY,
	CONFIG_DAEMON_HUGE_PAGES,
	CONFIG_DAEMON_WORKERS,
	CONFIG_DAEMON_LOG_LEVEL,
	CONFIG_DAEMON_ALLOW_UNAUTHENTICATED,
	CONFIG_DAEMON_CONNECTIONS_MAX,
	CONFIG_DAEMON_LINGER,
	CONFIG_DAEMON_STOP_TIMEOUT,
	CONFIG_DAEMON_WARM_RESTART,
	CONFIG_DAEMON_WARM_DIR,
	CONFIG_NET_TRANSPORT,
	CONFIG_NET_CONNECTIONS,
	CONFIG_NET_BODY_CHECKSUM,
	CONFIG_NET_RDMA_DEVICE,
	CONFIG_NET_RDMA_GID_INDEX,
	CONFIG_NET_RDMA_QUEUE_PAIRS,
	CONFIG_NET_RDMA_CHECKSUM,
	CONFIG_NET_RDMA_BUSY_POLL_US,
	CONFIG_CLUSTER_RUN_ID,
	CONFIG_CLUSTER_SECRET,
	CONFIG_CLUSTER_MEMBERSHIP,
	CONFIG_CLUSTER_HEARTBEAT_TIMEOUT,
	CONFIG_CLUSTER_STEP_TIMEOUT,
	CONFIG_KEY_NR,
};

struct config_option {
	const char *section, *key;
	enum config_type type;
	size_t offset;            /* in struct config */
	const char *fallback;     /* parsed like any other value; "" : worked out in config_finish() */
	uint64_t min, max;        /* counts, and durations in ns */
	const char *const *words; /* choices, NULL-terminated */
	const char *refused;      /* a word that is a choice of other builds: said so */
	const char *help;
	bool reloadable; /* taken by config_reload(); others wait for the next start */
};

const struct config_option *config_option(enum config_key key);
enum config_key config_find(const char *section, const char *key); /* CONFIG_KEY_NR: none */
/* Parses into c. e says what is wrong and what may be chosen, without section, key and place. */
enum shard_status config_set(struct config *c, enum config_key key, const char *value, struct err *e);
void config_get(const struct config *c, enum config_key key, char *out, size_t bytes);

struct config_loader {
	struct config *c;
	char where[CONFIG_KEY_NR][CONFIG_WHERE_BYTES]; /* who set an option last */
	uint32_t file_line[CONFIG_KEY_NR];             /* 0: not in the file */
	/* NULL, or told of each key of a [model ...] section that was taken, in the order of reading */
	void (*note)(void *arg, const char *where, const char *section, const char *key);
	void *note_arg;
};

/* config_load() with the loader kept; free l->c on success. */
enum shard_status config_load_into(struct config_loader *l, const struct config_args *args, struct err *e);
/* `model "name" group "group"` with either quoted part absent. False: not of this form. */
bool config_model_section(const char *section, char name[CONFIG_NAME_BYTES], char group[CONFIG_NAME_BYTES]);

/* One key, from anywhere: section is "daemon", "nodes", "model \"x\" group \"g\"" ...; line 0: not from a file. */
enum shard_status config_put(struct config_loader *l, const char *where, uint32_t line, const char *section, const char *key,
			     const char *value, struct err *e);
enum shard_status config_check_section(const char *where, const char *section, struct err *e);
enum shard_status config_read(struct config_loader *l, const char *name, const char *text, size_t bytes, struct err *e);
enum shard_status config_finish(struct config_loader *l, struct err *e);

#endif
