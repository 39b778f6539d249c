/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the header of a frame. Sealing and judging agree, every bit counts, all variants of the
 * hash give the same number, and the example in the specification is correct. */
#include "base/check.h"
#include "base/isa.h"
#include "lib/frames.h"
#include "wire/frame.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct wire_head sealed(uint64_t ordinal)
{
	struct wire_head h = {.op = OP_PUSH_DATA,
			      .flags = WIRE_PART_FLAG(2),
			      .model = 3,
			      .generation = 4,
			      .seq = 5,
			      .term = 6,
			      .step = 7,
			      .attempt = 8,
			      .chunk = 9,
			      .body_bytes = 8};

	wire_seal(&h, "bodybody", ordinal, true);
	return h;
}

/* A sealed header is valid only with its own ordinal, and a body checksum only where one is
 * expected. */
static void test_seal(void **state)
{
	struct wire_head h = sealed(17);

	(void)state;
	assert_null(wire_invalid(&h, 17, true));
	assert_string_equal(wire_invalid(&h, 18, true), "header checksum");
	assert_string_equal(wire_invalid(&h, 16, true), "header checksum");
	assert_string_equal(wire_invalid(&h, 17, false), "body checksum where there is none");
	assert_true(h.body_sum == xxh_sum("bodybody", 8, 0));
	wire_seal(&h, "bodybody", 17, false);
	assert_true(h.body_sum == 0);
	assert_null(wire_invalid(&h, 17, false));
	assert_null(wire_invalid(&h, 17, true));
}

/* Any changed bit of a header is found. */
static void test_each_bit(void **state)
{
	(void)state;
	for (unsigned bit = 0; bit < 512; bit++) {
		struct wire_head h = sealed(0);

		((unsigned char *)&h)[bit / 8] ^= (unsigned char)(1 << bit % 8);
		assert_non_null(wire_invalid(&h, 0, true));
	}
}

/* A frame that was moved to any other place among its neighbours is refused. */
static void test_ordinals(void **state)
{
	(void)state;
	for (uint64_t at = 0; at < 300; at++) {
		struct wire_head h = sealed(at);

		for (uint64_t other = 0; other < 300; other++)
			assert_true((wire_invalid(&h, other, true) == NULL) == (at == other));
	}
}

/* Only the ops and replies that carry tensors have bulk bodies. */
static void test_bulk(void **state)
{
	struct wire_head h = {.op = OP_READ};

	(void)state;
	assert_false(wire_bulk(&h));
	h.flags = WIRE_REPLY;
	assert_true(wire_bulk(&h));
	h.op = OP_CONTRIB_DATA;
	assert_true(wire_bulk(&h));
	h.op = OP_CONTRIB;
	assert_false(wire_bulk(&h));
	h.op = 9;
	assert_false(wire_bulk(&h));
}

/* Every instruction set gives the same hash, for a body in one piece and in several pieces. */
static void test_hash_variants(void **state)
{
	unsigned char *p = malloc(WIRE_PART_BYTES + 64);

	(void)state;
	frames_fill(p, WIRE_PART_BYTES + 64, 1);
	/* The value in the specification of XXH3. */
	assert_true(xxh_base.sum("", 0, 0) == 0x2d06800538d394c2ull);
	for (enum isa isa = ISA_SCALAR; isa < ISA_NR; isa++) {
		const struct xxh_row *x;

		if (!isa_has(isa)) {
			printf("skipped: no %s here\n", isa_name(isa));
			continue;
		}
		x = xxh_row(isa);
		for (size_t n = 0; n < 5000; n = n < 600 ? n + 1 : n + 97) {
			uint64_t want = xxh_base.sum(p + n % 61, n, n % 3);
			struct xxh_state st;

			assert_true(x->sum(p + n % 61, n, n % 3) == want);
			x->begin(&st);
			for (size_t at = 0; at < n; at += 1 + n / 3)
				x->add(&st, p + at, n - at < 1 + n / 3 ? n - at : 1 + n / 3);
			assert_true(x->end(&st) == xxh_base.sum(p, n, 0));
		}
		assert_true(x->sum(p + 3, WIRE_PART_BYTES, 0) ==
			    xxh_base.sum(p + 3, WIRE_PART_BYTES, 0));
	}
	assert_true(xxh_best() == xxh_row(isa_best()));
	free(p);
}

/* Reads the example of the README: the hexadecimal bytes of the indented lines after the mark
 * "example frame", until the line with "(end)". Returns how many bytes there are. */
static size_t example(unsigned char *out, size_t max)
{
	FILE *f = fopen("proto/wire/README.md", "re");
	char line[512];
	size_t nr = 0;
	bool in = false;

	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		unsigned byte;
		int skip;

		if (strstr(line, "<!-- example frame -->"))
			in = true;
		if (!in || strncmp(line, "    ", 4) != 0)
			continue;
		for (const char *at = line; nr < max && sscanf(at, " %2x%n", &byte, &skip) == 1;
		     at += skip)
			out[nr++] = (unsigned char)byte;
		if (strstr(line, "(end)"))
			break;
	}
	fclose(f);
	return nr;
}

/* The header in the example of the README is valid, and has the fields that the text says. */
static void test_readme(void **state)
{
	unsigned char bytes[256];
	size_t n = example(bytes, sizeof(bytes));
	struct wire_head h;

	(void)state;
	assert_in_range(n, 65, 128);
	memcpy(&h, bytes, 64);
	assert_null(wire_invalid(&h, 2, true));
	assert_int_equal(h.body_bytes, n - 64);
	assert_true(h.body_sum == xxh_sum(bytes + 64, n - 64, 0));
	assert_int_equal(h.op, OP_PUSH);
	assert_int_equal(h.model, 1);
	assert_int_equal(h.generation, 1);
	assert_int_equal(h.step, 812);
	assert_int_equal(h.attempt, 1);
	assert_int_equal(h.chunk, 14);
	/* A Push message that says that tensors 5 and 7 are absent. */
	assert_memory_equal(bytes + 64, "\x0a\x02\x05\x07", 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_seal),          cmocka_unit_test(test_each_bit),
		cmocka_unit_test(test_ordinals),      cmocka_unit_test(test_bulk),
		cmocka_unit_test(test_hash_variants), cmocka_unit_test(test_readme),
	};

	return cmocka_run_group_tests_name("frame", tests, NULL, NULL);
}
