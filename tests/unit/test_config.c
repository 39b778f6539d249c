/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the configuration: the order of its sources, every option, every refusal with file:line and
 * the possible choices, the special behaviour of libinih, and memory. */
#include "base/check.h"
#include "config/config.h"
#include "lib/fault.h"
#include "config/settings.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FILE_NAME "shardd.conf"
#define HEAD      "[daemon]\nnode = a\n"

static struct config loaded(const char *text)
{
	struct config c;
	struct err e = {.text = ""};

	if (config_load_text(&c, FILE_NAME, text, strlen(text), &e) != SHARD_OK)
		fail_msg("%s", e.text);
	return c;
}

static void refused(const char *text, const char *want)
{
	struct config c;
	struct err e = {.text = ""};

	if (config_load_text(&c, FILE_NAME, text, strlen(text), &e) == SHARD_OK)
		fail_msg("taken: %s", text);
	if (strcmp(e.text, want) != 0)
		fail_msg("\"%s\", expected \"%s\"", e.text, want);
}

/* An almost empty file gives every option its default. */
static void defaults(void **state)
{
	struct config c = loaded(HEAD);

	(void)state;
	assert_string_equal(c.node, "a");
	assert_string_equal(c.listen.text, "off"); /* Nobody could connect there. */
	assert_string_equal(c.http.text, "127.0.0.1:29701");
	assert_false(c.http_private_models);
	assert_string_equal(c.socket, "/run/shardd/shardd.sock");
	assert_int_equal(c.socket_mode, 0660);
	assert_string_equal(c.state, "/var/lib/shardd");
	assert_true(c.memory > 1 << 20);
	assert_int_equal(c.huge_pages, SHM_HUGE_TRY);
	assert_true(c.workers >= 1);
	assert_int_equal(c.log_level, LOG_LEVEL_INFO);
	assert_false(c.allow_unauthenticated || c.listen_open);
	assert_int_equal(c.transport, CONFIG_TRANSPORT_AUTO);
	assert_int_equal(c.connections, 1);
	assert_true(c.body_checksum && c.rdma_checksum && c.rdma_gpu);
	assert_string_equal(c.rdma_device, "auto");
	assert_true(c.rdma_gid_index == -1 && c.rdma_queue_pairs == 4 && c.rdma_busy_poll_us == 0);
	assert_true(c.heartbeat_timeout_ns == 5000000000ull &&
		    c.lost_timeout_ns == 120000000000ull && c.step_timeout_ns == 300000000000ull);
	assert_int_equal(c.nodes_nr, 1);
	assert_string_equal(c.node_list[0].name, "a");
	assert_int_equal(c.models_nr, 0);
	config_free(&c);
	c = loaded("");
	assert_true(c.node[0] != 0); /* The name of the host. */
	config_free(&c);
}

/* Tests the option of the trainers' secret, and where the daemon listens with and without it. The
 * file itself is read only when the daemon starts, because CREDENTIALS_DIRECTORY is set only for
 * the service. */
static void secret(void **state)
{
	struct config c = loaded(
		HEAD
		"listen = 10.0.0.1:3\n[cluster]\nsecret = ${CREDENTIALS_DIRECTORY}/shard-secret\n");

	(void)state;
	assert_string_equal(c.secret, "${CREDENTIALS_DIRECTORY}/shard-secret");
	assert_false(c.listen_open || c.allow_unauthenticated);
	config_free(&c);
	c = loaded(HEAD "listen = 10.0.0.1:3\nallow_unauthenticated = yes\n");
	assert_true(c.secret[0] == 0 && c.listen_open && !c.nodes_open);
	config_free(&c);
	c = loaded(HEAD "[cluster]\nsecret = /s\n");
	assert_string_equal(c.listen.text, "127.0.0.1:29700");
	config_free(&c);
	/* Loopback is open to every user of the machine, as the option says. */
	c = loaded(HEAD "allow_unauthenticated = yes\n");
	assert_true(strcmp(c.listen.text, "127.0.0.1:29700") == 0 && c.listen_open);
	config_free(&c);
	/* Without another node and without a secret nobody could connect. */
	c = loaded(HEAD "[nodes]\na = 10.0.0.1:3\n");
	assert_string_equal(c.listen.text, "off");
	config_free(&c);
	refused(HEAD "[cluster]\nsecret =\n", "shardd.conf:4: [cluster] secret = : choose a path "
					      "of 1 to 511 bytes without control characters");
	/* HTTP does not ask for the secret, so the secret does not protect it. */
	refused(HEAD "http = 10.0.0.1:4\n[cluster]\nsecret = /s\n",
		"shardd.conf:3: [daemon] http = 10.0.0.1:4: not loopback, and requests are not "
		"authenticated: "
		"choose 127.0.0.1:PORT or off, set http_allow to the networks that may see models "
		"and nodes, as in 10.0.0.0/8, or set allow_unauthenticated = yes if everybody who "
		"can reach it may");
	c = loaded(HEAD "http = 10.0.0.1:4\nhttp_allow = 10.0.0.0/8, fd00::/8\n");
	assert_string_equal(c.http_allow, "10.0.0.0/8, fd00::/8");
	assert_false(c.http_beyond_loopback || c.allow_unauthenticated);
	config_free(&c);
	c = loaded(HEAD "http = 10.0.0.1:4\nallow_unauthenticated = yes\n");
	assert_true(c.http_beyond_loopback);
	config_free(&c);
	refused(HEAD "http_allow = 10.0.0.0/8\n",
		"shardd.conf:3: [daemon] http_allow = 10.0.0.0/8: nobody there reaches http = "
		"127.0.0.1:29701 (default), for it is loopback: set http, as in 0.0.0.0:29701");
	refused(HEAD "http = 0.0.0.0:4\nhttp_allow = 10.0.0.1/8\n",
		"shardd.conf:4: [daemon] http_allow = 10.0.0.1/8: choose addresses and networks "
		"with a comma between them and nothing behind their mask, as in 10.0.0.0/8, "
		"fd00::/8");
}

