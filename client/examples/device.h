/* SPDX-License-Identifier: Apache-2.0 */
/* device.h: a GPU for the example trainer: its memory, one stream, and the kernels of
 * gpt_kernels.cu. It uses the driver's library, which it loads, and not the runtime's. The first
 * failure is kept. After it all functions do nothing, so that the caller need not look after each
 * of them. */
#ifndef EXAMPLES_DEVICE_H
#define EXAMPLES_DEVICE_H

#include "cuda/driver.h"
#include "examples/gpt_kernels.h"

enum gpt_kernel {
#define X(name) name##_id,
	GPT_KERNELS(X)
#undef X
		GPT_KERNELS_NR
};

struct device {
	struct driver driver;
	cu_device number;
	cu_context ctx; /* NULL: not open. */
	cu_stream stream;
	cu_function kernels[GPT_KERNELS_NR];
	struct err err; /* The first failure; status SHARD_OK: none. */
};

/* Makes the device's primary context current in this thread and loads the kernels from the file.
 * Returns SHARD_OK, or the status of d->err. */
enum shard_status device_open(struct device *d, int number, const char *kernels);
void device_close(struct device *d);

/* Returns memory of the device. NULL: there is none, or something failed before. */
void *device_alloc(struct device *d, size_t bytes);
void device_free(struct device *d, void *p);

/* These come after all that is on the stream, and are done when they return. */
void device_put(struct device *d, void *to, const void *from, size_t bytes);
void device_get(struct device *d, void *to, const void *from, size_t bytes);

/* Puts a kernel on the stream. job is its KERNEL_job, and is copied. */
void device_launch(struct device *d, enum gpt_kernel kernel, void *job, uint64_t nr);
#define DEVICE_RUN(d, kernel, ...)                                                                 \
	do {                                                                                       \
		struct kernel##_job job_ = {__VA_ARGS__};                                          \
		device_launch(d, kernel##_id, &job_, job_.nr);                                     \
	} while (0)

#endif
