/* SPDX-License-Identifier: Apache-2.0 */
/* Tracks what a LOAD_PART has read into this node's memory of a model. It counts only for the
 * restore that asked for it. part.c says when a load begins and ends, seal.c asks before it counts
 * weights, and resume.c asks at a warm start. Happy path: the state is READING before the first
 * byte moves and READ after the last one, then the coordinator sends WRITTEN with the tag of its
 * LOAD_PART and seals the model. From READ on the node keeps the bytes even if its link ends,
 * because the seal may already be decided. They are reset by PART_CANCEL, by the next load, by a
 * new generation, or when somebody seals without a restore. The state is also kept in the region
 * that outlives the process, so that a kill in the middle of a load leaves nothing that looks
 * written. */
#include "base/check.h"
#include "ckpt/op.h"
#include "link/peer.h"
#include "wire/ops.h"

#include <stdio.h>

static void load_is(struct model *m, enum meta_load state)
{
	struct meta_mark mark = m->meta.mark;

	CHECK(m->ckpt != NULL && state <= META_LOAD_READ);
	m->ckpt->load.state = state;
	if (!meta_persistent(&m->meta) || mark.load == state)
		return;
	mark.load = state;
	meta_mark(&m->meta, &mark);
}

void ckpt_load_begins(struct model *m, uint16_t requester, uint32_t tag)
{
	CHECK(!m->sealed);
	m->ckpt->load.requester = requester;
	m->ckpt->load.tag = tag;
	load_is(m, META_LOAD_READING);
}

void ckpt_load_superseded(struct model *m, uint16_t requester, uint32_t tag)
{
	if (m->sealed || m->ckpt->load.state == META_LOAD_NONE)
		return;
	ckpt_load_begins(m, requester, tag);
}

/* Does nothing if another load has begun since, or if the memory is to be reset. */
void ckpt_load_read(struct model *m, uint16_t requester, uint32_t tag)
{
	const struct ckpt_load *l = &m->ckpt->load;

	if (!m->reset_due && l->state == META_LOAD_READING && l->requester == requester &&
	    l->tag == tag)
		load_is(m, META_LOAD_READ);
}

void ckpt_load_over(struct model *m)
{
	load_is(m, META_LOAD_NONE);
}

static bool is_of(const struct model *m, uint16_t requester, uint32_t tag)
{
	const struct ckpt_load *l = &m->ckpt->load;

	/* After a warm start nobody knows who asked. */
	if (requester == UINT16_MAX || l->requester == UINT16_MAX)
		return true;
	return l->requester == requester && (tag == 0 || l->tag == tag);
}

void ckpt_load_forget(struct model *m, uint16_t requester, uint32_t tag)
{
	if (m->ckpt->load.state != META_LOAD_NONE && !m->sealed && is_of(m, requester, tag))
		ckpt_clear(m);
}

enum shard_status ckpt_load_check(const struct model *m, uint16_t requester, uint32_t tag,
				  struct err *e)
{
	const struct ckpt_load *l = &m->ckpt->load;

	if (!m->reset_due && l->state == META_LOAD_READ && l->requester == requester &&
	    l->tag == tag)
		return SHARD_OK;
	return err_set(e, SHARD_STALE, "node %s does not have what this restore read any more",
		       members_name(m->server, m->server->self));
}

bool ckpt_load_void(const struct model *m)
{
	return m->reset_due || m->ckpt->load.state == META_LOAD_READING;
}

void ckpt_load_found(struct model *m, bool seals)
{
	uint32_t state = m->meta.mark.load;

	CHECK(!m->sealed);
	if (state == META_LOAD_NONE)
		return;
	if (state != META_LOAD_READ || (server_leads(m->server) && !seals)) {
		model_reset(m);
		return;
	}
	m->ckpt->load = (struct ckpt_load){.state = META_LOAD_READ, .requester = UINT16_MAX};
}

/* A link came up. The node forgets whatever a load has brought there, because no restore of this
 * coordinator counts on it. */
void ckpt_node_up(struct model *m, uint16_t node)
{
	struct wire_head h = {.op = OP_PART_CANCEL, .model = m->id};
	struct core_state core;

	core_state(m->core, &core);
	if (!m->sealed && !core.seals)
		peer_tell(m->server, node, &h, NULL);
}
