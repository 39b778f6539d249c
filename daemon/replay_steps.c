/* SPDX-License-Identifier: Apache-2.0 */
/* Merges the histories of nodes for a replay. replay.c calls it. Happy path: each line is an
 * object, and its record goes into a table by step and generation, where the same record of another
 * node is already. The file comes from a user, so each field is checked for its type where it is
 * used. */
#include "replay_steps.h"

#include "base/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES 24

struct replay_steps {
	json_t *steps; /* "step": {"generation": {"record": R, "node": the one that had it first}}.
			*/
	json_t *seals; /* "generation": the step of its seal. */
};

static const char *key_of(char key[KEY_BYTES], json_int_t number)
{
	snprintf(key, KEY_BYTES, "%lld", (long long)number);
	return key;
}

/* All records of a step, by generation. */
static json_t *records_of(struct replay_steps *s, json_int_t step)
{
	char key[KEY_BYTES];
	json_t *records = json_object_get(s->steps, key_of(key, step));

	if (records == NULL) {
		records = json_object();
		json_object_set_new(s->steps, key, records);
	}
	return records;
}

static enum shard_status take(struct replay_steps *s, const json_t *entry, const char *where,
			      struct err *e)
{
	json_t *r = json_object_get(entry, "record"), *node = json_object_get(entry, "node"),
	       *records, *before;
	json_int_t generation = json_integer_value(json_object_get(r, "generation")),
		   step = json_integer_value(json_object_get(r, "step"));
	const char *outcome = json_string_value(json_object_get(r, "outcome"));
	char key[KEY_BYTES];

	if (r == NULL)
		return SHARD_OK;
	if (!json_is_string(node) || outcome == NULL || generation <= 0 || step < 0)
		return err_set(e, SHARD_PROTOCOL, "%s: a record without node, outcome or number",
			       where);
	key_of(key, generation);
	if (strcmp(outcome, "seal") == 0) {
		json_object_set_new(s->seals, key, json_integer(step));
		return SHARD_OK;
	}
	records = records_of(s, step);
	before = json_object_get(records, key);
	if (before == NULL)
		json_object_set_new(records, key,
				    json_pack("{s:O, s:O}", "record", r, "node", node));
	else if (!json_equal(json_object_get(before, "record"), r))
		return err_set(e, SHARD_MISMATCH,
			       "%s: node %s has another record of step %lld (generation %lld) than "
			       "node %s",
			       where, json_string_value(node), (long long)step,
			       (long long)generation,
			       json_string_value(json_object_get(before, "node")));
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
	s->steps = json_object();
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
	json_decref(s->steps);
	json_decref(s->seals);
	free(s);
}

/* The weights of a generation are those of an earlier one up to the step of its seal. Generations
 * are compared, and never counted through, because a file may have any number. */
const json_t *replay_steps_at(const struct replay_steps *s, uint64_t step, struct err *e)
{
	char step_key[KEY_BYTES];
	const char *key;
	json_t *records = json_object_get(s->steps, key_of(step_key, (json_int_t)step)), *one;
	const json_t *best = NULL;
	long long newest = 0;

	json_object_foreach(records, key, one) {
		const json_t *seal = json_object_get(s->seals, key);
		long long generation = strtoll(key, NULL, 10);

		if (generation <= newest ||
		    (seal != NULL && (json_int_t)step <= json_integer_value(seal)))
			continue;
		newest = generation;
		best = json_object_get(one, "record");
	}
	if (best == NULL)
		err_set(e, SHARD_NOT_FOUND, "no node has step %lu in its history",
			(unsigned long)step);
	return best;
}
