/* SPDX-License-Identifier: Apache-2.0 */
/* unmade.h: models that this node has lost its copy of while it runs, from then on until they are
 * made again (anew.c). Whoever is asked for one of them says so. Loop thread only. */
#ifndef SHARD_CONTROL_UNMADE_H
#define SHARD_CONTROL_UNMADE_H

#include "base/list.h"
#include "base/status.h"
#include "wire/layout.h"

#include <stdbool.h>
#include <stdint.h>

struct server;

struct unmade {
	struct list link; /* In server.anew.unmade. */
	uint32_t id;
	char name[LAYOUT_MODEL_NAME_MAX + 1];
	char why[ERR_TEXT_BYTES];     /* What became of the copy. */
	char trouble[ERR_TEXT_BYTES]; /* Why the last try to make it failed. */
	uint64_t next_ns;             /* It is not tried before. */
	bool busy, over;              /* busy: anew.c makes it. over: nobody wants it any more. */
};

/* NULL: there is no such model. */
struct unmade *unmade_find(const struct server *s, uint32_t model);
struct unmade *unmade_named(const struct server *s, const char *name);
/* The same as long as it is not made again. NULL: there is no memory. */
struct unmade *unmade_add(struct server *s, uint32_t model, const char *name, const char *why);
/* It is made, or was dropped. Frees it, unless it is busy. */
void unmade_end(struct unmade *u);
/* SHARD_BUSY: nothing can be done with the model of that name before it is made again. The error
 * says why, and what keeps it from being made. */
enum shard_status unmade_check(const struct server *s, const char *name, struct err *e);
enum shard_status unmade_check_number(const struct server *s, uint32_t model, struct err *e);
/* Why a model cannot be made again. "": all can. */
const char *unmade_trouble(const struct server *s);
void unmade_free(struct server *s); /* At the end of the server. */

#endif
