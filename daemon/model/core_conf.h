/* SPDX-License-Identifier: Apache-2.0 */
/* core_conf.h: what the core of a model is told when it begins. */
#ifndef SHARD_MODEL_CORE_CONF_H
#define SHARD_MODEL_CORE_CONF_H

struct core_conf;
struct model;

/* Also fills m->node_names. On the heap, because it is large. The core copies it, and the caller
 * frees it. NULL: no memory. */
struct core_conf *model_core_conf(struct model *m);

#endif
