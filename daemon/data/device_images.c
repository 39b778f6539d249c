// SPDX-License-Identifier: Apache-2.0
/* The image on GPUs, for trainers that read it there. model/join.c brings their requests, and
 * apply.c says what becomes of the image. Happy path: the first request for a GPU has a thread map
 * memory of it, whose handle a trainer can map as well. All chunks are copied there, and then the
 * request is answered, as later ones are when no copy is on its way. From then on each chunk that
 * is published goes there, too: the update of a chunk on the same GPU makes its image in this
 * memory, and of any other chunk a copy is queued. A trainer goes by versions that lie beside this
 * memory, and move when the bytes are there. While a copy is queued or under way it counts as a
 * part of the image that leaves (m->img.sends), so that nobody overwrites what it reads. It fails
 * where the GPU has no chunk of the model, or no room. Where a copy fails the GPU is lost, and the
 * trainers that had the image are put out: they join again, and read the image of this node. */
#include "data/device_images.h"

#include "base/check.h"
#include "data/model.h"
#include "data/trainer.h"
#include "link/caller.h"
#include "link/session.h"
#include "node/job.h"
#include "store/tier_gpu.h"
#include "wire/ops.h"

#include <stdlib.h>
#include <string.h>

enum {
	COPIES_MAX = 4, /* Of one image, under way. node/gpus.c counts on it. */
	ASKERS_MAX = 64,
};
#define NO_VERSION UINT64_MAX

enum flag {                /* Of a chunk. */
	    QUEUED = 1,    /* In the ring. */
	    UNDER_WAY = 2, /* A copy reads it. */
	    AGAIN = 4,     /* It was published meanwhile, and is copied once more. */
	    WRITTEN = 8,   /* The update that is published next has made its image there. */
	    ON_ITS_WAY = QUEUED | UNDER_WAY | AGAIN,
};

struct device_image {
	struct model *m;
	struct gpu *gpu;
	enum { MAKING, FILLING, WHOLE, LOST } at;
	/* Those that are to be answered when all of it is there. */
	struct caller asker[ASKERS_MAX];
	uint32_t askers_nr;
	uint64_t *version; /* [chunks_nr] Which a chunk gets when it is there. NO_VERSION: none. */
	uint8_t *flags;    /* [chunks_nr] */
	uint32_t *ring;    /* [chunks_nr] Chunks that are to be copied. */
	uint32_t first, nr, under_way;
	/* While it is being made, the thread's alone. */
	struct job job;
	struct err e;
	uint64_t bytes;
	struct gpu_mem mem;
	struct shm versions; /* What trainers see. */
};

struct device_images {
	uint32_t nr;
	struct device_image *image[GPU_DEVICES_MAX];
	const struct device_images_up *up;
	bool stopped; /* The daemon ends: nobody hears of anything. */
};

/* --- memory --- */

static void image_free(struct device_image *i)
{
	gpu_unmap(&i->mem);
	shm_unmap(&i->versions);
	free(i->version);
	free(i->flags);
	free(i->ring);
	free(i);
}

static struct device_image *image_new(struct model *m, struct gpu *g)
{
	struct device_image *i = calloc(1, sizeof(*i));
	uint32_t chunks = m->layout->chunks_nr;

	if (i == NULL)
		return NULL;
	*i = (struct device_image){.m = m,
				   .gpu = g,
				   .at = MAKING,
				   .version = calloc(chunks, sizeof(*i->version)),
				   .flags = calloc(chunks, sizeof(*i->flags)),
				   .ring = calloc(chunks, sizeof(*i->ring)),
				   .bytes = m->layout->image_bytes,
				   .mem = {.fd = -1},
				   .versions = {.fd = -1}};
	if (i->version != NULL && i->flags != NULL && i->ring != NULL)
		return i;
	image_free(i);
	return NULL;
}

void device_images_free(struct device_images **dp)
{
	struct device_images *d = *dp;

	*dp = NULL;
	if (d == NULL)
		return;
	for (uint32_t k = 0; k < d->nr; k++) {
		CHECK(d->image[k]->under_way == 0);
		image_free(d->image[k]);
	}
	free(d);
}

