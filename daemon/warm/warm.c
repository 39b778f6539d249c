/* SPDX-License-Identifier: Apache-2.0 */
/* What a start leaves for the next one. The server opens it after the state folder, make.c and
 * resume.c take regions from it, and drop.c gives them back. One page says who wrote all of it. A
 * start takes it up only if the page is of this boot, of these nodes, and of the incarnation that
 * this node was last. Happy path: the page is found and right, the start is warm, each model is
 * taken up by itself, and warm_begun() ends it. If the page is not right, the start is cold:
 * everything is given back and a new page is made. If a model cannot be taken up, warm_forget()
 * removes it and the others stay. A row counts from the moment when its state word is set, which is
 * last. So a kill at any instruction leaves a model listed and whole, or not listed. What is read
 * here may come from another release or from somebody else, so it is copied and then checked. */
#include "warm/warm.h"

#include "config/cluster.h"
#include "base/check.h"
#include "warm/page.h"
#include "warm/place.h"
#include "wire/xxh.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WARM_TRIES_MAX                                                                             \
	3 /* After so many starts that died while they took a model, it is not taken. */
struct warm {
	struct warm_conf conf;
	struct warm_place place;
	struct shm shm;
	struct warm_page *page;
	char boot[STATIC_BOOT_BYTES];
	char state[STATIC_ROOT_BYTES]; /* Path of the state folder without links; "": too long. */
	uint64_t nodes;
	bool warm;
};

static const char *const region_names[WARM_REGIONS] = {"meta", "state", "sums", "slots", "images"};

static void region_name(char name[WARM_NAME_BYTES], uint32_t model, enum warm_region what)
{
	snprintf(name, WARM_NAME_BYTES, "%08x-%s", model, region_names[what]);
}

static void devices_name(char name[WARM_NAME_BYTES], uint32_t model)
{
	snprintf(name, WARM_NAME_BYTES, "%08x-devices", model);
}

static void read_boot(char boot[STATIC_BOOT_BYTES])
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

	memset(boot, 0, STATIC_BOOT_BYTES);
	if (f == NULL)
		return;
	if (fgets(boot, STATIC_BOOT_BYTES - 3, f) == NULL)
		boot[0] = 0;
	fclose(f);
}

static void read_state(char state[STATIC_ROOT_BYTES], const struct config *c)
{
	char *path = realpath(c->state, NULL);

	memset(state, 0, STATIC_ROOT_BYTES);
	if (path != NULL && strlen(path) < STATIC_ROOT_BYTES)
		strcpy(state, path);
	free(path);
}

/* A sum over this node's index and the names of the first nodes, which decide the placement and the
 * number of each node. */
static uint64_t nodes_sum(const struct config *c, uint32_t nodes_nr)
{
	uint64_t sum = c->self;

	for (uint32_t i = 0; i < nodes_nr; i++)
		sum = xxh_sum(c->node_list[i].name, strlen(c->node_list[i].name) + 1, sum);
	return sum;
}

static void members_say(const struct config *c, char text[WARM_MEMBERS_BYTES])
{
	size_t used = (size_t)snprintf(text, WARM_MEMBERS_BYTES, "node %.64s of",
				       c->node_list[c->self].name);

	for (uint32_t i = 0; i < c->nodes_nr && used < WARM_MEMBERS_BYTES; i++)
		used += (size_t)snprintf(text + used, WARM_MEMBERS_BYTES - used, " %.64s",
					 c->node_list[i].name);
}

/* The first row of the model from row i on, damaged or not. */
static struct warm_row *row_from(const struct warm *p, uint32_t model, uint32_t i)
{
	for (; i < WARM_MODELS_MAX; i++)
		if (atomic_load_explicit(&p->page->row[i].kept, memory_order_relaxed) != 0 &&
		    p->page->row[i].model == model)
			return &p->page->row[i];
	return NULL;
}

static struct warm_row *row_of(const struct warm *p, uint32_t model)
{
	return row_from(p, model, 0);
}

static void forget_tries(struct warm *p)
{
	for (uint32_t i = 0; i < WARM_MODELS_MAX; i++)
		atomic_store(&p->page->row[i].tries, 0);
}

/* --- finding the page --- */

