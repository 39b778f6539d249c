/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory of models, for each peer in its own protection domain. make.c makes and frees
 * it. dispatch.c says when queue pairs are up or down, and join.c and model.c say which arenas are
 * in use. Happy path: the queue pairs are up, a job on a thread of libuv's pool registers what
 * lacks, and the peer is told where it may write. A region is kept as long as its memory lasts,
 * also over links. If memory was unmapped or its device is gone while a thread registered it, the
 * region is given back when the thread is done. It fails if memlock is too low or the device
 * refuses. The tensors of the model then go by TCP, the log says why, and it is tried again after a
 * time that grows. */
#include "data/mr.h"

#include "base/check.h"
#include "base/clock.h"
#include "data/deltas.h"
#include "link/peer.h"
#include "store/room.h"
#include "wire/ops.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MR_RELEASE_NS                                                                              \
	(5 * NS_PER_SEC) /* If a peer has not answered by then, its own writes end the link. */

struct mr_item {
	uint32_t kind, epoch;
	void *base;
	size_t bytes;
	bool remote;
	struct tier_direct direct; /* .chunks 0: it is memory of the host. */
	struct rdma_region *got;
};

struct mr_job {
	uv_work_t work;
	struct server *server;
	struct mr *g; /* NULL: the model is gone. */
	uint16_t node;
	struct rdma_domain *domain;
	struct err e;
	bool no_direct; /* *e is about direct slots. */
	uint32_t nr;
	struct mr_item item[];
};

static uint32_t kinds(const struct mr *g)
{
	return MR_ARENA + g->m->set.local_world;
}

/* --- what there is to register --- */

/* The runs of chunks of an image that a peer has memory for and this node does not, so that the
 * peer may send them. If there are too many, they become one run from the first to the last. */
static uint32_t runs_of(const struct model *m, uint16_t node, struct mr_run run[MR_RUNS_MAX])
{
	uint32_t nr = 0, last = UINT32_MAX, first = UINT32_MAX;

	for (uint32_t c = 0; c < m->layout->chunks_nr; c++) {
		if (!place_keeps(&m->place, c, node) || place_keeps(&m->place, c, m->server->self))
			continue;
		first = first == UINT32_MAX ? c : first;
		if (last != UINT32_MAX && last + 1 == c && nr <= MR_RUNS_MAX)
			run[nr - 1].chunks++;
		else if (nr++ < MR_RUNS_MAX)
			run[nr - 1] = (struct mr_run){c, 1};
		last = c;
	}
	if (nr <= MR_RUNS_MAX)
		return nr;
	run[0] = (struct mr_run){first, last - first + 1};
	return 1;
}

static size_t run_bytes(const struct model *m, const struct mr_run *run)
{
	return layout_image_bytes(m->layout, run->first, run->chunks);
}

/* With an image_codec no image is sent or written by RDMA: a worker here may be making the image of
 * a chunk of its codes at any time, so a chunk as it is comes by TCP, where that is looked at. */
static bool by_codes(const struct mr *g)
{
	return g->m->deltas != NULL;
}

static bool want_image(const struct mr *g, uint16_t node, struct mr_item *i)
{
	uint32_t slot = (i->kind - MR_IMAGE) / MR_RUNS_MAX, k = (i->kind - MR_IMAGE) % MR_RUNS_MAX;
	const struct mr_peer *rp = &g->peer[node];

	if (by_codes(g) || slot > g->m->set.max_staleness || k >= rp->runs_nr)
		return false;
	i->base = store_image(g->m->store, slot, rp->run[k].first);
	i->bytes = run_bytes(g->m, &rp->run[k]);
	i->remote = true;
	return true;
}

/* With one copy only the sums of chunks of other nodes leave. With several, reduced gradients
 * leave, too, and the sums of chunks that are held here and reduced elsewhere, so all of it may be
 * read. */
