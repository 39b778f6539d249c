/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: what a warm start finds on the tmpfs, which any process of the same user may
 * have written. That is the page of models, and of each model its definition, its core with the
 * last record, gradients, tiles, what was being overwritten, and blobs. First a model is made and
 * kept by the daemon's own code, in each state in which a process can die, on a coordinator and on
 * another node. Then each input changes bytes of one of these, a start loads what is left of it,
 * and its loop runs until nothing is in hand. The checksums over the definition and the core are
 * made right again, so that the fuzzer gets behind them. An input is a byte that chooses the state
 * and can leave out checksums, and changes: area, offset (2 bytes), length, bytes. SHOW=1 logs. */
// clang-format off
// covers: daemon/warm/meta.c daemon/core/warm.c daemon/model/resume.c daemon/store/tile.c
// needs: daemon/core/*.c daemon/optim/*.c daemon/config/*.c daemon/node/*.c daemon/store/*.c
// needs: daemon/cluster/*.c daemon/warm/*.c daemon/link/*.c daemon/data/*.c daemon/model/*.c
// needs: daemon/gpu/*.c
// clang-format on
#include "base/check.h"
#include "core/moves.h"
#include "core/inner.h"
#include "core/warm.h"
#include "data/apply.h"
#include "data/blobs.h"
#include "link/events.h"
#include "link/nodes.h"
#include "link/peer.h"
#include "data/events.h"
#include "model/corewire.h"
#include "model/model.h"
#include "model/resume.h"
#include "model/view_file.h"
#include "model/watch.h"
#include "node/state.h"
#include "warm/warm.h"
#include "wire/xxh.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerInitialize(int *argc, char ***argv);

enum { MODEL = 7, START = 9, FILES = 1 + WARM_REGIONS, FILE_BYTES_MAX = 1 << 20, LIMITS = 16 };
static const char *const names[FILES] = {"node",          "00000007-meta",  "00000007-state",
					 "00000007-sums", "00000007-slots", "00000007-images"};

enum phase { UNSEALED, SEALED, PREPARED, DECIDED, BEGUN, PHASES };

/* The beginning of the head of warm/meta.c. LLVMFuzzerInitialize() fails if it differs. */
struct head {
	uint64_t magic;
	uint32_t model, undo_nr;
	uint64_t at[11], spec_bytes, spec_sum, core_bytes, incarnation;
	uint8_t from[16];
	uint32_t first_nodes, reserved, core_now, mark_now;
};
enum { AT_SPEC, AT_CORE, AT_TABLES, AT_FACTS_ID, AT_FACTS, AT_ZERO };
enum { AT_VERSIONS = AT_ZERO + 1, AT_UNDO, AT_FIRST, AT_BLOBS, AT_END };

struct node {
	struct config conf;
	struct log log;
	struct server server;
	struct static_warm folder;
	char dir[600];           /* On the tmpfs. */
	const struct left *file; /* Its model file is in the state folder. */
};

/* What a process has left. */
struct left {
	struct node *node;
	enum phase phase;
	char *at[FILES];
	size_t bytes[FILES]; /* Of .at: the beginning of the file. */
	size_t whole[FILES];
	void *file; /* Of the state folder. NULL: there is none. */
	size_t file_bytes;
};

static char root[] = "/dev/shm/shard-fuzz.XXXXXX";
static uv_loop_t loop;
static struct node nodes[2];
static struct left lefts[2 * PHASES * 2];
static uint32_t lefts_nr;

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *at)
{
	(void)s;
	(void)type;
	(void)at;
	return remove(path);
}

