// SPDX-License-Identifier: Apache-2.0
/* lease.c: asks a GPU, in as little time as possible, what tests without one cannot know. First
 * where it looks for what it flushes to zero (optim/ops.h). Then whether each rule has the bits of
 * this processor, how fast updates and sums are beside a plain copy in the device's memory, and
 * whether network devices could write there. It loads the fatbins that lease.sh names, and prints a
 * table last, with a line for what was not measured. Any call that fails ends it with a sentence
 * and status 1, and so does a difference. */
#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "cuda/border.h"
#include "cuda/driver.h"
#include "gpu/kernels.h"
#include "optim/ftz.h"
#include "optim/optim.h"
#include "optim/reduce.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS_MAX = 64, THREADS_MAX = 64, ROUNDS = 7, REPEATS = 10 };

static struct lease {
	struct driver d;
	cu_device device;
	cu_context ctx;
	cu_stream stream;
	cu_module kernels, border;
	uint64_t cases, elements, chunk; /* From the command line. */
	uint32_t chunks;
	unsigned threads;
	char row[ROWS_MAX][160];
	uint32_t rows_nr;
	bool differs;
} l;

__attribute__((format(printf, 1, 2), noreturn)) static void die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("lease: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputs("\n", stderr);
	va_end(ap);
	exit(1);
}

__attribute__((format(printf, 1, 2))) static void row(const char *fmt, ...)
{
	va_list ap;

	CHECK(l.rows_nr < ROWS_MAX);
	va_start(ap, fmt);
	vsnprintf(l.row[l.rows_nr], sizeof(l.row[0]), fmt, ap);
	va_end(ap);
	fprintf(stderr, "lease: %s\n", l.row[l.rows_nr++]); /* Should the time end early. */
}

static void need(cu_result rc, const char *call)
{
	struct err e = {0};

	if (rc == CU_SUCCESS)
		return;
	(void)driver_fail(&l.d, &e, rc, call, "");
	die("%s", e.text);
}

/* --- the device --- */

static cu_module module(const char *path)
{
	FILE *f = fopen(path, "re");
	cu_module made = NULL;
	char *image;
	long bytes;

	if (f == NULL || fseek(f, 0, SEEK_END) != 0 || (bytes = ftell(f)) <= 0)
		die("%s cannot be read: make fatbin, with nvcc", path);
	rewind(f);
	image = malloc((size_t)bytes);
	if (image == NULL || fread(image, 1, (size_t)bytes, f) != (size_t)bytes)
		die("%s cannot be read", path);
	fclose(f);
	need(l.d.module_load(&made, image), "cuModuleLoadData");
	free(image);
	return made;
}

static void open_device(const char *kernels, const char *border)
{
	struct err e = {0};
	char name[96] = "";
	int major = 0, version = 0;

	if (driver_open(&l.d, DRIVER_DAEMON, &e) != SHARD_OK)
		die("%s", e.text);
	need(l.d.device_get(&l.device, 0), "cuDeviceGet");
	need(l.d.device_name(name, sizeof(name) - 1, l.device), "cuDeviceGetName");
	need(l.d.device_attribute(&major, CU_COMPUTE_MAJOR, l.device), "cuDeviceGetAttribute");
	need(l.d.version(&version), "cuDriverGetVersion");
	need(l.d.primary_retain(&l.ctx, l.device), "cuDevicePrimaryCtxRetain");
	need(l.d.ctx_push(l.ctx), "cuCtxPushCurrent");
	need(l.d.stream_create(&l.stream, CU_STREAM_OWN), "cuStreamCreate");
	l.kernels = module(kernels);
	l.border = module(border);
	row("%-30s %s, compute %d, CUDA %d.%d, %u threads here", "device", name, major,
	    version / 1000, version % 1000 / 10, l.threads);
}

static cu_ptr device_memory(size_t bytes)
{
	cu_ptr p = 0;

	need(l.d.memory_alloc(&p, bytes), "cuMemAlloc");
	return p;
}

