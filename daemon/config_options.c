/* SPDX-License-Identifier: Apache-2.0 */
/* The table of options and what one value means. Everything that knows an option knows it from a row here: the file, SHARD_* variables,
 * the command line, --help and the printed configuration. A value that cannot be is SHARD_BAD_ARG with the choices. */
#include "config_parts.h"

#include "base/check.h"
#include "settings.h"
#include "value.h"

#include <stdio.h>
#include <string.h>

#define AT(field) offsetof(struct config, field)
#define S         1000000000ull

static const char *const huge_words[] = {[SHM_HUGE_TRY] = "try", [SHM_HUGE_REQUIRE] = "require", [SHM_HUGE_NO] = "no", NULL};
static const char *const warm_words[] = {[CONFIG_WARM_AUTO] = "auto",
					 [CONFIG_WARM_SYSTEMD] = "systemd",
					 [CONFIG_WARM_TMPFS] = "tmpfs",
					 [CONFIG_WARM_OFF] = "off",
					 NULL};
static const char *const level_words[] = {"error", "warn", "info", "debug", NULL};
static const char *const transport_words[] = {"auto", "tcp", "rdma", NULL};
static const char *const membership_words[] = {"static", NULL};

static const struct config_option options[CONFIG_KEY_NR] = {
	[CONFIG_DAEMON_NODE] = {"daemon", "node", CONFIG_NAME, AT(node), "", 0, 0, NULL, NULL,
				"this node's name in [nodes]; default: the host's name", false},
	[CONFIG_DAEMON_LISTEN] =
		{"daemon", "listen", CONFIG_ADDRESS_OR_OFF, AT(listen), "", 0, 0, NULL, NULL,
		 "host:port for nodes and remote trainers; off: none; default: this node's entry in [nodes], else 127.0.0.1:29700",
		 false},
	[CONFIG_DAEMON_HTTP] = {"daemon", "http", CONFIG_ADDRESS_OR_OFF, AT(http), "127.0.0.1:29701", 0, 0, NULL, NULL,
				"host:port for /metrics, /status, /healthz and a page; off: none", false},
	[CONFIG_DAEMON_SOCKET] = {"daemon", "socket", CONFIG_PATH, AT(socket), "/run/shardd/shardd.sock", 0, 107, NULL, NULL,
				  "unix socket for trainers on this node", false},
	[CONFIG_DAEMON_SOCKET_MODE] = {"daemon", "socket_mode", CONFIG_OCTAL, AT(socket_mode), "0660", 0, 0777, NULL, NULL,
				       "who may train: permissions of the socket, octal", false},
	[CONFIG_DAEMON_STATE] = {"daemon", "state", CONFIG_PATH, AT(state), "/var/lib/shardd", 0, CONFIG_PATH_BYTES - 1, NULL, NULL,
				 "directory for identity, incarnation and views", false},
	[CONFIG_DAEMON_MEMORY] = {"daemon", "memory", CONFIG_BYTES_OR_AUTO, AT(memory), "auto", 1 << 20, 1ull << 60, NULL, NULL,
				  "budget for all models, as in 64GiB; auto: 80 % of the cgroup's limit or of the memory", false},
	[CONFIG_DAEMON_HUGE_PAGES] = {"daemon", "huge_pages", CONFIG_CHOICE, AT(huge_pages), "try", 0, 0, huge_words, NULL,
				      "for masters, moments, image and arenas", false},
	[CONFIG_DAEMON_WORKERS] = {"daemon", "workers", CONFIG_COUNT_OR_AUTO, AT(workers), "auto", 1, 256, NULL, NULL,
				   "compute threads; auto: one per processor in the affinity mask", false},
	[CONFIG_DAEMON_LOG_LEVEL] = {"daemon", "log_level", CONFIG_CHOICE, AT(log_level), "info", 0, 0, level_words, NULL,
				     "least urgent lines that are logged", true},
	[CONFIG_DAEMON_ALLOW_UNAUTHENTICATED] = {"daemon", "allow_unauthenticated", CONFIG_BOOL, AT(allow_unauthenticated), "no", 0,
						 0, NULL, NULL,
						 "needed to listen on anything but loopback without [cluster] secret, and for http",
						 false},
	[CONFIG_DAEMON_CONNECTIONS_MAX] = {"daemon", "connections_max", CONFIG_COUNT, AT(connections_max), "256", 4, 65536, NULL,
					   NULL, "accepted connections at a time; more are refused", true},
	[CONFIG_DAEMON_LINGER] = {"daemon", "linger", CONFIG_DURATION, AT(linger_ns), "0s", 0, 86400 * S, NULL, NULL,
				  "stop when nothing has been connected for this long; 0s: never", false},
	[CONFIG_DAEMON_STOP_TIMEOUT] = {"daemon", "stop_timeout", CONFIG_DURATION, AT(stop_timeout_ns), "60s", 0, 3600 * S, NULL,
					NULL, "how long SIGTERM waits for a step that is decided or voted for", false},
	[CONFIG_DAEMON_WARM_RESTART] = {"daemon", "warm_restart", CONFIG_CHOICE, AT(warm), "auto", 0, 0, warm_words, NULL,
					"where models outlive the process; auto: systemd, else off with linger, else tmpfs", false},
	[CONFIG_DAEMON_WARM_DIR] = {"daemon", "warm_dir", CONFIG_PATH, AT(warm_dir), "/dev/shm", 0, 255, NULL, NULL,
				    "tmpfs or hugetlbfs folder in which warm_restart = tmpfs makes its own", false},
	[CONFIG_NET_TRANSPORT] = {"net", "transport", CONFIG_CHOICE, AT(transport), "auto", 0, 0, transport_words, NULL,
				  "of tensors between nodes; auto is rdma where both can, else tcp", false},
	[CONFIG_NET_CONNECTIONS] = {"net", "connections", CONFIG_COUNT, AT(connections), "1", 1, 16, NULL, NULL,
				    "TCP connections per peer", false},
	[CONFIG_NET_BODY_CHECKSUM] = {"net", "body_checksum", CONFIG_BOOL, AT(body_checksum), "yes", 0, 0, NULL, NULL,
				      "a sum over each tensor body between nodes over tcp", false},
	[CONFIG_NET_RDMA_DEVICE] =
		{"net", "rdma_device", CONFIG_NAME, AT(rdma_device), "auto", 0, 0, NULL, NULL,
		 "as `ibv_devices` names it; auto: one with an active port, of the address of `listen` if there is one", false},
	[CONFIG_NET_RDMA_GID_INDEX] = {"net", "rdma_gid_index", CONFIG_INDEX_OR_AUTO, AT(rdma_gid_index), "auto", 0, 4095, NULL,
				       NULL,
				       "of the device's port; auto: RoCE v2 with the address of `listen`, or any other IPv4 one",
				       false},
	[CONFIG_NET_RDMA_QUEUE_PAIRS] = {"net", "rdma_queue_pairs", CONFIG_COUNT, AT(rdma_queue_pairs), "4", 1, 16, NULL, NULL,
					 "per peer; the smaller number of the two nodes counts", false},
	[CONFIG_NET_RDMA_CHECKSUM] = {"net", "rdma_checksum", CONFIG_BOOL, AT(rdma_checksum), "yes", 0, 0, NULL, NULL,
				      "a sum over each tensor body over RDMA; no: unless the other node wants it", false},
	[CONFIG_NET_RDMA_BUSY_POLL_US] = {"net", "rdma_busy_poll_us", CONFIG_COUNT, AT(rdma_busy_poll_us), "0", 0, 1000000, NULL,
					  NULL, "after a completion, look for more for so long before sleeping; 0: never", false},
	[CONFIG_CLUSTER_RUN_ID] = {"cluster", "run_id", CONFIG_NAME, AT(run_id), "default", 0, 0, NULL, NULL,
				   "nodes and trainers with another run_id are refused", false},
	[CONFIG_CLUSTER_SECRET] =
		{"cluster", "secret", CONFIG_PATH, AT(secret), "", 0, CONFIG_PATH_BYTES - 1, NULL, NULL,
		 "file that nodes, and trainers and tools over tcp, must know: `shardctl secret new FILE` makes one", false},
	[CONFIG_CLUSTER_MEMBERSHIP] = {"cluster", "membership", CONFIG_CHOICE, AT(membership), "static", 0, 0, membership_words,
				       "etcd", "who the nodes are: [nodes]", false},
	[CONFIG_CLUSTER_HEARTBEAT_TIMEOUT] = {"cluster", "heartbeat_timeout", CONFIG_DURATION, AT(heartbeat_timeout_ns), "5s",
					      S / 10, 3600 * S, NULL, NULL, "a silent peer or trainer is lost after this", false},
	[CONFIG_CLUSTER_STEP_TIMEOUT] = {"cluster", "step_timeout", CONFIG_DURATION, AT(step_timeout_ns), "300s", S / 10, 86400 * S,
					 NULL, NULL, "an undecided step is given up after this, and says who is missing", false},
};

