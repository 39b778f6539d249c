/* SPDX-License-Identifier: Apache-2.0 */
/* resume.h: models of the start before this one: with their weights, from memory that outlived it
 * (warm.h); or without, as the coordinator's files have them. */
#ifndef SHARD_RESUME_H
#define SHARD_RESUME_H

#include "model/model.h"

/* After the state directory and the memory are open: which member this start is, and its models. */
enum shard_status resume_load(struct server *s, struct err *e);
void resume_begin(struct server *s); /* timers work: cores go on where they were */
/* A node other than the coordinator: whose word the model's end will be. The first that told of it.
 */
void resume_from(struct model *m, const struct peer *p);
/* Is it that coordinator's? SHARD_EXISTS: it is of one with another state directory, whose terms
 * and numbers of models mean nothing to this one. */
enum shard_status resume_check(const struct model *m, const struct peer *p, struct err *e);
/* What became of the memory that an earlier start had of this model, told once and the caller's to
 * free. NULL: nothing that is known. */
char *resume_void_why(struct server *s, uint32_t model);
void resume_free(struct server *s);

#endif
