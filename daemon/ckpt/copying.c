/* SPDX-License-Identifier: Apache-2.0 */
/* Has the operator's program copy checkpoints of one model. save.c calls after a save, and known.c
 * after a start. Happy path: a job lists the folder of the last save, takes the newest complete
 * checkpoint of the model's own that is not marked, and starts the program → hook.c watches it →
 * a job marks the checkpoint → the next one. It fails where the program does. What is left is tried
 * again after the next save, or after the next start, which knows it by the missing mark. One
 * program runs at a time for each model: it inherits a lock on the model's byte of STATE/copying,
 * so that this also holds where the daemon was killed and its program was not. */
#include "ckpt/copying.h"

#include "base/check.h"
#include "base/clock.h"
#include "ckpt/auto.h"
#include "ckpt/hook.h"
#include "ckpt/op.h"
#include "model/model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOCK       "copying"
#define LOCK_MS    1000 /* What the last run has left is gone that soon after SIGKILL. */
#define LOCK_TRIES 100

struct copying {
	struct server *server;
	struct model *m; /* NULL: it is gone. */
	bool busy, again;
	uint32_t id; /* Of the model. */
	char name[65], program[CONFIG_PATH_BYTES];
	struct ckpt_run run;
	struct ckpt_place place; /* The folder of the last save. */
	struct job job;
	struct hook hook;
	uint64_t began_ns;
	/* Of the checkpoint in hand. tag empty: there is none. */
	char tag[CHECKPOINT_TAG_MAX + 1], path[CHECKPOINT_PATH_MAX];
	uint64_t step, sum;
	uint32_t left;
	enum shard_status st; /* Of the job. */
	struct err why;
	struct copying_state state;
};

static void run_next(struct copying *c);

const struct copying_state *copying_state(const struct model *m)
{
	const struct copying *c = server_leads(m->server) ? m->ckpt->copying : NULL;

	return c != NULL ? &c->state : NULL;
}

enum shard_status copying_check(const struct config *conf, struct err *e)
{
	const char *program = conf->checkpoint_hook;

	if (program[0] == 0 && conf->prune_copied_only)
		return err_set(e, SHARD_BAD_ARG,
			       "[daemon] prune_copied_only = yes: nothing copies checkpoints, so "
			       "none would ever be removed: set checkpoint_hook");
	if (program[0] == 0 || access(program, X_OK) == 0)
		return SHARD_OK;
	return err_set(e, SHARD_BAD_ARG,
		       "[daemon] checkpoint_hook = %.300s: cannot be run by uid %u, which the "
		       "daemon runs as: %s: mend its path or mode, or leave it out",
		       program, (unsigned)geteuid(), strerror(errno));
}

/* --- ends --- */

static void idle(struct copying *c)
{
	CHECK(c->busy && c->server->persists > 0);
	c->busy = false;
	c->server->persists--;
	c->state.running = false;
	if (c->m == NULL)
		free(c);
	else if (c->again)
		copying_begin(c->m);
}

static void failed(struct copying *c, const struct err *e)
{
	c->state.failures++;
	snprintf(c->state.last_error, sizeof(c->state.last_error), "%s", e->text);
	log_line(c->server->log, LOG_LEVEL_WARN,
		 "event=checkpoint_not_copied model=%s path=%s left=%u why=%s", c->name, c->path,
		 c->left, e->text);
	idle(c);
}

/* --- marking --- */

static void run_mark(struct job *j)
{
	struct copying *c = list_of(j, struct copying, job);
	char path[CHECKPOINT_PATH_MAX];

	if ((c->st = ckpt_place_open(&c->place, false, &c->why)) != SHARD_OK)
		return;
	c->st = checkpoint_path(path, c->place.at, c->tag, &c->why);
	if (c->st == SHARD_OK)
		c->st = checkpoint_mark(path, c->sum, &c->why);
	ckpt_place_close(&c->place, c->st != SHARD_OK ? &c->why : NULL);
}

