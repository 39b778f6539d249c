/* SPDX-License-Identifier: Apache-2.0 */
/* How a node that joins becomes one of the nodes. Happy path: it asks any node (intake_joins), and
 * the coordinator makes the longer list durable (control/admit.c) and tells it (NODES). Each node
 * writes it to its state folder, in a thread, makes room in its models for the gradients of the new
 * node, takes the node in, so that there may be a link to it, and says so. The coordinator does
 * that last, when all that are linked have done it. A node that was away hears of it in HELLO. Only
 * a static coordinator must have the list on its own disk. Elsewhere a disk that fails is logged,
 * the list counts all the same, and is written later. A node whose models have no room tells the
 * coordinator why, which says so until there is. */
#include "link/intake.h"

#include "base/check.h"
#include "base/clock.h"
#include "cluster/static.h"
#include "link/events.h"
#include "link/gone.h"
#include "link/hello.h"
#include "link/nodes_impl.h"
#include "link/peer.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGAIN_NS (5 * NS_PER_SEC) /* After a disk that failed. */

/* Tells these nodes the first nr of the list, and why this node has not taken in more of them. */
static void tell_nodes(const struct nodes *l, uint64_t to, uint16_t nr, const char *why)
{
	struct nodes_text *t = malloc(sizeof(*t));
	struct wire_head h = {.op = OP_NODES};
	Shard__Nodes body = SHARD__NODES__INIT;
	struct server *s = l->s;

	if (t == NULL)
		return; /* The beat tells again. */
	(void)nodes_fill(s, NULL, t);
	body.n_config = nr;
	body.config = t->list;
	body.taken = s->nodes_nr;
	body.why = (char *)(uintptr_t)why;
	body.ill = (char *)(uintptr_t)l->ill;
	body.gone = (uint32_t *)(uintptr_t)gone_all(s, &body.n_gone);
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (to >> n & 1 && s->peer[n] != NULL && s->peer[n]->up &&
		    peer_knows(s->peer[n], WIRE_JOINS))
			peer_tell(s, n, &h, &body.base);
	free(t);
}

static void tell(const struct nodes *l, uint16_t nr, const char *why)
{
	tell_nodes(l, UINT64_MAX, nr, why);
}

/* A node that is linked and has not taken the node with this number. nodes_nr: there is none. */
static uint16_t behind(const struct server *s, uint16_t number)
{
	uint16_t n = 0;

	while (n < s->nodes_nr &&
	       (s->peer[n] == NULL || !s->peer[n]->up || s->peer[n]->nodes_nr > number))
		n++;
	return n;
}

/* May the next node be taken in? The models here need room for its gradients first. A coordinator
 * waits for the other nodes, too, because no step begins with a node that some have no link to. */
static enum shard_status ready(struct nodes *l, struct err *e)
{
	struct server *s = l->s;
	uint16_t n;

	if (server_leads(s) && (n = behind(s, s->nodes_nr)) < s->nodes_nr)
		return err_set(e, SHARD_AGAIN, "node %s has not taken it in yet%s%.300s",
			       members_name(s, n), s->peer[n]->nodes_why[0] ? ": " : "",
			       s->peer[n]->nodes_why);
	return s->events->node_room(s, (uint16_t)(s->nodes_nr + 1), e);
}

static bool take_one(struct nodes *l, struct err *e)
{
	struct server *s = l->s;
	uint16_t n = s->nodes_nr;

	s->node[n] = l->want[n];
	s->nodes_nr++;
	if (n != s->self && peer_init(s, n, e) != SHARD_OK) {
		s->nodes_nr--;
		return false;
	}
	log_line(s->log, LOG_LEVEL_INFO, "event=node_added node=%s address=%s number=%u",
		 s->node[n].name, s->node[n].address.text, n);
	l->why[0] = 0;
	s->events->node_added(s, n);
	return true;
}

/* Takes in what is wanted, as far as it can. */
static void take(struct nodes *l, uint64_t now_ns)
{
	struct server *s = l->s;
	uint16_t before = s->nodes_nr;
	struct err e = {.text = ""};

	while (s->nodes_nr < l->want_nr && (s->nodes_nr < l->written_nr || !l->must) &&
	       ready(l, &e) == SHARD_OK && take_one(l, &e))
		;
	if (s->nodes_nr > before) {
		tell(l, s->nodes_nr, "");
		server_wake(s, 0);
	}
	if (s->nodes_nr == l->want_nr || (strcmp(l->why, e.text) == 0 && now_ns < l->told_ns))
		return;
	/* Also the first time: the others hear of the node, and why it is not in the list yet. */
	l->told_ns = now_ns + AGAIN_NS;
	if (strcmp(l->why, e.text) != 0 && e.text[0] != 0)
		log_line(s->log, LOG_LEVEL_INFO, "event=node_waits node=%s why=%s",
			 l->want[s->nodes_nr].name, e.text);
	snprintf(l->why, sizeof(l->why), "%s", e.text);
	tell(l, l->must ? s->nodes_nr : l->want_nr, e.text);
}

static void finish(struct nodes *l, const struct err *e)
{
	intake_added_fn *done = l->done;

	l->done = NULL;
	l->must = false;
	if (done != NULL)
		done(l->s, l->done_arg, e);
}

