/* SPDX-License-Identifier: Apache-2.0 */
/* orders.h: what the coordinator's shell was asked to do, and the checkpoint it can come back to. */
#ifndef SIM_ORDERS_H
#define SIM_ORDERS_H

#include "sim/cluster.h"

struct sim_checkpoint { /* the newest one, on a disk that all nodes share */
	bool has;
	uint64_t step, weights[CHUNKS];
	struct core_restored restored;
};

struct sim_orders {                        /* what the coordinator's shell was asked to do */
	bool on, script, hold, held, told; /* told: the coordinator knows of .newest */
	bool rolled;                       /* back, or soon */
	uint64_t hold_since, hold_until;
	struct core_id held_id;
	struct sim_checkpoint newest;
	struct core_tune tune; /* the last one sent */
	uint64_t tuned_lr;     /* each tune has an lr of its own: the number of the last one answered */
	uint64_t tunes_nr;
	struct core_id kicked;
	uint32_t phase, helds, tuneds, restores; /* phase: of the script */
};

#endif
