/* SPDX-License-Identifier: Apache-2.0 */
/* The membership source `etcd`. A node keeps a lease alive, reads both keys (etcd_msg.h) again and
 * again, and keeps a watch that only says when to read at once. When nobody leads, it tries to
 * create the leader's key under its lease. The transaction reads the view as well, so whoever
 * created the key has the newest view. A change is a transaction that compares term and seq, so an
 * attempt whose answer was lost is repeated as it was until some read says how it ended. All that a
 * node knows comes from answers that read both keys, and only a later revision replaces an earlier
 * one. An etcd that does not answer ends nothing by itself: see etcd_options.strict. An etcd of
 * another cluster, or one that has gone back, calls `failed`: the file of source_file.h has what
 * was seen last. Every request has a time limit, and is asked of the next server if it fails. */
#include "cluster/etcd_http.h"
#include "cluster/etcd_lease.h"
#include "cluster/etcd_msg.h"
#include "cluster/etcd_seen.h"
#include "cluster/source_calls.h"
#include "cluster/source_etcd.h"

#include "base/check.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

#define AGAIN_MS    100 /* Between two tries at what is full, refused or makes no sense. */
#define WATCH_MS    20  /* Between the end of a watch and the next one. */
#define LEASE_S_MAX 3600

enum slot_kind {
	SLOT_LEASE,  /* Grant, or keepalive. */
	SLOT_STATE,  /* A read of both keys. */
	SLOT_LEAD,   /* To become the leader. */
	SLOT_CHANGE, /* To write a view. */
	SLOT_REVOKE, /* The end of a lease, of this or another node. */
	SLOT_WATCH,
	SLOT_NR
};

struct slot { /* One request at a time. */
	struct member_source *s;
	struct etcd_call *call; /* NULL: none is under way. */
	uint64_t sent_boot_ns;
	uint64_t again_ns; /* Not before. */
	uint64_t floor;    /* The revision that was known when it was sent. */
	uint64_t lease;    /* That it is about. */
};

struct member_source {
	struct member_events ev;
	uv_timer_t timer;
	struct etcd_http *http;
	struct etcd_seen *seen;
	struct source_calls calls;
	struct etcd_keys keys;
	uint8_t self[MEMBER_UUID_BYTES];
	bool strict, failed, stopping;
	enum { STOP_NOT, STOP_REVOKES, STOP_CLOSES, STOP_CLOSED } stop;

	struct slot slot[SLOT_NR];
	struct etcd_lease lease;
	uint64_t keep_ns;           /* When to ask for more time. */
	struct etcd_state state;    /* What is known, if there is anything. */
	struct etcd_state incoming; /* For the next answer. */
	bool known;

	bool leads;
	bool resigns;         /* To be told as lost. */
	uint64_t term;        /* That it leads or led last. */
	uint64_t state_ns;    /* When to read both keys again. */
	uint64_t campaign_ns; /* When it may try to lead. */
	uint64_t cut_term;    /* The link to the leader of this term was reset. 0: of none. */
	uint64_t revoked;     /* The lease that was revoked last. */
	bool bell;            /* Read at once. */
	bool watch_ends;      /* The watch has to be set up again. */
	uint32_t watch_server;
	bool read_by_bell; /* The read under way is because of a bell. */
	bool change_sent;  /* An attempt at the change may have been taken up, and nobody knows. */
	/* etcd said that it is full. It says so also of a change that it has just written, and so a
	 * read that begins later tells. The change is not tried again. */
	enum { FULL_NOT, FULL_SAID, FULL_READ } full;

	uint64_t told_seq, told_term; /* By `view` and by `leader`. */
	bool told_leader;
	uint64_t now_ns, due_ns; /* Of the turn of work() under way. */

	void (*stopped)(void *arg);
	void *stopped_arg;
};

static void work_soon(struct member_source *s);

static bool ended(const struct member_source *s)
{
	return s->failed || s->stopping;
}

/* --- leading --- */

static void lose(struct member_source *s, const char *why)
{
	if (!s->leads)
		return;
	s->leads = false;
	s->ev.lost(s->ev.arg, s->term, why);
}

