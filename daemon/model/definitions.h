/* SPDX-License-Identifier: Apache-2.0 */
/* definitions.h: the definitions of models in this node's state folder, where the coordinator is
 * elected. The value of a membership source has the view of each model, but not its definition,
 * which may be large. So each node that has a model keeps its definition as a file. When all nodes
 * have started again without their memory, the coordinator makes the models that the value names
 * from these files (control/known.h). What is here decides nothing by itself: a file that the value
 * does not name is of a model that was dropped, and one that differs from what the value says is
 * not used. With `static` the file of the model has its definition, and nothing here exists. Loop
 * thread only, except for the two functions of a thread. */
#ifndef SHARD_MODEL_DEFINITIONS_H
#define SHARD_MODEL_DEFINITIONS_H

#include "base/status.h"
#include "shard.pb-c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct model;
struct server;
struct static_dir;

#define DEFINITION_FORMAT 1u /* Of the file. */

/* Where the coordinator is elected: reads the files. One that cannot be used is logged, and the
 * start goes on. */
enum shard_status definitions_load(struct server *s, struct err *e);
void definitions_free(struct server *s);

/* What the value says of a definition: a sum over what never changes of it. 0: no memory for it. */
uint64_t definition_sum(const Shard__Model *is);

/* A definition on its way to the disk or off it, as long as its model is. A thread uses only dir,
 * id, bytes, bytes_nr, written, remove and e. */
struct definition_job {
	struct static_dir *dir;
	uint32_t id;
	void *bytes; /* To be written. NULL: nothing is. */
	size_t bytes_nr;
	bool written, remove;
	bool made; /* The model is there, and goes only by a drop or with the process. */
	struct err e;
};
/* The memory of the model is to be made. A file with another definition is named in the log. */
enum shard_status definition_plan(struct model *m, struct definition_job *j, struct err *e);
/* In the thread that makes the memory, after it is made. SHARD_SYSTEM: the disk. */
enum shard_status definition_write(struct definition_job *j, struct err *e);
void definition_made(struct model *m, struct definition_job *j);
/* The model goes. If it was dropped, so does its file: in the thread that gives its memory back. */
void definition_leaves(struct model *m, struct definition_job *j);
void definition_remove(struct definition_job *j);
void definition_end(struct server *s, struct definition_job *j);

/* Could the model be made from what is here, as far as is known? */
bool definitions_has(const struct server *s, uint32_t model);
/* What the value names, to make the model of it: *out is the caller's, or NULL if there is nothing
 * to be made now. A file that the value contradicts is named in the log, and not used from then on.
 */
void definitions_take(struct server *s, const Shard__Kept *kept, uint64_t now_ns,
		      Shard__Model **out);
/* Making that model failed. It is tried again after a while, and the node that coordinates then
 * says why the model is not there. */
void definitions_failed(struct server *s, uint32_t model, const struct err *why);
/* Why the model is not there although a file is: a part of a sentence. "": no file is. */
const char *definitions_trouble(const struct server *s, uint32_t model);
/* The models that files are of, in no order, beginning after `before`. 0: there are no more. */
uint32_t definitions_next(const struct server *s, uint32_t before);
/* The model was dropped while this node was away. Its file is removed by a thread. */
void definitions_forget(struct server *s, uint32_t model);

#endif