/* A damaged row costs its model. If a model has two rows, nobody can say which one is right. */
static enum shard_status check_row(const struct warm *p, const struct warm_row *r, struct err *e)
{
	if (r->kept != 1 || r->bytes[WARM_META] == 0)
		return err_set(e, SHARD_MISMATCH, "row %u of the page is damaged",
			       (uint32_t)(r - p->page->row));
	if (row_from(p, r->model, (uint32_t)(r - p->page->row) + 1) != NULL)
		return err_set(e, SHARD_MISMATCH, "it is in the page twice");
	return SHARD_OK;
}

/* Has the list of nodes only grown by nodes that have joined? */
static bool grown(const struct warm *p)
{
	const struct config *c = p->conf.conf;

	for (uint32_t nr = c->self + 1; nr < c->nodes_nr && config_joined(c, nr); nr++)
		if (p->page->nodes == nodes_sum(c, nr))
			return true;
	return false;
}

/* Another list of nodes is most often a mistake, and the models are whole. So nothing is given back
 * because of it. */
static enum shard_status check_nodes(const struct warm *p, struct err *e)
{
	char now[WARM_MEMBERS_BYTES];
	uint32_t models = warm_models(p, NULL, 0);

	if (p->page->nodes != p->nodes && grown(p)) {
		p->page->nodes = p->nodes;
		members_say(p->conf.conf, p->page->members);
	}
	if (p->page->nodes == p->nodes)
		return SHARD_OK;
	if (models == 0)
		return err_set(e, SHARD_MISMATCH,
			       "[nodes] or `node` was another one, and there was no model");
	members_say(p->conf.conf, now);
	return err_set(e, SHARD_BAD_STATE,
		       "%u models in memory (%s) are those of %.*s, and the configuration says %s: "
		       "put `node` and [nodes] back, and the "
		       "models are there. If it is meant: start as before, save, stop all nodes, "
		       "%s, change it, start, restore",
		       models, warm_place(p),
		       (int)strnlen(p->page->members, WARM_MEMBERS_BYTES - 1), p->page->members,
		       now,
		       p->place.mode == WARM_SYSTEMD ? "which gives the memory back"
						     : "`shardd --forget-memory` on each");
}

/* The state folder may have been moved, or put back from a copy. Then there is none at its old
 * path. While there still is one with the same identity, nobody can say which of the two goes
 * on. */
static enum shard_status check_copy(const struct warm *p, struct err *e)
{
	char was[STATIC_ROOT_BYTES];

	memcpy(was, p->page->state, sizeof(was));
	was[sizeof(was) - 1] = 0;
	if (was[0] == 0 || strcmp(was, p->state) == 0 || !static_twin(p->conf.dir, was))
		return SHARD_OK;
	return err_set(e, SHARD_BAD_STATE,
		       "%u models in memory (%s) are those of the state folder %s, and %s is a "
		       "copy of it: start with state = %s. If the copy takes its place, remove or "
		       "rename that folder. If it is for another daemon, empty it",
		       warm_models(p, NULL, 0), warm_place(p), was, p->conf.conf->state, was);
}

/* A new or other state folder, or one put back from a copy, is most often a mistake, too. */
static enum shard_status check_state(const struct warm *p, struct err *e)
{
	const struct warm_page *g = p->page;
	bool other = memcmp(g->uuid, p->conf.uuid, sizeof(g->uuid)) != 0;
	uint64_t start = g->start;
	uint32_t models = warm_models(p, NULL, 0);

	if (!other && models > 0 && check_copy(p, e) != SHARD_OK)
		return e->status;
	if (!other && start < p->conf.start && g->incarnation <= p->conf.member)
		return SHARD_OK;
	if (models == 0)
		return err_set(
			e, SHARD_MISMATCH,
			"it is of another state folder or a newer one, and there was no model");
	if (other)
		return err_set(e, SHARD_BAD_STATE,
			       "%u models in memory (%s) are of another state folder than %s: put "
			       "that one back (or `state`), and the models are there. If they are "
			       "to go: %s",
			       models, warm_place(p), p->conf.conf->state, warm_forget_how(p));
	return err_set(e, SHARD_BAD_STATE,
		       "%u models in memory (%s) are of start %llu of this node, which began "
		       "without memory at start %llu, and %s is an older copy of its state "
		       "folder: there this is start %llu, after %llu. Put the newer folder back, "
		       "and the models are there. If the older one is meant: %s%s, start, restore",
		       models, warm_place(p), (unsigned long long)start,
		       (unsigned long long)g->incarnation, p->conf.conf->state,
		       (unsigned long long)p->conf.start, (unsigned long long)p->conf.member,
		       warm_forget_how(p), p->conf.conf->self == 0 ? " on each node" : "");
}

