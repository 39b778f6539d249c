/* SPDX-License-Identifier: Apache-2.0 */
/* lanes.h: a lane does one job at a time, on a stream of its own. The thread of the device calls
 * everything here, with the context current. A job whose memory is not pinned, or whose chunk is
 * large, is done in pieces, one after the other. A call that fails has made the device lost. */
#ifndef SHARD_GPU_LANES_H
#define SHARD_GPU_LANES_H

#include "gpu/device.h"

#include "cuda/driver.h"

enum { GPU_LANES = 4, GPU_LANE_OUTS_MAX = 16 };

struct gpu_lane {
	cu_stream stream;
	cu_event event; /* Behind the newest piece. */
	cu_ptr device;  /* Of the device: a gradient, an image, and tables. */
	uint8_t *host;  /* Pinned: what is read back, tables, and a buffer for copies. */
	uint32_t slot;  /* Whose job it has. */
	/* How far the job has come: copies and bytes of the next one, or elements. */
	uint32_t copy;
	uint64_t at;
	/* The piece that is under way. */
	uint64_t piece;      /* Elements of an update. */
	uint8_t *image_from; /* Where an image waits in the buffer. NULL: it needs no copy. */
	bool counts;         /* A kernel has counted. */
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

#endif
