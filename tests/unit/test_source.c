// SPDX-License-Identifier: Apache-2.0
/* Membership sources in one process, where the test decides when the disk answers and how long the
 * loop stands still: a disk that hangs holds up what rests on it, but no answer; a process that
 * stood still knows that its time is up before it takes input; a start that fails leaves nothing.
 */
#include "cluster/source_calls.h"
#include "cluster/source_wire.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/fault.h"
#include "lib/pace.h"
#include "lib/rmtree.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define POOL_TEXT "4" /* POOL, for libuv. */
enum { NODES = 2, POOL = 4, BEAT_MS = 20, ELECTION_MS = 200, DEADLINE_MS = 400, QUEUED_MAX = 64 };

struct node {
	struct world *world;
	int index;
	const struct member_source_ops *ops;
	struct member_source *source;
	struct member_config conf;
	uint64_t leads, seq, views;
	int write, read; /* A member_done. -1: open. */
	bool stopped;
	char order[64], failed[256];
};

/* A message that waits for the other node. */
struct queued {
	int to;
	uint32_t nr;
	unsigned char *bytes;
};

struct world {
	uv_loop_t loop;
	/* Ends the wait of uv_run(). It repeats: one that was started for each turn could run
	 * before uv_run() waits, if the process stood still meanwhile, and then nothing ended the
	 * wait. */
	uv_timer_t nudge;
	char dir[NODES][64];
	struct node node[NODES];
	struct queued queued[QUEUED_MAX];
	uint32_t queued_nr;
	uv_work_t block[POOL];
	uv_sem_t release;
	int blocked;
	rlim_t files; /* The limit of open files, while room() has taken the disk away. 0: it is
			 not. */
};

/* The world of the test that runs. A test that fails leaves it, and threads of the pool may wait in
 * it for ever. Then no other test can use the pool. */
static struct world *left;

static void on_order(struct node *n, char letter)
{
	size_t nr = strlen(n->order);

	if (nr + 1 < sizeof(n->order))
		n->order[nr] = letter;
}

static void on_view(void *arg, const struct member_view *v)
{
	struct node *n = arg;

	assert_true(v->seq > n->seq);
	n->seq = v->seq;
	n->views++;
	on_order(n, 'V');
}

static void on_leading(void *arg, uint64_t term, const struct member_view *v)
{
	struct node *n = arg;

	assert_int_equal(n->leads, 0);
	n->leads = term;
	n->seq = v != NULL ? v->seq : 0;
	on_order(n, 'L');
}

static void on_lost(void *arg, uint64_t term, const char *why)
{
	struct node *n = arg;

	assert_int_equal(n->leads, term);
	assert_true(strlen(why) > 3);
	n->leads = 0;
	on_order(n, 'l');
}

static void on_leader(void *arg, uint64_t term, const uint8_t *uuid)
{
	(void)arg;
	(void)term;
	(void)uuid;
}

static void on_failed(void *arg, const char *text)
{
	struct node *n = arg;

	snprintf(n->failed, sizeof(n->failed), "%s", text);
	on_order(n, 'F');
}

static void on_send(void *arg, const uint8_t *to, const void *bytes, uint32_t nr)
{
	struct node *n = arg;
	struct world *w = n->world;
	struct queued *q = &w->queued[w->queued_nr];

	if (w->queued_nr == QUEUED_MAX)
		return;
	*q = (struct queued){.to = to[0] - 1, .nr = nr, .bytes = malloc(nr)};
	CHECK(q->bytes != NULL && q->to >= 0 && q->to < NODES);
	memcpy(q->bytes, bytes, nr);
	w->queued_nr++;
}

static void on_wrote(void *arg, enum member_done how, const struct member_view *v)
{
	struct node *n = arg;

	(void)v;
	assert_int_equal(n->write, -1);
	n->write = (int)how;
	on_order(n, 'w');
}

