/* SPDX-License-Identifier: Apache-2.0 */
/* lanes.h: a lane does one job at a time, on a stream of its own. The thread of the device calls
 * everything here, with the context current. A job whose memory is not pinned, or whose chunk is
 * large, is done in pieces, one after the other. A call that fails has made the device lost. */
#ifndef SHARD_GPU_LANES_H
#define SHARD_GPU_LANES_H

#include "gpu/device.h"

#include "cuda/driver.h"

enum { GPU_LANES = 4, GPU_LANE_OUTS_MAX = 16 };

enum gpu_add_phase { ADD_UP, ADD_SUM, ADD_DOWN }; /* sums.c: what is to be queued next. */

struct gpu_lane {
	cu_stream stream;
	cu_event event; /* Behind the newest piece. */
	cu_ptr device;  /* Of the device: a gradient, an image, and tables. */
	uint8_t *host;  /* Pinned: what is read back, tables, and a buffer for copies. */
	uint32_t slot;  /* Whose job it has. */
	/* How far the job has come: copies and bytes of the next one, or elements. */
	uint32_t copy;
	uint64_t at;
	enum gpu_add_phase phase;
	uint32_t segment; /* The next one that is to be summed. */
	/* The piece that is under way. */
	uint64_t piece;      /* Elements of an update. */
	uint8_t *image_from; /* Where an image waits in the buffer. NULL: it needs no copy. */
	bool counts;         /* A kernel has counted. */
	uint32_t summed;     /* Segments in the tables of a kernel that has summed. */
	uint32_t outs_nr;
	struct gpu_lane_out { /* What is to be copied from the buffer when it has come. */
		void *to;
		const void *from;
		uint64_t bytes;
	} out[GPU_LANE_OUTS_MAX];
};

uint64_t gpu_lane_host_bytes(void); /* Of .host. */
enum shard_status gpu_lane_init(struct gpu *g, struct gpu_lane *l, struct err *e);
void gpu_lane_deinit(struct gpu *g, struct gpu_lane *l);
/* Begins a job. False: a call of the driver failed. */
bool gpu_lane_begin(struct gpu *g, struct gpu_lane *l, uint32_t slot);
/* Waits for the piece that is under way, and begins the next one. *more: there is one. False as
 * above. */
bool gpu_lane_go_on(struct gpu *g, struct gpu_lane *l, bool *more);
/* After a failure: waits until nothing of the lane runs any more, as far as that can be known. */
void gpu_lane_settle(struct gpu *g, struct gpu_lane *l);

/* --- between lanes.c and sums.c: false, and the device is lost --- */

bool gpu_lane_ok(struct gpu *g, cu_result rc, const char *call);
bool gpu_lane_to_device(struct gpu *g, struct gpu_lane *l, cu_ptr to, const void *from,
			uint64_t bytes);
bool gpu_lane_to_host(struct gpu *g, struct gpu_lane *l, void *to, cu_ptr from, uint64_t bytes);
/* Queues as many of the copies, from .copy and .at of the lane on, as the buffer takes from *used
 * on. */
bool gpu_lane_copies(struct gpu *g, struct gpu_lane *l, const struct gpu_copy *copies, uint32_t nr,
		     bool in, uint64_t *used);
#define GPU_LANE_TABLES ((uint64_t)512 << 10) /* Bytes of tables, pinned and of the device. */
void *gpu_lane_tables(const struct gpu_lane *l);
cu_ptr gpu_lane_tables_at(const struct gpu_lane *l);

/* In sums.c. Queues the next piece of a sum. */
bool gpu_add_go(struct gpu *g, struct gpu_lane *l, struct gpu_add *a);
/* The piece has come. True: it was the last one. */
bool gpu_add_take(const struct gpu_lane *l, struct gpu_add *a);
/* Before the first piece. */
void gpu_add_begin(struct gpu_lane *l, struct gpu_add *a);

#endif
