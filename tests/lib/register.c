// SPDX-License-Identifier: Apache-2.0
/* Checks histories of a compare-and-swap register. Tests call register_check(). Each number has one
 * value, and the values follow each other without gaps, so a linearization is a row of moments: the
 * one at which each number's value was written. Every operation bounds some of them from one side.
 * A write that is done bounds its own from both. A read bounds the number that it saw from above,
 * and the next one from below. The history is linearizable if the bounds leave such a row. A write
 * without an answer has no upper bound, and takes a place only if somebody saw its value, or if
 * nobody else can have filled a gap. */
#include "lib/register.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct place { /* What is known of one number. */
	uint64_t writer, low, high;
	int seen; /* Somebody saw or wrote it, so `writer` is known. */
	const struct register_op *write;
};

struct checker {
	const struct register_op *ops;
	size_t nr;
	uint64_t highest;
	struct place *place; /* [highest + 2] */
	char text[256];
};

static const char *say(struct checker *c, const char *what, uint64_t seq, uint64_t a, uint64_t b)
{
	snprintf(c->text, sizeof(c->text), "seq %llu: %s (%llu, %llu)", (unsigned long long)seq,
		 what, (unsigned long long)a, (unsigned long long)b);
	return c->text;
}

static uint64_t seq_of(const struct register_op *o)
{
	return o->kind == REGISTER_WRITE ? o->expect + 1 : o->seq;
}

/* Somebody has seen that `seq` is what `writer` wrote. */
static const char *see(struct checker *c, uint64_t seq, uint64_t writer)
{
	struct place *p = &c->place[seq];

	if (p->seen && p->writer != writer)
		return say(c, "it has two values, with these writers", seq, p->writer, writer);
	p->seen = 1;
	p->writer = writer;
	return NULL;
}

static const char *gather(struct checker *c)
{
	for (size_t i = 0; i < c->nr; i++) {
		const struct register_op *o = &c->ops[i];
		const char *wrong = NULL;

		if (o->how == REGISTER_DONE && seq_of(o) > 0)
			wrong = see(c, seq_of(o), o->writer);
		if (wrong != NULL)
			return wrong;
	}
	return NULL;
}

/* Finds who wrote what was seen, and who can have filled a gap. */
static const char *match(struct checker *c)
{
	for (size_t i = 0; i < c->nr; i++) {
		const struct register_op *o = &c->ops[i];
		struct place *p;

		if (o->kind != REGISTER_WRITE || o->expect > c->highest)
			continue;
		p = &c->place[o->expect + 1];
		if (o->expect == c->highest) {
			/* It may have happened without anybody seeing it. */
			if (o->how == REGISTER_OPEN && o->called < p->low)
				p->low = o->called;
		} else if (o->how == REGISTER_DONE ||
			   (o->how == REGISTER_OPEN && p->seen && p->writer == o->writer)) {
			p->write = o;
		} else if (o->how == REGISTER_OPEN && !p->seen &&
			   (p->write == NULL || o->called < p->write->called)) {
			p->write = o;
		} else if (o->how != REGISTER_OPEN && p->seen && p->writer == o->writer) {
			return say(c, "it was refused, and is there: its writer", o->expect + 1,
				   o->writer, 0);
		}
	}
	return NULL;
}

static int first_seen(const struct checker *c, uint64_t seq)
{
	for (uint64_t i = 0; i < seq; i++)
		if (c->place[i].seen || c->place[i].write != NULL)
			return 0;
	return 1;
}

static const char *bound(struct checker *c)
{
	for (uint64_t n = 1; n <= c->highest; n++) {
		struct place *p = &c->place[n];

		if (p->write == NULL && !first_seen(c, n))
			return say(c, "nobody can have written it; its writer", n, p->writer, 0);
		if (p->write == NULL)
			continue;
		p->low = p->write->called;
		if (p->write->how == REGISTER_DONE)
			p->high = p->write->returned;
	}
	for (size_t i = 0; i < c->nr; i++) {
		const struct register_op *o = &c->ops[i];
		struct place *p = &c->place[o->kind == REGISTER_WRITE ? 0 : o->seq];

		if (o->how != REGISTER_DONE || o->kind == REGISTER_WRITE)
			continue;
		if (p->high > o->returned)
			p->high = o->returned;
		if (o->kind == REGISTER_READ && p[1].low < o->called)
			p[1].low = o->called;
	}
	return NULL;
}

/* Each number comes after the one before it. */
static const char *solve(struct checker *c)
{
	for (uint64_t n = 1; n <= c->highest; n++)
		if (c->place[n].low < c->place[n - 1].low)
			c->place[n].low = c->place[n - 1].low;
	for (uint64_t n = c->highest; n > 0; n--)
		if (c->place[n - 1].high > c->place[n].high)
			c->place[n - 1].high = c->place[n].high;
	for (uint64_t n = 1; n <= c->highest; n++)
		if (c->place[n].low > c->place[n].high)
			return say(c,
				   "it must have been written after one moment and before another",
				   n, c->place[n].low, c->place[n].high);
	return NULL;
}

/* Is there a conflict although the number was the expected one all the time? */
static const char *judge_conflicts(struct checker *c)
{
	for (size_t i = 0; i < c->nr; i++) {
		const struct register_op *o = &c->ops[i];

		if (o->kind == REGISTER_WRITE && o->how == REGISTER_CONFLICT &&
		    o->expect <= c->highest && c->place[o->expect].high <= o->called &&
		    c->place[o->expect + 1].low > o->returned)
			return say(c, "it was current all the time, but a change was refused",
				   o->expect, o->called, o->returned);
	}
	return NULL;
}

const char *register_check(const struct register_op *ops, size_t nr, char text[256])
{
	struct checker c = {.ops = ops, .nr = nr};
	const char *wrong;

	for (size_t i = 0; i < nr; i++)
		if (ops[i].how == REGISTER_DONE && seq_of(&ops[i]) > c.highest)
			c.highest = seq_of(&ops[i]);
	c.place = calloc(c.highest + 2, sizeof(*c.place));
	CHECK(c.place != NULL);
	for (uint64_t n = 0; n < c.highest + 2; n++)
		c.place[n].high = UINT64_MAX;
	c.place[c.highest + 1].low = UINT64_MAX; /* Nobody has written it as far as is known. */
	wrong = gather(&c);
	if (wrong == NULL)
		wrong = match(&c);
	if (wrong == NULL)
		wrong = bound(&c);
	if (wrong == NULL)
		wrong = solve(&c);
	if (wrong == NULL)
		wrong = judge_conflicts(&c);
	free(c.place);
	if (wrong == NULL)
		return NULL;
	memcpy(text, c.text, sizeof(c.text));
	return text;
}
