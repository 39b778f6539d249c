/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl events` prints the last events of a daemon, the oldest first, one a line: when, how
 * grave, what, and the words of the log line. The daemon keeps some dozens in memory. --json prints
 * them as the daemon sent them. It fails as every question to a daemon does (ctl_exit_of). */
#include "ctl/ctl.h"
#include "ctl/json.h"

#include <jansson.h>
#include <stdio.h>

enum ctl_exit ctl_events(const struct ctl_options *o)
{
	json_t *root, *list, *x;
	enum shard_status st;
	struct err e;
	size_t i;

	if ((st = ctl_ask_status(o, &root, &e)) != SHARD_OK)
		return ctl_fail_as(o, st, "", e.text);
	list = json_object_get(root, "events");
	if (list == NULL) {
		json_decref(root);
		return ctl_fail(o, CTL_REFUSED, "the daemon is of a release that keeps no events");
	}
	if (o->json) {
		enum ctl_exit rc = ctl_print(json_pack("{s:O}", "events", list));

		json_decref(root);
		return rc;
	}
	json_array_foreach(list, i, x) {
		printf("%s %-5s %s%s%s", ctl_text(x, "ts"), ctl_text(x, "level"),
		       ctl_text(x, "event"), ctl_text(x, "text")[0] != 0 ? " " : "",
		       ctl_text(x, "text"));
		if (ctl_whole(x, "times") > 1)
			printf(" (%lld times since %s)", ctl_whole(x, "times"),
			       ctl_text(x, "first"));
		printf("\n");
	}
	json_decref(root);
	return CTL_OK;
}
