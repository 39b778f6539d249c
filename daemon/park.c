/* SPDX-License-Identifier: Apache-2.0 */
/* What a start leaves for the next one. The server opens it after its state directory, model_make.c and resume.c take regions from it,
 * drop.c gives them back. One page says who wrote all of it: a start takes it only if it is of the incarnation that this node was last, in
 * this boot, with these nodes, and if every region of every model is there in the size that the page says. Happy path: page found and
 * right -> warm -> models are taken -> begun. Anything else: cold, everything is given back, a page of its own. A row counts from the
 * moment when its state word is set, which is last, so a kill at any instruction leaves a model listed and whole, or not listed. What is
 * read here may come from another release, or from nobody: it is copied, then checked. */
#include "park.h"

#include "base/check.h"
#include "park_place.h"
#include "wire/xxh.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARK_MAGIC     0x6b726170646873ull /* "shdpark" */
#define PARK_FORMAT    1                   /* of everything that is parked: grows with each change of any of it */
#define PARK_TRIES_MAX 3                   /* starts that died while they took it: then it is not taken again */
#define PARK_WHY_BYTES 200
#define PARK_PAGE_NAME "node"
#define BOOT_BYTES     37

struct park_row {
	_Atomic uint32_t kept; /* 1: counts */
	uint32_t model;
	uint64_t bytes[PARK_REGIONS]; /* mapped; 0: there is none */
};

struct park_page {
	_Atomic uint64_t magic; /* set last */
	uint32_t format, rows;
	char boot[BOOT_BYTES + 3];
	uint8_t uuid[STATIC_UUID_BYTES];
	uint64_t nodes, incarnation;
	_Atomic uint64_t start, warm_starts;
	_Atomic uint32_t tries, voided;
	char void_why[PARK_WHY_BYTES];
	struct park_row row[PARK_MODELS_MAX];
};

struct park {
	struct park_conf conf;
	struct park_place place;
	struct shm shm;
	struct park_page *page;
	char boot[BOOT_BYTES + 3];
	uint64_t nodes;
	bool warm;
};

static const char *const region_names[PARK_REGIONS] = {"meta", "state", "sums", "slots", "images"};

static void region_name(char name[PARK_NAME_BYTES], uint32_t model, enum park_region what)
{
	snprintf(name, PARK_NAME_BYTES, "%08x-%s", model, region_names[what]);
}

static void read_boot(char boot[BOOT_BYTES + 3])
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

	memset(boot, 0, BOOT_BYTES + 3);
	if (f == NULL)
		return;
	if (fgets(boot, BOOT_BYTES, f) == NULL)
		boot[0] = 0;
	fclose(f);
}

/* Placement and every number of a node follow from the list. */
static uint64_t nodes_sum(const struct config *c)
{
	uint64_t sum = c->self;

	for (uint32_t i = 0; i < c->nodes_nr; i++)
		sum = xxh_sum(c->node_list[i].name, strlen(c->node_list[i].name) + 1, sum);
	return sum;
}

static struct park_row *row_of(const struct park *p, uint32_t model)
{
	for (uint32_t i = 0; i < PARK_MODELS_MAX; i++)
		if (atomic_load_explicit(&p->page->row[i].kept, memory_order_relaxed) == 1 && p->page->row[i].model == model)
			return &p->page->row[i];
	return NULL;
}

/* --- finding --- */

static enum shard_status check_rows(struct park *p, struct err *e)
{
	for (uint32_t i = 0; i < PARK_MODELS_MAX; i++) {
		const struct park_row *r = &p->page->row[i];

		if (r->kept > 1)
			return err_set(e, SHARD_MISMATCH, "row %u of its page is damaged", i);
		if (r->kept == 1 && (row_of(p, r->model) != r || r->bytes[PARK_META] == 0))
			return err_set(e, SHARD_MISMATCH, "model %u is in its page twice, or without memory", r->model);
	}
	return SHARD_OK;
}

static enum shard_status check_page(struct park *p, struct err *e)
{
	const struct park_page *g = p->page;
	uint64_t start = g->start;

