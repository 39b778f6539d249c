/* SPDX-License-Identifier: Apache-2.0 */
/* journal.h: writes log lines as entries of systemd's journal with their keys as fields, as for
 * `journalctl -u shardd SHARDD_MODEL=gpt`. */
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

/* Makes an entry of a line that log.h has written. ts and level are left out because the journal
 * has its own, and MESSAGE is the rest of the line. Keys beyond the maximum of fields are in
 * MESSAGE only. */
void journal_entry_make(struct journal_entry *e, enum log_level level, const char *line);
/* Returns true if stderr is the journal's ($JOURNAL_STREAM). From then on lines of l go there as
 * entries. */
bool journal_use(struct log *l);

#endif
