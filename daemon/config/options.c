/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's options, as rows of the table engine. Whatever knows an option knows it from here:
 * the file, SHARD_* variables, the command line, --help, `config explain`, reload and README.md.
 * Whoever adds an option adds its field to struct config and a row. An option without a fixed
 * default is worked out by config_finish(). A row that contradicts itself is found by
 * table_check(), which the unit test calls. */
#include "config/loader.h"

#include "base/check.h"

#include <assert.h>

#define PATH_BYTES_MAX (CONFIG_PATH_BYTES - 1)
#define S              1e9 /* A second in ns. */

#define FIELD(f) .offset = offsetof(struct config, f), .bytes = sizeof(((struct config *)NULL)->f)

static const char *const huge_words[] = {
	[SHM_HUGE_TRY] = "try", [SHM_HUGE_REQUIRE] = "require", [SHM_HUGE_NO] = "no", NULL};
static const char *const warm_words[] = {[CONFIG_WARM_AUTO] = "auto",
					 [CONFIG_WARM_SYSTEMD] = "systemd",
					 [CONFIG_WARM_TMPFS] = "tmpfs",
					 [CONFIG_WARM_OFF] = "off",
					 NULL};
static const char *const level_words[] = {[LOG_LEVEL_ERROR] = "error",
					  [LOG_LEVEL_WARN] = "warn",
					  [LOG_LEVEL_INFO] = "info",
					  [LOG_LEVEL_DEBUG] = "debug",
					  NULL};
static const char *const transport_words[] = {[CONFIG_TRANSPORT_AUTO] = "auto",
					      [CONFIG_TRANSPORT_TCP] = "tcp",
					      [CONFIG_TRANSPORT_RDMA] = "rdma",
					      NULL};
static const char *const tls_words[] = {
	[TLS_OFF] = "off", [TLS_PSK] = "psk", [TLS_MTLS] = "mtls", NULL};
static const char *const auto_words[] = {[false] = "off", [true] = "auto", NULL};
static const char *const membership_words[] = {[CONFIG_MEMBERSHIP_STATIC] = "static",
					       [CONFIG_MEMBERSHIP_QUORUM] = "quorum",
					       [CONFIG_MEMBERSHIP_ETCD] = "etcd",
					       NULL};