	if (g->magic != PARK_MAGIC)
		return err_set(e, SHARD_MISMATCH, "what is there is not shardd's, or was never finished");
	if (g->format != PARK_FORMAT || g->rows != PARK_MODELS_MAX)
		return err_set(e, SHARD_MISMATCH, "it is of format %u, this release has %u", g->format, PARK_FORMAT);
	if (p->boot[0] == 0 || memcmp(g->boot, p->boot, sizeof(g->boot)) != 0)
		return err_set(e, SHARD_MISMATCH, "it is of another boot");
	if (memcmp(g->uuid, p->conf.uuid, sizeof(g->uuid)) != 0)
		return err_set(e, SHARD_MISMATCH, "it is of another node, or of another state directory");
	if (g->nodes != p->nodes)
		return err_set(e, SHARD_MISMATCH, "[nodes] or `node` was another one");
	if (start >= p->conf.start || g->incarnation == 0 || g->incarnation > start)
		return err_set(e, SHARD_MISMATCH, "start %llu wrote it, as incarnation %llu, and this is start %llu",
			       (unsigned long long)start, (unsigned long long)g->incarnation, (unsigned long long)p->conf.start);
	if (g->incarnation != p->conf.member)
		return err_set(e, SHARD_MISMATCH, "it is of incarnation %llu, and a start without it has been %llu since",
			       (unsigned long long)g->incarnation, (unsigned long long)p->conf.member);
	if (g->voided != 0)
		return err_set(e, SHARD_MISMATCH, "%.*s", (int)strnlen(g->void_why, PARK_WHY_BYTES - 1), g->void_why);
	if (g->tries >= PARK_TRIES_MAX)
		return err_set(e, SHARD_MISMATCH, "%u starts in a row died while they took it", g->tries);
	return check_rows(p, e);
}

static enum shard_status find(struct park *p, struct err *e)
{
	enum shard_status st = park_place_take(&p->place, PARK_PAGE_NAME, sizeof(struct park_page), SHM_HUGE_NO, &p->shm, e);

	if (st != SHARD_OK)
		return st;
	p->page = p->shm.base;
	return check_page(p, e);
}

/* --- a page of its own --- */

static enum shard_status make_page(struct park *p, struct err *e)
{
	enum shard_status st = park_place_make(&p->place, PARK_PAGE_NAME, sizeof(struct park_page), SHM_HUGE_NO, &p->shm, e);
	struct park_page *g = p->shm.base;

	if (st != SHARD_OK)
		return st;
	p->page = g;
	g->format = PARK_FORMAT;
	g->rows = PARK_MODELS_MAX;
	memcpy(g->boot, p->boot, sizeof(g->boot));
	memcpy(g->uuid, p->conf.uuid, sizeof(g->uuid));
	g->nodes = p->nodes;
	g->incarnation = p->conf.start;
	atomic_store(&g->start, p->conf.start);
	atomic_store(&g->magic, PARK_MAGIC);
	return SHARD_OK;
}

static enum shard_status begin_anew(struct park *p, struct err *e)
{
	shm_unmap(&p->shm);
	p->page = NULL;
	p->warm = false;
	park_place_sweep(&p->place, NULL, NULL);
	return make_page(p, e);
}

static void say_cold(const struct park *p, enum shard_status st, const char *why)
{
	log_line(p->conf.log, st == SHARD_NOT_FOUND ? LOG_LEVEL_INFO : LOG_LEVEL_WARN, "event=cold_start place=%s why=%s",
		 park_place(p), st == SHARD_NOT_FOUND ? "the start before this one left no memory" : why);
}

static enum shard_status begin(struct park *p, enum park_mode mode, struct err *e)
{
	enum shard_status st = park_place_use(&p->place, mode, e);
	struct err why;

	if (st != SHARD_OK)
		return st;
	st = find(p, &why);
	if (st != SHARD_OK) {
		say_cold(p, st, why.text);
		return begin_anew(p, e);
	}
	p->warm = true;
	p->page->tries++;
	atomic_store(&p->page->start, p->conf.start);
	return SHARD_OK;
}

