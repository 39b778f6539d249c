/* SPDX-License-Identifier: Apache-2.0 */
/* The account of what saves borrow. ckpt/part.c begins and ends it with each share of a save, on
 * the loop. Memory that is used for the first time costs several times what a copy to it does, so a
 * model with checkpoint_every keeps its places. Whoever finds no room in the budget calls
 * spare_drop(), and a job gives the pages back before the next job makes memory. Nothing fails:
 * with less memory, a save holds steps for longer. */
#include "model/spare.h"

#include "base/check.h"
#include "data/model.h"
#include "node/job.h"
#include "store/budget.h"
#include "store/hold.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

struct unmapping {
	struct job job;
	void *at;
	uint64_t bytes;
};

/* What the machine has without taking it from others. 0: it does not say. */
static uint64_t available(void)
{
	FILE *f = fopen("/proc/meminfo", "re");
	unsigned long kib = 0;
	char line[128];

	while (f != NULL && fgets(line, sizeof(line), f) != NULL &&
	       sscanf(line, "MemAvailable: %lu", &kib) != 1)
		;
	if (f != NULL)
		fclose(f);
	return (uint64_t)kib << 10;
}

/* Places are ordinary pages that come when they are used, so the budget alone could promise more
 * than there is: reserved huge pages count in it, and what trainers use does not. */
void spare_begin(struct model *m, const uint64_t *bytes)
{
	struct budget *b = &m->server->budget;
	uint64_t each = hold_place_bytes(m->store), has = hold_places(m->store) * each, more = 0,
		 wants = hold_wants(m->store, bytes) * each, half;

	if (wants > has) {
		half = available() / 2;
		more = budget_lend(b, wants - has < half ? wants - has : half / each * each, each);
	}
	hold_begin(m->store, bytes, (uint32_t)(more / each));
	/* There may be no such memory, whatever the budget says. */
	budget_back(b, has + more - hold_places(m->store) * each);
}

static void unmap_run(struct job *j)
{
	struct unmapping *u = list_of(j, struct unmapping, job);

	munmap(u->at, u->bytes);
}

static void unmap_done(struct job *j)
{
	free(list_of(j, struct unmapping, job));
}

/* The budget has the bytes at once, because jobs that make memory wait for this one. */
static bool drop(struct model *m)
{
	struct unmapping *u;
	uint64_t bytes;
	void *at;

	if (m->store == NULL || hold_on(m->store) || (bytes = hold_detach(m->store, &at)) == 0)
		return false;
	budget_back(&m->server->budget, bytes);
	if ((u = calloc(1, sizeof(*u))) == NULL) {
		munmap(at, bytes);
		return true;
	}
	u->at = at;
	u->bytes = bytes;
	job_begin(&u->job, m->server, JOB_MEMORY, unmap_run, unmap_done);
	return true;
}

void spare_end(struct model *m)
{
	bool any = hold_places(m->store) > 0;

	CHECK(!hold_on(m->store));
	if (m->set.checkpoint_every == 0)
		(void)drop(m);
	if (any)
		server_wake(m->server, 0); /* A definition may wait for it. */
}

void spare_leave(struct model *m)
{
	if (m->store != NULL)
		budget_back(&m->server->budget, hold_places(m->store) * hold_place_bytes(m->store));
}

bool spare_drop(struct server *s)
{
	bool any = false;

	list_each(it, &s->models)
		any |= drop(list_of(it, struct model, link));
	return any;
}
