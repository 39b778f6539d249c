/* SPDX-License-Identifier: Apache-2.0 */
/* Dropping a model. manage.c calls on the coordinator, define.c for a definition that failed, and
 * dispatch.c when the coordinator's MODEL_DROP arrives at another node. Happy path: the model
 * leaves server.models, and its trainers get LOST with SHARD_NOT_FOUND. A thread removes its file,
 * and an elected coordinator makes a value durable that does not name it, so that no restart brings
 * it back. Then the other nodes are told. When the last job and frame
 * is done, a thread frees the memory, the budget gets it back, and each node answers. A node that
 * was away keeps the model, which has no effect, until it names the model to the coordinator (a
 * PING with its number) and is told. A file that cannot be removed is tried again at each beat. The
 * answer says so, or names a node that fell. */
#include "control/drop.h"
#include "model/definitions.h"
#include "model/lead.h"

#include "data/apply.h"
#include "data/device_memory.h"
#include "data/feed.h"
#include "base/check.h"
#include "model/watch.h"
#include "store/tier_gpu.h"
#include "base/clock.h"
#include "control/define.h"
#include "control/known.h"
#include "control/manage.h"
#include "control/unmade.h"
#include "model/resume.h"
#include "warm/warm.h"
#include "link/peer.h"
#include "model/view_file.h"
#include "data/mr.h"
#include "link/call.h"
#include "link/session.h"
#include "model/join.h"
#include "control/transfer.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct drop {
	struct list link; /* In server.drops. */
	struct model *m;  /* NULL: its memory here is being freed, or is free. */
	bool going;       /* A thread frees the memory. */
	uint32_t id;
	char name[72], why[ERR_TEXT_BYTES];
	bool asked, manage, force; /* asked: requester is to be answered. manage: it sent a MANAGE,
				      otherwise a MODEL_DROP. */
	struct caller requester;
	struct round told; /* The other nodes, which are told once the file is gone. */
	uint64_t since_ns;
	/* file_due: the model's file is still there. file_working: a thread of libuv's pool is
	 * removing it. The thread uses only .dir, .id, .file_st and .file_now. */
	bool file_due, file_working;
	bool anew;      /* The model is made again here after it. */
	bool value_due; /* The value that names it is not known to be replaced yet. */
	uv_work_t work;
	struct static_dir *dir;
	struct server *server;
	enum shard_status file_st;
	struct err file_now;
	struct err file_e; /* Why the file is still there. SHARD_OK: its removal has not failed. */
	struct err e;      /* The error for requester: a node that fell, or the disk. */
};

/* --- here --- */

static void put_out(struct model *m, struct session *t, const struct err *e)
{
	struct core_id over = {.generation = m->generation + 1};
	Shard__Why body = SHARD__WHY__INIT;

	CHECK(m->dropping);
	body.why = (char *)(uintptr_t)e->text;
	body.status = e->status;
	if (t->role == ROLE_TRAINER && t->uses && !m->defining)
		model_tell(t, OP_LOST, m, &over, &body.base);
	if (t->trainer->model != m)
		return;
	trainer_left(t->trainer); /* Answers a LEAVE that was waiting. */
	trainer_detach(t->trainer);
}

/* The model is made anew here: who has joined it connects and attaches again, as after a restart of
 * the daemon. */
static void put_off(struct model *m, struct session *t, const struct err *e)
{
	bool joins = t->trainer->join_model == m;

	if (t->trainer->model != m && !joins)
		return;
	t->trainer->join_model = NULL;
	if (!joins) {
		trainer_left(t->trainer);
		trainer_detach(t->trainer);
	}
	session_close(t, e->status, e->text);
}

static void close_outboxes(struct model *m)
{
	for (uint16_t n = 0; n < m->server->nodes_nr; n++)
		apply_node_gone(m, n);
}

static void put_all_out(struct model *m, const struct err *e)
{
	struct server *s = m->server;

	list_each(it, &s->conns.sessions) {
		struct trainer *t = list_of(it, struct session, link)->trainer;

		if (t->join_model == m && !m->memory.anew) {
			session_refuse(t->session, t->join_tag, e);
			t->join_model = NULL;
		}
	}
	list_each(it, &s->conns.sessions)
		if (m->memory.anew)
			put_off(m, list_of(it, struct session, link), e);
		else
			put_out(m, list_of(it, struct session, link), e);
}