enum shard_status park_open(struct park **out, const struct park_conf *conf, struct err *e)
{
	enum config_warm want = conf->conf->warm;
	bool systemd = want == CONFIG_WARM_SYSTEMD || (want == CONFIG_WARM_AUTO && park_place_systemd(conf->conf));
	struct park *p = calloc(1, sizeof(*p));
	enum shard_status st;

	*out = NULL;
	if (p == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for what is parked");
	p->conf = *conf;
	p->nodes = nodes_sum(conf->conf);
	read_boot(p->boot);
	park_place_open(&p->place, conf->conf, conf->uuid);
	/* one that ends when nobody is connected is somebody's for a while: nothing stays behind it */
	if (want == CONFIG_WARM_OFF || (want == CONFIG_WARM_AUTO && !systemd && conf->conf->linger_ns > 0)) {
		park_place_empty(&p->place);
		park_close(&p);
		return SHARD_OK;
	}
	st = begin(p, systemd ? PARK_SYSTEMD : PARK_TMPFS, e);
	if (st == SHARD_OK) {
		*out = p;
		return SHARD_OK;
	}
	if (want == CONFIG_WARM_AUTO) {
		log_line(conf->log, LOG_LEVEL_WARN, "event=warm_restart_off why=%s", e->text);
		st = SHARD_OK;
	}
	park_close(&p);
	return st;
}

void park_close(struct park **pp)
{
	struct park *p = *pp;

	*pp = NULL;
	if (p == NULL)
		return;
	if (p->page != NULL)
		p->page->tries = 0; /* it did not die of it */
	if (p->page != NULL && park_models(p, NULL, 0) == 0)
		park_place_empty(&p->place); /* nothing to take up */
	shm_unmap(&p->shm);
	park_place_close(&p->place);
	free(p);
}

void park_forget_all(const struct config *conf, const uint8_t *uuid)
{
	struct park_place place;

	park_place_open(&place, conf, uuid);
	park_place_empty(&place);
	park_place_close(&place);
}

/* --- what others ask --- */

bool park_warm(const struct park *p)
{
	return p != NULL && p->warm;
}

uint64_t park_incarnation(const struct park *p)
{
	return p->page->incarnation;
}

uint64_t park_warm_starts(const struct park *p)
{
	return p->page->warm_starts;
}

enum park_mode park_mode(const struct park *p)
{
	return p->place.mode;
}

const char *park_place(const struct park *p)
{
	return p->place.mode == PARK_SYSTEMD ? "systemd" : p->place.path;
}

uint64_t park_bytes(const struct park *p)
{
	uint64_t sum = p->shm.bytes;

	for (uint32_t i = 0; i < PARK_MODELS_MAX; i++)
		for (uint32_t r = 0; p->page->row[i].kept == 1 && r < PARK_REGIONS; r++)
			sum += p->page->row[i].bytes[r];
	return sum;
}

uint32_t park_models(const struct park *p, uint32_t *ids, uint32_t max)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < PARK_MODELS_MAX; i++) {
		if (p->page->row[i].kept != 1)
			continue;
		if (nr < max)
			ids[nr] = p->page->row[i].model;
		nr++;
	}
	return nr;
}

bool park_has(const struct park *p, uint32_t model)
{
	return p != NULL && row_of(p, model) != NULL;
}

/* --- regions --- */

static enum shard_status take(struct park *p, const struct park_row *r, enum park_region what, uint64_t bytes, enum shm_huge huge,
			      struct shm *m, struct err *e)
{
	char name[PARK_NAME_BYTES];
	struct err why;
	enum shard_status st;

	region_name(name, r->model, what);
	st = park_place_take(&p->place, name, bytes, huge, m, &why);
	if (st == SHARD_OK && m->bytes != r->bytes[what]) {
		shm_unmap(m);
		st = err_set(&why, SHARD_MISMATCH, "it has %zu bytes, its page says %llu", m->bytes,
			     (unsigned long long)r->bytes[what]);
	}
	return st == SHARD_OK ? st : err_set(e, SHARD_MISMATCH, "%s of model %u: %.300s", region_names[what], r->model, why.text);
}