/* Memory of another release is whole, but only that release can read it. */
static enum shard_status check_format(const struct warm *p, struct err *e)
{
	const struct warm_page *g = p->page;
	uint32_t models = g->rows == WARM_MODELS_MAX ? warm_models(p, NULL, 0) : 0;

	if (g->format == WARM_FORMAT && g->rows == WARM_MODELS_MAX)
		return SHARD_OK;
	if (models == 0)
		return err_set(e, SHARD_MISMATCH, "it is of format %u, this release has %u",
			       g->format, WARM_FORMAT);
	return err_set(e, SHARD_BAD_STATE,
		       "%u models in memory (%s) are of another release: their format is %u, this "
		       "release has %u. Start that release, and the models are there. To bring "
		       "them along: save them there, stop%s, %s, start this release, restore",
		       models, warm_place(p), g->format, WARM_FORMAT,
		       p->conf.conf->self == 0 ? " all nodes" : "", warm_forget_how(p));
}

static enum shard_status check_page(struct warm *p, struct err *e)
{
	const struct warm_page *g = p->page;
	uint64_t start = g->start;

	if (g->magic != WARM_MAGIC)
		return err_set(e, SHARD_MISMATCH,
			       "what is there is not shardd's, or was never finished");
	if (p->boot[0] == 0 || memcmp(g->boot, p->boot, sizeof(g->boot)) != 0)
		return err_set(e, SHARD_MISMATCH, "it is of another boot");
	if (check_format(p, e) != SHARD_OK)
		return e->status;
	if (g->incarnation == 0 || g->incarnation > start)
		return err_set(e, SHARD_MISMATCH, "start %llu wrote it, as incarnation %llu",
			       (unsigned long long)start, (unsigned long long)g->incarnation);
	if (check_state(p, e) != SHARD_OK)
		return e->status;
	if (g->incarnation != p->conf.member)
		return err_set(
			e, SHARD_MISMATCH,
			"it is of incarnation %llu, and a start without it has been %llu since",
			(unsigned long long)g->incarnation, (unsigned long long)p->conf.member);
	return check_nodes(p, e);
}

static enum shard_status take_page(struct warm *p, struct err *e)
{
	enum shard_status st = warm_place_take(&p->place, WARM_PAGE_NAME, sizeof(struct warm_page),
					       0, SHM_HUGE_NO, &p->shm, e);

	if (st == SHARD_OK)
		p->page = p->shm.base;
	return st;
}

static enum shard_status find(struct warm *p, struct err *e)
{
	enum shard_status st = take_page(p, e);

	return st == SHARD_OK ? check_page(p, e) : st;
}

/* --- a page of its own --- */

static enum shard_status make_page(struct warm *p, struct err *e)
{
	enum shard_status st = warm_place_make(&p->place, WARM_PAGE_NAME, sizeof(struct warm_page),
					       0, SHM_HUGE_NO, &p->shm, e);
	struct warm_page *g = p->shm.base;

	if (st != SHARD_OK)
		return st;
	p->page = g;
	g->format = WARM_FORMAT;
	g->rows = WARM_MODELS_MAX;
	memcpy(g->boot, p->boot, sizeof(g->boot));
	memcpy(g->uuid, p->conf.uuid, sizeof(g->uuid));
	g->nodes = p->nodes;
	members_say(p->conf.conf, g->members);
	g->incarnation = p->conf.start;
	atomic_store(&g->pid, (uint64_t)getpid());
	atomic_store(&g->start, p->conf.start);
	atomic_store(&g->magic, WARM_MAGIC);
	return SHARD_OK;
}

static enum shard_status begin_anew(struct warm *p, struct err *e)
{
	shm_unmap(&p->shm);
	p->page = NULL;
	p->warm = false;
	warm_place_sweep(&p->place, NULL, NULL);
	return make_page(p, e);
}

