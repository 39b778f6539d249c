// SPDX-License-Identifier: Apache-2.0
/* Connections that break and are made again. While one is broken, calls of its trainers answer
 * SHARD_WORLD_CHANGED, and shard_world_get() (world.c) calls again_connect(). Happy path: all calls
 * that wait have returned; a connection of its own is made to the daemon, as often as it takes, and
 * attaches to each model by name; layout, types and number are compared; then its stream takes the
 * place of the old one, whose bodies and requests end, and world.c joins again. So nothing of a
 * handle changes before the daemon has said yes to all of it. A model that is there no more, or is
 * another one, ends its own handle. It fails when the time is over, when the daemon is of another
 * run, and where no time would help, as with another secret. */
#include "again.h"

#include "define.h"
#include "spawn/spawn.h"
#include "world.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LOOK_NS        (300 * NS_PER_SEC) /* The default of look_ms, and of a model's `timeout`. */
#define PAUSE_LEAST_NS (20 * NS_PER_MS)
#define PAUSE_MOST_NS  (500 * NS_PER_MS)
#define TRY_NS         (10 * NS_PER_SEC) /* Most of one try. A daemon that hangs is left alone. */
/* A daemon that has just started may not have heard of a model yet that other nodes have. */
#define UNKNOWN_NS (3 * NS_PER_SEC)

uint64_t again_look_ns(int64_t look_ms)
{
	if (look_ms <= 0)
		return look_ms < 0 ? 0 : LOOK_NS;
	return (uint64_t)look_ms > UINT64_MAX / 2 / NS_PER_MS ? UINT64_MAX / 2
							      : (uint64_t)look_ms * NS_PER_MS;
}

/* --- looking for a daemon --- */

/* A look at one daemon, by one caller. */
struct look {
	uint64_t began_ns, until_ns, pause_ns;
	uint32_t tries;
};

/* Does it pass when the daemon is there? errno is that of the try. */
static bool passes(enum shard_status rc)
{
	if (rc == SHARD_UNREACHABLE)
		return errno != EACCES && errno != EPERM;
	return rc == SHARD_CLOSED || rc == SHARD_TIMEOUT || rc == SHARD_BUSY;
}

/* How long the pause before the next try is. 0: there is no time for one. */
static uint64_t look_pause(struct look *l)
{
	uint64_t now = clock_ns();

	l->pause_ns = l->pause_ns == 0 ? PAUSE_LEAST_NS : 2 * l->pause_ns;
	if (l->pause_ns > PAUSE_MOST_NS)
		l->pause_ns = PAUSE_MOST_NS;
	if (now >= l->until_ns)
		return 0;
	return l->pause_ns < l->until_ns - now ? l->pause_ns : l->until_ns - now;
}

/* A copy of the thread's sentence, to be a part of the next one. */
static const char *said(char text[320])
{
	snprintf(text, 320, "%s", shard_error());
	return text;
}

static enum shard_status look_over(const struct look *l, enum shard_status rc, const char *address)
{
	int error = errno;
	char last[320];

	said(last);
	errno = error;
	return text_fail(rc, "looked %.1f s for a daemon at %.160s, and tried %u times: %s",
			 (double)(clock_ns() - l->began_ns) / 1e9, address, l->tries, last);
}

enum shard_status again_first(const struct shard_connect_opts *o, struct shard_client **out)
{
	struct look l = {.began_ns = clock_ns()};
	uint64_t each = o->timeout_ms > 0 ? (uint64_t)o->timeout_ms : CLIENT_CONNECT_MS, pause;
	enum shard_status rc;

	l.until_ns = l.began_ns + (o->look_ms > 0 ? again_look_ns(o->look_ms) : 0);
	for (;;) {
		uint64_t until = clock_ns() + each * NS_PER_MS;

		l.tries++;
		rc = client_connect(o, NULL, until, out);
		if (rc == SHARD_OK || o->look_ms <= 0 || !passes(rc))
			return rc;
		if ((pause = look_pause(&l)) == 0)
			return look_over(&l, rc, o->address);
		pump_nap(NULL, pause);
	}
}

/* --- what the daemon has of the models --- */

bool again_heals(const struct shard_client *c)
{
	if (c->look_ns == 0)
		return false;
	list_each(it, (struct list *)(uintptr_t)&c->models) {
		const struct shard_model *m = list_of(it, struct shard_model, node);

		if (m->joined || m->join_request != NULL)
			return true;
	}
	return false;
}

