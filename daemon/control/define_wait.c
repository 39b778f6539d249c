/* SPDX-License-Identifier: Apache-2.0 */
/* DEFINEs that wait: on their trainer's node for its links, and on the coordinator for a link or
 * for the end of a drop. define.c adds them, and asks for those that may go on. Happy path: a
 * DEFINE is packed, counted in its user's share (held.c), and later handed to define.c as it came.
 * A DEFINE that has waited for heartbeat_timeout goes on anyway, and define.c refuses it for what
 * is still missing. define_wait() fails if the user's share is used up, and a DEFINE whose sender
 * is gone is dropped. */
#include "control/define_wait.h"

#include "base/check.h"
#include "base/clock.h"
#include "control/held.h"
#include "model/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct spec_kept { /* One for all DEFINEs that wait with the same spec, as the ranks of a job do. */
	struct held held;
	uint32_t refs;
	size_t bytes;
	uint8_t packed[]; /* Packed, because an unpacked spec may be many times as large. */
};

struct waiting { /* A DEFINE that waits for a link, or for the drop of a model of that name. */
	struct list link;
	struct caller requester;
	uint64_t since_ns;
	struct held held;
	Shard__Define *define; /* Owned. Without its spec. */
	struct spec_kept *spec;
	char name[72]; /* Cut off, if it is too long for a model's name. */
};

static void spec_let_go(struct server *s, struct spec_kept *k)
{
	if (k == NULL || --k->refs > 0)
		return;
	held_give(s, &k->held);
	free(k);
}

static void drop_held(struct server *s, struct waiting *w)
{
	list_remove(&w->link);
	held_give(s, &w->held);
	spec_let_go(s, w->spec);
	if (w->define != NULL)
		shard__define__free_unpacked(w->define, NULL);
	free(w);
}

static enum shard_status spec_keep(struct spec_kept **out, struct server *s, const struct caller *a,
				   const Shard__Define *d, struct err *e)
{
	size_t bytes = shard__spec__get_packed_size(d->spec);
	struct spec_kept *k = malloc(sizeof(*k) + bytes);
	enum shard_status st;

	if (k == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory to hold a definition");
	k->bytes = shard__spec__pack(d->spec, k->packed);
	k->refs = 1;
	list_each(it, &s->defines) {
		struct spec_kept *other = list_of(it, struct waiting, link)->spec;

		if (other->bytes != k->bytes || memcmp(other->packed, k->packed, k->bytes) != 0)
			continue;
		free(k);
		other->refs++;
		*out = other;
		return SHARD_OK;
	}
	st = held_take(s, &k->held, a->node, d->cred, sizeof(*k) + bytes, e);
	if (st != SHARD_OK)
		free(k);
	else
		*out = k;
	return st;
}

enum shard_status define_wait(struct server *s, const struct caller *a, const Shard__Define *d,
			      struct err *e)
{
	Shard__Define rest = *d;
	struct waiting *w;
	enum shard_status st;

	list_each(it, &s->defines) {
		const struct caller *other = &list_of(it, struct waiting, link)->requester;

		if (other->node == a->node && other->session == a->session)
			return err_set(e, SHARD_BUSY,
				       "a definition of \"%s\" by this connection waits already",
				       list_of(it, struct waiting, link)->name);
	}
	if ((w = calloc(1, sizeof(*w))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory to hold a definition");
	list_init(&w->link);
	rest.spec = NULL;
	st = held_take(s, &w->held, a->node, d->cred,
		       sizeof(*w) + shard__define__get_packed_size(&rest), e);
	if (st == SHARD_OK && (w->define = spec_copy(&rest.base)) == NULL)
		st = err_set(e, SHARD_SYSTEM, "no memory to hold a definition");
	if (st == SHARD_OK)
		st = spec_keep(&w->spec, s, a, d, e);
	if (st != SHARD_OK) {
		drop_held(s, w);
		return st;
	}
	w->requester = *a;
	w->since_ns = clock_ns();
	snprintf(w->name, sizeof(w->name), "%s", d->spec->name);
	list_push(&s->defines, &w->link);
	return SHARD_OK;
}

/* Frees w and returns its DEFINE as it came, which the caller then owns. NULL: no memory. */
static Shard__Define *unhold(struct server *s, struct waiting *w)
{
	Shard__Define *d = w->define;

	d->spec = shard__spec__unpack(NULL, w->spec->bytes, w->spec->packed);
	w->define = NULL;
	drop_held(s, w);
	if (d->spec != NULL)
		return d;
	shard__define__free_unpacked(d, NULL);
	return NULL;
}

void define_wait_forget(struct server *s, uint16_t node, uint64_t session)
{
	list_each(it, &s->defines) {
		struct waiting *w = list_of(it, struct waiting, link);

		if (w->requester.node == node && (session == 0 || w->requester.session == session))
			drop_held(s, w);
	}
}

static void go_on(struct server *s, struct waiting *w, define_again_fn *again)
{
	struct caller a = w->requester;
	Shard__Define *d = unhold(s, w);
	enum shard_status st;
	struct err e;

	if (d == NULL)
		st = err_set(&e, SHARD_SYSTEM, "no memory for a definition");
	else
		st = again(s, &a, d, &e);
	if (st != SHARD_OK)
		caller_refuse(s, &a, &e);
	if (d != NULL)
		shard__define__free_unpacked(d, NULL);
}

void define_wait_retry(struct server *s, uint64_t now_ns,
		       bool (*may_go)(struct server *s, const char *name), define_again_fn *again)
{
	size_t bytes = 0;

	list_each(it, &s->defines) {
		struct waiting *w = list_of(it, struct waiting, link);

		if (!may_go(s, w->name) && now_ns - w->since_ns < s->conf->heartbeat_timeout_ns)
			continue;
		if (bytes > 0 && bytes + w->spec->bytes > DEFINE_TURN_BYTES) {
			server_wake(s, 0);
			return;
		}
		bytes += w->spec->bytes;
		go_on(s, w, again);
	}
}

void define_wait_free(struct server *s)
{
	list_each(it, &s->defines)
		drop_held(s, list_of(it, struct waiting, link));
}
