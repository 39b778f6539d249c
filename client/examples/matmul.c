// SPDX-License-Identifier: Apache-2.0
/* matmul.c: a matrix product that is fast enough on the baseline instruction set. layer.c and
 * transformer_run.c call it. It copies eight columns of b to a panel that stays in the first-level
 * cache. Then four rows of a at a time run along the panel with their 4 x 8 sums in registers. The
 * vectors are those of the compiler, so that their width and every bit of the result are fixed. It
 * cannot fail, and the caller answers for sizes and strides. */
#include "examples/matmul.h"
#include <string.h>

#define COLUMNS 8
#define ROWS    4

typedef float v4 __attribute__((vector_size(16)));

static inline v4 load(const float *p)
{
	v4 v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static inline void store(float *p, v4 v)
{
	memcpy(p, &v, sizeof(v));
}

static void fill_panel(float *panel, struct matmul_view b, size_t first, size_t columns, size_t k)
{
	const float *from = b.p + first * b.col;

	for (size_t i = 0; i < k; i++) {
		for (size_t j = 0; j < COLUMNS; j++)
			panel[i * COLUMNS + j] = j < columns ? from[i * b.row + j * b.col] : 0.0f;
	}
}

static void four_rows(float sum[ROWS][COLUMNS], const float *a, size_t row, size_t col,
		      const float *panel, size_t k)
{
	const float *a0 = a, *a1 = a + row, *a2 = a + 2 * row, *a3 = a + 3 * row;
	v4 s00 = load(sum[0]), s01 = load(sum[0] + 4), s10 = load(sum[1]), s11 = load(sum[1] + 4);
	v4 s20 = load(sum[2]), s21 = load(sum[2] + 4), s30 = load(sum[3]), s31 = load(sum[3] + 4);

	for (size_t i = 0; i < k; i++) {
		v4 b0 = load(panel + i * COLUMNS), b1 = load(panel + i * COLUMNS + 4);
		float x0 = a0[i * col], x1 = a1[i * col], x2 = a2[i * col], x3 = a3[i * col];

		s00 += x0 * b0;
		s01 += x0 * b1;
		s10 += x1 * b0;
		s11 += x1 * b1;
		s20 += x2 * b0;
		s21 += x2 * b1;
		s30 += x3 * b0;
		s31 += x3 * b1;
	}
	store(sum[0], s00), store(sum[0] + 4, s01), store(sum[1], s10), store(sum[1] + 4, s11);
	store(sum[2], s20), store(sum[2] + 4, s21), store(sum[3], s30), store(sum[3] + 4, s31);
}

static void one_row(float sum[COLUMNS], const float *a, size_t col, const float *panel, size_t k)
{
	v4 s0 = load(sum), s1 = load(sum + 4);

	for (size_t i = 0; i < k; i++) {
		s0 += a[i * col] * load(panel + i * COLUMNS);
		s1 += a[i * col] * load(panel + i * COLUMNS + 4);
	}
	store(sum, s0), store(sum + 4, s1);
}

void matmul(float *c, size_t c_row, struct matmul_view a, struct matmul_view b, size_t m, size_t n,
	    size_t k, bool add, float *panel)
{
	for (size_t j = 0; j < n; j += COLUMNS) {
		size_t columns = n - j < COLUMNS ? n - j : COLUMNS;

		fill_panel(panel, b, j, columns, k);
		for (size_t i = 0; i < m; i += ROWS) {
			size_t rows = m - i < ROWS ? m - i : ROWS;
			float sum[ROWS][COLUMNS] = {{0}};

			for (size_t r = 0; add && r < rows; r++)
				memcpy(sum[r], c + (i + r) * c_row + j, columns * sizeof(float));
			if (rows == ROWS)
				four_rows(sum, a.p + i * a.row, a.row, a.col, panel, k);
			for (size_t r = 0; rows < ROWS && r < rows; r++)
				one_row(sum[r], a.p + (i + r) * a.row, a.col, panel, k);
			for (size_t r = 0; r < rows; r++)
				memcpy(c + (i + r) * c_row + j, sum[r], columns * sizeof(float));
		}
	}
}