static void say_cold(const struct warm *p, enum shard_status st, const char *why)
{
	if (st == SHARD_NOT_FOUND)
		why = p->conf.start == 1 ? "this node starts for the first time"
					 : "the start before this one left no memory";
	log_line(p->conf.log, st == SHARD_NOT_FOUND ? LOG_LEVEL_INFO : LOG_LEVEL_WARN,
		 "event=cold_start place=%s why=%s", warm_place(p), why);
}

/* warm_dir differs from the one before. That is most often a mistake, too. */
static enum shard_status check_moved(struct warm *p, struct err *e)
{
	const char *now = p->conf.conf->warm_dir;
	enum shard_status st;
	uint32_t models = 0;

	p->place.mode = WARM_TMPFS;
	if (p->place.dir < 0)
		return err_set(e, SHARD_BAD_STATE,
			       "%s has the memory of this node and cannot be opened, and the "
			       "configuration says warm_dir = %s: mend or remove it",
			       p->place.path, now);
	st = find(p, e);
	if (st == SHARD_OK || st == SHARD_BAD_STATE)
		models = warm_models(p, NULL, 0);
	if (models > 0)
		st = err_set(
			e, SHARD_BAD_STATE,
			"%u models in memory (%s, %.1f MiB) are where warm_dir was %s, and the "
			"configuration says warm_dir = %s: put it back, and the models are "
			"there. If it is meant: start as before, save, stop, `shardd "
			"--forget-memory`, change it, start, restore",
			models, warm_place(p), (double)warm_bytes(p) / (1 << 20), p->place.root,
			now);
	shm_unmap(&p->shm);
	p->page = NULL;
	if (models > 0)
		return st;
	warm_place_follow(&p->place, now);
	return SHARD_OK;
}

static enum shard_status begin(struct warm *p, enum warm_mode mode, struct err *e)
{
	enum shard_status st = SHARD_OK;
	struct err why;

	if (mode == WARM_TMPFS && p->place.moved)
		st = check_moved(p, e);
	if (st == SHARD_OK)
		st = warm_place_use(&p->place, mode, e);

	if (st != SHARD_OK)
		return st;
	st = find(p, &why);
	if (st == SHARD_BAD_STATE) {
		/* It is whole, but not for this configuration. */
		*e = why;
		return st;
	}
	if (st != SHARD_OK) {
		say_cold(p, st, why.text);
		return begin_anew(p, e);
	}
	p->warm = true;
	atomic_store(&p->page->pid, (uint64_t)getpid());
	return SHARD_OK;
}

/* The folder on the tmpfs is locked. The page in it says which process has it. */
static enum shard_status say_busy(struct warm *p, struct err *e)
{
	char who[24] = "?";

	p->place.mode = WARM_TMPFS;
	if (take_page(p, NULL) == SHARD_OK && p->page->pid > 0)
		snprintf(who, sizeof(who), "%llu", (unsigned long long)p->page->pid);
	shm_unmap(&p->shm);
	p->page = NULL;
	return err_set(
		e, SHARD_BUSY,
		"the memory in %s belongs to the daemon with pid %s that runs now, and %s is "
		"a copy of its state folder: another daemon needs a folder of its own, an "
		"empty one",
		p->place.path, who, p->conf.conf->state);
}

/* Whole models in a place that this configuration does not use are most often there because of a
 * mistake, so they stay. Memory that is not whole is given back with everything else there. */
static enum shard_status check_unused(struct warm *p, enum warm_mode mode, struct err *e)
{
	enum shard_status st;
	uint32_t models = 0;

	p->place.mode = mode;
	if (mode == WARM_TMPFS && p->place.dir < 0)
		return SHARD_OK;
	st = find(p, e);
	if (st == SHARD_OK || st == SHARD_BAD_STATE)
		models = warm_models(p, NULL, 0);
	if (models > 0)
		st = err_set(e, SHARD_BAD_STATE,
			     "%u models in memory (%s), and with this warm_restart nothing there "
			     "is taken up: put it back as "
			     "it was, and the models are there. If they are to go: %s",
			     models, warm_place(p), warm_forget_how(p));
	shm_unmap(&p->shm);
	p->page = NULL;
	return models > 0 ? st : SHARD_OK;
}

