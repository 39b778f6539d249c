/* SPDX-License-Identifier: Apache-2.0 */
/* All memory of a model on this node, made at once and given back at once. Called when a definition
 * arrives (define.c), and when a start finds what the one before left (resume.c). drop.c gives it
 * back. Happy path of a definition: the budget agrees, the model is on server.makings, where no
 * frame or event finds it, a thread makes and touches its memory, bookkeeping and core follow on
 * the loop, and the model is on server.models. Where the budget has no room and models that end
 * give enough back, it waits on server.makings. Models that may have been dropped while this node
 * was away count as such until the coordinator has named them. A start makes it at once, because
 * its loop does not run yet. Who ends a model that is being made waits for the thread. It fails
 * with the budget's figures or what the system says, and leaves nothing behind. After it nothing of
 * the model allocates. */
#include "data/apply.h"
#include "model/definitions.h"
#include "model/writer.h"
#include "base/check.h"
#include "base/clock.h"
#include "data/blobs.h"
#include "data/data.h"
#include "data/device_memory.h"
#include "link/nodes.h"
#include "link/peer.h"
#include "model/model.h"
#include "model/lead.h"
#include "data/catchup.h"
#include "data/images.h"
#include "warm/warm.h"
#include "model/view_file.h"
#include "data/mr.h"
#include "model/core_conf.h"
#include "model/devices.h"
#include "model/disk.h"
#include "model/resume.h"
#include "model/rooms.h"
#include "model/pinned.h"
#include "model/spare.h"
#include "link/session.h"
#include "model/watch.h"
#include "model/tables.h"
#include "model/voided.h"
#include "model/spec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static enum shard_status make_core(struct model *m, const struct core_conf *conf,
				   const struct core_view *view, bool there, struct err *e)
{
	struct core_view *own = NULL; /* Its tables are the model's. */

	m->core_memory = aligned_alloc(64, (core_bytes(conf) + 63) & ~(size_t)63);
	if (m->core_memory == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for \"%s\"", m->name);
	if (view != NULL && (own = tables_view(m, view, e)) == NULL)
		return e->status;
	memset(m->core_memory, 0, core_bytes(conf));
	m->core = core_init(m->core_memory, conf, own, there ? meta_core(&m->meta) : NULL);
	free(own);
	if (m->core == NULL)
		return err_set(e, SHARD_MISMATCH,
			       "what its core knew does not count any more, is damaged, or is of "
			       "another release");
	if (meta_persistent(&m->meta) && !there)
		meta_tables(&m->meta, &m->place, m->tables.defined.sum);
	if (meta_persistent(&m->meta) && (!there || conf->recalled) &&
	    core_warm_save(m->core, meta_core_next(&m->meta)))
		meta_core_switch(&m->meta);
	return SHARD_OK;
}

/* --- memory --- */

enum { EVENTS_MORE = 16 }; /* Events of a model, beside one for each chunk. */

struct make { /* Lives as long as the model. */
	struct model *m;
	struct core_conf *core; /* NULL: the core has copied it. */
	struct meta_conf meta;
	const struct meta_found *found; /* Memory of an earlier start; NULL: it is made new. */
	struct job job;
	const struct core_view *view; /* Of a definition that is made again. NULL: none. */
	uint32_t events;              /* Entries reserved in server.later. */
	bool working;                 /* A thread makes or frees the memory. */
	uint64_t room_by_ns; /* So long it waits for room that other models give back. 0: no. */
	model_made_fn *made;
	void (*freed)(void *arg);
	void *freed_arg;
	/* Beside `found`, the thread uses only the fields from here on. Meanwhile the loop writes
	 * none of them but given_up. */
	_Atomic bool given_up;
	struct store_conf store;
	struct store_park warm;
	struct warm *place;
	uint32_t id;
	struct shm region; /* The region WARM_META. */
	struct store *memory;
	struct disk disk; /* Of chunks that are away. */
	struct devices devices;
	struct device_memory on_gpus; /* When it is freed. */
	struct definition_job definition;
	bool may_void;         /* Where the place is full, it is made in memory of the process. */
	uint64_t parked_bytes; /* All that it takes of the place. */
	struct err full;       /* SHARD_OK: the place had room. */
	struct err e;          /* SHARD_OK: it is there. */
};

