// SPDX-License-Identifier: Apache-2.0
/* The bookkeeping of SHARD_ADD. push.c calls it. Claims are made with the client's lock and the
 * model's adding lock, sums with the latter only. So the operands of an element are added in the
 * order of the pushes. A sum starts with its first operand, is kept in fp32 and is rounded once. It
 * fails on more pushes of an element than there are micro-steps, and without memory. */
#include "adds.h"

#include "base/check.h"
#include "wire/dtype.h"

#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

enum { BLOCK = 1024 };

enum shard_status adds_init(struct adds *a, const struct layout *l, struct err *e)
{
	a->layout = l;
	a->tensors = calloc(l->tensors_nr, sizeof(*a->tensors));
	a->sum = malloc(l->elems * sizeof(*a->sum));
	if (a->tensors != NULL && a->sum != NULL)
		return SHARD_OK;
	adds_deinit(a);
	return err_set(e, SHARD_SYSTEM, "out of memory for the sums of micro-steps: %llu bytes",
		       (ull)(l->elems * sizeof(*a->sum)));
}

void adds_deinit(struct adds *a)
{
	for (uint32_t t = 0; a->tensors != NULL && t < a->layout->tensors_nr; t++) {
		free(a->tensors[t].spans);
		free(a->tensors[t].spare);
	}
	free(a->tensors);
	free(a->sum);
	memset(a, 0, sizeof(*a));
}

void adds_reset(struct adds *a)
{
	for (uint32_t t = 0; a->tensors != NULL && t < a->layout->tensors_nr; t++)
		a->tensors[t].none = a->tensors[t].spans_nr = 0;
}

static bool grow(struct adds_tensor *t, uint32_t room)
{
	struct adds_span *more;

	if (room <= t->room)
		return true;
	if ((more = realloc(t->spans, room * sizeof(*more))) == NULL)
		return false;
	t->spans = more;
	if ((more = realloc(t->spare, room * sizeof(*more))) == NULL)
		return false;
	t->spare = more;
	t->room = room;
	return true;
}

