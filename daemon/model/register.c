/* SPDX-License-Identifier: Apache-2.0 */
/* The value that a coordinator makes durable, as lead.c builds it for each proposal. It is a few
 * KiB, and changed as an unpacked message. Only memory can fail. */
#include "model/register.h"

#include "base/check.h"

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
bool register_put(Shard__Register *r, uint32_t model, const void *file, size_t bytes)
{
	Shard__Kept *k = malloc(sizeof(*k)), **list;

	remove_entry(r, model);
	if (file == NULL) {
		free(k);
		return true;
	}
	list = realloc(r->kept, (r->n_kept + 1) * sizeof(*list));
	if (list != NULL)
		r->kept = list;
	if (k == NULL || list == NULL) {
		free(k);
		return false;
	}
	shard__kept__init(k);
	k->model = model;
	k->file = shard__model_file__unpack(NULL, bytes, file);
	if (k->file == NULL) {
		free(k);
		return false;
	}
	list[r->n_kept++] = k;
	return true;
}

bool register_strip(const void *file, size_t bytes, void **out, size_t *out_bytes)
{
	Shard__ModelFile *parts = shard__model_file__unpack(NULL, bytes, file);

	CHECK(parts != NULL);
	if (parts->model != NULL) {
		shard__model__free_unpacked(parts->model, NULL);
		parts->model = NULL;
	}
	*out_bytes = shard__model_file__get_packed_size(parts);
	*out = malloc(*out_bytes + 1);
	if (*out != NULL)
		shard__model_file__pack(parts, *out);
	shard__model_file__free_unpacked(parts, NULL);
	return *out != NULL;
}
