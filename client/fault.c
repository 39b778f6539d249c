/* SPDX-License-Identifier: Apache-2.0 */
/* What a write into read-only memory says before it ends the process. The image is mapped read-only
 * in trainers, and a program that holds pointers into it in many places, as one in Python does,
 * cannot tell from a SIGSEGV which of them was written. A caller asks for this, nobody else does,
 * and it knows the names: shard_explain_faults() is given ranges and texts. Happy path: the handler
 * of SIGSEGV looks for the address, writes the text to stderr, and passes the signal on to the
 * handler that was there before. It calls nothing that is not async-signal-safe. A signal handler
 * has no argument, so that what it reads is in variables of the process. It fails where the handler
 * cannot be set. */
#include "client.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static _Atomic(const struct shard_faults *) named; /* The caller's, or NULL. */
static struct sigaction before; /* Written while the handler is not set, and read by it. */
static bool handles;            /* The handler is set, or one that was set later may call it. */

static void say(const void *address)
{
	const struct shard_faults *f = atomic_load_explicit(&named, memory_order_acquire);

	for (size_t i = 0; f != NULL && i < f->ranges_nr; i++) {
		const struct shard_fault_range *r = &f->ranges[i];
		ssize_t done;

		if ((uintptr_t)address - (uintptr_t)r->base >= r->bytes)
			continue;
		done = write(STDERR_FILENO, r->text, strlen(r->text));
		(void)done; /* The process ends, and there is nobody else to tell. */
		return;
	}
}

static void on_fault(int number, siginfo_t *info, void *context)
{
	int kept = errno;

	if (info->si_code > 0) /* Not one that a process sent, which has no address. */
		say(info->si_addr);
	errno = kept;
	if (before.sa_flags & SA_SIGINFO) {
		before.sa_sigaction(number, info, context);
	} else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
		before.sa_handler(number);
	} else {
		/* The instruction faults again, or the signal is there again, when this returns. */
		(void)sigaction(number, &before, NULL);
		if (info->si_code <= 0)
			(void)raise(number);
	}
}

static bool is_ours(const struct sigaction *a)
{
	return (a->sa_flags & SA_SIGINFO) != 0 && a->sa_sigaction == on_fault;
}

enum shard_status shard_explain_faults(const struct shard_faults *faults)
{
	struct sigaction now, ours = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};

	if (faults != NULL && faults->size < sizeof(*faults))
		return text_fail(
			SHARD_BAD_ARG,
			"shard_explain_faults(): faults was not started with SHARD_INIT()");
	if (faults != NULL && faults->ranges_nr > 0 && faults->ranges == NULL)
		return text_fail(SHARD_BAD_ARG, "shard_explain_faults(): ranges is NULL");
	if (sigaction(SIGSEGV, NULL, &now) != 0)
		return text_fail(SHARD_SYSTEM, "SIGSEGV has no handler that can be read: %m");
	/* Where another one was set after ours and passes signals on to it, setting ours once more
	 * would have the two call each other for ever. */
	if (faults != NULL && !handles) {
		before = now;
		ours.sa_sigaction = on_fault;
		sigemptyset(&ours.sa_mask);
		if (sigaction(SIGSEGV, &ours, NULL) != 0)
			return text_fail(SHARD_SYSTEM, "a handler of SIGSEGV cannot be set: %m");
		handles = true;
	}
	if (faults == NULL && handles && is_ours(&now)) {
		if (sigaction(SIGSEGV, &before, NULL) != 0)
			return text_fail(SHARD_SYSTEM,
					 "the handler of SIGSEGV cannot be put back: %m");
		handles = false;
	}
	atomic_store_explicit(&named, faults, memory_order_release);
	return SHARD_OK;
}
