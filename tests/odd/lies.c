/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon whose memory or processor is bad, for proc/test_odd. It is shardd, linked so that three
 * calls go through here (-Wl,--wrap in the Makefile). They add to the sum of squares of a chunk, as
 * a flipped bit does, while the state folder has a file "lie" that says which: "copied" (a follower
 * finds another norm than its primary said), "voted" (a follower votes for another one than it
 * found), "reduced" (a primary finds another one, says so and votes so) or "all" (the first and the
 * third of these). The number of a chunk may follow, else it is all of them. */
#include "data/apply.h"
#include "data/grad.h"
#include "data/model.h"
#include "store/tier.h"

#include <stdio.h>
#include <string.h>

void __real_grad_copied(struct model *m, uint32_t chunk, const struct tier_result *r);
void __wrap_grad_copied(struct model *m, uint32_t chunk, const struct tier_result *r);
void __real_grad_reduced(struct model *m, uint32_t chunk);
void __wrap_grad_reduced(struct model *m, uint32_t chunk);
void __real_apply_stage(struct model *m, uint32_t chunk);
void __wrap_apply_stage(struct model *m, uint32_t chunk);

static bool lies(const struct model *m, const char *about, uint32_t chunk)
{
	char path[4200], word[16] = "";
	uint32_t one = 0;
	int nr;
	FILE *f;

	snprintf(path, sizeof(path), "%.4096s/lie", m->server->conf->state);
	if ((f = fopen(path, "re")) == NULL)
		return false;
	nr = fscanf(f, "%15s %u", word, &one);
	fclose(f);
	return nr >= 1 && (nr == 1 || one == chunk) &&
	       (strcmp(word, about) == 0 ||
		(strcmp(word, "all") == 0 && strcmp(about, "voted") != 0));
}

void __wrap_grad_copied(struct model *m, uint32_t chunk, const struct tier_result *r)
{
	struct tier_result bad = *r;

	if (lies(m, "copied", chunk))
		bad.sumsq += 1;
	__real_grad_copied(m, chunk, &bad);
}

void __wrap_grad_reduced(struct model *m, uint32_t chunk)
{
	if (lies(m, "reduced", chunk))
		m->contrib.chunk[chunk].sumsq += 1;
	__real_grad_reduced(m, chunk);
}

void __wrap_apply_stage(struct model *m, uint32_t chunk)
{
	if (place_primary(&m->place, chunk) != m->server->self && lies(m, "voted", chunk))
		m->contrib.chunk[chunk].sumsq += 1;
	__real_apply_stage(m, chunk);
}
