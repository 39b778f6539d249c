/* SPDX-License-Identifier: Apache-2.0 */
/* A node that was away, or that comes back without its memory, gets its copies here. model.c starts
 * it for CORE_ACT_LEARN, apply.c asks which chunks take part in a record, and dispatch.c brings the
 * frames. Happy path: the node asks each primary for one chunk (COPY_ASK). At a boundary the
 * primary copies masters, moments, and the blobs that go with the chunk into a buffer and sends it
 * in parts (COPY_DATA), in turn with the frames of the steps. The last part makes the copy
 * complete, at the record of the primary. From then on each record is applied to it, because its
 * gradient comes here as to any holder. When all chunks and their images are at the last record,
 * the core is told. A copy that arrives after its record was followed by another is of no use, and
 * is asked for again. After a few times the next vote waits for it, so that it comes to an end.
 * What does not come is asked for again each second. A lost link only costs the chunk in hand. */
#include "data/catchup.h"

#include "base/check.h"
#include "base/clock.h"
#include "data/blobs.h"
#include "data/data.h"
#include "data/events.h"
#include "data/deltas.h"
#include "data/images.h"
#include "data/model.h"
#include "link/peer.h"
#include "store/hold.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CATCHUP_NONE   UINT64_MAX
#define CATCHUP_NOBODY UINT32_MAX
#define CATCHUP_ASK_NS NS_PER_SEC
#define CATCHUP_GAPS   3 /* So many copies of a chunk come too late before a vote waits. */

struct fetch { /* From one primary. */
	struct model *m;
	struct tier_pin pin; /* Of the chunk, as long as it is asked for. */
	uint16_t node;
	uint32_t chunk;    /* CATCHUP_NOBODY: nothing is asked for. */
	uint32_t part;     /* The next part. */
	struct core_id id; /* Of the parts so far. */
	uint64_t heard_ns; /* When it was asked, or the last part came. */
	uint32_t gaps;     /* How many copies of this chunk came too late. */
};

struct copying { /* To one node that catches up. */
	struct lane_sender sender;
	struct model *m;
	struct tier_pin pin; /* Of .asked, until it is copied. */
	uint16_t node;
	uint32_t asked;    /* CATCHUP_NOBODY: nothing. */
	uint32_t chunk;    /* What .from is a copy of. */
	uint8_t *from;     /* NULL: nothing is being sent. */
	struct core_id id; /* Of the record that .from is a copy of. */
	uint32_t next, parts;
	const uint8_t *blob; /* In .from: the next one to send. */
	uint32_t flying;     /* Frames that still read .from. */
	bool over;           /* Send no more of it. */
};

struct catchup {
	bool on;
	uint32_t missing; /* Chunks that are not at m->record. */
	uint64_t *at;     /* [chunks_nr] The step whose weights the copy has. CATCHUP_NONE: none. */
	uint8_t *own;     /* [chunks_nr] This node makes its image. */
	bool due;         /* .record waits for the images to be made again. */
	struct record record;
	uint64_t told; /* The step at which the layer above was told. CATCHUP_NONE: it was not. */
	struct fetch fetch[CORE_NODES_MAX];
	struct copying to[CORE_NODES_MAX];
};

static const struct lane_sender_ops copying_ops;
static void fetch_pinned(struct tier_pin *p);
static void copying_pinned(struct tier_pin *p);

/* --- parts of a copy: the master, then each moment, each cut into parts of its own, then the
 *     blobs --- */

static uint32_t array_parts(const struct model *m, uint32_t chunk)
{
	return data_parts(data_bytes(m, chunk, sizeof(float)));
}

static float *array_at(const struct model *m, uint32_t chunk, uint32_t i)
{
	return i == 0 ? store_master(m->store, chunk) : store_state(m->store, chunk, i - 1);
}

/* How many arrays the chunk has. A chunk whose tensors are all frozen has no moments. */
static uint32_t arrays_nr(const struct model *m, uint32_t chunk)
{
	return 1 + store_states(m->store, chunk);
}

static uint32_t copy_parts(const struct model *m, uint32_t chunk)
{
	return array_parts(m, chunk) * arrays_nr(m, chunk) + blobs_parts(m, chunk);
}

/* --- the node that catches up --- */

