/* SPDX-License-Identifier: Apache-2.0 */
/* fakeserver.h: a peer for the client library that speaks the trainer's side of the wire from a
 * thread of the test: one connection, one model, one rank. Its optimizer is weight -= gradient.
 * Knobs make it refuse, stay silent, end attempts, lose the model, close. */
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
	FAKE_GENERATION = 3,
	FAKE_TERM = 11,
	FAKE_BLOB_MAX = 64 << 10
};

struct fake_conf { /* constant while it runs */
	bool tcp;
	uint32_t chunk_elems; /* 0: 1024 */
	uint32_t rank, world_size;
	uint64_t timeout_ms; /* of the model; 0: 20 s */
	uint32_t staleness;  /* max_staleness */
};

struct fake_knobs {       /* changed with the lock: fake_lock() */
	bool mute[OP_NR]; /* requests and READY of this op are not answered */
	enum shard_status refuse[OP_NR];
	uint32_t refuse_nr; /* So many requests, and then no more; 0: until it is said. */
	const char *refuse_text;
	const char *waits;    /* text of WAITS; NULL: not answered */
	bool no_next_attempt; /* after a result */
	bool skip_nonfinite;  /* the next result is a skip */
	uint32_t more_ranks;  /* of the next ATTEMPT's world */
	double loss_scale;    /* of it; 0: 8 */
	uint32_t ready_us;    /* until READY is looked at */
	bool diverged;
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
	struct stream *stream; /* NULL: no connection */
	uint32_t accepted, frames[OP_NR];
	struct wire_head last[OP_NR]; /* newest header of each op */
	char ready_why[256], abandon_why[256];
	double ready_weight;
	bool ready_skip, ready_has_blob;
	struct fake_blob {
		uint64_t step; /* 0: none */
		uint32_t bytes;
		unsigned char data[FAKE_BLOB_MAX];
	} ready_blob, blob; /* of the newest READY; committed, of this rank */
	char save_dir[64], save_tag[64];
	uint32_t sys; /* sys of what it refuses with SHARD_SYSTEM and SHARD_BUSY */
	struct {      /* the newest MANAGE */
		uint32_t action;
		bool force;
		char name[72], key[72], value[72];
	} manage;
	uint8_t *spec; /* packed, of the newest DEFINE: what ATTACH and RESTORE answer with */
	size_t spec_bytes;

	/* the model */
	uint64_t elems;
	uint32_t chunks_nr;
	enum shard_dtype image, grad;
	bool defined, created, sealed, joined;
	uint64_t step;                      /* committed */
	uint32_t attempt, generation, slot; /* slot: image that has the newest weights */
	uint64_t wrote[2]; /* steps that wrote the weights of the step before the committed one, and
			      its own */
	float *master, *moment, *landing, *saved; /* saved: master as of the last SAVE */
	uint64_t landing_first;
	struct shm arena, shared;    /* over tcp: private */
	unsigned char *chunk_pushed; /* [chunks_nr] */
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
/* Waits (at most 10 s, else the test fails) until n frames of op have come. */
void fake_await(struct fake *f, uint16_t op, uint32_t n);
void fake_send(struct fake *f, const struct wire_head *h, const ProtobufCMessage *msg);
struct wire_head fake_head(struct fake *f, uint16_t op); /* of the attempt in hand */
void fake_ended(struct fake *f, const char *why);        /* ENDED for the attempt in hand */
void fake_attempt(struct fake *f,
		  const char *why); /* ATTEMPT for the next attempt, with conf's rank and world */
void fake_result(struct fake *f);   /* for a muted READY */
void fake_lost(struct fake *f, const char *why);
/* LOST with SHARD_ROLLED_BACK: master is as saved last, its step is step; the image follows, no
 * ATTEMPT does. */
void fake_rolled_back(struct fake *f, uint64_t step, const char *why);
void fake_progress(struct fake *f, const struct wire_head *request, uint64_t done, uint64_t total);
/* The answer to a muted SAVE: Saved, or a refusal. */
void fake_saved(struct fake *f, const struct wire_head *request, enum shard_status st,
		const char *text);
void fake_error(struct fake *f, enum shard_status st, const char *text); /* ERROR, then close */
void fake_close(struct fake *f);
void fake_raw(struct fake *f, const void *bytes, size_t nr); /* straight into the socket */

#endif
