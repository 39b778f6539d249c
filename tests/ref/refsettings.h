/* SPDX-License-Identifier: Apache-2.0 */
/* refsettings.h: reads the settings that gpt sends to the daemon, for the reference. */
#ifndef REF_SETTINGS_H
#define REF_SETTINGS_H

#include "base/status.h"
#include "optim/optim.h"
#include "ref/refschedule.h"

struct refsettings {
	enum optim_id optimizer;
	const char *name; /* The optimizer's name. */
	uint32_t states_nr;
	enum shard_kind states[2];
	double hyper[HYPER_NR];
	double clip; /* 0: off. */
	double predivide, max_staleness, staleness_after;
	double loss_scale; /* 0: dynamic. */
	double initial_scale_power, loss_scale_window, hysteresis, min_loss_scale, max_skips;
	bool consecutive_hysteresis, pause; /* pause: a step that is not finite ends the run. */
	double chunk_elems;
	double codec_most; /* The largest code of grad_codec. 0: none. */
	double image_most; /* The same of image_codec. */
	double codec_block;
	bool error_feedback;
	struct refschedule schedule;
};

/* `grad` decides the default of loss_scale, which is dynamic for fp16 and 1 otherwise. BAD_ARG: a
 * key or value that it does not know. */
enum shard_status refsettings_parse(struct refsettings *s, const char *text, enum shard_dtype grad,
				    struct err *e);

#endif
