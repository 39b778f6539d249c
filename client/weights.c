// SPDX-License-Identifier: Apache-2.0
/* Which of two images has the weights of which step. ATTEMPT says which step wrote those that a step is computed on and those of the
 * step before; RESULT adds its own. Over a unix socket the daemon's page says what each chunk has; over tcp arriving parts replace
 * the image that is needed least. Called with the client's lock, only where the model has max_staleness = 1 (but for weights_image()).
 * Cannot fail: what is not here yet is waited for by the caller. */
#include "weights.h"

#define NONE UINT64_MAX

void weights_attempt(struct shard_model *m, const struct attempt *a)
{
	m->known_step = a->id.step - 1;
	m->wrote[0] = a->weights;
	m->wrote[1] = a->newest;
}

void weights_decided(struct shard_model *m, uint64_t step, bool applied)
{
	if (step != m->known_step + 1)
		return; /* the next ATTEMPT will say */
	m->known_step = step;
	m->wrote[0] = m->wrote[1];
	if (applied)
		m->wrote[1] = step;
}

bool weights_at(const struct shard_model *m, uint64_t step, uint64_t *wrote)
{
	*wrote = m->wrote[step >= m->known_step];
	return step <= m->known_step;
}

uint32_t weights_slot(const struct shard_model *m, uint32_t chunk, uint64_t wrote)
{
	uint32_t slot = 0;

	while (slot <= m->staleness &&
	       atomic_load_explicit(&m->version[(size_t)slot * m->space.chunks_nr + chunk], memory_order_acquire) != wrote)
		slot++;
	return slot <= m->staleness ? slot : MODEL_IMAGES;
}

bool weights_here(const struct shard_model *m, uint64_t first, uint64_t count, uint64_t wrote, uint32_t *chunk)
{
	uint32_t last = (uint32_t)((first + count - 1) / m->space.chunk_elems);

	for (uint32_t c = (uint32_t)(first / m->space.chunk_elems); c <= last; c++) {
		if (weights_slot(m, c, wrote) < MODEL_IMAGES)
			continue;
		if (chunk != NULL)
			*chunk = c;
		return false;
	}
	return true;
}

uint32_t weights_landing(struct shard_model *m, uint64_t wrote)
{
	uint32_t slot = 0;

	if (m->staleness == 0)
		return 0;
	if (m->landed[0] != wrote && m->landed[1] != wrote) {
		if (m->landed[0] != NONE && m->landed[1] != NONE) /* the one that is not wanted any more, or will not be first */
			slot = m->landed[0] == m->wrote[1] || (m->landed[0] == m->wrote[0] && m->landed[1] != m->wrote[1]);
		else
			slot = m->landed[0] != NONE;
		m->landed[slot] = wrote;
		return slot;
	}
	return m->landed[1] == wrote;
}

void weights_anew(struct shard_model *m)
{
	m->landed[0] = m->landed[1] = NONE;
}

const char *weights_image(const struct shard_model *m)
{
	const char *first = (const char *)m->image.base + m->image_data;
	uint32_t slot = 0;

	if (m->staleness > 0) /* chunks of the same weights lie in the same image */
		slot = weights_slot(m, 0, m->phase == PHASE_OPEN || m->phase == PHASE_COMMITTED ? m->begun.weights : m->wrote[1]);
	return first + (slot < MODEL_IMAGES ? slot : 0) * m->image_half;
}
