/* SPDX-License-Identifier: Apache-2.0 */
/* driver.h: the functions of libcuda.so.1, found at run time. The declarations are our own, of the
 * driver's documented ABI, so that building needs no CUDA. Names with _v2 are those that cuda.h has
 * chosen since CUDA 4.0 (cuDevicePrimaryCtxRelease, cuDeviceGetUuid: 11.0 and later) and that the
 * library keeps. libshard-cuda and the daemon need different functions, and so neither of them is
 * refused because an old driver lacks a function of the other. */
#ifndef SHARD_CUDA_DRIVER_H
#define SHARD_CUDA_DRIVER_H

#include "base/status.h"
#include "cuda/calls.h"

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;      /* CUresult */
typedef int cu_device;      /* CUdevice */
typedef uint64_t cu_ptr;    /* CUdeviceptr */
typedef uint64_t cu_handle; /* CUmemGenericAllocationHandle */
typedef struct CUstream_st *cu_stream;
typedef struct CUctx_st *cu_context;
typedef struct CUevent_st *cu_event;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;

enum {
	CU_SUCCESS = 0,
	CU_INVALID_VALUE = 1,
	CU_OUT_OF_MEMORY = 2,
	CU_STUB_LIBRARY = 34,
	CU_NEWER_DRIVER = 36,
	CU_NO_DEVICE = 100,
	CU_INVALID_DEVICE = 101,
	CU_NO_BINARY = 209,
	CU_OLDER_PTX = 222,
	CU_INVALID_HANDLE = 400,
	CU_NOT_FOUND = 500,
	CU_NOT_READY = 600,
	CU_ALREADY_REGISTERED = 712,
	CU_NOT_PERMITTED = 800,
	CU_NOT_SUPPORTED = 801,

	/* CU_DEVICE_ATTRIBUTE_... */
	CU_COMPUTE_MAJOR = 75,
	CU_COMPUTE_MINOR = 76,
	CU_VIRTUAL_MEMORY = 102,     /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
	CU_MEMORY_DESCRIPTORS = 103, /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
	CU_DIRECT_MEMORY = 110,      /* GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED */
	CU_READ_ONLY_REGISTER = 113, /* READ_ONLY_HOST_REGISTER_SUPPORTED */
	CU_DIRECT_FLUSHES = 117,     /* GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS */
	CU_DIRECT_ORDERING = 118,    /* GPU_DIRECT_RDMA_WRITES_ORDERING */
	CU_DMA_BUF = 124,            /* DMA_BUF_SUPPORTED */

	CU_REGISTER_PORTABLE = 1,   /* CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTALLOC_PORTABLE */
	CU_REGISTER_READ_ONLY = 8,  /* CU_MEMHOSTREGISTER_READ_ONLY */
	CU_STREAM_OWN = 1,          /* CU_STREAM_NON_BLOCKING */
	CU_EVENT_BLOCKING = 1,      /* CU_EVENT_BLOCKING_SYNC */
	CU_EVENT_NO_TIMING = 2,     /* CU_EVENT_DISABLE_TIMING */
	CU_CAPTURE_NONE = 0,        /* CU_STREAM_CAPTURE_STATUS_NONE */
	CU_MEMORY_PINNED = 1,       /* CU_MEM_ALLOCATION_TYPE_PINNED */
	CU_MEMORY_DESCRIPTOR = 1,   /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
	CU_LOCATION_DEVICE = 1,     /* CU_MEM_LOCATION_TYPE_DEVICE */
	CU_GRANULARITY_MINIMUM = 0, /* CU_MEM_ALLOC_GRANULARITY_MINIMUM */
	CU_ACCESS_READ = 1,         /* CU_MEM_ACCESS_FLAGS_PROT_READ */
	CU_ACCESS_READ_WRITE = 3,   /* CU_MEM_ACCESS_FLAGS_PROT_READWRITE */
	CU_RANGE_DMA_BUF = 1,       /* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD */

	/* CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER: kernels of the device see what a completed
	 * write of another device wrote. CU_FLUSH_GPU_DIRECT_RDMA_WRITES_...: otherwise this call
	 * lets them, if the option is there. */
	CU_ORDERING_OWNER = 100,
	CU_FLUSHES_HOST = 1,  /* OPTION_HOST */
	CU_FLUSH_CURRENT = 0, /* TARGET_CURRENT_CTX */
	CU_FLUSH_TO_OWNER = 100,
};

struct cu_uuid { /* CUuuid */
	uint8_t bytes[16];
};

struct cu_location { /* CUmemLocation */
	int type, id;
};

struct cu_memory_prop { /* CUmemAllocationProp */
	int type, handle_types;
	struct cu_location location;
	void *windows;
	struct {
		unsigned char compression, gpu_direct_rdma;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
};

struct cu_access { /* CUmemAccessDesc */
	struct cu_location location;
	int flags;
};

/* Who needs a function (calls.h). */
enum driver_set { DRIVER_OPTIONAL = 0, DRIVER_CLIENT = 1, DRIVER_DAEMON = 2, DRIVER_BOTH = 3 };

struct driver {
#define X(who, name, symbol, arguments) cu_result(*name) arguments;
	DRIVER_CALLS(X)
#undef X
};

/* Loads the library and initializes it. The library stays loaded for the life of the process: CUDA
 * does not survive its own unloading. SHARD_UNSUPPORTED: there is none, or it lacks a function that
 * `who` needs. Functions of others may be NULL. */
enum shard_status driver_open(struct driver *d, enum driver_set who, struct err *e);
/* The error's name, or its number in words. */
const char *driver_name(const struct driver *d, cu_result rc, char words[32]);
/* Turns an error of a call into a status and one sentence: what failed, the error's name, and what
 * to do. call is the name of the function. what says of what, as "of the arena", or is empty. */
enum shard_status driver_fail(const struct driver *d, struct err *e, cu_result rc, const char *call,
			      const char *what);
/* Whether the error ends the context: nothing works in this process any more. */
int driver_fatal(cu_result rc);

#endif
