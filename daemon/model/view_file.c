/* SPDX-License-Identifier: Apache-2.0 */
/* The file that the coordinator keeps of each model. model.c brings each view that the core wants
 * durable, and ckpt/ brings files with new facts about checkpoints. Happy path: persist_view()
 * packs the file, a thread of libuv's pool writes and syncs it, and the core gets
 * CORE_EV_PERSISTED. If the disk fails or there is no memory, that is logged and tried again at
 * each beat, and nothing is decided meanwhile. A daemon that stops waits for the thread. The file
 * of a model that is dropped is removed after the thread is done with it. */
#include "model/view_file.h"

#include "base/check.h"
#include "base/clock.h"
#include "core/moves.h"
#include "model/corewire.h"
#include "model/model.h"
#include "model/tables.h"
#include "model/watch.h"

#include <stdio.h>
#include <stdlib.h>

struct persist { /* Made with the model. work_run() uses only .dir, .model, .file, .bytes, .st, .e.
		  */
	uv_work_t work;
	bool pending;      /* The core waits for `view` to become durable. */
	uint64_t since_ns; /* Since when it waits. */
	bool failed;       /* The last try to write it did, and .e says why. */
	bool stale;        /* The file that is being written is of a view before it. */
	struct core_view view;
	char lost[512];
	struct model *m; /* Not freed before the work is done. */
	struct static_dir *dir;
	uint32_t model;
	void *file;
	size_t bytes;
	enum shard_status st;
	struct err e;
	bool working;
	void (*done)(struct model *m); /* The view is durable. */
	persist_file_fn
		*file_done; /* Not NULL: persist_file() is being carried out, and no view. */
};

static void work_run(uv_work_t *w)
{
	struct persist *p = w->data;

	p->st = static_save(p->dir, p->model, p->file, p->bytes, &p->e);
}

static void finished(struct persist *p)
{
	struct model *m = p->m;
	const struct core_view *v = &p->view;

	log_line(m->server->log, LOG_LEVEL_INFO,
		 "event=view model=%s term=%lu seq=%u generation=%u sealed=%d step=%lu", m->name,
		 (unsigned long)v->term, v->seq, v->generation, v->sealed,
		 (unsigned long)(v->sealed ? v->record.id.step : 0));
	WATCH_TELL(m->server, persisted, m, &p->file, p->bytes);
	free(p->file);
	p->file = NULL;
	if (p->pending) {
		p->pending = false;
		p->done(m);
	}
}

static void work_done(uv_work_t *w, int status);

/* A model without weights that no restore brings back is LOST. The file says why, for later starts.
 */
static const char *lost_text(const struct model *m, const struct core_view *v, const char *lost)
{
	if (!v->lost || v->restoring)
		return "";
	return lost == NULL || m->gone ? m->lost : lost;
}

static bool pack(struct persist *p)
{
	struct model *m = p->m;
	Shard__ModelFile file = SHARD__MODEL_FILE__INIT;
	Shard__Run run;
	Shard__View view;

	CHECK(corewire_pack_view(&p->view, m->tables.defined.sum, &m->server->scratch.tx, &view) ==
	      SHARD_OK); /* The scratch memory has room for a view. */
	file.model = m->spec;
	file.view = &view;
	file.format = PERSIST_FORMAT;
	file.nodes = m->server->nodes_nr;
	file.lost = p->lost;
	WATCH_TELL(m->server, pack, m, p->view.sealed, &file, &run);
	p->bytes = shard__model_file__get_packed_size(&file);
	if ((p->file = malloc(p->bytes)) != NULL)
		shard__model_file__pack(&file, p->file);
	arena_reset(&m->server->scratch.tx);
	return p->file != NULL;
}

static void saved(void *arg, const struct err *e)
{
	struct persist *p = arg;

	p->st = e != NULL ? e->status : SHARD_OK;
	if (e != NULL)
		p->e = *e;
	work_done(&p->work, 0);
}

static void work_begin(struct persist *p)
{
	struct server *s = p->m->server;

	CHECK(!p->working && p->file != NULL);
	p->working = true;
	s->persists++;
	p->work.data = p;
	if (s->save_file != NULL) {
		s->save_file(s, p->model, p->file, p->bytes, saved, p);
		return;
	}
	CHECK(uv_queue_work(p->m->server->loop, &p->work, work_run, work_done) == 0);
}

static void begin(struct persist *p)
{
	CHECK(p->pending && !p->working);
	if (p->file == NULL && !pack(p)) { /* The beat tries again. */
		log_line(p->m->server->log, LOG_LEVEL_ERROR,
			 "event=view_not_durable model=%s why=%s", p->m->name, "no memory");
		return;
	}
	work_begin(p);
}

/* The file of persist_file() is written. A view that came meanwhile is next. */
static void file_written(struct persist *p)
{
	persist_file_fn *done = p->file_done;

	p->file_done = NULL;
	if (p->st == SHARD_OK)
		WATCH_TELL(p->m->server, persisted, p->m, &p->file, p->bytes);
	free(p->file);
	p->file = NULL;
	done(p->m, p->st != SHARD_OK ? &p->e : NULL);
	if (p->pending)
		begin(p);
}

