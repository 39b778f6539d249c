/* SPDX-License-Identifier: Apache-2.0 */
/* Tests log lines: their shape, quoting, cutting, levels and the rate limit. */
#include "base/clock.h"
#include "base/log.h"
#include "base/check.h"
#include "lib/logfmt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct seen {
	char line[LOG_LINE_BYTES + 1];
	int nr;
};

static void keep(void *arg, enum log_level level, const char *line)
{
	struct seen *s = arg;

	(void)level;
	snprintf(s->line, sizeof(s->line), "%s", line);
	s->nr++;
}

static struct log to(struct seen *s)
{
	struct log l;

	log_init(&l, -1, LOG_LEVEL_INFO, "a");
	l.sink = keep;
	l.sink_arg = s;
	*s = (struct seen){.nr = 0};
	return l;
}

static const char *after_head(const struct seen *s)
{
	const char *at = strstr(s->line, "event=");

	return at ? at : "(no event)";
}

static void values(void **state)
{
	const char *volatile absent = NULL;
	struct seen s;
	struct log l = to(&s);

	(void)state;
	log_line(&l, LOG_LEVEL_WARN, "event=x n=%d big=%llu l=%lu u=%u hex=%08x f=%.3f s=%s p=%%",
		 -3, 1ull << 60, 7ul, 4000000000u, 255, 1.5, "plain");
	assert_string_equal(after_head(&s), "event=x n=-3 big=1152921504606846976 l=7 u=4000000000 "
					    "hex=000000ff f=1.500 s=plain p=%");
	assert_non_null(strstr(s.line, " level=warn node=a "));
	assert_memory_equal(s.line, "ts=20", 5);
	log_line(&l, LOG_LEVEL_INFO, "event=x a=%.*s b=%s c=%zu z=%c", 3, "abcdef", absent,
		 (size_t)9, 'q');
	assert_string_equal(after_head(&s), "event=x a=abc b=(none) c=9 z=q");
	log_line(&l, LOG_LEVEL_INFO, "event=x f=%.1f", -1e308);
	assert_true(strlen(s.line) > 300);
}

static void quoting(void **state)
{
	struct seen s;
	struct log l = to(&s);

	(void)state;
	log_line(&l, LOG_LEVEL_INFO, "event=x why=%s", "two words");
	assert_string_equal(after_head(&s), "event=x why=\"two words\"");
	log_line(&l, LOG_LEVEL_INFO, "event=x why=%s", "");
	assert_string_equal(after_head(&s), "event=x why=\"\"");
	log_line(&l, LOG_LEVEL_INFO, "event=x why=%s", "q\" b\\ \nts=1 level=error\x01\x7f");
	assert_string_equal(after_head(&s),
			    "event=x why=\"q\\\" b\\\\ \\nts=1 level=error\\x01\\x7f\"");
	log_line(&l, LOG_LEVEL_INFO, "event=x why=%s", "a=b");
	assert_string_equal(after_head(&s), "event=x why=\"a=b\"");
}

static uint32_t bytes_of(const char *text, char byte)
{
	uint32_t nr = 0;

	for (; *text != 0; text++)
		nr += *text == byte;
	return nr;
}

static void cut(void **state)
{
	struct seen s;
	struct log l = to(&s);
	char big[3 * LOG_LINE_BYTES], why[200];
	static const char *const odd[] = {"\n", "\x01", "\"", "\\", "\u00fc", "a b"};

	(void)state;
	memset(big, 'x', sizeof(big) - 1);
	big[sizeof(big) - 1] = 0;
	log_line(&l, LOG_LEVEL_INFO, "event=x why=%s", big);
	assert_in_range(strlen(s.line), LOG_LINE_BYTES - 8, LOG_LINE_BYTES);
	assert_string_equal(s.line + strlen(s.line) - 4, "x...");
	/* Wherever a line is cut: an escape, a character and a quote stay whole. */
	for (size_t k = 0; k < sizeof(odd) / sizeof(odd[0]); k++)
		for (size_t before = 0; before < 8; before++) {
			big[0] = 0;
			memset(big, 'x', before);
			for (size_t at = before; at + 4 < sizeof(big); at += strlen(odd[k]))
				snprintf(big + at, sizeof(big) - at, "%s", odd[k]);
			log_line(&l, LOG_LEVEL_INFO, "event=x n=%d why=%s end=1", 7, big);
			assert_in_range(strlen(s.line), LOG_LINE_BYTES - 8, LOG_LINE_BYTES);
			if (!logfmt_parses(s.line, why, sizeof(why)))
				fail_msg("%s: %s", why, s.line);
			assert_int_equal(bytes_of(s.line, '\xc3'), bytes_of(s.line, '\xbc'));
		}
}

