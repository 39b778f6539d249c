// SPDX-License-Identifier: Apache-2.0
/* How many copies a model has where nobody says it. That is two where there are two nodes or more,
 * and one on a node that is alone. A model that is there keeps its number when trainers define it
 * again without one, and so does what comes from a checkpoint, as far as there are so many nodes. A
 * file that says a number wins over the checkpoint. The plan of `shardctl plan` is in
 * test_ctl_plan.
 */
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/keep.h"
#include "lib/trainer.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { ELEMS = 4096, CHUNK = 1024 };

/* With the word `replicas` in it the harness leaves the number to the daemon. */
#define DEFAULT "; replicas\n"

static void start(struct inproc *c, uint32_t nodes, const char *tail)
{
	inproc_start(c, &(struct inproc_conf){.nodes = nodes, .tail = tail});
}

/* Defines "m", and gives it weights if it is new. */
static void define(struct inproc_node *n, const char *settings, int want_created)
{
	shard_client *client = crew_connect(n->unix_address);
	struct shard_tensor t = {.name = "w", .ndim = 1, .shape = {ELEMS}};
	struct shard_spec spec = SHARD_INIT(struct shard_spec);
	char text[200];
	float w[ELEMS];
	shard_model *m;
	int created;

	snprintf(text, sizeof(text), "optimizer=sgd lr=1 chunk_elems=%d %s", CHUNK, settings);
	spec.name = "m";
	spec.tensors = &t;
	spec.tensors_nr = 1;
	spec.image = spec.grad = SHARD_F32;
	spec.settings = text;
	EXPECT(SHARD_OK, shard_define(client, &spec, &m, &created));
	assert_int_equal(created, want_created);
	for (int i = 0; i < ELEMS; i++)
		w[i] = (float)i;
	if (created) {
		EXPECT(SHARD_OK, shard_write(m, SHARD_MASTER, 0, 0, ELEMS, SHARD_F32, w));
		EXPECT(SHARD_OK, shard_seal(m, 0));
	}
	shard_detach(&m);
	shard_disconnect(&client);
}

static void copies_are(struct inproc *c, int copies)
{
	for (uint32_t n = 0; n < c->nodes; n++) {
		json_t *s = inproc_status(&c->node[n]),
		       *m = json_array_get(json_object_get(s, "models"), 0);
		json_t *chunks = json_object_get(m, "chunks");

		assert_int_equal(json_integer_value(json_object_get(chunks, "copies")), copies);
		assert_int_equal(json_integer_value(json_object_get(chunks, "least")), copies);
		json_decref(s);
	}
}

static void weights_are(struct inproc_node *n)
{
	shard_client *client = crew_connect(n->unix_address);
	shard_model *m;
	uint64_t step = 0;
	float w[ELEMS];

	EXPECT(SHARD_OK, shard_attach(client, "m", &m));
	EXPECT(SHARD_OK, shard_read(m, SHARD_MASTER, 0, 0, ELEMS, SHARD_F32, w, &step));
	for (int i = 0; i < ELEMS; i++)
		assert_true(w[i] == (float)i);
	shard_detach(&m);
	shard_disconnect(&client);
}

static void by_nodes(void **state)
{
	static const int want[] = {[1] = 1, [2] = 2, [3] = 2};
	struct inproc c;

	(void)state;
	for (uint32_t nodes = 1; nodes <= 3; nodes++) {
		start(&c, nodes, DEFAULT);
		define(&c.node[nodes - 1], nodes > 1 ? "min_copies=2" : "", 1);
		copies_are(&c, want[nodes]);
		define(&c.node[0], nodes > 1 ? "min_copies=2" : "", 0);
		inproc_stop(&c);
	}
}

static void define_fails(struct inproc_node *n, const char *more, enum shard_status want,
			 const char *why)
{
	shard_client *client = crew_connect(n->unix_address);
	struct shard_tensor t = {.name = "w", .ndim = 1, .shape = {ELEMS}};
	struct shard_spec spec = SHARD_INIT(struct shard_spec);
	char settings[128];
	shard_model *m;
	int created;

	snprintf(settings, sizeof(settings), "optimizer=sgd lr=1 %s", more);
	spec.name = "m";
	spec.tensors = &t;
	spec.tensors_nr = 1;
	spec.image = spec.grad = SHARD_F32;
	spec.settings = settings;
	EXPECT(want, shard_define(client, &spec, &m, &created));
	EXPECT_TEXT(why);
	shard_disconnect(&client);
}

/* Who sets the number gets it, and is refused where the model has another one. */
static void by_settings(void **state)
{
	struct inproc c;

	(void)state;
	start(&c, 2, DEFAULT);
	define(&c.node[1], "replicas=1", 1);
	copies_are(&c, 1);
	define(&c.node[0], "", 0);
	define(&c.node[0], "replicas=1", 0);
	define_fails(&c.node[0], "chunk_elems=1024 replicas=2", SHARD_MISMATCH,
		     "setting replicas: 2 here, 1 in \"m\" as it was defined");
	inproc_stop(&c);
}

/* A model keeps its number where nobody sets it, also if the default would be too few for what its
 * trainers set. */
static void by_the_model(void **state)
{
	struct inproc c;

	(void)state;
	start(&c, 3, DEFAULT);
	define(&c.node[1], "replicas=3 min_copies=3", 1);
	copies_are(&c, 3);
	define(&c.node[0], "min_copies=3", 0);
	inproc_stop(&c);
}

/* More copies than a node that is alone has cannot be waited for. */
static void too_few(void **state)
{
	struct inproc c;

	(void)state;
	start(&c, 1, DEFAULT);
	define_fails(&c.node[0], "min_copies=2", SHARD_BAD_ARG,
		     "min_copies = 2 is above replicas = 1, which is the default for 1 node with "
		     "capacity: set replicas, or lower min_copies");
	inproc_stop(&c);
}

/* Saves with so many copies, and restores where the file has `tail`. */
static void through_checkpoint(uint32_t nodes, const char *settings, uint32_t other_nodes,
			       const char *tail, int want)
{
	struct inproc c;
	struct keep keep;

	keep_init(&keep);
	start(&c, nodes, DEFAULT);
	define(&c.node[0], settings, 1);
	keep_must_save(c.node[0].unix_address, "m", keep.dir, NULL);
	inproc_stop(&c);
	start(&c, other_nodes, tail);
	keep_must_restore(c.node[0].unix_address, keep.dir, NULL, NULL);
	copies_are(&c, want);
	define(&c.node[other_nodes - 1], "", 0);
	weights_are(&c.node[other_nodes - 1]);
	assert_int_equal(inproc_logged(&c.node[0], "event=fewer_copies model=m checkpoint=2"),
			 nodes > other_nodes);
	inproc_stop(&c);
	keep_free(&keep);
}

static void by_checkpoint(void **state)
{
	(void)state;
	through_checkpoint(2, "replicas=1", 3, DEFAULT, 1);
	through_checkpoint(2, "", 3, DEFAULT, 2);
	through_checkpoint(2, "min_copies=2", 1, DEFAULT, 1);
	through_checkpoint(2, "replicas=1", 2, "[model]\nreplicas = 2\n", 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_nodes),      cmocka_unit_test(by_settings),
		cmocka_unit_test(by_the_model),  cmocka_unit_test(too_few),
		cmocka_unit_test(by_checkpoint),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
