/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of data/ share, which all of them call. Sizes come from the layout, which was
 * checked when the model was made. What fails is a frame that does not fit them. m->attempt.busy
 * counts the jobs and frames that read arenas, slots or sums. When the last one ends, the layer
 * above is told, which may then free or reuse that memory. */
#include "data/data.h"

#include "base/check.h"
#include "base/clock.h"
#include "data/apply.h"
#include "data/events.h"
#include "data/grad.h"
#include "data/model.h"
#include "data/trainer.h"
#include "link/session.h"
#include "wire/ops.h"

#include <stdlib.h>

uint64_t data_bytes(const struct model *m, uint32_t chunk, uint32_t elem_bytes)
{
	CHECK(elem_bytes > 0);
	return (uint64_t)layout_chunk_elems(m->layout, chunk) * elem_bytes;
}

uint32_t data_parts(uint64_t bytes)
{
	return (uint32_t)((bytes + WIRE_PART_BYTES - 1) / WIRE_PART_BYTES);
}

uint32_t data_parts_max(const struct model *m)
{
	return data_parts((uint64_t)m->layout->chunk_elems * m->grad_bytes);
}

uint32_t data_part_bytes(uint64_t bytes, uint32_t part)
{
	uint64_t at = (uint64_t)part * WIRE_PART_BYTES;

	if (at >= bytes)
		return 0;
	return (uint32_t)(bytes - at < WIRE_PART_BYTES ? bytes - at : WIRE_PART_BYTES);
}

/* A lone image moves its versions with every step, also with a skipped one. Of two images each says
 * which step wrote it, and a skip changes nothing. */
uint64_t data_version(const struct model *m)
{
	return m->set.max_staleness > 0 ? m->content_step : m->step;
}

void data_head(const struct model *m, struct wire_head *h, uint16_t op, const struct core_id *id)
{
	*h = (struct wire_head){.op = op, .model = m->id, .generation = m->generation};
	if (id == NULL)
		return;
	h->generation = id->generation;
	h->term = id->term;
	h->seq = id->seq;
	h->step = id->step;
	h->attempt = id->attempt;
}

/* --- queues to other nodes --- */

static enum shard_status more_queues(struct model *m, struct send_queue **out, uint16_t nodes_nr,
				     const struct send_source *source, uint32_t cap, struct err *e)
{
	uint32_t each = m->server->conf->connections;
	enum shard_status st = SHARD_OK;

	if (*out == NULL && (*out = calloc((size_t)CORE_NODES_MAX * each, sizeof(**out))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the frames of \"%s\"", m->name);
	for (uint32_t i = 0; i < nodes_nr * each && st == SHARD_OK; i++) {
		if ((*out)[i].ring != NULL)
			continue;
		if ((st = send_queue_init(&(*out)[i], m, source, cap, e)) == SHARD_OK)
			(*out)[i].peer = m->server->peer[i / each];
	}
	return st;
}

enum shard_status data_more_nodes(struct model *m, uint16_t nodes_nr, struct err *e)
{
	uint32_t chunks = m->layout->chunks_nr;
	enum shard_status st;

	CHECK(nodes_nr >= m->memory.nodes_nr && nodes_nr <= CORE_NODES_MAX);
	if ((st = more_queues(m, &m->attempt.out, nodes_nr, &contrib_chunks, chunks, e)) !=
		    SHARD_OK ||
	    (st = more_queues(
		     m, &m->img.out, nodes_nr, &apply_images,
		     chunks * (1 + m->set.max_staleness + (m->set.image_codec != QUANT_NONE)),
		     e)) != SHARD_OK)
		return st;
	return more_queues(m, &m->reduced.out, nodes_nr, &grad_chunks, chunks, e);
}

void data_node_added(struct model *m, uint16_t node)
{
	uint32_t each = m->server->conf->connections;

	CHECK(node < m->memory.nodes_nr);
	for (uint32_t i = node * each; i < (node + 1u) * each; i++)
		m->attempt.out[i].peer = m->img.out[i].peer = m->reduced.out[i].peer =
			m->server->peer[node];
}

void data_free_queues(struct model *m)
{
	struct send_queue *const all[] = {m->attempt.out, m->img.out, m->reduced.out};
	uint32_t nr = CORE_NODES_MAX * m->server->conf->connections;

	for (size_t k = 0; k < NR(all); k++) {
		for (uint32_t i = 0; all[k] != NULL && i < nr; i++)
			if (all[k][i].ring != NULL)
				send_queue_free(&all[k][i]);
		free(all[k]);
	}
	m->attempt.out = m->img.out = m->reduced.out = NULL;
}

/* --- gradients in parts --- */

/* The place of a chunk in a set of parts. */
static size_t parts_at(const struct model *m, size_t row, uint32_t chunk)
{
	return row * m->layout->chunks_nr + chunk;
}

bool data_part_absent(const struct model *m, uint32_t chunk, const uint8_t *absent, uint32_t part)
{
	const struct layout *l = m->layout;
	uint32_t per = WIRE_PART_BYTES / m->grad_bytes, from = part * per, to = from + per;

	for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++)
		if (!absent[s] && l->segment[s].start < to &&
		    l->segment[s].start + l->segment[s].n > from)
			return false;
	return true;
}

enum shard_status data_check_whole(const struct model *m, uint32_t chunk, uint64_t bytes,
				   const struct parts *set, size_t row, const uint8_t *absent,
				   struct err *e)
{
	uint32_t nr = data_parts(bytes);
	size_t at = parts_at(m, row, chunk);

