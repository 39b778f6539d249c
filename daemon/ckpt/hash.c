/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of the chunks of a model, for the comparison of copies. part.c calls it on each node.
 * Happy path: hash_init() lists the chunks, hash_go() fills the workers with jobs of some
 * megabytes, each that comes back brings its digests and is followed by another, and the last one
 * makes the list whole. A worker reads masters and moments where they lie. Nothing fails after
 * hash_init(), and a caller that gives up asks for no more jobs and waits for those under way. */
#include "ckpt/hash.h"

#include "base/check.h"
#include "data/model.h"
#include "node/worker.h"
#include "store/store.h"

#include <stdlib.h>
#include <string.h>

#define JOB_ELEMS  (4u << 20) /* A few milliseconds, so that steps of other models go between. */
#define JOB_CHUNKS 64

struct hash_job {
	struct store *store;
	uint32_t at, nr; /* The place of its first chunk in the list, and how many it has. */
	uint32_t chunk[JOB_CHUNKS];
	uint64_t digest[JOB_CHUNKS];
};

static uint64_t chunk_bytes(const struct model *m, uint32_t chunk)
{
	return (uint64_t)layout_chunk_elems(m->layout, chunk) * sizeof(float) *
	       (1 + m->set.optim->states_nr);
}

enum shard_status hash_init(struct hash *h, struct model *m, void (*back)(struct hash *),
			    struct err *e)
{
	const struct layout *l = m->layout;

	memset(h, 0, sizeof(*h));
	h->m = m;
	h->back = back;
	for (uint32_t c = 0; c < l->chunks_nr; c++)
		h->nr += place_holds(&m->place, c, m->server->self);
	h->chunk = malloc((h->nr + 1) * sizeof(*h->chunk));
	h->digest = calloc(h->nr + 1, sizeof(*h->digest));
	h->pin = calloc(h->nr + 1, sizeof(*h->pin));
	if (h->chunk == NULL || h->digest == NULL || h->pin == NULL) {
		hash_deinit(h);
		return err_set(e, SHARD_SYSTEM, "no memory for the digests of %u chunks", h->nr);
	}
	h->nr = 0;
	for (uint32_t c = 0; c < l->chunks_nr; c++) {
		if (!place_holds(&m->place, c, m->server->self))
			continue;
		h->chunk[h->nr++] = c;
		h->total += chunk_bytes(m, c);
	}
	return SHARD_OK;
}

void hash_deinit(struct hash *h)
{
	CHECK(h->flying == 0);
	free(h->pin);
	free(h->chunk);
	free(h->digest);
	h->pin = NULL;
	h->chunk = NULL;
	h->digest = NULL;
}

/* A chunk may wait, or some may be pinned for a job that found the queue full. */
void hash_stop(struct hash *h)
{
	CHECK(h->flying == 0);
	for (uint32_t i = h->next; h->pin != NULL && i < h->nr; i++)
		tier_unpin(h->m->tier, &h->pin[i]);
	h->next = h->nr;
}

bool hash_whole(const struct hash *h)
{
	return h->next == h->nr && h->flying == 0;
}

static void run(void *args)
{
	struct hash_job *j = args;

	for (uint32_t i = 0; i < j->nr; i++)
		j->digest[i] = store_digest(j->store, j->chunk[i]);
}

static void done(void *owner, void *args)
{
	struct hash *h = owner;
	const struct hash_job *j = args;

	CHECK(h->flying > 0 && j->at + j->nr <= h->next);
	for (uint32_t i = 0; i < j->nr; i++) {
		h->digest[j->at + i] = j->digest[i];
		tier_unpin(h->m->tier, &h->pin[j->at + i]);
		h->bytes += chunk_bytes(h->m, j->chunk[i]);
	}
	h->flying--; /* Not before: an unpin may grant a pin, and that calls back(), too. */
	h->back(h);
}

static void pinned(struct tier_pin *p)
{
	struct hash *h = p->owner;

	h->back(h);
}

/* Is the chunk in memory? If not, back() is called when it is. At most one chunk waits, after all
 * that are pinned are in jobs, so that it gets the room of those. */
static bool pins(struct hash *h, uint32_t i, bool first)
{
	struct tier_pin *p = &h->pin[i];

	if (p->at != TIER_UNPINNED)
		return p->at == TIER_PINNED;
	*p = (struct tier_pin){.chunk = h->chunk[i]};
	if (!first)
		return tier_pin_now(h->m->tier, p);
	p->done = pinned;
	p->owner = h;
	return tier_pin(h->m->tier, p);
}

void hash_go(struct hash *h)
{
	struct exec workers = worker_exec(h->m->server->pool);

	while (h->next < h->nr && h->flying < exec_lanes(&workers)) {
		struct exec_job job = {.run = run, .done = done, .owner = h};
		struct hash_job j = {.store = h->m->store, .at = h->next};
		uint32_t elems = 0;

		while (h->next + j.nr < h->nr && j.nr < JOB_CHUNKS && elems < JOB_ELEMS &&
		       pins(h, h->next + j.nr, j.nr == 0)) {
			j.chunk[j.nr] = h->chunk[h->next + j.nr];
			elems += layout_chunk_elems(h->m->layout, j.chunk[j.nr++]);
		}
		static_assert(sizeof(j) <= EXEC_ARGS_BYTES, "a job holds its operands");
		memcpy(job.args, &j, sizeof(j));
		if (j.nr == 0 || exec_submit(&workers, &job) != SHARD_OK)
			return;
		h->next += j.nr;
		h->flying++;
	}
}
