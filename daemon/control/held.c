/* SPDX-License-Identifier: Apache-2.0 */
/* The account of requests that wait. define.c, define_wait.c and ckpt/ call held_take() before they
 * keep a request and held_give() when they free it. Happy path: neither the user's share, nor the
 * limit of all, nor the budget is used up. Otherwise held_take() fails with SHARD_BUSY or
 * SHARD_BUDGET and a text. No share limits root and the daemon's own user, as with connections. */
#include "control/held.h"

#include "control/access.h"
#include "base/check.h"
#include "core/record.h"

static bool same_user(const struct held *a, const struct held *b)
{
	if (a->known != b->known)
		return false;
	return a->known ? a->uid == b->uid && (a->uid != 0 || a->node == b->node)
			: a->node == b->node;
}

static uint64_t of_budget(const struct held *h)
{
	return h->bytes >= HELD_LARGE ? h->bytes : 0;
}

enum shard_status held_take(struct server *s, struct held *h, uint16_t node, const Shard__Cred *who,
			    uint64_t bytes, struct err *e)
{
	uint64_t all = 0, his = 0;
	uint32_t all_nr = 0, his_nr = 0;
	char text[ACCESS_TEXT_BYTES];

	CHECK(bytes > 0);
	*h = (struct held){.node = node, .known = who != NULL && who->known};
	h->uid = h->known ? who->uid : 0;
	list_each(it, &s->held) {
		const struct held *other = list_of(it, struct held, link);

		all += other->bytes;
		all_nr++;
		if (!same_user(h, other))
			continue;
		his += other->bytes;
		his_nr++;
	}
	if (!(h->known && who->root) &&
	    (his_nr >= HELD_NR_SHARE || (his > 0 && his + bytes > HELD_BYTES_SHARE)))
		return err_set(e, SHARD_BUSY,
			       "%u definitions and restores (%lu bytes) of %s wait already, which "
			       "is its share: wait for their answers first",
			       his_nr, (unsigned long)his, access_text(text, who));
	if (all_nr >= HELD_NR || (all > 0 && all + bytes > HELD_BYTES))
		return err_set(e, SHARD_BUSY,
			       "%u definitions and restores (%lu bytes) wait already: try again",
			       all_nr, (unsigned long)all);
	if (bytes >= HELD_LARGE &&
	    (s->budget.used > s->budget.total || bytes > s->budget.total - s->budget.used))
		return err_set(e, SHARD_BUDGET,
			       "node %s has no %lu bytes to keep a request while it waits: %lu of "
			       "%lu are promised to models",
			       members_name(s, s->self), (unsigned long)bytes,
			       (unsigned long)s->budget.used, (unsigned long)s->budget.total);
	h->bytes = bytes;
	s->budget.used += of_budget(h);
	list_push(&s->held, &h->link);
	return SHARD_OK;
}

void held_give(struct server *s, struct held *h)
{
	if (h->bytes == 0)
		return;
	CHECK(s->budget.used >= of_budget(h));
	s->budget.used -= of_budget(h);
	h->bytes = 0;
	list_remove(&h->link);
}
