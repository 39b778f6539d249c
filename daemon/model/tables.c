/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the tables of placement of a model. make.c begins with those of the definition and of the
 * memory or view that is there, model.c brings those of each view that arrives, and view_file.c
 * those of files. Happy path: a view comes with tables in scratch memory, which are looked up by
 * their contents and copied if they are new. The core adopts the view, and what it does not name
 * any more is freed. It fails if there is no memory, or if a view is of another model. */
#include "model/tables.h"

#include "base/check.h"
#include "base/clock.h"
#include "core/moves.h"
#include "link/peer.h"
#include "model/corewire.h"
#include "model/tablewire.h"
#include "model/model.h"
#include "model/placing.h"
#include "model/view_file.h"
#include "wire/xxh.h"

#include <stdlib.h>
#include <string.h>

struct table {
	struct list link;
	uint64_t sum; /* Of .at, unless .room. */
	size_t bytes;
	bool room; /* The core may write it, so nobody else shares it. */
	_Alignas(16) unsigned char at[];
};

static struct table *table_new(struct model *m, size_t bytes)
{
	struct table *t = malloc(sizeof(*t) + bytes);

	if (t == NULL)
		return NULL;
	t->sum = 0;
	t->bytes = bytes;
	t->room = false;
	list_push(&m->tables.kept, &t->link);
	return t;
}

static const void *table_of(struct model *m, const void *contents, size_t bytes)
{
	struct table *t;
	uint64_t sum;

	list_each(it, &m->tables.kept)
		if (list_of(it, struct table, link)->at == contents)
			return contents;
	sum = xxh_sum(contents, bytes, 0);
	list_each(it, &m->tables.kept) {
		t = list_of(it, struct table, link);
		if (!t->room && t->sum == sum && t->bytes == bytes &&
		    memcmp(t->at, contents, bytes) == 0)
			return t->at;
	}
	if ((t = table_new(m, bytes)) == NULL)
		return NULL;
	t->sum = sum;
	return memcpy(t->at, contents, bytes);
}

static enum shard_status no_memory(const struct placement *p, struct err *e)
{
	return err_set(e, SHARD_SYSTEM, "no memory for tables of %u chunks", p->chunks_nr);
}

static enum shard_status take_defined(const struct model *m, struct placement *p, struct err *e)
{
	struct placement is = m->tables.defined;

	if (p->sum != is.sum)
		return err_set(e, SHARD_PROTOCOL,
			       "its view places chunks by tables that it does not bring, and that "
			       "are not those of the definition");
	is.learns = p->learns;
	is.moves = p->moves;
	is.gone = p->gone;
	*p = is;
	return SHARD_OK;
}

enum shard_status tables_take(struct model *m, struct placement *p, struct err *e)
{
	uint32_t nr = p->chunks_nr;
	struct placement is = *p;

	if (p->primary == NULL)
		return take_defined(m, p, e);
	if (nr != m->layout->chunks_nr)
		return err_set(e, SHARD_PROTOCOL, "its view places %u chunks, and it has %u", nr,
			       m->layout->chunks_nr);
	is.primary = table_of(m, p->primary, nr * sizeof(*is.primary));
	if (p->holders != NULL)
		is.holders = table_of(m, p->holders, nr * sizeof(*is.holders));
	if (p->to != NULL) {
		is.to_primary = table_of(m, p->to_primary, nr * sizeof(*is.to_primary));
		is.to = table_of(m, p->to, nr * sizeof(*is.to));
	}
	if (is.primary == NULL || !is.holders != !p->holders || !is.to != !p->to ||
	    !is.to_primary != !p->to_primary)
		return no_memory(p, e);
	*p = is;
	return SHARD_OK;
}

struct core_view *tables_view(struct model *m, const struct core_view *view, struct err *e)
{
	struct core_view *own = malloc(sizeof(*own));

	if (own == NULL) {
		(void)err_set(e, SHARD_SYSTEM, "no memory for a view");
		return NULL;
	}
	*own = *view;
	if (tables_take(m, &own->place, e) == SHARD_OK)
		return own;
	free(own);
	return NULL;
}

uint64_t *tables_room(struct model *m)
{
	struct table *t = table_new(m, m->layout->chunks_nr * sizeof(uint64_t));

	if (t == NULL)
		return NULL;
	t->room = true;
	return (uint64_t *)(void *)t->at;
}

static bool named(const struct model *m, const void *table)
{
	return place_names(&m->place, table) || place_names(&m->tables.defined, table) ||
	       persist_names(m, table) || (m->core != NULL && core_names(m->core, table));
}

void tables_tidy(struct model *m)
{
	list_each(it, &m->tables.kept) {
		struct table *t = list_of(it, struct table, link);

		if (named(m, t->at))
			continue;
		list_remove(&t->link);
		free(t);
	}
}