static void put(cu_ptr to, const void *from, size_t bytes)
{
	need(l.d.to_device(to, from, bytes, l.stream), "cuMemcpyHtoDAsync");
	need(l.d.stream_sync(l.stream), "cuStreamSynchronize");
}

static void get(void *to, cu_ptr from, size_t bytes)
{
	need(l.d.to_host(to, from, bytes, l.stream), "cuMemcpyDtoHAsync");
	need(l.d.stream_sync(l.stream), "cuStreamSynchronize");
}

static cu_function function(cu_module of, const char *name)
{
	cu_function f = NULL;

	need(l.d.module_function(&f, of, name), name);
	return f;
}

static void launch(cu_function f, void *job, uint64_t blocks, unsigned threads)
{
	void *jobs[] = {job};

	need(l.d.launch(f, (unsigned)blocks, 1, 1, threads, 1, 1, 0, l.stream, jobs, NULL),
	     "cuLaunchKernel");
}

/* --- threads --- */

struct part {
	pthread_t thread;
	void (*run)(void *arg, uint64_t first, uint64_t n, uint64_t seed);
	void *arg;
	uint64_t first, n, seed;
};

static void *part_main(void *arg)
{
	struct part *p = arg;
	unsigned before = ftz_on();

	p->run(p->arg, p->first, p->n, p->seed);
	ftz_restore(before);
	return NULL;
}

/* Does [0, n) in parts, on borders of 64, with flush-to-zero. */
static void parallel(void (*run)(void *, uint64_t, uint64_t, uint64_t), void *arg, uint64_t n,
		     uint64_t seed)
{
	struct part part[THREADS_MAX];
	uint64_t each = (n / l.threads + 64) / 64 * 64;
	uint32_t nr = 0;

	for (uint64_t at = 0; at < n; at += each, nr++) {
		part[nr] = (struct part){.run = run,
					 .arg = arg,
					 .first = at,
					 .n = n - at < each ? n - at : each,
					 .seed = seed * THREADS_MAX + nr};
		if (pthread_create(&part[nr].thread, NULL, part_main, &part[nr]) != 0)
			die("no thread can be made");
	}
	for (uint32_t i = 0; i < nr; i++)
		pthread_join(part[i].thread, NULL);
}

/* --- where it looks for what it flushes --- */

struct border {
	enum border_op op;
	bool random; /* Any bits at all. */
	float *x, *y, *z, *want, *got;
	/* Differences: 2^-126 where x86 has 0, the other way round, and any other. */
	_Atomic uint64_t keeps, loses, other;
};

static void border_fill(void *arg, uint64_t first, uint64_t n, uint64_t seed)
{
	struct border *b = arg;
	struct rng r = {seed};

	if (!b->random)
		border_make(b->op, seed, (uint32_t)n, b->x + first, b->y + first, b->z + first);
	for (uint64_t i = first; b->random && i < first + n; i++) {
		uint64_t u = rng_next(&r);

		b->x[i] = dtype_float((uint32_t)u);
		b->y[i] = dtype_float((uint32_t)(u >> 32));
		b->z[i] = dtype_float((uint32_t)rng_next(&r));
	}
	border_expect(b->op, (uint32_t)n, b->x + first, b->y + first, b->z + first,
		      b->want + first);
}

static void border_judge(void *arg, uint64_t first, uint64_t n, uint64_t seed)
{
	struct border *b = arg;

	(void)seed;
	for (uint64_t i = first; i < first + n; i++) {
		uint32_t want = dtype_bits(b->want[i]), got = dtype_bits(b->got[i]);
		bool nan = (want & 0x7fffffff) > 0x7f800000 && (got & 0x7fffffff) > 0x7f800000;

		if (want == got || nan) /* No NaN is kept by any rule. */
			continue;
		if ((want & 0x7fffffff) == 0 && (got & 0x7fffffff) == 0x00800000)
			b->keeps++;
		else if ((want & 0x7fffffff) == 0x00800000 && (got & 0x7fffffff) == 0)
			b->loses++;
		else
			b->other++;
	}
}

