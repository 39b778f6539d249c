/* SPDX-License-Identifier: Apache-2.0 */
/* matmul.h: one matrix product for everything that the example model multiplies. The operands are
 * views with two strides, so that a transposed matrix is the same memory with the strides
 * exchanged. Every element of the result is the sum over k = 0, 1, 2, ... in that order, however
 * the work is divided into blocks. So its bits depend on the operands only. */
#ifndef EXAMPLES_MATMUL_H
#define EXAMPLES_MATMUL_H

#include <stdbool.h>
#include <stddef.h>

struct matmul_view {
	const float *p;
	size_t row, col; /* Strides in elements. */
};

/* c[m][n] = a[m][k] b[k][n], or += when add. panel is scratch of matmul_panel(k) floats. */
void matmul(float *c, size_t c_row, struct matmul_view a, struct matmul_view b, size_t m, size_t n,
	    size_t k, bool add, float *panel);

static inline size_t matmul_panel(size_t k)
{
	return k * 8;
}

/* p is stored row by row. */
static inline struct matmul_view matmul_rows(const float *p, size_t columns)
{
	return (struct matmul_view){p, columns, 1};
}

static inline struct matmul_view matmul_transposed(const float *p, size_t columns)
{
	return (struct matmul_view){p, 1, columns};
}

#endif
