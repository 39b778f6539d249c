// SPDX-License-Identifier: Apache-2.0
/* Saving and restoring. The daemons do it. This file asks, again if what is against it passes, as
 * that nobody coordinates yet, and waits. A save may take hours, so its ticket is apart from the
 * others. Only a caller that asks for just this ticket waits for it, and detaching or disconnecting
 * does not. A restore is waited for as long as the daemon reports its progress. It fails with the
 * daemon's refusal in its words (a path with ENOSPC, a damaged file, a model that has weights),
 * when the daemon is silent, and when the connection ends. */
#include "ckpt.h"

#include "ticket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	SAVES_OPEN = 64, /* Saves under way at one time. */
	SAVES_KEPT = 64, /* Saves that ended and are remembered. */
	PATH_MAX_BYTES = 1023,
};

typedef unsigned long long ull;

struct save {
	struct list node;
	shard_ticket no;
	uint32_t slot;     /* Index in save_no. */
	struct request *r; /* NULL: it ended. */
	struct err end;
};

/* --- asking --- */

static enum shard_status ask_check(const struct ckpt_ask *a, const char *what)
{
	const char *const texts[] = {a->dir, a->tag, a->name, a->client};
	const char *const names[] = {"dir", "tag", "name", "client"};

	for (size_t i = 0; i < NR(texts); i++)
		if (texts[i] != NULL && strlen(texts[i]) > PATH_MAX_BYTES)
			return text_fail(SHARD_BAD_ARG,
					 "%s: %s has %zu bytes, at most %d are possible", what,
					 names[i], strlen(texts[i]), (int)PATH_MAX_BYTES);
	return SHARD_OK;
}

/* A daemon that does not know the field would write a checkpoint without the files. */
static enum shard_status client_known(const struct shard_client *c, const struct ckpt_ask *a)
{
	if (a->client == NULL || a->client[0] == 0)
		return SHARD_OK;
	if (c->tcp)
		return text_fail(
			SHARD_DENIED,
			"client folder %.300s: the daemon has to know whose the files are, "
			"which only a unix socket says: save by a trainer that has one",
			a->client);
	if (c->wire_minor < WIRE_CLIENT)
		return text_fail(
			SHARD_UNSUPPORTED,
			"client folder %.300s: the release of shardd at %s does not know of "
			"such folders: upgrade it",
			a->client, c->address);
	return SHARD_OK;
}

/* protobuf-c's structs are not const, but packing only reads. */
static char *word(const char *s)
{
	return (char *)(uintptr_t)(s ? s : "");
}

static enum shard_status send_save(struct request *r, struct wire_head h, const struct ckpt_ask *a,
				   struct wait *w)
{
	Shard__Save q = SHARD__SAVE__INIT;

	q.name = word(a->name);
	q.dir = word(a->dir);
	q.tag = word(a->tag);
	q.fresh = a->fresh;
	q.client = word(a->client);
	return request_send(r, h, &q.base, w);
}

static enum shard_status send_restore(struct request *r, const struct ckpt_ask *a, struct wait *w)
{
	Shard__Restore q = SHARD__RESTORE__INIT;

	q.dir = word(a->dir);
	q.tag = word(a->tag);
	q.name = word(a->name);
	q.force = a->force;
	q.pid = (uint32_t)getpid();
	return request_send(r, (struct wire_head){0}, &q.base, w);
}

bool ckpt_heard(struct shard_client *c, const struct wire_head *h, const Shard__Progress *p)
{
	static const uint16_t ops[] = {OP_SAVE, OP_RESTORE, OP_VERIFY};
	struct wire_head q = *h;
	struct request *r = NULL;

	for (size_t i = 0; i < NR(ops) && r == NULL; i++) {
		q.op = ops[i];
		r = request_find(c, &q);
	}
	if (r == NULL)
		return false; /* Its answer came before, or its caller gave up. */
	r->heard_ns = clock_ns();
	r->done_bytes = p->done_bytes;
	r->total_bytes = p->total_bytes;
	return true;
}