static void marked(struct job *j)
{
	struct copying *c = list_of(j, struct copying, job);

	if (c->st != SHARD_OK) {
		failed(c, &c->why);
		return;
	}
	snprintf(c->state.path, sizeof(c->state.path), "%s", c->path);
	c->state.step = c->step;
	c->state.at = time(NULL);
	c->state.left = --c->left;
	c->state.last_error[0] = 0;
	log_line(c->server->log, LOG_LEVEL_INFO,
		 "event=checkpoint_copied model=%s path=%s step=%lu left=%u seconds=%.3f", c->name,
		 c->path, (unsigned long)c->step, c->left,
		 (double)(clock_ns() - c->began_ns) / NS_PER_SEC);
	c->again = true; /* There may be others, or newer ones. */
	idle(c);
}

static void hook_done(struct hook *h)
{
	struct copying *c = list_of(h, struct copying, hook);

	if (h->why.status != SHARD_OK)
		failed(c, &h->why);
	else
		job_begin(&c->job, c->server, JOB_FILES, run_mark, marked);
}

/* --- looking --- */

static void take(struct copying *c, const struct checkpoint_found *f)
{
	snprintf(c->tag, sizeof(c->tag), "%s", f->tag);
	(void)checkpoint_path(c->path, c->place.dir, f->tag, NULL);
	c->step = f->step;
	c->sum = f->sum;
}

/* The lock is that of the open file, so it lasts as long as anybody has it open. */
static enum shard_status lock(const struct copying *c, int *out, struct err *e)
{
	struct flock one = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = c->id, .l_len = 1};
	char path[CHECKPOINT_PATH_MAX + 16];
	int fd, tries = 0;

	snprintf(path, sizeof(path), "%s/" LOCK, c->place.state);
	if ((fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) < 0)
		return err_sys(e, errno, "%.300s: cannot be opened: %s", path, strerror(errno));
	while (fcntl(fd, F_OFD_SETLK, &one) != 0) {
		int error = errno;

		if (error == EINTR)
			continue;
		if (error == EAGAIN && ++tries < LOCK_TRIES) {
			usleep(LOCK_MS * 1000 / LOCK_TRIES);
			continue;
		}
		close(fd);
		if (error != EAGAIN)
			return err_sys(e, error, "%.300s: cannot be locked: %s", path,
				       strerror(error));
		return err_set(e, SHARD_BUSY,
			       "what checkpoint_hook began earlier still runs, in a session of its "
			       "own or since this daemon was killed: fuser %.300s names it",
			       path);
	}
	*out = fd;
	return SHARD_OK;
}

static void spawn(struct copying *c)
{
	char model[80], step[48], tag[CHECKPOINT_TAG_MAX + 16], dir[CHECKPOINT_PATH_MAX + 16],
		verb[] = "copy";
	char *const argv[] = {c->program, verb, c->path, NULL};
	const char *const more[] = {model, step, tag, dir, NULL};
	int held = -1;

	if ((c->st = lock(c, &held, &c->why)) != SHARD_OK)
		return;
	snprintf(model, sizeof(model), "SHARDD_MODEL=%s", c->name);
	snprintf(step, sizeof(step), "SHARDD_STEP=%lu", (unsigned long)c->step);
	snprintf(tag, sizeof(tag), "SHARDD_TAG=%s", c->tag);
	snprintf(dir, sizeof(dir), "SHARDD_DIR=%s", c->place.dir);
	c->st = hook_spawn(&c->hook, argv, more, held, &c->why);
	close(held);
}