static bool want_sums(const struct mr *g, struct mr_item *i)
{
	struct model *m = g->m;

	if (m->place.holders != NULL) {
		i->base = store_region(m->store, STORE_SUMS)->base;
		i->bytes = store_region(m->store, STORE_SUMS)->bytes;
		return i->base != NULL;
	}

	i->base = store_first_sums(m->store, &i->bytes);
	return i->base != NULL;
}

/* With several copies codes of images are there, too, and go to nodes that hold nothing. */
static bool sums_leave(const struct mr *g, uint16_t node)
{
	return g->held[node] > 0 ||
	       (by_codes(g) && g->m->place.holders != NULL && g->held[g->m->server->self] > 0);
}

/* Codes that leave. With several copies they are part of what want_sums() has. */
static bool want_codes(const struct mr *g, uint16_t node, struct mr_item *i)
{
	struct model *m = g->m;
	bool deltas = i->kind == MR_DELTAS;
	const struct codes *c = deltas ? deltas_codes(m) : &m->codes;

	if (m->place.holders != NULL || c == NULL || c->quant.kind == QUANT_NONE ||
	    g->held[deltas ? m->server->self : node] == 0)
		return false;
	i->base = deltas ? store_image_codes(m->store) : store_codes(m->store);
	i->bytes = codes_span(c, 0, m->layout->chunks_nr);
	return i->bytes > 0; /* Unless all is frozen. */
}

static bool want_patch(const struct mr *g, uint16_t node, struct mr_item *i)
{
	const struct mr_peer *rp = &g->peer[node];
	uint32_t k = i->kind - MR_PATCH;

	if (!by_codes(g) || k >= rp->runs_nr)
		return false;
	i->base = deltas_at(g->m, rp->run[k].first);
	i->bytes = codes_span(deltas_codes(g->m), rp->run[k].first, rp->run[k].chunks);
	i->remote = true;
	return i->bytes > 0;
}

/* Why the peer's bodies land in memory of the host, of a model that has direct slots. NULL: they do
 * not. */
static const char *not_direct_why(const struct mr *g, uint16_t node)
{
	const struct peer *p = g->m->server->peer[node];

	if (!(p->features & FEATURE_RDMA_DIRECT))
		return "its release knows no such memory";
	return rdma_link_sums(p) ? "bodies to and from it are summed: [net] rdma_checksum has to "
				   "be no on both nodes"
				 : NULL;
}

static bool want_direct(const struct mr *g, uint16_t node, struct mr_item *i)
{
	if (not_direct_why(g, node) != NULL || g->peer[node].no_direct ||
	    !tier_gpu_direct(g->m->tier, i->kind - MR_DIRECT, node, &i->direct))
		return false;
	i->base = (void *)(uintptr_t)i->direct.memory.at;
	i->bytes = i->direct.memory.bytes;
	i->remote = true;
	return true;
}

/* Is there such memory to register for the peer? */
static bool wanted(const struct mr *g, uint16_t node, struct mr_item *i)
{
	struct model *m = g->m;
	uint16_t self = m->server->self;
	uint32_t slot = i->kind - (i->kind < MR_ARENA ? MR_OWN : MR_ARENA);

	i->remote = false;
	if (i->kind == MR_SLOTS) {
		i->base = store_first_slots(m->store, node, &i->bytes);
		i->remote = true;
		return i->base != NULL;
	}
	if (i->kind == MR_SUMS)
		return sums_leave(g, node) && want_sums(g, i);
	if (i->kind < MR_OWN)
		return want_codes(g, node, i);
	if (i->kind < MR_IMAGE) {
		if (by_codes(g) || slot > m->set.max_staleness || g->held[self] == 0)
			return false;
		i->base = store_image(m->store, slot, 0);
		i->bytes = m->layout->image_bytes;
		return true;
	}
	if (i->kind < MR_PATCH)
		return want_image(g, node, i);
	if (i->kind < MR_DIRECT)
		return want_patch(g, node, i);
	if (i->kind < MR_ARENA)
		return want_direct(g, node, i);
	if (g->held[node] == 0 || !(g->arenas >> slot & 1))
		return false;
	i->epoch = g->arena_epoch[slot];
	i->base = store_arena_shm(m->store, slot)->base;
	i->bytes = store_arena_shm(m->store, slot)->bytes;
	return true;
}

