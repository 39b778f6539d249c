/* SPDX-License-Identifier: Apache-2.0 */
/* Permissions of models. hello.c's sessions bring who asks, by SO_PEERCRED and SO_PEERGROUPS; whoever serves a request asks
 * access_check() before it acts, on the node that acts. What a trainer writes into a body is never believed: its node fills Cred anew.
 * Fails with SHARD_DENIED only. */
#include "access.h"

#include "base/check.h"
#include "model.h"
#include "net/conn.h"
#include "session.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ACCESS_READ = 4, ACCESS_WRITE = 2 };

void access_greet(struct access_who *w, const struct conn *c)
{
	uint32_t pid;

	*w = (struct access_who){0};
	w->known = conn_peer(c, &pid, &w->uid, &w->gid);
	if (w->known)
		w->groups_nr = conn_peer_groups(c, w->groups, NR(w->groups));
}

void access_cred(const struct session *t, Shard__Cred *out, uint32_t groups[ACCESS_GROUPS_MAX])
{
	const struct access_who *w = &t->who;

	shard__cred__init(out);
	if (!w->known)
		return;
	memcpy(groups, w->groups, w->groups_nr * sizeof(groups[0]));
	out->known = true;
	out->uid = w->uid;
	out->gid = w->gid;
	out->groups = groups;
	out->n_groups = w->groups_nr;
}

static bool known(const Shard__Cred *c)
{
	return c != NULL && c->known;
}

static bool in_group(const Shard__Cred *who, uint32_t gid)
{
	bool in = who->gid == gid;

	for (size_t i = 0; i < who->n_groups; i++)
		in |= who->groups[i] == gid;
	return in;
}

bool access_allowed(uint32_t mode, const Shard__Cred *owner, const Shard__Cred *who, bool write)
{
	uint32_t shift = 0; /* others */

	CHECK(mode <= 0777);
	if (known(who) && (who->uid == 0 || who->uid == geteuid()))
		return true;
	if (known(who) && known(owner) && who->uid == owner->uid)
		shift = 6;
	else if (known(who) && known(owner) && in_group(who, owner->gid))
		shift = 3;
	return mode >> shift & (write ? ACCESS_WRITE : ACCESS_READ);
}

const char *access_text(char out[ACCESS_TEXT_BYTES], const Shard__Cred *who)
{
	if (known(who))
		snprintf(out, ACCESS_TEXT_BYTES, "uid %u (gid %u)", who->uid, who->gid);
	else
		snprintf(out, ACCESS_TEXT_BYTES, "somebody over TCP");
	return out;
}

enum shard_status access_check(const struct model *m, const Shard__Cred *who, bool write, struct err *e)
{
	const Shard__Cred *owner = m->spec->owner;
	char asks[ACCESS_TEXT_BYTES], owns[ACCESS_TEXT_BYTES];

	if (access_allowed(m->set.mode, owner, who, write))
		return SHARD_OK;
	return err_set(
		e, SHARD_DENIED, "\"%s\" belongs to %s with mode %04o, and %s asks to %s it: %s", m->name,
		known(owner) ? access_text(owns, owner) : "nobody (it was defined over TCP)", m->set.mode, access_text(asks, who),
		write ? "change" : "read",
		known(who) ? "ask the owner, or define it with a wider `mode`"
			   : "connect through the unix socket of a node, which says who asks, or define it with a wider `mode`");
}

enum shard_status access_session(const struct model *m, const struct session *t, bool write, struct err *e)
{
	uint32_t groups[ACCESS_GROUPS_MAX];
	Shard__Cred who;

	access_cred(t, &who, groups);
	return access_check(m, &who, write, e);
}