static void levels(void **state)
{
	struct seen s;
	struct log l = to(&s);
	enum log_level level = LOG_LEVEL_ERROR;

	(void)state;
	log_line(&l, LOG_LEVEL_DEBUG, "event=x");
	assert_int_equal(s.nr, 0);
	log_line(NULL, LOG_LEVEL_ERROR, "event=x");
	l.level = LOG_LEVEL_DEBUG;
	log_line(&l, LOG_LEVEL_DEBUG, "event=x");
	assert_int_equal(s.nr, 1);
	assert_true(log_level_parse("debug", &level));
	assert_int_equal(level, LOG_LEVEL_DEBUG);
	assert_false(log_level_parse("loud", &level));
	assert_string_equal(log_level_name(LOG_LEVEL_WARN), "warn");
}

static void rate(void **state)
{
	struct seen s;
	struct log l = to(&s);
	struct log_bucket b = {.last_ns = 0};
	uint64_t now = 5000 * NS_PER_SEC;

	(void)state;
	for (int i = 0; i < 1000; i++)
		log_limited(&l, &b, now, LOG_LEVEL_INFO, "event=flood");
	assert_int_equal(s.nr, LOG_BURST);
	log_limited(&l, &b, now + NS_PER_SEC, LOG_LEVEL_INFO, "event=flood");
	assert_int_equal(s.nr, LOG_BURST + 1);
	assert_non_null(strstr(s.line, "suppressed=990 event=flood"));
	log_limited(&l, &b, now + NS_PER_SEC, LOG_LEVEL_INFO, "event=flood");
	assert_int_equal(s.nr, LOG_BURST + 1);
	for (int i = 0; i < 20; i++)
		log_limited(&l, &b, now + 1000 * NS_PER_SEC, LOG_LEVEL_INFO, "event=flood");
	assert_int_equal(s.nr, 2 * LOG_BURST + 1);
	log_limited(&l, &b, now, LOG_LEVEL_INFO,
		    "event=flood"); /* A clock that stands still gives nothing back. */
	assert_int_equal(s.nr, 2 * LOG_BURST + 1);
}

/* A peer that tries each second is written four times, and then once a minute with a count. */
static void folds(void **state)
{
	struct log_fold f = {.slot = {{.shown = 0}}};
	uint64_t now = 5000 * NS_PER_SEC;
	uint32_t times, written = 0, all = 0;

	(void)state;
	for (int i = 0; i < 300; i++, now += NS_PER_SEC) {
		if (log_fold(&f, now, "10.0.0.7 wrong", &times)) {
			written++;
			all += 1 + times;
		}
		/* Others in between do not matter. */
		for (int k = 0; k < LOG_FOLD_SLOTS - 1; k++) {
			char other[16];

			snprintf(other, sizeof(other), "other %d", k);
			(void)log_fold(&f, now, other, &times);
		}
	}
	assert_in_range(written, LOG_FOLD_SHOWN + 4, LOG_FOLD_SHOWN + 5);
	assert_in_range(all, 300 - 60, 300);
	assert_true(log_fold(&f, now, "10.0.0.8 wrong", &times)); /* It takes the oldest place. */
	assert_int_equal(times, 0);
	now += 600 * NS_PER_SEC;
	for (int i = 0; i < LOG_FOLD_SHOWN; i++)
		assert_true(log_fold(&f, now, "10.0.0.8 wrong", &times)); /* It is news again. */
	assert_false(log_fold(&f, now, "10.0.0.8 wrong", &times));
}

static void descriptor(void **state)
{
	struct log l;
	char got[256];
	int fd[2];

	(void)state;
	assert_int_equal(pipe(fd), 0);
	log_init(&l, fd[1], LOG_LEVEL_INFO, NULL);
	log_line(&l, LOG_LEVEL_INFO, "event=one");
	log_line(&l, LOG_LEVEL_INFO, "event=two");
	close(fd[1]);
	ssize_t n = read(fd[0], got, sizeof(got) - 1);
	assert_true(n > 0);
	got[n] = 0;
	close(fd[0]);
	assert_non_null(strstr(got, "level=info event=one\nts="));
	assert_string_equal(strstr(got, "event=two"), "event=two\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values),     cmocka_unit_test(quoting), cmocka_unit_test(cut),
		cmocka_unit_test(levels),     cmocka_unit_test(rate),    cmocka_unit_test(folds),
		cmocka_unit_test(descriptor),
	};

	return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