void tables_free(struct model *m)
{
	while (m->tables.kept.next != NULL && !list_empty(&m->tables.kept)) {
		struct table *t = list_of(m->tables.kept.next, struct table, link);

		list_remove(&t->link);
		free(t);
	}
	m->place = m->tables.defined = (struct placement){.primary = NULL};
}

enum shard_status tables_read(struct model *m, const Shard__Tables *sent, struct placement *p,
			      struct err *e)
{
	size_t bytes = tablewire_bytes(sent);
	void *room = malloc(bytes);
	enum shard_status st;
	struct placement is;
	struct arena a;

	if (room == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for tables of %u chunks",
			       m->layout->chunks_nr);
	arena_init(&a, room, bytes);
	st = tablewire_unpack(sent, m->layout->chunks_nr, m->server->nodes_nr, &a, &is, e);
	if (st == SHARD_OK)
		st = tables_take(m, &is, e);
	if (st == SHARD_OK)
		*p = is;
	free(room);
	return st;
}

/* --- what the memory is made for --- */

static enum shard_status take_definition(struct model *m, struct err *e)
{
	struct placement p;
	enum shard_status st = placing_read(&p, m->spec, m->layout->chunks_nr, m->server->nodes_nr,
					    m->set.replicas, e);
	struct placement read = p;

	if (st == SHARD_OK)
		st = tables_take(m, &p, e);
	placing_free(&read);
	if (st != SHARD_OK)
		return st;
	m->tables.defined = p;
	/* Until the core has a view. */
	m->tables.defined.gone = m->spec->members != 0 ? ~m->spec->members : 0;
	return SHARD_OK;
}

/* Those that the core of the process before had adopted. */
static enum shard_status take_found(struct model *m, const struct meta_found *found, struct err *e)
{
	struct core_warm_view view;
	struct placement p;
	enum shard_status st;
	struct arena a;
	size_t bytes;
	void *room;

	/* What is wrong with the core is said when it is loaded. */
	if (found->core == NULL || !core_warm_view(found->core, found->core_bytes, &view) ||
	    view.place == m->tables.defined.sum)
		return SHARD_OK;
	bytes = meta_tables_bytes(m->layout->chunks_nr);
	if ((room = malloc(bytes)) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for tables of %u chunks",
			       m->layout->chunks_nr);
	arena_init(&a, room, bytes);
	st = meta_found_tables(found, view.place, m->layout->chunks_nr, m->server->nodes_nr, &a, &p,
			       e);
	if (st == SHARD_OK)
		st = tables_take(m, &p, e);
	if (st == SHARD_OK)
		m->place = p;
	free(room);
	return st;
}

enum shard_status tables_begin(struct model *m, const struct core_view *view,
			       const struct meta_found *found, struct err *e)
{
	enum shard_status st;

	list_init(&m->tables.kept);
	if ((st = take_definition(m, e)) != SHARD_OK)
		return st;
	m->place = m->tables.defined;
	if (found != NULL) {
		st = take_found(m, found, e);
	} else if (view != NULL) {
		m->place = view->place;
		if ((st = tables_take(m, &m->place, e)) != SHARD_OK)
			m->place = m->tables.defined;
		/* No view is adopted yet. */
		m->place.learns = m->place.moves = m->place.gone = 0;
	} else if (m->spec->tables != NULL) {
		st = tables_read(m, m->spec->tables, &m->place, e);
	}
	if (m->spec->tables != NULL)
		shard__tables__free_unpacked(m->spec->tables, NULL);
	m->spec->tables = NULL;
	return st;
}

/* --- sending --- */

Shard__Tables *tables_for_model(const struct model *m, struct arena *a, Shard__Tables *out)
{
	const struct placement *p = m->core != NULL ? core_newest_place(m->core) : &m->place;

	if (p->sum == m->tables.defined.sum || tablewire_pack(p, a, out) != SHARD_OK)
		return NULL;
	return out;
}

bool tables_may_send(struct model *m, uint16_t node, const struct core_view *view)
{
	struct server *s = m->server;
	struct peer *p = s->peer[node];
	bool moved, tuned;

	if (view == NULL)
		return true;
	moved = view->place.sum != m->tables.defined.sum && !peer_knows(p, WIRE_MOVES);
	tuned = tune_has_hyper(&view->tune) && !peer_knows(p, WIRE_HYPER);
	if (!moved && !tuned)
		return true;
	log_limited(s->log, &p->bucket, clock_ns(), LOG_LEVEL_ERROR,
		    "event=view_not_sent model=%s node=%s why=%s", m->name, members_name(s, node),
		    moved ? "the release there is older and cannot take a view whose chunks have "
			    "moved: upgrade that node"
			  : "the release there is older and cannot take hyper-parameters that were "
			    "set: upgrade that node");
	return false;
}
