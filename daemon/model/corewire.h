/* SPDX-License-Identifier: Apache-2.0 */
/* corewire.h: converts the messages of daemon/core to the Core message of wire/shard.proto and
 * back. Memory for both ways comes from an arena, which the caller resets when the frame is sent or
 * the event is over. Every value of a body is checked against the limits of record.h and the
 * model's own counts before it is used. */
#ifndef SHARD_COREWIRE_H
#define SHARD_COREWIRE_H

#include "base/arena.h"
#include "core/core.h"
#include "shard.pb-c.h"
#include "wire/frame.h"

struct corewire_limits {
	uint32_t chunks_nr, groups_nr, max_world,
		local_world; /* max_world and local_world, of a world: 0 means no limit of the
				model's own. */
	uint16_t nodes_nr;
	/* A view that has this slot names its member by this uuid. NULL: by any. */
	uint16_t self;
	const uint8_t *uuid;
	/* The placement of the definition. A view that brings no tables has these, and is refused
	 * if it names others. primary NULL: the caller compares it, and such a view gets no table.
	 */
	struct placement place;
};

/* Fills out, and in h the op and the ids of the attempt. defined: the sum of the tables of the
 * definition, which a view need not bring. SHARD_AGAIN: the arena is too small. */
enum shard_status corewire_pack(const struct core_msg *m, uint64_t defined, struct arena *a,
				struct wire_head *h, Shard__Core *out);
/* Are these messages of one event the same but for the node that they go to? False for those that a
 * core never says to several nodes alike. */
bool corewire_same(const struct core_msg *a, const struct core_msg *b);
/* For a frame whose op is at least OP_CORE. The pointers in m point into the arena or into in. */
enum shard_status corewire_unpack(const struct wire_head *h, const Shard__Core *in,
				  const struct corewire_limits *l, struct arena *a,
				  struct core_msg *m, struct err *e);

/* The view alone, for the coordinator's file. In one whose model is not known yet, chunks_nr of the
 * limits is 0, and the tables that the view brings may be of any number of chunks. */
enum shard_status corewire_pack_view(const struct core_view *v, uint64_t defined, struct arena *a,
				     Shard__View *out);
enum shard_status corewire_unpack_view(const Shard__View *in, const struct corewire_limits *l,
				       struct arena *a, struct core_view *v, struct err *e);

/* A record alone. NULL: the arena is too small. */
Shard__Record *corewire_pack_record(const struct record *r, struct arena *a);

#endif
