// SPDX-License-Identifier: Apache-2.0
/* Sends kill -9 to a daemon whose memory outlives it, in the middle of a restore and right before
 * its seal. What an unfinished restore has read does not count as written: a seal counts it as
 * missing, and a new model gets no moments of an old one. What a node has confirmed is kept,
 * because the seal may be decided. If it is missing all the same, the node says so, and nobody
 * trains on it. */
#include "base/check.h"
#include "base/clock.h"
#include "core/msg.h"
#include "lib/crew.h"
#include "lib/cutter.h"
#include "lib/keep.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"
#include "lib/yard.h"
#include "wire/ops.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { LARGE = 16 << 20, SMALL = 2 << 20, PART = 1 << 20, TRIES = 12, SAMPLES = 64 };
#define UNWRITTEN 0x7fb5eadeu /* The same value as in daemon/store. */

struct place {
	struct cluster *c;
	struct cutter *k;
	struct keep keep;
	uint64_t numel;   /* The number of weights. */
	const char *more; /* Further settings. */
	float *w;
};

static int setup(void **state)
{
	struct place *p = calloc(1, sizeof(*p));

	CHECK(p != NULL && (p->w = malloc(LARGE * sizeof(float))) != NULL);
	keep_init(&p->keep);
	*state = p;
	return 0;
}

static int teardown(void **state)
{
	struct place *p = *state;

	cluster_put_away(&p->c);
	cutter_stop(&p->k);
	keep_free(&p->keep);
	free(p->w);
	free(p);
	return 0;
}

static void begin(struct place *p, uint64_t numel, bool links)
{
	const int nodes = 2;

	p->numel = numel;
	p->c = cluster_make(nodes, NULL, "[cluster]\nheartbeat_timeout = 30s\n");
	cluster_warm(p->c, CLUSTER_TMPFS);
	if (links)
		p->k = cutter_start(p->c);
	for (int n = 0; n < nodes; n++)
		cluster_spawn(p->c, n);
	for (int n = 0; n < nodes; n++)
		cluster_ready(p->c, n);
}

static const char *at(const struct place *p)
{
	return p->c->node[0].unix_address;
}

/* --- the model --- */

static enum shard_status try_define(const struct place *p, shard_client *c, shard_model **m,
				    int *created)
{
	char settings[300];
	const struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {p->numel}};
	const struct shard_spec spec = {.size = sizeof(spec),
					.name = "big",
					.tensors = &tensor,
					.tensors_nr = 1,
					.image = SHARD_BF16,
					.grad = SHARD_BF16,
					.settings = settings};

	snprintf(settings, sizeof(settings),
		 "optimizer=sgd momentum=0.5 lr=1 local_world=1 max_world=2 %s",
		 p->more != NULL ? p->more : "");
	return shard_define(c, &spec, m, created);
}

static shard_client *define(const struct place *p, shard_model **m, int *created)
{
	shard_client *c = crew_connect(at(p));

	MUST(try_define(p, c, m, created));
	return c;
}

static void write_all(struct place *p, shard_model *m, enum shard_kind kind, float value,
		      uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		p->w[i] = value;
	for (uint64_t i = 0; i < count; i += PART)
		MUST(shard_write(m, kind, 0, i, count - i < PART ? count - i : PART, SHARD_F32,
				 p->w + i));
}

static uint64_t others(struct place *p, shard_model *m, enum shard_kind kind, float value)
{
	uint64_t step = 0, nr = 0;

	MUST(shard_read(m, kind, 0, 0, p->numel, SHARD_F32, p->w, &step));
	for (uint64_t i = 0; i < p->numel; i++)
		nr += memcmp(&p->w[i], &value, sizeof(value)) != 0;
	return nr;
}

static void drop(const struct place *p)
{
	shard_client *c = crew_connect(at(p));

	/* A kill may have come before the drop was durable. */
	if (shard_drop(c, "big", 1) != SHARD_OK)
		assert_non_null(strstr(shard_error(), "no model"));
	shard_disconnect(&c);
}

/* Saves weights of 3 and moments of 5 at step 7. */
static void save(struct place *p)
{
	shard_model *m;
	int created;
	shard_client *c = define(p, &m, &created);

	assert_int_equal(created, 1);
	write_all(p, m, SHARD_MASTER, 3, p->numel);
	write_all(p, m, SHARD_MOMENTUM, 5, p->numel);
	MUST(shard_seal(m, 7));
	shard_disconnect(&c);
	keep_must_save(at(p), "big", p->keep.dir, NULL);
}

