/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs for models. make.c calls it. Happy path: devices_plan() takes the devices that
 * this node has, a thread maps memory of each for its run of chunks, hands the descriptors of that
 * memory to the service manager, and has copies from the host's memory go straight. devices_tier()
 * puts the tier over it. A later process gets the descriptors back, and finds the device of each by
 * asking all of them. It fails where there is no device, or no room in one. If a device fails
 * later, this node's copy of the model is lost, and the model is made anew here without it
 * (control/anew.c): on the devices that are left, or in main memory. */
#include "model/devices.h"

#include "base/check.h"
#include "data/feed.h"
#include "link/rdma.h"
#include "model/model.h"
#include "model/voided.h"
#include "store/away.h"
#include "store/room.h"
#include "warm/warm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int by_uuid(const void *a, const void *b)
{
	struct gpu_about one, other;

	gpu_tell(*(struct gpu *const *)a, &one);
	gpu_tell(*(struct gpu *const *)b, &other);
	return memcmp(one.uuid, other.uuid, sizeof(one.uuid));
}

enum shard_status devices_direct(const struct server *s, struct gpu *g, struct err *e)
{
	enum shard_status st;

	if (s->nodes_nr == 1)
		return err_set(e, SHARD_UNSUPPORTED, "there is no other node");
	if (!s->conf->rdma_gpu)
		return err_set(e, SHARD_UNSUPPORTED, "[net] rdma_gpu = off");
	if (!rdma_local_here(s))
		return err_set(e, SHARD_UNSUPPORTED, "no RDMA: %.300s", s->rdma->why);
	if (s->conf->rdma_checksum)
		return err_set(
			e, SHARD_UNSUPPORTED,
			"[net] rdma_checksum = yes: what is in the memory of a GPU cannot be "
			"summed, so it has to be no, on all nodes");
	st = gpu_direct(g, e);
	return st == SHARD_OK ? rdma_takes_dma_buf(s->rdma->device, e) : st;
}

static void direct_plan(struct devices *d, const struct model *m)
{
	enum shard_status st = SHARD_OK;

	if (m->set.grad_codec.kind != QUANT_NONE)
		st = err_set(&d->not_direct, SHARD_UNSUPPORTED,
			     "its grad_codec: codes do not go there");
	for (uint32_t i = 0; i < d->nr && st == SHARD_OK; i++)
		st = devices_direct(m->server, d->gpu[i], &d->not_direct);
	d->direct_wanted = st == SHARD_OK;
}

/* Has an earlier process left memory of devices? Otherwise it had the state in main memory. */
static bool left_some(const struct model *m)
{
	int fd[GPU_DEVICES_MAX];
	uint32_t nr = warm_devices(m->server->warm, m->id, fd, GPU_DEVICES_MAX);

	for (uint32_t i = 0; i < nr; i++)
		(void)close(fd[i]);
	return nr > 0;
}

/* No GPU works here. */
static enum shard_status none(const struct model *m, bool there, const char *why, struct err *e)
{
	const struct server *s = m->server;

	if (there && s->gpus_missing.gone > 0 && s->gpus_out == 0)
		return err_set(e, SHARD_MISMATCH,
			       "its state was on a GPU that the driver does not show any more");
	if (m->memory.why != NULL && !there) /* It had a copy. */
		return SHARD_OK;
	if (why != NULL)
		return err_set(e, SHARD_UNSUPPORTED,
			       "\"%s\" has tier = gpu, and the GPU of node %s is lost: %s: start "
			       "the daemon there again",
			       m->name, members_name(s, s->self), why);
	return err_set(e, SHARD_UNSUPPORTED,
		       "\"%s\" has tier = gpu, and node %s has no GPU for that: set [daemon] gpu "
		       "there",
		       m->name, members_name(s, s->self));
}

enum shard_status devices_plan(struct devices *d, const struct model *m, bool there, struct err *e)
{
	const struct server *s = m->server;
	const char *why = NULL;

	*d = (struct devices){.model = m->id, .there = there, .left_out = s->gpus_out > 0};
	if (m->set.tier != TIER_GPU || (there && !left_some(m)))
		return SHARD_OK;
	for (uint32_t i = 0; i < s->gpus_nr; i++)
		if (!gpu_lost(s->gpu[i], &why))
			d->gpu[d->nr++] = s->gpu[i];
	qsort(d->gpu, d->nr, sizeof(d->gpu[0]), by_uuid);
	if (d->nr == 0)
		return none(m, there, why, e);
	direct_plan(d, m);
	return SHARD_OK;
}

