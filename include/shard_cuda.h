/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_cuda - push gradients from a GPU to shardd, and pull parameters to it
 *
 * DESCRIPTION
 * libshard-cuda lies beside libshard, and is made of its public calls. It copies gradients from
 * device memory into the arena, and parameters from the image into device memory. A call queues a
 * copy and returns. A thread of the library, one for each handle, waits for the copies of gradients
 * and pushes them. So a backward pass goes on while its gradients leave.
 *
 * CUDA is not needed to build or to load the library. It opens libcuda.so.1, the library of the
 * driver, when shard_cuda_open() is called. Where there is no driver or no GPU, that call says so.
 *
 * OWNERSHIP
 * A handle belongs to the caller, and uses a model that has joined. Open it after shard_join(), and
 * close it before shard_leave(), shard_keep(), shard_detach() or shard_disconnect(), because arena
 * and image are registered with the driver meanwhile. Device memory is the caller's. A push reads
 * it and a pull writes it until their tickets are done, as work on the stream of
 * shard_cuda_stream().
 *
 * STREAMS
 * A shard_stream is a CUstream of the driver's API and a cudaStream_t of the runtime's. NULL is the
 * legacy default stream. Each call that names a stream is ordered after the work that is on it.
 * Streams are of the device of the handle, and of its primary context, which is the one that the
 * runtime and torch use. None may be captured.
 *
 * THREADS
 * Any thread may call each function, and several at once on one handle, except for
 * shard_cuda_begin() and shard_cuda_close(). Each function says so. The thread of the library has
 * all signals blocked. After a fork() the child can do nothing with a handle but close it, which
 * frees what it can.
 *
 * WAITING
 * timeout_ms is in milliseconds. 0 looks once, and any number below 0 takes the timeout of the
 * handle. There is no "for ever". A call that gave up undoes nothing: make it again.
 *
 * ERRORS
 * The statuses are those of shard.h, and below 20, from 20 to 59 and from 60 on mean the same.
 * Every call that fails leaves one sentence in shard_cuda_error(), not in shard_error(). An error
 * of CUDA is in it with the call and the name of the error, as "cuMemHostRegister: ...
 * CUDA_ERROR_...". Three lists are shared.
 *
 * ERRORS OF A DEVICE
 * SHARD_BAD_ARG: a handle, or the place of a result, is NULL, or CUDA refuses an argument: a stream
 *   or memory is of another device or gone.
 * SHARD_BAD_STATE: CUDA says that this cannot be done now, as on a stream that is captured.
 * SHARD_SYSTEM: the driver or this process has no memory or no thread left; errno is ENOMEM, EAGAIN
 *   or EIO.
 * SHARD_UNSUPPORTED: the device or the driver cannot do it.
 * SHARD_CLOSED: an error of CUDA ended the context of this process, as CUDA_ERROR_ILLEGAL_ADDRESS
 *   does, or a copy was not done within the timeout of the handle. The handle is dead: close it.
 *   The model is not touched by that: abandon the step, or end the process.
 * SHARD_FORKED: the handle belongs to the parent process.
 *
 * EXAMPLE
 *
 *	#include <shard_cuda.h>
 *
 *	// Queues kernels that make the gradient of a tensor in device memory.
 *	void backward(uint32_t tensor, void *grad, shard_stream s);
 *
 *	// One step of a model with bf16 gradients, whose tensors have n[i] elements. Parameters
 *	// are at weight[i] and gradients at grad[i] on the device. pull has a row for each tensor.
 *	enum shard_status step(shard_cuda *cu, shard_model *m, const uint64_t *n, void *const *grad,
 *			       const struct shard_cuda_pull *pull, shard_stream s)
 *	{
 *		struct shard_result r = SHARD_INIT(struct shard_result);
 *		struct shard_step now = SHARD_INIT(struct shard_step);
 *		enum shard_status rc = shard_cuda_begin(cu, NULL, &now);
 *		uint32_t nr = shard_tensors(m);
 *		shard_ticket t;
 *
 *		for (uint32_t i = nr; i-- > 0 && rc == SHARD_OK;) {
 *			backward(i, grad[i], s);
 *			rc = shard_cuda_push(cu, i, 0, n[i], grad[i], SHARD_BF16, 0, s, NULL);
 *		}
 *		if (rc == SHARD_OK)
 *			rc = shard_cuda_wait(cu, 0, SHARD_DEFAULT); // pushed, not only queued
 *		if (rc == SHARD_OK)
 *			rc = shard_commit(m, NULL);
 *		if (rc == SHARD_OK)
 *			rc = shard_result(m, 0, SHARD_DEFAULT, &r);
 *		if (rc == SHARD_OK)
 *			rc = shard_cuda_pull(cu, now.step, pull, nr, s, &t);
 *		return rc == SHARD_OK ? shard_cuda_order(cu, t, s, SHARD_DEFAULT) : rc;
 *	}
 */
