/* SPDX-License-Identifier: Apache-2.0 */
/* After COMMIT: the optimizer over every chunk held here, one pass that reads gradient and state and writes state and image; then the
 * image's way to the trainers here and to the other nodes. model.c starts it; workers run the passes; peer_ops.c brings image
 * parts from other nodes. Image frames are named by the last step that changed weights (content_step) and judged by it, never by
 * view: taken when it is the one decided here, or, PREPARED, the one that must be being decided (its bytes prove the commit).
 * What was missed (a link fell) is asked for again, once a second. With max_staleness = 1 there are two images: each applied step is
 * written to the one that does not have the newest weights, and chunks are numbered by the step that wrote them. */
#include "apply.h"

#include "base/check.h"
#include "base/clock.h"
#include "peer.h"
#include "session.h"
#include "tile.h"
#include "transfer.h"
#include "wire/ops.h"

#include <string.h>

#define APPLY_ASK_NS   NS_PER_SEC
#define APPLY_RUNS_MAX 1024

struct apply_job {
	struct model *m;
	uint32_t chunk, generation, slot;
	bool seal;
	uint64_t kept;
};
static_assert(sizeof(struct apply_job) <= WORKER_ARGS_BYTES, "a job travels by value");

static void apply_run(void *args)
{
	struct apply_job *j = args;
	struct model *m = j->m;
	const struct layout *l = m->layout;
	const struct gather_chunk *c = &m->gather.chunk[j->chunk];
	optim_apply *kernel = optim_kernel(m->set.optim, m->server->isa, m->grad, m->image);
	float *master = store_master(m->store, j->chunk), *s1 = store_state(m->store, j->chunk, 0),
	      *s2 = store_state(m->store, j->chunk, 1);
	uint8_t *image = store_image(m->store, j->slot, j->chunk);

	if (j->seal) {
		store_seal_chunk(m->store, j->slot, j->chunk);
		store_image_keep(m->store, j->slot, j->chunk);
		return;
	}
	if (model_parked(m)) {
		j->kept = tile_apply(m, j->chunk, j->slot);
		store_image_keep(m->store, j->slot, j->chunk);
		return;
	}
	for (uint32_t s = l->chunk_segment[j->chunk]; s < l->chunk_segment[j->chunk + 1]; s++) {
		const struct segment *g = &l->segment[s];
		const void *grad = m->gather.zero[s] ? NULL : c->base + (size_t)g->start * m->grad_bytes;

		if (!layout_frozen(l, s))
			j->kept +=
				kernel(&m->record.args[g->group], g->n, grad, master + g->start, s1 != NULL ? s1 + g->start : NULL,
				       s2 != NULL ? s2 + g->start : NULL, image + (size_t)g->start * m->image_bytes);
	}
}

/* One image moves its versions with every step, skipped or not; of two each says which step wrote it, and a skip changes nothing. */
uint64_t apply_version(const struct model *m)
{
	return m->set.max_staleness > 0 ? m->content_step : m->step;
}

uint32_t apply_slot(const struct model *m, const struct record *r)
{
	return m->set.max_staleness > 0 ? r->applied & 1 : 0;
}

bool apply_image_whole(const struct model *m)
{
	return m->sealed && m->apply_left == 0 && m->image_lacking == 0;
}

/* Chunks that become ready together are told together: every frame wakes its trainer. */
static void tell_trainers(struct model *m)
{
	struct wire_head h;

	m->tell_due = m->tell_held || worker_in_turn(m->server->pool);
	if (m->tell_due)
		return;
	store_image_published(m->store);
	list_each(it, &m->server->sessions) {
		struct session *t = list_of(it, struct session, link);

		if (t->model != m || !t->local)
			continue;
		model_head(m, &h, OP_PUBLISHED, &m->record.id);
		h.step = m->step;
		if (stream_send_control(conn_stream(t->conn), &h, NULL) == SHARD_OK)
			conn_kick(t->conn);
	}
}

void apply_turn(void *server)
{
	struct server *s = server;

	list_each(it, &s->models)
		if (list_of(it, struct model, link)->tell_due)
			tell_trainers(list_of(it, struct model, link));
}

static void send_to(struct outbox *o, uint32_t slot, uint32_t chunk)
{
	if (o->conn != NULL && o->nr < o->cap)
		outbox_push(o, slot ? chunk | OUTBOX_SLOT : chunk), outbox_pump(o);
}

