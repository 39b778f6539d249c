// SPDX-License-Identifier: Apache-2.0
/* The bookkeeping of pushes. push.c calls it with the client's lock. Happy path: reset at begin,
 * claim and fill per push, missing at commit. It refuses a range that was pushed already and names
 * that part. It may also lack memory for spans. A step that pushes whole tensors needs no spans. */
#include "cover.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

static bool trainable(const struct layout *l, uint32_t tensor)
{
	return !(l->tensor[tensor].flags & SHARD_FROZEN);
}

enum shard_status cover_init(struct cover *c, const struct layout *l, struct err *e)
{
	memset(c, 0, sizeof(*c));
	c->layout = l;
	c->tensors = calloc(l->tensors_nr, sizeof(*c->tensors));
	c->left = calloc(l->chunks_nr, sizeof(*c->left));
	c->left_full = calloc(l->chunks_nr, sizeof(*c->left_full));
	if (c->tensors == NULL || c->left == NULL || c->left_full == NULL) {
		cover_deinit(c);
		return err_set(e, SHARD_SYSTEM, "out of memory for the bookkeeping of %u chunks",
			       l->chunks_nr);
	}
	for (uint32_t t = 0; t < l->tensors_nr; t++) {
		uint64_t at = l->tensor[t].offset, end = at + l->tensor[t].numel;

		if (!trainable(l, t))
			continue;
		for (uint64_t n; at < end; at += n) {
			n = layout_piece(l, at, end);
			c->left_full[at / l->chunk_elems] += (uint32_t)n;
		}
	}
	return SHARD_OK;
}

void cover_deinit(struct cover *c)
{
	for (uint32_t t = 0; c->tensors != NULL && t < c->layout->tensors_nr; t++)
		free(c->tensors[t].spans);
	free(c->tensors);
	free(c->left);
	free(c->left_full);
	memset(c, 0, sizeof(*c));
}

void cover_reset(struct cover *c, cover_complete_fn complete, void *arg)
{
	for (uint32_t t = 0; t < c->layout->tensors_nr; t++) {
		c->tensors[t].claimed = 0;
		c->tensors[t].lies = LIES_NOWHERE;
		c->tensors[t].absent = c->tensors[t].shared = false;
		c->tensors[t].spans_nr = 0;
	}
	memcpy(c->left, c->left_full, c->layout->chunks_nr * sizeof(*c->left));
	c->complete = 0;
	for (uint32_t i = 0; i < c->layout->chunks_nr; i++)
		if (c->left[i] == 0) {
			c->complete++;
			complete(arg, i);
		}
}

static enum shard_status duplicate(const struct cover *c, uint32_t tensor, uint64_t first,
				   uint64_t end, struct err *e)
{
	return err_set(e, SHARD_DUPLICATE,
		       "push of \"%.200s\": elements %llu to %llu were pushed already in this step",
		       c->layout->tensor[tensor].name, (ull)first, (ull)end - 1);
}

static bool spans_grow(struct cover_tensor *t)
{
	uint32_t room = t->spans_room ? t->spans_room * 2 : 8;
	struct span *more;

	if (t->spans_nr < t->spans_room)
		return true;
	more = realloc(t->spans, room * sizeof(*more));
	if (more == NULL)
		return false;
	t->spans = more;
	t->spans_room = room;
	return true;
}

/* Inserts [first, end), which overlaps no other span, and joins it with its neighbours. */
static void spans_insert(struct cover_tensor *t, uint32_t at, uint64_t first, uint64_t end)
{
	bool left = at > 0 && t->spans[at - 1].end == first,
	     right = at < t->spans_nr && t->spans[at].first == end;

	if (left && right) {
		t->spans[at - 1].end = t->spans[at].end;
		memmove(&t->spans[at], &t->spans[at + 1],
			(t->spans_nr - at - 1) * sizeof(*t->spans));
		t->spans_nr--;
	} else if (left) {
		t->spans[at - 1].end = end;
	} else if (right) {
		t->spans[at].first = first;
	} else {
		memmove(&t->spans[at + 1], &t->spans[at], (t->spans_nr - at) * sizeof(*t->spans));
		t->spans[at] = (struct span){first, end};
		t->spans_nr++;
	}
}

enum shard_status cover_claim(struct cover *c, uint32_t tensor, uint64_t first, uint64_t count,
			      struct err *e)
{
	struct cover_tensor *t = &c->tensors[tensor];
	uint64_t numel = c->layout->tensor[tensor].numel, end = first + count;
	uint32_t lo = 0, hi = t->spans_nr;

