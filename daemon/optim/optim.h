/* SPDX-License-Identifier: Apache-2.0 */
/* optim.h: the optimizers as rows of a table. A row has the name, the states, and the
 * hyper-parameters with their ranges. There is one kernel for each instruction set and pair of
 * element types. The settings parser, the budget, the coordinator and the workers all read the same
 * row. */
#ifndef SHARD_OPTIM_OPTIM_H
#define SHARD_OPTIM_OPTIM_H

#include "base/isa.h"
#include "base/status.h"
#include "optim/kinds.h"
#include "optim/undo.h"
#include "wire/dtype.h"

/* An index into an array of HYPER_NR doubles. Each tensor group has such an array. Hyper of
 * shard.proto has these numbers, too. */
enum optim_hyper {
	HYPER_LR,
	HYPER_BETA1,
	HYPER_BETA2,
	HYPER_EPS,
	HYPER_WEIGHT_DECAY,
	HYPER_MOMENTUM,
	HYPER_NESTEROV, /* 0 or 1 */
	HYPER_NR,
};

struct optim_range { /* The range of one hyper-parameter of one optimizer. */
	/* The name in the settings. NULL: this optimizer has no such parameter. */
	const char *name;
	/* fallback is the default. The range goes from min to max, and both belong to it. */
	double fallback, min, max;
	bool below_max; /* The range does not include max. */
	bool whole;     /* The value is an integer. */
};

/* Updates one segment of n elements in place. grad NULL stands for a gradient of zeros. s1 and s2
 * are the state tensors in the order of the row, and unused ones are NULL. Pointers are aligned to
 * their elements, and no two buffers overlap. Returns how many elements were kept as they were
 * because their new master or state would not have been finite. */
typedef uint64_t optim_apply(const struct optim_args *a, size_t n, const void *grad, float *master,
			     float *s1, float *s2, void *image);

/* As optim_apply, with the same bits, for memory that outlives the process: undo keeps what is
 * overwritten. */
typedef uint64_t optim_apply_undo(const struct optim_args *a, size_t n, const void *grad,
				  float *master, float *s1, float *s2, void *image,
				  struct optim_undo *undo);

struct optim_row {
	const char *name;
	enum optim_id id;
	uint32_t states_nr;
	/* Which tensors s1 and s2 are, for shard_write and shard_read. */
	enum shard_kind states[OPTIM_STATES_MAX];
	struct optim_range hyper[HYPER_NR];
	void (*args)(struct optim_args *a, const double *h, uint64_t t);
};

const struct optim_row *optim_row(enum optim_id id);  /* CHECKs id. */
const struct optim_row *optim_find(const char *name); /* NULL: the name is unknown. */

/* The enum optim_hyper of that name in the settings. HYPER_NR: the optimizer has none. */
uint32_t optim_hyper_named(const struct optim_row *row, const char *name);
bool optim_hyper_in_range(const struct optim_row *row, uint32_t hyper, double x);
/* Parameters that the row lacks become 0. */
void optim_defaults(const struct optim_row *row, double h[HYPER_NR]);
/* Checks ranges and combinations. SHARD_BAD_ARG: the text names the parameter, the value and the
 * range, and the caller puts in front where it stood. */
enum shard_status optim_hyper_check(const struct optim_row *row, const double h[HYPER_NR],
				    struct err *e);

/* t counts the applied steps, this one included, so that it starts at 1. Only the coordinator calls
 * it, because pow of libm gives other bits on other machines (args.c). h holds the learning rate
 * and the momenta of this step. */
void optim_args_set(struct optim_args *a, const struct optim_row *row, const double h[HYPER_NR],
		    uint64_t t, float mult);

optim_apply *optim_kernel(const struct optim_row *row, enum isa isa, enum shard_dtype grad,
			  enum shard_dtype image);
optim_apply_undo *optim_kernel_undo(const struct optim_row *row, enum isa isa,
				    enum shard_dtype grad, enum shard_dtype image);

#endif