/* Begins a drop. From here on no frame, event or name finds the model. */
static void drop_start(struct drop *d, struct model *m, const char *why)
{
	struct server *s = m->server;
	struct err e;

	CHECK(!m->dropping && !s->later.in_event);
	err_set(&e, m->memory.anew ? SHARD_CLOSED : SHARD_NOT_FOUND, "%s", why);
	m->dropping = true;
	list_remove(&m->link);
	model_leaves(m);
	d->server = s;
	d->m = m;
	d->id = m->id;
	d->since_ns = clock_ns();
	snprintf(d->name, sizeof(d->name), "%s", m->name);
	list_push(&s->drops, &d->link);
	if (m->core != NULL)
		model_close_attempt(m);
	else
		model_give_up(m); /* A thread may still be making its memory. */
	feed_end(m);              /* What is not handed out yet never will be. */
	landing_end(&m->img.landing);
	WATCH_TELL(m->server, dropping, m, &e);
	define_over(m, &e);
	define_fail(m, &e);
	manage_fail(m, &e);
	put_all_out(m, &e);
	if (m->core != NULL) {
		close_outboxes(m);
		mr_drop(m);
	}
	if (m->memory.tier_lost)
		tier_gpu_forsake(m->tier); /* Nobody else is left who would hear of it. */
	log_line(s->log, LOG_LEVEL_WARN,
		 m->memory.anew ? "event=copy_ends model=%s id=%u generation=%u step=%lu why=%s"
				: "event=drop model=%s id=%u generation=%u step=%lu why=%s",
		 m->name, m->id, m->generation, (unsigned long)m->step, why);
	d->anew = m->memory.anew;
	server_deadline(s);
	server_wake(s, 1);
}

static void forget_images(struct server *s, const struct model *m)
{
	list_each(it, &s->conns.sessions) {
		struct trainer *t = list_of(it, struct session, link)->trainer;

		if (t->image.model == m) /* No frame of it is being sent. */
			send_queue_free(&t->image);
	}
}

static void say_gone(const struct drop *d)
{
	CHECK(d->m == NULL && !d->going);
	log_line(d->server->log, LOG_LEVEL_INFO,
		 d->anew ? "event=copy_ended model=%s id=%u seconds=%.1f"
			 : "event=dropped model=%s id=%u seconds=%.1f",
		 d->name, d->id, (double)(clock_ns() - d->since_ns) / NS_PER_SEC);
}

static void memory_gone(void *arg)
{
	struct drop *d = arg;

	d->going = false;
	say_gone(d);
	server_wake(d->server, 1);
}

static void give_memory_back(struct drop *d)
{
	CHECK(d->m != NULL && d->m->dropping && !d->going);
	forget_images(d->server, d->m);
	d->going = true;
	model_free_later(&d->m, memory_gone, d);
}

/* --- to and from other nodes --- */

static void answer(struct server *s, struct drop *d)
{
	struct wire_head h = {.op = OP_MODEL_DROP, .model = d->id};

	if (!d->asked)
		return;
	d->asked = false;
	if (d->manage)
		manage_answer(s, &d->requester, d->e.status != SHARD_OK ? &d->e : NULL);
	else
		caller_answer(s, &d->requester, &h, NULL);
}

/* Would a restart bring it back? */
static bool named(const struct drop *d)
{
	return d->file_due || d->value_due;
}

static void finish(struct server *s, struct drop *d)
{
	if (d->m != NULL || d->going || d->told.out != 0 || named(d))
		return;
	answer(s, d);
	list_remove(&d->link);
	free(d);
	server_wake(s, 0); /* A DEFINE of that name may wait for it. */
}

static const struct round_ops told;

static void tell(struct server *s, struct drop *d, uint16_t node, Shard__Why *why)
{
	struct wire_head h = {.op = OP_MODEL_DROP, .model = d->id};

	if (round_ask(&d->told, s, node, &h, &why->base, NULL, &d->e) == SHARD_OK)
		return;
	if (s->peer[node]->up) /* With the next link-up the node names its models. */
		peer_close(s->peer[node], &d->e);
	if (d->force || server_gone(s, node)) /* The node is told when it is back. */
		d->e.status = SHARD_OK;
}

/* Tells the other nodes. Not before, because a start that brings it back needs the chunks of the
 * other nodes. */
