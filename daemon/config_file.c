/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a configuration file's text with libinih. Debian builds that with a buffer of 200 bytes, sections of 49, inline comments after
 * " ;", lines that begin with a blank joined to the one before, and no line number for its handler; what is too long it cuts without a
 * word. So it is fed line by line from here: this reader counts, and refuses every line that would not arrive as it was written.
 * Happy path: config_read() → next_line() per line → on_key() per key → config_put(). The first error ends it: the reader then
 * pretends that the file is over. */
#include "config_parts.h"

#include "base/check.h"

#include <ini.h>
#include <stdio.h>
#include <string.h>

#define INIH_LINE_BYTES    200 /* INI_MAX_LINE of the packaged library: newline and end included */
#define INIH_SECTION_BYTES 50  /* MAX_SECTION */

struct reader {
	struct config_loader *loader;
	const char *name, *at, *end;
	uint32_t line;
	enum shard_status status;
	struct err *e;
};

static void where_text(const struct reader *r, char where[CONFIG_WHERE_BYTES])
{
	size_t n = strlen(r->name), keep = CONFIG_WHERE_BYTES - 16;

	snprintf(where, CONFIG_WHERE_BYTES, "%s:%u", n > keep ? r->name + n - keep : r->name, r->line);
}

static void refuse(struct reader *r, const char *what)
{
	char where[CONFIG_WHERE_BYTES];

	where_text(r, where);
	r->status = err_set(r->e, SHARD_BAD_ARG, "%s: %s", where, what);
}

/* The name between the brackets, without quotes being looked at: libinih does the same. */
static void check_section_line(struct reader *r, const char *text, size_t n)
{
	const char *close = memchr(text, ']', n);
	char section[INIH_SECTION_BYTES], where[CONFIG_WHERE_BYTES];
	size_t bytes = close ? (size_t)(close - text - 1) : 0;

	if (!close) {
		refuse(r, "a section needs its closing bracket, as in [daemon]");
		return;
	}
	if (bytes >= sizeof(section)) {
		refuse(r, "a section's name is longer than 49 characters: choose shorter names");
		return;
	}
	memcpy(section, text + 1, bytes);
	section[bytes] = 0;
	close++;
	close += strspn(close, " \t\r");
	if (close < text + n && *close != ';' && *close != '#') {
		refuse(r, "nothing but a comment may follow a section's closing bracket");
		return;
	}
	where_text(r, where);
	r->status = config_check_section(where, section, r->e);
}

static bool blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

static void check_line(struct reader *r, const char *text, size_t n)
{
	size_t first = 0;

	if (memchr(text, 0, n)) {
		refuse(r, "a zero byte: this is no text file");
		return;
	}
	while (first < n && blank(text[first]))
		first++;
	if (first == n || text[first] == ';' || text[first] == '#') {
		if (n > INIH_LINE_BYTES - 2)
			refuse(r, "a line is longer than 198 bytes: break the comment");
		return;
	}
	if (n > INIH_LINE_BYTES - 2) {
		refuse(r, "a line is longer than 198 bytes: it would be cut");
		return;
	}
	if (first > 0) {
		refuse(r, "a line begins with a blank: it would be joined to the one before");
		return;
	}
	if (text[0] == '[') {
		check_section_line(r, text, n);
		return;
	}
	for (size_t i = 1; i < n; i++) {
		if (blank(text[i - 1]) && text[i] == ';')
			return; /* the rest is comment */
		if (blank(text[i - 1]) && text[i] == '#') {
			refuse(r, "# would be part of the value: write a comment behind ; or on its own line");
			return;
		}
	}
}

/* libinih's idea of fgets(): at most nr - 1 bytes of one line, NULL at the end. */
static char *next_line(char *to, int nr, void *stream)
{
	struct reader *r = stream;
	const char *newline;
	size_t n;

	if (r->status != SHARD_OK || r->at == r->end)
		return NULL;
	newline = memchr(r->at, '\n', (size_t)(r->end - r->at));
	n = (size_t)((newline ? newline : r->end) - r->at);
	r->line++;
	check_line(r, r->at, n);
	if (r->status != SHARD_OK)
		return NULL;
	if (n + 2 > (size_t)nr) {
		refuse(r, "the line does not fit libinih's buffer");
		return NULL;
	}
	memcpy(to, r->at, n);
	to[n] = '\n';
	to[n + 1] = 0;
	r->at += n + (newline != NULL);
	return to;
}

static int on_key(void *arg, const char *section, const char *key, const char *value)
{
	struct reader *r = arg;
	char where[CONFIG_WHERE_BYTES];

	if (r->status != SHARD_OK)
		return 0;
	where_text(r, where);
	r->status = config_put(r->loader, where, r->line, section, key, value, r->e);
	return r->status == SHARD_OK;
}

enum shard_status config_read(struct config_loader *l, const char *name, const char *text, size_t bytes, struct err *e)
{
	struct reader r = {.loader = l, .name = name, .at = text, .end = text + bytes, .e = e};
	int bad;

	CHECK(text || bytes == 0);
	if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
		r.at += 3;
	bad = ini_parse_stream(next_line, &r, on_key, &r);
	if (r.status != SHARD_OK)
		return r.status;
	if (bad > 0) {
		r.line = (uint32_t)bad;
		refuse(&r, "not understood: write key = value, [section] or ; comment");
		return r.status;
	}
	return bad == 0 ? SHARD_OK : err_set(e, SHARD_SYSTEM, "%s: no memory to read it", name);
}
