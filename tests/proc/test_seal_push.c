/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer that does not wait for the image pushes as soon as the model is sealed, while a worker
 * still seals the chunk. The library waits for the image, but a trainer may send what it likes, and
 * no frame of it may end the daemon. */
#include "lib/evil.h"
#include "lib/inproc.h"

#include "shard.h"
#include "wire/ops.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { ELEMS = 8u << 20, ONE = 64u << 10 };

static void test_push_before_the_image(void **state)
{
	struct inproc c;
	struct evil v = {.name = "evil", .elems = ELEMS};
	Shard__Push push = SHARD__PUSH__INIT;
	Shard__Ready ready = SHARD__READY__INIT;
	Shard__Define d;
	Shard__Spec s;
	Shard__Tensor t, *list[1];
	Shard__Defined *got;
	struct wire_head h = {.op = OP_DEFINE, .attempt = 1};
	float *w = calloc(ONE, sizeof(*w));
	uint32_t absent = 0;
	uint64_t shape;

	(void)state;
	assert_non_null(w);
	inproc_start(&c, &(struct inproc_conf){.nodes = 1});
	raw_connect(&v.r, c.node[0].unix_address);
	raw_hello(&v.r, ROLE_TRAINER);
	evil_spec(&d, &s, &t, list, &shape);
	shape = ELEMS;
	s.settings = (char *)(uintptr_t) "optimizer=sgd lr=1 chunk_elems=8388608 min_world=1 "
					 "max_world=1 timeout=5s";
	raw_send(&v.r, &h, &d.base);
	assert_true(raw_expect(&v.r, OP_DEFINE));
	got = shard__defined__unpack(NULL, v.r.head.body_bytes, v.r.body);
	v.model = got->model;
	v.generation = v.r.head.generation;
	shard__defined__free_unpacked(got, NULL);
	for (uint64_t at = 0; at < ELEMS; at += ONE) {
		h = (struct wire_head){.op = OP_WRITE,
				       .attempt = 2,
				       .model = v.model,
				       .generation = v.generation,
				       .chunk = SHARD_MASTER,
				       .step = at};
		raw_head(&v.r, &h, w, ONE * sizeof(*w));
		if (!raw_expect(&v.r, OP_WRITE))
			fail_msg("WRITE at %lu: %s", (unsigned long)at, raw_error(&v.r));
	}
	h = (struct wire_head){.op = OP_JOIN, .attempt = 4, .model = v.model};
	raw_send(&v.r, &h, NULL);
	h = (struct wire_head){.op = OP_SEAL, .attempt = 3, .model = v.model};
	raw_send(&v.r, &h, NULL);
	assert_true(raw_expect(&v.r, OP_ATTEMPT));
	v.now = v.r.head;
	push.n_absent = 1;
	push.absent = &absent;
	h = evil_head(&v, OP_PUSH, 0);
	raw_send(&v.r, &h, &push.base);
	ready.weight = 1;
	h = evil_head(&v, OP_READY, 0);
	raw_send(&v.r, &h, &ready.base);
	if (!raw_expect(&v.r, OP_RESULT))
		fail_msg("the step is not decided: the daemon closed the connection");
	raw_close(&v.r);
	inproc_stop(&c);
	free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_push_before_the_image)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