/* What was written is a view that the core did not want any more. */
static void next_view(struct persist *p)
{
	p->stale = false;
	free(p->file);
	p->file = NULL;
	if (p->pending)
		begin(p);
}

static void work_done(uv_work_t *w, int status)
{
	struct persist *p = w->data;

	(void)status; /* It is never cancelled. */
	CHECK(p->working && p->m->persist == p);
	p->working = false;
	p->m->server->persists--;
	if (p->m->dropping)
		server_wake(p->m->server, 1); /* The drop waits for this. */
	if (p->file_done != NULL)
		file_written(p);
	else if (p->stale || !p->pending)
		next_view(p);
	else if (p->st == SHARD_OK)
		finished(p);
	else { /* The core goes on waiting. The beat tries again. */
		p->failed = true;
		log_line(p->m->server->log, LOG_LEVEL_ERROR,
			 "event=view_not_durable model=%s why=%s", p->m->name, p->e.text);
	}
}

enum shard_status persist_make(struct model *m, void (*done)(struct model *m), struct err *e)
{
	struct persist *p = calloc(1, sizeof(*p));

	if (p == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the view of \"%s\"", m->name);
	CHECK(done);
	p->m = m;
	p->done = done;
	p->dir = m->server->dir;
	p->model = m->id;
	m->persist = p;
	return SHARD_OK;
}

void persist_view(struct model *m, const struct core_view *v, const char *lost)
{
	struct persist *p = m->persist;

	CHECK(!p->pending && (p->file == NULL || p->working));
	p->pending = true;
	p->failed = false;
	p->since_ns = clock_ns();
	p->stale = p->working && p->file_done == NULL;
	p->view = *v;
	snprintf(p->lost, sizeof(p->lost), "%s", lost_text(m, v, lost));
	if (!p->working)
		begin(p);
}

bool persist_busy(const struct model *m)
{
	return m->persist != NULL && m->persist->working;
}

void persist_file(struct model *m, void *file, size_t bytes, persist_file_fn *done)
{
	struct persist *p = m->persist;

	CHECK(!p->pending && p->file == NULL && done != NULL);
	p->file = file;
	p->bytes = bytes;
	p->file_done = done;
	work_begin(p);
}

struct core_id persist_id(const struct model *m)
{
	const struct core_view *v = &m->persist->view;

	return (struct core_id){.term = v->term, .seq = v->seq, .generation = v->generation};
}

void persist_cancel(struct model *m)
{
	struct persist *p = m->persist;

	p->pending = false;
	if (p->working)
		return;
	free(p->file);
	p->file = NULL;
}

bool persist_names(const struct model *m, const void *table)
{
	return m->persist != NULL && place_names(&m->persist->view.place, table);
}

bool persist_pending(const struct model *m)
{
	return m->persist->pending;
}

void persist_beat(struct model *m)
{
	if (m->persist->pending && !m->persist->working)
		begin(m->persist);
}

void persist_ill(const struct server *s, char *text, size_t bytes)
{
	text[0] = 0;
	list_each(it, (struct list *)(uintptr_t)&s->models) {
		const struct model *m = list_of(it, struct model, link);
		const struct persist *p = m->persist;
		bool late;

		if (p == NULL || !p->pending)
			continue;
		late = clock_ns() - p->since_ns > s->conf->heartbeat_timeout_ns;
		if (p->failed)
			snprintf(text, bytes,
				 "its disk does not take a view of \"%s\", which waits for it: "
				 "%.250s: make room there, and it goes on by itself",
				 m->name, p->e.text);
		else if (late)
			snprintf(text, bytes,
				 "the disk with its state folder has not answered for longer than "
				 "heartbeat_timeout, and \"%s\" waits for it",
				 m->name);
		if (text[0] != 0)
			break;
	}
	/* A text that was cut in the middle of a character would end the link that carries it. */
	for (char *at = text; *at != 0; at++)
		if (*at < ' ' || *at > '~')
			*at = '?';
}

void persist_free(struct model *m)
{
	CHECK(!persist_busy(m));
	if (m->persist == NULL)
		return;
	free(m->persist->file);
	free(m->persist);
	m->persist = NULL;
}

struct core_view *persist_read(struct model *m, const Shard__ModelFile *file, struct err *e)
{
	struct server *s = m->server;
	struct core_view *view = calloc(1, sizeof(*view));
	struct corewire_limits limits = {.nodes_nr = s->nodes_nr,
					 .self = s->self,
					 .groups_nr = m->set.groups_nr,
					 .chunks_nr = m->layout->chunks_nr,
					 .place = m->tables.defined};
	enum shard_status st = SHARD_OK;

	if (view == NULL)
		st = err_set(e, SHARD_SYSTEM, "no memory for a view");
	else if (file->view == NULL)
		st = err_set(e, SHARD_PROTOCOL, "the file of the model has no view");
	else
		st = corewire_unpack_view(file->view, &limits, &s->scratch.rx, view, e);
	if (st == SHARD_OK)
		st = tables_take(m, &view->place, e);
	arena_reset(&s->scratch.rx);
	if (st == SHARD_OK)
		return view;
	free(view);
	return NULL;
}
