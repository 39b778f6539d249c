/* SPDX-License-Identifier: Apache-2.0 */
/* The value that a coordinator makes durable, as lead.c builds it for each proposal. It is a few
 * KiB, and changed as an unpacked message. Only memory can fail. */
#include "model/register.h"

#include "base/check.h"
#include "model/definitions.h"

#include <stdlib.h>

Shard__Kept *register_of(const Shard__Register *r, uint32_t model)
{
	for (size_t i = 0; r != NULL && i < r->n_kept; i++)
		if (r->kept[i]->model == model)
			return r->kept[i];
	return NULL;
}

Shard__Register *register_copy(const Shard__Register *r)
{
	size_t bytes = r != NULL ? shard__register__get_packed_size(r) : 0;
	uint8_t *packed = malloc(bytes + 1);
	Shard__Register *copy = NULL;

	if (packed != NULL) {
		if (r != NULL)
			shard__register__pack(r, packed);
		copy = shard__register__unpack(NULL, bytes, packed);
	}
	free(packed);
	return copy;
}

static void remove_entry(Shard__Register *r, uint32_t model)
{
	for (size_t i = 0; i < r->n_kept; i++) {
		if (r->kept[i]->model != model)
			continue;
		shard__kept__free_unpacked(r->kept[i], NULL);
		r->kept[i] = r->kept[--r->n_kept];
		return;
	}
}

/* The allocator of protobuf-c is malloc(), so an unpacked message may grow by it. */
bool register_put(Shard__Register *r, uint32_t model, const void *packed, size_t bytes)
{
	Shard__Kept *k, **list;

	remove_entry(r, model);
	if (packed == NULL)
		return true;
	if ((k = shard__kept__unpack(NULL, bytes, packed)) == NULL)
		return false;
	list = realloc(r->kept, (r->n_kept + 1) * sizeof(*list));
	if (list == NULL) {
		shard__kept__free_unpacked(k, NULL);
		return false;
	}
	r->kept = list;
	list[r->n_kept++] = k;
	return true;
}

bool register_put_nodes(Shard__Register *r, const void *packed, size_t bytes)
{
	Shard__Register *from = shard__register__unpack(NULL, bytes, packed);
	Shard__Setting **nodes = r->nodes;
	size_t nr = r->n_nodes;

	if (from == NULL)
		return false;
	r->nodes = from->nodes;
	r->n_nodes = from->n_nodes;
	from->nodes = nodes;
	from->n_nodes = nr;
	shard__register__free_unpacked(from, NULL);
	return true;
}

bool register_strip(uint32_t model, const void *file, size_t bytes, void **out, size_t *out_bytes)
{
	Shard__ModelFile *parts = shard__model_file__unpack(NULL, bytes, file);
	Shard__Kept k = SHARD__KEPT__INIT;
	Shard__Model *definition;

	CHECK(parts != NULL);
	definition = parts->model;
	parts->model = NULL;
	k.model = model;
	k.file = parts;
	if (definition != NULL && definition->spec != NULL) {
		k.name = definition->spec->name;
		k.definition = definition_sum(definition);
	}
	*out_bytes = shard__kept__get_packed_size(&k);
	*out = malloc(*out_bytes + 1);
	if (*out != NULL)
		shard__kept__pack(&k, *out);
	if (definition != NULL)
		shard__model__free_unpacked(definition, NULL);
	shard__model_file__free_unpacked(parts, NULL);
	return *out != NULL;
}
