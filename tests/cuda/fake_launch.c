// SPDX-License-Identifier: Apache-2.0
/* Modules and kernels of the driver library for tests. Whatever is loaded as a module has the
 * kernels that were compiled for this processor (shim_kernels.h). A launch is an operation of its
 * stream, late and in its order. While a kernel runs, the memory that its device may use can be
 * used where the kernel looks for it, and all else stops the process with a sentence. */
#include "tests/cuda/fake_impl.h"
#include "cuda/shim_kernels.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS_MAX = 1024 };

static struct module {
	struct module *next;
	int device;
} * modules;
static ctx_t running; /* The context of the kernel that runs. */

__attribute__((constructor)) static void from_environment(void)
{
	const char *word = getenv("FAKE_CUDA_FTZ");

	if (word)
		shim.ftz = (enum shim_ftz)(atoi(word) % SHIM_FTZ_NR);
}

static struct module **find(const struct module *module)
{
	struct module **at = &modules;

	while (*at != NULL && *at != module)
		at = &(*at)->next;
	return at;
}

void fake_launch_counts(struct fake_counts *counts)
{
	for (struct module *m = modules; m != NULL; m = m->next)
		counts->modules++;
}

void fake_launch_forget(int device)
{
	for (struct module **at = &modules, *m; (m = *at) != NULL;) {
		if (m->device != device) {
			at = &m->next;
			continue;
		}
		*at = m->next;
		free(m);
	}
}

CALL(cuModuleLoadData, struct module **module, const void *image)
{
	struct module *m;

	ENTER(ctx);
	m = image ? calloc(1, sizeof(*m)) : NULL;
	if (m == NULL)
		return fake_leave(INVALID_VALUE);
	m->device = ctx->device;
	m->next = modules;
	*module = modules = m;
	return fake_leave(0);
}

CALL(cuModuleUnload, struct module *module)
{
	struct module **at;

	ENTER(ctx);
	(void)ctx;
	at = find(module);
	if (*at == NULL)
		return fake_leave(INVALID_HANDLE);
	*at = module->next;
	free(module);
	return fake_leave(0);
}

CALL(cuModuleGetFunction, const void **function, struct module *module, const char *name)
{
	ENTER(ctx);
	(void)ctx;
	*function = shim_kernel(name);
	return fake_leave(*find(module) == NULL ? INVALID_HANDLE
			  : *function == NULL   ? NOT_FOUND
						: 0);
}

CALL(cuLaunchKernel, const struct shim_kernel *function, unsigned x, unsigned y, unsigned z,
     unsigned threads, unsigned threads_y, unsigned threads_z, unsigned shared, stream_t stream,
     void **job, void **extra)
{
	struct op o = {.kind = OP_LAUNCH, .kernel = function, .blocks = x, .threads = threads};
	stream_t s;

	ENTER(ctx);
	s = fake_stream(stream, ctx);
	if (s == NULL)
		return fake_leave(INVALID_HANDLE);
	if (function == NULL || x == 0 || y != 1 || z != 1 || threads == 0 || threads_y != 1 ||
	    threads_z != 1 || shared != 0 || extra != NULL)
		return fake_leave(INVALID_VALUE);
	if (threads > THREADS_MAX)
		return fake_leave(LAUNCH_OUT_OF_RESOURCES);
	o.args = malloc(function->job_bytes);
	if (o.args == NULL)
		abort();
	memcpy(o.args, job[0], function->job_bytes);
	fake_push(s, o);
	return fake_leave(0);
}

/* --- running --- */

/* The lock is this thread's, and nothing of the lists changes. */
static void on_fault(int signal, siginfo_t *info, void *context)
{
	const struct memory *m = fake_memory(info->si_addr);
	const char *what = "a kernel uses an address at which nothing is mapped\n";
	static const char start[] = "fake_cuda: undefined in CUDA: ";

	(void)signal;
	(void)context;
	if (m != NULL && m->kind == DEVICE)
		what = m->access[running->device] == 0
			       ? "a kernel uses memory to which its device has no access\n"
			       : "a kernel writes memory that its device may only read\n";
	if (write(STDERR_FILENO, start, sizeof(start) - 1) < 0 ||
	    write(STDERR_FILENO, what, strlen(what)) < 0)
		_exit(2);
	_exit(1); /* Not abort(): a test framework would jump out of this thread. */
}

static void device_open(int device, bool open)
{
	for (struct memory *m = fake.memories; m != NULL; m = m->next) {
		int mode = (m->access[device] & READS ? PROT_READ : 0) |
			   (m->access[device] & WRITES ? PROT_WRITE : 0);

		if (m->kind == DEVICE && mode != 0 &&
		    mprotect(m->base, m->bytes, open ? mode : PROT_NONE) != 0)
			fake_undefined("mprotect() failed");
	}
}

void fake_run(ctx_t ctx, const struct op *o)
{
	struct sigaction now = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, segv, bus;

	running = ctx;
	sigaction(SIGSEGV, &now, &segv);
	sigaction(SIGBUS, &now, &bus);
	device_open(ctx->device, true);
	shim_call(o->kernel, o->args, o->blocks, o->threads);
	device_open(ctx->device, false);
	sigaction(SIGSEGV, &segv, NULL);
	sigaction(SIGBUS, &bus, NULL);
}
