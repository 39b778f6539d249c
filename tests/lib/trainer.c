// SPDX-License-Identifier: Apache-2.0
/* A small model behind the public API. Only tests call it. Each function makes one or a few public
 * calls and expects them to succeed. Every failure fails the test. */
#include "lib/trainer.h"

#include "base/check.h"
#include "base/clock.h"
#include "client/client.h"
#include "lib/pace.h"
#include "wire/dtype.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

const uint64_t trainer_numel[TRAINER_TENSORS] = {3000, 7, 2500, 1};

static const struct shard_tensor tensors[TRAINER_TENSORS] = {
	{.name = "wte", .ndim = 2, .shape = {30, 100}},
	{.name = "h.0.ln_1.weight", .ndim = 1, .shape = {7}},
	{.name = "h.0.attn.weight", .ndim = 2, .shape = {50, 50}},
	{.name = "ln_f.weight", .ndim = 0},
};

void trainer_spec(struct shard_spec *s, enum shard_dtype image, enum shard_dtype grad)
{
	*s = (struct shard_spec){.size = sizeof(*s),
				 .name = "gpt",
				 .tensors = tensors,
				 .tensors_nr = TRAINER_TENSORS,
				 .image = image,
				 .grad = grad,
				 .settings = "optimizer=sgd lr=1"};
}

float trainer_weight(uint32_t tensor, uint64_t i)
{
	/* The values are exact in bf16 and fp16, also after a few steps of 1. */
	return (float)(int)(tensor * 100 + i % 61) - 50.0f;
}

void trainer_connect(struct trainer *t, const char *address)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);

	memset(t, 0, sizeof(*t));
	t->world = SHARD_INIT(struct shard_world);
	t->step = SHARD_INIT(struct shard_step);
	o.address = address;
	o.look_ms = -1; /* What broke is told, and not made again. */
	o.timeout_ms = pace_ms(10000);
	EXPECT(SHARD_OK, shard_connect(&t->client, &o));
}

void trainer_define(struct trainer *t, const char *address, enum shard_dtype image,
		    enum shard_dtype grad)
{
	struct shard_spec s;

	trainer_spec(&s, image, grad);
	trainer_define_as(t, address, &s);
}

void trainer_define_as(struct trainer *t, const char *address, const struct shard_spec *s)
{
	trainer_connect(t, address);
	EXPECT(SHARD_OK, shard_define(t->client, s, &t->model, &t->created));
	for (uint32_t i = 0; i < TRAINER_TENSORS && t->created; i++) {
		float *w = malloc(trainer_numel[i] * sizeof(*w));

		CHECK(w != NULL);
		for (uint64_t k = 0; k < trainer_numel[i]; k++)
			w[k] = trainer_weight(i, k);
		EXPECT(SHARD_OK,
		       shard_write(t->model, SHARD_MASTER, i, 0, trainer_numel[i], SHARD_F32, w));
		free(w);
	}
	if (t->created)
		EXPECT(SHARD_OK, shard_seal(t->model, 0));
}

void trainer_join(struct trainer *t, const char *address, enum shard_dtype image,
		  enum shard_dtype grad)
{
	trainer_define(t, address, image, grad);
	EXPECT(SHARD_OK, shard_join(t->model, -1, pace_ms(10000), &t->world));
}

void trainer_looks(struct trainer *t, uint64_t ns)
{
	pthread_mutex_lock(&t->client->lock); /* Over tcp a thread of the library runs. */
	t->client->look_ns = ns;
	pthread_mutex_unlock(&t->client->lock);
}

void trainer_cut(struct trainer *t)
{
	enum shard_status rc;

	pthread_mutex_lock(&t->client->lock);
	CHECK(shutdown(stream_fd(t->client->stream), SHUT_RDWR) == 0);
	pthread_mutex_unlock(&t->client->lock);
	while ((rc = shard_progress(t->client)) == SHARD_OK)
		sched_yield();
	EXPECT(SHARD_WORLD_CHANGED, rc);
	EXPECT(SHARD_OK, shard_world_get(t->model, &t->world));
}

void trainer_begin(struct trainer *t)
{
	EXPECT(SHARD_OK, shard_begin(t->model, NULL, &t->step));
}

void trainer_push_all(struct trainer *t, float value)
{
	float *g = malloc(3000 * sizeof(*g));
	uint64_t until = pace_by(10);
	enum shard_status st;
	shard_ticket ticket;

	CHECK(g != NULL);
	for (int i = 0; i < 3000; i++)
		g[i] = value;
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
		EXPECT(SHARD_OK, shard_push(t->model, i, 0, trainer_numel[i], g, SHARD_F32,
					    SHARD_CAST, &ticket));
		/* The library's own thread may be at work on it. */
		while ((st = shard_test(t->model, ticket)) == SHARD_AGAIN && clock_ns() < until)
			sched_yield();
		EXPECT(SHARD_OK, st);
	}
	free(g);
}

float trainer_image_at(struct trainer *t, enum shard_dtype image, uint32_t tensor, uint64_t i)
{
	const char *p = shard_image(t->model, tensor);
	float out;

	assert_non_null(p);
	dtype_convert(&out, SHARD_F32, p + i * dtype_bytes(image), image, 1);
	return out;
}

void trainer_check_image(struct trainer *t, enum shard_dtype image, float minus)
{
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++)
		for (uint64_t k = 0; k < trainer_numel[i]; k += 1 + k / 7)
			assert_true(trainer_image_at(t, image, i, k) ==
				    trainer_weight(i, k) - minus);
}

void trainer_end(struct trainer *t)
{
	shard_disconnect(&t->client);
}
