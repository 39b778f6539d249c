/* SPDX-License-Identifier: Apache-2.0 */
/* Files of models whose state is not all in memory. make.c calls it. Happy path: disk_plan() names
 * the file, a thread makes it, reserves its bytes, takes its lock and registers the buffers, and
 * disk_tier() puts the tier over it. The name has this node, the model and its memory, so no two
 * memories ever share a file. Where the memory does not outlive the process, the file has no name
 * as soon as it is open, so that a killed daemon leaves nothing. A start removes what others left,
 * unless it has weights. Of a file that may have every step there is a note in the state folder, so
 * that a start without that disk does not take it for a model that was never here. It fails where
 * there is no folder, no room or no O_DIRECT. If the disk fails later, this node's copy of the
 * model is lost, and the process ends (odd_lost()). */
#include "model/disk.h"

#include "base/check.h"
#include "data/data.h"
#include "data/feed.h"
#include "data/durable.h"
#include "model/lead.h"
#include "model/model.h"
#include "model/odd.h"
#include "store/away.h"
#include "store/tier_nvme.h"
#include "warm/warm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AWAY     ".void"            /* Follows the name of a file that no start uses or removes. */
#define NOTE     "nvme-"            /* Begins the name of a note in the state folder. */
#define FENCE_NS (120 * NS_PER_SEC) /* A disk that has stalled finishes in that time, or never. */

uint32_t disk_share(const struct model_settings *set)
{
	return set->tier == TIER_NVME ? set->nvme_share : 0;
}

static void prefix(const struct server *s, char out[48])
{
	const uint8_t *uuid = static_uuid(s->dir);
	size_t used = (size_t)snprintf(out, 48, "shardd-");

	for (uint32_t i = 0; i < STATIC_UUID_BYTES && used < 40; i++)
		used += (size_t)snprintf(out + used, 48 - used, "%02x", uuid[i]);
}

static void name_of(char out[80], const struct server *s, uint32_t model, uint64_t id)
{
	char node[48];

	prefix(s, node);
	snprintf(out, 80, "%s-%08x-%016" PRIx64, node, model, id);
}

/* The folder of the files may not be mounted at the next start. The state folder is there. */
static void note_of(char out[CONFIG_PATH_BYTES + 40], const struct server *s, uint32_t model,
		    uint64_t id)
{
	snprintf(out, CONFIG_PATH_BYTES + 40, "%s/" NOTE "%08x-%016" PRIx64, s->conf->state, model,
		 id);
}

/* What was defined before stays as it is, whatever has become of the cluster since. */
static enum shard_status may_be_durable(const struct model *m, bool anew, struct err *e)
{
	const struct server *s = m->server;
	const char *why = NULL;

	if (!m->set.nvme_durable || (!anew && s->warm != NULL))
		return SHARD_OK;
	if (m->memory.nodes_nr > 1 && m->set.replicas > 1)
		why = "takes replicas = 1: with more, a loss of power of one node costs nothing "
		      "anyway";
	else if (m->memory.nodes_nr > 1 && m->set.grad_codec.kind != QUANT_NONE &&
		 m->set.error_feedback)
		why = "takes grad_codec = none or error_feedback = no on several nodes, because "
		      "the disk does not have what codes have lost";
	else if (lead_on(s))
		why = "takes membership = static";
	else if (m->set.nvme_share < 100)
		why = "takes nvme_share = 100, because what is in memory alone is lost";
	else if (m->set.max_staleness > 0 || m->set.image_codec != QUANT_NONE)
		why = "takes max_staleness = 0 and image_codec = none, because the image is made "
		      "of the masters again";
	else if (s->warm == NULL)
		why = "takes warm_restart = tmpfs or systemd, because it keeps a copy of what is "
		      "there";
	return why == NULL ? SHARD_OK
			   : err_set(e, SHARD_UNSUPPORTED, "\"%s\": nvme_durable = step %s",
				     m->name, why);
}

