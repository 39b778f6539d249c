// SPDX-License-Identifier: Apache-2.0
/* Runs kernels on a processor, for tests (shim_run.h). A thread that meets others gives way to the
 * scheduler, which lets it go on when all of them are there. If no thread can go on, they wait for
 * somebody who never comes, and the process ends with a sentence: a GPU would hang, or worse. */
#include "cuda/shim_run.h"

#include "base/rng.h"
#include "optim/ftz.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS_MAX = 1024, STACK_BYTES = 128 << 10 };

/* --- contexts --- */

#ifdef __x86_64__
typedef void *context_t; /* The stack pointer. What must be kept is on the stack. */

/* As swapcontext(), but that asks the kernel for the mask of signals each time, and a launch goes
 * to and fro thousands of times. */
void shim_switch(context_t *from, context_t to);
__asm__(".text\n"
	".hidden shim_switch\n"
	".globl shim_switch\n"
	".type shim_switch, @function\n"
	"shim_switch:\n"
	"push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
	"mov %rsp, (%rdi)\n"
	"mov %rsi, %rsp\n"
	"pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
	"ret\n"
	".size shim_switch, . - shim_switch\n");

static void context_switch(context_t *from, context_t *to)
{
	shim_switch(from, *to);
}

/* It begins with main(), which never returns. */
static void context_begin(context_t *c, char *stack, void (*main)(void))
{
	enum { KEPT = 6 }; /* Registers, below the address to which shim_switch() returns. */
	void **top = (void **)(void *)(stack + STACK_BYTES);

	memset(top - 2 - KEPT, 0, (2 + KEPT) * sizeof(*top));
	memcpy(top - 2, &main, sizeof(main));
	*c = top - 2 - KEPT;
}
#else
#include <ucontext.h>

typedef ucontext_t context_t;

static void context_switch(context_t *from, context_t *to)
{
	swapcontext(from, to);
}

static void context_begin(context_t *c, char *stack, void (*main)(void))
{
	if (getcontext(c) != 0)
		abort();
	c->uc_stack.ss_sp = stack;
	c->uc_stack.ss_size = STACK_BYTES;
	c->uc_link = NULL;
	makecontext(c, main, 0);
}
#endif

/* --- kernels --- */

static struct fibre {
	context_t at;
	bool done, waits;
	unsigned lanes;  /* For whom it waits. */
	double shuffled; /* What it offers. */
} fibres[THREADS_MAX];

static struct {
	context_t scheduler;
	char *stacks; /* For all launches, and never given back. */
	void (*kernel)(const void *arg);
	const void *arg;
} run;

struct shim shim = {.seed = 1};

static void wrong(const char *what)
{
	fprintf(stderr, "shim: block %u, thread %u: %s\n", shim.block.x, shim.thread.x, what);
	_exit(1); /* Not abort(): a test framework would jump out of a fibre. */
}

/* [0, nr) in some order. */
static void shuffle(unsigned *order, unsigned nr)
{
	struct rng r = {shim.seed++};

	for (unsigned i = 0; i < nr; i++) {
		unsigned j = (unsigned)(rng_next(&r) % (i + 1));

		order[i] = order[j];
		order[j] = i;
	}
}

static void fibre_main(void)
{
	struct fibre *f = &fibres[shim.thread.x];

	run.kernel(run.arg);
	f->done = true;
	context_switch(&f->at, &run.scheduler);
}

/* Lets those go on for whom everybody is there. */
static void release(unsigned thread, unsigned threads)
{
	unsigned warp = thread / SHIM_WARP * SHIM_WARP, lanes = fibres[thread].lanes;

	if (!fibres[thread].waits)
		return;
	for (unsigned i = 0; i < SHIM_WARP; i++)
		if (lanes >> i & 1 && (warp + i >= threads || !fibres[warp + i].waits ||
				       fibres[warp + i].lanes != lanes))
			return;
	for (unsigned i = 0; i < SHIM_WARP; i++)
		if (lanes >> i & 1)
			fibres[warp + i].waits = false;
}

