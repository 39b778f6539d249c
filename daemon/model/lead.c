/* SPDX-License-Identifier: Apache-2.0 */
/* Elections, seen from the daemon. server.c opens it, dispatch.c brings links and messages,
 * view_file.c brings views that have to become durable. Happy path: the source says that this node
 * leads, and gives the value: the files of all models. Each core hears that it leads, with its own
 * view. From then on each view of a core goes into the value, as one proposal after the other with
 * all that has come meanwhile, and the core is told when it is durable. When another node leads,
 * the cores hear that this one does not any more, and what was not durable yet is answered with an
 * error. A value that is not known to be written ends the lead, because nobody may decide on. If
 * the source fails, the process stops: it can keep no promise any more. */
#include "model/lead_impl.h"

#include "base/check.h"
#include "base/clock.h"
#include "cluster/source_etcd.h"
#include "link/nodes.h"
#include "link/peer.h"
#include "model/corewire.h"
#include "model/model.h"
#include "model/register.h"
#include "model/rooms.h"
#include "model/view_file.h"
#include "model/voters.h"
#include "model/watch.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define SAY_NS (5 * NS_PER_SEC)

_Static_assert(MEMBER_UUID_BYTES == STATIC_UUID_BYTES, "a node has one uuid");

bool lead_on(const struct server *s)
{
	return s->lead != NULL;
}

bool lead_votes(const struct server *s, uint16_t node)
{
	return s->lead != NULL &&
	       voters_has(&s->lead->voters,
			  node == s->self ? static_uuid(s->dir) : s->lead->peer[node]);
}

bool lead_voters_known(const struct server *s)
{
	return s->lead != NULL && (s->lead->known || s->lead->voters.nr > 0);
}

enum shard_status lead_known(const struct server *s, struct err *e)
{
	const char *trouble;

	if (s->lead == NULL || s->lead->known)
		return SHARD_OK;
	if (s->conf->membership != CONFIG_MEMBERSHIP_ETCD)
		return err_passes(
			e, err_set(e, SHARD_BUSY,
				   "no node coordinates now: one is elected when a majority of the "
				   "nodes that vote is up"));
	trouble = s->lead->source != NULL ? source_etcd_trouble(s->lead->source) : "";
	err_set(e, SHARD_BUSY, "no node coordinates now: one does when etcd says so%s%.400s%s",
		trouble[0] ? " (" : "", trouble, trouble[0] ? ")" : "");
	return err_passes(e, SHARD_BUSY);
}

enum shard_status lead_refuse(const struct server *s, struct err *e)
{
	return err_passes(e, err_set(e, s->lead != NULL ? SHARD_BUSY : SHARD_BAD_STATE,
				     s->lead != NULL ? "node %s does not coordinate now: try again"
						     : "node %s does not coordinate",
				     members_name(s, s->self)));
}

/* Some other node, as long as nobody is known to lead. */
static uint16_t somebody(const struct server *s)
{
	return (uint16_t)((s->self + 1u) % s->nodes_nr);
}

static void coordinates(struct lead *l, uint16_t node)
{
	struct server *s = l->s;

	if (s->coordinator == node && l->known)
		return;
	l->known = true;
	s->coordinator = node;
	WATCH_TELL(s, coordinator, s);
}

/* --- saves --- */

static void answer(struct list *from, const struct err *e)
{
	while (!list_empty(from)) {
		struct lead_save *v = list_of(from->next, struct lead_save, link);

		list_remove(&v->link);
		if (v->done != NULL)
			v->done(v->arg, e);
		free(v->file);
		free(v);
	}
}

static void give_up(struct lead *l, const char *why)
{
	struct err e;

	err_set(&e, SHARD_UNREACHABLE, "%s", why);
	answer(&l->proposed, &e);
	answer(&l->waiting, &e);
}

static void move(struct list *to, struct list *from) /* To its end, in order. */
{
	while (!list_empty(from)) {
		struct list *it = from->next;

		list_remove(it);
		list_push(to, it);
	}
}

