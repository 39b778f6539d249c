/* SPDX-License-Identifier: Apache-2.0 */
/* data.h: what the files of data/ share: how chunks are cut for the wire, how frames of a model are
 * named, and who still reads an attempt's buffers. Loop thread, except for the two functions on
 * parts. */
#ifndef SHARD_DATA_H
#define SHARD_DATA_H

#include <stdint.h>

struct core_id;
struct model;
struct model_flow;
struct wire_head;

/* Parts of a chunk on the wire: how many, and the bytes of one; 0 behind the last. */
uint32_t data_parts(const struct model *m, uint32_t chunk, uint32_t elem_bytes);
uint32_t data_part_bytes(const struct model *m, uint32_t chunk, uint32_t elem_bytes, uint32_t part);
/* A frame of the model. id: of the attempt or record that it is of, or NULL. */
void data_head(const struct model *m, struct wire_head *h, uint16_t op, const struct core_id *id);
/* Bytes that came from another node; 0: its first header is here. */
void data_flow_add(struct model_flow *f, uint32_t bytes);
/* A job or frame that read an attempt's buffers (m->attempt.busy) is over. */
void data_release(struct model *m);

#endif
