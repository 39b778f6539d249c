/* SPDX-License-Identifier: Apache-2.0 */
/* The last step of loading a configuration. config.c calls it when all sources have been read. What
 * nobody set is worked out from the host's name, its memory, its processors and the cgroup's limit.
 * Contradictions between options are SHARD_BAD_ARG and name the places of both; a host that does
 * not say its name is SHARD_SYSTEM. The end of the file has what nodes compare with each other at
 * HELLO. */
#include "config/loader.h"

#include "base/check.h"
#include "config/settings.h"
#include "config/value.h"
#include "wire/frame.h"
#include "wire/xxh.h"

#include <string.h>
#include <unistd.h>
#include <uv.h>

#define DEFAULT_LISTEN "127.0.0.1:29700"

/* 0: the file has no number. */
static uint64_t read_number(const char *path)
{
	FILE *f = fopen(path, "re");
	char text[32] = "";
	uint64_t n = 0;

	if (!f)
		return 0;
	if (fgets(text, sizeof(text), f)) {
		text[strcspn(text, "\n")] = 0;
		if (!value_u64(text, &n))
			n = 0; /* It says "max". */
	}
	fclose(f);
	return n;
}

/* The smallest memory limit on the way from this process's cgroup (version 2) to the root; 0: there
 * is none. */
static uint64_t cgroup_limit(void)
{
	FILE *f = fopen("/proc/self/cgroup", "re");
	char line[600] = "", path[700];
	uint64_t least = 0;

	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f) && strncmp(line, "0::/", 4) != 0)
		line[0] = 0;
	fclose(f);
	line[strcspn(line, "\n")] = 0;
	while (line[0]) {
		snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", line + 3);
		uint64_t n = read_number(path);
		if (n > 0 && (least == 0 || n < least))
			least = n;
		char *slash = strrchr(line + 3, '/');
		if (!slash || slash[1] == 0)
			break;
		*(slash == line + 3 ? slash + 1 : slash) = 0;
	}
	return least;
}

uint64_t config_machine_memory(void)
{
	uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE),
		 limit = cgroup_limit();

	CHECK(all > 0);
	return limit > 0 && limit < all ? limit : all;
}

/* Counts the processors in this process's affinity mask. */
static uint32_t auto_workers(void)
{
	uint32_t nr = uv_available_parallelism();

	CHECK(nr > 0);
	return nr < CONFIG_WORKERS_MAX ? nr : CONFIG_WORKERS_MAX;
}

/* The text that says who set this option. */
static char *place(struct config_loader *l, const char *section, const char *key)
{
	uint32_t i = table_find(config_options(), section, key);

	CHECK(i < config_options()->nr);
	return l->where[i];
}

static enum shard_status finish_node(struct config_loader *l, struct err *e)
{
	struct config *c = l->c;
	char names[200] = "", host[256];
	size_t used = 0;

	if (!c->node[0]) {
		if (gethostname(host, sizeof(host)) != 0)
			return err_set(e, SHARD_SYSTEM,
				       "[daemon] node: the host does not say its name: set it");
		host[sizeof(host) - 1] = 0;
		for (char *p = host; *p; p++)
			if (*p >= 'A' && *p <= 'Z')
				*p = (char)(*p - 'A' + 'a');
		snprintf(place(l, "daemon", "node"), CONFIG_WHERE_BYTES, "host name");
		if (!value_name(host))
			return err_set(
				e, SHARD_BAD_ARG,
				"host name: [daemon] node = %.64s: cannot be a node's name: set it",
				host);
		memcpy(c->node, host, strlen(host) + 1);
	}
	if (c->nodes_nr == 0)
		return SHARD_OK;
	for (uint32_t i = 0; i < c->nodes_nr; i++) {
		if (strcmp(c->node_list[i].name, c->node) == 0) {
			c->self = i;
			return SHARD_OK;
		}
		if (used < sizeof(names))
			used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s",
						 i ? ", " : "", c->node_list[i].name);
	}
	return err_set(e, SHARD_BAD_ARG, "%s: [daemon] node = %s: not in [nodes]: choose one of %s",
		       place(l, "daemon", "node"), c->node, names);
}

