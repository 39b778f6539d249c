/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the history of each model on this node. model/watch.h tells of steps, views, seals and
 * saves on the loop, and dispatch.c brings HISTORY. Happy path: an entry is packed into a buffer,
 * and a job of JOB_HISTORY appends what has gathered and syncs it (cluster/history_file.h) while
 * the other buffer fills. A disk that is full or fails is logged once. The entries wait, and each
 * beat tries again. If the buffer has no room either, training goes on, and an entry GAP says which
 * steps are missing and why. A process that is killed loses what was not written. The entry START
 * of the next one has the last record of the model, so that this shows, too. */
#include "obs/history.h"

#include "base/check.h"
#include "base/clock.h"
#include "cluster/history_file.h"
#include "control/unmade.h"
#include "core/core.h"
#include "data/model.h"
#include "link/call.h"
#include "link/caller.h"
#include "link/hello.h"
#include "link/nodes.h"
#include "link/peer.h"
#include "link/session.h"
#include "model/corewire.h"
#include "model/model.h"
#include "model/watch.h"
#include "wire/history.h"
#include "wire/ops.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TEXT_MAX     4000
#define READINGS_MAX 8 /* Pages of one model that are being read. */

struct buffer {
	unsigned char *at; /* [HISTORY_BUFFER_BYTES] */
	size_t used;
	uint64_t entries;
};

struct history {
	struct list link; /* In server.histories. */
	struct server *server;
	struct model *m; /* NULL: it is gone. */
	uint32_t id;
	char name[72];
	/* A thread has `writing` and `file` between job_begin() and written(). */
	struct job job;
	struct history_file file;
	struct buffer writing, filling;
	enum shard_status st;
	struct err e;
	/* removes: its files go, and nothing is written any more. removed: they are gone. */
	bool working, removes, removed;
	uint64_t began_ns, due_ns; /* Of the last write, and when the next one may begin. */
	uint32_t readings;
	struct list waiters; /* Of them: those that wait for entries to be written. */

	bool begun; /* START is there. */
	uint64_t term;
	uint32_t seq, generation;
	struct core_id last; /* Of the last record that an entry has. */
	struct {
		uint64_t nr, first, last; /* Entries and steps that had no room. */
	} gap;
	uint64_t added, entries, dropped; /* added: in a buffer. entries: written. */
	uint64_t all_bytes;               /* On the disk, for those who may not look at `file`. */
	char trouble[ERR_TEXT_BYTES];
};

static struct history *find(const struct server *s, uint32_t id)
{
	list_each(it, (struct list *)(uintptr_t)&s->histories)
		if (list_of(it, struct history, link)->id == id)
			return list_of(it, struct history, link);
	return NULL;
}

/* protobuf-c's structs are not const, but packing only reads. */
static char *word(const char *text)
{
	return (char *)(uintptr_t)text;
}

/* --- writing --- */

static void flush(struct history *h);
static void serve(struct history *h);
static void gap_say(struct history *h);

static void forget(struct history *h)
{
	CHECK(h->m == NULL && !h->working && h->readings == 0);
	list_remove(&h->link);
	history_file_close(&h->file);
	free(h->file.first);
	free(h->writing.at);
	free(h->filling.at);
	free(h);
}

/* Frees it once nothing uses it. */
static void maybe_forget(struct history *h)
{
	if (h->m == NULL && !h->working && h->readings == 0)
		forget(h);
}

static void in_trouble(struct history *h, const char *why)
{
	if (strcmp(h->trouble, why) == 0)
		return;
	if (h->trouble[0] == 0)
		log_line(h->server->log, LOG_LEVEL_ERROR,
			 "event=history_late model=%s why=%s means=%s", h->name, why,
			 "training goes on; entries wait, and those without room will be missing");
	snprintf(h->trouble, sizeof(h->trouble), "%s", why);
}

static void out_of_trouble(struct history *h)
{
	if (h->trouble[0] != 0)
		log_line(h->server->log, LOG_LEVEL_INFO,
			 "event=history_written model=%s dropped=%lu", h->name,
			 (unsigned long)h->dropped);
	h->trouble[0] = 0;
}