#define OPEN "allow_unauthenticated = yes\n"
#define TWO  "[nodes]\na = 127.0.0.1:1\nb = 127.0.0.1:2\n"

/* A node may do anything to another one. So nodes need a key that no trainer has, unless
 * allow_unauthenticated opens everything. */
static void node_secret(void **state)
{
	struct config c = loaded(HEAD "[cluster]\nnode_secret = /n\n" TWO);

	(void)state;
	assert_string_equal(c.node_secret, "/n");
	assert_string_equal(c.listen.text, "127.0.0.1:1");
	assert_false(c.listen_open || c.nodes_open);
	config_free(&c);
	c = loaded(HEAD "[cluster]\nnode_secret = /n\nsecret = /s\n" TWO);
	assert_false(c.listen_open || c.nodes_open);
	config_free(&c);
	c = loaded(HEAD "allow_unauthenticated = yes\n[cluster]\nnode_secret = /n\n" TWO);
	assert_true(c.listen_open && !c.nodes_open); /* Only nodes have to prove themselves. */
	config_free(&c);
	c = loaded(HEAD "allow_unauthenticated = yes\n" TWO);
	assert_true(c.listen_open && c.nodes_open);
	config_free(&c);
	refused(HEAD TWO,
		"shardd.conf:4: [nodes] has 2 nodes, and there is no [cluster] node_secret, by "
		"which they know each other. "
		"Make one with `shardctl secret new /etc/shardd/node_secret`, copy that file to "
		"each node, set [cluster] "
		"node_secret = /etc/shardd/node_secret on all of them; or set "
		"allow_unauthenticated = yes if everybody who "
		"can reach 127.0.0.1:1, every user of this machine too, may do what a node does");
	refused(HEAD "allow_unauthenticated = yes\n[cluster]\nsecret = /s\n" TWO,
		"shardd.conf:7: [nodes] has 2 nodes, and [cluster] secret lets trainers and tools "
		"in, never a node: nodes need a "
		"key "
		"of their own. Make it with `shardctl secret new /etc/shardd/node_secret`, copy "
		"that file to each node, set "
		"[cluster] "
		"node_secret = /etc/shardd/node_secret on all of them");
	refused(HEAD "[cluster]\nnode_secret = /n\nsecret =\n",
		"shardd.conf:5: [cluster] secret = : choose a path of 1 to 511 bytes without "
		"control characters");
}

#define PSK  "[net]\ntls = psk\n"
#define MTLS "[net]\ntls = mtls\ntls_cert = /c\ntls_key = /k\ntls_ca = /a\n"

/* TLS is never half there, and nothing goes around it unasked. */
static void tls(void **state)
{
	struct config c = loaded(HEAD MTLS TWO);

	(void)state;
	assert_int_equal(c.tls, TLS_MTLS);
	assert_true(!c.tls_kernel && !c.rdma_with_tls && !c.nodes_open && !c.listen_open);
	assert_true(c.http_tls && c.http_certs);
	config_free(&c);
	c = loaded(HEAD "http = 10.0.0.1:4\n" MTLS);
	assert_true(c.http_tls && c.http_certs && !c.http_beyond_loopback);
	config_free(&c);
	c = loaded(HEAD PSK "[cluster]\nnode_secret = /n\n" TWO);
	assert_int_equal(c.tls, TLS_PSK);
	assert_false(c.http_tls || c.http_certs);
	config_free(&c);
	c = loaded(HEAD PSK "transport = rdma\nrdma_with_tls = yes\n[cluster]\nsecret = /s\n");
	assert_true(c.rdma_with_tls);
	config_free(&c);
	refused(HEAD OPEN PSK TWO,
		"shardd.conf:5: [net] tls = psk makes its keys of the secrets, and there is no "
		"[cluster] node_secret: make one with `shardctl secret new FILE`, or set tls = "
		"mtls "
		"with certificates");
	refused(HEAD "[net]\ntls = mtls\ntls_cert = /c\ntls_ca = /a\n",
		"shardd.conf:4: [net] tls = mtls: tls_key is not set, and tls_cert, tls_key and "
		"tls_ca have to be");
	refused(HEAD MTLS "transport = rdma\n",
		"shardd.conf:8: [net] transport = rdma beside tls: RDMA is not encrypted. Choose "
		"transport = auto or tcp, or set rdma_with_tls = yes if everybody on that fabric "
		"is "
		"trusted");
	refused(HEAD "http = 10.0.0.1:4\nhttp_allow = 10.0.0.0/8\n" PSK "[cluster]\nsecret = /s\n",
		"shardd.conf:3: [daemon] http = 10.0.0.1:4: beyond loopback beside [net] tls = "
		"psk, "
		"and browsers speak no psk, so that it would not be encrypted: set tls_cert and "
		"tls_key, by which HTTP speaks TLS, or choose 127.0.0.1:PORT or off");
}