/* Whoever joins proves that it may, as every node does, and has to be reached by the others. */
static enum shard_status check_join(struct config_loader *l, struct err *e)
{
	struct config *c = l->c;

	if (!c->joins)
		return SHARD_OK;
	if (!c->node_secret[0] && !c->allow_unauthenticated && c->tls != TLS_MTLS)
		return err_set(e, SHARD_BAD_ARG,
			       "%s: [cluster] join = %s: there is no [cluster] node_secret, by "
			       "which nodes know each other: copy the file from a node of that "
			       "cluster, and set node_secret to its path",
			       place(l, "cluster", "join"), c->join.text);
	if (!c->listen.host[0])
		return err_set(e, SHARD_BAD_ARG,
			       "%s: [daemon] listen = off: the other nodes could not connect, "
			       "and this one shall join them: set it",
			       place(l, "daemon", "listen"));
	return SHARD_OK;
}

/* A node may do everything. So nodes need a secret that trainers do not have, or certificates with
 * their names. Without both allow_unauthenticated has to be set. */
static enum shard_status check_nodes(struct config *c, const struct config_node *self,
				     struct err *e)
{
	CHECK(c->nodes_nr <= 1 || self);
	if (c->nodes_nr <= 1 || c->node_secret[0] || c->tls == TLS_MTLS)
		return SHARD_OK;
	if (c->secret[0])
		return err_set(
			e, SHARD_BAD_ARG,
			"%s: [nodes] has %u nodes, and [cluster] secret lets trainers and tools "
			"in, never a node: nodes need a key of their own. Make it with `shardctl "
			"secret new /etc/shardd/node_secret`, copy that file to each node, set "
			"[cluster] node_secret = /etc/shardd/node_secret on all of them",
			self->where, c->nodes_nr);
	if (!c->allow_unauthenticated)
		return err_set(e, SHARD_BAD_ARG,
			       "%s: [nodes] has %u nodes, and there is no [cluster] node_secret, "
			       "by which they know each other. Make one with `shardctl secret new "
			       "/etc/shardd/node_secret`, copy that file to each node, set "
			       "[cluster] node_secret = /etc/shardd/node_secret on all of them; or "
			       "set allow_unauthenticated = yes if everybody who can reach %s, "
			       "every user of this machine too, may do what a node does",
			       self->where, c->nodes_nr, c->listen.text);
	c->nodes_open = true;
	return SHARD_OK;
}

static enum shard_status finish_listen(struct config_loader *l, struct err *e)
{
	const char *where = place(l, "daemon", "listen");
	struct config *c = l->c;
	const struct config_node *self = c->nodes_nr ? &c->node_list[c->self] : NULL;
	bool clients =
		c->secret[0] || c->node_secret[0] || c->tls == TLS_MTLS || c->allow_unauthenticated;

