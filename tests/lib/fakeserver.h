/* SPDX-License-Identifier: Apache-2.0 */
/* fakeserver.h: a scripted daemon for tests of the client library. It speaks the trainer's side of
 * the protocol from a thread of the test, with one connection, one model and one rank. Its
 * optimizer is weight -= gradient. Knobs make it refuse, stay silent, end attempts, lose the model
 * or close the connection. */
#ifndef SHARD_TESTS_FAKESERVER_H
#define SHARD_TESTS_FAKESERVER_H

#include "net/shm.h"
#include "net/stream.h"
#include "wire/ops.h"

#include "shard.pb-c.h"

#include <pthread.h>

enum {
	FAKE_ELEMS_MAX = 1 << 18,
	FAKE_MODEL = 7,
	FAKE_BORN = 70,
	FAKE_GENERATION = 3,
	FAKE_TERM = 11,
	FAKE_BLOB_MAX = 64 << 10
};

struct fake_conf { /* Constant while the daemon runs. */
	bool tcp;
	uint32_t chunk_elems; /* 0: 1024. */
	uint32_t rank, world_size;
	uint64_t timeout_ms; /* Of the model. 0: 20 s. */
	uint32_t staleness;  /* The setting max_staleness. */
	uint64_t staleness_after;
};

struct fake_knobs { /* Changed under the lock (fake_lock()). */
	/* Requests of this op are not answered. OP_READY: no result follows a READY. */
	bool mute[OP_NR];
	enum shard_status refuse[OP_NR];
	/* So many requests are refused, and then no more. 0: there is no limit. */
	uint32_t refuse_nr;
	const char *refuse_text;
	const char *waits;    /* The text of WAITS. NULL: it is not answered. */
	bool no_next_attempt; /* No ATTEMPT follows a result. */
	bool skip_nonfinite;  /* The next result is a skip. */
	uint32_t more_ranks;  /* The world of the next ATTEMPT has so many more ranks. */
	double loss_scale;    /* The loss scale of the next ATTEMPT. 0: 8. */
	uint32_t ready_us;    /* How long READY waits before it is handled. */
	bool diverged;
	uint32_t other_model; /* ATTACH says a number of the model that is so much higher. */
	uint32_t other_birth; /* The same of what was drawn when it was defined. */
	const char *run_id;   /* Of HELLO. NULL: it says none. */
};

struct fake {
	struct fake_conf conf;
	struct fake_knobs knobs;
	char address[160], dir[64];
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t moved;
	int listen_fd, command_fd[2];
	bool stop;
	struct stream *stream; /* NULL: no connection. */
	uint32_t accepted, frames[OP_NR];
	struct wire_head last[OP_NR]; /* The newest header of each op. */
	char ready_why[256], abandon_why[256];
	double ready_weight;
	bool ready_skip, ready_has_blob;
	struct fake_blob {
		uint64_t step; /* 0: none. */
		uint32_t bytes;
		unsigned char data[FAKE_BLOB_MAX];
		/* ready_blob is of the newest READY. blob is the committed one of this rank. */
	} ready_blob, blob;
	char save_dir[64], save_tag[64];
	uint32_t sys; /* The sys of an ERROR with SHARD_SYSTEM or SHARD_BUSY. */
	struct {      /* The newest MANAGE. */
		uint32_t action;
		bool force;
		char name[72], key[72], value[72];
	} manage;
	/* The packed spec of the newest DEFINE, with which ATTACH and RESTORE are answered. */
	uint8_t *spec;
	size_t spec_bytes;

	/* The model. */
	uint64_t elems;
	uint32_t chunks_nr;
	enum shard_dtype image, grad;
	bool defined, created, sealed, joined;
	uint64_t step;                      /* The committed step. */
	uint32_t attempt, generation, slot; /* `slot` is the image that has the newest weights. */
	/* The steps that wrote the weights of the step before the committed one, and of the
	 * committed one. */
	uint64_t wrote[2];
	float *master, *moment, *landing, *saved; /* `saved` is the master at the last SAVE. */
	uint64_t landing_first;
	struct shm arena, shared;    /* Over tcp both are private. */
	unsigned char *chunk_pushed; /* One for each chunk. */
	unsigned char *tensor_absent;
	struct {
		uint64_t offset, numel;
	} tensors[64];
	uint32_t tensors_nr;
};

struct fake *fake_start(const struct fake_conf *conf);
void fake_stop(struct fake *f);
void fake_lock(struct fake *f);
void fake_unlock(struct fake *f);
/* Waits until n frames of op have come. The test fails after 10 s. */
void fake_await(struct fake *f, uint16_t op, uint32_t n);
void fake_send(struct fake *f, const struct wire_head *h, const ProtobufCMessage *msg);
struct wire_head fake_head(struct fake *f, uint16_t op); /* Of the attempt in hand. */
void fake_ended(struct fake *f, const char *why);        /* Sends ENDED for the attempt in hand. */
/* Sends ATTEMPT for the next attempt, with conf's rank and world. */
void fake_attempt(struct fake *f, const char *why);
void fake_result(struct fake *f); /* Sends the result of a muted READY. */
void fake_lost(struct fake *f, const char *why);
/* Sends LOST with SHARD_ROLLED_BACK. The master is as saved last, and its step is `step`. The image
 * follows, but no ATTEMPT. */
void fake_rolled_back(struct fake *f, uint64_t step, const char *why);
void fake_progress(struct fake *f, const struct wire_head *request, uint64_t done, uint64_t total);
/* Answers a muted SAVE with Saved or a refusal. */
void fake_saved(struct fake *f, const struct wire_head *request, enum shard_status st,
		const char *text);
/* Sends ERROR, then closes. */
void fake_error(struct fake *f, enum shard_status st, const char *text);
void fake_close(struct fake *f);
void fake_raw(struct fake *f, const void *bytes, size_t nr); /* Writes straight into the socket. */

#endif
