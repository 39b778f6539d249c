/* SPDX-License-Identifier: Apache-2.0 */
/* The open calls of a membership source. Each function frees its place before it calls the owner
 * back, so that the owner may call again from there. Nothing fails but the start. */
#include "cluster/source_calls.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

bool calls_init(struct source_calls *c, uint64_t deadline_ns)
{
	memset(c, 0, sizeof(*c));
	c->deadline_ns = deadline_ns;
	c->change.bytes = malloc(MEMBER_VIEW_MAX);
	return c->change.bytes != NULL;
}

void calls_deinit(struct source_calls *c)
{
	free(c->change.bytes);
	c->change.bytes = NULL;
}

void calls_begin(struct source_calls *c, const struct source_change *what, uint64_t now_ns)
{
	unsigned char *bytes = c->change.bytes;

	CHECK(c->change.state == CHANGE_NONE && what->done != NULL);
	CHECK(what->bytes_nr <= MEMBER_VIEW_MAX);
	if (what->bytes_nr > 0)
		memcpy(bytes, what->bytes, what->bytes_nr);
	c->change = *what;
	c->change.bytes = bytes;
	c->change.state = CHANGE_WAITS;
	c->change.answered = false;
	c->change.by_ns = now_ns + c->deadline_ns;
}

void calls_end(struct source_calls *c, enum member_done how, const struct member_view *current)
{
	CHECK(c->change.state != CHANGE_NONE);
	c->change.state = CHANGE_NONE;
	if (!c->change.answered)
		c->change.done(c->change.arg, how, current);
}

void calls_begin_read(struct source_calls *c, member_done_fn *done, void *arg, uint64_t now_ns)
{
	CHECK(c->read.done == NULL && !c->read.handed && done != NULL);
	c->read = (struct source_read){.done = done, .arg = arg, .by_ns = now_ns + c->deadline_ns};
}

void calls_end_read(struct source_calls *c, enum member_done how, const struct member_view *current)
{
	member_done_fn *done = c->read.done;

	c->read.done = NULL;
	c->read.handed = false;
	if (done != NULL)
		done(c->read.arg, how, current);
}

void calls_late(struct source_calls *c, uint64_t now_ns)
{
	struct source_change *ch = &c->change;

	if (ch->state != CHANGE_NONE && !ch->answered && ch->by_ns <= now_ns) {
		ch->answered = true;
		if (ch->state == CHANGE_WAITS)
			ch->state = CHANGE_NONE;
		ch->done(ch->arg, MEMBER_UNKNOWN, NULL);
	}
	if (c->read.done != NULL && c->read.by_ns <= now_ns) {
		member_done_fn *done = c->read.done;

		c->read.done = NULL;
		done(c->read.arg, MEMBER_UNKNOWN, NULL);
	}
}

uint64_t calls_due(const struct source_calls *c)
{
	uint64_t at = UINT64_MAX;

	if (c->change.state != CHANGE_NONE && !c->change.answered)
		at = c->change.by_ns;
	if (c->read.done != NULL && c->read.by_ns < at)
		at = c->read.by_ns;
	return at;
}

enum shard_status calls_no_voters(struct member_source *s, uint64_t term, uint64_t expect_seq,
				  const uint8_t writer[MEMBER_UUID_BYTES],
				  const uint8_t uuid[MEMBER_UUID_BYTES], member_done_fn *done,
				  void *arg)
{
	(void)s;
	(void)term;
	(void)expect_seq;
	(void)writer;
	(void)uuid;
	(void)done;
	(void)arg;
	return SHARD_UNSUPPORTED;
}

enum shard_status calls_no_message(struct member_source *s, const uint8_t from[MEMBER_UUID_BYTES],
				   const void *bytes, uint32_t bytes_nr, struct err *e)
{
	(void)s;
	(void)from;
	(void)bytes;
	(void)bytes_nr;
	(void)e;
	return SHARD_OK;
}
