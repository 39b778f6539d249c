// SPDX-License-Identifier: Apache-2.0
/* A proxy between two nodes loses every part of an image. Each part of the system that waits must
 * say for what it waits and from which node: the log, the status, the coordinator's message to the
 * trainer that is ready, and the begin that gives up, also when its attempt ends meanwhile. */
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/pace.h"
#include "lib/ports.h"
#include "lib/proxy.h"
#include "wire/ops.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define IMAGE  "chunk 0 of the image of step 0, which node a holds"
#define WAIT_S 20

static const struct proxy_fault lose = {.kind = PROXY_LOSE, .back = true, .bit = OP_IMAGE_DATA};

struct side {
	const char *address;
	shard_client *client;
	shard_model *m;
	struct shard_world world;
	enum shard_status rc;
	char text[1024];
};

static void joined(struct side *x, int rank)
{
	struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {1000}};
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	static const float w[1000];
	int created;

	x->client = crew_connect(x->address);
	x->world = SHARD_INIT(struct shard_world);
	s.name = "m";
	s.tensors = &tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = "optimizer=sgd lr=1 min_world=2 max_world=2 timeout=8s";
	MUST(shard_define(x->client, &s, &x->m, &created));
	if (created) {
		MUST(shard_write(x->m, SHARD_MASTER, 0, 0, 1000, SHARD_F32, w));
		MUST(shard_seal(x->m, 0));
	}
	crew_must(shard_join(x->m, rank, rank == 0 ? 0 : 20000, &x->world),
		  rank == 0 ? SHARD_TIMEOUT : SHARD_OK, "join");
}

static void *begins(void *arg)
{
	struct shard_step step = SHARD_INIT(struct shard_step);
	struct side *b = arg;

	b->rc = shard_begin(b->m, NULL, &step);
	snprintf(b->text, sizeof(b->text), "%s", shard_error());
	return NULL;
}

static void has(const char *text, const char *part)
{
	if (text == NULL || strstr(text, part) == NULL)
		fail_msg("\"%s\" is not in \"%s\"", part, text != NULL ? text : "");
}

/* The text of the model, and that of the rank on that node. */
static void status_says(struct inproc_node *n, const char *waits, const char *state)
{
	uint64_t by = pace_by(WAIT_S);
	bool said = false;

	while (!said) {
		json_t *all = inproc_status(n),
		       *m = json_array_get(json_object_get(all, "models"), 0), *r;
		const char *text = json_string_value(json_object_get(m, "waits"));
		size_t i;

		said = text != NULL && strstr(text, waits) != NULL && state == NULL;
		json_array_foreach(json_object_get(m, "world"), i, r)
			if (text != NULL && strstr(text, waits) != NULL &&
			    json_object_get(r, "state") != NULL && state != NULL)
				said |= strcmp(json_string_value(json_object_get(r, "state")),
					       state) == 0;
		if (!said && clock_ns() > by)
			fail_msg("node %s does not say \"%s\": %s", n->name, waits,
				 json_dumps(m, 0));
		json_decref(all);
		usleep(20000);
	}
}

static void commits(struct side *a)
{
	struct shard_step step = SHARD_INIT(struct shard_step);

	MUST(shard_begin(a->m, NULL, &step));
	MUST(shard_push_none(a->m, 0));
	MUST(shard_commit(a->m, NULL));
}

static void test_said(void **state)
{
	static struct inproc c;
	struct inproc_conf conf = {.nodes = 2, .host_in_nodes = {"127.0.0.2"}};
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct side a = {0}, b = {0};
	struct proxy proxy;
	pthread_t thread;

	(void)state;
	conf.port[0] = ports_take();
	proxy_start(&proxy, "127.0.0.2", conf.port[0], conf.port[0], &lose, 1);
	inproc_start(&c, &conf);
	a.address = c.node[0].unix_address;
	b.address = c.node[1].unix_address;
	joined(&a, 0);
	joined(&b, 1);
	assert_int_equal(pthread_create(&thread, NULL, begins, &b), 0);
	MUST(shard_join(a.m, 0, pace_ms(20000), &a.world));
	commits(&a);
	status_says(&c.node[1], "rank 1 (pid ", "waits for the image");
	status_says(&c.node[1], IMAGE, "waits for the image");
	status_says(&c.node[0], "node b), which waits there for " IMAGE, NULL);
	crew_must(shard_result(a.m, 0, 500, &r), SHARD_TIMEOUT, "the result");
	has(shard_error(), "node b), which waits there for " IMAGE);
	shard_disconnect(&a.client); /* This ends the attempt in which the other one waits. */
	pthread_join(thread, NULL);
	assert_int_equal(b.rc, SHARD_TIMEOUT);
	has(b.text, "begin of step 1 of \"m\" waited ");
	has(b.text, " s for chunk 0 of 1 of the image of step 0; its attempt has ended: rank 0 ");
	has(b.text, "; shardd waits for " IMAGE);
	inproc_wait_log(&c.node[1], "event=image_late model=m step=0 chunk=0 node=a ", 1);
	shard_disconnect(&b.client);
	inproc_stop(&c);
	proxy_stop(&proxy);
	assert_true(proxy_ops(&proxy) == 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_said)};

	return cmocka_run_group_tests_name("image_late", tests, NULL, NULL);
}
