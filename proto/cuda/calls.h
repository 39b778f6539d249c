/* SPDX-License-Identifier: Apache-2.0 */
/* calls.h: the functions of libcuda.so.1 that are used, for driver.h and its tests. A row has who
 * needs the function, as DRIVER_CLIENT without its beginning, the name in struct driver, the
 * symbol, and the arguments. Of OPTIONAL ones any may be missing. The types are those of driver.h.
 * For the image on a device libshard-cuda uses some of the daemon's where the driver has them
 * (client/cuda/device_image.c). */
#ifndef SHARD_CUDA_CALLS_H
#define SHARD_CUDA_CALLS_H

#define DRIVER_CALLS(X)                                                                            \
	X(BOTH, init, cuInit, (unsigned flags))                                                    \
	X(BOTH, version, cuDriverGetVersion, (int *version))                                       \
	X(BOTH, error_name, cuGetErrorName, (cu_result rc, const char **name))                     \
	X(BOTH, device_get, cuDeviceGet, (cu_device * device, int ordinal))                        \
	X(BOTH, device_attribute, cuDeviceGetAttribute,                                            \
	  (int *value, int attribute, cu_device device))                                           \
	X(BOTH, primary_retain, cuDevicePrimaryCtxRetain, (cu_context * ctx, cu_device device))    \
	X(BOTH, primary_release, cuDevicePrimaryCtxRelease_v2, (cu_device device))                 \
	X(CLIENT, ctx_get, cuCtxGetCurrent, (cu_context * ctx))                                    \
	X(CLIENT, ctx_device, cuCtxGetDevice, (cu_device * device))                                \
	X(BOTH, ctx_push, cuCtxPushCurrent_v2, (cu_context ctx))                                   \
	X(BOTH, ctx_pop, cuCtxPopCurrent_v2, (cu_context * ctx))                                   \
	X(BOTH, host_register, cuMemHostRegister_v2, (void *p, size_t bytes, unsigned flags))      \
	X(BOTH, host_unregister, cuMemHostUnregister, (void *p))                                   \
	X(BOTH, host_alloc, cuMemHostAlloc, (void **p, size_t bytes, unsigned flags))              \
	X(BOTH, host_free, cuMemFreeHost, (void *p))                                               \
	X(BOTH, to_host, cuMemcpyDtoHAsync_v2,                                                     \
	  (void *to, cu_ptr from, size_t bytes, cu_stream stream))                                 \
	X(BOTH, to_device, cuMemcpyHtoDAsync_v2,                                                   \
	  (cu_ptr to, const void *from, size_t bytes, cu_stream stream))                           \
	X(BOTH, stream_create, cuStreamCreate, (cu_stream * stream, unsigned flags))               \
	X(BOTH, stream_destroy, cuStreamDestroy_v2, (cu_stream stream))                            \
	X(CLIENT, stream_query, cuStreamQuery, (cu_stream stream))                                 \
	X(CLIENT, stream_wait, cuStreamWaitEvent,                                                  \
	  (cu_stream stream, cu_event event, unsigned flags))                                      \
	X(CLIENT, stream_capturing, cuStreamIsCapturing, (cu_stream stream, int *status))          \
	X(DAEMON, stream_sync, cuStreamSynchronize, (cu_stream stream))                            \
	X(BOTH, event_create, cuEventCreate, (cu_event * event, unsigned flags))                   \
	X(BOTH, event_record, cuEventRecord, (cu_event event, cu_stream stream))                   \
	X(CLIENT, event_query, cuEventQuery, (cu_event event))                                     \
	X(DAEMON, event_sync, cuEventSynchronize, (cu_event event))                                \
	X(BOTH, event_destroy, cuEventDestroy_v2, (cu_event event))                                \
	X(DAEMON, device_count, cuDeviceGetCount, (int *nr))                                       \
	X(DAEMON, device_name, cuDeviceGetName, (char *name, int bytes, cu_device device))         \
	X(DAEMON, device_uuid, cuDeviceGetUuid_v2, (struct cu_uuid * uuid, cu_device device))      \
	X(DAEMON, memory_info, cuMemGetInfo_v2, (size_t * free, size_t * total))                   \
	X(DAEMON, memory_alloc, cuMemAlloc_v2, (cu_ptr * p, size_t bytes))                         \
	X(DAEMON, memory_free, cuMemFree_v2, (cu_ptr p))                                           \
	X(DAEMON, memory_set, cuMemsetD8Async,                                                     \
	  (cu_ptr to, unsigned char byte, size_t bytes, cu_stream stream))                         \
	X(DAEMON, within, cuMemcpyDtoDAsync_v2,                                                    \
	  (cu_ptr to, cu_ptr from, size_t bytes, cu_stream stream))                                \
	X(DAEMON, granularity, cuMemGetAllocationGranularity,                                      \
	  (size_t * bytes, const struct cu_memory_prop *prop, int option))                         \
	X(DAEMON, create, cuMemCreate,                                                             \
	  (cu_handle * handle, size_t bytes, const struct cu_memory_prop *prop,                    \
	   unsigned long long flags))                                                              \
	X(DAEMON, release, cuMemRelease, (cu_handle handle))                                       \
	X(DAEMON, prop_of, cuMemGetAllocationPropertiesFromHandle,                                 \
	  (struct cu_memory_prop * prop, cu_handle handle))                                        \
	X(DAEMON, export_handle, cuMemExportToShareableHandle,                                     \
	  (void *fd, cu_handle handle, int type, unsigned long long flags))                        \
	X(DAEMON, import_handle, cuMemImportFromShareableHandle,                                   \
	  (cu_handle * handle, void *fd, int type))                                                \
	X(DAEMON, reserve, cuMemAddressReserve,                                                    \
	  (cu_ptr * at, size_t bytes, size_t alignment, cu_ptr where, unsigned long long flags))   \
	X(DAEMON, unreserve, cuMemAddressFree, (cu_ptr at, size_t bytes))                          \
	X(DAEMON, map, cuMemMap,                                                                   \
	  (cu_ptr at, size_t bytes, size_t offset, cu_handle handle, unsigned long long flags))    \
	X(DAEMON, unmap, cuMemUnmap, (cu_ptr at, size_t bytes))                                    \
	X(DAEMON, set_access, cuMemSetAccess,                                                      \
	  (cu_ptr at, size_t bytes, const struct cu_access *access, size_t nr))                    \
	X(OPTIONAL, range_handle, cuMemGetHandleForAddressRange,                                   \
	  (void *handle, cu_ptr at, size_t bytes, int type, unsigned long long flags))             \
	X(OPTIONAL, flush_writes, cuFlushGPUDirectRDMAWrites, (int target, int scope))             \
	X(DAEMON, module_load, cuModuleLoadData, (cu_module * module, const void *image))          \
	X(DAEMON, module_unload, cuModuleUnload, (cu_module module))                               \
	X(DAEMON, module_function, cuModuleGetFunction,                                            \
	  (cu_function * function, cu_module module, const char *name))                            \
	X(DAEMON, launch, cuLaunchKernel,                                                          \
	  (cu_function function, unsigned x, unsigned y, unsigned z, unsigned threads,             \
	   unsigned threads_y, unsigned threads_z, unsigned shared, cu_stream stream, void **args, \
	   void **extra))

#endif
