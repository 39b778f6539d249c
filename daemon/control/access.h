/* SPDX-License-Identifier: Apache-2.0 */
/* access.h: who may do what with a model. A model has an owner, the user who defined it, and a
 * `mode` as a file has: 4 reads and 2 writes, for the owner, the owner's group and others. The node
 * of a session knows the user from the unix socket. Over TCP the user is not known. A uid is the
 * same user on all nodes, except 0: root of one node is an ordinary user on the others, unless
 * [cluster] trust_remote_root is set there. */
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

/* Fills the Cred of a request that is passed on. out points into groups. */
void access_cred(const struct session *t, Shard__Cred *out, uint32_t groups[SESSION_GROUPS_MAX]);

/* Corrects the Cred of a request that another node passed on: sets its node, and keeps root only if
 * the configuration trusts it. */
void access_from_node(const struct server *s, uint16_t node, Shard__Cred *who);

/* SHARD_DENIED: the error names the model, its owner and mode, the user who asks, and the remedy.
 * who NULL: a user that is not known, as over TCP. Root of this node and the daemon's own user are
 * always allowed. */
enum shard_status access_check(const struct model *m, const Shard__Cred *who, bool write,
			       struct err *e);
/* The rule itself. owner NULL or not known: the model has no owner. */
bool access_allowed(uint32_t mode, const Shard__Cred *owner, const Shard__Cred *who, bool write);

#define ACCESS_TEXT_BYTES 96
const char *access_text(
	char out[ACCESS_TEXT_BYTES],
	const Shard__Cred *who); /* "uid 1000 (gid 1000)", "uid 0 (gid 0) of node b"; returns out */

#endif
