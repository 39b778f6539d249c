/* SPDX-License-Identifier: Apache-2.0 */
/* spec.h: the description of a model, from a caller of shard_define() or from the daemon. */
#ifndef SHARD_CLIENT_SPEC_H
#define SHARD_CLIENT_SPEC_H

#include "wire/layout.h"

#include "shard.pb-c.h"

#define SPEC_CHUNK_MIN 1024u
#define SPEC_CHUNK_MAX (1u << 26)

struct spec {
	char name[LAYOUT_MODEL_NAME_MAX + 1];
	uint32_t groups_nr; /* At least 1. */
	enum shard_dtype image, grad;
};

/* Checks everything that a caller can get wrong, and lays out the tensors. spec_chunks()
 * follows. */
enum shard_status spec_init(struct spec *out, struct layout **layout, const struct shard_spec *s,
			    struct err *e);
/* The same for a model that the daemon describes. Its mistakes are SHARD_PROTOCOL. */
enum shard_status spec_init_wire(struct spec *out, struct layout **layout, const Shard__Spec *s,
				 struct err *e);
/* Cuts the layout into chunks of the size that the daemon told. SHARD_PROTOCOL if that size is
 * invalid. */
enum shard_status spec_chunks(const struct spec *spec, struct layout *layout, uint32_t chunk_elems,
			      struct err *e);

#endif