bool device_images_making(const struct model *m)
{
	const struct device_images *d = m->on_gpus.images;

	for (uint32_t k = 0; d != NULL && k < d->nr; k++)
		if (d->image[k]->at == MAKING)
			return true;
	return false;
}

/* --- versions --- */

static bool has_memory(const struct device_image *i)
{
	return i->at == FILLING || i->at == WHOLE;
}

static void show(const struct device_image *i, uint32_t chunk, uint64_t version)
{
	_Atomic uint64_t *words = i->versions.base;

	atomic_store_explicit(&words[chunk], version, memory_order_release);
}

static void show_none(struct device_image *i)
{
	for (uint32_t c = 0; c < i->m->layout->chunks_nr; c++) {
		i->version[c] = NO_VERSION;
		show(i, c, NO_VERSION);
	}
}

/* --- answers --- */

struct session *device_images_answer(struct model *m, const struct caller *who,
				     const uint32_t *slot, const Shard__DeviceMemory *body,
				     const int *fds, int fds_nr)
{
	struct session *t = caller_here(m->server, who);
	struct wire_head h = {.op = OP_DEVICE,
			      .flags = WIRE_REPLY,
			      .attempt = who->tag,
			      .model = m->id,
			      .generation = m->generation,
			      .step = m->step};
	struct err e;

	if (t == NULL)
		return NULL;
	if (t->trainer->model != m || (slot != NULL && t->trainer->slot != *slot)) {
		err_set(&e, SHARD_BAD_STATE, "the trainer has left \"%s\" meanwhile", m->name);
		session_refuse(t, who->tag, &e);
		return NULL;
	}
	if (stream_send_fds(conn_stream(t->conn), &h, &body->base, fds, fds_nr) != SHARD_OK) {
		session_close(t, SHARD_SYSTEM, "cannot pass it memory on its GPU");
		return NULL;
	}
	conn_kick(t->conn);
	return t;
}

static void answer(struct device_image *i, const struct caller *who)
{
	Shard__DeviceMemory body = SHARD__DEVICE_MEMORY__INIT;
	const int fds[] = {i->mem.fd, i->versions.fd};
	struct session *t;

	body.image_bytes = i->mem.bytes;
	body.versions_bytes = i->versions.bytes;
	t = device_images_answer(i->m, who, NULL, &body, fds, NR(fds));
	if (t != NULL)
		t->trainer->device_image = i;
}

static void refuse_all(struct device_image *i, const struct err *e)
{
	for (uint32_t k = 0; k < i->askers_nr; k++)
		caller_refuse(i->m->server, &i->asker[k], e);
	i->askers_nr = 0;
}

/* --- copies --- */

static void copied(void *owner, uint64_t tag, enum shard_status st, uint64_t kept);

/* Begins as many copies as may be under way. */
static void go(struct device_image *i)
{
	struct model *m = i->m;
	const struct layout *l = m->layout;

	while (i->nr > 0 && i->under_way < COPIES_MAX && !m->on_gpus.images->stopped) {
		uint32_t c = i->ring[i->first];
		struct gpu_job job = {.done = copied,
				      .owner = i,
				      .tag = c,
				      .what = GPU_TO_DEVICE,
				      .copies_nr = 1};

		job.copy[0] =
			(struct gpu_copy){store_image(m->store, 0, c),
					  i->mem.at + layout_image_at(l, layout_chunk_start(l, c)),
					  layout_image_bytes(l, c, 1)};
		i->first = (i->first + 1) % l->chunks_nr;
		i->nr--;
		CHECK(i->flags[c] == QUEUED);
		i->flags[c] = UNDER_WAY;
		i->under_way++;
		m->on_gpus.images->up->hold(m);
		CHECK(gpu_submit(i->gpu, &job) == SHARD_OK); /* It takes what all models may. */
	}
}

