/* SPDX-License-Identifier: Apache-2.0 */
/* access.h: who may do what with a model: its owner, who defined it, and its `mode`, as of a file:
 * 4 reads, 2 writes, for the owner, his group and others. The session's own node says who asks, by
 * the unix socket; over TCP nobody is known. A uid is the same user on all nodes, but for 0: the
 * root of a node is the root of that node, and elsewhere a user as any other, unless [cluster]
 * trust_remote_root says that it is believed. */
#ifndef SHARD_ACCESS_H
#define SHARD_ACCESS_H

#include "base/status.h"
#include "link/session.h"
#include "shard.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

struct model;
struct server;
struct session;

/* For a request that is passed on. out points into groups and lives as long. */
void access_cred(const struct session *t, Shard__Cred *out, uint32_t groups[SESSION_GROUPS_MAX]);

/* For a request that another node passed on: what it says of who asks is believed as far as the
 * configuration goes. */
void access_from_node(const struct server *s, uint16_t node, Shard__Cred *who);

/* SHARD_OK, or SHARD_DENIED: the sentence names model, owner, mode, who asked and the remedy. who
 * NULL: as over TCP. Root of this node and the daemon's own user always may. */
enum shard_status access_check(const struct model *m, const Shard__Cred *who, bool write,
			       struct err *e);
/* The rule itself. owner NULL or not known: nobody owns it. */
bool access_allowed(uint32_t mode, const Shard__Cred *owner, const Shard__Cred *who, bool write);

#define ACCESS_TEXT_BYTES 96
const char *access_text(
	char out[ACCESS_TEXT_BYTES],
	const Shard__Cred *who); /* "uid 1000 (gid 1000)", "uid 0 (gid 0) of node b"; returns out */

#endif
