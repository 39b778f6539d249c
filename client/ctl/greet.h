/* SPDX-License-Identifier: Apache-2.0 */
/* greet.h: a daemon's HELLO: what it says of itself to anyone who connects. */
#ifndef SHARD_CTL_GREET_H
#define SHARD_CTL_GREET_H

#include "ctl/ctl.h"

#include "shard.pb-c.h"

typedef void (*ctl_heard_fn)(void *arg,
			     const Shard__Hello *hello); /* hello is there during the call only */

/* Connects to o->address, says HELLO and hears the answer, by o->timeout_ns. Fails as ctl_ask()
 * does. */
enum shard_status ctl_greet(const struct ctl_options *o, ctl_heard_fn heard, void *arg,
			    struct err *e);

#endif