static void border_run(struct border *b, const char *how, cu_ptr *dev, uint64_t n, uint64_t seed)
{
	static const char *const names[] = {"mul", "fma", "div"};
	struct border_job job = {(float *)dev[0], (float *)dev[1], (float *)dev[2], (float *)dev[3],
				 (uint32_t)n};
	char name[32];

	parallel(border_fill, b, n, seed);
	put(dev[0], b->x, n * 4);
	put(dev[1], b->y, n * 4);
	put(dev[2], b->z, n * 4);
	snprintf(name, sizeof(name), "%s_%s", how, names[b->op]);
	launch(function(l.border, name), &job, (n + BORDER_THREADS - 1) / BORDER_THREADS,
	       BORDER_THREADS);
	get(b->got, dev[3], n * 4);
	parallel(border_judge, b, n, seed);
}

static void *host_memory(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);

	if (p == NULL)
		die("no memory for %zu bytes", bytes);
	return p;
}

static void borders(void)
{
	static const char *const names[] = {"products", "fmas", "quotients"};
	const uint64_t n = l.cases;
	cu_ptr dev[4];
	struct border b = {.x = host_memory(n * 4),
			   .y = host_memory(n * 4),
			   .z = host_memory(n * 4),
			   .want = host_memory(n * 4),
			   .got = host_memory(n * 4)};
	uint64_t keeps = 0, loses = 0;

	for (int i = 0; i < 4; i++)
		dev[i] = device_memory(n * 4);
	for (int turn = 0; turn < 4 * BORDER_OPS; turn++) {
		const char *how = turn / BORDER_OPS % 2 ? "careful" : "raw";

		b.op = (enum border_op)(turn % BORDER_OPS);
		b.random = turn >= 2 * BORDER_OPS;
		b.keeps = b.loses = b.other = 0;
		border_run(&b, how, dev, n, 1 + (uint64_t)b.random);
		row("%-30s %" PRIu64 " %s%s: %" PRIu64 " keep 2^-126, %" PRIu64 " lose it, %" PRIu64
		    " other differences",
		    turn / BORDER_OPS % 2 ? "repaired" : "as the device has it", n, names[b.op],
		    b.random ? "" : " at the border", b.keeps, b.loses, b.other);
		l.differs = l.differs || b.other || (turn / BORDER_OPS % 2 && (b.keeps || b.loses));
		if (turn / BORDER_OPS % 2 == 0) {
			keeps += b.keeps;
			loses += b.loses;
		}
	}
	row("%-30s OPS_REPAIR can be %d", "so", (keeps > 0 ? 1 : 0) | (loses > 0 ? 2 : 0));
	for (int i = 0; i < 4; i++)
		need(l.d.memory_free(dev[i]), "cuMemFree");
	free(b.x), free(b.y), free(b.z), free(b.want), free(b.got);
}

/* --- the bits of each rule --- */

struct sweep {
	const struct optim_row *row;
	enum shard_dtype gdt, idt;
	struct optim_args args;
	float *tensor[3], *got[3];
	void *grad, *image, *got_image;
	_Atomic uint64_t kept, differ;
};

static float any_number(struct rng *r, bool positive)
{
	uint64_t v = rng_next(r);
	uint32_t u = (uint32_t)v;

	/* Any bits, ordinary numbers, and tiny ones. */
	if (v >> 62 == 1 || v >> 62 == 2)
		u = (u & 0x807fffff) | (uint32_t)(100 + (v >> 32) % 30) << 23;
	else if (v >> 62 == 3)
		u = (u & 0x807fffff) | (uint32_t)((v >> 32) % 64) << 23;
	return dtype_float(positive ? u & 0x7fffffff : u);
}

static void sweep_fill(void *arg, uint64_t first, uint64_t n, uint64_t seed)
{
	struct sweep *s = arg;
	struct rng r = {seed};

	for (uint64_t i = first; i < first + n; i++) {
		float w = any_number(&r, false);

		s->tensor[0][i] = any_number(&r, false);
		s->tensor[1][i] = any_number(&r, false);
		s->tensor[2][i] = any_number(&r, true);
		dtype_convert((char *)s->grad + i * dtype_bytes(s->gdt), s->gdt, &w, SHARD_F32, 1);
	}
}

