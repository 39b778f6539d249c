// SPDX-License-Identifier: Apache-2.0
/* Checks a caller's shard_spec and lays its tensors one after the other, each start aligned to 64 elements. Called by
 * shard_define(), and for the daemon's description by shard_attach() and shard_restore(); read by everybody. Everything that a caller
 * can get wrong is refused here with the tensor's name and both values; otherwise only memory can be missing. */
#include "space.h"

#include "base/check.h"
#include "wire/dtype.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool name_ok(const char *name)
{
	size_t n = name ? strlen(name) : 0;

	return n >= 1 && n <= 64 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

static enum shard_status tensor_numel(const struct shard_tensor *t, uint64_t *numel, struct err *e)
{
	*numel = 1;
	for (uint32_t d = 0; d < t->ndim; d++) {
		if (t->shape[d] == 0)
			return err_set(e, SHARD_BAD_ARG, "tensor \"%.200s\": shape[%u] is 0", t->name, d);
		if (t->shape[d] > SPACE_ELEMS_MAX / *numel)
			return err_set(e, SHARD_BAD_ARG, "tensor \"%.200s\" has more than 2^44 elements", t->name);
		*numel *= t->shape[d];
	}
	return SHARD_OK;
}

static enum shard_status tensor_check(const struct shard_spec *s, uint32_t i, struct err *e)
{
	const struct shard_tensor *t = &s->tensors[i];
	uint32_t groups = s->groups_nr ? s->groups_nr : 1;
	uint64_t numel;

	if (t->name == NULL || t->name[0] == 0 || strlen(t->name) > 255)
		return err_set(e, SHARD_BAD_ARG, "tensor %u has no name, or one of more than 255 bytes", i);
	if (t->ndim > 8)
		return err_set(e, SHARD_BAD_ARG, "tensor \"%.200s\" has %u dimensions, 8 are possible", t->name, t->ndim);
	if (t->group >= groups)
		return err_set(e, SHARD_BAD_ARG, "tensor \"%.200s\" is in group %u of %u", t->name, t->group, groups);
	if (t->flags & ~(uint32_t)SHARD_FROZEN)
		return err_set(e, SHARD_BAD_ARG, "tensor \"%.200s\" has unknown flags 0x%x", t->name, t->flags);
	for (uint32_t k = 0; k < NR(t->reserved); k++)
		if (t->reserved[k] != 0)
			return err_set(e, SHARD_BAD_ARG, "tensor \"%.200s\": reserved[%u] is not 0", t->name, k);
	return tensor_numel(t, &numel, e);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum shard_status names_differ(const struct shard_spec *s, struct err *e)
{
	const char **names = malloc(s->tensors_nr * sizeof(*names));
	enum shard_status rc = SHARD_OK;

	if (names == NULL)
		return err_set(e, SHARD_SYSTEM, "out of memory for %u names", s->tensors_nr);
	for (uint32_t i = 0; i < s->tensors_nr; i++)
		names[i] = s->tensors[i].name;
	qsort(names, s->tensors_nr, sizeof(*names), by_name);
	for (uint32_t i = 1; i < s->tensors_nr && rc == SHARD_OK; i++)
		if (strcmp(names[i - 1], names[i]) == 0)
			rc = err_set(e, SHARD_BAD_ARG, "two tensors are called \"%.200s\"", names[i]);
	free(names);
	return rc;
}

enum shard_status space_check(const struct shard_spec *s, struct err *e)
{
	enum shard_status rc;

	if (!name_ok(s->name))
		return err_set(e, SHARD_BAD_ARG, "model name \"%.80s\": 1 to 64 of a-z 0-9 . _ - are possible",
			       s->name ? s->name : "(null)");
	if (s->tensors == NULL || s->tensors_nr == 0 || s->tensors_nr > 1u << 24)
		return err_set(e, SHARD_BAD_ARG, "model \"%s\" has %u tensors", s->name, s->tensors ? s->tensors_nr : 0);
	if (s->groups_nr > 0 && s->groups == NULL)
		return err_set(e, SHARD_BAD_ARG, "model \"%s\" has %u groups at NULL", s->name, s->groups_nr);
	for (uint32_t i = 0; i < s->groups_nr; i++)
		if (s->groups[i].name == NULL)
			return err_set(e, SHARD_BAD_ARG, "group %u of model \"%s\" has no name", i, s->name);
	if (!dtype_ok(s->image) || !dtype_ok(s->grad))
		return err_set(e, SHARD_BAD_ARG,
			       "model \"%s\": image dtype %d, grad dtype %d: choose SHARD_F32, SHARD_BF16 or SHARD_F16", s->name,
			       (int)s->image, (int)s->grad);
	for (uint32_t i = 0; i < s->tensors_nr; i++)
		if ((rc = tensor_check(s, i, e)) != SHARD_OK)
			return rc;
	return names_differ(s, e);
}

enum shard_status space_init(struct space *l, const struct shard_spec *s, struct err *e)
{
	size_t names_bytes = 0;
	char *at;

	memset(l, 0, sizeof(*l));
	for (uint32_t i = 0; i < s->tensors_nr; i++)
		names_bytes += strlen(s->tensors[i].name) + 1;
	l->tensors = calloc(s->tensors_nr, sizeof(*l->tensors));
	at = l->names = malloc(names_bytes);
	if (l->tensors == NULL || at == NULL) {
		space_deinit(l);
		return err_set(e, SHARD_SYSTEM, "out of memory for %u tensors", s->tensors_nr);
	}
	strcpy(l->name, s->name);
	l->tensors_nr = s->tensors_nr;
	l->groups_nr = s->groups_nr ? s->groups_nr : 1;
	l->image = s->image;
	l->grad = s->grad;
	for (uint32_t i = 0; i < s->tensors_nr; i++) {
		const struct shard_tensor *t = &s->tensors[i];
		struct space_tensor *o = &l->tensors[i];

		CHECK(tensor_numel(t, &o->numel, NULL) == SHARD_OK);
		o->name = strcpy(at, t->name);
		at += strlen(t->name) + 1;
		memcpy(o->shape, t->shape, t->ndim * sizeof(t->shape[0]));
		o->ndim = t->ndim;
		o->group = t->group;
		o->flags = t->flags;
		o->offset = l->elems;
		l->elems = (o->offset + o->numel + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN;
		if (l->elems > SPACE_ELEMS_MAX) {
			space_deinit(l);
			return err_set(e, SHARD_BAD_ARG, "model \"%s\" has more than 2^44 elements", s->name);
		}
	}
	return SHARD_OK;
}

static enum shard_status tensor_of_wire(struct shard_tensor *t, const Shard__Tensor *w, struct err *e)
{
	if (w->n_shape > NR(t->shape))
		return err_set(e, SHARD_PROTOCOL, "shardd says that tensor \"%.200s\" has %zu dimensions", w->name, w->n_shape);
	*t = (struct shard_tensor){.name = w->name, .ndim = (uint32_t)w->n_shape, .group = w->group, .flags = w->flags};
	for (size_t d = 0; d < w->n_shape; d++)
		t->shape[d] = w->shape[d];
	return SHARD_OK;
}

enum shard_status space_init_wire(struct space *l, const Shard__Spec *s, struct err *e)
{
	struct shard_tensor *tensors = calloc(s->n_tensors + 1, sizeof(*tensors));
	struct shard_group *groups = calloc(s->n_groups + 1, sizeof(*groups));
	struct shard_spec spec = {.size = sizeof(spec),
				  .name = s->name,
				  .tensors = tensors,
				  .tensors_nr = (uint32_t)s->n_tensors,
				  .groups = groups,
				  .groups_nr = (uint32_t)s->n_groups,
				  .image = (enum shard_dtype)s->image,
				  .grad = (enum shard_dtype)s->grad};
	enum shard_status rc = SHARD_OK;
	struct err why;

	memset(l, 0, sizeof(*l));
	if (tensors == NULL || groups == NULL)
		rc = err_set(e, SHARD_SYSTEM, "out of memory for %zu tensors", s->n_tensors);
	for (size_t i = 0; i < s->n_groups && rc == SHARD_OK; i++)
		groups[i] = (struct shard_group){s->groups[i]->name, s->groups[i]->settings};
	for (size_t i = 0; i < s->n_tensors && rc == SHARD_OK; i++)
		rc = tensor_of_wire(&tensors[i], s->tensors[i], e);
	if (rc == SHARD_OK && (rc = space_check(&spec, &why)) != SHARD_OK)
		rc = err_set(e, rc == SHARD_SYSTEM ? rc : SHARD_PROTOCOL, "shardd describes a model that cannot be: %.400s",
			     why.text);
	if (rc == SHARD_OK)
		rc = space_init(l, &spec, e);
	free(tensors);
	free(groups);
	return rc;
}

enum shard_status space_chunks(struct space *l, uint32_t chunk_elems, struct err *e)
{
	uint64_t nr;

	if (chunk_elems < SPACE_CHUNK_MIN || chunk_elems > SPACE_CHUNK_MAX || (chunk_elems & (chunk_elems - 1)) != 0)
		return err_set(e, SHARD_PROTOCOL, "shardd says that chunks of \"%s\" have %u elements", l->name, chunk_elems);
	nr = (l->elems + chunk_elems - 1) / chunk_elems;
	if (nr > UINT32_MAX / 16)
		return err_set(e, SHARD_PROTOCOL, "\"%s\" would have %llu chunks", l->name, (unsigned long long)nr);
	l->chunk_tensor = calloc(nr, sizeof(*l->chunk_tensor));
	if (l->chunk_tensor == NULL)
		return err_set(e, SHARD_SYSTEM, "out of memory for %llu chunks", (unsigned long long)nr);
	l->chunk_elems = chunk_elems;
	l->chunks_nr = (uint32_t)nr;
	for (uint32_t c = 0, t = 0; c < l->chunks_nr; c++) {
		while (t + 1 < l->tensors_nr && l->tensors[t].offset + l->tensors[t].numel <= (uint64_t)c * chunk_elems)
			t++;
		l->chunk_tensor[c] = t;
	}
	return SHARD_OK;
}

void space_deinit(struct space *l)
{
	free(l->tensors);
	free(l->names);
	free(l->chunk_tensor);
	memset(l, 0, sizeof(*l));
}

uint64_t space_chunk_elems(const struct space *l, uint32_t chunk)
{
	uint64_t first = (uint64_t)chunk * l->chunk_elems;

	CHECK(chunk < l->chunks_nr);
	return l->elems - first < l->chunk_elems ? l->elems - first : l->chunk_elems;
}

uint64_t space_piece(const struct space *l, uint64_t at, uint64_t end)
{
	uint64_t in_chunk = l->chunk_elems - at % l->chunk_elems;

	CHECK(at < end && end <= l->elems);
	return in_chunk < end - at ? in_chunk : end - at;
}

enum shard_status space_range(const struct space *l, const char *what, uint32_t tensor, uint64_t first, uint64_t count,
			      struct err *e)
{
	const struct space_tensor *t;

	if (tensor >= l->tensors_nr)
		return err_set(e, SHARD_RANGE, "%s: tensor %u of \"%s\", which has %u", what, tensor, l->name, l->tensors_nr);
	t = &l->tensors[tensor];
	if (count == 0 || first >= t->numel || count > t->numel - first)
		return err_set(e, SHARD_RANGE, "%s of \"%.200s\": first %llu, count %llu, but it has %llu elements", what, t->name,
			       (unsigned long long)first, (unsigned long long)count, (unsigned long long)t->numel);
	return SHARD_OK;
}

bool space_find(const struct space *l, const char *name, uint32_t *tensor)
{
	for (uint32_t i = 0; i < l->tensors_nr; i++)
		if (strcmp(l->tensors[i].name, name) == 0) {
			*tensor = i;
			return true;
		}
	return false;
}