static void remove_root(void)
{
	(void)nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* --- a daemon with only what a warm start needs --- */

static void nothing(struct server *s, uint64_t now)
{
	(void)s;
	(void)now;
}

static void node_init(struct node *n, uint16_t self)
{
	static const struct model_watch *const watches[] = {NULL};
	static const struct link_events links;
	struct worker_conf workers = {.threads = 1, .jobs_max = 1, .turn = apply_turn};
	struct server *s = &n->server;
	char text[1024];
	struct err e;
	int nr = snprintf(
		text, sizeof(text),
		"[daemon]\nnode = %c\nstate = %s/state-%c\nwarm_dir = %s\nmemory = 256MiB\n"
		"warm_restart = tmpfs\nworkers = 1\nallow_unauthenticated = yes\n"
		"[net]\ntransport = tcp\n"
		"[nodes]\n%s = 127.0.0.1:1\n%s",
		"ab"[self], root, "ab"[self], root, "a", self ? "b = 127.0.0.1:2\n" : "");

	if (config_load_text(&n->conf, "fuzz", text, (size_t)nr, &e) != SHARD_OK) {
		fprintf(stderr, "%s\n", e.text);
		abort();
	}
	log_init(&n->log, getenv("SHOW") ? 2 : -1, LOG_LEVEL_INFO, "fuzz");
	*s = (struct server){.conf = &n->conf,
			     .log = &n->log,
			     .loop = &loop,
			     .isa = isa_best(),
			     .self = self,
			     .budget = {.total = n->conf.memory},
			     .started_ns = clock_ns(),
			     .clock.core_due = UINT64_MAX,
			     .clock.beat_ns = NS_PER_SEC,
			     .on_beat = nothing,
			     .events = &links,
			     .data = &model_data_events,
			     .watches = watches,
			     .start = START,
			     .term = START};
	s->clock.ran_ns = s->clock.core_seen_ns = clock_ns();
	list_init(&s->conns.openings);
	list_init(&s->conns.sessions);
	list_init(&s->conns.guests);
	list_init(&s->models);
	list_init(&s->makings);
	list_init(&s->calls.open);
	list_init(&s->defines);
	list_init(&s->held);
	list_init(&s->drops);
	list_init(&s->ckpts);
	list_init(&s->mr);
	list_init(&s->anew.voided);
	job_init(s);
	workers.turn_arg = s;
	CHECK(uv_timer_init(&loop, &s->clock.core_timer) == 0 &&
	      uv_timer_init(&loop, &s->clock.beat) == 0);
	s->clock.core_timer.data = s->clock.beat.data = s;
	CHECK(nodes_init(s, &e) == SHARD_OK && server_scratch(s, 1u << 20, &e) == SHARD_OK &&
	      worker_init(&s->pool, &workers, &loop, &e) == SHARD_OK &&
	      (self == 0 || peer_init(s, 0, &e) == SHARD_OK) &&
	      static_open(&s->dir, n->conf.state, &e) == SHARD_OK);
}

static enum shard_status node_start(struct node *n, uint64_t start, uint64_t member)
{
	struct warm_conf warm = {.conf = &n->conf,
				 .log = &n->log,
				 .dir = n->server.dir,
				 .uuid = static_uuid(n->server.dir),
				 .start = start,
				 .member = member};
	struct err e;

	CHECK(server_later_room(&n->server, 64, &e) == SHARD_OK);
	return warm_open(&n->server.warm, &warm, &e);
}

static void node_stop(struct node *n)
{
	struct server *s = &n->server;

	while (!list_empty(&s->models)) {
		struct model *m = list_of(s->models.next, struct model, link);

		m->keep = true;
		model_free(&m);
	}
	resume_free(s);
	warm_close(&s->warm);
	uv_timer_stop(&s->clock.core_timer);
	uv_timer_stop(&s->clock.beat);
	s->clock.core_due = UINT64_MAX;
	s->clock.beat_due = 0;
	free(s->later.queue); /* It grows with each model. */
	s->later.queue = NULL;
	s->later.nr = s->later.cap = 0;
	CHECK(s->budget.used == 0);
}

/* Waits until no worker and no thread has work. */
static void node_run(struct node *n)
{
	while (worker_pending(n->server.pool) > 0 || n->server.persists > 0)
		uv_run(&loop, UV_RUN_ONCE);
}

/* --- what a process leaves --- */

static void write_file(const struct node *n, const char *name, const char *at, size_t bytes,
		       size_t whole, mode_t mode)
{
	char path[700];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", n->dir, name);
	(void)unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && ftruncate(fd, (off_t)whole) == 0 && fchmod(fd, mode) == 0);
	for (size_t i = 0; i < bytes; i += 4096) {
		static const char zeros[4096];
		size_t part = bytes - i < 4096 ? bytes - i : 4096;

		if (memcmp(at + i, zeros, part) != 0)
			CHECK(pwrite(fd, at + i, part, (off_t)i) == (ssize_t)part);
	}
	close(fd);
}

