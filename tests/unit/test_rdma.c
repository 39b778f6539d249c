/* SPDX-License-Identifier: Apache-2.0 */
/* Tests RDMA connections (rails) over the fake verbs. What is sent arrives once, in order and
 * whole, in both directions and on many queue pairs. Credits are never overrun, and sums notice
 * what changed after they were made. */
#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "lib/pace.h"
#include "lib/rails.h"
#include "rdma/fake.h"
#include "wire/ops.h"

#include <errno.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static int reset(void **state)
{
	(void)state;
	fake_reset();
	return 0;
}

/* Called at the end of every test. Nothing wrong arrived, and no receive was missing. */
static void end_well(struct rails *r)
{
	for (int i = 0; i < 2; i++) {
		assert_string_equal(r->end[i].why.text, "");
		assert_int_equal(r->end[i].bad, 0);
		assert_int_equal(r->end[i].fails, 0);
		assert_int_equal(r->end[i].gones, 0);
	}
	rails_close(r);
	assert_int_equal(fake_rnr(), 0);
	fake_reset();
}

static void there_and_back(void **state)
{
	struct rails r;

	(void)state;
	rails_begin(&r, NULL);
	assert_string_equal(rdma_name(r.end[0].rdma), "fake0 port 1 gid 3 (127.0.0.1)");
	for (int from = 0; from < 2; from++) {
		assert_int_equal(rails_send(&r, from, 0, 4096, 1), SHARD_OK);
		assert_int_equal(rails_control(&r, from, 0, 100), SHARD_OK);
		assert_int_equal(rails_control(&r, from, 1, 0), SHARD_OK);
		assert_int_equal(rails_control(&r, from, 1, RDMA_BODY_MAX - 3), SHARD_OK);
		assert_int_equal(rails_control(&r, from, 1, RDMA_BODY_MAX), SHARD_RANGE);
		rails_turn(&r, 3);
		assert_int_equal(r.end[1 - from].frames, 0); /* Nothing is sent before the kick. */
		rails_kick(&r, from);
		assert_true(rails_until(&r, &r.end[1 - from].controls, 3, 5000));
		assert_true(rails_until(&r, &r.end[from].sent_ok, 1, 5000));
		assert_int_equal(r.end[1 - from].frames, 1);
		assert_int_equal(rdma_rail_stats(r.end[from].rail)->frames_out, 4);
		assert_int_equal(rdma_rail_stats(r.end[from].rail)->tensor_bytes_out, 4096);
		assert_int_equal(rdma_rail_stats(r.end[1 - from].rail)->frames_in, 4);
		assert_int_equal(rdma_rail_stats(r.end[1 - from].rail)->tensor_bytes_in, 4096);
		assert_int_equal(rdma_rail_queued(r.end[from].rail, 0), 0);
	}
	end_well(&r);
}

/* As many frames are taken as there is room for. What was full has room again when frames were
 * completed. */
static void full_and_room(void **state)
{
	struct rails r;
	uint32_t nr = 0;

	(void)state;
	rails_begin(&r, NULL);
	while (rails_control(&r, 0, 0, 5) == SHARD_OK)
		nr++;
	assert_int_equal(nr, RDMA_LOCAL_SLOTS);
	assert_int_equal(rails_control(&r, 0, 1, 5),
			 SHARD_OK); /* The other queue pair has room of its own. */
	rails_kick(&r, 0);
	assert_true(rails_until(&r, &r.end[0].rooms, 1, 5000));
	assert_int_equal(rails_control(&r, 0, 0, 5), SHARD_OK);
	rails_kick(&r, 0);
	assert_true(rails_until(&r, &r.end[1].controls, nr + 2, 5000));
	end_well(&r);
}

/* Both ends send at random on all queue pairs. Requests are carried out in a random order of
 * queue pairs and held back at random. */