/* A chunk has its new bytes. */
static void publish(struct model *m, uint32_t slot, uint32_t chunk, uint64_t version)
{
	uint32_t connections = m->server->conf->connections;

	store_image_version(m->store, slot, chunk, version);
	for (uint16_t n = 0; m->owner[chunk] == m->server->self && n < m->server->nodes_nr; n++)
		send_to(&m->image_out[n * connections + chunk % connections], slot, chunk);
	list_each(it, &m->server->sessions) {
		struct session *t = list_of(it, struct session, link);

		if (t->model == m && t->has_image)
			send_to(&t->image, slot, chunk);
	}
	if (apply_image_whole(m))
		store_image_whole(m->store);
	tell_trainers(m);
	model_seal_progress(m);
}

static void maybe_applied(struct model *m)
{
	if (!m->applying || m->apply_left > 0 || m->image_sends > 0)
		return;
	m->applying = false;
	m->apply_ns = clock_ns() - m->apply_began_ns;
	if (m->record.outcome == RECORD_APPLIED)
		histogram_add(&m->metrics.apply, m->apply_ns);
	transfer_retry(m);
	ckpt_boundary(m);
	model_event(m, &(struct core_event){.type = CORE_EV_APPLIED, .id = m->record.id});
}

void apply_image_sent(struct model *m)
{
	CHECK(m->image_sends > 0);
	if (--m->image_sends > 0)
		return;
	if (m->dropping)
		server_wake(m->server, 1);
	maybe_applied(m);
	while (m->staged_later_nr > 0 && m->image_sends == 0)
		model_stage(m, m->staged_later[--m->staged_later_nr]);
}

static void apply_done(void *owner, void *args)
{
	struct model *m = owner;
	const struct apply_job *j = args;

	m->kept_total += j->kept;
	if (j->generation == m->generation) {
		CHECK(m->apply_left > 0);
		m->apply_left--;
		if (m->apply_left == 0)
			m->sealing = false;
		publish(m, j->slot, j->chunk, apply_version(m));
		if (j->seal && m->apply_left == 0)
			transfer_retry(m);
	}
	maybe_applied(m);
	model_release(m);
}

static void submit_all(struct model *m, bool seal)
{
	m->tell_held = true;
	m->apply_left = store_owned(m->store);
	m->apply_began_ns = clock_ns();
	for (uint32_t c = 0, left = m->apply_left; left > 0; c++) {
		struct worker_job job = {.run = apply_run, .done = apply_done, .owner = m};
		struct apply_job j = {.m = m, .chunk = c, .generation = m->generation, .slot = m->slot, .seal = seal};

		if (m->owner[c] != m->server->self)
			continue;
		left--;
		memcpy(job.args, &j, sizeof(j));
		m->busy++;
		if (layout_chunk_elems(m->layout, c) <= SERVER_SMALL_ELEMS || worker_submit(m->server->pool, &job) != SHARD_OK)
			worker_run_here(m->server->pool, &job);
	}
	m->tell_held = false;
	if (m->tell_due)
		tell_trainers(m);
}

static bool lacks(const struct model *m, uint32_t chunk)
{
	return m->owner[chunk] != m->server->self && store_image_chunk(m->store, m->slot, chunk) != apply_version(m);
}

/* Of the image of the step before, which trainers here may still compute on. */
static bool lacks_old(const struct model *m, uint32_t chunk)
{
	return m->old_lacking > 0 && m->owner[chunk] != m->server->self &&
	       store_image_chunk(m->store, m->slot ^ 1, chunk) != m->content_old;
}

static void count_lacking(struct model *m)
{
	m->image_lacking = 0;
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
		m->image_lacking += lacks(m, c);
}

/* The slot gets the bytes of this step from now on: what it had is gone. */
static void slot_takes(struct model *m, uint32_t slot, uint64_t content)
{
	m->slot_content[slot] = content;
	if (slot != m->slot && content != m->content_old)
		m->old_lacking = 0;
}

/* From here on a start that finds this memory knows what is in it: before the first tile moves. */
static void keep_mark(struct model *m, bool moves)
{
	struct meta_mark mark = m->meta.mark;

	mark.id = m->record.id;
	mark.step = m->step;
	mark.content_step = m->content_step;
	mark.content_old = m->content_old;
	mark.stamp += moves;
	mark.cleared = m->generation;
	if (model_parked(m))
		meta_mark(&m->meta, &mark);
}

