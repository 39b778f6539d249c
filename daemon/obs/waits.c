/* SPDX-License-Identifier: Apache-2.0 */
/* Says in words whom or what a model waits for: for a trainer that waits (WAITS), for the status,
 * and for the health. A node knows its own ranks and images. What is on other nodes it knows from
 * the coordinator's text. Nothing here changes anything or fails; a text that is too long is cut.
 */
#include "obs/waits.h"

#include "base/check.h"
#include "base/clock.h"
#include "data/apply.h"
#include "data/images.h"
#include "data/trainer.h"
#include "control/moving.h"
#include "link/nodes.h"
#include "link/peer.h"
#include "link/session.h"
#include "model/lead.h"
#include "model/model.h"
#include "model/writer.h"
#include "obs/progress.h"
#include "wire/ops.h"

#include <stdio.h>
#include <string.h>

static double seconds(uint64_t since_ns)
{
	return (double)(clock_ns() - since_ns) / (double)NS_PER_SEC;
}

bool waits_starved(const struct model *m, const struct contrib_rank *g)
{
	uint32_t chunk;
	uint64_t step;

	if (g->chunks_pushed > 0)
		return false;
	return images_awaited(m, &chunk, &step) || (g->trainer != NULL && g->trainer->image.nr > 0);
}

/* Does the coordinator's text, as "rank 2 (pid 7, node b)", name more ranks than so many? */
static bool names_more(const char *word, uint32_t ranks)
{
	uint32_t nr = 0;

	for (const char *at = word; (at = strstr(at, "rank ")) != NULL; at++)
		nr++;
	return nr > ranks || nr == 0 || strstr(word, " more") != NULL;
}

static size_t image_words(const struct model *m, char *out, size_t bytes)
{
	uint32_t chunk, done, all;
	uint64_t step;

	apply_settled(m, &done, &all);
	if (all > 0)
		return (size_t)snprintf(out, bytes,
					"its image, which is being made again after a restart: %u "
					"of %u chunks of node %s",
					done, all, members_name(m->server, m->server->self));
	if (!images_awaited(m, &chunk, &step))
		return (size_t)snprintf(out, bytes, "its image over TCP");
	return (size_t)snprintf(
		out, bytes, "chunk %u of the image of step %lu, which node %s holds", chunk,
		(unsigned long)step, members_name(m->server, place_primary(&m->place, chunk)));
}

/* For an unsealed model. The coordinator and the writer's own node know who writes. */
static void writer_words(const struct model *m, char *out, size_t bytes)
{
	const struct server *s = m->server;

	CHECK(!m->sealed);
	if (!writer_free(m))
		snprintf(out, bytes, "its weights, which pid %u on node %s writes", m->writer.pid,
			 members_name(s, m->writer.node));
	else if (server_leads(s))
		snprintf(out, bytes,
			 "its weights, which nobody writes: who defines it next gets created = 1");
	else
		snprintf(out, bytes,
			 "its weights: who got created = 1 for it writes and seals them");
}

/* Does the model wait for the disk of the node that coordinates, which says what is wrong? */
static bool disk_words(const struct model *m, char *out, size_t bytes)
{
	const struct server *s = m->server;
	const char *ill = nodes_ill(s, server_coordinator(s));
	char name[80];

	snprintf(name, sizeof(name), "\"%s\"", m->name);
	if (strstr(ill, name) == NULL)
		return false;
	snprintf(out, bytes, "node %s, which coordinates: %s",
		 members_name(s, server_coordinator(s)), ill);
	return true;
}

/* --- a node that is away, with copies that no other one has --- */

struct awaited {
	uint16_t node;
	uint32_t chunks;             /* How many no node that is up has. */
	uint64_t since_ns, until_ns; /* When its link went, and when it is given up. */
};

/* Is there such a node? Of several the one that went last is found: the model is LOST when no node
 * is left that may bring a chunk back. The coordinator's clock holds. Other nodes know it to within
 * what their own links tell. */
static bool awaited(const struct model *m, struct awaited *out)
{
	const struct server *s = m->server;
	bool any = false, alone;

	*out = (struct awaited){0};
	for (uint16_t n = 0; n < s->nodes_nr && m->sealed && m->core != NULL; n++) {
		const struct peer *p = s->peer[n];
		struct awaited a = {.node = n};

		if (p == NULL || p->up || server_gone(s, n) ||
		    (a.chunks = moving_only_at(m, n, &alone)) == 0)
			continue;
		a.since_ns = core_absent_since(m->core, n);
		if (a.since_ns == 0)
			a.since_ns = p->since_ns > s->started_ns ? p->since_ns : s->started_ns;
		a.until_ns = a.since_ns + s->conf->lost_timeout_ns;
		if (!any || a.since_ns > out->since_ns)
			*out = a;
		any = true;
	}
	return any;
}

static double left_s(const struct awaited *a)
{
	uint64_t now = clock_ns();

	return a->until_ns > now ? (double)(a->until_ns - now) / (double)NS_PER_SEC : 0;
}

