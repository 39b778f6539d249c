// SPDX-License-Identifier: Apache-2.0
/* The bytes of the register: every message comes back as it went, every changed bit is found, and
 * every field that no register would write is refused although the sum is right. */
#include "cluster/source_wire.h"

#include "base/check.h"
#include "wire/xxh.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const uint8_t cluster[QUORUM_UUID_BYTES] = {0xc1};
static struct quorum_value value, room;
static unsigned char bytes[SOURCE_MSG_MAX], wrong[SOURCE_MSG_MAX + 1];

static void make_value(uint32_t voters_nr, uint32_t bytes_nr)
{
	memset(&value, 0, sizeof(value));
	value.seq = 7;
	value.writer[3] = 9;
	value.voters_nr = voters_nr;
	value.bytes_nr = bytes_nr;
	for (uint32_t i = 0; i < voters_nr; i++)
		value.voter[i][0] = (uint8_t)(i + 1);
	memset(value.bytes, 0xab, bytes_nr);
}

static struct quorum_msg message(enum quorum_op op)
{
	struct quorum_msg m = {.op = op, .promised = 30, .accepted = 20, .seq = 6};

	m.from[0] = 1;
	m.to[0] = 2;
	if (op != QUORUM_YOU && op != QUORUM_READ)
		m.term = 25;
	m.yes = op == QUORUM_WOULD || op == QUORUM_ANSWER;
	if (op == QUORUM_LEAD)
		m.chosen_seq = 5;
	if (op == QUORUM_LEAD || op == QUORUM_HEARD || op == QUORUM_READ || op == QUORUM_IS)
		m.round = UINT64_MAX;
	if (op == QUORUM_LEAD || op == QUORUM_ANSWER || op == QUORUM_IS)
		m.value = &value;
	return m;
}

static enum shard_status decode(const void *from, size_t nr, struct quorum_msg *m)
{
	/* A copy of the exact size, so that a sanitizer sees a byte too far. */
	void *exact = malloc(nr + 1);
	enum shard_status st;
	struct err e;

	CHECK(exact != NULL);
	memcpy((char *)exact + 1, from, nr);
	st = source_msg_decode((char *)exact + 1, nr, cluster, m, &room, &e);
	assert_true(st == SHARD_OK || (st == SHARD_PROTOCOL && strlen(e.text) > 20));
	free(exact);
	return st;
}

static void test_round_trips(void **state)
{
	(void)state;
	for (int op = QUORUM_POLL; op <= QUORUM_IS; op++) {
		for (uint32_t voters = 1; voters <= QUORUM_VOTERS_MAX; voters++) {
			struct quorum_msg in = message((enum quorum_op)op), out;
			size_t nr;

			make_value(voters, voters == 5 ? QUORUM_BYTES_MAX : voters - 1);
			nr = source_msg_encode(&in, cluster, bytes);
			assert_int_equal(decode(bytes, nr, &out), SHARD_OK);
			assert_memory_equal(in.from, out.from, sizeof(in.from));
			assert_memory_equal(in.to, out.to, sizeof(in.to));
			assert_true(in.op == out.op && in.term == out.term &&
				    in.promised == out.promised && in.accepted == out.accepted &&
				    in.seq == out.seq && in.chosen_seq == out.chosen_seq &&
				    in.round == out.round && in.yes == out.yes);
			assert_int_equal(in.value == NULL, out.value == NULL);
			if (in.value != NULL)
				assert_memory_equal(&value, out.value,
						    offsetof(struct quorum_value, bytes) +
							    value.bytes_nr);
		}
	}
}

