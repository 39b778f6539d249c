/* SPDX-License-Identifier: Apache-2.0 */
/* evil.h: a trainer of a model of its own ("evil", 3000 elements in 3 chunks, a world of one) who
 * knows the protocol and says what it likes; brought as far as a test needs it, by frames, without
 * the library. */
#ifndef SHARD_TESTS_EVIL_H
#define SHARD_TESTS_EVIL_H

#include "base/rng.h"
#include "lib/rawpeer.h"
#include "shard.pb-c.h"

enum { EVIL_ELEMS = 3000 };

struct evil {
	struct raw r;
	struct wire_head now; /* of the ATTEMPT: what heads of this attempt say */
	uint32_t model, generation;
	const char *name; /* of its model; "evil" where a test does not say otherwise */
	uint64_t elems;
	const char *settings;
};

enum evil_depth { EVIL_CONNECTED, EVIL_GREETED, EVIL_DEFINED, EVIL_JOINED };

void evil_open(struct evil *v, const char *address, enum evil_depth depth);
/* Joined to another model: "evil-parts", one chunk of EVIL_PARTS whole parts of the wire. */
enum { EVIL_PARTS = 3 };
void evil_open_parts(struct evil *v, const char *address);
/* The definition: everything in it points into the caller's variables. */
void evil_spec(Shard__Define *d, Shard__Spec *s, Shard__Tensor *t, Shard__Tensor **list,
	       uint64_t *shape);
struct wire_head evil_head(const struct evil *v, uint16_t op,
			   uint32_t chunk); /* of the attempt in hand */
/* A head that is nearly one of the attempt in hand; a body of some length, body has room for 4096
 * bytes. */
struct wire_head evil_fuzz_head(const struct evil *v, struct rng *rng);
uint32_t evil_fuzz_body(unsigned char *body, const struct wire_op_row *row, struct rng *rng);

#endif
