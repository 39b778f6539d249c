// SPDX-License-Identifier: Apache-2.0
/* Tests that a request of another node is over when the link by which it came falls. That node may
 * be back as another process, which counts its requests from the beginning. An answer to the old
 * request would then be taken for one to a new request with the same tag. */
#include "lib/evil.h"
#include "lib/inproc.h"
#include "lib/rawnode.h"
#include "shard.h"
#include "wire/ops.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { OLD = 70, NEW = 71 };

static void refused(struct rawnode *x, const char *part)
{
	char *text = raw_error(&x->r[0]);

	if (text == NULL || strstr(text, part) == NULL)
		fail_msg("answered with \"%s\", not with \"%s\"", text != NULL ? text : "nothing",
			 part);
}

/* Drops the model by force, over the daemon's own socket. */
static void drop(struct rawnode *x, struct raw *r)
{
	struct wire_head h = {.op = OP_MANAGE, .attempt = 50};
	Shard__Manage body = SHARD__MANAGE__INIT;

	raw_connect(r, x->daemon->unix_address);
	raw_hello(r, ROLE_TRAINER);
	body.name = (char *)(uintptr_t) "evil";
	body.action = 1;
	body.force = true;
	raw_send(r, &h, &body.base);
}

/* Node b asks for a blob of a step that is not decided yet. Then its link ends, and it comes back
 * with a new request. */
static void test_asked_over_another_link(void **state)
{
	struct wire_head define = {.op = OP_DEFINE, .attempt = 40}, ask = {.op = OP_BLOB},
			 dropped = {.op = OP_MODEL_DROP, .flags = WIRE_REPLY};
	Shard__Blob blob = SHARD__BLOB__INIT;
	Shard__Tensor t, *list[1];
	Shard__Define d;
	Shard__Spec s;
	uint64_t shape;
	struct rawnode x;
	struct raw r;
	uint32_t refusals = 0;

	(void)state;
	rawnode_start(&x, false, &(struct inproc_conf){.cluster = "heartbeat_timeout = 20s"}, 1);
	evil_spec(&d, &s, &t, list, &shape);
	d.session = 7;
	raw_send(&x.r[0], &define, &d.base);
	rawnode_hold(&x);
	rawnode_expect(&x, OP_DEFINE);
	ask.model = x.model;
	ask.generation = x.r[0].head.generation;
	ask.step = 5;
	ask.attempt = OLD;
	raw_send(&x.r[0], &ask, &blob.base);
	ask.attempt = NEW;
	blob.rank = 99999; /* This one is refused at once. By then the request before it is kept. */
	raw_send(&x.r[0], &ask, &blob.base);
	refused(&x, "has no generation");
	rawnode_link(&x);
	rawnode_hold(&x);
	blob.rank = 0;
	raw_send(&x.r[0], &ask, &blob.base);
	blob.rank = 99999;
	ask.attempt = NEW + 1;
	raw_send(&x.r[0], &ask, &blob.base);
	refused(&x, "has no generation");
	drop(&x, &r);
	rawnode_expect(&x, OP_MODEL_DROP);
	dropped.model = x.model;
	dropped.attempt = x.r[0].head.attempt;
	raw_send(&x.r[0], &dropped, NULL);
	assert_true(raw_expect(&r, OP_MANAGE));
	ask.attempt = NEW + 2; /* Its refusal comes after all earlier ones. */
	raw_send(&x.r[0], &ask, &blob.base);
	for (;;) {
		if (!raw_recv(&x.r[0]))
			fail_msg("the link ended where a refusal was due");
		if (x.r[0].head.attempt == NEW + 2)
			break;
		if (!(x.r[0].head.flags & WIRE_REPLY))
			continue;
		assert_int_equal(x.r[0].head.attempt, NEW);
		refusals++;
	}
	assert_int_equal(refusals, 1);
	raw_close(&r);
	rawnode_stop(&x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_asked_over_another_link)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
