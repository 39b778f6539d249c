// SPDX-License-Identifier: Apache-2.0
/* Lists of nodes that cannot be, from a node and from the coordinator. Each is refused with a
 * sentence that says what is wrong and who sent it. What is taken can be read again at the next
 * start. No daemon ends. */
#include "base/check.h"
#include "base/clock.h"
#include "cluster/static.h"
#include "lib/inproc.h"
#include "lib/pace.h"
#include "lib/rawnode.h"
#include "lib/rawpeer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { LIST = 70 };

struct say {
	const char *key, *value;
};

static const struct inproc_conf quiet = {.cluster = "heartbeat_timeout = 20s\nstep_timeout = 60s"};

static void send_list(struct rawnode *x, uint16_t op, const struct say *say, uint32_t nr)
{
	Shard__Setting setting[LIST], *list[LIST];
	Shard__Nodes body = SHARD__NODES__INIT;

	CHECK(nr <= LIST);
	for (uint32_t i = 0; i < nr; i++) {
		shard__setting__init(&setting[i]);
		setting[i].key = (char *)(uintptr_t)say[i].key;
		setting[i].value = (char *)(uintptr_t)say[i].value;
		list[i] = &setting[i];
	}
	body.n_config = nr;
	body.config = list;
	body.taken = UINT32_MAX;
	body.why = (char *)(uintptr_t) "\"why\\";
	raw_send(&x->r[0], &(struct wire_head){.op = op, .attempt = ++x->tag}, &body.base);
}

/* The two nodes that there are, with an address of the first one. */
static uint32_t both(struct rawnode *x, struct say *to, char *a, size_t bytes)
{
	snprintf(a, bytes, "a = 127.0.0.1:%u", x->c.node[0].port);
	to[0] = (struct say){"nodes[0]", a};
	to[1] = (struct say){"nodes[1]", "b = 127.0.0.1:2"};
	return 2;
}

static void lists(bool coordinates)
{
	static const struct {
		struct say more[3];
		const char *part;
	} forged[] = {
		{{{"nodes[2]", "c = x y:1"}}, "no host has such a name"},
		{{{"nodes[2]", "c = x\n[daemon]:1"}}, "has a control character"},
		{{{"nodes[2]", "c = x;y:1"}}, "no host has such a name"},
		{{{"nodes[2]", "c = #:1"}}, "no host has such a name"},
		{{{"nodes[2]", "c = \xff\xfe:1"}}, "UTF-8"},
		{{{"nodes[2]", "c = \xc3\xa9:1"}}, "no host has such a name"},
		{{{"nodes[2]", "c = x:0"}}, "a port above 0"},
		{{{"nodes[2]", "c = unix:/x"}}, "a port above 0"},
		{{{"nodes[2]", "c = x:99999"}}, "the port is over 65535"},
		{{{"nodes[2]", "c=x:1"}}, "node 2 is"},
		{{{"nodes[2]", ""}}, "node 2 is"},
		{{{"nodes[2]", "C] = x:1"}}, "a node's name is"},
		{{{"nodes[2]", " = x:1"}}, "a node's name is"},
		{{{"nodes[3]", "c = x:1"}}, "comes after 2 nodes"},
		{{{"nodes[2", "c = x:1"}}, "comes after 2 nodes"},
		{{{"nodes[1]", "b = x:1"}}, "comes after 2 nodes"},
		{{{"nodes[2]", "a = x:1"}}, "node 2 is a, and so is node 0"},
		{{{"nodes[2]", "c = x:1"}, {"nodes[3]", "c = x:2"}}, "and so is node 2"},
		{{{"nodes[2]", "c = x:1"}, {"nodes[3]", "d = x:1"}},
		 "node c has "
		 "this address"},
		{{{"nodes[2]", "c = tcp://x:1"}, {"nodes[3]", "d = x:1"}},
		 "node c has "
		 "this address"},
	};
	struct say say[5];
	struct rawnode x;
	char a[64];

	rawnode_start(&x, coordinates, &quiet, 1);
	for (uint32_t i = 0; i < NR(forged); i++) {
		uint32_t nr = both(&x, say, a, sizeof(a));

		for (uint32_t k = 0; k < 3 && forged[i].more[k].key != NULL; k++)
			say[nr++] = forged[i].more[k];
		send_list(&x, OP_NODES, say, nr);
		rawnode_refused(&x, 0, forged[i].part);
		rawnode_link(&x);
	}
	say[0] = (struct say){"nodes[0]", "z = x:1"};
	send_list(&x, OP_NODES, say, 1);
	rawnode_refused(&x, 0, "these are lists of two clusters");
	rawnode_stop(&x);
}

static void test_lists_of_a_node(void **state)
{
	(void)state;
	lists(false);
}

static void test_lists_of_the_coordinator(void **state)
{
	(void)state;
	lists(true);
}

