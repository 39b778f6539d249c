/* SPDX-License-Identifier: Apache-2.0 */
/* Prints JSON, and reads that of daemons. A field that is missing or of another type is "" or 0, so
 * that a daemon of another release can be looked at. */
#include "ctl/json.h"

#include <stdio.h>
#include <string.h>

enum ctl_exit ctl_print(json_t *o)
{
	json_t *all = o != NULL ? json_pack("{s:i}", "format", CTL_FORMAT) : NULL;
	/* Each bit of a number is kept: a replay computes with those of a history. */
	bool ok = all != NULL && json_object_update(all, o) == 0 &&
		  json_dumpf(all, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER) == 0 &&
		  putchar('\n') == '\n';

	json_decref(all);
	json_decref(o);
	if (!ok && !ferror(stdout)) /* base/output.h says what is wrong with stdout. */
		fputs("shardctl: there is no memory to print the answer\n", stderr);
	return ok ? CTL_OK : CTL_FAILED;
}

const char *ctl_text(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s != NULL ? s : "";
}

long long ctl_whole(const json_t *o, const char *key)
{
	return (long long)json_integer_value(json_object_get(o, key));
}

const char *ctl_moving(const json_t *model)
{
	const json_t *o = json_object_get(model, "moving");

	if (o == NULL)
		return NULL;
	if (ctl_text(o, "trouble")[0] != 0)
		return ctl_text(o, "trouble");
	if (ctl_text(o, "waits")[0] != 0)
		return ctl_text(o, "waits");
	if (strcmp(ctl_text(o, "state"), "planning") == 0)
		return "where chunks go is being computed";
	if (strcmp(ctl_text(o, "state"), "room") == 0)
		return "nodes make room";
	return "chunks move: the node that coordinates knows what they wait for";
}
