/* SPDX-License-Identifier: Apache-2.0 */
/* Turns hyper-parameters and the step count into the words that a kernel multiplies with. The
 * coordinator calls it once per tensor group and step, and the words travel as bits inside the
 * record. Nobody else may compute them, because pow of libm rounds differently from one machine to
 * the next. All arithmetic is in double, and each word is rounded to float once. It cannot fail,
 * because optim_hyper_check() has checked the hyper-parameters. */
#include "optim/args.h"

#include "base/check.h"
#include <math.h>

static void adam_words(struct optim_args *a, const double *h, uint64_t t)
{
	double bc1 = 1.0 - pow(h[HYPER_BETA1], (double)t),
	       bc2 = 1.0 - pow(h[HYPER_BETA2], (double)t);

	a->beta1 = (float)h[HYPER_BETA1];
	a->one_minus_beta1 = (float)(1.0 - h[HYPER_BETA1]);
	a->beta2 = (float)h[HYPER_BETA2];
	a->one_minus_beta2 = (float)(1.0 - h[HYPER_BETA2]);
	a->eps = (float)h[HYPER_EPS];
	a->step_size = (float)(h[HYPER_LR] / bc1);
	a->bc2_sqrt = (float)sqrt(bc2);
}

void args_adamw(struct optim_args *a, const double *h, uint64_t t)
{
	adam_words(a, h, t);
	a->decay = (float)(1.0 - h[HYPER_LR] * h[HYPER_WEIGHT_DECAY]);
}

void args_adam(struct optim_args *a, const double *h, uint64_t t)
{
	adam_words(a, h, t);
	a->l2 = (float)h[HYPER_WEIGHT_DECAY];
}

void args_sgd(struct optim_args *a, const double *h, uint64_t t)
{
	/* The momentum starts as zeros, so that after the first step it is the gradient. */
	(void)t;
	a->lr = (float)h[HYPER_LR];
	a->l2 = (float)h[HYPER_WEIGHT_DECAY];
	a->beta1 = (float)h[HYPER_MOMENTUM];
	a->nesterov = h[HYPER_NESTEROV] != 0;
}

void args_adagrad(struct optim_args *a, const double *h, uint64_t t)
{
	(void)t;
	a->lr = (float)h[HYPER_LR];
	a->l2 = (float)h[HYPER_WEIGHT_DECAY];
	a->eps = (float)h[HYPER_EPS];
}

void args_lion(struct optim_args *a, const double *h, uint64_t t)
{
	(void)t;
	a->lr = (float)h[HYPER_LR];
	a->decay = (float)(1.0 - h[HYPER_LR] * h[HYPER_WEIGHT_DECAY]);
	a->beta1 = (float)h[HYPER_BETA1];
	a->one_minus_beta1 = (float)(1.0 - h[HYPER_BETA1]);
	a->beta2 = (float)h[HYPER_BETA2];
	a->one_minus_beta2 = (float)(1.0 - h[HYPER_BETA2]);
}

void optim_args_set(struct optim_args *a, const struct optim_row *row, const double h[HYPER_NR],
		    uint64_t t, float mult)
{
	CHECK(t >= 1);
	*a = (struct optim_args){.mult = mult};
	row->args(a, h, t);
}