/* Its memory is that of an earlier start. After a loss of power it is new. */
static bool there(const struct make *k)
{
	return k->found != NULL && k->found->super == NULL;
}

static enum shard_status make_region(struct make *k, enum warm_region what, uint64_t bytes,
				     uint64_t room, enum shm_huge huge, struct shm *m,
				     struct err *e)
{
	enum shard_status st = warm_make(k->place, k->id, what, bytes, room, huge, m, e);

	if (st != SHARD_OK && k->store.huge != SHM_HUGE_REQUIRE && /* which it may be that lack */
	    warm_full(k->place, k->id, k->parked_bytes, k->store.name, e))
		k->full = *e;
	return st;
}

static enum shard_status map_region(void *arg, enum store_region what, uint64_t bytes,
				    uint64_t room, struct shm *m, struct err *e)
{
	static const enum warm_region regions[] = {[STORE_STATE] = WARM_STATE,
						   [STORE_SUMS] = WARM_SUMS,
						   [STORE_SLOTS] = WARM_SLOTS,
						   [STORE_IMAGES] = WARM_IMAGES};
	struct make *k = arg;

	return there(k) ? warm_map(k->place, k->id, regions[what], bytes, room, k->store.huge, m, e)
			: make_region(k, regions[what], bytes, room, k->store.huge, m, e);
}

/* Bytes that the models that are being made will still take of the place of warm/warm.h. The bytes
 * that they have taken already are no longer free there. Those are looked up here, before the free
 * bytes are, so that no byte is missed in both. */
static uint64_t parked_soon(const struct server *s)
{
	uint64_t bytes = 0;

	list_each(it, (struct list *)(uintptr_t)&s->makings) {
		const struct model *m = list_of(it, struct model, link);
		uint64_t there = m->need.parked > 0 ? warm_taken_bytes(s->warm, m->id) : 0;

		bytes += m->need.parked > there ? m->need.parked - there : 0;
	}
	return bytes;
}

/* Does it outlive the process, and how large is what that takes? Where it cannot although nothing
 * forbids it, this node's next start is without this model's memory, and only this one's. That is
 * refused only where the place was asked for by name. SHARD_AGAIN: as find_room(). */
static enum shard_status plan_park(struct make *k, bool may_wait, struct err *e)
{
	struct model *m = k->m;
	struct server *s = m->server;
	struct budget_need need;
	enum shard_status st;
	uint64_t bytes, leaving = s->budget.leaving_parked;

	if (s->warm == NULL)
		return SHARD_OK;
	if (devices_end_with_process(&k->devices, m, e)) {
		if (s->conf->warm != CONFIG_WARM_AUTO)
			return e->status;
		log_line(s->log, LOG_LEVEL_WARN, "event=warm_restart_void model=%s why=%s", m->name,
			 e->text);
		return SHARD_OK;
	}
	k->meta = (struct meta_conf){
		.layout = m->layout,
		.place = m->place,
		.self = s->self,
		.nodes_nr = m->memory.nodes_nr,
		.undo_nr = k->found != NULL ? k->found->undo_nr
					    : meta_undo_nr(m->layout, s->conf->workers + 1),
		.core_bytes = core_warm_bytes(k->core),
		.spec_bytes = k->found != NULL ? k->found->spec_bytes
					       : shard__model__get_packed_size(m->spec),
		.blobs_bytes =
			blobs_memory_bytes(m->set.local_world, m->set.max_world, blobs_copied(m)),
		.incarnation = m->memory.incarnation};
	k->warm = (struct store_park){
		.map = map_region, .arg = k, .there = there(k), .meta = meta_bytes(&k->meta)};
	k->store.warm = &k->warm;
	if (m->set.nvme_durable && disk_share(&m->set) > 0)
		k->store.durable_bytes = meta_packed_bytes(&k->meta);
	budget_need(&need, &k->store);
	bytes = need.parked + parked_soon(s);
	if (there(k) || (st = warm_room(s->warm, bytes, m->name, e)) == SHARD_OK)
		return SHARD_OK;
	if (may_wait && leaving > 0 &&
	    warm_room(s->warm, bytes > leaving ? bytes - leaving : 0, m->name, NULL) == SHARD_OK)
		return SHARD_AGAIN; /* models that end give enough back */
	if (s->conf->warm != CONFIG_WARM_AUTO || k->store.durable_bytes > 0)
		return st;
	log_line(s->log, LOG_LEVEL_WARN, "event=warm_restart_void model=%s why=%s", m->name,
		 e->text);
	k->store.warm = NULL;
	return SHARD_OK;
}

