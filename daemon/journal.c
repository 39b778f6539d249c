/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the log to systemd's journal. main.c turns it on when systemd has connected stderr to the
 * journal. Happy path: a line of log.c is cut into its key=value words. Each becomes a field
 * SHARDD_KEY with the unquoted value, and the entry is sent. An entry that the journal does not
 * take is written to stderr as a line. Any thread may call, because there is no state. */
#include "journal.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef SHARD_SYSTEMD
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>
#endif

#define KEY_MAX 50 /* The journal takes names of at most 64 characters. */

static bool put(struct journal_entry *e, const char *text, size_t n)
{
	if (n > sizeof(e->bytes) - e->used)
		return false;
	memcpy(e->bytes + e->used, text, n);
	e->used += n;
	return true;
}

/* Makes a field of what was put since `from`, or drops it if it did not fit. */
static void end_field(struct journal_entry *e, size_t from, bool whole)
{
	if (!whole || e->fields_nr == JOURNAL_FIELDS_MAX) {
		e->used = from;
		return;
	}
	e->field[e->fields_nr++] =
		(struct iovec){.iov_base = e->bytes + from, .iov_len = e->used - from};
}

static void add(struct journal_entry *e, const char *name, const char *value, size_t n)
{
	size_t from = e->used;

	end_field(e, from, put(e, name, strlen(name)) && put(e, "=", 1) && put(e, value, n));
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Puts one character of a quoted value, as put_value() of log.c wrote it. Returns what follows
 * it. */
static const char *put_quoted(struct journal_entry *e, const char *at, bool *fits)
{
	char c = *at++;

	if (c == '\\' && *at == 'n') {
		c = '\n';
		at++;
	} else if (c == '\\' && *at == 'x' && hex_digit(at[1]) >= 0 && hex_digit(at[2]) >= 0) {
		c = (char)(hex_digit(at[1]) * 16 + hex_digit(at[2]));
		at += 3;
	} else if (c == '\\' && *at) {
		c = *at++;
	}
	*fits = *fits && put(e, &c, 1);
	return at;
}

/* Adds SHARDD_<KEY>=value for the word at `at`. Returns what follows the word. */
static const char *add_word(struct journal_entry *e, const char *at)
{
	size_t key = strcspn(at, "= "), from = e->used;
	bool fits = true;

	if (at[key] != '=' || key == 0 || key > KEY_MAX)
		return at + strcspn(at, " ");
	fits = put(e, "SHARDD_", 7);
	for (size_t i = 0; i < key; i++) {
		char c = at[i];

		c = c >= 'a' && c <= 'z'                               ? (char)(c - 'a' + 'A')
		    : (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ? c
								       : '_';
		fits = fits && put(e, &c, 1);
	}
	fits = fits && put(e, "=", 1);
	at += key + 1;
	if (*at == '"') {
		at++;
		while (*at && *at != '"')
			at = put_quoted(e, at, &fits);
		at += *at == '"';
	} else {
		size_t n = strcspn(at, " ");

		fits = fits && put(e, at, n);
		at += n;
	}
	end_field(e, from, fits);
	return at;
}

static bool starts(const char *at, const char *with)
{
	return strncmp(at, with, strlen(with)) == 0;
}

void journal_entry_make(struct journal_entry *e, enum log_level level, const char *line)
{
	static const char *const priority[LOG_LEVEL_NR] = {
		"3", "4", "6", "7"}; /* syslog.h's err, warning, info, debug */

	CHECK((unsigned)level < LOG_LEVEL_NR);
	e->fields_nr = 0;
	e->used = 0;
	while (starts(line, "ts=") || starts(line, "level=")) {
		line += strcspn(line, " ");
		line += strspn(line, " ");
	}
	add(e, "PRIORITY", priority[level], 1);
	add(e, "SYSLOG_IDENTIFIER", "shardd", 6);
	add(e, "MESSAGE", line, strlen(line));
	while (*line) {
		line = add_word(e, line);
		line += strspn(line, " ");
	}
	CHECK(e->used <= sizeof(e->bytes));
}

#ifdef SHARD_SYSTEMD
static void to_journal(void *arg, enum log_level level, const char *line)
{
	struct journal_entry e;

	(void)arg;
	journal_entry_make(&e, level, line);
	if (sd_journal_sendv(e.field, (int)e.fields_nr) < 0)
		dprintf(STDERR_FILENO, "%s\n", line);
}

/* $JOURNAL_STREAM is DEVICE:INODE of the socket. If stderr was redirected since, the daemon must
 * not write to the journal. */
bool journal_use(struct log *l)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long device, inode;
	struct stat info;

	if (stream == NULL || sscanf(stream, "%lu:%lu", &device, &inode) != 2 ||
	    fstat(STDERR_FILENO, &info) != 0 || info.st_dev != device || info.st_ino != inode)
		return false;
	l->sink = to_journal;
	return true;
}
#else
bool journal_use(struct log *l)
{
	(void)l;
	return false;
}
#endif
