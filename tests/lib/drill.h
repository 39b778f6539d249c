/* SPDX-License-Identifier: Apache-2.0 */
/* drill.h: trainer processes that make one public call at a time, when the test says so. The test
 * sends a command and gets the status, the sentence and the time of return. The gradients are a
 * function of rank, step and element, with small whole numbers, and all weights of a world add up
 * to 4. So sums are exact, and a loop over the history gives the right weights (struct
 * drill_truth). */
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
enum drill_layout { DRILL_SIX_CHUNKS, DRILL_ONE_CHUNK /* Only tensor 1. */, DRILL_HUGE };

enum drill_op {
	DRILL_CONNECT,
	DRILL_DEFINE, /* Uses .layout, .image, .grad and .text (settings). Sets reply.created. */
	DRILL_WRITE,  /* Every weight. */
	DRILL_SEAL,   /* Uses .step. */
	DRILL_ATTACH, /* Uses .text, the model's name. */
	DRILL_DETACH,
	DRILL_JOIN, /* Uses .hint and .timeout_ms. */
	DRILL_WORLD,
	DRILL_LEAVE,
	DRILL_BEGIN,
	/* Pushes tensors [.first, .first + .count), and calls push_none for those in .none. With
	 * .spoil element 0 of tensor .first is .bad. */
	DRILL_PUSH,
	DRILL_COMMIT, /* Sets reply.value to the ticket. */
	DRILL_COMMIT_AND_DIE,
	DRILL_SKIP,
	DRILL_ABANDON,
	DRILL_RESULT,
	DRILL_READ, /* Reads .kind into .shared->w. */
	/* Makes whole steps, over changes of the world, until .step is committed or the world has
	 * .count trainers. It reports once when .notify is committed. */
	DRILL_TRAIN,
};

struct drill_cmd {
	enum drill_op op;
	enum drill_layout layout;
	enum shard_dtype image, grad;
	enum shard_kind kind;
	int32_t hint;
	int64_t timeout_ms; /* 0: 20 s. -1: polls. */
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

struct drill_shared { /* Shared with the test, which reads it between commands. */
	float w[DRILL_NUMEL];
	/* The world size of each step, as DRILL_TRAIN and DRILL_RESULT saw it. 0: they did not see
	 * it. */
	uint32_t world_of[DRILL_STEPS];
	uint32_t skipped[DRILL_STEPS];
};

struct drill {
	pid_t pid;
	int fd;
	bool out; /* A command has no reply yet. */
	enum drill_layout layout;
	struct drill_shared *shared;
	struct drill_reply last;
};

struct drill_yard { /* What a test has running. */
	struct cluster *cluster;
	struct drill t[DRILL_MAX];
};
/* *state is a struct drill_yard. The teardown kills what is left and shows the daemons' logs of a
 * failed test. */
int drill_setup(void **state);
int drill_teardown(void **state);

struct drill *drill_new(struct drill_yard *y, const char *address); /* Connects a new trainer. */
/* Also defines the model and sends the join without waiting for it. The trainer that created the
 * model writes the weights and seals them at step 0. */
struct drill *drill_joining(struct drill_yard *y, const char *address, int hint,
			    const char *settings);
/* Waits until its node has its join. The node's next vote comes after it to the coordinator, so a
 * step or two later it is in. Call it before others train until that happens, because they have
 * only DRILL_STEPS steps. */
void drill_asked(struct drill_yard *y, const struct drill *t);
void drill_define(struct drill *t, const char *settings);
void drill_send(struct drill *t, struct drill_cmd cmd);
struct drill_reply *drill_recv(struct drill *t, int ms); /* The test fails after ms. */
struct drill_reply *drill_do(struct drill *t, struct drill_cmd cmd);
struct drill_reply *drill_expect(struct drill *t, enum shard_status want, struct drill_cmd cmd);
/* drill_recv() with 20 s and an expected status. */
struct drill_reply *drill_get(struct drill *t, enum shard_status want);
uint64_t drill_kill(struct drill *t); /* Sends SIGKILL, and returns the clock_ns() of that. */
void drill_end(struct drill *t);      /* Disconnects the trainer and ends its process. */
#define DRILL(t, want, ...) drill_expect((t), (want), (struct drill_cmd){__VA_ARGS__})
#define DRILL_SEND(t, ...)  drill_send((t), (struct drill_cmd){__VA_ARGS__})
void drill_text(const char *text, const char *part); /* text must contain part. */

struct drill_truth {
	float w[DRILL_NUMEL];
};
float drill_gradient(uint32_t rank, uint64_t step, uint32_t i);
void drill_truth_init(struct drill_truth *r);
void drill_truth_step(struct drill_truth *r, uint64_t step, uint32_t world);
/* Compares the master and the image of step, as t reads them, with r. */
void drill_check(struct drill *t, const struct drill_truth *r, uint64_t step);
/* The same with the truth made from what t saw of steps 1 to step. A step that it did not see had
 * `otherwise` ranks. */
void drill_replay(struct drill *t, uint64_t step, uint32_t otherwise);
/* Appends lines to one node's configuration. */
void drill_conf(struct cluster *c, int node, const char *lines);

#endif