static enum shard_status store_conf(struct make *k, struct err *e)
{
	struct model *m = k->m;
	struct server *s = m->server;

	k->place = s->warm;
	k->id = m->id;
	k->store = (struct store_conf){.name = m->name,
				       .layout = m->layout,
				       .optim = m->set.optim,
				       .grad = m->grad,
				       .grad_codec = m->set.grad_codec,
				       .image_codec = {m->set.image_codec, m->set.grad_codec.block},
				       .feedback = m->set.error_feedback,
				       .away_share = settings_away(&m->set),
				       .away_cache = k->devices.nr > 0 ? TIER_GPU_BUFFERS
								       : m->set.nvme_cache,
				       .place = m->place,
				       .self = s->self,
				       .nodes_nr = m->memory.nodes_nr,
				       .local_world = m->set.local_world,
				       .staleness = m->set.max_staleness,
				       .max_world = m->set.max_world,
				       .huge = s->conf->huge_pages,
				       .given_up = &k->given_up};
	if (k->found == NULL)
		return SHARD_OK;
	k->store.first = meta_first(k->found, m->layout->chunks_nr, &k->store.first_nodes);
	if (k->store.first != NULL && k->store.first_nodes <= m->memory.nodes_nr)
		return SHARD_OK;
	return err_set(e, SHARD_MISMATCH, "it does not say which chunks it was made with");
}

static enum shard_status make_meta(struct make *k, struct err *e)
{
	struct model *m = k->m;
	enum shard_status st;
	uint8_t *spec;

	if (k->found != NULL)
		return meta_again(&m->meta, &k->meta, e);
	if ((spec = malloc(k->meta.spec_bytes + 1)) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a definition");
	shard__model__pack(m->spec, spec);
	st = meta_make(&m->meta, &k->meta, m->id, spec, e);
	free(spec);
	return st;
}

static enum shard_status reserve(struct make *k, bool may_wait, struct err *e)
{
	struct model *m = k->m;
	struct server *s = m->server;
	enum shard_status st;

	budget_need(&m->need, &k->store);
	st = budget_reserve(&s->budget, &m->need, m->name, members_name(s, s->self), e);
	if (st != SHARD_OK && spare_drop(s)) {
		s->budget.refused_ns = 0; /* It was not, if there is room now. */
		st = budget_reserve(&s->budget, &m->need, m->name, members_name(s, s->self), e);
	}
	if (st != SHARD_OK && may_wait &&
	    budget_soon(&s->budget, &m->need, resume_unconfirmed(s).total))
		st = SHARD_AGAIN;
	if (st != SHARD_OK)
		memset(&m->need, 0, sizeof(m->need));
	else if (k->store.warm != NULL && k->found == NULL)
		warm_forget(s->warm, m->id); /* what a start that died left of that name */
	k->parked_bytes = m->need.parked;
	k->may_void = k->store.warm != NULL && k->found == NULL &&
		      s->conf->warm == CONFIG_WARM_AUTO && k->store.durable_bytes == 0;
	return st;
}

static enum shard_status make_once(struct make *k)
{
	if (k->store.warm != NULL && k->found == NULL &&
	    make_region(k, WARM_META, k->warm.meta, 0, SHM_HUGE_NO, &k->region, &k->e) != SHARD_OK)
		return k->e.status;
	if (store_init(&k->memory, &k->store, &k->e) != SHARD_OK)
		return k->e.status;
	if (k->devices.nr > 0)
		return devices_open(&k->devices, k->memory, k->store.warm != NULL ? k->place : NULL,
				    &k->e);
	return disk_open(&k->disk, k->memory, k->store.warm != NULL, &k->e);
}

/* Gigabytes: in a thread, or before the loop runs. Where others took the room in the place after
 * plan_park() had looked, what is there goes, and it is made as if plan_park() had found none. */
static void make_memory(struct make *k)
{
	enum shard_status st = make_once(k);

	if (st != SHARD_OK && k->full.status != SHARD_OK && k->may_void) {
		disk_close(&k->disk);
		devices_close(&k->devices);
		shm_unmap(&k->region);
		warm_unmake(k->place, k->id);
		k->store.warm = NULL;
		st = make_once(k);
	}
	/* Memory that was found is worth more than a disk that does not take the file now. */
	if (st == SHARD_OK && definition_write(&k->definition, &k->e) != SHARD_OK &&
	    k->found == NULL)
		return;
	if (st == SHARD_OK)
		k->e.status = SHARD_OK;
}

/* The account of what was made without the place after all. */
static enum shard_status settle_void(struct make *k, struct err *e)
{
	struct server *s = k->m->server;

