/* SPDX-License-Identifier: Apache-2.0 */
/* data.h: what the files of data/ share. It cuts chunks into parts for the wire, names the frames
 * of a model, and counts the readers of an attempt's buffers. Everything is called on the loop
 * thread. Only the two functions on parts may be called from any thread. */
#ifndef SHARD_DATA_H
#define SHARD_DATA_H

#include <stdint.h>

struct core_id;
struct model;
struct model_flow;
struct wire_head;

/* Parts of a chunk on the wire: how many there are, and the bytes of one. Past the last part these
 * are 0. */
uint32_t data_parts(const struct model *m, uint32_t chunk, uint32_t elem_bytes);
uint32_t data_part_bytes(const struct model *m, uint32_t chunk, uint32_t elem_bytes, uint32_t part);
/* Fills the header of a frame of the model. id is that of the attempt or record of the frame, or
 * NULL. */
void data_head(const struct model *m, struct wire_head *h, uint16_t op, const struct core_id *id);
/* Adds bytes that came from another node. 0: only a header came so far. */
void data_flow_add(struct model_flow *f, uint32_t bytes);
/* How many jobs of one kind a model may have at its tier, so that the steps of other models find
 * room in the queue. */
uint32_t data_jobs_max(const struct model *m);
/* A job or frame that read the buffers of an attempt (m->attempt.busy) is over. */
void data_release(struct model *m);

#endif
