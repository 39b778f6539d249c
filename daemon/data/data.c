/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of data/ share, which all of them call. Nothing here fails, because sizes come
 * from the layout, which was checked when the model was made. m->attempt.busy counts the jobs and
 * frames that read arenas, slots or sums. When the last one ends, the layer above is told, which
 * may then free or reuse that memory. */
#include "data/data.h"

#include "base/check.h"
#include "base/clock.h"
#include "data/events.h"
#include "data/trainer.h"
#include "link/session.h"
#include "data/model.h"
#include "wire/ops.h"

uint32_t data_parts(const struct model *m, uint32_t chunk, uint32_t elem_bytes)
{
	uint64_t bytes = (uint64_t)layout_chunk_elems(m->layout, chunk) * elem_bytes;

	CHECK(elem_bytes > 0);
	return (uint32_t)((bytes + WIRE_PART_BYTES - 1) / WIRE_PART_BYTES);
}

uint32_t data_part_bytes(const struct model *m, uint32_t chunk, uint32_t elem_bytes, uint32_t part)
{
	uint64_t bytes = (uint64_t)layout_chunk_elems(m->layout, chunk) * elem_bytes,
		 at = (uint64_t)part * WIRE_PART_BYTES;

	CHECK(elem_bytes > 0);
	if (at >= bytes)
		return 0;
	return (uint32_t)(bytes - at < WIRE_PART_BYTES ? bytes - at : WIRE_PART_BYTES);
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
	CHECK(i->lacking <= chunks - held && i->old_lacking <= chunks - held);
	CHECK(m->sealed || (i->lacking == 0 && i->old_lacking == 0));
	CHECK(!i->applying || m->sealed);
	CHECK(m->content_old <= m->content_step && m->content_step <= m->step);
}
