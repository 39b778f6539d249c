// SPDX-License-Identifier: Apache-2.0
// check: all
/* A proxy between two daemons, and one between a trainer over TCP and its daemon, damage one frame
 * of each connection. They flip every bit of a header and a thousand bits of bodies, and lose,
 * double, exchange or cut frames, or send one of another version or too large. Each fault must be
 * refused and counted, must end its connection, and must leave the training exact. */
#include "base/clock.h"
#include "base/rng.h"
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/ports.h"
#include "lib/proxy.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { LINKS = 4, LINK_BODY = 40, TRAINERS = 2, TRAINER_BODY = 420, FAULTS_MAX = 700 };

static const enum proxy_kind others[] = {PROXY_VERSION, PROXY_OVERSIZED, PROXY_DROP,
					 PROXY_TWICE,   PROXY_SWAP,      PROXY_CUT};

/* Fills in the faults of place k of n: its share of the header bits, the body bits, and its share
 * of the other faults. */
static uint32_t fill(struct proxy_fault *f, uint32_t k, uint32_t n, uint32_t body, uint32_t frames)
{
	struct rng r = {k * 100 + n};
	uint32_t nr = 0;

	for (uint32_t bit = k; bit < 512; bit += n)
		f[nr++] = (struct proxy_fault){.kind = PROXY_HEAD_BIT, .bit = bit};
	for (uint32_t i = 0; i < body; i++)
		f[nr++] =
			(struct proxy_fault){.kind = PROXY_BODY_BIT, .bit = (uint32_t)rng_next(&r)};
	for (uint32_t i = k; i < 2 * (sizeof(others) / sizeof(others[0])); i += n)
		f[nr++] = (struct proxy_fault){.kind = others[i / 2]};
	for (uint32_t i = 0; i < nr; i++) {
		f[i].back = rng_next(&r) % 2;
		f[i].frame = (uint32_t)(rng_next(&r) % frames);
	}
	return nr;
}

static uint32_t refusals(const struct proxy *p, bool both)
{
	uint32_t nr = 0;

	for (int i = 0; i < PROXY_KINDS; i++)
		nr += i == PROXY_CUT ? 0 : p->done[i] + (both ? p->done_back[i] : 0);
	return nr;
}

struct place {
	struct inproc c;
	struct proxy proxy;
	struct crew crew;
	struct proxy_fault fault[FAULTS_MAX];
	char address[64];
	uint64_t last;
};

/* Trainers stop where all faults were made, because the others need the processor. */
static void finish_all(struct place *q, uint32_t nr)
{
	for (uint32_t left = nr, i = 0; left > 0; i = (i + 1) % nr) {
		if (q[i].last != 0)
			continue;
		usleep(2000);
		if (atomic_load(&q[i].proxy.next) < q[i].proxy.faults_nr && left > 1)
			continue;
		proxy_wait(&q[i].proxy, 60);
		crew_wait_step(&q[i].crew, crew_step(&q[i].crew) + 2); /* It goes on. */
		q[i].last = crew_finish(&q[i].crew);
		left--;
	}
}

static void link_start(struct place *q, uint32_t k)
{
	struct inproc_conf conf = {.nodes = 2, .host_in_nodes = {"127.0.0.2"}};

	conf.port[0] = ports_take();
	proxy_start(&q->proxy, "127.0.0.2", conf.port[0], conf.port[0], q->fault,
		    fill(q->fault, k, LINKS, LINK_BODY, 60));
	inproc_start(&q->c, &conf);
	crew_init(&q->crew, "link");
	/* A trainer whose gradient is damaged twice in one step is expelled, although here the
	 * network is to blame. */
	crew_add(&q->crew, q->c.node[0].unix_address, 0)->reconnects = true;
	crew_add(&q->crew, q->c.node[1].unix_address, 1)->reconnects = true;
	crew_start(&q->crew, UINT64_MAX);
}

static void test_link(void **state)
{
	struct place *q = calloc(LINKS, sizeof(*q));
	uint32_t ops = 0;

	(void)state;
	assert_non_null(q);
	for (uint32_t k = 0; k < LINKS; k++)
		link_start(&q[k], k);
	finish_all(q, LINKS);
	for (uint32_t k = 0; k < LINKS; k++) {
		int64_t refused = 0;

		crew_check(&q[k].crew, q[k].c.node[k % 2].unix_address, q[k].last);
		for (uint32_t n = 0; n < 2; n++)
			refused += inproc_count(&q[k].c.node[n], "refused_frames");
		/* The last frames of a connection that the proxy ends may be lost with it. */
		assert_in_range(refused, refusals(&q[k].proxy, true) - q[k].proxy.spared,
				refusals(&q[k].proxy, true));
		assert_true(q[k].proxy.spared > 0);
		assert_int_equal(inproc_logged(&q[k].c.node[0], "event=lost"), 0);
		ops = proxy_ops(&q[k].proxy) > ops ? proxy_ops(&q[k].proxy) : ops;
		print_message(
			"link %u: %u faults in frames of %u kinds, %lu steps, %u begun again\n", k,
			q[k].proxy.faults_nr, proxy_ops(&q[k].proxy), (unsigned long)q[k].last,
			q[k].crew.member[0].retries);
		inproc_stop(&q[k].c);
		proxy_stop(&q[k].proxy);
	}
	assert_true(ops >= 8);
	free(q);
}

static void trainer_start(struct place *q, uint32_t k)
{
	struct inproc_conf conf = {.nodes = 1};

	inproc_start(&q->c, &conf);
	proxy_start(&q->proxy, "127.0.0.2", q->c.node[0].port, q->c.node[0].port, q->fault,
		    fill(q->fault, k, TRAINERS, TRAINER_BODY, 80));
	snprintf(q->address, sizeof(q->address), "tcp://127.0.0.2:%u", q->c.node[0].port);
	crew_init(&q->crew, "tcp");
	crew_add(&q->crew, q->c.node[0].unix_address, 0);
	crew_add(&q->crew, q->address, 0)->reconnects = true;
	crew_start(&q->crew, UINT64_MAX);
}

static void test_trainer(void **state)
{
	struct place *q = calloc(TRAINERS, sizeof(*q));
	uint32_t ops = 0;

	(void)state;
	assert_non_null(q);
	for (uint32_t k = 0; k < TRAINERS; k++)
		trainer_start(&q[k], k);
	finish_all(q, TRAINERS);
	for (uint32_t k = 0; k < TRAINERS; k++) {
		crew_check(&q[k].crew, q[k].c.node[0].unix_address, q[k].last);
		assert_int_equal(inproc_count(&q[k].c.node[0], "refused_frames"),
				 refusals(&q[k].proxy, false));
		ops = proxy_ops(&q[k].proxy) > ops ? proxy_ops(&q[k].proxy) : ops;
		print_message(
			"trainer %u: %u faults in frames of %u kinds, %lu steps, %u connections\n",
			k, q[k].proxy.faults_nr, proxy_ops(&q[k].proxy), (unsigned long)q[k].last,
			q[k].crew.member[1].reconnected + 1);
		inproc_stop(&q[k].c);
		proxy_stop(&q[k].proxy);
	}
	assert_true(ops >= 8);
	free(q);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {cmocka_unit_test(test_trainer),
						  cmocka_unit_test(test_link)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
