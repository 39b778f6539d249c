/* SPDX-License-Identifier: Apache-2.0 */
/* driver.h: the functions of libcuda.so.1, found at run time. The declarations are our own, of the
 * driver's documented ABI, so that building needs no CUDA. Names with _v2 are those that cuda.h has
 * chosen since CUDA 4.0 (cuDevicePrimaryCtxRelease: 11.0) and that the library keeps. */
#ifndef SHARD_CUDA_DRIVER_H
#define SHARD_CUDA_DRIVER_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;   /* CUresult */
typedef int cu_device;   /* CUdevice */
typedef uint64_t cu_ptr; /* CUdeviceptr */
typedef struct CUstream_st *cu_stream;
typedef struct CUctx_st *cu_context;
typedef struct CUevent_st *cu_event;

enum {
	CU_SUCCESS = 0,
	CU_INVALID_VALUE = 1,
	CU_OUT_OF_MEMORY = 2,
	CU_STUB_LIBRARY = 34,
	CU_NEWER_DRIVER = 36,
	CU_NO_DEVICE = 100,
	CU_INVALID_DEVICE = 101,
	CU_INVALID_HANDLE = 400,
	CU_NOT_READY = 600,
	CU_ALREADY_REGISTERED = 712,
	CU_NOT_PERMITTED = 800,
	CU_NOT_SUPPORTED = 801,

	CU_READ_ONLY_REGISTER = 113, /* CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED */
	CU_REGISTER_PORTABLE = 1,    /* CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTALLOC_PORTABLE */
	CU_REGISTER_READ_ONLY = 8,   /* CU_MEMHOSTREGISTER_READ_ONLY */
	CU_STREAM_OWN = 1,           /* CU_STREAM_NON_BLOCKING */
	CU_EVENT_NO_TIMING = 2,      /* CU_EVENT_DISABLE_TIMING */
	CU_CAPTURE_NONE = 0,         /* CU_STREAM_CAPTURE_STATUS_NONE */
};

#define DRIVER_CALLS(X)                                                                            \
	X(init, cuInit, (unsigned flags))                                                          \
	X(version, cuDriverGetVersion, (int *version))                                             \
	X(error_name, cuGetErrorName, (cu_result rc, const char **name))                           \
	X(device_get, cuDeviceGet, (cu_device * device, int ordinal))                              \
	X(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, cu_device device))   \
	X(primary_retain, cuDevicePrimaryCtxRetain, (cu_context * ctx, cu_device device))          \
	X(primary_release, cuDevicePrimaryCtxRelease_v2, (cu_device device))                       \
	X(ctx_get, cuCtxGetCurrent, (cu_context * ctx))                                            \
	X(ctx_device, cuCtxGetDevice, (cu_device * device))                                        \
	X(ctx_push, cuCtxPushCurrent_v2, (cu_context ctx))                                         \
	X(ctx_pop, cuCtxPopCurrent_v2, (cu_context * ctx))                                         \
	X(host_register, cuMemHostRegister_v2, (void *p, size_t bytes, unsigned flags))            \
	X(host_unregister, cuMemHostUnregister, (void *p))                                         \
	X(host_alloc, cuMemHostAlloc, (void **p, size_t bytes, unsigned flags))                    \
	X(host_free, cuMemFreeHost, (void *p))                                                     \
	X(to_host, cuMemcpyDtoHAsync_v2, (void *to, cu_ptr from, size_t bytes, cu_stream stream))  \
	X(to_device, cuMemcpyHtoDAsync_v2,                                                         \
	  (cu_ptr to, const void *from, size_t bytes, cu_stream stream))                           \
	X(stream_create, cuStreamCreate, (cu_stream * stream, unsigned flags))                     \
	X(stream_destroy, cuStreamDestroy_v2, (cu_stream stream))                                  \
	X(stream_query, cuStreamQuery, (cu_stream stream))                                         \
	X(stream_wait, cuStreamWaitEvent, (cu_stream stream, cu_event event, unsigned flags))      \
	X(stream_capturing, cuStreamIsCapturing, (cu_stream stream, int *status))                  \
	X(event_create, cuEventCreate, (cu_event * event, unsigned flags))                         \
	X(event_record, cuEventRecord, (cu_event event, cu_stream stream))                         \
	X(event_query, cuEventQuery, (cu_event event))                                             \
	X(event_destroy, cuEventDestroy_v2, (cu_event event))

struct driver {
#define X(name, symbol, arguments) cu_result(*name) arguments;
	DRIVER_CALLS(X)
#undef X
};

/* Loads the library and initializes it. The library stays loaded for the life of the process: CUDA
 * does not survive its own unloading. SHARD_UNSUPPORTED: there is none, or it lacks a function. */
enum shard_status driver_open(struct driver *d, struct err *e);
/* Turns an error of a call into a status and one sentence: what failed, the error's name, and what
 * to do. call is the name of the function. what says of what, as "of the arena", or is empty. */
enum shard_status driver_fail(const struct driver *d, struct err *e, cu_result rc, const char *call,
			      const char *what);
/* Whether the error ends the context: nothing works in this process any more. */
int driver_fatal(cu_result rc);

#endif