static void sweep_judge(void *arg, uint64_t first, uint64_t n, uint64_t seed)
{
	struct sweep *s = arg;
	const size_t size = dtype_bytes(s->idt);
	char *image = (char *)s->image + first * size;
	uint64_t differ = 0;

	(void)seed;
	s->kept += optim_kernel(s->row, isa_best(), s->gdt, s->idt)(
		&s->args, n, (char *)s->grad + first * dtype_bytes(s->gdt), s->tensor[0] + first,
		s->tensor[1] + first, s->tensor[2] + first, image);
	for (uint32_t t = 0; t <= s->row->states_nr; t++)
		for (uint64_t i = first; i < first + n; i++)
			differ += dtype_bits(s->tensor[t][i]) != dtype_bits(s->got[t][i]);
	if (memcmp(image, (char *)s->got_image + first * size, n * size) != 0)
		differ++;
	s->differ += differ;
}

/* Tables of chunks that lie one after the other in each of the buffers. */
struct tables {
	struct gpu_chunk *chunks;
	struct gpu_segment *segments;
	cu_ptr dev_chunks, dev_segments, dev_args, dev_kept;
	uint32_t nr, blocks;
};

static void tables_make(struct tables *t, uint64_t elements, const cu_ptr *tensor, cu_ptr grad,
			size_t grad_size, cu_ptr image, size_t image_size)
{
	t->nr = (uint32_t)((elements + l.chunk - 1) / l.chunk);
	t->blocks = 0;
	t->chunks = host_memory(t->nr * sizeof(*t->chunks));
	t->segments = host_memory(t->nr * sizeof(*t->segments));
	for (uint32_t c = 0; c < t->nr; c++) {
		uint64_t at = c * l.chunk, n = elements - at < l.chunk ? elements - at : l.chunk;
		float *p[3];

		for (int i = 0; i < 3; i++)
			p[i] = (float *)(tensor[i] + at * 4);
		t->chunks[c] = (struct gpu_chunk){p[0],
						  p[1],
						  p[2],
						  p[0],
						  p[1],
						  p[2],
						  (void *)(grad + at * grad_size),
						  (void *)(image + at * image_size)};
		t->segments[c] = (struct gpu_segment){.chunk = c,
						      .n = (uint32_t)n,
						      .block = t->blocks,
						      .source = c,
						      .sources_nr = 1};
		t->blocks += (uint32_t)((n + REDUCE_BLOCK - 1) / REDUCE_BLOCK);
	}
	t->dev_chunks = device_memory(t->nr * sizeof(*t->chunks));
	t->dev_segments = device_memory(t->nr * sizeof(*t->segments));
	t->dev_args = device_memory(sizeof(struct optim_args));
	t->dev_kept = device_memory(t->nr * 8);
	put(t->dev_chunks, t->chunks, t->nr * sizeof(*t->chunks));
	put(t->dev_segments, t->segments, t->nr * sizeof(*t->segments));
}

static void tables_free(struct tables *t)
{
	need(l.d.memory_free(t->dev_chunks), "cuMemFree");
	need(l.d.memory_free(t->dev_segments), "cuMemFree");
	need(l.d.memory_free(t->dev_args), "cuMemFree");
	need(l.d.memory_free(t->dev_kept), "cuMemFree");
	free(t->chunks);
	free(t->segments);
}

static struct gpu_apply apply_job(const struct tables *t, uint32_t chunks)
{
	return (struct gpu_apply){(const struct gpu_segment *)t->dev_segments,
				  (const struct gpu_chunk *)t->dev_chunks,
				  (const struct optim_args *)t->dev_args,
				  (unsigned long long *)t->dev_kept,
				  chunks,
				  chunks < t->nr ? t->segments[chunks].block : t->blocks};
}

