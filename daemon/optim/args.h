/* SPDX-License-Identifier: Apache-2.0 */
/* args.h: the functions that the rows of optim.c point to. All other code calls
 * optim_args_set(). */
#ifndef SHARD_OPTIM_ARGS_H
#define SHARD_OPTIM_ARGS_H

#include "optim/optim.h"

void args_adamw(struct optim_args *a, const double *h, uint64_t t);
void args_adam(struct optim_args *a, const double *h, uint64_t t);
void args_sgd(struct optim_args *a, const double *h, uint64_t t);
void args_adagrad(struct optim_args *a, const double *h, uint64_t t);
void args_lion(struct optim_args *a, const double *h, uint64_t t);

#endif