#ifndef SHARD_CUDA_H
#define SHARD_CUDA_H

#include <shard.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What copies between one model and one device. */
typedef struct shard_cuda shard_cuda;
/* A CUstream, or a cudaStream_t. */
typedef struct CUstream_st *shard_stream;

/* Flags of shard_cuda_opts. */
enum {
	/* Do not register arena and image with the driver. All copies go through pinned buffers,
	 * which costs a copy by the processor and little pinned memory. */
	SHARD_CUDA_BOUNCE = 1,
	/* Ask shardd for the image in the memory of the device: shard_cuda_image(). */
	SHARD_CUDA_IMAGE = 2,
	/* Ask shardd for memory of the device for gradients: shard_cuda_grad(). */
	SHARD_CUDA_GRAD = 4
};

/* How to open. */
struct shard_cuda_opts {
	/* Bytes of this struct; SHARD_INIT() sets it. */
	size_t size;
	/* The number of the device, or -1: that of the context which is current in the calling
	 * thread. SHARD_INIT() makes it 0. */
	int32_t device;
	/* 0, or SHARD_CUDA_BOUNCE, SHARD_CUDA_IMAGE and SHARD_CUDA_GRAD. */
	uint32_t flags;
	/* How long a copy may take from the call that queues it, with all work that is before it on
	 * the stream, in milliseconds. 0 or less: 300 s. */
	int64_t timeout_ms;
	/* The size of each of the two pinned buffers, in bytes. They are made when they are needed
	 * first. 0: 32 MiB. */
	uint64_t buffer_bytes;
	/* The largest range that is registered in one call of the driver, in bytes, a multiple of
	 * 4096. 0: 16 GiB. */
	uint64_t piece_bytes;
};

/* What a handle does. */
struct shard_cuda_about {
	/* Bytes of this struct; SHARD_INIT() sets it. */
	size_t size;
	/* The number of the device. */
	int32_t device;
	/* The version of the driver's API, as 12040 for 12.4. */
	int32_t driver;
	/* Gradients are copied straight into the arena. 0: through the pinned buffers. */
	uint32_t grad_pinned;
	/* Parameters are copied straight from the image. 0: through the pinned buffers. */
	uint32_t image_pinned;
	/* Memory that is registered with the driver, in bytes. */
	uint64_t registered_bytes;
	/* Why something is not registered, or not on the device; empty if all is. It lives as long
	 * as the handle. */
	const char *why;
	/* Gradients that were copied from the device so far, in bytes. */
	uint64_t pushed_bytes;
	/* Parameters that were copied to the device so far, in bytes. */
	uint64_t pulled_bytes;
	/* Copies of parameters so far. Tensors whose ranges adjoin both in the image and on the
	 * device are one copy. */
	uint64_t pulled_copies;
	/* Not 0: an error of CUDA, or a copy that was not done in time, ended the handle. */
	uint32_t dead;
	/* shardd keeps the image on the device: shard_cuda_image(). Pulls are copies within the
	 * device then. */
	uint32_t image_device;
	/* shardd has memory for gradients on the device: shard_cuda_grad(). */
	uint32_t grad_device;
};

/* A range of parameters, and where it goes. */
struct shard_cuda_pull {
	/* The index of the tensor. */
	uint32_t tensor;
	/* Must be zero. */
	uint32_t reserved;
	/* The first element, counted from the beginning of the tensor. */
	uint64_t first;
	/* How many elements. */
	uint64_t count;
	/* Device memory for them, in the image dtype of the tensor. */
	void *dev;
};