static void storm(uint64_t seed, uint32_t qps, bool checksum, bool hold, uint64_t frames)
{
	struct rails_conf conf = {.qps_nr = qps, .no_checksum = !checksum};
	uint64_t sent[2] = {0}, got[2] = {0}, draw = seed, until = pace_by(15);
	struct rng rng = {seed};
	struct rails r;

	rails_begin(&r, &conf);
	fake_hold(hold);
	while (got[0] + got[1] < 2 * frames && clock_ns() < until) {
		int from = (int)rng_below(&rng, 2);
		uint32_t qp = (uint32_t)rng_below(&rng, qps), burst = (uint32_t)rng_below(&rng, 40);

		/* Now one side sends alone, and now the other. Credits must come back with no
		 * frame that carries them. */
		if (rng_below(&rng, 64) < 8)
			burst = 0;
		for (uint32_t i = 0; i < burst && sent[from] < frames; i++) {
			enum shard_status rc =
				rng_below(&rng, 4) == 0
					? rails_control(&r, from, qp,
							(uint32_t)rng_below(&rng, 4000))
					: rails_send(&r, from, qp,
						     2 + (uint32_t)rng_below(&rng, 4095),
						     rng_next(&rng));

			if (rc == SHARD_AGAIN)
				break;
			if (rc != SHARD_OK)
				fail_msg("seed %llu: %s / %s", (unsigned long long)seed,
					 r.end[0].why.text, r.end[1].why.text);
			sent[from]++;
		}
		rdma_rail_kick(r.end[from].rail, qp);
		if (hold)
			(void)fake_deliver((uint32_t)rng_below(&rng, 100), &draw);
		for (uint64_t turns = rng_below(&rng, 6); turns > 0; turns--)
			rails_turn_end(&r, rng_below(&rng, 16) < 8 + seed % 7
						   ? 0
						   : 1); /* One of them is slower. */
		for (int i = 0; i < 2; i++)
			got[i] = r.end[i].frames + r.end[i].controls;
	}
	fake_hold(false);
	for (int i = 0; i < 2; i++) {
		assert_string_equal(r.end[i].why.text, "");
		assert_int_equal(got[i], frames);
		assert_true(rails_until(&r, &r.end[i].sent_ok, r.end[1 - i].frames, 5000));
	}
	end_well(&r);
}

static void storms(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 12; seed++) {
		fake_reset();
		storm(seed, 1 + (uint32_t)seed % 4, seed % 3 != 0, seed % 2, 3000);
	}
}

static void many_queue_pairs(void **state)
{
	(void)state;
	storm(77, RDMA_QPS_MAX, true, true, 4000);
}

/* Frames go in one direction only, so every credit comes alone. */
static void one_way(void **state)
{
	struct rails_conf conf = {.qps_nr = 1};
	struct rails r;
	uint64_t sent = 0;

	(void)state;
	rails_begin(&r, &conf);
	while (sent < 5000) {
		enum shard_status rc = rails_send(&r, 0, 0, 64, sent);

		if (rc == SHARD_OK && ++sent % 7 != 0)
			continue;
		rails_kick(&r, 0);
		rails_turn(&r, 1);
	}
	rails_kick(&r, 0);
	assert_true(rails_until(&r, &r.end[1].frames, sent, 5000));
	end_well(&r);
}

/* The receiver does not look, and the sender goes on. The receives are never overrun, and frames
 * go on when the receiver looks again. */
static void receiver_sleeps(void **state)
{
	struct rails_conf conf = {.qps_nr = RDMA_QPS_MAX};
	uint64_t sent = 0;
	struct rails r;

	(void)state;
	rails_begin(&r, &conf);
	for (int times = 0; times < 4; times++) {
		for (uint32_t qp = 0; qp < RDMA_QPS_MAX; qp++)
			while (rails_send(&r, 0, qp, 64, sent) == SHARD_OK)
				sent++;
		rails_kick(&r, 0);
		for (int i = 0; i < 5; i++)
			rails_turn_end(&r, 0); /* What was carried out is completed there. */
	}
	assert_int_equal(r.end[0].sent_ok,
			 RDMA_QPS_MAX * RDMA_LOCAL_SLOTS);           /* One window of each. */
	assert_int_equal(sent, 2 * RDMA_QPS_MAX * RDMA_LOCAL_SLOTS); /* Another frame waits. */
	assert_int_equal(r.end[1].frames, 0);
	assert_int_equal(fake_rnr(), 0);
	rails_turn_end(&r, 1);
	assert_in_range(r.end[1].frames, 1, 200); /* Others on its loop have their turn. */
	for (int i = 0; i < 40; i++)
		rails_turn_end(&r, 1); /* No event comes for the rest. */
	assert_int_equal(r.end[1].frames, RDMA_QPS_MAX * RDMA_LOCAL_SLOTS);
	assert_true(rails_until(&r, &r.end[1].frames, sent, 5000));
	end_well(&r);
}

/* Both ends send as much as there is credit for, from inside each frame that comes. Neither
 * posts its receives anew meanwhile. */
static void answer(struct rails_end *e, uint32_t qp, const struct wire_head *h)
{
	int me = e == &e->rails->end[1];

	(void)h;
	while (rails_send(e->rails, me, qp, 16, 3) == SHARD_OK && e->next_out[qp] % 8 != 0)
		;
	rdma_rail_kick(e->rail, qp);
}

