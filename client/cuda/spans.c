// SPDX-License-Identifier: Apache-2.0
/* Ranges of elements that were pushed, as one list for each tensor. copies.c asks before each push
 * and adds after it. Most tensors are pushed whole and have one span. A range that continues one
 * extends it. */
#include "cuda/spans.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

bool spans_init(struct spans *s, uint32_t tensors)
{
	*s = (struct spans){.tensors = tensors};
	s->head = calloc(tensors + 1, sizeof(*s->head));
	return s->head != NULL && spans_room(s);
}

void spans_deinit(struct spans *s)
{
	free(s->head);
	free(s->span);
	*s = (struct spans){0};
}

void spans_reset(struct spans *s)
{
	memset(s->head, 0, s->tensors * sizeof(*s->head));
	s->nr = 0;
}

bool spans_room(struct spans *s)
{
	uint32_t cap = s->cap ? 2 * s->cap : s->tensors + 16;
	struct span *more;

	if (s->nr < s->cap)
		return true;
	more = realloc(s->span, cap * sizeof(*more));
	if (more == NULL)
		return false;
	s->span = more;
	s->cap = cap;
	return true;
}

bool spans_overlap(const struct spans *s, uint32_t tensor, uint64_t first, uint64_t end)
{
	CHECK(tensor < s->tensors && first < end);
	for (uint32_t i = s->head[tensor]; i != 0; i = s->span[i - 1].next)
		if (first < s->span[i - 1].end && s->span[i - 1].first < end)
			return true;
	return false;
}

void spans_add(struct spans *s, uint32_t tensor, uint64_t first, uint64_t end)
{
	CHECK(tensor < s->tensors && first < end && s->nr < s->cap);
	for (uint32_t i = s->head[tensor]; i != 0; i = s->span[i - 1].next) {
		if (s->span[i - 1].end == first) {
			s->span[i - 1].end = end;
			return;
		}
		if (s->span[i - 1].first == end) {
			s->span[i - 1].first = first;
			return;
		}
	}
	s->span[s->nr] = (struct span){first, end, s->head[tensor]};
	s->head[tensor] = ++s->nr;
}
