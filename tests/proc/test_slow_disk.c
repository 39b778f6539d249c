// SPDX-License-Identifier: Apache-2.0
/* A disk that stalls while a view is written: the coordinator goes on talking to its peers and to tools for longer than a heartbeat
 * may take, nothing is lost, and training begins when the disk is back. fsync() is this program's own: it waits while told to. */
#include "lib/crew.h"
#include "lib/inproc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct disk {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool stalls;
	uint32_t waiting, refusals;
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

int fsync(int fd)
{
	bool refuse;

	pthread_mutex_lock(&disk.lock);
	disk.waiting++;
	pthread_cond_broadcast(&disk.changed);
	while (disk.stalls)
		pthread_cond_wait(&disk.changed, &disk.lock);
	disk.waiting--;
	refuse = disk.refusals > 0;
	disk.refusals -= refuse;
	pthread_mutex_unlock(&disk.lock);
	if (refuse) {
		errno = ENOSPC;
		return -1;
	}
	return (int)syscall(SYS_fsync, fd);
}

static void disk_stall(bool stalls)
{
	pthread_mutex_lock(&disk.lock);
	disk.stalls = stalls;
	pthread_cond_broadcast(&disk.changed);
	pthread_mutex_unlock(&disk.lock);
}

static void disk_wait(void) /* until somebody is stuck in it */
{
	pthread_mutex_lock(&disk.lock);
	while (disk.waiting == 0)
		pthread_cond_wait(&disk.changed, &disk.lock);
	pthread_mutex_unlock(&disk.lock);
}

static void *starts(void *arg) /* returns when the model is sealed */
{
	crew_start(arg, 4);
	return NULL;
}

static void test_stall(void **state)
{
	const struct inproc_conf conf = {.cluster = "heartbeat_timeout = 500ms\n"};
	struct crew *crew = test_malloc(sizeof(*crew));
	struct timespec until, now;
	struct inproc c;
	pthread_t thread;

	(void)state;
	inproc_start(&c, &conf);
	crew_init(crew, "slow");
	crew_add(crew, c.node[0].unix_address, 0);
	crew_add(crew, c.node[1].unix_address, 1);
	disk_stall(true);
	assert_int_equal(pthread_create(&thread, NULL, starts, crew), 0);
	disk_wait();
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += 2; /* four heartbeats */
	do {
		json_decref(inproc_status(&c.node[0])); /* it answers while its disk does not */
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec < until.tv_sec);
	assert_int_equal(inproc_logged(&c.node[0], "event=view "), 0);
	disk_stall(false);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(crew_finish(crew), 4);
	assert_int_equal(inproc_logged(&c.node[1], "event=link_down"), 0);
	assert_int_equal(inproc_logged(&c.node[0], "event=link_down"), 0);
	assert_int_equal(inproc_logged(&c.node[0], "event=slept"), 0);
	inproc_stop(&c);
	test_free(crew);
}

static void test_refused(void **state) /* a full disk that has room again */
{
	struct crew *crew = test_malloc(sizeof(*crew));
	struct inproc c;

	(void)state;
	inproc_start(&c, NULL);
	crew_init(crew, "full");
	crew_add(crew, c.node[0].unix_address, 0);
	crew_add(crew, c.node[1].unix_address, 1);
	pthread_mutex_lock(&disk.lock);
	disk.refusals = 2;
	pthread_mutex_unlock(&disk.lock);
	crew_start(crew, 2);
	assert_int_equal(crew_finish(crew), 2);
	assert_int_equal(inproc_logged(&c.node[0], "event=view_not_durable"), 2);
	inproc_stop(&c);
	test_free(crew);
}

/* It stops while the disk stalls: it waits for the file, which nobody else may touch. */
static void test_stop(void **state)
{
	struct crew *crew = test_malloc(sizeof(*crew));
	struct inproc c;

	(void)state;
	inproc_start(&c, NULL);
	crew_init(crew, "stop");
	crew_add(crew, c.node[0].unix_address, 0);
	crew_add(crew, c.node[1].unix_address, 1);
	crew_start(crew, 2);
	assert_int_equal(crew_finish(crew), 2);
	disk_stall(true);
	inproc_node_stop(&c.node[1]); /* it held chunks: LOST, a view */
	disk_stall(false);
	inproc_stop(&c);
	test_free(crew);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {cmocka_unit_test(test_stall), cmocka_unit_test(test_refused),
						  cmocka_unit_test(test_stop)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
