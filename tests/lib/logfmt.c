/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the log of a daemon. The harnesses of tests call it when a daemon has ended. A line that
 * does not parse is a failure of the test, with the line. */
#include "lib/logfmt.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

/* Each returns what follows, or NULL. */

static const char *key(const char *at)
{
	size_t n = strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_");

	return n > 0 && at[n] == '=' ? at + n + 1 : NULL;
}

static const char *character(const char *at)
{
	return (unsigned char)*at >= ' ' && *at != 0x7f ? at + 1 : NULL;
}

static const char *escape(const char *at)
{
	if (at[1] == 'x' && isxdigit((unsigned char)at[2]) && isxdigit((unsigned char)at[3]))
		return at + 4;
	return at[1] != 0 && strchr("\"\\n", at[1]) != NULL ? at + 2 : NULL;
}

static const char *quoted(const char *at)
{
	for (at++; at != NULL && *at != '"';)
		at = *at == '\\' ? escape(at) : character(at);
	return at != NULL ? at + 1 : NULL;
}

static const char *bare(const char *at)
{
	const char *from = at;

	while (at != NULL && *at != 0 && *at != ' ')
		at = strchr("\"\\=", *at) == NULL ? character(at) : NULL;
	return at != from ? at : NULL;
}

bool logfmt_parses(const char *line, char *why, size_t bytes)
{
	const char *at = line, *after;

	do {
		const char *from = at == line ? at : at + 1;

		if ((after = key(from)) == NULL) {
			snprintf(why, bytes, "no key at %.40s", from);
			return false;
		}
		from = after;
		after = *from == '"' ? quoted(from) : bare(from);
		if (after == NULL) {
			snprintf(why, bytes, "no value at %.40s", from);
			return false;
		}
		at = after;
	} while (*at == ' ');
	if (*at != 0)
		snprintf(why, bytes, "no blank at %.40s", at);
	return *at == 0;
}

void logfmt_check(const char *text, const char *whose)
{
	while (*text != 0) {
		size_t n = strcspn(text, "\n");
		char line[4096], why[200];

		snprintf(line, sizeof(line), "%.*s", (int)n, text);
		if (strncmp(line, "ts=", 3) == 0 && !logfmt_parses(line, why, sizeof(why)))
			fail_msg("the log of node %s has a line with %s: %s", whose, why, line);
		text += n + (text[n] == '\n');
	}
}