static void know(struct lead *l, const struct member_view *v)
{
	if (v == NULL || v->seq < l->seq)
		return;
	l->s->member_seq = l->seq = v->seq;
	l->voters.nr = v->voters_nr < MEMBER_VOTERS_MAX ? v->voters_nr : MEMBER_VOTERS_MAX;
	if (l->voters.nr > 0)
		memcpy(l->voters.uuid, v->voter, l->voters.nr * sizeof(l->voters.uuid[0]));
}

/* A source that is to end answers what was asked before, and gives up the lead by itself. */
static void resign(struct lead *l)
{
	if (l->term != 0 && !l->stopping)
		(void)l->ops->resign(l->source, l->term);
}

static void propose(struct lead *l);

/* The disk of this node refused a proposal. It is tried again, but training waits for it: after a
 * while a node that has room shall lead. Returns whether this one goes on. */
static bool may_try_again(struct lead *l)
{
	uint64_t now = clock_ns();

	if (l->refused_ns == 0)
		l->refused_ns = now;
	if (l->s->conf->membership != CONFIG_MEMBERSHIP_QUORUM ||
	    now - l->refused_ns < l->s->conf->heartbeat_timeout_ns)
		return true;
	log_line(l->s->log, LOG_LEVEL_WARN, "event=resigns term=%lu why=%s", (unsigned long)l->term,
		 "its disk refuses the views of models");
	return false;
}

/* etcd is down, or out of reach. Nobody else can lead as long as it is down, so this node leads on.
 * It has to find out how the proposal ended before it makes another one. Only a core that waits for
 * its view stands still meanwhile. */
static bool may_ask_again(struct lead *l)
{
	struct err e;

	if (l->s->conf->membership != CONFIG_MEMBERSHIP_ETCD || l->stopping)
		return false;
	err_set(&e, SHARD_UNREACHABLE, "etcd does not answer: %.400s",
		source_etcd_trouble(l->source));
	if (!l->again)
		log_line(l->s->log, LOG_LEVEL_WARN,
			 "event=views_not_durable term=%lu seq=%lu why=%s", (unsigned long)l->term,
			 (unsigned long)l->seq, e.text);
	l->again = true;
	return true;
}

static void proposed(void *arg, enum member_done how, const struct member_view *current)
{
	static const char *const words[] = {[MEMBER_OK] = "it is",
					    [MEMBER_CONFLICT] = "another value is there",
					    [MEMBER_FENCED] = "another node leads",
					    [MEMBER_UNKNOWN] = "no majority answers",
					    [MEMBER_NOSPACE] = "the disk is full"};
	struct lead *l = arg;
	Shard__Register *value = l->next;

	l->next = NULL;
	l->asked = false;
	if (l->term != l->next_term) { /* The lead has ended meanwhile, and all were answered. */
		if (value != NULL)
			shard__register__free_unpacked(value, NULL);
		return;
	}
	if (how != MEMBER_UNKNOWN)
		l->again = false;
	if (how == MEMBER_OK) {
		know(l, current);
		if (l->value != NULL)
			shard__register__free_unpacked(l->value, NULL);
		l->value = value;
		l->refused_ns = 0;
		answer(&l->proposed, NULL);
		propose(l);
		return;
	}
	if (how == MEMBER_UNKNOWN && may_ask_again(l)) {
		l->next = value;
		return;
	}
	if (value != NULL)
		shard__register__free_unpacked(value, NULL);
	log_line(l->s->log, LOG_LEVEL_WARN, "event=views_not_durable term=%lu seq=%lu why=%s",
		 (unsigned long)l->term, (unsigned long)l->seq, words[how]);
	if (how == MEMBER_NOSPACE && may_try_again(l)) { /* The beat does, in the same order. */
		move(&l->proposed, &l->waiting);
		move(&l->waiting, &l->proposed);
		return;
	}
	give_up(l, words[how]);
	resign(l);
}