	for (uint32_t p = 0; p < nr; p++) {
		bool present = absent == NULL || !data_part_absent(m, chunk, absent, p);

		if (present && !parts_here(set, at, p))
			return err_set(e, SHARD_MISSING, "chunk %u closed without part %u of %u",
				       chunk, p, nr);
		if (!present && parts_begun(set, at, p))
			return err_set(e, SHARD_PROTOCOL,
				       "chunk %u closed: part %u came, but its tensors are absent",
				       chunk, p);
	}
	return SHARD_OK;
}

enum shard_status data_mark_absent(const struct model *m, uint32_t chunk, const uint32_t *tensor,
				   size_t tensors_nr, uint8_t *absent, struct err *e)
{
	const struct layout *l = m->layout;
	uint32_t s = l->chunk_segment[chunk];

	if (tensors_nr > l->chunk_segment[chunk + 1] - l->chunk_segment[chunk])
		return err_set(e, SHARD_PROTOCOL,
			       "%zu tensors are absent from chunk %u, which has %u", tensors_nr,
			       chunk, l->chunk_segment[chunk + 1] - l->chunk_segment[chunk]);
	for (size_t i = 0; i < tensors_nr; i++) {
		if (!layout_find_segment(l, chunk, tensor[i], &s))
			return err_set(e, SHARD_PROTOCOL,
				       "tensor %u is absent from chunk %u, where it has no element",
				       tensor[i], chunk);
		absent[s] = true;
	}
	return SHARD_OK;
}

enum shard_status data_attempt(const struct model *m, const struct wire_head *h, struct err *e)
{
	struct core_id id = {h->term, h->step, h->seq, h->generation, h->attempt};
	int order = core_id_cmp(&id, &m->attempt.id);

	if (order < 0 || (order == 0 && !m->attempt.on))
		return SHARD_STALE;
	if (order > 0)
		return err_set(e, SHARD_PROTOCOL,
			       "step %lu attempt %u of \"%s\", which has not begun: this is step "
			       "%lu attempt %u",
			       (unsigned long)h->step, h->attempt, m->name,
			       (unsigned long)m->attempt.id.step, m->attempt.id.attempt);
	if (h->chunk >= m->layout->chunks_nr)
		return err_set(e, SHARD_RANGE, "chunk %u of \"%s\", which has %u", h->chunk,
			       m->name, m->layout->chunks_nr);
	return SHARD_OK;
}

enum shard_status data_take_part(const struct model *m, const struct wire_head *h, uint64_t bytes,
				 struct parts *set, size_t row, struct err *e)
{
	uint32_t part = WIRE_PART(h->flags), nr = data_parts(bytes);

	CHECK(h->chunk < m->layout->chunks_nr);
	if (part >= nr || h->body_bytes != data_part_bytes(bytes, part))
		return err_set(
			e, SHARD_RANGE,
			"part %u (%u bytes) of chunk %u: it has %u parts of at most %u bytes", part,
			h->body_bytes, h->chunk, nr, WIRE_PART_BYTES);
	if (!parts_begin(set, parts_at(m, row, h->chunk), part))
		return err_set(e, SHARD_DUPLICATE, "part %u of chunk %u came twice", part,
			       h->chunk);
	return SHARD_OK;
}

void data_part_came(const struct model *m, const struct wire_head *h, struct parts *set, size_t row)
{
	parts_came(set, parts_at(m, row, h->chunk), WIRE_PART(h->flags));
}

/* --- counting --- */

void data_flow_add(struct model_flow *f, uint32_t bytes)
{
	f->ended_ns = clock_ns();
	f->bytes += bytes;
	f->total += bytes;
	if (f->began_ns == 0)
		f->began_ns = f->ended_ns;
}

uint32_t data_jobs_max(const struct model *m)
{
	return 32 * m->tier->row->lanes(m->tier);
}

void data_release(struct model *m)
{
	CHECK(m->attempt.busy > 0);
	if (--m->attempt.busy == 0)
		m->server->data->drained(m);
}

void data_leaves(struct model *m)
{
	m->attempt.busy++;
	m->attempt.leaving++;
}

void data_left(struct model *m)
{
	CHECK(m->attempt.leaving > 0);
	m->attempt.leaving--;
	data_release(m);
	if (m->attempt.leaving == 0)
		m->server->data->left(m);
}

struct trainer *trainer_find(struct server *s, uint64_t id)
{
	list_each(it, &s->conns.sessions) {
		struct session *t = list_of(it, struct session, link);

		if (t->trainer->model != NULL && t->trainer->id == id)
			return t->trainer;
	}
	return NULL;
}

void model_attempt_check(const struct model *m)
{
	const struct model_attempt *a = &m->attempt;

	CHECK(!a->on || a->id.generation == m->generation);
	CHECK(!a->drain_due || a->busy > 0);
	CHECK(!a->on || (a->world.size > 0 && a->world.size <= m->set.max_world));
}

void model_image_check(const struct model *m)
{
	const struct model_image *i = &m->img;
	uint32_t chunks = m->layout->chunks_nr, held = store_owned(m->store);

	CHECK(i->slot < 2 && (i->slot == 0 || m->set.max_staleness > 0));
	CHECK(i->apply_left <= held && i->staged_later_nr <= chunks);
	CHECK(i->lacking <= i->others && i->old_lacking <= chunks);
	CHECK(m->sealed || (i->lacking == 0 && i->old_lacking == 0));
	CHECK(!i->applying || m->sealed);
	CHECK(m->content_old <= m->content_step && m->content_step <= m->step);
}