static uint32_t lacking(const struct mr *g, uint16_t node, struct mr_item *item)
{
	uint32_t nr = 0;

	for (uint32_t kind = 0; kind < kinds(g); kind++) {
		struct mr_item i = {.kind = kind};

		if (g->peer[node].here[kind] != NULL || !wanted(g, node, &i))
			continue;
		if (item != NULL)
			item[nr] = i;
		nr++;
	}
	return nr;
}

/* --- jobs --- */

static void work(struct mr *g, uint16_t node);

static void job_run(uv_work_t *w)
{
	struct mr_job *j = w->data;

	for (uint32_t i = 0; i < j->nr; i++) {
		struct mr_item *it = &j->item[i];
		enum shard_status st = it->direct.chunks > 0
					       ? rdma_register_dma_buf(&it->got, j->domain,
								       &it->direct.memory, &j->e)
					       : rdma_register(&it->got, j->domain, it->base,
							       it->bytes, it->remote, &j->e);

		if (st != SHARD_OK) {
			it->got = NULL;
			j->no_direct = it->direct.chunks > 0;
			break;
		}
	}
	for (uint32_t i = 0; i < j->nr; i++)
		if (j->item[i].direct.chunks > 0 && j->item[i].direct.memory.fd >= 0)
			(void)close(j->item[i].direct.memory.fd);
}

/* The job has descriptors of its own, because the model may end before it does. */
static void own_descriptors(struct mr_job *j)
{
	for (uint32_t i = 0; i < j->nr; i++)
		if (j->item[i].direct.chunks > 0)
			j->item[i].direct.memory.fd =
				fcntl(j->item[i].direct.memory.fd, F_DUPFD_CLOEXEC, 3);
}

/* Would the same memory be registered now? */
static bool still(const struct mr_job *j, const struct mr_item *i)
{
	struct mr_item now = {.kind = i->kind};

	if (j->g == NULL || j->g->m->dropping ||
	    rdma_link_domain(j->g->m->server->peer[j->node]) != j->domain)
		return false;
	return j->g->peer[j->node].here[i->kind] == NULL && wanted(j->g, j->node, &now) &&
	       now.epoch == i->epoch && now.base == i->base;
}

static void failed(struct mr *g, uint16_t node, const struct err *e)
{
	struct mr_peer *rp = &g->peer[node];
	struct server *s = g->m->server;

	rp->backoff_ns = rdma_local_longer(rp->backoff_ns);
	rp->again_ns = clock_ns() + rp->backoff_ns;
	server_wake(s, rp->again_ns);
	if (strcmp(rp->why, e->text) != 0)
		log_line(s->log, LOG_LEVEL_WARN, "event=rdma_fallback peer=%s model=%s why=%s",
			 members_name(s, node), g->m->name, e->text);
	snprintf(rp->why, sizeof(rp->why), "%s", e->text);
}

/* Until the queue pairs are up again, the peer's bodies land in memory of the host. */
static void not_direct(struct mr *g, uint16_t node, const struct err *e)
{
	g->peer[node].no_direct = true;
	log_line(g->m->server->log, LOG_LEVEL_WARN, "event=gpu_direct_off model=%s peer=%s why=%s",
		 g->m->name, members_name(g->m->server, node), e->text);
	for (uint32_t i = 0; i < GPU_DEVICES_MAX; i++)
		if (g->peer[node].here[MR_DIRECT + i] != NULL)
			rdma_deregister(&g->peer[node].here[MR_DIRECT + i]);
}