static void args_make(struct optim_args *a, const struct optim_row *row)
{
	double h[HYPER_NR];

	optim_defaults(row, h);
	h[HYPER_LR] = 0.01;
	h[HYPER_WEIGHT_DECAY] = 0.1;
	if (row->hyper[HYPER_MOMENTUM].name)
		h[HYPER_MOMENTUM] = 0.9;
	optim_args_set(a, row, h, 3, 0.37f);
}

static void sweep_turn(struct sweep *s, uint64_t n, const cu_ptr *dev, uint64_t seed)
{
	struct tables t;
	struct gpu_apply job;
	unsigned long long *kept;
	uint64_t sum = 0;
	char name[64];

	parallel(sweep_fill, s, n, seed);
	for (int i = 0; i < 3; i++)
		put(dev[i], s->tensor[i], n * 4);
	put(dev[3], s->grad, n * dtype_bytes(s->gdt));
	tables_make(&t, n, dev, dev[3], dtype_bytes(s->gdt), dev[4], dtype_bytes(s->idt));
	kept = host_memory(t.nr * 8);
	memset(kept, 0, t.nr * 8);
	put(t.dev_args, &s->args, sizeof(s->args));
	put(t.dev_kept, kept, t.nr * 8);
	job = apply_job(&t, t.nr);
	snprintf(name, sizeof(name), "apply_%s_%s_%s", s->row->name, dtype_name(s->gdt),
		 dtype_name(s->idt));
	launch(function(l.kernels, name), &job, job.blocks_nr, GPU_THREADS);
	for (int i = 0; i < 3; i++)
		get(s->got[i], dev[i], n * 4);
	get(s->got_image, dev[4], n * dtype_bytes(s->idt));
	get(kept, t.dev_kept, t.nr * 8);
	s->kept = 0;
	parallel(sweep_judge, s, n, seed);
	for (uint32_t c = 0; c < t.nr; c++)
		sum += kept[c];
	s->differ += sum != s->kept;
	free(kept);
	tables_free(&t);
}

/* --- the bits of sums --- */

static void sum_fill(void *arg, uint64_t first, uint64_t n, uint64_t seed)
{
	struct sweep *s = arg;
	struct rng r = {seed};

	/* Ordinary and tiny numbers: with any others each sum would be infinite. */
	for (uint64_t i = first; i < first + n; i++)
		for (int k = 0; k < 3; k++) {
			uint64_t v = rng_next(&r),
				 power = v >> 62 ? 100 + (v >> 32) % 20 : v >> 32 & 7;
			float x = dtype_float(((uint32_t)v & 0x807fffff) | (uint32_t)power << 23);

			dtype_convert((char *)s->tensor[k] + i * dtype_bytes(s->gdt), s->gdt, &x,
				      SHARD_F32, 1);
		}
}

/* The sum of k sources, each one segment in one chunk, as the kernel and as this processor has it.
 * Returns how many results differ. */
static uint64_t sum_turn(struct sweep *s, uint64_t n, const cu_ptr *dev, uint32_t k)
{
	const size_t size = dtype_bytes(s->gdt);
	const void *from[] = {s->tensor[0], s->tensor[1], s->tensor[2]};
	const uint32_t blocks = (uint32_t)((n + REDUCE_BLOCK - 1) / REDUCE_BLOCK);
	const struct gpu_segment segment = {.n = (uint32_t)n, .sources_nr = k};
	double *squares = host_memory(blocks * 8), total = 0;
	uint32_t bad = 0;
	uint64_t differ;
	cu_ptr tables = device_memory(4096), to_squares = device_memory(blocks * 8);
	struct gpu_sum job = {(const struct gpu_segment *)tables,
			      (const void *const *)(tables + 512),
			      (void *const *)(tables + 1024),
			      (double *)to_squares,
			      (uint32_t *)(tables + 1536),
			      1,
			      blocks,
			      1};
	char name[32];

	for (uint32_t i = 0; i < 3; i++)
		put(dev[i], s->tensor[i], n * size);
	put(tables, &segment, sizeof(segment));
	put(tables + 512, dev, 3 * 8);
	put(tables + 1024, dev + 3, 8);
	put(tables + 1536, &bad, 4);
	snprintf(name, sizeof(name), "sum_%s", dtype_name(s->gdt));
	launch(function(l.kernels, name), &job, (blocks + GPU_SUM_BLOCKS - 1) / GPU_SUM_BLOCKS,
	       GPU_THREADS);
	get(s->got[0], dev[3], n * size);
	get(squares, to_squares, blocks * 8);
	get(&bad, tables + 1536, 4);
	unsigned before = ftz_on();
	struct reduce_sum want = reduce_kernel(isa_best(), s->gdt)(n, k, from, s->image, 1, true);
	for (uint32_t b = 0; b < blocks; b++)
		total += squares[b];
	ftz_restore(before);
	differ = (memcmp(s->image, s->got[0], n * size) != 0) + (bad != !want.finite) +
		 (memcmp(&total, &want.sq, sizeof(total)) != 0);
	need(l.d.memory_free(tables), "cuMemFree");
	need(l.d.memory_free(to_squares), "cuMemFree");
	free(squares);
	return differ;
}

