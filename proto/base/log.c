/* SPDX-License-Identifier: Apache-2.0 */
/* Writes log lines. Code that acts calls it, and code that decides never does. A line is built on
 * the stack and leaves with one write(2), so that lines of several processes on one descriptor do
 * not mix. The format is parsed here and not by printf, because a %s may be a value that came from
 * a peer. Such a value is quoted here, so that no caller can forget it. A line that cannot be
 * written is lost without a report. */
#include "base/log.h"

#include "base/check.h"
#include "base/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOG_FOLD_NS (60 * NS_PER_SEC)

static const char *const level_names[LOG_LEVEL_NR] = {"error", "warn", "info", "debug"};

struct line {
	char text[LOG_LINE_BYTES + 2]; /* With room for a newline and a NUL. */
	size_t used;
	size_t whole; /* So far it can be cut: no character or escape ends up in two. */
	bool quoted;  /* What is cut there is in quotes. */
};

static void put_char(struct line *l, char c)
{
	if (l->used < LOG_LINE_BYTES)
		l->text[l->used] = c;
	l->used++; /* Counts on past the end, so that finish() knows that the line was cut. */
}

static void may_cut(struct line *l, bool quoted)
{
	if (l->used > LOG_LINE_BYTES - (sizeof("...\"") - 1))
		return;
	l->whole = l->used;
	l->quoted = quoted;
}

static void put_text(struct line *l, const char *s)
{
	while (*s)
		put_char(l, *s++);
}

static bool is_plain(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)s[i] <= ' ' || s[i] == '"' || s[i] == '\\' || s[i] == '=' ||
		    s[i] == 0x7f)
			return false;
	return n > 0;
}

/* Of UTF-8. */
static bool in_character(const char *s, size_t n, size_t at)
{
	return at < n && ((unsigned char)s[at] & 0xc0) == 0x80;
}

static void put_value(struct line *l, const char *s, size_t n)
{
	static const char hex[] = "0123456789abcdef";

	if (is_plain(s, n)) {
		for (size_t i = 0; i < n; i++) {
			put_char(l, s[i]);
			if (!in_character(s, n, i + 1))
				may_cut(l, false);
		}
		return;
	}
	put_char(l, '"');
	may_cut(l, true);
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)s[i];

		if (c == '"' || c == '\\') {
			put_char(l, '\\');
			put_char(l, (char)c);
		} else if (c == '\n') {
			put_text(l, "\\n");
		} else if (c < ' ' || c == 0x7f) {
			put_text(l, "\\x");
			put_char(l, hex[c >> 4]);
			put_char(l, hex[c & 15]);
		} else {
			put_char(l, (char)c);
		}
		if (!in_character(s, n, i + 1))
			may_cut(l, true);
	}
	put_char(l, '"');
}

/* Writes one number. spec is, for example, "%-5.3llu", and its last character is the conversion. */
static void put_number(struct line *l, const char *spec, size_t spec_chars, va_list *ap)
{
	char one[32], out[400]; /* %f of 1e308 has 317 characters. */
	char conv = spec[spec_chars - 1], len = spec[spec_chars - 2],
	     len2 = spec_chars > 2 ? spec[spec_chars - 3] : 0;

	CHECK(spec_chars < sizeof(one));
	memcpy(one, spec, spec_chars);
	one[spec_chars] = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	if (strchr("eEfFgG", conv))
		snprintf(out, sizeof(out), one, va_arg(*ap, double));
	else if (len == 'l' && len2 == 'l')
		snprintf(out, sizeof(out), one, va_arg(*ap, long long));
	else if (len == 'l' || len == 'z' || len == 'j' || len == 't')
		snprintf(out, sizeof(out), one, va_arg(*ap, long));
	else
		/* h and hh are promoted to int. */
		snprintf(out, sizeof(out), one, va_arg(*ap, int));
#pragma GCC diagnostic pop
	put_text(l, out);
}

static void put_string(struct line *l, int precision, va_list *ap)
{
	const char *s = va_arg(*ap, const char *);

	if (!s)
		s = "(none)";
	put_value(l, s, precision >= 0 ? strnlen(s, (size_t)precision) : strlen(s));
}

static void put_format(struct line *l, const char *fmt, va_list *ap)
{
	while (*fmt) {
		size_t n = 1;

		may_cut(l, false);
		if (*fmt != '%') {
			put_char(l, *fmt == '\n' ? ' ' : *fmt);
			fmt++;
			continue;
		}
		n += strspn(fmt + n, "-+ #0123456789.hlzjt");
		if (fmt[n] == '%') {
			put_char(l, '%');
		} else if (fmt[n] == 's') {
			put_string(l, -1, ap);
		} else if (fmt[n] == '*' && fmt[n + 1] == 's') { /* "%.*s" */
			int precision = va_arg(*ap, int);

			put_string(l, precision, ap);
			n++;
		} else {
			CHECK(fmt[n] && strchr("diuxXcfFeEgG", fmt[n]));
			put_number(l, fmt, n + 1, ap);
		}
		fmt += n + 1;
	}
}

