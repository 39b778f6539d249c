// SPDX-License-Identifier: Apache-2.0
/* Tests `stragglers = drop` with real trainers that are stopped (SIGSTOP) in every part of a step.
 * The others are told SHARD_WORLD_CHANGED with its name, make the step without it, and go on. When
 * it runs again it hears why its connection is over, and may join again. With `wait`, and where
 * fewer than min_world would be left, nobody is dropped. One trainer is dropped in the middle of a
 * frame, and one while a second model trains, which loses nothing. The weights are those of the
 * committed history. */
#include "base/check.h"
#include "lib/crew.h"
#include "lib/drill.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SGD   "optimizer=sgd lr=1 chunk_elems=1024 timeout=60s "
#define DROP  SGD "stragglers=drop straggler_timeout=300ms "
#define THREE "min_world=2 max_world=3 join_timeout=1000s"

struct crowd {
	struct drill_yard *y;
	struct drill *t[3]; /* 0 and 1 are on node a, and 2 on node b. */
};

/* All three are in the first world. over_tcp: trainer 1 is connected by TCP. */
static void start(struct crowd *c, void **state, const char *settings, bool over_tcp)
{
	*c = (struct crowd){.y = *state};
	c->y->cluster = cluster_start(2, NULL, NULL);
	for (int i = 0; i < 3; i++) {
		const struct cluster_node *n = &c->y->cluster->node[i / 2];

		c->t[i] = drill_joining(c->y, i == 1 && over_tcp ? n->tcp_address : n->unix_address,
					i, settings);
	}
	for (int i = 0; i < 3; i++) {
		drill_get(c->t[i], SHARD_OK);
		assert_int_equal(c->t[i]->last.world.world_size, 3);
	}
}

static void finish(struct crowd *c)
{
	cluster_stop(c->y->cluster);
	c->y->cluster = NULL;
}

static void train(struct crowd *c, unsigned who, uint64_t step)
{
	for (unsigned i = 0; i < 3; i++)
		if (who >> i & 1)
			DRILL_SEND(c->t[i], .op = DRILL_TRAIN, .step = step);
	for (unsigned i = 0; i < 3; i++)
		if (who >> i & 1)
			drill_get(c->t[i], SHARD_OK);
}

static void whole_step(struct drill *t)
{
	DRILL(t, SHARD_OK, .op = DRILL_PUSH);
	DRILL(t, SHARD_OK, .op = DRILL_COMMIT);
	DRILL_SEND(t, .op = DRILL_RESULT);
}

/* The others hear of it, and so does the coordinator's log, its status and its metrics. */
static void told(struct crowd *c, int slow)
{
	char name[80];

	snprintf(name, sizeof(name), "but not rank %d (pid %d, node %s)", slow, c->t[slow]->pid,
		 c->y->cluster->node[slow / 2].name);
	for (int i = 0; i < 3; i++) {
		if (i == slow)
			continue;
		drill_get(c->t[i], SHARD_WORLD_CHANGED);
		drill_text(c->t[i]->last.error, "dropped as a straggler: 2 of 3 ranks of step ");
		drill_text(c->t[i]->last.error, name);
		DRILL(c->t[i], SHARD_OK, .op = DRILL_WORLD);
	}
	cluster_wait_log(c->y->cluster, 0, name, 1);
	cluster_says(c->y->cluster, 0, "\"stragglers_dropped\":1");
}

