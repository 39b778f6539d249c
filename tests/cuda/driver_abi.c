// SPDX-License-Identifier: Apache-2.0
/* The declarations of proto/cuda/driver.h beside those of NVIDIA's cuda.h, where that is
 * installed. library.sh compiles this file and links nothing. A number or a name that differs is an
 * error, and so is a function with other arguments. */
#include <cuda.h>

#include "cuda/driver.h"

#include <assert.h>

#define SAME(ours, theirs) static_assert((int)(ours) == (int)(theirs), #theirs)

SAME(CU_SUCCESS, CUDA_SUCCESS);
SAME(CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(CU_STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY);
SAME(CU_NEWER_DRIVER, CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER);
SAME(CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(CU_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME(CU_NO_BINARY, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(CU_OLDER_PTX, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
SAME(CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(CU_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME(CU_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(CU_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(CU_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
SAME(CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME(CU_DIRECT_MEMORY, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME(CU_DIRECT_FLUSHES, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
SAME(CU_DIRECT_ORDERING, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
SAME(CU_DMA_BUF, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
SAME(CU_RANGE_DMA_BUF, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
SAME(CU_ORDERING_OWNER, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
SAME(CU_FLUSHES_HOST, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST);
SAME(CU_FLUSH_CURRENT, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX);
SAME(CU_FLUSH_TO_OWNER, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
SAME(CU_READ_ONLY_REGISTER, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
SAME(CU_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(CU_REGISTER_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME(CU_REGISTER_READ_ONLY, CU_MEMHOSTREGISTER_READ_ONLY);
SAME(CU_STREAM_OWN, CU_STREAM_NON_BLOCKING);
SAME(CU_EVENT_NO_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(CU_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(CU_COMPUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(CU_COMPUTE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(CU_VIRTUAL_MEMORY, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME(CU_MEMORY_DESCRIPTORS, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME(CU_EVENT_BLOCKING, CU_EVENT_BLOCKING_SYNC);
SAME(CU_MEMORY_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(CU_MEMORY_DESCRIPTOR, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(CU_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

/* Enums and 64-bit integers have other names there, and the same representation. */
static_assert(sizeof(CUresult) == sizeof(cu_result), "CUresult");
static_assert(sizeof(CUdevice) == sizeof(cu_device), "CUdevice");
static_assert(sizeof(CUdeviceptr) == sizeof(cu_ptr), "CUdeviceptr");
static_assert(_Generic((cu_stream)0, CUstream : 1, default : 0), "CUstream");
static_assert(_Generic((cu_context)0, CUcontext : 1, default : 0), "CUcontext");
static_assert(_Generic((cu_event)0, CUevent : 1, default : 0), "CUevent");

static_assert(sizeof(CUmemGenericAllocationHandle) == sizeof(cu_handle), "handle");
static_assert(_Generic((cu_module)0, CUmodule : 1, default : 0), "CUmodule");
static_assert(_Generic((cu_function)0, CUfunction : 1, default : 0), "CUfunction");

/* Structs have the same fields at the same places. */
#define PLACED(ours, field, theirs, its)                                                           \
	static_assert(offsetof(struct ours, field) == offsetof(theirs, its) &&                     \
			      sizeof(((struct ours *)0)->field) == sizeof(((theirs *)0)->its),     \
		      #theirs "." #its)
#define SIZED(ours, theirs) static_assert(sizeof(struct ours) == sizeof(theirs), #theirs)
SIZED(cu_uuid, CUuuid);
SIZED(cu_location, CUmemLocation);
PLACED(cu_location, type, CUmemLocation, type);
PLACED(cu_location, id, CUmemLocation, id);
SIZED(cu_memory_prop, CUmemAllocationProp);
PLACED(cu_memory_prop, type, CUmemAllocationProp, type);
PLACED(cu_memory_prop, handle_types, CUmemAllocationProp, requestedHandleTypes);
PLACED(cu_memory_prop, location, CUmemAllocationProp, location);
PLACED(cu_memory_prop, windows, CUmemAllocationProp, win32HandleMetaData);
PLACED(cu_memory_prop, flags, CUmemAllocationProp, allocFlags);
SIZED(cu_access, CUmemAccessDesc);
PLACED(cu_access, location, CUmemAccessDesc, location);
PLACED(cu_access, flags, CUmemAccessDesc, flags);

/* Each function takes what we give it. */
#define CALLS(name, ...) static_assert(sizeof((name)(__VA_ARGS__)) == sizeof(cu_result), #name)
static void *p;
static const char *text;
static int number;
static CUdeviceptr dev;
static CUstream stream;
static CUcontext ctx;
static CUevent event;
CALLS(cuInit, 0u);
CALLS(cuDriverGetVersion, &number);
CALLS(cuGetErrorName, CUDA_SUCCESS, &text);
CALLS(cuDeviceGet, &number, 0);
CALLS(cuDeviceGetAttribute, &number, (CUdevice_attribute)113, 0);
CALLS(cuDevicePrimaryCtxRetain, &ctx, 0);
CALLS(cuDevicePrimaryCtxRelease, 0);
CALLS(cuCtxGetCurrent, &ctx);
CALLS(cuCtxGetDevice, &number);
CALLS(cuCtxPushCurrent, ctx);
CALLS(cuCtxPopCurrent, &ctx);
CALLS(cuMemHostRegister, p, (size_t)1, 0u);
CALLS(cuMemHostUnregister, p);
CALLS(cuMemHostAlloc, &p, (size_t)1, 0u);
CALLS(cuMemFreeHost, p);
CALLS(cuMemcpyDtoHAsync, p, dev, (size_t)1, stream);
CALLS(cuMemcpyHtoDAsync, dev, p, (size_t)1, stream);
CALLS(cuStreamCreate, &stream, 0u);
CALLS(cuStreamDestroy, stream);
CALLS(cuStreamQuery, stream);
CALLS(cuStreamWaitEvent, stream, event, 0u);
CALLS(cuStreamIsCapturing, stream, (CUstreamCaptureStatus *)&number);
CALLS(cuEventCreate, &event, 0u);
CALLS(cuEventRecord, event, stream);
CALLS(cuEventQuery, event);
CALLS(cuEventDestroy, event);
static CUuuid uuid;
static size_t bytes;
static CUmemAllocationProp prop;
static CUmemAccessDesc access_;
static CUmemGenericAllocationHandle handle;
static CUmodule module;
static CUfunction function;
static char words[8];
CALLS(cuStreamSynchronize, stream);
CALLS(cuEventSynchronize, event);
CALLS(cuDeviceGetCount, &number);
CALLS(cuDeviceGetName, words, 8, 0);
CALLS(cuDeviceGetUuid, &uuid, 0);
CALLS(cuMemGetInfo, &bytes, &bytes);
CALLS(cuMemAlloc, &dev, (size_t)1);
CALLS(cuMemFree, dev);
CALLS(cuMemsetD8Async, dev, (unsigned char)0, (size_t)1, stream);
CALLS(cuMemcpyDtoDAsync, dev, dev, (size_t)1, stream);
CALLS(cuMemGetAllocationGranularity, &bytes, &prop, (CUmemAllocationGranularity_flags)0);
CALLS(cuMemCreate, &handle, (size_t)1, &prop, 0ull);
CALLS(cuMemRelease, handle);
CALLS(cuMemGetAllocationPropertiesFromHandle, &prop, handle);
CALLS(cuMemExportToShareableHandle, p, handle, (CUmemAllocationHandleType)1, 0ull);
CALLS(cuMemImportFromShareableHandle, &handle, p, (CUmemAllocationHandleType)1);
CALLS(cuMemAddressReserve, &dev, (size_t)1, (size_t)0, dev, 0ull);
CALLS(cuMemAddressFree, dev, (size_t)1);
CALLS(cuMemMap, dev, (size_t)1, (size_t)0, handle, 0ull);
CALLS(cuMemUnmap, dev, (size_t)1);
CALLS(cuMemSetAccess, dev, (size_t)1, &access_, (size_t)1);
CALLS(cuModuleLoadData, &module, p);
CALLS(cuModuleUnload, module);
CALLS(cuModuleGetFunction, &function, module, text);
CALLS(cuLaunchKernel, function, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream, &p, &p);

/* The names that are looked up are those that cuda.h chooses. */
#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)
#define NAMED(theirs, ours)                                                                        \
	static_assert(sizeof(TEXT(theirs)) == sizeof(ours) &&                                      \
			      __builtin_strcmp(TEXT(theirs), ours) == 0,                           \
		      ours)
NAMED(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
NAMED(cuCtxPushCurrent, "cuCtxPushCurrent_v2");
NAMED(cuCtxPopCurrent, "cuCtxPopCurrent_v2");
NAMED(cuMemHostRegister, "cuMemHostRegister_v2");
NAMED(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2");
NAMED(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2");
NAMED(cuStreamDestroy, "cuStreamDestroy_v2");
NAMED(cuEventDestroy, "cuEventDestroy_v2");
NAMED(cuStreamCreate, "cuStreamCreate");
NAMED(cuEventRecord, "cuEventRecord");
NAMED(cuStreamWaitEvent, "cuStreamWaitEvent");
NAMED(cuMemFreeHost, "cuMemFreeHost");
NAMED(cuMemHostAlloc, "cuMemHostAlloc");
NAMED(cuDeviceGetUuid, "cuDeviceGetUuid_v2");
NAMED(cuMemGetInfo, "cuMemGetInfo_v2");
NAMED(cuMemAlloc, "cuMemAlloc_v2");
NAMED(cuMemFree, "cuMemFree_v2");
NAMED(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2");
NAMED(cuMemsetD8Async, "cuMemsetD8Async");
NAMED(cuMemCreate, "cuMemCreate");
NAMED(cuMemMap, "cuMemMap");
NAMED(cuMemSetAccess, "cuMemSetAccess");
NAMED(cuModuleLoadData, "cuModuleLoadData");
NAMED(cuModuleGetFunction, "cuModuleGetFunction");
NAMED(cuLaunchKernel, "cuLaunchKernel");
NAMED(cuEventSynchronize, "cuEventSynchronize");
NAMED(cuStreamSynchronize, "cuStreamSynchronize");
