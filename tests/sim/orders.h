/* SPDX-License-Identifier: Apache-2.0 */
/* orders.h: what the coordinator's shell was asked to do, and the checkpoint to which it can come
 * back. */
#ifndef SIM_ORDERS_H
#define SIM_ORDERS_H

#include "sim/cluster.h"

struct sim_checkpoint { /* The newest one, on a disk that all nodes share. */
	bool has;
	uint64_t step, weights[CHUNKS];
	struct core_restored restored;
};

struct sim_load {       /* The coordinator has the weights of a generation written. */
	bool on, reads; /* reads: from the newest checkpoint. */
	uint32_t number, generation;
	uint64_t start, until; /* start: of the coordinator's process. */
	uint32_t link[NODES];
	enum { LOAD_ASKED, LOAD_READ, LOAD_CONFIRMED } part[NODES];
};

struct sim_save { /* The save of the held step, as far as it has come. */
	struct core_id id;
	uint64_t start, weights[CHUNKS];
	uint32_t link[NODES];
	bool saved[NODES];
};

struct sim_orders {                        /* What the coordinator's shell was asked to do. */
	bool on, script, hold, held, told; /* told: the coordinator knows of .newest. */
	bool rolled;                       /* It rolls back, or will do so soon. */
	uint64_t hold_since, hold_until;
	struct core_id held_id;
	struct sim_checkpoint newest;
	struct core_tune tune;  /* The last one sent. */
	struct core_id resumed; /* If it was a resume: the record that diverged. */
	/* The number of the last answered tune. Each tune has an lr of its own, which gives its
	 * number. */
	uint64_t tuned_lr;
	uint64_t tunes_nr;
	struct core_id kicked;
	uint32_t phase, helds, tuneds, restores; /* phase: of the script. */
};

#endif
