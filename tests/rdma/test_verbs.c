/* SPDX-License-Identifier: Apache-2.0 */
/* test_verbs [DEVICE [GID_INDEX]]: repeats the unit tests of struct rdma_rail, which use the fake
 * verbs, on a real device. Two ends are in one process over DEVICE (SHARD_RDMA_DEVICE, or else the
 * first one with an active port). Fails with a text if there is none. */
#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "lib/rails.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { PATIENCE_MS = 50000 }; /* The machine may be emulated. */

struct device {
	const char *name;
	int gid_index; /* 0: any. */
};

static void begin(void **state, struct rails *r, const struct rails_conf *conf)
{
	const struct device *d = *state;
	struct rails_conf c = {0};

	if (conf)
		c = *conf;
	c.device[0] = c.device[1] = d->name;
	c.gid_index = d->gid_index;
	c.deadline_ns = c.deadline_ns ? c.deadline_ns : 60 * NS_PER_SEC;
	rails_begin(r, &c);
}

static void end_well(struct rails *r)
{
	for (int i = 0; i < 2; i++) {
		assert_string_equal(r->end[i].why.text, "");
		assert_int_equal(r->end[i].bad + r->end[i].fails + r->end[i].gones, 0);
	}
	rails_close(r);
}

static void there_and_back(void **state)
{
	for (int sums = 0; sums < 2; sums++) {
		struct rails_conf conf = {.no_checksum = !sums, .part_bytes = WIRE_PART_BYTES};
		struct rails r;

		begin(state, &r, &conf);
		print_message("%s\n", rdma_name(r.end[0].rdma));
		for (int from = 0; from < 2; from++) {
			assert_int_equal(rails_send(&r, from, 0, WIRE_PART_BYTES, 1), SHARD_OK);
			assert_int_equal(rails_send(&r, from, 0, 2, 2), SHARD_OK);
			assert_int_equal(rails_control(&r, from, 0, 100), SHARD_OK);
			assert_int_equal(rails_control(&r, from, 1, 0), SHARD_OK);
			assert_int_equal(rails_control(&r, from, 1, RDMA_BODY_MAX - 3), SHARD_OK);
			rails_kick(&r, from);
			assert_true(rails_until(&r, &r.end[1 - from].controls, 3, PATIENCE_MS));
			assert_true(rails_until(&r, &r.end[1 - from].frames, 2, PATIENCE_MS));
			assert_true(rails_until(&r, &r.end[from].sent_ok, 2, PATIENCE_MS));
		}
		end_well(&r);
	}
}

/* Returns how many requests found no receive, as the device counts them. 0: it does not count. */
static uint64_t rnr(const char *device)
{
	static const char *const names[] = {"send_rnr_err", "rcvd_rnr_err", "rnr_nak_retry_err"};
	uint64_t sum = 0;

	for (size_t i = 0; i < NR(names); i++) {
		unsigned long long n = 0;
		char path[256];
		FILE *f;

		snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/hw_counters/%s",
			 device, names[i]);
		f = fopen(path, "r");
		if (f && fscanf(f, "%llu", &n) == 1)
			sum += n;
		if (f)
			fclose(f);
	}
	return sum;
}