/* The lease is not used any more. If it still lives in etcd, work() revokes it. */
static void drop_lease(struct member_source *s, const char *why)
{
	s->lease.held = false;
	lose(s, why);
}

static void fail(struct member_source *s, const struct err *e)
{
	struct err copy = *e;

	if (ended(s))
		return;
	s->failed = true;
	lose(s, "the source has failed");
	calls_late(&s->calls, UINT64_MAX);
	for (int i = 0; i < SLOT_NR; i++)
		etcd_http_cancel(&s->slot[i].call);
	if (!s->stopping)
		s->ev.failed(s->ev.arg, copy.text);
}

static void check_time(struct member_source *s)
{
	const char *why = etcd_lease_look(&s->lease, s->strict);

	if (why != NULL && s->leads)
		drop_lease(s, why);
}

static bool is_mine(const struct member_source *s)
{
	return s->state.term != 0 && s->lease.held && s->state.lease == s->lease.id &&
	       memcmp(s->state.leader, s->self, sizeof(s->self)) == 0;
}

/* Tells what is new in s->state. The owner may stop the source in each of the calls. */
static void tell(struct member_source *s)
{
	struct member_view v;

	if (s->leads && s->state.term != s->term)
		lose(s, "its key in etcd is gone");
	if (!ended(s) && s->state.seq > s->told_seq) {
		s->told_seq = s->state.seq;
		s->ev.view(s->ev.arg, etcd_view(&s->state, &v));
	}
	if (!ended(s) && (!s->told_leader || s->state.term != s->told_term)) {
		s->told_leader = true;
		s->told_term = s->state.term;
		s->ev.leader(s->ev.arg, s->state.term, s->state.term != 0 ? s->state.leader : NULL);
	}
	if (!ended(s) && !s->leads && is_mine(s) && s->state.term > s->term &&
	    etcd_lease_lives(&s->lease)) {
		s->leads = true;
		s->term = s->state.term;
		s->ev.leading(s->ev.arg, s->term, etcd_view(&s->state, &v));
	}
}

/* --- what etcd says --- */

static bool same_cluster(struct member_source *s, uint64_t id)
{
	struct err e;

	if (etcd_seen_cluster(s->seen, id, &e))
		return true;
	fail(s, &e);
	return false;
}

static bool is_written(const struct member_source *s)
{
	const struct source_change *c = &s->calls.change;

	return s->known && s->state.seq == c->seq + 1 &&
	       memcmp(s->state.writer, c->writer, sizeof(c->writer)) == 0;
}

/* Ends the change if s->state says how it has ended. `unknown`: an attempt may have been taken up,
 * other than the one that has just been answered. */
static void settle(struct member_source *s, bool unknown)
{
	struct source_change *c = &s->calls.change;
	const struct etcd_state *st = &s->state;
	enum member_done how;
	struct member_view v;

	if (c->state == CHANGE_NONE || ended(s))
		return;
	if (is_written(s))
		how = MEMBER_OK;
	else if (st->seq > c->seq + 1 && unknown)
		how = MEMBER_UNKNOWN; /* Others have written since. Nothing can change it now. */
	else if (st->term != c->term)
		how = MEMBER_FENCED; /* A term that is over does not come back. */
	else if (st->seq != c->seq)
		how = MEMBER_CONFLICT;
	else
		return;
	etcd_http_cancel(&s->slot[SLOT_CHANGE].call);
	calls_end(&s->calls, how, etcd_view(&s->state, &v));
}

/* May an attempt at the change have been taken up, or be so yet? */
static bool in_doubt(const struct member_source *s)
{
	return s->change_sent || s->full != FULL_NOT || s->slot[SLOT_CHANGE].call != NULL;
}

static void adopt(struct member_source *s)
{
	struct etcd_state was = s->state;

	s->state = s->incoming;
	s->incoming = was;
	s->known = true;
	if (s->state.term > s->term)
		s->campaign_ns = 0; /* Another node has taken what this one gave away. */
}

/* Takes the answer to a transaction. False: it was none, and the slot's next attempt may be made
 * later. */
