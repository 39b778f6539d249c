// SPDX-License-Identifier: Apache-2.0
/* shard_wait() and shard_test(): how an application waits for any ticket. Most tickets are done in
 * their order. One that is done is answered without the lock, even when the connection is over. The
 * ticket of a save stands for that save alone, so ckpt.c is asked first. Otherwise the caller waits
 * until the ring is settled up to its ticket. It fails on a ticket that was never given, a
 * rollback, a changed world, the end of the connection, and the deadline, whose text names the
 * chunk or the commit that is missing. */
#include "ckpt.h"
#include "ticket.h"

typedef unsigned long long ull;

static enum shard_status no_ticket(const struct shard_model *m, shard_ticket ticket)
{
	return text_fail(SHARD_BAD_ARG,
			 "ticket %llu of \"%s\" was not given yet, the last was %llu", (ull)ticket,
			 m->spec.name, (ull)atomic_load(&m->ticket_last));
}

static enum shard_status wait_timeout(struct shard_model *m, const struct wait *w,
				      shard_ticket ticket)
{
	const struct ticket *t = &m->tickets[m->tickets_first];
	uint32_t chunk = UINT32_MAX;

	if (t->kind == TICKET_COMMIT || t->ready(m, t, &chunk) || chunk == UINT32_MAX)
		return text_fail(
			SHARD_TIMEOUT,
			"ticket %llu of \"%s\" waited %.1f s: ticket %llu, %s, is not done",
			(ull)ticket, m->spec.name, wait_seconds(w), (ull)t->no,
			t->kind == TICKET_COMMIT ? "a commit" : "a pull");
	return text_fail(SHARD_TIMEOUT,
			 "ticket %llu of \"%s\" waited %.1f s for \"%.120s\": chunk %u of the "
			 "image is not of step %llu yet",
			 (ull)ticket, m->spec.name, wait_seconds(w),
			 m->layout->tensor[t->tensor].name, chunk, (ull)t->step);
}

enum shard_status shard_wait(shard_model *m, shard_ticket ticket, int64_t timeout_ms)
{
	enum shard_status rc;
	struct wait w;

	text_begin();
	if (m != NULL && !client_forked(m->client) && ckpt_wait(m, ticket, timeout_ms, &rc))
		return rc;
	if (m != NULL && !client_forked(m->client) && atomic_load(&m->ticket_done) >= ticket) {
		if (!ticket_may_be_void(m, ticket))
			return SHARD_OK;
		/* Not handle_enter(), because the result is known also when the connection is
		 * over. */
		pthread_mutex_lock(&m->client->lock);
		rc = ticket_end(m, ticket);
		pthread_mutex_unlock(&m->client->lock);
		return rc;
	}
	if ((rc = handle_enter(m)) != SHARD_OK)
		return rc;
	if (ticket > atomic_load(&m->ticket_last))
		rc = no_ticket(m, ticket);
	wait_begin(m->client, &w, handle_timeout(m, timeout_ms));
	while (rc == SHARD_OK) {
		ticket_settle(m);
		if (atomic_load(&m->ticket_done) >= ticket) {
			rc = ticket_end(m, ticket);
			break;
		}
		rc = m->changed ? handle_changed(m) : handle_wait(m, &w);
	}
	if (rc == SHARD_TIMEOUT)
		wait_timeout(m, &w, ticket);
	client_leave(m->client);
	return rc;
}

enum shard_status shard_test(shard_model *m, shard_ticket ticket)
{
	enum shard_status rc;

	if (m == NULL)
		return text_fail(SHARD_BAD_ARG, "the model is NULL");
	if (client_forked(m->client))
		return text_fail(SHARD_FORKED,
				 "this model belongs to the parent process: connect again here");
	text_begin();
	if (ckpt_test(m, ticket, &rc))
		return rc;
	if (atomic_load(&m->ticket_done) >= ticket && !ticket_may_be_void(m, ticket))
		return SHARD_OK;
	if (ticket > atomic_load(&m->ticket_last))
		return no_ticket(m, ticket);
	if (pthread_mutex_trylock(&m->client->lock) != 0)
		return SHARD_AGAIN; /* The thread that has the lock settles. */
	if (ticket_is_done(m, ticket))
		rc = ticket_end(m, ticket);
	else if (m->client->over.status != SHARD_OK)
		rc = text_fail_err(&m->client->over);
	else if (m->lost.status != SHARD_OK)
		rc = text_fail_err(&m->lost);
	else
		rc = SHARD_AGAIN;
	pthread_mutex_unlock(&m->client->lock);
	return rc;
}