/* It runs again, and joins again as a new trainer of the same world. */
static void comes_back(struct crowd *c, int slow, const char *settings)
{
	const struct cluster_node *n = &c->y->cluster->node[slow / 2];
	uint64_t step = c->t[(slow + 1) % 3]->last.world.step;

	kill(c->t[slow]->pid, SIGCONT);
	/* What it does before it has heard of its end is refused or comes too late. */
	drill_do(c->t[slow], (struct drill_cmd){.op = DRILL_PUSH});
	/* The first push ends at the tensors that were pushed before it was stopped. A step that it
	 * could not commit would be its own mistake, of which it is told without a look at what the
	 * daemon says. */
	drill_do(c->t[slow], (struct drill_cmd){.op = DRILL_PUSH, .first = 3, .count = 1});
	drill_do(c->t[slow], (struct drill_cmd){.op = DRILL_COMMIT});
	DRILL(c->t[slow], SHARD_CLOSED, .op = DRILL_TRAIN, .step = step + 1);
	drill_text(c->t[slow]->last.error, "dropped as a straggler");
	drill_text(c->t[slow]->last.error, "which may join again");
	drill_end(c->t[slow]);
	c->t[slow] = drill_joining(c->y, n->unix_address, -1, settings);
	drill_asked(c->y, c->t[slow]);
	for (int i = 0; i < 3; i++)
		if (i != slow)
			DRILL_SEND(c->t[i], .op = DRILL_TRAIN, .step = DRILL_STEPS - 1, .count = 3);
	drill_get(c->t[slow], SHARD_OK);
	assert_int_equal(c->t[slow]->last.world.world_size, 3);
	DRILL_SEND(c->t[slow], .op = DRILL_TRAIN, .step = DRILL_STEPS - 1, .count = 3);
	for (int i = 0; i < 3; i++)
		drill_get(c->t[i], SHARD_OK);
}

enum stopped_at { BEFORE_BEGIN, BEGUN, PUSHED_SOME, PUSHED_ALL };

static void straggles(void **state, int slow, enum stopped_at at, bool over_tcp)
{
	struct crowd c;

	start(&c, state, DROP THREE, over_tcp);
	train(&c, 7, 3);
	for (int i = 0; i < 3; i++)
		if (i != slow || at != BEFORE_BEGIN)
			DRILL(c.t[i], SHARD_OK, .op = DRILL_BEGIN);
	if (at == PUSHED_SOME)
		DRILL(c.t[slow], SHARD_OK, .op = DRILL_PUSH, .first = 1, .count = 2);
	if (at == PUSHED_ALL)
		DRILL(c.t[slow], SHARD_OK, .op = DRILL_PUSH);
	proc_signal(c.t[slow]->pid, SIGSTOP);
	for (int i = 0; i < 3; i++)
		if (i != slow)
			whole_step(c.t[i]);
	told(&c, slow);
	train(&c, 7u & ~(1u << slow), 6); /* Without it. */
	assert_int_equal(c.t[(slow + 1) % 3]->shared->world_of[4], 2);
	comes_back(&c, slow, DROP THREE);
	train(&c, 7, c.t[0]->last.world.step + 1);
	drill_replay(c.t[0], c.t[0]->last.world.step - 1, 3);
	finish(&c);
}

static void test_before_begin(void **state)
{
	straggles(state, 1, BEFORE_BEGIN, false);
}

static void test_begun(void **state)
{
	straggles(state, 2, BEGUN, false);
}

static void test_pushed_some(void **state)
{
	straggles(state, 1, PUSHED_SOME, false);
}

static void test_pushed_all(void **state)
{
	straggles(state, 2, PUSHED_ALL, false);
}

static void test_pushed_some_over_tcp(void **state)
{
	straggles(state, 1, PUSHED_SOME, true);
}

/* With `wait`, and with two of whom both are needed, the step waits until the trainer goes on. The
 * deadlines here are far away, so that a step that comes to its end shows that nobody was put out:
 * the trainers that waited have been ready for ten times the straggler_timeout. */
