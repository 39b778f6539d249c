// SPDX-License-Identifier: Apache-2.0
/* Tests log lines as entries of the journal: which fields a line becomes, that quoting is undone,
 * and that what does not fit stays in MESSAGE. stderr counts as the journal's only when
 * $JOURNAL_STREAM names this very stderr. */
#include "base/check.h"
#include "journal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void sink(void *arg, enum log_level level, const char *line)
{
	journal_entry_make(arg, level, line);
}

/* Returns the value of a field, which must be there once. NULL: it is not there. */
static const char *field(const struct journal_entry *e, const char *name)
{
	static char value[2048]; /* A field of the test, not of the daemon. */
	const char *found = NULL;
	size_t n = strlen(name);

	for (unsigned i = 0; i < e->fields_nr; i++) {
		const char *text = e->field[i].iov_base;

		if (e->field[i].iov_len <= n || memcmp(text, name, n) != 0 || text[n] != '=')
			continue;
		assert_null(found);
		assert_true(e->field[i].iov_len - n - 1 < sizeof(value));
		memcpy(value, text + n + 1, e->field[i].iov_len - n - 1);
		value[e->field[i].iov_len - n - 1] = 0;
		found = value;
	}
	return found;
}

static void is(const struct journal_entry *e, const char *name, const char *want)
{
	const char *value = field(e, name);

	assert_non_null(value);
	assert_string_equal(value, want);
}

static struct log to(struct journal_entry *e)
{
	struct log l;

	log_init(&l, -1, LOG_LEVEL_DEBUG, "a");
	l.sink = sink;
	l.sink_arg = e;
	return l;
}

static void test_fields(void **state)
{
	struct journal_entry e;
	struct log l = to(&e);

	(void)state;
	log_line(&l, LOG_LEVEL_WARN, "event=attempt_ended model=%s step=%lu why=%s", "gpt.tp0",
		 812ul, "rank 2 \"x\" = gone");
	is(&e, "PRIORITY", "4");
	is(&e, "SYSLOG_IDENTIFIER", "shardd");
	is(&e, "MESSAGE",
	   "node=a event=attempt_ended model=gpt.tp0 step=812 why=\"rank 2 \\\"x\\\" = gone\"");
	is(&e, "SHARDD_NODE", "a");
	is(&e, "SHARDD_EVENT", "attempt_ended");
	is(&e, "SHARDD_MODEL", "gpt.tp0");
	is(&e, "SHARDD_STEP", "812");
	is(&e, "SHARDD_WHY", "rank 2 \"x\" = gone");
	assert_int_equal(e.fields_nr, 8);
}

static void test_priorities(void **state)
{
	static const char *const want[LOG_LEVEL_NR] = {"3", "4", "6", "7"};
	struct journal_entry e;
	struct log l = to(&e);

	(void)state;
	for (int i = 0; i < LOG_LEVEL_NR; i++) {
		log_line(&l, (enum log_level)i, "event=x");
		is(&e, "PRIORITY", want[i]);
	}
}

/* The text of a peer makes neither a field nor an entry of its own. */
static void test_hostile(void **state)
{
	struct journal_entry e;
	struct log l = to(&e);

	(void)state;
	log_line(&l, LOG_LEVEL_INFO, "event=hello peer=%s", "x\nPRIORITY=0 SHARDD_EVENT=root \x01");
	is(&e, "PRIORITY", "6");
	is(&e, "SHARDD_EVENT", "hello");
	is(&e, "SHARDD_PEER", "x\nPRIORITY=0 SHARDD_EVENT=root \x01");
	is(&e, "MESSAGE", "node=a event=hello peer=\"x\\nPRIORITY=0 SHARDD_EVENT=root \\x01\"");
}

static void test_odd(void **state)
{
	char line[LOG_LINE_BYTES], *at = line;
	struct journal_entry e;

	(void)state;
	journal_entry_make(&e, LOG_LEVEL_INFO, "");
	is(&e, "PRIORITY", "6");
	journal_entry_make(&e, LOG_LEVEL_INFO,
			   "words without keys = \"x Per-Rank.n=3 open=\"cut \\");
	is(&e, "SHARDD_PER_RANK_N", "3");
	is(&e, "SHARDD_OPEN", "cut \\");
	for (int i = 0; i < 100; i++)
		at += sprintf(at, "key%d=%d ", i, i);
	journal_entry_make(&e, LOG_LEVEL_INFO, line);
	assert_int_equal(e.fields_nr, JOURNAL_FIELDS_MAX);
	is(&e, "SHARDD_KEY7", "7");
	assert_null(field(&e, "SHARDD_KEY99"));
	assert_non_null(strstr(field(&e, "MESSAGE"), "key99=99"));
}

static void test_stream(void **state)
{
	struct stat info;
	struct log l;
	char text[64];

	(void)state;
	log_init(&l, 2, LOG_LEVEL_INFO, "a");
	unsetenv("JOURNAL_STREAM");
	assert_false(journal_use(&l));
	assert_int_equal(fstat(2, &info), 0);
	snprintf(text, sizeof(text), "%lu:%lu", (unsigned long)info.st_dev,
		 (unsigned long)info.st_ino + 1);
	setenv("JOURNAL_STREAM", text, 1); /* stderr goes elsewhere since then. */
	assert_false(journal_use(&l));
	setenv("JOURNAL_STREAM", "x", 1);
	assert_false(journal_use(&l));
	assert_null(l.sink);
	unsetenv("JOURNAL_STREAM");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fields),  cmocka_unit_test(test_priorities),
		cmocka_unit_test(test_hostile), cmocka_unit_test(test_odd),
		cmocka_unit_test(test_stream),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
