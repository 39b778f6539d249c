/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that were drained while they were away. Happy path: control/move.c asks on the coordinator
 * for the mark of a node. A thread writes it to the state folder, then it counts, and NODES tells
 * it to all other nodes, which keep it, too, and tell it on. A node that was away hears of it with
 * its first link, also of its own mark. A disk that fails refuses the change. What others have
 * told counts at once, and is written again later. */
#include "link/gone.h"

#include "base/check.h"
#include "cluster/static.h"
#include "link/intake.h"

#include <stdlib.h>
#include <string.h>

#define AGAIN_NS  (5 * NS_PER_SEC) /* After a disk that failed. */
#define COUNT_MAX (1u << 30)       /* Nobody drains so often, and one more still counts. */

_Static_assert(STATIC_GONE_NR == CONFIG_NODES_MAX, "the file has a count for each node");

struct gone {
	struct server *s;
	uint32_t count[CONFIG_NODES_MAX];
	uint16_t used;     /* Counts behind it are 0. */
	bool late;         /* .count is not on disk as it is. */
	uint64_t again_ns; /* When to write again. */
	gone_set_fn *done; /* NULL: nobody waits for what is being written. */
	void *done_arg;
	/* A thread writes, and uses only what follows. */
	uv_work_t work;
	bool writing;
	struct static_dir *dir;
	uint32_t write[CONFIG_NODES_MAX];
	enum shard_status st;
	struct err e;
};

/* Takes what is higher. True: something was. */
static bool take(struct gone *g, const uint32_t *count, size_t nr)
{
	struct server *s = g->s;
	bool any = false;

	CHECK(nr <= CONFIG_NODES_MAX);
	for (uint16_t n = 0; n < nr; n++) {
		uint64_t bit = 1ull << n;
		bool was = server_gone(s, n);

		if (count[n] <= g->count[n])
			continue;
		any = true;
		g->count[n] = count[n];
		g->used = n >= g->used ? (uint16_t)(n + 1) : g->used;
		s->gone_nodes = (s->gone_nodes & ~bit) | (count[n] & 1 ? bit : 0);
		if (was != server_gone(s, n) && n < s->nodes_nr)
			log_line(s->log, LOG_LEVEL_INFO, "event=%s node=%s",
				 was ? "gone_ended" : "gone", members_name(s, n));
	}
	return any;
}

static void write_run(uv_work_t *w)
{
	struct gone *g = w->data;

	g->st = static_set_gone(g->dir, g->write, &g->e);
}

static void write_done(uv_work_t *w, int status)
{
	struct gone *g = w->data;
	struct server *s = g->s;
	gone_set_fn *done = g->done;

	CHECK(status == 0 && s->persists > 0); /* It is never cancelled. */
	s->persists--;
	g->writing = false;
	g->done = NULL;
	server_wake(s, 0); /* Also for a stop, which waits for this. */
	if (g->st != SHARD_OK) {
		g->again_ns = clock_ns() + AGAIN_NS;
		if (done == NULL)
			log_line(s->log, LOG_LEVEL_WARN, "event=gone_not_kept why=%s", g->e.text);
	} else {
		if (take(g, g->write, CONFIG_NODES_MAX))
			intake_tell(s);
		g->late = memcmp(g->write, g->count, sizeof(g->write)) != 0;
	}
	if (done != NULL)
		done(s, g->done_arg, g->st != SHARD_OK ? &g->e : NULL);
}

static void begin(struct gone *g)
{
	CHECK(!g->writing);
	g->dir = g->s->dir;
	g->work.data = g;
	g->writing = true;
	g->s->persists++;
	CHECK(uv_queue_work(g->s->loop, &g->work, write_run, write_done) == 0);
}

enum shard_status gone_init(struct server *s, struct err *e)
{
	uint32_t count[CONFIG_NODES_MAX];
	struct gone *g = s->gone = calloc(1, sizeof(*g));

	if (g == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the nodes that are gone");
	g->s = s;
	if (static_gone(s->dir, count, e) != SHARD_OK)
		return e->status;
	(void)take(g, count, CONFIG_NODES_MAX);
	return SHARD_OK;
}

void gone_free(struct server *s)
{
	CHECK(s->gone == NULL || !s->gone->writing);
	free(s->gone);
	s->gone = NULL;
}

enum shard_status gone_set(struct server *s, uint16_t node, bool on, gone_set_fn *done, void *arg,
			   struct err *e)
{
	struct gone *g = s->gone;

	CHECK(node < s->nodes_nr && on != server_gone(s, node));
	if (g->writing)
		return err_set(e, SHARD_BUSY, "node %s writes an earlier drain to its disk",
			       members_name(s, s->self));
	memcpy(g->write, g->count, sizeof(g->write));
	g->write[node]++;
	g->done = done;
	g->done_arg = arg;
	begin(g);
	return SHARD_OK;
}

const uint32_t *gone_all(const struct server *s, size_t *nr)
{
	*nr = s->gone->used;
	return s->gone->count;
}

enum shard_status gone_heard(struct server *s, size_t nr, const uint32_t *count, uint16_t from,
			     struct err *e)
{
	struct gone *g = s->gone;

	if (nr > CONFIG_NODES_MAX)
		return err_set(e, SHARD_PROTOCOL, "node %s tells of %zu nodes, and %u are possible",
			       members_name(s, from), nr, CONFIG_NODES_MAX);
	for (size_t n = 0; n < nr; n++) {
		if (count[n] > COUNT_MAX)
			return err_set(e, SHARD_PROTOCOL, "node %s tells of %u drains of node %zu",
				       members_name(s, from), count[n], n);
	}
	if (!take(g, count, nr))
		return SHARD_OK;
	g->late = true;
	server_wake(s, 0);
	intake_tell(s); /* Not all nodes have a link to that one. */
	return SHARD_OK;
}

void gone_beat(struct server *s, uint64_t now_ns)
{
	struct gone *g = s->gone;

	if (s->stop.on || !g->late || g->writing || now_ns < g->again_ns)
		return;
	memcpy(g->write, g->count, sizeof(g->write));
	begin(g);
}
