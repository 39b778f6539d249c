/* SPDX-License-Identifier: Apache-2.0 */
/* term.h: a terminal that shows one changing screen: the alternate screen, keys without Enter,
 * resizing, and everything put back. */
#ifndef SHARD_CTL_TERM_H
#define SHARD_CTL_TERM_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <termios.h>

struct term {
	int in, out, signals;
	bool entered, keys; /* keys: in is a terminal, too */
	struct termios saved;
};

enum term_event {
	TERM_TIMEOUT,
	TERM_RESIZED,
	TERM_KEY,
	TERM_QUIT
}; /* QUIT: a signal that ends the program, or no terminal any more */

/* SHARD_SYSTEM: out is no terminal. Blocks the signals that would leave the terminal as it is now.
 */
enum shard_status term_enter(struct term *t, int in, int out, struct err *e);
void term_leave(struct term *t); /* as before term_enter(); harmless twice */
void term_size(const struct term *t, unsigned *columns,
	       unsigned *lines);                  /* 80 x 24 where the terminal does not say */
void term_show(struct term *t, const char *text); /* cut to the size; newlines end lines */
enum term_event term_wait(struct term *t, uint64_t ms, char *key);

#endif
