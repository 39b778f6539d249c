/* SPDX-License-Identifier: Apache-2.0 */
/* Limits how many connections, and requests to other nodes, each guest may have. accept.c calls
 * when a connection comes and when its handshake is complete, and call.c for each request. They and
 * session.c tell when one ends. Happy path: neither the guest nor the daemon has reached its limit.
 * If one has, an idle session is closed: of the same guest if that guest has its full share, else
 * of the guest that has most sessions. Among the idle sessions of a guest the newest is closed. If
 * no session is idle, the new connection is refused with SHARD_BUSY and a text. */
#include "link/places.h"

#include "base/check.h"
#include "link/session.h"
#include "node/limits.h"
#include "wire/ops.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The key is a user id, an IPv4 address, or the first 64 bits of an IPv6 address, because one
 * machine usually has a whole /64 network. */
static bool key_of(unsigned char key[20], int fd, bool *root)
{
	struct sockaddr_storage sa = {0};
	socklen_t bytes = sizeof(sa), cred_bytes;
	struct ucred cred = {0};

	memset(key, 0, 20);
	*root = false;
	if (getpeername(fd, (struct sockaddr *)&sa, &bytes) != 0)
		return false; /* The other end has hung up. */
	key[0] = (unsigned char)sa.ss_family;
	if (sa.ss_family == AF_UNIX) {
		cred_bytes = sizeof(cred);
		if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &cred_bytes) != 0)
			return false;
		memcpy(key + 1, &cred.uid, sizeof(cred.uid));
		*root = cred.uid == 0 || cred.uid == geteuid();
	} else if (sa.ss_family == AF_INET) {
		memcpy(key + 1, &((struct sockaddr_in *)(void *)&sa)->sin_addr, 4);
	} else {
		const struct in6_addr *a = &((struct sockaddr_in6 *)(void *)&sa)->sin6_addr;

		memcpy(key + 1, a, IN6_IS_ADDR_V4MAPPED(a) ? 16 : 8);
	}
	return true;
}

struct guest *places_guest(struct server *s, int fd)
{
	unsigned char key[20];
	struct guest *g;
	bool root;

	if (!key_of(key, fd, &root))
		return NULL;
	list_each(it, &s->conns.guests) {
		g = list_of(it, struct guest, link);
		if (memcmp(g->key, key, sizeof(key)) == 0) {
			g->refs++;
			return g;
		}
	}
	g = calloc(1, sizeof(*g));
	if (g == NULL)
		return NULL;
	memcpy(g->key, key, sizeof(key));
	g->root = root;
	g->refs = 1;
	list_push(&s->conns.guests, &g->link);
	return g;
}

void places_leave(struct guest *g)
{
	CHECK(g->refs > 0);
	if (--g->refs > 0)
		return;
	CHECK(g->openings_nr == 0 && g->sessions_nr == 0 && g->calls_nr == 0);
	list_remove(&g->link);
	free(g);
}

/* Sessions beyond connections_max, for tools, root and the daemon's own user. */
static uint32_t kept(const struct server *s)
{
	return 2 * s->nodes_nr + PLACES_KEPT_MIN;
}

/* Sessions that one guest may have. */
static uint32_t share(const struct server *s)
{
	uint32_t quarter = s->conf->connections_max / 4;

	return quarter > PLACES_SHARE_MIN ? quarter : PLACES_SHARE_MIN;
}

/* Closes an idle session of the guest `of`, or of any guest if that is NULL. False: none is idle.
 */
static bool make_room(struct server *s, const struct guest *of)
{
	struct session *goes = NULL;
	uint64_t now = clock_ns();

	list_each(it, &s->conns.sessions) { /* The oldest session comes first. */
		struct session *t = list_of(it, struct session, link);

		if (t->uses || t->leaves || now - t->since_ns < s->conns.idle_ns ||
		    (of != NULL && t->guest != of))
			continue;
		if (goes == NULL || t->guest->sessions_nr >= goes->guest->sessions_nr)
			goes = t;
	}
	if (goes == NULL)
		return false;
	goes->leaves = true;
	goes->guest->sessions_nr--; /* Its place is free now. The socket closes later. */
	goes->unseated = true;
	s->conns.sessions_nr--;
	session_close(goes, SHARD_BUSY, "others need its place, and it uses no model");
	return true;
}

enum shard_status places_no_descriptor(struct err *e)
{
	return err_set(e, SHARD_BUSY,
		       "%lu descriptors may be open there, and what is left is kept for files and "
		       "links: close some connections, or raise LimitNOFILE= of its service "
		       "(`ulimit -n`)",
		       (unsigned long)limits_files());
}

enum shard_status places_sit(struct server *s, const struct guest *g, uint32_t role, int fd,
			     struct err *e)
{
	bool first = role == ROLE_CTL || g->root;
	uint32_t most = s->conf->connections_max + (first ? kept(s) : 0);

	if (!g->root && g->sessions_nr >= share(s) && !make_room(s, g))
		return err_set(e, SHARD_BUSY,
			       "%u connections of this %s are open, which is its share: close "
			       "some, or raise [daemon] "
			       "connections_max (%u)",
			       g->sessions_nr, g->key[0] == AF_UNIX ? "user" : "address",
			       s->conf->connections_max);
	if (s->conns.sessions_nr >= most && !make_room(s, NULL))
		return err_set(e, SHARD_BUSY,
			       "%u connections are open: close some, or raise [daemon] "
			       "connections_max (%u)",
			       s->conns.sessions_nr, s->conf->connections_max);
	if (!limits_spare(fd, limits_links(s->conf) + (first ? 0 : PLACES_KEPT_MIN)) &&
	    !make_room(s, NULL))
		return places_no_descriptor(e);
	return SHARD_OK;
}

enum shard_status places_ask(struct server *s, struct guest *g, struct err *e)
{
	if (!g->root && g->calls_nr >= PLACES_CALLS_SHARE)
		return err_set(e, SHARD_BUSY,
			       "%u requests of this %s wait for other nodes, which is its share: "
			       "take their answers first",
			       g->calls_nr, g->key[0] == AF_UNIX ? "user" : "address");
	if (s->calls.asked_nr >= PLACES_CALLS)
		return err_set(e, SHARD_BUSY,
			       "%u requests of trainers and tools wait for other nodes: try again",
			       s->calls.asked_nr);
	g->refs++;
	g->calls_nr++;
	s->calls.asked_nr++;
	return SHARD_OK;
}

void places_answered(struct server *s, struct guest *g)
{
	CHECK(g->calls_nr > 0 && s->calls.asked_nr > 0);
	g->calls_nr--;
	s->calls.asked_nr--;
	places_leave(g);
}
