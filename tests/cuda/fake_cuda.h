/* SPDX-License-Identifier: Apache-2.0 */
/* fake_cuda.h: a libcuda.so.1 without a GPU, for tests. It has the calls that libshard-cuda and the
 * daemon use and a few that trainers use, with the driver's rules. Streams are threads. Copies and
 * kernels are late, by amounts that come from a seed. Device memory is not readable by the host.
 * What cuMemCreate() makes is a memfd, so it outlives its maker as on a GPU, and is not zero.
 * Memory that is not registered is copied synchronously. What the real driver leaves undefined, as
 * memory that is unregistered while it is copied, ends the process with a sentence. Kernels run on
 * the processor (fake_launch.c). An error that ends the context of a device ends that of no other
 * one. A test finds the library by LD_LIBRARY_PATH and these functions by dlsym().
 *
 * Environment, when it is loaded: FAKE_CUDA_SEED, FAKE_CUDA_DELAY_US (the longest delay of one
 * operation; 300), FAKE_CUDA_DEVICES (1), FAKE_CUDA_MEMORY (the MiB of each; 1024),
 * FAKE_CUDA_READ_ONLY (1: read-only memory can be registered), FAKE_CUDA_ATTRIBUTES="124=0,118=100"
 * (attributes of all devices), FAKE_CUDA_FTZ (0: an enum shim_ftz,
 * for kernels), FAKE_CUDA_FAIL="cuStreamCreate 1 2" (the first call of it fails with error 2;
 * several are separated by commas; with error -1 it does not return), FAKE_CUDA_CONTROL (a file
 * with a struct fake_control, by which a test has calls of another process fail). */
#ifndef SHARD_TESTS_FAKE_CUDA_H
#define SHARD_TESTS_FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

struct CUstream_st;

/* A test writes the first fields while .armed is 0, and then sets it to another number than before.
 * All calls that match are counted from then on, and the nth one fails. */
struct fake_control {
	char call[64]; /* "*": any. */
	uint32_t nth;
	int error; /* -1: it hangs until .let_go is set, and then goes on as if nothing were. */
	_Atomic uint32_t armed, calls, failed, let_go;
	char was[64]; /* The call that failed. Valid when .failed is set. */
};

/* What was made and not given back. */
struct fake_cuda_left {
	uint32_t registered, allocated, streams, events, contexts;
	uint32_t handles, ranges, mapped, modules; /* handles: of cuMemCreate() and the like. */
	uint32_t device;                           /* Of cuMemAlloc(), and what was adopted. */
};

#define FAKE_CUDA_CALLS(X)                                                                         \
	/* The nth call from now on of that function (of any, with NULL) fails with that error. 0: \
	 * none. Errors that end the context end it. Counts begin anew. */                         \
	X(void, fake_cuda_fail, (const char *call, uint32_t nth, int error))                       \
	/* Whether the planned failure has happened. */                                            \
	X(int, fake_cuda_failed, (void))                                                           \
	/* Nothing is done on the stream while it is held. NULL: the newest one. */                \
	X(void, fake_cuda_hold, (struct CUstream_st * stream, int held))                           \
	/* The same for all streams of a device, also for those that are made later. */            \
	X(void, fake_cuda_hold_device, (int device, int held))                                     \
	X(void, fake_cuda_capture, (struct CUstream_st * stream, int capturing))                   \
	X(void, fake_cuda_read_only, (int supported))                                              \
	/* An attribute of all devices has that value. */                                          \
	X(void, fake_cuda_attribute, (int which, int value))                                       \
	/* A network device writes memory of which it has the dma-buf of that name (the rest of    \
	 * "/memfd:fake-dmabuf-7"), from an offset on. Unless devices say that they order such     \
	 * writes, they are seen after the next flush only. 0: there is no such range. Ends the    \
	 * process if the memory was unmapped. */                                                  \
	X(int, fake_cuda_dma, (uint32_t name, uint64_t offset, const void *from, size_t bytes))    \
	/* How many calls of cuFlushGPUDirectRDMAWrites() there were. */                           \
	X(uint32_t, fake_cuda_flushes, (void))                                                     \
	X(void, fake_cuda_delay, (uint32_t us, uint64_t seed))                                     \
	X(void, fake_cuda_left, (struct fake_cuda_left * left))                                    \
	/* Where a test may read and write device memory. NULL: it is none. */                     \
	X(void *, fake_cuda_inside, (uint64_t dev))                                                \
	/* Has memory of the host be device memory, at an address that it returns. */              \
	X(uint64_t, fake_cuda_adopt, (void *inside, size_t bytes))                                 \
	/* The memory is the host's again. Ends the process if an operation uses it. */            \
	X(void, fake_cuda_disown, (uint64_t dev))                                                  \
	/* How many copies were synchronous, because memory was not registered. */                 \
	X(uint32_t, fake_cuda_synchronous, (void))                                                 \
	/* Waits until nothing is under way on a device. */                                        \
	X(void, fake_cuda_settle, (int device))                                                    \
	/* All that is of a device and of ranges without memory is gone, and it works again. */    \
	X(void, fake_cuda_forget, (int device))                                                    \
	/* Makes a context that ended usable again, as a new process would. */                     \
	X(void, fake_cuda_heal, (void))

#endif