/* Defines the model in a session that ends without writing it. From here on the model outlives its
 * coordinator. */
static void defined(const struct place *p)
{
	uint64_t until = pace_by(20);
	char *log = cluster_log(p->c, 0);
	size_t had = strlen(log);
	shard_model *m;
	int created;
	shard_client *c = define(p, &m, &created);

	assert_int_equal(created, 1);
	shard_disconnect(&c);
	do {
		free(log);
		log = cluster_log(p->c, 0);
		if (clock_ns() > until)
			fail_msg("the model is not durable");
	} while (strstr(log + had, "event=view model=big") == NULL);
	free(log);
}

/* --- a restore that is killed --- */

struct asked {
	struct place *p;
	pthread_t thread;
};

static void *ask(void *arg)
{
	const struct asked *a = arg;

	/* It may succeed or fail. */
	(void)keep_restore(at(a->p), a->p->keep.dir, NULL, "big");
	return NULL;
}

/* Asks by restore_at_start: defines the model, and the daemon is killed during that. */
static void *ask_by_definition(void *arg)
{
	const struct asked *a = arg;
	shard_client *c = crew_connect(at(a->p));
	shard_model *m;
	int created;

	(void)try_define(a->p, c, &m, &created);
	shard_disconnect(&c);
	return NULL;
}

/* Maps the masters and moments of a daemon as the daemon has them. NULL: they are not made yet. */
static uint32_t *state_of(const struct place *p, int node, size_t *bytes)
{
	char path[64], line[512], file[512] = "";
	struct stat st;
	void *base;
	FILE *f;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)p->c->node[node].pid);
	f = fopen(path, "re");
	CHECK(f != NULL);
	while (fgets(line, sizeof(line), f) != NULL) {
		char *name = strstr(line, p->c->warm_dir);

		if (name != NULL && strstr(name, "state") != NULL)
			sscanf(name, "%511s", file);
	}
	fclose(f);
	fd = file[0] != 0 ? open(file, O_RDWR | O_CLOEXEC) : -1;
	if (fd < 0)
		return NULL;
	CHECK(fstat(fd, &st) == 0);
	base = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	CHECK(base != MAP_FAILED);
	*bytes = (size_t)st.st_size;
	return base;
}

/* Counts which of the first nr masters and of the moments behind them are not as a reset leaves
 * them. */
static uint64_t brought(const uint32_t *state, uint64_t nr, uint64_t stride)
{
	const volatile uint32_t *word = state;
	uint64_t found = 0;

	for (uint64_t i = 0; i < nr; i += stride)
		found += (word[i] != UNWRITTEN) + (word[nr + i] != 0);
	return found;
}

/* Asks for a restore and kills a daemon as soon as a weight has arrived there. True: this was in
 * the middle of the load. */
static bool kill_in_mid_load(struct place *p, int node, void *(*how)(void *))
{
	struct asked a = {.p = p};
	uint64_t until = pace_by(20), held = p->numel / 2;
	uint32_t *state = NULL;
	size_t bytes = 0;
	uint32_t had = cluster_logged(p->c, 0, "event=restoring model=big");
	uint64_t nr;

	CHECK(pthread_create(&a.thread, NULL, how, &a) == 0);
	/* Before that its memory may not have been made, or not been reset yet. */
	cluster_wait_log(p->c, 0, "event=restoring model=big", had + 1);
	while ((state == NULL && (state = state_of(p, node, &bytes)) == NULL) ||
	       brought(state, held, held / SAMPLES) == 0)
		if (clock_ns() > until)
			fail_msg("nothing is read");
	cluster_kill(p->c, node);
	nr = brought(state, held, 1);
	munmap(state, bytes);
	cluster_spawn(p->c, node);
	cluster_ready(p->c, node);
	pthread_join(a.thread, NULL);
	return nr > 0 && nr < 2 * held;
}

/* Writes half of the weights. A seal misses the other half, to the element. Then writes all of
 * them. */