static void read_file(struct left *l, int i)
{
	char path[700];
	struct stat s;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", l->node->dir, names[i]);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	CHECK(fstat(fd, &s) == 0);
	/* Behind the memory that was made lies room without pages. It stays as it is. */
	l->whole[i] = (size_t)s.st_size;
	l->bytes[i] = l->whole[i] < FILE_BYTES_MAX ? l->whole[i] : FILE_BYTES_MAX;
	l->at[i] = malloc(l->bytes[i] + 1);
	CHECK(l->at[i] && read(fd, l->at[i], l->bytes[i]) == (ssize_t)l->bytes[i]);
	close(fd);
}

static Shard__Model *definition(const struct node *n, uint32_t staleness)
{
	Shard__Model model = SHARD__MODEL__INIT;
	Shard__Spec spec = SHARD__SPEC__INIT;
	Shard__Tensor tensor[2] = {SHARD__TENSOR__INIT, SHARD__TENSOR__INIT},
		      *tensors[2] = {&tensor[0], &tensor[1]};
	Shard__Group group = SHARD__GROUP__INIT, *groups[1] = {&group};
	uint64_t shape[2][2] = {{3, 1000}, {17, 1}};
	uint32_t runs[2][6] = {{0, 3}, {0, 1, 1, 1, 0, 1}};
	char settings[256];
	Shard__Model *copy;
	uint8_t *packed;
	size_t bytes;

	for (int i = 0; i < 2; i++) {
		tensor[i].name = (char *)(uintptr_t)(i ? "b" : "w");
		tensor[i].shape = shape[i];
		tensor[i].n_shape = 2;
	}
	group.name = (char *)(uintptr_t) "g";
	group.settings = (char *)(uintptr_t) "";
	snprintf(settings, sizeof(settings),
		 "optimizer=adamw chunk_elems=1024 min_world=1 max_world=2 local_world=1 "
		 "max_staleness=%u",
		 staleness);
	spec.name = (char *)(uintptr_t) "m";
	spec.tensors = tensors;
	spec.n_tensors = 2;
	spec.groups = groups;
	spec.n_groups = 1;
	spec.image = spec.grad = SHARD_BF16;
	spec.settings = settings;
	model.model = MODEL;
	model.spec = &spec;
	model.chunk_elems = 1024;
	model.place_runs = runs[n->server.self];
	model.n_place_runs = n->server.self ? 6 : 2;
	model.generation = 1;
	bytes = shard__model__get_packed_size(&model);
	packed = malloc(bytes);
	CHECK(packed && shard__model__pack(&model, packed) == bytes);
	copy = shard__model__unpack(NULL, bytes, packed);
	CHECK(copy);
	free(packed);
	return copy;
}

/* Gives the other node a uuid that no folder here has. */
static void name_members(const struct model *m, struct view_members *v)
{
	uint16_t self = m->server->self;

	v->node[1 - self] = (struct view_node){.uuid = {1}, .incarnation = 1};
	v->node[self] = model_node(m, self, m->memory.incarnation);
}

/* The view that is adopted has tables of its own, which say the same as those of the definition. */
static void move_chunks(struct model *m)
{
	static uint64_t holders[16];
	struct placement p;

	CHECK(m->layout->chunks_nr <= NR(holders));
	for (uint32_t i = 0; i < m->layout->chunks_nr; i++)
		holders[i] = 1ull << m->place.primary[i];
	p = place_moving(m->place.primary, holders, m->place.primary, holders,
			 m->layout->chunks_nr);
	p.gone = ~m->core->member.members.nodes;
	member_place(m->core, &p);
	meta_tables(&m->meta, &p, m->tables.defined.sum);
}

static void zero_chunks(struct model *m)
{
	for (uint32_t i = 0; i < m->layout->chunks_nr; i++) {
		enum store_region region;

		if (!place_holds(&m->place, i, m->server->self))
			continue;
		memset(store_master(m->store, i), 0,
		       layout_chunk_elems(m->layout, i) * sizeof(float));
		CHECK(store_where(m->store, store_sum(m->store, i), &region,
				  &m->meta.fact[i].offset));
		m->meta.fact[i].region = region;
	}
}

static void decide(struct model *m, const struct record *sealed, const struct core_id *id,
		   const struct core_world *world)
{
	struct core *c = m->core;
	struct record_votes votes = {.sumsq = core_at(c, c->at_all_sumsq),
				     .finite = core_at(c, c->at_all_finite),
				     .chunks_nr = m->layout->chunks_nr,
				     .bad_tensor = -1,
				     .bad_rank = -1};

	memset(core_at(c, c->at_all_finite), 1, m->layout->chunks_nr);
	record_decide(&c->step.record, sealed, &c->conf.record, id, world, &votes);
}