static void on_read(void *arg, enum member_done how, const struct member_view *v)
{
	struct node *n = arg;

	(void)v;
	assert_int_equal(n->read, -1);
	n->read = (int)how;
}

static void on_stopped(void *arg)
{
	struct node *n = arg;

	n->stopped = true;
}

/* --- the world --- */

static const struct member_events no_events = {.view = on_view,
					       .leading = on_leading,
					       .lost = on_lost,
					       .leader = on_leader,
					       .failed = on_failed,
					       .send = on_send};

/* The test waits for some of these times to pass, so a moment in which the machine does nothing for
 * it must not make them minutes. */
static uint32_t time_ms(int quiet_ms)
{
	int ms = pace_ms(quiet_ms);

	return (uint32_t)(ms < 4 * quiet_ms ? ms : 4 * quiet_ms);
}

static void start(struct world *w, int i, const char *name, bool alone)
{
	struct member_events ev = no_events;
	struct node *n = &w->node[i];
	struct err e;

	*n = (struct node){.world = w, .index = i, .ops = member_source_find(name)};
	n->conf = (struct member_config){.loop = &w->loop,
					 .dir = w->dir[i],
					 .self = {(uint8_t)(i + 1)},
					 .first = i == 0,
					 .bootstrap = i == 0,
					 .alone = alone,
					 .ordinal = (uint16_t)(i + 1),
					 .beat_ms = time_ms(BEAT_MS),
					 .election_ms = time_ms(ELECTION_MS),
					 .deadline_ms = time_ms(DEADLINE_MS)};
	ev.arg = n;
	n->write = n->read = MEMBER_OK;
	assert_int_equal(n->ops->start(&n->source, &n->conf, &ev, &e), SHARD_OK);
}

static void on_nudge(uv_timer_t *t)
{
	(void)t;
}

static struct world *make(void)
{
	struct world *w;

	if (left != NULL)
		skip(); /* What failed before has been said. */
	w = left = calloc(1, sizeof(*w));
	CHECK(w != NULL);
	CHECK(uv_loop_init(&w->loop) == 0 && uv_timer_init(&w->loop, &w->nudge) == 0 &&
	      uv_timer_start(&w->nudge, on_nudge, 2, 2) == 0 && uv_sem_init(&w->release, 0) == 0);
	for (int i = 0; i < NODES; i++) {
		snprintf(w->dir[i], sizeof(w->dir[i]), "/tmp/shard-source-XXXXXX");
		CHECK(mkdtemp(w->dir[i]) != NULL);
	}
	return w;
}

static void deliver(struct world *w)
{
	for (uint32_t i = 0; i < w->queued_nr; i++) {
		struct queued *q = &w->queued[i];
		struct node *to = &w->node[q->to];
		uint8_t from[MEMBER_UUID_BYTES] = {(uint8_t)(2 - q->to)};

		if (to->source != NULL)
			assert_int_equal(to->ops->message(to->source, from, q->bytes, q->nr, NULL),
					 SHARD_OK);
		free(q->bytes);
	}
	w->queued_nr = 0;
}

static void turn(struct world *w)
{
	deliver(w);
	uv_run(&w->loop, UV_RUN_ONCE);
}

/* What these tests wait for takes milliseconds on a quiet machine. An emulator on a busy one is
 * many times slower, and yet the wait has to end, and to say so, before whoever runs the tests
 * takes this one for one that hangs. */
static uint64_t wait_by(void)
{
	uint64_t most = clock_ns() + 60 * NS_PER_SEC, by = pace_by(20);

	return by < most ? by : most;
}

static void in_vain(const struct world *w, const char *what, int line)
{
	fprintf(stderr, "line %d: waited in vain for %s\n", line, what);
	for (int i = 0; i < NODES; i++) {
		const struct node *n = &w->node[i];

		fprintf(stderr,
			"node %d: %s, leads %llu, seq %llu, write %d, read %d, %d of the pool "
			"blocked, %u messages, told \"%s\" %s\n",
			i, n->source != NULL ? "there" : "not there", (unsigned long long)n->leads,
			(unsigned long long)n->seq, n->write, n->read, w->blocked, w->queued_nr,
			n->order, n->failed);
	}
	fail_msg("waited in vain for %s", what);
}