static void answers(void **state)
{
	struct rails_conf conf = {.qps_nr = 2};
	struct rails r;

	(void)state;
	rails_begin(&r, &conf);
	r.end[0].on_frame = r.end[1].on_frame = answer;
	assert_int_equal(rails_send(&r, 0, 0, 64, 1), SHARD_OK);
	assert_int_equal(rails_send(&r, 1, 1, 64, 1), SHARD_OK);
	rails_kick(&r, 0);
	rails_kick(&r, 1);
	assert_true(rails_until(&r, &r.end[0].frames, 3000, 5000));
	r.end[0].on_frame = r.end[1].on_frame = NULL;
	rails_turn(&r, 50);
	assert_int_equal(r.end[0].frames, r.end[1].sent_ok);
	assert_int_equal(r.end[1].frames, r.end[0].sent_ok);
	end_well(&r);
}

static void discarded(void **state)
{
	struct rails r;

	(void)state;
	rails_begin(&r, NULL);
	r.end[1].discard_qp = 1;
	for (int i = 0; i < 200; i++) {
		while (rails_send(&r, 0, 0, 512, 3) == SHARD_AGAIN)
			rails_turn(&r, 1);
		rails_kick(&r, 0);
	}
	assert_int_equal(rails_send(&r, 0, 1, 512, 4), SHARD_OK);
	rails_kick(&r, 0);
	assert_true(rails_until(&r, &r.end[1].frames, 1, 5000));
	assert_true(rails_until(&r, &r.end[0].sent_ok, 201, 5000));
	assert_true(rails_until(&r, &r.end[1].next_in[0], 200, 5000));
	assert_int_equal(r.end[1].frames, 1);
	end_well(&r);
}

/* Devices without inline data, with another MTU, and with LIDs. */
static void other_devices(void **state)
{
	static const struct fake_device devices[3] = {
		{.name = "plain",
		 .no_inline = true,
		 .mtu = 4096,
		 .gid = {{"10.0.0.1", IBV_GID_TYPE_ROCE_V2}}},
		{.name = "small",
		 .max_inline = 64,
		 .mtu = 256,
		 .gid = {{"10.0.0.2", IBV_GID_TYPE_ROCE_V2}}},
		{.name = "ib", .infiniband = true, .gid = {{"fe80::2", IBV_GID_TYPE_IB}}},
	};
	static const struct rails_conf confs[] = {{.device = {"plain", "small"}},
						  {.device = {"plain", "plain"}},
						  {.device = {"ib", "ib"}},
						  {.address = {"10.0.0.2", "10.0.0.1"}}};
	struct rails r;

	(void)state;
	for (size_t i = 0; i < NR(confs); i++) {
		fake_reset();
		fake_devices(devices, 3);
		rails_begin(&r, &confs[i]);
		for (int k = 0; k < 10; k++) {
			assert_int_equal(rails_send(&r, 0, 0, 4096, 1), SHARD_OK);
			assert_int_equal(rails_control(&r, 1, 1, 200), SHARD_OK);
		}
		rails_kick(&r, 0);
		rails_kick(&r, 1);
		assert_true(rails_until(&r, &r.end[1].frames, 10, 5000));
		assert_true(rails_until(&r, &r.end[0].controls, 10, 5000));
		end_well(&r);
	}
}

static void polls_busily(void **state)
{
	struct rails_conf conf = {.busy_poll_us = 200};
	struct rails r;

	(void)state;
	rails_begin(&r, &conf);
	for (int i = 0; i < 300; i++) {
		assert_int_equal(rails_send(&r, i % 2, 0, 300, (uint64_t)i), SHARD_OK);
		rails_kick(&r, i % 2);
		assert_true(rails_until(&r, &r.end[1 - i % 2].frames, (uint64_t)i / 2 + 1, 5000));
	}
	end_well(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(there_and_back, reset),
		cmocka_unit_test_setup(full_and_room, reset),
		cmocka_unit_test_setup(storms, reset),
		cmocka_unit_test_setup(many_queue_pairs, reset),
		cmocka_unit_test_setup(one_way, reset),
		cmocka_unit_test_setup(receiver_sleeps, reset),
		cmocka_unit_test_setup(discarded, reset),
		cmocka_unit_test_setup(other_devices, reset),
		cmocka_unit_test_setup(polls_busily, reset),
		cmocka_unit_test_setup(answers, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