static const char every_line[] = "\xef\xbb\xbf; a comment\n"
				 "# another\n"
				 "   ; and one that is indented\n"
				 "\n"
				 "[daemon]  ; about this node\n"
				 "node = b ; not a\n"
				 "listen: 0.0.0.0:7\r\n"
				 "socket = /tmp/s;s\n"
				 "socket_mode = 600\n"
				 "state = /tmp/x y\n"
				 "memory = 1.5GiB\n"
				 "huge_pages = no\n"
				 "workers = 3\n"
				 "log_level = debug\n"
				 "allow_unauthenticated = yes\n"
				 "connections_max = 12\n"
				 "[net]\n"
				 "transport = tcp\n"
				 "connections = 4\n"
				 "body_checksum = no\n"
				 "rdma_device = mlx5_0\n"
				 "rdma_gid_index = 3\n"
				 "rdma_queue_pairs = 8\n"
				 "rdma_checksum = no\n"
				 "rdma_gpu = off\n"
				 "rdma_busy_poll_us = 50\n"
				 "[cluster]\n"
				 "run_id = demo\n"
				 "membership = static\n"
				 "heartbeat_timeout = 200ms\n"
				 "step_timeout = 2min\n"
				 "[nodes]\n"
				 "a = 10.0.0.1:29700\n"
				 "b = [::1]:7\n"
				 "[model]\n"
				 "clip = 1.0\n"
				 "betas = 0.9, 0.95\n"
				 "pinned = clip, replicas\n"
				 "[model \"gpt-7b\"]\n"
				 "lr = 0.5\n"
				 "[model \"gpt-7b\" group \"norm\"]\n"
				 "weight_decay = 0";

/* One file with every kind of line gives the values that it says. */
static void everything(void **state)
{
	struct config c = loaded(every_line);

	(void)state;
	assert_string_equal(c.socket, "/tmp/s;s");
	assert_int_equal(c.socket_mode, 0600);
	assert_string_equal(c.state, "/tmp/x y");
	assert_true(c.memory == 3ull << 29);
	assert_int_equal(c.huge_pages, SHM_HUGE_NO);
	assert_int_equal(c.workers, 3);
	assert_int_equal(c.log_level, LOG_LEVEL_DEBUG);
	assert_true(c.allow_unauthenticated && c.listen_open && !c.body_checksum);
	assert_int_equal(c.connections_max, 12);
	assert_int_equal(c.transport, CONFIG_TRANSPORT_TCP);
	assert_string_equal(c.rdma_device, "mlx5_0");
	assert_true(c.rdma_gid_index == 3 && c.rdma_queue_pairs == 8 && c.rdma_busy_poll_us == 50 &&
		    !c.rdma_checksum && !c.rdma_gpu);
	assert_string_equal(c.run_id, "demo");
	assert_true(c.heartbeat_timeout_ns == 200000000ull && c.step_timeout_ns == 120000000000ull);
	assert_int_equal(c.nodes_nr, 2);
	assert_int_equal(c.self, 1);
	assert_string_equal(c.node_list[0].name, "a");
	assert_string_equal(c.node_list[1].where, FILE_NAME ":34");
	assert_int_equal(c.models_nr, 3);
	assert_string_equal(config_model(&c, "", "")->settings,
			    "clip=1.0 betas=0.9,0.95 pinned=clip,replicas");
	assert_string_equal(config_model(&c, "", "")->where, FILE_NAME ":36");
	assert_string_equal(config_model(&c, "gpt-7b", "")->settings, "lr=0.5");
	assert_string_equal(config_model(&c, "gpt-7b", "norm")->settings, "weight_decay=0");
	assert_null(config_model(&c, "gpt", ""));
	config_free(&c);
}