#define WAIT(w, is)                                                                                \
	do {                                                                                       \
		uint64_t by_ = wait_by();                                                          \
		while (!(is)) {                                                                    \
			if (clock_ns() > by_)                                                      \
				in_vain(w, #is, __LINE__);                                         \
			turn(w);                                                                   \
		}                                                                                  \
	} while (0)

static void link_both(struct world *w, bool up)
{
	for (int i = 0; i < NODES; i++) {
		uint8_t other[MEMBER_UUID_BYTES] = {(uint8_t)(2 - i)};

		w->node[i].ops->link(w->node[i].source, other, up);
	}
}

static void stop(struct world *w, int i)
{
	struct node *n = &w->node[i];

	n->ops->stop(&n->source, on_stopped, n);
	assert_null(n->source);
	WAIT(w, n->stopped);
	assert_int_equal(n->leads, 0);
	assert_true(n->write != -1 && n->read != -1);
}

static void end(struct world *w)
{
	for (int i = 0; i < NODES; i++)
		if (w->node[i].source != NULL)
			stop(w, i);
	deliver(w);
	uv_close((uv_handle_t *)&w->nudge, NULL);
	uv_run(&w->loop, UV_RUN_DEFAULT);
	CHECK(uv_loop_close(&w->loop) == 0);
	uv_sem_destroy(&w->release);
	for (int i = 0; i < NODES; i++)
		rmtree(w->dir[i]);
	free(w);
	left = NULL;
}

/* --- a disk that hangs: all threads of the pool wait --- */

static void block_run(uv_work_t *work)
{
	struct world *w = work->data;

	uv_sem_wait(&w->release);
}

static void block_done(uv_work_t *work, int status)
{
	struct world *w = work->data;

	(void)status;
	w->blocked--;
}

static void hang(struct world *w)
{
	for (int i = 0; i < POOL; i++) {
		w->block[i].data = w;
		w->blocked++;
		CHECK(uv_queue_work(&w->loop, &w->block[i], block_run, block_done) == 0);
	}
}

static void release(struct world *w)
{
	for (int i = 0; i < POOL; i++)
		uv_sem_post(&w->release);
	WAIT(w, w->blocked == 0);
}

static enum shard_status propose(struct node *n)
{
	uint8_t writer[MEMBER_UUID_BYTES] = {1, 2, 3};
	enum shard_status st =
		n->ops->propose(n->source, n->leads, n->seq, writer, "ab", 2, on_wrote, n);

	if (st == SHARD_OK)
		n->write = -1;
	return st;
}

static void read_one(struct node *n)
{
	assert_int_equal(n->ops->read(n->source, on_read, n), SHARD_OK);
	n->read = -1;
}

static void test_hanging_disk(void **state)
{
	struct world *w = make();
	struct node *n = &w->node[0];
	uint64_t seq;

	start(w, 0, *state, true);
	WAIT(w, n->leads != 0);
	seq = n->seq;
	hang(w);
	assert_int_equal(propose(n), SHARD_OK);
	assert_int_equal(propose(n), SHARD_AGAIN);
	WAIT(w, n->write != -1);
	assert_int_equal(n->write, MEMBER_UNKNOWN);
	assert_int_equal(propose(n), SHARD_AGAIN); /* It is not settled. */
	read_one(n);
	WAIT(w, n->read != -1);
	assert_int_equal(n->seq, seq);
	release(w);
	WAIT(w, n->seq == seq + 1); /* It was written after all, and `view` tells it. */
	WAIT(w, propose(n) == SHARD_OK);
	WAIT(w, n->write != -1);
	assert_int_equal(n->write, MEMBER_OK);
	/* A stop answers at once, but waits for the disk. */
	hang(w);
	assert_int_equal(propose(n), SHARD_OK);
	turn(w);
	n->ops->stop(&n->source, on_stopped, n);
	WAIT(w, n->write != -1);
	assert_int_equal(n->write, MEMBER_UNKNOWN);
	assert_false(n->stopped);
	release(w);
	WAIT(w, n->stopped);
	assert_int_equal(n->leads, 0);
	end(w);
}

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts) == 0);
	return (uint64_t)ts.tv_sec * NS_PER_SEC + (uint64_t)ts.tv_nsec;
}

