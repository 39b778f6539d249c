/* SPDX-License-Identifier: Apache-2.0 */
/* Trains the models of `shardctl bench`. bench.c calls bench_train(). Happy path: this thread
 * defines, writes and seals a model under a name of its own. One thread per rank connects, joins
 * and makes steps, and each step pushes the whole gradient from the arena. This thread shows how
 * far the ranks are, and drops the model at the end. The first failure of any thread stops all of
 * them, and so does a signal: watch() interrupts them until they have ended. A rank writes its
 * gradients only once, because the transfer is measured and not the computation. */
#include "ctl/bench.h"

#include "base/check.h"
#include "base/clock.h"
#include "wire/bench.h"
#include "wire/dtype.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TENSOR_ELEMS (4u << 20)
#define TENSORS_MAX  (1u << 20)
#define LOOK_MS      100

struct rank {
	struct training *all;
	pthread_t thread;
	_Atomic(shard_client *) client;
	bool ran;
};

struct training {
	const struct bench_conf *b;
	struct shard_spec spec;
	struct shard_tensor *tensors;
	char (*names)[16], name[65], settings[200];
	uint64_t *step_ns; /* The time of each step of rank 0, [steps]. */
	struct bench_result *result;
	_Atomic bool stop;
	/* The steps that rank 0 has made, and the number of ranks that have ended. */
	_Atomic uint32_t step, over;
	pthread_mutex_t lock;
	struct err err; /* The first error of any thread. */
	struct rank rank[BENCH_RANKS_MAX];
};

/* --- ranks --- */

static enum shard_status failed(struct training *t, enum shard_status st, const char *doing)
{
	if (st == SHARD_OK)
		return st;
	pthread_mutex_lock(&t->lock);
	if (!atomic_exchange(&t->stop, true))
		err_set(&t->err, st, "%s: %.400s", doing, shard_error());
	pthread_mutex_unlock(&t->lock);
	return st;
}

static void fill(struct training *t, shard_model *m)
{
	float part[1024];

	for (uint32_t i = 0; i < NR(part); i++)
		part[i] = ((float)(i % 17) - 8.0f) * 1e-3f;
	for (uint32_t i = 0; i < t->spec.tensors_nr; i++) {
		char *to = shard_grad(m, i);

		for (uint64_t at = 0, n; to != NULL && at < t->tensors[i].shape[0]; at += n) {
			n = t->tensors[i].shape[0] - at < NR(part) ? t->tensors[i].shape[0] - at
								   : NR(part);
			dtype_convert(to + at * dtype_bytes(t->b->grad), t->b->grad, part,
				      SHARD_F32, n);
		}
	}
}

static enum shard_status one_step(struct training *t, shard_client *c, shard_model *m, bool first)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct shard_step s = SHARD_INIT(struct shard_step);
	enum shard_status st = shard_begin(m, NULL, &s);
	shard_ticket ticket = 0, last = 0;

	if (st == SHARD_OK && first)
		fill(t, m);
	for (uint32_t i = t->spec.tensors_nr; st == SHARD_OK && i-- > 0; last = ticket)
		while ((st = shard_push(m, i, 0, t->tensors[i].shape[0], NULL, t->b->grad, 0,
					&ticket)) == SHARD_AGAIN)
			if ((st = last ? shard_wait(m, last, SHARD_DEFAULT) : shard_progress(c)) !=
			    SHARD_OK)
				return st;
	if (st == SHARD_OK)
		st = shard_commit(m, &ticket);
	if (st == SHARD_OK)
		st = shard_result(m, ticket, SHARD_DEFAULT, &r);
	/* A trainer needs the new parameters before its next step. */
	for (uint32_t i = 0; st == SHARD_OK && i < t->spec.tensors_nr; i++) {
		st = shard_pull(m, i, 0, t->tensors[i].shape[0], r.step, NULL, t->b->image,
				&ticket);
		if (st == SHARD_OK && (i % 512 == 511 || i + 1 == t->spec.tensors_nr))
			st = shard_wait(m, ticket, SHARD_DEFAULT);
	}
	if (st == SHARD_OK && s.rank == 0) {
		t->result->pushed = r.pushed_bytes;
		t->result->pulled = r.pulled_bytes;
	}
	return st;
}

