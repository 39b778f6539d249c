/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.h: takes the frames of trainers, tools and nodes. server.c hands this table to link/
 * once. */
#ifndef SHARD_DISPATCH_H
#define SHARD_DISPATCH_H

#include "link/events.h"

extern const struct link_events dispatch_events;

#endif
