/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h: the bytes that training takes per device and per node: with data parallelism, with
 * ZeRO, by DeepSpeed's own estimates, and with this system. */
#ifndef SHARD_CTL_MEMORY_H
#define SHARD_CTL_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

struct memory_spec {
	uint64_t params, layer;           /* Elements of the model and of its largest layer. */
	uint32_t tensors;                 /* At least 1. */
	uint32_t ranks, nodes, local;     /* `local` is the number of trainers on one node. */
	uint32_t image_bytes, grad_bytes; /* Per element: 2 or 4. */
	uint64_t wide;        /* Elements with 4 bytes in the image although image_bytes is 2. */
	uint32_t states;      /* Number of moments of the optimizer. */
	uint32_t chunk_elems; /* A power of two. */
	uint32_t replicas;    /* Nodes that hold each chunk: 1 to nodes. */
	bool huge;            /* Mappings end on a huge page. */
	uint32_t staleness;   /* 0 or 1: the number of extra images and arena halves. */
	uint32_t nvme_share;  /* Percent of a node's chunks on its disk. 0: tier = ram. */
	uint32_t nvme_cache;  /* So many of those are in memory at a time. */
	bool nvme_durable;    /* Each step outlives a loss of power. */
	uint32_t gpu_share;   /* Percent of a node's chunks on its GPUs. Not beside nvme_share. */
	bool gpu_direct;      /* Other nodes write gradients into their memory. */
	/* Of grad_codec and image_codec, with their other keys as they are by default. 0: none. */
	uint32_t codec_bits, image_bits;
};

/* Counts as the ZeRO paper does: 16-bit parameters have an fp32 master beside their moments. Stage
 * 0 is data parallelism. */
double memory_zero(const struct memory_spec *m, int stage);
double memory_zeropp(
	const struct memory_spec *m); /* ZeRO-3 with a second copy of parameters in each node. */

/* OFFLOAD_PARAMS offloads the optimizer, too. */
enum memory_offload { OFFLOAD_NONE, OFFLOAD_OPTIMIZER, OFFLOAD_PARAMS };

/* What DeepSpeed's estimate_zero2_... and estimate_zero3_model_states_mem_needs answer, for 16-bit
 * parameters, Adam, and buffers of half as much again. init says that zero.Init() builds the model
 * sharded (stage 3). *host is in bytes per node. */
void memory_deepspeed(const struct memory_spec *m, int stage, enum memory_offload offload,
		      bool init, double *host, double *device);

/* The items of the daemon's budget, for the node that holds most. */
enum memory_item {
	MEMORY_STATE,
	MEMORY_IMAGE,
	MEMORY_ARENAS,
	MEMORY_SLOTS,
	MEMORY_SUMS,
	MEMORY_CODES,
	MEMORY_FIXED,
	MEMORY_ITEMS
};

struct memory_node {
	uint64_t bytes[MEMORY_ITEMS], total;
	uint64_t chunks, held_elems;
	uint64_t stale; /* The part of total that staleness costs. */
	/* On the node's disk, and what a step writes there. 0: tier is not nvme. */
	uint64_t disk, disk_step;
	/* On its GPU, and what each further one takes beside its part of that. 0: tier is not
	 * gpu. */
	uint64_t device, device_more;
	/* The same for the gradients that other nodes write there by RDMA. 0: there are none. */
	uint64_t device_direct;
	uint64_t device_host; /* Of main memory, for the buffers of each GPU. */
};

const char *memory_item_name(enum memory_item item);
void memory_node(const struct memory_spec *m, struct memory_node *out);
/* Bytes on the trainer's device with this system, which has no optimizer state there at any stage
 * (1 to 3). Gradients that need not stay take one layer. Elements that are wide in the image always
 * stay. */
double memory_device(const struct memory_spec *m, int stage);

/* Bytes of payload per rank. Stage 0 is an all-reduce. */
double memory_traffic_zero(const struct memory_spec *m, int stage);
/* The same for ZeRO++, and only what crosses nodes. */
double memory_traffic_zeropp(const struct memory_spec *m);
double memory_traffic_node(
	const struct memory_spec *m); /* Bytes that a node of this system sends to other nodes. */
uint32_t memory_update_bytes(
	const struct memory_spec *m); /* Read and written per parameter by one fused update. */

#endif