static void waits_for_it(void **state, const char *settings)
{
	struct crowd c;

	start(&c, state, settings, false);
	train(&c, 7, 2);
	for (int i = 0; i < 3; i++)
		DRILL(c.t[i], SHARD_OK, .op = DRILL_BEGIN);
	proc_signal(c.t[2]->pid, SIGSTOP);
	for (int i = 0; i < 2; i++) {
		DRILL(c.t[i], SHARD_OK, .op = DRILL_PUSH);
		DRILL(c.t[i], SHARD_OK, .op = DRILL_COMMIT);
		DRILL(c.t[i], SHARD_TIMEOUT, .op = DRILL_RESULT, .timeout_ms = 1500);
		drill_text(c.t[i]->last.error, "rank 2 (pid ");
	}
	kill(c.t[2]->pid, SIGCONT);
	whole_step(c.t[2]);
	drill_get(c.t[2], SHARD_OK);
	for (int i = 0; i < 2; i++)
		DRILL(c.t[i], SHARD_OK, .op = DRILL_RESULT);
	for (int i = 0; i < 3; i++)
		DRILL(c.t[i], SHARD_OK, .op = DRILL_WORLD);
	train(&c, 7, 5);
	assert_int_equal(c.t[0]->shared->world_of[3], 3);
	cluster_says(c.y->cluster, 0, "\"stragglers_dropped\":0");
	drill_replay(c.t[0], 5, 3);
	finish(&c);
}

static void test_wait(void **state)
{
	waits_for_it(state, SGD "straggler_timeout=100ms min_world=2 max_world=3 "
				"join_timeout=1000s");
}

static void test_never_below_min_world(void **state)
{
	waits_for_it(state, SGD "stragglers=drop straggler_timeout=100ms min_world=3 max_world=3");
}

/* --- in the middle of a frame --- */

/* Stands between a trainer and its daemon. Once it is armed it passes so many bytes of the trainer
 * and then nothing more, and always what the daemon says. */
struct neck {
	int listens, ends[2];
	uint16_t port, target;
	_Atomic int64_t left;   /* -1: it is not armed. */
	_Atomic bool dry, held; /* held: what the daemon sends is not looked at. */
	pthread_t thread;
};

