// SPDX-License-Identifier: Apache-2.0
/* Tests MODEL for a number that the node already has. It must be the existing model in every part
 * of its definition, and come from the very coordinator that defined it. Otherwise the node says to
 * the coordinator and to its own log what differs. The coordinator is the test itself. */
#include "lib/rawnode.h"
#include "shard.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define SETTINGS "optimizer=sgd lr=1 chunk_elems=1024"

static struct {
	uint32_t runs[4], chunk_elems;
	uint64_t shape[1];
	Shard__Tensor tensor, *list[1];
	Shard__Spec spec;
	Shard__Model model;
} is;

/* Builds the same MODEL as rawnode_define() sends. */
static void the_same(const struct rawnode *x)
{
	memset(&is, 0, sizeof(is));
	shard__tensor__init(&is.tensor);
	shard__spec__init(&is.spec);
	shard__model__init(&is.model);
	memcpy(is.runs, (uint32_t[]){0, 1, 1, 1}, sizeof(is.runs));
	is.shape[0] = 2048;
	is.tensor.name = (char *)(uintptr_t) "w";
	is.tensor.n_shape = 1;
	is.tensor.shape = is.shape;
	is.list[0] = &is.tensor;
	is.spec.name = (char *)(uintptr_t) "m";
	is.spec.n_tensors = 1;
	is.spec.tensors = is.list;
	is.spec.image = is.spec.grad = SHARD_F32;
	is.spec.settings = (char *)(uintptr_t)x->settings;
	is.model.model = 1;
	is.model.spec = &is.spec;
	is.model.chunk_elems = 1024;
	is.model.n_place_runs = 4;
	is.model.place_runs = is.runs;
	is.model.incarnation = x->incarnation;
	is.model.generation = 1;
}

static void say(struct rawnode *x)
{
	struct wire_head h = {.op = OP_MODEL, .attempt = ++x->tag};

	raw_send(&x->r[0], &h, &is.model.base);
}

static void accepted(struct rawnode *x)
{
	say(x);
	rawnode_expect(x, OP_MODEL);
}

static void refused(struct rawnode *x, const char *part)
{
	const char *text;

	say(x);
	text = raw_error(&x->r[0]);
	if (text == NULL || strstr(text, part) == NULL)
		fail_msg("MODEL is refused with \"%s\", not with \"%s\"",
			 text != NULL ? text : "nothing", part);
	assert_int_equal(x->r[0].head.attempt, x->tag);
}

static void test_definition(void **state)
{
	Shard__Cred other = SHARD__CRED__INIT;
	struct rawnode x;

	(void)state;
	rawnode_start(&x, true, NULL, 1);
	rawnode_define(&x, 2, SETTINGS);
	the_same(&x);
	accepted(&x);
	is.model.generation = 3; /* The generation is not a part of the definition. */
	accepted(&x);
	the_same(&x);
	is.spec.name = (char *)(uintptr_t) "n";
	refused(&x, "its name is \"n\"");
	inproc_wait_log(x.daemon, "event=model_refused model=n node=a", 1);
	the_same(&x);
	is.shape[0] = 2047;
	refused(&x, "tensor \"w\": shape [2047] here, [2048] in \"m\"");
	the_same(&x);
	is.spec.settings = (char *)(uintptr_t) "optimizer=sgd lr=2 chunk_elems=1024";
	refused(&x, "lr: 2 here, 1 in \"m\"");
	the_same(&x);
	is.spec.grad = SHARD_BF16;
	refused(&x, "gradients bf16");
	is.spec.grad = 99;
	refused(&x, "its dtypes are 99");
	the_same(&x);
	is.model.chunk_elems = 2048;
	refused(&x, "its chunks have 2048 elements, not 1024");
	the_same(&x);
	memcpy(is.runs, (uint32_t[]){1, 1, 0, 1}, sizeof(is.runs));
	refused(&x, "it was defined with its chunks on other nodes");
	the_same(&x);
	other.known = true;
	other.uid = 5;
	is.model.owner = &other;
	refused(&x, "another user defined it");
	the_same(&x);
	accepted(&x); /* None of the refused messages has changed the model. */
	rawnode_stop(&x);
}

static void test_new_folder(void **state)
{
	struct wire_head drop = {.op = OP_MODEL_DROP, .model = 1};
	struct rawnode x;
	uint32_t chunks;

	(void)state;
	rawnode_start(&x, true, NULL, 1);
	rawnode_define(&x, 2, SETTINGS);
	chunks = x.chunks_nr;
	x.chunks_nr = 0; /* The test sends MODEL itself. */
	x.folder = 1;
	rawnode_link(&x);
	the_same(&x);
	refused(&x, "node b holds model 1, \"m\", of a coordinator with another state directory");
	inproc_wait_log(x.daemon, "of a coordinator with another state directory", 1);
	drop.attempt = ++x.tag;
	raw_send(&x.r[0], &drop, NULL);
	assert_non_null(strstr(raw_error(&x.r[0]), "another state directory"));
	inproc_wait_log(x.daemon, "event=drop_refused model=m", 1);
	x.folder = 0; /* The coordinator that defined it is back. */
	x.chunks_nr = chunks;
	rawnode_link(&x);
	rawnode_stop(&x);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {cmocka_unit_test(test_definition),
						  cmocka_unit_test(test_new_folder)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