const struct config_option *config_option(enum config_key key)
{
	CHECK((unsigned)key < CONFIG_KEY_NR);
	return &options[key];
}

enum config_key config_find(const char *section, const char *key)
{
	int i = 0;

	while (i < CONFIG_KEY_NR && (strcmp(options[i].section, section) != 0 || strcmp(options[i].key, key) != 0))
		i++;
	return (enum config_key)i;
}

static enum shard_status wrong_choice(const struct config_option *o, const char *value, struct err *e)
{
	char words[128] = "";
	size_t used = 0;

	for (int i = 0; o->words[i]; i++) {
		const char *glue = o->words[i + 1] ? ", " : " or ";

		used += (size_t)snprintf(words + used, sizeof(words) - used, "%s%s", i > 0 ? glue : "", o->words[i]);
	}
	if (o->refused && strcmp(value, o->refused) == 0)
		return err_set(e, SHARD_UNSUPPORTED, "not in this build: choose %s", words);
	return err_set(e, SHARD_BAD_ARG, "choose %s", words);
}

static enum shard_status set_choice(const struct config_option *o, int *to, const char *value, struct err *e)
{
	for (int i = 0; o->words[i]; i++) {
		if (strcmp(value, o->words[i]) == 0) {
			*to = i;
			return SHARD_OK;
		}
	}
	return wrong_choice(o, value, e);
}