static struct shard_model *model_named(struct list *models, const char *name)
{
	list_each(it, models) {
		struct shard_model *m = list_of(it, struct shard_model, node);

		if (strcmp(m->spec.name, name) == 0)
			return m;
	}
	return NULL;
}

/* The next model of c that n is not attached to. False: there is none. */
static bool next_name(struct shard_client *c, struct shard_client *n, char *name)
{
	bool found = false;

	pthread_mutex_lock(&c->lock);
	list_each(it, &c->models) {
		const struct shard_model *m = list_of(it, struct shard_model, node);

		if (m->lost.status != SHARD_OK || !m->defined ||
		    model_named(&n->models, m->spec.name) != NULL)
			continue;
		strcpy(name, m->spec.name);
		found = true;
		break;
	}
	pthread_mutex_unlock(&c->lock);
	return found;
}

/* The handle is over, with the thread's sentence. */
static void give_up(struct shard_client *c, const char *name, enum shard_status rc)
{
	struct shard_model *m;
	char last[320];

	said(last);
	pthread_mutex_lock(&c->lock);
	if ((m = model_named(&c->models, name)) != NULL)
		err_set(&m->lost, rc,
			"\"%s\" is not at shardd at %.100s any more: %.250s (shard_detach() this "
			"handle)",
			name, c->address, last);
	pthread_mutex_unlock(&c->lock);
}

/* Attaches n to all models of c. SHARD_OK: each is there, or is over. */
static enum shard_status attach_all(struct shard_client *c, struct shard_client *n, uint64_t until)
{
	char name[LAYOUT_MODEL_NAME_MAX + 1];
	uint64_t unknown = clock_ns() + UNKNOWN_NS;
	struct shard_model *m;
	enum shard_status rc;

	while (next_name(c, n, name)) {
		uint64_t now = clock_ns();

		errno = 0; /* Where it is refused, it is not by the system. */
		n->timeout_ms = now < until ? (int64_t)((until - now) / NS_PER_MS) + 1 : 1;
		rc = shard_attach(n, name, &m);
		if (rc == SHARD_NOT_FOUND && now < unknown && now < until) {
			pump_nap(n, PAUSE_LEAST_NS);
			continue;
		}
		if (rc == SHARD_NOT_FOUND || rc == SHARD_DENIED || rc == SHARD_LOST)
			give_up(c, name, rc);
		else if (rc != SHARD_OK)
			return rc;
	}
	return SHARD_OK;
}

/* Compares the definition that the trainer knows with the daemon's. */
static enum shard_status compare(const struct shard_model *m, const struct shard_model *t,
				 struct err *e)
{
	enum shard_status st = layout_compare(m->layout, t->layout, "there", e);
	const char *what = m->spec.image != t->spec.image || m->spec.grad != t->spec.grad
				   ? "types of image or gradients"
			   : m->spec.groups_nr != t->spec.groups_nr   ? "groups"
			   : m->staleness != t->staleness             ? "max_staleness"
			   : m->staleness_after != t->staleness_after ? "staleness_after"
								      : NULL;

	if (st != SHARD_OK || what == NULL)
		return st;
	return err_set(e, SHARD_MISMATCH, "other %s", what);
}

/* Numbers of models repeat where a coordinator has lost its state folder. */
static bool same_model(const struct shard_model *m, const struct shard_model *t)
{
	return t->id == m->id && (t->born == m->born || t->born == 0 || m->born == 0);
}

/* t is what n found under the name of m. */
static void take(struct shard_model *m, struct shard_model *t)
{
	struct err e;

	m->created = false; /* What was not sealed counts as unwritten. */
	if (compare(m, t, &e) != SHARD_OK)
		err_set(&m->lost, SHARD_MISMATCH,
			"\"%s\" at shardd at %.100s is defined in another way there (%.200s): "
			"use one definition (shard_detach() this handle)",
			m->spec.name, m->client->address, e.text);
	else if (!same_model(m, t))
		err_set(&m->lost, SHARD_NOT_FOUND,
			"the model that this trainer was in was dropped, and \"%s\" at shardd at "
			"%.100s is another one (shard_detach() this handle)",
			m->spec.name, m->client->address);
	else if (t->lost.status != SHARD_OK)
		m->lost = t->lost;
	else
		world_found(m, t);
}

/* --- the new connection --- */

/* The stream of n becomes that of c. Enters and leaves with the lock of c. */
static enum shard_status adopt(struct shard_client *c, struct shard_client *n)
{
	enum shard_status rc;

