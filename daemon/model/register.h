/* SPDX-License-Identifier: Apache-2.0 */
/* register.h: the value of a membership source, which has the file of each model without its
 * definition, and the list of nodes once a node has joined. Every node has the definition, which
 * may be large. */
#ifndef SHARD_MODEL_REGISTER_H
#define SHARD_MODEL_REGISTER_H

#include "shard.pb-c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The entry of the model. NULL: there is none, or r is NULL. */
Shard__Kept *register_of(const Shard__Register *r, uint32_t model);
/* A copy that may be changed. r NULL: an empty one. NULL: no memory. */
Shard__Register *register_copy(const Shard__Register *r);
/* Puts a packed entry in the place of the model's entry. packed NULL: takes the entry out. Returns
 * false if there is no memory. */
bool register_put(Shard__Register *r, uint32_t model, const void *packed, size_t bytes);
/* Takes the list of nodes of another value, which is packed. Returns false if there is no memory.
 */
bool register_put_nodes(Shard__Register *r, const void *packed, size_t bytes);
/* Packs an entry of the model with this file, without its definition. The caller frees *out.
 * Returns false if there is no memory. CHECK: this node has packed the file. */
bool register_strip(uint32_t model, const void *file, size_t bytes, void **out, size_t *out_bytes);

#endif