static enum shard_status set_path(const struct config_option *o, char *to, const char *value, struct err *e)
{
	size_t n = strlen(value);

	if (n == 0 || n > o->max)
		return err_set(e, SHARD_BAD_ARG, "choose a path of 1 to %llu bytes", (unsigned long long)o->max);
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)value[i] < ' ')
			return err_set(e, SHARD_BAD_ARG, "choose a path without control characters");
	memcpy(to, value, n + 1);
	return SHARD_OK;
}

static enum shard_status set_number(const struct config_option *o, uint32_t *to, const char *value, struct err *e)
{
	bool may_be_auto = o->type == CONFIG_COUNT_OR_AUTO;
	uint64_t n;

	if (may_be_auto && strcmp(value, "auto") == 0) {
		*to = 0;
		return SHARD_OK;
	}
	if (!value_u64(value, &n) || n < o->min || n > o->max)
		return err_set(e, SHARD_BAD_ARG, "choose %sa whole number from %llu to %llu", may_be_auto ? "auto or " : "",
			       (unsigned long long)o->min, (unsigned long long)o->max);
	*to = (uint32_t)n;
	return SHARD_OK;
}

static enum shard_status set_index(const struct config_option *o, int32_t *to, const char *value, struct err *e)
{
	uint64_t n;