/* A change that comes before the first write of the disk is durable waits for its deadline without
 * using the processor. */
static void test_waits_idly(void **state)
{
	struct world *w = make();
	struct node *n = &w->node[0];
	uint64_t began, cpu;

	hang(w);
	start(w, 0, *state, true);
	turn(w);
	assert_int_equal(propose(n), SHARD_OK);
	began = clock_ns();
	cpu = cpu_ns();
	WAIT(w, n->write != -1);
	assert_int_equal(n->write, MEMBER_UNKNOWN);
	assert_true(cpu_ns() - cpu < (clock_ns() - began) / 2);
	release(w);
	WAIT(w, n->leads != 0);
	end(w);
}

/* Who is not the first of the list has nothing, and leads nothing. */
static void test_not_first(void **state)
{
	struct world *w = make();
	struct node *n = &w->node[1];

	(void)state;
	start(w, 1, "static", true);
	assert_int_equal(propose(n), SHARD_OK);
	read_one(n);
	WAIT(w, n->write != -1 && n->read != -1);
	assert_int_equal(n->write, MEMBER_FENCED);
	assert_int_equal(n->read, MEMBER_UNKNOWN);
	assert_string_equal(n->order, "w");
	end(w);
}

/* A change from inside the answer to the one before, three times, and then a stop. */
static void on_wrote_again(void *arg, enum member_done how, const struct member_view *v)
{
	uint8_t writer[MEMBER_UUID_BYTES] = {1};
	struct node *n = arg;

	on_wrote(arg, how, v);
	assert_int_equal(how, MEMBER_OK);
	if (n->views > 3) {
		n->ops->stop(&n->source, on_stopped, n);
		return;
	}
	n->write = -1;
	assert_int_equal(
		n->ops->propose(n->source, n->leads, n->seq, writer, "", 0, on_wrote_again, n),
		SHARD_OK);
}

static void test_from_inside(void **state)
{
	uint8_t writer[MEMBER_UUID_BYTES] = {1};
	struct world *w = make();
	struct node *n = &w->node[0];

	start(w, 0, *state, true);
	WAIT(w, n->leads != 0);
	n->views = 0;
	n->write = -1;
	assert_int_equal(
		n->ops->propose(n->source, n->leads, n->seq, writer, "", 0, on_wrote_again, n),
		SHARD_OK);
	WAIT(w, n->stopped);
	assert_int_equal(n->leads, 0);
	end(w);
}

/* --- two nodes that vote --- */

static struct world *make_two(void)
{
	uint8_t writer[MEMBER_UUID_BYTES] = {9}, other[MEMBER_UUID_BYTES] = {2};
	struct world *w = make();
	struct node *a = &w->node[0];

	start(w, 0, "quorum", false);
	start(w, 1, "quorum", false);
	link_both(w, true);
	WAIT(w, a->leads != 0 && w->node[1].seq > 0);
	a->write = -1;
	assert_int_equal(a->ops->join(a->source, a->leads, a->seq, writer, other, on_wrote, a),
			 SHARD_OK);
	WAIT(w, a->write != -1 && w->node[1].seq == a->seq);
	assert_int_equal(a->write, MEMBER_OK);
	memset(a->order, 0, sizeof(a->order));
	return w;
}

/* The loop stands still for so long that the time of the leader is up. */
static void stand_still(const struct node *n)
{
	usleep(1000 * (n->conf.election_ms + n->conf.beat_ms + 20));
}

