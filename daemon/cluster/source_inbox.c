/* SPDX-License-Identifier: Apache-2.0 */
/* The places in which links and messages wait for the register. source_quorum.c owns it. Links are
 * levels (up, and what the register knows), so that they need no queue. Messages are a row of bytes
 * that moves to the front when its end is reached. Nothing here can fail after the start. */
#include "cluster/source_inbox.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

bool inbox_init(struct inbox *b)
{
	memset(b, 0, sizeof(*b));
	b->bytes = malloc(INBOX_BYTES);
	return b->bytes != NULL;
}

void inbox_deinit(struct inbox *b)
{
	free(b->bytes);
	b->bytes = NULL;
}

static struct inbox_link *find(struct inbox *b, const uint8_t *uuid)
{
	for (uint32_t i = 0; i < MEMBER_LINKS_MAX; i++)
		if (b->link[i].used && memcmp(b->link[i].uuid, uuid, sizeof(b->link[i].uuid)) == 0)
			return &b->link[i];
	return NULL;
}

bool inbox_is_up(const struct inbox *b, const uint8_t uuid[MEMBER_UUID_BYTES])
{
	for (uint32_t i = 0; i < MEMBER_LINKS_MAX; i++)
		if (b->link[i].used && memcmp(b->link[i].uuid, uuid, sizeof(b->link[i].uuid)) == 0)
			return b->link[i].up;
	return false;
}

void inbox_link(struct inbox *b, const uint8_t uuid[MEMBER_UUID_BYTES], bool up)
{
	struct inbox_link *l = find(b, uuid);

	for (uint32_t i = 0; i < MEMBER_LINKS_MAX && l == NULL && up; i++) {
		if (b->link[i].used)
			continue;
		l = &b->link[i];
		*l = (struct inbox_link){.used = true};
		memcpy(l->uuid, uuid, sizeof(l->uuid));
	}
	if (l == NULL)
		return;
	l->renewed = l->known;
	l->up = up;
	l->used = l->up || l->known;
}

bool inbox_take_link(struct inbox *b, enum quorum_event_type *type, uint8_t uuid[MEMBER_UUID_BYTES])
{
	for (uint32_t i = 0; i < MEMBER_LINKS_MAX; i++) {
		struct inbox_link *l = &b->link[i];

		if (!l->used || (l->known == l->up && !l->renewed))
			continue;
		*type = l->known ? QUORUM_EV_DOWN : QUORUM_EV_UP;
		memcpy(uuid, l->uuid, sizeof(l->uuid));
		l->known = !l->known;
		l->renewed = false;
		l->used = l->up || l->known;
		return true;
	}
	return false;
}

void inbox_put(struct inbox *b, const void *msg, uint32_t nr)
{
	size_t needs = sizeof(nr) + nr;

	CHECK(nr > 0 && nr <= SOURCE_MSG_MAX);
	if (b->end + needs > INBOX_BYTES) {
		memmove(b->bytes, b->bytes + b->begin, b->end - b->begin);
		b->end -= b->begin;
		b->begin = 0;
	}
	if (b->end + needs > INBOX_BYTES)
		return;
	memcpy(b->bytes + b->end, &nr, sizeof(nr));
	memcpy(b->bytes + b->end + sizeof(nr), msg, nr);
	b->end += needs;
}

const void *inbox_take_msg(struct inbox *b, uint32_t *nr)
{
	const void *msg;

	if (b->begin == b->end)
		return NULL;
	memcpy(nr, b->bytes + b->begin, sizeof(*nr));
	msg = b->bytes + b->begin + sizeof(*nr);
	b->begin += sizeof(*nr) + *nr;
	if (b->begin == b->end)
		b->begin = b->end = 0;
	return msg;
}
