/* SPDX-License-Identifier: Apache-2.0 */
/* evil.h: a trainer that knows the protocol and sends what it likes, by frames and without the
 * library. It trains a model of its own ("evil", 3000 elements in 3 chunks, a world of one).
 * evil_open() brings it as far as a test needs it. */
#ifndef SHARD_TESTS_EVIL_H
#define SHARD_TESTS_EVIL_H

#include "base/rng.h"
#include "lib/rawpeer.h"
#include "shard.pb-c.h"

enum { EVIL_ELEMS = 3000 };

struct evil {
	struct raw r;
	/* The head of the ATTEMPT, from which the heads of this attempt are made. */
	struct wire_head now;
	uint32_t model, generation;
	const char *name; /* The model's name. */
	uint64_t elems;
	const char *settings;
};

enum evil_depth { EVIL_CONNECTED, EVIL_GREETED, EVIL_DEFINED, EVIL_JOINED };

void evil_open(struct evil *v, const char *address, enum evil_depth depth);
/* The same with settings for the model, joined. */
void evil_open_as(struct evil *v, const char *address, const char *settings);
/* Joins another model, "evil-parts", with one chunk of EVIL_PARTS whole parts of the wire. */
enum { EVIL_PARTS = 3 };
void evil_open_parts(struct evil *v, const char *address);
/* Fills the definition. Everything in it points into the caller's variables. */
void evil_spec(Shard__Define *d, Shard__Spec *s, Shard__Tensor *t, Shard__Tensor **list,
	       uint64_t *shape);
struct wire_head evil_head(const struct evil *v, uint16_t op,
			   uint32_t chunk); /* Of the attempt in hand. */
/* The head is nearly one of the attempt in hand. The body has some length, and body must have room
 * for 4096 bytes. */
struct wire_head evil_fuzz_head(const struct evil *v, struct rng *rng);
uint32_t evil_fuzz_body(unsigned char *body, const struct wire_op_row *row, struct rng *rng);

#endif