static void tell_all(struct server *s, struct drop *d)
{
	Shard__Why body = SHARD__WHY__INIT;

	CHECK(!named(d));
	body.why = d->why;
	d->told.ops = &told;
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (n != s->self)
			tell(s, d, n, &body);
}

/* If this node does not lead any more, who leads may still have the model, and tells what is left
 * of it. */
static void forgotten(void *arg, const struct err *e)
{
	struct drop *d = arg;

	CHECK(d->value_due);
	d->value_due = false;
	if (e != NULL)
		err_set(&d->e, SHARD_UNREACHABLE,
			"\"%s\" is out of use on node %s, but it is not known whether the cluster "
			"forgets it: %.250s: drop it again",
			d->name, members_name(d->server, d->server->self), e->text);
	else
		tell_all(d->server, d);
	server_wake(d->server, 1);
}

/* The memory is kept until the file is gone, so that a start that finds the file finds the memory
 * too. */
static void file_run(uv_work_t *w)
{
	struct drop *d = w->data;

	d->file_st = static_drop(d->dir, d->id, &d->file_now);
}

static void file_done(uv_work_t *w, int status)
{
	struct drop *d = w->data;
	struct server *s = d->server;

	CHECK(status == 0 && d->file_working && s->persists > 0); /* It is never cancelled. */
	d->file_working = false;
	s->persists--;
	d->file_due = d->file_st != SHARD_OK;
	if (d->file_due && d->file_e.status == SHARD_OK)
		log_line(s->log, LOG_LEVEL_ERROR, "event=drop_file model=%s why=%s", d->name,
			 d->file_now.text);
	if (d->file_due) { /* The beat tries again. */
		d->file_e = d->file_now;
		return;
	}
	if (d->file_e.status != SHARD_OK)
		log_line(s->log, LOG_LEVEL_INFO, "event=drop_file_gone model=%s seconds=%.1f",
			 d->name, (double)(clock_ns() - d->since_ns) / NS_PER_SEC);
	d->value_due = true;
	lead_forget(s, d->id, forgotten, d);
}

static void file_remove(struct drop *d)
{
	/* A thread that is writing the file would make it again. */
	if (!d->file_due || d->file_working || (d->m != NULL && persist_busy(d->m)))
		return;
	d->file_working = true;
	d->work.data = d;
	d->server->persists++;
	CHECK(uv_queue_work(d->server->loop, &d->work, file_run, file_done) == 0);
}

