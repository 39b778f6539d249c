/* SPDX-License-Identifier: Apache-2.0 */
/* Tests `shardctl config explain`. It lists every option with its value and its origin: default,
 * file and line, environment, or command line. The last origin wins. A wrong file gives exit status
 * 4 and the place of the error. */
#include "base/check.h"
#include "lib/tool.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void write_file(char path[64], const char *text)
{
	int fd;

	strcpy(path, "/tmp/shard-explain-XXXXXX");
	fd = mkstemp(path);
	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

static void is(const json_t *list, const char *section, const char *key, const char *value,
	       const char *origin, const char *where)
{
	size_t i;
	json_t *o;

	json_array_foreach((json_t *)(uintptr_t)list, i, o) {
		if (strcmp(json_string_value(json_object_get(o, "section")), section) != 0 ||
		    strcmp(json_string_value(json_object_get(o, "key")), key) != 0)
			continue;
		if (value)
			assert_string_equal(json_string_value(json_object_get(o, "value")), value);
		assert_string_equal(json_string_value(json_object_get(o, "origin")), origin);
		assert_string_equal(json_string_value(json_object_get(o, "where")), where);
		return;
	}
	fail_msg("[%s] %s is not there", section, key);
}

static void test_origins(void **state)
{
	char path[64], words[200], at[6][80], *out;
	json_error_t wrong;
	json_t *o, *list;

	(void)state;
	write_file(path, "[daemon]\nnode = a\nlog_level = warn\nworkers = 3\nallow_unauthenticated "
			 "= yes\n[nodes]\na = "
			 "127.0.0.1:4001\nb = 127.0.0.1:4002\n"
			 "[model]\nclip = 1.0\noptimizer = adamw\n[model \"gpt\"]\nclip = 2.0\n");
	for (int i = 0; i < 6; i++)
		snprintf(at[i], sizeof(at[i]), "%s:%d", path, (const int[]){2, 3, 4, 7, 10, 13}[i]);
	CHECK(setenv("SHARD_WORKERS", "2", 1) == 0 && setenv("SHARD_NET_CONNECTIONS", "3", 1) == 0);
	snprintf(words, sizeof(words), "config explain --json --config %s --set net.connections=4",
		 path);
	assert_int_equal(tool_run(&out, "shardctl", words), 0);
	o = json_loads(out, 0, &wrong);
	if (!o)
		fail_msg("%s: %s", wrong.text, out);
	free(out);
	list = json_object_get(o, "options");
	is(list, "daemon", "node", "a", "file", at[0]);
	is(list, "daemon", "log_level", "warn", "file", at[1]);
	is(list, "daemon", "workers", "2", "environment", "SHARD_WORKERS in the environment");
	is(list, "net", "connections", "4", "command line", "command line");
	is(list, "daemon", "listen", "127.0.0.1:4001", "file", at[3]);
	is(list, "daemon", "socket_mode", "0660", "default", "default");
	is(list, "cluster", "membership", "static", "default", "default for 2 nodes");
	is(list, "nodes", "a", "127.0.0.1:4001", "file", at[3]);
	is(list, "model", "clip", "1.0", "file", at[4]);
	is(list, "model \"gpt\"", "clip", "2.0", "file", at[5]);
	json_decref(o);
	snprintf(words, sizeof(words), "config explain %s", path);
	tool_expect(0, "SHARD_WORKERS in the environment", "shardctl", words);
	tool_expect(0, at[5], "shardctl", words);
	snprintf(words, sizeof(words), "config explain %s --set nodes.c=127.0.0.1:4003", path);
	tool_expect(0, "membership = quorum                          ; default for 3 nodes",
		    "shardctl", words);
	snprintf(words, sizeof(words), "config explain %s --set model.clip=3", path);
	tool_expect(0, "clip = 3                                     ; command line", "shardctl",
		    words);
	snprintf(words, sizeof(words), "config check %s --json", path);
	tool_expect(0, "\"origin\":\"default\"", "shardctl", words);
	unsetenv("SHARD_WORKERS");
	unsetenv("SHARD_NET_CONNECTIONS");
	unlink(path);
}

#define WITHOUT_DEFAULT                                                                            \
	" --set daemon.node=a --set cluster.secret=/etc/x --set cluster.node_secret=/etc/y"        \
	" --set cluster.etcd_endpoints=http://a:1 --set cluster.etcd_ca=/etc/c"                    \
	" --set cluster.etcd_cert=/etc/d --set cluster.etcd_key=/etc/e"                            \
	" --set net.tls_cert=/etc/f --set net.tls_key=/etc/g --set net.tls_ca=/etc/h"              \
	" --set daemon.http=0.0.0.0:1 --set daemon.http_allow=10.0.0.0/8"                          \
	" --set daemon.nvme_dir=/etc/i --set daemon.checkpoint_hook=/etc/j"

/* No option is left out: there are as many lines as --check prints. */
static void test_all(void **state)
{
	char *checked, *explained, *at;
	int options[2] = {0, 0};

	(void)state;
	/* --check leaves out what has no value. */
	assert_int_equal(tool_run(&checked, "shardd", "--check" WITHOUT_DEFAULT), 0);
	assert_int_equal(tool_run(&explained, "shardd", "--explain" WITHOUT_DEFAULT), 0);
	for (at = checked; (at = strstr(at, " = ")) != NULL; at++)
		options[0]++;
	for (at = explained; (at = strstr(at, " = ")) != NULL; at++)
		options[1]++;
	assert_true(options[0] > 15);
	assert_int_equal(options[0], options[1]);
	free(checked);
	free(explained);
}

static void test_wrong(void **state)
{
	char path[64], words[200], want[200];

	(void)state;
	write_file(path, "[daemon]\nlog_lvl = info\n");
	snprintf(words, sizeof(words), "config explain %s", path);
	snprintf(want, sizeof(want), "%s:2: [daemon] log_lvl = info: unknown key", path);
	tool_expect(4, want, "shardctl", words);
	tool_expect(4, "cannot be opened", "shardctl",
		    "config explain --config /nonexistent/shardd.conf");
	tool_expect(2, "choose check or explain", "shardctl", "config explane");
	tool_expect(2, "write config check FILE", "shardctl", "config check");
	unlink(path);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {cmocka_unit_test(test_origins),
						  cmocka_unit_test(test_all),
						  cmocka_unit_test(test_wrong)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
