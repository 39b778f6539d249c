/* SPDX-License-Identifier: Apache-2.0 */
/* The file that a coordinator keeps of each model: model.c brings the view that the core wants durable, persist.c packs it, has a
 * thread of libuv's pool write and sync it, and tells the core. Happy path: persist_view -> a thread -> CORE_EV_PERSISTED.
 * Ways to fail: the disk refuses: nothing is decided meanwhile, it is logged and tried again each second; the daemon stops: it
 * waits for the thread; the model is dropped: its file goes when the thread has done with it. */
#include "persist.h"

#include "base/check.h"
#include "corewire.h"
#include "model.h"

#include <stdlib.h>

struct persist { /* work_run() touches .dir, .model, .file, .bytes, .st and .e, nothing else */
	uv_work_t work;
	struct model *m; /* it outlives the work */
	struct static_dir *dir;
	uint32_t model;
	void *file;
	size_t bytes;
	enum shard_status st;
	struct err e;
	bool working, dir_due;
	uint64_t step;
	uint64_t term; /* of the view, for the log */
	uint32_t seq, generation;
	bool sealed;
};

static void work_run(uv_work_t *w)
{
	struct persist *p = w->data;

	p->st = static_save(p->dir, p->model, p->file, p->bytes, &p->e);
}

static void finished(struct persist *p)
{
	struct model *m = p->m;

	log_line(m->server->log, LOG_LEVEL_INFO, "event=view model=%s term=%lu seq=%u generation=%u sealed=%d step=%lu", m->name,
		 (unsigned long)p->term, p->seq, p->generation, p->sealed, (unsigned long)p->step);
	ckpt_persisted(m, p->file, p->bytes);
	m->persist = NULL;
	free(p);
	model_event(m, &(struct core_event){.type = CORE_EV_PERSISTED});
}

static void work_done(uv_work_t *w, int status);

static void take_dir(struct persist *p) /* into the file; without memory it keeps the old one */
{
	Shard__ModelFile *file = shard__model_file__unpack(NULL, p->bytes, p->file);
	char *before = file != NULL ? file->checkpoint_dir : NULL;
	void *packed;
	size_t bytes;

	p->dir_due = false;
	if (file == NULL)
		return;
	file->checkpoint_dir = p->m->ckpt.dir;
	bytes = shard__model_file__get_packed_size(file);
	if ((packed = malloc(bytes)) != NULL) {
		shard__model_file__pack(file, packed);
		free(p->file);
		p->file = packed;
		p->bytes = bytes;
	}
	file->checkpoint_dir = before;
	shard__model_file__free_unpacked(file, NULL);
}

static void begin(struct persist *p)
{
	CHECK(!p->working);
	if (p->dir_due)
		take_dir(p);
	p->working = true;
	p->m->server->persists++;
	p->work.data = p;
	CHECK(uv_queue_work(p->m->server->loop, &p->work, work_run, work_done) == 0);
}

static void work_done(uv_work_t *w, int status)
{
	struct persist *p = w->data;

	(void)status; /* nobody cancels it */
	CHECK(p->working && p->m->persist == p);
	p->working = false;
	p->m->server->persists--;
	if (p->m->dropping)
		server_wake(p->m->server, 1); /* which waits for this */
	if (p->st == SHARD_OK && p->dir_due)
		begin(p);
	else if (p->st == SHARD_OK)
		finished(p);
	else /* without a durable view there is no view */
		log_line(p->m->server->log, LOG_LEVEL_ERROR, "event=view_not_durable model=%s why=%s", p->m->name, p->e.text);
}

static void pack(struct persist *p, const struct core_view *v)
{
	struct model *m = p->m;
	Shard__ModelFile file = SHARD__MODEL_FILE__INIT;
	Shard__View view;

	CHECK(corewire_pack_view(v, &m->server->tx, &view) == SHARD_OK); /* the scratch holds a view */
	file.model = m->spec;
	file.view = &view;
	file.checkpoint_dir = m->ckpt.dir;
	p->bytes = shard__model_file__get_packed_size(&file);
	if ((p->file = malloc(p->bytes)) != NULL)
		shard__model_file__pack(&file, p->file);
	arena_reset(&m->server->tx);
}

void persist_view(struct model *m, const struct core_view *v)
{
	struct persist *p = calloc(1, sizeof(*p));

	CHECK(m->persist == NULL);
	if (p != NULL) {
		p->m = m;
		p->dir = m->server->dir;
		p->model = m->id;
		p->term = v->term;
		p->seq = v->seq;
		p->generation = v->generation;
		p->sealed = v->sealed;
		p->step = v->sealed ? v->record.id.step : 0;
		pack(p, v);
	}
	if (p == NULL || p->file == NULL) {
		log_line(m->server->log, LOG_LEVEL_ERROR, "event=view_not_durable model=%s why=%s", m->name, "no memory");
		free(p);
		return;
	}
	m->persist = p;
	begin(p);
}

bool persist_busy(const struct model *m)
{
	return m->persist != NULL && m->persist->working;
}

bool persist_dir(struct model *m)
{
	if (m->persist == NULL)
		return false;
	m->persist->dir_due = true;
	return true;
}

void persist_beat(struct model *m)
{
	if (m->persist != NULL && !m->persist->working)
		begin(m->persist);
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