enum shard_status catchup_init(struct model *m, struct err *e)
{
	uint32_t chunks = m->layout->chunks_nr;
	struct catchup *l;

	if ((l = calloc(1, sizeof(*l))) == NULL)
		goto none;
	m->catchup = l;
	l->at = calloc(chunks, sizeof(*l->at));
	l->own = calloc(chunks, sizeof(*l->own));
	if (l->at == NULL || l->own == NULL)
		goto none;
	for (uint16_t n = 0; n < CORE_NODES_MAX; n++) {
		l->fetch[n] = (struct fetch){.m = m,
					     .pin = {.writes = true, .done = fetch_pinned},
					     .node = n,
					     .chunk = CATCHUP_NOBODY};
		l->to[n] = (struct copying){
			.m = m, .pin.done = copying_pinned, .node = n, .asked = CATCHUP_NOBODY};
		l->to[n].sender.ops = &copying_ops;
		list_init(&l->to[n].sender.link);
	}
	return SHARD_OK;
none:
	catchup_free(m);
	return err_set(e, SHARD_SYSTEM, "no memory to keep track of the copies of \"%s\"", m->name);
}

void catchup_free(struct model *m)
{
	struct catchup *l = m->catchup;

	m->catchup = NULL;
	if (l == NULL)
		return;
	for (uint16_t n = 0; n < CORE_NODES_MAX; n++) {
		CHECK(l->to[n].flying == 0);
		tier_unpin(m->tier, &l->to[n].pin);
		tier_unpin(m->tier, &l->fetch[n].pin);
		if (l->to[n].sender.ops != NULL && !list_empty(&l->to[n].sender.link))
			list_remove(&l->to[n].sender.link);
		free(l->to[n].from);
	}
	free(l->at);
	free(l->own);
	free(l);
}

static bool learns(const struct model *m)
{
	return m->catchup != NULL && m->catchup->on;
}

/* Has this node memory for the chunk, and no copy that counts, by that placement? */
static bool fetches_by(const struct model *m, const struct placement *p, uint32_t chunk)
{
	return place_keeps(p, chunk, m->server->self) && !place_holds(p, chunk, m->server->self);
}

static bool fetches(const struct model *m, uint32_t chunk)
{
	return fetches_by(m, &m->place, chunk);
}

static void count_missing(struct model *m)
{
	struct catchup *l = m->catchup;

	l->missing = 0;
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
		l->missing += fetches(m, c) && l->at[c] != m->step;
}

static void ask(struct model *m, uint16_t node)
{
	struct fetch *f = &m->catchup->fetch[node];
	struct wire_head h;

	data_head(m, &h, OP_COPY_ASK, &m->record.id);
	h.chunk = f->chunk;
	f->heard_ns = clock_ns();
	/* If the link is down, it is asked again when the link is up. */
	(void)peer_send(m->server, node, &h, NULL, NULL);
}

static void fetch_end(struct fetch *f)
{
	f->chunk = CATCHUP_NOBODY;
	tier_unpin(f->m->tier, &f->pin);
}

static void fetch_pinned(struct tier_pin *p)
{
	struct fetch *f = list_of(p, struct fetch, pin);

	ask(f->m, f->node);
}

/* The chunk is asked for when there is a place to write it to. */
static void fetch_begin(struct fetch *f, uint32_t chunk)
{
	CHECK(f->chunk == CATCHUP_NOBODY);
	f->chunk = f->pin.chunk = chunk;
	f->part = f->gaps = 0;
	f->heard_ns = clock_ns();
	hold_break(f->m->store, chunk); /* It may have been held here when a save began. */
	if (tier_pin(f->m->tier, &f->pin))
		ask(f->m, f->node);
}

/* Asks each primary for a chunk, if it owes none. */
static void ask_all(struct model *m)
{
	struct catchup *l = m->catchup;
	uint64_t asked = 1ull << m->server->self;

	if (!m->sealed)
		return; /* Nobody has weights. */
	for (uint16_t n = 0; n < m->server->nodes_nr; n++)
		if (l->fetch[n].chunk != CATCHUP_NOBODY)
			asked |= 1ull << n;
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++) {
		uint16_t n = place_primary(&m->place, c);

		if (!fetches(m, c) || l->at[c] != CATCHUP_NONE || n >= CORE_NODES_MAX ||
		    asked >> n & 1)
			continue;
		asked |= 1ull << n;
		fetch_begin(&l->fetch[n], c);
	}
}