/* Returns false if there is no room. */
static bool put(struct history *h, const Shard__HistoryEntry *x)
{
	size_t body = shard__history_entry__get_packed_size(x), all = HISTORY_HEAD_BYTES + body;
	uint32_t bytes = (uint32_t)body;
	struct buffer *b = &h->filling;
	unsigned char *at = b->at + b->used;

	CHECK(body > 0 && body <= HISTORY_BODY_MAX);
	if (all > HISTORY_BUFFER_BYTES - b->used)
		return false;
	memset(at, 0, HISTORY_HEAD_BYTES); /* Its number is given when it is written. */
	memcpy(at + 4, &bytes, sizeof(bytes));
	shard__history_entry__pack(x, at + HISTORY_HEAD_BYTES);
	b->used += all;
	b->entries++;
	h->added++;
	return true;
}

static void add(struct history *h, Shard__HistoryEntry *x, uint64_t step)
{
	x->unix_ns = clock_unix_ns();
	gap_say(h);
	if (h->gap.nr == 0 && put(h, x)) {
		flush(h);
		return;
	}
	h->dropped++;
	if (h->gap.nr++ == 0)
		h->gap.first = step;
	h->gap.last = step;
}

/* What is missing is said as soon as there is room for it and for much more, so that one trouble is
 * one gap. */
static void gap_say(struct history *h)
{
	Shard__HistoryEntry x = SHARD__HISTORY_ENTRY__INIT;

	if (h->gap.nr == 0 || h->filling.used > HISTORY_BUFFER_BYTES / 2)
		return;
	x.kind = HISTORY_GAP;
	x.unix_ns = clock_unix_ns();
	x.first = h->gap.first;
	x.last = h->gap.last;
	x.count = h->gap.nr;
	x.text = h->trouble[0] != 0 ? h->trouble : word("the disk was too slow");
	if (!put(h, &x))
		return;
	log_line(h->server->log, LOG_LEVEL_WARN,
		 "event=history_gap model=%s entries=%lu first=%lu last=%lu why=%s", h->name,
		 (unsigned long)h->gap.nr, (unsigned long)h->gap.first, (unsigned long)h->gap.last,
		 x.text);
	h->gap.nr = 0;
	flush(h);
}

/* What the first opening found at the end of the files. */
static void cut_say(struct history *h)
{
	Shard__HistoryEntry x = SHARD__HISTORY_ENTRY__INIT;
	struct history_file *f = &h->file;
	char text[200];

	if (f->cut == 0 && f->damage[0] == 0)
		return;
	if (f->damage[0] != 0)
		snprintf(text, sizeof(text), "%s: it stays, and a new file is begun", f->damage);
	else
		snprintf(text, sizeof(text), "%lu bytes at the end were half written, and are cut",
			 (unsigned long)f->cut);
	log_line(h->server->log, f->damage[0] != 0 ? LOG_LEVEL_ERROR : LOG_LEVEL_WARN,
		 "event=history_cut model=%s why=%s", h->name, text);
	x.kind = HISTORY_CUT;
	x.count = f->cut;
	x.text = text;
	f->cut = 0;
	f->damage[0] = 0;
	add(h, &x, h->last.step);
}

static void run(struct job *j)
{
	struct history *h = list_of(j, struct history, job);

	h->st = h->removes ? history_file_remove(&h->file, &h->e)
			   : history_file_append(&h->file, h->writing.at, h->writing.used, &h->e);
}

/* Says when the next write may begin. */
static void rest(struct history *h)
{
	uint64_t now = clock_ns(), ns = (now - h->began_ns) * HISTORY_REST;

	h->due_ns = now + (ns < HISTORY_REST_MAX_NS ? ns : HISTORY_REST_MAX_NS);
}

static void written(struct job *j)
{
	struct history *h = list_of(j, struct history, job);
	struct server *s = h->server;
	bool removed = h->removes && h->writing.used == 0;

	CHECK(h->working && s->persists > 0);
	h->working = false;
	rest(h);
	s->persists--;
	server_wake(s, 0); /* Also for a stop, which waits for this. */
	if (h->st != SHARD_OK && removed)
		log_line(s->log, LOG_LEVEL_WARN, "event=history_kept model=%s why=%s", h->name,
			 h->e.text);
	if (removed) {
		h->removed = true;
		serve(h);
		maybe_forget(h);
		return;
	}
	if (h->st == SHARD_OK) {
		h->all_bytes = h->file.older + h->file.bytes;
		h->entries += h->writing.entries;
		h->writing.used = h->writing.entries = 0;
		gap_say(h);
		out_of_trouble(h);
		cut_say(h);
		flush(h);
	} else {
		in_trouble(h, h->e.text); /* The beat tries again. */
	}
	if (h->removes)
		flush(h);
	serve(h);
	maybe_forget(h);
}

