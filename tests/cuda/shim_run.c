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
#include <ucontext.h>
#include <unistd.h>

enum { THREADS_MAX = 1024, STACK_BYTES = 128 << 10 };

static struct fibre {
	ucontext_t at;
	bool done, waits;
	unsigned lanes;  /* For whom it waits. */
	double shuffled; /* What it offers. */
} fibres[THREADS_MAX];

static struct {
	ucontext_t scheduler;
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
	run.kernel(run.arg);
	fibres[shim.thread.x].done = true;
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

static void begin(struct fibre *f, char *stack)
{
	f->done = f->waits = false;
	if (getcontext(&f->at) != 0)
		wrong("getcontext() failed");
	f->at.uc_stack.ss_sp = stack;
	f->at.uc_stack.ss_size = STACK_BYTES;
	f->at.uc_link = &run.scheduler;
	makecontext(&f->at, fibre_main, 0);
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
		swapcontext(&run.scheduler, &f->at);
		if (!f->done)
			release(order[i], threads);
	}
	return went;
}

static void block_meets(const unsigned *order, unsigned threads, char *stacks)
{
	unsigned left = threads;

	for (unsigned t = 0; t < threads; t++)
		begin(&fibres[t], stacks + (size_t)t * STACK_BYTES);
	while (turn(order, threads, &left) > 0)
		;
	if (left > 0)
		wrong("threads wait for one that does not come");
}

void shim_launch(void (*kernel)(const void *arg), const void *arg, unsigned blocks,
		 unsigned threads, bool meets)
{
	unsigned *block = calloc(blocks + 1, sizeof(*block)), order[THREADS_MAX];
	char *stacks = meets ? malloc((size_t)threads * STACK_BYTES) : NULL;
	unsigned before = ftz_on();

	if (block == NULL || (meets && stacks == NULL) || threads > THREADS_MAX)
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
			block_meets(order, threads, stacks);
			continue;
		}
		for (unsigned t = 0; t < threads; t++) {
			shim.thread.x = order[t];
			kernel(arg);
		}
	}
	ftz_restore(before);
	free(block);
	free(stacks);
}

void shim_meet(unsigned lanes)
{
	struct fibre *f = &fibres[shim.thread.x];

	if (!(lanes >> shim.thread.x % SHIM_WARP & 1))
		wrong("it meets others, and is not one of them");
	f->waits = true;
	f->lanes = lanes;
	swapcontext(&f->at, &run.scheduler);
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