	if (!c->listen.text[0] && c->nodes_nr <= 1 && !clients) {
		c->listen = (struct conn_address){.text = "off"};
	} else if (!c->listen.text[0] && self) {
		c->listen = self->address;
		where = self->where;
		snprintf(place(l, "daemon", "listen"), CONFIG_WHERE_BYTES, "%s", where);
	} else if (!c->listen.text[0]) {
		CHECK(conn_address_parse(&c->listen, DEFAULT_LISTEN, NULL) == SHARD_OK);
	} else if (!c->listen.host[0] && c->nodes_nr > 1) {
		return err_set(e, SHARD_BAD_ARG,
			       "%s: [daemon] listen = off: the other nodes of [nodes] (%s) could "
			       "not connect: set it",
			       where, self->where);
	} else if (self && c->listen.host[0] && self->address.port != c->listen.port) {
		return err_set(e, SHARD_BAD_ARG,
			       "%s: [daemon] listen = %s: the port is %u in [nodes] (%s: %s = %s): "
			       "choose one",
			       where, c->listen.text, self->address.port, self->where, self->name,
			       self->address.text);
	}
	c->joins = c->join.host[0] != 0 && !self;
	c->listen_chosen = strcmp(where, "default") != 0;
	if (!self) {
		c->nodes_nr = 1;
		snprintf(c->node_list[0].name, sizeof(c->node_list[0].name), "%s", c->node);
		snprintf(c->node_list[0].where, sizeof(c->node_list[0].where), "%s", where);
		c->node_list[0].address = c->listen;
	}
	if (check_join(l, e) != SHARD_OK)
		return e->status;
	if (c->listen.host[0] != 0 && c->nodes_nr == 1 && !clients)
		return err_set(e, SHARD_BAD_ARG,
			       "%s: [daemon] listen = %s: nobody may come in there, for there is "
			       "no [cluster] secret: set one (`shardctl secret new FILE`), choose "
			       "listen = off, or set allow_unauthenticated = yes if everybody who "
			       "can reach it, every user of this machine too, may train",
			       where, c->listen.text);
	c->listen_open = c->listen.host[0] != 0 && !c->secret[0] && c->tls != TLS_MTLS &&
			 c->allow_unauthenticated;
	return check_nodes(c, self, e);
}

static enum shard_status finish_http(struct config_loader *l, struct err *e)
{
	struct config *c = l->c;

	bool beyond = c->http.host[0] != 0 && !conn_address_loopback(&c->http);

	CHECK(c->http.text[0]);
	c->http_tls = c->tls != TLS_OFF && c->tls_cert[0] && c->tls_key[0];
	c->http_certs =
		c->http_tls && c->tls_ca[0] && !c->http_allow[0] && !c->allow_unauthenticated;
	if (beyond && c->tls != TLS_OFF && !c->http_tls)
		return err_set(
			e, SHARD_BAD_ARG,
			"%s: [daemon] http = %s: beyond loopback beside [net] tls = psk, and "
			"browsers speak no psk, so that it would not be encrypted: set "
			"tls_cert and tls_key, by which HTTP speaks TLS, or choose "
			"127.0.0.1:PORT or off",
			place(l, "daemon", "http"), c->http.text);
	c->http_beyond_loopback = beyond && !c->http_allow[0] && !c->http_certs;
	if (c->http_beyond_loopback && !c->allow_unauthenticated)
		return err_set(
			e, SHARD_BAD_ARG,
			"%s: [daemon] http = %s: not loopback, and requests are not authenticated: "
			"choose 127.0.0.1:PORT or off, set http_allow to the networks that may see "
			"models and nodes, as in 10.0.0.0/8, or set allow_unauthenticated = yes if "
			"everybody who can reach it may",
			place(l, "daemon", "http"), c->http.text);
	if (c->http.host[0] != 0 && !beyond && c->http_allow[0])
		return err_set(e, SHARD_BAD_ARG,
			       "%s: [daemon] http_allow = %s: nobody there reaches http = %s (%s), "
			       "for it is loopback: set http, as in 0.0.0.0:29701",
			       place(l, "daemon", "http_allow"), c->http_allow, c->http.text,
			       place(l, "daemon", "http"));
	return SHARD_OK;
}

/* TLS is never half there: what it needs must be set, and nothing of a step may go around it. */
static enum shard_status check_tls(struct config_loader *l, struct err *e)
{
	struct config *c = l->c;

