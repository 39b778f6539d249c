/* SPDX-License-Identifier: Apache-2.0 */
/* Computes which node holds each chunk, and puts tables on the wire. The coordinator calls it when
 * a model is defined or its members change, and every node that receives the table decodes it. All
 * nodes get an equal share. The chunks that are left over go to the nodes that held most before, so
 * that fewest chunks move. A node over its share gives up its highest chunks. Chunks without a
 * holder go, in chunk order, to the member that holds least. Only decoding can fail. */
#include "wire/place.h"

#include "base/check.h"

struct shares {
	uint32_t held[PLACE_NODES_MAX]; /* By node: chunks that it holds now. */
	/* By node: chunks that it shall hold. 0 for a node that is no member. */
	uint32_t share[PLACE_NODES_MAX];
};

/* Each member gets chunks / members. The remainder goes to the members that held most, and among
 * equals to the lowest number. */
static void share_out(struct shares *s, uint32_t chunks_nr, const uint16_t *members,
		      uint16_t members_nr)
{
	uint32_t each = chunks_nr / members_nr, odd = chunks_nr % members_nr;

	for (uint16_t i = 0; i < members_nr; i++)
		s->share[members[i]] = each;
	for (; odd > 0; odd--) {
		uint16_t best = members[0];

		for (uint16_t i = 0; i < members_nr; i++) {
			uint16_t n = members[i];

			if (s->share[n] == each &&
			    (s->share[best] != each || s->held[n] > s->held[best]))
				best = n;
		}
		s->share[best]++;
	}
}

static uint16_t poorest(const struct shares *s, const uint16_t *members, uint16_t members_nr)
{
	uint16_t best = PLACE_NODES_MAX;

	for (uint16_t i = 0; i < members_nr; i++) {
		uint16_t n = members[i];

		if (s->held[n] < s->share[n] &&
		    (best == PLACE_NODES_MAX || s->held[n] < s->held[best]))
			best = n;
	}
	CHECK(best < PLACE_NODES_MAX);
	return best;
}

void place_fill(uint16_t *owner, uint32_t chunks_nr, const uint16_t *members, uint16_t members_nr,
		const uint16_t *previous)
{
	struct shares s = {0};
	bool member[PLACE_NODES_MAX] = {0};

	CHECK(members_nr > 0 && members_nr <= PLACE_NODES_MAX);
	for (uint16_t i = 0; i < members_nr; i++) {
		CHECK(members[i] < PLACE_NODES_MAX && (i == 0 || members[i] > members[i - 1]));
		member[members[i]] = true;
	}
	for (uint32_t c = 0; c < chunks_nr; c++) {
		bool keeps = previous && previous[c] < PLACE_NODES_MAX && member[previous[c]];

		owner[c] = keeps ? previous[c] : PLACE_NODES_MAX; /* Nobody. */
		if (keeps)
			s.held[previous[c]]++;
	}
	share_out(&s, chunks_nr, members, members_nr);
	for (uint32_t c = chunks_nr; c-- > 0;) {
		uint16_t n = owner[c];

		if (n < PLACE_NODES_MAX && s.held[n] > s.share[n]) {
			s.held[n]--;
			owner[c] = PLACE_NODES_MAX;
		}
	}
	for (uint32_t c = 0; c < chunks_nr; c++) {
		if (owner[c] != PLACE_NODES_MAX)
			continue;
		owner[c] = poorest(&s, members, members_nr);
		s.held[owner[c]]++;
	}
}

uint32_t place_encode(uint32_t *out, uint32_t pairs_max, const uint16_t *owner, uint32_t chunks_nr)
{
	uint32_t pairs = 0;

	for (uint32_t c = 0; c < chunks_nr; c++) {
		if (c > 0 && owner[c] == owner[c - 1]) {
			out[2 * pairs - 1]++;
			continue;
		}
		if (pairs == pairs_max)
			return 0;
		out[2 * pairs] = owner[c];
		out[2 * pairs + 1] = 1;
		pairs++;
	}
	return pairs;
}

const char *place_decode(uint16_t *owner, uint32_t chunks_nr, uint16_t nodes_nr,
			 const uint32_t *runs, uint32_t runs_nr)
{
	uint32_t at = 0;

	if (runs_nr % 2 != 0)
		return "placement: a run without a count";
	for (uint32_t i = 0; i < runs_nr; i += 2) {
		if (runs[i] >= nodes_nr)
			return "placement: a node that is not in the cluster";
		if (runs[i + 1] == 0 || runs[i + 1] > chunks_nr - at)
			return "placement: runs do not fit the number of chunks";
		for (uint32_t k = 0; k < runs[i + 1]; k++)
			owner[at++] = (uint16_t)runs[i];
	}
	return at == chunks_nr ? NULL : "placement: chunks without a node";
}

uint32_t place_encode_holders(uint64_t *out, uint32_t pairs_max, const uint64_t *holders,
			      uint32_t chunks_nr)
{
	uint32_t pairs = 0;

	for (uint32_t c = 0; c < chunks_nr; c++) {
		if (c > 0 && holders[c] == holders[c - 1]) {
			out[2 * pairs - 1]++;
			continue;
		}
		if (pairs == pairs_max)
			return 0;
		out[2 * pairs] = holders[c];
		out[2 * pairs + 1] = 1;
		pairs++;
	}
	return pairs;
}

const char *place_decode_holders(uint64_t *holders, const uint16_t *primary, uint32_t chunks_nr,
				 uint16_t nodes_nr, uint32_t copies, const uint64_t *runs,
				 size_t runs_nr)
{
	uint64_t nodes = UINT64_MAX;
	uint32_t at = 0;

	CHECK(nodes_nr > 0 && nodes_nr <= PLACE_NODES_MAX);
	nodes >>= PLACE_NODES_MAX - nodes_nr;
	if (runs_nr % 2 != 0)
		return "holders: a run without a count";
	for (size_t i = 0; i < runs_nr; i += 2) {
		if (runs[i] & ~nodes)
			return "holders: a node that is not in the cluster";
		if ((uint32_t)__builtin_popcountll(runs[i]) != copies)
			return "holders: another number of copies than the settings say";
		if (runs[i + 1] == 0 || runs[i + 1] > chunks_nr - at)
			return "holders: runs do not fit the number of chunks";
		for (uint64_t k = 0; k < runs[i + 1]; k++, at++) {
			if (!(runs[i] >> primary[at] & 1))
				return "holders: a chunk whose primary does not hold it";
			holders[at] = runs[i];
		}
	}
	return at == chunks_nr ? NULL : "holders: chunks without a node";
}
