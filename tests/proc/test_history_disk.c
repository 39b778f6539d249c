/* SPDX-License-Identifier: Apache-2.0 */
/* A history whose disk is full, or stands still. Training goes on, the log and the status say so,
 * and the entries are written when the disk is back. If they did not fit into the buffer meanwhile,
 * a gap says which steps are missing. fdatasync() is replaced in this program. It refuses or waits
 * while the test says so. Nothing else here uses it. */
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/tool.h"
#include "obs/history.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct disk {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool full, stalls;
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

int fdatasync(int fd)
{
	bool full;

	pthread_mutex_lock(&disk.lock);
	while (disk.stalls)
		pthread_cond_wait(&disk.changed, &disk.lock);
	full = disk.full;
	pthread_mutex_unlock(&disk.lock);
	if (full) {
		errno = ENOSPC;
		return -1;
	}
	return (int)syscall(SYS_fdatasync, fd);
}

static void disk_is(bool full, bool stalls)
{
	pthread_mutex_lock(&disk.lock);
	disk.full = full;
	disk.stalls = stalls;
	pthread_cond_broadcast(&disk.changed);
	pthread_mutex_unlock(&disk.lock);
}

/* A number or the text of the model's history, from the status of a node. */
static int64_t count(struct inproc_node *n, const char *key, char *trouble, size_t bytes)
{
	json_t *status = inproc_status(n),
	       *h = json_object_get(json_array_get(json_object_get(status, "models"), 0),
				    "history");
	int64_t value = json_integer_value(json_object_get(h, key));

	assert_true(json_is_object(h));
	if (trouble != NULL)
		snprintf(trouble, bytes, "%s", json_string_value(json_object_get(h, "trouble")));
	json_decref(status);
	return value;
}

static char *history(struct inproc_node *n)
{
	char words[200], *out = NULL;

	snprintf(words, sizeof(words), "history disk --json --address %s", n->unix_address);
	assert_int_equal(tool_run(&out, "shardctl", words), 0);
	return out;
}

/* The steps that the history has, in order. Returns those that are missing. */
static uint64_t steps(char *out, uint64_t last, uint64_t *gap_first, uint64_t *gap_last)
{
	uint64_t next = 1, missing = 0;

	*gap_first = *gap_last = 0;
	for (char *line = strtok(out, "\n"); line != NULL; line = strtok(NULL, "\n")) {
		json_t *e = json_loads(line, 0, NULL);
		const char *kind = json_string_value(json_object_get(e, "kind"));
		uint64_t step = (uint64_t)json_integer_value(
			json_object_get(json_object_get(e, "record"), "step"));

		assert_string_not_equal(kind, "missing");
		assert_string_not_equal(kind, "damaged");
		if (strcmp(kind, "gap") == 0) {
			assert_int_equal(*gap_last, 0);
			assert_int_equal(json_integer_value(json_object_get(e, "first")), next);
			*gap_first = next;
			*gap_last = (uint64_t)json_integer_value(json_object_get(e, "last"));
			missing = *gap_last - next + 1;
			next = *gap_last + 1;
		} else if (strcmp(kind, "step") == 0) {
			assert_int_equal(step, next);
			next++;
		}
		json_decref(e);
	}
	assert_int_equal(next, last + 1);
	return missing;
}

static void begin(struct inproc *c, struct crew *crew)
{
	inproc_start(c, NULL);
	crew_init(crew, "disk");
	crew->pause_us = 2000;
	crew_add(crew, c->node[0].unix_address, 0);
	crew_start(crew, UINT64_MAX);
	crew_wait_step(crew, 5);
}

/* full: the disk refuses. Otherwise it does not answer. long_: until the buffers are full. */
static void away(bool full, bool long_)
{
	struct crew *crew = test_malloc(sizeof(*crew));
	uint64_t last, missing, first, to;
	char trouble[512], *out;
	struct inproc c;

	begin(&c, crew);
	disk_is(full, !full);
	crew_wait_step(crew, crew_step(crew) + 20);
	if (full) {
		inproc_wait_log(&c.node[0], "event=history_late model=disk", 1);
		count(&c.node[0], "bytes", trouble, sizeof(trouble));
		assert_non_null(strstr(trouble, "cannot be written: No space left on device"));
	}
	while (long_ && count(&c.node[0], "dropped", NULL, 0) < 10)
		crew_wait_step(crew, crew_step(crew) + 50);
	if (!full) /* Nobody waits for the disk, but who asks for the history. */
		assert_true(count(&c.node[0], "waiting_bytes", NULL, 0) > 0);
	disk_is(false, false);
	if (full)
		inproc_wait_log(&c.node[0], "event=history_written model=disk", 1);
	crew_wait_step(crew, crew_step(crew) + 5);
	last = crew_finish(crew);
	out = history(&c.node[0]);
	missing = steps(out, last, &first, &to);
	free(out);
	if (long_) {
		assert_true(missing >= 10);
		assert_int_equal(count(&c.node[0], "dropped", trouble, sizeof(trouble)), missing);
		assert_int_equal(inproc_logged(&c.node[0], "event=history_gap"), 1);
	} else {
		assert_int_equal(missing, 0);
		assert_int_equal(count(&c.node[0], "dropped", trouble, sizeof(trouble)), 0);
	}
	assert_string_equal(trouble, "");
	crew_check(crew, c.node[1].unix_address, last);
	inproc_stop(&c);
	test_free(crew);
}

static void test_full(void **state)
{
	(void)state;
	away(true, false);
}

static void test_full_long(void **state)
{
	(void)state;
	away(true, true);
}

static void test_stalls(void **state)
{
	(void)state;
	away(false, false);
}

static void test_stalls_long(void **state)
{
	(void)state;
	away(false, true);
}

/* A daemon that ends does not wait for a full disk. */
static void test_stop(void **state)
{
	struct crew *crew = test_malloc(sizeof(*crew));
	struct inproc c;

	(void)state;
	begin(&c, crew);
	disk_is(true, false);
	inproc_wait_log(&c.node[0], "event=history_late model=disk", 1);
	crew_finish(crew);
	inproc_stop(&c);
	disk_is(false, false);
	test_free(crew);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_full), cmocka_unit_test(test_full_long),
		cmocka_unit_test(test_stalls), cmocka_unit_test(test_stalls_long),
		cmocka_unit_test(test_stop)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