/* Brings the model to where it has weights, was sealed at step 4, and is in step 5 as far as the
 * phase says. */
static void bring_to(struct model *m, enum phase phase)
{
	struct core *c = m->core;
	struct core_id seal = {.term = 3, .step = 4, .seq = 1, .generation = 1},
		       id = {.term = 3, .step = 5, .seq = 1, .generation = 1, .attempt = 1};
	struct core_world world = {.size = 1};
	struct meta_mark mark = {.step = 4, .content_step = 4, .content_old = 4, .cleared = 1};
	struct record sealed;
	uint8_t some[] = {1, 2, 3, 4};
	Shard__Ready ready = SHARD__READY__INIT;

	world.rank[0] =
		(struct core_rank){.session = 5, .weight = 1, .pid = 77, .node = m->server->self};
	record_seal(&sealed, &c->conf.record, &seal);
	c->member.promised = c->member.term = 3;
	c->member.seq = c->member.generation = 1;
	c->member.sealed = c->step.has_record = true;
	name_members(m, &c->member.members);
	c->step.record = sealed;
	mark.id = seal;
	zero_chunks(m);
	blobs_restore(m, 1, 4, some, sizeof(some));
	m->attempt.id = id;
	blobs_begin(m);
	if (phase >= PREPARED) {
		*m->meta.facts_id = id;
		ready.has_blob = true;
		ready.blob.data = some;
		ready.blob.len = 3;
		m->contrib.local_nr = 1; /* Rank 0. */
		blobs_pending(m, 0, &ready);
		m->contrib.local_nr = 0;
		c->step.world = world;
		c->step.id = id;
		c->step.part = phase == PREPARED ? CORE_PREPARED : CORE_APPLYING;
		c->step.ranks_nr = c->step.ranks_ready = core_local_ranks(&world, c->conf.self);
		memset(core_at(c, c->at_finite), 1, c->held_nr[c->conf.self]);
	}
	if (phase >= DECIDED)
		decide(m, &sealed, &id, &world);
	if (phase == BEGUN) {
		struct tile_undo *u = &m->meta.tiles.undo[0];

		mark.id = id;
		mark.step = mark.content_step = 5;
		mark.stamp = u->stamp = 1;
		u->chunk = m->server->self; /* A chunk that is here, on either node. */
		u->undo.at = 32 << 8 | 8;
	}
	if (m->set.max_staleness > 0)
		move_chunks(m);
	meta_mark(&m->meta, &mark);
	CHECK(core_warm_save(c, meta_core_next(&m->meta)));
	meta_core_switch(&m->meta);
}

/* Keeps the coordinator's file of the model. */
static void keep_file(struct left *l, struct model *m, Shard__Model *spec)
{
	struct core_view *v = calloc(1, sizeof(*v));
	Shard__ModelFile file = SHARD__MODEL_FILE__INIT;
	Shard__View view;

	CHECK(v);
	v->term = 3;
	v->seq = v->generation = 1;
	v->members = view_first(m->server->nodes_nr, 0);
	name_members(m, &v->members);
	v->place = m->place;
	v->sealed = m->core->member.sealed;
	if (v->sealed)
		v->record = m->core->step.record;
	CHECK(corewire_pack_view(v, m->tables.defined.sum, &m->server->scratch.tx, &view) ==
	      SHARD_OK);
	file.model = spec;
	file.view = &view;
	file.format = PERSIST_FORMAT;
	l->file_bytes = shard__model_file__get_packed_size(&file);
	l->file = malloc(l->file_bytes);
	CHECK(l->file && shard__model_file__pack(&file, l->file) == l->file_bytes);
	arena_reset(&m->server->scratch.tx);
	free(v);
}