static void run_look(struct job *j)
{
	struct copying *c = list_of(j, struct copying, job);
	struct checkpoint_found *found = NULL;
	uint32_t nr = 0;

	c->tag[0] = c->path[0] = 0;
	c->left = 0;
	if ((c->st = ckpt_place_open(&c->place, false, &c->why)) != SHARD_OK)
		return;
	c->st = checkpoint_list(c->place.at, c->name, &found, &nr, &c->why);
	for (uint32_t i = 0; c->st == SHARD_OK && i < nr; i++) {
		if (!found[i].complete || found[i].copied ||
		    !ckpt_own(&c->run, &found[i].run, found[i].step))
			continue;
		if (c->left++ == 0)
			take(c, &found[i]);
	}
	free(found);
	ckpt_place_close(&c->place, c->st != SHARD_OK ? &c->why : NULL);
	if (c->st == SHARD_OK && c->left > 0)
		spawn(c);
}

static const char resigned[] = "this node does not coordinate any more";

/* NULL: it may run. */
static const char *must_end(const struct copying *c)
{
	if (c->server->stop.on)
		return "the daemon stops";
	if (c->m == NULL)
		return "the model was dropped";
	return server_leads(c->server) ? NULL : resigned;
}

static void end(struct copying *c, const char *why)
{
	struct err e;

	CHECK(why != NULL);
	c->again = false;
	if (!c->busy || !c->hook.watched)
		return;
	err_set(&e, SHARD_CLOSED, "%s", why);
	if (c->server->stop.on)
		hook_leave(&c->hook, &e);
	else
		hook_end(&c->hook, &e);
}

static void looked(struct job *j)
{
	struct copying *c = list_of(j, struct copying, job);
	const char *why;

	c->state.left = c->left;
	if (c->st != SHARD_OK) {
		failed(c, &c->why);
		return;
	}
	if (c->left == 0) {
		idle(c);
		return;
	}
	c->state.running = true;
	hook_watch(&c->hook, c->server->loop, c->server->conf->checkpoint_hook_timeout_ns,
		   hook_done);
	log_line(c->server->log, LOG_LEVEL_DEBUG, "event=copying model=%s path=%s left=%u", c->name,
		 c->path, c->left);
	if ((why = must_end(c)) != NULL)
		end(c, why);
}

static struct copying *made(struct model *m)
{
	struct copying *c = m->ckpt->copying;

	if (c == NULL && (c = calloc(1, sizeof(*c))) != NULL) {
		c->server = m->server;
		c->m = m;
		c->id = m->id;
		snprintf(c->name, sizeof(c->name), "%s", m->name);
		m->ckpt->copying = c;
	}
	return c;
}

static void run_next(struct copying *c)
{
	c->busy = true;
	c->again = false;
	c->began_ns = clock_ns();
	c->server->persists++;
	job_begin(&c->job, c->server, JOB_FILES, run_look, looked);
}

void copying_begin(struct model *m)
{
	const struct config *conf = m->server->conf;
	struct copying *c;

	if (conf->checkpoint_hook[0] == 0 || m->ckpt->dir[0] == 0 || !server_leads(m->server) ||
	    m->server->stop.on || (c = made(m)) == NULL)
		return;
	if (c->busy) {
		c->again = true;
		return;
	}
	snprintf(c->program, sizeof(c->program), "%s", conf->checkpoint_hook);
	c->run = m->ckpt->run;
	/* It was allowed at that save. */
	if (ckpt_place_set(&c->place, m->server, m->ckpt->dir, true, 0, NULL) == SHARD_OK)
		run_next(c);
}

void copying_forget(struct copying *c)
{
	if (c == NULL)
		return;
	c->m = NULL;
	if (c->busy)
		end(c, must_end(c));
	else
		free(c);
}

void copying_resigned(struct model *m)
{
	if (m->ckpt->copying != NULL)
		end(m->ckpt->copying, resigned);
}

void copying_stop(struct server *s)
{
	CHECK(s->stop.on);
	list_each(it, &s->models) {
		struct copying *c = list_of(it, struct model, link)->ckpt->copying;

		if (c != NULL)
			end(c, must_end(c));
	}
}
