/* SPDX-License-Identifier: Apache-2.0 */
/* palette.h: what stands before and behind a word that has a colour. */
#ifndef SHARD_CTL_PALETTE_H
#define SHARD_CTL_PALETTE_H

#include "ctl/ctl.h"

#include <stdio.h>

/* `end` stands behind what is coloured. `sentence` begins a line that may be folded, in marks. */
struct palette {
	const char *good, *warn, *bad, *soft, *head, *end, *sentence;
};

/* Nothing, what a terminal understands, and bytes from 1 on, of which term_show() makes that. */
extern const struct palette palette_plain, palette_colour, palette_marks;

/* The row of --color in the options of a command. */
#define PALETTE_OPTION(key)                                                                        \
	{                                                                                          \
		"color", CTL_KEY + (key), "WHEN", 0,                                               \
			"always, never, or auto: on a terminal, unless $NO_COLOR is set "          \
			"(default: auto)",                                                         \
			0                                                                          \
	}

/* Whether there are colours in what is printed to out. False: when is neither NULL nor one of the
 * three words, which PALETTE_WRONG says. */
bool palette_wanted(const char *when, FILE *out, bool *wanted);
#define PALETTE_WRONG "--color %s: choose auto, always or never"
/* The colour of a model's state. A training that stands is not good. */
const char *palette_of_model(const struct palette *p, const char *state, bool late);
/* The colour of a word of a daemon: a state, a level or the result of a check. "" of others. */
const char *palette_of(const struct palette *p, const char *word);

#endif
