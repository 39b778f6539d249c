/* SPDX-License-Identifier: Apache-2.0 */
/* Tests lengths 0 to 257 and every alignment. The optimizers give the scalar result whatever n and
 * the low bits of the pointers are, do not touch what is before and behind, treat a missing
 * gradient as zeros, and do not change the gradient. */
#include "kernel/cases.h"

enum {
	/* Bytes around and in each buffer. */
	LEN = 258,
	MARGIN = 128,
	SIZE = MARGIN + 4 * LEN + MARGIN
};

/* p, s1, s2, image and gradient, each with margins. */
struct arena5 {
	_Alignas(64) char b[5][SIZE];
};

struct call {
	const struct optim_row *row;
	enum shard_dtype gdt, idt;
	size_t n;
	size_t off[5]; /* Bytes from the margin to the start of each buffer. */
	bool no_grad;
};

static void fill(struct arena5 *m, const struct call *c)
{
	struct rng r = {c->n * 131 + 7};

	memset(m, 0xa5, sizeof(*m));
	for (size_t i = 0; i < c->n; i++) {
		struct state s = state_make((unsigned)(i % 5 ? 63 : rng_below(&r, STATES)));
		float g = (float)(rng_unit(&r) - 0.5);

		memcpy(m->b[0] + MARGIN + c->off[0] + 4 * i, &s.p, 4);
		memcpy(m->b[1] + MARGIN + c->off[1] + 4 * i, &s.s1, 4);
		memcpy(m->b[2] + MARGIN + c->off[2] + 4 * i, &s.s2, 4);
		dtype_convert(m->b[4] + MARGIN + c->off[4] + dtype_bytes(c->gdt) * i, c->gdt, &g,
			      SHARD_F32, 1);
	}
}

static uint64_t run(struct arena5 *m, const struct call *c, enum isa isa,
		    const struct optim_args *a)
{
	char *at[5];

	for (int i = 0; i < 5; i++)
		at[i] = m->b[i] + MARGIN + c->off[i];
	return optim_kernel(c->row, isa, c->gdt,
			    c->idt)(a, c->n, c->no_grad ? NULL : at[4], (float *)(void *)at[0],
				    c->row->states_nr > 0 ? (float *)(void *)at[1] : NULL,
				    c->row->states_nr > 1 ? (float *)(void *)at[2] : NULL, at[3]);
}

static void compare(const struct call *c, enum isa isa)
{
	static struct arena5 want, got;
	struct optim_args a;

	args_make(&a, c->row);
	fill(&want, c);
	fill(&got, c);
	uint64_t kept = run(&want, c, ISA_SCALAR, &a);
	assert_int_equal(run(&got, c, isa, &a), kept);
	if (memcmp(&want, &got, sizeof(want)) != 0)
		fail_msg("%s %s n=%zu offsets %zu %zu %zu %zu %zu: bytes differ", c->row->name,
			 isa_name(isa), c->n, c->off[0], c->off[1], c->off[2], c->off[3],
			 c->off[4]);
	for (int i = 0; i < 5; i++) /* The scalar kernel itself stays within its bounds. */
		for (size_t k = 0; k < MARGIN; k++)
			assert_true(want.b[i][k] == (char)0xa5 &&
				    want.b[i][SIZE - 1 - k] == (char)0xa5);
}

static void each_row(enum isa isa, void (*body)(struct call *c, enum isa isa))
{
	if (!isa_has(isa))
		skip();
	for (int id = 0; id < OPTIM_NR; id++)
		for (int g = 1; g <= DTYPE_NR; g++)
			for (int i = 1; i <= DTYPE_NR; i++)
				body(&(struct call){.row = optim_row((enum optim_id)id),
						    .gdt = (enum shard_dtype)g,
						    .idt = (enum shard_dtype)i},
				     isa);
}

static void each_length(struct call *c, enum isa isa)
{
	for (c->n = 0; c->n < LEN; c->n++) {
		c->no_grad = c->n % 7 == 3;
		compare(c, isa);
	}
}

static void each_alignment(struct call *c, enum isa isa)
{
	const size_t size[5] = {4, 4, 4, dtype_bytes(c->idt), dtype_bytes(c->gdt)};

	c->n = 53;
	for (int which = 0; which < 5; which++) /* One pointer at a time. */
		for (size_t off = 0; off < 64; off += size[which]) {
			memset(c->off, 0, sizeof(c->off));
			c->off[which] = off;
			compare(c, isa);
		}
	for (size_t k = 0; k < 16; k++) { /* All together. */
		for (int which = 0; which < 5; which++)
			c->off[which] = k * size[which];
		compare(c, isa);
	}
}

static void lengths_scalar(void **state)
{
	(void)state;
	each_row(ISA_SCALAR, each_length);
}

static void lengths_avx2(void **state)
{
	(void)state;
	each_row(ISA_AVX2, each_length);
}

static void lengths_avx512(void **state)
{
	(void)state;
	each_row(ISA_AVX512, each_length);
}

static void alignments_avx2(void **state)
{
	(void)state;
	each_row(ISA_AVX2, each_alignment);
}

static void alignments_avx512(void **state)
{
	(void)state;
	each_row(ISA_AVX512, each_alignment);
}

/* A missing gradient equals one made of zeros. The runs are large enough for any special path of a
 * kernel. */
static void zeros(void **state)
{
	enum { N = 300007 };
	uint16_t *zero = calloc(N, 2);
	struct bufs a = bufs_make(N), b = bufs_make(N);
	struct optim_args args;

	(void)state;
	for (int id = 0; id < OPTIM_NR * ISA_NR; id++) {
		const struct optim_row *row = optim_row((enum optim_id)(id / ISA_NR));
		enum isa isa = (enum isa)(id % ISA_NR);

		if (!isa_has(isa))
			continue;
		for (size_t i = 0; i < N; i++) {
			struct state s = state_make((unsigned)i % STATES);

			a.p[i] = b.p[i] = s.p;
			a.s1[i] = b.s1[i] = s.s1;
			a.s2[i] = b.s2[i] = s.s2;
		}
		args_make(&args, row);
		uint64_t kept = bufs_run(&a, optim_kernel(row, ISA_SCALAR, SHARD_BF16, SHARD_BF16),
					 row, &args, N, zero);
		assert_int_equal(bufs_run(&b, optim_kernel(row, isa, SHARD_BF16, SHARD_BF16), row,
					  &args, N, NULL),
				 kept);
		same("master", a.p, b.p, N, 4);
		same("first state", a.s1, b.s1, N, 4);
		same("second state", a.s2, b.s2, N, 4);
		same("image", a.image, b.image, N, 2);
	}
	free(zero);
	bufs_free(&a);
	bufs_free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lengths_scalar),    cmocka_unit_test(lengths_avx2),
		cmocka_unit_test(lengths_avx512),    cmocka_unit_test(alignments_avx2),
		cmocka_unit_test(alignments_avx512), cmocka_unit_test(zeros),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