enum shard_status disk_plan(struct disk *d, const struct model *m, const struct meta_found *found,
			    bool anew, struct err *e)
{
	const struct server *s = m->server;

	*d = (struct disk){.dir = s->conf->nvme_dir,
			   .there = found != NULL,
			   .recall = found != NULL && found->super != NULL,
			   .fence_ns = FENCE_NS,
			   .id = m->memory.incarnation};
	if (disk_share(&m->set) == 0)
		return SHARD_OK;
	name_of(d->name, s, m->id, d->id);
	d->durable = m->set.nvme_durable;
	note_of(d->note, s, m->id, d->id);
	if (d->dir[0] != 0)
		return may_be_durable(m, anew, e);
	return err_set(e, SHARD_UNSUPPORTED,
		       "\"%s\" has tier = nvme, and node %s has no folder for that: set [daemon] "
		       "nvme_dir there",
		       m->name, members_name(s, s->self));
}

static enum shard_status open_ring(struct disk *d, const struct store *st, int fd, struct err *e)
{
	uint32_t nr = store_away_buffers(st);
	struct iovec *iov = calloc(nr + 1, sizeof(*iov));
	struct ring_conf conf = {.fd = fd,
				 .buffer = iov,
				 .buffers_nr = nr + d->durable,
				 .entries = nr + TIER_NVME_REQUESTS};
	enum shard_status rc;

	if (iov == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a table of %u buffers", nr);
	for (uint32_t i = 0; i < nr; i++)
		iov[i] = (struct iovec){store_away_buffer(st, i), store_away_slot(st)};
	iov[nr] = (struct iovec){d->super, tier_nvme_super_bytes(st)};
	rc = ring_open(&d->ring, &conf, e);
	free(iov);
	return rc;
}

/* What the superblock that counts says. A process that was killed may have written it, and not have
 * synced it: that is done now, before anything that only the one before names is written again. */
static enum shard_status find_super(struct disk *d, struct store *st, int fd, struct err *e)
{
	uint64_t bytes = tier_nvme_super_bytes(st);
	enum shard_status rc;
	struct err why;
	int dir;

	if ((d->super = aligned_alloc(SUPER_BLOCK, bytes)) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a superblock of %llu bytes",
			       (unsigned long long)bytes);
	memset(d->super, 0, bytes);
	/* A file that is new has to have its name after a loss of power. */
	dir = open(d->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	rc = fdatasync(fd) != 0 || dir < 0 || fsync(dir) != 0
		     ? err_sys(e, errno, "%s: syncing it: %s", d->dir, strerror(errno))
		     : SHARD_OK;
	if (dir >= 0)
		(void)close(dir);
	if (rc != SHARD_OK || !d->there)
		return rc;
	rc = super_find(&d->found, fd, d->id, UINT64_MAX, &why);
	if (rc == SHARD_NOT_FOUND && !d->recall)
		return SHARD_OK; /* No step has got so far. */
	if (rc != SHARD_OK)
		return err_wrap(e, &why, "%.200s/%s: %.200s", d->dir, d->name, why.text);
	return d->recall ? tier_nvme_recall(st, &d->found, e) : SHARD_OK;
}

/* The folder that the note is in. */
static int sync_folder(const char *note)
{
	char dir[CONFIG_PATH_BYTES + 40];
	int at, rc;

	snprintf(dir, sizeof(dir), "%s", note);
	*strrchr(dir, '/') = 0;
	at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	rc = at < 0 ? -1 : fsync(at);
	if (at >= 0)
		(void)close(at);
	return rc;
}

/* A note that outlives its file ends every start. So it goes first, and for good, and the file only
 * then. A file that is left without a note is one for disk_sweep(). */
static void end_note(const char *note)
{
	if (unlink(note) == 0)
		(void)sync_folder(note);
}

static void end_file(const struct disk *d, const char *path)
{
	if (d->durable)
		end_note(d->note);
	(void)unlink(path);
}

/* From now on a start without the file knows that there was one. */
static enum shard_status write_note(const struct disk *d, struct err *e)
{
	int fd = open(d->note, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	enum shard_status st = SHARD_OK;

	if (fd < 0 || fsync(fd) != 0 || sync_folder(d->note) != 0)
		st = err_sys(e, errno, "%s: %s", d->note, strerror(errno));
	if (fd >= 0)
		(void)close(fd);
	return st;
}

enum shard_status disk_open(struct disk *d, struct store *st, bool outlives, struct err *e)
{
	struct ring_file file = {.dir = d->dir,
				 .name = d->name,
				 .bytes = tier_nvme_bytes(st),
				 .there = d->there,
				 .fence_ns = d->fence_ns};
	char path[CONFIG_PATH_BYTES + 81];
	enum shard_status rc;
	int fd;

