/* SPDX-License-Identifier: Apache-2.0 */
/* etcds.h: a real etcd cluster of one to three members on loopback, for tests. Its data is in a
 * temporary folder. Each member is a process of its own that dies with the test. Failures end the
 * test. */
#ifndef SHARD_TESTS_ETCDS_H
#define SHARD_TESTS_ETCDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { ETCDS_MAX = 3 };

struct etcds_member {
	pid_t pid; /* 0: not running. */
	uint16_t client, peer;
};

struct etcds {
	int nr;
	char dir[64], endpoints[256];
	const char *token;    /* Of the cluster; its number depends on it. */
	uint64_t quota_bytes; /* 0: etcd's own. */
	bool tls;             /* Clients speak https. The authority is the file "cert" in dir. */
	struct etcds_member member[ETCDS_MAX];
};

/* False, after saying so: etcd or etcdctl is not installed, and the test should be skipped. */
bool etcds_here(void);
/* Starts all members and waits until they answer. */
void etcds_make(struct etcds *e, int nr, uint64_t quota_bytes);
/* One member with a certificate, which may not answer yet. False: openssl is not installed. */
bool etcds_make_tls(struct etcds *e);
void etcds_start(struct etcds *e, int i);
void etcds_ready(struct etcds *e, int i);
void etcds_signal(struct etcds *e, int i, int signal);
void etcds_kill(struct etcds *e, int i); /* SIGKILL, and the end of the process. */
void etcds_wait_end(struct etcds *e, int i);
void etcds_wipe(struct etcds *e, int i);            /* Of a member that does not run. */
void etcds_room(struct etcds *e, int i, bool room); /* false: its disk is full. */
/* Asks a member by HTTP. Returns the status, 0 for none. text may be NULL. */
int etcds_ask(struct etcds *e, int i, const char *path, const char *body, char *text, size_t bytes);
uint64_t etcds_revision(struct etcds *e);
/* As an operator does it: a snapshot of member 0, and a new folder made of that. */
void etcds_save(struct etcds *e);
void etcds_restore(struct etcds *e);
void etcds_end(struct etcds *e); /* Kills all, and removes the folder. */

#endif