enum shard_status park_map(struct park *p, uint32_t model, enum park_region what, uint64_t bytes, enum shm_huge huge, struct shm *m,
			   struct err *e)
{
	const struct park_row *r = row_of(p, model);
	char name[PARK_NAME_BYTES];

	if (r != NULL)
		return take(p, r, what, bytes, huge, m, e);
	CHECK(bytes > 0);
	region_name(name, model, what);
	park_place_remove(&p->place, name); /* of one that was never listed */
	return park_place_make(&p->place, name, bytes, huge, m, e);
}

enum shard_status park_room(const struct park *p, uint64_t bytes, const char *model, struct err *e)
{
	uint64_t left = park_place_free(&p->place);

	if (bytes <= left)
		return SHARD_OK;
	return err_set(e, SHARD_BUDGET,
		       "\"%s\" needs %.1f MiB in %s, where %.1f MiB are free: give that file system a larger size= (mount -o "
		       "remount,size=...), choose another warm_dir, or set warm_restart = off",
		       model, (double)bytes / (1 << 20), p->place.path, (double)left / (1 << 20));
}

enum shard_status park_keep(struct park *p, uint32_t model, const struct shm *regions, struct err *e)
{
	CHECK(row_of(p, model) == NULL);
	for (uint32_t i = 0; i < PARK_MODELS_MAX; i++) {
		struct park_row *r = &p->page->row[i];

		if (r->kept == 1)
			continue;
		r->model = model;
		for (uint32_t k = 0; k < PARK_REGIONS; k++)
			r->bytes[k] = regions[k].bytes;
		atomic_store(&r->kept, 1);
		return SHARD_OK;
	}
	return err_set(e, SHARD_BUDGET, "%u models outlive this process already: drop one", PARK_MODELS_MAX);
}

void park_forget(struct park *p, uint32_t model)
{
	struct park_row *r = row_of(p, model);
	char name[PARK_NAME_BYTES];

	if (r != NULL)
		atomic_store(&r->kept, 0);
	for (uint32_t i = 0; i < PARK_REGIONS; i++) {
		region_name(name, model, (enum park_region)i);
		park_place_remove(&p->place, name);
	}
}

/* --- the end of the start --- */

static bool listed(void *arg, const char *name)
{
	const struct park *p = arg;
	char want[PARK_NAME_BYTES];

	if (strcmp(name, PARK_PAGE_NAME) == 0)
		return true;
	for (uint32_t i = 0; i < PARK_MODELS_MAX; i++)
		for (uint32_t k = 0; p->page->row[i].kept == 1 && k < PARK_REGIONS; k++) {
			region_name(want, p->page->row[i].model, (enum park_region)k);
			if (p->page->row[i].bytes[k] > 0 && strcmp(name, want) == 0)
				return true;
		}
	return false;
}

void park_begun(struct park *p)
{
	if (p == NULL)
		return;
	p->page->tries = 0;
	park_place_sweep(&p->place, listed, p);
	if (!p->warm)
		return;
	p->page->warm_starts++;
	log_line(p->conf.log, LOG_LEVEL_INFO, "event=warm_start models=%u incarnation=%llu starts=%llu bytes=%llu place=%s",
		 park_models(p, NULL, 0), (unsigned long long)p->page->incarnation, (unsigned long long)p->page->warm_starts,
		 (unsigned long long)park_bytes(p), park_place(p));
}

enum shard_status park_cold(struct park *p, const char *why, struct err *e)
{
	say_cold(p, SHARD_MISMATCH, why);
	return begin_anew(p, e);
}

void park_void(struct park *p, const char *why)
{
	snprintf(p->page->void_why, sizeof(p->page->void_why), "%s", why);
	atomic_fetch_add(&p->page->voided, 1);
	log_line(p->conf.log, LOG_LEVEL_WARN, "event=warm_restart_void why=%s", why);
}

void park_unvoid(struct park *p)
{
	CHECK(p->page->voided > 0);
	atomic_fetch_sub(&p->page->voided, 1);
}