	if (file.bytes == 0)
		return SHARD_OK;
	CHECK(d->ring == NULL && d->dir[0] != 0);
	if ((rc = ring_file_open(&fd, &file, e)) != SHARD_OK)
		return rc;
	snprintf(path, sizeof(path), "%s/%s", d->dir, d->name);
	if (!outlives && unlink(path) != 0)
		rc = err_sys(e, errno, "%s: %s", path, strerror(errno));
	if (rc == SHARD_OK && d->durable && (rc = find_super(d, st, fd, e)) == SHARD_OK)
		rc = write_note(d, e);
	if (rc == SHARD_OK)
		rc = open_ring(d, st, fd, e);
	if (rc != SHARD_OK)
		(void)close(fd);
	if (rc != SHARD_OK && !d->there)
		end_file(d, path);
	return rc;
}

void disk_close(struct disk *d)
{
	char path[CONFIG_PATH_BYTES + 81];

	snprintf(path, sizeof(path), "%s/%s", d->dir, d->name);
	/* While the lock is held. It may have no name any more. */
	if (d->ring != NULL && !d->keep)
		end_file(d, path);
	ring_close(&d->ring); /* What is under way may use the memory. */
	super_free(&d->found);
	free(d->super);
	d->super = NULL;
}

/* Nothing is lost so far, so an operator decides. */
static enum shard_status stays(const struct server *s, const struct disk_of *of,
			       enum shard_status st, const char *why, struct err *e)
{
	if (!server_leads(s))
		return err_set(
			e, st,
			"the weights of \"%.64s\" are on the disk alone, and %.180s: see that "
			"nvme_dir is mounted and can be read, and start again. To give them "
			"up: remove " NOTE "%08x-%016" PRIx64 " from %.90s, start, restore",
			of->name, why, of->model, of->id, s->conf->state);
	return err_set(
		e, st,
		"the weights of \"%.64s\" are on the disk alone, and %.180s: see that nvme_dir is "
		"mounted and can be read, and start again. To give them up: rename "
		"model-%08x in %.90s to left-model-%08x, start, restore",
		of->name, why, of->model, s->conf->state, of->model);
}

/* It is not there. */
static enum shard_status missing(const struct server *s, const struct disk_of *of, const char *name,
				 struct err *e)
{
	char path[CONFIG_PATH_BYTES + 90], why[180];

	snprintf(path, sizeof(path), "%s/%s" AWAY, s->conf->nvme_dir, name);
	if (!of->sealed)
		return err_set(e, SHARD_MISMATCH, "no file of this node has it");
	if (access(path, F_OK) == 0)
		return err_set(e, SHARD_MISMATCH, "an earlier start could not use %.300s", path);
	if (s->conf->nvme_dir[0] == 0)
		snprintf(why, sizeof(why), "there is no [daemon] nvme_dir");
	else
		snprintf(why, sizeof(why), "%.75s is not in %.60s", name, s->conf->nvme_dir);
	return stays(s, of, SHARD_BAD_STATE, why, e);
}

bool disk_noted(const struct server *s, uint32_t model, uint64_t id)
{
	char note[CONFIG_PATH_BYTES + 40];

	note_of(note, s, model, id);
	return access(note, F_OK) == 0;
}

/* The note is of a file that is not there. */
static enum shard_status noted(const struct server *s, const char *note, const char *name,
			       struct err *e)
{
	char path[CONFIG_PATH_BYTES + 90];