/*
 * DEVICES
 *
 * A handle leads from one model to one device. It is opened after each join, because the memory of
 * gradients and image is another one then. While it is open, both are registered with the driver.
 * If libshard made the connection again meanwhile, shard_cuda_begin() and shard_cuda_pull()
 * register them once more, when no copy is under way.
 *
 * EXAMPLE
 *
 *	#include <shard_cuda.h>
 *	#include <stdio.h>
 *
 *	// Opens the handle for the device that the runtime or torch uses in this thread.
 *	enum shard_status device_of(shard_model *m, shard_cuda **cu)
 *	{
 *		struct shard_cuda_about about = SHARD_INIT(struct shard_cuda_about);
 *		struct shard_cuda_opts o = SHARD_INIT(struct shard_cuda_opts);
 *		enum shard_status rc;
 *
 *		o.device = -1;
 *		if ((rc = shard_cuda_open(cu, m, &o)) == SHARD_OK)
 *			rc = shard_cuda_tell(*cu, &about);
 *		if (rc != SHARD_OK)
 *			fprintf(stderr, "%s: %s\n", shard_name(rc), shard_cuda_error());
 *		else if (about.why[0])
 *			fprintf(stderr, "copies are slower: %s\n", about.why);
 *		return rc;
 *	}
 */

/*
 * shard_cuda_open - open a device for a model
 *
 * DESCRIPTION
 * Loads the driver's library, takes the primary context of the device, registers the memory of
 * shard_region() with it, and starts the thread. Registering takes about 0.1 s for each GB where
 * the memory has small pages. What the driver refuses to register for want of memory or support
 * goes through the pinned buffers, and shard_cuda_tell() says why.
 *
 * The image of a model with max_staleness = 1 always goes through the pinned buffers.
 *
 * ARGUMENTS
 * cuda: where the handle is put. The caller ends it with shard_cuda_close(). NULL after a failure.
 * model: the model, joined. It has one handle at a time.
 * opts: how to open. NULL: the device of the context that is current, and the defaults.
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, opts were not started with SHARD_INIT(), a flag is not known,
 *   or piece_bytes is no multiple of 4096.
 * SHARD_BAD_STATE: the model is not joined; no context is current in this thread, and no device is
 *   named; the current context is not the primary one of the device; or the memory is registered
 *   already, as by another handle that is open.
 * SHARD_UNSUPPORTED: there is no libcuda.so.1, or no device of that number, the driver is too old
 *   for a function, or libshard is older than this library.
 * Also the errors of a device.
 *
 * THREADS
 * Any thread may call it, and several at once for different models.
 */
SHARD_API enum shard_status shard_cuda_open(shard_cuda **cuda, shard_model *model,
					    const struct shard_cuda_opts *opts);

/*
 * shard_cuda_close - end a handle
 *
 * DESCRIPTION
 * What is queued and not pushed is dropped. Waits until no copy is under way, so that none writes
 * into memory that is somebody else's afterwards. Then the thread ends, and the memory is
 * registered no longer. The step in hand is as if the rest had not been pushed: abandon it, or push
 * the rest otherwise.
 *
 * ARGUMENTS
 * cuda: where the handle is. It is set to NULL, except after SHARD_TIMEOUT. NULL, or a handle that
 *   is NULL, is fine.
 * timeout_ms: how long to wait, in milliseconds. SHARD_DEFAULT takes the timeout of the handle.
 *
 * ERRORS
 * SHARD_TIMEOUT: a copy is still under way. The handle stays, and takes no more pushes and pulls.
 *   Make the call again, before the model is left or detached.
 * SHARD_SYSTEM: the driver refused to give something back. The handle is gone nevertheless.
 *
 * THREADS
 * Any thread may call it. No other call on the handle may overlap with it.
 */
SHARD_API enum shard_status shard_cuda_close(shard_cuda **cuda, int64_t timeout_ms);