static void begins_anew(struct place *p)
{
	uint64_t until = pace_by(20);
	shard_client *c;
	shard_model *m;
	int created = 0;

	yard_linked(p->c);
	do { /* The model may still be given up at this moment. */
		c = define(p, &m, &created);
		if (!created)
			shard_disconnect(&c);
	} while (!created && clock_ns() < until);
	assert_int_equal(created, 1);
	write_all(p, m, SHARD_MASTER, 1, p->numel / 4);
	crew_must(shard_seal(m, 0), SHARD_MISSING, "seal of a quarter");
	if (strstr(shard_error(), "12582912 elements are not written") == NULL)
		fail_msg("%s", shard_error());
	write_all(p, m, SHARD_MASTER, 1, p->numel);
	MUST(shard_seal(m, 0));
	assert_int_equal(others(p, m, SHARD_MASTER, 1), 0);
	assert_int_equal(others(p, m, SHARD_MOMENTUM, 0), 0);
	shard_disconnect(&c);
}

static void in_mid_load(struct place *p, int node)
{
	uint32_t hit = 0;

	begin(p, LARGE, false);
	/* A model that was being restored when its coordinator ended is lost. */
	p->more = node == 0 ? "when_lost=reinitialize" : "";
	save(p);
	for (int i = 0; i < TRIES && hit == 0; i++) {
		yard_linked(p->c);
		drop(p);
		defined(p);
		hit += kill_in_mid_load(p, node, ask);
		if (hit > 0)
			begins_anew(p);
	}
	assert_true(hit > 0);
	cluster_done(&p->c);
}

static void the_coordinator(void **state)
{
	in_mid_load(*state, 0);
}

static void a_holder(void **state)
{
	in_mid_load(*state, 1);
}

/* --- the coordinator, in a restore that made its model --- */

static void restored_is(struct place *p, shard_model *m)
{
	assert_int_equal(others(p, m, SHARD_MASTER, 3), 0);
	assert_int_equal(others(p, m, SHARD_MOMENTUM, 5), 0);
}

/* What the operator asked for stays in force. Nobody becomes the writer of the model because the
 * restore was cut off. */
static void made_by_an_operator(void **state)
{
	struct place *p = *state;
	bool hit = false;
	shard_client *c;
	shard_model *m;
	int created;

	begin(p, LARGE, false);
	save(p);
	for (int i = 0; i < TRIES && !hit; i++) {
		yard_linked(p->c);
		drop(p);
		hit = kill_in_mid_load(p, 0, ask);
		yard_linked(p->c);
		c = crew_connect(at(p));
		if (hit) {
			crew_must(try_define(p, c, &m, &created), SHARD_LOST, "define");
			if (strstr(shard_error(), "in the middle of its restore from ") == NULL ||
			    strstr(shard_error(), p->keep.dir) == NULL)
				fail_msg("%s", shard_error());
			keep_must_restore(at(p), p->keep.dir, NULL, "big");
			MUST(try_define(p, c, &m, &created));
			assert_int_equal(created, 0);
			restored_is(p, m);
		}
		shard_disconnect(&c);
	}
	assert_true(hit);
	cluster_done(&p->c);
}

/* The restore is part of the definition, and goes on with the next start. */
static void made_by_a_definition(void **state)
{
	struct place *p = *state;
	char settings[200], command[200];
	bool hit = false;
	shard_client *c;
	shard_model *m;
	int created;

	begin(p, LARGE, false);
	save(p);
	snprintf(command, sizeof(command), "cd %s && mkdir big && mv global_step7 latest big",
		 p->keep.dir);
	assert_int_equal(system(command), 0);
	snprintf(settings, sizeof(settings), "restore_at_start=yes checkpoint_dir=%s", p->keep.dir);
	p->more = settings;
	for (int i = 0; i < TRIES && !hit; i++) {
		yard_linked(p->c);
		drop(p);
		hit = kill_in_mid_load(p, 0, ask_by_definition);
		yard_linked(p->c);
		c = define(p, &m, &created);
		assert_int_equal(created, 0);
		restored_is(p, m);
		shard_disconnect(&c);
	}
	assert_true(hit);
	cluster_done(&p->c);
}

/* --- after a node confirmed its part and before the seal --- */