	snprintf(path, sizeof(path), "%s/%s" AWAY, s->conf->nvme_dir, name);
	if (access(path, F_OK) == 0)
		return SHARD_OK;
	path[strlen(path) - strlen(AWAY)] = 0;
	if (access(path, F_OK) == 0)
		return SHARD_OK;
	return err_set(e, SHARD_BAD_STATE,
		       "weights of a model are on the disk alone, and %.75s is not in %.120s: see "
		       "that nvme_dir is mounted and can be read, and start again. To give them "
		       "up: remove %.60s from %.90s, start, restore",
		       name, s->conf->nvme_dir[0] != 0 ? s->conf->nvme_dir : "[daemon] nvme_dir",
		       note, s->conf->state);
}

/* dir: the state folder, or NULL. NULL: there is no other one. */
static const char *next_note(DIR *dir, uint32_t *model, uint64_t *id)
{
	struct dirent *d;

	while (dir != NULL && (d = readdir(dir)) != NULL)
		if (sscanf(d->d_name, NOTE "%8x-%16" SCNx64, model, id) == 2)
			return d->d_name;
	return NULL;
}

void disk_give_up(const struct server *s, uint32_t model)
{
	DIR *dir = opendir(s->conf->state);
	char note[CONFIG_PATH_BYTES + 40];
	uint32_t of;
	uint64_t id;

	while (next_note(dir, &of, &id) != NULL) {
		note_of(note, s, of, id);
		if (of == model)
			end_note(note);
	}
	if (dir != NULL)
		(void)closedir(dir);
}

enum shard_status disk_missing(const struct server *s, struct err *e)
{
	DIR *dir = opendir(s->conf->state);
	enum shard_status st = SHARD_OK;
	const char *note;
	char name[80];
	uint32_t model;
	uint64_t id;

	while (st == SHARD_OK && (note = next_note(dir, &model, &id)) != NULL) {
		name_of(name, s, model, id);
		st = noted(s, note, name, e);
	}
	if (dir != NULL)
		(void)closedir(dir);
	return st;
}

enum shard_status disk_recall(struct super_found *out, const struct server *s,
			      const struct disk_of *of, struct err *e)
{
	char name[80];
	struct ring_file file = {
		.dir = s->conf->nvme_dir, .name = name, .there = true, .fence_ns = FENCE_NS};
	enum shard_status st = SHARD_NOT_FOUND;
	struct err why;
	int fd;

	*out = (struct super_found){.at = NULL};
	name_of(name, s, of->model, of->id);
	if (file.dir[0] != 0)
		st = ring_file_open(&fd, &file, &why);
	if (st == SHARD_NOT_FOUND)
		return missing(s, of, name, e);
	if (st == SHARD_OK) {
		st = super_find(out, fd, of->id, of->most, &why);
		(void)close(fd);
	}
	if (st == SHARD_NOT_FOUND || st == SHARD_MISMATCH)
		return err_set(e, SHARD_MISMATCH, "%.200s/%s: %.200s", file.dir, name, why.text);
	return st == SHARD_OK ? st : stays(s, of, st, why.text, e);
}

/* --- the tier --- */

static void lost(void *model, const char *why)
{
	odd_lost(model, "nvme_lost", "the disk of this node is bad", why);
}

enum shard_status disk_tier(struct disk *d, struct model *m, const struct tier_conf *conf,
			    struct err *e)
{
	struct tier_nvme_conf nvme = {.ring = d->ring,
				      .id = m->memory.incarnation,
				      .hold = feed_hold,
				      .release = feed_release,
				      .lost = lost,
				      .arg = m,
				      .super = {.at = d->super}};
	enum shard_status st;

	if (d->ring == NULL)
		return tier_ram_open(&m->tier, conf, e);
	if (d->found.at != NULL) {
		nvme.super = (struct tier_nvme_super){
			d->super, d->found.of.seq, super_cells(d->found.at), d->found.of.cells_nr};
		durable_found(m, super_payload(d->found.at, d->found.of.cells_nr),
			      d->found.of.payload_bytes);
	}
	if ((st = ring_start(d->ring, m->server->loop, e)) == SHARD_OK)
		st = tier_nvme_open(&m->tier, conf, &nvme, e);
	super_free(&d->found);
	if (st != SHARD_OK)
		ring_stop(d->ring);
	else
		log_line(m->server->log, LOG_LEVEL_INFO,
			 "event=nvme model=%s file=%s/%s by=%s chunks=%u cached=%u disk_bytes=%lu "
			 "step_bytes=%lu durable=%s why=%s",
			 m->name, d->dir, d->name, ring_kind(d->ring), store_away_nr(m->store),
			 store_away_buffers(m->store), (unsigned long)tier_nvme_bytes(m->store),
			 (unsigned long)tier_nvme_step_bytes(m->store), d->durable ? "step" : "off",
			 ring_why(d->ring));
	return st;
}

/* --- what others left --- */

enum shard_status disk_each(struct server *s, disk_each_fn *fn, struct err *e)
{
	DIR *dir = s->conf->nvme_dir[0] != 0 ? opendir(s->conf->nvme_dir) : NULL;
	enum shard_status st = SHARD_OK;
	struct dirent *d;
	char mine[48];

