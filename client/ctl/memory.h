/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h: bytes that training takes per device and per node: data parallel, ZeRO, DeepSpeed's own
 * estimates, and this system. */
#ifndef SHARD_CTL_MEMORY_H
#define SHARD_CTL_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

struct memory_spec {
	uint64_t params, layer;           /* elements: of the model; of its largest layer */
	uint32_t tensors;                 /* at least 1 */
	uint32_t ranks, nodes, local;     /* local: trainers on one node */
	uint32_t image_bytes, grad_bytes; /* per element: 2 or 4 */
	uint32_t states;                  /* moments of the optimizer */
	uint32_t chunk_elems;             /* power of two */
	bool huge;                        /* mappings end on a huge page */
	uint32_t staleness;               /* 0 or 1: so many more images and halves of arenas */
};

/* stage 0: data parallel. As the ZeRO paper counts: 16-bit parameters have an fp32 master beside
 * their moments. */
double memory_zero(const struct memory_spec *m, int stage);
double memory_zeropp(
	const struct memory_spec *m); /* ZeRO-3, and a second copy of the parameters in each node */

enum memory_offload {
	OFFLOAD_NONE,
	OFFLOAD_OPTIMIZER,
	OFFLOAD_PARAMS
}; /* PARAMS: the optimizer too */

/* What DeepSpeed's estimate_zero2_... and estimate_zero3_model_states_mem_needs answer: 16-bit
 * parameters and Adam, buffers of half as much again. init: zero.Init() builds the model sharded
 * (stage 3). host is bytes per node. */
void memory_deepspeed(const struct memory_spec *m, int stage, enum memory_offload offload,
		      bool init, double *host, double *device);

/* Items as the daemon's budget has them, for the node that holds most. */
enum memory_item {
	MEMORY_STATE,
	MEMORY_IMAGE,
	MEMORY_ARENAS,
	MEMORY_SLOTS,
	MEMORY_SUMS,
	MEMORY_FIXED,
	MEMORY_ITEMS
};

struct memory_node {
	uint64_t bytes[MEMORY_ITEMS], total;
	uint64_t chunks, held_elems;
	uint64_t stale; /* of total: what staleness costs */
};

const char *memory_item_name(enum memory_item item);
void memory_node(const struct memory_spec *m, struct memory_node *out);
/* The trainer's device with this system: no optimizer state at any stage (1 to 3). A window is one
 * layer's gradients. */
double memory_device(const struct memory_spec *m, int stage);

/* Traffic of one step. */
double memory_traffic_zero(const struct memory_spec *m,
			   int stage); /* bytes of payload per rank; stage 0: all-reduce */
double memory_traffic_zeropp(const struct memory_spec *m); /* ZeRO++: of that, across nodes */
double memory_traffic_node(
	const struct memory_spec *m); /* this system: bytes that a node sends to others */
uint32_t memory_update_bytes(
	const struct memory_spec *m); /* read and written per parameter by one fused update */

#endif
