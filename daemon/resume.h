/* SPDX-License-Identifier: Apache-2.0 */
/* resume.h: models of the start before this one: with their weights, from memory that outlived it (park.h); or without, as the
 * coordinator's files have them. */
#ifndef SHARD_RESUME_H
#define SHARD_RESUME_H

#include "model.h"

/* After the state directory and the park are open: which member this start is, and its models. */
enum shard_status resume_load(struct server *s, struct err *e);
void resume_begin(struct server *s); /* timers work: cores go on where they were */
/* A node other than the coordinator: whose word the model's end will be. The first that told of it. */
void resume_from(struct model *m, const struct peer *p);

#endif
