// SPDX-License-Identifier: Apache-2.0
/* Models that are made again on this node while the daemon goes on, because their copy here was
 * lost with a GPU (model/devices.c marks them). The beat calls. Happy path: the other nodes hear
 * that the copy is gone, which is for them as if the link had fallen for this model alone, and the
 * model is dropped here. When its memory is free, it is made again, with another incarnation and
 * without weights: by MODEL of the coordinator (have.c), or, where this node was elected, of its
 * definition (define.c), after another term has begun. A static coordinator reads the model's file
 * in a thread, as a start does, and counts a term for it, because nodes answer only a newer one.
 * Where there is no room for the model, or its file cannot be read, that is tried again, and status
 * and whoever asks for the model are told why. */
#include "control/anew.h"

#include "base/check.h"
#include "base/clock.h"
#include "control/control.h"
#include "control/define.h"
#include "control/drop.h"
#include "control/have.h"
#include "control/unmade.h"
#include "model/lead.h"
#include "model/model.h"
#include "model/resume.h"
#include "model/voided.h"
#include "model/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGAIN_NS (5 * NS_PER_SEC)

struct making { /* On a static coordinator. In server.anew.making. */
	struct list link;
	struct server *server;
	struct unmade *of;
	struct model *m; /* Its memory is being made. NULL: a thread reads its file. */
	struct resume_file file;
	/* A thread uses only the fields from here on, and the loop none of them then. */
	uv_work_t work;
	struct static_dir *dir;
	uint32_t id;
	uint64_t term;
	void *bytes;
	size_t bytes_nr;
	enum shard_status st;
	struct err e;
};

static void failed(struct server *s, struct unmade *u, const struct err *e)
{
	if (strcmp(u->trouble, e->text) != 0)
		log_line(s->log, LOG_LEVEL_ERROR, "event=model_not_made model=%s id=%u why=%s",
			 u->name, u->id, e->text);
	snprintf(u->trouble, sizeof(u->trouble), "%s", e->text);
	u->next_ns = clock_ns() + AGAIN_NS;
	server_wake(s, u->next_ns);
}

/* --- on a static coordinator: of its file --- */

/* e: why it was not made, or NULL. */
static void end(struct making *k, const struct err *e)
{
	struct unmade *u = k->of;

	u->busy = false;
	if (e != NULL)
		failed(k->server, u, e);
	if (u->over)
		unmade_end(u);
	resume_file_free(&k->file);
	list_remove(&k->link);
	free(k->bytes);
	free(k);
}

static enum shard_status take_file(void *arg, uint32_t id, const void *bytes, size_t bytes_nr,
				   struct err *e)
{
	struct making *k = arg;