/* From three nodes on the coordinator is elected, unless somebody says otherwise. */
static void membership(void **state)
{
	static const char nodes[] = OPEN "[nodes]\na = 127.0.0.1:7\nb = 127.0.0.1:8\n";
	static const struct {
		const char *more;
		enum config_membership is;
		bool chosen;
	} rows[] = {
		{"", CONFIG_MEMBERSHIP_STATIC, false},
		{"c = 127.0.0.1:9\n", CONFIG_MEMBERSHIP_QUORUM, true},
		{"c = 127.0.0.1:9\n[cluster]\nmembership = static\n", CONFIG_MEMBERSHIP_STATIC,
		 false},
		{"[cluster]\nmembership = quorum\n", CONFIG_MEMBERSHIP_QUORUM, false},
	};
	struct config c = loaded(HEAD);

	(void)state;
	assert_int_equal(c.membership, CONFIG_MEMBERSHIP_STATIC);
	assert_false(c.membership_chosen);
	config_free(&c);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char text[600];

		snprintf(text, sizeof(text), "%s%s%s", HEAD, nodes, rows[i].more);
		c = loaded(text);
		assert_int_equal(c.membership, rows[i].is);
		assert_int_equal(c.membership_chosen, rows[i].chosen);
		config_free(&c);
	}
}

/* A printed configuration can be loaded again and gives the same configuration. */
static void printed(void **state)
{
	struct config c = loaded(HEAD OPEN
				 "[nodes]\na = 127.0.0.1:7\nb = 127.0.0.1:8\n[model]\nclip = 2\nlr "
				 "= 1\n[model \"m\" group "
				 "\"g\"]\neps = 1\n"),
		      d;
	char *one = NULL, *two = NULL;
	size_t bytes;
	FILE *f = open_memstream(&one, &bytes);

	(void)state;
	config_print(&c, f);
	fclose(f);
	d = loaded(one);
	f = open_memstream(&two, &bytes);
	config_print(&d, f);
	config_help(f);
	fclose(f);
	assert_memory_equal(one, two, strlen(one));
	assert_non_null(strstr(two, "chunk_elems"));
	assert_non_null(strstr(two, "heartbeat_timeout"));
	assert_int_equal(config_hash(&c), config_hash(&d));
	free(one);
	free(two);
	config_free(&c);
	config_free(&d);
}

/* All nodes must have the same hash, so it covers what they must agree on. */
static void hash(void **state)
{
	struct config a = loaded(HEAD OPEN "[nodes]\na = 127.0.0.1:7\nb = 127.0.0.1:8\n");
	struct config b = loaded("[daemon]\nnode = b\nworkers = 7\n" OPEN
				 "[nodes]\na = 127.0.0.1:7\nb = 127.0.0.1:8\n");
	struct config other = loaded(HEAD OPEN "[nodes]\nb = 127.0.0.1:8\na = 127.0.0.1:7\n");
	struct config sums = loaded(
		HEAD OPEN "[net]\nbody_checksum = no\n[nodes]\na = 127.0.0.1:7\nb = 127.0.0.1:8\n");

	(void)state;
	assert_true(config_hash(&a) == config_hash(&b));     /* Options of one node do not count. */
	assert_true(config_hash(&a) != config_hash(&other)); /* The order of the nodes counts. */
	assert_true(config_hash(&a) != config_hash(&sums));
	config_free(&a);
	config_free(&b);
	config_free(&other);
	config_free(&sums);
}

/* A refusal gives the file, the line and the choices, or the name that was probably meant. */
static void refused_lines(void **state)
{
	(void)state;
	refused("\n\n[net]\ntransport = rmda\n",
		"shardd.conf:4: [net] transport = rmda: choose auto, tcp or rdma");
	refused("[net]\nrdma_gid_index = first\n", "shardd.conf:2: [net] rdma_gid_index = first: "
						   "choose auto or a whole number from 0 to 4095");
	refused("[net]\nrdma_queue_pairs = 0\n",
		"shardd.conf:2: [net] rdma_queue_pairs = 0: choose a whole number from 1 to 16");
	refused("[cluster]\nmembership = zookeeper\n",
		"shardd.conf:2: [cluster] membership = zookeeper: choose static, quorum or etcd");
	refused("[cluster]\nmembership = etcd\n",
		"shardd.conf:2: [cluster] membership = etcd: etcd_endpoints does not say where it "
		"is: set it, as in http://10.0.0.1:2379,http://10.0.0.2:2379");
	refused("[cluster]\netcd_endpoints = http://a:1,b:2\n",
		"shardd.conf:2: [cluster] etcd_endpoints = http://a:1,b:2: choose http:// or "
		"https:// URLs with a comma between them");
	refused("[cluster]\netcd_endpoints = http://a:1,https://\n",
		"shardd.conf:2: [cluster] etcd_endpoints = http://a:1,https://: choose http:// or "
		"https:// URLs with a comma between them");
	refused("[daemon]\nlog_lvel = info\n",
		"shardd.conf:2: [daemon] log_lvel = info: unknown key: did you mean log_level");
}

