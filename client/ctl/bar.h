/* SPDX-License-Identifier: Apache-2.0 */
/* bar.h: a progress line on stderr. A terminal shows one line that is drawn over itself. Other
 * outputs get a new line every 10 s. */
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

/* tty is what isatty(2) says. */
void bar_init(struct bar *b, const char *what, uint64_t total_bytes, bool tty);
void bar_set(struct bar *b, uint64_t done_bytes); /* May be called as often as the caller likes. */
/* For a total that was not known at first, or that changed. */
void bar_total(struct bar *b, uint64_t total_bytes);
/* Ends the line. A terminal then shows the whole and its rate. A second call does nothing. */
void bar_done(struct bar *b);

/* Writes the line that is shown elapsed_ns after the beginning. Tests call it, too. */
void bar_line(char out[BAR_LINE_BYTES], const struct bar *b, uint64_t elapsed_ns);

#endif
