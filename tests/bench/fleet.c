/* SPDX-License-Identifier: Apache-2.0 */
/* The trainers of daemons.h. They are threads that define one model, write it, join, and then make
 * a step each time the benchmark asks for one. Gradients are written once into the arenas and stay
 * there, so that a step has nothing but the daemons' work, unless spec.write says otherwise. Every
 * failure ends the program. */
#include "base/check.h"
#include "base/clock.h"
#include "bench/daemons.h"
#include "wire/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRY(call)                                                                                  \
	do {                                                                                       \
		enum shard_status try_ = (call);                                                   \
		if (try_ != SHARD_OK)                                                              \
			bench_fail("%s: %s: %s", #call, shard_name(try_), shard_error());          \
	} while (0)

struct hand { /* One trainer. */
	struct fleet *fleet;
	int index;
	pthread_t thread;
	shard_client *client;
	shard_model *model;
	uint64_t first_push, last_push, committed, complete;
	void *gradient; /* The gradient of one tensor. */
};

struct fleet {
	struct fleet_spec spec;
	struct shard_tensor tensor[FLEET_TENSORS_MAX];
	char names[FLEET_TENSORS_MAX][16], address[FLEET_MAX][128];
	pthread_barrier_t go, begun, done;
	bool over;
	struct hand hand[FLEET_MAX];
};

static void write_weights(struct hand *h)
{
	const struct fleet_spec *s = &h->fleet->spec;
	float *w = malloc(s->numel * sizeof(*w));

	CHECK(w != NULL);
	for (uint64_t i = 0; i < s->numel; i++)
		w[i] = (float)(i % 997) * 1e-3f;
	for (uint32_t t = 0; t < s->tensors_nr; t++)
		TRY(shard_write(h->model, SHARD_MASTER, t, 0, s->numel, SHARD_F32, w));
	free(w);
	TRY(shard_seal(h->model, 0));
}

static void join(struct hand *h)
{
	const struct fleet_spec *s = &h->fleet->spec;
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_spec spec = {.size = sizeof(spec),
				  .name = s->name,
				  .tensors = h->fleet->tensor,
				  .tensors_nr = s->tensors_nr,
				  .image = s->dtype,
				  .grad = s->dtype,
				  .settings = s->settings};
	struct shard_world w = SHARD_INIT(struct shard_world);
	int created;

	o.address = h->fleet->address[h->index];
	o.look_ms = -1; /* What broke is told, and not made again. */
	TRY(shard_connect(&h->client, &o));
	TRY(shard_define(h->client, &spec, &h->model, &created));
	if (created)
		write_weights(h);
	TRY(shard_join(h->model, h->index, 60000, &w));
	for (uint32_t t = 0; t < s->tensors_nr; t++) {
		void *g = shard_grad(h->model, t);

		CHECK(g != NULL);
		for (uint64_t i = 0; i < s->numel; i++) {
			float x = (float)((i + t) % 1001) * 1e-4f - 0.05f;

			dtype_convert((char *)g + i * dtype_bytes(s->dtype), s->dtype, &x,
				      SHARD_F32, 1);
		}
	}
	h->gradient = malloc(s->numel * dtype_bytes(s->dtype));
	CHECK(h->gradient != NULL);
	memcpy(h->gradient, shard_grad(h->model, 0), s->numel * dtype_bytes(s->dtype));
}

static void step(struct hand *h)
{
	struct shard_step s = SHARD_INIT(struct shard_step);
	struct shard_result r = SHARD_INIT(struct shard_result);
	uint32_t nr = h->fleet->spec.tensors_nr;
	shard_ticket commit, last = 0;

	TRY(shard_begin(h->model, NULL, &s));
	pthread_barrier_wait(&h->fleet->begun);
	if (h->index == 0 && h->fleet->spec.first_hold_ns > 0)
		usleep((useconds_t)(h->fleet->spec.first_hold_ns / 1000));
	h->first_push = clock_ns();
	for (uint32_t t = nr; t-- > 0;) {
		if (h->fleet->spec.write)
			memcpy(shard_grad(h->model, t), h->gradient,
			       h->fleet->spec.numel * dtype_bytes(h->fleet->spec.dtype));
		h->last_push = clock_ns();
		TRY(shard_push(h->model, t, 0, h->fleet->spec.numel, NULL, h->fleet->spec.dtype, 0,
			       NULL));
	}
	TRY(shard_commit(h->model, &commit));
	h->committed = clock_ns();
	for (uint32_t t = 0; t < nr; t++)
		TRY(shard_pull(h->model, t, 0, h->fleet->spec.numel, s.step, NULL,
			       h->fleet->spec.dtype, &last));
	TRY(shard_wait(h->model, last, 60000));
	h->complete = clock_ns();
	TRY(shard_result(h->model, commit, 60000, &r));
	if (r.outcome != SHARD_APPLIED)
		bench_fail("step %llu was not applied", (unsigned long long)r.step);
}

static void *hand_main(void *arg)
{
	struct hand *h = arg;

	join(h);
	pthread_barrier_wait(&h->fleet->done);
	for (;;) {
		pthread_barrier_wait(&h->fleet->go);
		if (h->fleet->over)
			break;
		step(h);
		pthread_barrier_wait(&h->fleet->done);
	}
	TRY(shard_leave(h->model, 60000));
	shard_disconnect(&h->client);
	free(h->gradient);
	return NULL;
}

struct fleet *fleet_begin(const struct daemons *d, const struct fleet_spec *spec)
{
	struct fleet *f = calloc(1, sizeof(*f));
	unsigned nr = (unsigned)spec->trainers;

	CHECK(f != NULL && spec->tensors_nr <= FLEET_TENSORS_MAX && nr >= 1 && nr <= FLEET_MAX);
	f->spec = *spec;
	for (uint32_t t = 0; t < spec->tensors_nr; t++) {
		snprintf(f->names[t], sizeof(f->names[t]), "h.%u", t);
		f->tensor[t] = (struct shard_tensor){
			.name = f->names[t], .ndim = 1, .shape = {spec->numel}};
	}
	pthread_barrier_init(&f->go, NULL, nr + 1);
	pthread_barrier_init(&f->begun, NULL, nr);
	pthread_barrier_init(&f->done, NULL, nr + 1);
	for (int i = 0; i < spec->trainers; i++) {
		f->hand[i] = (struct hand){.fleet = f, .index = i};
		memcpy(f->address[i], d->address[spec->node[i]], sizeof(f->address[i]));
		CHECK(pthread_create(&f->hand[i].thread, NULL, hand_main, &f->hand[i]) == 0);
	}
	pthread_barrier_wait(&f->done);
	return f;
}

void fleet_step(struct fleet *f, struct fleet_times *t)
{
	uint64_t first = UINT64_MAX, begun = 0, last = 0, committed = 0, complete = 0;

	pthread_barrier_wait(&f->go);
	pthread_barrier_wait(&f->done);
	for (int i = 0; i < f->spec.trainers; i++) {
		const struct hand *h = &f->hand[i];

		first = h->first_push < first ? h->first_push : first;
		begun = h->first_push > begun ? h->first_push : begun;
		last = h->last_push > last ? h->last_push : last;
		committed = h->committed > committed ? h->committed : committed;
		complete = h->complete > complete ? h->complete : complete;
	}
	*t = (struct fleet_times){
		.push = committed - first, .step = complete - begun, .after = complete - last};
}

void fleet_end(struct fleet **fp)
{
	struct fleet *f = *fp;

	*fp = NULL;
	f->over = true;
	pthread_barrier_wait(&f->go);
	for (int i = 0; i < f->spec.trainers; i++)
		pthread_join(f->hand[i].thread, NULL);
	pthread_barrier_destroy(&f->go);
	pthread_barrier_destroy(&f->begun);
	pthread_barrier_destroy(&f->done);
	free(f);
}

static int by_value(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;

	return (a > b) - (a < b);
}

double bench_median(double *values, int nr)
{
	qsort(values, (size_t)nr, sizeof(*values), by_value);
	return nr % 2 ? values[nr / 2] : (values[nr / 2 - 1] + values[nr / 2]) / 2;
}
