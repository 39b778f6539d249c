/* SPDX-License-Identifier: Apache-2.0 */
/* adamw_kernel: the fused optimizer over 64 Mi parameters with bf16 gradient in and bf16 image out,
 * on all cores with pinned threads, beside this machine's read-modify-write bandwidth. Both count
 * the bytes that the program asks to read and to write, which are 28 per parameter for the kernel
 * and 24 for the limit. The limit uses the kernel's own three fp32 arrays, the same threads, the
 * same slices and the same vectors. It only loads, multiplies and stores in place, which is what
 * the kernel would cost without arithmetic and without the two 16-bit streams. Rounds alternate, so
 * that a slow second hits both, and the figures are medians. --quick: 4 Mi parameters and fewer
 * rounds. Much of that stays in caches, so its ratio says little. */
#include "base/check.h"
#include "base/clock.h"
#include "optim/ftz.h"
#include "optim/optim.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROUNDS_MAX = 21, THREADS_MAX = 256, CHUNK = 1 << 20, HUGE_PAGE = 2 << 20 };

enum work { WORK_TOUCH, WORK_KERNEL, WORK_LIMIT, WORK_END };

struct bench {
	size_t n; /* Parameters. */
	int threads;
	enum work work;
	pthread_barrier_t go, done;
	optim_apply *apply;
	struct optim_args args;
	uint16_t *grad, *image;
	float *state[3];
};

struct thread {
	struct bench *b;
	int index, cpu;
	pthread_t id;
};

/* Takes memory as the daemon's store does: anonymous, with huge pages where the kernel gives
 * them. */
static void *take(size_t bytes)
{
	size_t whole = (bytes + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
	char *p = mmap(NULL, whole + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		       -1, 0);

	CHECK(p != MAP_FAILED);
	p += (HUGE_PAGE - ((uintptr_t)p & (HUGE_PAGE - 1))) & (HUGE_PAGE - 1);
	(void)madvise(p, whole, MADV_HUGEPAGE);
	return p;
}

static void touch(const struct bench *b, size_t at, size_t n)
{
	for (size_t i = at; i < at + n; i++) {
		b->grad[i] = dtype_to_bf16((float)(i % 1001) * 1e-4f - 0.05f);
		b->image[i] = 0;
		b->state[0][i] = 1.0f;
		b->state[1][i] = 0.01f;
		b->state[2][i] = 0.001f;
	}
}

/* The clones let the loop use the vectors that the kernel uses. */
__attribute__((target_clones("avx512f", "avx2", "default"))) static void scale(float *restrict a,
									       float *restrict b,
									       float *restrict c,
									       size_t n)
{
	for (size_t i = 0; i < n; i++) {
		a[i] *= 0.9999f;
		b[i] *= 0.9999f;
		c[i] *= 0.9999f;
	}
}

static void slice(const struct bench *b, size_t at, size_t n)
{
	float *p = b->state[0] + at, *m = b->state[1] + at, *v = b->state[2] + at;

	switch (b->work) {
	case WORK_TOUCH:
		touch(b, at, n);
		return;
	case WORK_KERNEL:
		CHECK(b->apply(&b->args, n, b->grad + at, p, m, v, b->image + at) == 0);
		return;
	case WORK_LIMIT:
		scale(p, m, v, n);
		return;
	case WORK_END:
		return;
	}
}

static void *thread_main(void *arg)
{
	struct thread *t = arg;
	struct bench *b = t->b;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(t->cpu, &set);
	(void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
	ftz_on();
	for (;;) {
		pthread_barrier_wait(&b->go);
		if (b->work == WORK_END)
			return NULL;
		for (size_t at = (size_t)t->index * CHUNK; at < b->n;
		     at += (size_t)b->threads * CHUNK)
			slice(b, at, b->n - at < CHUNK ? b->n - at : CHUNK);
		pthread_barrier_wait(&b->done);
	}
}

static double seconds(struct bench *b, enum work work)
{
	b->work = work;
	uint64_t start = clock_ns();
	pthread_barrier_wait(&b->go);
	if (work == WORK_END)
		return 0;
	pthread_barrier_wait(&b->done);
	return (double)(clock_ns() - start) * 1e-9;
}

static int by_value(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;

	return (a > b) - (a < b);
}

static double median(double *x, int n)
{
	qsort(x, (size_t)n, sizeof(*x), by_value);
	return x[n / 2];
}

static void measure(struct bench *b, int rounds)
{
	double kernel[ROUNDS_MAX], limit[ROUNDS_MAX];

	seconds(b, WORK_TOUCH);
	seconds(b, WORK_KERNEL);
	seconds(b, WORK_LIMIT);
	for (int i = 0; i < rounds; i++) {
		kernel[i] = 28.0 * (double)b->n * 1e-9 / seconds(b, WORK_KERNEL);
		limit[i] = 24.0 * (double)b->n * 1e-9 / seconds(b, WORK_LIMIT);
	}
	double k = median(kernel, rounds), l = median(limit, rounds);
	printf("bench: adamw_kernel %.2f GB/s limit %.2f ratio %.3f\n", k, l, k / l);
}

static void bench_init(struct bench *b, size_t n, enum isa isa)
{
	const struct optim_row *row = optim_row(OPTIM_ADAMW);
	double h[HYPER_NR];

	*b = (struct bench){.n = n, .apply = optim_kernel(row, isa, SHARD_BF16, SHARD_BF16)};
	optim_defaults(row, h);
	optim_args_set(&b->args, row, h, 10, 1.0f);
	b->grad = take(2 * n);
	b->image = take(2 * n);
	for (int i = 0; i < 3; i++)
		b->state[i] = take(4 * n);
}

int main(int argc, char **argv)
{
	bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
	struct thread threads[THREADS_MAX];
	struct bench b;
	cpu_set_t set;

	bench_init(&b, quick ? 4u << 20 : 64u << 20, isa_best());
	CHECK(sched_getaffinity(0, sizeof(set), &set) == 0);
	for (int cpu = 0; cpu < CPU_SETSIZE && b.threads < THREADS_MAX; cpu++)
		if (CPU_ISSET(cpu, &set))
			threads[b.threads++] =
				(struct thread){.b = &b, .index = b.threads, .cpu = cpu};
	CHECK(pthread_barrier_init(&b.go, NULL, (unsigned)b.threads + 1) == 0);
	CHECK(pthread_barrier_init(&b.done, NULL, (unsigned)b.threads + 1) == 0);
	for (int i = 0; i < b.threads; i++)
		CHECK(pthread_create(&threads[i].id, NULL, thread_main, &threads[i]) == 0);
	measure(&b, quick ? 5 : ROUNDS_MAX);
	seconds(&b, WORK_END);
	for (int i = 0; i < b.threads; i++)
		pthread_join(threads[i].id, NULL);
	return 0;
}