/*
 * shard_cuda_tell - say how copies are made
 *
 * DESCRIPTION
 * For logs, and for whoever wonders why copies are slow.
 *
 * ARGUMENTS
 * cuda: the handle.
 * about: filled in. Start it with SHARD_INIT().
 *
 * ERRORS
 * SHARD_BAD_ARG: a pointer is NULL, or about was not started with SHARD_INIT().
 * SHARD_FORKED: the handle belongs to the parent process.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_cuda_tell(shard_cuda *cuda, struct shard_cuda_about *about);

/*
 * shard_cuda_stream - the stream that copies are made on
 *
 * DESCRIPTION
 * For allocators that have to know where memory is in use, as torch's record_stream(), and for
 * callers that order work of their own after copies. It does not wait for the legacy default
 * stream.
 *
 * ARGUMENTS
 * cuda: the handle, which owns the stream.
 *
 * RETURN VALUE
 * The stream. NULL if the handle is NULL or belongs to the parent process.
 *
 * ERRORS
 * None.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_CALL shard_stream shard_cuda_stream(shard_cuda *cuda);

/*
 * shard_cuda_image - say where the parameters of a tensor are on the device
 *
 * DESCRIPTION
 * If shardd updates chunks of the model on this device (tier = gpu), and the handle was opened with
 * SHARD_CUDA_IMAGE, shardd keeps the whole image in memory of the device, for all trainers on it.
 * Kernels read parameters there without a pull and without a copy. The update of a step writes
 * them there, and what is updated elsewhere is copied there by shardd. shard_cuda_begin() returns
 * when all parameters for the step are there.
 *
 * The rule is that of shard_image(): all work that reads them is done before shard_commit(), as it
 * is where each gradient was pushed after the kernels that made it. It is also done before the
 * next shard_cuda_begin(), which may map other memory when the connection was made again, and
 * before shard_cuda_close().
 *
 * The memory takes as much of the device as the image has, and counts towards gpu_memory of shardd.
 * It is mapped read-only here. shardd does not compute on what is there, but all trainers do.
 *
 * ARGUMENTS
 * cuda: the handle.
 * tensor: the index of the tensor.
 *
 * RETURN VALUE
 * The address of its first element, in its image dtype, until the next shard_cuda_begin(). NULL:
 * there is none, and shard_cuda_tell() says why.
 *
 * ERRORS
 * SHARD_RANGE: there is no such tensor.
 * SHARD_UNSUPPORTED: there is no image on the device.
 * SHARD_FORKED: the handle belongs to the parent process.
 *
 * THREADS
 * Any thread may call it, and several at once, but not while shard_cuda_begin() runs.
 */
SHARD_CALL const void *shard_cuda_image(shard_cuda *cuda, uint32_t tensor);

/*
 * shard_cuda_grad - say where the gradient of a tensor may be written on the device
 *
 * DESCRIPTION
 * If shardd updates chunks of the model on this device (tier = gpu), and the handle was opened with
 * SHARD_CUDA_GRAD, shardd has memory of the device for the gradients of this trainer. Kernels write
 * gradients there, and shard_cuda_push() with dev NULL pushes them from there without a copy. Where
 * all trainers of the node that have a gradient for a chunk have it on one device, shardd adds them
 * up there, in the order and with the bits of a sum of the processor, and copies the sum alone to
 * the host. Otherwise it copies each of them, and the processor adds.
 *
 * What was pushed stays as it is until the step has its result, as in the arena. The memory keeps
 * what is written there until the next shard_cuda_begin(), which may map other memory when the
 * connection was made again: then gradients of before are gone.
 *
 * The memory takes as much of the device as the arena has, for each trainer, and counts towards
 * gpu_memory of shardd, with a few chunks more for sums.
 *
 * ARGUMENTS
 * cuda: the handle.
 * tensor: the index of the tensor.
 *
 * RETURN VALUE
 * The address of its first element, in the model's grad dtype, until the next shard_cuda_begin().
 * NULL: there is none, and shard_cuda_tell() says why. Then push from memory of your own.
 *
 * ERRORS
 * SHARD_RANGE: there is no such tensor.
 * SHARD_UNSUPPORTED: there is no memory for gradients on the device.
 * SHARD_FORKED: the handle belongs to the parent process.
 *
 * THREADS
 * Any thread may call it, and several at once, but not while shard_cuda_begin() runs.
 */
SHARD_CALL void *shard_cuda_grad(shard_cuda *cuda, uint32_t tensor);

/*
 * shard_cuda_error - say why the last call of this thread failed
 *
 * DESCRIPTION
 * As shard_error(), for the functions of this library.
 *
 * RETURN VALUE
 * A text of the calling thread, which is valid until its next call that fails. Empty if none has
 * failed yet.
 *
 * ERRORS
 * None.
 *
 * THREADS
 * Any thread may call it, and several at once. Each thread has a sentence of its own.
 */