static void storm(void **state)
{
	for (uint64_t seed = 1; seed <= 3; seed++) {
		struct rails_conf conf = {.qps_nr = 1 + (uint32_t)seed,
					  .part_bytes = 64 << 10,
					  .busy_poll_us = seed == 2 ? 100 : 0};
		uint64_t sent[2] = {0}, frames = 400, until = clock_ns() + PATIENCE_MS * NS_PER_MS,
			 before, got = 0;
		struct rng rng = {seed};
		struct rails r;
		char name[64];

		begin(state, &r, &conf);
		assert_int_equal(sscanf(rdma_name(r.end[0].rdma), "%63s", name), 1);
		before = rnr(name);
		while (got < 2 * frames && clock_ns() < until) {
			int from = (int)rng_below(&rng, 2);
			uint32_t qp = (uint32_t)rng_below(&rng, conf.qps_nr),
				 burst = (uint32_t)rng_below(&rng, 40);

			for (uint32_t i = 0; i < burst && sent[from] < frames; i++) {
				enum shard_status rc =
					rng_below(&rng, 3) == 0
						? rails_control(&r, from, qp,
								(uint32_t)rng_below(&rng, 4000))
						: rails_send(&r, from, qp,
							     2 + (uint32_t)rng_below(&rng, 65535),
							     rng_next(&rng));

				if (rc == SHARD_AGAIN)
					break;
				if (rc != SHARD_OK)
					fail_msg("seed %llu: %s / %s", (unsigned long long)seed,
						 r.end[0].why.text, r.end[1].why.text);
				sent[from]++;
			}
			rdma_rail_kick(r.end[from].rail, qp);
			rails_turn(&r, (uint32_t)rng_below(&rng, 3));
			got = r.end[0].frames + r.end[0].controls + r.end[1].frames +
			      r.end[1].controls;
		}
		for (int i = 0; i < 2; i++)
			assert_true(rails_until(&r, &r.end[i].sent_ok, r.end[1 - i].frames,
						PATIENCE_MS));
		assert_int_equal(got, 2 * frames);
		assert_int_equal(rnr(name) - before, 0);
		end_well(&r);
	}
}

/* Sends in one direction only, so every credit needs a message of its own. */
static void one_way(void **state)
{
	struct rails_conf conf = {.qps_nr = 1};
	uint64_t sent = 0, until = clock_ns() + PATIENCE_MS * NS_PER_MS;
	struct rails r;

	begin(state, &r, &conf);
	while (sent < 1000 && clock_ns() < until) {
		if (rails_send(&r, 0, 0, 64, sent) == SHARD_OK && ++sent % 16 != 0)
			continue;
		rails_kick(&r, 0);
		rails_turn(&r, 1);
	}
	rails_kick(&r, 0);
	assert_true(rails_until(&r, &r.end[1].frames, 1000, PATIENCE_MS));
	end_well(&r);
}

/* An address or key that the peer may not write is refused by the device and reported at both ends,
 * and nothing is written. */
static void memory(void **state)
{
	unsigned char *mine = aligned_alloc(4096, 4096);

	assert_non_null(mine);
	for (int i = 0; i < 4; i++) {
		struct wire_head h = {.op = OP_CONTRIB_DATA};
		struct rdma_domain *other = NULL;
		struct rdma_region *g = NULL;
		unsigned char before;
		struct rails_end *e;
		uint64_t remote;
		struct rails r;
		uint32_t key;

		begin(state, &r, NULL);
		e = &r.end[0];
		memset(mine, 7, 4096);
		memset(e->source_at, 9, 100);
		assert_int_equal(rdma_domain_new(&other, r.end[1].rdma, NULL), SHARD_OK);
		assert_int_equal(rdma_register(&g, other, mine, 4096, true, NULL), SHARD_OK);
		before = r.end[1].source_at[0];
		remote = (uintptr_t)(i == 2   ? r.end[1].source_at
				     : i == 3 ? mine
					      : r.end[1].land_at + (i == 0 ? r.area - 99 : 0));
		key = i == 1   ? rdma_region_rkey(r.end[1].land) ^ 0x5a00
		      : i == 2 ? rdma_region_rkey(r.end[1].source)
		      : i == 3 ? rdma_region_rkey(g)
			       : rdma_region_rkey(r.end[1].land);
		assert_int_equal(rdma_rail_send(e->rail, 0, &h, e->source, e->source_at, 100,
						remote, key, NULL, NULL),
				 SHARD_OK);
		rails_kick(&r, 0);
		assert_true(rails_until(&r, &e->fails, 1, PATIENCE_MS));
		print_message("%s\n", e->why.text);
		assert_non_null(strstr(e->why.text, "queue pair 0 to "));
		assert_int_equal(e->frames, 0);
		assert_int_equal(mine[0], 7);
		assert_int_equal(r.end[1].source_at[0], before);
		assert_int_equal(rails_send(&r, 0, 0, 100, 1), SHARD_CLOSED);
		rdma_rail_free(&r.end[0].rail);
		rdma_rail_free(&r.end[1].rail);
		rdma_deregister(&g);
		rdma_domain_free(&other);
		rails_close(&r);
	}
	free(mine);
}

