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
/* What the coordinator's file of a model says. view: its tables are in *room. */
struct resume_file {
	Shard__ModelFile *file;
	struct core_view *view;
	void *room;
	char lost[512]; /* Why its weights were lost. */
};
/* SHARD_PROTOCOL: it is not one of this release. resume_file_free() is due in any case. */
enum shard_status resume_file_read(struct resume_file *f, struct server *s, uint32_t id,
				   const void *bytes, size_t bytes_nr, struct err *e);
void resume_file_free(struct resume_file *f);
/* The model is made of it. */
void resume_file_made(const struct resume_file *f, struct model *m, const void *bytes,
		      size_t bytes_nr);
void resume_free(struct server *s);
/* For recall.c: makes the model that the memory describes, and takes found over. name: gets that of
 * the model, for texts. */
enum shard_status resume_make(struct server *s, uint32_t id, struct meta_found *found,
			      struct model **m, char name[72], struct err *e);
/* Sums what the models need that this node holds for the coordinator and that it has not named
 * since the link to it came up. It may have dropped them meanwhile, and says so only once it has
 * heard of them. One of a coordinator with another state directory stays. */
struct budget_need resume_unconfirmed(struct server *s);

#endif
