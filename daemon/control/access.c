/* SPDX-License-Identifier: Apache-2.0 */
/* Permissions of models. link/session.c learns the user of a session by SO_PEERCRED and
 * SO_PEERGROUPS. dispatch.c calls access_check() as the row of each op says, before the op's
 * handler runs on the node that acts. Definitions and restores call it when they act. A Cred in the
 * body of a trainer's request is never believed, because the trainer's node fills it anew. A Cred
 * from another node passes access_from_node() before any handler sees it. Only access_check()
 * fails, with SHARD_DENIED. */
#include "control/access.h"

#include "base/check.h"
#include "model/model.h"
#include "link/session.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ACCESS_READ = 4, ACCESS_WRITE = 2 };

void access_from_node(const struct server *s, uint16_t node, Shard__Cred *who)
{
	who->node =
		(char *)(uintptr_t)members_name(s, node); /* Requests are passed on only once, so
							     the sender is the requester's node. */
	who->root = who->known && who->uid == 0 && s->conf->trust_remote_root;
}

void access_cred(const struct session *t, Shard__Cred *out, uint32_t groups[SESSION_GROUPS_MAX])
{
	const struct session_who *w = &t->who;

	shard__cred__init(out);
	if (!w->known)
		return;
	memcpy(groups, w->groups, w->groups_nr * sizeof(groups[0]));
	out->known = true;
	out->uid = w->uid;
	out->gid = w->gid;
	out->groups = groups;
	out->n_groups = w->groups_nr;
	out->node = (char *)(uintptr_t)w->node;
	out->root = w->root;
}

static bool known(const Shard__Cred *c)
{
	return c != NULL && c->known;
}

static bool same_node(const Shard__Cred *a, const Shard__Cred *b)
{
	return strcmp(a->node, b->node) == 0;
}

static bool is_owner(const Shard__Cred *who, const Shard__Cred *owner)
{
	return who->uid == owner->uid && (who->uid != 0 || same_node(who, owner));
}

/* Group 0 of a node is not group 0 of another one, as with root. */
static bool in_group(const Shard__Cred *who, const Shard__Cred *owner)
{
	bool in = who->gid == owner->gid;

	for (size_t i = 0; i < who->n_groups; i++)
		in |= who->groups[i] == owner->gid;
	return in && (owner->gid != 0 || same_node(who, owner));
}

bool access_allowed(uint32_t mode, const Shard__Cred *owner, const Shard__Cred *who, bool write)
{
	uint32_t shift = 0; /* The bits for others. */

	CHECK(mode <= 0777);
	if (known(who) && who->root)
		return true;
	if (known(who) && known(owner) && is_owner(who, owner))
		shift = 6;
	else if (known(who) && known(owner) && in_group(who, owner))
		shift = 3;
	return mode >> shift & (write ? ACCESS_WRITE : ACCESS_READ);
}

const char *access_text(char out[ACCESS_TEXT_BYTES], const Shard__Cred *who)
{
	bool of_node = known(who) && who->uid == 0 && !who->root && who->node[0] != 0;

	if (known(who))
		snprintf(out, ACCESS_TEXT_BYTES, "uid %u (gid %u)%s%s", who->uid, who->gid,
			 of_node ? " of node " : "", of_node ? who->node : "");
	else
		snprintf(out, ACCESS_TEXT_BYTES, "somebody over TCP");
	return out;
}

enum shard_status access_check(const struct model *m, const Shard__Cred *who, bool write,
			       struct err *e)
{
	const Shard__Cred *owner = m->spec->owner;
	char asks[ACCESS_TEXT_BYTES], owns[ACCESS_TEXT_BYTES];
	const char *remedy = "ask the owner, or define it with a wider `mode`";

	if (access_allowed(m->set.mode, owner, who, write))
		return SHARD_OK;
	if (!known(who))
		remedy = "connect through the unix socket of a node, which says who asks, or "
			 "define it with a wider `mode`";
	else if (who->uid == 0)
		remedy = "root of another node is not root here: ask on the node that coordinates, "
			 "or set [cluster] "
			 "trust_remote_root = yes there";
	return err_set(e, SHARD_DENIED,
		       "\"%s\" belongs to %s with mode %04o, and %s asks to %s it: %s", m->name,
		       known(owner) ? access_text(owns, owner) : "nobody (it was defined over TCP)",
		       m->set.mode, access_text(asks, who), write ? "change" : "read", remedy);
}