/* Lets each thread that can go on do so, once. Returns how many there were. */
static unsigned turn(const unsigned *order, unsigned threads, unsigned *left)
{
	unsigned went = 0;

	*left = 0;
	for (unsigned i = 0; i < threads; i++) {
		struct fibre *f = &fibres[order[i]];

		*left += !f->done;
		if (f->done || f->waits)
			continue;
		went++;
		shim.thread.x = order[i];
		context_switch(&run.scheduler, &f->at);
		if (!f->done)
			release(order[i], threads);
	}
	return went;
}

static void block_meets(const unsigned *order, unsigned threads)
{
	unsigned left = threads;

	for (unsigned t = 0; t < threads; t++) {
		fibres[t].done = fibres[t].waits = false;
		context_begin(&fibres[t].at, run.stacks + (size_t)t * STACK_BYTES, fibre_main);
	}
	while (turn(order, threads, &left) > 0)
		;
	if (left > 0)
		wrong("threads wait for one that does not come");
}

void shim_launch(void (*kernel)(const void *arg), const void *arg, unsigned blocks,
		 unsigned threads, bool meets)
{
	unsigned *block = calloc(blocks + 1, sizeof(*block)), order[THREADS_MAX];
	unsigned before = ftz_on();

	if (meets && run.stacks == NULL)
		run.stacks = aligned_alloc(16, (size_t)THREADS_MAX * STACK_BYTES);
	if (block == NULL || (meets && run.stacks == NULL) || threads > THREADS_MAX)
		wrong("no memory, or too many threads");
	/* What is not flushed here, shim_result() flushes. Operands are, always. */
	if (shim.ftz != SHIM_X86)
		ftz_set(ftz_get() & ~(unsigned)FTZ_BIT);
	run.kernel = kernel;
	run.arg = arg;
	shuffle(block, blocks);
	for (unsigned b = 0; b < blocks; b++) {
		shim.block.x = block[b];
		shuffle(order, threads);
		if (meets) {
			block_meets(order, threads);
			continue;
		}
		for (unsigned t = 0; t < threads; t++) {
			shim.thread.x = order[t];
			kernel(arg);
		}
	}
	ftz_restore(before);
	free(block);
}

void shim_meet(unsigned lanes)
{
	struct fibre *f = &fibres[shim.thread.x];

	if (!(lanes >> shim.thread.x % SHIM_WARP & 1))
		wrong("it meets others, and is not one of them");
	f->waits = true;
	f->lanes = lanes;
	context_switch(&f->at, &run.scheduler);
}

double shim_shuffle_down(unsigned lanes, double x, int down, int width)
{
	unsigned me = shim.thread.x, from = me + (unsigned)down;
	double got = x;

	fibres[me].shuffled = x;
	shim_meet(lanes);
	if (me % (unsigned)width + (unsigned)down < (unsigned)width) {
		if (!(lanes >> from % SHIM_WARP & 1))
			wrong("it reads from a thread that is not there");
		got = fibres[from].shuffled;
	}
	shim_meet(lanes);
	return got;
}

/* If what is rounded towards zero is below, so is the exact result. */
bool shim_below(int op, float x, float y, float z)
{
	enum { TOWARDS_ZERO = 0x6000 }; /* Of MXCSR. */
	volatile float a = x, b = y, c = z, r;
	unsigned before = ftz_get();

	ftz_set((before & ~(unsigned)FTZ_BIT) | TOWARDS_ZERO);
	r = op == SHIM_MUL ? a * b : op == SHIM_FMA ? fmaf(a, b, c) : a / b;
	ftz_set(before & ~(unsigned)DAZ_BIT); /* To compare a denormal result. */
	bool below = fabsf(r) < 0x1p-126f;
	ftz_set(before);
	return below;
}