enum shard_status ckpt_answer_wait(struct request *r, const struct ckpt_ask *a, struct wait *w)
{
	uint64_t heard = 0;
	enum shard_status rc;

	while (!r->answered) {
		if (r->heard_ns != heard) {
			heard = r->heard_ns;
			w->deadline_ns = heard + (uint64_t)a->timeout_ms * NS_PER_MS;
			if (a->progress != NULL)
				a->progress(a->arg, r->done_bytes, r->total_bytes);
		}
		if ((rc = request_pump(r, w)) != SHARD_OK && !r->answered)
			return rc;
	}
	return request_wait(r, w);
}

static enum shard_status silent(const char *what, const struct ckpt_ask *a, const struct request *r,
				const struct wait *w)
{
	return text_fail(SHARD_TIMEOUT,
			 "%s of \"%s\" waited %.1f s, the last %.1f without a word from shardd at "
			 "%s: %llu of %llu bytes",
			 what,
			 a->name  ? a->name
			 : a->dir ? a->dir
				  : "?",
			 wait_seconds(w),
			 (double)(clock_ns() - (r->heard_ns > 0 ? r->heard_ns : w->began_ns)) / 1e9,
			 r->c->address, (ull)r->done_bytes, (ull)r->total_bytes);
}

static enum shard_status no_answer(const struct request *r)
{
	return text_fail(SHARD_PROTOCOL, "shardd at %s answered %s with what cannot be read",
			 r->c->address, wire_op(r->op)->name);
}

enum shard_status ckpt_save(struct shard_client *c, const struct ckpt_ask *a,
			    struct ckpt_answer *out)
{
	struct request *r = NULL;
	Shard__Saved *s = NULL;
	enum shard_status rc = ask_check(a, "save");
	uint64_t pause_ns = 0;
	struct wait w;

	if (rc != SHARD_OK || (rc = client_known(c, a)) != SHARD_OK)
		return rc;
	wait_begin(c, &w, a->timeout_ms);
	do {
		request_free(r);
		if ((r = request_new(c, OP_SAVE, 0)) == NULL)
			return SHARD_SYSTEM;
		if ((rc = send_save(r, (struct wire_head){0}, a, &w)) == SHARD_OK)
			rc = ckpt_answer_wait(r, a, &w);
	} while ((rc = request_again(r, &w, &pause_ns, rc)) == SHARD_AGAIN);
	if (rc == SHARD_OK && (s = shard__saved__unpack(NULL, r->body_bytes, r->body)) == NULL)
		rc = no_answer(r);
	else if (rc == SHARD_TIMEOUT)
		silent("save", a, r, &w);
	if (s != NULL) {
		*out = (struct ckpt_answer){.step = s->step,
					    .bytes = s->bytes,
					    .shared_bytes = s->shared_bytes,
					    .write_ns = s->write_ns,
					    .hold_ns = s->hold_ns};
		snprintf(out->path, sizeof(out->path), "%s", s->path);
		shard__saved__free_unpacked(s, NULL);
	}
	request_free(r);
	return rc;
}

static enum shard_status restore_answer(const struct request *r, struct ckpt_answer *out)
{
	Shard__Defined *d = shard__defined__unpack(NULL, r->body_bytes, r->body);
	enum shard_status rc = d != NULL && d->spec != NULL ? SHARD_OK : no_answer(r);

	if (rc == SHARD_OK) {
		*out = (struct ckpt_answer){.step = d->step, .bytes = r->total_bytes};
		snprintf(out->name, sizeof(out->name), "%s", d->spec->name);
	}
	if (d != NULL)
		shard__defined__free_unpacked(d, NULL);
	return rc;
}

