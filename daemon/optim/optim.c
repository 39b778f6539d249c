/* SPDX-License-Identifier: Apache-2.0 */
/* The table of optimizers. The settings parser looks rows up by name and checks values, the budget
 * counts states, the coordinator makes the words of a step (args.c), and workers ask for a kernel.
 * Names and values come from users, so a wrong one gives NULL or a status. Ids, element types and
 * instruction sets come from this program, so a wrong one is a CHECK. A new optimizer needs one row
 * here, its words in args.c, one rule in optim_scalar.c and one in vector_rules.h. */
#include "optim/optim.h"

#include "base/check.h"
#include "optim/args.h"
#include "optim/kernels.h"
#include <float.h>
#include <math.h>

#define LR(fallback)                                                                               \
	{                                                                                          \
		"lr", fallback, 0, FLT_MAX, false, false                                           \
	}
#define BETA(name, fallback)                                                                       \
	{                                                                                          \
		name, fallback, 0, 1, true, false                                                  \
	}
#define EPS(fallback)                                                                              \
	{                                                                                          \
		"eps", fallback, 0, FLT_MAX, false, false                                          \
	}
#define DECAY(fallback)                                                                            \
	{                                                                                          \
		"weight_decay", fallback, 0, FLT_MAX, false, false                                 \
	}

/* The defaults are those of PyTorch. Those of Lion are from its paper (Chen et al., "Symbolic
 * Discovery of Optimization Algorithms", 2023). */
static const struct optim_row optim_rows[OPTIM_NR] = {
	[OPTIM_ADAMW] = {"adamw",
			 OPTIM_ADAMW,
			 2,
			 {SHARD_EXP_AVG, SHARD_EXP_AVG_SQ},
			 {[HYPER_LR] = LR(1e-3),
			  [HYPER_BETA1] = BETA("beta1", 0.9),
			  [HYPER_BETA2] = BETA("beta2", 0.999),
			  [HYPER_EPS] = EPS(1e-8),
			  [HYPER_WEIGHT_DECAY] = DECAY(1e-2)},
			 args_adamw},
	[OPTIM_ADAM] = {"adam",
			OPTIM_ADAM,
			2,
			{SHARD_EXP_AVG, SHARD_EXP_AVG_SQ},
			{[HYPER_LR] = LR(1e-3),
			 [HYPER_BETA1] = BETA("beta1", 0.9),
			 [HYPER_BETA2] = BETA("beta2", 0.999),
			 [HYPER_EPS] = EPS(1e-8),
			 [HYPER_WEIGHT_DECAY] = DECAY(0)},
			args_adam},
	[OPTIM_SGD] = {"sgd",
		       OPTIM_SGD,
		       1,
		       {SHARD_MOMENTUM},
		       {[HYPER_LR] = LR(1e-3),
			[HYPER_WEIGHT_DECAY] = DECAY(0),
			[HYPER_MOMENTUM] = {"momentum", 0, 0, FLT_MAX, false, false},
			[HYPER_NESTEROV] = {"nesterov", 0, 0, 1, false, true}},
		       args_sgd},
	[OPTIM_ADAGRAD] =
		{"adagrad",
		 OPTIM_ADAGRAD,
		 1,
		 {SHARD_EXP_AVG_SQ},
		 {[HYPER_LR] = LR(1e-2), [HYPER_EPS] = EPS(1e-10), [HYPER_WEIGHT_DECAY] = DECAY(0)},
		 args_adagrad},
	[OPTIM_LION] = {"lion",
			OPTIM_LION,
			1,
			{SHARD_EXP_AVG},
			{[HYPER_LR] = LR(1e-4),
			 [HYPER_BETA1] = BETA("beta1", 0.9),
			 [HYPER_BETA2] = BETA("beta2", 0.99),
			 [HYPER_WEIGHT_DECAY] = DECAY(0)},
			args_lion},
};

const struct optim_row *optim_row(enum optim_id id)
{
	CHECK((unsigned)id < OPTIM_NR);
	return &optim_rows[id];
}

const struct optim_row *optim_find(const char *name)
{
	for (int i = 0; i < OPTIM_NR; i++)
		if (strcmp(name, optim_rows[i].name) == 0)
			return &optim_rows[i];
	return NULL;
}

void optim_defaults(const struct optim_row *row, double h[HYPER_NR])
{
	for (int i = 0; i < HYPER_NR; i++)
		h[i] = row->hyper[i].name ? row->hyper[i].fallback : 0;
}

uint32_t optim_hyper_named(const struct optim_row *row, const char *name)
{
	uint32_t i = 0;

	while (i < HYPER_NR && (!row->hyper[i].name || strcmp(row->hyper[i].name, name)))
		i++;
	return i;
}

static bool in_range(const struct optim_range *r, double x)
{
	return x >= r->min && (r->below_max ? x < r->max : x <= r->max) &&
	       (!r->whole || x == floor(x));
}

bool optim_hyper_in_range(const struct optim_row *row, uint32_t hyper, double x)
{
	CHECK(hyper < HYPER_NR);
	return in_range(&row->hyper[hyper], x);
}

enum shard_status optim_hyper_check(const struct optim_row *row, const double h[HYPER_NR],
				    struct err *e)
{
	for (int i = 0; i < HYPER_NR; i++) {
		const struct optim_range *r = &row->hyper[i];

		if (!r->name || in_range(r, h[i]))
			continue;
		if (r->whole)
			return err_set(e, SHARD_BAD_ARG, "%s = %g: choose 0 or 1", r->name, h[i]);
		if (r->max >= FLT_MAX)
			return err_set(e, SHARD_BAD_ARG,
				       "%s = %g: choose a finite number of at least %g", r->name,
				       h[i], r->min);
		return err_set(e, SHARD_BAD_ARG,
			       "%s = %g: choose a number of at least %g and below %g", r->name,
			       h[i], r->min, r->max);
	}
	if (row->hyper[HYPER_NESTEROV].name && h[HYPER_NESTEROV] != 0 && h[HYPER_MOMENTUM] == 0)
		return err_set(e, SHARD_BAD_ARG,
			       "nesterov = 1 with momentum = 0: choose a momentum above 0, or "
			       "nesterov = 0");
	return SHARD_OK;
}

static const struct optim_kernels *kernels(enum isa isa, enum shard_dtype grad,
					   enum shard_dtype image)
{
	static const struct optim_kernels *const sets[ISA_NR] = {
		[ISA_SCALAR] = &optim_scalar,
#ifdef __x86_64__
		[ISA_AVX2] = &optim_avx2,
		[ISA_AVX512] = &optim_avx512,
#endif
	};

	CHECK(isa_has(isa));
	CHECK(dtype_ok(grad) && dtype_ok(image));
	return sets[isa];
}

optim_apply *optim_kernel(const struct optim_row *row, enum isa isa, enum shard_dtype grad,
			  enum shard_dtype image)
{
	return kernels(isa, grad, image)->apply[row->id][grad - 1][image - 1];
}

optim_apply_undo *optim_kernel_undo(const struct optim_row *row, enum isa isa,
				    enum shard_dtype grad, enum shard_dtype image)
{
	return kernels(isa, grad, image)->undo[row->id][grad - 1][image - 1];
}