static void ask_nobody(struct catchup *l)
{
	for (uint16_t n = 0; n < CORE_NODES_MAX; n++)
		fetch_end(&l->fetch[n]);
}

void catchup_start(struct model *m, bool anew)
{
	struct catchup *l = m->catchup;
	uint32_t nr = 0;

	CHECK(l != NULL);
	l->on = true;
	l->due = false;
	l->told = CATCHUP_NONE;
	ask_nobody(l);
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++) {
		if (!anew && fetches(m, c) && l->at[c] == m->step)
			continue;
		l->at[c] = CATCHUP_NONE;
		l->own[c] = 0;
		if (!fetches(m, c))
			continue;
		blobs_forget(m, c); /* They come with the chunk. */
		nr++;
	}
	l->missing = nr;
	log_line(m->server->log, LOG_LEVEL_INFO, "event=learning model=%s step=%lu chunks=%u",
		 m->name, (unsigned long)m->step, nr);
	ask_all(m);
}

/* A copy that counted until now is that of m->record. One that is new is not here. Of the others
 * nothing changes. */
static bool placed_chunk(struct model *m, const struct placement *before, bool caught, uint32_t c)
{
	struct catchup *l = m->catchup;
	uint16_t self = m->server->self;
	bool here = place_holds(before, c, self) || (l->on && l->own[c]);

	if (place_keeps(before, c, self) && !place_keeps(&m->place, c, self))
		blobs_forget(m, c);
	if (!fetches(m, c)) {
		l->own[c] = 0;
		l->at[c] = CATCHUP_NONE;
		return false;
	}
	if (fetches_by(m, before, c))
		return true;
	l->own[c] = here && (!m->again || caught);
	l->at[c] = l->own[c] ? m->step : CATCHUP_NONE;
	return true;
}

void catchup_placed(struct model *m, const struct placement *before, bool caught)
{
	struct catchup *l = m->catchup;
	bool was = l->on, any = false;

	for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
		any |= placed_chunk(m, before, caught, c);
	l->on = any;
	if (!any) {
		l->due = false;
		ask_nobody(l);
		if (was && m->sealed)
			log_line(m->server->log, LOG_LEVEL_INFO, "event=learned model=%s step=%lu",
				 m->name, (unsigned long)m->step);
		return;
	}
	l->told = CATCHUP_NONE;
	count_missing(m);
	/* Who was asked may not be the primary any more, or the chunk not wanted. */
	for (uint16_t n = 0; n < CORE_NODES_MAX; n++) {
		uint32_t c = l->fetch[n].chunk;

		if (c != CATCHUP_NOBODY && (place_primary(&m->place, c) != n || !fetches(m, c) ||
					    l->at[c] != CATCHUP_NONE))
			fetch_end(&l->fetch[n]);
	}
	if (was)
		ask_all(m); /* Else it is asked when the core says from which record on. */
}

void catchup_later(struct model *m, const struct record *r)
{
	CHECK(m->catchup != NULL);
	m->catchup->due = true;
	m->catchup->record = *r;
}

const struct record *catchup_due(struct model *m)
{
	if (m->catchup == NULL || !m->catchup->due)
		return NULL;
	m->catchup->due = false;
	return &m->catchup->record;
}

bool catchup_has(const struct model *m, uint32_t chunk)
{
	return place_holds(&m->place, chunk, m->server->self) ||
	       (learns(m) && m->catchup->own[chunk] && fetches(m, chunk));
}

bool catchup_will(const struct model *m, uint32_t chunk)
{
	return learns(m) && fetches(m, chunk) && !m->catchup->own[chunk] &&
	       m->catchup->at[chunk] == m->step;
}

uint32_t catchup_count(const struct model *m)
{
	uint32_t nr = 0;

	for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
		nr += store_holds(m->store, c) && catchup_has(m, c);
	return nr;
}

/* Has the image before the record that is being applied not come yet? Of two images trainers still
 * need it, and nobody sends it to a node that makes the images of the chunk itself. With codes the
 * new image is made of it. */