static void test_changed_bits(void **state)
{
	struct quorum_msg m = message(QUORUM_LEAD), out;
	size_t nr;

	(void)state;
	make_value(3, 5);
	nr = source_msg_encode(&m, cluster, bytes);
	for (size_t bit = 0; bit < 8 * nr; bit++) {
		memcpy(wrong, bytes, nr);
		wrong[bit / 8] ^= (unsigned char)(1 << bit % 8);
		assert_int_equal(decode(wrong, nr, &out), SHARD_PROTOCOL);
	}
	for (size_t n = 0; n < nr; n++)
		assert_int_equal(decode(bytes, n, &out), SHARD_PROTOCOL);
	memcpy(wrong, bytes, nr);
	wrong[nr] = 0;
	assert_int_equal(decode(wrong, nr + 1, &out), SHARD_PROTOCOL);
}

/* Changes some bytes of a message, makes its sum right again, and decodes it. */
static enum shard_status forge(enum quorum_op op, size_t at, const void *with, size_t with_nr,
			       long longer)
{
	struct quorum_msg m = message(op), out;
	uint64_t sum = 0;
	size_t nr;

	make_value(3, 5);
	memset(wrong, 0, sizeof(wrong));
	nr = (size_t)((long)source_msg_encode(&m, cluster, wrong) + longer);
	memcpy(wrong + at, with, with_nr);
	memcpy(wrong + offsetof(struct source_msg_wire, sum), &sum, sizeof(sum));
	sum = xxh_sum(wrong, nr, 0);
	memcpy(wrong + offsetof(struct source_msg_wire, sum), &sum, sizeof(sum));
	return decode(wrong, nr, &out);
}

#define HEAD(field) offsetof(struct source_msg_wire, field)
#define BODY(field) (sizeof(struct source_msg_wire) + offsetof(struct source_value_wire, field))

static void bad_8(enum quorum_op op, size_t at, uint8_t with)
{
	assert_int_equal(forge(op, at, &with, sizeof(with), 0), SHARD_PROTOCOL);
}

static void bad_64(enum quorum_op op, size_t at, uint64_t with)
{
	assert_int_equal(forge(op, at, &with, sizeof(with), 0), SHARD_PROTOCOL);
}

static void bad_32(enum quorum_op op, size_t at, uint32_t with)
{
	assert_int_equal(forge(op, at, &with, sizeof(with), 0), SHARD_PROTOCOL);
}

