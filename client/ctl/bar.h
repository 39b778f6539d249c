/* SPDX-License-Identifier: Apache-2.0 */
/* bar.h: how far something long is: one line on stderr, drawn over itself on a terminal, else a new
 * line every 10 s. */
#ifndef SHARD_CTL_BAR_H
#define SHARD_CTL_BAR_H

#include <stdbool.h>
#include <stdint.h>

struct bar {
	const char *what; /* "save", "export" ... */
	uint64_t total, done, began_ns, shown_ns;
	bool tty, drawn;
};

enum { BAR_LINE_BYTES = 160 };

void bar_init(struct bar *b, const char *what, uint64_t total_bytes, bool tty); /* tty: isatty(2) */
void bar_set(struct bar *b, uint64_t done_bytes);    /* as often as one likes */
void bar_total(struct bar *b, uint64_t total_bytes); /* it was not known at first, or changed */
void bar_done(struct bar *b); /* ends the line; on a terminal with the whole and its rate. Harmless
				 twice */

/* The line of a moment, for tests: elapsed_ns since the beginning. */
void bar_line(char out[BAR_LINE_BYTES], const struct bar *b, uint64_t elapsed_ns);

#endif