static void keep_left(struct node *n, enum phase phase, uint32_t staleness)
{
	struct left *l = &lefts[lefts_nr++];
	struct server *s = &n->server;
	const struct head *h;
	struct model *m;
	struct err e;

	*l = (struct left){.node = n, .phase = phase};
	CHECK(node_start(n, 1, 0) == SHARD_OK && s->warm != NULL);
	snprintf(n->dir, sizeof(n->dir), "%s", warm_place(s->warm));
	if (model_make(&m, s, definition(n, staleness), NULL, NULL, &e) != SHARD_OK) {
		fprintf(stderr, "%s\n", e.text);
		abort();
	}
	if (phase != UNSEALED)
		bring_to(m, phase);
	if (s->self == 0)
		keep_file(l, m, m->spec);
	node_stop(n);
	for (int i = 0; i < FILES; i++)
		read_file(l, i);
	h = (const struct head *)(const void *)l->at[1];
	CHECK(h != NULL && h->model == MODEL &&
	      h->spec_sum == xxh_sum(l->at[1] + h->at[AT_SPEC], h->spec_bytes, h->magic));
	CHECK(static_warm(s->dir, &n->folder, &e) == SHARD_OK);
	for (int i = 0; i < FILES; i++) {
		char path[700];

		snprintf(path, sizeof(path), "%s/%s", n->dir, names[i]);
		(void)unlink(path);
	}
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	CHECK(mkdtemp(root) != NULL && uv_loop_init(&loop) == 0);
	atexit(remove_root);
	for (uint16_t i = 0; i < 2; i++) {
		node_init(&nodes[i], i);
		for (uint32_t staleness = 0; staleness < 2; staleness++)
			for (enum phase p = UNSEALED; p < PHASES; p++)
				keep_left(&nodes[i], p, staleness);
	}
	return 0;
}

/* --- an input --- */

enum area {
	AREA_PAGE,
	AREA_HEAD,
	AREA_SPEC,
	AREA_CORE,
	AREA_FACTS,
	AREA_ZERO,
	AREA_VERSIONS,
	AREA_UNDO,
	AREA_BLOBS,
	AREA_STATE,
	AREA_SPEC_BYTES, /* As many as `offset` says. */
	/* offset: which file. With a byte: its mode. Without one: see change_file(). */
	AREA_FILE,
	AREA_FOLDER, /* Of the state folder. offset: which file and how, see change_folder(). */
	AREAS
};

struct found {
	const struct left *l;
	char *at[FILES];
	size_t bytes[FILES];
	mode_t mode[FILES];
	bool unknown;           /* The state folder has no file of it. */
	Shard__ModelFile *file; /* The one that it has, or NULL if it is as it was. */
	bool garbage;           /* That file is one byte. */
	char source[STATIC_SOURCE_BYTES];
};

static size_t core_offset(const struct left *l)
{
	const struct head *h = (const struct head *)(const void *)l->at[1];

	return h->at[AT_CORE] + h->core_now * ((h->core_bytes + 63) / 64 * 64);
}

static void change_file(struct found *f, uint32_t offset, const uint8_t *bytes, size_t nr)
{
	uint32_t i = offset % FILES;

	if (f->at[i] == NULL)
		return;
	if (nr > 0)
		f->mode[i] = *bytes & 1 ? 0666 : 0600;
	else if (offset / FILES % 4 == 0)
		f->mode[i] = 0; /* The file does not exist. */
	else if (offset / FILES % 4 == 1)
		f->bytes[i] -= f->bytes[i] < 4096 ? f->bytes[i] : 4096;
	else if (offset / FILES % 4 == 2)
		f->unknown = true;
	else
		f->bytes[i] = f->bytes[i] / 2 + 1;
}

/* What a release wrote that had other formats, other nodes or another membership source. Other
 * damage of these files shows in their checksums. */
static void change_folder(struct found *f, size_t offset, const uint8_t *bytes, size_t nr)
{
	if (offset % 4 == 0) {
		memset(f->source, 0, sizeof(f->source));
		memcpy(f->source, bytes, nr < sizeof(f->source) - 1 ? nr : sizeof(f->source) - 1);
		return;
	}
	if (f->l->file == NULL)
		return;
	if (f->file == NULL)
		f->file = shard__model_file__unpack(NULL, f->l->file_bytes, f->l->file);
	CHECK(f->file != NULL);
	if (offset % 4 == 1)
		f->file->format = (uint32_t)(offset / 4);
	else if (offset % 4 == 2)
		f->file->nodes = (uint32_t)(offset / 4);
	else
		f->garbage = true;
}

