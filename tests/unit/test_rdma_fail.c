/* SPDX-License-Identifier: Apache-2.0 */
/* Tests failures of an open RDMA connection: a request, a queue pair, the peer, the device, a
 * connection that is half open, and each single call of the library, one after the other. Nothing
 * leaks, nothing hangs, and each failure has a text. test_rdma_open.c has the failures before
 * that. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/frames.h"
#include "lib/pace.h"
#include "lib/rails.h"
#include "rdma/fake.h"
#include "wire/ops.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
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

static void has(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("\"%s\" is not in: %s", part, text);
}

/* --- a rail that ends: one of its ends hears why, sends nothing more, and gives its bodies back
 * --- */

static void busy(struct rails *r)
{
	rails_begin(r, NULL);
	for (int i = 0; i < 10; i++) {
		assert_int_equal(rails_send(r, 0, 0, 100, 1), SHARD_OK);
		assert_int_equal(rails_send(r, 1, 1, 100, 1), SHARD_OK);
	}
	rails_kick(r, 0);
	rails_kick(r, 1);
	assert_true(rails_until(r, &r->end[0].sent_ok, 10, 5000));
	assert_true(rails_until(r, &r->end[1].sent_ok, 10, 5000));
	assert_true(rails_until(r, &r->end[0].frames, 10, 5000));
	assert_true(rails_until(r, &r->end[1].frames, 10, 5000));
}

static void ended(struct rails *r, int who, enum shard_status st, const char *text)
{
	struct rails_end *e = &r->end[who];
	uint64_t given = e->sent_ok + e->sent_closed;

	assert_true(rails_until(r, &e->fails, 1, 5000));
	assert_int_equal(e->why.status, st);
	has(e->why.text, text);
	rails_turn(r, 5);
	assert_int_equal(e->fails, 1);
	assert_int_equal(rails_send(r, who, 0, 100, 1), SHARD_CLOSED);
	assert_int_equal(rails_control(r, who, 0, 100), SHARD_CLOSED);
	rails_kick(r, who);
	given = rdma_rail_queued(e->rail, 0) + rdma_rail_queued(e->rail, 1) + e->sent_ok +
		e->sent_closed;
	rdma_rail_free(&e->rail);
	assert_int_equal(e->sent_ok + e->sent_closed, given);
}

static void close_all(struct rails *r)
{
	rails_close(r);
	assert_int_equal(fake_rnr(), 0);
	fake_reset();
}

static void queue_pair_breaks(void **state)
{
	uint32_t qpn[4];
	struct rails r;

	(void)state;
	busy(&r);
	assert_int_equal(fake_qps(qpn, 4), 4);
	fake_break_qp(qpn[1]);
	ended(&r, 0, SHARD_UNREACHABLE,
	      "RDMA queue pair 1 to 127.0.0.1 (18 here, 20 there): receiving: Work Request Flushed "
	      "Error");
	assert_int_equal(r.end[1].fails, 0); /* It has nothing to send. */
	assert_int_equal(rails_send(&r, 1, 0, 100, 1), SHARD_OK);
	rails_kick(&r, 1);
	ended(&r, 1, SHARD_UNREACHABLE,
	      "(contrib_data, 100 bytes): transport retry counter exceeded");
	close_all(&r);
}

static void queue_pair_event(void **state)
{
	static const enum ibv_event_type types[] = {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
						    IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_CQ_ERR};
	uint32_t qpn[4];
	struct rails r;

	(void)state;
	for (size_t i = 0; i < NR(types); i++) {
		busy(&r);
		assert_int_equal(fake_qps(qpn, 4), 4);
		fake_qp_event(qpn[3], types[i]);
		ended(&r, 1, types[i] == IBV_EVENT_CQ_ERR ? SHARD_SYSTEM : SHARD_UNREACHABLE,
		      "127.0.0.1: ");
		assert_int_equal(r.end[1].gones, 0);
		close_all(&r);
	}
}

/* Tries each kind of error at each of the requests of two chains. */
static void request_fails(void **state)
{
	static const enum ibv_wc_status kinds[] = {IBV_WC_LOC_PROT_ERR, IBV_WC_REM_INV_REQ_ERR,
						   IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR};
	struct rails r;

	(void)state;
	for (uint32_t at = 1; at <= 40; at++) {
		busy(&r);
		fake_fail_work(at, kinds[at % NR(kinds)]);
		for (int i = 0; i < 20; i++)
			assert_int_equal(rails_send(&r, 0, 0, 100, 2), SHARD_OK);
		rails_kick(&r, 0);
		has(ibv_wc_status_str(kinds[at % NR(kinds)]), " ");
		ended(&r, 0,
		      kinds[at % NR(kinds)] == IBV_WC_REM_INV_REQ_ERR ? SHARD_PROTOCOL
								      : SHARD_UNREACHABLE,
		      ibv_wc_status_str(kinds[at % NR(kinds)]));
		assert_int_equal(r.end[0].sent_ok + r.end[0].sent_closed, 30);
		assert_true(r.end[0].sent_closed > 0);
		close_all(&r);
	}
}

