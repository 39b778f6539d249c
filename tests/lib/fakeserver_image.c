// SPDX-License-Identifier: Apache-2.0
/* The memory of the scripted daemon: the arena and the image, shared or private, one of each or two
 * (max_staleness = 1). It also has what decisions do to them. fakeserver_ops.c calls it, and so
 * does fakeserver.c for a test, with the lock held. A failure ends the test by CHECK. */
#include "lib/fakeserver_impl.h"

#include "base/check.h"
#include "wire/dtype.h"

#include <string.h>

static struct image_head *image(struct fake *f)
{
	return f->shared.base;
}

static size_t image_half(const struct fake *f)
{
	return shm_half_bytes(f->elems * dtype_bytes(f->image));
}

char *fake_arena(struct fake *f)
{
	return (char *)f->arena.base + (f->step + 1) % (f->conf.staleness + 1) *
					       shm_half_bytes(f->elems * dtype_bytes(f->grad));
}

void fake_unjoin(struct fake *f)
{
	shm_unmap(&f->arena);
	shm_unmap(&f->shared);
	f->joined = false;
}

void fake_map(struct fake *f)
{
	uint32_t images = f->conf.staleness + 1;
	size_t data = image_data_offset(f->chunks_nr * images),
	       arena = shm_half_bytes(f->elems * dtype_bytes(f->grad));

	if (f->joined)
		fake_unjoin(f);
	CHECK(shm_create(&f->arena, "arena", images * arena, SHM_ARENA, SHM_HUGE_NO, NULL) ==
	      SHARD_OK);
	CHECK(shm_create(&f->shared, "image", data + images * image_half(f), SHM_IMAGE, SHM_HUGE_NO,
			 NULL) == SHARD_OK);
	image(f)->magic = IMAGE_MAGIC;
	image(f)->generation = f->generation;
	image(f)->chunks_nr = f->chunks_nr;
	image(f)->data_offset = data;
	image(f)->slot_bytes = f->conf.staleness ? image_half(f) : 0;
	for (uint32_t c = 0; c < f->chunks_nr * images; c++)
		atomic_store(&image(f)->version[c], UINT64_MAX);
	f->wrote[0] = f->wrote[1]; /* Older weights are gone. */
	f->joined = true;
}

static void send_parts(struct fake *f, const char *data, uint64_t version)
{
	size_t elem = dtype_bytes(f->image);

	for (uint64_t c = 0, at = 0; c < f->chunks_nr; c++, at += f->conf.chunk_elems) {
		uint64_t bytes = (f->elems - at < f->conf.chunk_elems ? f->elems - at
								      : f->conf.chunk_elems) *
				 elem;

		for (uint64_t p = 0; p * WIRE_PART_BYTES < bytes; p++) {
			uint64_t n = bytes - p * WIRE_PART_BYTES;
			struct wire_head h = fake_head(f, OP_IMAGE_DATA);

			h.flags = WIRE_PART_FLAG(p);
			h.chunk = (uint32_t)c;
			h.step = version;
			CHECK(stream_send(f->stream, &h, data + at * elem + p * WIRE_PART_BYTES,
					  (uint32_t)(n < WIRE_PART_BYTES ? n : WIRE_PART_BYTES),
					  NULL, NULL) == SHARD_OK);
		}
	}
}

void fake_publish(struct fake *f)
{
	struct wire_head h = fake_head(f, OP_PUBLISHED);
	uint64_t version = f->conf.staleness ? f->wrote[1] : f->step;
	char *data;

	if (!f->joined)
		return;
	data = (char *)f->shared.base + image(f)->data_offset + f->slot * image(f)->slot_bytes;
	atomic_fetch_add(&image(f)->open, 1);
	dtype_convert(data, f->image, f->master, SHARD_F32, f->elems);
	for (uint32_t c = 0; c < f->chunks_nr; c++)
		atomic_store(&image(f)->version[f->slot * f->chunks_nr + c], version);
	atomic_fetch_add(&image(f)->open, 1);
	if (f->conf.tcp)
		send_parts(f, data, version);
	else
		fake_control(f, &h, NULL);
}

void fake_apply(struct fake *f)
{
	for (uint32_t t = 0; t < f->tensors_nr; t++)
		for (uint64_t i = f->tensors[t].offset;
		     i < f->tensors[t].offset + f->tensors[t].numel; i++) {
			float g;

			if (f->tensor_absent[t])
				continue;
			dtype_convert(&g, SHARD_F32, fake_arena(f) + i * dtype_bytes(f->grad),
				      f->grad, 1);
			f->master[i] -= g;
		}
}

void fake_decided(struct fake *f, bool applied)
{
	f->wrote[0] = f->wrote[1];
	if (applied) {
		f->wrote[1] = f->step;
		f->slot = f->conf.staleness ? !f->slot : 0;
	}
	if (applied || (!f->conf.tcp && f->conf.staleness == 0))
		fake_publish(f);
}

void fake_roll_back(struct fake *f, uint64_t step, const char *why)
{
	Shard__Why w = SHARD__WHY__INIT;
	struct wire_head h = {.op = OP_LOST, .model = FAKE_MODEL, .step = step};

	f->generation++;
	f->step = f->wrote[0] = f->wrote[1] = step;
	f->attempt = 0;
	memcpy(f->master, f->saved, f->elems * 4);
	if (f->joined) {
		image(f)->generation = f->generation;
		for (uint32_t c = 0; c < f->chunks_nr * (f->conf.staleness + 1); c++)
			atomic_store(&image(f)->version[c], UINT64_MAX);
	}
	h.generation = f->generation;
	w.why = (char *)(uintptr_t)why;
	w.status = SHARD_ROLLED_BACK;
	fake_control(f, &h, &w.base);
	fake_publish(f);
}