static void push(struct device_image *i, uint32_t chunk)
{
	uint32_t chunks = i->m->layout->chunks_nr;

	CHECK(i->nr < chunks && i->flags[chunk] == 0);
	i->flags[chunk] = QUEUED;
	i->ring[(i->first + i->nr++) % chunks] = chunk;
}

/* The chunk is to be copied as it is now. Two copies of one chunk at a time could end in any
 * order. */
static void queue(struct device_image *i, uint32_t chunk)
{
	if ((i->flags[chunk] & (QUEUED | AGAIN)) || i->m->on_gpus.images->stopped)
		return;
	i->m->on_gpus.images->up->leaves(i->m);
	if (i->flags[chunk] & UNDER_WAY)
		i->flags[chunk] |= AGAIN;
	else
		push(i, chunk);
}

/* Nothing waits any more. Returns how many copies that were counted are not made. */
static uint32_t drop_queue(struct device_image *i)
{
	uint32_t dropped = i->nr;

	for (; i->nr > 0; i->nr--) {
		i->flags[i->ring[i->first]] = 0;
		i->first = (i->first + 1) % i->m->layout->chunks_nr;
	}
	for (uint32_t c = 0; c < i->m->layout->chunks_nr; c++) {
		dropped += (i->flags[c] & AGAIN) != 0;
		i->flags[c] &= (uint8_t)~AGAIN;
	}
	return dropped;
}

static void left(struct model *m, uint32_t copies)
{
	for (; copies > 0 && !m->on_gpus.images->stopped; copies--)
		m->on_gpus.images->up->left(m);
}

/* The GPU has failed. */
static uint32_t lose(struct device_image *i)
{
	struct model *m = i->m;
	const char *why = "it does not answer";
	uint32_t dropped = 0;
	struct err e;

	if (i->at == LOST)
		return 0;
	i->at = LOST;
	show_none(i);
	dropped = drop_queue(i);
	(void)gpu_lost(i->gpu, &why);
	err_set(&e, SHARD_UNSUPPORTED, "the image of \"%s\" on a GPU is lost: %s", m->name, why);
	refuse_all(i, &e);
	list_each(it, &m->server->conns.sessions) {
		struct session *t = list_of(it, struct session, link);

		if (t->trainer->device_image == i)
			session_close(t, SHARD_CLOSED, e.text);
	}
	return dropped;
}

static bool all_there(const struct device_image *i)
{
	return has_memory(i) && i->nr == 0 && i->under_way == 0;
}

/* Who asks while chunks are on their way here is answered when they have come, because it reads all
 * of the image before it waits for versions. */
static void maybe_whole(struct device_image *i)
{
	if (!all_there(i) || i->m->on_gpus.images->stopped)
		return;
	i->at = WHOLE;
	for (uint32_t k = 0; k < i->askers_nr; k++)
		answer(i, &i->asker[k]);
	i->askers_nr = 0;
}

static void copied(void *owner, uint64_t tag, enum shard_status st, uint64_t kept)
{
	struct device_image *i = owner;
	struct model *m = i->m;
	bool again = i->flags[tag] & AGAIN;
	uint32_t over = 1;

	(void)kept;
	CHECK(i->under_way > 0 && (i->flags[tag] & UNDER_WAY));
	i->under_way--;
	if (st != SHARD_OK)
		over += lose(i);
	i->flags[tag] = 0;
	if (has_memory(i) && again)
		push(i, (uint32_t)tag);
	else if (has_memory(i) && i->version[tag] != NO_VERSION)
		show(i, (uint32_t)tag, i->version[tag]);
	go(i);
	maybe_whole(i);
	if (i->at == WHOLE && !m->on_gpus.images->stopped)
		m->on_gpus.images->up->tell(m);
	left(m, over);
	m->on_gpus.images->up->release(m);
}

/* --- what becomes of the image --- */

