/* SPDX-License-Identifier: Apache-2.0 */
/* resume.h: models of earlier starts: with their weights, from memory that outlived the process
 * (warm/warm.h), or without them, from the coordinator's files. */
#ifndef SHARD_RESUME_H
#define SHARD_RESUME_H

#include "model/model.h"

/* Sets the incarnation of this start and makes its models. Call it after the state directory and
 * the memory are open. */
enum shard_status resume_load(struct server *s, struct err *e);
void resume_begin(struct server *s); /* When timers work: the cores go on where they were. */
/* On a node other than the coordinator: keeps which coordinator sent MODEL first. Only that one may
 * drop the model.
 */
void resume_from(struct model *m, const struct peer *p);
/* Checks that the model is of that coordinator. SHARD_EXISTS: it is of a coordinator with another
 * state directory, whose terms and model numbers cannot be compared with this one's. */
enum shard_status resume_check(const struct model *m, const struct peer *p, struct err *e);
/* What became of an earlier start's memory of this model. The text is returned once, and the caller
 * frees it. NULL: nothing is known. */
char *resume_void_why(struct server *s, uint32_t model);
void resume_free(struct server *s);
/* The newest step of it that counts, as what its memory was void for says. */
uint64_t resume_most(const struct server *s, uint32_t model);
/* For recall.c: makes the model that the memory describes, and takes found over. name: gets that of
 * the model, for texts. */
enum shard_status resume_make(struct server *s, uint32_t id, struct meta_found *found,
			      struct model **m, char name[72], struct err *e);
/* Sums what the models need that this node holds for the coordinator and that it has not named
 * since the link to it came up. It may have dropped them meanwhile, and says so only once it has
 * heard of them. One of a coordinator with another state directory stays. */
struct budget_need resume_unconfirmed(struct server *s);

#endif
