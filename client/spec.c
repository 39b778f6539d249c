// SPDX-License-Identifier: Apache-2.0
/* Checks what a caller of shard_define() wrote, and what the daemon describes for shard_attach()
 * and shard_restore(). wire/layout.c, which the daemon uses as well, checks names, shapes and
 * groups of the tensors. Everything that a caller can get wrong is refused before anything is sent,
 * with the tensor's name. Otherwise it fails only without memory. */
#include "spec.h"

#include "base/check.h"
#include "wire/dtype.h"

#include <stdlib.h>
#include <string.h>

static enum shard_status spec_check(const struct shard_spec *s, struct err *e)
{
	if (!layout_model_name_ok(s->name))
		return err_set(e, SHARD_BAD_ARG,
			       "model name \"%.80s\": choose " LAYOUT_MODEL_NAME_NEW,
			       s->name ? s->name : "(null)");
	if (s->tensors_nr > 0 && s->tensors == NULL)
		return err_set(e, SHARD_BAD_ARG, "model \"%s\" has %u tensors at NULL", s->name,
			       s->tensors_nr);
	if (s->groups_nr > 0 && s->groups == NULL)
		return err_set(e, SHARD_BAD_ARG, "model \"%s\" has %u groups at NULL", s->name,
			       s->groups_nr);
	for (uint32_t i = 0; i < s->groups_nr; i++)
		if (s->groups[i].name == NULL)
			return err_set(e, SHARD_BAD_ARG, "group %u of model \"%s\" has no name", i,
				       s->name);
	if (!dtype_ok(s->image) || !dtype_ok(s->grad))
		return err_set(e, SHARD_BAD_ARG,
			       "model \"%s\": image dtype %d, grad dtype %d: choose SHARD_F32, "
			       "SHARD_BF16 or SHARD_F16",
			       s->name, (int)s->image, (int)s->grad);
	return SHARD_OK;
}

enum shard_status spec_init(struct spec *out, struct layout **layout, const struct shard_spec *s,
			    struct err *e)
{
	enum shard_status rc = spec_check(s, e);

	if (rc == SHARD_OK)
		rc = layout_init(layout, s->tensors, s->tensors_nr, s->groups_nr, s->image, 0, e);
	if (rc != SHARD_OK)
		return rc;
	strcpy(out->name, s->name);
	out->groups_nr = s->groups_nr ? s->groups_nr : 1;
	out->image = s->image;
	out->grad = s->grad;
	return SHARD_OK;
}

static enum shard_status tensor_of_wire(struct shard_tensor *t, const Shard__Tensor *w,
					struct err *e)
{
	if (w->n_shape > NR(t->shape))
		return err_set(e, SHARD_PROTOCOL,
			       "shardd says that tensor \"%.200s\" has %zu dimensions", w->name,
			       w->n_shape);
	*t = (struct shard_tensor){
		.name = w->name, .ndim = (uint32_t)w->n_shape, .group = w->group};
	layout_flags_take(t, w->flags);
	for (size_t d = 0; d < w->n_shape; d++)
		t->shape[d] = w->shape[d];
	return SHARD_OK;
}

enum shard_status spec_init_wire(struct spec *out, struct layout **layout, const Shard__Spec *s,
				 struct err *e)
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

	if (tensors == NULL || groups == NULL)
		rc = err_set(e, SHARD_SYSTEM, "out of memory for %zu tensors", s->n_tensors);
	for (size_t i = 0; i < s->n_groups && rc == SHARD_OK; i++)
		groups[i] = (struct shard_group){s->groups[i]->name, s->groups[i]->settings};
	for (size_t i = 0; i < s->n_tensors && rc == SHARD_OK; i++)
		rc = tensor_of_wire(&tensors[i], s->tensors[i], e);
	if (rc == SHARD_OK && (rc = spec_init(out, layout, &spec, &why)) != SHARD_OK)
		rc = err_set(e, rc == SHARD_SYSTEM ? rc : SHARD_PROTOCOL,
			     "shardd describes a model that cannot be: %.400s", why.text);
	free(tensors);
	free(groups);
	return rc;
}

enum shard_status spec_chunks(const struct spec *spec, struct layout *layout, uint32_t chunk_elems,
			      struct err *e)
{
	struct err why;
	enum shard_status rc;

	if (chunk_elems < SPEC_CHUNK_MIN || chunk_elems > SPEC_CHUNK_MAX ||
	    (chunk_elems & (chunk_elems - 1)) != 0)
		return err_set(e, SHARD_PROTOCOL,
			       "shardd says that chunks of \"%s\" have %u elements", spec->name,
			       chunk_elems);
	rc = layout_cut(layout, chunk_elems, &why);
	if (rc == SHARD_OK)
		return SHARD_OK;
	return err_set(e, rc == SHARD_SYSTEM ? rc : SHARD_PROTOCOL, "\"%s\": %.400s", spec->name,
		       why.text);
}