void device_images_publish(struct model *m, uint32_t chunk, uint64_t version)
{
	struct device_images *d = m->on_gpus.images;

	for (uint32_t k = 0; d != NULL && k < d->nr; k++) {
		struct device_image *i = d->image[k];
		bool written = i->flags[chunk] & WRITTEN;

		if (!has_memory(i))
			continue;
		i->flags[chunk] &= (uint8_t)~WRITTEN;
		i->version[chunk] = version;
		if (written && !(i->flags[chunk] & ON_ITS_WAY)) {
			show(i, chunk, version);
			continue;
		}
		queue(i, chunk);
		go(i);
	}
}

void device_images_skip(struct model *m, uint64_t before)
{
	struct device_images *d = m->on_gpus.images;

	for (uint32_t k = 0; d != NULL && k < d->nr; k++) {
		struct device_image *i = d->image[k];

		for (uint32_t c = 0; has_memory(i) && c < m->layout->chunks_nr; c++) {
			if (i->version[c] != before)
				continue;
			i->version[c] = m->step;
			if (!(i->flags[c] & ON_ITS_WAY))
				show(i, c, m->step);
		}
	}
}

void device_images_void(struct model *m)
{
	struct device_images *d = m->on_gpus.images;

	for (uint32_t k = 0; d != NULL && k < d->nr; k++) {
		if (!has_memory(d->image[k]))
			continue;
		show_none(d->image[k]);
		for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
			d->image[k]->flags[c] &= (uint8_t)~WRITTEN;
	}
}

static struct device_image *find(const struct model *m, const struct gpu *g)
{
	const struct device_images *d = m->on_gpus.images;

	for (uint32_t k = 0; d != NULL && g != NULL && k < d->nr; k++)
		if (d->image[k]->gpu == g)
			return d->image[k];
	return NULL;
}

/* A copy that is on its way would overwrite what the update makes. */
uint64_t device_images_at(const struct model *m, uint32_t chunk)
{
	const struct device_image *i = find(m, tier_gpu_of(m->tier, chunk));
	const struct layout *l = m->layout;

	if (i == NULL || !has_memory(i) || (i->flags[chunk] & ON_ITS_WAY))
		return 0;
	return i->mem.at + layout_image_at(l, layout_chunk_start(l, chunk));
}

void device_images_written(struct model *m, uint32_t chunk)
{
	struct device_image *i = find(m, tier_gpu_of(m->tier, chunk));

	if (i != NULL && has_memory(i))
		i->flags[chunk] |= WRITTEN;
}

void device_images_stop(struct model *m)
{
	struct device_images *d = m->on_gpus.images;

	if (d == NULL || d->stopped)
		return;
	d->stopped = true;
	for (uint32_t k = 0; k < d->nr; k++)
		(void)drop_queue(d->image[k]);
}

/* --- one more --- */

static void make_run(struct job *j)
{
	struct device_image *i = list_of(j, struct device_image, job);
	size_t bytes = i->m->layout->chunks_nr * sizeof(uint64_t);

	if (gpu_map(i->gpu, i->bytes, true, &i->mem, &i->e) == SHARD_OK &&
	    shm_create(&i->versions, "shardd-image-versions", bytes, SHM_IMAGE, SHM_HUGE_NO,
		       &i->e) == SHARD_OK)
		i->e.status = SHARD_OK;
}

/* All that the image has is copied. What it gets meanwhile is published, and so copied again. */
static void fill(struct device_image *i)
{
	struct model *m = i->m;
	char uuid[GPU_UUID_TEXT];
	struct gpu_about about;

	gpu_tell(i->gpu, &about);
	log_line(m->server->log, LOG_LEVEL_INFO, "event=device_image model=%s gpu=%s bytes=%lu",
		 m->name, gpu_uuid_text(about.uuid, uuid), (unsigned long)i->mem.bytes);
	i->at = FILLING;
	show_none(i);
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++) {
		i->version[c] = store_image_chunk(m->store, 0, c);
		if (i->version[c] != NO_VERSION)
			queue(i, c);
	}
	go(i);
	maybe_whole(i);
}