	if (c->tls == TLS_OFF)
		return SHARD_OK;
	if (c->tls == TLS_PSK && !c->node_secret[0] && (c->nodes_nr > 1 || !c->secret[0]))
		return err_set(
			e, SHARD_BAD_ARG,
			"%s: [net] tls = psk makes its keys of the secrets, and there is no "
			"[cluster] %s: make one with `shardctl secret new FILE`, or set tls = "
			"mtls with certificates",
			place(l, "net", "tls"), c->nodes_nr > 1 ? "node_secret" : "secret");
	if (c->tls == TLS_MTLS && (!c->tls_cert[0] || !c->tls_key[0] || !c->tls_ca[0]))
		return err_set(e, SHARD_BAD_ARG,
			       "%s: [net] tls = mtls: %s is not set, and tls_cert, tls_key and "
			       "tls_ca have to be",
			       place(l, "net", "tls"),
			       !c->tls_cert[0]  ? "tls_cert"
			       : !c->tls_key[0] ? "tls_key"
						: "tls_ca");
	if (c->transport == CONFIG_TRANSPORT_RDMA && !c->rdma_with_tls)
		return err_set(
			e, SHARD_BAD_ARG,
			"%s: [net] transport = rdma beside tls: RDMA is not encrypted. Choose "
			"transport = auto or tcp, or set rdma_with_tls = yes if everybody on "
			"that fabric is trusted",
			place(l, "net", "transport"));
	return SHARD_OK;
}

/* Settings that cannot be right for any trainer are found now, not at the first definition. */
static enum shard_status check_model(const struct config *c, const char *name, struct err *e)
{
	struct settings_layer layers[2 + SETTINGS_GROUPS_MAX];
	const struct config_model *defaults = config_model(c, "", ""),
				  *own = config_model(c, name, "");
	const char *groups[SETTINGS_GROUPS_MAX];
	uint32_t layers_nr = 0, groups_nr = 0;
	struct model_settings s;

	if (defaults)
		layers[layers_nr++] = (struct settings_layer){.text = defaults->settings,
							      .origin = defaults->where,
							      .origins = defaults->origins};
	if (own && own != defaults)
		layers[layers_nr++] = (struct settings_layer){
			.text = own->settings, .origin = own->where, .origins = own->origins};
	for (uint32_t i = 0; i < c->models_nr; i++) {
		const struct config_model *m = &c->model[i];

		if (strcmp(m->name, name) != 0 || !m->group[0])
			continue;
		if (groups_nr == SETTINGS_GROUPS_MAX)
			return err_set(e, SHARD_BAD_ARG,
				       "%s: [model \"%s\" group \"%s\"]: more than %d groups",
				       m->where, m->name, m->group, SETTINGS_GROUPS_MAX);
		groups[groups_nr++] = m->group;
		layers[layers_nr++] = (struct settings_layer){.text = m->settings,
							      .origin = m->where,
							      .group = m->group,
							      .origins = m->origins};
	}
	return settings_make(&s, layers, layers_nr, groups, groups_nr, SHARD_BF16, e);
}

static enum shard_status finish_roots(struct config_loader *l, struct err *e)
{
	struct config *c = l->c;
	char *to = c->checkpoint_roots;
	size_t room = sizeof(c->checkpoint_roots);

	if (to[0] != 0)
		return SHARD_OK;
	if ((size_t)snprintf(to, room, "%s/" CONFIG_CHECKPOINTS, c->state) < room)
		return SHARD_OK;
	return err_set(e, SHARD_BAD_ARG,
		       "%s: [daemon] state: too long for a folder of checkpoints in it: set "
		       "checkpoint_roots",
		       place(l, "daemon", "state"));
}

/* With three nodes a majority is left when any one of them is lost. */
static void finish_membership(struct config_loader *l)
{
	struct config *c = l->c;
	char *where = place(l, "cluster", "membership");

	if (strcmp(where, "default") != 0)
		return;
	c->membership_chosen = c->nodes_nr >= CONFIG_QUORUM_NODES;
	c->membership = c->membership_chosen ? CONFIG_MEMBERSHIP_QUORUM : CONFIG_MEMBERSHIP_STATIC;
	snprintf(where, CONFIG_WHERE_BYTES, "default for %u node%s", c->nodes_nr,
		 c->nodes_nr == 1 ? "" : "s");
}

