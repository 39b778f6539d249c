/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what a node keeps of its cluster as a source of its configuration, and what it takes of
 * what another node says of the cluster: a node that joins, nodes that joined before, and lists
 * that contradict each other or are no lists. */
#include "config/cluster.h"

#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define HEAD "[daemon]\nnode = a\n"

static void refused(const char *text, const char *want)
{
	struct config c;
	struct err e = {.text = ""};

	if (config_load_text(&c, "shardd.conf", text, strlen(text), &e) == SHARD_OK)
		fail_msg("taken: %s", text);
	if (strcmp(e.text, want) != 0)
		fail_msg("\"%s\", expected \"%s\"", e.text, want);
}

/* Loads the file with what is kept of a cluster. */
static enum shard_status with_cluster(struct config *c, const char *file, const char *kept,
				      struct err *e)
{
	char path[] = "/tmp/shard-config-XXXXXX";
	struct config_args args = {.file = path, .cluster = kept};
	enum shard_status st;
	int fd = mkstemp(path);

	assert_int_equal(write(fd, file, strlen(file)), strlen(file));
	close(fd);
	st = config_load(c, &args, e);
	unlink(path);
	return st;
}

static void not_with(const char *file, const char *kept, const char *want)
{
	struct config c;
	struct err e = {.text = ""};

	assert_int_equal(with_cluster(&c, file, kept, &e), SHARD_BAD_ARG);
	if (strstr(e.text, want) == NULL)
		fail_msg("\"%s\", expected \"%s\"", e.text, want);
}

#define LONE HEAD "allow_unauthenticated = yes\n"
#define KEPT "[cluster]\nmembership = static\n[net]\nconnections = 3\n[nodes]\n"

/* What a node keeps of its cluster is a source below the file. It adds nodes behind those of the
 * file, and options that must be equal on all nodes where nobody has set them. */
static void cluster(void **state)
{
	struct config c;
	struct err e = {.text = ""};

	(void)state;
	if (with_cluster(&c, LONE, KEPT "b = 10.0.0.1:1\na = 10.0.0.1:2\nc = 10.0.0.1:3\n", &e) !=
	    SHARD_OK)
		fail_msg("%s", e.text);
	assert_int_equal(c.nodes_nr, 3);
	assert_int_equal(c.self, 1);
	assert_int_equal(c.kept_nr, 3);
	assert_int_equal(c.connections, 3);
	assert_int_equal(c.membership, CONFIG_MEMBERSHIP_STATIC);
	assert_string_equal(c.listen.text, "10.0.0.1:2");
	assert_string_equal(c.node_list[2].name, "c");
	assert_true(config_joined(&c, 3) && config_joined(&c, 2) && config_joined(&c, 1));
	assert_false(config_joined(&c, 4));
	config_free(&c);
	/* The file says more, and goes before. A node that is added by hand has not joined. */
	assert_int_equal(with_cluster(&c,
				      LONE "[net]\nconnections = 2\n[nodes]\na = 10.0.0.2:2\n"
					   "b = 10.0.0.2:1\nd = 10.0.0.2:9\n",
				      KEPT "a = 10.0.0.1:2\nb = 10.0.0.1:1\n", &e),
			 SHARD_OK);
	assert_int_equal(c.nodes_nr, 3);
	assert_int_equal(c.connections, 2);
	assert_string_equal(c.node_list[0].address.text, "10.0.0.2:2");
	assert_false(config_joined(&c, 2));
	config_free(&c);
	/* Options that are each node's own, and those of another release, are not taken. */
	assert_int_equal(with_cluster(&c, LONE,
				      "[daemon]\nworkers = 7\n[net]\nwarp = 9\n[nodes]\n"
				      "a = 10.0.0.1:2\n",
				      &e),
			 SHARD_OK);
	assert_true(c.workers != 7);
	config_free(&c);
	not_with(LONE "[nodes]\na = 10.0.0.1:1\nc = 10.0.0.1:3\n",
		 KEPT "a = 10.0.0.1:1\nb = 10.0.0.1:2\nc = 10.0.0.1:3\n",
		 "/var/lib/shardd/cluster:7: node 2 of this cluster is b, and [nodes] has c there");
	not_with(LONE, KEPT "a = 10.0.0.1:1\na = 10.0.0.1:2\n", "/cluster:7: [nodes] a");
	not_with(LONE, KEPT "b = 10.0.0.1:1\n", "[daemon] node = a: not in [nodes]");
	not_with(LONE, "[cluster]\nmembership = king\n[nodes]\na = 10.0.0.1:1\n",
		 "/cluster:2: [cluster] membership = king: choose");
}

/* A node that joins needs to prove that it may, and an address. */
static void joins(void **state)
{
	struct config c;
	struct err e;
	static const char alone[] = LONE "[cluster]\njoin = 10.0.0.1:29700\n",
			  listed[] = LONE "[cluster]\njoin = 10.0.0.1:29700\n"
					  "[nodes]\na = 10.0.0.2:1\n";

	(void)state;
	assert_int_equal(config_load_text(&c, "shardd.conf", alone, strlen(alone), &e), SHARD_OK);
	assert_true(c.joins);
	assert_false(c.listen_chosen);
	config_free(&c);
	assert_int_equal(config_load_text(&c, "shardd.conf", listed, strlen(listed), &e), SHARD_OK);
	assert_false(c.joins);
	config_free(&c);
	refused(HEAD "[cluster]\njoin = 10.0.0.1:29700\n",
		"shardd.conf:4: [cluster] join = 10.0.0.1:29700: there is no [cluster] "
		"node_secret, by which nodes know each other: copy the file from a node of that "
		"cluster, and set node_secret to its path");
	refused(LONE "listen = off\n[cluster]\njoin = 10.0.0.1:29700\n",
		"shardd.conf:4: [daemon] listen = off: the other nodes could not connect, and "
		"this one shall join them: set it");
	refused(HEAD "[cluster]\njoin = soon\n",
		"shardd.conf:4: [cluster] join = soon: choose off or host:port");
}

