/* SPDX-License-Identifier: Apache-2.0 */
/* Asks a question of all rows of the list (watch.h). control/, ckpt/ and the rest of model/ call. A
 * question with a status ends at the first row that fails, and returns its error. Nothing here
 * keeps state, because the answer of a row may change with every event. */
#include "model/watch.h"

#include "base/check.h"
#include "model/model.h"

#define EACH(s, w) for (const struct model_watch *const *w = (s)->watches; *w; w++)

/* watch_NAME(): whether one row says yes. */
#define ANY(name)                                                                                  \
	bool watch_##name(const struct model *m)                                                   \
	{                                                                                          \
		EACH(m->server, w)                                                                 \
		if ((*w)->name && (*w)->name(m))                                                   \
			return true;                                                               \
		return false;                                                                      \
	}

ANY(restoring)
ANY(saving)
ANY(found_weights)
ANY(filled)
ANY(unsealable)

bool watch_quiet(const struct model *m)
{
	EACH(m->server, w)
	if ((*w)->uses && (*w)->uses(m))
		return false;
	return true;
}

bool watch_defined(struct model *m)
{
	bool later = false;

	CHECK(!m->defining);
	EACH(m->server, w)
	if ((*w)->defined && (*w)->defined(m))
		later = true;
	return later;
}

enum shard_status watch_made(struct model *m, struct err *e)
{
	enum shard_status st = SHARD_OK;

	CHECK(m->spec && m->store == NULL);
	EACH(m->server, w)
	if (st == SHARD_OK && (*w)->made)
		st = (*w)->made(m, e);
	return st;
}

enum shard_status watch_may_count(const struct model *m, uint16_t requester, uint32_t tag,
				  struct err *e)
{
	enum shard_status st = SHARD_OK;

	CHECK(tag != 0);
	EACH(m->server, w)
	if (st == SHARD_OK && (*w)->may_count)
		st = (*w)->may_count(m, requester, tag, e);
	return st;
}

enum shard_status watch_may_define(struct server *s, const Shard__Define *d,
				   const struct model_settings *set, struct err *e)
{
	enum shard_status st = SHARD_OK;

	EACH(s, w)
	if (st == SHARD_OK && (*w)->may_define)
		st = (*w)->may_define(s, d, set, e);
	return st;
}