	if (dir == NULL)
		return SHARD_OK;
	prefix(s, mine);
	while (st == SHARD_OK && (d = readdir(dir)) != NULL) {
		const char *rest = d->d_name + strlen(mine);
		char same[80];
		uint32_t model;
		uint64_t id;

		if (strncmp(d->d_name, mine, strlen(mine)) != 0 ||
		    sscanf(rest, "-%8x-%16" SCNx64, &model, &id) != 2)
			continue;
		name_of(same, s, model, id);
		if (strcmp(same, d->d_name) == 0)
			st = fn(s, model, id, e);
	}
	(void)closedir(dir);
	return st;
}

static bool has_file(const struct server *s, const char *name)
{
	list_each(it, (struct list *)(uintptr_t)&s->models) {
		const struct model *m = list_of(it, struct model, link);
		char of[40];

		snprintf(of, sizeof(of), "-%08x-%016" PRIx64, m->id, m->memory.incarnation);
		if (strlen(name) > strlen(of) && strcmp(name + strlen(name) - strlen(of), of) == 0)
			return true;
	}
	return false;
}

/* May it have weights? A file without nvme_durable has no superblock. */
static bool has_weights(int dir, const char *name)
{
	const char *id = strrchr(name, '-');
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct super_found f = {.at = NULL};
	enum shard_status st = SHARD_SYSTEM;
	struct err e;

	if (fd < 0)
		return errno != ELOOP && errno != ENOENT;
	st = super_find(&f, fd, id != NULL ? strtoull(id + 1, NULL, 16) : 0, UINT64_MAX, &e);
	super_free(&f);
	(void)close(fd);
	return st != SHARD_NOT_FOUND;
}

static void sweep_one(const struct server *s, int dir, const char *name)
{
	size_t bytes = strlen(name), away = strlen(AWAY);
	char to[300], note[CONFIG_PATH_BYTES + 40];
	uint32_t model;
	uint64_t id;

	if (bytes > away && strcmp(name + bytes - away, AWAY) == 0)
		return;
	snprintf(to, sizeof(to), "%.280s" AWAY, name);
	if (bytes >= 26 && sscanf(name + bytes - 26, "-%8x-%16" SCNx64, &model, &id) == 2) {
		note_of(note, s, model, id);
		end_note(note);
	}
	if (has_weights(dir, name)) {
		if (renameat(dir, name, dir, to) == 0)
			log_line(s->log, LOG_LEVEL_WARN, "event=nvme_set_aside file=%s/%s",
				 s->conf->nvme_dir, to);
	} else if (unlinkat(dir, name, 0) == 0) {
		log_line(s->log, LOG_LEVEL_INFO, "event=nvme_removed file=%s/%s", s->conf->nvme_dir,
			 name);
	}
}

void disk_sweep(struct server *s)
{
	DIR *dir = s->conf->nvme_dir[0] != 0 ? opendir(s->conf->nvme_dir) : NULL;
	struct dirent *d;
	char mine[48];

	if (dir == NULL && s->conf->nvme_dir[0] != 0) /* A definition that needs it is refused. */
		log_line(s->log, LOG_LEVEL_WARN, "event=nvme_dir path=%s why=%s", s->conf->nvme_dir,
			 strerror(errno));
	if (dir == NULL)
		return;
	prefix(s, mine);
	while ((d = readdir(dir)) != NULL) {
		if (strncmp(d->d_name, mine, strlen(mine)) == 0 && !has_file(s, d->d_name))
			sweep_one(s, dirfd(dir), d->d_name);
	}
	(void)closedir(dir);
}