static void on_timer(uv_timer_t *t)
{
	struct server *s = t->data;

	list_each(it, &s->histories)
		flush(list_of(it, struct history, link));
}

/* The time for what waits has not come. The timer, which all of them share, calls again. */
static bool rests(struct history *h)
{
	struct server *s = h->server;
	uint64_t now = clock_ns();

	if (h->removes || s->stop.on || now >= h->due_ns || !list_empty(&h->waiters) ||
	    h->filling.used > HISTORY_BUFFER_BYTES / 2)
		return false;
	if (!uv_is_active((uv_handle_t *)&s->clock.history_timer))
		uv_timer_start(&s->clock.history_timer, on_timer,
			       (h->due_ns - now + NS_PER_MS - 1) / NS_PER_MS, 0);
	return true;
}

/* Begins to write what waits. A disk that failed is tried again by the beat alone. */
static void flush(struct history *h)
{
	struct buffer full = h->filling;

	if (h->working || h->removed || (!h->removes && h->trouble[0] != 0) ||
	    (h->writing.used + h->filling.used == 0 && !h->removes) || rests(h))
		return;
	if (h->removes) {
		h->writing.used = h->filling.used = 0;
	} else if (h->writing.used == 0) {
		h->filling = h->writing;
		h->writing = full;
	}
	h->working = true;
	h->began_ns = clock_ns();
	h->server->persists++;
	job_begin(&h->job, h->server, JOB_HISTORY, run, written);
}

static void history_beat(struct model *m, uint64_t now_ns)
{
	struct history *h = find(m->server, m->id);
	char trouble[ERR_TEXT_BYTES];

	(void)now_ns;
	if (h == NULL || h->working || h->trouble[0] == 0)
		return;
	snprintf(trouble, sizeof(trouble), "%s", h->trouble);
	h->trouble[0] = 0; /* Only so that the next line writes. */
	flush(h);
	snprintf(h->trouble, sizeof(h->trouble), "%s", trouble);
}

/* --- entries --- */

/* Numbers of a node in the view. */
static size_t fill_nodes(const struct model *m, const struct view_members *members,
			 Shard__HistoryNode *node, Shard__HistoryNode **list)
{
	size_t nr = 0;

	for (uint16_t n = 0; n < m->server->nodes_nr; n++) {
		Shard__HistoryNode *x = &node[nr];

		if (members != NULL && !view_is_member(members, n))
			continue;
		shard__history_node__init(x);
		x->slot = n;
		x->name = word(members_name(m->server, n));
		if (members != NULL) {
			x->uuid.len = VIEW_UUID_BYTES;
			x->uuid.data = (uint8_t *)(uintptr_t)members->node[n].uuid;
			x->incarnation = members->node[n].incarnation;
		}
		list[nr++] = x;
	}
	return nr;
}

/* The entry with which each file begins. */
static void say_model(struct history *h)
{
	Shard__HistoryEntry x = SHARD__HISTORY_ENTRY__INIT;
	Shard__HistoryNode node[CONFIG_NODES_MAX], *list[CONFIG_NODES_MAX];
	const struct model *m = h->m;
	char settings[TEXT_MAX];
	unsigned char *at;
	size_t body;
	uint32_t bytes;

	snprintf(settings, sizeof(settings), "%s", m->settings_text);
	x.kind = HISTORY_MODEL;
	x.unix_ns = clock_unix_ns();
	x.name = m->name;
	x.slot = m->server->self;
	x.incarnation = m->memory.incarnation;
	x.optimizer = word(m->set.optim->name);
	x.text = settings;
	x.generation = m->generation;
	x.n_nodes = fill_nodes(m, NULL, node, list);
	x.nodes = list;
	body = shard__history_entry__get_packed_size(&x);
	CHECK(body <= HISTORY_BODY_MAX);
	if ((at = calloc(1, HISTORY_HEAD_BYTES + body)) == NULL)
		return;
	bytes = (uint32_t)body;
	memcpy(at + 4, &bytes, sizeof(bytes));
	shard__history_entry__pack(&x, at + HISTORY_HEAD_BYTES);
	h->file.first = at;
	h->file.first_bytes = HISTORY_HEAD_BYTES + body;
}