/* The key is right and its section is not: the text says which one it belongs to, whatever else the
 * key is like. */
static void refused_section(void **state)
{
	(void)state;
	refused("[net]\nlisten = a:1\n",
		"shardd.conf:2: [net] listen = a:1: unknown key: it belongs to [daemon]");
	refused("[daemon]\nconnections = 2\n", /* And not: did you mean connections_max. */
		"shardd.conf:2: [daemon] connections = 2: unknown key: it belongs to [net]");
	refused("[daemon]\nmembership = etcd\n",
		"shardd.conf:2: [daemon] membership = etcd: unknown key: it belongs to [cluster]");
	refused("[cluster]\nreplicas = 2\n",
		"shardd.conf:2: [cluster] replicas = 2: unknown key: it belongs to [model]");
	refused("[model]\nsocket = /x\n",
		"shardd.conf:2: [model] socket = /x: unknown key: it belongs to [daemon]");
	refused("[model \"m\" group \"g\"]\ntransport = tcp\n",
		"shardd.conf:2: [model \"m\" group \"g\"] transport = tcp: unknown key: it belongs "
		"to [net]");
	refused("[daemon]\ngradient_clipping = 1\n",
		"shardd.conf:2: [daemon] gradient_clipping = 1: unknown key: here it is clip: the "
		"settings of models stand in [model]");
	refused("[model]\nmax_grad_norm = 1\n",
		"shardd.conf:2: [model] max_grad_norm: unknown key: here it is clip");
	refused("[net]\nlisten_ = a:1\n", "shardd.conf:2: [net] listen_ = a:1: unknown key: "
					  "`shardd --help` lists them");
}

/* Each type of value has its own text, which says what can be written. */
static void refused_values(void **state)
{
	(void)state;
	refused("[daemon]\nnode = A b\n",
		"shardd.conf:2: [daemon] node = A b: choose 1 to 64 of a-z 0-9 . _ -");
	refused("[daemon]\nmemory = 64\n", "shardd.conf:2: [daemon] memory = 64: choose auto or a "
					   "size of at least 1MiB with its unit "
					   "(KiB, MiB, GiB, TiB), as in 64GiB");
	refused("[daemon]\nworkers = 0\n",
		"shardd.conf:2: [daemon] workers = 0: choose auto or a whole number from 1 to 256");
	refused("[daemon]\nconnections_max = -1\n", "shardd.conf:2: [daemon] connections_max = -1: "
						    "choose a whole number from 4 to 65536");
	refused("[daemon]\nsocket_mode = 0999\n",
		"shardd.conf:2: [daemon] socket_mode = 0999: choose octal permissions, as in 0660");
	refused("[daemon]\nsocket_mode = 7777\n",
		"shardd.conf:2: [daemon] socket_mode = 7777: choose octal permissions, as in 0660");
	refused("[daemon]\nallow_unauthenticated = maybe\n",
		"shardd.conf:2: [daemon] allow_unauthenticated = maybe: choose yes or no");
	refused("[daemon]\nstate =\n", "shardd.conf:2: [daemon] state = : choose a path of 1 to "
				       "511 bytes without control characters");
	refused("[daemon]\nstate = /a\001b\n", "shardd.conf:2: [daemon] state = /a\001b: choose a "
					       "path of 1 to 511 bytes without control characters");
	refused("[cluster]\nheartbeat_timeout = 5\n", "shardd.conf:2: [cluster] heartbeat_timeout "
						      "= 5: choose a time from 100ms to 3600s with "
						      "its unit (us, ms, s, min, h), as in 5s");
	refused("[daemon]\nlisten = 29700\n",
		"shardd.conf:2: [daemon] listen = 29700: choose off or host:port");
	refused("[daemon]\nlisten = unix:/x\n",
		"shardd.conf:2: [daemon] listen = unix:/x: choose off or host:port");
	refused("[model]\nclip = -1\n",
		"shardd.conf:2: [model] clip = -1: choose a number of at least 0");
	refused("[model]\nclpi = 1\n",
		"shardd.conf:2: [model] clpi: unknown key: did you mean clip?");
	refused("[model]\nnonfinite = skip it\n",
		"shardd.conf:2: [model] nonfinite = skip it: choose skip or pause");
	refused("[model \"m\" group \"g\"]\nclip = 1\n",
		"shardd.conf:2: [model \"m\" group \"g\"] clip: only for a whole model: a group "
		"has "
		"lr_factor, betas, eps, weight_decay, momentum");
}

