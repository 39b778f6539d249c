/* SPDX-License-Identifier: Apache-2.0 */
/* The receiver of frames.h, and valid frames as bytes. The streams under test call on_head(),
 * on_frame() and on_damage(), which note what came. They fail only where the test asked for
 * that. */
#include "lib/frames.h"

#include "base/check.h"
#include "base/rng.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include <dirent.h>
#include <string.h>

static enum shard_status on_head(void *owner, struct stream *s, const struct wire_head *h,
				 void **to, struct err *e)
{
	struct frames *f = owner;

	f->heads++;
	if (h->op == f->refuse_op)
		return err_set(e, SHARD_BAD_STATE, "not now");
	if (f->discard)
		*to = STREAM_DISCARD;
	else if (wire_bulk(h))
		*to = f->to;
	if (wire_bulk(h) && f->landing)
		stream_land(s, f->landing);
	return SHARD_OK;
}

static enum shard_status on_frame(void *owner, struct stream *s, const struct wire_head *h,
				  const void *body, struct err *e)
{
	struct frames *f = owner;

	(void)e;
	if (f->nr < FRAMES_MAX) {
		f->head[f->nr] = *h;
		f->sum[f->nr] = xxh_sum(body, h->body_bytes, 0);
	}
	if (f->take_fds)
		f->fds_nr += stream_take_fds(s, f->fds + f->fds_nr, 8 - f->fds_nr);
	if (f->nr < FRAMES_MAX)
		f->fds_at[f->nr] = f->fds_nr;
	f->nr++;
	if (f->hold_after_each)
		stream_hold(s, true);
	return SHARD_OK;
}

static bool on_damage(void *owner, struct stream *s, const struct wire_head *h)
{
	struct frames *f = owner;

	(void)s, (void)h;
	f->damaged++;
	return f->spare;
}

const struct stream_handler frames_handler = {on_head, on_frame, on_damage};

size_t frames_make(unsigned char *out, uint16_t op, uint32_t flags, uint32_t chunk,
		   const void *body, uint32_t body_bytes, uint64_t ordinal)
{
	struct wire_head h = {
		.op = op, .flags = flags, .model = 1, .chunk = chunk, .body_bytes = body_bytes};

	wire_seal(&h, body, ordinal, true);
	memcpy(out, &h, sizeof(h));
	if (body_bytes > 0)
		memcpy(out + sizeof(h), body, body_bytes);
	return sizeof(h) + body_bytes;
}

void frames_fill(void *p, size_t bytes, uint64_t seed)
{
	struct rng r = {seed};
	unsigned char *at = p;

	for (size_t i = 0; i < bytes; i++)
		at[i] = (unsigned char)rng_next(&r);
}

uint32_t frames_open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	uint32_t nr = 0;

	CHECK(d);
	while (readdir(d))
		nr++;
	closedir(d);
	return nr;
}