static void say_view(struct history *h, enum history_kind kind, const struct core_now *a)
{
	Shard__HistoryEntry x = SHARD__HISTORY_ENTRY__INIT;
	Shard__HistoryNode node[CONFIG_NODES_MAX], *list[CONFIG_NODES_MAX];
	struct arena *tx = &h->server->scratch.tx;

	x.kind = kind;
	x.term = h->term = a->term;
	x.seq = h->seq = a->seq;
	x.generation = h->generation = a->generation;
	x.coordinator = view_coordinator(a->members);
	x.counts = !a->learns;
	x.release = word(kind == HISTORY_START ? SHARD_RELEASE : "");
	x.text = word(kind != HISTORY_START ? "" : h->m->again ? "warm" : "cold");
	x.n_nodes = a->term != 0 ? fill_nodes(h->m, a->members, node, list) : 0;
	x.nodes = list;
	if (a->record != NULL && (kind == HISTORY_START || a->record->outcome != RECORD_SEAL)) {
		x.record = corewire_pack_record(a->record, tx);
		h->last = a->record->id;
	}
	add(h, &x, h->last.step);
	arena_reset(tx);
}

static void say_record(struct history *h, enum history_kind kind, const struct record *r)
{
	Shard__HistoryEntry x = SHARD__HISTORY_ENTRY__INIT;
	struct arena *tx = &h->server->scratch.tx;

	x.kind = kind;
	x.text = word(kind == HISTORY_SEAL ? h->m->restored_from : "");
	x.record = corewire_pack_record(r, tx);
	CHECK(x.record != NULL);
	h->last = r->id;
	add(h, &x, r->id.step);
	arena_reset(tx);
}

static void begin(struct history *h, const struct core_now *a)
{
	if (h->begun)
		return;
	h->begun = true;
	say_model(h);
	say_view(h, HISTORY_START, a);
}

/* --- what the model tells --- */

static enum shard_status history_made(struct model *m, struct err *e)
{
	struct server *s = m->server;
	struct history *h, *old = find(s, m->id);

	if (s->conf->history == 0)
		return SHARD_OK;
	if (old != NULL)
		old->id = 0; /* Of a definition that failed: nobody looks for it. */
	if ((h = calloc(1, sizeof(*h))) == NULL)
		goto err;
	h->writing.at = malloc(HISTORY_BUFFER_BYTES);
	h->filling.at = malloc(HISTORY_BUFFER_BYTES);
	if (h->writing.at == NULL || h->filling.at == NULL)
		goto err_buffers;
	list_init(&h->waiters);
	h->server = s;
	h->m = m;
	h->id = m->id;
	snprintf(h->name, sizeof(h->name), "%s", m->spec->spec->name);
	history_file_init(&h->file, s->conf->state, m->id, s->conf->history);
	list_push(&s->histories, &h->link);
	return SHARD_OK;
err_buffers:
	free(h->writing.at);
	free(h->filling.at);
	free(h);
err:
	return err_set(e, SHARD_SYSTEM, "no memory for the history of a model");
}

static void history_decided(struct model *m, const struct record *r)
{
	struct history *h = find(m->server, m->id);
	struct core_now a;

	if (h == NULL)
		return;
	core_now(m->core, &a);
	begin(h, &a);
	if (core_id_cmp(&r->id, &h->last) != 0)
		say_record(h, HISTORY_STEP, r);
}

static void history_ran(struct model *m)
{
	struct history *h = find(m->server, m->id);
	struct core_now a;

	if (h == NULL || h->removes)
		return;
	core_now(m->core, &a);
	begin(h, &a);
	if (a.term != h->term || a.seq != h->seq || a.generation != h->generation)
		say_view(h, HISTORY_VIEW, &a);
	if (a.record != NULL && core_id_cmp(&a.record->id, &h->last) != 0)
		say_record(h, a.record->outcome == RECORD_SEAL ? HISTORY_SEAL : HISTORY_STEP,
			   a.record);
}