static enum shard_status train(struct rank *k, shard_client *c, shard_model *m)
{
	struct shard_world w = SHARD_INIT(struct shard_world);
	struct training *t = k->all;
	enum shard_status st = failed(t, shard_join(m, -1, SHARD_DEFAULT, &w), "join");

	for (uint32_t i = 0; st == SHARD_OK && i < t->b->steps + BENCH_WARM; i++) {
		uint64_t began = clock_ns();

		if (atomic_load(&t->stop))
			return SHARD_INTERRUPTED;
		st = failed(t, one_step(t, c, m, i == 0), "step");
		if (w.rank != 0 || st != SHARD_OK)
			continue;
		if (i >= BENCH_WARM)
			t->step_ns[i - BENCH_WARM] = clock_ns() - began;
		atomic_store(&t->step, i + 1);
	}
	return st == SHARD_OK ? failed(t, shard_leave(m, SHARD_DEFAULT), "leave") : st;
}

static void *rank_main(void *arg)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct rank *k = arg;
	struct training *t = k->all;
	shard_client *c = NULL;
	shard_model *m;
	int created;

	o.address = t->b->address;
	o.secret = t->b->secret;
	o.tls = t->b->tls;
	o.timeout_ms = t->b->timeout_ms;
	if (failed(t, shard_connect(&c, &o), "connect") == SHARD_OK) {
		atomic_store(&k->client, c);
		if (failed(t, shard_define(c, &t->spec, &m, &created), "define") == SHARD_OK)
			(void)train(k, c, m);
	}
	/* run_ranks() disconnects the client after the join, when watch() can no longer interrupt
	 * it. */
	atomic_fetch_add(&t->over, 1);
	return NULL;
}

/* --- all of it --- */

static void show(const struct training *t, bool end)
{
	if (!t->b->progress)
		return;
	if (end)
		fprintf(stderr, "\r\033[K");
	else
		fprintf(stderr, "\r\033[K%s: step %u of %u", t->b->what,
			atomic_load(&((struct training *)(uintptr_t)t)->step),
			t->b->steps + BENCH_WARM);
	fflush(stderr);
}

static void watch(struct training *t, uint32_t ranks, const sigset_t *signals)
{
	while (atomic_load(&t->over) < ranks) {
		struct timespec wait = {.tv_nsec = LOOK_MS * 1000000};

		if (sigtimedwait(signals, NULL, &wait) > 0) {
			pthread_mutex_lock(&t->lock);
			if (!atomic_exchange(&t->stop, true))
				err_set(&t->err, SHARD_INTERRUPTED,
					"interrupted at step %u; the model is dropped",
					atomic_load(&t->step));
			pthread_mutex_unlock(&t->lock);
		}
		/* Once is not enough: a rank may begin another wait after it was interrupted. */
		for (uint32_t i = 0; i < ranks && atomic_load(&t->stop); i++)
			if (atomic_load(&t->rank[i].client) != NULL)
				shard_interrupt(atomic_load(&t->rank[i].client));
		show(t, false);
	}
	show(t, true);
}

static void run_ranks(struct training *t, const sigset_t *signals)
{
	uint32_t nr = 0;
	int error;

	for (; nr < t->b->ranks && !atomic_load(&t->stop); nr++) {
		t->rank[nr].all = t;
		error = pthread_create(&t->rank[nr].thread, NULL, rank_main, &t->rank[nr]);
		if (error == 0)
			continue;
		pthread_mutex_lock(&t->lock);
		if (!atomic_exchange(&t->stop, true))
			err_set(&t->err, SHARD_SYSTEM,
				"no thread for rank %u: %s: raise `ulimit -u` and `ulimit -v`, or "
				"choose fewer --ranks",
				nr, strerror(error));
		pthread_mutex_unlock(&t->lock);
		break;
	}
	watch(t, nr, signals);
	for (uint32_t i = 0; i < nr; i++) {
		shard_client *c = NULL;

		pthread_join(t->rank[i].thread, NULL);
		c = atomic_load(&t->rank[i].client);
		shard_disconnect(&c);
	}
}

static enum shard_status describe(struct training *t, struct err *e)
{
	const struct bench_conf *b = t->b;
	uint64_t nr = (b->params + TENSOR_ELEMS - 1) / TENSOR_ELEMS;

