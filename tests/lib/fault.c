/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces glibc's allocator in every test program that has no allocator of its own, which is why
 * the functions are weak. Tests call fault_begin(), fault_next() and fault_end(). Each thread has
 * its own countdown, so that the threads of a library are left alone. The allocation at which the
 * countdown ends fails with ENOMEM. */
#include "lib/fault.h"

#include <errno.h>
#include <stddef.h>

static _Thread_local uint32_t countdown; /* 0: off. 1: the next allocation fails. */
static _Thread_local bool fired;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FAULT_ROUNDS_MAX 10000

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t nr, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *malloc(size_t bytes);
void *calloc(size_t nr, size_t bytes);
void *realloc(void *p, size_t bytes);

static bool fails(void)
{
	if (countdown == 0 || --countdown > 0)
		return false;
	fired = true;
	errno = ENOMEM;
	return true;
}

__attribute__((weak, visibility("default"))) void *malloc(size_t bytes)
{
	return fails() ? NULL : __libc_malloc(bytes);
}

__attribute__((weak, visibility("default"))) void *calloc(size_t nr, size_t bytes)
{
	return fails() ? NULL : __libc_calloc(nr, bytes);
}

__attribute__((weak, visibility("default"))) void *realloc(void *p, size_t bytes)
{
	return fails() ? NULL : __libc_realloc(p, bytes);
}
#else
#define FAULT_ROUNDS_MAX 1
#endif

void fault_begin(struct fault *f)
{
	*f = (struct fault){.round = 0};
}

bool fault_next(struct fault *f)
{
	if (f->over || f->round == FAULT_ROUNDS_MAX)
		return false;
	fired = false;
	countdown = ++f->round;
	if (FAULT_ROUNDS_MAX == 1)
		countdown = 0;
	return true;
}

bool fault_end(struct fault *f)
{
	countdown = 0;
	f->over = !fired;
	return fired;
}
