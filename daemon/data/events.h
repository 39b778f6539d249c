/* SPDX-License-Identifier: Apache-2.0 */
/* events.h: what the files of data/, which move the bytes of a step, tell the layer that drives the
 * model. server.c gives the table once, before there is a model. All calls are on the loop thread.
 * They may come from any function of data/ that is not const, so the implementation queues what
 * would call back (model_event() does). None may free the model. */
#ifndef SHARD_DATA_EVENTS_H
#define SHARD_DATA_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

struct model;

struct data_events {
	/* The gradient of a chunk that is held here is reduced, and a vote for it may leave. */
	void (*staged)(struct model *m, uint32_t chunk);
	/* No job and no frame reads arenas, slots or sums of an attempt any more. */
	void (*drained)(struct model *m);
	/* No transfer of an attempt is leaving any more. The layer calls apply_maybe_done(). */
	void (*left)(struct model *m);
	/* The bytes of a contribution in the attempt in hand, or of a reduced gradient, do not
	 * match their checksum. */
	void (*damaged)(struct model *m, uint16_t node, uint32_t chunk);
	/* What the local ranks pushed in the attempt in hand does not fit together, because of why.
	 * It comes for a frame of a trainer only. session: one of these ranks. */
	void (*differ)(struct model *m, uint64_t session, const char *why);
	/* The record in hand is applied here, and its image parts and transfers have left. */
	void (*applied)(struct model *m);
	/* This chunk of the image of that step keeps trainers here waiting. late = false: no chunk
	 * does any more. */
	void (*late)(struct model *m, bool late, uint32_t chunk, uint64_t step);
	/* New chunks are ready in the image for the trainers that map it. */
	void (*published)(struct model *m);
	/* Weights or an image chunk can be read that could not be read before. */
	void (*readable)(struct model *m);
	/* This node catches up, and all copies and images are those of the last record. */
	void (*learned)(struct model *m);
	/* Every chunk of the newest image is here. */
	void (*whole)(struct model *m);
};

#endif