/* Proposes l->next, by l->writer. */
static enum shard_status propose_next(struct lead *l)
{
	size_t bytes = shard__register__get_packed_size(l->next);
	uint8_t *packed = malloc(bytes + 1);
	enum shard_status st;

	if (packed == NULL)
		return SHARD_SYSTEM;
	shard__register__pack(l->next, packed);
	st = l->ops->propose(l->source, l->term, l->seq, l->writer, packed, (uint32_t)bytes,
			     proposed, l);
	l->asked = st == SHARD_OK;
	free(packed);
	return st;
}

/* One proposal at a time, with all that waits. */
static void propose(struct lead *l)
{
	enum shard_status st;

	if (l->again && l->next != NULL && !l->asked && !l->stopping) {
		(void)propose_next(l); /* If it is not taken, the beat tries again. */
		return;
	}
	if (l->term == 0 || l->stopping || l->next != NULL || l->changing ||
	    list_empty(&l->waiting))
		return;
	if ((l->next = register_copy(l->value)) == NULL || !lead_put_waiting(l))
		goto later;
	CHECK(getrandom(l->writer, sizeof(l->writer), 0) == (ssize_t)sizeof(l->writer));
	st = propose_next(l);
	if (st == SHARD_OK) {
		l->next_term = l->term;
		move(&l->proposed, &l->waiting);
		return;
	}
	if (st == SHARD_RANGE)
		log_line(l->s->log, LOG_LEVEL_ERROR,
			 "event=views_not_durable term=%lu seq=%lu why=%s", (unsigned long)l->term,
			 (unsigned long)l->seq,
			 "the views of all models are more than the source can keep: drop a model");
later:
	if (l->next != NULL)
		shard__register__free_unpacked(l->next, NULL);
	l->next = NULL; /* The beat tries again. */
}

void lead_forget(struct server *s, uint32_t model, void (*done)(void *arg, const struct err *e),
		 void *arg)
{
	struct lead *l = s->lead;
	struct lead_save *v = NULL;
	struct err e = {.status = SHARD_OK};

	if (l != NULL && (l->term == 0 || l->stopping))
		err_set(&e, SHARD_UNREACHABLE, "this node does not lead any more");
	else if (l != NULL && (v = lead_save_new(model, NULL, 0)) == NULL)
		err_set(&e, SHARD_SYSTEM, "no memory to forget a model");
	if (l == NULL || e.status != SHARD_OK) {
		if (done != NULL)
			done(arg, e.status != SHARD_OK ? &e : NULL);
		return;
	}
	v->done = done;
	v->arg = arg;
	list_push(&l->waiting, &v->link);
	propose(l);
}

const Shard__Kept *lead_lacks(struct server *s, size_t *at)
{
	const struct lead *l = s->lead;

	while (l != NULL && l->term != 0 && l->value != NULL && *at < l->value->n_kept) {
		const Shard__Kept *k = l->value->kept[(*at)++];

		if (model_find(s, k->model) == NULL && model_making(s, k->model) == NULL &&
		    !lead_forgets(&l->waiting, k->model) && !lead_forgets(&l->proposed, k->model))
			return k;
	}
	return NULL;
}

uint64_t lead_since(const struct server *s)
{
	return s->lead->leads_ns;
}

/* --- this node leads --- */

void lead_model(struct model *m)
{
	struct lead *l = m->server->lead;
	Shard__Kept *k;
	struct core_view *view = NULL;
	struct err e;

	if (l == NULL || l->term == 0 || m->defining || m->dropping)
		return;
	k = register_of(l->value, m->id);
	if (k != NULL && (view = persist_read(m, k->file, &e)) == NULL) {
		rooms_unled(m, e.status, e.text);
		return;
	}
	if (!rooms_led(m, view)) {
		free(view);
		return;
	}
	if (k != NULL) {
		k->file->model = m->spec; /* As in the file of a static coordinator. */
		WATCH_TELL(m->server, led, m, k->file, view);
		k->file->model = NULL;
	}
	model_event(m, &(struct core_event){
			       .type = CORE_EV_LEAD, .id = {.term = l->term}, .view = view});
	if (l->keeps)
		model_event(m, &(struct core_event){.type = CORE_EV_KEEP_VIEW, .on = true});
	WATCH_TELL(m->server, leads, m);
	free(view);
}