enum shard_status warm_open(struct warm **out, const struct warm_conf *conf, struct err *e)
{
	enum config_warm want = conf->conf->warm;
	bool systemd = want == CONFIG_WARM_SYSTEMD ||
		       (want == CONFIG_WARM_AUTO && warm_place_systemd(conf->conf));
	struct warm *p = calloc(1, sizeof(*p));
	enum shard_status st;
	bool off;

	*out = NULL;
	if (p == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the place of kept memory");
	p->conf = *conf;
	p->nodes = nodes_sum(conf->conf, conf->conf->nodes_nr);
	read_boot(p->boot);
	read_state(p->state, conf->conf);
	warm_place_open(&p->place, conf->conf, conf->dir, p->boot);
	if (p->place.busy) {
		st = say_busy(p, e);
		warm_close(&p);
		return st;
	}
	/* A daemon that ends when nobody is connected was started for a while by somebody. Nothing
	 * stays behind it. */
	off = want == CONFIG_WARM_OFF ||
	      (want == CONFIG_WARM_AUTO && !systemd && conf->conf->linger_ns > 0);
	st = off || !systemd ? check_unused(p, WARM_SYSTEMD, e) : SHARD_OK;
	if (st == SHARD_OK && (off || systemd))
		st = check_unused(p, WARM_TMPFS, e);
	if (st == SHARD_OK && off)
		warm_place_empty(&p->place);
	else if (st == SHARD_OK)
		st = begin(p, systemd ? WARM_SYSTEMD : WARM_TMPFS, e);
	if (st == SHARD_OK && off) {
		warm_close(&p);
		return SHARD_OK;
	}
	if (st == SHARD_OK) {
		*out = p;
		return SHARD_OK;
	}
	if (want == CONFIG_WARM_AUTO && st != SHARD_BAD_STATE) {
		log_line(conf->log, LOG_LEVEL_WARN, "event=warm_restart_off why=%s", e->text);
		st = SHARD_OK;
	}
	warm_close(&p);
	return st;
}

void warm_close(struct warm **pp)
{
	struct warm *p = *pp;

	*pp = NULL;
	if (p == NULL)
		return;
	if (p->page != NULL)
		forget_tries(p); /* This process did not die of them. */
	if (p->page != NULL && warm_models(p, NULL, 0) == 0)
		warm_place_empty(&p->place); /* There is nothing to take up. */
	shm_unmap(&p->shm);
	warm_place_close(&p->place);
	free(p);
}

enum shard_status warm_forget_all(const struct config *conf, struct static_dir *dir, struct err *e)
{
	struct warm p = {.conf = {.conf = conf, .dir = dir, .uuid = static_uuid(dir)}};
	enum shard_status st = SHARD_OK;

	read_boot(p.boot);
	read_state(p.state, conf);
	warm_place_open(&p.place, conf, dir, p.boot);
	if (p.place.busy) {
		st = say_busy(&p, e);
	} else if (p.place.dir >= 0) {
		p.place.mode = WARM_TMPFS;
		if (take_page(&p, NULL) == SHARD_OK && p.page->magic == WARM_MAGIC)
			st = check_copy(&p, e);
		shm_unmap(&p.shm);
	}
	if (st == SHARD_OK)
		warm_place_empty(&p.place);
	warm_place_close(&p.place);
	return st;
}

/* --- queries --- */

bool warm_here(const struct warm *p)
{
	return p != NULL && p->warm;
}

uint64_t warm_incarnation(const struct warm *p)
{
	return p->page->incarnation;
}

uint64_t warm_counted(const struct warm *p)
{
	return p->page->warm_starts;
}

enum warm_mode warm_mode(const struct warm *p)
{
	return p->place.mode;
}

const char *warm_place(const struct warm *p)
{
	return p->place.mode == WARM_SYSTEMD ? "systemd" : p->place.path;
}

const char *warm_forget_how(const struct warm *p)
{
	return p->place.mode == WARM_SYSTEMD ? "`systemctl stop`" : "`shardd --forget-memory`";
}

uint64_t warm_bytes(const struct warm *p)
{
	uint64_t sum = p->shm.bytes;

	for (uint32_t i = 0; i < WARM_MODELS_MAX; i++)
		for (uint32_t r = 0; p->page->row[i].kept == 1 && r < WARM_REGIONS; r++)
			sum += p->page->row[i].bytes[r];
	return sum;
}

uint32_t warm_models(const struct warm *p, uint32_t *ids, uint32_t max)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < WARM_MODELS_MAX; i++) {
		if (p->page->row[i].kept == 0 ||
		    row_of(p, p->page->row[i].model) != &p->page->row[i])
			continue;
		if (nr < max)
			ids[nr] = p->page->row[i].model;
		nr++;
	}
	return nr;
}

