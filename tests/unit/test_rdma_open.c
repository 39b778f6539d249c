/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what rdma_open() chooses, and what it says where there is nothing to choose: no device, no
 * permission, or no memory that may be locked. */
#include "base/check.h"
#include "lib/rails.h"
#include "rdma/fake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static int reset(void **state)
{
	(void)state;
	fake_reset();
	return 0;
}

static void has(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("\"%s\" is not in: %s", part, text);
}

/* --- what rdma_open() says --- */

static void open_fails(const struct fake_device *devices, uint32_t nr, const struct rdma_conf *conf,
		       enum shard_status st, const char *text)
{
	struct rdma *rdma;
	struct err e = {0};
	uv_loop_t loop;

	fake_devices(devices, nr);
	assert_int_equal(uv_loop_init(&loop), 0);
	assert_int_equal(rdma_open(&rdma, &loop, conf, &e), st);
	assert_null(rdma);
	has(e.text, text);
	assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
	assert_int_equal(uv_loop_close(&loop), 0);
	fake_reset();
}

static void devices(void **state)
{
	static const struct fake_device down = {.name = "rxe9", .down = true},
					bare = {.name = "bare0"},
					denied = {.name = "mlx0", .open_error = EACCES},
					good = {.name = "ok0",
						.gid = {{"10.0.0.1", IBV_GID_TYPE_ROCE_V2}}};
	struct rdma_conf any = {.gid_index = -1}, named = {.gid_index = -1, .device = "rxe0"},
			 fifth = {.gid_index = 5, .address = "10.0.0.1"};

	(void)state;
	open_fails(NULL, 0, &any, SHARD_NOT_FOUND, "no RDMA device here");
	open_fails(&good, 1, &named, SHARD_NOT_FOUND, "no RDMA device named \"rxe0\"");
	open_fails(&down, 1, &any, SHARD_NOT_FOUND, "rxe9 has no active port");
	open_fails(&bare, 1, &any, SHARD_NOT_FOUND, "bare0 port 1 has no GID");
	open_fails(&good, 1, &fifth, SHARD_NOT_FOUND, "ok0 port 1 has no GID 5");
	open_fails(&denied, 1, &any, SHARD_DENIED,
		   "may not open RDMA device mlx0: Permission denied");
	fake_memlock(4000);
	open_fails(&good, 1, &any, SHARD_DENIED, "cannot register 0.0 MiB");
}

static void chosen(const struct fake_device *devices, uint32_t nr, const struct rdma_conf *conf,
		   const char *name)
{
	struct rdma *rdma;
	struct err e = {0};
	uv_loop_t loop;

	fake_devices(devices, nr);
	assert_int_equal(uv_loop_init(&loop), 0);
	if (rdma_open(&rdma, &loop, conf, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	assert_string_equal(rdma_name(rdma), name);
	rdma_close(&rdma);
	assert_null(rdma);
	assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
	assert_int_equal(uv_loop_close(&loop), 0);
	fake_reset();
}

static void choice(void **state)
{
	static const struct fake_device all[3] = {
		{.name = "down0", .down = true, .gid = {{"10.0.0.9", IBV_GID_TYPE_ROCE_V2}}},
		{.name = "a",
		 .gid = {{"fe80::a", IBV_GID_TYPE_ROCE_V1},
			 {"fe80::a", IBV_GID_TYPE_ROCE_V2},
			 {"10.0.0.1", IBV_GID_TYPE_ROCE_V1},
			 {"10.0.0.1", IBV_GID_TYPE_ROCE_V2},
			 {"10.0.0.2", IBV_GID_TYPE_ROCE_V2}}},
		{.name = "b",
		 .gid = {{.address = NULL},
			 {"fd00::7", IBV_GID_TYPE_ROCE_V2},
			 {"10.0.0.3", IBV_GID_TYPE_ROCE_V2}}},
	};
	static const struct {
		struct rdma_conf conf;
		const char *name;
	} rows[] = {
		{{.gid_index = -1}, "a port 1 gid 3 (10.0.0.1)"},
		{{.gid_index = -1, .address = "0.0.0.0"}, "a port 1 gid 3 (10.0.0.1)"},
		{{.gid_index = -1, .address = "10.0.0.2"}, "a port 1 gid 4 (10.0.0.2)"},
		{{.gid_index = -1, .address = "10.0.0.3"}, "b port 1 gid 2 (10.0.0.3)"},
		{{.gid_index = -1, .address = "fd00::7"}, "b port 1 gid 1 (fd00::7)"},
		{{.gid_index = -1, .address = "192.168.1.1"}, "a port 1 gid 3 (10.0.0.1)"},
		{{.gid_index = -1, .address = "not an address"}, "a port 1 gid 3 (10.0.0.1)"},
		{{.gid_index = -1, .device = "b"}, "b port 1 gid 2 (10.0.0.3)"},
		{{.gid_index = 0, .address = "10.0.0.3"}, "a port 1 gid 0 (fe80::a)"},
		{{.gid_index = 1, .device = "b"}, "b port 1 gid 1 (fd00::7)"},
	};

	(void)state;
	for (size_t i = 0; i < NR(rows); i++)
		chosen(all, 3, &rows[i].conf, rows[i].name);
	chosen(all + 2, 1, &rows[0].conf, "b port 1 gid 2 (10.0.0.3)");
}

static void too_small(void **state)
{
	static const struct fake_device small = {.name = "s",
						 .max_qp_wr = 64,
						 .gid = {{"10.0.0.1", IBV_GID_TYPE_ROCE_V2}}},
					few = {.name = "f",
					       .max_cqe = 100,
					       .gid = {{"10.0.0.1", IBV_GID_TYPE_ROCE_V2}}};
	struct err e = {0};
	struct rails r;

	(void)state;
	for (int i = 0; i < 2; i++) {
		fake_devices(i ? &few : &small, 1);
		rails_init(&r, NULL);
		assert_int_equal(rails_open(&r, &e), SHARD_SYSTEM);
		has(e.text, "too small");
		rails_close(&r);
		fake_reset();
	}
}

/* --- memory that cannot be locked --- */

static void memlock(void **state)
{
	struct rlimit was, now;
	struct err e = {0};
	struct rails r;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &was), 0);
	now = was;
	now.rlim_cur = 8 << 20;
	if (was.rlim_max != RLIM_INFINITY && was.rlim_max < now.rlim_cur)
		now.rlim_cur = was.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &now), 0);
	for (size_t allowed = 4096; allowed < 3 << 20; allowed += 200000) {
		char limit[64];

		fake_reset();
		fake_memlock(allowed);
		rails_init(&r, NULL);
		assert_int_equal(rails_open(&r, &e), SHARD_DENIED);
		snprintf(limit, sizeof(limit), "memlock allows %llu KiB: set LimitMEMLOCK=infinity",
			 (unsigned long long)now.rlim_cur >> 10);
		has(e.text, limit);
		has(e.text, "Cannot allocate memory");
		rails_close(&r);
	}
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &was), 0);
	fake_reset();
	fake_fail_always(FAKE_REG_MR, EINVAL);
	rails_init(&r, NULL);
	assert_int_equal(rails_open(&r, &e), SHARD_DENIED);
	has(e.text, "Invalid argument");
	fake_fail_always(FAKE_REG_MR, 0);
	rails_close(&r);
	fake_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(devices, reset),
		cmocka_unit_test_setup(choice, reset),
		cmocka_unit_test_setup(too_small, reset),
		cmocka_unit_test_setup(memlock, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