static uint32_t put(struct adds_span *list, uint32_t nr, uint64_t first, uint64_t end,
		    uint32_t times)
{
	if (first >= end)
		return nr;
	if (nr > 0 && list[nr - 1].end == first && list[nr - 1].times == times) {
		list[nr - 1].end = end;
		return nr;
	}
	list[nr] = (struct adds_span){first, end, times};
	return nr + 1;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Makes the list anew, with [first, end) counted once more. */
static void count_range(struct adds_tensor *t, uint64_t first, uint64_t end)
{
	struct adds_span *old = t->spans;
	uint64_t at = first;
	uint32_t nr = 0;

	for (uint32_t i = 0; i < t->spans_nr; i++) {
		uint64_t low = larger(old[i].first, first), high = smaller(old[i].end, end);

		/* The span is beside the range. Elements between spans are new. */
		if (low >= high) {
			if (old[i].first >= end) {
				nr = put(t->spare, nr, at, end, 1);
				at = end;
			}
			nr = put(t->spare, nr, old[i].first, old[i].end, old[i].times);
			continue;
		}
		nr = put(t->spare, nr, old[i].first, low, old[i].times);
		nr = put(t->spare, nr, at, low, 1);
		nr = put(t->spare, nr, low, high, old[i].times + 1);
		nr = put(t->spare, nr, high, old[i].end, old[i].times);
		at = high;
	}
	nr = put(t->spare, nr, at, end, 1);
	CHECK(nr <= t->room);
	t->spans = t->spare;
	t->spare = old;
	t->spans_nr = nr;
}

static uint32_t times_at(const struct adds *a, uint32_t tensor, uint64_t at, uint64_t *until)
{
	const struct adds_tensor *t = &a->tensors[tensor];
	uint32_t low = 0, high = t->spans_nr; /* The first span that ends after at. */

	while (low < high) {
		uint32_t mid = (low + high) / 2;

		if (t->spans[mid].end > at)
			high = mid;
		else
			low = mid + 1;
	}
	*until = a->layout->tensor[tensor].numel;
	if (low == t->spans_nr)
		return 0;
	*until = t->spans[low].first > at ? t->spans[low].first : t->spans[low].end;
	return t->spans[low].first > at ? 0 : t->spans[low].times;
}

enum shard_status adds_claim(struct adds *a, uint32_t tensor, uint64_t first, uint64_t count,
			     struct err *e)
{
	struct adds_tensor *t = &a->tensors[tensor];
	uint64_t end = first + count, until;

	CHECK(count > 0 && end <= a->layout->tensor[tensor].numel);
	for (uint64_t at = first; at < end; at = until)
		if (times_at(a, tensor, at, &until) + t->none >= a->micro_steps)
			return err_set(e, SHARD_DUPLICATE,
				       "push of \"%.200s\": elements %llu to %llu were pushed in "
				       "all %u micro-steps already",
				       a->layout->tensor[tensor].name, (ull)at,
				       (ull)smaller(until, end) - 1, a->micro_steps);
	if (!grow(t, 2 * t->spans_nr + 3))
		return err_set(e, SHARD_SYSTEM, "out of memory for the parts of \"%.200s\"",
			       a->layout->tensor[tensor].name);
	count_range(t, first, end);
	return SHARD_OK;
}

enum shard_status adds_claim_none(struct adds *a, uint32_t tensor, struct err *e)
{
	struct adds_tensor *t = &a->tensors[tensor];
	uint32_t most = 0;

	for (uint32_t i = 0; i < t->spans_nr; i++)
		most = t->spans[i].times > most ? t->spans[i].times : most;
	if (most + t->none >= a->micro_steps)
		return err_set(e, SHARD_DUPLICATE,
			       "shard_push_none() of \"%.200s\", of which elements were pushed in "
			       "all %u micro-steps already",
			       a->layout->tensor[tensor].name, a->micro_steps);
	t->none++;
	return SHARD_OK;
}

bool adds_pushed(const struct adds *a, uint32_t tensor)
{
	return a->tensors[tensor].spans_nr > 0;
}

static void add(float *sum, const void *src, enum shard_dtype dtype, uint64_t n)
{
	const char *from = src;
	float block[BLOCK];

	for (uint64_t nr; n > 0; n -= nr, sum += nr, from += nr * dtype_bytes(dtype)) {
		nr = n < BLOCK ? n : BLOCK;
		dtype_convert(block, SHARD_F32, from, dtype, nr);
		for (uint64_t i = 0; i < nr; i++)
			sum[i] += block[i];
	}
}

void adds_add(struct adds *a, uint32_t tensor, uint64_t first, uint64_t count, const void *src,
	      enum shard_dtype dtype)
{
	float *sum = a->sum + a->layout->tensor[tensor].offset;
	uint64_t end = first + count, until;

	for (uint64_t at = first; at < end; at = until) {
		uint32_t times = times_at(a, tensor, at, &until);
		const char *from = (const char *)src + (at - first) * dtype_bytes(dtype);

		until = smaller(until, end);
		CHECK(times > 0);
		if (times == 1)
			dtype_convert(sum + at, SHARD_F32, from, dtype, until - at);
		else
			add(sum + at, from, dtype, until - at);
	}
}

bool adds_complete(const struct adds *a, uint32_t tensor, uint64_t at, uint64_t *until)
{
	return times_at(a, tensor, at, until) + a->tensors[tensor].none == a->micro_steps;
}

void adds_round(const struct adds *a, uint32_t tensor, uint64_t first, uint64_t count, void *dst,
		enum shard_dtype dtype)
{
	dtype_convert(dst, dtype, a->sum + a->layout->tensor[tensor].offset + first, SHARD_F32,
		      count);
}

bool adds_absent(const struct adds *a, uint32_t tensor)
{
	return a->tensors[tensor].none == a->micro_steps;
}