	list_each(it, &n->models) {
		struct shard_model *t = list_of(it, struct shard_model, node),
				   *m = model_named(&c->models, t->spec.name);

		if (m != NULL)
			take(m, t);
		handle_free(t);
	}
	stream_free(&c->stream); /* Gives the bodies back that were still queued. */
	c->landing = NULL;
	c->stream = n->stream;
	n->stream = NULL;
	stream_owner(c->stream, c);
	c->tag = n->tag;
	c->wire_minor = n->wire_minor;
	c->over.status = c->last_words.status = SHARD_OK;
	handle_reap(c);
	c->stop = false;
	if ((rc = client_watch(c)) == SHARD_OK && (rc = pump_start(c)) == SHARD_OK)
		return SHARD_OK;
	err_set(&c->over, SHARD_CLOSED, "%.400s", shard_error());
	return rc;
}

static enum shard_status other_run(const struct shard_client *c, const struct shard_client *n)
{
	if (c->run_id[0] == 0 || n->run_id[0] == 0 || strcmp(c->run_id, n->run_id) == 0)
		return SHARD_OK;
	return text_fail(
		SHARD_MISMATCH,
		"shardd at %.100s is of run \"%s\" now, and this trainer is in run \"%s\": "
		"start the daemon of that one again, or the trainer",
		c->address, n->run_id, c->run_id);
}

static enum shard_status interrupted(const struct shard_client *c, const struct wait *w)
{
	return atomic_load(c->interrupts) == w->interrupts
		       ? SHARD_OK
		       : text_fail(
				 SHARD_INTERRUPTED,
				 "shard_interrupt() was called after %.1f s of looking for shardd "
				 "at %.100s",
				 wait_seconds(w), c->address);
}

/* Without the lock. The caller frees *n in any case. */
static enum shard_status find(struct shard_client *c, struct look *l, const struct wait *w,
			      struct shard_client **n)
{
	const struct shard_connect_opts o = {
		.size = sizeof(o), .address = c->address, .secret = c->secret, .tls = c->tls};
	uint64_t pause;
	enum shard_status rc;

	for (;;) {
		uint64_t until = clock_ns() + TRY_NS;

		l->tries++;
		rc = client_connect(&o, c, until < l->until_ns ? until : l->until_ns, n);
		if (rc == SHARD_OK && (rc = other_run(c, *n)) != SHARD_OK)
			return rc;
		if (rc == SHARD_OK && (rc = attach_all(c, *n, l->until_ns)) == SHARD_OK)
			return rc;
		if (rc == SHARD_INTERRUPTED || !passes(rc))
			return rc;
		shard_disconnect(n);
		if ((pause = look_pause(l)) == 0)
			break;
		pump_nap(c, pause);
		if ((rc = interrupted(c, w)) != SHARD_OK)
			return rc;
	}
	look_over(l, rc, c->address);
	return SHARD_UNREACHABLE;
}

/* Somebody else is at it. SHARD_AGAIN: nobody is any more. */
static enum shard_status wait_for_other(struct shard_client *c, uint64_t until,
					const struct wait *w)
{
	enum shard_status rc = SHARD_OK;

	while (c->healing && rc == SHARD_OK) {
		if (clock_ns() >= until)
			return text_fail(
				SHARD_UNREACHABLE,
				"another call looks for shardd at %.100s still, after %.1f "
				"s",
				c->address, wait_seconds(w));
		pump_moves(c, until);
		rc = interrupted(c, w);
	}
	return rc == SHARD_OK ? SHARD_AGAIN : rc;
}

enum shard_status again_connect(struct shard_client *c, uint64_t until_ns, const struct wait *w)
{
	struct look l = {.began_ns = clock_ns(), .until_ns = until_ns};
	struct shard_client *n = NULL;
	enum shard_status rc;
	char last[320];

	if (c->healing && (rc = wait_for_other(c, until_ns, w)) != SHARD_AGAIN)
		return rc;
	if (c->over.status == SHARD_OK)
		return SHARD_OK;
	c->healing = true;
	pump_drain(c);
	client_leave(c);
	pump_stop(c); /* The thread has ended by itself. */
	rc = find(c, &l, w, &n);
	if (rc != SHARD_OK && rc != SHARD_INTERRUPTED)
		said(last);
	pthread_mutex_lock(&c->lock);
	if (rc == SHARD_OK)
		rc = adopt(c, n);
	else if (rc != SHARD_INTERRUPTED)
		text_fail(rc, "%.230s. %s", c->over.text, last);
	c->healing = false;
	pump_moved(c);
	/* It has no thread, and nobody else knows it. */
	shard_disconnect(&n);
	return rc;
}
