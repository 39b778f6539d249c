/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that nothing is allocated, mapped or registered after an RDMA connection (rail) is made.
 * All of these are counted while frames go both ways, are refused for lack of room, and credits go
 * alone. Memory is registered on several threads at a time, and so can be that of other devices. */
#include "base/check.h"
#include "lib/rails.h"
#include "rdma/fake.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_COUNT 1
static atomic_bool counting;
static atomic_uint allocations;

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t nr, size_t bytes);
extern void *__libc_realloc(void *p, size_t bytes);
extern void *__libc_memalign(size_t align, size_t bytes);

void *malloc(size_t bytes)
{
	allocations += counting;
	return __libc_malloc(bytes);
}

void *calloc(size_t nr, size_t bytes)
{
	allocations += counting;
	return __libc_calloc(nr, bytes);
}

void *realloc(void *p, size_t bytes)
{
	allocations += counting;
	return __libc_realloc(p, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
	allocations += counting;
	return __libc_memalign(align, bytes);
}

static void frames(struct rails *r, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++) {
		int from = i / 200 % 2; /* Long runs of one side, in which credits come alone. */

		while (rails_send(r, from, i % 2, 500, i) == SHARD_AGAIN ||
		       rails_control(r, from, 0, 100) == SHARD_AGAIN) {
			rails_kick(r, from);
			rails_turn(r, 1);
		}
		if (i % 10 == 0) {
			rails_kick(r, from);
			rails_turn(r, 1);
		}
	}
	rails_kick(r, 0);
	rails_kick(r, 1);
	rails_turn(r, 20);
}

static void nothing_is_allocated(void **state)
{
	void *volatile seen;
	uint32_t registered, calls;
	struct rails r;

	(void)state;
	rails_begin(&r, NULL);
	frames(&r, 100);
	registered = fake_calls(FAKE_REG_MR);
	calls = fake_calls(FAKE_ANY);
	assert_true(registered > 0 && allocations == 0);
	counting = true;
	seen = malloc(1);
	free(seen);
	assert_int_equal(allocations, 1); /* It is seen. */
	allocations = 0;
	frames(&r, 1000);
	counting = false;
	assert_int_equal(allocations, 0);
	assert_int_equal(fake_calls(FAKE_REG_MR), registered);
	assert_true(fake_calls(FAKE_ANY) > calls + 200);
	assert_true(r.end[0].sent_ok + r.end[1].sent_ok > 1000);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(r.end[i].fails + r.end[i].bad, 0);
		assert_int_equal(r.end[i].sent_ok, r.end[1 - i].frames);
	}
	rails_close(&r);
	fake_reset();
}
#endif

struct job {
	struct rdma_domain *domain;
	unsigned char *at;
	struct rdma_region *region;
	enum shard_status rc;
};

static void *registers(void *arg)
{
	struct job *j = arg;

	for (int i = 0; i < 50; i++) {
		rdma_deregister(&j->region);
		j->rc = rdma_register(&j->region, j->domain, j->at, 65536, i % 2, NULL);
		if (j->rc != SHARD_OK)
			break;
	}
	return NULL;
}

static void threads_register(void **state)
{
	struct job job[4];
	pthread_t thread[4];
	struct rails r;

	(void)state;
	rails_begin(&r, NULL);
	for (int i = 0; i < 4; i++) {
		job[i] =
			(struct job){.domain = r.end[0].domain, .at = r.end[0].land_at + i * 65536};
		assert_int_equal(pthread_create(&thread[i], NULL, registers, &job[i]), 0);
	}
	for (int i = 0; i < 200; i++) { /* The thread of the loop goes on meanwhile. */
		(void)rails_send(&r, i % 2, 0, 100, 1);
		rails_kick(&r, i % 2);
		rails_turn(&r, 1);
	}
	for (int i = 0; i < 4; i++) {
		assert_int_equal(pthread_join(thread[i], NULL), 0);
		assert_int_equal(job[i].rc, SHARD_OK);
		assert_true(rdma_region_has(job[i].region, job[i].at, 65536));
		assert_true(rdma_region_has(job[i].region, job[i].at + 65535, 1));
		assert_false(rdma_region_has(job[i].region, job[i].at + 65535, 2));
		assert_false(rdma_region_has(job[i].region, job[i].at - 1, 1));
		assert_false(rdma_region_has(job[i].region, job[i].at + 1, (size_t)-1));
		rdma_deregister(&job[i].region);
	}
	assert_int_equal(r.end[0].fails + r.end[1].fails, 0);
	rails_close(&r);
	fake_reset();
}

static const struct fake_device without = {
	.gid = {{"fe80::1", IBV_GID_TYPE_ROCE_V2}, {"127.0.0.1", IBV_GID_TYPE_ROCE_V2}},
	.no_dma_buf = true};

/* The descriptor is looked at, and may be closed afterwards. */
static void other_devices(void **state)
{
	int fd = memfd_create("fake-dmabuf-7", MFD_CLOEXEC);
	struct rdma_dma_buf of = {.fd = fd, .offset = 8192, .at = 0x7000002000, .bytes = 100000};
	struct rdma_region *g = NULL;
	struct rails r;
	struct err e = {0};

	(void)state;
	rails_begin(&r, NULL);
	assert_int_equal(rdma_takes_dma_buf(r.end[0].rdma, &e), SHARD_OK);
	assert_int_equal(rdma_register_dma_buf(&g, r.end[0].domain, &of, &e), SHARD_OK);
	close(fd);
	assert_true(rdma_region_has(g, (void *)0x7000002000, 100000));
	assert_false(rdma_region_has(g, (void *)0x7000001fff, 1));
	assert_true(rdma_region_rkey(g) != 0);
	rdma_deregister(&g);
	assert_null(g);
	of.fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	assert_int_equal(rdma_register_dma_buf(&g, r.end[0].domain, &of, &e), SHARD_DENIED);
	assert_non_null(strstr(e.text, "of another device, for a peer to write"));
	assert_null(g);
	fake_fail(FAKE_ALLOC_PD, 1, ENOMEM);
	assert_int_equal(rdma_takes_dma_buf(r.end[0].rdma, &e), SHARD_OK); /* It was asked. */
	assert_int_equal(rdma_takes_dma_buf(r.end[1].rdma, &e), SHARD_SYSTEM);
	assert_int_equal(rdma_takes_dma_buf(r.end[1].rdma, &e), SHARD_OK);
	close(of.fd);
	rails_close(&r);
	fake_reset();
	fake_devices(&without, 1);
	rails_begin(&r, NULL);
	assert_int_equal(rdma_takes_dma_buf(r.end[1].rdma, &e), SHARD_UNSUPPORTED);
	assert_non_null(strstr(e.text, "takes no memory of other devices (Operation not supp"));
	rails_close(&r);
	fake_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#ifdef CAN_COUNT
		cmocka_unit_test(nothing_is_allocated),
#endif
		cmocka_unit_test(threads_register),
		cmocka_unit_test(other_devices),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