enum shard_status drop_everywhere(struct model *m, const struct caller *requester, bool force,
				  const char *why, struct err *e)
{
	struct server *s = m->server;
	struct drop *d;

	CHECK(server_leads(m->server));
	if (s->calls.nr + s->nodes_nr > SERVER_CALLS_MAX)
		return err_set(e, SHARD_BUSY,
			       "%u requests to other nodes are open already: try again",
			       s->calls.nr);
	if ((d = calloc(1, sizeof(*d))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	d->file_due = !m->defining; /* A model has no file before it is defined. */
	d->dir = s->dir;
	warm_dropped(s->warm, m->id, true);
	d->asked = d->manage = true;
	d->force = force;
	d->requester = *requester;
	snprintf(d->why, sizeof(d->why), "%s", why);
	drop_start(d, m, why);
	if (d->file_due)
		file_remove(d);
	else
		tell_all(s, d);
	return SHARD_OK;
}

enum shard_status drop_here(struct model *m, const char *why, struct err *e)
{
	CHECK(!server_leads(m->server));
	return drop_alone(m, why, e);
}

enum shard_status drop_alone(struct model *m, const char *why, struct err *e)
{
	struct drop *d = calloc(1, sizeof(*d));

	if (d == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory to drop \"%s\"", m->name);
	drop_start(d, m, why);
	return SHARD_OK;
}

static struct drop *find(const struct server *s, uint32_t model)
{
	list_each(it, (struct list *)(uintptr_t)&s->drops)
		if (list_of(it, struct drop, link)->id == model)
			return list_of(it, struct drop, link);
	return NULL;
}

enum shard_status drop_unmade(struct server *s, const char *name, const struct caller *requester,
			      const char *why, struct err *e)
{
	struct unmade *u = unmade_named(s, name);
	struct drop *d;

	CHECK(server_leads(s) && u != NULL);
	if (u->busy || find(s, u->id) != NULL || lead_on(s) || model_find(s, u->id) != NULL ||
	    model_making(s, u->id) != NULL)
		return err_set(e, SHARD_BUSY, "\"%s\" is just being made anew: try again", name);
	if ((d = calloc(1, sizeof(*d))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory to drop \"%s\"", name);
	*d = (struct drop){.server = s,
			   .id = u->id,
			   .dir = s->dir,
			   .file_due = true,
			   .asked = true,
			   .manage = true,
			   .force = true,
			   .requester = *requester,
			   .since_ns = clock_ns()};
	snprintf(d->name, sizeof(d->name), "%s", name);
	snprintf(d->why, sizeof(d->why), "%s", why);
	list_push(&s->drops, &d->link);
	log_line(s->log, LOG_LEVEL_WARN, "event=drop model=%s id=%u why=%s", name, d->id, why);
	unmade_end(u);
	file_remove(d);
	return SHARD_OK;
}

void drop_told(struct peer *p, const struct wire_head *h, const Shard__Why *body)
{
	struct server *s = p->server;
	struct wire_head reply = {
		.op = OP_MODEL_DROP, .flags = WIRE_REPLY, .model = h->model, .attempt = h->attempt};
	struct model *m = model_find(s, h->model);
	struct drop *d;
	struct err e;

	if (m == NULL)
		m = model_making(s, h->model);
	if (m != NULL && (p->node != server_coordinator(s) || resume_check(m, p, &e) != SHARD_OK)) {
		if (p->node != server_coordinator(s))
			err_set(&e, SHARD_BAD_STATE, "node %s does not coordinate",
				members_name(s, p->node));
		log_line(s->log, LOG_LEVEL_ERROR, "event=drop_refused model=%s why=%s", m->name,
			 e.text);
		if (h->attempt != 0)
			peer_refuse(p, h->attempt, &e);
		return;
	}
	d = m != NULL ? calloc(1, sizeof(*d)) : find(s, h->model);
	if (d == NULL && m == NULL && p->node == server_coordinator(s))
		definitions_forget(s, h->model);
	if (m == NULL && h->attempt == 0)
		return;
	if (m == NULL && (d == NULL || p->node != server_coordinator(s))) {
		peer_tell(s, p->node, &reply, NULL);
		return;
	}
	if (d == NULL)
		return; /* without memory: it is told again after the next link-up */
	d->asked = h->attempt != 0;
	d->requester = caller_node(p, h->attempt);
	if (m == NULL)
		return; /* this node drops it by itself already, as after a link that fell */
	drop_start(d, m,
		   body != NULL && body->why[0] != 0 ? body->why
						     : "dropped while this node was away");
}

static void drop_answered(struct round *r, struct server *s, const struct call *c,
			  const struct wire_head *h, const void *body, const struct err *e)
{
	struct drop *d = list_of(r, struct drop, told);

	(void)h, (void)body;
	if (e != NULL && !d->force && e->status != SHARD_UNREACHABLE)
		err_set(&d->e, e->status,
			"\"%s\" is dropped, but node %s has not given its memory back: %.300s",
			d->name, members_name(s, c->node), e->text);
	else if (e != NULL && !d->force)
		err_set(&d->e, SHARD_UNREACHABLE,
			"\"%s\" is dropped, but node %s fell before it gave its memory back: "
			"%.300s; it does when it is back",
			d->name, members_name(s, c->node), e->text);
	server_wake(s, 1); /* drop_beat() finishes the drop. */
}

static const struct round_ops told = {.answered = drop_answered};

bool drop_in_hand(const struct server *s, const char *name)
{
	list_each(it, (struct list *)(uintptr_t)&s->drops)
		if (strcmp(list_of(it, struct drop, link)->name, name) == 0)
			return true;
	return false;
}

bool drop_in_hand_id(const struct server *s, uint32_t model)
{
	return find(s, model) != NULL;
}

void drop_compare(struct server *s)
{
	list_each(it, &s->models) {
		struct wire_head h = {.op = OP_PING, .model = list_of(it, struct model, link)->id};

		peer_tell(s, server_coordinator(s), &h, NULL);
	}
	for (uint32_t id = 0; (id = known_next(s, id)) != 0;) {
		struct wire_head h = {
			.op = OP_PING, .model = id, .attempt = !definitions_has(s, id)};

		if (!drop_in_hand_id(s, id))
			peer_tell(s, server_coordinator(s), &h, NULL);
	}
	list_each(it, &s->anew.unmade) { /* Nobody may want them any more. */
		struct wire_head h = {.op = OP_PING, .model = list_of(it, struct unmade, link)->id};

		if (model_find(s, h.model) == NULL)
			peer_tell(s, server_coordinator(s), &h, NULL);
	}
}

void drop_unknown(struct peer *p, uint32_t model, bool has)
{
	struct wire_head h = {.op = OP_MODEL_DROP, .model = model};
	const struct drop *d = find(p->server, model);
	const struct unmade *u = unmade_find(p->server, model);

	if (d != NULL && named(d))
		return; /* it is told later */
	if (u != NULL && !u->over)
		return; /* it is made anew here, of the other node's copy */
	/* A coordinator that was elected without its memory does not know what it has to lead. */
	if (d == NULL && has && known_elsewhere(p->server, model))
		return;
	if (!has && !lead_forgot(p->server, model))
		return;
	if (server_leads(p->server) && model_find(p->server, model) == NULL &&
	    model_making(p->server, model) == NULL)
		peer_tell(p->server, p->node, &h, NULL);
}

/* --- time --- */

/* No job, frame or thread uses the model any more. */
static bool idle(const struct model *m)
{
	return m->attempt.busy == 0 && m->memory.tier_jobs == 0 && m->img.sends == 0 &&
	       !persist_busy(m) && watch_quiet(m) && !model_working(m) &&
	       (m->store == NULL || store_renewals(m->store) == 0) &&
	       (m->mr == NULL || mr_quiet(m, clock_ns()));
}

/* Answers requester that the drop is not finished after heartbeat_timeout, and why. */
static void answer_late(struct server *s, struct drop *d, uint64_t now_ns)
{
	double seconds = (double)(now_ns - d->since_ns) / NS_PER_SEC;
	uint16_t n = s->self;

	for (uint16_t i = 0; i < s->nodes_nr; i++)
		if (d->told.out >> i & 1)
			n = i;
	if (d->file_due && d->file_e.status != SHARD_OK)
		err_set(&d->e, SHARD_SYSTEM,
			"\"%s\" is out of use, but its file stays: %.250s. That is tried again "
			"each second. If the daemon ends "
			"before, "
			"the model is there again",
			d->name, d->file_e.text);
	else if (d->value_due)
		err_set(&d->e, SHARD_TIMEOUT,
			"\"%s\" is out of use, but for %.1f s the nodes that vote have not agreed "
			"to forget it. If this node ends before, the model is there again",
			d->name, seconds);
	else
		err_set(&d->e, SHARD_TIMEOUT,
			"\"%s\" is dropped, but node %s has not given its memory back for %.1f s",
			d->name, members_name(s, n), seconds);
	answer(s, d);
}

void drop_beat(struct server *s, uint64_t now_ns)
{
	struct err e;

	/* Who was elected may have been asked before it knew so, and has not answered. */
	if (lead_on(s) && !server_leads(s) && lead_known(s, &e) == SHARD_OK)
		drop_compare(s);
	list_each(it, &s->drops) {
		struct drop *d = list_of(it, struct drop, link);

		file_remove(d);
		if (d->m != NULL && !named(d) && idle(d->m))
			give_memory_back(d);
		if (d->asked && d->manage && now_ns - d->since_ns > s->conf->heartbeat_timeout_ns &&
		    (d->m != NULL || d->going || d->told.out != 0 || named(d)))
			answer_late(s, d, now_ns);
		finish(s, d);
	}
}

void drop_stop(struct server *s)
{
	list_each(it, &s->drops) {
		const struct drop *d = list_of(it, struct drop, link);

		if (d->m != NULL && d->m->tier != NULL) {
			device_memory_stop(d->m);
			tier_stop(d->m->tier);
		}
	}
}

void drop_free(struct server *s)
{
	list_each(it, &s->drops) {
		struct drop *d = list_of(it, struct drop, link);

		CHECK(!d->going && !d->value_due);
		if (d->m != NULL) {
			d->m->keep = d->file_due; /* A model whose file is still there keeps its
						     memory for the next start. */
			forget_images(s, d->m);
			model_free(&d->m);
			say_gone(d);
		}
		round_end(&d->told, s);
		list_remove(&d->link);
		free(d);
	}
}