static bool lacks_older(const struct model *m, uint32_t chunk)
{
	if (m->img.coded && (!deltas_based(m, chunk) || deltas_busy(m, chunk)))
		return true;
	return m->set.max_staleness > 0 && m->content_old != m->content_step &&
	       store_image_chunk(m->store, m->img.slot ^ 1, chunk) != m->content_old;
}

void catchup_record(struct model *m, uint64_t before, bool skip)
{
	struct catchup *l = m->catchup;

	if (!learns(m))
		return;
	l->told = CATCHUP_NONE;
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++) {
		if (!fetches(m, c))
			continue;
		if (l->at[c] == before && (skip || l->own[c] || !lacks_older(m, c))) {
			l->at[c] = m->step;
			l->own[c] |= !skip;
		} else if (l->at[c] != m->step) { /* It may have come before its record did. */
			l->at[c] = CATCHUP_NONE;
			l->own[c] = 0;
		}
	}
	count_missing(m);
}

/* The images of other chunks come from other nodes before and after. They do not matter here. */
bool catchup_caught(const struct model *m)
{
	if (!learns(m) || m->catchup->missing > 0 || m->img.applying)
		return false;
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
		if (fetches(m, c) &&
		    (store_image_chunk(m->store, m->img.slot, c) != data_version(m) ||
		     images_lacks_old(m, c)))
			return false;
	return true;
}

void catchup_tell(struct model *m)
{
	if (!learns(m) || m->catchup->told == m->step || !catchup_caught(m))
		return;
	m->catchup->told = m->step;
	m->server->data->learned(m);
}

bool catchup_holds(const struct model *m)
{
	if (!learns(m))
		return false;
	for (uint16_t n = 0; n < m->server->nodes_nr; n++) {
		const struct fetch *f = &m->catchup->fetch[n];

		if (f->chunk != CATCHUP_NOBODY && f->part > 0 && f->gaps >= CATCHUP_GAPS)
			return true;
	}
	return false;
}

void catchup_beat(struct model *m, uint64_t now_ns)
{
	if (m->catchup == NULL)
		return;
	catchup_serve(m);
	if (!learns(m))
		return;
	for (uint16_t n = 0; n < m->server->nodes_nr; n++) {
		const struct fetch *f = &m->catchup->fetch[n];

		if (f->pin.at == TIER_PINNED && now_ns - f->heard_ns > CATCHUP_ASK_NS)
			ask(m, n);
	}
	ask_all(m);
	catchup_tell(m);
}

void catchup_progress(const struct model *m, uint32_t *here, uint32_t *all)
{
	*all = *here = 0;
	for (uint32_t c = 0; learns(m) && c < m->layout->chunks_nr; c++) {
		*all += fetches(m, c);
		*here += fetches(m, c) && m->catchup->at[c] != CATCHUP_NONE;
	}
}

/* The last part of a chunk has come, of the record id. */
static void complete(struct model *m, struct fetch *f, uint16_t node)
{
	struct catchup *l = m->catchup;
	uint32_t chunk = f->chunk;
	uint64_t step = f->id.step;

	if (step != m->step && step != m->step + 1) { /* It has missed a record. */
		f->gaps++;
		f->part = 0;
		ask(m, node);
		return;
	}
	l->at[chunk] = step;
	l->missing -= step == m->step;
	/* They may have come when there was no memory for the chunk. */
	if (images_has_old(m, chunk))
		deltas_fetched(m, m->img.slot ^ 1, chunk, m->content_old);
	if (images_here(m, chunk))
		deltas_fetched(m, m->img.slot, chunk, data_version(m));
	fetch_end(f);
	ask_all(m);
	catchup_tell(m);
}

static enum shard_status take_part(struct model *m, const struct wire_head *h, uint32_t part,
				   const void *body, struct err *e)
{
	uint32_t each = array_parts(m, h->chunk), of = part / each, arrays = arrays_nr(m, h->chunk);

	if (part >= copy_parts(m, h->chunk) ||
	    (of < arrays &&
	     h->body_bytes != data_part_bytes(data_bytes(m, h->chunk, sizeof(float)), part % each)))
		return err_set(e, SHARD_PROTOCOL,
			       "part %u (%u bytes) of a copy of chunk %u of \"%s\": no such part",
			       part, h->body_bytes, h->chunk, m->name);
	if (of >= arrays)
		return blobs_copy_take(m, h, part - arrays * each, body, e);
	CHECK(m->catchup->at[h->chunk] == CATCHUP_NONE && !m->catchup->own[h->chunk]);
	memcpy((char *)array_at(m, h->chunk, of) + (size_t)(part % each) * WIRE_PART_BYTES, body,
	       h->body_bytes);
	return SHARD_OK;
}

