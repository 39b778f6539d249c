/* SPDX-License-Identifier: Apache-2.0 */
/* Gives the register `quorum` disks and messages that no register has written. */
#define QUORUM_PEERS_MAX 8
#define QUORUM_BYTES_MAX 8
#include "core/quorum.c"
#include "core/quorum_elect.c"
#include "core/quorum_lead.c"
#include "core/quorum_parts.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

enum { MS = 1000000 };

_Alignas(16) static unsigned char memory[sizeof(struct quorum)];
static struct quorum_out out;
static uint64_t random_state = 1;

static uint64_t chance(uint64_t below)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state % below;
}

static void uuid_of(int n, uint8_t *uuid)
{
	memset(uuid, 0, QUORUM_UUID_BYTES);
	uuid[0] = (uint8_t)(1 + n);
}

static void test_bad_disks(void **state)
{
	static struct quorum_disk good, bad;
	struct quorum_conf conf = {.beat_ns = 1, .election_ns = 2, .deadline_ns = 1};
	struct {
		uint64_t *at, value;
	} wrong[] = {
		{&bad.promised, 1},                          /* Less than what was accepted. */
		{&bad.promised, UINT64_MAX}, {&bad.term, 0}, /* A value that no term wrote. */
		{&bad.value.seq, 0},         {&bad.value.seq, UINT64_MAX},
	};
	uint8_t writer[QUORUM_UUID_BYTES] = {1};
	struct quorum *q = (struct quorum *)(void *)memory;

	(void)state;
	uuid_of(0, conf.self);
	quorum_first(&good, &conf, writer, "x", 1);
	memset(q, 0, sizeof(*q));
	assert_non_null(quorum_init(q, &conf, &good, 1));
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		bad = good;
		*wrong[i].at = wrong[i].value;
		memset(q, 0, sizeof(*q));
		assert_null(quorum_init(q, &conf, &bad, 1));
	}
	for (uint32_t voters = 0; voters <= 6; voters += 2) { /* None, one twice, too many. */
		bad = good;
		bad.value.voters_nr = voters;
		memcpy(bad.value.voter[1], bad.value.voter[0], QUORUM_UUID_BYTES);
		assert_null(quorum_init(q, &conf, &bad, 1));
	}
	bad = good;
	bad.value.bytes_nr = QUORUM_BYTES_MAX + 1;
	assert_null(quorum_init(q, &conf, &bad, 1));
}

static uint64_t any(uint64_t near)
{
	const uint64_t some[] = {0, 1, near, near + 1, near - 1, QUORUM_TERM_MAX, UINT64_MAX};

	return some[chance(sizeof(some) / sizeof(some[0]))];
}

/* What another node sends may be anything. It may stop this register, but it ends no process. */
static void test_any_message(void **state)
{
	static struct quorum_value v;
	static struct quorum_disk disk;
	struct quorum_conf conf = {.beat_ns = 10 * MS, .election_ns = 100 * MS, .deadline_ns = MS};
	const uint8_t writer[QUORUM_UUID_BYTES] = {1};
	uint64_t now = 1;
	uint32_t stopped = 0, led = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 300; seed++) {
		struct quorum *q;

		uuid_of(0, conf.self);
		quorum_first(&disk, &conf, writer, "x", 1);
		memset(memory, 0, sizeof(memory));
		q = quorum_init(memory, &conf, &disk, now);
		assert_non_null(q);
		for (int k = 1; k < 4; k++) {
			struct quorum_event up = {.type = QUORUM_EV_UP};

			uuid_of(k, up.uuid);
			quorum_handle(q, &up, now, &out);
		}
		for (int k = 0; k < 300; k++) {
			struct quorum_msg m = {.op = (enum quorum_op)chance(12)};
			struct quorum_event tick = {.type = QUORUM_EV_TICK};
			struct quorum_event e = {.type = QUORUM_EV_MSG, .msg = &m};

			disk = *quorum_disk(q);
			uuid_of(1 + (int)chance(4), m.from);
			uuid_of(chance(20) == 0 ? 1 : 0, m.to);
			m.term = any(chance(2) ? q->term : disk.promised);
			m.promised = chance(3) ? m.term : any(disk.promised);
			m.accepted = any(disk.term);
			m.seq = any(disk.value.seq);
			m.chosen_seq = any(disk.value.seq);
			m.round = any(chance(2) ? q->round : q->read_round);
			m.yes = chance(2);
			v = disk.value;
			v.seq = chance(2) ? m.seq : any(disk.value.seq);
			if (chance(3) == 0)
				v.voters_nr = (uint32_t)any(v.voters_nr);
			if (chance(3) == 0 && v.voters_nr < QUORUM_VOTERS_MAX)
				uuid_of((int)chance(4), v.voter[v.voters_nr++]);
			if (chance(9) == 0)
				v.bytes_nr = (uint32_t)any(QUORUM_BYTES_MAX);
			m.value = chance(3) ? &v : NULL;
			if (chance(30) == 0)
				m.op = (enum quorum_op)any(0);
			now += chance(50 * MS);
			quorum_handle(q, chance(4) ? &e : &tick, now, &out);
			led += q->phase == QUORUM_LEADING;
			if (quorum_may_read(q))
				quorum_handle(q, &(struct quorum_event){.type = QUORUM_EV_READ},
					      now, &out);
			assert_true(quorum_disk(q)->promised >= disk.promised);
			assert_false(quorum_above(disk.term, disk.value.seq, quorum_disk(q)->term,
						  quorum_disk(q)->value.seq));
		}
		stopped += q->failed;
	}
	assert_true(led > 1000 && stopped > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_bad_disks),
					   cmocka_unit_test(test_any_message)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
