/* SPDX-License-Identifier: Apache-2.0 */
/* adamw_kernel: the fused optimizer over 64 Mi parameters with bf16 gradient in and bf16 image out,
 * on all cores with pinned threads, beside this machine's read-modify-write bandwidth. Both count
 * the bytes that the program asks to read and to write, which are 28 per parameter for the kernel
 * and 24 for the limit. The limit uses the kernel's own three fp32 arrays, the same threads, the
 * same slices and the same vectors. It only loads, multiplies and stores in place, which is what
 * the kernel would cost without arithmetic and without the two 16-bit streams. Rounds alternate, so
 * that a slow second hits both, and the figures are medians. --quick: 4 Mi parameters and fewer
 * rounds. Much of that stays in caches, so its ratio says little.
 *
 * encode_int8, encode_int4, encode_int8_ef, encode_int4_ef: bf16 gradients into codes, without and
 * with a residual that is read and written. decode_int8, decode_int4: the sum of two coded
 * gradients as bf16, with its norm. Each beside memcpy() of as many bytes, read and written, by the
 * same threads. */
#include "base/check.h"
#include "base/clock.h"
#include "optim/ftz.h"
#include "optim/optim.h"
#include "optim/quant.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROUNDS_MAX = 21, THREADS_MAX = 256, CHUNK = 1 << 20, HUGE_PAGE = 2 << 20 };

enum work { WORK_TOUCH, WORK_KERNEL, WORK_LIMIT, WORK_ENCODE, WORK_DECODE, WORK_COPY, WORK_END };

struct bench {
	size_t n; /* Parameters. */
	int threads;
	enum work work;
	pthread_barrier_t go, done;
	optim_apply *apply;
	struct optim_args args;
	uint16_t *grad, *image;
	float *state[3];
	struct quant quant;
	const struct quant_kernels *codes;
	bool feedback;
	size_t slice_bytes; /* WORK_COPY: how many are copied for each chunk. */
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

/* Two coded gradients, chunk by chunk. */
static char *coded(const struct bench *b, int which, size_t at)
{
	return (char *)b->state[2] +
	       ((size_t)which * (b->n / CHUNK) + at / CHUNK) * quant_bytes(&b->quant, CHUNK);
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
	case WORK_ENCODE:
		b->codes->encode(&b->quant, n, b->grad + at, SHARD_BF16,
				 b->feedback
					 ? &(struct quant_residual){b->image + at, 1, b->image + at}
					 : NULL,
				 coded(b, 0, at));
		return;
	case WORK_DECODE: {
		const void *two[] = {coded(b, 0, at), coded(b, 1, at)};

		b->codes->sum(&b->quant, n, 2, two, b->image + at, SHARD_BF16, true);
		return;
	}
	case WORK_COPY:
		memcpy((char *)b->state[0] + at / CHUNK * b->slice_bytes,
		       (char *)b->state[1] + at / CHUNK * b->slice_bytes, b->slice_bytes);
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

/* bytes: read and written for each element. */
static void beside_copy(struct bench *b, const char *name, enum work work, double bytes, int rounds)
{
	double ours[ROUNDS_MAX], copy[ROUNDS_MAX], all = bytes * (double)b->n * 1e-9;

	b->slice_bytes = (size_t)(bytes / 2 * CHUNK);
	seconds(b, work);
	seconds(b, WORK_COPY);
	for (int i = 0; i < rounds; i++) {
		ours[i] = all / seconds(b, work);
		copy[i] = all / seconds(b, WORK_COPY);
	}
	double o = median(ours, rounds), c = median(copy, rounds);
	printf("bench: %s %.2f GB/s limit %.2f ratio %.3f\n", name, o, c, o / c);
}

static void measure_codes(struct bench *b, int rounds)
{
	static const char *const names[] = {[QUANT_INT8] = "int8", [QUANT_INT4] = "int4"};

	for (int kind = QUANT_INT8; kind <= QUANT_INT4; kind++) {
		char name[32];
		double coded_bytes;

		b->quant = (struct quant){(enum quant_kind)kind, 256};
		coded_bytes = (double)quant_bytes(&b->quant, CHUNK) / CHUNK;
		seconds(b, WORK_TOUCH);
		b->feedback = false;
		snprintf(name, sizeof(name), "encode_%s", names[kind]);
		beside_copy(b, name, WORK_ENCODE, 2 + coded_bytes, rounds);
		b->feedback = true;
		snprintf(name, sizeof(name), "encode_%s_ef", names[kind]);
		beside_copy(b, name, WORK_ENCODE, 6 + coded_bytes, rounds);
		snprintf(name, sizeof(name), "decode_%s", names[kind]);
		beside_copy(b, name, WORK_DECODE, 2 + 2 * coded_bytes, rounds);
	}
}

static void bench_init(struct bench *b, size_t n, enum isa isa)
{
	const struct optim_row *row = optim_row(OPTIM_ADAMW);
	double h[HYPER_NR];

	*b = (struct bench){.n = n,
			    .apply = optim_kernel(row, isa, SHARD_BF16, SHARD_BF16),
			    .codes = quant_kernels(isa)};
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
	measure_codes(&b, quick ? 5 : ROUNDS_MAX);
	seconds(&b, WORK_END);
	for (int i = 0; i < b.threads; i++)
		pthread_join(threads[i].id, NULL);
	return 0;
}