/* No weight moves: versions do, of every chunk that is here. */
static void apply_skip(struct model *m, uint64_t before)
{
	m->content_old = m->content_step;
	m->old_lacking = 0;
	keep_mark(m, false);
	for (uint32_t c = 0; m->set.max_staleness == 0 && c < m->layout->chunks_nr; c++)
		if (store_image_chunk(m->store, 0, c) == before)
			store_image_version(m->store, 0, c, m->step);
	count_lacking(m);
	if (apply_image_whole(m))
		store_image_whole(m->store);
	tell_trainers(m);
	m->steps_skipped++;
	maybe_applied(m);
}

void apply_start(struct model *m, const struct record *r)
{
	uint64_t before = m->step;

	m->record = *r;
	m->step = r->id.step;
	m->applying = true;
	m->voted = false;
	if (r->outcome != RECORD_APPLIED) {
		apply_skip(m, before);
		return;
	}
	m->steps_applied++;
	if (m->again && core_id_cmp(&m->meta.mark.id, &r->id) == 0) { /* resume.c has brought the tiles there that lacked */
		m->image_asked_ns = clock_ns();
		count_lacking(m);
		maybe_applied(m);
		return;
	}
	m->content_old = m->content_step;
	m->content_step = m->step;
	if (m->set.max_staleness > 0) {
		m->old_lacking = m->image_lacking;
		CHECK(m->slot != apply_slot(m, r));
		m->slot = apply_slot(m, r);
		store_image_newest(m->store, m->slot);
	}
	m->slot_content[m->slot] = m->step;
	m->image_asked_ns = clock_ns();
	count_lacking(m);
	keep_mark(m, true);
	submit_all(m, false);
	maybe_applied(m); /* nothing held here */
}

void apply_seal(struct model *m, const struct record *r)
{
	m->record = *r;
	m->sealed = true;
	m->sealing = store_owned(m->store) > 0; /* else nothing ends it */
	m->generation = r->id.generation;
	m->step = m->content_step = m->content_old = r->id.step;
	m->slot = apply_slot(m, r);
	store_image_newest(m->store, m->slot);
	m->slot_content[m->slot] = m->step;
	m->slot_content[m->slot ^ 1] = UINT64_MAX;
	m->old_lacking = 0;
	store_image_generation(m->store, m->generation);
	count_lacking(m);
	keep_mark(m, false);
	submit_all(m, true);
	apply_image_ask(m, clock_ns());
}

/* --- image chunks of other nodes --- */

void apply_image_ask(struct model *m, uint64_t now_ns)
{
	uint32_t *runs = arena_take(&m->server->tx, 2 * APPLY_RUNS_MAX * sizeof(*runs));
	struct wire_head h;

	CHECK(runs != NULL);
	m->image_asked_ns = now_ns;
	for (uint16_t n = 0; n < m->server->nodes_nr; n++) {
		Shard__Chunks want = SHARD__CHUNKS__INIT;
		bool open = false;

		want.runs = runs;
		for (uint32_t c = 0; c < m->layout->chunks_nr && want.n_runs < 2 * APPLY_RUNS_MAX; c++) {
			bool want_it = m->owner[c] == n && (lacks(m, c) || lacks_old(m, c));

			if (want_it && open)
				runs[want.n_runs - 1]++;
			else if (want_it)
				runs[want.n_runs++] = c, runs[want.n_runs++] = 1;
			open = want_it;
		}
		if (n == m->server->self || want.n_runs == 0)
			continue;
		model_head(m, &h, OP_IMAGE_ASK, &m->record.id);
		(void)peer_send(m->server, n, &h, &want.base, NULL); /* a link that is down: asked again when it is up */
	}
	arena_reset(&m->server->tx);
}

static bool has_old(const struct model *m, uint32_t chunk)
{
	return m->set.max_staleness > 0 && m->slot_content[m->slot ^ 1] == m->content_old &&
	       store_image_chunk(m->store, m->slot ^ 1, chunk) == m->content_old;
}

void apply_image_asked(struct model *m, uint16_t node, const Shard__Chunks *want)
{
	uint32_t connections = m->server->conf->connections;

	if (!m->sealed || (m->set.max_staleness == 0 && (m->voted || m->applying)))
		return; /* it would be overwritten under way; asked again in a second. The newest of two is not the next to be */
	for (size_t i = 0; i + 1 < want->n_runs; i += 2) {
		for (uint32_t k = 0; k < want->runs[i + 1] && k < m->layout->chunks_nr; k++) {
			uint64_t c = (uint64_t)want->runs[i] + k;
			struct outbox *o;

			if (c >= m->layout->chunks_nr || m->owner[c] != m->server->self)
				continue;
			o = &m->image_out[node * connections + c % connections];
			if (m->content_old != m->content_step && !m->voted && has_old(m, (uint32_t)c))
				send_to(o, m->slot ^ 1, (uint32_t)c);
			if (store_image_chunk(m->store, m->slot, (uint32_t)c) == apply_version(m))
				send_to(o, m->slot, (uint32_t)c);
		}
	}
}

