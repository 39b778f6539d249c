// SPDX-License-Identifier: Apache-2.0
/* Trainers survive what models survive. Two nodes with two trainers each, half of them over TCP.
 * One trainer stops at a place of a step, and the daemon of its node, of the other node, or of both
 * is killed with -9 and started again before it goes on. Each trainer runs the loop of README.md,
 * with pulls and blobs, and no line about a connection. In the end the masters are those of a loop
 * without daemons. Other tests have two models on one connection, of which another thread reads one
 * meanwhile, and a daemon that comes back without its memory. */
#include "base/check.h"
#include "base/clock.h"
#include "client/handle.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { RANKS = 4, ELEMS = 3000 };
enum place { BEGUN, HALF_PUSHED, PUSHED, BLOB_SET, COMMITTED, PULLING, ASKING, PLACES };
enum victim { OWN, OTHER, ALL, VICTIMS };
enum { KILLS = PLACES * VICTIMS, FIRST_STEP = 3, LAST_STEP = FIRST_STEP + 2 * KILLS + 3 };

#define SETTINGS "optimizer=sgd lr=1 min_world=4 max_world=4 local_world=2 chunk_elems=1024"

/* Between the test and its trainers. */
struct stage {
	_Atomic uint32_t reached; /* So many kills had a trainer at their place. */
	_Atomic uint32_t done;    /* So many were made. */
	_Atomic uint32_t changed; /* WORLD_CHANGED was told so often. */
	_Atomic uint32_t mapped;  /* The sum over all trainers. */
};

struct player {
	struct stage *stage;
	char address[140];
	int rank;
	shard_client *client;
	shard_model *model;
	struct shard_world world;
	const void *image;
	void *grad;
};

#define MUST(call)                                                                                 \
	do {                                                                                       \
		enum shard_status must_ = (call);                                                  \
		if (must_ != SHARD_OK) {                                                           \
			fprintf(stderr, "rank %d, step %lu: %s: %s: %s\n", p->rank,                \
				(unsigned long)p->world.step, #call, shard_name(must_),            \
				shard_error());                                                    \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)
#define THAT(what)                                                                                 \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			fprintf(stderr, "rank %d, step %lu: %s is not so\n", p->rank,              \
				(unsigned long)p->world.step, #what);                              \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

static float mean_gradient(uint64_t step, uint32_t i)
{
	return (float)((step * 7 + i) % 5) - 2;
}

static float weight(uint64_t step, uint32_t i)
{
	float w = (float)(i % 100);

	for (uint64_t s = 1; s <= step; s++)
		w -= mean_gradient(s, i);
	return w;
}

static void nap(void)
{
	(void)poll(NULL, 0, 1);
}

/* Stops here until the daemon is gone, if this is the place of the next kill. */
static void at(struct player *p, enum place place)
{
	uint32_t k = atomic_load(&p->stage->done);

	if (k >= KILLS || p->world.step < FIRST_STEP + 2 * k || k % PLACES != (uint32_t)place ||
	    k % RANKS != (uint32_t)p->rank)
		return;
	atomic_store(&p->stage->reached, k + 1);
	while (atomic_load(&p->stage->done) == k)
		nap();
}

static void define(struct player *p)
{
	struct shard_tensor t[2] = {{.name = "a", .ndim = 1, .shape = {ELEMS}},
				    {.name = "b", .ndim = 1, .shape = {ELEMS}}};
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	float w[ELEMS];
	int created;

	o.address = p->address;
	MUST(shard_connect(&p->client, &o));
	s.name = "m";
	s.tensors = t;
	s.tensors_nr = 2;
	s.image = s.grad = SHARD_F32;
	s.settings = SETTINGS;
	MUST(shard_define(p->client, &s, &p->model, &created));
	for (uint32_t i = 0; i < ELEMS; i++)
		w[i] = weight(0, i);
	for (uint32_t i = 0; i < 2 && created; i++)
		MUST(shard_write(p->model, SHARD_MASTER, i, 0, ELEMS, SHARD_F32, w));
	if (created)
		MUST(shard_seal(p->model, 0));
}

static enum shard_status push_all(struct player *p, uint64_t step)
{
	enum shard_status rc = SHARD_OK;

	for (uint32_t t = 0; t < 2 && rc == SHARD_OK; t++) {
		float *g = shard_grad(p->model, t);

		THAT(g == (float *)p->grad + (size_t)t * (ELEMS + 63) / 64 * 64);
		for (uint32_t i = 0; i < ELEMS; i++)
			g[i] = mean_gradient(step, i) + (float)(2 * (int)p->world.rank - 3);
		rc = shard_push(p->model, t, 0, ELEMS, NULL, SHARD_F32, 0, NULL);
		if (t == 0)
			at(p, HALF_PUSHED);
	}
	return rc;
}

/* What the weights after the step are, as a pull and as the image have them. */
static enum shard_status look(struct player *p, uint64_t step)
{
	float to[ELEMS];
	shard_ticket t;
	enum shard_status rc = shard_pull(p->model, 1, 0, ELEMS, step, to, SHARD_F32, &t);

	at(p, PULLING);
	if (rc == SHARD_OK)
		rc = shard_wait(p->model, t, pace_ms(60000));
	for (uint32_t i = 0; i < ELEMS && rc == SHARD_OK; i += 7)
		THAT(to[i] == weight(step, i) && ((const float *)p->image)[i] == weight(step, i));
	return rc;
}

/* The blob of this rank goes with the newest step. */
static enum shard_status ask(struct player *p)
{
	uint64_t said[2], step;
	size_t bytes = sizeof(said);
	enum shard_status rc;

	at(p, ASKING);
	rc = shard_blob(p->model, p->world.rank, said, &bytes, &step);
	if (rc == SHARD_UNREACHABLE || rc == SHARD_BUSY) /* The other node is away for a moment. */
		return SHARD_OK;
	THAT(rc != SHARD_OK || (step == p->world.step - 1 && said[0] == step &&
				said[1] == p->world.rank && bytes == sizeof(said)));
	return rc;
}

static enum shard_status one_step(struct player *p)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct shard_step s = SHARD_INIT(struct shard_step);
	uint64_t said[2];
	shard_ticket t;
	enum shard_status rc;

	if (p->world.step > 1 && (rc = ask(p)) != SHARD_OK)
		return rc;
	if ((rc = shard_begin(p->model, NULL, &s)) != SHARD_OK)
		return rc;
	THAT(s.step == p->world.step && s.rank == p->world.rank);
	at(p, BEGUN);
	if ((rc = push_all(p, s.step)) != SHARD_OK)
		return rc;
	at(p, PUSHED);
	said[0] = s.step;
	said[1] = s.rank;
	rc = shard_set_blob(p->model, said, sizeof(said));
	at(p, BLOB_SET);
	if (rc == SHARD_OK)
		rc = shard_commit(p->model, &t);
	at(p, COMMITTED);
	if (rc == SHARD_OK)
		rc = shard_result(p->model, t, pace_ms(120000), &r);
	THAT(rc != SHARD_OK || (r.step == s.step && r.outcome == SHARD_APPLIED));
	return rc == SHARD_OK ? look(p, s.step) : rc;
}