static void job_done(uv_work_t *w, int status)
{
	struct mr_job *j = w->data;
	struct mr *g = j->g;
	struct server *s = j->server;

	CHECK(status == 0); /* Nobody cancels it. */
	s->rdma->jobs--;
	for (uint32_t i = 0; i < j->nr; i++) {
		if (j->item[i].got == NULL)
			continue;
		if (still(j, &j->item[i]))
			g->peer[j->node].here[j->item[i].kind] = j->item[i].got;
		else
			rdma_deregister(&j->item[i].got);
	}
	if (g != NULL) {
		g->peer[j->node].job = NULL;
		if (j->no_direct) {
			not_direct(g, j->node, &j->e);
			work(g, j->node);
		} else if (j->e.status != SHARD_OK) {
			failed(g, j->node, &j->e);
		} else {
			g->peer[j->node].why[0] = 0;
			g->peer[j->node].backoff_ns = 0;
			work(g, j->node);
		}
	}
	if (g == NULL || g->m->dropping)
		server_wake(s, 1);
	free(j);
}

static void submit(struct mr *g, uint16_t node, uint32_t nr)
{
	struct server *s = g->m->server;
	struct mr_job *j = calloc(1, sizeof(*j) + nr * sizeof(j->item[0]));
	struct err e;

	if (j == NULL) {
		err_set(&e, SHARD_SYSTEM, "no memory to register a model's");
		failed(g, node, &e);
		return;
	}
	j->work.data = j;
	j->server = s;
	j->g = g;
	j->node = node;
	j->domain = rdma_link_domain(s->peer[node]);
	j->nr = lacking(g, node, j->item);
	CHECK(j->nr == nr);
	own_descriptors(j);
	g->peer[node].job = j;
	store_room_pin(g->m->store);
	s->rdma->jobs++;
	CHECK(uv_queue_work(s->loop, &j->work, job_run, job_done) == 0);
}

/* --- telling --- */

static void describe(Shard__Region *r, const struct mr_peer *rp, const struct mr_item *i,
		     uint64_t placed)
{
	const struct mr_run *run = &rp->run[(i->kind - MR_IMAGE) % MR_RUNS_MAX];

	shard__region__init(r);
	r->address = (uint64_t)(uintptr_t)i->base;
	r->bytes = i->bytes;
	r->rkey = rdma_region_rkey(rp->here[i->kind]);
	if (i->kind == MR_SLOTS || i->kind >= MR_DIRECT) {
		r->kind = i->kind == MR_SLOTS ? 1 : 3;
		r->placed = placed;
		r->first = i->direct.first;
		r->chunks = i->direct.chunks;
		return;
	}
	r->kind = i->kind < MR_PATCH ? 2 : 0;
	r->image = i->kind < MR_PATCH ? (i->kind - MR_IMAGE) / MR_RUNS_MAX : 0;
	r->first = run->first;
	r->chunks = run->chunks;
}

static void say_direct(struct mr *g, uint16_t node)
{
	const char *why = not_direct_why(g, node);
	struct tier_direct direct;
	bool any = false;

	for (uint32_t i = 0; i < GPU_DEVICES_MAX; i++)
		any = any || tier_gpu_direct(g->m->tier, i, node, &direct);
	if (!any || why == NULL || g->peer[node].direct_said)
		return;
	g->peer[node].direct_said = true;
	log_line(g->m->server->log, LOG_LEVEL_INFO, "event=gpu_direct_off model=%s peer=%s why=%s",
		 g->m->name, members_name(g->m->server, node), why);
}