	CHECK(count > 0 && end <= numel);
	if (t->absent)
		return err_set(e, SHARD_DUPLICATE,
			       "push of \"%.200s\" after shard_push_none() of it in this step",
			       c->layout->tensor[tensor].name);
	if (t->claimed == numel)
		return duplicate(c, tensor, first, end, e);
	if (count == numel && t->claimed == 0) { /* A whole tensor needs no span. */
		t->claimed = numel;
		return SHARD_OK;
	}
	while (lo < hi) { /* The first span that ends after first. */
		uint32_t mid = (lo + hi) / 2;

		if (t->spans[mid].end > first)
			hi = mid;
		else
			lo = mid + 1;
	}
	if (lo < t->spans_nr && t->spans[lo].first < end) {
		const struct span *s = &t->spans[lo];

		return duplicate(c, tensor, s->first > first ? s->first : first,
				 s->end < end ? s->end : end, e);
	}
	if (!spans_grow(t))
		return err_set(e, SHARD_SYSTEM, "out of memory for the parts of \"%.200s\"",
			       c->layout->tensor[tensor].name);
	spans_insert(t, lo, first, end);
	t->claimed += count;
	return SHARD_OK;
}

enum shard_status cover_claim_absent(struct cover *c, uint32_t tensor, struct err *e)
{
	struct cover_tensor *t = &c->tensors[tensor];

	if (t->absent || t->claimed > 0)
		return err_set(e, SHARD_DUPLICATE,
			       "shard_push_none() of \"%.200s\", of which %llu of %llu elements "
			       "were pushed already",
			       c->layout->tensor[tensor].name, (ull)t->claimed,
			       (ull)c->layout->tensor[tensor].numel);
	t->absent = true;
	t->claimed = c->layout->tensor[tensor].numel;
	return SHARD_OK;
}

enum shard_status cover_claim_share(struct cover *c, uint32_t tensor, uint64_t first,
				    uint64_t count, bool later, struct err *e)
{
	struct cover_tensor *t = &c->tensors[tensor];
	uint64_t numel = c->layout->tensor[tensor].numel;

	CHECK(count <= numel && first <= numel - count);
	if (t->shared)
		return err_set(e, SHARD_DUPLICATE,
			       "push of a share of \"%.200s\": this rank's share in this step is "
			       "%llu elements from %llu on, and was pushed already",
			       c->layout->tensor[tensor].name, (ull)(t->share.end - t->share.first),
			       (ull)t->share.first);
	if (t->absent || t->claimed > 0)
		return err_set(e, SHARD_DUPLICATE,
			       "push of a share of \"%.200s\", of which %llu of %llu elements were "
			       "pushed without SHARD_SHARE already in this step",
			       c->layout->tensor[tensor].name, (ull)(t->absent ? 0 : t->claimed),
			       (ull)numel);
	t->shared = true;
	t->share = (struct span){first, first + count};
	t->claimed = later ? numel - count : numel;
	return SHARD_OK;
}

void cover_fill(struct cover *c, uint32_t tensor, uint64_t first, uint64_t count,
		cover_complete_fn complete, void *arg)
{
	const struct layout *l = c->layout;
	uint64_t at = l->tensor[tensor].offset + first, end = at + count;

	for (uint64_t n; at < end; at += n) {
		uint32_t chunk = (uint32_t)(at / l->chunk_elems);

		n = layout_piece(l, at, end);
		CHECK(c->left[chunk] >= n);
		c->left[chunk] -= (uint32_t)n;
		if (c->left[chunk] == 0) {
			c->complete++;
			complete(arg, chunk);
		}
	}
}

void cover_rest(struct cover *c, cover_complete_fn complete, void *arg)
{
	for (uint32_t i = 0; i < c->layout->chunks_nr; i++) {
		if (c->left[i] == 0)
			continue;
		c->left[i] = 0;
		c->complete++;
		complete(arg, i);
	}
}

bool cover_absent(const struct cover *c, uint32_t tensor)
{
	return c->tensors[tensor].absent || !trainable(c->layout, tensor);
}

enum shard_status cover_missing(const struct cover *c, struct err *e)
{
	const struct layout *l = c->layout;
	uint32_t missing = 0, all = 0;
	char names[256];
	int at = 0;

	names[0] = 0;
	for (uint32_t t = 0; t < l->tensors_nr; t++) {
		if (!trainable(l, t))
			continue;
		all++;
		if (c->tensors[t].claimed == l->tensor[t].numel)
			continue;
		if (missing++ >= 3 || at < 0 || (size_t)at >= sizeof(names))
			continue;
		if (c->tensors[t].claimed == 0)
			at += snprintf(names + at, sizeof(names) - (size_t)at, "%s%.60s",
				       missing > 1 ? ", " : "", l->tensor[t].name);
		else
			at += snprintf(names + at, sizeof(names) - (size_t)at,
				       "%s%.60s (%llu of %llu elements)", missing > 1 ? ", " : "",
				       l->tensor[t].name, (ull)c->tensors[t].claimed,
				       (ull)l->tensor[t].numel);
	}
	if (missing == 0)
		return SHARD_OK;
	return err_set(e, SHARD_MISSING,
		       "%u of %u tensors were not pushed: %s%s: push them, or shard_push_none()",
		       missing, all, names, missing > 3 ? ", ..." : "");
}