/* Is this part one to take now, and where? */
static bool image_wanted(const struct model *m, const struct wire_head *h, uint32_t *slot)
{
	*slot = m->slot;
	if (h->generation != m->generation || m->owner[h->chunk] == m->server->self)
		return false;
	if (m->sealed && h->step == m->content_step)
		return lacks(m, h->chunk);
	if (m->set.max_staleness > 0)
		*slot ^= 1;
	if (m->sealed && h->step == m->content_old && lacks_old(m, h->chunk))
		return true;
	return m->voted && h->step == m->id_now.step && h->attempt == m->id_now.attempt && h->term == m->id_now.term &&
	       h->seq == m->id_now.seq;
}

enum shard_status apply_image_head(struct model *m, const struct wire_head *h, void **to, struct err *e)
{
	uint32_t part = WIRE_PART(h->flags), slot;

	*to = STREAM_DISCARD;
	if (h->chunk >= m->layout->chunks_nr || part >= model_parts(m, h->chunk, m->image_bytes) ||
	    h->body_bytes != model_part_bytes(m, h->chunk, m->image_bytes, part))
		return err_set(e, SHARD_PROTOCOL, "image part %u (%u bytes) of chunk %u of \"%s\": no such part", part,
			       h->body_bytes, h->chunk, m->name);
	if (!image_wanted(m, h, &slot))
		return SHARD_OK;
	slot_takes(m, slot, h->step);
	if (part == 0 || m->image_coming[h->chunk] != h->step) {
		m->image_coming[h->chunk] = h->step;
		m->image_parts[h->chunk] = 0;
	}
	*to = (uint8_t *)store_image(m->store, slot, h->chunk) + (size_t)part * WIRE_PART_BYTES;
	model_flow_add(&m->image_in, 0);
	return SHARD_OK;
}

enum shard_status apply_image_part(struct model *m, const struct wire_head *h, struct err *e)
{
	bool decided = m->sealed && h->step == m->content_step, old = m->old_lacking > 0 && h->step == m->content_old;
	uint32_t slot;

	(void)e;
	if (!image_wanted(m, h, &slot) || m->image_coming[h->chunk] != h->step)
		return SHARD_OK;
	if (WIRE_PART(h->flags) != m->image_parts[h->chunk])
		return SHARD_OK; /* its beginning was missed; it is asked for again */
	model_flow_add(&m->image_in, h->body_bytes);
	if (++m->image_parts[h->chunk] < model_parts(m, h->chunk, m->image_bytes))
		return SHARD_OK;
	if (decided)
		m->image_lacking--;
	else if (old)
		m->old_lacking--;
	publish(m, slot, h->chunk, decided ? apply_version(m) : h->step);
	transfer_retry(m);
	return SHARD_OK;
}

void apply_session_image(struct model *m, struct session *t)
{
	if (t->local || t->has_image)
		return;
	t->has_image = true;
	t->image.conn = t->conn;
	for (uint32_t c = 0; m->content_old != m->content_step && c < m->layout->chunks_nr; c++)
		if (has_old(m, c))
			send_to(&t->image, m->slot ^ 1, c);
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
		if (store_image_chunk(m->store, m->slot, c) == apply_version(m))
			send_to(&t->image, m->slot, c);
}

void apply_node_gone(struct model *m, uint16_t node)
{
	uint32_t connections = m->server->conf->connections;

	for (uint32_t i = 0; i < connections; i++) {
		struct outbox *c = &m->contrib_out[node * connections + i], *o = &m->image_out[node * connections + i];

		c->conn = o->conn = NULL;
		outbox_drop(c);
		outbox_drop(o);
	}
}

void apply_node_back(struct model *m, uint16_t node)
{
	uint32_t connections = m->server->conf->connections;
	struct peer *p = m->server->peer[node];

	for (uint32_t i = 0; i < connections; i++)
		m->contrib_out[node * connections + i].conn = m->image_out[node * connections + i].conn = p->conns[i].conn;
	if (m->sealed && (m->image_lacking > 0 || m->old_lacking > 0))
		apply_image_ask(m, clock_ns());
}