void mr_tell(struct mr *g, uint16_t node)
{
	struct model *m = g->m;
	struct arena *tx = &m->server->scratch.tx;
	struct wire_head h = {.op = OP_REGION, .model = m->id};
	Shard__Regions all = SHARD__REGIONS__INIT;
	Shard__Region *r = arena_take(tx, MR_ARENA * sizeof(*r));

	say_direct(g, node);
	g->peer[node].direct = false;
	all.region = arena_take(tx, MR_ARENA * sizeof(*all.region));
	all.codes = arena_take(tx, MR_RUNS_MAX * sizeof(*all.codes));
	CHECK(r != NULL && all.region != NULL && all.codes != NULL);
	for (uint32_t kind = 0; kind < MR_ARENA; kind++) {
		struct mr_item i = {.kind = kind};

		if (g->peer[node].here[kind] == NULL || !wanted(g, node, &i) || !i.remote)
			continue;
		describe(&r[kind], &g->peer[node], &i, g->sum[m->server->self]);
		if (kind >= MR_PATCH && kind < MR_DIRECT)
			all.codes[all.n_codes++] = &r[kind];
		else
			all.region[all.n_region++] = &r[kind];
		g->peer[node].direct = g->peer[node].direct || kind >= MR_DIRECT;
	}
	g->peer[node].told = peer_send(m->server, node, &h, &all.base, NULL) == SHARD_OK;
	arena_reset(tx);
}

/* Does whatever is to be done for the peer now. */
static void work(struct mr *g, uint16_t node)
{
	struct mr_peer *rp = &g->peer[node];
	struct peer *p = g->m->server->peer[node];
	uint32_t nr;

	if (g->m->dropping || rp->job != NULL || rdma_link_queues(p) == NULL ||
	    rdma_link_domain(p) == NULL || clock_ns() < rp->again_ns)
		return;
	nr = lacking(g, node, NULL);
	if (nr > 0)
		submit(g, node, nr);
	else if (!rp->told)
		mr_tell(g, node);
}

static void work_all(struct mr *g)
{
	for (uint16_t n = 0; n < g->nodes_nr; n++)
		if (g->m->server->peer[n] != NULL)
			work(g, n);
}

/* --- life --- */

static size_t held_index(const struct model *m, uint16_t node, uint32_t chunk)
{
	uint64_t keepers = m->mr->keepers[chunk];
	uint32_t before = (uint32_t)__builtin_popcountll(keepers & ((1ull << node) - 1));

	CHECK(keepers >> node & 1 && before < m->mr->keepers_max);
	return (size_t)chunk * m->mr->keepers_max + before;
}

uint64_t mr_held_at(const struct model *m, uint16_t node, uint32_t chunk)
{
	return m->mr->held_at[held_index(m, node, chunk)];
}

bool mr_held(const struct model *m, uint16_t node, uint32_t chunk)
{
	return m->mr->keepers[chunk] >> node & 1;
}

/* Which chunks memory was made for: this node's own as the store has it, which an earlier start
 * may have made, and those of the others by the placement. */
static bool make_keepers(struct mr *g)
{
	struct model *m = g->m;
	uint32_t chunks = m->layout->chunks_nr;
	uint64_t self = 1ull << m->server->self;

	g->keepers = calloc(chunks, sizeof(*g->keepers));
	for (uint32_t c = 0; g->keepers != NULL && c < chunks; c++) {
		g->keepers[c] = place_keepers(&m->place, c) & ~self;
		g->keepers[c] |= store_room_first(m->store, c) ? self : 0;
		if ((uint32_t)__builtin_popcountll(g->keepers[c]) > g->keepers_max)
			g->keepers_max = (uint32_t)__builtin_popcountll(g->keepers[c]);
	}
	g->held_at = calloc((size_t)chunks * g->keepers_max + 1, sizeof(*g->held_at));
	return g->keepers != NULL && g->held_at != NULL;
}

enum shard_status mr_init(struct model *m, struct err *e)
{
	uint16_t nodes = m->server->nodes_nr;
	struct mr *g = calloc(1, sizeof(*g) + nodes * sizeof(g->peer[0]));