static void resign_all(struct lead *l, const char *why)
{
	struct server *s = l->s;

	l->term = 0;
	if (l->again && !l->asked) { /* The source will not answer, so nobody else ends it. */
		if (l->next != NULL)
			shard__register__free_unpacked(l->next, NULL);
		l->next = NULL;
	}
	l->again = false;
	give_up(l, why);
	list_each(it, &s->models) {
		struct model *m = list_of(it, struct model, link);

		if (!m->defining && !m->dropping)
			model_event(m, &(struct core_event){.type = CORE_EV_RESIGN});
	}
}

/* --- events of the source --- */

static void on_view(void *arg, const struct member_view *v)
{
	know(arg, v);
}

static void on_failed(void *arg, const char *text)
{
	struct lead *l = arg;
	struct server *s = l->s;

	l->failed = true;
	log_line(s->log, LOG_LEVEL_ERROR, "event=membership_failed why=%s", text);
	if (s->fault[0] == 0) /* The beat ends the process, when it can be ended in order. */
		snprintf(s->fault, sizeof(s->fault), "the membership source has failed: %.340s",
			 text);
	server_wake(s, 0);
}

static void on_leading(void *arg, uint64_t term, const struct member_view *v)
{
	struct lead *l = arg;
	struct server *s = l->s;
	struct err e;

	CHECK(l->term == 0);
	if (l->value != NULL)
		shard__register__free_unpacked(l->value, NULL);
	l->value = v != NULL ? shard__register__unpack(NULL, v->bytes_nr, v->bytes) : NULL;
	l->seq = 0;
	know(l, v);
	if (v != NULL && l->value == NULL) {
		log_line(s->log, LOG_LEVEL_ERROR, "event=not_leading term=%lu why=%s",
			 (unsigned long)term, "the value is not one of this release");
		(void)l->ops->resign(l->source, term);
		return;
	}
	if (l->value != NULL &&
	    nodes_heard(s, l->value->n_nodes, l->value->nodes, "register", &e) != SHARD_OK) {
		on_failed(l, e.text); /* Its models are not of these nodes. */
		return;
	}
	s->term = l->term = term;
	l->leads_ns = clock_ns();
	l->refused_ns = 0;
	/* Terms grow by more than one and belong to one node, and so do the numbers of models. */
	s->next_model = (uint32_t)(term * 64 % INT32_MAX);
	log_line(s->log, LOG_LEVEL_INFO, "event=leading term=%lu seq=%lu models=%zu",
		 (unsigned long)term, (unsigned long)l->seq,
		 l->value != NULL ? l->value->n_kept : 0);
	coordinates(l, s->self);
	list_each(it, &s->models)
		lead_model(list_of(it, struct model, link));
}

static void on_lost(void *arg, uint64_t term, const char *why)
{
	struct lead *l = arg;

	if (l->term == 0)
		return;
	log_line(l->s->log, LOG_LEVEL_WARN, "event=not_leading term=%lu why=%s",
		 (unsigned long)term, why);
	resign_all(l, "this node does not lead any more");
	l->known = false;
	l->s->coordinator = somebody(l->s);
}