static enum shard_status check_etcd(struct config_loader *l, struct err *e)
{
	if (l->c->membership != CONFIG_MEMBERSHIP_ETCD || l->c->etcd_endpoints[0])
		return SHARD_OK;
	return err_set(e, SHARD_BAD_ARG,
		       "%s: [cluster] membership = etcd: etcd_endpoints does not say where it is: "
		       "set it, as in http://10.0.0.1:2379,http://10.0.0.2:2379",
		       place(l, "cluster", "membership"));
}

static enum shard_status check_timeouts(struct config_loader *l, struct err *e)
{
	if (l->c->step_timeout_ns >= l->c->heartbeat_timeout_ns)
		return SHARD_OK;
	return err_set(e, SHARD_BAD_ARG,
		       "%s: [cluster] step_timeout is shorter than heartbeat_timeout (%s): raise "
		       "it",
		       place(l, "cluster", "step_timeout"),
		       place(l, "cluster", "heartbeat_timeout"));
}

enum shard_status config_finish(struct config_loader *l, struct err *e)
{
	struct config *c = l->c;
	enum shard_status st;

	CHECK(c && c->state[0] && c->connections > 0);
	if ((st = finish_node(l, e)) != SHARD_OK ||
	    (st = config_go_on(l->wrong, finish_listen(l, e), e)) != SHARD_OK ||
	    (st = config_go_on(l->wrong, check_tls(l, e), e)) != SHARD_OK ||
	    (st = config_go_on(l->wrong, finish_http(l, e), e)) != SHARD_OK)
		return st;
	for (uint32_t i = 0; st == SHARD_OK && i < c->models_nr; i++)
		st = config_go_on(l->wrong, check_model(c, c->model[i].name, e), e);
	if (st == SHARD_OK)
		st = config_go_on(l->wrong, check_timeouts(l, e), e);
	if (st != SHARD_OK)
		return st;
	finish_membership(l);
	if ((st = config_go_on(l->wrong, finish_roots(l, e), e)) != SHARD_OK ||
	    (st = config_go_on(l->wrong, check_etcd(l, e), e)) != SHARD_OK)
		return st;
	if (c->memory == 0)
		c->memory = config_machine_memory() / 5 * 4;
	if (c->workers == 0)
		c->workers = auto_workers();
	return SHARD_OK;
}

void config_shared(const struct config *c,
		   void (*fn)(void *arg, const char *key, const char *value), void *arg)
{
	static const char *const sections[] = {"cluster", "net"};
	const struct table *t = config_options();
	char key[64], value[CONFIG_PATH_BYTES];

	CHECK(fn && c->nodes_nr > 0);
	fn(arg, CONFIG_WIRE, WIRE_NODES);
	for (uint32_t s = 0; s < NR(sections); s++) {
		for (uint32_t i = 0; i < t->nr; i++) {
			if (!t->rows[i].shared || strcmp(t->rows[i].section, sections[s]) != 0)
				continue;
			table_get(&t->rows[i], c, value, sizeof(value));
			snprintf(key, sizeof(key), "%s.%s", t->rows[i].section, t->rows[i].name);
			fn(arg, key, value);
		}
	}
	/* The order of nodes counts, because the first one coordinates. */
	for (uint32_t i = 0; i < c->nodes_nr; i++) {
		snprintf(key, sizeof(key), "nodes[%u]", i);
		snprintf(value, sizeof(value), "%s = %s", c->node_list[i].name,
			 c->node_list[i].address.text);
		fn(arg, key, value);
	}
}

static void add_to_sum(void *arg, const char *key, const char *value)
{
	uint64_t *sum = arg;

	*sum = xxh_sum(key, strlen(key), *sum);
	*sum = xxh_sum(value, strlen(value), *sum);
}

uint64_t config_hash(const struct config *c)
{
	uint64_t sum = 0;

	config_shared(c, add_to_sum, &sum);
	return sum;
}
