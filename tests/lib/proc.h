/* SPDX-License-Identifier: Apache-2.0 */
/* proc.h: real daemons and real trainer processes for tests/proc. They have a directory of their
 * own, free ports and a static configuration. A daemon is ready when it answers a connection. Every
 * wait has a deadline, and the logs of a failed test are shown. Failures end the test (CHECK or
 * fail_msg). */
#ifndef SHARD_TESTS_PROC_H
#define SHARD_TESTS_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct fdstore;

enum { CLUSTER_NODES_MAX = 6 };
enum cluster_warm {
	CLUSTER_SYSTEMD,
	CLUSTER_TMPFS,
	CLUSTER_WARM_NR
}; /* Where memory outlives a daemon. */

struct cluster_node {
	pid_t pid; /* 0: not running. */
	uint16_t port;
	char name[8]; /* "a", "b" and so on. Node a coordinates. */
	char conf[128], socket[128], log[128], state[128];
	char unix_address[140], tcp_address[64];
	struct fdstore *store; /* Its service manager. NULL: none. */
	bool killed;           /* The last line that it logged before may end anywhere. */
};

struct cluster {
	char dir[64], warm_dir[64]; /* warm_dir is on a tmpfs, or empty if none was made. */
	const char *daemon;         /* NULL: shardd. */
	int nodes_nr, voters_nr;    /* voters_nr: see cluster_voters(). */
	struct cutter *cutter;      /* Between the nodes. NULL: they are linked directly. */
	struct cluster_node node[CLUSTER_NODES_MAX];
};

/* Writes the configurations. model has lines for [model], and extra has further lines for the end
 * of the file ("[net]\n..."). Both may be NULL. */
struct cluster *cluster_make(int nodes_nr, const char *model, const char *extra);
/* Spawns all nodes, waits until they answer, and calls cluster_voters(). */
void cluster_up(struct cluster *c);
/* Where a quorum elects, waits until all nodes vote that can. Nodes get their votes one after the
 * other, and while two have one, nobody is elected when one of the two is killed. */
void cluster_voters(struct cluster *c);
/* cluster_make() and cluster_up(). */
struct cluster *cluster_start(int nodes_nr, const char *model, const char *extra);
/* Called after cluster_make(). Every link then leads through a cutter. */
void cluster_between(struct cluster *c);
/* While pass is false, no node hears the vote of another, so that all nodes stay PREPARED when all
 * ranks have committed. A node repeats its vote. Only after cluster_between(). */
void cluster_votes(struct cluster *c, bool pass);
/* Called after cluster_make(). Restarts are then warm. Without it they are not. */
void cluster_warm(struct cluster *c, enum cluster_warm how);
/* Adds a node that is in no list, and joins by that one. extra as above. Returns its number; it is
 * not running yet. */
int cluster_joiner(struct cluster *c, int by, const char *extra);
void cluster_spawn(struct cluster *c, int node); /* Appends to its log. */
/* Waits until a trainer can connect, at most 10 s. */
void cluster_ready(struct cluster *c, int node);
void cluster_signal(struct cluster *c, int node, int signal);
void cluster_kill(struct cluster *c, int node); /* Sends SIGKILL and waits for the end. */
/* Returns its wait status. The test fails after ms. */
int cluster_wait(struct cluster *c, int node, int ms);
/* Sends SIGTERM to all nodes that run, which must exit with 0 within 10 s. All that a node logged
 * must parse (lib/logfmt.h), unless it was killed. Frees c. */
void cluster_stop(struct cluster *c);
void cluster_done(struct cluster **c); /* The same, and sets *c to NULL. */
/* For the teardown of a test that did not come to its end. *c may be NULL. */
void cluster_put_away(struct cluster **c);
char *cluster_log(struct cluster *c, int node); /* The caller frees the text. */
/* How often it was logged so far. */
uint32_t cluster_logged(struct cluster *c, int node, const char *part);
/* Each of these waits for at most 20 s, and then the test fails. A daemon does not answer all that
 * a trainer sends. So a test that stops or kills a node at a certain point waits until the log or
 * the status of the node shows that point. The phase is that of the only model's step: "staging",
 * "prepared" or "applying". */
void cluster_wait_log(struct cluster *c, int node, const char *part, uint32_t times);
void cluster_says(struct cluster *c, int node, const char *part); /* Its status, as JSON. */
void cluster_phase(struct cluster *c, int node, const char *phase);
/* Prints the logs to stderr, for the teardown of a failed test. */
void cluster_dump(struct cluster *c);

pid_t proc_fork(
	int (*fn)(void *arg),
	void *arg); /* The child runs fn and _exits with what it returns. It dies with the test. */
int proc_wait(pid_t pid, int ms); /* The wait status, or -1 if it still runs after ms. */
void proc_expect_exit(pid_t pid, int code, int ms);
/* After SIGSTOP it returns when no thread of the process runs any more, which takes a while on a
 * busy machine. */
void proc_signal(pid_t pid, int signal);
uint64_t proc_cpu_ns(pid_t pid); /* User and system time of all threads so far. */
/* The path of a program of the same build, for example "shardd". */
void proc_beside(char *path, size_t bytes, const char *name);
/* Writes a lost_timeout of the heartbeat_timeout in `lines`, or of 5s without one. */
void proc_lost_timeout(FILE *f, const char *lines);
/* Most tests are about models of which each chunk is on one node, and this says so in a file for
 * two nodes or more. A test that is not names replicas in its own lines, which may be NULL. In them
 * "; replicas" leaves the default. */
void proc_one_copy(FILE *f, const char *lines, const char *more);
/* The same of the node that coordinates, for three nodes or more: it is the first one, unless the
 * test's own lines name membership. */
void proc_first_leads(FILE *f, const char *lines);

#endif