	if (strcmp(value, "auto") == 0) {
		*to = -1;
		return SHARD_OK;
	}
	if (!value_u64(value, &n) || n < o->min || n > o->max)
		return err_set(e, SHARD_BAD_ARG, "choose auto or a whole number from %llu to %llu", (unsigned long long)o->min,
			       (unsigned long long)o->max);
	*to = (int32_t)n;
	return SHARD_OK;
}

static enum shard_status set_bytes(const struct config_option *o, uint64_t *to, const char *value, struct err *e)
{
	if (strcmp(value, "auto") == 0) {
		*to = 0;
		return SHARD_OK;
	}
	if (!value_bytes(value, to) || *to < o->min || *to > o->max)
		return err_set(e, SHARD_BAD_ARG,
			       "choose auto or a size of at least 1MiB with its unit (KiB, MiB, GiB, TiB), as in 64GiB");
	return SHARD_OK;
}

static enum shard_status set_duration(const struct config_option *o, uint64_t *to, const char *value, struct err *e)
{
	char min[VALUE_TEXT_BYTES], max[VALUE_TEXT_BYTES];

	if (value_duration(value, to) && *to >= o->min && *to <= o->max)
		return SHARD_OK;
	value_duration_text(min, o->min);
	value_duration_text(max, o->max);
	return err_set(e, SHARD_BAD_ARG, "choose a time from %s to %s with its unit (us, ms, s, min, h), as in 5s", min, max);
}

static enum shard_status set_address(const struct config_option *o, struct conn_address *to, const char *value, struct err *e)
{
	const char *off = o->type == CONFIG_ADDRESS_OR_OFF ? ", or off" : "";
	struct err why;

	if (conn_address_parse(to, value, &why) != SHARD_OK)
		return err_set(e, SHARD_BAD_ARG, "%.300s%s", why.text, off);
	if (to->unix_path)
		return err_set(e, SHARD_BAD_ARG, "choose host:port%s; `socket` is for unix sockets", off);
	return SHARD_OK;
}

enum shard_status config_set(struct config *c, enum config_key key, const char *value, struct err *e)
{
	const struct config_option *o = config_option(key);
	void *to = (char *)c + o->offset;

	switch (o->type) {
	case CONFIG_NAME:
		if (!value_name(value))
			return err_set(e, SHARD_BAD_ARG, "choose 1 to 64 of a-z 0-9 . _ -");
		memcpy(to, value, strlen(value) + 1);
		return SHARD_OK;
	case CONFIG_PATH:
		return set_path(o, to, value, e);
	case CONFIG_ADDRESS_OR_OFF:
		if (strcmp(value, "off") == 0) {
			*(struct conn_address *)to = (struct conn_address){.text = "off"};
			return SHARD_OK;
		}
		return set_address(o, to, value, e);
	case CONFIG_ADDRESS:
		return set_address(o, to, value, e);
	case CONFIG_BYTES_OR_AUTO:
		return set_bytes(o, to, value, e);
	case CONFIG_DURATION:
		return set_duration(o, to, value, e);
	case CONFIG_COUNT:
	case CONFIG_COUNT_OR_AUTO:
		return set_number(o, to, value, e);
	case CONFIG_INDEX_OR_AUTO:
		return set_index(o, to, value, e);
	case CONFIG_BOOL:
		return value_bool(value, to) ? SHARD_OK : err_set(e, SHARD_BAD_ARG, "choose yes or no");
	case CONFIG_OCTAL:
		if (!value_octal(value, to) || *(uint32_t *)to > o->max)
			return err_set(e, SHARD_BAD_ARG, "choose octal permissions, as in 0660");
		return SHARD_OK;
	case CONFIG_CHOICE:
		return set_choice(o, to, value, e);
	}
	CHECK(!"a type without a case");
	return SHARD_BAD_ARG;
}