	if (id != k->id)
		return SHARD_OK;
	if ((k->bytes = malloc(bytes_nr)) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the file of a model");
	memcpy(k->bytes, bytes, bytes_nr);
	k->bytes_nr = bytes_nr;
	return SHARD_OK;
}

static void read_run(uv_work_t *w)
{
	struct making *k = w->data;

	k->st = static_load(k->dir, take_file, k, &k->e);
	if (k->st == SHARD_OK && k->bytes == NULL)
		k->st = err_set(&k->e, SHARD_NOT_FOUND, "its file is not in the state folder");
	if (k->st == SHARD_OK)
		k->st = static_count_more(k->dir, k->term, &k->e);
}

static struct making *making_of(const struct model *m)
{
	list_each(it, &m->server->anew.making)
		if (list_of(it, struct making, link)->m == m)
			return list_of(it, struct making, link);
	return NULL;
}

static void made(struct model *m, const struct err *e)
{
	struct making *k = making_of(m);

	CHECK(k != NULL && m->control->abandoned.status == SHARD_OK);
	if (e != NULL) {
		end(k, e);
		define_abandon(m, e);
		return;
	}
	m->control->known = m->memory.anew = m->defining = false;
	resume_file_made(&k->file, m, k->bytes, k->bytes_nr);
	end(k, NULL);
	WATCH_TELL(m->server, started, m); /* Before its core hears of any link. */
	define_finish(m);
	server_wake(m->server, 0);
}

static void make(struct making *k)
{
	struct server *s = k->server;
	enum shard_status st = resume_file_read(&k->file, s, k->id, k->bytes, k->bytes_nr, &k->e);
	Shard__Model *spec;

	if (st == SHARD_OK) {
		spec = k->file.file->model;
		k->file.file->model = NULL;
		st = model_make_again(&k->m, s, spec, k->file.view, made, &k->e);
	}
	if (st != SHARD_OK) {
		end(k, &k->e);
		return;
	}
	/* As a model that is made of a definition: whatever happens, other nodes keep theirs. */
	k->m->defining = k->m->control->known = k->m->memory.anew = true;
	k->m->control->maker.who = (struct caller){.node = s->self};
}

static void read_done(uv_work_t *w, int status)
{
	struct making *k = w->data;
	struct server *s = k->server;

	CHECK(status == 0 && s->persists > 0); /* It is never cancelled. */
	s->persists--;
	s->term = k->term; /* Also after a failure: it may be durable. */
	if (k->of->over || s->stop.on)
		end(k, NULL);
	else if (k->st != SHARD_OK)
		end(k, &k->e);
	else
		make(k);
}

static void read_begin(struct server *s, struct unmade *u)
{
	struct making *k = calloc(1, sizeof(*k));

	CHECK(!u->busy && list_empty(&s->anew.making));
	if (k == NULL)
		return; /* The beat tries again. */
	u->busy = true;
	k->server = s;
	k->of = u;
	k->id = u->id;
	k->dir = s->dir;
	k->term = s->term + 1;
	k->work.data = k;
	list_push(&s->anew.making, &k->link);
	s->persists++;
	CHECK(uv_queue_work(s->loop, &k->work, read_run, read_done) == 0);
}

/* --- all --- */

static void go_on(struct server *s, struct unmade *u, uint64_t now_ns)
{
	const struct model *m = model_find(s, u->id);

	if (u->busy || drop_in_hand_id(s, u->id) || model_making(s, u->id) != NULL ||
	    (m != NULL && (m->defining || m->memory.anew)))
		return;
	if (m != NULL || (server_leads(s) && lead_on(s) && lead_forgot(s, u->id)))
		unmade_end(u);
	else if (!lead_on(s) && server_leads(s) && now_ns >= u->next_ns &&
		 list_empty(&s->anew.making))
		read_begin(s, u); /* One at a time, because each counts a term. */
}

/* The copy of the model here is lost. */
static void begin(struct model *m)
{
	struct server *s = m->server;
	const char *why = voided_look(s, m->id);
	char text[ERR_TEXT_BYTES];
	struct err e;

	CHECK(!m->dropping && m->core != NULL);
	if (unmade_add(s, m->id, m->name, why) == NULL)
		return; /* The beat tries again. */
	/* Nodes answer a coordinator that knows nothing of them in another term only. */
	if (lead_on(s) && server_leads(s) && !s->stop.on)
		lead_resign(s, "this node has lost its copy of a model with a GPU");
	have_gone(m, why);
	snprintf(text, sizeof(text), "node %s has lost its copy of \"%s\": %.300s",
		 members_name(s, s->self), m->name, why);
	if (drop_alone(m, text, &e) != SHARD_OK)
		log_line(s->log, LOG_LEVEL_ERROR, "event=drop_failed model=%s why=%s", m->name,
			 e.text);
}

static void begin_all(struct server *s)
{
	list_each(it, &s->models) {
		struct model *m = list_of(it, struct model, link);
		struct err e;

		if (!m->memory.anew || !m->memory.tier_lost)
			continue;
		if (!m->defining) {
			begin(m);
			continue;
		}
		m->memory.anew = false; /* Nothing of it is anywhere yet. */
		err_set(&e, SHARD_SYSTEM, "a GPU of node %s has failed: %.300s",
			members_name(s, s->self), voided_look(s, m->id));
		define_abandon(m, &e);
	}
}

void anew_beat(struct server *s, uint64_t now_ns)
{
	begin_all(s);
	list_each(it, &s->anew.unmade)
		go_on(s, list_of(it, struct unmade, link), now_ns);
}

void anew_forget(struct server *s, uint32_t model)
{
	struct unmade *u = unmade_find(s, model);

	if (u != NULL)
		unmade_end(u);
}

void anew_stop(struct server *s)
{
	CHECK(s->stop.on);
	begin_all(s);
}

void anew_free(struct server *s)
{
	while (!list_empty(&s->anew.making))
		end(list_of(s->anew.making.next, struct making, link), NULL);
	unmade_free(s);
}