static bool have_room(const struct devices *d, const struct store_conf *conf)
{
	uint64_t bytes = tier_gpu_will(conf, d->nr);

	for (uint32_t i = 0; i < d->nr; i++) {
		struct gpu_about about;

		gpu_tell(d->gpu[i], &about);
		if (about.mapped_bytes + bytes > about.limit_bytes)
			return false;
	}
	return true;
}

void devices_settle(struct devices *d, const struct model *m, struct store_conf *conf)
{
	bool away;

	if (m->set.tier != TIER_GPU)
		return;
	if (d->nr > 0 && !d->there && m->memory.why != NULL && !have_room(d, conf))
		d->nr = 0;
	if (d->nr > 0)
		return;
	away = tier_gpu_will(conf, 1) > 0; /* It holds some. */
	conf->away_share = 0;
	if (!away)
		return;
	log_line(m->server->log, LOG_LEVEL_WARN, "event=gpu_to_memory model=%s why=%s", m->name,
		 "its copy was lost with a GPU, and no other one here has room: its state is in "
		 "main memory here, where processors update it, until it is made anew");
}

bool devices_end_with_process(const struct devices *d, const struct model *m, struct err *e)
{
	const struct server *s = m->server;

	if (d->nr == 0 || warm_mode(s->warm) == WARM_SYSTEMD)
		return false;
	(void)err_set(
		e, SHARD_UNSUPPORTED,
		"\"%s\" has tier = gpu, and only systemd's descriptor store keeps memory of "
		"GPUs for the next process: set warm_restart = systemd, auto or off on node %s",
		m->name, members_name(s, s->self));
	return true;
}

/* --- memory --- */

static enum shard_status map_new(struct devices *d, uint64_t bytes, struct err *e)
{
	for (uint32_t i = 0; i < d->nr; i++) {
		struct gpu_mem *m = &d->mem[i];
		enum shard_status rc = gpu_map(d->gpu[i], bytes, d->place != NULL, m, e);

		if (rc == SHARD_OK && d->place != NULL)
			rc = warm_devices_keep(d->place, d->model, m->fd, e);
		if (rc != SHARD_OK)
			return rc;
		if (m->fd >= 0)
			(void)close(m->fd); /* The store has its own. */
		m->fd = -1;
	}
	return SHARD_OK;
}

/* On the device that the memory is of. *used: devices that have some. */
static enum shard_status map_found(struct devices *d, int fd, uint64_t bytes, uint32_t *used,
				   struct err *e)
{
	struct err why = {.status = SHARD_MISMATCH, .text = "there are more of them than GPUs"};

	for (uint32_t i = 0; i < d->nr; i++) {
		if (*used & 1u << i)
			continue;
		if (gpu_again(d->gpu[i], fd, bytes, &d->mem[i], &why) == SHARD_OK) {
			if (d->mem[i].fd >= 0)
				(void)close(d->mem[i].fd);
			d->mem[i].fd = -1;
			*used |= 1u << i;
			return SHARD_OK;
		}
		if (why.status != SHARD_MISMATCH)
			break;
	}
	if (why.status == SHARD_MISMATCH && d->left_out)
		why.status = SHARD_UNSUPPORTED; /* It may be of that one. */
	return err_wrap(e, &why, "memory of a GPU that it had: %.300s", why.text);
}

/* Devices that came since have nothing of it. */
static void leave_unused(struct devices *d, uint32_t used)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < d->nr; i++) {
		if (!(used & 1u << i))
			continue;
		d->gpu[nr] = d->gpu[i];
		d->mem[nr++] = d->mem[i];
	}
	d->nr = nr;
}

static enum shard_status map_again(struct devices *d, const struct store *st, struct err *e)
{
	int fd[GPU_DEVICES_MAX];
	uint32_t nr = warm_devices(d->place, d->model, fd, GPU_DEVICES_MAX), used = 0;
	enum shard_status rc = SHARD_OK;

	if (nr == 0)
		return err_set(e, SHARD_MISMATCH, "the memory of its GPUs is not there");
	for (uint32_t i = 0; i < nr; i++) {
		if (rc == SHARD_OK)
			rc = map_found(d, fd[i], tier_gpu_bytes(st, nr), &used, e);
		(void)close(fd[i]);
	}
	leave_unused(d, used);
	return rc;
}

/* What cannot be pinned goes through buffers of the device. One device pins the pages, and each has
 * to know of it. */
static void pin(struct devices *d, struct store *st)
{
	const struct shm *regions[] = {store_region(st, STORE_STATE), store_region(st, STORE_SUMS),
				       store_image_shm(st)};
	struct err e;

	store_room_pin(st); /* The driver knows pages, and not addresses. */
	for (uint32_t i = 0; i < sizeof(regions) / sizeof(regions[0]); i++) {
		const struct shm *m = regions[i];

		if (m->base == NULL || m->bytes == 0)
			continue;
		for (uint32_t k = 0; k < d->nr; k++)
			if (gpu_pin(d->gpu[k], m->base, m->bytes, &e) != SHARD_OK)
				break;
		d->pinned[d->pinned_nr++] = m->base;
	}
}