bool warm_has(const struct warm *p, uint32_t model)
{
	return p != NULL && row_of(p, model) != NULL;
}

/* --- regions --- */

static uint64_t row_bytes(const struct shm *m)
{
	return m->bytes > 0 ? m->bytes : m->room_bytes > 0;
}

static enum shard_status take(struct warm *p, const struct warm_row *r, enum warm_region what,
			      uint64_t bytes, uint64_t room, enum shm_huge huge, struct shm *m,
			      struct err *e)
{
	char name[WARM_NAME_BYTES];
	struct err why;
	enum shard_status st;

	region_name(name, r->model, what);
	st = warm_place_take(&p->place, name, bytes, room, huge, m, &why);
	if (st == SHARD_OK && row_bytes(m) != r->bytes[what]) {
		shm_unmap(m);
		st = err_set(&why, SHARD_MISMATCH, "it has %zu bytes, its page says %llu", m->bytes,
			     (unsigned long long)r->bytes[what]);
	}
	return st == SHARD_OK ? st
			      : err_set(e, SHARD_MISMATCH, "%s of model %u: %.300s",
					region_names[what], r->model, why.text);
}

enum shard_status warm_map(struct warm *p, uint32_t model, enum warm_region what, uint64_t bytes,
			   uint64_t room, enum shm_huge huge, struct shm *m, struct err *e)
{
	const struct warm_row *r = row_of(p, model);

	CHECK(r != NULL);
	return take(p, r, what, bytes, room, huge, m, e);
}

enum shard_status warm_make(struct warm *p, uint32_t model, enum warm_region what, uint64_t bytes,
			    uint64_t room, enum shm_huge huge, struct shm *m, struct err *e)
{
	char name[WARM_NAME_BYTES];

	CHECK(bytes > 0 || room > 0);
	region_name(name, model, what);
	return warm_place_make(&p->place, name, bytes, room, huge, m, e);
}

enum shard_status warm_try(struct warm *p, uint32_t model, struct err *e)
{
	struct warm_row *r = row_of(p, model);

	if (r == NULL)
		return err_set(
			e, SHARD_MISMATCH,
			"the start before this one left nothing of it that outlives a process");
	if (check_row(p, r, e) != SHARD_OK)
		return e->status;
	if (r->tries >= WARM_TRIES_MAX)
		return err_set(e, SHARD_MISMATCH, "%u starts in a row died while they took it",
			       r->tries);
	r->tries++;
	return SHARD_OK;
}

void warm_taken(struct warm *p, uint32_t model)
{
	struct warm_row *r = row_of(p, model);

	CHECK(r != NULL);
	r->tries = 0;
	r->dropped = 0; /* Its file was still there. */
}

uint64_t warm_taken_bytes(const struct warm *p, uint32_t model)
{
	char name[WARM_NAME_BYTES];
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < WARM_REGIONS; i++) {
		region_name(name, model, (enum warm_region)i);
		bytes += warm_place_taken(&p->place, name);
	}
	return bytes;
}

static enum shard_status no_room(const struct warm *p, uint64_t bytes, uint64_t left,
				 const char *model, struct err *e)
{
	return err_set(e, SHARD_BUDGET,
		       "\"%s\" needs %.1f MiB in %s, where %.1f MiB are free: give that file "
		       "system a larger size= (mount -o "
		       "remount,size=...), choose another warm_dir, or set warm_restart = off",
		       model, (double)bytes / (1 << 20), p->place.path, (double)left / (1 << 20));
}

enum shard_status warm_room(const struct warm *p, uint64_t bytes, const char *model, struct err *e)
{
	uint64_t left = warm_place_free(&p->place);

