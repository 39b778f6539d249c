/* SPDX-License-Identifier: Apache-2.0 */
/* Tests a configuration of several files: the order in which *.conf of a folder are read, that a
 * later file wins and that a key which is twice in one file is still an error, and a loader that is
 * asked for all errors at once instead of the first one. */
#include "base/check.h"
#include "base/clock.h"
#include "config/config.h"
#include "config/settings.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char top[64];

static const char *put(char path[128], const char *name, const char *text)
{
	FILE *f;

	snprintf(path, 128, "%s/%s", top, name);
	f = fopen(path, "w");
	assert_true(f && fputs(text, f) >= 0 && fclose(f) == 0);
	return path;
}

static int setup(void **state)
{
	char dir[128];

	(void)state;
	strcpy(top, "/tmp/shard-config-XXXXXX");
	CHECK(mkdtemp(top));
	snprintf(dir, sizeof(dir), "%s/conf.d", top);
	return mkdir(dir, 0700);
}

static int teardown(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", top);
	return system(command);
}

static void test_folder(void **state)
{
	char file[128], dir[128], path[128], want[200];
	struct config_args args = {.file = file, .folder = dir};
	const struct config_model *m;
	struct config c;
	struct err e;

	(void)state;
	snprintf(dir, sizeof(dir), "%s/conf.d", top);
	put(file, "main.conf",
	    "[daemon]\nnode = a\nworkers = 1\nlog_level = warn\nallow_unauthenticated = yes\n"
	    "[nodes]\na = 127.0.0.1:1\nb = 127.0.0.1:2\n[model]\nlr = 1\nclip = 1\n");
	put(path, "conf.d/20-b.conf", "[daemon]\nworkers = 3\n[model]\nclip = 3\n");
	put(path, "conf.d/10-a.conf", "[daemon]\nworkers = 2\n[nodes]\nb = 127.0.0.1:3\n");
	put(path, "conf.d/30.conf.old", "[daemon]\nworkers = 4\n");
	put(path, "conf.d/.40.conf", "[daemon]\nworkers = 5\n");
	if (config_load(&c, &args, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	assert_int_equal(c.workers, 3);
	assert_int_equal(c.log_level, LOG_LEVEL_WARN);
	assert_int_equal(c.nodes_nr, 2);
	assert_string_equal(c.node_list[1].address.text, "127.0.0.1:3");
	snprintf(want, sizeof(want), "%s/conf.d/10-a.conf:4", top);
	assert_string_equal(c.node_list[1].where, want);
	m = config_model(&c, "", "");
	assert_string_equal(m->settings, "lr=1 clip=3");
	snprintf(want, sizeof(want), "%s/conf.d/20-b.conf:4", top);
	assert_string_equal(m->origins[1].text, want);
	config_free(&c);

	/* What names another file than that of the package has no folder. */
	args.folder = NULL;
	assert_int_equal(config_load(&c, &args, &e), SHARD_OK);
	assert_int_equal(c.workers, 1);
	config_free(&c);
	args.folder = dir;

	put(path, "conf.d/20-b.conf", "[daemon]\nworkers = 3\nworkers = 4\n");
	assert_int_equal(config_load(&c, &args, &e), SHARD_BAD_ARG);
	snprintf(want, sizeof(want),
		 "%s:3: [daemon] workers = 4: workers is there already, in "
		 "line 2",
		 path);
	assert_string_equal(e.text, want);
	put(path, "conf.d/20-b.conf", "[nodes]\nb = 127.0.0.1:4\nb = 127.0.0.1:5\n");
	assert_int_equal(config_load(&c, &args, &e), SHARD_BAD_ARG);
	assert_non_null(strstr(e.text, "this node is there already"));
	put(path, "conf.d/20-b.conf", "[model]\nlr = 2\nlr = 3\n");
	assert_int_equal(config_load(&c, &args, &e), SHARD_BAD_ARG);
	assert_non_null(strstr(e.text, "20-b.conf:3: [model] lr = 3: lr is there already"));
	snprintf(dir, sizeof(dir), "%s/none", top);
	assert_int_equal(config_load(&c, &args, &e), SHARD_SYSTEM);
	assert_non_null(strstr(e.text, "/none: cannot be read: No such file"));
}

/* Without the folder of the test, whose name is not known beforehand. */
static const char *below_top(const char *text)
{
	return strncmp(text, top, strlen(top)) == 0 ? text + strlen(top) : text;
}

static void add_line(void *arg, const char *text)
{
	char *all = arg;

	CHECK(strlen(all) + strlen(text) + 2 < 4096);
	strcat(strcat(all, below_top(text)), "\n");
}

static void all_wrong(const struct config_args *args, const char *want)
{
	char said[4096] = "";
	struct config_args with = *args;
	struct config c;
	struct err e;

	with.wrong = add_line;
	with.wrong_arg = said;
	assert_int_not_equal(config_load(&c, &with, &e), SHARD_OK);
	assert_string_equal(said, want);
	/* The one that the caller gets is the first. */
	assert_memory_equal(said, below_top(e.text), strlen(below_top(e.text)));
}

/* Nobody writes into it, so that open() would wait for ever. */
static void test_pipe(void **state)
{
	char file[128], dir[128], path[160];
	struct config_args args = {.file = file, .folder = dir};
	struct config c;
	struct err e;

	(void)state;
	snprintf(dir, sizeof(dir), "%s/conf.d", top);
	put(file, "main.conf", "[daemon]\nnode = a\n");
	snprintf(path, sizeof(path), "%s/10-pipe.conf", dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(config_load(&c, &args, &e), SHARD_SYSTEM);
	assert_non_null(strstr(e.text, "/conf.d/10-pipe.conf: not a file"));
	args.pipe_ns = NS_PER_SEC; /* It allows for what the command line names alone. */
	assert_int_equal(config_load(&c, &args, &e), SHARD_SYSTEM);
	assert_non_null(strstr(e.text, "/conf.d/10-pipe.conf: not a file"));

	args = (struct config_args){.file = path};
	assert_int_equal(config_load(&c, &args, &e), SHARD_SYSTEM);
	assert_non_null(strstr(e.text, "10-pipe.conf: not a file: what a pipe has can be read"));
	args.pipe_ns = NS_PER_SEC / 20;
	assert_int_equal(config_load(&c, &args, &e), SHARD_SYSTEM);
	assert_non_null(strstr(e.text, "10-pipe.conf: a pipe whose end has not come in 0 s: "));
	assert_int_equal(unlink(path), 0);
}

/* Writes the second line only when the first one has been read, so that the reader has to wait. */
static void *write_pipe(void *arg)
{
	const char *path = arg;
	int fd = open(path, O_WRONLY | O_CLOEXEC); /* Waits for the reader. */

	CHECK(fd >= 0 && write(fd, "[daemon]\n", 9) == 9);
	for (int left = 9; left > 0;)
		CHECK(ioctl(fd, FIONREAD, &left) == 0);
	CHECK(write(fd, "node = a\n", 9) == 9);
	close(fd);
	return NULL;
}

static void test_pipe_of_the_command_line(void **state)
{
	char path[160];
	struct config_args args = {.file = path, .pipe_ns = 60 * NS_PER_SEC};
	struct config c;
	struct err e;
	pthread_t t;

	(void)state;
	snprintf(path, sizeof(path), "%s/pipe", top);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(pthread_create(&t, NULL, write_pipe, path), 0);
	if (config_load(&c, &args, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	assert_string_equal(c.node, "a");
	config_free(&c);
	assert_int_equal(pthread_join(t, NULL), 0);
	assert_int_equal(unlink(path), 0);
}

static void test_all_errors(void **state)
{
	char file[128], dir[128], path[128], said[4096] = "";
	const char *const env[] = {"SHARD_WORKERS=0", NULL};
	struct config_args args = {
		.file = file,
		.folder = dir,
		.set = (const char *const[]){"net.connections=0", "daemon.node=a"},
		.set_nr = 2,
		.environ_ = env};
	struct config c;
	struct err e;

	(void)state;
	snprintf(dir, sizeof(dir), "%s/conf.d", top);
	put(file, "main.conf",
	    "nonsense\nx = 1\n[daemon\nnode = ?\n[daemon]\nworkers = no\n[nots]\ny = 1\n"
	    "[net]\ntransport = x\n");
	put(path, "conf.d/1.conf", "[net]\nzzzzzz = 1\n");
	all_wrong(&args,
		  "/main.conf:1: not understood: write key = value, [section] or ; comment\n"
		  "/main.conf:2: x = 1: before the first [section]\n"
		  "/main.conf:3: a section needs its closing bracket, as in [daemon]\n"
		  "/main.conf:6: [daemon] workers = no: choose auto or a whole number from 1 to "
		  "256\n"
		  "/main.conf:7: [nots]: unknown section: did you mean [net]?\n"
		  "/main.conf:10: [net] transport = x: choose auto, tcp or rdma\n"
		  "/conf.d/1.conf:2: [net] zzzzzz = 1: unknown key: `shardd --help` lists them\n"
		  "SHARD_WORKERS in the environment: [daemon] workers = 0: choose auto or a whole "
		  "number from 1 to 256\n"
		  "command line: [net] connections = 0: choose a whole number from 1 to 16\n");

	/* Each value is right, and they contradict each other. */
	args = (struct config_args){.file = file, .folder = dir};
	put(path, "conf.d/1.conf", "");
	put(file, "main.conf",
	    "[daemon]\nnode = a\nhttp = 0.0.0.0:1\n[cluster]\nstep_timeout = 1s\nmembership = "
	    "etcd\n");
	all_wrong(
		&args,
		"/main.conf:3: [daemon] http = 0.0.0.0:1: not loopback, and requests are not "
		"authenticated: choose 127.0.0.1:PORT or off, set http_allow to the networks that "
		"may see models and nodes, as in 10.0.0.0/8, or set allow_unauthenticated = yes if "
		"everybody who can reach it may\n"
		"/main.conf:5: [cluster] step_timeout is shorter than heartbeat_timeout "
		"(default): raise it\n"
		"/main.conf:6: [cluster] membership = etcd: etcd_endpoints does not say where it "
		"is: set it, as in http://10.0.0.1:2379,http://10.0.0.2:2379\n");
	/* What is wrong for all models is said once, and not for each of them. */
	put(file, "main.conf",
	    "[daemon]\nnode = a\n[model]\nmin_world = 4\nmax_world = 2\n[model \"m\"]\nlr = 1\n"
	    "[model \"m\" group \"g\"]\neps = 1e-6\n");
	args.wrong = add_line;
	args.wrong_arg = said;
	assert_int_equal(config_load(&c, &args, &e), SHARD_BAD_ARG);
	assert_non_null(strstr(said, "min_world = 4"));
	assert_ptr_equal(strchr(said, '\n') + 1, said + strlen(said));
	args.wrong_arg = NULL;
	put(file, "main.conf", "[daemon]\nnode = a\n");
	assert_int_equal(config_load(&c, &args, &e), SHARD_OK); /* Nobody is told of anything. */
	config_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_folder, setup, teardown),
		cmocka_unit_test_setup_teardown(test_pipe, setup, teardown),
		cmocka_unit_test_setup_teardown(test_pipe_of_the_command_line, setup, teardown),
		cmocka_unit_test_setup_teardown(test_all_errors, setup, teardown),
	};

	return cmocka_run_group_tests_name("config_files", tests, NULL, NULL);
}