SHARD_CALL const char *shard_cuda_error(void);

/*
 * COPIES
 *
 * A push copies a gradient from the device into the arena, and pushes it when it is there. A pull
 * copies parameters from the image to the device, when a step is in the image. Both return at once
 * and give tickets. They are done in the order in which they were queued.
 *
 * A step is shard_cuda_begin(), shard_cuda_push() of each tensor, shard_cuda_wait() for all of
 * them, and then shard_commit() and shard_result() as ever. Tensors whose gradients are in host
 * memory may be pushed by shard_push() meanwhile, and shard_push_none() says that there is none.
 *
 * EXAMPLE
 *
 *	#include <shard_cuda.h>
 *
 *	// Gets the parameters of two layers. The kernels of the first one need not wait for
 *	// those of the second one.
 *	enum shard_status fetch(shard_cuda *cu, uint64_t step,
 *				const struct shard_cuda_pull *const layer[2],
 *				const uint32_t nr[2], shard_stream s,
 *				void (*forward)(int layer))
 *	{
 *		enum shard_status rc = SHARD_OK;
 *		shard_ticket t[2];
 *
 *		for (int i = 0; i < 2 && rc == SHARD_OK; i++)
 *			rc = shard_cuda_pull(cu, step, layer[i], nr[i], s, &t[i]);
 *		for (int i = 0; i < 2 && rc == SHARD_OK; i++)
 *			if ((rc = shard_cuda_order(cu, t[i], s, SHARD_DEFAULT)) == SHARD_OK)
 *				forward(i);
 *		return rc;
 *	}
 */

/*
 * shard_cuda_begin - begin a step
 *
 * DESCRIPTION
 * In place of shard_begin(). What an attempt before queued and did not push is dropped, and its
 * copies are waited for: nothing of it can get into this one. Then it is shard_begin().
 *
 * ARGUMENTS
 * cuda: the handle.
 * opts: as for shard_begin(). With more than one micro-step each push needs SHARD_ADD.
 * step: as for shard_begin().
 *
 * ERRORS
 * SHARD_TIMEOUT: copies of the attempt before are still under way, or as shard_begin() says.
 * Also the errors of a device. Also those of shard_begin(), with its sentence.
 *
 * THREADS
 * Any thread may call it, but one at a time. No push on the handle may overlap with it.
 */
SHARD_API enum shard_status shard_cuda_begin(shard_cuda *cuda, const struct shard_begin_opts *opts,
					     struct shard_step *step);

/*
 * shard_cuda_push - push the gradient of a tensor, or of a part of it, from the device
 *
 * DESCRIPTION
 * Queues a copy after the work that is on the stream, and returns. The copy goes straight into the
 * arena where that is registered. With SHARD_ADD or SHARD_CAST it goes through the pinned buffers,
 * and the processor adds or converts: it is faster to do both on the device first.
 *
 * With dev NULL the gradient lies where shard_cuda_grad() says, and nothing is copied. All of such
 * a tensor is pushed with dev NULL in a step, and shard_push_none_range() leaves none of it out.
 * With a flag it is copied from there like a gradient that lies anywhere.
 *
 * A ticket that is done says that the gradient was pushed. What libshard says to that push, as
 * SHARD_WORLD_CHANGED, is said by shard_cuda_wait() and by each later push of the step.
 *
 * ARGUMENTS
 * cuda: the handle.
 * tensor: the index of the tensor.
 * first: the first element, counted from the beginning of the tensor.
 * count: how many elements; not 0.
 * dev: the gradient in device memory, or NULL: where shard_cuda_grad() says. It may be written or
 * freed when the ticket is done, or by work that comes after the copy on shard_cuda_stream().
 * dtype: of the elements at dev; with dev NULL the model's grad dtype.
 * flags: 0, or SHARD_ADD and SHARD_CAST, as for shard_push(); or SHARD_SHARE alone, as for
 *   shard_push(). A share that is empty is pushed by shard_push().
 * stream: the copy is made after the work that is on it now.
 * ticket: set to the ticket. NULL: none.
 *
 * ERRORS
 * SHARD_BAD_ARG: dev is NULL without memory of shardd on the device, a flag is not known,
 *   SHARD_SHARE is not alone, or the tensor is frozen; or as below.
 * SHARD_RANGE: there is no such tensor, or it has no such elements.
 * SHARD_DTYPE: dtype is not that of the model's gradients, and SHARD_CAST is not given or dev is
 *   NULL.
 * SHARD_DUPLICATE: elements were pushed already in this step, and SHARD_ADD is not given; or they
 *   were left to other ranks by SHARD_SHARE.
 * SHARD_BAD_STATE: shard_cuda_begin() was not called, the handle is being closed, or as below.
 * SHARD_AGAIN: too many copies are under way: wait for an older one first.
 * Also the errors of a device. Also what shard_push() said to an earlier push of the step.
 *
 * THREADS
 * Any thread may call it, and several at once, also for parts of one tensor.
 */
