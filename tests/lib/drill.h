/* SPDX-License-Identifier: Apache-2.0 */
/* drill.h: trainer processes that make one public call at a time, when the test says so: a command
 * goes in, the status, the sentence and the time of return come back. Their gradients are a pure
 * function of rank, step and element, small whole numbers, and all weights of a world add up to 4:
 * so sums are exact and the right weights are a loop over the history (struct drill_truth). */
#ifndef SHARD_TESTS_DRILL_H
#define SHARD_TESTS_DRILL_H

#include "lib/proc.h"

#include "shard.h"

enum {
	DRILL_TENSORS = 4,
	DRILL_NUMEL = 2368 + 50 + 3200 + 1,
	DRILL_MAX = 12,
	DRILL_STEPS = 512,
	DRILL_TEXT = 512
};
enum drill_layout { DRILL_SIX_CHUNKS, DRILL_ONE_CHUNK /* only tensor 1 */, DRILL_HUGE };

enum drill_op {
	DRILL_CONNECT,
	DRILL_DEFINE, /* .layout .image .grad .text: settings; reply.created */
	DRILL_WRITE,  /* every weight */
	DRILL_SEAL,   /* .step */
	DRILL_ATTACH, /* .text: the model's name */
	DRILL_DETACH,
	DRILL_JOIN, /* .hint .timeout_ms */
	DRILL_WORLD,
	DRILL_LEAVE,
	DRILL_BEGIN,
	DRILL_PUSH,   /* tensors [.first, .first + .count) except .none, which are push_none'd; .bad
			 at element 0 of .first if .spoil */
	DRILL_COMMIT, /* reply.value: ticket */
	DRILL_COMMIT_AND_DIE,
	DRILL_SKIP,
	DRILL_ABANDON,
	DRILL_RESULT,
	DRILL_READ,  /* .kind: into .shared->w */
	DRILL_TRAIN, /* whole steps, over changes of the world, until .step is committed, or until
		      * the world is of .count; reports once when .notify is committed */
};

struct drill_cmd {
	enum drill_op op;
	enum drill_layout layout;
	enum shard_dtype image, grad;
	enum shard_kind kind;
	int32_t hint;
	int64_t timeout_ms; /* 0: 20 s; -1: polls */
	uint32_t first, count, none;
	uint64_t step, notify;
	float bad;
	bool spoil;
	char text[DRILL_TEXT];
};

struct drill_reply {
	enum shard_status rc;
	char error[DRILL_TEXT], why[DRILL_TEXT];
	uint64_t began_ns, ended_ns, value;
	int created;
	struct shard_world world;
	struct shard_step step;
	struct shard_result result;
};

struct drill_shared { /* with the test; read it between commands */
	float w[DRILL_NUMEL];
	uint32_t world_of[DRILL_STEPS]; /* by step: size, as DRILL_TRAIN and DRILL_RESULT saw it; 0:
					   did not */
	uint32_t skipped[DRILL_STEPS];
};

struct drill {
	pid_t pid;
	int fd;
	bool out; /* a command has no reply yet */
	enum drill_layout layout;
	struct drill_shared *shared;
	struct drill_reply last;
};

struct drill_yard { /* what a test has running */
	struct cluster *cluster;
	struct drill t[DRILL_MAX];
};
/* *state: struct drill_yard. Teardown kills what is left and shows the daemons' logs of a failed
 * test. */
int drill_setup(void **state);
int drill_teardown(void **state);

struct drill *drill_new(struct drill_yard *y, const char *address); /* connected */
/* And defined (whoever is told created writes and seals at 0), and its join sent, not awaited. */
struct drill *drill_joining(struct drill_yard *y, const char *address, int hint,
			    const char *settings);
void drill_define(struct drill *t, const char *settings);
void drill_send(struct drill *t, struct drill_cmd cmd);
struct drill_reply *drill_recv(struct drill *t, int ms); /* the test fails after ms */
struct drill_reply *drill_do(struct drill *t, struct drill_cmd cmd);
struct drill_reply *drill_expect(struct drill *t, enum shard_status want, struct drill_cmd cmd);
struct drill_reply *drill_get(struct drill *t,
			      enum shard_status want); /* drill_recv with 20 s and a status */
uint64_t drill_kill(struct drill *t);                  /* -9; when, in clock_ns() */
void drill_end(struct drill *t);                       /* disconnects and ends */
#define DRILL(t, want, ...) drill_expect((t), (want), (struct drill_cmd){__VA_ARGS__})
#define DRILL_SEND(t, ...)  drill_send((t), (struct drill_cmd){__VA_ARGS__})
void drill_text(const char *text, const char *part); /* part must be in it */

struct drill_truth {
	float w[DRILL_NUMEL];
};
float drill_gradient(uint32_t rank, uint64_t step, uint32_t i);
void drill_truth_init(struct drill_truth *r);
void drill_truth_step(struct drill_truth *r, uint64_t step, uint32_t world);
void drill_check(struct drill *t, const struct drill_truth *r,
		 uint64_t step); /* master and image of step, as t reads them */
/* The same from what t saw of steps 1 to step; a step that it did not see is of `otherwise` ranks.
 */
void drill_replay(struct drill *t, uint64_t step, uint32_t otherwise);
void drill_conf(struct cluster *c, int node,
		const char *lines); /* appended to one node's configuration */

/* A process between the nodes: [nodes] leads to it, it leads to node 0. Call between cluster_make()
 * and cluster_spawn(). */
struct drill_proxy {
	pid_t pid;
	int fd;
};
void drill_proxy_start(struct drill_proxy *p, struct cluster *c);
void drill_proxy_cut(struct drill_proxy *p); /* closes what is open; new connections pass */
void drill_proxy_deaf(struct drill_proxy *p, bool deaf); /* forwards nothing, closes nothing */
void drill_proxy_stop(struct drill_proxy *p);

#endif
