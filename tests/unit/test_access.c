// SPDX-License-Identifier: Apache-2.0
/* Tests who may read and who may change a model. Every mode and every kind of requester is compared
 * with the rule of files, and so is the sentence of a refusal. */
#include "control/access.h"
#include "base/check.h"
#include "model/model.h"
#include "link/session.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { OWNER = 4001, GROUP = 4100, STRANGER = 4002 }; /* This test runs as none of them. */

static Shard__Cred cred(uint32_t uid, uint32_t gid, uint32_t *groups, size_t nr)
{
	Shard__Cred c = SHARD__CRED__INIT;

	c.known = true;
	c.uid = uid;
	c.gid = gid;
	c.groups = groups;
	c.n_groups = nr;
	c.node = (char *)(uintptr_t) "a";
	c.root = uid == 0 || uid == geteuid();
	return c;
}

/* Each of the 512 modes must give each requester what the mode of a file would give. */
static void test_every_mode(void **state)
{
	uint32_t with[] = {7, GROUP, 9}, without[] = {7, 9};
	Shard__Cred unknown = SHARD__CRED__INIT, owner = cred(OWNER, GROUP, NULL, 0);
	const struct {
		Shard__Cred who;
		int shift; /* Of the bits of `mode` that apply. -1: everything is allowed. */
	} asks[] = {
		{owner, 6},
		{cred(OWNER, 1, without, 2), 6},
		{cred(STRANGER, GROUP, without, 2), 3},
		{cred(STRANGER, 1, with, 3), 3},
		{cred(STRANGER, 1, without, 2), 0},
		{unknown, 0},
		{cred(0, 0, NULL, 0), -1},
		{cred(geteuid(), 1, NULL, 0), -1},
	};

	(void)state;
	/* The fields of a Cred that is not known do not count, so this uid owns nothing. */
	unknown.uid = OWNER;
	for (uint32_t mode = 0; mode <= 0777; mode++)
		for (size_t i = 0; i < NR(asks); i++)
			for (int write = 0; write < 2; write++) {
				int bits = asks[i].shift < 0 ? 7 : (int)(mode >> asks[i].shift & 7),
				    want = bits >> (write ? 1 : 2) & 1;

				if (access_allowed(mode, &owner, &asks[i].who, write) !=
				    (want == 1))
					fail_msg("mode %04o, asker %zu, write %d: not %d", mode, i,
						 write, want);
			}
	/* If a model has no owner, everybody but root is one of the others. */
	for (uint32_t mode = 0; mode <= 0777; mode++) {
		assert_int_equal(access_allowed(mode, NULL, &owner, true), mode >> 1 & 1);
		assert_int_equal(access_allowed(mode, &unknown, &owner, false), mode >> 2 & 1);
		assert_int_equal(access_allowed(mode, &unknown, NULL, false), mode >> 2 & 1);
		assert_true(access_allowed(mode, NULL, &asks[6].who, true));
	}
}

static Shard__Cred at(const char *node, Shard__Cred c)
{
	c.node = (char *)(uintptr_t)node;
	c.root = false; /* As a request that comes from another node. */
	return c;
}

/* A uid is the same user on all nodes, but uid 0 and gid 0 are those of one node alone. */
static void test_other_nodes(void **state)
{
	uint32_t zero[] = {0};
	Shard__Cred user = cred(OWNER, GROUP, NULL, 0), root = cred(0, 0, NULL, 0),
		    in_roots = cred(STRANGER, 1, zero, 1), there = at("b", root);

	(void)state;
	user = at("b", user);
	assert_true(access_allowed(
		0600, &(Shard__Cred){.known = true, .uid = OWNER, .node = (char *)(uintptr_t) "a"},
		&user, true));
	/* The root of node b is not root here, so it has the rights of others. */
	assert_false(access_allowed(0600, &user, &there, false));
	assert_true(access_allowed(0604, &user, &there, false));
	/* It does not own the models of the root of node a, only those that it defined. */
	assert_false(access_allowed(0600, &root, &there, false));
	assert_true(access_allowed(0600, &there, &there, true));
	in_roots = at("b", in_roots);
	assert_false(access_allowed(0660, &root, &in_roots, true));
	assert_true(access_allowed(0660, &there, &in_roots, true));
	there.root = true; /* As with trust_remote_root. */
	assert_true(access_allowed(0600, &root, &there, true));
}

/* access_from_node() replaces the node and the root flag in a message by what this node knows of
 * the sender. A remote uid 0 is root only with trust_remote_root. */
static void test_from_node(void **state)
{
	static struct config conf;
	static struct server s = {
		.conf = &conf, .node = {{.name = "a"}, {.name = "b"}}, .nodes_nr = 2};
	Shard__Cred who = cred(0, 0, NULL, 0), user = cred(OWNER, GROUP, NULL, 0),
		    unknown = SHARD__CRED__INIT;

	(void)state;
	who.root = user.root = unknown.root = true;
	access_from_node(&s, 1, &who);
	access_from_node(&s, 1, &user);
	access_from_node(&s, 1, &unknown);
	assert_false(who.root || user.root || unknown.root);
	assert_string_equal(who.node, "b");
	conf.trust_remote_root = true;
	user.root = unknown.root = true;
	access_from_node(&s, 1, &who);
	access_from_node(&s, 1, &user);
	access_from_node(&s, 1, &unknown);
	assert_true(who.root && !user.root && !unknown.root);
}

static enum shard_status session_asks(const struct model *m, const struct session *t, bool write,
				      struct err *e)
{
	uint32_t groups[SESSION_GROUPS_MAX];
	Shard__Cred who;

	access_cred(t, &who, groups);
	return access_check(m, &who, write, e);
}

/* A refusal names the model, its owner, its mode, the requester and what to do. */
static void test_sentence(void **state)
{
	Shard__Cred owner = cred(OWNER, GROUP, NULL, 0), who = cred(STRANGER, 5, NULL, 0);
	Shard__Model spec = SHARD__MODEL__INIT;
	struct model m = {.name = (char *)(uintptr_t) "gpt", .spec = &spec, .set = {.mode = 0640}};
	struct session t = {.who = {.known = true, .uid = STRANGER, .gid = GROUP, .node = "a"}};
	struct err e;

	(void)state;
	spec.owner = &owner;
	assert_int_equal(access_check(&m, &who, false, &e), SHARD_DENIED);
	assert_string_equal(e.text, "\"gpt\" belongs to uid 4001 (gid 4100) with mode 0640, and "
				    "uid 4002 (gid 5) asks to read it: ask the "
				    "owner, or define it with a wider `mode`");
	assert_int_equal(session_asks(&m, &t, false, &e), SHARD_OK);
	assert_int_equal(session_asks(&m, &t, true, &e), SHARD_DENIED);
	t.who.known = false;
	assert_int_equal(session_asks(&m, &t, false, &e), SHARD_DENIED);
	assert_non_null(strstr(
		e.text, "somebody over TCP asks to read it: connect through the unix socket"));
	who = at("b", cred(0, 0, NULL, 0));
	assert_int_equal(access_check(&m, &who, false, &e), SHARD_DENIED);
	assert_non_null(strstr(
		e.text,
		"uid 0 (gid 0) of node b asks to read it: root of another node is not root here"));
	spec.owner = NULL;
	assert_int_equal(access_check(&m, &owner, true, &e), SHARD_DENIED);
	assert_non_null(strstr(e.text, "belongs to nobody (it was defined over TCP)"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_mode), cmocka_unit_test(test_other_nodes),
		cmocka_unit_test(test_from_node), cmocka_unit_test(test_sentence)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
