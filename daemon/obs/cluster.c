/* SPDX-License-Identifier: Apache-2.0 */
/* Answers /cluster. A page that is open asks once a second, and the loop renders a snapshot for it
 * (scrape.c). Happy path: cluster_ask() puts the question to all nodes and returns. Their answers
 * come one by one and are kept. The next snapshot shows what has come by then, so that a page is
 * about a second behind, and no request waits for a node. A node that does not answer is shown with
 * its reason, and what it said before is not shown any more. Nobody is asked while no page is open.
 */
#include "obs/cluster.h"

#include "base/check.h"
#include "link/call.h"
#include "link/peer.h"
#include "model/model.h"
#include "obs/everywhere.h"
#include "obs/status.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>

struct cluster_view {
	struct round round;
	json_t *said[CONFIG_NODES_MAX];  /* NULL: nothing yet. */
	char why[CONFIG_NODES_MAX][200]; /* Why not. Empty: it answered, or was not asked. */
};

static void keep(struct cluster_view *v, uint16_t node, json_t *said, const char *why)
{
	json_decref(v->said[node]);
	v->said[node] = said;
	snprintf(v->why[node], sizeof(v->why[node]), "%.199s", said == NULL ? why : "");
}

static void came(struct round *r, struct server *s, const struct call *c, const struct wire_head *h,
		 const void *body, const struct err *e)
{
	struct cluster_view *v = list_of(r, struct cluster_view, round);

	(void)s;
	keep(v, c->node, e == NULL ? everywhere_said(h, body) : NULL,
	     e != NULL ? e->text : "its answer is no JSON");
}

static const struct round_ops ops = {.answered = came};

void cluster_ask(struct server *s, Shard__Cred *who)
{
	struct wire_head h = {.op = OP_STATUS};
	Shard__Look body = SHARD__LOOK__INIT;
	struct cluster_view *v = s->cluster;
	char why[200];
	struct err e;

	if (v == NULL && (v = s->cluster = calloc(1, sizeof(*v))) == NULL)
		return;
	v->round.ops = &ops;
	body.cred = who;
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (s->peer[n] == NULL || v->round.out >> n & 1)
			continue;
		if (!everywhere_askable(s, n, why, sizeof(why)))
			keep(v, n, NULL, why);
		else if (round_ask(&v->round, s, n, &h, &body.base, NULL, &e) != SHARD_OK)
			keep(v, n, NULL, e.text);
	}
}

char *cluster_json(const struct server *s, const Shard__Cred *who)
{
	char *own = status_json(s, who, STATUS_WHOLE), *text;
	json_t *root = own != NULL ? json_loads(own, 0, NULL) : NULL;
	const struct cluster_view *v = s->cluster;

	free(own);
	if (root == NULL)
		return NULL;
	json_object_set_new(root, "everywhere", json_object());
	for (uint16_t n = 0; v != NULL && n < s->nodes_nr; n++)
		if (v->said[n] != NULL)
			everywhere_merge(root, members_name(s, n), v->said[n]);
		else if (v->why[n][0] != 0 && !server_gone(s, n))
			everywhere_no_answer(root, members_name(s, n), v->why[n]);
	text = json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER);
	json_decref(root);
	return text;
}

void cluster_free(struct server *s)
{
	if (s->cluster == NULL)
		return;
	round_end(&s->cluster->round, s);
	for (uint16_t n = 0; n < CONFIG_NODES_MAX; n++)
		json_decref(s->cluster->said[n]);
	free(s->cluster);
	s->cluster = NULL;
}
