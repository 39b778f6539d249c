/* SPDX-License-Identifier: Apache-2.0 */
/* Converts the tables of a placement to protobuf and back: runs of chunks with the same primary,
 * and runs with the same holders, where chunks lie and where they move. corewire.c has them of a
 * view, and tables.c and moving.c send them alone. Packing fails only if the arena is too small.
 * Tables from outside are refused with SHARD_PROTOCOL unless they are of the chunks that the model
 * has, on slots that the cluster has. */
#include "model/tablewire.h"

#include "base/check.h"
#include "core/moves.h"
#include "wire/layout.h"
#include "wire/place.h"

static void *take(struct arena *a, size_t n, size_t bytes)
{
	return arena_take(a, n * bytes);
}

static uint32_t *pack_primary(const uint16_t *primary, uint32_t chunks_nr, struct arena *a,
			      size_t *runs_nr)
{
	uint32_t *runs = take(a, 2 * (size_t)chunks_nr, sizeof(*runs));

	if (runs != NULL)
		*runs_nr = 2 * (size_t)place_encode(runs, chunks_nr, primary, chunks_nr);
	return runs;
}

static uint64_t *pack_holders(const uint64_t *holders, uint32_t chunks_nr, struct arena *a,
			      size_t *runs_nr)
{
	uint64_t *runs = take(a, 2 * (size_t)chunks_nr, sizeof(*runs));

	if (runs != NULL)
		*runs_nr = 2 * (size_t)place_encode_holders(runs, chunks_nr, holders, chunks_nr);
	return runs;
}

enum shard_status tablewire_pack(const struct placement *p, struct arena *a, Shard__Tables *out)
{
	uint32_t nr = p->chunks_nr;

	shard__tables__init(out);
	if ((out->primary = pack_primary(p->primary, nr, a, &out->n_primary)) == NULL)
		return SHARD_AGAIN;
	if (p->holders != NULL &&
	    (out->holders = pack_holders(p->holders, nr, a, &out->n_holders)) == NULL)
		return SHARD_AGAIN;
	if (p->to == NULL)
		return SHARD_OK;
	out->to_primary = pack_primary(p->to_primary, nr, a, &out->n_to_primary);
	out->to = pack_holders(p->to, nr, a, &out->n_to);
	return out->to_primary != NULL && out->to != NULL ? SHARD_OK : SHARD_AGAIN;
}

size_t tablewire_bytes(const Shard__Tables *in)
{
	size_t nr = place_chunks(in->primary, in->n_primary, LAYOUT_CHUNKS_MAX);

	return 4 * 16 + nr * 2 * (sizeof(uint16_t) + sizeof(uint64_t));
}

/* One of the two tables. Where there are no holders, the primaries are alone. */
static enum shard_status unpack_table(const uint32_t *runs, size_t runs_nr, const uint64_t *masks,
				      size_t masks_nr, uint16_t nodes_nr, struct arena *a,
				      struct placement *p, struct err *e)
{
	uint16_t *primary = take(a, p->chunks_nr, sizeof(*primary));
	uint64_t *holders = masks_nr > 0 ? take(a, p->chunks_nr, sizeof(*holders)) : NULL;
	const char *why;

	if (primary == NULL || (masks_nr > 0 && holders == NULL))
		return err_set(e, SHARD_PROTOCOL,
			       "tables of %u chunks, which are larger than this node's control "
			       "memory",
			       p->chunks_nr);
	why = runs_nr > UINT32_MAX
		      ? "placement: runs do not fit the number of chunks"
		      : place_decode(primary, p->chunks_nr, nodes_nr, runs, (uint32_t)runs_nr);
	if (why == NULL && holders != NULL)
		why = place_decode_holders(holders, primary, p->chunks_nr, nodes_nr, 0, masks,
					   masks_nr);
	if (why != NULL)
		return err_set(e, SHARD_PROTOCOL, "tables of %u chunks: %s", p->chunks_nr, why);
	p->primary = primary;
	p->holders = holders;
	return SHARD_OK;
}

enum shard_status tablewire_unpack(const Shard__Tables *in, uint32_t chunks_nr, uint16_t nodes_nr,
				   struct arena *a, struct placement *p, struct err *e)
{
	struct placement from = {.chunks_nr = chunks_nr}, to;

	if (chunks_nr == 0)
		from.chunks_nr = place_chunks(in->primary, in->n_primary, LAYOUT_CHUNKS_MAX);
	to = from;
	if (from.chunks_nr == 0)
		return err_set(e, SHARD_PROTOCOL, "tables of no chunk, or of more than %u",
			       LAYOUT_CHUNKS_MAX);
	if (unpack_table(in->primary, in->n_primary, in->holders, in->n_holders, nodes_nr, a, &from,
			 e) != SHARD_OK)
		return e->status;
	if (in->n_to == 0 && in->n_to_primary == 0) {
		*p = place_of(from.primary, from.holders, from.chunks_nr);
		return SHARD_OK;
	}
	if (in->n_to == 0)
		return err_set(e, SHARD_PROTOCOL, "tables of %u chunks that move to no holders",
			       from.chunks_nr);
	if (unpack_table(in->to_primary, in->n_to_primary, in->to, in->n_to, nodes_nr, a, &to, e) !=
	    SHARD_OK)
		return e->status;
	*p = place_moving(from.primary, from.holders, to.primary, to.holders, from.chunks_nr);
	return SHARD_OK;
}
