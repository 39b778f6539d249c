/* SPDX-License-Identifier: Apache-2.0 */
/* Turns a list of tensors into offsets, chunks and segments. The library calls it for a definition
 * that it sends and for one that the daemon describes. Every node of the cluster calls it once per
 * definition, and the result is the same everywhere. Anything in the list may be wrong. It is
 * checked here and refused with the tensor's name. After that, other modules index with what this
 * file computed and CHECK. It fails with SHARD_BAD_ARG, SHARD_RANGE (too many chunks) or
 * SHARD_SYSTEM (no memory). */
#include "wire/layout.h"

#include "base/check.h"
#include "wire/control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IMAGE_SHIFT 8 /* Of the dtype in the flags of messages. */

static uint64_t align_up(uint64_t n)
{
	return (n + LAYOUT_ALIGN - 1) & ~(uint64_t)(LAYOUT_ALIGN - 1);
}

bool layout_model_name_ok(const char *name)
{
	size_t n = name ? strnlen(name, LAYOUT_MODEL_NAME_MAX + 1) : 0;

	return n >= 1 && n <= LAYOUT_MODEL_NAME_MAX &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

bool layout_model_name_new(const char *name)
{
	return layout_model_name_ok(name) && name[0] != '-';
}

/* Names appear in logs, in JSON and in the labels of metrics. */
static bool name_ok(const char *name)
{
	size_t n = name ? strnlen(name, LAYOUT_NAME_MAX + 1) : 0;

	return n >= 1 && n <= LAYOUT_NAME_MAX && strcspn(name, " \"") == n && control_text_ok(name);
}

bool layout_numel(uint64_t *numel, const uint64_t *shape, size_t ndim)
{
	bool empty = false;
	uint64_t n = 1; /* A tensor without dimensions is a scalar. */

	for (size_t d = 0; d < ndim; d++) {
		if (shape[d] > LAYOUT_ELEMS_MAX / n)
			return false;
		empty |= shape[d] == 0;
		n *= shape[d] != 0 ? shape[d] : 1;
	}
	*numel = empty ? 0 : n;
	return true;
}

static enum shard_status check_shape(const struct shard_tensor *t, uint64_t *numel, struct err *e)
{
	if (t->ndim > LAYOUT_DIMS_MAX)
		return err_set(e, SHARD_BAD_ARG,
			       "tensor \"%s\": %u dimensions, at most %d are possible", t->name,
			       t->ndim, LAYOUT_DIMS_MAX);
	if (!layout_numel(numel, t->shape, t->ndim))
		return err_set(e, SHARD_BAD_ARG, "tensor \"%s\": more than %llu elements", t->name,
			       LAYOUT_ELEMS_MAX);
	return SHARD_OK;
}

uint32_t layout_flags(const struct shard_tensor *t, enum shard_dtype model)
{
	return t->flags | (t->image != (uint32_t)model ? t->image << IMAGE_SHIFT : 0);
}

void layout_flags_take(struct shard_tensor *t, uint32_t flags)
{
	t->image = flags >> IMAGE_SHIFT & 3;
	t->flags = flags & ~(3u << IMAGE_SHIFT);
}

static enum shard_status check_tensor(const struct shard_tensor *t, uint32_t index,
				      uint32_t groups_nr, struct err *e)
{
	if (!name_ok(t->name))
		return err_set(e, SHARD_BAD_ARG,
			       "tensor %u: a name has 1 to %d bytes of UTF-8, no blanks, quotes or "
			       "control characters",
			       index, LAYOUT_NAME_MAX);
	if (t->group >= groups_nr)
		return err_set(e, SHARD_BAD_ARG, "tensor \"%s\": group %u of %u", t->name, t->group,
			       groups_nr);
	if (t->flags & ~(uint32_t)SHARD_FROZEN)
		return err_set(e, SHARD_BAD_ARG,
			       "tensor \"%s\": flags 0x%x: only SHARD_FROZEN (0x%x) is known",
			       t->name, t->flags, (unsigned)SHARD_FROZEN);
	if (t->image != 0 && !dtype_ok(t->image))
		return err_set(e, SHARD_BAD_ARG,
			       "tensor \"%s\": image dtype %u: choose SHARD_F32, SHARD_BF16, "
			       "SHARD_F16, or 0 for that of the model",
			       t->name, t->image);
	if (t->reserved_32 != 0)
		return err_set(e, SHARD_BAD_ARG, "tensor \"%s\": reserved_32 is not zero", t->name);
	for (uint32_t i = 0; i < NR(t->reserved); i++)
		if (t->reserved[i])
			return err_set(e, SHARD_BAD_ARG, "tensor \"%s\": reserved[%u] is not zero",
				       t->name, i);
	return SHARD_OK;
}

static int by_name(const void *a, const void *b)
{
	return strcmp((*(const struct layout_tensor *const *)a)->name,
		      (*(const struct layout_tensor *const *)b)->name);
}

static enum shard_status check_names_differ(const struct layout *l, struct err *e)
{
	const struct layout_tensor **sorted = malloc(l->tensors_nr * sizeof(*sorted));
	enum shard_status st = SHARD_OK;

	if (!sorted)
		return err_set(e, SHARD_SYSTEM, "no memory for %u tensors", l->tensors_nr);
	for (uint32_t i = 0; i < l->tensors_nr; i++)
		sorted[i] = &l->tensor[i];
	qsort(sorted, l->tensors_nr, sizeof(*sorted), by_name);
	for (uint32_t i = 1; i < l->tensors_nr && st == SHARD_OK; i++) {
		if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
			st = err_set(e, SHARD_BAD_ARG,
				     "tensor \"%s\" is there twice, as %u and as %u",
				     sorted[i]->name, (unsigned)(sorted[i - 1] - l->tensor),
				     (unsigned)(sorted[i] - l->tensor));
	}
	free(sorted);
	return st;
}

static enum shard_status place_tensors(struct layout *l, const struct shard_tensor *from,
				       uint32_t groups_nr, struct err *e)
{
	enum shard_status st;
	uint64_t elems_of[DTYPE_NR + 1] = {0};
	size_t names_bytes = 0;
	char *name;

	for (uint32_t i = 0; i < l->tensors_nr; i++) {
		if ((st = check_tensor(&from[i], i, groups_nr ? groups_nr : 1, e)) != SHARD_OK)
			return st;
		names_bytes += strlen(from[i].name) + 1;
	}
	name = l->names = malloc(names_bytes);
	if (!name)
		return err_set(e, SHARD_SYSTEM, "no memory for %u names", l->tensors_nr);
	for (uint32_t i = 0; i < l->tensors_nr; i++) {
		struct layout_tensor *t = &l->tensor[i];

		if ((st = check_shape(&from[i], &t->numel, e)) != SHARD_OK)
			return st;
		t->name = strcpy(name, from[i].name);
		name += strlen(name) + 1;
		t->ndim = from[i].ndim;
		t->group = from[i].group;
		t->flags = from[i].flags;
		t->image = from[i].image ? (enum shard_dtype)from[i].image : l->image;
		t->offset = elems_of[t->image]; /* From the first one of that dtype on. */
		elems_of[t->image] += align_up(t->numel);
		memcpy(t->shape, from[i].shape, t->ndim * sizeof(t->shape[0]));
		l->numel += t->numel;
		l->elems += align_up(t->numel);
		if (l->elems > LAYOUT_ELEMS_MAX)
			return err_set(e, SHARD_BAD_ARG,
				       "tensor \"%s\": the model has more than %llu elements",
				       t->name, LAYOUT_ELEMS_MAX);
	}
	if (l->elems == 0)
		return err_set(
			e, SHARD_BAD_ARG,
			"%u tensors, and each has a dimension of 0: a model needs an element",
			l->tensors_nr);
	return SHARD_OK;
}

static void cut_tensors(struct layout *l)
{
	uint32_t s = 0, chunk = 0;

	for (uint32_t k = 0; k < l->tensors_nr; k++) {
		uint32_t i = l->order[k];
		const struct layout_tensor *t = &l->tensor[i];

		for (uint64_t at = t->offset; at < t->offset + t->numel; s++) {
			uint64_t in = at & (l->chunk_elems - 1), left = t->offset + t->numel - at;
			uint32_t c = (uint32_t)(at / l->chunk_elems);

			if (left > l->chunk_elems - in)
				left = l->chunk_elems - in;
			while (chunk <= c)
				l->chunk_segment[chunk++] = s;
			l->segment[s] = (struct segment){
				.start = (uint32_t)in, .n = (uint32_t)left, .group = t->group};
			l->segment_tensor[s] = i;
			at += left;
		}
	}
	CHECK(chunk == l->chunks_nr && s == l->segments_nr);
	l->chunk_segment[chunk] = s;
}

bool layout_regions(struct layout *l, enum shard_dtype image, const uint64_t elems_of[DTYPE_NR + 1],
		    uint32_t chunk_elems)
{
	uint64_t at = 0, chunks;

	l->image = image;
	l->stored = l->image_bytes = l->regions_nr = 0;
	for (int d = 0; d <= DTYPE_NR; d++) {
		enum shard_dtype dt = d == 0 ? image : (enum shard_dtype)d;

		if ((d > 0 && dt == image) || elems_of[dt] == 0)
			continue;
		at = (at + chunk_elems - 1) / chunk_elems * chunk_elems;
		l->region[l->regions_nr++] =
			(struct layout_region){.chunk = (uint32_t)(at / chunk_elems),
					       .first = at,
					       .end = at + elems_of[dt],
					       .byte = l->image_bytes,
					       .image = dt};
		at += elems_of[dt];
		l->stored += elems_of[dt];
		l->image_bytes += elems_of[dt] * dtype_bytes(dt);
	}
	if (l->regions_nr == 0)
		l->region[l->regions_nr++] = (struct layout_region){.image = image};
	l->elems = at;
	chunks = (at + chunk_elems - 1) / chunk_elems;
	if (chunks > LAYOUT_CHUNKS_MAX)
		return false;
	l->chunk_elems = chunk_elems;
	l->chunks_nr = (uint32_t)chunks;
	return true;
}

uint64_t layout_pieces(uint64_t first, uint64_t numel, uint32_t chunk_elems)
{
	return numel == 0 ? 0 : (first + numel - 1) / chunk_elems - first / chunk_elems + 1;
}

/* Where a dtype stands among the regions. regions_nr: it has no element. */
static uint32_t region_of(const struct layout *l, enum shard_dtype dt)
{
	uint32_t r = 0;

	while (r < l->regions_nr && l->region[r].image != dt)
		r++;
	return r;
}

/* Makes offsets of what place_tensors() counted for each dtype by itself, and the order. */
static void order_tensors(struct layout *l)
{
	uint32_t nr = 0;

	for (uint32_t r = 0; r <= l->regions_nr; r++)
		for (uint32_t i = 0; i < l->tensors_nr; i++) {
			if (region_of(l, l->tensor[i].image) != r)
				continue;
			l->tensor[i].offset += r < l->regions_nr ? l->region[r].first : l->elems;
			l->order[nr++] = i;
		}
	CHECK(nr == l->tensors_nr);
}

enum shard_status layout_cut(struct layout *l, uint32_t chunk_elems, struct err *e)
{
	uint64_t elems_of[DTYPE_NR + 1] = {0}, segments = 0;

	CHECK(l->chunk_elems == 0 && chunk_elems >= LAYOUT_ALIGN &&
	      (chunk_elems & (chunk_elems - 1)) == 0);
	for (uint32_t i = 0; i < l->tensors_nr; i++)
		elems_of[l->tensor[i].image] += align_up(l->tensor[i].numel);
	if (!layout_regions(l, l->image, elems_of, chunk_elems))
		return err_set(e, SHARD_RANGE,
			       "%llu elements in chunks of %u are %llu chunks, at most %u are "
			       "possible: raise chunk_elems",
			       (unsigned long long)l->elems, chunk_elems,
			       (unsigned long long)((l->elems + chunk_elems - 1) / chunk_elems),
			       LAYOUT_CHUNKS_MAX);
	if ((l->order = calloc(l->tensors_nr, sizeof(*l->order))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for %u tensors", l->tensors_nr);
	order_tensors(l);
	for (uint32_t i = 0; i < l->tensors_nr; i++) {
		segments += layout_pieces(l->tensor[i].offset, l->tensor[i].numel, chunk_elems);
	}
	l->segment = calloc(segments, sizeof(*l->segment));
	l->segment_tensor = calloc(segments, sizeof(*l->segment_tensor));
	l->chunk_segment = calloc((size_t)l->chunks_nr + 1, sizeof(*l->chunk_segment));
	if (!l->segment || !l->segment_tensor || !l->chunk_segment)
		return err_set(e, SHARD_SYSTEM, "no memory for %u chunks", l->chunks_nr);
	l->segments_nr = (uint32_t)segments; /* At most chunks + tensors. */
	cut_tensors(l);
	return SHARD_OK;
}

enum shard_status layout_init(struct layout **out, const struct shard_tensor *tensors,
			      uint32_t tensors_nr, uint32_t groups_nr, enum shard_dtype image,
			      uint32_t chunk_elems, struct err *e)
{
	enum shard_status st;
	struct layout *l;

	CHECK(dtype_ok(image));

	if (tensors_nr == 0 || tensors_nr > LAYOUT_TENSORS_MAX)
		return err_set(e, SHARD_BAD_ARG, "%u tensors: a model has 1 to %u", tensors_nr,
			       LAYOUT_TENSORS_MAX);
	l = calloc(1, sizeof(*l));
	if (!l)
		goto no_memory;
	l->tensors_nr = tensors_nr;
	l->image = image;
	l->tensor = calloc(tensors_nr, sizeof(*l->tensor));
	if (!l->tensor)
		goto no_memory;
	if ((st = place_tensors(l, tensors, groups_nr, e)) != SHARD_OK ||
	    (st = check_names_differ(l, e)) != SHARD_OK ||
	    (chunk_elems != 0 && (st = layout_cut(l, chunk_elems, e)) != SHARD_OK))
		goto err_layout;
	*out = l;
	return SHARD_OK;
no_memory:
	st = err_set(e, SHARD_SYSTEM, "no memory for the layout of %u tensors", tensors_nr);
err_layout:
	layout_free(&l);
	return st;
}

void layout_free(struct layout **lp)
{
	struct layout *l = *lp;

	*lp = NULL;
	if (!l)
		return;
	free(l->names);
	free(l->tensor);
	free(l->order);
	free(l->segment);
	free(l->segment_tensor);
	free(l->chunk_segment);
	free(l);
}

static const struct layout_region *region_at(const struct layout *l, uint64_t chunk)
{
	uint32_t r = l->regions_nr - 1;

	while (r > 0 && chunk < l->region[r].chunk)
		r--;
	return &l->region[r];
}

enum shard_dtype layout_image(const struct layout *l, uint32_t chunk)
{
	CHECK(chunk < l->chunks_nr);
	return region_at(l, chunk)->image;
}

uint32_t layout_image_elem(const struct layout *l, uint32_t chunk)
{
	return (uint32_t)dtype_bytes(layout_image(l, chunk));
}

uint64_t layout_image_at(const struct layout *l, uint64_t element)
{
	const struct layout_region *r = region_at(l, element / l->chunk_elems);

	CHECK(element >= r->first && element <= r->end);
	return r->byte + (element - r->first) * dtype_bytes(r->image);
}

uint64_t layout_image_bytes(const struct layout *l, uint32_t chunk, uint32_t chunks)
{
	uint32_t last = chunk + chunks - 1;

	CHECK(chunks > 0 && chunks <= l->chunks_nr && chunk <= l->chunks_nr - chunks);
	return layout_image_at(l, layout_chunk_start(l, last)) +
	       (uint64_t)layout_chunk_elems(l, last) * layout_image_elem(l, last) -
	       layout_image_at(l, layout_chunk_start(l, chunk));
}

uint32_t layout_chunk_elems(const struct layout *l, uint32_t chunk)
{
	CHECK(chunk < l->chunks_nr);
	uint64_t left = region_at(l, chunk)->end - layout_chunk_start(l, chunk);
	return left < l->chunk_elems ? (uint32_t)left : l->chunk_elems;
}

uint64_t layout_piece(const struct layout *l, uint64_t at, uint64_t end)
{
	uint64_t in_chunk = l->chunk_elems - at % l->chunk_elems;

	CHECK(at < end && end <= l->elems);
	return in_chunk < end - at ? in_chunk : end - at;
}

uint64_t layout_chunk_start(const struct layout *l, uint32_t chunk)
{
	CHECK(chunk < l->chunks_nr);
	return (uint64_t)chunk * l->chunk_elems;
}

uint64_t layout_stored_before(const struct layout *l, uint32_t chunk)
{
	uint64_t before = 0;

	CHECK(chunk < l->chunks_nr);
	for (uint32_t r = 0; r + 1 < l->regions_nr && l->region[r + 1].chunk <= chunk; r++)
		before += l->region[r].end - l->region[r].first;
	return before + (uint64_t)(chunk - region_at(l, chunk)->chunk) * l->chunk_elems;
}

bool layout_frozen(const struct layout *l, uint32_t segment)
{
	CHECK(segment < l->segments_nr);
	return l->tensor[l->segment_tensor[segment]].flags & SHARD_FROZEN;
}

bool layout_find_segment(const struct layout *l, uint32_t chunk, uint32_t tensor, uint32_t *segment)
{
	uint32_t first = l->chunk_segment[chunk], end = l->chunk_segment[chunk + 1];

	CHECK(chunk < l->chunks_nr && *segment >= first && *segment <= end);
	for (uint32_t left = end - first; left > 0; left--, ++*segment) {
		if (*segment == end)
			*segment = first;
		if (l->segment_tensor[*segment] == tensor)
			return true;
	}
	return false;
}

bool layout_trained(const struct layout *l, uint32_t chunk)
{
	CHECK(chunk < l->chunks_nr);
	for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++)
		if (!layout_frozen(l, s))
			return true;
	return false;
}

uint32_t layout_tensor_at(const struct layout *l, uint64_t element)
{
	/* The last tensor, in element order, that starts at or before element is in [low, high). */
	uint32_t low = 0, high = l->tensors_nr, i;

	if (element >= l->elems)
		return UINT32_MAX;
	while (high - low > 1) {
		uint32_t mid = low + (high - low) / 2;

		if (l->tensor[l->order[mid]].offset <= element)
			low = mid;
		else
			high = mid;
	}
	i = l->order[low];
	return element - l->tensor[i].offset < l->tensor[i].numel ? i : UINT32_MAX;
}

enum shard_status layout_range(const struct layout *l, uint64_t first, uint64_t count,
			       struct err *e)
{
	uint32_t i = layout_tensor_at(l, first);

	if (i == UINT32_MAX)
		return err_set(e, SHARD_RANGE,
			       "element %llu belongs to no tensor: the element space has %llu",
			       (unsigned long long)first, (unsigned long long)l->elems);
	const struct layout_tensor *t = &l->tensor[i];
	uint64_t in = first - t->offset;
	if (count == 0 || count > t->numel - in)
		return err_set(e, SHARD_RANGE,
			       "tensor \"%s\": %llu elements from %llu on, it has %llu", t->name,
			       (unsigned long long)count, (unsigned long long)in,
			       (unsigned long long)t->numel);
	return SHARD_OK;
}

static void shape_text(const struct layout_tensor *t, char *out, size_t bytes)
{
	size_t used = (size_t)snprintf(out, bytes, "[");

	for (uint32_t d = 0; d < t->ndim; d++)
		used += (size_t)snprintf(out + used, bytes - used, "%s%llu", d ? ", " : "",
					 (unsigned long long)t->shape[d]);
	snprintf(out + used, bytes - used, "]");
}

static enum shard_status compare_tensor(const struct layout_tensor *a,
					const struct layout_tensor *b, const char *name,
					struct err *e)
{
	char sa[200], sb[200];

	if (a->ndim != b->ndim || memcmp(a->shape, b->shape, a->ndim * sizeof(a->shape[0])) != 0) {
		shape_text(a, sa, sizeof(sa));
		shape_text(b, sb, sizeof(sb));
		return err_set(e, SHARD_MISMATCH, "tensor \"%s\": shape %s here, %s %s", a->name,
			       sa, sb, name);
	}
	if (a->group != b->group)
		return err_set(e, SHARD_MISMATCH, "tensor \"%s\": group %u here, %u %s", a->name,
			       a->group, b->group, name);
	if (a->flags != b->flags)
		return err_set(e, SHARD_MISMATCH, "tensor \"%s\": flags 0x%x here, 0x%x %s",
			       a->name, a->flags, b->flags, name);
	if (a->image != b->image)
		return err_set(e, SHARD_MISMATCH, "tensor \"%s\": image %s here, %s %s", a->name,
			       dtype_name(a->image), dtype_name(b->image), name);
	return SHARD_OK;
}

enum shard_status layout_compare(const struct layout *here, const struct layout *there,
				 const char *there_name, struct err *e)
{
	uint32_t nr = here->tensors_nr < there->tensors_nr ? here->tensors_nr : there->tensors_nr;
	enum shard_status st;

	for (uint32_t i = 0; i < nr; i++) {
		const struct layout_tensor *a = &here->tensor[i], *b = &there->tensor[i];

		if (strcmp(a->name, b->name) != 0)
			return err_set(e, SHARD_MISMATCH, "tensor %u: name \"%s\" here, \"%s\" %s",
				       i, a->name, b->name, there_name);
		if ((st = compare_tensor(a, b, there_name, e)) != SHARD_OK)
			return st;
	}
	if (here->tensors_nr != there->tensors_nr)
		return err_set(e, SHARD_MISMATCH, "%u tensors here, %u %s", here->tensors_nr,
			       there->tensors_nr, there_name);
	if (here->chunk_elems != there->chunk_elems)
		return err_set(e, SHARD_MISMATCH, "chunk_elems: %u here, %u %s", here->chunk_elems,
			       there->chunk_elems, there_name);
	return SHARD_OK;
}