static int neck_socket(uint16_t port, bool dials)
{
	struct sockaddr_in at = {.sin_family = AF_INET,
				 .sin_port = htons(port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	if (dials)
		CHECK(connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
	else
		CHECK(bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(fd, 1) == 0);
	return fd;
}

static bool neck_pass(struct neck *n, int from)
{
	char bytes[4096];
	size_t most = sizeof(bytes);
	int64_t left = from == 0 ? atomic_load(&n->left) : -1;
	ssize_t nr;

	if (left >= 0 && (size_t)left < most)
		most = (size_t)left;
	if ((nr = read(n->ends[from], bytes, most)) <= 0)
		return false;
	if (left >= 0) {
		atomic_store(&n->left, left - nr);
		atomic_store(&n->dry, left == nr);
	}
	for (ssize_t at = 0, sent; at < nr; at += sent)
		if ((sent = send(n->ends[!from], bytes + at, (size_t)(nr - at), MSG_NOSIGNAL)) < 0)
			return false;
	return true;
}

static void *neck_run(void *arg)
{
	struct neck *n = arg;
	struct pollfd p[2];

	n->ends[0] = accept(n->listens, NULL, NULL);
	CHECK(n->ends[0] >= 0);
	n->ends[1] = neck_socket(n->target, true);
	do {
		for (int i = 0; i < 2; i++)
			p[i] = (struct pollfd){.fd = n->ends[i], .events = POLLIN};
		if (atomic_load(&n->dry))
			p[0].fd = -1;
		if (atomic_load(&n->held))
			p[1].fd = -1;
		/* It looks now and then whether it was armed. */
		CHECK(poll(p, 2, 20) >= 0);
	} while ((!p[0].revents || neck_pass(n, 0)) && (!p[1].revents || neck_pass(n, 1)));
	for (int i = 0; i < 2; i++) { /* Trainers that were forked since have them, too. */
		(void)shutdown(n->ends[i], SHUT_RDWR);
		close(n->ends[i]);
	}
	return NULL;
}

static void neck_start(struct neck *n, uint16_t target)
{
	struct sockaddr_in at;
	socklen_t bytes = sizeof(at);

	*n = (struct neck){.target = target, .left = -1};
	n->listens = neck_socket(0, false);
	CHECK(getsockname(n->listens, (struct sockaddr *)&at, &bytes) == 0);
	n->port = ntohs(at.sin_port);
	CHECK(pthread_create(&n->thread, NULL, neck_run, n) == 0);
}

static void neck_stop(struct neck *n)
{
	CHECK(pthread_join(n->thread, NULL) == 0);
	close(n->listens);
}

/* A trainer over TCP is put out when its daemon has a part of its gradient, and of a frame. What
 * came never counts, its arena is free again for the one that comes back, and the weights show
 * it. */
static void test_half_a_frame(void **state)
{
	struct crowd c = {.y = *state};
	struct neck n;
	char address[64];

	c.y->cluster = cluster_start(2, NULL, NULL);
	neck_start(&n, c.y->cluster->node[0].port);
	snprintf(address, sizeof(address), "127.0.0.1:%u", n.port);
	for (int i = 0; i < 3; i++)
		c.t[i] = drill_joining(c.y,
				       i == 1 ? address : c.y->cluster->node[i / 2].unix_address, i,
				       DROP THREE " local_world=2");
	for (int i = 0; i < 3; i++)
		drill_get(c.t[i], SHARD_OK);
	train(&c, 7, 3);
	for (int i = 0; i < 3; i++)
		DRILL(c.t[i], SHARD_OK, .op = DRILL_BEGIN);
	atomic_store(&n.left, 3000);
	atomic_store(&n.held, true);
	DRILL(c.t[1], SHARD_OK, .op = DRILL_PUSH);
	whole_step(c.t[0]);
	whole_step(c.t[2]);
	told(&c, 1);
	assert_true(atomic_load(&n.dry));
	train(&c, 5, 6);
	/* Only now does its connection end, in a step that is not its own. That step has to end
	 * before it can join again. */
	cluster_wait_log(c.y->cluster, 0, "event=begin model=m step=7 ", 1);
	atomic_store(&n.held, false);
	comes_back(&c, 1, DROP THREE " local_world=2");
	neck_stop(&n);
	train(&c, 7, c.t[0]->last.world.step + 1);
	drill_replay(c.t[0], c.t[0]->last.world.step - 1, 3);
	finish(&c);
}

/* --- two models --- */

/* While a trainer of one model is stopped and put out, those of another model make their steps, and
 * none of them loses an attempt. That model waits for its own. */
static void test_two_models(void **state)
{
	struct crew *other = test_calloc(1, sizeof(*other));
	struct crowd c;
	uint64_t last;

	start(&c, state, DROP THREE, false);
	crew_init(other, "other");
	for (uint32_t i = 0; i < 2; i++)
		crew_add(other, c.y->cluster->node[i].unix_address, i);
	crew_start(other, UINT64_MAX);
	train(&c, 7, 3);
	for (int i = 0; i < 2; i++)
		DRILL(c.t[i], SHARD_OK, .op = DRILL_BEGIN);
	proc_signal(c.t[2]->pid, SIGSTOP);
	for (int i = 0; i < 2; i++)
		whole_step(c.t[i]);
	crew_wait_step(other, crew_step(other) + 3);
	told(&c, 2);
	crew_wait_step(other, crew_step(other) + 3);
	train(&c, 3, 6);
	comes_back(&c, 2, DROP THREE);
	last = crew_finish(other);
	crew_check(other, c.y->cluster->node[1].unix_address, last);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(atomic_load(&other->member[i].retries), 0);
	train(&c, 7, c.t[0]->last.world.step + 1);
	drill_replay(c.t[0], c.t[0]->last.world.step - 1, 3);
	test_free(other);
	finish(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, drill_setup, drill_teardown)
		TEST(test_before_begin),
		TEST(test_begun),
		TEST(test_pushed_some),
		TEST(test_pushed_all),
		TEST(test_pushed_some_over_tcp),
		TEST(test_wait),
		TEST(test_never_below_min_world),
		TEST(test_half_a_frame),
		TEST(test_two_models),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