/* Which node is it that leads? That is known while there is a link to it. */
static void look_for_leader(struct lead *l)
{
	if (l->term != 0 || l->leader_term == 0)
		return;
	for (uint16_t n = 0; n < l->s->nodes_nr; n++) {
		if (n == l->s->self || !(l->linked >> n & 1) ||
		    memcmp(l->peer[n], l->leader, MEMBER_UUID_BYTES) != 0)
			continue;
		if (l->s->coordinator != n)
			log_line(l->s->log, LOG_LEVEL_INFO, "event=coordinator node=%s term=%lu",
				 members_name(l->s, n), (unsigned long)l->leader_term);
		coordinates(l, n);
	}
}

static void on_leader(void *arg, uint64_t term, const uint8_t *uuid)
{
	struct lead *l = arg;

	l->leader_term = uuid != NULL ? term : 0;
	if (uuid != NULL)
		memcpy(l->leader, uuid, MEMBER_UUID_BYTES);
	else if (l->term == 0)
		l->known = false;
	look_for_leader(l);
}

static void on_send(void *arg, const uint8_t to[MEMBER_UUID_BYTES], const void *bytes,
		    uint32_t bytes_nr)
{
	struct lead *l = arg;
	struct wire_head h = {.op = OP_MEMBER};

	for (uint16_t n = 0; n < l->s->nodes_nr; n++) {
		struct conn *c;
		void *copy;

		if (!(l->linked >> n & 1) || memcmp(l->peer[n], to, MEMBER_UUID_BYTES) != 0)
			continue;
		c = peer_control(l->s->peer[n]);
		if (c == NULL || !stream_roomy(conn_stream(c)) || (copy = malloc(bytes_nr)) == NULL)
			return; /* It may be lost. */
		memcpy(copy, bytes, bytes_nr);
		if (stream_send_owned(conn_stream(c), &h, copy, bytes_nr) == SHARD_OK)
			conn_kick(c);
	}
}

/* --- life --- */

enum shard_status lead_init(struct server *s, struct err *e)
{
	static const char *const names[] = {[CONFIG_MEMBERSHIP_STATIC] = NULL,
					    [CONFIG_MEMBERSHIP_QUORUM] = "quorum",
					    [CONFIG_MEMBERSHIP_ETCD] = "etcd"};
	const char *name = names[s->conf->membership];
	struct lead *l;

