/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of tiers whose chunks are in buffers for a time. tier_nvme.c and tier_gpu.c use it. Happy
 * path: the row takes a call, which pins its chunk. When the chunk is in a buffer, the tier of main
 * memory carries the call out, and when that is done, the pin goes, and who made the call hears of
 * it. The threads may be busy: a call that was not accepted yet is given up then, and any other one
 * runs on the loop. */
#include "store/away_calls.h"

#include "base/check.h"

static void pinned(struct tier_pin *p);

static struct away_tier *away_of(const struct tier *t)
{
	return (struct away_tier *)(uintptr_t)t; /* The first field. */
}

struct away_call *away_call_take(struct away_tier *t, const struct tier_make *what, bool make,
				 const struct tier_call *who)
{
	uint32_t i = 0;

	while (i < AWAY_CALLS && t->call[i].of != NULL)
		i++;
	if (i == AWAY_CALLS)
		return NULL;
	t->call[i] = (struct away_call){.pin = {.chunk = what->update.chunk,
						.writes = !make || what->finish,
						.done = pinned},
					.of = t,
					.make = make,
					.what = *what,
					.who = *who};
	return &t->call[i];
}

void away_call_end(struct away_call *c, const struct tier_result *r)
{
	struct tier_call who = c->who;

	c->of = NULL;
	who.done(who.owner, who.tag, r);
}

static void done(void *owner, uint64_t tag, const struct tier_result *r)
{
	struct away_call *c = owner;

	(void)tag;
	c->of->updates += !c->make;
	tier_unpin(&c->of->tier, &c->pin);
	away_call_end(c, r);
}

/* The chunk is in a buffer. */
static enum shard_status carry_out(struct away_call *c)
{
	struct tier *ram = c->of->ram;
	struct tier_call who = {.done = done, .owner = c, .here = c->who.here};
	bool make = c->make, accepted = c->accepted;
	enum shard_status st = SHARD_AGAIN;

	for (; st != SHARD_OK; who.here = true) { /* When it is, *c may be another call. */
		st = make ? ram->row->make(ram, &c->what, &who)
			  : ram->row->apply(ram, &c->what.update, &who);
		if (!accepted)
			break;
	}
	return st;
}

static void pinned(struct tier_pin *p)
{
	struct away_call *c = list_of(p, struct away_call, pin);

	c->accepted = true;
	(void)carry_out(c);
}

enum shard_status away_call_go(struct away_call *c)
{
	enum shard_status st;

	if (!tier_pin(&c->of->tier, &c->pin) || (st = carry_out(c)) == SHARD_OK)
		return SHARD_OK;
	tier_unpin(&c->of->tier, &c->pin);
	c->of = NULL;
	return st;
}

/* --- pins --- */

bool away_is_call(const struct tier_pin *p)
{
	return p->done == pinned;
}

void away_use(struct away_tier *t, struct away_users *u, const struct tier_pin *p)
{
	u->all++;
	if (away_is_call(p))
		return;
	t->outside += u->outside++ == 0;
	t->writers += p->writes && u->writers++ == 0;
}

void away_unuse(struct away_tier *t, struct away_users *u, const struct tier_pin *p)
{
	CHECK(u->all > 0);
	u->all--;
	if (away_is_call(p))
		return;
	CHECK(u->outside > 0 && t->outside > 0);
	t->outside -= --u->outside == 0;
	t->writers -= p->writes && --u->writers == 0;
}

/* A step has to find buffers to take turns in, however many pins others hold. And who writes may
 * hold a pin until another node has sent the chunk, which that node has to read: so those who read
 * have to find some, too, or two nodes would wait for each other. */
bool away_may_have(const struct away_tier *t, const struct away_users *u, const struct tier_pin *p,
		   uint32_t buffers)
{
	uint32_t few = buffers / 4 > 0 ? buffers / 4 : 1;

	if (away_is_call(p))
		return true;
	if (p->writes && (u == NULL || u->writers == 0) && t->writers >= few)
		return false;
	return (u != NULL && u->outside > 0) || t->outside < (buffers + 1) / 2;
}

/* --- what is done in main memory --- */

enum shard_status away_sum(struct tier *t, const struct tier_sum *s, const struct tier_call *c)
{
	return away_of(t)->ram->row->sum(away_of(t)->ram, s, c);
}

enum shard_status away_patch(struct tier *t, const struct tier_patch *p, const struct tier_call *c)
{
	return away_of(t)->ram->row->patch(away_of(t)->ram, p, c);
}

enum shard_status away_repair(struct tier *t, uint64_t stamp, bool applying,
			      void (*of)(void *arg, uint32_t chunk, struct tier_apply *a),
			      void *arg, uint64_t *kept, struct err *e)
{
	struct tier *ram = away_of(t)->ram;

	return ram->row->repair(ram, stamp, applying, of, arg, kept, e);
}
