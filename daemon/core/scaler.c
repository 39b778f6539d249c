/* SPDX-License-Identifier: Apache-2.0 */
/* The dynamic loss scale. It is a state machine of four numbers that live in the record, so that a
 * new coordinator continues it where the old one stopped. record.c calls it. The rules are those of
 * DeepSpeed (DynamicLossScaler.update_scale): an overflow is tolerated `hysteresis` times before
 * the scale is halved, and `scale_window` good steps double it. A static scale never changes. It
 * fails on an overflow with the scale at its floor. Training cannot go on by itself then, and the
 * record says diverged. */
#include "core/scaler.h"

#include "base/check.h"

void scaler_start(struct scaler *s, const struct record_conf *conf)
{
	CHECK(conf->initial_scale > 0);
	s->scale = conf->initial_scale;
	s->hysteresis = conf->dynamic_scale ? conf->hysteresis : 1;
	s->last_overflow = -1;
	s->iter = 0;
}

static bool scaler_overflow(struct scaler *s, const struct record_conf *conf)
{
	if (conf->hysteresis == 1 || s->hysteresis == 1) {
		if (s->scale <= conf->min_scale)
			return false;
		s->scale = s->scale / 2 > conf->min_scale ? s->scale / 2 : conf->min_scale;
	} else {
		s->hysteresis--;
	}
	s->last_overflow = s->iter;
	return true;
}

static void scaler_good(struct scaler *s, const struct record_conf *conf)
{
	int64_t stable = s->iter - s->last_overflow - 1;

	if (conf->consecutive_hysteresis)
		s->hysteresis = conf->hysteresis;
	if (stable > 0 && stable % conf->scale_window == 0) {
		s->hysteresis = conf->hysteresis;
		s->scale *= 2;
	}
}

bool scaler_update(struct scaler *s, const struct record_conf *conf, bool overflow)
{
	if (!conf->dynamic_scale)
		return true;
	CHECK(conf->scale_window > 0 && conf->hysteresis > 0);
	if (overflow && !scaler_overflow(s, conf))
		return false;
	if (!overflow)
		scaler_good(s, conf);
	s->iter++;
	return true;
}
