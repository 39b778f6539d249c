/* SPDX-License-Identifier: Apache-2.0 */
/* hand_gpu.h: devices and threads that a test moves by hand, below the tier whose chunks are in the
 * memory of devices, and a reference in main memory. It has the functions of gpu/device.h, so only
 * tests that name it in cuda.mk are linked with it. What is not as it should be fails the test. */
#ifndef SHARD_TESTS_HAND_GPU_H
#define SHARD_TESTS_HAND_GPU_H

#include "lib/handexec.h"
#include "store/store_impl.h"
#include "store/tier_gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

/* A chunk has several tiles, so that a kill may leave it updated in part. */
enum { CE = 4 * TILE_ELEMS, CHUNKS = 21, JOBS = 128, PINS = 12, DEVICES = 3 };

struct gpu {
	uint8_t *memory;
	uint64_t bytes, direct; /* direct: where direct slots begin, as an address. */
	struct gpu_job job[JOBS];
	uint32_t nr;
	bool lost;
};

extern struct gpu gpus[DEVICES]; /* The tier has no other way to them. */

struct bench {
	struct layout *layout;
	uint16_t owner[CHUNKS];
	struct store *store;
	struct hand hand;
	struct tier *tier;
	uint32_t devices;
	uint16_t nodes; /* Of the store. This one is the first. */
	struct gpu_mem mem[DEVICES], direct[DEVICES];
	struct tiles tiles;
	struct tile_undo undo[4];
	_Atomic uint8_t used[4];
	uint32_t seed, done[CHUNKS], held, lost;
	char why[256];
	bool often_full; /* The queue of the threads. */
	uint64_t stamp;
	struct optim_args args;
	uint8_t *zero;
	float grad[CHUNKS * CE];
};

/* Copies, and does not end the job. */
void hand_copies(struct gpu *g, const struct gpu_job *job);
/* The i-th job under way is done, or fails. */
void hand_runs(struct gpu *g, uint32_t i);
uint32_t bench_draw(struct bench *b, uint32_t of);
/* The tier over memory and words as they are. */
enum shard_status bench_open(struct bench *b, struct err *e);
/* Jobs of devices under way. */
uint32_t bench_flying(const struct bench *b);
/* Until nothing is under way. */
void bench_quiet(struct bench *b);
void bench_pinned(struct tier_pin *p);
void bench_pin(struct bench *b, struct tier_pin *p, uint32_t chunk, bool writes);
float bench_weight(uint32_t i); /* Of the i-th element of all, after bench_fill(). */
void bench_fill(struct bench *b);
void bench_gradients(struct bench *b, uint32_t step);
enum shard_status bench_apply(struct bench *b, uint32_t c);
struct tier_apply bench_update(struct bench *b, uint32_t c);
void bench_applied(void *owner, uint64_t tag, const struct tier_result *r);
/* Chunks that are done, of those that were handed out. */
uint32_t bench_done(const struct bench *b);
void bench_step_reference(struct bench *ref, uint32_t step);
struct bench *bench_reference(void);
void bench_reference_free(struct bench *ref);
/* Both have the same state and image. */
void bench_same(struct bench *b, struct bench *ref);
/* A step, until so many chunks are done. pins: somebody pins chunks meanwhile. */
void bench_step_until(struct bench *b, uint32_t nr, uint32_t until, bool pins);
void bench_step(struct bench *b, uint32_t nr);
/* share: of chunks on devices, in percent. */
struct bench *bench_new(uint32_t share, uint32_t devices);
/* The same with direct slots of several nodes. */
struct bench *bench_new_direct(uint32_t devices, uint16_t nodes);
/* The process ends with jobs under way, of which some were done. Another one opens the tier. */
void bench_ends(struct bench *b);
void bench_free(struct bench *b);
void bench_something(struct bench *b); /* Happens. */
/* All of it, what lies between segments, too. */
void bench_fill_chunk(struct store *st, const struct layout *l, uint32_t c);

#endif