enum shard_status ckpt_restore(struct shard_client *c, const struct ckpt_ask *a,
			       struct ckpt_answer *out, struct request **reply)
{
	enum shard_status rc = ask_check(a, "restore");
	struct request *r = NULL;
	uint64_t pause_ns = 0;
	struct wait w;

	if (rc != SHARD_OK)
		return rc;
	wait_begin(c, &w, a->timeout_ms);
	do {
		request_free(r);
		if ((r = request_new(c, OP_RESTORE, 0)) == NULL)
			return SHARD_SYSTEM;
		if ((rc = send_restore(r, a, &w)) == SHARD_OK)
			rc = ckpt_answer_wait(r, a, &w);
	} while ((rc = request_again(r, &w, &pause_ns, rc)) == SHARD_AGAIN);
	if (rc == SHARD_TIMEOUT)
		silent("restore", a, r, &w);
	if (rc == SHARD_OK)
		rc = restore_answer(r, out);
	if (rc == SHARD_OK && reply != NULL)
		*reply = r;
	else
		request_free(r);
	return rc;
}

/* --- saves with tickets --- */

static void save_free(struct shard_model *m, struct save *s)
{
	request_free(s->r);
	list_remove(&s->node);
	atomic_store(&m->save_no[s->slot], 0);
	m->saves_nr--;
	free(s);
}

void ckpt_forget(struct shard_model *m)
{
	list_each(it, &m->saves)
		save_free(m, list_of(it, struct save, node));
}

/* Saves that were answered have ended, and the oldest of these are forgotten. Returns how many are
 * under way. */
static uint32_t saves_settle(struct shard_model *m)
{
	uint32_t open = 0, ended;

	list_each(it, &m->saves) {
		struct save *s = list_of(it, struct save, node);

		if (s->r != NULL && s->r->answered) {
			s->end = s->r->err;
			request_free(s->r);
			s->r = NULL;
		}
		open += s->r != NULL;
	}
	ended = m->saves_nr - open;
	list_each(it, &m->saves) {
		struct save *s = list_of(it, struct save, node);

		if (ended <= SAVES_KEPT)
			break;
		if (s->r != NULL)
			continue;
		save_free(m, s);
		ended--;
	}
	return open;
}

static void save_note(struct shard_model *m, struct save *s)
{
	static_assert(MODEL_SAVES > SAVES_OPEN + SAVES_KEPT, "there is always a free place");
	while (s->slot < MODEL_SAVES && atomic_load(&m->save_no[s->slot]) != 0)
		s->slot++;
	CHECK(s->slot < MODEL_SAVES);
	atomic_store(&m->save_no[s->slot], s->no);
	atomic_store(&m->save_last, s->no);
	list_push(&m->saves, &s->node);
	m->saves_nr++;
}

/* Takes no lock, so that other tickets need none either. */
static bool save_known(struct shard_model *m, shard_ticket no)
{
	for (uint32_t i = 0; i < MODEL_SAVES && no != 0 && no <= atomic_load(&m->save_last); i++)
		if (atomic_load(&m->save_no[i]) == no)
			return true;
	return false;
}

static struct save *save_find(struct shard_model *m, shard_ticket no)
{
	list_each(it, &m->saves)
		if (list_of(it, struct save, node)->no == no)
			return list_of(it, struct save, node);
	return NULL;
}

static enum shard_status save_ended(const struct save *s)
{
	return s->end.status == SHARD_OK ? SHARD_OK : text_fail_err(&s->end);
}

static enum shard_status save_send(struct shard_model *m, const struct ckpt_ask *a, struct save *s)
{
	struct wait w;

	enum shard_status rc = client_known(m->client, a);

	if (rc != SHARD_OK)
		return rc;
	if (m->rolled_back)
		return handle_changed(m);
	if (saves_settle(m) >= SAVES_OPEN)
		return text_fail(SHARD_AGAIN,
				 "%d saves of \"%s\" are under way: shard_wait() for one first",
				 (int)SAVES_OPEN, m->spec.name);
	if ((s->r = request_new(m->client, OP_SAVE, 0)) == NULL)
		return SHARD_SYSTEM;
	wait_begin(m->client, &w, a->timeout_ms);
	return send_save(
		s->r, handle_head(m), a,
		&w); /* Sent before the READY of a later commit, so it saves the step before. */
}

