/* SPDX-License-Identifier: Apache-2.0 */
/* tablewire.h: converts the tables of a placement to Tables of wire/shard.proto and back. */
#ifndef SHARD_TABLEWIRE_H
#define SHARD_TABLEWIRE_H

#include "base/arena.h"
#include "core/place.h"
#include "shard.pb-c.h"

/* The tables lie in the arena, which needs tablewire_bytes() for them, and every
 * number of them is checked, but for a view's members and masks. */
enum shard_status tablewire_pack(const struct placement *p, struct arena *a, Shard__Tables *out);
enum shard_status tablewire_unpack(const Shard__Tables *in, uint32_t chunks_nr, uint16_t nodes_nr,
				   struct arena *a, struct placement *p, struct err *e);
size_t tablewire_bytes(const Shard__Tables *in);

#endif