static void awaited_words(const struct model *m, char *out, size_t bytes, size_t used)
{
	struct awaited a;

	char end[64] = "it is waited for, because its disk has them";

	if (used >= bytes || !awaited(m, &a))
		return;
	if (!m->set.nvme_durable)
		snprintf(end, sizeof(end), "it is given up in %.0f s (lost_timeout)", left_s(&a));
	snprintf(out + used, bytes - used,
		 "%snode %s has been away for %.0f s, with %u chunks of which no node that is up "
		 "has a copy: %s",
		 used > 0 ? "; " : "", members_name(m->server, a.node), seconds(a.since_ns),
		 a.chunks, end);
}

void waits_awaited_json(json_t *o, const struct model *m)
{
	struct awaited a;

	json_t *is;

	if (!awaited(m, &a))
		return;
	is = json_pack("{s:s, s:i, s:f}", "node", members_name(m->server, a.node), "chunks",
		       (int)a.chunks, "since_s", seconds(a.since_ns));
	if (!m->set.nvme_durable) /* Its disk has them, so nobody gives it up. */
		json_object_set_new(is, "left_s", json_real(left_s(&a)));
	json_object_set_new(o, "awaited", is);
}

/* Names whom a trainer on this node waits for. First come local ranks that have not committed, as
 * far as this node knows. The coordinator's text follows if it names more, or that there is none.
 * Empty: nobody is known. */
void waits_words(const struct model *m, char *out, size_t bytes)
{
	const char *word;
	struct core_state c;
	struct err e;
	uint32_t named = 0, chunk;
	size_t used = 0;
	uint64_t step;

	CHECK(bytes > 0);
	out[0] = 0;
	if (m->defining) {
		snprintf(out, bytes, "every node to define it");
		return;
	}
	core_state(m->core, &c);
	for (uint32_t i = 0; m->attempt.on && i < m->contrib.local_nr && used < bytes; i++) {
		const struct contrib_rank *g = &m->contrib.local[i];

		if (g->ready)
			continue;
		used += (size_t)snprintf(out + used, bytes - used, "%srank %u (pid %u, node %s)",
					 named++ > 0 ? "; " : "", g->rank,
					 m->attempt.world.rank[g->rank].pid,
					 members_name(m->server, m->server->self));
		if (used < bytes && waits_starved(m, g)) {
			used += (size_t)snprintf(out + used, bytes - used, ", which waits for ");
			used += used < bytes ? image_words(m, out + used, bytes - used) : 0;
			continue;
		}
		if (used < bytes)
			used += (size_t)snprintf(out + used, bytes - used,
						 ": %u of %u chunks pushed", g->chunks_pushed,
						 m->layout->chunks_nr);
		if (g->pushed_ns != 0 && used < bytes)
			used += (size_t)snprintf(out + used, bytes - used, ", last %.1f s ago",
						 seconds(g->pushed_ns));
	}
	if (named == 0 && images_awaited(m, &chunk, &step))
		used += image_words(m, out, bytes);
	word = c.waits[0] != 0 ? c.waits : m->waits;
	if (lead_known(m->server, &e) != SHARD_OK) /* What the last one said is over. */
		word = e.text;
	else if (disk_words(m, out, bytes))
		return;
	if (used < bytes && word[0] != 0 && (named == 0 || names_more(word, named)))
		used += (size_t)snprintf(out + used, bytes - used, "%s%s",
					 used > 0 ? "; on all nodes: " : "", word);
	awaited_words(m, out, bytes, used);
	if (out[0] == 0 && strcmp(progress_own_state(m), "unsealed") == 0)
		writer_words(m, out, bytes);
}

bool waits_too_few(const struct model *m)
{
	struct core_state c;

	if (m->defining || m->attempt.on)
		return false;
	core_state(m->core, &c);
	return c.coordinator ? c.too_few : m->too_few;
}

/* For people who look at the model: also says which step waits, and for how long. */
void waits_sentence(const struct model *m, char *out, size_t bytes)
{
	char who[1024];

	CHECK(bytes > 0);
	waits_words(m, who, sizeof(who));
	if (m->attempt.on && who[0] != 0)
		snprintf(out, bytes, "step %lu attempt %u of \"%s\" waits %.1f s for %s",
			 (unsigned long)m->attempt.id.step, m->attempt.id.attempt, m->name,
			 seconds(m->attempt.began_ns), who);
	else
		snprintf(out, bytes, "%s", who);
}

/* --- who asks --- */

/* Does this trainer wait for a place? */
static bool is_one_too_many(const struct session *t, const struct model *m)
{
	const struct trainer *r = t->trainer;

	return m->attempt.on && r != NULL && (r->model == m || r->join_model == m) && r->rank < 0 &&
	       m->attempt.world.size >= m->set.max_world;
}

enum shard_status waits_request(struct session *t, const struct wire_head *h,
				const ProtobufCMessage *msg, struct err *e)
{
	struct model *m = model_find(t->server, h->model);
	Shard__Text body = SHARD__TEXT__INIT;
	char text[1024];

	(void)msg;
	if (m == NULL)
		return err_set(e, SHARD_NOT_FOUND, "no model %u", h->model);
	if (is_one_too_many(t, m))
		snprintf(text, sizeof(text),
			 "a place: the world has %u trainers, and max_world = %u",
			 m->attempt.world.size, m->set.max_world);
	else
		waits_words(m, text, sizeof(text));
	body.text = text;
	body.too_few = waits_too_few(m);
	model_reply(t, OP_WAITS, h->attempt, m, &body.base);
	return SHARD_OK;
}
