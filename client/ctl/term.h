/* SPDX-License-Identifier: Apache-2.0 */
/* term.h: a terminal that shows one changing screen. It uses the alternate screen, gets keys
 * without Enter, follows a new size, and restores everything at the end. */
#ifndef SHARD_CTL_TERM_H
#define SHARD_CTL_TERM_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <termios.h>

struct term {
	int in, out, signals;
	bool entered, keys; /* `keys` says that in is a terminal, too. */
	bool colour;        /* term_show() shows marks, and does not only leave them out. */
	struct termios saved;
};

/* TERM_QUIT: a signal ends the program, or the terminal is gone. */
enum term_event { TERM_TIMEOUT, TERM_RESIZED, TERM_KEY, TERM_QUIT };

/* Blocks the signals that would end the program with the terminal changed. SHARD_SYSTEM: out is no
 * terminal, or there is no descriptor for signals. */
enum shard_status term_enter(struct term *t, int in, int out, struct err *e);
/* Restores what was before term_enter(). A second call does nothing. */
void term_leave(struct term *t);
/* 80 x 24 where the terminal does not say its size. */
void term_size(const struct term *t, unsigned *columns, unsigned *lines);
/* In the text of term_show(): bytes without width. 1 to 3 begin good, warn and bad, 4 and 5 begin
 * what is less and what is more important, 6 ends all of them, and 7 means nothing. */
enum { TERM_MARK_END = 6, TERM_MARK_LAST = 7 };

/* Shows text from the top left, cut to the size of the terminal. A newline ends a line. */
void term_show(struct term *t, const char *text);

/* Keys that are no character. */
enum term_key {
	TERM_UP = 256,
	TERM_DOWN,
	TERM_PAGE_UP,
	TERM_PAGE_DOWN,
	TERM_HOME,
	TERM_END,
	TERM_OTHER
};

/* *key: with TERM_KEY a byte, or an enum term_key. */
enum term_event term_wait(struct term *t, uint64_t ms, int *key);

#endif