static void peer_goes(void **state)
{
	struct rails r;

	(void)state;
	busy(&r);
	rdma_rail_free(&r.end[1].rail);
	rails_turn(&r, 5);
	assert_int_equal(r.end[0].fails, 0);
	assert_int_equal(rails_send(&r, 0, 0, 100, 1), SHARD_OK);
	rails_kick(&r, 0);
	ended(&r, 0, SHARD_UNREACHABLE,
	      "body of frame 10 (contrib_data, 100 bytes): transport retry counter exceeded");
	close_all(&r);
}

static void sends_again(struct rails_end *e, enum shard_status st)
{
	assert_int_equal(st, SHARD_CLOSED);
	assert_int_equal(rails_send(e->rails, 0, 0, 100, 1), SHARD_CLOSED);
	assert_int_equal(rails_control(e->rails, 0, 0, 10), SHARD_CLOSED);
}

/* The rail is freed with requests under way. Nothing is written afterwards, and every body comes
 * back to an owner who would send it again at once. */
static void freed_in_flight(void **state)
{
	struct rdma_rail *rail;
	struct rails r;

	(void)state;
	busy(&r);
	fake_hold(true);
	for (int i = 0; i < 30; i++)
		assert_int_equal(rails_send(&r, 0, (uint32_t)i % 2, 100, 1), SHARD_OK);
	rdma_rail_kick(r.end[0].rail, 0);
	rails_turn(&r, 3);
	r.end[0].on_sent = sends_again;
	rail = r.end[0].rail;
	rdma_rail_free(&rail);
	r.end[0].rail = NULL;
	assert_int_equal(r.end[0].sent_closed, 30);
	fake_hold(false);
	rails_turn(&r, 3);
	assert_int_equal(r.end[1].frames, 10);
	assert_int_equal(r.end[0].fails, 0);
	close_all(&r);
}

static void device_goes(void **state)
{
	static const struct fake_device two[2] = {
		{.name = "one", .gid = {{"10.0.0.1", IBV_GID_TYPE_ROCE_V2}}},
		{.name = "two", .gid = {{"10.0.0.2", IBV_GID_TYPE_ROCE_V2}}}};
	static const char *const texts[] = {
		"RDMA device one port 1 gid 0 (10.0.0.1): local catastrophic error",
		"its port is down", "its address changed", "removed: Input/output error",
		"its completion channel is over"};
	struct rails_conf conf = {.device = {"one", "two"}};
	struct rails r;

	(void)state;
	for (int i = 0; i < 5; i++) {
		fake_devices(two, 2);
		rails_begin(&r, &conf);
		assert_int_equal(rails_send(&r, 0, 0, 100, 1),
				 SHARD_OK); /* It was never kicked, and comes back at the end. */
		switch (i) {
		case 0:
			fake_remove("one");
			break;
		case 1:
			fake_event("one", IBV_EVENT_PORT_ERR);
			break;
		case 2:
			fake_event("one", IBV_EVENT_GID_CHANGE); /* Of another rail. */
			rails_turn(&r, 3);
			assert_int_equal(r.end[0].gones, 0);
			fake_set_gid("one", 0, "10.0.0.77");
			fake_event("one", IBV_EVENT_GID_CHANGE);
			break;
		case 3:
			fake_fail(FAKE_GET_ASYNC_EVENT, 1, EIO);
			fake_event("one", IBV_EVENT_PORT_ACTIVE);
			break;
		default:
			fake_fail(FAKE_GET_CQ_EVENT, 1, EIO);
			assert_int_equal(rails_control(&r, 1, 0, 5), SHARD_OK);
			rdma_rail_kick(r.end[1].rail, 0);
			break;
		}
		assert_true(rails_until(&r, i == 4 ? &r.end[1].gones : &r.end[0].gones, 1, 5000) ||
			    r.end[0].gones);
		if (i == 4 && !r.end[0].gones) /* It is not said whose event came first. */
			has(r.end[1].gone_why.text, texts[i]);
		else {
			has(r.end[0].gone_why.text, texts[i]);
			ended(&r, 0, SHARD_UNREACHABLE,
			      /* What was flushed may be seen before the reason. */
			      i == 0 ? "" : texts[i]);
			assert_int_equal(r.end[0].sent_closed, 1);
			assert_int_equal(r.end[0].gones, 1);
		}
		close_all(&r);
	}
}

