/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps a list of the definitions that are on this node's disk. resume.c has them read at the
 * start, make.c writes one with the memory of its model and removes it with the memory of a model
 * that was dropped, and control/ asks for those that the value of the membership source names and
 * nobody has. Happy path: a thread makes the memory of a model and writes its definition, the model
 * is there, and the list has it. A disk that does not take the file fails the model. A file that is
 * damaged, or of another release, number of nodes or definition, stays where it is and is not used.
 */
#include "model/definitions.h"

#include "base/check.h"
#include "base/clock.h"
#include "config/cluster.h"
#include "data/model.h"
#include "model/spec.h"
#include "wire/xxh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGAIN_NS (5 * NS_PER_SEC)

struct definition {
	struct list link;
	struct server *server;
	uint32_t id;
	uint64_t sum;
	void *bytes; /* The file. NULL: it cannot be used. */
	size_t bytes_nr;
	char wrong[ERR_TEXT_BYTES]; /* Why it is not used, or what made it fail. */
	uint64_t again_ns;          /* It has failed, and is not tried before. 0: it has not. */
	bool removing;              /* A thread removes it, and uses only .dir, .id, .st and .e. */
	struct static_dir *dir;
	uv_work_t work;
	enum shard_status st;
	struct err e;
};

struct definitions {
	struct list all;
};

static struct definition *find(const struct server *s, uint32_t id)
{
	if (s->definitions == NULL)
		return NULL;
	list_each(it, &s->definitions->all)
		if (list_of(it, struct definition, link)->id == id)
			return list_of(it, struct definition, link);
	return NULL;
}

static struct definition *add(struct server *s, uint32_t id)
{
	struct definition *d = find(s, id);

	if (d != NULL || (d = calloc(1, sizeof(*d))) == NULL)
		return d;
	d->server = s;
	d->dir = s->dir;
	d->id = id;
	list_push(&s->definitions->all, &d->link);
	return d;
}

static void forget(struct definition *d)
{
	CHECK(!d->removing);
	list_remove(&d->link);
	free(d->bytes);
	free(d);
}

/* What is wrong with it is said once. */
static void not_used(struct definition *d, const char *event, const struct err *why)
{
	free(d->bytes);
	d->bytes = NULL;
	snprintf(d->wrong, sizeof(d->wrong), "%s", why->text);
	log_line(d->server->log, LOG_LEVEL_ERROR, "event=%s model=%u why=%s", event, d->id,
		 why->text);
}

/* --- what a file says --- */

static uint64_t sum_of(const Shard__Model *is, uint32_t generation, uint32_t nodes, void **out,
		       size_t *out_bytes)
{
	Shard__ModelFile file = SHARD__MODEL_FILE__INIT;
	Shard__Model body = *is;
	uint64_t sum = 0;
	size_t bytes;
	void *packed;

	body.generation = generation;
	body.incarnation = 0;
	body.tables = NULL;
	file.model = &body;
	file.format = DEFINITION_FORMAT;
	file.nodes = nodes;
	bytes = shard__model_file__get_packed_size(&file);
	if ((packed = malloc(bytes + 1)) != NULL) {
		shard__model_file__pack(&file, packed);
		sum = xxh_sum(packed, bytes, 1);
	}
	if (out == NULL) {
		free(packed);
		return packed != NULL ? sum | (sum == 0) : 0;
	}
	*out = packed;
	*out_bytes = bytes;
	return sum;
}

uint64_t definition_sum(const Shard__Model *is)
{
	return sum_of(is, 0, 0, NULL, NULL);
}

static enum shard_status check(const struct server *s, uint32_t id, const Shard__ModelFile *file,
			       struct err *e)
{
	const char *dir = s->conf->state;

	if (file == NULL || file->model == NULL || file->model->spec == NULL ||
	    file->format != DEFINITION_FORMAT)
		return err_set(e, SHARD_PROTOCOL,
			       "%s/definition-%08x is not a definition of this release", dir, id);
	if (file->model->model != id)
		return err_set(e, SHARD_PROTOCOL, "%s/definition-%08x is of model %u", dir, id,
			       file->model->model);
	if (!config_joined(s->conf, file->nodes))
		return err_set(e, SHARD_MISMATCH,
			       "%s/definition-%08x is of a model that was made for %u nodes, and "
			       "[nodes] has %u: bring the model back by `shardctl restore`",
			       dir, id, file->nodes, s->nodes_nr);
	return SHARD_OK;
}