static void history_lost(struct model *m, bool back, const struct err *why)
{
	struct history *h = find(m->server, m->id);
	Shard__HistoryEntry x = SHARD__HISTORY_ENTRY__INIT;

	(void)back;
	if (h == NULL)
		return;
	x.kind = HISTORY_LOST;
	x.generation = m->generation;
	x.text = word(why->text);
	add(h, &x, h->last.step);
}

static void history_saved(struct model *m, const char *path, uint64_t step)
{
	struct history *h = find(m->server, m->id);
	Shard__HistoryEntry x = SHARD__HISTORY_ENTRY__INIT;

	if (h == NULL)
		return;
	x.kind = HISTORY_SAVED;
	x.generation = m->generation;
	x.last = step;
	x.text = word(path);
	add(h, &x, step);
}

static void history_dropping(struct model *m, const struct err *why)
{
	struct history *h = find(m->server, m->id);

	(void)why;
	if (h == NULL)
		return;
	h->removes = !m->memory.anew;
	flush(h);
}

static void history_going(struct model *m)
{
	list_each(it, &m->server->histories) {
		struct history *h = list_of(it, struct history, link);

		if (h->m != m)
			continue;
		h->m = NULL;
		maybe_forget(h);
		return;
	}
}

const struct model_watch history_watch = {
	.made = history_made,
	.decided = history_decided,
	.ran = history_ran,
	.lost = history_lost,
	.saved = history_saved,
	.beat = history_beat,
	.dropping = history_dropping,
	.going = history_going,
};

void history_forget(struct server *s, uint32_t model)
{
	struct history *h;

	if (s->conf->history == 0 || find(s, model) != NULL || (h = calloc(1, sizeof(*h))) == NULL)
		return;
	list_init(&h->waiters);
	h->server = s;
	h->id = model;
	h->removes = true;
	snprintf(h->name, sizeof(h->name), "%u", model);
	history_file_init(&h->file, s->conf->state, model, s->conf->history);
	list_push(&s->histories, &h->link);
	flush(h);
}

bool history_stopped(struct server *s)
{
	bool all = true;

	CHECK(s->stop.on);
	list_each(it, &s->histories) {
		struct history *h = list_of(it, struct history, link);

		if (!h->removes) /* Its removal has begun. */
			flush(h);
		all = all && !h->working;
	}
	return all;
}

void history_state(const struct model *m, struct history_state *out)
{
	const struct history *h = find(m->server, m->id);

	*out = (struct history_state){.trouble = ""};
	if (h == NULL)
		return;
	*out = (struct history_state){.on = true,
				      .bytes = h->all_bytes,
				      .entries = h->entries,
				      .dropped = h->dropped,
				      .waiting = h->writing.used + h->filling.used,
				      .trouble = h->trouble};
}

/* --- reading --- */

struct reading {          /* The thread uses only .file, .at, .to, .st and .e. */
	struct list link; /* In history.waiters, or alone. */
	struct job job;
	struct history *h;
	uint64_t wanted; /* Entries that are to be written before: all that there were. */
	struct caller from;
	struct history_file file; /* Names the folder and the model. */
	struct history_span at;
	unsigned char *to;
	enum shard_status st;
	struct err e;
};

static void read_run(struct job *j)
{
	struct reading *r = list_of(j, struct reading, job);

	r->st = history_file_read(&r->file, &r->at, r->to, HISTORY_PAGE_BYTES, &r->e);
}

/* A link that does not take an answer ends, so it must have room. */
static bool link_full(struct server *s, const struct caller *to)
{
	struct conn *c = to->node != s->self ? peer_control(s->peer[to->node]) : NULL;

	return c != NULL && stream_held(conn_stream(c)) > PEER_QUEUED_MAX / 2;
}

static void answer(struct server *s, struct reading *r)
{
	Shard__HistoryPage page = SHARD__HISTORY_PAGE__INIT;

	page.file = r->at.file;
	page.offset = r->at.offset;
	page.bytes.data = r->to;
	page.bytes.len = r->at.nr;
	page.next_file = r->at.next_file;
	page.next_offset = r->at.next_offset;
	page.end = r->at.end;
	page.trouble = r->h->trouble;
	page.node = word(members_name(s, s->self));
	caller_answer(s, &r->from, &(struct wire_head){.op = OP_HISTORY, .model = r->h->id},
		      &page.base);
}

