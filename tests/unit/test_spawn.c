/* SPDX-License-Identifier: Apache-2.0 */
/* Tests spawn:NAME: which names are allowed, and which folder each name has. */
#include "base/check.h"
#include "spawn/spawn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static int begin(void **state)
{
	(void)state;
	strcpy(dir, "/tmp/shard-spawn-XXXXXX");
	return mkdtemp(dir) && setenv("XDG_RUNTIME_DIR", dir, 1) == 0 ? 0 : -1;
}

static int end(void **state)
{
	(void)state;
	return rmdir(dir);
}

static void refused(const char *address, const char *text)
{
	struct spawn s;
	struct err e;

	assert_int_equal(spawn_find(&s, address, &e), SHARD_BAD_ARG);
	if (strstr(e.text, text) == NULL)
		fail_msg("\"%s\" is not in \"%s\"", text, e.text);
}

static void test_names(void **state)
{
	char name[80] = "spawn:";
	struct spawn s;
	struct err e;

	(void)state;
	assert_true(spawn_is("spawn:x") && spawn_is("spawn:"));
	assert_false(spawn_is("unix:/spawn:") || spawn_is("spawn"));
	refused("spawn:", "address \"spawn:\": a name has 1 to 64 of a-z 0-9 . _ -");
	refused("spawn:Demo", "a name has");
	refused("spawn:a/b", "a name has");
	refused("spawn:..", "does not begin with a dot");
	refused("spawn:a b", "a name has");
	memset(name + 6, 'x', 65);
	refused(name, "a name has");
	assert_int_equal(spawn_find(&s, "spawn:a.b_c-9", &e), SHARD_OK);
	assert_string_equal(s.name, "a.b_c-9");
}

static void test_paths(void **state)
{
	char want[200], name[80] = "spawn:";
	struct spawn s;
	struct err e;

	(void)state;
	assert_int_equal(spawn_find(&s, "spawn:demo", &e), SHARD_OK);
	snprintf(want, sizeof(want), "unix:%s/shardd/demo/shardd.sock", dir);
	assert_string_equal(s.address, want);
	assert_int_equal(strncmp(s.dir, want + 5, strlen(s.dir)), 0);
	unsetenv("XDG_RUNTIME_DIR");
	snprintf(want, sizeof(want), "unix:/tmp/shardd-%u/demo/shardd.sock", (unsigned)geteuid());
	enum shard_status rc = spawn_find(
		/* That folder belongs to the machine, whatever it is like. */
		&s, "spawn:demo", &e);
	assert_true(rc == SHARD_OK || rc == SHARD_DENIED);
	assert_string_equal(s.address, want);
	CHECK(setenv("XDG_RUNTIME_DIR", "relative", 1) == 0);
	(void)spawn_find(&s, "spawn:demo", &e);
	assert_string_equal(s.address, want);
	CHECK(setenv("XDG_RUNTIME_DIR", geteuid() == 0 ? "/nonexistent" : "/", 1) ==
	      0); /* What su leaves behind. */
	(void)spawn_find(&s, "spawn:demo", &e);
	assert_string_equal(s.address, want);
	CHECK(setenv("XDG_RUNTIME_DIR", dir, 1) == 0);
	memset(name + 6, 'x', 64); /* The longest name that is possible. */
	snprintf(want, sizeof(want), "unix:%s/shardd/%s/shardd.sock", dir, name + 6);
	if (strlen(want) - 5 <= 107) {
		assert_int_equal(spawn_find(&s, name, &e), SHARD_OK);
		assert_string_equal(s.address, want);
	} else {
		refused(name, "would have a path of ");
	}
}

static void test_long(void **state)
{
	char deep[200], name[80] = "spawn:";
	size_t room;
	struct spawn s;
	struct err e;

	(void)state;
	snprintf(deep, sizeof(deep), "%s/%060d", dir, 0);
	CHECK(mkdir(deep, 0700) == 0 && setenv("XDG_RUNTIME_DIR", deep, 1) == 0);
	room = 107 - strlen(deep) - strlen("/shardd/") - strlen("/shardd.sock");
	assert_true(room < 60);
	memset(name + 6, 'y', room);
	assert_int_equal(spawn_find(&s, name, &e), SHARD_OK);
	assert_int_equal(strlen(s.address), 5 + 107);
	name[6 + room] = 'y';
	refused(name, "of 108 bytes, 107 are possible: choose a shorter name, or a shorter "
		      "XDG_RUNTIME_DIR");
	CHECK(setenv("XDG_RUNTIME_DIR", dir, 1) == 0 && rmdir(deep) == 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {cmocka_unit_test(test_names),
						  cmocka_unit_test(test_paths),
						  cmocka_unit_test(test_long)};

	return cmocka_run_group_tests(tests, begin, end);
}
