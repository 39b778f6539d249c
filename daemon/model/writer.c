/* SPDX-License-Identifier: Apache-2.0 */
/* Grants to write the weights of a model before its seal. control/define.c grants and tells when
 * sessions and links end. control/transfer.c and control/seal.c check before they act. Happy path:
 * one session gets created=1, its WRITEs and its SEAL carry the grant's number to every holder, and
 * the seal counts what was written under that number. After a newer grant or a reset each chunk
 * counts as unwritten. The first WRITE to a chunk then clears that chunk alone, so that the loop
 * never has to clear a whole model. A session without the newest grant is refused, and the
 * coordinator's error names the pid and node of the writer. */
#include "model/writer.h"

#include "base/check.h"
#include "link/caller.h"
#include "link/session.h"
#include "model/model.h"
#include "store/store_missing.h"

#include <stdlib.h>

enum shard_status writer_init(struct model *m, struct err *e)
{
	m->writer.of = calloc(m->layout->chunks_nr, sizeof(*m->writer.of));
	m->writer.now = 1;
	return m->writer.of != NULL ? SHARD_OK
				    : err_set(e, SHARD_SYSTEM, "no memory for \"%s\"", m->name);
}

void writer_deinit(struct model *m)
{
	free(m->writer.of);
	m->writer.of = NULL;
}

static int grant_cmp(struct writer_grant a, struct writer_grant b)
{
	if (a.term != b.term)
		return a.term < b.term ? -1 : 1;
	return a.seq < b.seq ? -1 : a.seq > b.seq;
}

void writer_grant(struct model *m, const struct caller *to, struct wire_head *h)
{
	struct writer *w = &m->writer;

	CHECK(server_leads(m->server) && (writer_free(m) || writer_is(m, to)));
	/* A restarted coordinator does not know the counts before, but its term is greater than
	 * theirs. */
	if (writer_free(m))
		w->grant = (struct writer_grant){
			m->server->term, w->grant.term == m->server->term ? w->grant.seq + 1 : 1};
	w->node = to->node;
	w->session = to->session;
	w->pid = to->pid;
	if (to->node == m->server->self) /* A session of this node is told by created = 1 alone. */
		return;
	h->term = w->grant.term;
	h->seq = w->grant.seq;
}

void writer_granted(struct model *m, const struct session *t, struct wire_head *h)
{
	struct writer *w = &m->writer;
	struct writer_grant g = {h->term, h->seq};

	h->term = 0;
	h->seq = 0;
	if (g.term == 0 || grant_cmp(g, w->grant) <= 0)
		return;
	w->grant = g;
	w->node = m->server->self;
	w->session = t->id;
	w->pid = t->pid;
}

bool writer_is(const struct model *m, const struct caller *a)
{
	return m->writer.session != 0 && m->writer.session == a->session &&
	       m->writer.node == a->node;
}

bool writer_free(const struct model *m)
{
	return m->writer.session == 0;
}

bool writer_gone(struct model *m, uint16_t node, uint64_t session)
{
	struct writer *w = &m->writer;

	if (w->session == 0 || w->node != node || (session != 0 && w->session != session))
		return false;
	w->session = 0;
	return true;
}

void writer_reset(struct model *m)
{
	m->writer.now++;
}

bool writer_stamp(const struct model *m, const struct session *t, struct wire_head *h)
{
	const struct writer *w = &m->writer;
	bool has = w->session == t->id && w->node == m->server->self;

	h->term = has ? w->grant.term : 0;
	h->seq = has ? w->grant.seq : 0;
	return has;
}

static enum shard_status refuse(const struct model *m, const struct wire_head *h, struct err *e)
{
	const struct writer *w = &m->writer;

	/* That trainer has not been told yet that the weights are lost. */
	if (h->generation != 0 && h->generation < m->generation)
		return err_set(e, SHARD_LOST,
			       "the weights of generation %u of \"%s\" are lost: define it again, "
			       "write all weights and seal",
			       h->generation, m->name);
	if (w->session == 0)
		return err_set(e, SHARD_BAD_STATE,
			       "nobody writes the weights of \"%s\" now: who defines it next gets "
			       "created = 1, writes all of them and seals",
			       m->name);
	return err_set(
		e, SHARD_BUSY,
		"pid %u on node %s writes the weights of \"%s\" (it got created = 1): let it "
		"seal or end first",
		w->pid, members_name(m->server, w->node), m->name);
}

enum shard_status writer_turn(struct model *m, struct writer_grant g, struct err *e)
{
	struct writer *w = &m->writer;
	int order = grant_cmp(g, w->here);

	if (g.term == 0 || order < 0)
		return err_set(e, SHARD_STALE,
			       "somebody else has begun to write the weights of \"%s\" since: "
			       "define it again",
			       m->name);
	if (order > 0) {
		w->here = g;
		w->now++;
	}
	if (m->reset_due)
		return err_set(e, SHARD_BUSY, "node %s gives up what \"%s\" had there: try again",
			       members_name(m->server, m->server->self), m->name);
	return SHARD_OK;
}

enum shard_status writer_check(struct model *m, const struct wire_head *h, struct err *e)
{
	struct writer_grant g = {h->term, h->seq};

	CHECK(!m->sealed);
	if (server_leads(m->server) && (g.term == 0 || grant_cmp(g, m->writer.grant) != 0))
		return refuse(m, h, e);
	return writer_turn(m, g, e);
}

bool writer_void(const struct model *m, uint32_t chunk)
{
	CHECK(chunk < m->layout->chunks_nr);
	return m->writer.of[chunk] != m->writer.now;
}

void writer_touch(struct model *m, uint32_t chunk)
{
	CHECK(!m->sealed);
	if (writer_void(m, chunk))
		store_clear_chunk(m->store, chunk);
	m->writer.of[chunk] = m->writer.now;
}
