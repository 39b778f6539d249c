/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the JSON of daemons. A field that is missing or of another type is "" or 0, so that a
 * daemon of another release can be looked at. */
#include "ctl/json.h"

#include <string.h>

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