/* Sections, keys and lines that the parser would misread are refused. */
static void refused_structure(void **state)
{
	(void)state;
	refused("node = a\n", "shardd.conf:1: node = a: before the first [section]");
	refused("[deamon]\n", "shardd.conf:1: [deamon]: unknown section: did you mean [daemon]?");
	refused("[http]\n", "shardd.conf:1: [http]: unknown section: choose [daemon], [net], "
			    "[cluster], [nodes] or [model]");
	refused("[model gpt]\n", "shardd.conf:1: [model gpt]: write [model], [model \"name\"] or "
				 "[model \"name\" group \"group\"]");
	refused("[daemon\n", "shardd.conf:1: a section needs its closing bracket, as in [daemon]");
	refused("[daemon] x\n",
		"shardd.conf:1: nothing but a comment may follow a section's closing bracket");
	refused("[daemon]\nnode\n",
		"shardd.conf:2: not understood: write key = value, [section] or ; comment");
	refused("[daemon]\nnode = a\nnode = b\n",
		"shardd.conf:3: [daemon] node = b: node is there already, in line 2");
	refused("[model]\nclip = 1\n[model]\nclip = 2\n",
		"shardd.conf:4: [model] clip = 2: clip is there already");
	refused("[daemon]\nnode = a\n  socket = /x\n",
		"shardd.conf:3: a line begins with a blank: it would be joined to the one before");
	refused("[daemon]\nnode = a # me\n", "shardd.conf:2: # would be part of the value: write a "
					     "comment behind ; or on its own line");
}

/* libinih would silently cut long lines and names of sections, and stop at a zero byte. They are
 * refused instead. */
static void refused_quietly_cut(void **state)
{
	char text[700];
	struct config c;
	struct err e;

	(void)state;
	snprintf(text, sizeof(text), "[daemon]\nstate = /%0189d\n", 0);
	c = loaded(text); /* A line of 198 bytes is not cut. */
	assert_int_equal(strlen(c.state), 190);
	config_free(&c);
	snprintf(text, sizeof(text), "[daemon]\nstate = /%0199d\n", 0);
	refused(text, "shardd.conf:2: a line is longer than 198 bytes: it would be cut");
	snprintf(text, sizeof(text), "; %0300d\n", 0);
	refused(text, "shardd.conf:1: a line is longer than 198 bytes: break the comment");
	snprintf(text, sizeof(text), "[model \"%049d\"]\n", 0);
	refused(text, "shardd.conf:1: a section's name is longer than 49 characters: choose "
		      "shorter names");
	snprintf(text, sizeof(text), "[model \"%041d\"]\nclip = 1\n", 0);
	c = loaded(text); /* A name of 49 characters is not cut. */
	assert_int_equal(strlen(c.model[0].name), 41);
	config_free(&c);
	assert_int_equal(config_load_text(&c, FILE_NAME, "[dae\0mon]", 9, &e), SHARD_BAD_ARG);
	assert_string_equal(e.text, "shardd.conf:1: a zero byte: this is no text file");
}

/* A value of the command line may be longer than a line of a file. 255 bytes of it count. */
static void refused_long_setting(void **state)
{
	char text[400], value[300];
	const char *const set[] = {text};
	struct config_args args = {.file = "/dev/null", .set = set, .set_nr = 1};
	struct config c;
	struct err e;

	(void)state;
	snprintf(value, sizeof(value), "/%0254d", 0);
	snprintf(text, sizeof(text), "model.checkpoint_dir=%s", value);
	assert_int_equal(config_load(&c, &args, &e), SHARD_OK);
	assert_string_equal(config_model(&c, "", "")->settings + strlen("checkpoint_dir="), value);
	config_free(&c);
	snprintf(text, sizeof(text), "model.checkpoint_dir=%s0", value);
	assert_int_equal(config_load(&c, &args, &e), SHARD_BAD_ARG);
	assert_string_equal(e.text,
			    "command line: [model] checkpoint_dir = "
			    "/000000000000000000000000000000000000000000000000000000000000000...: "
			    "longer than 255 bytes");
}

