/* SPDX-License-Identifier: Apache-2.0 */
/* define_pass.h: DEFINEs that go from this node to the coordinator. */
#ifndef SHARD_DEFINE_PASS_H
#define SHARD_DEFINE_PASS_H

#include "link/caller.h"
#include "shard.pb-c.h"

/* Passes the DEFINE of a session to the coordinator. may_wait: while links are missing, it is kept
 * by define_wait(). SHARD_BUSY, SHARD_UNREACHABLE: nobody coordinates, or that node is down. */
enum shard_status define_pass(struct server *s, const struct caller *a, const Shard__Define *d,
			      bool may_wait, struct err *e);
/* Are the links up that a DEFINE of this model needs? */
bool define_may_pass(struct server *s, const char *name);

#endif