enum shard_status shard_save(shard_model *m, const char *dir, const char *tag, shard_ticket *ticket)
{
	struct shard_save_opts o = SHARD_INIT(struct shard_save_opts);

	o.dir = dir;
	o.tag = tag;
	return shard_save_as(m, &o, ticket);
}

enum shard_status shard_save_as(shard_model *m, const struct shard_save_opts *opts,
				shard_ticket *ticket)
{
	struct shard_save_opts o = {.size = sizeof(o)};
	enum shard_status rc = text_struct_in(&o, sizeof(o), opts, "shard_save_opts");
	struct ckpt_ask a = {.dir = o.dir, .tag = o.tag, .client = o.client};
	struct save *s;

	if (rc == SHARD_OK)
		rc = ask_check(&a, "shard_save()");
	if (rc != SHARD_OK || (rc = handle_enter(m)) != SHARD_OK)
		return rc;
	a.name = m->spec.name;
	a.timeout_ms = m->timeout_ms;
	if ((s = calloc(1, sizeof(*s))) == NULL) {
		client_leave(m->client);
		return text_no_memory("a save");
	}
	list_init(&s->node);
	rc = save_send(m, &a, s);
	if (rc == SHARD_OK && ticket != NULL) {
		/* Done already for calls that wait for other tickets. */
		*ticket = s->no = ticket_done_now(m);
		save_note(m, s);
	} else { /* The caller wants no ticket, or sending failed. */
		if (rc == SHARD_TIMEOUT)
			text_fail(rc, "shard_save() of \"%s\" found no room to send in %.1f s",
				  a.name, (double)a.timeout_ms / 1e3);
		request_free(s->r);
		free(s);
	}
	client_leave(m->client);
	return rc;
}

bool ckpt_wait(struct shard_model *m, shard_ticket ticket, int64_t timeout_ms,
	       enum shard_status *rc)
{
	struct shard_client *c = m->client;
	struct save *s;
	struct wait w;

	if (!save_known(m, ticket))
		return false;
	/* Not client_enter(), because the result of a save is known also when the connection is
	 * over. */
	pthread_mutex_lock(&c->lock);
	wait_begin(c, &w, handle_timeout(m, timeout_ms));
	*rc = SHARD_OK;
	saves_settle(m);
	while ((s = save_find(m, ticket)) != NULL && s->r != NULL && *rc == SHARD_OK) {
		*rc = pump_wait(c, &w);
		saves_settle(m);
	}
	if (s != NULL && s->r == NULL)
		*rc = save_ended(s);
	else if (s != NULL && *rc == SHARD_TIMEOUT)
		text_fail(*rc,
			  "save of \"%s\" (ticket %llu) waited %.1f s: %llu of %llu bytes are "
			  "written",
			  m->spec.name, (ull)ticket, wait_seconds(&w), (ull)s->r->done_bytes,
			  (ull)s->r->total_bytes);
	pthread_mutex_unlock(&c->lock);
	return s != NULL || *rc != SHARD_OK;
}

bool ckpt_test(struct shard_model *m, shard_ticket ticket, enum shard_status *rc)
{
	struct save *s;

	if (!save_known(m, ticket))
		return false;
	*rc = SHARD_AGAIN;
	if (pthread_mutex_trylock(&m->client->lock) != 0)
		return true; /* The thread that has the lock settles. */
	saves_settle(m);
	s = save_find(m, ticket);
	if (s != NULL && s->r == NULL)
		*rc = save_ended(s);
	pthread_mutex_unlock(&m->client->lock);
	return s != NULL;
}
