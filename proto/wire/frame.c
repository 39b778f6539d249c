/* SPDX-License-Identifier: Apache-2.0 */
/* Seals the 64-byte header of a frame before it is sent, and checks a header that came from
 * outside. net/stream.c calls it for every frame. The check needs nothing but the header and the
 * ordinal of the frame on its connection. The owner of the connection decides whether the frame is
 * legal now. A refusal is a static text. Nothing else can go wrong. */
#include "wire/frame.h"

#include "base/check.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	      "the header is laid over memory: little-endian machines only");

/* With the ordinal as the seed, a frame that was lost, duplicated or moved within its connection
 * fails its own sum. */
static uint32_t head_sum(const struct wire_head *h, uint64_t ordinal)
{
	return (uint32_t)xxh_sum(h, offsetof(struct wire_head, head_sum), ordinal);
}

bool wire_bulk(const struct wire_head *h)
{
	const struct wire_op_row *row = wire_op(h->op);

	return row && (row->body == BODY_BULK ||
		       (row->body == BODY_REPLY_BULK && (h->flags & WIRE_REPLY)));
}

void wire_seal(struct wire_head *h, const void *body, uint64_t ordinal, bool body_sum)
{
	CHECK(body || h->body_bytes == 0);
	CHECK(wire_op(h->op) && (h->flags & ~WIRE_FLAGS_KNOWN) == 0);
	h->magic = WIRE_MAGIC;
	h->version = WIRE_VERSION;
	h->body_sum = body_sum && h->body_bytes > 0 ? xxh_sum(body, h->body_bytes, 0) : 0;
	h->head_sum = head_sum(h, ordinal);
}

const char *wire_invalid(const struct wire_head *h, uint64_t ordinal, bool body_sum)
{
	const struct wire_op_row *row = wire_op(h->op);

	if (memcmp(&h->magic, "HTTP", sizeof(h->magic)) == 0)
		return "not a shardd frame, but HTTP: is that the port of its page";
	if (h->magic != WIRE_MAGIC)
		return "not a shardd frame (magic): something else than shardd is at that address";
	if (h->version != WIRE_VERSION)
		return "wire version";
	if (h->head_sum != head_sum(h, ordinal))
		return "header checksum";
	/* From here on the header is known to be what the peer sent, so a fault is the peer's
	 * own. */
	if (!row)
		return "unknown op";
	if (h->flags & ~WIRE_FLAGS_KNOWN)
		return "unknown flags";
	if (WIRE_PART(h->flags) != 0 && row->body != BODY_BULK)
		return "part of a body that has no parts";
	if (h->body_bytes > row->body_max)
		return "body too large";
	if (h->body_bytes < row->body_min && !(h->flags & WIRE_REPLY))
		return "body too small";
	if (h->body_sum != 0 && (h->body_bytes == 0 || !body_sum))
		return "body checksum where there is none";
	return NULL;
}
