/* SPDX-License-Identifier: Apache-2.0 */
/* spec.h: definitions as messages: Spec, as a trainer sends it, and Model, as the coordinator makes
 * it for all nodes. */
#ifndef SHARD_SPEC_H
#define SHARD_SPEC_H

#include "model/model.h"

enum shard_status spec_layout(struct layout **out, const Shard__Spec *spec, uint32_t chunk_elems,
			      struct err *e);
/* Fills the counts of that layout, without its tables and without a look at the names. all_trained:
 * no tensor is frozen. false: spec_layout() would refuse the spec, with the reason. */
bool spec_counts(struct layout *counts, bool *all_trained, const Shard__Spec *spec,
		 uint32_t chunk_elems);
/* On the coordinator: is there room here, or will there be soon, for what the definition needs at
 * least? If not, SHARD_BUDGET with figures, before anything is made of it. Does not look at what
 * else may be wrong with the definition. */
enum shard_status spec_may_fit(struct server *s, const Shard__Spec *spec,
			       const struct model_settings *set, uint64_t members, struct err *e);
/* Merges settings, of which later layers win: [model], [model "name"], its groups, the trainer's
 * settings, and those of the trainer's groups. origin: where the trainer's come from, for texts.
 * Where nobody sets replicas, it is 2, or 1 if fewer than two nodes have capacity. */
enum shard_status spec_settings(struct model_settings *set, struct server *s,
				const Shard__Spec *spec, const char *origin, struct err *e);
/* The same for the settings of a checkpoint. A key that is pinned keeps its pinned value. Of its
 * copies there are at most as many as nodes. */
enum shard_status spec_settings_kept(struct model_settings *set, struct server *s,
				     const Shard__Spec *spec, const char *origin, struct err *e);
/* SHARD_MISMATCH: the error names the first difference from an existing model. It keeps its
 * replicas where nobody sets them. */
enum shard_status spec_compare(const struct model *m, const Shard__Spec *spec,
			       const struct model_settings *set, struct err *e);
/* The same for a whole definition, as the coordinator sends it. SHARD_EXISTS: it differs from that
 * of the existing model. */
enum shard_status spec_same(const struct model *m, const Shard__Model *is, struct err *e);
/* Were both defined with their chunks on the same nodes, wherever these are now? */
bool spec_same_place(const Shard__Model *a, const Shard__Model *b);
/* For a new model that begins with these members (placing_members()). SHARD_BAD_ARG: there are
 * fewer nodes with capacity than the settings want copies of each chunk, or min_copies is above
 * what nobody has set. SHARD_UNREACHABLE: there are enough, but too few of them are members. */
enum shard_status spec_replicas(const struct server *s, const char *model,
				const struct model_settings *set, uint64_t members, struct err *e);
/* Makes the whole definition with number, effective settings and placement. The caller owns *out
 * and its *layout. owner NULL: the model has no owner. */
enum shard_status spec_model(Shard__Model **out, struct layout **layout, struct server *s,
			     const Shard__Spec *spec, Shard__Cred *owner,
			     const struct model_settings *set, uint64_t members, struct err *e);
/* SHARD_UNSUPPORTED: a tensor has an image dtype of its own or no elements, or there are more
 * groups than releases used to know, and a node that is linked is of such a release. */
enum shard_status spec_may_travel(const struct server *s, const Shard__Spec *spec, struct err *e);
void *spec_copy(const ProtobufCMessage *msg); /* A deep copy. NULL: no memory. */

/* Fills the model's name, types and settings from its definition, which comes from the coordinator
 * or from memory of an earlier start. */
enum shard_status spec_read(struct model *m, struct err *e);
/* Fills the answer to a definition, except `created` and the spec. */
void spec_say(const struct model *m, Shard__Defined *body);

#endif
