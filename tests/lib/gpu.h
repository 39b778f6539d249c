/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.h: a trainer's side of a GPU, for tests: device memory and a stream, on the libcuda.so.1 of
 * tests/cuda, which is found by LD_LIBRARY_PATH as the real one is. Failures end the test. */
#ifndef SHARD_TESTS_GPU_H
#define SHARD_TESTS_GPU_H

#include "tests/cuda/fake_cuda.h"

#include <stddef.h>
#include <stdint.h>

struct CUctx_st;
struct CUevent_st;

struct gpu {
#define X(type, name, arguments) type(*name) arguments;
	FAKE_CUDA_CALLS(X)
#undef X
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

/* Starts the program again with the library in its path, unless it is there. First in main(). */
void gpu_path(char **argv);
/* Loads the library and makes a context current in this thread. */
void gpu_open(struct gpu *g);
void gpu_close(struct gpu *g);
void *gpu_alloc(struct gpu *g, size_t bytes);
void gpu_free(struct gpu *g, void *dev);
/* Reads device memory when all that is on the stream is done. */
void gpu_read(struct gpu *g, void *to, const void *dev, size_t bytes);
/* Memory that the driver has pinned: copies from there to the device are asynchronous. */
void *gpu_pinned(struct gpu *g, size_t bytes);
/* As a kernel would: writes device memory from pinned memory, when the stream comes to it. */
void gpu_write(struct gpu *g, void *dev, const void *pinned, size_t bytes);

#endif
