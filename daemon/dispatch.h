/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.h: where frames of trainers, tools and nodes go. server.c gives it to link/ once. */
#ifndef SHARD_DISPATCH_H
#define SHARD_DISPATCH_H

#include "link/events.h"

extern const struct link_events dispatch_events;

#endif