/* The address of a node that was there before is taken, too. */
static void test_address_of_another(void **state)
{
	char a[64], c[64];
	struct say say[3];
	struct rawnode x;
	uint32_t nr;

	(void)state;
	rawnode_start(&x, false, &quiet, 1);
	nr = both(&x, say, a, sizeof(a));
	snprintf(c, sizeof(c), "c%s", a + 1);
	say[nr++] = (struct say){"nodes[2]", c};
	send_list(&x, OP_NODES, say, nr);
	rawnode_refused(&x, 0, "for node a node a has this address");
	rawnode_link(&x);
	rawnode_stop(&x);
}

/* As many nodes as there may be, with the longest names and addresses. One more is refused. What
 * is kept is read again. */
static void test_most(void **state)
{
	static char key[LIST][16], value[LIST][256];
	char a[64], folder[200], *text = NULL;
	struct say say[LIST];
	struct rawnode x;
	uint64_t until;
	struct err e;
	uint32_t nr;

	(void)state;
	rawnode_start(&x, false, &quiet, 1);
	nr = both(&x, say, a, sizeof(a));
	for (uint32_t i = nr; i < 65; i++) {
		snprintf(key[i], sizeof(key[i]), "nodes[%u]", i);
		snprintf(value[i], sizeof(value[i]), "n%063u = %0100u:%u", i, i, 10000 + i);
		say[i] = (struct say){key[i], value[i]};
	}
	send_list(&x, OP_NODES, say, 65);
	rawnode_refused(&x, 0, "comes after 64 nodes");
	rawnode_link(&x);
	send_list(&x, OP_NODES, say, 64);
	snprintf(folder, sizeof(folder), "%s/state-a", x.c.dir);
	for (until = pace_by(20); text == NULL || strstr(text, value[63]) == NULL; usleep(10000)) {
		free(text);
		assert_int_equal(static_cluster(folder, &text, &e), SHARD_OK);
		if (clock_ns() > until)
			fail_msg("node a has not kept the list: %s", text != NULL ? text : "");
	}
	free(text);
	rawnode_stop(&x);
}

/* --- who is gone --- */

static void send_gone(struct rawnode *x, uint32_t *gone, size_t nr)
{
	Shard__Nodes body = SHARD__NODES__INIT;

	body.taken = 2;
	body.gone = gone;
	body.n_gone = nr;
	raw_send(&x->r[0], &(struct wire_head){.op = OP_NODES, .attempt = ++x->tag}, &body.base);
}

/* A count so high that no other one can follow it, and counts of more nodes than there can be. What
 * can be is kept. */
static void test_gone(void **state)
{
	uint32_t gone[65] = {[1] = UINT32_MAX};
	struct rawnode x;

	(void)state;
	rawnode_start(&x, false, &quiet, 1);
	send_gone(&x, gone, 2);
	rawnode_refused(&x, 0, "tells of 4294967295 drains of node 1");
	gone[1] = 0;
	rawnode_link(&x);
	send_gone(&x, gone, 65);
	rawnode_refused(&x, 0, "tells of 65 nodes, and 64 are possible");
	rawnode_link(&x);
	gone[1] = 1;
	send_gone(&x, gone, 2);
	inproc_wait_log(&x.c.node[0], "event=gone node=b", 1);
	rawnode_stop(&x);
}

/* --- to add a node --- */

static void refused_add(struct rawnode *x, const char *name, const char *address, const char *part)
{
	struct say say = {name, address};
	char *text;

	send_list(x, OP_NODE_ADD, &say, 1);
	text = raw_error(&x->r[0]);
	if (text == NULL || strstr(text, part) == NULL)
		fail_msg("%s = %s: \"%s\", not \"%s\"", name, address, text != NULL ? text : "",
			 part);
}

static void test_add(void **state)
{
	char at[64];
	struct say two[2] = {{"c", "x:1"}, {"d", "x:2"}};
	struct rawnode x;

	(void)state;
	rawnode_start(&x, false, &quiet, 1);
	refused_add(&x, "c", "x y:1", "no host has such a name");
	refused_add(&x, "c", "x:0", "a port above 0");
	refused_add(&x, "C", "x:1", "a node's name is");
	refused_add(&x, "", "", "a node's name is");
	refused_add(&x, "a", "x:1", "node a is at 127.0.0.1:");
	snprintf(at, sizeof(at), "127.0.0.1:%u", x.c.node[0].port);
	refused_add(&x, "c", at, "node a is at 127.0.0.1:");
	send_list(&x, OP_NODE_ADD, two, 2);
	assert_true(strstr(raw_error(&x.r[0]), "2 nodes to be added at once") != NULL);
	send_list(&x, OP_NODE_ADD, two, 0);
	assert_true(strstr(raw_error(&x.r[0]), "0 nodes to be added at once") != NULL);
	rawnode_stop(&x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lists_of_a_node),
		cmocka_unit_test(test_lists_of_the_coordinator),
		cmocka_unit_test(test_address_of_another),
		cmocka_unit_test(test_most),
		cmocka_unit_test(test_gone),
		cmocka_unit_test(test_add),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
