/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes definitions. Byte 0 chooses the model's image dtype and how another definition differs,
 * byte 1 the chunks and groups, and each tensor takes 8 bytes: its flags as messages have them (2),
 * the dimensions that it has (1), its group (1), and two dimensions (2 and 1). The layout that is
 * cut at once equals the one that is cut later, chunks and images lie one after the other, and each
 * chunk has one image dtype. */
// covers: proto/wire/layout.c
#include "base/check.h"
#include "wire/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 64, HEAD = 2, EACH = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static uint32_t word(const uint8_t *at)
{
	return at[0] | (uint32_t)at[1] << 8;
}

static uint32_t tensors_of(struct shard_tensor *t, char (*name)[8], const uint8_t *data,
			   size_t bytes)
{
	uint32_t nr = 0;

	for (size_t at = HEAD; at + EACH <= bytes && nr < TENSORS; at += EACH, nr++) {
		const uint8_t *in = data + at;

		/* Now and then a name comes twice. */
		snprintf(name[nr], sizeof(name[nr]), "t%u", in[3] == 0xff ? 0 : nr);
		t[nr] = (struct shard_tensor){.name = name[nr],
					      .ndim = in[2],
					      .group = in[3] & 3,
					      .shape = {word(in + 4) & 0xfff, in[6]}};
		for (uint32_t d = 2; d < NR(t[nr].shape); d++)
			t[nr].shape[d] = in[2] & 0x80 ? 1ull << 40 : 1;
		layout_flags_take(&t[nr], word(in));
	}
	return nr;
}

static void chunks(const struct layout *l)
{
	uint64_t byte = 0, stored = 0, numel = 0;

	for (uint32_t c = 0; c < l->chunks_nr; c++) {
		uint64_t first = layout_chunk_start(l, c), end = first;

		CHECK(layout_image_at(l, first) == byte && layout_stored_before(l, c) == stored);
		for (uint32_t s = l->chunk_segment[c]; s < l->chunk_segment[c + 1]; s++) {
			const struct segment *g = &l->segment[s];
			const struct layout_tensor *t = &l->tensor[l->segment_tensor[s]];
			uint32_t at = s + 1; /* The search goes around. */

			CHECK(layout_find_segment(l, c, l->segment_tensor[s], &at) && at == s);
			CHECK(!layout_find_segment(l, c, l->tensors_nr, &at));
			CHECK(first + g->start >= end && t->image == layout_image(l, c));
			CHECK(layout_tensor_at(l, first + g->start) == l->segment_tensor[s]);
			CHECK(t->offset <= first + g->start &&
			      first + g->start + g->n <= t->offset + t->numel);
			end = first + g->start + g->n;
			numel += g->n;
		}
		CHECK(end <= first + layout_chunk_elems(l, c));
		(void)layout_trained(l, c);
		byte += layout_image_bytes(l, c, 1);
		stored += layout_chunk_elems(l, c);
	}
	for (uint32_t i = 0; i < l->tensors_nr; i++) /* Also of those without elements. */
		CHECK(layout_image_at(l, l->tensor[i].offset) <= byte);
	CHECK(byte == l->image_bytes && stored == l->stored && numel == l->numel);
	CHECK(l->stored <= l->elems && layout_image_at(l, l->elems) == byte);
	CHECK(layout_tensor_at(l, l->elems) == UINT32_MAX);
}

/* A definition that differs in one tensor is never taken for this one. */
static void compare(const struct layout *l, struct shard_tensor *t, uint32_t nr, uint32_t groups,
		    uint8_t how)
{
	struct shard_tensor *x = &t[how % nr], was = *x;
	struct layout *other = NULL;
	struct err e;

	switch (how >> 2 & 7) {
	case 0:
		x->name = "other";
		break;
	case 1:
		x->group++;
		break;
	case 2:
		x->flags ^= SHARD_FROZEN;
		break;
	case 3:
		x->image = (uint32_t)l->tensor[how % nr].image % DTYPE_NR + 1;
		break;
	case 4:
		x->ndim ^= 1;
		break;
	case 5:
		nr--;
		break;
	case 6:
		x->reserved[how % NR(x->reserved)] = how;
		break;
	default:
		x->name = how & 1 ? "" : "\x01";
	}
	if (layout_init(&other, t, nr, groups, l->image, l->chunk_elems, &e) == SHARD_OK)
		CHECK(layout_compare(l, other, "there", &e) == SHARD_MISMATCH && e.text[0] != 0);
	layout_free(&other);
	*x = was;
}

static void ranges(const struct layout *l, uint64_t first, uint64_t count)
{
	uint32_t i = layout_tensor_at(l, first);
	struct err e;
	bool ok = layout_range(l, first, count, &e) == SHARD_OK;

	if (!ok)
		return;
	CHECK(i != UINT32_MAX && layout_tensor_at(l, first + count - 1) == i);
	CHECK(layout_piece(l, first, first + count) <= count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static char name[TENSORS][8];
	struct shard_tensor t[TENSORS], sent[TENSORS];
	struct layout *l = NULL, *later = NULL;
	uint32_t nr, chunk;
	enum shard_dtype image;
	struct err e;

	if (bytes < HEAD)
		return 0;
	image = (enum shard_dtype)(1 + data[0] % DTYPE_NR);
	chunk = (uint32_t)LAYOUT_ALIGN << data[1] % 12;
	nr = tensors_of(t, name, data, bytes);
	if (layout_init(&l, t, nr, data[1] >> 4, image, chunk, &e) != SHARD_OK) {
		CHECK(l == NULL && e.text[0] != 0);
		return 0;
	}
	chunks(l);
	memcpy(sent, t, sizeof(sent));
	for (uint32_t i = 0; i < nr; i++)
		layout_flags_take(&sent[i], layout_flags(&t[i], image));
	CHECK(layout_init(&later, sent, nr, data[1] >> 4, image, 0, &e) == SHARD_OK);
	CHECK(layout_cut(later, chunk, &e) == SHARD_OK);
	CHECK(layout_compare(l, later, "later", &e) == SHARD_OK && l->elems == later->elems &&
	      l->image_bytes == later->image_bytes);
	for (uint32_t i = 0; i < nr; i++)
		CHECK(l->tensor[i].offset == later->tensor[i].offset);
	layout_free(&later);
	ranges(l, word(data + HEAD), word(data + HEAD + 4));
	ranges(l, l->elems - 1, 1 + data[0]);
	CHECK(!layout_model_name_new(t[0].name) || layout_model_name_ok(t[0].name));
	CHECK(dtype_ok(layout_image(l, l->chunks_nr - 1)));
	compare(l, t, nr, data[1] >> 4, data[0]);
	layout_free(&l);
	return 0;
}
