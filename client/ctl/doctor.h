/* SPDX-License-Identifier: Apache-2.0 */
/* doctor.h: the checks of `shardctl doctor`. Each thing that it looks at has one row and one
 * function, and all of them read the same few sources. */
#ifndef SHARD_CTL_DOCTOR_H
#define SHARD_CTL_DOCTOR_H

#include "ctl/ctl.h"

#include <jansson.h>
#include <stdio.h>

enum doctor_result { DOCTOR_OK, DOCTOR_WARN, DOCTOR_FAIL, DOCTOR_NOT_ASKED, DOCTOR_RESULTS };

struct finding {
	enum doctor_result result;
	char found[1200], remedy[400];
};

struct doctor {
	const struct ctl_options *options;
	const char *root; /* "", or a folder with other proc and sys trees, for tests. */
	/* What shardd --explain --json prints. NULL: shardd refused it or did not run. */
	json_t *config;
	json_t *status; /* The status of the daemon at --address. NULL: none answers. */
	/* What shardd --forget-memory --list --json prints. NULL: it was not asked, or failed. */
	json_t *kept;
	bool silent;              /* A daemon is there, and does not answer in time. */
	bool denied;              /* This user may not connect to the socket at --address. */
	bool default_config;      /* Nobody has named a file of options. */
	char config_text[400];    /* Says why the configuration is wrong. */
	char shardd_version[100]; /* "" where shardd cannot be run. */
	char *unit;               /* `systemctl show` of the service, or "" without systemd. */
};

struct doctor_check {
	const char *name;
	void (*look)(const struct doctor *d, struct finding *f);
	bool needs_config;
};

/* checks.c, checks_disk.c, checks_gpu.c, checks_kept.c, checks_net.c, checks_nodes.c,
 * checks_rdma.c, checks_unit.c */
extern const struct doctor_check doctor_checks[];
extern const size_t doctor_checks_nr;
void doctor_nvme(const struct doctor *d, struct finding *f);
void doctor_gpu(const struct doctor *d, struct finding *f);
void doctor_kept(const struct doctor *d, struct finding *f);
void doctor_port(const struct doctor *d, struct finding *f);
void doctor_http(const struct doctor *d, struct finding *f);
void doctor_tcp(const struct doctor *d, struct finding *f);
void doctor_mtu(const struct doctor *d, struct finding *f);
void doctor_tls(const struct doctor *d, struct finding *f);
void doctor_nodes(const struct doctor *d, struct finding *f);
void doctor_cluster(const struct doctor *d, struct finding *f);
void doctor_ntp(const struct doctor *d, struct finding *f);
void doctor_environment(const struct doctor *d, struct finding *f);
void doctor_rdma(const struct doctor *d, struct finding *f);
void doctor_verbs(const struct doctor *d, struct finding *f);
void doctor_unit(const struct doctor *d, struct finding *f);
void doctor_watchdog(const struct doctor *d, struct finding *f);
void doctor_fd_store(const struct doctor *d, struct finding *f);
void doctor_memlock(const struct doctor *d, struct finding *f);
void doctor_descriptors(const struct doctor *d, struct finding *f);

/* Notes ok, warn or fail with what was found. doctor_remedy() is called after it, if there is a
 * remedy. */
__attribute__((format(printf, 3, 4))) void doctor_found(struct finding *f,
							enum doctor_result result, const char *fmt,
							...);
__attribute__((format(printf, 2, 3))) void doctor_remedy(struct finding *f, const char *fmt, ...);

/* The value of an option, or "" if the configuration has none. */
const char *doctor_value(const struct doctor *d, const char *section, const char *key);
/* What ctl_options.tls says for connections to other nodes, by [net] tls. It may lie in out. */
enum { DOCTOR_HOW_BYTES = 1600 };
const char *doctor_tls_how(const struct doctor *d, char *out, size_t bytes);
/* [daemon] memory in bytes. */
uint64_t doctor_memory(const struct doctor *d);
/* Opens path below root. NULL: it is not there. */
FILE *doctor_open(const struct doctor *d, const char *path);
/* Reads the first line of path. False: there is none. */
bool doctor_line(const struct doctor *d, const char *path, char *line, size_t bytes);

#endif