static enum shard_status load_one(void *arg, uint32_t id, const void *bytes, size_t bytes_nr,
				  struct err *e)
{
	struct server *s = arg;
	struct definition *d = add(s, id);
	Shard__ModelFile *file = NULL;
	enum shard_status st = e->status;

	if (d == NULL || (bytes != NULL && (d->bytes = malloc(bytes_nr + 1)) == NULL))
		return err_set(e, SHARD_SYSTEM, "no memory for the definitions in %s",
			       s->conf->state);
	if (bytes != NULL) {
		memcpy(d->bytes, bytes, bytes_nr);
		d->bytes_nr = bytes_nr;
		file = shard__model_file__unpack(NULL, bytes_nr, bytes);
		st = check(s, id, file, e);
	}
	if (st == SHARD_OK)
		d->sum = definition_sum(file->model);
	else
		not_used(d, "definition_bad", e);
	if (file != NULL)
		shard__model_file__free_unpacked(file, NULL);
	return SHARD_OK;
}

enum shard_status definitions_load(struct server *s, struct err *e)
{
	if ((s->definitions = calloc(1, sizeof(*s->definitions))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for definitions");
	list_init(&s->definitions->all);
	return static_load_definitions(s->dir, load_one, s, e);
}

void definitions_free(struct server *s)
{
	while (s->definitions != NULL && !list_empty(&s->definitions->all))
		forget(list_of(s->definitions->all.next, struct definition, link));
	free(s->definitions);
	s->definitions = NULL;
}

/* --- with the memory of a model --- */

enum shard_status definition_plan(struct model *m, struct definition_job *j, struct err *e)
{
	struct server *s = m->server;
	const struct definition *d = find(s, m->id);
	uint64_t sum;

	*j = (struct definition_job){.dir = s->dir, .id = m->id};
	if (s->definitions == NULL)
		return SHARD_OK;
	sum = definition_sum(m->spec);
	if (d != NULL && d->bytes != NULL && sum != 0 && d->sum == sum)
		return SHARD_OK; /* It is there already. */
	if (d != NULL && d->bytes != NULL)
		log_line(s->log, LOG_LEVEL_ERROR,
			 "event=definition_differs model=%s id=%u folder=%s why=%s", m->name, m->id,
			 s->conf->state,
			 "the definition there is not that of this model: it is replaced");
	(void)sum_of(m->spec, m->generation, s->nodes_nr, &j->bytes, &j->bytes_nr);
	return j->bytes != NULL ? SHARD_OK : err_set(e, SHARD_SYSTEM, "no memory for a definition");
}

enum shard_status definition_write(struct definition_job *j, struct err *e)
{
	if (j->bytes == NULL)
		return SHARD_OK;
	j->written = true; /* Even if it fails, a file may be there. */
	if (static_define(j->dir, j->id, j->bytes, j->bytes_nr, &j->e) == SHARD_OK)
		return SHARD_OK;
	*e = j->e;
	return e->status;
}

void definition_made(struct model *m, struct definition_job *j)
{
	struct server *s = m->server;
	struct definition *d;

	j->made = true;
	if ((d = find(s, m->id)) != NULL && d->bytes != NULL) {
		d->again_ns = 0;
		d->wrong[0] = 0;
	}
	if (j->bytes == NULL)
		return;
	if (j->e.status != SHARD_OK) /* Memory of an earlier start needs no file. */
		log_line(s->log, LOG_LEVEL_ERROR, "event=definition_not_kept model=%s why=%s",
			 m->name, j->e.text);
	/* Without memory for the list it is there all the same, and the next start reads it. */
	else if (j->written && (d = add(s, m->id)) != NULL) {
		free(d->bytes);
		d->bytes = j->bytes;
		d->bytes_nr = j->bytes_nr;
		d->sum = definition_sum(m->spec);
		d->wrong[0] = 0;
		j->bytes = NULL;
	}
	free(j->bytes);
	j->bytes = NULL;
}

/* A definition that failed took only what it wrote itself. A file that was there before stays: the
 * model is still to be made of it, here or by another node. */
void definition_leaves(struct model *m, struct definition_job *j)
{
	struct server *s = m->server;

	j->remove =
		s->definitions != NULL && m->dropping && !m->memory.anew && (j->made || j->written);
}

void definition_remove(struct definition_job *j)
{
	j->e.status = SHARD_OK;
	if (j->remove)
		(void)static_undefine(j->dir, j->id, &j->e);
}

void definition_end(struct server *s, struct definition_job *j)
{
	struct definition *d = j->remove ? find(s, j->id) : NULL;

	free(j->bytes);
	j->bytes = NULL;
	if (j->remove && j->e.status != SHARD_OK) /* It goes when the node hears of it again. */
		log_line(s->log, LOG_LEVEL_ERROR, "event=definition_stays model=%u why=%s", j->id,
			 j->e.text);
	if (d != NULL && !d->removing && j->e.status == SHARD_OK)
		forget(d);
}

/* --- without a model --- */

bool definitions_has(const struct server *s, uint32_t model)
{
	const struct definition *d = find(s, model);

	return d != NULL && d->bytes != NULL && !d->removing;
}

/* A generation only grows, so a file that is ahead is of a later value than this one. */
static enum shard_status compare(const struct definition *d, const Shard__Model *is,
				 const Shard__Kept *k, struct err *e)
{
	const char *dir = d->server->conf->state;
	uint32_t generation =
		k->file != NULL && k->file->view != NULL ? k->file->view->generation : UINT32_MAX;

	if (strcmp(is->spec->name, k->name) != 0 || (k->definition != 0 && k->definition != d->sum))
		return err_set(e, SHARD_MISMATCH,
			       "%s/definition-%08x has another definition of \"%.72s\" than the "
			       "value that the nodes agreed on",
			       dir, d->id, k->name);
	if (is->generation > generation)
		return err_set(e, SHARD_MISMATCH,
			       "%s/definition-%08x has generation %u of \"%.72s\", and the value "
			       "that the nodes agreed on has %u: that value is an older one",
			       dir, d->id, is->generation, k->name, generation);
	return SHARD_OK;
}

/* Memory is made for where the newest view has the chunks. */
static void as_in_view(Shard__Model *is, const Shard__View *view)
{
	if (view == NULL)
		return;
	is->generation = view->generation;
	if (is->tables != NULL)
		shard__tables__free_unpacked(is->tables, NULL);
	is->tables = view->tables != NULL ? spec_copy(&view->tables->base) : NULL;
}

void definitions_take(struct server *s, const Shard__Kept *kept, uint64_t now_ns,
		      Shard__Model **out)
{
	struct definition *d = find(s, kept->model);
	Shard__ModelFile *file;
	struct err e;

	*out = NULL;
	if (d == NULL || d->bytes == NULL || d->removing || now_ns < d->again_ns)
		return;
	if ((file = shard__model_file__unpack(NULL, d->bytes_nr, d->bytes)) == NULL)
		return; /* No memory: it was read before. */
	if (compare(d, file->model, kept, &e) != SHARD_OK) {
		not_used(d, "definition_differs", &e);
	} else {
		*out = file->model;
		file->model = NULL;
		as_in_view(*out, kept->file != NULL ? kept->file->view : NULL);
	}
	shard__model_file__free_unpacked(file, NULL);
}

void definitions_failed(struct server *s, uint32_t model, const struct err *why)
{
	struct definition *d = find(s, model);

	if (d == NULL)
		return;
	d->again_ns = clock_ns() + AGAIN_NS;
	snprintf(d->wrong, sizeof(d->wrong), "%s", why->text);
}

const char *definitions_trouble(const struct server *s, uint32_t model)
{
	const struct definition *d = find(s, model);

	return d != NULL ? d->wrong : "";
}

uint32_t definitions_next(const struct server *s, uint32_t before)
{
	uint32_t next = 0;

	if (s->definitions == NULL)
		return 0;
	list_each(it, &s->definitions->all) {
		uint32_t id = list_of(it, struct definition, link)->id;

		if (id > before && (next == 0 || id < next))
			next = id;
	}
	return next;
}

static void forget_run(uv_work_t *w)
{
	struct definition *d = w->data;

	d->st = static_undefine(d->dir, d->id, &d->e);
}

static void forget_done(uv_work_t *w, int status)
{
	struct definition *d = w->data;
	struct server *s = d->server;

	CHECK(status == 0 && d->removing && s->persists > 0); /* It is never cancelled. */
	d->removing = false;
	s->persists--;
	if (d->st == SHARD_OK) {
		log_line(s->log, LOG_LEVEL_INFO, "event=definition_gone model=%u why=%s", d->id,
			 "the model was dropped while this node was away");
		forget(d);
		return;
	}
	if (d->wrong[0] == 0)
		not_used(d, "definition_stays", &d->e);
}

void definitions_forget(struct server *s, uint32_t model)
{
	struct definition *d = find(s, model);

	if (d == NULL || d->removing || s->stop.on)
		return;
	d->removing = true;
	d->work.data = d;
	s->persists++;
	CHECK(uv_queue_work(s->loop, &d->work, forget_run, forget_done) == 0);
}