static void forget(struct device_image *i)
{
	struct device_images *d = i->m->on_gpus.images;
	uint32_t k = 0;

	while (d->image[k] != i)
		k++;
	d->image[k] = d->image[--d->nr];
	image_free(i);
}

static void make_done(struct job *j)
{
	struct device_image *i = list_of(j, struct device_image, job);
	struct model *m = i->m;

	if (i->e.status == SHARD_OK && (m->dropping || m->server->stop.on))
		err_set(&i->e, SHARD_CLOSED, "\"%s\" ends on this node", m->name);
	else if (i->e.status != SHARD_OK)
		log_line(m->server->log, LOG_LEVEL_WARN, "event=no_device_image model=%s why=%s",
			 m->name, i->e.text);
	if (i->e.status == SHARD_OK) {
		fill(i);
		return;
	}
	refuse_all(i, &i->e);
	forget(i);
	if (m->dropping || m->server->stop.on)
		server_wake(m->server, 1);
}

static enum shard_status make(struct model *m, const struct device_images_up *up, struct gpu *g,
			      struct device_image **out, struct err *e)
{
	struct device_images *d = m->on_gpus.images;

	if (d == NULL)
		d = m->on_gpus.images = calloc(1, sizeof(*d));
	if (d == NULL || (*out = image_new(m, g)) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	d->up = up;
	CHECK(d->nr < GPU_DEVICES_MAX); /* There are no more GPUs. */
	d->image[d->nr++] = *out;
	job_begin(&(*out)->job, m->server,
		  (*out)->bytes <= JOB_SMALL_BYTES ? JOB_SMALL : JOB_MEMORY, make_run, make_done);
	return SHARD_OK;
}

static struct gpu *gpu_with(const struct server *s, const uint8_t *uuid)
{
	for (uint32_t k = 0; k < s->gpus_nr; k++) {
		struct gpu_about about;

		gpu_tell(s->gpu[k], &about);
		if (memcmp(about.uuid, uuid, GPU_UUID_BYTES) == 0)
			return s->gpu[k];
	}
	return NULL;
}

enum shard_status device_images_gpu(const struct model *m, const char *what, const uint8_t *uuid,
				    const struct session *who, struct gpu **g, struct err *e)
{
	const struct server *s = m->server;
	const char *why = NULL;
	char text[GPU_UUID_TEXT];
	bool used = false;

	*g = gpu_with(s, uuid);
	gpu_uuid_text(uuid, text);
	for (uint32_t c = 0; *g != NULL && !used && c < m->layout->chunks_nr; c++)
		used = tier_gpu_of(m->tier, c) == *g;
	if (!who->local)
		why = "over TCP";
	else if (*g == NULL)
		why = "which is not one of [daemon] gpu";
	else if (!used)
		why = "which has no chunk of the model (tier = gpu)";
	else if (m->set.max_staleness > 0)
		why = "because of max_staleness = 1";
	else if (!gpu_lost(*g, &why))
		return SHARD_OK;
	return err_set(e, SHARD_UNSUPPORTED, "node %s has no %s of \"%s\" on %s, %s",
		       members_name(s, s->self), what, m->name, text, why);
}

enum shard_status device_images_ask(struct model *m, const struct device_images_up *up,
				    const uint8_t *uuid, struct session *who, uint32_t tag,
				    struct err *e)
{
	struct caller a = caller_session(who, tag);
	struct device_image *i;
	enum shard_status st;
	struct gpu *g;

	if ((st = device_images_gpu(m, "image", uuid, who, &g, e)) != SHARD_OK)
		return st;
	if ((i = find(m, g)) == NULL && (st = make(m, up, g, &i, e)) != SHARD_OK)
		return st;
	if (i->at == LOST)
		return err_set(e, SHARD_UNSUPPORTED, "the image of \"%s\" on its GPU is lost",
			       m->name);
	if (i->askers_nr == ASKERS_MAX)
		return err_set(e, SHARD_BUSY, "too many trainers wait for the image on a GPU");
	i->asker[i->askers_nr++] = a;
	maybe_whole(i);
	return SHARD_OK;
}