void config_get(const struct config *c, enum config_key key, char *out, size_t bytes)
{
	const struct config_option *o = config_option(key);
	const void *from = (const char *)c + o->offset;
	char text[VALUE_TEXT_BYTES];

	switch (o->type) {
	case CONFIG_NAME:
	case CONFIG_PATH:
		snprintf(out, bytes, "%s", (const char *)from);
		return;
	case CONFIG_ADDRESS:
	case CONFIG_ADDRESS_OR_OFF:
		snprintf(out, bytes, "%s", ((const struct conn_address *)from)->text);
		return;
	case CONFIG_BYTES_OR_AUTO:
		value_bytes_text(text, *(const uint64_t *)from);
		break;
	case CONFIG_DURATION:
		value_duration_text(text, *(const uint64_t *)from);
		break;
	case CONFIG_COUNT:
	case CONFIG_COUNT_OR_AUTO:
		snprintf(text, sizeof(text), "%u", *(const uint32_t *)from);
		break;
	case CONFIG_INDEX_OR_AUTO:
		if (*(const int32_t *)from < 0)
			snprintf(text, sizeof(text), "auto");
		else
			snprintf(text, sizeof(text), "%d", *(const int32_t *)from);
		break;
	case CONFIG_BOOL:
		snprintf(text, sizeof(text), "%s", *(const bool *)from ? "yes" : "no");
		break;
	case CONFIG_OCTAL:
		snprintf(text, sizeof(text), "%04o", *(const uint32_t *)from);
		break;
	case CONFIG_CHOICE:
		snprintf(text, sizeof(text), "%s", o->words[*(const int *)from]);
		break;
	}
	snprintf(out, bytes, "%s", text);
}

void config_help(FILE *out)
{
	const char *section = "";
	char text[400];

	fprintf(out, "Options of the configuration file. Each is also --set section.key=value, and\n"
		     "in the environment SHARD_KEY (section daemon) or SHARD_SECTION_KEY. Order:\n"
		     "command line > environment > file > default.\n\n");
	for (int i = 0; i < CONFIG_KEY_NR; i++) {
		const struct config_option *o = &options[i];
		size_t used = (size_t)snprintf(text, sizeof(text), "%s", o->help);

		if (strcmp(section, o->section) != 0)
			fprintf(out, "[%s]\n", section = o->section);
		for (int w = 0; o->words && o->words[w]; w++)
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", w ? " | " : ": ", o->words[w]);
		if (o->fallback[0])
			used += (size_t)snprintf(text + used, sizeof(text) - used, " (default: %s)", o->fallback);
		if (o->reloadable)
			snprintf(text + used, sizeof(text) - used, "; SIGHUP brings it");
		value_help(out, o->key, text);
	}
	fprintf(out, "[nodes]\n");
	value_help(out, "NAME = HOST:PORT", "one line per node, the same on all of them; the first coordinates");
	settings_help(out);
}

void config_print(const struct config *c, FILE *out)
{
	const char *section = "";
	char value[CONFIG_PATH_BYTES];

	for (int i = 0; i < CONFIG_KEY_NR; i++) {
		if (strcmp(section, options[i].section) != 0)
			fprintf(out, "[%s]\n", section = options[i].section);
		config_get(c, (enum config_key)i, value, sizeof(value));
		if (value[0]) /* a path that nobody set */
			fprintf(out, "%s = %s\n", options[i].key, value);
	}
	fprintf(out, "[nodes]\n");
	for (uint32_t i = 0; i < c->nodes_nr; i++)
		fprintf(out, "%s = %s\n", c->node_list[i].name, c->node_list[i].address.text);
	for (uint32_t i = 0; i < c->models_nr; i++) {
		const struct config_model *m = &c->model[i];

		if (m->group[0])
			fprintf(out, "[model \"%s\" group \"%s\"]\n", m->name, m->group);
		else if (m->name[0])
			fprintf(out, "[model \"%s\"]\n", m->name);
		else
			fprintf(out, "[model]\n");
		for (const char *at = m->settings; *at;) {
			size_t n = strcspn(at, " "), key = strcspn(at, "=");

			fprintf(out, "%.*s = %.*s\n", (int)key, at, (int)(n - key - 1), at + key + 1);
			at += n + (at[n] == ' ');
		}
	}
}