	t->tensors = nr <= TENSORS_MAX ? calloc(nr, sizeof(*t->tensors)) : NULL;
	t->names = t->tensors ? calloc(nr, sizeof(*t->names)) : NULL;
	t->step_ns = calloc(b->steps, sizeof(*t->step_ns));
	if (!t->names || !t->step_ns)
		return err_set(e, SHARD_SYSTEM, "no memory for a description of %llu parameters",
			       (unsigned long long)b->params);
	for (uint64_t i = 0; i < nr; i++) {
		snprintf(t->names[i], sizeof(t->names[i]), "t%llu", (unsigned long long)i);
		t->tensors[i].name = t->names[i];
		t->tensors[i].ndim = 1;
		t->tensors[i].shape[0] = i + 1 < nr ? TENSOR_ELEMS : b->params - i * TENSOR_ELEMS;
	}
	bench_name(t->name, sizeof(t->name), (uint32_t)getpid(), clock_ns());
	snprintf(t->settings, sizeof(t->settings), "optimizer=%s lr=1e-6 min_world=%u max_world=%u",
		 b->optimizer, b->ranks, b->ranks);
	t->spec = (struct shard_spec){.size = sizeof(t->spec),
				      .name = t->name,
				      .tensors = t->tensors,
				      .tensors_nr = (uint32_t)nr,
				      .image = b->image,
				      .grad = b->grad,
				      .settings = t->settings};
	return SHARD_OK;
}

static enum shard_status make(struct training *t, shard_client *c)
{
	enum shard_status st;
	shard_model *m;
	float *w;
	int created;

	if ((st = failed(t, shard_define(c, &t->spec, &m, &created), "define")) != SHARD_OK)
		return st;
	if ((w = malloc(TENSOR_ELEMS * sizeof(*w))) == NULL)
		return err_set(&t->err, SHARD_SYSTEM, "no memory for weights");
	for (uint32_t i = 0; i < TENSOR_ELEMS; i++)
		w[i] = 0.01f;
	for (uint32_t i = 0; i < t->spec.tensors_nr && st == SHARD_OK; i++)
		st = failed(
			t, shard_write(m, SHARD_MASTER, i, 0, t->tensors[i].shape[0], SHARD_F32, w),
			"write");
	free(w);
	if (st == SHARD_OK)
		st = failed(t, shard_seal(m, 0), "seal");
	shard_detach(&m);
	return st;
}

static int by_size(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void summarize(struct training *t)
{
	uint32_t n = t->b->steps;

	qsort(t->step_ns, n, sizeof(*t->step_ns), by_size);
	t->result->min_s = (double)t->step_ns[0] / 1e9;
	t->result->max_s = (double)t->step_ns[n - 1] / 1e9;
	t->result->median_s = (double)(t->step_ns[n / 2] + t->step_ns[(n - 1) / 2]) / 2e9;
}

enum shard_status bench_train(const struct bench_conf *b, struct bench_result *r, struct err *e)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct training *t = calloc(1, sizeof(*t));
	shard_client *c = NULL;
	enum shard_status st;
	sigset_t signals, before;

	*r = (struct bench_result){0};
	if (t == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory");
	t->b = b;
	t->result = r;
	pthread_mutex_init(&t->lock, NULL);
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGHUP);
	/* The threads inherit this mask, so only watch() takes the signals. */
	pthread_sigmask(SIG_BLOCK, &signals, &before);
	o.address = b->address;
	o.secret = b->secret;
	o.tls = b->tls;
	o.timeout_ms = b->timeout_ms;
	st = describe(t, &t->err);
	if (st == SHARD_OK && (st = failed(t, shard_connect(&c, &o), "connect")) == SHARD_OK) {
		if (make(t, c) == SHARD_OK)
			run_ranks(t, &signals);
		if (shard_drop(c, t->name, 1) != SHARD_OK && t->err.status == SHARD_OK)
			err_set(&t->err, SHARD_SYSTEM, "drop: %.400s", shard_error());
	}
	if (t->err.status == SHARD_OK)
		summarize(t);
	st = t->err.status;
	*e = t->err;
	shard_disconnect(&c);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_mutex_destroy(&t->lock);
	free(t->tensors);
	free(t->names);
	free(t->step_ns);
	free(t);
	return st;
}
