/* SPDX-License-Identifier: Apache-2.0 */
/* proc.h: real daemons and real trainer processes for tests/proc: a directory of their own, free
 * ports, a static configuration, readiness by connecting, deadlines everywhere, and the logs of a
 * test that failed. Failures end the test (CHECK or fail_msg). */
#ifndef SHARD_TESTS_PROC_H
#define SHARD_TESTS_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct fdstore;

enum { CLUSTER_NODES_MAX = 4 };
enum cluster_warm {
	CLUSTER_SYSTEMD,
	CLUSTER_TMPFS,
	CLUSTER_WARM_NR
}; /* where memory outlives a daemon */

struct cluster_node {
	pid_t pid; /* 0: not running */
	uint16_t port;
	char name[8]; /* "a", "b" ...; a coordinates */
	char conf[128], socket[128], log[128], state[128];
	char unix_address[140], tcp_address[64];
	struct fdstore *store; /* its service manager; NULL: none */
};

struct cluster {
	char dir[64], warm_dir[64]; /* warm_dir: on a tmpfs; empty: none was made */
	const char *daemon;         /* NULL: shardd */
	int nodes_nr;
	struct cluster_node node[CLUSTER_NODES_MAX];
};

/* Writes configurations; model: lines for [model], extra: further lines at the end of the file
 * ("[net]\n..."); both may be NULL. */
struct cluster *cluster_make(int nodes_nr, const char *model, const char *extra);
struct cluster *cluster_start(int nodes_nr, const char *model,
			      const char *extra); /* and spawns all, waits until they answer */
void cluster_warm(struct cluster *c, enum cluster_warm how); /* after cluster_make(): restarts are
								warm. Without it they are not */
void cluster_spawn(struct cluster *c, int node);             /* appends to its log */
void cluster_ready(struct cluster *c, int node);             /* a trainer can connect; 10 s */
void cluster_signal(struct cluster *c, int node, int signal);
void cluster_kill(struct cluster *c, int node); /* -9, and gone */
int cluster_wait(struct cluster *c, int node,
		 int ms);             /* its wait status; fails the test after ms */
void cluster_stop(struct cluster *c); /* SIGTERM to all that run: each must exit with 0 within 10 s;
					 frees c */
void cluster_done(struct cluster **c);     /* the same, and *c is NULL */
void cluster_put_away(struct cluster **c); /* for a teardown: of a test that did not come to its
					      end; *c may be NULL */
char *cluster_log(struct cluster *c, int node);                         /* malloc'ed text */
uint32_t cluster_logged(struct cluster *c, int node, const char *part); /* how often so far */
/* Each of these waits for 20 s, then the test fails. What a trainer tells its daemon is not
 * answered, so a test that stops or kills a node at a certain point waits until the node is there:
 * its log or its status says so. The phase is that of the only model's step: "staging",
 * "prepared", "applying". */
void cluster_wait_log(struct cluster *c, int node, const char *part, uint32_t times);
void cluster_says(struct cluster *c, int node, const char *part); /* its status, as JSON */
void cluster_phase(struct cluster *c, int node, const char *phase);
void cluster_dump(struct cluster *c); /* logs to stderr, for a failed test's teardown */

pid_t proc_fork(
	int (*fn)(void *arg),
	void *arg); /* a child that runs fn and _exits with what it returns; dies with the test */
int proc_wait(pid_t pid, int ms); /* wait status; -1 and still running after ms */
void proc_expect_exit(pid_t pid, int code, int ms);
uint64_t proc_cpu_ns(pid_t pid); /* user and system time so far, all threads */
void proc_beside(char *path, size_t bytes,
		 const char *name);                 /* a program of the same build: "shardd" */
void proc_lost_timeout(FILE *f, const char *lines); /* as those lines of a configuration say
						       heartbeat_timeout; default: 5s */

#endif