	if (k->full.status == SHARD_OK)
		return SHARD_OK;
	log_line(s->log, LOG_LEVEL_WARN, "event=warm_restart_void model=%s why=%s", k->m->name,
		 k->full.text);
	budget_release(&s->budget, &k->m->need);
	return reserve(k, false, e);
}

/* Also of a make that failed half way: it is the model's, which frees it. */
static void take_memory(struct make *k)
{
	struct model *m = k->m;

	CHECK(!k->working && m->store == NULL);
	m->store = k->memory;
	k->memory = NULL;
	if (k->region.base != NULL)
		m->meta.shm = k->region;
	k->region.base = NULL;
}

static enum shard_status make_tier(struct model *m, struct err *e)
{
	struct tier_conf conf = {.store = m->store,
				 .isa = m->server->isa,
				 .exec = worker_exec(m->server->pool),
				 .tiles = meta_persistent(&m->meta) ? &m->meta.tiles : NULL};

	return m->make->devices.nr > 0 ? devices_tier(&m->make->devices, m, &conf, e)
				       : disk_tier(&m->make->disk, m, &conf, e);
}

static enum shard_status make_lists(struct model *m, struct err *e)
{
	struct server *s = m->server;
	uint32_t chunks = m->layout->chunks_nr;
	enum shard_status st;

	m->img.parts = calloc(chunks, sizeof(*m->img.parts));
	m->img.coming = calloc(chunks, sizeof(*m->img.coming));
	m->img.staged_later = calloc(chunks, sizeof(*m->img.staged_later));
	if (writer_init(m, e) != SHARD_OK)
		return e->status;
	if (!m->img.parts || !m->img.coming || !m->img.staged_later)
		return err_set(e, SHARD_SYSTEM, "no memory to keep track of %u chunks", chunks);
	if ((st = data_more_nodes(m, m->memory.nodes_nr, e)) != SHARD_OK ||
	    (st = contrib_init(m, e)) != SHARD_OK || (st = grad_init(m, e)) != SHARD_OK ||
	    (st = catchup_init(m, e)) != SHARD_OK || (st = images_init(m, e)) != SHARD_OK ||
	    (st = blobs_init(m, e)) != SHARD_OK || (st = mr_init(m, e)) != SHARD_OK ||
	    (st = rooms_init(m, e)) != SHARD_OK ||
	    (st = server_later_room(s, chunks + EVENTS_MORE, e)) != SHARD_OK)
		return st;
	m->make->events = chunks + EVENTS_MORE;
	return server_scratch(
		s, 192 * (size_t)chunks + 32 * (size_t)m->layout->segments_nr + (1u << 20), e);
}

static enum shard_status make_layout(struct model *m, const struct core_view *view, struct err *e)
{
	enum shard_status st = spec_read(m, e);

	if (st == SHARD_OK && m->layout == NULL)
		st = spec_layout(&m->layout, m->spec->spec, m->spec->chunk_elems, e);
	if (st != SHARD_OK)
		return st;
	return tables_begin(m, view, m->make->found, e);
}

/* From here on the next start takes the model's memory over. */
static enum shard_status keep(struct model *m, struct err *e)
{
	struct meta_mark mark = {.cleared = m->generation};
	bool anew = m->make->found == NULL;
	const struct shm regions[WARM_REGIONS] = {
		[WARM_META] = m->meta.shm,
		[WARM_STATE] = *store_region(m->store, STORE_STATE),
		[WARM_SUMS] = *store_region(m->store, STORE_SUMS),
		[WARM_SLOTS] = *store_region(m->store, STORE_SLOTS),
		[WARM_IMAGES] = *store_region(m->store, STORE_IMAGES)};