static bool take_state(struct member_source *s, struct slot *t, const struct etcd_answer *a)
{
	enum etcd_judged how;
	struct err e;

	if (a->code != 200)
		return false;
	t->again_ns = clock_ns() + AGAIN_MS * NS_PER_MS; /* Unless it is good. */
	how = etcd_take_state(&s->incoming, a->text, a->nr, &e);
	if (how == ETCD_BAD)
		etcd_http_blame(s->http);
	if (how == ETCD_FOREIGN && same_cluster(s, s->incoming.cluster_id))
		fail(s, &e);
	if (how != ETCD_GOOD || !same_cluster(s, s->incoming.cluster_id))
		return false;
	t->again_ns = 0;
	switch (etcd_seen_judge(s->seen, &s->incoming, t->floor, &e)) {
	case ETCD_NEWEST:
		adopt(s);
		return true;
	case ETCD_OVERTAKEN:
		return true;
	case ETCD_FORGOT:
	default:
		fail(s, &e);
		return false;
	}
}

/* --- answers --- */

static enum etcd_refusal refusal(const struct etcd_answer *a)
{
	return a->code == 0 || a->code == 200 ? ETCD_REFUSED : etcd_take_refusal(a->text, a->nr);
}

static void answer_lease(struct member_source *s, struct slot *t, const struct etcd_answer *a)
{
	uint64_t cluster_id, lease, ttl_s;
	struct err e;

	if (refusal(a) == ETCD_NO_LEASE && t->lease == s->lease.id)
		drop_lease(s, "etcd has ended its lease");
	if (a->code != 200)
		return;
	if (etcd_take_lease(a->text, a->nr, &cluster_id, &lease, &ttl_s, &e) != ETCD_GOOD ||
	    (t->lease != 0 && t->lease != lease) || (t->lease == 0 && ttl_s == 0)) {
		etcd_http_blame(s->http);
		t->again_ns = clock_ns() + AGAIN_MS * NS_PER_MS;
		return;
	}
	if (!same_cluster(s, cluster_id))
		return;
	if (t->lease != 0 && (!s->lease.held || s->lease.id != lease))
		return; /* It was given up meanwhile. */
	if (ttl_s == 0) {
		drop_lease(s, "etcd has ended its lease");
		return;
	}
	etcd_lease_renew(&s->lease, lease, ttl_s, t->sent_boot_ns);
	s->keep_ns = clock_ns() + s->lease.every_ns;
}

static void answer_state(struct member_source *s, struct slot *t, const struct etcd_answer *a)
{
	bool handed = s->calls.read.done != NULL && s->calls.read.handed;
	uint64_t term = s->state.term, seq = s->state.seq;
	struct member_view v;

	s->calls.read.handed = false;
	if (!take_state(s, t, a))
		return;
	s->state_ns = clock_ns() + s->lease.every_ns;
	if (!s->bell && !s->read_by_bell && (term != s->state.term || seq != s->state.seq))
		s->watch_ends = true; /* It should have said so. */
	tell(s);
	settle(s, in_doubt(s));
	if (s->full == FULL_READ && s->calls.change.state != CHANGE_NONE && !ended(s))
		calls_end(&s->calls, MEMBER_NOSPACE, etcd_view(&s->state, &v));
	if (handed && !ended(s))
		calls_end_read(&s->calls, MEMBER_OK, etcd_view(&s->state, &v));
}

static void answer_lead(struct member_source *s, struct slot *t, const struct etcd_answer *a)
{
	if (take_state(s, t, a)) {
		tell(s);
		settle(s, in_doubt(s));
		return;
	}
	s->bell = true; /* It may have happened. */
	if (refusal(a) == ETCD_NO_LEASE && t->lease == s->lease.id)
		drop_lease(s, "etcd has ended its lease");
}

