/* SPDX-License-Identifier: Apache-2.0 */
/* Tests how `shardctl bench` measures the speed of memory. Where one of its threads cannot be made,
 * it says so and leaves no thread behind. */
#include "ctl/bench.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PROCESSORS 4

static int made, joined, fails_at;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
			  void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
			  void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
			  void *arg)
{
	if (made + 1 == fails_at)
		return EAGAIN;
	made++;
	return __real_pthread_create(thread, attr, run, arg);
}

int __real_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result)
{
	joined++;
	return __real_pthread_join(thread, result);
}

int __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set);
int __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set)
{
	(void)pid;
	assert_int_equal(bytes, sizeof(*set));
	CPU_ZERO(set);
	for (int i = 0; i < PROCESSORS; i++)
		CPU_SET(i, set);
	return 0;
}

/* Whichever thread cannot start, bench_memory() joins those that did, and gives no rate. */
static void no_thread(void **state)
{
	(void)state;
	for (fails_at = 1; fails_at < PROCESSORS; fails_at++) {
		double rate = 1;
		struct err e;
		char want[100];

		made = joined = 0;
		assert_int_equal(bench_memory(1 << 20, &rate, &e), SHARD_SYSTEM);
		snprintf(want, sizeof(want), "thread %d of %d for the speed of memory cannot start",
			 fails_at + 1, PROCESSORS);
		assert_non_null(strstr(e.text, want));
		assert_non_null(strstr(e.text, strerror(EAGAIN)));
		assert_true(rate == 0);
		assert_int_equal(made, fails_at - 1);
		assert_int_equal(joined, made);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(no_thread)};

	return cmocka_run_group_tests_name("bench_memory", tests, NULL, NULL);
}
