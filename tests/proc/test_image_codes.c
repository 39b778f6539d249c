// SPDX-License-Identifier: Apache-2.0
/* Codes of an image as no correct primary sends them. The test is the coordinator, node a, which
 * holds the first half of the chunks, and the daemon is node b. Codes that cannot be end the link
 * with a sentence. Codes that go with no image that b has are dropped, and b asks for that chunk at
 * once. */
#include "base/check.h"
#include "lib/rawnode.h"
#include "wire/frame.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { CHUNKS = 4, ELEMS = 1024, CODES = ELEMS + ELEMS / 64 * 4 };
#define SETTINGS "optimizer=sgd lr=1 chunk_elems=1024 min_world=1 max_world=2 replicas=1"
#define CODED    SETTINGS " image_codec=int8 codec_block=64"

static const struct inproc_conf quiet = {.cluster = "heartbeat_timeout = 20s\nstep_timeout = 60s"};
static struct rawnode x;

static void start(const char *settings)
{
	rawnode_start(&x, true, &quiet, 1);
	rawnode_define(&x, CHUNKS, settings);
	rawnode_seal(&x, 0);
}

static void codes(uint32_t chunk, uint32_t part, uint32_t bytes, uint32_t generation)
{
	static const char any[2 * CODES];
	struct wire_head h = {.op = OP_IMAGE_CODES,
			      .model = x.model,
			      .generation = generation,
			      .chunk = chunk,
			      .flags = WIRE_PART_FLAG(part)};

	CHECK(bytes <= sizeof(any));
	raw_head(&x.r[0], &h, any, bytes);
}

static void ends_the_link(void **state)
{
	static const struct {
		const char *settings;
		uint32_t chunk, part, bytes;
		const char *text;
	} rows[] = {
		{CODED, 0, 0, CODES - 4, "codes of part 0 (1084 bytes) of the image of chunk 0"},
		{CODED, 0, 0, CODES + 4, "codes of part 0 (1092 bytes) of the image of chunk 0"},
		{CODED, 0, 1, CODES, "codes of part 1 (1088 bytes) of the image of chunk 0"},
		{CODED, CHUNKS, 0, CODES, "codes of part 0 (1088 bytes) of the image of chunk 4"},
		{SETTINGS, 0, 0, CODES, "codes of part 0 (1088 bytes) of the image of chunk 0"}};

	(void)state;
	for (size_t i = 0; i < NR(rows); i++) {
		start(rows[i].settings);
		codes(rows[i].chunk, rows[i].part, rows[i].bytes, 1);
		rawnode_refused(&x, 0, rows[i].text);
		rawnode_stop(&x);
	}
}

static bool asks_for(uint32_t first, uint32_t nr)
{
	const struct raw *r = &x.r[0];
	Shard__Chunks *c = shard__chunks__unpack(NULL, r->head.body_bytes, r->body);
	bool same;

	assert_non_null(c);
	same = c->n_runs == 2 && c->runs[0] == first && c->runs[1] == nr;
	shard__chunks__free_unpacked(c, NULL);
	return same;
}

/* After the seal b lacks both chunks of a, and asks for them again each second. */
static void without_an_image_before(void **state)
{
	(void)state;
	start(CODED);
	codes(3, 0, CODES, 1); /* The chunk is b's own. */
	codes(1, 0, CODES, 2); /* Of a generation that there is not. */
	codes(1, 0, CODES, 1);
	do {
		rawnode_expect(&x, OP_IMAGE_ASK);
	} while (!asks_for(1, 1));
	rawnode_stop(&x);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {cmocka_unit_test(ends_the_link),
						  cmocka_unit_test(without_an_image_before)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
