/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the disk of each step. apply.c and model.c call it between two steps. Happy path: what the
 * core, the mark and the blobs are now is copied, the tier writes what is dirty and then a
 * superblock with that copy, and the vote for the next step may leave. Trainers compute meanwhile.
 * So a step is told to trainers when it is decided, and outlives a loss of power when the next one
 * is decided. What the disk has already is not written again: until the disks of all nodes have a
 * step, each keeps the one before, because all may have to go back to it (core/back.h). If the
 * weights are lost meanwhile, the file counts as it was. If the disk fails, the
 * tier says so. */
#include "data/durable.h"

#include "base/check.h"
#include "data/model.h"
#include "store/tier_nvme.h"

static void committed(void *model, bool whole)
{
	struct model *m = model;
	bool again = m->memory.durable.again;

	CHECK(m->memory.durable.busy);
	m->memory.durable.busy = m->memory.durable.again = false;
	if (whole)
		m->memory.durable.has = m->memory.durable.at;
	if (again)
		durable_begin(m, m->memory.durable.done);
	m->memory.durable.done(m);
}

void durable_begin(struct model *m, void (*done)(struct model *m))
{
	uint8_t *to;

	if (!m->set.nvme_durable || !m->sealed || m->dropping || m->memory.ends)
		return;
	if (m->memory.durable.busy) {
		m->memory.durable.again = true;
		return;
	}
	/* After LOST there may be other weights by now. They come here when they are whole. */
	if (m->img.applying || m->img.apply_left > 0)
		return;
	if (core_id_cmp(&m->memory.durable.has, &m->meta.mark.id) == 0 ||
	    (to = tier_nvme_payload(m->tier)) == NULL)
		return;
	CHECK(meta_persistent(&m->meta));
	m->memory.durable.done = done;
	meta_pack(&m->meta, to);
	m->memory.durable.busy = true;
	m->memory.durable.at = m->meta.mark.id;
	tier_nvme_commit(m->tier, m->meta.mark.step, committed, m);
}

void durable_found(struct model *m, const void *packed, uint64_t bytes)
{
	struct meta_mark mark;

	if (meta_packed_mark(packed, bytes, &mark))
		m->memory.durable.has = mark.id;
}

void durable_lost(struct model *m)
{
	m->memory.durable.again = false;
	m->memory.durable.at = m->memory.durable.has = (struct core_id){.step = 0};
}
