// SPDX-License-Identifier: Apache-2.0
/* Brings the evil trainer as far as a test needs it, with valid frames. Tests of hostile peers call
 * it, and send their own frames afterwards. Where the daemon does not do what it owes to any
 * trainer, the test fails. evil_fuzz_head() and evil_fuzz_body() make frames that are nearly
 * valid. */
#include "lib/evil.h"

#include "shard.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

void evil_spec(Shard__Define *d, Shard__Spec *s, Shard__Tensor *t, Shard__Tensor **list,
	       uint64_t *shape)
{
	shard__define__init(d);
	shard__spec__init(s);
	shard__tensor__init(t);
	*shape = EVIL_ELEMS;
	t->name = (char *)(uintptr_t) "w";
	t->n_shape = 1;
	t->shape = shape;
	*list = t;
	s->name = (char *)(uintptr_t) "evil";
	s->n_tensors = 1;
	s->tensors = list;
	s->image = s->grad = SHARD_F32;
	s->settings = (char *)(uintptr_t) "optimizer=sgd lr=1 chunk_elems=1024 min_world=1 "
					  "max_world=1 timeout=5s";
	d->spec = s;
}

static void evil_define(struct evil *v)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = 1};
	Shard__Define d;
	Shard__Spec s;
	Shard__Tensor t, *list[1];
	Shard__Defined *got;
	uint64_t shape;

	evil_spec(&d, &s, &t, list, &shape);
	shape = v->elems;
	s.name = (char *)(uintptr_t)v->name;
	s.settings = v->settings != NULL ? (char *)(uintptr_t)v->settings : s.settings;
	raw_send(&v->r, &h, &d.base);
	if (!raw_expect(&v->r, OP_DEFINE))
		fail_msg("DEFINE was not answered");
	got = shard__defined__unpack(NULL, v->r.head.body_bytes, v->r.body);
	v->model = got->model;
	v->generation = v->r.head.generation;
	if (!got->sealed) {
		static float w[1024];

		h = (struct wire_head){.op = OP_WRITE,
				       .attempt = 2,
				       .model = v->model,
				       .generation = v->generation,
				       .chunk = SHARD_MASTER};
		for (uint64_t at = 0; at < v->elems; at += 1024) {
			uint64_t n = v->elems - at < 1024 ? v->elems - at : 1024;

			h.step = at;
			raw_head(&v->r, &h, w, (uint32_t)(n * sizeof(w[0])));
			assert_true(raw_expect(&v->r, OP_WRITE));
		}
		h = (struct wire_head){.op = OP_SEAL, .attempt = 3, .model = v->model};
		raw_send(&v->r, &h, NULL);
		if (!raw_expect(&v->r, OP_SEAL))
			fail_msg("SEAL was not answered");
	}
	shard__defined__free_unpacked(got, NULL);
}

static void open_model(struct evil *v, const char *address, enum evil_depth depth)
{
	struct wire_head h = {.op = OP_JOIN, .attempt = 4};

	raw_connect(&v->r, address);
	if (depth >= EVIL_GREETED)
		raw_hello(&v->r, ROLE_TRAINER);
	if (depth >= EVIL_DEFINED)
		evil_define(v);
	if (depth < EVIL_JOINED)
		return;
	h.model = v->model;
	raw_send(&v->r, &h, NULL);
	if (!raw_expect(&v->r, OP_ATTEMPT))
		fail_msg("JOIN was not followed by an ATTEMPT");
	v->now = v->r.head;
}

void evil_open(struct evil *v, const char *address, enum evil_depth depth)
{
	*v = (struct evil){.name = "evil", .elems = EVIL_ELEMS};
	open_model(v, address, depth);
}

void evil_open_as(struct evil *v, const char *address, const char *settings)
{
	*v = (struct evil){.name = "evil", .elems = EVIL_ELEMS, .settings = settings};
	open_model(v, address, EVIL_JOINED);
}

void evil_open_parts(struct evil *v, const char *address)
{
	*v = (struct evil){.name = "evil-parts"};
	v->elems = EVIL_PARTS * (WIRE_PART_BYTES / sizeof(float));
	v->settings = "optimizer=sgd lr=1 min_world=1 max_world=1 timeout=5s";
	open_model(v, address, EVIL_JOINED);
}

struct wire_head evil_head(const struct evil *v, uint16_t op, uint32_t chunk)
{
	struct wire_head h = v->now;

	h.op = op;
	h.flags = 0;
	h.chunk = chunk;
	return h;
}

uint32_t evil_fuzz_body(unsigned char *body, const struct wire_op_row *row, struct rng *rng)
{
	static const uint32_t lengths[] = {0, 1, 2, 5, 17, 64, 300, 4096};

	uint32_t bytes = lengths[rng_below(rng, 8)];
	if (bytes < row->body_min)
		bytes = row->body_min;
	if (bytes > row->body_max)
		bytes = row->body_max;
	for (uint32_t i = 0; i < bytes; i++)
		body[i] = (unsigned char)(rng_below(rng, 3) ? rng_below(rng, 32) : rng_next(rng));
	return bytes;
}

struct wire_head evil_fuzz_head(const struct evil *v, struct rng *rng)
{
	struct wire_head h = v->now;

	h.model = v->model;
	do
		h.op = (uint16_t)rng_below(rng, rng_below(rng, 4) ? 56 : OP_NR);
	while (wire_op(h.op) == NULL);
	h.flags = rng_below(rng, 8)                  ? 0
		  : wire_op(h.op)->body == BODY_BULK ? WIRE_PART_FLAG(rng_below(rng, 4))
						     : WIRE_REPLY;
	h.chunk = (uint32_t)rng_below(rng, 6);
	switch (rng_below(rng, 8)) {
	case 0:
		h.step += rng_below(rng, 3) - 1;
		break;
	case 1:
		h.attempt += (uint32_t)rng_below(rng, 3) - 1;
		break;
	case 2:
		h.generation = (uint32_t)rng_next(rng);
		break;
	case 3:
		h.model = (uint32_t)rng_below(rng, 4);
		break;
	case 4:
		h.step = rng_next(rng) >> rng_below(rng, 64);
		break;
	default:
		break;
	}
	return h;
}