static void answer_change(struct member_source *s, struct slot *t, const struct etcd_answer *a)
{
	struct source_change *c = &s->calls.change;

	if (take_state(s, t, a)) {
		tell(s);
		settle(s, s->change_sent);
		return;
	}
	if (s->failed)
		return;
	s->bell = true;
	if (refusal(a) == ETCD_NOSPACE) {
		s->full = s->change_sent ? FULL_NOT : FULL_SAID;
		return;
	}
	if (a->sent)
		s->change_sent = true;
	if (!s->change_sent) {
		c->state = CHANGE_WAITS;
		if (c->answered)
			calls_end(&s->calls, MEMBER_UNKNOWN, NULL);
	}
}

static void answer_revoke(struct member_source *s, struct slot *t, const struct etcd_answer *a)
{
	if (a->code == 200 || a->code == 404)
		s->revoked = t->lease;
	s->bell = true;
}

static void answer_watch(struct member_source *s, struct slot *t, const struct etcd_answer *a)
{
	(void)a;
	s->bell = true;
	t->again_ns = clock_ns() + WATCH_MS * NS_PER_MS;
}

typedef void answer_fn(struct member_source *s, struct slot *t, const struct etcd_answer *a);
static answer_fn *const rows[SLOT_NR] = {
	[SLOT_LEASE] = answer_lease,   [SLOT_STATE] = answer_state,   [SLOT_LEAD] = answer_lead,
	[SLOT_CHANGE] = answer_change, [SLOT_REVOKE] = answer_revoke, [SLOT_WATCH] = answer_watch,
};

static void on_answer(void *arg, const struct etcd_answer *a)
{
	struct slot *t = arg;
	struct member_source *s = t->s;

	t->call = NULL;
	if (a->code != 200)
		/* Another server is asked at once, unless all have failed. */
		t->again_ns =
			clock_ns() +
			(a->code == 0 || a->code >= 500 ? etcd_http_pause_ms(s->http) : AGAIN_MS) *
				NS_PER_MS;
	check_time(s);
	if (!ended(s) || s->stop == STOP_REVOKES)
		rows[t - s->slot](s, t, a);
	work_soon(s);
}

static void on_line(void *arg, const char *line, size_t nr)
{
	struct member_source *s = ((struct slot *)arg)->s;
	enum etcd_line what = line == NULL ? ETCD_LINE_EVENTS : etcd_take_line(line, nr);

	if (what == ETCD_LINE_NOTHING)
		return;
	s->bell = true;
	s->watch_ends = s->watch_ends || what == ETCD_LINE_END;
	work_soon(s);
}

/* --- requests --- */

/* Sends body, which it frees. NULL: there was no memory for it. */
static void ask(struct member_source *s, enum slot_kind kind, const char *path, char *body,
		uint64_t lease)
{
	struct slot *t = &s->slot[kind];
	struct etcd_request r = {.path = path,
				 .body = body,
				 .timeout_ms = (uint32_t)(s->lease.ttl_ns / 3 / NS_PER_MS),
				 .answer_max = ETCD_ANSWER_MAX,
				 .done = on_answer,
				 .arg = t};

	CHECK(t->call == NULL);
	if (kind == SLOT_WATCH) {
		r.timeout_ms = 0;
		r.answer_max = ETCD_LINE_MAX;
		r.line = on_line;
	}
	t->sent_boot_ns = etcd_lease_clock();
	t->floor = etcd_seen_revision(s->seen);
	t->lease = lease;
	if (body != NULL)
		t->call = etcd_http_post(s->http, &r);
	free(body);
	if (t->call == NULL)
		t->again_ns = clock_ns() + AGAIN_MS * NS_PER_MS;
}

/* Has the time `at` come? If not, the timer will be set for it. */
static bool is_due(struct member_source *s, uint64_t at_ns)
{
	if (at_ns <= s->now_ns)
		return true;
	if (at_ns < s->due_ns)
		s->due_ns = at_ns;
	return false;
}

static bool may_ask(struct member_source *s, enum slot_kind kind)
{
	return s->slot[kind].call == NULL && is_due(s, s->slot[kind].again_ns);
}

static void want_lease(struct member_source *s)
{
	if (!may_ask(s, SLOT_LEASE))
		return;
	if (!s->lease.held)
		ask(s, SLOT_LEASE, "/v3/lease/grant", etcd_ask_grant(s->lease.ttl_ns / NS_PER_SEC),
		    0);
	else if (is_due(s, s->keep_ns))
		ask(s, SLOT_LEASE, "/v3/lease/keepalive", etcd_ask_lease(s->lease.id), s->lease.id);
}

