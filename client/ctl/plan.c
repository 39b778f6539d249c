/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl plan` says what a model takes per device and per node before anything is started: with
 * data parallelism, with ZeRO, by DeepSpeed's estimates, and with this system. Happy path: the
 * options become a struct memory_spec, memory.c computes the figures, and they are printed as a
 * table or JSON. No daemon is asked. It fails on an option that is not possible (exit 2), and the
 * text says what may be chosen. */
#include "ctl/ctl.h"
#include "ctl/json.h"
#include "ctl/memory.h"

#include "base/check.h"
#include "wire/dtype.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum {
	PARAMS,
	RANKS,
	NODES,
	LOCAL,
	DTYPE,
	WIDE,
	GRAD_DTYPE,
	OPTIMIZER,
	CHUNK_ELEMS,
	REPLICAS,
	LAYER,
	TENSORS,
	HUGE,
	STALENESS,
	CODEC,
	IMAGE_CODEC,
	NVME_SHARE,
	NVME_CACHE,
	NVME_DURABLE,
	GPU_SHARE,
	GPU_DIRECT
};

const struct argp_option ctl_plan_options[] = {
	{"params", CTL_KEY + PARAMS, "N", 0, "parameters, as in 7.5B or 350M", 0},
	{"ranks", CTL_KEY + RANKS, "N", 0,
	 "trainers, one device each (default: nodes times local, else 1)", 0},
	{"nodes", CTL_KEY + NODES, "N", 0, "nodes, one shardd each (default: 1)", 0},
	{"local", CTL_KEY + LOCAL, "N", 0,
	 "trainers on one node (default: ranks over nodes, rounded up)", 0},
	{"dtype", CTL_KEY + DTYPE, "TYPE", 0, "of parameters: bf16, fp16 or fp32 (default: bf16)",
	 0},
	{"fp32-params", CTL_KEY + WIDE, "N", 0,
	 "parameters that are fp32 whatever --dtype is, as norms (default: none)", 0},
	{"grad-dtype", CTL_KEY + GRAD_DTYPE, "TYPE", 0, "of gradients (default: as --dtype)", 0},
	{"optimizer", CTL_KEY + OPTIMIZER, "NAME", 0,
	 "adamw, adam, sgd, adagrad or lion (default: adamw)", 0},
	{"chunk-elems", CTL_KEY + CHUNK_ELEMS, "N", 0, "a power of two from 1024 on (default: 1Mi)",
	 0},
	{"replicas", CTL_KEY + REPLICAS, "N", 0,
	 "nodes that hold each chunk (default: 2, or 1 on one node)", 0},
	{"layer", CTL_KEY + LAYER, "N", 0,
	 "parameters of the largest layer (default: a 32nd of all)", 0},
	{"tensors", CTL_KEY + TENSORS, "N", 0, "tensors of the model (default: 1)", 0},
	{"huge-pages", CTL_KEY + HUGE, "yes|no", 0, "does shardd use them? (default: yes)", 0},
	{"max-staleness", CTL_KEY + STALENESS, "0|1", 0,
	 "1: two images and arenas, for the delayed update (default: 0)", 0},
	{"grad-codec", CTL_KEY + CODEC, "NAME", 0,
	 "what gradients travel as between nodes: none, int8 or int4 (default: none)", 0},
	{"image-codec", CTL_KEY + IMAGE_CODEC, "NAME", 0,
	 "what images travel as between nodes: none, int8 or int4 (default: none)", 0},
	{"nvme-share", CTL_KEY + NVME_SHARE, "PERCENT", 0,
	 "tier = nvme: of a node's chunks, so many are on its disk (default: none)", 0},
	{"nvme-cache", CTL_KEY + NVME_CACHE, "N", 0,
	 "so many of them are in memory at a time (default: 64)", 0},
	{"nvme-durable", CTL_KEY + NVME_DURABLE, "off|step", 0,
	 "step: each step outlives a loss of power, and writes all of them (default: off)", 0},
	{"gpu-share", CTL_KEY + GPU_SHARE, "PERCENT", 0,
	 "tier = gpu: of a node's chunks, so many are on its GPUs (default: none)", 0},
	{"gpu-direct", CTL_KEY + GPU_DIRECT, "yes|no", 0,
	 "do other nodes write gradients into these GPUs by RDMA? (default: no)", 0},
	{0},
};

static const struct {
	const char *name;
	uint32_t states;
} optimizers[] = {{"adamw", 2}, {"adam", 2}, {"sgd", 1}, {"adagrad", 1}, {"lion", 1}};

struct row {
	const char *name, *key;
	int stage; /* 0 is data parallelism. */
	enum memory_offload offload;
	bool init;
};

static const struct row zero_rows[] = {
	{"data parallel", "data_parallel", 0, OFFLOAD_NONE, false},
	{"ZeRO-1", "zero1", 1, OFFLOAD_NONE, false},
	{"ZeRO-2", "zero2", 2, OFFLOAD_NONE, false},
	{"ZeRO-3", "zero3", 3, OFFLOAD_NONE, false},
};

static const struct row deepspeed_rows[] = {
	{"ZeRO-2, optimizer offloaded", "zero2_offload", 2, OFFLOAD_OPTIMIZER, false},
	{"ZeRO-2", "zero2", 2, OFFLOAD_NONE, false},
	{"ZeRO-3, all offloaded, zero.Init", "zero3_offload_params_init", 3, OFFLOAD_PARAMS, true},
	{"ZeRO-3, all offloaded", "zero3_offload_params", 3, OFFLOAD_PARAMS, false},
	{"ZeRO-3, optimizer offloaded, zero.Init", "zero3_offload_init", 3, OFFLOAD_OPTIMIZER,
	 true},
	{"ZeRO-3, optimizer offloaded", "zero3_offload", 3, OFFLOAD_OPTIMIZER, false},
	{"ZeRO-3, zero.Init", "zero3_init", 3, OFFLOAD_NONE, true},
	{"ZeRO-3", "zero3", 3, OFFLOAD_NONE, false},
};

/* --- options --- */

static bool take_count(const struct ctl_options *o, int option, uint64_t max, uint64_t *to)
{
	if (!o->value[option] || ctl_count(o->value[option], max, to))
		return true;
	ctl_fail(o, CTL_USAGE,
		 "plan: --%s %s: choose a number from 1 to %llu, as in 8, 350M or 7.5B",
		 ctl_plan_options[option].name, o->value[option], (unsigned long long)max);
	return false;
}

static bool take_dtype(const struct ctl_options *o, int option, uint32_t *bytes)
{
	enum shard_dtype dt;

	if (!o->value[option])
		return true;
	if (!dtype_parse(o->value[option], &dt)) {
		ctl_fail(o, CTL_USAGE, "plan: --%s %s: choose bf16, fp16 or fp32",
			 ctl_plan_options[option].name, o->value[option]);
		return false;
	}
	*bytes = (uint32_t)dtype_bytes(dt);
	return true;
}

static bool take_optimizer(const struct ctl_options *o, const char *name, uint32_t *states)
{
	for (size_t i = 0; i < NR(optimizers); i++) {
		if (strcmp(optimizers[i].name, name) == 0) {
			*states = optimizers[i].states;
			return true;
		}
	}
	ctl_fail(o, CTL_USAGE, "plan: --optimizer %s: choose adamw, adam, sgd, adagrad or lion",
		 name);
	return false;
}

static bool take_world(const struct ctl_options *o, struct memory_spec *m)
{
	uint64_t ranks = 0, nodes = 1, local = 0;

	if (!take_count(o, RANKS, 1u << 20, &ranks) || !take_count(o, NODES, 1u << 16, &nodes) ||
	    !take_count(o, LOCAL, 1u << 16, &local))
		return false;
	if (ranks == 0)
		ranks = nodes * (local ? local : 1);
	if (local == 0)
		local = (ranks + nodes - 1) / nodes;
	if (ranks > nodes * local || ranks < nodes || ranks < local || ranks > 1u << 20) {
		ctl_fail(o, CTL_USAGE,
			 "plan: %llu ranks on %llu nodes with at most %llu each: choose numbers "
			 "that agree",
			 (unsigned long long)ranks, (unsigned long long)nodes,
			 (unsigned long long)local);
		return false;
	}
	if (m->replicas == 0)
		m->replicas = nodes > 1 ? 2 : 1; /* As the daemon does. */
	if (m->replicas > nodes) {
		ctl_fail(o, CTL_USAGE,
			 "plan: %u replicas on %llu nodes: a node holds at most one copy of a "
			 "chunk, "
			 "so choose at most %llu",
			 m->replicas, (unsigned long long)nodes, (unsigned long long)nodes);
		return false;
	}
	m->ranks = (uint32_t)ranks;
	m->nodes = (uint32_t)nodes;
	m->local = (uint32_t)local;
	return true;
}

static bool take_sizes(const struct ctl_options *o, struct memory_spec *m)
{
	uint64_t chunk = 1 << 20, tensors = 1, replicas = 0;

	if (!o->value[PARAMS]) {
		ctl_fail(o, CTL_USAGE, "plan: write --params N, as in --params 7.5B");
		return false;
	}
	if (!take_count(o, PARAMS, 1ull << 44, &m->params) ||
	    !take_count(o, CHUNK_ELEMS, 1u << 30, &chunk) ||
	    !take_count(o, REPLICAS, 64, &replicas) || !take_count(o, TENSORS, 1u << 20, &tensors))
		return false;
	m->layer = (m->params + 31) / 32;
	if (!take_count(o, LAYER, m->params, &m->layer) ||
	    !take_count(o, WIDE, m->params, &m->wide))
		return false;
	if (chunk < 1024 || (chunk & (chunk - 1)) != 0) {
		ctl_fail(o, CTL_USAGE, "plan: --chunk-elems %s: choose a power of two from 1024 on",
			 o->value[CHUNK_ELEMS]);
		return false;
	}
	m->replicas = (uint32_t)replicas; /* 0: take_world() chooses. */
	m->chunk_elems = (uint32_t)chunk;
	m->tensors = (uint32_t)tensors;
	return true;
}

static bool take_codec(const struct ctl_options *o, const char *name, const char *value,
		       uint32_t *bits)
{
	value = value != NULL ? value : "none";
	*bits = strcmp(value, "int8") == 0 ? 8 : strcmp(value, "int4") == 0 ? 4 : 0;
	if (*bits == 0 && strcmp(value, "none") != 0)
		ctl_fail(o, CTL_USAGE, "plan: %s %s: choose none, int8 or int4", name, value);
	return *bits > 0 || strcmp(value, "none") == 0;
}

static bool take_tier(const struct ctl_options *o, struct memory_spec *m)
{
	const char *direct = o->value[GPU_DIRECT] ? o->value[GPU_DIRECT] : "no";
	uint64_t share = 0, cache = 64, gpu = 0;

	if (!take_count(o, NVME_SHARE, 100, &share) || !take_count(o, NVME_CACHE, 16384, &cache) ||
	    !take_count(o, GPU_SHARE, 100, &gpu))
		return false;
	if (share > 0 && gpu > 0) {
		ctl_fail(o, CTL_USAGE,
			 "plan: --nvme-share and --gpu-share: a model has one tier beside memory");
		return false;
	}
	m->gpu_share = (uint32_t)gpu;
	m->gpu_direct = strcmp(direct, "yes") == 0;
	if (!m->gpu_direct && strcmp(direct, "no") != 0) {
		ctl_fail(o, CTL_USAGE, "plan: --gpu-direct %s: choose yes or no", direct);
		return false;
	}
	if (m->gpu_direct && gpu == 0) {
		ctl_fail(o, CTL_USAGE, "plan: --gpu-direct yes takes --gpu-share");
		return false;
	}
	m->nvme_share = (uint32_t)share;
	m->nvme_cache = (uint32_t)cache;
	m->nvme_durable =
		o->value[NVME_DURABLE] != NULL && strcmp(o->value[NVME_DURABLE], "step") == 0;
	if (o->value[NVME_DURABLE] != NULL && !m->nvme_durable &&
	    strcmp(o->value[NVME_DURABLE], "off") != 0) {
		ctl_fail(o, CTL_USAGE, "plan: --nvme-durable %s: choose off or step",
			 o->value[NVME_DURABLE]);
		return false;
	}
	if (m->nvme_durable && share < 100) {
		ctl_fail(o, CTL_USAGE, "plan: --nvme-durable step takes --nvme-share 100");
		return false;
	}
	if (cache >= 4)
		return true;
	ctl_fail(o, CTL_USAGE, "plan: --nvme-cache %s: choose a number from 4 to 16384",
		 o->value[NVME_CACHE]);
	return false;
}

static bool take_all(const struct ctl_options *o, struct memory_spec *m)
{
	const char *huge = o->value[HUGE] ? o->value[HUGE] : "yes";

	*m = (struct memory_spec){.image_bytes = 2, .states = 2, .huge = strcmp(huge, "yes") == 0};
	if (!m->huge && strcmp(huge, "no") != 0) {
		ctl_fail(o, CTL_USAGE, "plan: --huge-pages %s: choose yes or no", huge);
		return false;
	}
	if (o->value[STALENESS] && strcmp(o->value[STALENESS], "0") != 0) {
		m->staleness = 1;
		if (strcmp(o->value[STALENESS], "1") != 0) {
			ctl_fail(o, CTL_USAGE, "plan: --max-staleness %s: choose 0 or 1",
				 o->value[STALENESS]);
			return false;
		}
	}
	if (!take_codec(o, "--grad-codec", o->value[CODEC], &m->codec_bits) ||
	    !take_codec(o, "--image-codec", o->value[IMAGE_CODEC], &m->image_bits) ||
	    !take_tier(o, m) || !take_sizes(o, m) || !take_world(o, m) ||
	    !take_dtype(o, DTYPE, &m->image_bytes))
		return false;
	m->grad_bytes = m->image_bytes;
	m->wide = m->image_bytes < sizeof(float) ? m->wide : 0; /* Otherwise they are like all. */
	return take_dtype(o, GRAD_DTYPE, &m->grad_bytes) &&
	       (!o->value[OPTIMIZER] || take_optimizer(o, o->value[OPTIMIZER], &m->states));
}

/* --- as a table --- */

static void print_row(const char *name, double device, double host, double traffic)
{
	char d[CTL_NUMBER_BYTES], h[CTL_NUMBER_BYTES], t[CTL_NUMBER_BYTES];

	printf("  %-40s %12s %12s %12s\n", name, ctl_bytes(d, device),
	       host > 0 ? ctl_bytes(h, host) : "-", traffic > 0 ? ctl_bytes(t, traffic) : "-");
}

/* A daemon also sets memory aside for frames that wait to be sent. That is a sixteenth of its
 * budget, and at most this much with the default connections_max. */
static uint64_t with_queues(const struct memory_spec *m, uint64_t bytes)
{
	uint64_t most = (64ull << 20) + (256ull + m->nodes) * (256u << 10), share = bytes / 15 + 1;

	return bytes + (share < most ? share : most);
}

static void print_node(const struct memory_spec *m, const struct memory_node *n)
{
	char text[CTL_NUMBER_BYTES];
	const char *comma = "";

	printf("\na node's %s: ", ctl_bytes(text, (double)n->total));
	for (int i = 0; i < MEMORY_ITEMS; i++) {
		printf("%s%s %s", comma, memory_item_name((enum memory_item)i),
		       ctl_bytes(text, (double)n->bytes[i]));
		comma = ", ";
	}
	if (n->stale > 0)
		printf("; %s of it for max_staleness = 1", ctl_bytes(text, (double)n->stale));
	printf("\n%llu chunks of %u elements; the fullest node holds %llu parameters\n",
	       (unsigned long long)n->chunks, m->chunk_elems, (unsigned long long)n->held_elems);
	printf("one update reads and writes %u bytes per parameter: %s on that node\n",
	       memory_update_bytes(m),
	       ctl_bytes(text, (double)memory_update_bytes(m) * (double)n->held_elems));
	if (n->device > 0) {
		printf("on a node's GPU: %s",
		       ctl_bytes(text, (double)(n->device + n->device_direct)));
		if (n->device_direct > 0)
			printf(", %s of it for gradients that other nodes write there",
			       ctl_bytes(text, (double)n->device_direct));
		printf("; with several, they share it, and each further one takes %s more",
		       ctl_bytes(text, (double)n->device_more));
		printf("; each has buffers of %s in main memory\n",
		       ctl_bytes(text, (double)n->device_host));
	}
	if (n->disk > 0) {
		printf("on a node's disk: %s in nvme_dir", ctl_bytes(text, (double)n->disk));
		printf("; each step writes %s there, ", ctl_bytes(text, (double)n->disk_step));
		if (n->disk_step > 0)
			printf("and 1 PB of writes lasts %.0f steps\n",
			       1e15 / (double)n->disk_step);
		else
			printf("because all chunks are in memory at a time\n");
	}
	printf("in shardd.conf: memory = %lluMiB; model settings: max_world=%u local_world=%u\n",
	       (unsigned long long)((with_queues(m, n->total + n->device_host) + (1 << 20) - 1) >>
				    20),
	       m->ranks, m->local);
}

static void print_table(const struct memory_spec *m, const struct memory_node *n)
{
	static const char *const stages[] = {"", "shardd, trainer as ZeRO-1",
					     "shardd, trainer as ZeRO-2",
					     "shardd, trainer as ZeRO-3"};
	double host, device;

	printf("%llu parameters (largest layer %llu), %u ranks on %u nodes, %u on one; replicas = "
	       "%u\n\n",
	       (unsigned long long)m->params, (unsigned long long)m->layer, m->ranks, m->nodes,
	       m->local, m->replicas);
	printf("  %-40s %12s %12s %12s\n", "", "PER DEVICE", "PER NODE", "RANK'S STEP");
	for (size_t i = 0; i < NR(zero_rows); i++)
		print_row(zero_rows[i].name, memory_zero(m, zero_rows[i].stage), 0,
			  memory_traffic_zero(m, zero_rows[i].stage));
	print_row("ZeRO++ (across nodes)", memory_zeropp(m), 0, memory_traffic_zeropp(m));
	printf("DeepSpeed's own estimate (16-bit, Adam, buffers of half as much again)\n");
	for (size_t i = 0; i < NR(deepspeed_rows); i++) {
		const struct row *r = &deepspeed_rows[i];

		memory_deepspeed(m, r->stage, r->offload, r->init, &host, &device);
		print_row(r->name, device, host, 0);
	}
	printf("this system (traffic: of a node, to other nodes)\n");
	for (int s = 1; s <= 3; s++)
		print_row(stages[s], memory_device(m, s), (double)n->total, memory_traffic_node(m));
	print_node(m, n);
}

/* --- as JSON --- */

static json_t *row_json(const struct row *r, double device, double host)
{
	return json_pack("{s:s, s:f, s:f}", "name", r->key, "device_bytes", device, "node_bytes",
			 host);
}

static json_t *node_json(const struct memory_node *n)
{
	json_t *o = json_object();
	char key[32];

	for (int i = 0; i < MEMORY_ITEMS; i++) {
		snprintf(key, sizeof(key), "%s", memory_item_name((enum memory_item)i));
		for (char *at = key; (at = strchr(at, ' ')) != NULL;)
			*at = '_';
		json_object_set_new(o, key, json_integer((json_int_t)n->bytes[i]));
	}
	json_object_set_new(o, "total", json_integer((json_int_t)n->total));
	return o;
}

static void print_json(const struct memory_spec *m, const struct memory_node *n)
{
	json_t *zero = json_array(), *estimates = json_array(), *row, *root;
	double host, device;

	for (size_t i = 0; i < NR(zero_rows); i++) {
		row = row_json(&zero_rows[i], memory_zero(m, zero_rows[i].stage), 0);
		json_object_set_new(row, "rank_traffic_bytes",
				    json_real(memory_traffic_zero(m, zero_rows[i].stage)));
		json_array_append_new(zero, row);
	}
	for (size_t i = 0; i < NR(deepspeed_rows); i++) {
		const struct row *r = &deepspeed_rows[i];

		memory_deepspeed(m, r->stage, r->offload, r->init, &host, &device);
		json_array_append_new(estimates, row_json(r, device, host));
	}
	root = json_pack(
		"{s:I, s:I, s:i, s:i, s:i, s:i, s:o, s:f, s:o, s:{s:o, s:I, s:I, s:[f, f, "
		"f], s:f, s:i, s:I, s:I, s:I, s:I, s:I}}",
		"params", (json_int_t)m->params, "layer", (json_int_t)m->layer, "ranks",
		(int)m->ranks, "nodes", (int)m->nodes, "local", (int)m->local, "replicas",
		(int)m->replicas, "zero", zero, "zeropp_traffic_bytes", memory_traffic_zeropp(m),
		"deepspeed", estimates, "shardd", "node_bytes", node_json(n), "chunks",
		(json_int_t)n->chunks, "held_elems", (json_int_t)n->held_elems, "device_bytes",
		memory_device(m, 1), memory_device(m, 2), memory_device(m, 3), "node_traffic_bytes",
		memory_traffic_node(m), "update_bytes_per_param", (int)memory_update_bytes(m),
		"disk_bytes", (json_int_t)n->disk, "disk_step_bytes", (json_int_t)n->disk_step,
		"gpu_bytes", (json_int_t)n->device, "gpu_direct_bytes",
		(json_int_t)n->device_direct, "gpu_host_bytes", (json_int_t)n->device_host);
	ctl_print(root);
}

enum ctl_exit ctl_plan(const struct ctl_options *o)
{
	struct memory_spec m;
	struct memory_node n;

	if (!take_all(o, &m))
		return CTL_USAGE;
	memory_node(&m, &n);
	if (n.chunks > 1u << 20)
		return ctl_fail(
			o, CTL_USAGE,
			"plan: %llu chunks, at most 1048576 are possible: raise --chunk-elems",
			(unsigned long long)n.chunks);
	if (o->json)
		print_json(&m, &n);
	else
		print_table(&m, &n);
	return CTL_OK;
}