enum shard_status catchup_part(struct model *m, struct peer *p, const struct wire_head *h,
			       const void *body, struct err *e)
{
	struct core_id id = {h->term, h->step, h->seq, h->generation, h->attempt};
	uint32_t part = WIRE_PART(h->flags);
	enum shard_status st;
	struct fetch *f;

	if (!learns(m) || h->generation != m->generation)
		return SHARD_OK;
	f = &m->catchup->fetch[p->node];
	/* It was asked for by an earlier question, or its beginning was missed. */
	if (f->pin.at != TIER_PINNED || f->chunk != h->chunk || !store_holds(m->store, h->chunk) ||
	    (part > 0 && (part != f->part || core_id_cmp(&id, &f->id) != 0)))
		return SHARD_OK;
	if ((st = take_part(m, h, part, body, e)) != SHARD_OK)
		return st;
	f->id = id;
	f->part = part + 1;
	f->heard_ns = clock_ns();
	if (f->part == copy_parts(m, h->chunk))
		complete(m, f, p->node);
	return SHARD_OK;
}

/* --- the primary --- */

static void copying_end(struct copying *c)
{
	c->over = true;
	if (!list_empty(&c->sender.link))
		list_remove(&c->sender.link);
	if (c->flying > 0)
		return;
	free(c->from);
	c->from = NULL;
	c->over = false;
}

static void sent(void *arg, enum shard_status st)
{
	struct copying *c = arg;
	struct model *m = c->m;

	CHECK(c->flying > 0);
	c->flying--;
	if (st != SHARD_OK)
		c->over = true;
	if (c->flying == 0 && (c->over || c->next == c->parts))
		copying_end(c);
	data_release(m);
}

static struct lane *copying_where(struct lane_sender *s)
{
	struct copying *c = list_of(s, struct copying, sender);
	struct peer *p = c->m->server->peer[c->node];

	if (c->over || c->m->dropping || c->from == NULL || c->next == c->parts || p == NULL ||
	    !p->up)
		return NULL;
	return &p->conns[c->chunk % c->m->server->conf->connections].lane;
}

static enum shard_status copying_send(struct lane_sender *s, struct lane *l)
{
	struct copying *c = list_of(s, struct copying, sender);
	const struct model *m = c->m;
	uint32_t each = array_parts(m, c->chunk), part = c->next % each, body_bytes;
	uint64_t bytes = (uint64_t)layout_chunk_elems(m->layout, c->chunk) * sizeof(float);
	const uint8_t *body, *blob = c->blob;
	struct wire_head h;
	enum shard_status st;

	if (c->over || c->next == c->parts || l->conn == NULL)
		return SHARD_OK;
	data_head(m, &h, OP_COPY_DATA, &c->id);
	h.chunk = c->chunk;
	h.flags = WIRE_PART_FLAG(c->next);
	if (c->next >= each * arrays_nr(m, c->chunk)) {
		body = blobs_copy_next(&blob, &body_bytes);
	} else {
		body = c->from + c->next / each * bytes + (size_t)part * WIRE_PART_BYTES;
		body_bytes = data_part_bytes(data_bytes(m, c->chunk, sizeof(float)), part);
	}
	st = stream_send(conn_stream(l->conn), &h, body, body_bytes, sent, c);
	if (st != SHARD_OK)
		return st;
	c->blob = blob;
	c->next++;
	c->flying++;
	c->m->attempt.busy++;
	return SHARD_OK;
}

static void copying_describe(const struct lane_sender *s, char *text, size_t bytes)
{
	const struct copying *c =
		list_of((struct lane_sender *)(uintptr_t)s, struct copying, sender);

	snprintf(text, bytes, "a copy of chunk %u of \"%s\"", c->chunk, c->m->name);
}

static const struct lane_sender_ops copying_ops = {
	.send = copying_send,
	.where = copying_where,
	.describe = copying_describe,
};

