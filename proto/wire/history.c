/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of a history as bytes. The daemon writes and mends its files with it, and shardctl
 * reads what daemons send. A head is a magic number, the length of the body, the entry's number and
 * a sum over all of that and the body. So a head that lies is found before its length is believed,
 * but for how far the sum is taken, which ends with the bytes that are there. */
#include "wire/history.h"

#include "base/check.h"
#include "wire/xxh.h"

#include <string.h>

struct head {
	uint32_t magic, body_bytes;
	uint64_t number, sum;
};

_Static_assert(sizeof(struct head) == HISTORY_HEAD_BYTES, "the head has no padding");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian");

static const char *const names[HISTORY_KINDS] = {
	[HISTORY_MODEL] = "model", [HISTORY_START] = "start", [HISTORY_VIEW] = "view",
	[HISTORY_STEP] = "step",   [HISTORY_SEAL] = "seal",   [HISTORY_LOST] = "lost",
	[HISTORY_SAVED] = "saved", [HISTORY_GAP] = "gap",     [HISTORY_CUT] = "cut",
};

const char *history_kind_name(uint32_t kind)
{
	return kind < HISTORY_KINDS ? names[kind] : NULL;
}

static uint64_t sum_of(const struct head *h, const void *body)
{
	return xxh_sum(body, h->body_bytes, h->number ^ (uint64_t)h->body_bytes << 40);
}

enum history_found history_next(const void *at, size_t bytes, struct history_entry *out)
{
	const unsigned char *p = at;
	uint32_t magic = HISTORY_MAGIC;
	struct head h;

	if (bytes < sizeof(h))
		return memcmp(p, &magic, bytes < sizeof(magic) ? bytes : sizeof(magic)) == 0
			       ? HISTORY_SHORT
			       : HISTORY_DAMAGED;
	memcpy(&h, p, sizeof(h));
	if (h.magic != HISTORY_MAGIC || h.body_bytes == 0 || h.body_bytes > HISTORY_BODY_MAX)
		return HISTORY_DAMAGED;
	if (bytes - sizeof(h) < h.body_bytes)
		return HISTORY_SHORT;
	if (sum_of(&h, p + sizeof(h)) != h.sum)
		return HISTORY_DAMAGED;
	*out = (struct history_entry){.number = h.number,
				      .body = p + sizeof(h),
				      .body_bytes = h.body_bytes,
				      .bytes = sizeof(h) + h.body_bytes};
	return HISTORY_WHOLE;
}

size_t history_resync(const void *at, size_t bytes)
{
	const unsigned char *p = at;
	struct history_entry e;

	for (size_t i = 1; i + HISTORY_HEAD_BYTES < bytes; i++)
		if (p[i] == (HISTORY_MAGIC & 0xff) &&
		    history_next(p + i, bytes - i, &e) == HISTORY_WHOLE)
			return i;
	return bytes;
}

void history_seal(void *to, uint64_t number, uint32_t body_bytes)
{
	struct head h = {.magic = HISTORY_MAGIC, .body_bytes = body_bytes, .number = number};
	unsigned char *p = to;

	CHECK(body_bytes > 0 && body_bytes <= HISTORY_BODY_MAX);
	h.sum = sum_of(&h, p + sizeof(h));
	memcpy(p, &h, sizeof(h));
}