SHARD_API enum shard_status shard_cuda_push(shard_cuda *cuda, uint32_t tensor, uint64_t first,
					    uint64_t count, const void *dev, enum shard_dtype dtype,
					    uint32_t flags, shard_stream stream,
					    shard_ticket *ticket);

/*
 * shard_cuda_pull - copy parameters of a step to the device when they are there
 *
 * DESCRIPTION
 * Queues copies of ranges, in their order, and returns. Each is made when the image has the weights
 * that the step left, or newer ones, and after the work that is on the stream now, which may read
 * the older parameters. Give the ranges in the order of shard_info.image_offset: those that adjoin
 * in the image and on the device are one copy.
 *
 * One call has one ticket. Call it for each unit that the computation waits for by itself. The
 * copies read the image, so they have to be done before the caller's next shard_commit():
 * shard_cuda_wait() with ticket 0 sees to that.
 *
 * ARGUMENTS
 * cuda: the handle.
 * step: the weights that this step left. 0 takes what there is.
 * ranges: what to copy where. It is copied.
 * count: how many ranges; not 0.
 * stream: the copies are made after the work that is on it now.
 * ticket: set to the ticket. NULL: none.
 *
 * ERRORS
 * SHARD_BAD_ARG: ranges is NULL, count is 0, or a dev is NULL; or as below.
 * SHARD_RANGE: there is no such tensor, or it has no such elements.
 * SHARD_AGAIN: too many copies are under way: wait for an older one first.
 * Also the errors of a device.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_cuda_pull(shard_cuda *cuda, uint64_t step,
					    const struct shard_cuda_pull *ranges, uint32_t count,
					    shard_stream stream, shard_ticket *ticket);

/*
 * shard_cuda_wait - wait for a copy and all before it
 *
 * DESCRIPTION
 * A push is done when it was pushed, and a pull when the parameters are on the device.
 *
 * ARGUMENTS
 * cuda: the handle.
 * ticket: as a call gave it. 0: all that were queued so far.
 * timeout_ms: how long to wait, in milliseconds. 0 does not wait, SHARD_DEFAULT takes the timeout
 *   of the handle.
 *
 * ERRORS
 * SHARD_BAD_ARG: the ticket was not given yet; or as below.
 * SHARD_TIMEOUT: it is not done yet. Make the call again.
 * Also the errors of a device. Also those of shard_push() and shard_pull(), with their sentences,
 * for the tickets that end so: then nothing of the ticket happens any more.
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_cuda_wait(shard_cuda *cuda, shard_ticket ticket,
					    int64_t timeout_ms);

/*
 * shard_cuda_order - let later work on a stream come after a copy
 *
 * DESCRIPTION
 * Waits in the calling thread until the copies of the ticket are queued on the device, which for a
 * pull means until the step is in the image. Then work that is put on the stream from now on waits
 * on the device until they are done. The device never waits for the host.
 *
 * ARGUMENTS
 * cuda: the handle.
 * ticket: as a call gave it. 0: all that were queued so far.
 * stream: whose later work waits.
 * timeout_ms: as for shard_cuda_wait().
 *
 * ERRORS
 * As shard_cuda_wait().
 *
 * THREADS
 * Any thread may call it, and several at once.
 */
SHARD_API enum shard_status shard_cuda_order(shard_cuda *cuda, shard_ticket ticket,
					     shard_stream stream, int64_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
