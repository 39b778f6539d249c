/* SPDX-License-Identifier: Apache-2.0 */
/* data.h: what the files of data/ share. It cuts chunks into parts for the wire, checks gradients
 * that come in parts, names the frames of a model, and counts the readers of an attempt's buffers.
 * Everything is called on the loop thread. Only the two functions on parts may be called from any
 * thread. */
#ifndef SHARD_DATA_H
#define SHARD_DATA_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_id;
struct model;
struct model_flow;
struct parts;
struct wire_head;

/* The bytes of a chunk. Parts of so many bytes on the wire: how many there are, and the bytes of
 * one. Past the last part these are 0. */
uint64_t data_bytes(const struct model *m, uint32_t chunk, uint32_t elem_bytes);
uint32_t data_parts(uint64_t bytes);
/* Of the gradient of any chunk. The first chunk may be short, where there are image dtypes of
 * tensors. */
uint32_t data_parts_max(const struct model *m);
uint32_t data_part_bytes(uint64_t bytes, uint32_t part);
/* The version of a chunk of the newest image that is up to date. */
uint64_t data_version(const struct model *m);
/* Fills the header of a frame of the model. id is that of the attempt or record of the frame, or
 * NULL. */
void data_head(const struct model *m, struct wire_head *h, uint16_t op, const struct core_id *id);
/* SHARD_OK: the frame is of the attempt in hand. SHARD_STALE: of an older one, so it is dropped.
 * Any other status: the frame is refused with it. */
enum shard_status data_attempt(const struct model *m, const struct wire_head *h, struct err *e);
/* A gradient of a chunk comes in parts, whoever it is of. set has a row of chunks for each sender,
 * and absent [segments_nr] says of which segments nothing comes.
 * data_take_part(): the header of a part is here. The part must be in range and new.
 * data_part_came(): its body is whole.
 * data_mark_absent(): the sender names these tensors as absent.
 * data_check_whole(): the sender closes the chunk. Each part must be here, unless all of it is
 * absent, and no part may be landing. absent NULL: all parts travel. */
enum shard_status data_take_part(const struct model *m, const struct wire_head *h, uint64_t bytes,
				 struct parts *set, size_t row, struct err *e);
void data_part_came(const struct model *m, const struct wire_head *h, struct parts *set,
		    size_t row);
enum shard_status data_mark_absent(const struct model *m, uint32_t chunk, const uint32_t *tensor,
				   size_t tensors_nr, uint8_t *absent, struct err *e);
enum shard_status data_check_whole(const struct model *m, uint32_t chunk, uint64_t bytes,
				   const struct parts *set, size_t row, const uint8_t *absent,
				   struct err *e);
/* Is all of the part absent? Then it does not travel. */
bool data_part_absent(const struct model *m, uint32_t chunk, const uint8_t *absent, uint32_t part);
/* Adds bytes that came from another node. 0: only a header came so far. */
void data_flow_add(struct model_flow *f, uint32_t bytes);
/* How many jobs of one kind a model may have at its tier, so that the steps of other models find
 * room in the queue. */
uint32_t data_jobs_max(const struct model *m);
/* Frames of a model wait in queues, one for each connection to each node. There is room for all
 * nodes that there may be, and data_more_nodes() makes those of further nodes, as far as it can.
 * data_node_added(): the node has its link from now on. */
enum shard_status data_more_nodes(struct model *m, uint16_t nodes_nr, struct err *e);
void data_node_added(struct model *m, uint16_t node);
void data_free_queues(struct model *m);
/* A job or frame that read the buffers of an attempt (m->attempt.busy) is over. */
void data_release(struct model *m);
/* A transfer of the attempt leaves this node, and has left it. A record that was carried out is
 * only told as applied when all have. */
void data_leaves(struct model *m);
void data_left(struct model *m);

#endif
