// SPDX-License-Identifier: Apache-2.0
/* Loading of libcuda.so.1, and what its errors mean. libshard-cuda calls it when a handle is opened
 * and the daemon when it takes a GPU, and both when a call fails. The runtime library of CUDA is
 * not used: it belongs to one release of the toolkit, and an error in it shows again in somebody
 * else's next call. */
#include "cuda/driver.h"

#include "base/check.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct meaning {
	cu_result first, last;
	enum shard_status status;
	int sys;
	const char *advice;
} meanings[] = {
	{CU_INVALID_VALUE, CU_INVALID_VALUE, SHARD_BAD_ARG, 0,
	 "a pointer or a size is not of this device"},
	{CU_OUT_OF_MEMORY, CU_OUT_OF_MEMORY, SHARD_SYSTEM, ENOMEM,
	 "the device, or the memory that the driver may pin, is full: free some of it"},
	{3, 3, SHARD_UNSUPPORTED, 0, "the driver was not initialized in this process"},
	{4, 4, SHARD_CLOSED, 0, "the driver is shutting down, because this process ends"},
	{CU_STUB_LIBRARY, CU_STUB_LIBRARY, SHARD_UNSUPPORTED, 0,
	 "the libcuda.so.1 that was found is the toolkit's stub: take its folder out of "
	 "LD_LIBRARY_PATH"},
	{CU_NEWER_DRIVER, CU_NEWER_DRIVER, SHARD_UNSUPPORTED, 0,
	 "the driver is too old: update it"},
	{46, 46, SHARD_SYSTEM, EIO, "another process has the device for itself"},
	{CU_NO_DEVICE, CU_NO_DEVICE, SHARD_UNSUPPORTED, 0,
	 "no GPU is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES"},
	{CU_INVALID_DEVICE, CU_INVALID_DEVICE, SHARD_UNSUPPORTED, 0,
	 "there is no such GPU: look at CUDA_VISIBLE_DEVICES"},
	{201, 201, SHARD_BAD_ARG, 0, "the context is not one of this process, or is gone"},
	{CU_NO_BINARY, CU_NO_BINARY, SHARD_UNSUPPORTED, 0,
	 "the kernels were not compiled for such a GPU"},
	{214, 214, SHARD_CLOSED, 0,
	 "memory of the GPU is faulty: end this process, and look at dmesg for Xid messages"},
	{CU_OLDER_PTX, CU_OLDER_PTX, SHARD_UNSUPPORTED, 0,
	 "the driver is older than the compiler of the kernels: update it"},
	{220, 220, SHARD_CLOSED, 0, "NVLink failed: end this process, and look at dmesg"},
	{226, 226, SHARD_CLOSED, 0, "memory of the GPU is faulty: end this process"},
	{CU_INVALID_HANDLE, CU_INVALID_HANDLE, SHARD_BAD_ARG, 0,
	 "the stream is of another device or context, or is gone"},
	{CU_NOT_FOUND, CU_NOT_FOUND, SHARD_UNSUPPORTED, 0,
	 "the kernels are those of another release"},
	{700, 700, SHARD_CLOSED, 0,
	 "a kernel or a copy used an address that is not its own, and the context of this process "
	 "is unusable: end the process; the model is safe in the daemons"},
	{702, 702, SHARD_CLOSED, 0, "a kernel ran too long: end the process"},
	{709, 709, SHARD_CLOSED, 0, "the context was destroyed or reset: close the handle"},
	{CU_ALREADY_REGISTERED, CU_ALREADY_REGISTERED, SHARD_BAD_STATE, 0,
	 "the memory is registered already: close the other handle of the model, or take your own "
	 "registration back"},
	{714, 721, SHARD_CLOSED, 0,
	 "a kernel failed, and the context of this process is unusable: end the process; the model "
	 "is safe in the daemons"},
	{710, 710, SHARD_CLOSED, 0, "a kernel's assert() failed: end the process"},
	{CU_NOT_PERMITTED, CU_NOT_PERMITTED, SHARD_UNSUPPORTED, 0, "the system does not allow it"},
	{CU_NOT_SUPPORTED, CU_NOT_SUPPORTED, SHARD_UNSUPPORTED, 0,
	 "this GPU or driver cannot do it"},
	{802, 804, SHARD_UNSUPPORTED, 0,
	 "the driver is not ready, or its parts are of different releases: nvidia-smi says more"},
	{805, 810, SHARD_CLOSED, 0, "the MPS server failed: end the process and look at its log"},
	{900, 908, SHARD_BAD_STATE, 0,
	 "the stream is being captured into a graph: push and pull outside of the capture"},
};

static const struct meaning *meaning_of(cu_result rc)
{
	for (size_t i = 0; i < NR(meanings); i++)
		if (rc >= meanings[i].first && rc <= meanings[i].last)
			return &meanings[i];
	return NULL;
}

int driver_fatal(cu_result rc)
{
	const struct meaning *m = meaning_of(rc);

	return m != NULL && m->status == SHARD_CLOSED;
}

const char *driver_name(const struct driver *d, cu_result rc, char words[32])
{
	const char *name = NULL;

	if (d->error_name != NULL && d->error_name(rc, &name) == CU_SUCCESS && name != NULL)
		return name;
	snprintf(words, 32, "error %d", rc);
	return words;
}

enum shard_status driver_fail(const struct driver *d, struct err *e, cu_result rc, const char *call,
			      const char *what)
{
	const struct meaning *m = meaning_of(rc);
	const char *name, *gap = what[0] ? " " : "";
	char words[32];

	CHECK(rc != CU_SUCCESS);
	name = driver_name(d, rc, words);
	if (m == NULL)
		return err_sys(e, EIO, "%s%s%s: %s (%d): CUDA failed", call, gap, what, name, rc);
	if (m->status == SHARD_SYSTEM)
		return err_sys(e, m->sys, "%s%s%s: %s (%d): %s", call, gap, what, name, rc,
			       m->advice);
	return err_set(e, m->status, "%s%s%s: %s (%d): %s", call, gap, what, name, rc, m->advice);
}

enum shard_status driver_open(struct driver *d, enum driver_set who, struct err *e)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	const char *lacks = NULL;
	cu_result rc;

	memset(d, 0, sizeof(*d));
	if (library == NULL) {
		const char *why = dlerror();

		return err_set(
			e, SHARD_UNSUPPORTED,
			"no CUDA on this machine: %.300s: install the NVIDIA driver, and in a "
			"container give it the GPU",
			why ? why : "libcuda.so.1 cannot be loaded");
	}
#define X(needs, name, symbol, arguments)                                                          \
	{                                                                                          \
		void *found = dlsym(library, #symbol);                                             \
                                                                                                   \
		memcpy(&d->name, &found, sizeof(found));                                           \
		if (found == NULL && (who & DRIVER_##needs))                                       \
			lacks = #symbol;                                                           \
	}
	DRIVER_CALLS(X)
#undef X
	dlclose(library); /* It stays: RTLD_NODELETE. */
	if (lacks != NULL)
		return err_set(e, SHARD_UNSUPPORTED,
			       "libcuda.so.1 has no %s: the driver is too old: update it", lacks);
	if ((rc = d->init(0)) != CU_SUCCESS)
		return driver_fail(d, e, rc, "cuInit", "");
	return SHARD_OK;
}