static void want_state(struct member_source *s)
{
	struct source_read *r = &s->calls.read;

	if (!may_ask(s, SLOT_STATE))
		return;
	if (!s->bell && r->done == NULL && !is_due(s, s->state_ns))
		return;
	s->read_by_bell = s->bell;
	s->bell = false;
	r->handed = r->done != NULL;
	if (s->full == FULL_SAID)
		s->full = FULL_READ;
	ask(s, SLOT_STATE, "/v3/kv/txn", etcd_ask_state(&s->keys), 0);
}

static void want_watch(struct member_source *s)
{
	struct slot *t = &s->slot[SLOT_WATCH];

	if (t->call != NULL && (s->watch_ends || s->watch_server != etcd_http_server(s->http))) {
		etcd_http_cancel(&t->call);
		t->again_ns = s->now_ns + WATCH_MS * NS_PER_MS;
	}
	if (!s->known || !may_ask(s, SLOT_WATCH))
		return;
	s->watch_ends = false;
	s->watch_server = etcd_http_server(s->http);
	ask(s, SLOT_WATCH, "/v3/watch", etcd_ask_watch(&s->keys, s->state.revision + 1), 0);
}

static void want_lead(struct member_source *s)
{
	if (!s->known || s->state.term != 0 || !etcd_seen_durable(s->seen) ||
	    !etcd_lease_lives(&s->lease))
		return;
	if (is_due(s, s->campaign_ns) && may_ask(s, SLOT_LEAD))
		ask(s, SLOT_LEAD, "/v3/kv/txn", etcd_ask_lead(&s->keys, s->self, s->lease.id),
		    s->lease.id);
}

static bool has_own_key(const struct member_source *s)
{
	return s->known && s->state.term != 0 && s->state.lease != s->revoked &&
	       memcmp(s->state.leader, s->self, sizeof(s->self)) == 0;
}

/* The leader's key is bound to a lease that is of no use: this node had it in an earlier life, or
 * has given it up, or the leader has died. */
static void want_revoke(struct member_source *s)
{
	const struct etcd_state *st = &s->state;
	bool cut = s->known && s->cut_term == st->term && st->lease != s->revoked;

	if (st->term != 0 && (has_own_key(s) ? !is_mine(s) : cut) && may_ask(s, SLOT_REVOKE))
		ask(s, SLOT_REVOKE, "/v3/lease/revoke", etcd_ask_lease(st->lease), st->lease);
}

static void want_change(struct member_source *s)
{
	struct source_change *c = &s->calls.change;
	struct member_view v;

	/* An earlier call with this writer may have done it. */
	if (c->state == CHANGE_WAITS && (is_written(s) || !s->leads || c->term != s->term))
		calls_end(&s->calls, is_written(s) ? MEMBER_OK : MEMBER_FENCED,
			  etcd_view(&s->state, &v));
	if (c->state == CHANGE_NONE || s->full != FULL_NOT || !may_ask(s, SLOT_CHANGE))
		return;
	c->state = CHANGE_HANDED;
	ask(s, SLOT_CHANGE, "/v3/kv/txn",
	    etcd_ask_change(&s->keys, c->term, c->seq, c->writer, c->bytes, c->bytes_nr), 0);
}

/* --- the loop --- */

static void on_saved(void *arg, const struct err *e)
{
	struct member_source *s = arg;

	if (e != NULL)
		fail(s, e);
	work_soon(s);
}

static void on_timer_closed(uv_handle_t *h)
{
	struct member_source *s = h->data;
	void (*stopped)(void *arg) = s->stopped;
	void *arg = s->stopped_arg;

	etcd_seen_close(&s->seen);
	calls_deinit(&s->calls);
	free(s->state.bytes);
	free(s->incoming.bytes);
	free(s);
	if (stopped != NULL)
		stopped(arg);
}

static void on_http_closed(void *arg)
{
	struct member_source *s = arg;

	s->stop = STOP_CLOSED;
	work_soon(s);
}

