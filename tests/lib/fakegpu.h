/* SPDX-License-Identifier: Apache-2.0 */
/* fakegpu.h: a trainer's side of a GPU, for tests: device memory and a stream, on the libcuda.so.1
 * of tests/cuda, which is found by LD_LIBRARY_PATH as the real one is. Failures end the test. */
#ifndef SHARD_TESTS_FAKEGPU_H
#define SHARD_TESTS_FAKEGPU_H

#include "tests/cuda/fake_cuda.h"

#include <stddef.h>
#include <stdint.h>

struct CUctx_st;
struct CUevent_st;

struct fakegpu {
#define X(type, name, arguments) type(*name) arguments;
	FAKE_CUDA_CALLS(X)
#undef X
	int (*init)(unsigned flags);
	int (*retain)(struct CUctx_st **ctx, int device);
	int (*alloc)(uint64_t *p, size_t bytes);
	int (*free)(uint64_t p);
	int (*host_alloc)(void **p, size_t bytes, unsigned flags);
	int (*host_free)(void *p);
	int (*host_register)(void *p, size_t bytes, unsigned flags);
	int (*host_unregister)(void *p);
	int (*to_host)(void *to, uint64_t from, size_t bytes, struct CUstream_st *stream);
	int (*to_device)(uint64_t to, const void *from, size_t bytes, struct CUstream_st *stream);
	int (*sync)(struct CUstream_st *stream);
	int (*stream_create)(struct CUstream_st **stream, unsigned flags);
	int (*stream_destroy)(struct CUstream_st *stream);
	int (*set_current)(struct CUctx_st *ctx);
	int (*release)(int device);
	struct CUctx_st *ctx;
	struct CUstream_st *stream; /* The trainer's. */
};

/* Starts the program again with the library in its path, unless it is there. First in main(). It
 * also gives the daemon's room gpu something for kernels (SHARDD_GPU_KERNELS). */
void fakegpu_path(char **argv);
/* Makes a file by which the processes that are started with its path in FAKE_CUDA_CONTROL have
 * calls of the driver fail, and maps it. */
struct fake_control *fakegpu_control(const char *path);
void fakegpu_control_end(struct fake_control **c);
/* From now on the nth call fails with that error (struct fake_control). 0: none, but all that match
 * are counted. call NULL: any. */
void fakegpu_arm(struct fake_control *c, const char *call, uint32_t nth, int error);
void fakegpu_disarm(struct fake_control *c);
void fakegpu_let_go(struct fake_control *c); /* What hangs goes on. */
/* Loads the library. */
void fakegpu_find(struct fakegpu *g);
/* The same, and makes a context current in this thread. */
void fakegpu_open(struct fakegpu *g);
void fakegpu_close(struct fakegpu *g);
void *fakegpu_alloc(struct fakegpu *g, size_t bytes);
void fakegpu_free(struct fakegpu *g, void *dev);
/* Reads device memory when all that is on the stream is done. */
void fakegpu_read(struct fakegpu *g, void *to, const void *dev, size_t bytes);
/* Memory that the driver has pinned: copies from there to the device are asynchronous. */
void *fakegpu_pinned(struct fakegpu *g, size_t bytes);
/* As a kernel would: writes device memory from pinned memory, when the stream comes to it. */
void fakegpu_write(struct fakegpu *g, void *dev, const void *pinned, size_t bytes);

#endif
