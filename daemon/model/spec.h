/* SPDX-License-Identifier: Apache-2.0 */
/* spec.h: definitions as messages: what a trainer sent (Spec), and what the coordinator makes of it
 * for all nodes (Model). */
#ifndef SHARD_SPEC_H
#define SHARD_SPEC_H

#include "model/model.h"

enum shard_status spec_layout(struct layout **out, const Shard__Spec *spec, uint32_t chunk_elems,
			      struct err *e);
/* Layers: [model], [model "name"], what the trainer says, then each group's. origin: of the
 * trainer's. */
enum shard_status spec_settings(struct model_settings *set, struct server *s,
				const Shard__Spec *spec, const char *origin, struct err *e);
/* The same of what a checkpoint says: a key that is pinned stays as it is pinned. */
enum shard_status spec_settings_kept(struct model_settings *set, struct server *s,
				     const Shard__Spec *spec, const char *origin, struct err *e);
/* The first difference from a model that is there: SHARD_MISMATCH. */
enum shard_status spec_compare(const struct model *m, const Shard__Spec *spec,
			       const struct model_settings *set, struct err *e);
/* The first difference of a whole definition, as the coordinator sends it, from that of a model
 * that is there: SHARD_EXISTS. */
enum shard_status spec_same(const struct model *m, const Shard__Model *is, struct err *e);
/* With number, effective settings and placement; the caller owns *out. owner NULL: nobody. */
enum shard_status spec_model(Shard__Model **out, struct server *s, const Shard__Spec *spec,
			     Shard__Cred *owner, const struct model_settings *set, struct err *e);
void *spec_copy(const ProtobufCMessage *msg); /* deep, with malloc's memory; NULL: none left */

/* What a definition is answered: all but `created` and the spec. */
void spec_say(const struct model *m, Shard__Defined *body);

#endif