/* clang-format off */
static const struct table_row rows[] = {
	{.section = "daemon", .name = "node", .type = TABLE_NAME, FIELD(node),
		.otherwise = "the name of the host",
		.help = "The name of this node in [nodes]."},
	{.section = "daemon", .name = "listen", .type = TABLE_ADDRESS, FIELD(listen), .word = "off",
		.otherwise = "off where neither nodes nor remote trainers can come in, else the "
			"entry of this node in [nodes], else 127.0.0.1:29700",
		.help = "The TCP address for other nodes and remote trainers."},
	{.section = "daemon", .name = "http", .type = TABLE_ADDRESS, FIELD(http), .word = "off",
		.fallback = "127.0.0.1:29701",
		.help = "The TCP address for /metrics, /status, /healthz and a page in the "
			"browser."},
	{.section = "daemon", .name = "http_allow", .type = TABLE_NETWORKS, FIELD(http_allow),
		.max = PATH_BYTES_MAX, .otherwise = "none",
		.help = "Who is answered where http listens beyond loopback, as in 10.0.0.0/8, "
			"fd00::/8. 127.0.0.1 and ::1 always are. Connections from elsewhere are "
			"closed."},
	{.section = "daemon", .name = "http_private_models", .type = TABLE_BOOL,
		FIELD(http_private_models), .fallback = "no", .reloadable = true,
		.help = "Whether HTTP tells everybody who reaches it of models that others may not "
			"read (mode)."},
	{.section = "daemon", .name = "socket", .type = TABLE_PATH, FIELD(socket), .max = 107,
		.fallback = "/run/shardd/shardd.sock",
		.help = "The unix socket for trainers on this node."},
	{.section = "daemon", .name = "socket_mode", .type = TABLE_OCTAL, FIELD(socket_mode),
		.max = 0777, .fallback = "0660",
		.help = "The permissions of the socket. They say who may train."},
	{.section = "daemon", .name = "state", .type = TABLE_PATH, FIELD(state),
		.max = PATH_BYTES_MAX, .fallback = "/var/lib/shardd",
		.help = "The folder for this node's identity, incarnation, views and definitions."},
	{.section = "daemon", .name = "history", .type = TABLE_BYTES, FIELD(history),
		.min = 1 << 20, .max = 0x1p40, .word = "off", .fallback = "64MiB",
		.help = "The most that the history of one model takes in state: the decided steps, "
			"views, saves and restores, for `shardctl history`. The oldest part of it "
			"goes first."},
	{.section = "daemon", .name = "memory", .type = TABLE_BYTES, FIELD(memory), .min = 1 << 20,
		.max = 0x1p60, .word = "auto", .fallback = "auto",
		.help = "The budget of this node for all models together, and for answers that wait "
			"to be taken. auto is 80 % of the cgroup's limit, or of the machine's "
			"memory."},
	{.section = "daemon", .name = "capacity", .type = TABLE_COUNT, FIELD(capacity),
		.max = CONFIG_CAPACITY_MAX, .fallback = "1",
		.help = "How much of each new model lies here, beside the capacities of the other "
			"nodes and in their unit, as GiB of memory. With 0 none does: trainers here "
			"train, and the node votes in elections."},
	{.section = "daemon", .name = "huge_pages", .type = TABLE_CHOICE, FIELD(huge_pages),
		.words = huge_words, .fallback = "try",
		.help = "Whether masters, moments and images lie in reserved huge pages. Arenas "
			"get transparent ones at most."},
	{.section = "daemon", .name = "workers", .type = TABLE_COUNT, FIELD(workers), .min = 1,
		.max = CONFIG_WORKERS_MAX, .word = "auto", .fallback = "auto",
		.help = "The number of compute threads. auto is one for each processor in the "
			"affinity mask."},
	{.section = "daemon", .name = "log_level", .type = TABLE_CHOICE, FIELD(log_level),
		.words = level_words, .fallback = "info", .reloadable = true,
		.help = "The least urgent lines that are logged."},
	{.section = "daemon", .name = "allow_unauthenticated", .type = TABLE_BOOL,
		FIELD(allow_unauthenticated), .fallback = "no",
		.help = "Lets anybody in over TCP, from loopback too, where there is no [cluster] "
			"secret or node_secret. Also lets http answer everybody beyond loopback, "
			"where there is no http_allow."},
	{.section = "daemon", .name = "connections_max", .type = TABLE_COUNT,
		FIELD(connections_max), .min = 4, .max = 65536, .fallback = "256",
		.reloadable = true,
		.help = "The most trainers and tools at a time. A quarter of them may be of one "
			"user or address. Others are refused."},
	{.section = "daemon", .name = "linger", .type = TABLE_DURATION, FIELD(linger_ns),
		.max = 86400 * S, .fallback = "0s",
		.help = "The daemon stops when nothing has been connected for this long. With 0s "
			"it never does."},
	{.section = "daemon", .name = "stop_timeout", .type = TABLE_DURATION,
		FIELD(stop_timeout_ns), .max = 3600 * S, .fallback = "60s",
		.help = "How long SIGTERM waits for a step that is decided or voted for."},
	{.section = "daemon", .name = "warm_restart", .type = TABLE_CHOICE, FIELD(warm),
		.words = warm_words, .fallback = "auto",
		.help = "Where the memory of models outlives the process. auto is systemd in a "
			"service, off with linger, and tmpfs otherwise."},
	{.section = "daemon", .name = "warm_dir", .type = TABLE_PATH, FIELD(warm_dir), .max = 255,
		.fallback = "/dev/shm",
		.help = "The tmpfs or hugetlbfs folder in which warm_restart = tmpfs makes a "
			"folder of its own."},
	{.section = "daemon", .name = "checkpoint_roots", .type = TABLE_PATHS,
		FIELD(checkpoint_roots), .max = PATH_BYTES_MAX,
		.otherwise = "`checkpoints` in state",
		.help = "Folders below which anybody may save and restore, as in /a:/b. The same "
			"holds below each checkpoint_dir of this file. Elsewhere only root and the "
			"daemon's own user may."},
	{.section = "daemon", .name = "checkpoint_hook", .type = TABLE_PATH, FIELD(checkpoint_hook),
		.max = PATH_BYTES_MAX, .otherwise = "none",
		.help = "A program that copies checkpoints elsewhere, as to an object store. The "
			"node that coordinates runs it as HOOK copy FOLDER for each complete "
			"checkpoint, and marks those for which it has exited with 0."},
	{.section = "daemon", .name = "checkpoint_hook_timeout", .type = TABLE_DURATION,
		FIELD(checkpoint_hook_timeout_ns), .min = S / 10, .max = 7 * 86400 * S,
		.fallback = "6h",
		.help = "How long checkpoint_hook may take for one checkpoint. Then it is ended, "
			"and begins anew after the next save."},
	{.section = "daemon", .name = "prune_copied_only", .type = TABLE_BOOL,
		FIELD(prune_copied_only), .fallback = "no",
		.help = "keep_latest removes only checkpoints that checkpoint_hook has copied. "
			"While it fails, all of them stay, and the disk may fill."},
	{.section = "daemon", .name = "nvme_dir", .type = TABLE_PATH, FIELD(nvme_dir), .max = 255,
		.otherwise = "none",
		.help = "The folder for files with the state of models that have tier = nvme. It "
			"lies on a disk of this node, on a file system with O_DIRECT, and is no "
			"network folder."},
	{.section = "daemon", .name = "gpu", .type = TABLE_GPUS, FIELD(gpu),
		.max = PATH_BYTES_MAX, .fallback = "off",
		.help = "The GPUs that this node takes. auto takes all that NVIDIA's driver "
			"shows, and none where there is no driver. With uuids the node is ill as "
			"long as it has not all of them."},
	{.section = "daemon", .name = "gpu_memory", .type = TABLE_BYTES, FIELD(gpu_memory),
		.min = 1 << 20, .max = 0x1p60, .word = "auto", .fallback = "auto",
		.help = "The most memory of each GPU for all models together. auto is 90 % of "
			"what is free when the daemon starts."},
	{.section = "net", .name = "transport", .type = TABLE_CHOICE, FIELD(transport),
		.words = transport_words, .fallback = "auto",
		.help = "How tensors travel between nodes. auto is rdma where both nodes can, else "
			"tcp."},
	{.section = "net", .name = "connections", .type = TABLE_COUNT, FIELD(connections), .min = 1,
		.max = 16, .fallback = "1", .shared = true,
		.help = "The number of TCP connections to each other node."},
	{.section = "net", .name = "body_checksum", .type = TABLE_BOOL, FIELD(body_checksum),
		.fallback = "yes", .shared = true,
		.help = "Adds a checksum to each tensor body between nodes over TCP."},
	{.section = "net", .name = "rdma_device", .type = TABLE_NAME, FIELD(rdma_device),
		.fallback = "auto",
		.help = "The RDMA device, as `ibv_devices` names it. auto is one with an active "
			"port, if possible one that has the address of listen."},
	{.section = "net", .name = "rdma_gid_index", .type = TABLE_COUNT, FIELD(rdma_gid_index),
		.max = 4095, .word = "auto", .word_value = UINT32_MAX, .fallback = "auto",
		.help = "The GID of the device's port. auto is RoCE v2 with the address of listen, "
			"or with any other IPv4 address."},
	{.section = "net", .name = "rdma_queue_pairs", .type = TABLE_COUNT, FIELD(rdma_queue_pairs),
		.min = 1, .max = 16, .fallback = "4",
		.help = "The number of queue pairs to each other node. The smaller number of the "
			"two nodes counts."},
	{.section = "net", .name = "rdma_checksum", .type = TABLE_BOOL, FIELD(rdma_checksum),
		.fallback = "yes",
		.help = "Adds a checksum to each tensor body over RDMA. It is left out if both "
			"nodes say no."},
	{.section = "net", .name = "rdma_gpu", .type = TABLE_CHOICE, FIELD(rdma_gpu),
		.words = auto_words, .fallback = "auto",
		.help = "tier = gpu: whether other nodes write gradients into the memory of the "
			"GPUs here, which add them up, where GPUs and the RDMA device can do that. "
			"It needs rdma_checksum = no on all nodes, and memory of the GPUs for one "
			"gradient of each node."},
	{.section = "net", .name = "rdma_busy_poll_us", .type = TABLE_COUNT,
		FIELD(rdma_busy_poll_us), .max = 1000000, .fallback = "0",
		.help = "How many microseconds the daemon polls for more completions after one, "
			"before it sleeps."},
	{.section = "net", .name = "tls", .type = TABLE_CHOICE, FIELD(tls), .words = tls_words,
		.fallback = "off",
		.help = "Encrypts every connection over TCP by TLS 1.3, between nodes and with "
			"trainers and tools. psk: with keys that are made of the secrets. mtls: "
			"with certificates, which both ends check. It has to be the same on all "
			"nodes, trainers and tools. The unix socket needs none."},
	{.section = "net", .name = "tls_cert", .type = TABLE_PATH, FIELD(tls_cert),
		.max = PATH_BYTES_MAX, .otherwise = "none",
		.help = "The file in PEM with this node's certificate and those between it and "
			"tls_ca. Its subjectAltName has DNS:NAME with this node's name in [nodes]. "
			"SIGHUP reads the three files again."},
	{.section = "net", .name = "tls_key", .type = TABLE_PATH, FIELD(tls_key),
		.max = PATH_BYTES_MAX, .otherwise = "none",
		.help = "The file in PEM with the private key of tls_cert. Nobody else may read "
			"it."},
	{.section = "net", .name = "tls_ca", .type = TABLE_PATH, FIELD(tls_ca),
		.max = PATH_BYTES_MAX, .otherwise = "none",
		.help = "The file in PEM with who signs the certificates of nodes, trainers and "
			"tools."},
	{.section = "net", .name = "tls_kernel", .type = TABLE_CHOICE, FIELD(tls_kernel),
		.words = auto_words, .fallback = "off",
		.help = "auto lets the kernel encrypt what is sent, where it has TLS (`modprobe "
			"tls`). Such a connection ends after 64 GiB and is made anew, which "
			"costs an attempt at a step."},
	{.section = "net", .name = "rdma_with_tls", .type = TABLE_BOOL, FIELD(rdma_with_tls),
		.fallback = "no",
		.help = "Lets tensors travel by RDMA beside tls. What travels that way is not "
			"encrypted: yes says that everybody on that fabric is trusted."},
	{.section = "cluster", .name = "run_id", .type = TABLE_NAME, FIELD(run_id),
		.fallback = "default", .shared = true,
		.help = "The name of this cluster. Nodes and trainers with another one are "
			"refused."},
	{.section = "cluster", .name = "secret", .type = TABLE_PATH, FIELD(secret),
		.max = PATH_BYTES_MAX, .otherwise = "none",
		.help = "The file with the key that trainers and tools over TCP must know. "
			"`shardctl secret new FILE` makes one."},
	{.section = "cluster", .name = "node_secret", .type = TABLE_PATH, FIELD(node_secret),
		.max = PATH_BYTES_MAX, .otherwise = "none",
		.help = "The file with the key that nodes must know. It is not the key in secret. "
			"`shardctl secret new FILE` makes one."},
	{.section = "cluster", .name = "join", .type = TABLE_ADDRESS, FIELD(join), .word = "off",
		.fallback = "off",
		.help = "The address of any node of a cluster that this node shall become a node "
			"of. It needs no [nodes] then: it learns them, and what has to be equal on "
			"all nodes, and keeps that in state. Where listen is not set, it listens "
			"on the address that reaches that node."},
	{.section = "cluster", .name = "trust_remote_root", .type = TABLE_BOOL,
		FIELD(trust_remote_root), .fallback = "no",
		.help = "Lets root of another node do here what root may. Otherwise it is a user "
			"like any other, who owns what it defined."},
	{.section = "cluster", .name = "membership", .type = TABLE_CHOICE, FIELD(membership),
		.words = membership_words, .shared = true,
		.otherwise = "quorum where there are three nodes or more, else static",
		.help = "Who says which node coordinates. static: the first one of [nodes], always. "
			"quorum: one that a majority of three nodes elects, or of five, so that "
			"training goes on without any one of them. etcd: one that an etcd cluster "
			"knows, see etcd_endpoints."},
	{.section = "cluster", .name = "election_timeout", .type = TABLE_DURATION,
		FIELD(election_timeout_ns), .min = S / 20, .max = 60 * S, .fallback = "500ms",
		.shared = true,
		.help = "quorum: a node that has not heard of a coordinator for this long wants to "
			"be it. etcd: the time of a node's lease, in whole seconds and never below "
			"what etcd allows (2s)."},
	{.section = "cluster", .name = "etcd_endpoints", .type = TABLE_URLS, FIELD(etcd_endpoints),
		.max = PATH_BYTES_MAX, .otherwise = "none", .offered = true,
		.help = "membership = etcd: the members of one etcd cluster, up to 16 of them, as "
			"in http://10.0.0.1:2379,http://10.0.0.2:2379. It has to compact its "
			"history by itself (--auto-compaction-retention)."},
	{.section = "cluster", .name = "etcd_ca", .type = TABLE_PATH, FIELD(etcd_ca),
		.max = PATH_BYTES_MAX, .otherwise = "the authorities of the system",
		.help = "The file in PEM with who signs the certificates of etcd's members."},
	{.section = "cluster", .name = "etcd_cert", .type = TABLE_PATH, FIELD(etcd_cert),
		.max = PATH_BYTES_MAX, .otherwise = "none",
		.help = "The file in PEM with the certificate that the daemon shows to etcd."},
	{.section = "cluster", .name = "etcd_key", .type = TABLE_PATH, FIELD(etcd_key),
		.max = PATH_BYTES_MAX, .otherwise = "none",
		.help = "The file in PEM with the key of etcd_cert, if it is not in that file, too."},
	{.section = "cluster", .name = "heartbeat_timeout", .type = TABLE_DURATION,
		FIELD(heartbeat_timeout_ns), .min = S / 10, .max = 3600 * S, .fallback = "5s",
		.shared = true,
		.help = "A node that has been silent for this long is out of the step, and so is "
			"a trainer that is connected over TCP. One on the node's own socket is "
			"waited for as `stragglers` says."},
	{.section = "cluster", .name = "lost_timeout", .type = TABLE_DURATION,
		FIELD(lost_timeout_ns), .min = S / 10, .max = 86400 * S, .fallback = "120s",
		.shared = true,
		.help = "A node that has been away for this long is given up, and the models that "
			"it holds chunks of are LOST, but for those with nvme_durable = step. It "
			"has to be longer than a watchdog and a start together."},
	{.section = "cluster", .name = "step_timeout", .type = TABLE_DURATION,
		FIELD(step_timeout_ns), .min = S / 10, .max = 86400 * S, .fallback = "300s",
		.shared = true,
		.help = "A step that has been undecided for this long is given up. The error says "
			"who is missing."},
};
/* clang-format on */

static const struct table table = {rows, NR(rows)};

const struct table *config_options(void)
{
	static_assert(NR(rows) <= CONFIG_OPTIONS_MAX, "the loader has room for each option");
	return &table;
}
