/* SPDX-License-Identifier: Apache-2.0 */
/* optim.h: the optimizers as rows of a table: name, state, hyper-parameters with ranges, and one
 * kernel per instruction set and pair of element types. The settings parser, the budget, the
 * coordinator and the workers all read the same row. */
#ifndef SHARD_OPTIM_OPTIM_H
#define SHARD_OPTIM_OPTIM_H

#include "base/isa.h"
#include "base/status.h"
#include "optim/undo.h"
#include "wire/dtype.h"

enum optim_id { OPTIM_ADAMW, OPTIM_ADAM, OPTIM_SGD, OPTIM_ADAGRAD, OPTIM_LION, OPTIM_NR };

enum { OPTIM_STATES_MAX = 2 };

/* index into an array of HYPER_NR doubles; one such array per tensor group */
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

struct optim_range {      /* of one hyper-parameter of one optimizer */
	const char *name; /* as in the settings; NULL: this optimizer has no such parameter */
	double fallback, min, max; /* both ends belong to the range, */
	bool below_max;            /* unless this excludes the upper one */
	bool whole;                /* integers only */
};

/* What a kernel needs to know about a step: everything that takes a division, a power or a root is
 * already done, in double, and rounded to float once. Travels as these 4-byte words in this order;
 * words that an optimizer does not use are zero. */
struct optim_args {
	float mult;  /* g = gradient * mult; clip factor / (loss scale * sum of weights) */
	float lr;    /* sgd, adagrad, lion */
	float decay; /* 1 - lr * weight_decay; adamw, lion */
	float l2;    /* weight_decay that is added to the gradient; adam, sgd, adagrad */
	float beta1; /* or sgd's momentum */
	float one_minus_beta1;
	float beta2;
	float one_minus_beta2;
	float eps;
	float step_size;   /* lr / (1 - beta1^t); adamw, adam */
	float bc2_sqrt;    /* sqrt(1 - beta2^t); adamw, adam */
	uint32_t nesterov; /* sgd */
};
enum { OPTIM_ARGS_WORDS = sizeof(struct optim_args) / 4 };

/* One segment: n elements, in place. grad NULL: a gradient of zeros. s1 and s2: the row's state
 * tensors in its order, unused ones NULL. Pointers are element-aligned; no two buffers overlap.
 * Returns how many elements were kept as they were because their new master or state would not have
 * been finite. */
typedef uint64_t optim_apply(const struct optim_args *a, size_t n, const void *grad, float *master,
			     float *s1, float *s2, void *image);

/* The same bits, for memory that outlives the process. */
typedef uint64_t optim_apply_undo(const struct optim_args *a, size_t n, const void *grad,
				  float *master, float *s1, float *s2, void *image,
				  struct optim_undo *undo);

struct optim_row {
	const char *name;
	enum optim_id id;
	uint32_t states_nr;
	enum shard_kind states[OPTIM_STATES_MAX]; /* which tensors s1 and s2 are, for shard_write
						     and shard_read */
	struct optim_range hyper[HYPER_NR];
	void (*args)(struct optim_args *a, const double *h, uint64_t t);
};

const struct optim_row *optim_row(enum optim_id id);  /* CHECKs id */
const struct optim_row *optim_find(const char *name); /* NULL: unknown */

void optim_defaults(const struct optim_row *row,
		    double h[HYPER_NR]); /* parameters that the row lacks become 0 */
/* Ranges and combinations. SHARD_BAD_ARG: the text names parameter, value and range; the caller
 * prefixes where it stood. */
enum shard_status optim_hyper_check(const struct optim_row *row, const double h[HYPER_NR],
				    struct err *e);

/* t counts applied steps, this one included, so it starts at 1. Only the coordinator calls it:
 * libm's pow gives other bits on other machines (args.c). h holds this step's learning rate and
 * momenta. */
void optim_args_set(struct optim_args *a, const struct optim_row *row, const double h[HYPER_NR],
		    uint64_t t, float mult);

optim_apply *optim_kernel(const struct optim_row *row, enum isa isa, enum shard_dtype grad,
			  enum shard_dtype image);
optim_apply_undo *optim_kernel_undo(const struct optim_row *row, enum isa isa,
				    enum shard_dtype grad, enum shard_dtype image);

#endif