/* Options that are valid alone but contradict each other are refused. */
static void contradictions(void **state)
{
	char text[4000] = HEAD "[nodes]\n";

	(void)state;
	refused(HEAD "[nodes]\nb = 127.0.0.1:1\nc = 127.0.0.1:2\n",
		"shardd.conf:2: [daemon] node = a: not in [nodes]: choose one of b, c");
	refused(HEAD "listen = 127.0.0.1:3\n[nodes]\na = 127.0.0.1:1\n",
		"shardd.conf:3: [daemon] listen = 127.0.0.1:3: the port is 1 in [nodes] "
		"(shardd.conf:5: a = 127.0.0.1:1): choose "
		"one");
	refused(HEAD "listen = 127.0.0.1:3\n",
		"shardd.conf:3: [daemon] listen = 127.0.0.1:3: nobody may come in there, for there "
		"is no [cluster] secret: set one "
		"(`shardctl secret new FILE`), choose listen = off, or set allow_unauthenticated = "
		"yes if everybody who can "
		"reach it, every user of this machine too, may train");
	refused(HEAD "http = 10.0.0.1:4\n",
		"shardd.conf:3: [daemon] http = 10.0.0.1:4: not "
		"loopback, and requests are not authenticated: "
		"choose 127.0.0.1:PORT or off, set http_allow to the networks that may see models "
		"and nodes, as in 10.0.0.0/8, or set allow_unauthenticated = yes if everybody who "
		"can reach it may");
	refused(HEAD "listen = off\n[nodes]\na = 127.0.0.1:1\nb = 127.0.0.1:2\n",
		"shardd.conf:3: [daemon] listen = off: the other nodes of [nodes] (shardd.conf:5) "
		"could not connect: set it");
	refused(HEAD "linger = 2\n", "shardd.conf:3: [daemon] linger = 2: choose a time from 0s "
				     "to 86400s with its unit (us, ms, s, "
				     "min, h), as in 5s");
	refused(HEAD "http = no\n", "shardd.conf:3: [daemon] http = no: choose off or host:port");
	refused(HEAD "http = unix:/x\n",
		"shardd.conf:3: [daemon] http = unix:/x: choose off or host:port");
	refused(HEAD "[nodes]\na = 127.0.0.1:1\na = 127.0.0.1:2\n",
		"shardd.conf:5: [nodes] a = 127.0.0.1:2: this node is there already "
		"(shardd.conf:4)");
	refused(HEAD "[nodes]\na = 127.0.0.1:1\nb = 127.0.0.1:1\n",
		"shardd.conf:5: [nodes] b = 127.0.0.1:1: node a has this address already "
		"(shardd.conf:4)");
	refused(HEAD "[nodes]\na = 127.0.0.1:0\n",
		"shardd.conf:4: [nodes] a = 127.0.0.1:0: choose host:port with a port above 0");
	refused(HEAD "[nodes]\nA = 127.0.0.1:1\n", "shardd.conf:4: [nodes] A = 127.0.0.1:1: a "
						   "node's name is 1 to 64 of a-z 0-9 . _ -");
	refused(HEAD "[model]\noptimizer = adamw\nlr = -1\n",
		"shardd.conf:5: lr = -1: choose a number of at least 0");
	refused(HEAD "[model]\nmin_world = 4\nclip = 1\nmax_world = 3\n",
		"min_world = 4 (shardd.conf:4) is above max_world = 3 (shardd.conf:6): raise "
		"max_world");
	refused(HEAD "[model]\nmin_world = 4\n[model \"m\"]\nmax_world = 3\n",
		"min_world = 4 (shardd.conf:4) is above max_world = 3 (shardd.conf:6): raise "
		"max_world");
	refused(HEAD "[cluster]\nstep_timeout = 1s\n",
		"shardd.conf:4: [cluster] step_timeout is shorter than heartbeat_timeout "
		"(default): raise it");
	for (int i = 0; i < 65; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "n%d = 127.0.0.1:%d\n",
			 i, i + 1);
	refused(text, "shardd.conf:68: [nodes] n64: at most 64 nodes are possible");
}

/* The command line wins over the environment, the environment over the file. */
static void sources(void **state)
{
	static const char *const env[] = {
		"SHARD_LOG_LEVEL=warn", "SHARD_NODE=e", "SHARD_NET_CONNECTIONS=2",
		"SHARD_GUARD=1",        "HOME=/x",      "SHARD_WORKER=3",
		"SHARD_LINGER=250ms",   "SHARD_X=",     NULL};
	static const char *const bad_env[] = {"SHARD_LOG_LEVEL=loud", NULL};
	static const char *const set[] = {"daemon.node=c", "nodes.c=127.0.0.1:9", "model.clip=3",
					  "model.clip=4"};
	char path[] = "/tmp/shard-config-XXXXXX";
	struct config_args args = {.file = path, .environ_ = env, .set = set, .set_nr = NR(set)};
	static const char text[] =
		"[daemon]\nnode = f\nlog_level = error\nworkers = 2\n[model]\nclip = 1\nlr = 1\n";
	struct config c;
	struct err e;
	int fd = mkstemp(path);

	(void)state;
	assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
	close(fd);
	assert_int_equal(config_load(&c, &args, &e), SHARD_OK);
	assert_string_equal(c.node, "c");
	assert_int_equal(c.log_level, LOG_LEVEL_WARN);
	assert_int_equal(c.connections, 2);
	assert_int_equal(c.workers, 2);
	assert_int_equal(c.linger_ns, 250000000);
	assert_string_equal(c.unknown, "SHARD_WORKER, SHARD_X");
	assert_string_equal(config_model(&c, "", "")->settings, "lr=1 clip=4");
	config_free(&c);
	args.environ_ = bad_env;
	assert_int_equal(config_load(&c, &args, &e), SHARD_BAD_ARG);
	assert_string_equal(e.text, "SHARD_LOG_LEVEL in the environment: [daemon] log_level = "
				    "loud: choose error, warn, info or debug");
	args.environ_ = NULL;
	args.set = (const char *const[]){"cluster.membership=raft"};
	args.set_nr = 1;
	assert_int_equal(config_load(&c, &args, &e), SHARD_BAD_ARG);
	assert_string_equal(e.text, "command line: [cluster] membership = raft: choose static, "
				    "quorum or etcd");
	args.set = (const char *const[]){"transport=tcp"};
	assert_int_equal(config_load(&c, &args, &e), SHARD_BAD_ARG);
	assert_string_equal(
		e.text,
		"command line: transport=tcp: write section.key=value, as in net.transport=tcp");
	unlink(path);
	assert_int_equal(config_load(&c, &args, &e), SHARD_SYSTEM);
	assert_non_null(strstr(e.text, "cannot be opened: No such file or directory"));
	args.file = "/tmp";
	assert_int_equal(config_load(&c, &args, &e), SHARD_SYSTEM);
	assert_string_equal(e.text, "/tmp: not a file");
}