static void killed_before_the_seal(struct place *p, bool spoil)
{
	struct cutter_rule r = {.low = 0,
				.high = 1,
				.op = OP_CORE + CORE_VIEW,
				.nth = 2,
				.cut_low = 0,
				.cut_high = 1,
				.instead = true};
	uint64_t until = pace_by(20);
	struct asked a = {.p = p};
	uint32_t *b;
	size_t bytes;

	begin(p, SMALL, true);
	save(p);
	drop(p);
	cutter_rule(p->k, &r);
	CHECK(pthread_create(&a.thread, NULL, ask, &a) == 0);
	while (!cutter_fired(p->k)) {
		if (clock_ns() > until)
			fail_msg("nothing is sealed");
		usleep(1000);
	}
	b = state_of(p, 1, &bytes);
	assert_non_null(b);
	cluster_kill(p->c, 1);
	assert_int_equal(brought(b, SMALL / 2, 1), SMALL);
	if (spoil)
		b[17] = UNWRITTEN;
	munmap(b, bytes);
	cutter_rule(p->k, NULL);
	cluster_spawn(p->c, 1);
	cluster_ready(p->c, 1);
	pthread_join(a.thread, NULL);
}

static void end(struct place *p)
{
	cluster_done(&p->c);
	cutter_stop(&p->k);
}

static void what_was_confirmed_is_kept(void **state)
{
	struct place *p = *state;
	shard_client *c;
	shard_model *m;

	killed_before_the_seal(p, false);
	c = crew_connect(at(p));
	MUST(shard_attach(c, "big", &m));
	assert_int_equal(others(p, m, SHARD_MASTER, 3), 0);
	assert_int_equal(others(p, m, SHARD_MOMENTUM, 5), 0);
	shard_disconnect(&c);
	end(p);
}

/* The model is given up, and nobody ever reads it. */
static void sealed_without_a_weight(void **state)
{
	struct place *p = *state;
	char *log;

	killed_before_the_seal(p, true);
	log = cluster_log(p->c, 0);
	if (strstr(log, "event=lost model=big generation=2") == NULL ||
	    strstr(log, "node b found 1 weights missing when the model was sealed") == NULL ||
	    strstr(log, "event=restored") != NULL)
		fail_msg("the model was not given up, or not with that sentence");
	free(log);
	end(p);
}

/* A node starts again and lacks a weight of a sealed model, like one that died between a seal and
 * its count. A weight that was not written is never read by anyone, from the first answer on. */
static void read_without_a_weight(void **state)
{
	uint64_t until = pace_by(30);
	static const enum shard_kind kinds[] = {SHARD_MASTER, SHARD_IMAGE, SHARD_MOMENTUM};
	struct place *p = *state;
	enum shard_status rc = SHARD_OK;
	shard_model *m[2];
	shard_client *c[2];
	uint64_t step;
	size_t bytes;
	uint32_t *b;
	int created;
	float w;

	begin(p, SMALL, false);
	c[0] = define(p, &m[0], &created);
	write_all(p, m[0], SHARD_MASTER, 3, p->numel);
	MUST(shard_seal(m[0], 7));
	shard_disconnect(&c[0]);
	b = state_of(p, 1, &bytes);
	assert_non_null(b);
	cluster_kill(p->c, 1);
	b[17] = UNWRITTEN;
	munmap(b, bytes);
	cluster_spawn(p->c, 1);
	cluster_ready(p->c, 1);
	for (int n = 0; n < 2; n++)
		c[n] = crew_connect(p->c->node[n].unix_address);
	for (int n = 0; n < 2; n++)
		MUST(shard_attach(c[n], "big", &m[n]));
	for (uint32_t i = 0; rc != SHARD_LOST; i++) {
		step = 0;
		if (clock_ns() > until)
			fail_msg("it is not given up");
		rc = shard_read(m[i & 1], kinds[i / 2 % NR(kinds)], 0, SMALL / 2 + 17, 1, SHARD_F32,
				&w, &step);
		/* Node b holds it, and knew before it answered anybody. The image of node a is the
		 * one that the seal gave it. */
		if (rc == SHARD_OK && (i % 2 || kinds[i / 2 % NR(kinds)] != SHARD_IMAGE || w != 3))
			fail_msg("kind %u is read as %g", kinds[i / 2 % NR(kinds)], (double)w);
	}
	for (int n = 0; n < 2; n++)
		shard_disconnect(&c[n]);
	end(p);
}

/* Memory went bad. No checkpoint of it may replace a good one. */
static void saved_without_a_weight(void **state)
{
	struct place *p = *state;
	uint32_t *b;
	size_t bytes;
	char tag[65];

	begin(p, SMALL, true);
	save(p);
	b = state_of(p, 1, &bytes);
	assert_non_null(b);
	b[SMALL / 2 - 1] = 0x7f800000u; /* Infinity. */
	munmap(b, bytes);
	assert_int_equal(keep_save(at(p), "big", p->keep.dir, "bad"), SHARD_BAD_STATE);
	if (strstr(shard_error(), "node b") == NULL ||
	    strstr(shard_error(), "1 weights are not finite, the first in tensor \"w\" at ") ==
		    NULL)
		fail_msg("%s", shard_error());
	assert_int_equal(keep_newest(p->keep.dir, tag), 7);
	assert_int_equal(keep_count(p->keep.dir), 1);
	end(p);
}