static void change(struct found *f, enum area area, size_t offset, const uint8_t *bytes, size_t nr)
{
	const struct head *h = (const struct head *)(const void *)f->l->at[1];
	int i = area == AREA_PAGE ? 0 : area == AREA_STATE ? 2 : 1;

	switch (area) {
	case AREA_FILE:
		change_file(f, (uint32_t)offset, bytes, nr);
		return;
	case AREA_FOLDER:
		change_folder(f, offset, bytes, nr);
		return;
	case AREA_SPEC_BYTES:
		((struct head *)(void *)f->at[1])->spec_bytes = offset;
		return;
	case AREA_SPEC:
		offset += h->at[AT_SPEC];
		break;
	case AREA_CORE:
		offset += core_offset(f->l);
		break;
	case AREA_FACTS:
		offset += h->at[AT_FACTS_ID];
		break;
	case AREA_ZERO:
		offset += h->at[AT_ZERO];
		break;
	case AREA_VERSIONS:
		offset += h->at[AT_VERSIONS];
		break;
	case AREA_UNDO:
		offset += h->at[AT_UNDO];
		break;
	case AREA_BLOBS:
		offset += h->at[AT_BLOBS];
		break;
	case AREA_PAGE:
	case AREA_HEAD:
	case AREA_STATE:
	case AREAS:
		break;
	}
	if (offset < f->l->bytes[i])
		memcpy(f->at[i] + offset, bytes,
		       nr < f->l->bytes[i] - offset ? nr : f->l->bytes[i] - offset);
}

/* Makes the checksums right again, of what is where the original head says. */
static void sign(struct found *f, bool spec, bool core)
{
	struct head *h = (struct head *)(void *)f->at[1];
	const struct left *l = f->l;
	const struct head *was = (const struct head *)(const void *)l->at[1];
	char *c = f->at[1] + core_offset(l);
	uint64_t bytes = h->spec_bytes;

	if (spec && bytes <= l->bytes[1] - was->at[AT_SPEC])
		h->spec_sum = xxh_sum(f->at[1] + was->at[AT_SPEC], bytes, h->magic);
	if (core)
		(void)warm_sign(c, was->core_bytes);
}

/* The region as a start without memory makes it, of what a superblock has. Its bytes are those of
 * the region, where the original head says. False: that start finds nothing. */
static bool unpack(struct found *f)
{
	const struct head *was = (const struct head *)(const void *)f->l->at[1];
	size_t first = was->at[AT_VERSIONS], rest = was->at[AT_END] - was->at[AT_FIRST];
	char *packed = malloc(first + rest);
	struct shm region = {.bytes = 0};
	struct meta_mark mark;
	struct err e;
	bool ok;

	CHECK(packed && was->at[AT_END] <= f->l->bytes[1]);
	memcpy(packed, f->at[1], first);
	memcpy(packed + first, f->at[1] + was->at[AT_FIRST], rest);
	region.bytes = meta_packed_region(packed, first + rest);
	if (region.bytes > 0 && region.bytes <= FILE_BYTES_MAX)
		region.base = calloc(1, region.bytes);
	ok = region.base != NULL && meta_unpack(&region, packed, first + rest, &e) == SHARD_OK;
	ok = ok && meta_packed_mark(packed, first + rest, &mark);
	free(packed);
	if (!ok)
		free(region.base);
	if (!ok)
		return false;
	free(f->at[1]);
	f->at[1] = region.base;
	f->bytes[1] = region.bytes;
	return true;
}

static void keep_model_file(const struct found *f)
{
	struct node *n = f->l->node;
	struct static_dir *d = n->server.dir;
	const struct left *l = f->l;
	void *bytes = l->file;
	size_t nr = l->file_bytes;
	struct err e;

	n->file = NULL;
	CHECK(static_drop(d, MODEL, &e) == SHARD_OK);
	if (l->file == NULL || f->unknown)
		return;
	if (f->file != NULL) {
		nr = f->garbage ? 1 : shard__model_file__get_packed_size(f->file);
		bytes = malloc(nr);
		CHECK(bytes);
		if (f->garbage)
			memset(bytes, 0xff, nr);
		else
			shard__model_file__pack(f->file, bytes);
	} else {
		n->file = l;
	}
	CHECK(static_save(d, MODEL, bytes, nr, &e) == SHARD_OK);
	if (bytes != l->file)
		free(bytes);
}