	m->mr = g;
	if (g == NULL)
		goto err_memory;
	list_init(&g->link);
	g->m = m;
	g->nodes_nr = nodes;
	if (!make_keepers(g))
		goto err_memory;
	if (m->server->rdma != NULL && rdma_local_here(m->server))
		store_room_pin(m->store); /* Before a chunk goes. */
	for (uint16_t n = 0; n < nodes; n++) {
		g->peer[n].runs_nr = runs_of(m, n, g->peer[n].run);
		g->peer[n].untold = UINT64_MAX;
		if ((g->peer[n].here = calloc(kinds(g), sizeof(struct rdma_region *))) == NULL)
			goto err_memory;
	}
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++) {
		for (uint16_t n = 0; n < nodes; n++) {
			if (!mr_held(m, n, c))
				continue;
			g->sum[n] = xxh_sum(&c, sizeof(c), g->sum[n]);
			g->held_at[held_index(m, n, c)] = g->held[n];
			g->held[n] += layout_chunk_elems(m->layout, c);
		}
	}
	list_push(&m->server->mr, &g->link);
	return SHARD_OK;
err_memory: /* mr_free() frees what is there. */
	return err_set(e, SHARD_SYSTEM, "no memory to keep track of %u chunks",
		       m->layout->chunks_nr);
}

/* From now on the peer writes nothing. What it wrote may have landed. */
static void untell(struct mr *g, uint16_t node)
{
	struct mr_peer *rp = &g->peer[node];

	if (rp->told)
		rp->untold = g->m->step;
	rp->told = false;
}

static void deregister(struct mr *g, uint16_t node)
{
	struct mr_peer *rp = &g->peer[node];

	for (uint32_t kind = 0; rp->here != NULL && kind < kinds(g); kind++)
		if (rp->here[kind] != NULL)
			rdma_deregister(&rp->here[kind]);
	untell(g, node);
}

void mr_free(struct model *m)
{
	struct mr *g = m->mr;

	if (g == NULL)
		return;
	m->mr = NULL;
	for (uint16_t n = 0; n < g->nodes_nr; n++) {
		CHECK(g->peer[n].posted == 0);
		deregister(g, n);
		if (g->peer[n].job != NULL)
			g->peer[n].job->g = NULL;
		free(g->peer[n].here);
	}
	list_remove(&g->link);
	free(g->held_at);
	free(g->keepers);
	free(g);
}

void mr_made(struct model *m)
{
	work_all(m->mr);
}

void mr_arena_opened(struct model *m, uint32_t slot)
{
	m->mr->arenas |= 1ull << slot;
	m->mr->arena_epoch[slot]++;
	work_all(m->mr);
}

void mr_arena_closed(struct model *m, uint32_t slot)
{
	struct mr *g = m->mr;

	g->arenas &= ~(1ull << slot);
	for (uint16_t n = 0; n < m->mr->nodes_nr; n++)
		if (g->peer[n].here[MR_ARENA + slot] != NULL)
			rdma_deregister(&g->peer[n].here[MR_ARENA + slot]);
}

void mr_rail_up(struct peer *p)
{
	list_each(it, &p->server->mr) {
		struct mr *g = list_of(it, struct mr, link);

		if (p->node >= g->nodes_nr)
			continue;
		g->peer[p->node].again_ns = 0;
		work(g, p->node);
	}
}

void mr_rail_down(struct peer *p)
{
	list_each(it, &p->server->mr) {
		struct mr *g = list_of(it, struct mr, link);
		struct mr_peer *rp = &g->peer[p->node];

		if (p->node >= g->nodes_nr)
			continue;
		CHECK(rp->posted == 0);
		untell(g, p->node);
		rp->known = rp->releasing = rp->release_due = false;
		rp->direct = rp->no_direct = rp->direct_said = false;
	}
}

void mr_beat(struct peer *p, uint64_t now_ns)
{
	list_each(it, &p->server->mr) {
		struct mr *g = list_of(it, struct mr, link);

		if (p->node >= g->nodes_nr)
			continue;
		if ((!g->peer[p->node].told || g->peer[p->node].why[0] != 0) &&
		    now_ns >= g->peer[p->node].again_ns)
			work(g, p->node);
	}
}