static void read_done(struct job *j)
{
	struct reading *r = list_of(j, struct reading, job);
	struct server *s = j->server;

	s->persists--;
	server_wake(s, 0);
	r->h->readings--;
	if (r->st == SHARD_OK && link_full(s, &r->from))
		r->st = err_set(&r->e, SHARD_BUSY, "the link has too much to send: try again");
	if (r->st == SHARD_OK)
		answer(s, r);
	else
		caller_refuse(s, &r->from, &r->e);
	maybe_forget(r->h);
	free(r->to);
	free(r);
}

/* Begins those readings whose entries are written, or cannot be. */
static void serve(struct history *h)
{
	list_each(it, &h->waiters) {
		struct reading *r = list_of(it, struct reading, link);

		if (r->wanted > h->entries && h->trouble[0] == 0 && !h->removes)
			continue;
		list_remove(&r->link);
		job_begin(&r->job, h->server, JOB_HISTORY, read_run, read_done);
	}
}

static enum shard_status read_here(struct server *s, const struct caller *from,
				   const Shard__History *body, struct err *e)
{
	const struct model *m = model_by_name(s, body->name);
	struct history *h = m != NULL ? find(s, m->id) : NULL;
	struct reading *r;

	if (m == NULL && unmade_check(s, body->name, e) != SHARD_OK)
		return e->status;
	if (m == NULL)
		return err_set(e, SHARD_NOT_FOUND,
			       "no model \"%.64s\" at node %s: `shardctl model list` shows those "
			       "that there are",
			       body->name, members_name(s, s->self));
	if (h == NULL)
		return err_set(e, SHARD_UNSUPPORTED,
			       "node %s keeps no history: its [daemon] history is off",
			       members_name(s, s->self));
	if (h->readings >= READINGS_MAX) {
		err_set(e, SHARD_BUSY, "%u pages of the history are being read: try again",
			h->readings);
		e->sys = EAGAIN;
		return SHARD_BUSY;
	}
	r = calloc(1, sizeof(*r));
	if (r == NULL || (r->to = malloc(HISTORY_PAGE_BYTES)) == NULL) {
		free(r);
		return err_set(e, SHARD_SYSTEM, "no memory for a page of the history");
	}
	r->h = h;
	r->from = *from;
	history_file_init(&r->file, s->conf->state, m->id, s->conf->history);
	r->at = (struct history_span){.file = body->file, .offset = body->offset};
	r->wanted = h->added;
	h->readings++;
	s->persists++;
	list_push(&h->waiters, &r->link);
	flush(h);
	serve(h);
	return SHARD_OK;
}

enum shard_status history_request(struct session *t, const struct wire_head *h,
				  const ProtobufCMessage *msg, struct err *e)
{
	const Shard__History *body = (const Shard__History *)msg;
	struct caller from = caller_session(t, h->attempt);
	struct server *s = t->server;
	uint16_t to = s->self;

	if (body->node[0] != 0 && nodes_named(s, body->node, &to, e) != SHARD_OK)
		return e->status;
	if (to == s->self)
		return read_here(s, &from, body, e);
	/* dispatch.c has looked whether the asker may read the model that is here. */
	if (model_by_name(s, body->name) == NULL)
		return err_set(
			e, SHARD_NOT_FOUND,
			"no model \"%.64s\" here: `shardctl model list` shows those that there are",
			body->name);
	if (s->peer[to]->up && !peer_knows(s->peer[to], WIRE_JOINS))
		return err_set(e, SHARD_UNSUPPORTED,
			       "node %s runs release %s, which keeps no history: upgrade it first",
			       members_name(s, to), s->peer[to]->release);
	return call_pass(t, to, h, msg, NULL, e);
}

enum shard_status history_node_request(struct peer *p, const struct wire_head *h,
				       const ProtobufCMessage *msg, struct err *e)
{
	struct caller from = caller_node(p, h->attempt);

	return read_here(p->server, &from, (const Shard__History *)msg, e);
}
