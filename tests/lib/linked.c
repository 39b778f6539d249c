// SPDX-License-Identifier: Apache-2.0
/* Links as a tool sees them. Tests call it. Each function asks for the status again. Only
 * linked_await() and linked_by_rdma() wait, and they fail the test after WAIT_S. */
#include "lib/linked.h"

#include "base/clock.h"
#include "lib/pace.h"

#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define WAIT_S 20

static json_t *node_of(json_t *status, const char *to)
{
	size_t i;
	json_t *n;

	json_array_foreach(json_object_get(status, "nodes"), i, n)
		if (strcmp(json_string_value(json_object_get(n, "name")), to) == 0)
			return n;
	fail_msg("no node \"%s\" in the status", to);
	return NULL;
}

json_int_t linked_figure(struct inproc_node *from, const char *to, const char *key)
{
	json_t *status = inproc_status(from), *v = json_object_get(node_of(status, to), key);
	json_int_t nr = json_is_integer(v) ? json_integer_value(v) : -1;

	json_decref(status);
	return nr;
}

bool linked_says(struct inproc_node *from, const char *to, const char *key, const char *part)
{
	json_t *status = inproc_status(from);
	const char *text = json_string_value(json_object_get(node_of(status, to), key));
	bool has = text != NULL && strstr(text, part) != NULL;

	json_decref(status);
	return has;
}

void linked_await(struct inproc_node *from, const char *to, const char *key, const char *part)
{
	uint64_t by = pace_by(WAIT_S);

	while (!linked_says(from, to, key, part)) {
		if (clock_ns() > by) {
			json_t *status = inproc_status(from);

			fail_msg("%s of node %s does not say \"%s\": %s\n%s", key, to, part,
				 json_dumps(node_of(status, to), JSON_COMPACT), from->lines);
		}
		usleep(20000);
	}
}

void linked_by_rdma(struct inproc *c)
{
	for (uint32_t i = 0; i < c->nodes; i++)
		for (uint32_t k = 0; k < c->nodes; k++)
			if (i != k)
				linked_await(&c->node[i], c->node[k].name, "transport", "rdma");
}