void mr_forget(struct server *s)
{
	list_each(it, &s->mr)
		for (uint16_t n = 0; n < list_of(it, struct mr, link)->nodes_nr; n++)
			deregister(list_of(it, struct mr, link), n);
}

const char *mr_why(const struct peer *p)
{
	list_each(it, &p->server->mr) {
		const struct mr *g = list_of(it, struct mr, link);

		if (p->node >= g->nodes_nr)
			return "the node has joined since the memory was made: tensors to and from "
			       "it go by TCP until this node has started without its memory";
		if (g->peer[p->node].why[0] != 0)
			return g->peer[p->node].why;
		if (g->peer[p->node].elsewhere)
			return "its memory was made before chunks moved: gradients to it go by "
			       "TCP until it has started without its memory";
	}
	return NULL;
}

/* --- the end of a model --- */

void mr_drop(struct model *m)
{
	struct wire_head h = {.op = OP_REGION, .model = m->id};
	Shard__Regions body = SHARD__REGIONS__INIT;

	body.release = true;
	for (uint16_t n = 0; n < m->mr->nodes_nr; n++) {
		struct mr_peer *rp = &m->mr->peer[n];

		if (!rp->told)
			continue;
		rp->told = false;
		rp->releasing = true;
		peer_tell(m->server, n, &h, &body.base);
		rp->release_by_ns = clock_ns() + MR_RELEASE_NS;
	}
}

bool mr_quiet(const struct model *m, uint64_t now_ns)
{
	for (uint16_t n = 0; n < m->mr->nodes_nr; n++) {
		const struct mr_peer *rp = &m->mr->peer[n];

		if (rp->job != NULL || (rp->releasing && now_ns < rp->release_by_ns))
			return false;
	}
	return true;
}

/* Is this memory that the peer may write? */
static bool may_write(const struct model *m, uint16_t node, const void *at, uint32_t bytes)
{
	const struct mr_peer *rp = &m->mr->peer[node];

	if (!rp->told)
		return false;
	for (uint32_t kind = 0; kind < MR_ARENA; kind += kind == MR_SLOTS ? MR_IMAGE : 1)
		if (rp->here[kind] != NULL && rdma_region_has(rp->here[kind], at, bytes))
			return true;
	return false;
}

bool mr_codes_overwritten(const struct model *m, uint32_t chunk)
{
	if (!m->attempt.voted)
		return false;
	for (uint16_t n = 0; n < m->mr->nodes_nr; n++) {
		const struct mr_peer *rp = &m->mr->peer[n];

		/* The next image comes of the next record, so older queue pairs never had it. */
		if (!rp->told && rp->untold != m->step)
			continue;
		for (uint32_t i = 0; i < rp->runs_nr; i++)
			if (mr_run_has(&rp->run[i], chunk))
				return true;
	}
	return false;
}

/* Where the peer writes bodies of that chunk, if it was told of direct slots. 0: nowhere there. */
static uint64_t direct_at(const struct model *m, uint16_t node, const struct wire_head *h)
{
	if (!m->mr->peer[node].direct || m->contrib.coded ||
	    (h->op != OP_CONTRIB_DATA && h->op != OP_GRAD_DATA))
		return 0;
	CHECK(h->chunk < m->layout->chunks_nr); /* It has a place over TCP. */
	return tier_gpu_direct_at(m->tier, h->chunk, node);
}

bool mr_landed(struct model *m, uint16_t node, const struct wire_head *h, void **to)
{
	uint64_t at = node < m->mr->nodes_nr ? direct_at(m, node, h) : 0;

	if (at != 0) {
		*to = (void *)(uintptr_t)(at + (uint64_t)WIRE_PART(h->flags) * WIRE_PART_BYTES);
		m->contrib.chunk[h->chunk].inside |= 1ull << node;
	}
	return node < m->mr->nodes_nr && may_write(m, node, *to, h->body_bytes);
}