/* Nothing that is posted ever completes. */
static void half_open(void **state)
{
	struct rails_conf conf = {.deadline_ns = 50 * NS_PER_MS};
	struct rails r;
	uint64_t began;

	(void)state;
	rails_begin(&r, &conf);
	fake_cut(0, true);
	began = clock_ns();
	assert_int_equal(rails_send(&r, 0, 0, 100, 1), SHARD_OK);
	rails_kick(&r, 0);
	ended(&r, 0, SHARD_TIMEOUT,
	      "RDMA queue pair 0 to 127.0.0.1 (17 here, 19 there): frame 0 (contrib_data, 100 "
	      "bytes) not completed for 0.1 s");
	assert_true(clock_ns() - began >= 50 * NS_PER_MS);
	assert_int_equal(r.end[0].sent_closed, 1);
	assert_int_equal(r.end[1].fails, 0);
	fake_cut(0, false);
	close_all(&r);
}

/* A slow device is not dead. Each completion gives those after it their time again. */
static void slow_is_not_dead(void **state)
{
	struct rails_conf conf = {.deadline_ns = 100 * NS_PER_MS, .qps_nr = 1};
	uint64_t seed = 1, end;
	struct rails r;

	(void)state;
	rails_begin(&r, &conf);
	fake_hold(true);
	for (int i = 0; i < RDMA_LOCAL_SLOTS; i++)
		assert_int_equal(rails_send(&r, 0, 0, 100, 1), SHARD_OK);
	rails_kick(&r, 0);
	for (int i = 0; i < RDMA_LOCAL_SLOTS / 8; i++) {
		(void)fake_deliver(16, &seed);
		for (end = clock_ns() + 30 * NS_PER_MS; clock_ns() < end;)
			rails_turn(&r, 1);
	}
	assert_int_equal(r.end[0].fails, 0);
	assert_int_equal(r.end[0].sent_ok, RDMA_LOCAL_SLOTS);
	fake_hold(false);
	close_all(&r);
}

/* --- the N-th call fails, for every N --- */

static bool traffic(struct rails *r, struct err *e)
{
	uint64_t want[2] = {0}, until = pace_by(5);

	for (int i = 0; i < 100; i++) {
		int from = i / 10 % 2;

		if (rails_send(r, from, 0, 300, (uint64_t)i) == SHARD_OK)
			want[1 - from]++;
		if (rails_control(r, from, 1, 30) == SHARD_OK)
			want[1 - from]++;
		if (i % 5 == 0)
			rails_kick(r, from);
		if (i % 7 == 0)
			rails_turn(r, 1);
	}
	rails_kick(r, 0);
	rails_kick(r, 1);
	while (clock_ns() < until) {
		rails_turn(r, 1);
		for (int i = 0; i < 2; i++)
			if (r->end[i].fails + r->end[i].gones > 0) {
				*e = r->end[i].fails ? r->end[i].why : r->end[i].gone_why;
				return false;
			}
		if (r->end[0].frames + r->end[0].controls == want[0] &&
		    r->end[1].frames + r->end[1].controls == want[1])
			return true;
	}
	fail_msg("neither done nor failed");
	return false;
}

static bool scenario(uint32_t nth, int error)
{
	struct err e = {0};
	struct rails r;
	bool ok;

	fake_fail(FAKE_ANY, nth, error);
	rails_init(&r, NULL);
	ok = rails_open(&r, &e) == SHARD_OK && rails_connect(&r, &e) == SHARD_OK && traffic(&r, &e);
	if (!ok && (e.text[0] == 0 || e.status == SHARD_OK))
		fail_msg("call %u fails with %s, and nothing says so", nth, strerror(error));
	for (int i = 0; i < 2; i++)
		assert_int_equal(r.end[i].bad, 0);
	rails_close(&r);
	return ok;
}

static void every_call(void **state)
{
	static const int errors[] = {ENOMEM, EIO};
	uint32_t all, survived = 0, failed = 0, fds;

	(void)state;
	assert_true(scenario(0, 0));
	all = fake_calls(FAKE_ANY);
	assert_true(all > 100);
	fds = frames_open_fds();
	for (size_t k = 0; k < NR(errors); k++)
		for (uint32_t n = 1; n <= all; n++) {
			fake_reset(); /* Fails if anything is alive. */
			if (scenario(n, errors[k]))
				survived++;
			else
				failed++;
		}
	fake_reset();
	assert_int_equal(frames_open_fds(), fds);
	assert_true(failed > 100);
	assert_true(survived >= 4); /* The first try with inline data, of each queue pair. */
	printf("%u calls: %u failures told, %u did not matter\n", all, failed, survived);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(queue_pair_breaks, reset),
		cmocka_unit_test_setup(queue_pair_event, reset),
		cmocka_unit_test_setup(request_fails, reset),
		cmocka_unit_test_setup(peer_goes, reset),
		cmocka_unit_test_setup(freed_in_flight, reset),
		cmocka_unit_test_setup(device_goes, reset),
		cmocka_unit_test_setup(half_open, reset),
		cmocka_unit_test_setup(slow_is_not_dead, reset),
		cmocka_unit_test_setup(every_call, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