static void sum_sweeps(struct sweep *s, uint64_t n, const cu_ptr *dev)
{
	for (int dt = 1; dt <= DTYPE_NR; dt++) {
		uint64_t differ = 0;

		s->gdt = (enum shard_dtype)dt;
		parallel(sum_fill, s, n, 500 + (uint64_t)dt);
		for (uint32_t k = 1; k <= 3; k++)
			differ += sum_turn(s, n, dev, k);
		row("sum of 1, 2, 3 %-15s %" PRIu64 " elements: %" PRIu64 " differ",
		    dtype_name(s->gdt), n, differ);
		l.differs = l.differs || differ > 0;
	}
}

static void sweeps(void)
{
	const uint64_t n = l.elements;
	struct sweep s = {.grad = host_memory(n * 4),
			  .image = host_memory(n * 4),
			  .got_image = host_memory(n * 4)};
	cu_ptr dev[5];

	for (int i = 0; i < 3; i++) {
		s.tensor[i] = host_memory(n * 4);
		s.got[i] = host_memory(n * 4);
	}
	for (int i = 0; i < 5; i++)
		dev[i] = device_memory(n * 4);
	for (int id = 0; id < OPTIM_NR; id++) {
		s.row = optim_row((enum optim_id)id);
		args_make(&s.args, s.row);
		s.differ = 0;
		for (uint32_t pair = 0; pair < DTYPE_NR * DTYPE_NR; pair++) {
			s.gdt = (enum shard_dtype)(1 + pair % DTYPE_NR);
			s.idt = (enum shard_dtype)(1 + pair / DTYPE_NR);
			sweep_turn(&s, n, dev, 100 + (uint64_t)id * 16 + pair);
		}
		row("%-30s 9 x %" PRIu64 " elements: %" PRIu64 " differ", s.row->name, n,
		    (uint64_t)s.differ);
		l.differs = l.differs || s.differ > 0;
	}
	sum_sweeps(&s, n, dev);
	for (int i = 0; i < 5; i++)
		need(l.d.memory_free(dev[i]), "cuMemFree");
	for (int i = 0; i < 3; i++)
		free(s.tensor[i]), free(s.got[i]);
	free(s.grad), free(s.image), free(s.got_image);
}

/* --- speed --- */

struct speed {
	cu_ptr tensor[3], grad, image, other, squares, bad, sources, to;
	struct tables t;
	cu_function apply, sum;
};
enum speed_of { SPEED_COPY, SPEED_APPLY, SPEED_NORM, SPEED_SUM, SPEED_NR };

