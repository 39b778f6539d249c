/* SPDX-License-Identifier: Apache-2.0 */
/* adds.h: gradients of several micro-steps that become one (SHARD_ADD). It counts how often each
 * element was pushed, and keeps its sum in fp32. An element that was pushed micro_steps times goes
 * on as an ordinary push (cover.h). It only decides and adds, without I/O, lock or clock. */
#ifndef SHARD_ADDS_H
#define SHARD_ADDS_H

#include "wire/layout.h"

struct adds_span {
	uint64_t first, end;
	uint32_t times;
};

struct adds_tensor {
	uint32_t none;                   /* Micro-steps without a gradient of this tensor. */
	struct adds_span *spans, *spare; /* Sorted. An element in no span was not pushed. */
	uint32_t spans_nr, room;         /* room: of both. */
};

struct adds {
	const struct layout *layout;
	uint32_t micro_steps; /* Set by the caller before adds_reset(). */
	struct adds_tensor *tensors;
	float *sum; /* [elems]. */
};

/* SHARD_SYSTEM: no memory. The sums take four bytes per element of the model. */
enum shard_status adds_init(struct adds *a, const struct layout *l, struct err *e);
void adds_deinit(struct adds *a);
void adds_reset(struct adds *a); /* Forgets everything. */
/* SHARD_OK. SHARD_DUPLICATE: an element was pushed micro_steps times already. SHARD_SYSTEM: no
 * memory. */
enum shard_status adds_claim(struct adds *a, uint32_t tensor, uint64_t first, uint64_t count,
			     struct err *e);
enum shard_status adds_claim_none(struct adds *a, uint32_t tensor, struct err *e);
/* Whether a micro-step brought a gradient of it. */
bool adds_pushed(const struct adds *a, uint32_t tensor);
/* Adds a claimed range. src holds count elements of dtype. */
void adds_add(struct adds *a, uint32_t tensor, uint64_t first, uint64_t count, const void *src,
	      enum shard_dtype dtype);
/* Returns whether the element at `at` is complete. Up to *until the answer is the same. *until is
 * at most the tensor's end. */
bool adds_complete(const struct adds *a, uint32_t tensor, uint64_t at, uint64_t *until);
void adds_round(const struct adds *a, uint32_t tensor, uint64_t first, uint64_t count, void *dst,
		enum shard_dtype dtype);
bool adds_absent(const struct adds *a, uint32_t tensor); /* No micro-step brought a gradient. */

#endif