static void close_direct(struct devices *d)
{
	while (d->direct_nr > 0)
		gpu_unmap(&d->direct[--d->direct_nr]);
}

/* Without them all works as it does without RDMA. */
static void open_direct(struct devices *d, const struct store *st)
{
	for (uint32_t i = 0; i < d->nr && d->direct_wanted; i++) {
		uint64_t bytes = tier_gpu_direct_bytes(st, d->nr, i);

		if (bytes > 0 &&
		    gpu_map_direct(d->gpu[i], bytes, &d->direct[i], &d->not_direct) != SHARD_OK) {
			d->direct_wanted = false;
			close_direct(d);
			return;
		}
		d->direct_nr++;
	}
}

enum shard_status devices_open(struct devices *d, struct store *st, struct warm *place,
			       struct err *e)
{
	enum shard_status rc;

	if (d->nr == 0 || store_away_nr(st) == 0) {
		d->nr = 0;
		return SHARD_OK;
	}
	d->place = place;
	rc = d->there && place != NULL ? map_again(d, st, e)
				       : map_new(d, tier_gpu_bytes(st, d->nr), e);
	if (rc != SHARD_OK) {
		devices_close(d);
		return rc;
	}
	open_direct(d, st);
	pin(d, st);
	return SHARD_OK;
}

bool devices_close(struct devices *d)
{
	while (d->pinned_nr > 0) {
		void *at = d->pinned[--d->pinned_nr];

		for (uint32_t k = d->nr; k-- > 0;) /* The first one has pinned it. */
			d->held |= !gpu_unpin(d->gpu[k], at);
	}
	close_direct(d);
	for (uint32_t i = 0; i < d->nr; i++) {
		d->hangs |= d->held && gpu_hangs(d->gpu[i]);
		gpu_unmap(&d->mem[i]); /* The device may be gone after this. */
	}
	return !d->held;
}

/* --- the tier --- */

/* Called in the middle of what the tier does: the model ends a moment later. Until then it does
 * nothing more, as what it says may rest on what is gone. */
static void lost(void *arg, const char *why)
{
	struct model *m = arg;

	m->memory.tier_lost = true;
	if (meta_persistent(&m->meta))
		meta_void(&m->meta);
	server_wake(m->server, 0);
	if (m->dropping) {
		tier_gpu_forsake(m->tier);
		return;
	}
	m->memory.ends = m->memory.anew = true;
	voided_add(m->server, m->id, why, UINT64_MAX);
	log_line(m->server->log, LOG_LEVEL_ERROR, "event=gpu_state_lost model=%s why=%s means=%s",
		 m->name, why,
		 "a GPU of this node has failed: this node's copy is lost, and the model is made "
		 "anew here without it");
}

static void say_direct(const struct devices *d, const struct model *m)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < d->direct_nr; i++)
		bytes += d->direct[i].bytes;
	if (d->direct_nr > 0)
		log_line(m->server->log, LOG_LEVEL_INFO,
			 "event=gpu_direct model=%s gpus=%u device_bytes=%lu", m->name,
			 d->direct_nr, (unsigned long)bytes);
	else if (m->server->nodes_nr > 1 && d->not_direct.status != SHARD_OK)
		log_line(m->server->log, LOG_LEVEL_INFO, "event=gpu_direct_off model=%s why=%s",
			 m->name, d->not_direct.text);
}

enum shard_status devices_tier(struct devices *d, struct model *m, const struct tier_conf *conf,
			       struct err *e)
{
	struct tier_gpu_conf gpu = {.direct = d->direct_nr > 0 ? d->direct : NULL,
				    .mem = d->mem,
				    .devices_nr = d->nr,
				    .hold = feed_hold,
				    .release = feed_release,
				    .lost = lost,
				    .arg = m};
	enum shard_status st = tier_gpu_open(&m->tier, conf, &gpu, e);
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < d->nr; i++)
		bytes += d->mem[i].bytes;
	if (st == SHARD_OK)
		log_line(m->server->log, LOG_LEVEL_INFO,
			 "event=gpu_tier model=%s gpus=%u chunks=%u device_bytes=%lu kept=%s",
			 m->name, d->nr, store_away_nr(m->store), (unsigned long)bytes,
			 d->place != NULL ? "yes" : "no");
	if (st == SHARD_OK)
		say_direct(d, m);
	return st;
}
