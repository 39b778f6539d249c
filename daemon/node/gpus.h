/* SPDX-License-Identifier: Apache-2.0 */
/* gpus.h: the GPUs of this node, as [daemon] gpu says. server.c opens them at the start, and stop.c
 * closes them when no job is in hand. s->gpu[] has them in between. Everything is called on the
 * loop. */
#ifndef SHARD_GPUS_H
#define SHARD_GPUS_H

#include "base/status.h"

#include <stdbool.h>

struct server;

/* One that the configuration names and that is not there, or cannot be used, is an error in the log
 * and of the health. With auto it is a line of the log. */
void gpus_open(struct server *s);
void gpus_beat(struct server *s); /* Tells once of each device that is lost. */
/* Calls closed(arg) for each of them, later. Memory of models may still be mapped. */
void gpus_close(struct server *s, void (*closed)(void *arg), void *arg);

#endif