static void lay_down(const struct found *f)
{
	struct node *n = f->l->node;
	struct server *s = &n->server;
	struct static_warm now;
	struct err e;

	if (static_warm(s->dir, &now, &e) != SHARD_OK || memcmp(&now, &n->folder, sizeof(now)) != 0)
		CHECK(static_set_warm(s->dir, &n->folder, &e) == SHARD_OK);
	CHECK(static_set_member(s->dir, 1, &e) == SHARD_OK);
	CHECK(static_set_source(s->dir, f->source, &e) == SHARD_OK);
	if (n->file != f->l || f->unknown || f->file != NULL)
		keep_model_file(f);
	(void)mkdir(n->dir, 0700);
	for (int i = 0; i < FILES; i++)
		if (f->at[i] != NULL && f->mode[i] != 0)
			write_file(n, names[i], f->at[i], f->bytes[i],
				   f->bytes[i] == f->l->bytes[i] ? f->l->whole[i] : f->bytes[i],
				   f->mode[i]);
}

/* The coordinator comes back to a node that does not coordinate. A memory belongs to the folder of
 * one coordinator, and stays with it. */
static void coordinator_back(struct server *s)
{
	struct peer *p = s->peer[0];

	if (p == NULL)
		return;
	p->uuid[0] = 1; /* As in name_members(). */
	CHECK(resume_unconfirmed(s).total == 0 || !list_empty(&s->models));
	list_each(it, &s->models) {
		struct model *m = list_of(it, struct model, link);
		struct err e;

		if (resume_check(m, p, &e) != SHARD_OK)
			continue;
		resume_from(m, p);
		CHECK(resume_check(m, p, &e) == SHARD_OK);
		p->uuid[0] = 2;
		CHECK(resume_check(m, p, &e) == SHARD_EXISTS);
		p->uuid[0] = 1;
	}
}

/* Does what a start and then its loop do. whole: nothing of it was changed, so it has to be taken
 * up. */
static void start(struct node *n, const struct left *whole)
{
	struct server *s = &n->server;
	struct err e = {.text = ""};

	s->incarnation = START;
	if (node_start(n, START, 1) == SHARD_OK && resume_load(s, &e) == SHARD_OK) {
		resume_begin(s);
		node_run(n);
		list_each(it, &s->models) {
			struct model *m = list_of(it, struct model, link);
			struct part_blob blobs[4];
			uint32_t nr = blobs_committed(m, blobs, 4);

			CHECK(nr <= 2);
			for (uint32_t i = 0; i < nr; i++)
				CHECK(blobs[i].bytes <= PART_BLOB_BYTES);
			CHECK(!whole || m->core->step.has_record == (whole->phase >= SEALED));
			CHECK(!meta_persistent(&m->meta) ||
			      (meta_void(&m->meta), meta_voided(&m->meta)));
		}
		CHECK(whole == NULL || !list_empty(&s->models));
		coordinator_back(s);
		n->file = NULL; /* It may have a newer view now. */
	} else if (s->warm != NULL) {
		CHECK(strlen(e.text) > 0);
	}
	node_run(n);
	node_stop(n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct found f = {.l = &lefts[(bytes ? data[0] & 63 : 0) % lefts_nr], .source = "static"};
	size_t at = 1;

	if (bytes == 0)
		return 0;
	for (int i = 0; i < FILES; i++) {
		f.bytes[i] = f.l->bytes[i];
		f.mode[i] = 0600;
		if (f.l->at[i] == NULL)
			continue;
		f.at[i] = malloc(f.bytes[i] + 1);
		CHECK(f.at[i]);
		memcpy(f.at[i], f.l->at[i], f.bytes[i]);
	}
	for (int i = 0; i < LIMITS && at + 4 <= bytes; i++) {
		size_t offset = data[at + 1] | (size_t)data[at + 2] << 8, nr = data[at + 3];

		nr = nr < bytes - at - 4 ? nr : bytes - at - 4;
		change(&f, (enum area)(data[at] % AREAS), offset, data + at + 4, nr);
		at += 4 + nr;
	}
	sign(&f, !(data[0] & 64), !(data[0] & 128));
	if (data[0] % 64 / lefts_nr != 2 || unpack(&f)) {
		lay_down(&f);
		start(f.l->node, bytes == 1 && data[0] % 64 < lefts_nr ? f.l : NULL);
	}
	for (int i = 0; i < FILES; i++)
		free(f.at[i]);
	shard__model_file__free_unpacked(f.file, NULL); /* NULL: nothing. */
	return 0;
}