/* --- a restore that an operator asked for --- */

static void made(struct place *p, float value, uint64_t step, const char *tag)
{
	shard_model *m;
	int created;
	shard_client *c = define(p, &m, &created);

	assert_int_equal(created, 1);
	write_all(p, m, SHARD_MASTER, value, p->numel);
	MUST(shard_seal(m, step));
	shard_disconnect(&c);
	keep_must_save(at(p), "big", p->keep.dir, tag);
}

static void choose(const struct place *p, char words[300])
{
	snprintf(words, 300, "restore %s --tag chosen --force -a %s", p->keep.dir, at(p));
}

static void *ask_by_hand(void *arg)
{
	char words[300];

	choose(((struct asked *)arg)->p, words);
	(void)tool_run(NULL, "shardctl", words); /* Its daemon is killed. */
	return NULL;
}

/* The newest checkpoint does not replace the one that an operator chose. */
static void the_choice_is_not_replaced(void **state)
{
	struct cutter_rule r = {.low = 0,
				.high = 1,
				.op = OP_LOAD_PART,
				.nth = 1,
				.cut_low = 0,
				.cut_high = 1,
				.instead = true};
	uint64_t until = pace_by(30);
	struct place *p = *state;
	const struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {SMALL}};
	const struct shard_spec spec = {
		.size = sizeof(spec),
		.name = "big",
		.tensors = &tensor,
		.tensors_nr = 1,
		.image = SHARD_BF16,
		.grad = SHARD_BF16,
		.settings = "optimizer=sgd momentum=0.5 lr=1 local_world=1 max_world=2"};
	struct asked a = {.p = p};
	enum shard_status rc;
	bool decided;
	char words[300];
	shard_client *c;
	shard_model *m;
	int created;

	begin(p, SMALL, true);
	made(p, 3, 7, "chosen");
	drop(p);
	made(p, 4, 9, "newest");
	cutter_rule(p->k, &r);
	CHECK(pthread_create(&a.thread, NULL, ask_by_hand, &a) == 0);
	while (!cutter_fired(p->k)) {
		if (clock_ns() > until)
			fail_msg("nothing is read");
		usleep(1000);
	}
	cluster_kill(p->c, 0);
	pthread_join(a.thread, NULL);
	cutter_rule(p->k, NULL);
	cluster_spawn(p->c, 0);
	cluster_ready(p->c, 0);
	yard_linked(p->c);
	/* Waits until the core has decided what happens to the model. */
	do {
		char *log = cluster_log(p->c, 0);

		usleep(1000);
		if (clock_ns() > until)
			fail_msg("nothing was decided: %s", log);
		decided = strstr(log, "event=lost model=big generation=3") != NULL;
		free(log);
	} while (!decided);
	c = crew_connect(at(p));
	rc = shard_define(c, &spec, &m, &created);
	assert_int_equal(rc, SHARD_LOST);
	if (strstr(shard_error(), "in the middle of its restore from ") == NULL ||
	    strstr(shard_error(), "/chosen: run that") == NULL)
		fail_msg("%s", shard_error());
	shard_disconnect(&c);
	choose(p, words);
	tool_expect(0, "", "shardctl", words);
	c = crew_connect(at(p));
	MUST(shard_attach(c, "big", &m));
	assert_int_equal(others(p, m, SHARD_MASTER, 3), 0);
	shard_disconnect(&c);
	end(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(saved_without_a_weight, setup, teardown),
		cmocka_unit_test_setup_teardown(read_without_a_weight, setup, teardown),
		cmocka_unit_test_setup_teardown(the_coordinator, setup, teardown),
		cmocka_unit_test_setup_teardown(a_holder, setup, teardown),
		cmocka_unit_test_setup_teardown(made_by_an_operator, setup, teardown),
		cmocka_unit_test_setup_teardown(made_by_a_definition, setup, teardown),
		cmocka_unit_test_setup_teardown(what_was_confirmed_is_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(sealed_without_a_weight, setup, teardown),
		cmocka_unit_test_setup_teardown(the_choice_is_not_replaced, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
