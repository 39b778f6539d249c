// SPDX-License-Identifier: Apache-2.0
/* refmath.c: the reference's own arithmetic. reference.c calls it in one thread with flush-to-zero
 * on. It shares only the conversions of element types with the product, so that an error in the
 * order of a sum, in the scaler or in a bias correction cannot hide by being in both. It cannot
 * fail. refscale_next() says when the scale is at its floor. */
#include "ref/refmath.h"
#include "base/check.h"
#include <math.h>
#include <string.h>

#define RUN   1024 /* Elements converted at a time. No sum depends on it. */
#define LANES 16
#define BLOCK 4096

static const void *element(const void *p, enum shard_dtype dt, uint64_t i)
{
	return (const char *)p + i * dtype_bytes(dt);
}

void refmath_sum(void *out, const void *const *grads, uint32_t nr, enum shard_dtype dt,
		 float factor, uint64_t n)
{
	float total[RUN], next[RUN];

	CHECK(nr >= 1);
	if (nr == 1 && factor == 1) {
		memmove(out, grads[0], n * dtype_bytes(dt));
		return;
	}
	for (uint64_t i = 0; i < n; i += RUN) {
		uint64_t run = n - i < RUN ? n - i : RUN;

		for (uint32_t k = 0; k < nr; k++) {
			dtype_convert(next, SHARD_F32, element(grads[k], dt, i), dt, run);
			for (uint64_t j = 0; j < run; j++)
				next[j] = factor == 1 ? next[j] : next[j] * factor;
			for (uint64_t j = 0; j < run; j++)
				total[j] = k == 0 ? next[j] : total[j] + next[j];
		}
		dtype_convert((char *)out + i * dtype_bytes(dt), dt, total, SHARD_F32, run);
	}
}

static double square_of_block(const void *grad, enum shard_dtype dt, uint64_t first, uint64_t n)
{
	float values[BLOCK];
	double lane[LANES] = {0};

	dtype_convert(values, SHARD_F32, element(grad, dt, first), dt, n);
	for (uint64_t i = 0; i < n; i++)
		lane[i % LANES] += (double)values[i] * (double)values[i];
	for (int half = LANES / 2; half; half /= 2) {
		for (int j = 0; j < half; j++)
			lane[j] += lane[j + half];
	}
	return lane[0];
}

double refmath_square(const void *grad, enum shard_dtype dt, uint64_t first, uint64_t n)
{
	double total = 0;

	for (uint64_t i = 0; i < n; i += BLOCK)
		total += square_of_block(grad, dt, first + i, n - i < BLOCK ? n - i : BLOCK);
	return total;
}

bool refmath_finite(const void *grad, enum shard_dtype dt, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		float x;

		dtype_convert(&x, SHARD_F32, element(grad, dt, i), dt, 1);
		if (!dtype_finite(x))
			return false;
	}
	return true;
}

void refscale_start(struct refscale *s, const struct refsettings *c)
{
	s->scale = c->loss_scale != 0 ? c->loss_scale : exp2(c->initial_scale_power);
	s->hysteresis = c->hysteresis;
	s->iter = 0;
	s->last_overflow = -1;
}

bool refscale_next(struct refscale *s, const struct refsettings *c, bool overflow)
{
	if (c->loss_scale != 0)
		return true;
	if (overflow) {
		if (s->hysteresis > 1) {
			s->hysteresis--;
		} else {
			if (s->scale <= c->min_loss_scale)
				return false;
			s->scale =
				s->scale / 2 > c->min_loss_scale ? s->scale / 2 : c->min_loss_scale;
		}
		s->last_overflow = s->iter;
	} else {
		int64_t good = s->iter - s->last_overflow - 1;

		if (c->consecutive_hysteresis)
			s->hysteresis = c->hysteresis;
		if (good > 0 && good % (int64_t)c->loss_scale_window == 0) {
			s->hysteresis = c->hysteresis;
			s->scale *= 2;
		}
	}
	s->iter++;
	return true;
}

double refmath_clip(const struct refsettings *c, double norm)
{
	double factor = c->clip / (norm + 1e-6);

	return c->clip == 0 || factor > 1 ? 1 : factor;
}

struct optim_args refmath_words(const struct refsettings *c, uint64_t applied, double mult)
{
	double h[HYPER_NR], momentum = refschedule_momentum(&c->schedule, applied);
	struct optim_args a;

	memcpy(h, c->hyper, sizeof(h));
	h[HYPER_LR] = refschedule_lr(&c->schedule, h[HYPER_LR], applied);
	if (momentum >= 0)
		h[HYPER_BETA1] = h[HYPER_MOMENTUM] = momentum;
	memset(&a, 0, sizeof(a));
	a.mult = (float)mult;
	if (c->optimizer == OPTIM_ADAMW || c->optimizer == OPTIM_ADAM) {
		a.step_size = (float)(h[HYPER_LR] / (1 - pow(h[HYPER_BETA1], (double)applied)));
		a.bc2_sqrt = (float)sqrt(1 - pow(h[HYPER_BETA2], (double)applied));
	} else {
		a.lr = (float)h[HYPER_LR];
	}
	if (c->optimizer == OPTIM_SGD) {
		a.beta1 = (float)h[HYPER_MOMENTUM];
		a.nesterov = h[HYPER_NESTEROV] != 0;
	} else if (c->optimizer != OPTIM_ADAGRAD) {
		a.beta1 = (float)h[HYPER_BETA1];
		a.one_minus_beta1 = (float)(1 - h[HYPER_BETA1]);
		a.beta2 = (float)h[HYPER_BETA2];
		a.one_minus_beta2 = (float)(1 - h[HYPER_BETA2]);
	}
	a.eps = (float)h[HYPER_EPS];
	if (c->optimizer == OPTIM_ADAMW || c->optimizer == OPTIM_LION)
		a.decay = (float)(1 - h[HYPER_LR] * h[HYPER_WEIGHT_DECAY]);
	else
		a.l2 = (float)h[HYPER_WEIGHT_DECAY];
	return a;
}
