/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl members` prints one line for each node of the cluster, as the daemon that is asked
 * knows it: who it is, its capacity, whether it votes in elections, and what it holds of each
 * model. It is made of the answer to STATUS. Models that the user may not read are left out. It
 * fails as every question to a daemon does (ctl_exit_of). */
#include "ctl/ctl.h"
#include "ctl/json.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UUID_SHOWN 8 /* Digits of the uuid. --json has all. */

static bool names(const json_t *list, const char *node)
{
	json_t *name;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)list, i, name)
		if (strcmp(json_string_value(name) ? json_string_value(name) : "", node) == 0)
			return true;
	return false;
}

/* What the node is in the view of the model that the daemon has adopted. */
static const char *part(const json_t *model, const char *node)
{
	if (names(json_object_get(model, "catching_up"), node))
		return "catching up";
	return names(json_object_get(model, "members"), node) ? "member" : "out";
}

static json_t *models_of(const json_t *models, const char *node)
{
	json_t *list = json_array(), *m;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)models, i, m) {
		const json_t *chunks = json_object_get(m, "chunks"),
			     *here = json_object_get(json_object_get(chunks, "per_node"), node);

		if (here == NULL)
			continue;
		json_array_append_new(list,
				      json_pack("{s:s, s:I, s:I, s:s}", "name", ctl_text(m, "name"),
						"chunks", json_integer_value(here), "chunks_nr",
						json_integer_value(json_object_get(chunks, "nr")),
						"part", part(m, node)));
	}
	return list;
}

/* {"members": [...]} of an answer to STATUS. */
static json_t *members_of(const json_t *status)
{
	static const char *const keys[] = {"name", "address",     "state",     "why",
					   "ill",  "coordinator", "capacity",  "votes",
					   "uuid", "release",     "wire_minor"};
	json_t *list = json_array(), *nobody = json_object_get(status, "no_coordinator"), *out, *n;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)json_object_get(status, "nodes"), i, n) {
		json_t *o = json_object();

		for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
			if (json_object_get(n, keys[k]) != NULL)
				json_object_set(o, keys[k], json_object_get(n, keys[k]));
		json_object_set_new(
			o, "models",
			models_of(json_object_get(status, "models"), ctl_text(n, "name")));
		json_array_append_new(list, o);
	}
	out = json_pack("{s:o}", "members", list);
	if (nobody != NULL)
		json_object_set(out, "no_coordinator", nobody);
	return out;
}

/* Whether it votes is told by a daemon that has heard who does. led: it knows a coordinator. */
static void print_member(const json_t *n, bool led)
{
	const json_t *capacity = json_object_get(n, "capacity"),
		     *votes = json_object_get(n, "votes");
	char number[24] = "?";
	json_t *m;
	size_t i;

	if (capacity != NULL)
		snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(capacity));
	printf("%-16s %-24s %-7s %8s  %-5s %-9s %-*.*s%s%s%s\n", ctl_text(n, "name"),
	       ctl_text(n, "address"), ctl_text(n, "state"), number,
	       json_is_true(votes)    ? "yes"
	       : votes != NULL || led ? "no"
				      : "?",
	       ctl_text(n, "release")[0] ? ctl_text(n, "release") : "?", UUID_SHOWN, UUID_SHOWN,
	       ctl_text(n, "uuid")[0] ? ctl_text(n, "uuid") : "?",
	       json_is_true(json_object_get(n, "coordinator")) ? "  coordinates" : "",
	       ctl_text(n, "why")[0] ? "  " : "", ctl_text(n, "why"));
	if (ctl_text(n, "ill")[0] != 0)
		printf("  ill: %s\n", ctl_text(n, "ill"));
	json_array_foreach(json_object_get(n, "models"), i, m)
		printf("  \"%s\": %lld of %lld chunks%s%s\n", ctl_text(m, "name"),
		       (long long)json_integer_value(json_object_get(m, "chunks")),
		       (long long)json_integer_value(json_object_get(m, "chunks_nr")),
		       strcmp(ctl_text(m, "part"), "member") == 0 ? "" : ", ",
		       strcmp(ctl_text(m, "part"), "member") == 0 ? ""
		       : strcmp(ctl_text(m, "part"), "out") == 0  ? "out of the view"
								  : ctl_text(m, "part"));
}

enum ctl_exit ctl_members(const struct ctl_options *o)
{
	json_t *status, *members, *n;
	struct err e;
	size_t i;

	if (ctl_ask_status(o, &status, &e) != SHARD_OK)
		return ctl_fail_as(o, e.status, "", e.text);
	members = members_of(status);
	json_decref(status);
	if (o->json) {
		return ctl_print(members);
	} else {
		const char *nobody = ctl_text(members, "no_coordinator");

		printf("%-16s %-24s %-7s %8s  %-5s %-9s %s\n", "NODE", "ADDRESS", "STATE",
		       "CAPACITY", "VOTES", "RELEASE", "UUID");
		json_array_foreach(json_object_get(members, "members"), i, n)
			print_member(n, nobody[0] == 0);
		if (nobody[0] != 0)
			printf("%s\n", nobody);
	}
	json_decref(members);
	return CTL_OK;
}