	if (name == NULL || s->nodes_nr < 2)
		return SHARD_OK;
	if ((l = calloc(1, sizeof(*l))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for elections");
	l->s = s;
	list_init(&l->waiting);
	list_init(&l->proposed);
	l->ops = member_source_find(name);
	CHECK(l->ops != NULL);
	s->lead = l;
	s->save_file = lead_save_file;
	s->coordinator = somebody(s);
	return SHARD_OK;
}

static void start(struct lead *l, bool found)
{
	struct server *s = l->s;
	const struct config *conf = s->conf;
	struct etcd_options etcd = {.endpoints = conf->etcd_endpoints,
				    .ca_file = conf->etcd_ca[0] ? conf->etcd_ca : NULL,
				    .cert_file = conf->etcd_cert[0] ? conf->etcd_cert : NULL,
				    .key_file = conf->etcd_key[0] ? conf->etcd_key : NULL};
	struct member_config c = {
		.loop = s->loop,
		.dir = conf->state,
		.bootstrap = found,
		.ordinal = s->self,
		.beat_ms = (uint32_t)(conf->election_timeout_ns / 5 / NS_PER_MS),
		.election_ms = (uint32_t)(conf->election_timeout_ns / NS_PER_MS),
		.deadline_ms = (uint32_t)(4 * conf->election_timeout_ns / NS_PER_MS),
		.more = conf->membership == CONFIG_MEMBERSHIP_ETCD ? &etcd : NULL};
	struct member_events ev = {.arg = l,
				   .view = on_view,
				   .leading = on_leading,
				   .lost = on_lost,
				   .leader = on_leader,
				   .failed = on_failed,
				   .send = on_send};
	uint64_t id = xxh_sum(s->conf->run_id, strlen(s->conf->run_id), 1);
	struct err e;

	memcpy(c.self, static_uuid(s->dir), sizeof(c.self));
	memcpy(c.cluster, &id, sizeof(id));
	id = ~id;
	memcpy(c.cluster + sizeof(id), &id, sizeof(id));
	if (c.beat_ms == 0)
		c.beat_ms = 1;
	l->may_found = false;
	if (l->ops->start(&l->source, &c, &ev, &e) != SHARD_OK) {
		on_failed(l, e.text);
		return;
	}
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (l->linked >> n & 1)
			l->ops->link(l->source, l->peer[n], true);
}

bool lead_has_file(const struct server *s)
{
	char path[4200];

	snprintf(path, sizeof(path), "%.4096s/source", s->conf->state);
	return access(path, F_OK) == 0;
}

void lead_start(struct server *s)
{
	struct lead *l = s->lead;

	if (l == NULL)
		return;
	l->may_found = s->conf->membership == CONFIG_MEMBERSHIP_QUORUM && s->self == 0 &&
		       !lead_has_file(s);
	if (!l->may_found)
		start(l, false);
}

/* The first node of the list, without a value: does any other node have one? It must know that of
 * all of them, or there might be two clusters. */
static void found(struct lead *l)
{
	struct server *s = l->s;
	bool all = true, any = false;

	for (uint16_t n = 1; n < s->nodes_nr; n++) {
		all = all && l->linked >> n & 1;
		any = any || (l->linked >> n & 1 && s->peer[n]->member_seq > 0);
	}
	if (any)
		start(l, false);
	else if (all)
		start(l, true);
}

static void stopped(void *arg)
{
	struct lead *l = arg;

	l->ended = true;
}

/* It is called again until all has stopped. Meanwhile there may be more to save. */
void lead_stop(struct server *s)
{
	struct lead *l = s->lead;

	if (l == NULL)
		return;
	if (!l->stopping) {
		l->stopping = true;
		l->may_found = false;
		if (l->source == NULL)
			l->ended = true;
		else
			l->ops->stop(&l->source, stopped, l);
	}
	give_up(l, "the daemon stops");
}

bool lead_ended(const struct server *s)
{
	return s->lead == NULL || s->lead->ended;
}

void lead_free(struct server *s)
{
	struct lead *l = s->lead;

	s->lead = NULL;
	if (l == NULL)
		return;
	CHECK(l->source == NULL);
	give_up(l, "the daemon stops");
	if (l->value != NULL)
		shard__register__free_unpacked(l->value, NULL);
	if (l->next != NULL)
		shard__register__free_unpacked(l->next, NULL);
	free(l);
}

/* --- voters --- */

static void changed(void *arg, enum member_done how, const struct member_view *current)
{
	struct lead *l = arg;

	l->changing = false;
	if (how == MEMBER_OK)
		know(l, current);
	else if (how == MEMBER_UNKNOWN)
		resign(l);
	propose(l);
}

static void change(struct lead *l, bool joins, const uint8_t *uuid)
{
	uint8_t writer[MEMBER_UUID_BYTES];
	enum shard_status st;

	CHECK(getrandom(writer, sizeof(writer), 0) == (ssize_t)sizeof(writer));
	l->changing = true;
	st = (joins ? l->ops->join : l->ops->leave)(l->source, l->term, l->seq, writer, uuid,
						    changed, l);
	if (st != SHARD_OK)
		l->changing = false; /* The next beat tries again. */
	else
		log_line(l->s->log, LOG_LEVEL_INFO, "event=voters term=%lu seq=%lu %s=%02x%02x...",
			 (unsigned long)l->term, (unsigned long)l->seq, joins ? "joins" : "leaves",
			 uuid[0], uuid[1]);
}

static void look_at_voters(struct lead *l)
{
	uint64_t known = l->linked | 1ull << l->s->self, gone = 0, now_ns = clock_ns();
	const uint8_t *uuid;
	bool joins;

	if (l->term == 0 || l->next != NULL || l->changing)
		return;
	memcpy(l->peer[l->s->self], static_uuid(l->s->dir), MEMBER_UUID_BYTES);
	for (uint16_t n = 0; n < l->s->nodes_nr; n++)
		if (l->s->peer[n] != NULL && peer_given_up(l->s->peer[n], now_ns))
			gone |= 1ull << n;
	uuid = voters_next(&l->voters, l->peer, known, gone & ~known, l->s->nodes_nr, &joins);
	if (uuid != NULL)
		change(l, joins, uuid);
}

static void say_who_is_missing(struct lead *l)
{
	uint64_t now = clock_ns();
	struct err e;

	if (lead_known(l->s, &e) == SHARD_OK || l->unknown_ns == 0) {
		l->unknown_ns = now;
	} else if (now - l->unknown_ns >= SAY_NS) {
		l->unknown_ns = now;
		log_line(l->s->log, LOG_LEVEL_WARN, "event=no_coordinator why=%s", e.text);
	}
}

/* While etcd is down training goes on in the view that there is. Only what cannot do without
 * another view waits for etcd. */
static void keep_views(struct lead *l)
{
	bool keeps = l->term != 0 && l->s->conf->membership == CONFIG_MEMBERSHIP_ETCD &&
		     (l->again || source_etcd_silent(l->source));

	if (l->keeps == keeps)
		return;
	l->keeps = keeps;
	list_each(it, &l->s->models) {
		struct model *m = list_of(it, struct model, link);

		if (!m->defining && !m->dropping)
			model_event(m,
				    &(struct core_event){.type = CORE_EV_KEEP_VIEW, .on = keeps});
	}
}

void lead_beat(struct server *s)
{
	struct lead *l = s->lead;

	if (l == NULL || l->stopping || l->failed)
		return;
	say_who_is_missing(l);
	if (l->may_found)
		found(l);
	if (l->source == NULL)
		return;
	if (s->conf->membership == CONFIG_MEMBERSHIP_QUORUM)
		look_at_voters(l);
	keep_views(l);
	if (l->term == 0)
		give_up(l, "this node does not lead");
	else
		propose(l);
}

void lead_node_up(struct server *s, uint16_t node)
{
	struct lead *l = s->lead;

	if (l == NULL)
		return;
	memcpy(l->peer[node], s->peer[node]->uuid, MEMBER_UUID_BYTES);
	l->linked |= 1ull << node;
	if (l->source != NULL)
		l->ops->link(l->source, l->peer[node], true);
	else if (l->may_found)
		found(l);
	look_for_leader(l); /* The source may have named it before there was this link. */
}

void lead_node_down(struct server *s, uint16_t node)
{
	struct lead *l = s->lead;

	if (l == NULL || !(l->linked >> node & 1))
		return;
	l->linked &= ~(1ull << node);
	if (l->source != NULL)
		l->ops->link(l->source, l->peer[node], false);
}

enum shard_status lead_message(struct peer *p, const void *body, uint32_t bytes, struct err *e)
{
	struct lead *l = p->server->lead;

	if (l == NULL)
		return err_set(e, SHARD_PROTOCOL,
			       "a message of an election, and node %s has membership = static",
			       members_name(p->server, p->server->self));
	if (l->source == NULL || !(l->linked >> p->node & 1))
		return SHARD_OK;
	return l->ops->message(l->source, l->peer[p->node], body, bytes, e);
}

void lead_wake(struct server *s)
{
	if (s->lead != NULL && s->lead->source != NULL)
		s->lead->ops->wake(s->lead->source);
}

void lead_resign(struct server *s, const char *why)
{
	struct lead *l = s->lead;

	log_line(s->log, LOG_LEVEL_WARN, "event=resigns term=%lu why=%s", (unsigned long)l->term,
		 why);
	resign(l);
}

void lead_yield(struct model *m, const struct core_action *a)
{
	lead_resign(m->server, a->why);
}