static int play(void *arg)
{
	struct player *p = arg;
	struct shard_info info = SHARD_INIT(struct shard_info);
	uint64_t step = LAST_STEP;
	float w[ELEMS];

	p->world = SHARD_INIT(struct shard_world);
	define(p);
	MUST(shard_join(p->model, p->rank, pace_ms(60000), &p->world));
	p->image = shard_image(p->model, 0);
	p->grad = shard_grad(p->model, 0);
	while (p->world.step <= LAST_STEP) {
		enum shard_status rc = one_step(p);

		if (rc == SHARD_WORLD_CHANGED)
			atomic_fetch_add(&p->stage->changed, 1);
		else
			MUST(rc);
		MUST(shard_world_get(p->model, &p->world));
	}
	for (uint32_t t = 0; t < 2; t++) {
		MUST(shard_read(p->model, SHARD_MASTER, t, 0, ELEMS, SHARD_F32, w, &step));
		for (uint32_t i = 0; i < ELEMS; i++)
			THAT(w[i] == weight(LAST_STEP, i));
	}
	MUST(shard_tensor_info(p->model, 0, &info));
	atomic_fetch_add(&p->stage->mapped, (uint32_t)info.mapped);
	MUST(shard_leave(p->model, pace_ms(60000)));
	shard_disconnect(&p->client);
	return 0;
}

static void kill_and_start(struct cluster *c, struct stage *stage, uint32_t k)
{
	enum victim v = k / PLACES % VICTIMS;
	int own = (int)(k % RANKS) / 2;

	for (int n = 0; n < 2; n++)
		if (v == ALL || (v == OWN) == (n == own))
			cluster_kill(c, n);
	atomic_store(&stage->done, k + 1);
	for (int n = 0; n < 2; n++)
		if (v == ALL || (v == OWN) == (n == own))
			cluster_spawn(c, n);
}