/* The end: gives the lead and the lease back, if etcd answers in time. */
static void work_stop(struct member_source *s)
{
	if (s->stop == STOP_NOT) {
		calls_late(&s->calls, UINT64_MAX);
		lose(s, "it stops");
		for (int i = 0; i < SLOT_NR; i++)
			etcd_http_cancel(&s->slot[i].call);
		if (!s->failed && (s->lease.held || has_own_key(s))) {
			uint64_t id = has_own_key(s) ? s->state.lease : s->lease.id;

			ask(s, SLOT_REVOKE, "/v3/lease/revoke", etcd_ask_lease(id), id);
		}
		s->stop = STOP_REVOKES;
	}
	if (s->stop == STOP_REVOKES && s->slot[SLOT_REVOKE].call == NULL) {
		s->stop = STOP_CLOSES;
		etcd_http_close(&s->http, on_http_closed, s);
	}
	if (s->stop == STOP_CLOSED && !etcd_seen_saving(s->seen))
		uv_close((uv_handle_t *)&s->timer, on_timer_closed);
}

static void work(uv_timer_t *timer)
{
	struct member_source *s = timer->data;

	check_time(s);
	if (s->resigns && s->leads)
		drop_lease(s, "it has resigned");
	s->resigns = false;
	if (s->stopping) {
		work_stop(s);
		return;
	}
	if (s->failed)
		return;
	s->now_ns = clock_ns();
	s->due_ns = UINT64_MAX;
	calls_late(&s->calls, s->now_ns);
	if (ended(s))
		return; /* The owner has stopped it in an answer, and so work() will come again. */
	want_change(s);
	if (ended(s))
		return;
	want_revoke(s);
	want_lead(s);
	want_lease(s);
	want_state(s);
	want_watch(s);
	(void)is_due(s, etcd_seen_save(s->seen, s->now_ns));
	(void)is_due(s, calls_due(&s->calls));
	if (s->leads)
		(void)is_due(s, s->now_ns + s->lease.margin_ns / 4);
	if (s->due_ns != UINT64_MAX && !uv_is_active((uv_handle_t *)timer))
		CHECK(uv_timer_start(timer, work, (s->due_ns - s->now_ns) / NS_PER_MS + 1, 0) == 0);
}

static void work_soon(struct member_source *s)
{
	if (!uv_is_closing((uv_handle_t *)&s->timer))
		CHECK(uv_timer_start(&s->timer, work, 0, 0) == 0);
}

/* --- outside --- */

static enum shard_status check_config(const struct member_config *c, struct err *e)
{
	static const uint8_t zeros[MEMBER_UUID_BYTES];

	if (c->more == NULL || c->deadline_ms == 0 || c->beat_ms == 0 || c->election_ms == 0 ||
	    c->election_ms > LEASE_S_MAX * 1000 || memcmp(c->self, zeros, sizeof(zeros)) == 0)
		return err_set(
			e, SHARD_BAD_ARG,
			"the membership source etcd needs its options, a beat, a deadline, a "
			"node's identity, and an election of at most %d s",
			LEASE_S_MAX);
	return SHARD_OK;
}

