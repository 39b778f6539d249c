/* SPDX-License-Identifier: Apache-2.0 */
/* Merges the histories of nodes for a replay. replay.c calls it. Happy path: each line is an
 * object, and its record goes into a table by generation and step, where the same record of another
 * node is already. The file comes from a user, so each field is checked for its type where it is
 * used. */
#include "replay_steps.h"

#include "base/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES 48

struct replay_steps {
	json_t *records;        /* "generation.step": a record. */
	json_t *nodes;          /* The same: the node that had it first. */
	json_int_t generations; /* The newest one. */
	json_t *seals;          /* "generation": the step of its seal. */
};

static void key_of(char key[KEY_BYTES], json_int_t generation, json_int_t step)
{
	snprintf(key, KEY_BYTES, "%lld.%lld", (long long)generation, (long long)step);
}

static enum shard_status take(struct replay_steps *s, const json_t *entry, const char *where,
			      struct err *e)
{
	const json_t *r = json_object_get(entry, "record"), *node = json_object_get(entry, "node"),
		     *before;
	json_int_t generation = json_integer_value(json_object_get(r, "generation")),
		   step = json_integer_value(json_object_get(r, "step"));
	const char *outcome = json_string_value(json_object_get(r, "outcome"));
	char key[KEY_BYTES];

	if (r == NULL)
		return SHARD_OK;
	if (!json_is_string(node) || outcome == NULL || generation <= 0 || step < 0)
		return err_set(e, SHARD_PROTOCOL, "%s: a record without node, outcome or number",
			       where);
	if (generation > s->generations)
		s->generations = generation;
	key_of(key, generation, step);
	if (strcmp(outcome, "seal") == 0) {
		snprintf(key, sizeof(key), "%lld", (long long)generation);
		json_object_set(s->seals, key, json_object_get(r, "step"));
		return SHARD_OK;
	}
	before = json_object_get(s->records, key);
	if (before != NULL && !json_equal((json_t *)(uintptr_t)before, (json_t *)(uintptr_t)r))
		return err_set(e, SHARD_MISMATCH,
			       "%s: node %s has another record of step %lld (generation %lld) than "
			       "node %s",
			       where, json_string_value(node), (long long)step,
			       (long long)generation,
			       json_string_value(json_object_get(s->nodes, key)));
	if (before == NULL) {
		json_object_set(s->records, key, (json_t *)(uintptr_t)r);
		json_object_set(s->nodes, key, (json_t *)(uintptr_t)node);
	}
	return SHARD_OK;
}

enum shard_status replay_steps_read(struct replay_steps **out, const char *path, struct err *e)
{
	struct replay_steps *s = calloc(1, sizeof(*s));
	FILE *f = fopen(path, "re");
	enum shard_status st = SHARD_OK;
	char *line = NULL, where[600];
	size_t room = 0;
	uint64_t nr = 0;

	*out = NULL;
	if (s == NULL || f == NULL) {
		st = err_set(e, f == NULL && errno == ENOENT ? SHARD_NOT_FOUND : SHARD_SYSTEM,
			     "%s: %s", path, strerror(errno));
		free(s);
		if (f != NULL)
			fclose(f);
		return st;
	}
	s->records = json_object();
	s->nodes = json_object();
	s->seals = json_object();
	while (st == SHARD_OK && getline(&line, &room, f) > 0) {
		json_t *entry = json_loads(line, 0, NULL);

		snprintf(where, sizeof(where), "%.500s:%lu", path, (unsigned long)++nr);
		if (!json_is_object(entry))
			st = err_set(e, SHARD_PROTOCOL,
				     "%s: no entry of a history: write it by `shardctl history "
				     "NAME --node all --json`",
				     where);
		else
			st = take(s, entry, where, e);
		json_decref(entry);
	}
	free(line);
	fclose(f);
	*out = s;
	if (st != SHARD_OK)
		replay_steps_free(out);
	return st;
}

void replay_steps_free(struct replay_steps **sp)
{
	struct replay_steps *s = *sp;

	*sp = NULL;
	if (s == NULL)
		return;
	json_decref(s->records);
	json_decref(s->nodes);
	json_decref(s->seals);
	free(s);
}

const json_t *replay_steps_at(const struct replay_steps *s, uint64_t step, struct err *e)
{
	char key[KEY_BYTES];

	for (json_int_t g = s->generations; g > 0; g--) {
		const json_t *seal, *r;

		snprintf(key, sizeof(key), "%lld", (long long)g);
		seal = json_object_get(s->seals, key);
		if (seal != NULL && (json_int_t)step <= json_integer_value(seal))
			continue; /* Its weights are those of an earlier generation up to there. */
		key_of(key, g, (json_int_t)step);
		if ((r = json_object_get(s->records, key)) != NULL)
			return r;
	}
	err_set(e, SHARD_NOT_FOUND, "no node has step %lu in its history", (unsigned long)step);
	return NULL;
}