static struct cluster *cluster; /* Of the test that runs, for its teardown. */

static void each_place(const char *extra)
{
	struct stage *stage = mmap(NULL, sizeof(*stage), PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct player p[RANKS];
	pid_t pid[RANKS];

	CHECK(stage != MAP_FAILED);
	cluster = cluster_make(2, NULL, extra);
	cluster_warm(cluster, CLUSTER_TMPFS);
	cluster_up(cluster);
	for (int r = 0; r < RANKS; r++) {
		const struct cluster_node *n = &cluster->node[r / 2];

		p[r] = (struct player){.stage = stage, .rank = r};
		snprintf(p[r].address, sizeof(p[r].address), "%s",
			 r % 2 ? n->tcp_address : n->unix_address);
		pid[r] = proc_fork(play, &p[r]);
	}
	for (uint32_t k = 0; k < KILLS; k++) {
		uint64_t until = pace_by(120);

		while (atomic_load(&stage->reached) <= k && clock_ns() < until) {
			for (int r = 0; r < RANKS; r++)
				assert_int_equal(proc_wait(pid[r], 0), -1); /* Each lives. */
			nap();
		}
		if (atomic_load(&stage->reached) <= k)
			fail_msg("no trainer came to the place of kill %u", k);
		kill_and_start(cluster, stage, k);
	}
	for (int r = 0; r < RANKS; r++)
		proc_expect_exit(pid[r], 0, pace_ms(120000));
	print_message("%u kills: the world changed %u times, memory was mapped %u times\n", KILLS,
		      atomic_load(&stage->changed), atomic_load(&stage->mapped));
	/* Each kill took the connections of two trainers, or of all. */
	assert_true(atomic_load(&stage->mapped) >= RANKS + KILLS * 2);
	munmap(stage, sizeof(*stage));
	cluster_done(&cluster);
}

static void test_two_copies(void **state)
{
	(void)state;
	each_place("[model]\nreplicas = 2\n");
}

static void test_one_copy(void **state)
{
	(void)state;
	each_place("[model]\nreplicas = 1\n");
}

/* --- two models on one connection --- */

static void train_to(struct trainer *t, uint64_t last)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	enum shard_status rc;
	float g[3000];

	for (int i = 0; i < 3000; i++)
		g[i] = 1;
	while (t->world.step <= last) {
		rc = shard_begin(t->model, NULL, &t->step);
		for (uint32_t i = 0; i < TRAINER_TENSORS && rc == SHARD_OK; i++)
			rc = shard_push(t->model, i, 0, trainer_numel[i], g, SHARD_F32, 0, NULL);
		if (rc == SHARD_OK)
			rc = shard_commit(t->model, NULL);
		if (rc == SHARD_OK)
			rc = shard_result(t->model, 0, SHARD_DEFAULT, &r);
		if (rc == SHARD_OK || rc == SHARD_WORLD_CHANGED)
			rc = shard_world_get(t->model, &t->world);
		EXPECT(SHARD_OK, rc);
	}
}

struct reader {
	shard_model *model;
	atomic_bool stop;
	pthread_t thread;
	uint32_t read, broken;
	enum shard_status rc;
};

/* Reads a model that nobody trains, while the other one's world is asked for again. */
static void *reads(void *arg)
{
	struct reader *r = arg;
	uint64_t step;
	float x;

	while (!atomic_load(&r->stop)) {
		step = 0;
		r->rc = shard_read(r->model, SHARD_MASTER, 1, 3, 1, SHARD_F32, &x, &step);
		if (r->rc == SHARD_OK && x == trainer_weight(1, 3))
			r->read++;
		else if (r->rc == SHARD_WORLD_CHANGED)
			r->broken++;
		else
			break;
	}
	return NULL;
}

