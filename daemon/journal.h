/* SPDX-License-Identifier: Apache-2.0 */
/* journal.h: log lines as entries of systemd's journal, their keys as fields: `journalctl -u shardd
 * SHARDD_MODEL=gpt`. */
#ifndef SHARD_JOURNAL_H
#define SHARD_JOURNAL_H

#include "base/log.h"

#include <stddef.h>
#include <sys/uio.h>

#define JOURNAL_FIELDS_MAX 48
#define JOURNAL_BYTES      (4 * LOG_LINE_BYTES + 256)

struct journal_entry {
	struct iovec field[JOURNAL_FIELDS_MAX]; /* "PRIORITY=6", "MESSAGE=event=world model=gpt",
						   "SHARDD_MODEL=gpt" ... */
	unsigned fields_nr;
	char bytes[JOURNAL_BYTES];
	size_t used;
};

/* Of a line as log.h writes it. ts and level are the journal's own; MESSAGE is the rest of the
 * line. Fields beyond the maximum stay in MESSAGE alone. */
void journal_entry_make(struct journal_entry *e, enum log_level level, const char *line);
/* True: stderr is the journal's ($JOURNAL_STREAM), and lines of l go there as entries from now on.
 */
bool journal_use(struct log *l);

#endif
