/* SPDX-License-Identifier: Apache-2.0 */
/* powerlife.h: lives of a tier whose file outlives losses of power, on the disk of powerdisk.h. The
 * optimizer's numbers stay whole, so that plain sums say what each chunk has to be. Failures are
 * cmocka's. */
#ifndef SHARD_TESTS_POWERLIFE_H
#define SHARD_TESTS_POWERLIFE_H

#include "lib/handexec.h"
#include "lib/powerdisk.h"
#include "store/tier_nvme.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	PL_CE = 1024,
	PL_CHUNKS = 9,
	PL_SHORT = 100, /* So much the last chunk is shorter. */
	PL_ID = 77,
	PL_PAYLOAD = 5000,
};

struct power_ref { /* What every chunk has to be. */
	uint64_t step;
	float weight[PL_CHUNKS * PL_CE], momentum[PL_CHUNKS * PL_CE];
};

void pl_ref_reset(struct power_ref *r);
void pl_ref_to(struct power_ref *r, uint64_t step);

struct powerlife {
	struct layout *layout;
	uint16_t owner[PL_CHUNKS];
	struct store *store;
	struct hand hand;
	struct tier *tier;
	struct ring *ring;
	uv_loop_t loop;
	uint8_t *super;
	struct optim_args args;
	uint8_t zero[PL_CHUNKS];
	float grad[PL_CHUNKS * PL_CE];
	uint32_t next, done, held, lost, events;
	bool committed;
};

void pl_new_file(void); /* For pd. */
struct powerlife *pl_without_tier(void);
enum shard_status pl_open_tier(struct powerlife *l, const struct super_found *f, struct err *e);
/* f: what its file has. .at NULL: nothing. */
struct powerlife *pl_begin(const struct super_found *f);
bool pl_something(struct powerlife *l); /* Happens. False: there is nothing. */
/* What is in hand comes to its end, on a copy of the platter that nobody looks at. Frees it. */
void pl_end(struct powerlife *l);
/* Between two steps the process is killed, and the next one has its memory, with some chunks that
 * were not written. What the disk has in hand comes to its end, and nobody hears of it. */
void pl_restart(struct powerlife *l);
void pl_kill(struct powerlife *l); /* At any moment, and its memory is gone. Frees it. */

/* A step, in parts: pl_step_some() does something for it. The step is applied when .done is
 * PL_CHUNKS. Then .committed says whether the disk has it. */
void pl_step_begin(struct powerlife *l, uint64_t nr);
void pl_step_some(struct powerlife *l);
void pl_payload(uint8_t to[PL_PAYLOAD], uint64_t step);
void pl_commit_begin(struct powerlife *l, uint64_t step);
/* Both at once. False: the power is gone, at that event. */
bool pl_step(struct powerlife *l, uint64_t nr, uint32_t until);
bool pl_commit(struct powerlife *l, uint64_t step, uint32_t until);

void pl_fill(struct powerlife *l, const struct power_ref *r);
/* How many chunks are not what the reference says. */
uint32_t pl_wrong(struct powerlife *l, const struct power_ref *r);

#endif