static const char *credential = "secret"; /* The one that the test is about. */

static void credential_says(const char *text, const char *file, const char *line, const char *want)
{
	char folder[] = "/tmp/shard-config-XXXXXX", variable[64], path[64], conf[64];
	const char *const env[] = {"HOME=/x", variable, NULL};
	struct config_args args = {
		.file = conf, .environ_ = env, .set = &line, .set_nr = line ? 1 : 0};
	struct config c;
	struct err e;
	FILE *f;

	assert_non_null(mkdtemp(folder));
	snprintf(variable, sizeof(variable), "CREDENTIALS_DIRECTORY=%s", folder);
	snprintf(path, sizeof(path), "%s/shardd.%s", folder, credential);
	snprintf(conf, sizeof(conf), "%s/conf", folder);
	if (text) {
		f = fopen(path, "w");
		assert_true(f && fputs(text, f) >= 0 && fclose(f) == 0);
	}
	f = fopen(conf, "w");
	assert_true(f && fputs(file, f) >= 0 && fclose(f) == 0);
	if (config_load(&c, &args, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	assert_string_equal(credential[0] == 's' ? c.secret : c.node_secret, want);
	config_free(&c);
	unlink(path);
	unlink(conf);
	rmdir(folder);
}

/* A credential that the systemd unit loads is the secret, unless the configuration names another
 * file. If the credential is missing, blank or "none", there is no secret. */
static void credentials(void **state)
{
	static const char name[] = "${CREDENTIALS_DIRECTORY}/shardd.secret";

	(void)state;
	credential_says("00\n", HEAD, NULL, name);
	/* A malformed secret is refused only when it is used. */
	credential_says("not a secret", HEAD, NULL, name);
	credential_says("none", HEAD, NULL, "");
	credential_says("none\n", HEAD, NULL, "");
	credential_says("\n", HEAD, NULL, "");
	credential_says("", HEAD, NULL, "");
	credential_says(NULL, HEAD, NULL, "");
	credential_says("00\n", HEAD "[cluster]\nsecret = /s\n", NULL, "/s");
	credential_says("00\n", HEAD, "cluster.secret=/t", "/t");
	credential_says("00\n", HEAD "listen = 10.0.0.1:3\n", NULL, name);
	credential = "node_secret";
	credential_says("00\n", HEAD TWO, NULL, "${CREDENTIALS_DIRECTORY}/shardd.node_secret");
	credential_says("none\n", HEAD, NULL, "");
	credential_says("00\n", HEAD "[cluster]\nnode_secret = /s\n" TWO, NULL, "/s");
}

/* Whichever allocation fails, a load returns SHARD_SYSTEM, or succeeds where it can do without. */
static void no_memory(void **state)
{
	static const char text[] = HEAD "[model]\nclip = 1\n[model \"m\"]\nlr = 1\n";
	struct config c;
	struct fault f;
	struct err e;

	(void)state;
	for (fault_begin(&f); fault_next(&f);) {
		enum shard_status st = config_load_text(&c, FILE_NAME, text, strlen(text), &e);

		if (st == SHARD_OK)
			config_free(&c);
		if (!fault_end(&f))
			assert_int_equal(st, SHARD_OK);
		else /* A failure while /proc is read only hides the limit of the cgroup. */
			assert_true(st == SHARD_OK || st == SHARD_SYSTEM);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(secret),
		cmocka_unit_test(node_secret),
		cmocka_unit_test(tls),
		cmocka_unit_test(defaults),
		cmocka_unit_test(everything),
		cmocka_unit_test(membership),
		cmocka_unit_test(printed),
		cmocka_unit_test(hash),
		cmocka_unit_test(refused_lines),
		cmocka_unit_test(refused_values),
		cmocka_unit_test(refused_section),
		cmocka_unit_test(refused_structure),
		cmocka_unit_test(refused_quietly_cut),
		cmocka_unit_test(refused_long_setting),
		cmocka_unit_test(contradictions),
		cmocka_unit_test(sources),
		cmocka_unit_test(credentials),
		cmocka_unit_test(no_memory),
	};

	return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
