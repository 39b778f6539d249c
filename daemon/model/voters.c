/* SPDX-License-Identifier: Apache-2.0 */
/* Who should vote. A voter that was replaced, or has been away for long, counts as down, so another
 * node joins before it leaves, except where there is no place for one more voter. */
#include "model/voters.h"

#include "base/check.h"

#include <string.h>

bool voters_has(const struct voters *v, const uint8_t *uuid)
{
	for (uint32_t i = 0; i < v->nr; i++)
		if (memcmp(v->uuid[i], uuid, MEMBER_UUID_BYTES) == 0)
			return true;
	return false;
}

/* A voter that is no node any more, or one of those that are gone. NULL: there is none, or nobody
 * knows yet. */
static const uint8_t *replaced(const struct voters *v, const uint8_t (*node)[MEMBER_UUID_BYTES],
			       uint64_t known, uint64_t gone, uint32_t nodes_nr)
{
	if ((known | gone) != UINT64_MAX >> (64 - nodes_nr))
		return NULL;
	for (uint32_t i = 0; i < v->nr; i++) {
		uint32_t n = 0;

		while (n < nodes_nr &&
		       (!(known >> n & 1) || memcmp(v->uuid[i], node[n], MEMBER_UUID_BYTES) != 0))
			n++;
		if (n == nodes_nr)
			return v->uuid[i];
	}
	return NULL;
}

const uint8_t *voters_next(const struct voters *v, const uint8_t (*node)[MEMBER_UUID_BYTES],
			   uint64_t known, uint64_t gone, uint32_t nodes_nr, bool *joins)
{
	uint32_t want = nodes_nr >= 5 ? 5 : nodes_nr >= 3 ? 3 : 1;
	const uint8_t *old;

	CHECK(nodes_nr >= 1 && nodes_nr <= 64 && v->nr <= MEMBER_VOTERS_MAX);
	CHECK(!(known & gone));
	old = replaced(v, node, known, gone, nodes_nr);
	*joins = false;
	if (old != NULL && (v->nr > want || want == MEMBER_VOTERS_MAX))
		return old;
	if (v->nr >= want + (old != NULL))
		return NULL;
	*joins = true;
	for (uint32_t n = 0; n < nodes_nr; n++)
		if (known >> n & 1 && !voters_has(v, node[n]))
			return node[n];
	return NULL;
}
