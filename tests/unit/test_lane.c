/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that senders that share a connection take turns, frame by frame. A sender with one frame
 * does not wait for one with a hundred. The order is read where the frames arrive. */
#include "lib/loopnet.h"
#include "link/lane.h"
#include "wire/ops.h"

#include <stdio.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { SENDERS = 3 };

struct sender {
	struct lane_sender lane_sender;
	struct lane *lane;
	uint32_t number, left; /* The frames that it still holds. */
};

static struct lane lane; /* Those of the connection that is dialled. */
static uint32_t lost;    /* Frames that did not leave. */

static struct sender *sender_of(const struct lane_sender *s)
{
	return list_of(&s->link, struct sender, lane_sender.link);
}

static void sent(void *arg, enum shard_status st)
{
	(void)arg;
	lost += st != SHARD_OK;
	lane_check(&lane); /* As a queue does to which a chunk is added. */
}

static enum shard_status send_one(struct lane_sender *s, struct lane *l)
{
	struct sender *x = sender_of(s);
	struct wire_head h = {.op = OP_PING, .attempt = x->number};

	assert_true(x->left > 0);
	x->left--;
	return stream_send(conn_stream(l->conn), &h, NULL, 0, sent, NULL);
}

static struct lane *where(struct lane_sender *s)
{
	return sender_of(s)->left > 0 ? sender_of(s)->lane : NULL;
}

static void describe(const struct lane_sender *s, char *text, size_t bytes)
{
	snprintf(text, bytes, "sender %u", sender_of(s)->number);
}

static const struct lane_sender_ops ops = {.send = send_one, .where = where, .describe = describe};

static void failed(void *owner, const struct err *why)
{
	(void)owner;
	fail_msg("the lane failed: %s", why->text);
}

static void written(struct loopend *n, struct conn *c)
{
	(void)n;
	(void)c;
	lane_serve(&lane);
}

static void waits(struct sender *x, uint32_t number, uint32_t frames)
{
	*x = (struct sender){
		.lane_sender = {.ops = &ops}, .lane = &lane, .number = number, .left = frames};
	list_init(&x->lane_sender.link);
	lane_wait(&x->lane_sender);
}

/* How many others come before the next frame of this sender, among the frames after the first
 * `from`. */
static uint32_t others_before(const struct frames *got, uint32_t from, uint32_t number)
{
	uint32_t at = from;

	while (at < got->nr && got->head[at].attempt != number)
		at++;
	assert_true(at < got->nr);
	return at - from;
}

static void test_turns(void **state)
{
	enum { LARGE = 100, SMALL = 10 };
	struct loopnet *t = *state;
	const struct frames *got = &t->accepted[0].got;
	struct sender x[SENDERS];
	uint32_t queued, at;

	loopnet_connected(t, t->path);
	lane_init(&lane, failed, NULL);
	lane_open(&lane, t->dialled.c);
	t->dialled.refill = written;
	waits(&x[0], 0, LARGE);
	queued = LARGE - x[0].left; /* They are on the connection before anybody else waits. */
	assert_in_range(queued, 1, LARGE / 2);
	waits(&x[1], 1, 1);
	waits(&x[2], 2, SMALL);
	RUN_UNTIL(t, got->nr == LARGE + SMALL + 1);
	assert_in_range(others_before(got, queued, 1), 0, 1);
	at = queued;
	for (uint32_t i = 0; i < SMALL; i++) {
		uint32_t others = others_before(got, at, 2);

		assert_in_range(others, 0, i == 0 ? SENDERS - 1 : 1);
		at += others + 1;
	}
	assert_true(list_empty(&lane.waiting));
	lane_check(&lane);
	lane_close(&lane);
	conn_close(t->dialled.c, NULL, 0);
	RUN_UNTIL(t, t->accepted[0].closed);
}

/* A connection ends while senders wait and frames are queued. The frames come back before the owner
 * of the lane hears of the end, and the last one leaves the queue empty. */
static void test_end(void **state)
{
	struct loopnet *t = *state;
	struct sender x[2];
	uint32_t queued;

	loopnet_connected(t, t->path);
	lane_init(&lane, failed, NULL);
	lane_open(&lane, t->dialled.c);
	t->dialled.refill = written;
	for (uint32_t i = 0; i < 2; i++)
		waits(&x[i], i, UINT32_MAX);
	lost = 0;
	queued = stream_queued(conn_stream(t->dialled.c));
	conn_close(t->dialled.c, NULL, 0);
	RUN_UNTIL(t, t->dialled.closed);
	assert_true(!list_empty(&lane.waiting) && queued > 0);
	assert_int_equal(lost, queued);
	lane_close(&lane);
	lane_check(&lane);
	RUN_UNTIL(t, t->accepted[0].closed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_turns, loopnet_up, loopnet_down),
		cmocka_unit_test_setup_teardown(test_end, loopnet_up, loopnet_down),
	};

	return cmocka_run_group_tests_name("lane", tests, NULL, NULL);
}
