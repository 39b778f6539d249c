// SPDX-License-Identifier: Apache-2.0
/* Trainers that do not hold the weights wait until the one that does has defined the model, on
 * either of two real daemons, over unix sockets and TCP. They never define it themselves, and never
 * get the task of writing the weights, also when the one that had it is gone. Their settings are
 * compared as those of everybody. Nobody waits beyond the deadline that he gave. */
#include "base/check.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { WAITERS = 4 };

static struct cluster *cluster;

static struct shard_spec spec_of(int64_t wait_ms)
{
	struct shard_spec s;

	trainer_spec(&s, SHARD_BF16, SHARD_BF16);
	s.wait_ms = wait_ms;
	return s;
}

static const char *address_of(int node, bool tcp)
{
	return tcp ? cluster->node[node].tcp_address : cluster->node[node].unix_address;
}

struct waiter {
	pthread_t thread;
	const char *address;
	enum shard_status st;
	int created;
	char error[512];
	_Atomic bool ended;
	shard_client *_Atomic client;
};

/* Asks without cmocka, because it is a thread of its own. */
static void *waits(void *arg)
{
	struct waiter *w = arg;
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_spec s = spec_of(pace_ms(60000));
	shard_client *c = NULL;
	shard_model *m = NULL;

	o.address = w->address;
	w->created = -1;
	w->st = shard_connect(&c, &o);
	atomic_store(&w->client, c);
	if (w->st == SHARD_OK)
		w->st = shard_define(c, &s, &m, &w->created);
	snprintf(w->error, sizeof(w->error), "%s", shard_error());
	atomic_store(&w->ended, true);
	return NULL;
}

static void start(struct waiter *w, int node, bool tcp)
{
	memset(w, 0, sizeof(*w));
	w->address = address_of(node, tcp);
	assert_int_equal(pthread_create(&w->thread, NULL, waits, w), 0);
}

static void expect(struct waiter *w, enum shard_status st)
{
	shard_client *c;

	assert_int_equal(pthread_join(w->thread, NULL), 0);
	if (w->st != st)
		fail_msg("%s: %s, expected %s", shard_name(w->st), w->error, shard_name(st));
	if (st == SHARD_OK)
		assert_int_equal(w->created, 0);
	c = atomic_load(&w->client);
	shard_disconnect(&c);
}

static void define(struct trainer *t, const char *address, int64_t wait_ms, enum shard_status st)
{
	struct shard_spec s = spec_of(wait_ms);

	trainer_connect(t, address);
	EXPECT(st, shard_define(t->client, &s, &t->model, &t->created));
}

static void until_defined(void **state)
{
	bool tcp = *state != NULL;
	struct waiter w[WAITERS];
	struct trainer t, late;

	cluster = cluster_start(2, NULL, NULL);
	for (int n = 0; n < 2; n++) {
		define(&t, address_of(n, tcp), 300, SHARD_TIMEOUT);
		EXPECT_TEXT("waited ");
		EXPECT_TEXT("s for the caller that holds its weights: nobody has defined it at ");
		trainer_end(&t);
	}
	for (int i = 0; i < WAITERS; i++)
		start(&w[i], i % 2, tcp);
	define(&t, address_of(1, tcp), 0, SHARD_OK);
	assert_int_equal(t.created, 1);
	for (int i = 0; i < WAITERS; i++)
		expect(&w[i], SHARD_OK);
	trainer_end(&t); /* It ends before it has written anything. */
	define(&late, address_of(0, tcp), SHARD_DEFAULT, SHARD_OK);
	assert_int_equal(late.created, 0);
	trainer_define(&t, address_of(0, tcp), SHARD_BF16, SHARD_BF16);
	assert_int_equal(t.created, 1);
	trainer_end(&t);
	EXPECT(SHARD_OK, shard_join(late.model, -1, pace_ms(20000), &late.world));
	trainer_begin(&late);
	trainer_check_image(&late, SHARD_BF16, 0);
	trainer_end(&late);
	cluster_done(&cluster);
}

static void other_settings(void **state)
{
	struct shard_spec s = spec_of(pace_ms(60000));
	struct trainer t, other;

	cluster = cluster_start(2, NULL, NULL);
	define(&t, address_of(0, *state != NULL), 0, SHARD_OK);
	s.settings = "optimizer=sgd lr=0.125";
	for (int n = 0; n < 2; n++) {
		trainer_connect(&other, address_of(n, *state != NULL));
		EXPECT(SHARD_MISMATCH,
		       shard_define(other.client, &s, &other.model, &other.created));
		EXPECT_TEXT("setting ");
		trainer_end(&other);
	}
	s.settings = "optimizer=adamw what=1"; /* It is refused at once, not in the end. */
	s.name = "nobody-defines-it";
	trainer_connect(&other, address_of(1, *state != NULL));
	EXPECT(SHARD_BAD_ARG, shard_define(other.client, &s, &other.model, &other.created));
	trainer_end(&other);
	trainer_end(&t);
	cluster_done(&cluster);
}

static void interrupted(void **state)
{
	struct waiter w;

	cluster = cluster_start(1, NULL, NULL);
	start(&w, 0, *state != NULL);
	while (!atomic_load(&w.ended)) {
		shard_interrupt(atomic_load(
			&w.client)); /* One that came before the call began does nothing. */
		usleep(1000);
	}
	expect(&w, SHARD_INTERRUPTED);
	cluster_done(&cluster);
}

static int put_away(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

#define OVER(fn)                                                                                   \
	{#fn " unix", fn, NULL, put_away, NULL},                                                   \
	{                                                                                          \
#fn " tcp", fn, NULL, put_away, (void *)1                                          \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {OVER(until_defined), OVER(other_settings),
					   OVER(interrupted)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