/* Starts one of them on that many chunks. Returns the bytes that it reads and writes. */
static uint64_t speed_start(struct speed *s, enum speed_of what, uint32_t chunks)
{
	const uint64_t n = chunks * l.chunk;
	struct gpu_apply apply = apply_job(&s->t, chunks);
	struct gpu_sum sum = {apply.segments,       (const void *const *)s->sources,
			      (void *const *)s->to, (double *)s->squares,
			      (uint32_t *)s->bad,   apply.segments_nr,
			      apply.blocks_nr,      1};

	if (what == SPEED_COPY) {
		need(l.d.within(s->tensor[1], s->tensor[0], n * 4, l.stream), "cuMemcpyDtoDAsync");
		return n * 8;
	}
	if (what == SPEED_APPLY) {
		launch(s->apply, &apply, apply.blocks_nr, GPU_THREADS);
		return n * 28;
	}
	launch(s->sum, &sum, (sum.blocks_nr + GPU_SUM_BLOCKS - 1) / GPU_SUM_BLOCKS, GPU_THREADS);
	return n * (what == SPEED_NORM ? 2 : 6);
}

/* The table of segments is that of a sum of one source, or of two. */
static void speed_sources(struct speed *s, uint32_t nr)
{
	uint64_t *at = host_memory(2 * s->t.nr * 8), *to = host_memory(s->t.nr * 8);

	for (uint32_t c = 0; c < s->t.nr; c++) {
		at[2 * c] = s->grad + c * l.chunk * 2;
		at[2 * c + 1] = s->other + c * l.chunk * 2;
		to[c] = nr > 1 ? s->image + c * l.chunk * 2 : 0;
		s->t.segments[c].source = 2 * c;
		s->t.segments[c].sources_nr = nr;
	}
	put(s->sources, at, 2 * s->t.nr * 8);
	put(s->to, to, s->t.nr * 8);
	put(s->t.dev_segments, s->t.segments, s->t.nr * sizeof(*s->t.segments));
	free(at);
	free(to);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* GB/s, each the median of some rounds that take turns. */
static void speed_measure(struct speed *s, uint32_t chunks, double gbs[SPEED_NR])
{
	double found[SPEED_NR][ROUNDS];

	for (int round = -1; round < ROUNDS; round++)
		for (int what = 0; what < SPEED_NR; what++) {
			uint64_t bytes = 0, start;

			speed_sources(s, what == SPEED_SUM ? 2 : 1);
			start = clock_ns();
			for (int i = 0; i < REPEATS; i++)
				bytes += speed_start(s, (enum speed_of)what, chunks);
			need(l.d.stream_sync(l.stream), "cuStreamSynchronize");
			if (round >= 0)
				found[what][round] = (double)bytes / (double)(clock_ns() - start);
		}
	for (int what = 0; what < SPEED_NR; what++) {
		qsort(found[what], ROUNDS, sizeof(double), by_value);
		gbs[what] = found[what][ROUNDS / 2];
	}
}

static void speeds(void)
{
	static const struct {
		const char *name;
		double least; /* Beside the copy. */
	} of[SPEED_NR] = {[SPEED_APPLY] = {"adamw bf16 bf16", 0.9},
			  [SPEED_NORM] = {"norm of one bf16", 0.8},
			  [SPEED_SUM] = {"sum of two bf16", 0.85}};
	const uint64_t n = l.chunks * l.chunk;
	struct speed s = {0};
	struct optim_args a;
	double gbs[SPEED_NR];
	char *zeros = host_memory(n * 4);

	memset(zeros, 0, n * 4);
	for (int i = 0; i < 3; i++)
		put(s.tensor[i] = device_memory(n * 4), zeros, n * 4);
	put(s.grad = device_memory(n * 2), zeros, n * 2);
	put(s.other = device_memory(n * 2), zeros, n * 2);
	s.image = device_memory(n * 2);
	tables_make(&s.t, n, s.tensor, s.grad, 2, s.image, 2);
	s.squares = device_memory(s.t.blocks * 8);
	s.bad = device_memory(s.t.nr * 4);
	s.sources = device_memory(s.t.nr * 16);
	s.to = device_memory(s.t.nr * 8);
	args_make(&a, optim_find("adamw"));
	put(s.t.dev_args, &a, sizeof(a));
	s.apply = function(l.kernels, "apply_adamw_bf16_bf16");
	s.sum = function(l.kernels, "sum_bf16");
	for (uint32_t chunks = 1; chunks <= l.chunks; chunks *= 4) {
		speed_measure(&s, chunks, gbs);
		row("%-22s %3u chunks %8.1f GB/s read and written", "copy in the device", chunks,
		    gbs[SPEED_COPY]);
		for (int what = SPEED_APPLY; what < SPEED_NR; what++)
			row("%-22s %3u chunks %8.1f GB/s, %.2f of the copy; wanted %.2f",
			    of[what].name, chunks, gbs[what], gbs[what] / gbs[SPEED_COPY],
			    of[what].least);
	}
	free(zeros);
}

/* --- network devices --- */

static int attribute(int which)
{
	int value = 0;

	need(l.d.device_attribute(&value, which, l.device), "cuDeviceGetAttribute");
	return value;
}

/* What gpu/memory.c asks before it has others write to the device, and a dma-buf. */
static void direct(void)
{
	struct cu_memory_prop prop = {.type = CU_MEMORY_PINNED,
				      .location = {CU_LOCATION_DEVICE, l.device},
				      .flags = {.gpu_direct_rdma = 1}};
	cu_result made = CU_NOT_SUPPORTED, flushed = CU_NOT_SUPPORTED;
	const size_t bytes = (size_t)32 << 20;
	cu_handle handle;
	uint64_t began;
	cu_ptr at = 0;
	int fd = -1;

	need(l.d.create(&handle, bytes, &prop, 0), "cuMemCreate, for network devices");
	need(l.d.reserve(&at, bytes, 0, 0, 0), "cuMemAddressReserve");
	need(l.d.map(at, bytes, 0, handle, 0), "cuMemMap");
	if (l.d.range_handle != NULL)
		made = l.d.range_handle(&fd, at, bytes, CU_RANGE_DMA_BUF, 0);
	began = clock_ns();
	for (int i = 0; i < REPEATS && l.d.flush_writes != NULL; i++)
		flushed = l.d.flush_writes(CU_FLUSH_CURRENT, CU_FLUSH_TO_OWNER);
	row("%-30s memory %d, dma-buf %d, ordering %d, flushes %d; dma-buf of 32 MiB: error %d; "
	    "flush: error %d, %.1f us",
	    "GPUDirect RDMA", attribute(CU_DIRECT_MEMORY), attribute(CU_DMA_BUF),
	    attribute(CU_DIRECT_ORDERING), attribute(CU_DIRECT_FLUSHES), made, flushed,
	    (double)(clock_ns() - began) / 1e3 / REPEATS);
	if (fd >= 0)
		(void)close(fd);
	need(l.d.unmap(at, bytes), "cuMemUnmap");
	need(l.d.unreserve(at, bytes), "cuMemAddressFree");
	need(l.d.release(handle), "cuMemRelease");
}

static const char *const not_measured[] = {
	"copies from and to the host, registered or not",
	"memory that outlives its maker, by descriptor",
	"whether imported memory can be read-only",
	"a step of training with state on the GPU",
	"what a context that ended leaves behind",
	"a network device that writes to the GPU",
};

int main(int argc, char **argv)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	if (argc != 7)
		die("usage: lease KERNELS BORDER CASES ELEMENTS CHUNK_ELEMENTS CHUNKS (lease.sh "
		    "calls it)");
	l.threads = cpus < 1 ? 1 : cpus > THREADS_MAX - 1 ? THREADS_MAX - 1 : (unsigned)cpus;
	l.cases = strtoull(argv[3], NULL, 10);
	l.elements = strtoull(argv[4], NULL, 10);
	l.chunk = strtoull(argv[5], NULL, 10);
	l.chunks = (uint32_t)strtoul(argv[6], NULL, 10);
	open_device(argv[1], argv[2]);
	direct();
	borders();
	sweeps();
	speeds();
	for (size_t i = 0; i < NR(not_measured); i++)
		row("%-30s not measured", not_measured[i]);
	for (uint32_t i = 0; i < l.rows_nr; i++)
		puts(l.row[i]);
	puts(l.differs ? "lease: bits DIFFER from this processor's" : "lease: all bits are equal");
	return l.differs;
}
