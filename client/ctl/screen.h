/* SPDX-License-Identifier: Apache-2.0 */
/* screen.h: what `shardctl top` shows of a text that is longer than the terminal, and its keys. The
 * functions are pure: keys and text come in, text goes out. */
#ifndef SHARD_CTL_SCREEN_H
#define SHARD_CTL_SCREEN_H

#include "ctl/figures.h"

#include <stdbool.h>

enum { SCREEN_COLUMNS_MIN = 40, SCREEN_LINES_MIN = 8 };

struct screen {
	struct figures_view view;
	char filter[FIGURES_FILTER_BYTES]; /* What view.filter is, while it is not being typed. */
	char typed[FIGURES_FILTER_BYTES];
	bool typing, help;
	unsigned from, page, below; /* Lines: the first one of the body, those shown, those left. */
};

enum screen_act { SCREEN_NOTHING, SCREEN_DRAW, SCREEN_QUIT };

void screen_init(struct screen *s, const struct figures_view *view);
/* key: a character, or an enum term_key. SCREEN_DRAW: something else is to be shown now. */
enum screen_act screen_key(struct screen *s, int key);
/* The whole screen, for term_show(): one line of title, as much of body as fits, and a line that
 * says what is left and which keys there are. Frees nothing. The caller frees it. NULL: no memory.
 */
char *screen_text(struct screen *s, const char *title, const char *body, unsigned columns,
		  unsigned lines);

#endif