/* Copies the chunk as it is after the last record. Nothing is being applied. */
static void copying_begin(struct copying *c)
{
	struct model *m = c->m;
	uint64_t bytes = (uint64_t)layout_chunk_elems(m->layout, c->asked) * sizeof(float);
	uint32_t nr = arrays_nr(m, c->asked);

	CHECK(c->from == NULL && c->flying == 0 && list_empty(&c->sender.link));
	if ((c->from = malloc(nr * bytes + blobs_copy(m, c->asked, NULL))) == NULL)
		return; /* The node asks again. */
	for (uint32_t i = 0; i < nr; i++)
		memcpy(c->from + i * bytes, array_at(m, c->asked, i), bytes);
	(void)blobs_copy(m, c->asked, c->from + nr * bytes);
	c->blob = c->from + nr * bytes;
	c->chunk = c->asked;
	c->asked = CATCHUP_NOBODY;
	c->id = m->record.id;
	c->next = 0;
	c->parts = copy_parts(m, c->chunk);
	lane_wait(&c->sender);
}

static void copying_pinned(struct tier_pin *p)
{
	catchup_serve(list_of(p, struct copying, pin)->m);
}

static bool copying_pins(struct copying *c)
{
	if (c->pin.at != TIER_UNPINNED && c->pin.chunk == c->asked)
		return c->pin.at == TIER_PINNED;
	tier_unpin(c->m->tier, &c->pin);
	c->pin.chunk = c->asked;
	return tier_pin(c->m->tier, &c->pin);
}

void catchup_serve(struct model *m)
{
	if (m->catchup == NULL || !m->sealed || m->img.applying || m->img.sealing ||
	    m->memory.settle.on || m->sealed_without > 0 || m->dropping)
		return;
	for (uint16_t n = 0; n < m->server->nodes_nr; n++) {
		struct copying *c = &m->catchup->to[n];
		struct peer *p = m->server->peer[n];

		if (c->asked == CATCHUP_NOBODY || c->from != NULL || p == NULL || !p->up)
			continue;
		if (place_primary(&m->place, c->asked) != m->server->self) {
			c->asked = CATCHUP_NOBODY; /* Not any more. It asks who is. */
			tier_unpin(m->tier, &c->pin);
		} else if (copying_pins(c)) {
			copying_begin(c);
			tier_unpin(m->tier, &c->pin);
		}
	}
}

enum shard_status catchup_asked(struct model *m, struct peer *p, const struct wire_head *h,
				struct err *e)
{
	struct copying *c;

	if (m->catchup == NULL || h->generation != m->generation)
		return SHARD_OK;
	if (h->chunk >= m->layout->chunks_nr)
		return err_set(e, SHARD_PROTOCOL,
			       "node %s asks for a copy of chunk %u of \"%s\", which has %u",
			       members_name(m->server, p->node), h->chunk, m->name,
			       m->layout->chunks_nr);
	/* A view that this node has not adopted yet may give it memory for the chunk. It asks
	 * again. */
	if (!place_keeps(&m->place, h->chunk, p->node))
		return SHARD_OK;
	c = &m->catchup->to[p->node];
	/* It asks again for what is on its way, because it is slow. */
	if (c->from != NULL && !c->over && c->chunk == h->chunk && c->next < c->parts)
		return SHARD_OK;
	c->asked = h->chunk;
	catchup_serve(m);
	return SHARD_OK;
}

void catchup_lost(struct model *m)
{
	if (m->catchup == NULL)
		return;
	ask_nobody(m->catchup);
	for (uint16_t n = 0; n < CORE_NODES_MAX; n++) {
		m->catchup->to[n].asked = CATCHUP_NOBODY;
		tier_unpin(m->tier, &m->catchup->to[n].pin);
	}
}

void catchup_node_gone(struct model *m, uint16_t node)
{
	if (m->catchup == NULL)
		return;
	m->catchup->to[node].asked = CATCHUP_NOBODY;
	tier_unpin(m->tier, &m->catchup->to[node].pin);
	if (m->catchup->to[node].from != NULL)
		copying_end(&m->catchup->to[node]);
	fetch_end(&m->catchup->fetch[node]);
}

void catchup_node_back(struct model *m, uint16_t node)
{
	(void)node;
	if (learns(m))
		ask_all(m);
}