static enum shard_status start(struct member_source **out, const struct member_config *c,
			       const struct member_events *ev, struct err *e)
{
	const struct etcd_options *o = c->more;
	enum shard_status st = check_config(c, e);
	struct member_source *s;

	if (st != SHARD_OK)
		return st;
	s = calloc(1, sizeof(*s));
	if (s == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a membership source");
	s->ev = *ev;
	s->strict = o->strict;
	etcd_lease_init(&s->lease, (c->election_ms + 999) / 1000, c->beat_ms * NS_PER_MS);
	memcpy(s->self, c->self, sizeof(s->self));
	etcd_keys(&s->keys, c->cluster);
	for (int i = 0; i < SLOT_NR; i++)
		s->slot[i].s = s;
	s->state.bytes = malloc(MEMBER_VIEW_MAX);
	s->incoming.bytes = malloc(MEMBER_VIEW_MAX);
	st = err_set(e, SHARD_SYSTEM, "no memory for a membership source");
	if (!calls_init(&s->calls, c->deadline_ms * NS_PER_MS) || s->state.bytes == NULL ||
	    s->incoming.bytes == NULL)
		goto err_source;
	st = etcd_seen_open(&s->seen, c, on_saved, s, e);
	if (st != SHARD_OK)
		goto err_source;
	s->term = etcd_seen_term(s->seen);
	st = etcd_http_open(&s->http, c->loop, o, e);
	if (st != SHARD_OK)
		goto err_source;
	CHECK(uv_timer_init(c->loop, &s->timer) == 0);
	s->timer.data = s;
	work_soon(s);
	*out = s;
	return SHARD_OK;
err_source:
	etcd_seen_close(&s->seen);
	calls_deinit(&s->calls);
	free(s->state.bytes);
	free(s->incoming.bytes);
	free(s);
	return st;
}

static enum shard_status propose(struct member_source *s, uint64_t term, uint64_t expect_seq,
				 const uint8_t writer[MEMBER_UUID_BYTES], const void *bytes,
				 uint32_t bytes_nr, member_done_fn *done, void *arg)
{
	struct source_change what = {.kind = CHANGE_VALUE,
				     .term = term,
				     .seq = expect_seq,
				     .bytes = (unsigned char *)bytes,
				     .bytes_nr = bytes_nr,
				     .done = done,
				     .arg = arg};

	if (ended(s))
		return SHARD_BAD_STATE;
	if (s->calls.change.state != CHANGE_NONE)
		return SHARD_AGAIN;
	if (bytes_nr > MEMBER_VIEW_MAX)
		return SHARD_RANGE;
	memcpy(what.writer, writer, sizeof(what.writer));
	calls_begin(&s->calls, &what, clock_ns());
	s->change_sent = false;
	s->full = FULL_NOT;
	s->slot[SLOT_CHANGE].again_ns = 0;
	work_soon(s);
	return SHARD_OK;
}

static enum shard_status read_value(struct member_source *s, member_done_fn *done, void *arg)
{
	if (ended(s))
		return SHARD_BAD_STATE;
	if (s->calls.read.done != NULL)
		return SHARD_AGAIN;
	s->calls.read.handed = false; /* The one under way began before this call. */
	calls_begin_read(&s->calls, done, arg, clock_ns());
	work_soon(s);
	return SHARD_OK;
}

static enum shard_status resign(struct member_source *s, uint64_t term)
{
	if (ended(s))
		return SHARD_BAD_STATE;
	if (s->leads && s->term == term) {
		/* Others have the time of an election to take it. */
		s->campaign_ns = clock_ns() + s->lease.ttl_ns;
		s->resigns = true;
		work_soon(s);
	}
	return SHARD_OK;
}

static void link_changed(struct member_source *s, const uint8_t uuid[MEMBER_UUID_BYTES], bool up)
{
	if (ended(s) || !s->known || s->state.term == 0 ||
	    memcmp(uuid, s->state.leader, sizeof(s->state.leader)) != 0)
		return;
	s->cut_term = up ? 0 : s->state.term;
	work_soon(s);
}

const char *source_etcd_trouble(const struct member_source *s)
{
	return s->http != NULL ? etcd_http_trouble(s->http) : "";
}

bool source_etcd_silent(const struct member_source *s)
{
	return !etcd_lease_lives(&s->lease);
}

static void wake(struct member_source *s)
{
	if (!ended(s))
		check_time(s);
}

static void stop(struct member_source **sp, void (*stopped)(void *arg), void *arg)
{
	struct member_source *s = *sp;

	*sp = NULL;
	CHECK(!s->stopping);
	s->stopping = true;
	s->stopped = stopped;
	s->stopped_arg = arg;
	work_soon(s);
}

const struct member_source_ops source_etcd = {
	.name = "etcd",
	.start = start,
	.propose = propose,
	.read = read_value,
	.join = calls_no_voters,
	.leave = calls_no_voters,
	.resign = resign,
	.link = link_changed,
	.message = calls_no_message,
	.wake = wake,
	.stop = stop,
};