static void two_models(bool tcp)
{
	struct reader r = {.rc = SHARD_OK};
	struct trainer one, two;
	const char *address;
	struct shard_spec s;

	cluster = cluster_make(1, NULL, NULL);
	cluster_warm(cluster, CLUSTER_TMPFS);
	cluster_up(cluster);
	address = tcp ? cluster->node[0].tcp_address : cluster->node[0].unix_address;
	trainer_spec(&s, SHARD_F32, SHARD_F32);
	s.name = "two";
	trainer_define_as(&two, address, &s);
	trainer_end(&two);
	trainer_join(&one, address, SHARD_F32, SHARD_F32);
	trainer_looks(&one, 300 * NS_PER_SEC);
	EXPECT(SHARD_OK, shard_attach(one.client, "two", &r.model));
	assert_int_equal(pthread_create(&r.thread, NULL, reads, &r), 0);
	for (uint64_t round = 1; round <= 8; round++) {
		cluster_kill(cluster, 0);
		cluster_spawn(cluster, 0);
		train_to(&one, round * 10);
	}
	atomic_store(&r.stop, true);
	assert_int_equal(pthread_join(r.thread, NULL), 0);
	if (r.rc != SHARD_OK && r.rc != SHARD_WORLD_CHANGED)
		fail_msg("the reader ended with %s", shard_name(r.rc));
	assert_true(r.read > 0);
	trainer_begin(&one);
	trainer_check_image(&one, SHARD_F32, 80);
	EXPECT(SHARD_OK, shard_abandon(one.model, "a test"));
	EXPECT(SHARD_OK, shard_leave(one.model, pace_ms(20000)));
	two = one;
	two.model = r.model;
	EXPECT(SHARD_OK, shard_join(two.model, -1, pace_ms(20000), &two.world));
	cluster_kill(cluster, 0);
	cluster_spawn(cluster, 0);
	train_to(&two, 5);
	trainer_begin(&two);
	trainer_check_image(&two, SHARD_F32, 5);
	trainer_end(&one);
	cluster_done(&cluster);
}

static void test_two_models(void **state)
{
	(void)state;
	two_models(false);
}

static void test_two_models_tcp(void **state)
{
	(void)state;
	two_models(true);
}

/* --- what does not come back --- */

/* Nothing outlives this daemon, and there is no checkpoint. */
static void test_memory_is_gone(void **state)
{
	enum shard_status rc;
	struct trainer t;

	(void)state;
	cluster = cluster_start(1, NULL, NULL);
	trainer_join(&t, cluster->node[0].unix_address, SHARD_F32, SHARD_F32);
	trainer_looks(&t, 300 * NS_PER_SEC);
	trainer_begin(&t);
	cluster_kill(cluster, 0);
	cluster_spawn(cluster, 0);
	while ((rc = shard_progress(t.client)) == SHARD_OK)
		nap();
	assert_int_equal(rc, SHARD_WORLD_CHANGED);
	rc = shard_world_get(t.model, &t.world);
	if (rc != SHARD_LOST && rc != SHARD_NOT_FOUND)
		fail_msg("%s: %s", shard_name(rc), shard_error());
	EXPECT_TEXT("shardctl restore DIR");
	trainer_check_image(&t, SHARD_F32, 0); /* The pointers hold. */
	trainer_end(&t);
	cluster_done(&cluster);
}

/* The node lost its state folder as well, so it counts models from 1 again. Somebody else has
 * defined the model meanwhile, as the first one there. */
static void test_defined_anew(void **state)
{
	struct trainer t, other;
	char command[200];

	(void)state;
	cluster = cluster_start(1, NULL, NULL);
	trainer_join(&t, cluster->node[0].unix_address, SHARD_F32, SHARD_F32);
	trainer_looks(&t, 300 * NS_PER_SEC);
	trainer_begin(&t);
	cluster_kill(cluster, 0);
	snprintf(command, sizeof(command), "rm -r %s", cluster->node[0].state);
	assert_int_equal(system(command), 0);
	cluster_spawn(cluster, 0);
	cluster_wait_log(cluster, 0, "event=start release", 2);
	trainer_join(&other, cluster->node[0].unix_address, SHARD_F32, SHARD_F32);
	assert_int_equal(other.world.step, 1);
	while (shard_progress(t.client) == SHARD_OK)
		nap();
	EXPECT(SHARD_NOT_FOUND, shard_world_get(t.model, &t.world));
	EXPECT_TEXT("the model that this trainer was in was dropped");
	trainer_end(&t);
	trainer_end(&other);
	cluster_done(&cluster);
}

static int put_away(void **state)
{
	(void)state;
	if (cluster != NULL)
		cluster_dump(cluster);
	cluster_put_away(&cluster);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_two_copies, put_away),
		cmocka_unit_test_teardown(test_one_copy, put_away),
		cmocka_unit_test_teardown(test_two_models, put_away),
		cmocka_unit_test_teardown(test_two_models_tcp, put_away),
		cmocka_unit_test_teardown(test_memory_is_gone, put_away),
		cmocka_unit_test_teardown(test_defined_anew, put_away),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