static void put_head(struct line *l, const struct log *log, enum log_level level)
{
	struct timespec ts;
	struct tm tm;
	char text[64];

	clock_gettime(CLOCK_REALTIME, &ts);
	gmtime_r(&ts.tv_sec, &tm);
	snprintf(text, sizeof(text), "ts=%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ level=%s",
		 tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
		 ts.tv_nsec / 1000000, level_names[level]);
	put_text(l, text);
	if (log->node[0]) {
		put_text(l, " node=");
		put_value(l, log->node, strnlen(log->node, sizeof(log->node)));
	}
	put_char(l, ' ');
}

static void finish(struct line *l, const struct log *log, enum log_level level)
{
	if (l->used > LOG_LINE_BYTES) {
		l->used = l->whole;
		put_text(l, l->quoted ? "...\"" : "...");
	}
	l->text[l->used] = 0;
	if (log->tap)
		log->tap(log->tap_arg, level, l->text);
	if (log->sink) {
		log->sink(log->sink_arg, level, l->text);
		return;
	}
	if (log->fd < 0)
		return;
	l->text[l->used++] = '\n';
	for (size_t at = 0; at < l->used;) {
		ssize_t n = write(log->fd, l->text + at, l->used - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return;
		at += (size_t)n;
	}
}

void log_init(struct log *l, int fd, enum log_level level, const char *node)
{
	CHECK((unsigned)level < LOG_LEVEL_NR);
	*l = (struct log){.level = level, .fd = fd};
	snprintf(l->node, sizeof(l->node), "%s", node ? node : "");
}

static bool log_on(const struct log *l, enum log_level level)
{
	return l && level <= l->level;
}

const char *log_level_name(enum log_level level)
{
	CHECK((unsigned)level < LOG_LEVEL_NR);
	return level_names[level];
}

bool log_level_parse(const char *text, enum log_level *level)
{
	for (unsigned i = 0; i < LOG_LEVEL_NR; i++) {
		if (strcmp(text, level_names[i]) == 0) {
			*level = (enum log_level)i;
			return true;
		}
	}
	return false;
}

void log_line(const struct log *l, enum log_level level, const char *fmt, ...)
{
	struct line line = {.used = 0};
	va_list ap;

	CHECK((unsigned)level < LOG_LEVEL_NR);
	if (!log_on(l, level))
		return;
	put_head(&line, l, level);
	va_start(ap, fmt);
	put_format(&line, fmt, &ap);
	va_end(ap);
	finish(&line, l, level);
}

/* The bucket gets one token back per second. `spent` counts the tokens of LOG_BURST that are in
 * use. */
static bool take_token(struct log_bucket *b, uint64_t now_ns)
{
	uint64_t back = now_ns > b->last_ns ? (now_ns - b->last_ns) / NS_PER_SEC : 0;

	if (b->spent == 0 || back >= b->spent) {
		b->spent = 0;
		b->last_ns = now_ns;
	} else {
		b->spent -= (uint32_t)back;
		b->last_ns += back * NS_PER_SEC;
	}
	if (b->spent >= LOG_BURST)
		return false;
	b->spent++;
	return true;
}

void log_limited(const struct log *l, struct log_bucket *b, uint64_t now_ns, enum log_level level,
		 const char *fmt, ...)
{
	struct line line = {.used = 0};
	va_list ap;

	CHECK((unsigned)level < LOG_LEVEL_NR);
	if (!log_on(l, level))
		return;
	if (!take_token(b, now_ns)) {
		b->suppressed++;
		return;
	}
	put_head(&line, l, level);
	if (b->suppressed) {
		char text[40];

		snprintf(text, sizeof(text), "suppressed=%u ", b->suppressed);
		put_text(&line, text);
		b->suppressed = 0;
	}
	va_start(ap, fmt);
	put_format(&line, fmt, &ap);
	va_end(ap);
	finish(&line, l, level);
}

bool log_fold(struct log_fold *f, uint64_t now_ns, const char *what, uint32_t *times)
{
	struct log_folded *x = NULL, *oldest = &f->slot[0];
	char key[sizeof(x->what)];

	snprintf(key, sizeof(key), "%s", what);
	for (uint32_t i = 0; i < LOG_FOLD_SLOTS; i++) {
		if (strcmp(f->slot[i].what, key) == 0)
			x = &f->slot[i];
		if (f->slot[i].last_ns < oldest->last_ns)
			oldest = &f->slot[i];
	}
	/* What was not said for some minutes is news again. */
	if (x == NULL || now_ns - x->last_ns > 5 * LOG_FOLD_NS) {
		x = x != NULL ? x : oldest;
		*x = (struct log_folded){.since_ns = now_ns};
		memcpy(x->what, key, sizeof(key));
	}
	x->last_ns = now_ns;
	*times = x->left_out;
	if (x->shown >= LOG_FOLD_SHOWN && now_ns - x->since_ns < LOG_FOLD_NS) {
		x->left_out++;
		return false;
	}
	x->shown++;
	x->since_ns = now_ns;
	x->left_out = 0;
	return true;
}