static void test_forged(void **state)
{
	uint64_t good = 26;

	(void)state;
	assert_int_equal(forge(QUORUM_LEAD, HEAD(term), &good, sizeof(good), 0), SHARD_OK);
	bad_8(QUORUM_LEAD, HEAD(op), 0);
	bad_8(QUORUM_LEAD, HEAD(op), QUORUM_IS + 1);
	bad_8(QUORUM_LEAD, HEAD(op), 255);
	bad_8(QUORUM_LEAD, HEAD(yes), 1);
	bad_8(QUORUM_ANSWER, HEAD(yes), 2);
	bad_8(QUORUM_ANSWER, HEAD(yes), 0); /* A value without a promise. */
	bad_8(QUORUM_IS, HEAD(has_value), 0);
	bad_8(QUORUM_LEAD, HEAD(has_value), 0); /* The value is still there. */
	bad_8(QUORUM_LEAD, HEAD(has_value), 2);
	bad_8(QUORUM_HEARD, HEAD(has_value), 1);
	bad_8(QUORUM_LEAD, HEAD(zero), 1);
	bad_8(QUORUM_LEAD, HEAD(cluster), 0xc2);
	bad_32(QUORUM_LEAD, HEAD(magic), SOURCE_MSG_MAGIC + 1);
	bad_64(QUORUM_LEAD, HEAD(term), 0);
	bad_64(QUORUM_LEAD, HEAD(term), QUORUM_TERM_MAX + 1);
	bad_64(QUORUM_READ, HEAD(term), 1);
	bad_64(QUORUM_LEAD, HEAD(promised), QUORUM_TERM_MAX + 1);
	bad_64(QUORUM_LEAD, HEAD(promised), 19); /* Less than what was accepted. */
	bad_64(QUORUM_LEAD, HEAD(accepted), 0);
	bad_64(QUORUM_LEAD, HEAD(seq), 0);
	bad_64(QUORUM_LEAD, HEAD(seq), QUORUM_SEQ_MAX + 1);
	bad_64(QUORUM_LEAD, HEAD(chosen_seq), QUORUM_SEQ_MAX + 1);
	bad_64(QUORUM_ASK, HEAD(chosen_seq), 1);
	bad_64(QUORUM_ASK, HEAD(round), 1);
	bad_64(QUORUM_LEAD, BODY(seq), 0);
	bad_64(QUORUM_LEAD, BODY(seq), QUORUM_SEQ_MAX + 1);
	bad_32(QUORUM_LEAD, BODY(voters_nr), 0);
	bad_32(QUORUM_LEAD, BODY(voters_nr), 2); /* Bytes after the last one. */
	bad_32(QUORUM_LEAD, BODY(voters_nr), 4); /* The fourth one is zeros. */
	bad_32(QUORUM_LEAD, BODY(voters_nr), 6);
	bad_32(QUORUM_LEAD, BODY(voters_nr), UINT32_MAX);
	bad_32(QUORUM_LEAD, BODY(bytes_nr), 4);
	bad_32(QUORUM_LEAD, BODY(bytes_nr), 6);
	bad_32(QUORUM_LEAD, BODY(bytes_nr), UINT32_MAX);
	bad_8(QUORUM_LEAD, BODY(voter), 2); /* One is there twice. */
	assert_int_equal(forge(QUORUM_ASK, 0, "", 0, 1), SHARD_PROTOCOL);
	assert_int_equal(forge(QUORUM_LEAD, 0, "", 0, 1), SHARD_PROTOCOL);
	assert_int_equal(forge(QUORUM_LEAD, 0, "", 0, -1), SHARD_PROTOCOL);
	assert_int_equal(forge(QUORUM_LEAD, 0, "", 0, -100), SHARD_PROTOCOL);
}

static void test_disk(void **state)
{
	static struct quorum_disk disk, back;
	static unsigned char file[SOURCE_DISK_MAX], bad[SOURCE_DISK_MAX];
	struct source_disk_wire w;
	struct err e;
	size_t nr;

	(void)state;
	make_value(2, 3);
	disk.promised = 12;
	assert_int_equal(source_disk_encode(&disk, file), sizeof(w));
	assert_int_equal(source_disk_decode(file, sizeof(w), &back, &e), SHARD_OK);
	assert_true(back.promised == 12 && back.term == 0 && back.value.seq == 0);
	disk.term = 11;
	disk.value = value;
	nr = source_disk_encode(&disk, file);
	assert_int_equal(source_disk_decode(file, nr, &back, &e), SHARD_OK);
	assert_memory_equal(&disk, &back, sizeof(disk));
	for (size_t n = 0; n < nr; n++)
		assert_int_equal(source_disk_decode(file, n, &back, &e), SHARD_PROTOCOL);
	for (int i = 0; i < 4; i++) {
		static const struct source_disk_wire rows[] = {
			{0, 0}, {QUORUM_TERM_MAX + 1, 1}, {10, 11}, {12, 0}};

		memcpy(bad, file, nr);
		memcpy(bad, &rows[i], sizeof(rows[i]));
		assert_int_equal(source_disk_decode(bad, nr, &back, &e), SHARD_PROTOCOL);
	}
	make_value(5, QUORUM_BYTES_MAX);
	disk.value = value;
	assert_int_equal(source_disk_encode(&disk, file), SOURCE_DISK_MAX);
	assert_int_equal(source_disk_decode(file, SOURCE_DISK_MAX, &back, &e), SHARD_OK);
	assert_memory_equal(&disk, &back, sizeof(disk));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trips),
		cmocka_unit_test(test_changed_bits),
		cmocka_unit_test(test_forged),
		cmocka_unit_test(test_disk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