	if (anew)
		meta_mark(&m->meta, &mark);
	return warm_keep(m->server->warm, m->id, regions, e);
}

/* Everything that has to be known before the memory is made. */
static enum shard_status make_begin(struct make *k, const struct core_view *view, struct err *e)
{
	struct model *m = k->m;
	enum shard_status st = make_layout(m, view, e);

	if (st == SHARD_OK)
		st = persist_make(m, model_persisted, e);
	if (st == SHARD_OK)
		st = definition_plan(m, &k->definition, e);
	if (st != SHARD_OK)
		return st;
	st = disk_plan(&k->disk, m, k->found, k->found == NULL && view == NULL, e);
	if (st == SHARD_OK)
		st = devices_plan(&k->devices, m, there(k), e);
	if (st != SHARD_OK)
		return st;
	if ((k->core = model_core_conf(m)) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a definition");
	k->core->recalled = k->found != NULL && k->found->super != NULL;
	if ((st = store_conf(k, e)) == SHARD_OK)
		devices_settle(&k->devices, m, &k->store);
	return st;
}

/* The account of it. SHARD_AGAIN: there will be room when the models that end, or may have ended,
 * have given theirs back; e says what is missing until then. */
static enum shard_status find_room(struct make *k, bool may_wait, struct err *e)
{
	enum shard_status st = plan_park(k, may_wait, e);

	return st == SHARD_OK ? reserve(k, may_wait, e) : st;
}

/* Everything that needs the memory. */
static enum shard_status make_end(struct make *k, const struct core_view *view, struct err *e)
{
	struct model *m = k->m;
	enum shard_status st = k->e.status;

	take_memory(k);
	if (st != SHARD_OK) {
		*e = k->e;
		return st;
	}
	if ((st = settle_void(k, e)) == SHARD_OK && k->store.warm != NULL)
		st = make_meta(k, e);
	if (st == SHARD_OK)
		st = make_tier(m, e);
	if (st == SHARD_OK && (st = make_lists(m, e)) == SHARD_OK) {
		store_image_generation(m->store, m->generation);
		st = make_core(m, k->core, view, k->found != NULL, e);
	}
	if (st == SHARD_OK && meta_persistent(&m->meta) && !there(k))
		st = keep(m, e);
	/* The view on disk may give this node more than its memory was made for. */
	if (st == SHARD_OK && view != NULL)
		st = rooms_now(m, core_newest_place(m->core), e);
	free(k->core);
	k->core = NULL;
	return st;
}

/* The incarnation is random. A count of starts would repeat on a node that was replaced or whose
 * state folder was put back, and its empty memory would then be taken for the memory before.
 */
static enum shard_status name_memory(struct model *m, struct err *e)
{
	uint64_t *name = &m->memory.incarnation;

	while (*name == 0)
		if (getrandom(name, sizeof(*name), 0) != (ssize_t)sizeof(*name))
			return err_set(e, SHARD_SYSTEM,
				       "no random bytes to name the memory of \"%s\": %s",
				       m->spec->spec->name, strerror(errno));
	return SHARD_OK;
}

/* Makes the struct alone. Takes spec over. */
static enum shard_status model_new(struct model **out, struct server *s, Shard__Model *spec,
				   const struct core_view *view, const struct meta_found *found,
				   struct err *e)
{
	struct model *m = *out = calloc(1, sizeof(*m));
	enum shard_status st;