	return bytes <= left ? SHARD_OK : no_room(p, bytes, left, model, e);
}

bool warm_full(const struct warm *p, uint32_t id, uint64_t bytes, const char *model, struct err *e)
{
	if (p->place.mode != WARM_TMPFS || e->status != SHARD_BUDGET)
		return false;
	no_room(p, bytes, warm_place_free(&p->place) + warm_taken_bytes(p, id), model, e);
	return true;
}

void warm_unmake(struct warm *p, uint32_t model)
{
	char name[WARM_NAME_BYTES];

	for (uint32_t i = 0; i < WARM_REGIONS; i++) {
		region_name(name, model, (enum warm_region)i);
		warm_place_remove(&p->place, name);
	}
	devices_name(name, model);
	if (p->place.mode == WARM_SYSTEMD)
		warm_place_remove(&p->place, name);
}

enum shard_status warm_devices_keep(struct warm *p, uint32_t model, int fd, struct err *e)
{
	char name[WARM_NAME_BYTES];

	devices_name(name, model);
	return warm_place_keep_fd(&p->place, name, fd, e);
}

uint32_t warm_devices(struct warm *p, uint32_t model, int *fd, uint32_t max)
{
	char name[WARM_NAME_BYTES];

	devices_name(name, model);
	return warm_place_fds(&p->place, name, fd, max);
}

enum shard_status warm_keep(struct warm *p, uint32_t model, const struct shm *regions,
			    struct err *e)
{
	CHECK(row_of(p, model) == NULL);
	for (uint32_t i = 0; i < WARM_MODELS_MAX; i++) {
		struct warm_row *r = &p->page->row[i];

		if (r->kept != 0)
			continue;
		r->model = model;
		r->tries = r->dropped = 0;
		for (uint32_t k = 0; k < WARM_REGIONS; k++)
			r->bytes[k] = row_bytes(&regions[k]);
		atomic_store(&r->kept, 1);
		return SHARD_OK;
	}
	return err_set(e, SHARD_BUDGET, "%u models outlive this process already: drop one",
		       WARM_MODELS_MAX);
}

void warm_dropped(struct warm *p, uint32_t model, bool dropped)
{
	struct warm_row *r = p != NULL ? row_of(p, model) : NULL;

	if (r != NULL)
		r->dropped = dropped;
}

bool warm_was_dropped(const struct warm *p, uint32_t model)
{
	const struct warm_row *r = row_of(p, model);

	return r != NULL && r->dropped == 1;
}

void warm_forget(struct warm *p, uint32_t model)
{
	struct warm_row *r;

	while ((r = row_of(p, model)) != NULL)
		atomic_store(&r->kept, 0);
	warm_unmake(p, model);
}

/* --- the end of the start --- */

static bool listed(void *arg, const char *name)
{
	const struct warm *p = arg;
	char want[WARM_NAME_BYTES];

	if (strcmp(name, WARM_PAGE_NAME) == 0)
		return true;
	for (uint32_t i = 0; i < WARM_MODELS_MAX; i++)
		for (uint32_t k = 0; p->page->row[i].kept == 1 && k < WARM_REGIONS; k++) {
			region_name(want, p->page->row[i].model, (enum warm_region)k);
			if (p->page->row[i].bytes[k] > 0 && strcmp(name, want) == 0)
				return true;
			devices_name(want, p->page->row[i].model);
			if (strcmp(name, want) == 0)
				return true;
		}
	return false;
}

void warm_begun(struct warm *p)
{
	if (p == NULL)
		return;
	atomic_store(&p->page->start, p->conf.start);
	memcpy(p->page->state, p->state, sizeof(p->state));
	forget_tries(p);
	warm_place_sweep(&p->place, listed, p);
	if (!p->warm)
		return;
	p->page->warm_starts++;
	log_line(p->conf.log, LOG_LEVEL_INFO,
		 "event=warm_start models=%u incarnation=%llu starts=%llu bytes=%llu place=%s",
		 warm_models(p, NULL, 0), (unsigned long long)p->page->incarnation,
		 (unsigned long long)p->page->warm_starts, (unsigned long long)warm_bytes(p),
		 warm_place(p));
}
