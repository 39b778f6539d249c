// SPDX-License-Identifier: Apache-2.0
/* history.c: reads the worlds of a run for the reference. It is called once at the start and then
 * asked for each step. Each line becomes a world. It fails if there is no file or no memory, if a
 * line is not a world, if there are more ranks or nodes than there can be, or if steps go back. */
#include "ref/history.h"

#include "base/check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum shard_status grow(struct history *h, struct err *e)
{
	struct history_world *more = realloc(h->world, (h->nr + 1) * sizeof(*more));

	if (!more)
		return err_set(e, SHARD_SYSTEM, "no memory for %u worlds", h->nr + 1);
	h->world = more;
	memset(&h->world[h->nr], 0, sizeof(*more));
	return SHARD_OK;
}

static enum shard_status add(struct history *h, uint32_t node, unsigned long ranks, struct err *e)
{
	struct history_world *w = &h->world[h->nr];

	if (node >= HISTORY_NODES_MAX || ranks < 1 || w->size + ranks > HISTORY_RANKS_MAX)
		return err_set(e, SHARD_BAD_ARG,
			       "a world of more than %d nodes or %d ranks, or of none",
			       HISTORY_NODES_MAX, HISTORY_RANKS_MAX);
	while (ranks-- > 0)
		w->node[w->size++] = (uint8_t)node;
	w->nodes_nr = node >= w->nodes_nr ? node + 1 : w->nodes_nr;
	h->size_max = w->size > h->size_max ? w->size : h->size_max;
	return SHARD_OK;
}

enum shard_status history_fixed(struct history *h, const char *text, struct err *e)
{
	enum shard_status st;
	char *end = NULL;

	memset(h, 0, sizeof(*h));
	if ((st = grow(h, e)) != SHARD_OK)
		return st;
	for (const char *at = text; st == SHARD_OK; at = end + 1) {
		if (h->world[0].nodes_nr < HISTORY_NODES_MAX)
			h->world[0].who[h->world[0].nodes_nr] = (uint8_t)h->world[0].nodes_nr;
		st = add(h, h->world[0].nodes_nr, strtoul(at, &end, 10), e);
		if (st == SHARD_OK && *end != ',')
			break;
	}
	if (st == SHARD_OK && *end)
		st = err_set(e, SHARD_BAD_ARG, "--nodes %s: choose the ranks on each node, as 2,2",
			     text);
	h->nr = 1;
	if (st != SHARD_OK)
		history_deinit(h);
	return st;
}

/* The number of a node in all worlds. One beyond the last counts as the last. */
static uint8_t number(struct history *h, const char *name, size_t chars)
{
	uint32_t k = 0;

	if (h->name == NULL)
		h->name = calloc(HISTORY_NODES_MAX, sizeof(*h->name));
	CHECK(h->name != NULL && chars < sizeof(*h->name));
	while (k < h->names_nr && (strncmp(h->name[k], name, chars) != 0 || h->name[k][chars] != 0))
		k++;
	if (k == h->names_nr && k < HISTORY_NODES_MAX)
		memcpy(h->name[h->names_nr++], name, chars);
	CHECK(k < h->names_nr);
	return (uint8_t)k;
}

/* Reads the nodes of one line, such as a:2,b:1,a:1. Names are numbered in the order of their first
 * appearance. */
static enum shard_status nodes(struct history *h, const char *text, struct err *e)
{
	struct name {
		const char *at;
		size_t chars;
	} names[HISTORY_NODES_MAX];
	uint32_t names_nr = 0, k;
	enum shard_status st = SHARD_OK;

	while (st == SHARD_OK && *text > ' ') {
		const struct name one = {text, strcspn(text, ":, \n")};
		char *end;

		if (text[one.chars] != ':')
			return err_set(e, SHARD_BAD_ARG, "\"%.40s\": no nodes as a:2,b:1", text);
		for (k = 0; k < names_nr && (names[k].chars != one.chars ||
					     memcmp(names[k].at, one.at, one.chars) != 0);)
			k++;
		if (k == names_nr && k < HISTORY_NODES_MAX) {
			names[names_nr++] = one;
			h->world[h->nr].who[k] = number(h, one.at, one.chars);
		}
		st = add(h, k, strtoul(text + one.chars + 1, &end, 10), e);
		text = *end == ',' ? end + 1 : end;
	}
	return st;
}

static enum shard_status line(struct history *h, const char *text, struct err *e)
{
	const char *step = strstr(text, " step="), *of = strstr(text, " nodes=");
	enum shard_status st;

	if (!step || !of)
		return err_set(e, SHARD_BAD_ARG, "no step= and nodes= in \"%.80s\"", text);
	if ((st = grow(h, e)) != SHARD_OK || (st = nodes(h, of + 7, e)) != SHARD_OK)
		return st;
	h->world[h->nr].from = strtoull(step + 6, NULL, 10);
	if (!h->world[h->nr].size || (h->nr && h->world[h->nr].from < h->world[h->nr - 1].from))
		return err_set(e, SHARD_BAD_ARG,
			       "step %" PRIu64 ": no ranks, or before the line above",
			       h->world[h->nr].from);
	h->nr++;
	return SHARD_OK;
}

enum shard_status history_read(struct history *h, const char *path, struct err *e)
{
	FILE *f = fopen(path, "re");
	enum shard_status st = SHARD_OK;
	char text[2048];

	memset(h, 0, sizeof(*h));
	if (!f)
		return err_set(e, SHARD_SYSTEM, "history %s: %s", path, strerror(errno));
	while (st == SHARD_OK && fgets(text, sizeof(text), f))
		st = line(h, text, e);
	fclose(f);
	if (st == SHARD_OK && !h->nr)
		st = err_set(e, SHARD_BAD_ARG, "history %s: no worlds", path);
	if (st != SHARD_OK)
		history_deinit(h);
	return st;
}

const struct history_world *history_at(const struct history *h, uint64_t step)
{
	const struct history_world *w = NULL;

	for (uint32_t i = 0; i < h->nr && h->world[i].from <= step; i++)
		w = &h->world[i];
	return w;
}

void history_deinit(struct history *h)
{
	free(h->world);
	free(h->name);
	memset(h, 0, sizeof(*h));
}