	if (m == NULL) {
		shard__model__free_unpacked(spec, NULL);
		return err_set(e, SHARD_SYSTEM, "no memory for a model");
	}
	if (found != NULL)
		m->meta.shm = found->shm;
	m->keep = found != NULL; /* A failure must not free the memory that was found. */
	list_init(&m->link);
	landing_init(&m->attempt.landing);
	landing_init(&m->img.landing);
	m->server = s;
	m->spec = spec;
	m->id = spec->model;
	m->memory.nodes_nr = nodes_planned(s);
	m->memory.incarnation = found != NULL ? found->incarnation : 0;
	m->memory.why = voided_why(s, m->id);
	m->generation = view != NULL ? view->generation : spec->generation;
	if ((m->make = calloc(1, sizeof(*m->make))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a model");
	m->make->m = m;
	m->make->found = found;
	st = watch_made(m, e);
	return st == SHARD_OK && found == NULL ? name_memory(m, e) : st;
}

static void begun(struct model *m)
{
	CHECK(m->core != NULL && !m->make->working);
	m->keep = false;
	m->make->found = NULL;
	definition_made(m, &m->make->definition);
	list_remove(&m->link);
	list_push(&m->server->models, &m->link);
	mr_made(m);
}

enum shard_status model_make(struct model **out, struct server *s, Shard__Model *spec,
			     const struct core_view *view, const struct meta_found *found,
			     struct err *e)
{
	struct model *m;
	enum shard_status st = model_new(&m, s, spec, view, found, e);

	*out = NULL;
	if (st == SHARD_OK && (st = make_begin(m->make, view, e)) == SHARD_OK &&
	    (st = find_room(m->make, false, e)) == SHARD_OK) {
		make_memory(m->make);
		st = make_end(m->make, view, e);
	}
	if (st != SHARD_OK) {
		model_free(&m);
		return st;
	}
	begun(m);
	*out = m;
	return SHARD_OK;
}

/* --- in a thread --- */

static void make_run(struct job *j)
{
	make_memory(list_of(j, struct make, job));
}

static void make_done(struct job *j)
{
	struct make *k = list_of(j, struct make, job);
	struct model *m = k->m;
	enum shard_status st;
	struct err e;

	CHECK(k->working && m->core == NULL);
	k->working = false;
	if (m->dropping || m->server->stop.on) { /* The drop or the stop waits for this. */
		take_memory(k);
		server_wake(m->server, 1);
		return;
	}
	if (k->e.status != SHARD_OK)
		err_set(&k->e, k->e.status, "\"%s\" cannot be made on node %s: %.300s", m->name,
			members_name(m->server, m->server->self), (e = k->e).text);
	st = make_end(k, k->view, &e);
	k->view = NULL;
	if (st == SHARD_OK)
		begun(m);
	k->made(m, st != SHARD_OK ? &e : NULL);
}

static void make_start(struct make *k)
{
	CHECK(!k->working && k->m->need.total > 0);
	k->room_by_ns = 0;
	k->working = true;
	job_begin(&k->job, k->m->server, JOB_MEMORY, make_run, make_done);
}

static void wait_for_room(struct make *k, const struct err *e)
{
	struct server *s = k->m->server;

	k->room_by_ns = clock_ns() + s->conf->heartbeat_timeout_ns;
	log_line(s->log, LOG_LEVEL_INFO, "event=model_waits model=%s why=%s", k->m->name, e->text);
	server_wake(s, k->room_by_ns);
}

static enum shard_status make_later(struct model **out, struct server *s, Shard__Model *spec,
				    struct layout **layout, const struct core_view *view,
				    model_made_fn *made, struct err *e)
{
	struct model *m;
	enum shard_status st = model_new(&m, s, spec, view, NULL, e);

	CHECK(made != NULL);
	*out = NULL;
	if (m != NULL && layout != NULL) {
		m->layout = *layout;
		*layout = NULL;
	}
	if (st == SHARD_OK) {
		m->make->view = view;
		st = make_begin(m->make, view, e);
	}
	if (st == SHARD_OK)
		st = find_room(m->make, true, e);
	if (st != SHARD_OK && st != SHARD_AGAIN) {
		model_free(&m);
		return st;
	}
	list_push(&s->makings, &m->link);
	m->make->made = made;
	if (st == SHARD_OK)
		make_start(m->make);
	else
		wait_for_room(m->make, e);
	*out = m;
	return SHARD_OK;
}

enum shard_status model_make_later(struct model **out, struct server *s, Shard__Model *spec,
				   struct layout **layout, model_made_fn *made, struct err *e)
{
	return make_later(out, s, spec, layout, NULL, made, e);
}

enum shard_status model_make_again(struct model **out, struct server *s, Shard__Model *spec,
				   const struct core_view *view, model_made_fn *made, struct err *e)
{
	CHECK(view != NULL);
	return make_later(out, s, spec, NULL, view, made, e);
}

void model_make_beat(struct server *s, uint64_t now_ns)
{
	list_each(it, &s->makings) {
		struct make *k = list_of(it, struct model, link)->make;
		enum shard_status st;
		struct err e;

		if (k->room_by_ns == 0 || atomic_load(&k->given_up))
			continue;
		st = find_room(k, now_ns < k->room_by_ns, &e);
		if (st == SHARD_OK) {
			make_start(k);
		} else if (st != SHARD_AGAIN) {
			k->room_by_ns = 0;
			k->made(k->m, &e); /* This takes it off the list, and no other model. */
		}
	}
}

bool model_working(const struct model *m)
{
	return (m->make != NULL && m->make->working) || rooms_making(m) || device_memory_busy(m);
}

void model_give_up(struct model *m)
{
	atomic_store(&m->make->given_up, true);
}

void model_leaves(struct model *m)
{
	budget_leave(&m->server->budget, &m->need);
}

/* --- the end --- */

static void free_memory(struct make *k)
{
	disk_close(&k->disk);
	device_memory_free(&k->on_gpus);
	if (devices_close(&k->devices))
		store_free(&k->memory);
	if (k->region.base != NULL)
		shm_unmap(&k->region);
	definition_remove(&k->definition);
}

/* Nothing uses the model any more: takes it off all lists and moves its memory to m->make. No later
 * start takes that over, unless m->keep. */
static void leave(struct model *m)
{
	CHECK(m->attempt.busy == 0 && m->memory.tier_jobs == 0 && !model_working(m));
	if (m->tier != NULL)
		tier_stop(m->tier); /* What is unpinned here must not begin anything. */
	landing_end(&m->attempt.landing);
	landing_end(&m->img.landing);
	persist_free(m);
	WATCH_TELL(m->server, going, m);
	blobs_free(m);
	list_remove(&m->link);
	data_free_queues(m);
	grad_free(m);
	catchup_free(m);
	tier_close(&m->tier);
	images_free(m);
	rooms_free(m);
	contrib_free(m);
	mr_free(m);
	if (m->server->warm != NULL && !m->keep)
		warm_forget(m->server->warm, m->id);
	if (m->make == NULL)
		return;
	definition_leaves(m, &m->make->definition);
	m->make->disk.keep = m->keep;
	m->make->on_gpus = m->on_gpus;
	spare_leave(m);
	m->make->memory = m->store;
	m->make->region = m->meta.shm;
	m->store = NULL;
	m->meta.shm.base = NULL;
}

static void free_rest(struct model *m)
{
	CHECK(m->store == NULL);
	meta_free(&m->meta);
	if (m->make != NULL && m->make->memory != NULL)
		pinned_keep(m, &m->make->memory, m->make->devices.hangs);
	else
		budget_release(&m->server->budget, &m->need);
	layout_free(&m->layout);
	if (m->core == NULL && m->memory.why != NULL) /* It is to be made again. */
		voided_add(m->server, m->id, m->memory.why, UINT64_MAX);
	free(m->img.parts);
	free(m->img.coming);
	free(m->img.staged_later);
	writer_deinit(m);
	tables_free(m);
	free(m->core_memory);
	free(m->node_names);
	free(m->name);
	free(m->settings_text);
	free(m->memory.why);
	shard__model__free_unpacked(m->spec, NULL);
	if (m->make != NULL) {
		definition_end(m->server, &m->make->definition);
		server_later_less(m->server, m->make->events);
		free(m->make->core);
	}
	free(m->make);
	free(m);
}

void model_free(struct model **mp)
{
	struct model *m = *mp;

	if (m == NULL)
		return;
	*mp = NULL;
	leave(m);
	if (m->make != NULL)
		free_memory(m->make);
	free_rest(m);
}

static void free_run(struct job *j)
{
	free_memory(list_of(j, struct make, job));
}

static void free_done(struct job *j)
{
	struct make *k = list_of(j, struct make, job);
	void (*freed)(void *arg) = k->freed;
	void *arg = k->freed_arg;
	struct server *s = k->m->server;

	k->working = false;
	free_rest(k->m);
	server_wake(s, 0); /* Models may wait for room. */
	freed(arg);
}

void model_free_later(struct model **mp, void (*freed)(void *arg), void *arg)
{
	struct model *m = *mp;

	CHECK(m->make != NULL && freed != NULL);
	*mp = NULL;
	leave(m);
	m->make->freed = freed;
	m->make->freed_arg = arg;
	m->make->working = true;
	job_begin(&m->make->job, m->server, JOB_MEMORY, free_run, free_done);
}