static bool is_queued(const struct world *w, int to, enum quorum_op op)
{
	for (uint32_t i = 0; i < w->queued_nr; i++)
		if (w->queued[i].to == to &&
		    w->queued[i].bytes[offsetof(struct source_msg_wire, op)] == op)
			return true;
	return false;
}

/* An answer of the other node, which would let the leader go on, has come before its timer runs,
 * and so has a change. */
static void test_pause(void **state)
{
	struct world *w = make_two();
	struct node *a = &w->node[0];

	(void)state;
	WAIT(w, is_queued(w, 0, QUORUM_HEARD));
	stand_still(a);
	deliver(w);
	assert_int_equal(propose(a), SHARD_OK);
	WAIT(w, a->write != -1);
	assert_int_equal(a->write, MEMBER_FENCED);
	assert_string_equal(a->order, "lw");
	WAIT(w, a->leads != 0 || w->node[1].leads != 0);
	end(w);
}

/* The owner asks before it takes other input. */
static void test_wake(void **state)
{
	struct world *w = make_two();
	struct node *a = &w->node[0];

	(void)state;
	a->ops->wake(a->source);
	assert_int_not_equal(a->leads, 0);
	stand_still(a);
	assert_int_not_equal(a->leads, 0);
	a->ops->wake(a->source);
	assert_int_equal(a->leads, 0);
	assert_string_equal(a->order, "l");
	WAIT(w, a->leads != 0 || w->node[1].leads != 0);
	end(w);
}

/* The same while the disk hangs, so that the register cannot be asked. */
static void test_wake_hanging(void **state)
{
	struct world *w = make_two();
	struct node *a = &w->node[0];
	uint64_t term;

	(void)state;
	term = a->leads;
	hang(w);
	assert_int_equal(propose(a), SHARD_OK);
	turn(w);
	turn(w);
	assert_int_equal(a->write, -1);
	stand_still(a);
	a->ops->wake(a->source);
	assert_int_equal(a->leads, 0);
	release(w);
	WAIT(w, a->write != -1);
	assert_int_equal(a->write, MEMBER_UNKNOWN);
	WAIT(w, a->leads > term || w->node[1].leads > term);
	end(w);
}

/* A disk that has no room, as far as a source can tell: no file can be opened for its bytes. A
 * limit of the size of files would do the same to what this test prints into one, and nobody would
 * know why it failed. */
static void room(struct world *w, bool there)
{
	struct rlimit now;

	CHECK(getrlimit(RLIMIT_NOFILE, &now) == 0 && there == (w->files != 0));
	if (there) {
		now.rlim_cur = w->files;
		w->files = 0;
	} else {
		w->files = now.rlim_cur;
		now.rlim_cur = STDERR_FILENO + 1;
	}
	CHECK(setrlimit(RLIMIT_NOFILE, &now) == 0);
}

/* The only voter takes in a second one, stands still while the disk hangs, and says that it lost
 * the lead. Then the disk is full, so it is the only voter again. It must not go on in the old
 * term. */
static void test_lost_alone(void **state)
{
	uint8_t writer[MEMBER_UUID_BYTES] = {9}, other[MEMBER_UUID_BYTES] = {2};
	struct world *w = make();
	struct node *a = &w->node[0];
	uint64_t term;

	(void)state;
	start(w, 0, "quorum", false);
	start(w, 1, "quorum", false);
	link_both(w, true);
	WAIT(w, a->leads != 0 && w->node[1].seq > 0);
	term = a->leads;
	hang(w);
	a->write = -1;
	assert_int_equal(a->ops->join(a->source, term, a->seq, writer, other, on_wrote, a),
			 SHARD_OK);
	turn(w);
	turn(w);
	stand_still(a);
	a->ops->wake(a->source);
	assert_int_equal(a->leads, 0);
	room(w, false);
	release(w);
	WAIT(w, a->write != -1);
	assert_true(a->write == MEMBER_NOSPACE || a->write == MEMBER_UNKNOWN); /* UNKNOWN: late. */
	room(w, true);
	/* If the answer came late, the disk may have had room by then, and both vote. */
	WAIT(w, a->leads > term || w->node[1].leads > term);
	end(w);
}