/* What was posted to a peer that is gone fails, by the device's own retries or by our earlier
 * deadline. */
static void peer_goes(void **state)
{
	for (int i = 0; i < 2; i++) {
		struct rails_conf conf = {.deadline_ns = i ? 500 * NS_PER_MS : 0};
		struct rails r;

		begin(state, &r, &conf);
		rdma_rail_free(&r.end[1].rail);
		for (int k = 0; k < 5; k++)
			assert_int_equal(rails_send(&r, 0, 0, 100, 1), SHARD_OK);
		rails_kick(&r, 0);
		assert_true(rails_until(&r, &r.end[0].fails, 1, PATIENCE_MS));
		print_message("%s\n", r.end[0].why.text);
		assert_int_equal(r.end[0].why.status, i ? SHARD_TIMEOUT : SHARD_UNREACHABLE);
		rdma_rail_free(&r.end[0].rail);
		assert_int_equal(r.end[0].sent_ok, 0);
		assert_int_equal(r.end[0].sent_closed, 5);
		rails_close(&r);
	}
}

/* One end is freed in the middle of transfers several times. The other end fails or has no error,
 * and the next rail works. */
static void freed_in_flight(void **state)
{
	struct rails_conf conf = {.part_bytes = WIRE_PART_BYTES};

	for (uint32_t i = 0; i < 5; i++) {
		struct rails r;

		begin(state, &r, &conf);
		for (int k = 0; k < 20; k++)
			assert_int_equal(
				rails_send(&r, 0, (uint32_t)k % 2, 4096 * (uint32_t)(k + 1), 1),
				SHARD_OK);
		rails_kick(&r, 0);
		rails_turn(&r, i);
		rdma_rail_free(&r.end[i % 2].rail);
		rails_turn(&r, 3);
		assert_int_equal(r.end[1].bad, 0);
		rails_close(&r);
		assert_int_equal(r.end[0].sent_ok + r.end[0].sent_closed, 20);
	}
}

/* A user without rights whose limit is small is told the limit and what to set. This runs in a
 * child, because the rights cannot be taken back. */
static void memlock(void **state)
{
	const struct device *d = *state;
	int status = 0;
	pid_t child;

	if (geteuid() != 0)
		skip();
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct rlimit lim = {256 << 10, 256 << 10};
		struct rails_conf conf = {.part_bytes = WIRE_PART_BYTES};
		struct err e = {0};
		struct rails r;

		conf.device[0] = conf.device[1] = d->name;
		conf.gid_index = d->gid_index;
		CHECK(setrlimit(RLIMIT_MEMLOCK, &lim) == 0 && setgid(65534) == 0 &&
		      setuid(65534) == 0);
		rails_init(&r, &conf);
		if (rails_open(&r, &e) != SHARD_DENIED)
			_exit(1);
		fprintf(stderr, "%s\n", e.text);
		rails_close(&r);
		_exit(strstr(e.text, "256 KiB: set LimitMEMLOCK=infinity") ||
				      strstr(e.text, "may not open")
			      ? 0
			      : 2);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
	struct device d = {.name = argc > 1 ? argv[1] : getenv("SHARD_RDMA_DEVICE"),
			   .gid_index = argc > 2 ? atoi(argv[2]) : 0};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_prestate(there_and_back, &d),
		cmocka_unit_test_prestate(storm, &d),
		cmocka_unit_test_prestate(one_way, &d),
		cmocka_unit_test_prestate(memory, &d),
		cmocka_unit_test_prestate(peer_goes, &d),
		cmocka_unit_test_prestate(freed_in_flight, &d),
		cmocka_unit_test_prestate(memlock, &d),
	};
	struct rdma_conf conf = {.device = d.name, .gid_index = d.gid_index ? d.gid_index : -1};
	struct rdma *rdma;
	struct err e = {0};
	uv_loop_t loop;

	CHECK(uv_loop_init(&loop) == 0);
	if (rdma_open(&rdma, &loop, &conf, &e) != SHARD_OK) {
		fprintf(stderr, "test_verbs: %s\n", e.text);
		return 1;
	}
	rdma_close(&rdma);
	CHECK(uv_run(&loop, UV_RUN_DEFAULT) == 0 && uv_loop_close(&loop) == 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