static void write_run(uv_work_t *w)
{
	struct nodes *l = w->data;

	l->st = static_set_cluster(l->dir, l->text.text, &l->e);
}

static void write_done(uv_work_t *w, int status)
{
	struct nodes *l = w->data;
	struct server *s = l->s;

	CHECK(status == 0 && s->persists > 0); /* It is never cancelled. */
	s->persists--;
	l->writing = false;
	server_wake(s, 0); /* Also for a stop, which waits for this. */
	if (l->st == SHARD_OK) {
		l->written_nr = l->writes_nr;
		finish(l, NULL);
		return;
	}
	l->again_ns = clock_ns() + AGAIN_NS;
	log_line(s->log, LOG_LEVEL_WARN, "event=nodes_not_kept why=%s", l->e.text);
	if (!l->must)
		return;
	l->want_nr--;
	finish(l, &l->e);
}

static void put_text(void *arg, const char *key, const char *value)
{
	struct nodes *l = arg;

	if (l->st == SHARD_OK)
		l->st = config_cluster_put(&l->text, key, value, &l->e);
}

static void begin(struct nodes *l)
{
	struct server *s = l->s;

	CHECK(!l->writing);
	l->text.used = 0;
	l->text.nodes_nr = 0;
	l->text.nodes_at = 0;
	l->st = SHARD_OK;
	nodes_say(s, put_text, l);
	CHECK(l->st == SHARD_OK); /* All of it was checked, and fits. */
	l->dir = s->dir;
	l->writes_nr = l->want_nr;
	l->work.data = l;
	l->writing = true;
	s->persists++;
	CHECK(uv_queue_work(s->loop, &l->work, write_run, write_done) == 0);
}

enum shard_status intake_add(struct server *s, const struct config_node *n, intake_added_fn *done,
			     void *arg, struct err *e)
{
	struct nodes *l = s->nodes;

	if (l->writing || l->want_nr > s->nodes_nr)
		return err_set(e, SHARD_BUSY, "node %s takes in %s%s now", members_name(s, s->self),
			       l->want_nr > s->nodes_nr ? "node " : "another node",
			       l->want_nr > s->nodes_nr ? l->want[s->nodes_nr].name : "");
	CHECK(l->want_nr < CONFIG_NODES_MAX && l->done == NULL);
	l->want[l->want_nr++] = *n;
	l->must = true;
	l->done = done;
	l->done_arg = arg;
	begin(l);
	return SHARD_OK;
}

void intake_beat(struct server *s, uint64_t now_ns)
{
	struct nodes *l = s->nodes;

	if (s->stop.on)
		return;
	if (l->want_nr > s->nodes_nr)
		take(l, now_ns);
	if (!l->writing && l->written_nr < l->want_nr && now_ns >= l->again_ns)
		begin(l);
}

enum shard_status intake_joins(struct server *s, const Shard__Hello *hello, struct err *e)
{
	struct config_node node;
	enum shard_status st;

	/* Whoever could have no link is not added, because all wait for a node of the list. */
	if ((st = hello_check_joins(s, hello, e)) != SHARD_OK ||
	    (st = nodes_parse(&node, hello->node, hello->joins, e)) != SHARD_OK ||
	    ((st = nodes_may_add(s, &node, e)) != SHARD_NOT_FOUND && st != SHARD_OK))
		return st;
	if (st == SHARD_OK && nodes_find(s, node.name) < s->nodes_nr)
		return SHARD_OK;
	if (st == SHARD_OK)
		return err_set(e, SHARD_BUSY, "node %s takes node %s in: %.300s",
			       members_name(s, s->self), node.name, s->nodes->why);
	if (hello->wire_minor < 3)
		return err_set(e, SHARD_VERSION, "release %.64s cannot join: install %s",
			       hello->release, SHARD_RELEASE);
	return s->events->node_joins(s, &node, e);
}

static void tell_again(const struct server *s, uint64_t to)
{
	const struct nodes *l = s->nodes;

	tell_nodes(l, to, l->must ? s->nodes_nr : l->want_nr, l->why);
}

/* A node may have been taken in since the HELLO of this link, and nobody was told without one. */
void intake_node_up(struct server *s, uint16_t node)
{
	tell_again(s, 1ull << node);
}

void intake_tell(struct server *s)
{
	tell_again(s, UINT64_MAX);
}

void intake_ill(struct server *s, const char *ill)
{
	struct nodes *l = s->nodes;

	if (strcmp(l->ill, ill) == 0)
		return;
	snprintf(l->ill, sizeof(l->ill), "%s", ill);
	intake_tell(s);
}

enum shard_status intake_told(struct peer *p, const Shard__Nodes *body, struct err *e)
{
	struct server *s = p->server;
	enum shard_status st;

	p->nodes_nr = body->taken < CONFIG_NODES_MAX ? (uint16_t)body->taken : CONFIG_NODES_MAX;
	snprintf(p->nodes_why, sizeof(p->nodes_why), "%s", body->why);
	snprintf(p->ill, sizeof(p->ill), "%s", body->ill);
	server_wake(s, 0); /* A coordinator may have waited for that. */
	st = nodes_heard(s, body->n_config, body->config, members_name(s, p->node), e);
	return st == SHARD_OK ? gone_heard(s, body->n_gone, body->gone, p->node, e) : st;
}