/* A queue of messages that is full loses messages, and nothing else. */
static void test_full_queue(void **state)
{
	struct world *w = make_two();
	struct node *a = &w->node[0];
	static unsigned char big[60000];
	uint8_t writer[MEMBER_UUID_BYTES] = {9};

	(void)state;
	hang(w);
	a->write = -1;
	assert_int_equal(
		a->ops->propose(a->source, a->leads, a->seq, writer, big, sizeof(big), on_wrote, a),
		SHARD_OK);
	for (int i = 0; i < 40; i++)
		turn(w);
	release(w);
	WAIT(w, a->write != -1);
	WAIT(w, a->leads != 0 || w->node[1].leads != 0);
	WAIT(w, a->seq == w->node[1].seq);
	end(w);
}

/* --- starts --- */

static void test_start_fails(void **state)
{
	struct member_events ev = no_events;
	struct member_source *s = NULL;
	const struct member_source_ops *ops = member_source_find(*state);
	struct member_config c = {.dir = "/nonexistent/folder",
				  .self = {1},
				  .beat_ms = 1,
				  .election_ms = 2,
				  .deadline_ms = 1};
	struct world *w = make();
	struct fault f;
	struct err e;

	c.loop = &w->loop;
	assert_int_equal(ops->start(&s, &c, &ev, &e), SHARD_SYSTEM);
	c.dir = w->dir[0];
	c.deadline_ms = 0;
	assert_int_equal(ops->start(&s, &c, &ev, &e), SHARD_BAD_ARG);
	c.deadline_ms = 1;
	c.self[0] = 0;
	assert_int_equal(ops->start(&s, &c, &ev, &e), SHARD_BAD_ARG);
	c.self[0] = 1;
	for (fault_begin(&f); fault_next(&f);) {
		enum shard_status st = ops->start(&s, &c, &ev, &e);

		if (fault_end(&f)) {
			assert_int_equal(st, SHARD_SYSTEM);
			assert_null(s);
		} else {
			assert_int_equal(st, SHARD_OK);
			ops->stop(&s, NULL, NULL);
			turn(w);
			turn(w);
		}
	}
	end(w);
}

static void test_names(void **state)
{
	(void)state;
	assert_ptr_equal(member_source_find("static"), &source_static);
	assert_ptr_equal(member_source_find("quorum"), &source_quorum);
	assert_null(member_source_find("raft"));
	assert_null(member_source_find(""));
}

int main(void)
{
	static char name_static[] = "static", name_quorum[] = "quorum";
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test_prestate(test_start_fails, name_static),
		cmocka_unit_test_prestate(test_start_fails, name_quorum),
		cmocka_unit_test_prestate(test_hanging_disk, name_static),
		cmocka_unit_test_prestate(test_hanging_disk, name_quorum),
		cmocka_unit_test_prestate(test_waits_idly, name_static),
		cmocka_unit_test_prestate(test_waits_idly, name_quorum),
		cmocka_unit_test_prestate(test_from_inside, name_static),
		cmocka_unit_test_prestate(test_from_inside, name_quorum),
		cmocka_unit_test(test_not_first),
		cmocka_unit_test(test_pause),
		cmocka_unit_test(test_wake),
		cmocka_unit_test(test_wake_hanging),
		cmocka_unit_test(test_lost_alone),
		cmocka_unit_test(test_full_queue),
	};

	int failed;

	CHECK(setenv("UV_THREADPOOL_SIZE", POOL_TEXT, 1) == 0);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	fflush(NULL);
	if (left != NULL)
		_exit(failed); /* exit() would wait for threads that nobody will release. */
	return failed;
}
