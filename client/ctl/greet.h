/* SPDX-License-Identifier: Apache-2.0 */
/* greet.h: asks a daemon for its HELLO, in which it describes itself to everybody who connects. */
#ifndef SHARD_CTL_GREET_H
#define SHARD_CTL_GREET_H

#include "ctl/ctl.h"

#include "shard.pb-c.h"

/* hello is valid only during the call. */
typedef void (*ctl_heard_fn)(void *arg, const Shard__Hello *hello);

/* Connects to o->address, says HELLO and passes the daemon's HELLO to heard, within o->timeout_ns.
 * It fails as ctl_ask() does. */
enum shard_status ctl_greet(const struct ctl_options *o, ctl_heard_fn heard, void *arg,
			    struct err *e);

#endif
