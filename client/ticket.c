// SPDX-License-Identifier: Apache-2.0
/* The tickets of a handle, numbered from 1. All numbers up to ticket_done are done, and the others
 * wait in a ring in their order. Each ticket has a function that says whether it is ready. Pulls
 * have one in image.c, commits in step.c. Settling looks at the front of the ring and moves
 * ticket_done. A rollback, or the end of the connection, voids all that wait: they count as done,
 * and end as SHARD_ROLLED_BACK or SHARD_WORLD_CHANGED. Everything that changes a ticket is called
 * with the client's lock. ticket_last, ticket_done and void_last are atomic, so that waiting for a
 * done ticket takes no lock. Only a full ring can fail. */
#include "ticket.h"

#include <string.h>

typedef unsigned long long ull;

shard_ticket ticket_done_now(struct shard_model *m)
{
	shard_ticket no = atomic_load(&m->ticket_last) + 1;

	atomic_store(&m->ticket_last, no);
	ticket_settle(m);
	return no;
}

struct ticket *ticket_new(struct shard_model *m, ticket_ready_fn ready)
{
	struct ticket *t;

	ticket_settle(m);
	if (m->tickets_nr == MODEL_TICKETS)
		return NULL;
	t = &m->tickets[(m->tickets_first + m->tickets_nr++) % MODEL_TICKETS];
	memset(t, 0, sizeof(*t));
	t->ready = ready;
	t->no = atomic_load(&m->ticket_last) + 1;
	atomic_store(&m->ticket_last, t->no);
	return t;
}

void ticket_settle(struct shard_model *m)
{
	uint64_t done;

	while (m->tickets_nr > 0) {
		const struct ticket *t = &m->tickets[m->tickets_first];

		if (!t->done && !t->ready(m, t, NULL))
			break;
		m->tickets_first = (m->tickets_first + 1) % MODEL_TICKETS;
		m->tickets_nr--;
	}
	done = m->tickets_nr > 0 ? m->tickets[m->tickets_first].no - 1
				 : atomic_load(&m->ticket_last);
	if (done > atomic_load(&m->ticket_done))
		atomic_store(&m->ticket_done, done);
}

/* A ticket that was given and is not in the ring is done. */
bool ticket_is_done(struct shard_model *m, shard_ticket no)
{
	ticket_settle(m);
	for (uint32_t i = 0; i < m->tickets_nr; i++) {
		struct ticket *t = &m->tickets[(m->tickets_first + i) % MODEL_TICKETS];

		if (t->no != no)
			continue;
		if (!t->done)
			t->done = t->ready(m, t, NULL);
		return t->done;
	}
	return true;
}

void ticket_drop(struct shard_model *m)
{
	m->tickets_nr = 0;
	atomic_store(&m->ticket_done, atomic_load(&m->ticket_last));
}

/* Each rollback voids a range of its own. If there are more than MODEL_VOIDS, the two oldest are
 * merged. Tickets that were done between them then count as void, too. */
static struct void_range *void_new(struct shard_model *m)
{
	struct void_range *v = m->voids;

	if (m->voids_nr < MODEL_VOIDS)
		return &v[m->voids_nr++];
	v[0].last = v[1].last;
	memmove(&v[1], &v[2], (MODEL_VOIDS - 2) * sizeof(v[0]));
	return &v[MODEL_VOIDS - 1];
}

void ticket_void(struct shard_model *m, enum shard_status status)
{
	uint64_t last = atomic_load(&m->ticket_last);

	if (m->tickets_nr == 0)
		return;
	*void_new(m) = (struct void_range){m->tickets[m->tickets_first].no, last, status};
	atomic_store(&m->void_last, last);
	ticket_drop(m);
}

bool ticket_may_be_void(const struct shard_model *m, shard_ticket no)
{
	return no != 0 && no <= atomic_load(&m->void_last);
}

enum shard_status ticket_end(const struct shard_model *m, shard_ticket no)
{
	for (uint32_t i = 0; i < m->voids_nr; i++)
		if (no >= m->voids[i].first && no <= m->voids[i].last)
			return text_fail(m->voids[i].status,
					 "ticket %llu of \"%s\" is of before %s: what it waited "
					 "for is gone",
					 (ull)no, m->spec.name,
					 m->voids[i].status == SHARD_ROLLED_BACK
						 ? "the model was rolled back"
						 : "the connection broke");
	return SHARD_OK;
}
