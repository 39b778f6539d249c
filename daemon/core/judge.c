/* SPDX-License-Identifier: Apache-2.0 */
/* What the coordinator does when votes for copies differ. coord.c calls it at the end of every
 * event. The attempt waits for the votes of all members, so that as much as possible is known, and
 * then ends: a vote that differs does not count, so it can have no effect. If one node alone
 * explains all differences, the coordinator makes a view without it, as without a node that is
 * missed (copies.c), and only then tells it. So its memory is given up when no view needs it any
 * more. A coordinator that is odd itself makes a view in which its own copies do not count. A node
 * that holds the last copy of a chunk is never told. If nobody can say who is wrong, nothing is
 * committed, and after some attempts the model waits for an operator. A new coordinator knows
 * nothing of this, and compares anew. */
#include "core/judge.h"

#include "core/copies.h"
#include "core/inner.h"

#include <string.h>

/* If all votes agree, it is a node that votes for nothing, because it catches up, that says that a
 * chunk differs. Nothing is lost without it. */
static uint64_t judge_accused(const struct core *c)
{
	const struct odd *o = &c->coord.odd;

	if (!o->chunks_nr && !(o->others & ~coord_place(c)->learns) &&
	    !(o->others & (o->others - 1)))
		return o->others;
	return odd_suspects(o);
}

/* "chunk 3 of step 12: sums of squares: node a 1.5, node b 1.5, node c 1.25". */
static const char *judge_text(struct core *c)
{
	const struct coord *co = &c->coord;
	const struct odd *o = &co->odd;
	char text[CORE_WHY_BYTES] = "";
	size_t used = 0;

	if (!o->chunks_nr)
		return core_text(c,
				 "the gradient of a chunk at node %s has another sum of squares "
				 "than its primary told it, in step %llu",
				 core_node_name(c, (uint16_t)__builtin_ctzll(o->others)),
				 (unsigned long long)co->id.step);
	for (uint64_t n = o->chunk[0].heard; n && used < 160; n &= n - 1) {
		uint16_t node = (uint16_t)__builtin_ctzll(n);

		core_copy_text(text + used, sizeof(text) - used,
			       core_text(c, "%s node %s %.17g%s", used ? "," : "",
					 core_node_name(c, node), o->chunk[0].sumsq[node],
					 o->chunk[0].finite[node] ? "" : " (not finite)"));
		used = strlen(text);
	}
	return core_text(c, "votes for copies of chunk %u differ in step %llu: sums of squares:%s",
			 o->chunk[0].chunk, (unsigned long long)co->id.step, text);
}

/* All members have voted, and not all votes count. */
static void judge_attempt(struct ctx *x)
{
	struct core *c = x->c;
	struct odd *o = &c->coord.odd;
	uint64_t suspects = judge_accused(c);
	bool one = suspects && !(suspects & (suspects - 1));
	uint16_t node = one ? (uint16_t)__builtin_ctzll(suspects) : CORE_NODES_MAX;
	const char *text = judge_text(c);
	struct core_action *a = core_act(x, CORE_ACT_DIFFER);

	o->differed_nr++;
	a->id = c->coord.id;
	a->node = node;
	a->why = text;
	if (!one || !copies_spare(c, suspects)) {
		odd_tried(c, text,
			  one ? "The one that differs has the last copy of a chunk. Bring the "
				"other nodes back, or restore"
			      : "Nobody can say which is wrong. `shardctl verify`, stop a bad "
				"node or restore");
		attempt_abort(x, SHARD_WORLD_CHANGED, text);
		return;
	}
	o->nodes |= suspects;
	o->told &= ~suspects;
	o->memory[node] = c->link[node].who.incarnation;
	o->id = c->coord.id;
	core_copy_text(o->why, sizeof(o->why), text);
	attempt_abort(x, SHARD_WORLD_CHANGED,
		      core_text(c, "node %s is odd: %s", core_node_name(c, node), text));
	hear_missed(x, node);
}

bool judge_blocks(const struct core *c)
{
	/* A coordinator that is odd begins nothing between the view and its end. */
	return c->coord.odd.stuck[0] || members_odd(c) || odd_is(c, c->conf.self);
}

const char *judge_waits(const struct core *c)
{
	return c->coord.odd.stuck[0] ? c->coord.odd.stuck : c->coord.odd.why;
}

/* Bits of the nodes that are odd and that no view needs any more. */
static uint64_t judge_due(const struct core *c)
{
	uint64_t out = 0;

	if (c->coord.state != COORD_OPEN || !c->coord.odd.nodes)
		return 0;
	for (uint16_t i = 0; i < CORE_NODES_MAX; i++) {
		if (core_linked(c, i) && odd_is(c, i))
			out |= 1ull << i;
	}
	return out & ~members_odd(c);
}

bool judge_tells(const struct core *c)
{
	return judge_due(c) & ~(1ull << c->conf.self);
}

static void judge_tell(struct ctx *x, uint64_t nodes)
{
	struct odd *o = &x->c->coord.odd;

	for (; nodes; nodes &= nodes - 1) {
		struct core_msg *m =
			core_send(x, (uint16_t)__builtin_ctzll(nodes), CORE_ODD, &o->id);

		m->why = core_text(x->c, "%s", o->why);
	}
}

void judge_votes(struct ctx *x)
{
	const struct coord *co = &x->c->coord;

	if (co->undecided && co->odd.others && attempt_all_spoke(x->c))
		judge_attempt(x);
}

void judge_settle(struct ctx *x)
{
	struct odd *o = &x->c->coord.odd;
	uint64_t due = judge_due(x->c);

	judge_tell(x, due & ~o->told);
	o->told = due; /* Whose link ends is told again over the next one. */
}

void judge_repeat(struct ctx *x)
{
	judge_tell(x, judge_due(x->c) & ~(1ull << x->c->conf.self));
}
