/* SPDX-License-Identifier: Apache-2.0 */
/* Puts the tables of placement on the wire, and reads them. The coordinator writes them into the
 * definition of a model, and every node that receives it decodes them. Only decoding can fail. */
#include "wire/place.h"

#include "base/check.h"

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
		if (copies > 0 && (uint32_t)__builtin_popcountll(runs[i]) != copies)
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

uint32_t place_chunks(const uint32_t *runs, size_t runs_nr, uint32_t chunks_max)
{
	uint32_t nr = 0;

	for (size_t i = 1; i < runs_nr; i += 2) {
		if (runs[i] > chunks_max - nr)
			return 0;
		nr += runs[i];
	}
	return nr;
}

const char *place_wrong(const uint16_t *primary, const uint64_t *holders, uint32_t chunks_nr,
			uint16_t nodes_nr)
{
	CHECK(nodes_nr > 0 && nodes_nr <= PLACE_NODES_MAX);
	for (uint32_t c = 0; c < chunks_nr; c++) {
		if (primary[c] >= nodes_nr)
			return "placement: a node that is not in the cluster";
		if (holders != NULL && holders[c] & ~(UINT64_MAX >> (PLACE_NODES_MAX - nodes_nr)))
			return "holders: a node that is not in the cluster";
		if (holders != NULL && !(holders[c] >> primary[c] & 1))
			return "holders: a chunk whose primary does not hold it";
	}
	return NULL;
}
