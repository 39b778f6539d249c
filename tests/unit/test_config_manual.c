/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the table engine on its two tables. Each row is consistent, each value reads back as it was
 * written, and a reload takes over what its row says. daemon/config/README.md must be what the
 * tables generate. With the word "print" the program prints that file instead (`make
 * config-readme`). */
#include "base/check.h"
#include "config/config.h"
#include "config/foreign.h"
#include "config/keys.h"
#include "config/loader.h"
#include "config/settings.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define README "daemon/config/README.md"

/* Both tables pass the check of the engine. */
static void rows(void **state)
{
	(void)state;
	table_check(config_options());
	table_check(settings_table());
	foreign_check();
	for (int p = 0; p < SCHEDULE_PARAM_NR; p++)
		assert_int_equal(settings_param((enum schedule_param)p)->index, p);
}

/* The default of a schedule's parameter in the table is the one that the schedule uses. */
static void schedule_defaults(void **state)
{
	struct table_value v;

	(void)state;
	for (int i = 0; i < SCHEDULE_NR; i++) {
		const struct schedule_row *schedule = schedule_row((enum schedule_id)i);

		for (int p = 0; p < SCHEDULE_PARAM_NR; p++) {
			const struct table_row *row = settings_param((enum schedule_param)p);

			if (schedule->param[p].from != SCHEDULE_VALUE || !row->fallback)
				continue;
			assert_int_equal(settings_value(row, row->fallback, &v, NULL), SHARD_OK);
			assert_true(v.number == schedule->param[p].value);
		}
	}
}

/* A valid text for this row that is not its default. NULL: there is none in the list. */
static const char *other_text(const struct table_row *row)
{
	static const char *const texts[] = {
		"no",         "yes",  "x",     "/x",     "/x:/y",
		"10.1.2.3:4", "3GiB", "100s",  "5",      "1",
		"0.25",       "0640", "debug", "tmpfs",  "tcp",
		"require",    "4Ki",  "0.999", "quorum", "http://a:1,https://b"};
	struct table_value v;

	for (size_t i = 0; i < NR(texts); i++)
		if ((!row->fallback || strcmp(row->fallback, texts[i]) != 0) &&
		    table_parse(row, texts[i], &v, NULL) == SHARD_OK)
			return texts[i];
	return NULL;
}

static void round_trip(const struct table *t, void *object, void *copy, size_t bytes)
{
	char one[CONFIG_PATH_BYTES], two[CONFIG_PATH_BYTES];

	for (uint32_t i = 0; i < t->nr; i++) {
		const struct table_row *row = &t->rows[i];
		const char *text = row->bytes ? other_text(row) : NULL;

		if (!text)
			continue;
		memset(object, 0, bytes);
		memset(copy, 0, bytes);
		assert_int_equal(table_set(row, object, text, NULL), SHARD_OK);
		table_get(row, object, one, sizeof(one));
		assert_int_equal(table_set(row, copy, one, NULL), SHARD_OK);
		table_get(row, copy, two, sizeof(two));
		assert_string_equal(one, two);
		if (row->type <= TABLE_ADDRESS)
			assert_string_equal(one, text);
		memset(copy, 0, bytes);
		table_copy(row, copy, object);
		assert_memory_equal(object, copy, bytes); /* It wrote its own field and no other. */
		if (!row->word)
			continue;
		assert_int_equal(table_set(row, object, row->word, NULL), SHARD_OK);
		table_get(row, object, one, sizeof(one));
		assert_string_equal(one, row->word);
	}
}

/* The values of both tables read back as they were written. */
static void values(void **state)
{
	static struct config a, b;
	static struct model_settings s, t;

	(void)state;
	round_trip(config_options(), &a, &b, sizeof(a));
	round_trip(settings_table(), &s, &t, sizeof(s));
}

/* Each option is changed alone and then reloaded. A reloadable one changes, and any other one keeps
 * its value until a restart. */
static void reload(void **state)
{
	const struct table *t = config_options();
	static const char *const no_file = "/dev/null";
	uint32_t taken = 0;

	(void)state;
	for (uint32_t i = 0; i < t->nr; i++) {
		const struct table_row *row = &t->rows[i];
		const char *text = other_text(row);
		char set[200], name[80], value[CONFIG_PATH_BYTES], before[CONFIG_PATH_BYTES];
		const char *const sets[] = {"daemon.node=a", "daemon.allow_unauthenticated=yes",
					    set};
		struct config_args args = {.file = no_file, .set = sets, .set_nr = 2};
		struct config_changes what;
		struct config c;
		struct err e;

		snprintf(name, sizeof(name), "%s.%s", row->section, row->name);
		if (!text || strcmp(name, "daemon.node") == 0 ||
		    strcmp(name, "daemon.allow_unauthenticated") == 0)
			continue;
		assert_int_equal(config_load(&c, &args, &e), SHARD_OK);
		table_get(row, &c, before, sizeof(before));
		snprintf(set, sizeof(set), "%s=%s", name, text);
		args.set_nr = 3;
		if (config_reload(&c, &args, &what, &e) != SHARD_OK)
			fail_msg("%s: %s", set, e.text);
		table_get(row, &c, value, sizeof(value));
		assert_true((strcmp(value, before) != 0) == row->reloadable);
		assert_true((strstr(what.taken, name) != NULL) == row->reloadable);
		assert_true((strstr(what.left, name) != NULL) != row->reloadable);
		taken += row->reloadable;
		config_free(&c);
	}
	assert_int_equal(taken, 3);
}

/* The file is what `make config-readme` writes. */
static void manual(void **state)
{
	char path[256], up[] = "../../../../", *want = NULL, *have;
	size_t bytes, got;
	FILE *f = open_memstream(&want, &bytes), *file = NULL;

	(void)state;
	config_manual(f);
	fclose(f);
	/* The tests run in the source tree or somewhere in build/. */
	for (size_t i = 0; i < sizeof(up) && !file; i += 3) {
		snprintf(path, sizeof(path), "%.*s" README, (int)i, up);
		file = fopen(path, "r");
	}
	if (!file)
		fail_msg(README " is not there");
	have = calloc(1, 2 * bytes);
	assert_non_null(have);
	got = fread(have, 1, 2 * bytes - 1, file);
	fclose(file);
	if (got != bytes || memcmp(have, want, bytes) != 0)
		fail_msg(README " is not what the tables say: make config-readme");
	free(have);
	free(want);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows),   cmocka_unit_test(schedule_defaults),
		cmocka_unit_test(values), cmocka_unit_test(reload),
		cmocka_unit_test(manual),
	};

	if (argc == 2 && strcmp(argv[1], "print") == 0) {
		config_manual(stdout);
		return 0;
	}
	return cmocka_run_group_tests_name("config_manual", tests, NULL, NULL);
}