/* What another node says of the cluster, one key at a time. */
static void puts_cluster(void **state)
{
	static const struct {
		const char *key, *value;
		enum shard_status want;
	} said[] = {
		{"the wire between nodes", "99", SHARD_MISMATCH},
		{"cluster.run_id", "ten", SHARD_OK},
		{"cluster.run_id", "a b", SHARD_PROTOCOL},
		{"cluster.run_id", "a\nb", SHARD_PROTOCOL},
		{"cluster.run_id", "a;b", SHARD_PROTOCOL},
		{"net.connections", "0", SHARD_PROTOCOL},
		{"net.connections", "4", SHARD_OK},
		{"cluster.etcd_endpoints", "ftp://h:1", SHARD_PROTOCOL},
		{"cluster.etcd_endpoints", "http://h:1 x", SHARD_PROTOCOL},
		{"cluster.etcd_endpoints", "http://h:1", SHARD_OK}, /* It is offered. */
		{"cluster.etcd_ca", "/etc/passwd", SHARD_OK},
		{"daemon.state", "/etc", SHARD_OK}, /* It is no shared option, and is left out. */
		{"cluster.node_secret", "/etc/passwd", SHARD_OK},
		{"what.ever", "\n[daemon]\n", SHARD_OK},
		{"nodes[1]", "a = 10.0.0.1:1", SHARD_PROTOCOL},
		{"nodes[0]", "a = 10.0.0.1:1", SHARD_OK},
		{"nodes[0]", "a = 10.0.0.1:1", SHARD_PROTOCOL},
		{"nodes[1]", "a = 10.0.0.1:2", SHARD_PROTOCOL},
		{"nodes[1]", "b=10.0.0.1:2", SHARD_PROTOCOL},
		{"nodes[1]", "B = 10.0.0.1:2", SHARD_PROTOCOL},
		{"nodes[1]", "b = unix:/x", SHARD_PROTOCOL},
		{"nodes[1]", "b = h\n[daemon]:2", SHARD_PROTOCOL},
		{"nodes[1]", "b = h#:2", SHARD_PROTOCOL},
		{"nodes[1]", " = 10.0.0.1:2", SHARD_PROTOCOL},
		{"nodes[1]", "b = 10.0.0.1:0", SHARD_PROTOCOL},
		{"nodes[1]", "b = 10.0.0.1:2", SHARD_OK},
		{"net.connections", "5", SHARD_PROTOCOL}, /* Behind the nodes. */
	};
	struct config_cluster to = {.used = 0};
	struct err e;

	(void)state;
	for (size_t i = 0; i < NR(said); i++)
		if (config_cluster_put(&to, said[i].key, said[i].value, &e) != said[i].want)
			fail_msg("%s is \"%s\": %s", said[i].key, said[i].value, e.text);
	assert_string_equal(to.text, "[cluster]\nrun_id = ten\n[net]\nconnections = 4\n[cluster]\n"
				     "etcd_endpoints = http://h:1\n[nodes]\n"
				     "a = 10.0.0.1:1\nb = 10.0.0.1:2\n");
	for (uint32_t n = 2; n <= CONFIG_NODES_MAX; n++) {
		char key[16], value[32];

		snprintf(key, sizeof(key), "nodes[%u]", n);
		snprintf(value, sizeof(value), "n%u = 10.0.0.2:%u", n, n);
		assert_int_equal(config_cluster_put(&to, key, value, &e),
				 n < CONFIG_NODES_MAX ? SHARD_OK : SHARD_PROTOCOL);
	}
}

/* A node may be named as an option is. */
static void named_like_an_option(void **state)
{
	struct config_cluster to = {.used = 0};
	struct err e = {.text = ""};

	(void)state;
	assert_int_equal(config_cluster_put(&to, "cluster.run_id", "ten", &e), SHARD_OK);
	if (config_cluster_put(&to, "nodes[0]", "run_id = 10.0.0.1:1", &e) != SHARD_OK)
		fail_msg("%s", e.text);
	assert_int_equal(config_cluster_put(&to, "nodes[1]", "run_id = 10.0.0.1:2", &e),
			 SHARD_PROTOCOL);
}

static void keep(void *arg, const char *key, const char *value)
{
	char *text = arg;

	strcat(strcat(strcat(text, key), "="), value);
}

/* HELLO is not encrypted, so a URL with a password is not offered. */
static void offers(void **state)
{
	static const char open_[] = HEAD "[cluster]\netcd_endpoints = http://h:1,https://i:2\n",
			  secret[] = HEAD "[cluster]\netcd_endpoints = http://h:1,http://u:p@i:2\n";
	char text[256] = "";
	struct config c;
	struct err e;

	(void)state;
	assert_int_equal(config_load_text(&c, "shardd.conf", open_, strlen(open_), &e), SHARD_OK);
	config_offered(&c, keep, text);
	assert_string_equal(text, "cluster.etcd_endpoints=http://h:1,https://i:2");
	config_free(&c);
	text[0] = 0;
	assert_int_equal(config_load_text(&c, "shardd.conf", secret, strlen(secret), &e), SHARD_OK);
	config_offered(&c, keep, text);
	assert_string_equal(text, "");
	config_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cluster),      cmocka_unit_test(joins),
		cmocka_unit_test(puts_cluster), cmocka_unit_test(named_like_an_option),
		cmocka_unit_test(offers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
