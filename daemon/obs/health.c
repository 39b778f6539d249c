/* SPDX-License-Identifier: Apache-2.0 */
/* Finds what is wrong. status.c and scrape.c ask, on the loop; server.c calls once a second, and
 * dispatch.c with what other nodes say. Nothing is stored of this node's own findings: each
 * question goes over links and models again, so that no finding outlives its cause. Once a second
 * they are summed, and sent as HEALTH to the other nodes if the sum is another than before, and
 * every minute, with the time that this node's clock shows. What
 * another node said is kept until its next HEALTH, and counts while its link is up. Without memory
 * a HEALTH is not sent or not kept, and the next change tries again. */
#include "obs/health.h"

#include "base/check.h"
#include "base/clock.h"
#include "ckpt/ckpt.h"
#include "ckpt/copying.h"
#include "control/access.h"
#include "control/unmade.h"
#include "control/moving.h"
#include "gpu/device.h"
#include "link/nodes.h"
#include "link/peer.h"
#include "model/lead.h"
#include "model/lost.h"
#include "model/model.h"
#include "obs/history.h"
#include "obs/metrics.h"
#include "obs/progress.h"
#include "obs/waits.h"
#include "wire/control.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NOTE_NS       (600 * NS_PER_SEC) /* How long a refusal is news. */
#define CERT_DAYS     14                 /* A certificate is renewed before so many are left. */
#define STANDS_STEPS  5                  /* Without a step for so many of its steps: warn. */
#define STANDS_MIN_NS (5 * NS_PER_SEC)
#define STANDS_ILL    30
#define STANDS_ILL_NS (300 * NS_PER_SEC)
#define AHEAD_NS      (2 * NS_PER_SEC)  /* A clock that is so far ahead is a wrong one. */
#define AGAIN_NS      (60 * NS_PER_SEC) /* Clocks are told again after that time. */
#define FINDING_BYTES 800
#define FINDINGS_MAX  64u          /* That one message may have of a node or of a model. */
#define MESSAGE_BYTES (192u << 10) /* Of what is told. */
#define TOLD_BYTES    (64u << 10)  /* The least memory for what another node tells. */
#define TOLD_TIMES    16u          /* Unpacked it takes at most so much more, or is not kept. */

struct health { /* Owner: this file. */
	struct told {
		void *memory;
		size_t bytes;
		const Shard__Health *said; /* NULL: the node has said nothing yet. */
		uint64_t ahead_ns;         /* Its clock, of the one here. 0: it is not ahead. */
	} told[CONFIG_NODES_MAX];
	struct arena memory; /* For the message that is sent. */
	uint64_t sent;       /* Sum of what was sent last. */
	uint64_t sent_ns;    /* When all heard it last. */
};

const char *health_level_name(enum health_level level)
{
	static const char *const names[] = {"ok", "warn", "ill"};

	CHECK(level <= HEALTH_ILL);
	return names[level];
}

/* --- one question --- */

struct ask {
	const struct server *s;
	void (*found)(struct ask *a, const struct health_finding *f);
	void *arg;
	const Shard__Cred *who;
	enum health_level worst;
};

__attribute__((format(printf, 6, 7))) static void found(struct ask *a, enum health_level level,
							const char *kind, const char *about,
							const struct model *m, const char *fmt, ...)
{
	char raw[FINDING_BYTES], text[FINDING_BYTES];
	struct health_finding f = {level, kind, about, m, text};
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(raw, sizeof(raw), fmt, ap);
	va_end(ap);
	control_clean(text, sizeof(text), raw); /* It may be cut within a character. */
	a->found(a, &f);
}

/* --- nodes --- */

static bool down(const struct server *s, uint16_t n)
{
	return s->peer[n] != NULL && !s->peer[n]->up && !server_gone(s, n);
}

/* What this node alone sees, so that it tells the others. */
static void own_node(struct ask *a)
{
	const struct server *s = a->s;
	const char *self = members_name(s, s->self);

	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (down(s, n))
			found(a, HEALTH_ILL, "link", members_name(s, n), NULL,
			      "node %s is down: %s", members_name(s, n), s->peer[n]->why);
	/* A message that was late makes a clock look slow. So only the node whose clock is behind
	 * says it. */
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (s->peer[n] != NULL && s->peer[n]->up && s->health->told[n].ahead_ns >= AHEAD_NS)
			found(a, HEALTH_WARN, "clock", self, NULL,
			      "the clocks of nodes %s and %s differ by %.1f s: set them by NTP, "
			      "as chrony or systemd-timesyncd do",
			      self, members_name(s, n),
			      (double)s->health->told[n].ahead_ns / NS_PER_SEC);
	for (uint32_t i = 0; i < s->gpus_nr; i++) {
		const char *why;

		if (gpu_lost(s->gpu[i], &why))
			found(a, HEALTH_ILL, "gpu", self, NULL, "node %s: %s", self, why);
	}
	if (s->gpus_missing.why[0] != 0)
		found(a, HEALTH_ILL, "gpu", self, NULL, "node %s started without a GPU: %s", self,
		      s->gpus_missing.why);
	if (unmade_trouble(s)[0] != 0)
		found(a, HEALTH_ILL, "gpu", self, NULL,
		      "node %s has lost its copy of a model, and cannot make it anew: %s", self,
		      unmade_trouble(s));
	if (s->secret.last_ns != 0 && clock_ns() - s->secret.last_ns < NOTE_NS)
		found(a, HEALTH_WARN, "secret", self, NULL,
		      "node %s turned away a connection lately: %s", self, s->secret.last_why);
	if (tls_expires(s->secret.tls) != 0 &&
	    tls_expires(s->secret.tls) - (int64_t)time(NULL) < CERT_DAYS * 86400)
		found(a, HEALTH_WARN, "tls", self, NULL,
		      "the certificate of node %s (tls_cert) expires in less than %d days: put a "
		      "new one there, and send SIGHUP",
		      self, CERT_DAYS);
	if (s->budget.refused_ns != 0 && clock_ns() - s->budget.refused_ns < NOTE_NS)
		found(a, HEALTH_WARN, "budget", self, NULL,
		      "a model was refused lately, for want of memory: %s", s->budget.refused_why);
}

/* What each node sees by itself. */
static void all_nodes(struct ask *a)
{
	const struct server *s = a->s;
	struct err e;

	if (lead_known(s, &e) != SHARD_OK)
		found(a, HEALTH_ILL, "coordinator", members_name(s, s->self), NULL,
		      "nobody coordinates: %s", e.text);
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (nodes_ill(s, n)[0] != 0)
			found(a, HEALTH_ILL, "disk", members_name(s, n), NULL, "node %s: %s",
			      members_name(s, n), nodes_ill(s, n));
}

/* Another node's findings about itself. That a node is down is told here by this node's own link,
 * if that is down, too. */
static void told_node(struct ask *a, uint16_t from)
{
	const struct server *s = a->s;
	const Shard__Health *t = s->health->told[from].said;

	for (size_t i = 0; t != NULL && s->peer[from]->up && i < t->n_found; i++) {
		const Shard__Finding *f = t->found[i];
		uint16_t n = nodes_find(s, f->about);

		if (strcmp(f->kind, "link") != 0)
			found(a, (enum health_level)f->level, f->kind, f->about, NULL, "%s",
			      f->text);
		else if (n != s->self && (n >= s->nodes_nr || !down(s, n)))
			found(a, (enum health_level)f->level, f->kind, f->about, NULL,
			      "node %s says: %s", members_name(s, from), f->text);
	}
}

/* --- models --- */

static void own_stands(struct ask *a, const struct model *m)
{
	uint64_t age = progress_stands_ns(m), step = progress_median_ns(m);
	char waits[1024], one[40] = "";

	if (age < STANDS_MIN_NS || age < STANDS_STEPS * step)
		return;
	waits_words(m, waits, sizeof(waits));
	if (step > 0)
		snprintf(one, sizeof(one), " (one takes %.3g s)", (double)step / NS_PER_SEC);
	found(a, age > STANDS_ILL_NS && age > STANDS_ILL * step ? HEALTH_ILL : HEALTH_WARN,
	      "stands", m->name, m, "\"%s\" has made no step for %.0f s%s; it waits for %s",
	      m->name, (double)age / NS_PER_SEC, one,
	      waits[0] != 0 ? waits : "nobody that this node knows");
}

static void own_copies(struct ask *a, const struct model *m)
{
	unsigned least = m->sealed ? place_least(&m->place) : m->set.replicas;
	char also[128] = "";

	if (least >= m->set.replicas)
		return;
	if (least < m->set.min_copies)
		snprintf(also, sizeof(also), ", and no step begins with fewer than %u",
			 (unsigned)m->set.min_copies);
	found(a, least < m->set.min_copies ? HEALTH_ILL : HEALTH_WARN, "copies", m->name, m,
	      "chunks of \"%s\" have %u of %u copies%s", m->name, least, (unsigned)m->set.replicas,
	      also);
}

/* The coordinator knows of checkpoints. */
static void own_checkpoint(struct ask *a, const struct model *m)
{
	const struct ckpt_model *c = m->ckpt;
	uint64_t every = m->set.checkpoint_every, behind = m->step - c->last.step;
	char newest[160] = "there is no checkpoint of it";

	if (c->last.path[0] != 0)
		snprintf(newest, sizeof(newest), "the newest is of step %lu, %ld steps ago",
			 (unsigned long)c->last.step, (long)(m->step - c->last.step));
	if (every > 0 && m->step > c->last.step && behind > 3 * every)
		found(a, HEALTH_ILL, "checkpoint", m->name, m,
		      "three checkpoints of \"%s\" in a row were not written: %s; %s", m->name,
		      c->last_error[0] != 0 ? c->last_error : "none has ended", newest);
	else if (c->last_error[0] != 0)
		found(a, HEALTH_WARN, "checkpoint", m->name, m,
		      "the last save or restore of \"%s\" failed: %s; %s", m->name, c->last_error,
		      newest);
}

/* What checkpoint_hook could not copy. */
static void own_copies_away(struct ask *a, const struct model *m)
{
	const struct copying_state *c = copying_state(m);

	if (c != NULL && c->last_error[0] != 0)
		found(a, HEALTH_WARN, "copying", m->name, m,
		      "checkpoint_hook has not copied a checkpoint of \"%s\": %s; %u are left, and "
		      "are tried again after the next save",
		      m->name, c->last_error, c->left);
}

/* A model that does not train, and why. */
static void own_state(struct ask *a, const struct model *m)
{
	const char *state = progress_own_state(m), *name = m->name;
	char waits[1024];

	if (strcmp(state, "training") == 0) {
		own_stands(a, m);
		return;
	}
	waits_words(m, waits, sizeof(waits));
	if (strcmp(state, "lost") == 0)
		found(a, HEALTH_ILL, "lost", name, m,
		      "\"%s\" is lost: %s: `shardctl restore DIR` brings its weights back, "
		      "`shardctl model drop %s` lets it begin anew",
		      name, lost_why(m), name);
	else if (strcmp(state, "diverged") == 0)
		found(a, HEALTH_ILL, "diverged", name, m,
		      "\"%s\" is paused at step %lu: %s; `shardctl model resume %s` tries again",
		      name, (unsigned long)m->step, waits, name);
	else if (strcmp(state, "paused") == 0)
		found(a, HEALTH_WARN, "paused", name, m,
		      "an operator paused \"%s\" at step %lu: `shardctl model resume %s`", name,
		      (unsigned long)m->step, name);
	else if (strcmp(state, "waiting") == 0)
		found(a, HEALTH_WARN, "waits", name, m, "\"%s\" waits at step %lu for %s", name,
		      (unsigned long)m->step, waits[0] != 0 ? waits : "trainers");
	else
		found(a, HEALTH_WARN, state, name, m, "\"%s\" is %s%s%s", name, state,
		      waits[0] != 0 ? " and waits for " : "", waits);
}

static void own_model(struct ask *a, const struct model *m)
{
	if (server_leads(m->server) && m->memory.unled && m->memory.unled_why[0] != 0)
		found(a, HEALTH_ILL, "coordinator", m->name, m, "nobody coordinates \"%s\": %s",
		      m->name, m->memory.unled_why);
	own_state(a, m);
	if (m->defining)
		return;
	own_copies(a, m);
	if (moving_trouble(m)[0] != 0)
		found(a, HEALTH_WARN, "moving", m->name, m,
		      "chunks of \"%s\" do not move as they should: %s", m->name,
		      moving_trouble(m));
	if (server_leads(m->server))
		own_checkpoint(a, m);
	own_copies_away(a, m);
}

const Shard__Known *health_known(const struct model *m)
{
	const struct server *s = m->server;
	uint16_t lead = server_coordinator(s);
	const Shard__Health *t = lead < s->nodes_nr ? s->health->told[lead].said : NULL;

	if (t == NULL || server_leads(s) || !s->peer[lead]->up || lead_known(s, NULL) != SHARD_OK)
		return NULL;
	for (size_t i = 0; i < t->n_models; i++)
		if (t->models[i]->model == m->id)
			return t->models[i];
	return NULL;
}

const char *health_known_state(const struct model *m)
{
	const Shard__Known *k = health_known(m);

	return k != NULL && k->state[0] != 0 ? k->state : NULL;
}

/* The coordinator's judgement where there is one. What a node knows better of itself follows. */
static void one_model(struct ask *a, const struct model *m)
{
	const Shard__Known *k = health_known(m);
	struct history_state h = {.trouble = ""};

	if (k == NULL)
		own_model(a, m);
	for (size_t i = 0; k != NULL && i < k->n_found; i++)
		found(a, (enum health_level)k->found[i]->level, k->found[i]->kind, m->name, m, "%s",
		      k->found[i]->text);
	if (!m->defining)
		history_state(m, &h);
	if (h.trouble[0] != 0)
		found(a, HEALTH_WARN, "history", m->name, m,
		      "the disk of node %s does not take the history of \"%s\": %s",
		      members_name(a->s, a->s->self), m->name, h.trouble);
}

/* --- the answers --- */

static void everything(struct ask *a)
{
	own_node(a);
	all_nodes(a);
	for (uint16_t n = 0; n < a->s->nodes_nr; n++)
		if (n != a->s->self)
			told_node(a, n);
	list_each(it, (struct list *)(uintptr_t)&a->s->models)
		one_model(a, list_of(it, struct model, link));
}

/* True: the requester may not read the model. Only what is ill is then said, and not why. */
static bool hidden(const struct ask *a, const struct model *m)
{
	struct err e;

	return m != NULL && access_check(m, a->who, false, &e) != SHARD_OK;
}

static void as_line(struct ask *a, const struct health_finding *f)
{
	if (hidden(a, f->m) && f->level < HEALTH_ILL)
		return;
	if (f->level > a->worst)
		a->worst = f->level;
	if (a->arg == NULL)
		return;
	if (hidden(a, f->m))
		fprintf(a->arg, "%s: \"%s\" is ill (%s): its owner may ask why\n",
			health_level_name(f->level), f->about, f->kind);
	else
		fprintf(a->arg, "%s: %s\n", health_level_name(f->level), f->text);
}

enum health_level health_lines(FILE *f, const struct server *s, const Shard__Cred *who)
{
	struct ask a = {.s = s, .found = as_line, .arg = f, .who = who};

	everything(&a);
	return a.worst;
}

static void as_json(struct ask *a, const struct health_finding *f)
{
	json_t *o = json_object();

	if (hidden(a, f->m) && f->level < HEALTH_ILL) {
		json_decref(o);
		return;
	}
	if (f->level > a->worst)
		a->worst = f->level;
	json_object_set_new(o, "level", json_string(health_level_name(f->level)));
	json_object_set_new(o, "kind", json_string(f->kind));
	json_object_set_new(o, f->m != NULL ? "model" : "node", json_string(f->about));
	json_object_set_new(o, "text",
			    json_string(hidden(a, f->m) ? "its owner may ask why" : f->text));
	json_array_append_new(a->arg, o);
}

json_t *health_json(const struct server *s, const Shard__Cred *who)
{
	struct ask a = {.s = s, .found = as_json, .arg = json_array(), .who = who};
	json_t *o;

	if (a.arg == NULL)
		return NULL;
	everything(&a);
	o = json_pack("{s:s, s:o}", "level", health_level_name(a.worst), "findings", a.arg);
	return o;
}

void health_ready(const struct server *s, char *why, size_t bytes)
{
	struct err e;

	why[0] = 0;
	if (s->stop.on)
		snprintf(why, bytes, "the daemon stops: %s", s->stop.why);
	else if (lead_known(s, &e) != SHARD_OK)
		snprintf(why, bytes, "nobody coordinates: %s", e.text);
	else if (!server_leads(s) && !s->peer[server_coordinator(s)]->up)
		snprintf(why, bytes, "node %s, which coordinates, is out of reach: %s",
			 members_name(s, server_coordinator(s)),
			 s->peer[server_coordinator(s)]->why);
}

/* --- other nodes --- */

/* A message is made in memory that there is since the start, so that nothing is allocated while
 * steps are made. What does not fit is left out. */
struct list_of_findings {
	struct arena *memory;
	Shard__Finding *at[FINDINGS_MAX];
	size_t nr;
};

/* A text that may be sent. */
static char *copied(struct arena *memory, const char *text)
{
	size_t bytes = strlen(text) + 1;
	char *out = arena_take(memory, bytes);

	if (out != NULL)
		control_clean(out, bytes, text);
	return out;
}

static void as_message(struct ask *a, const struct health_finding *f)
{
	struct list_of_findings *l = a->arg;
	Shard__Finding *out = l->nr < FINDINGS_MAX ? arena_take(l->memory, sizeof(*out)) : NULL;

	if (out == NULL)
		return;
	shard__finding__init(out);
	out->level = (uint32_t)f->level;
	out->kind = copied(l->memory, f->kind);
	out->about = copied(l->memory, f->about);
	out->text = copied(l->memory, f->text);
	if (out->kind != NULL && out->about != NULL && out->text != NULL)
		l->at[l->nr++] = out;
}

static size_t taken(const struct list_of_findings *l, Shard__Finding ***out)
{
	*out = arena_take(l->memory, (l->nr + 1) * sizeof(**out));
	if (*out == NULL)
		return 0;
	memcpy(*out, l->at, l->nr * sizeof(**out));
	return l->nr;
}

/* NULL: there is no room for it. Other nodes then judge the model by themselves. */
static Shard__Known *known_of(const struct model *m, struct arena *memory)
{
	struct list_of_findings l = {.memory = memory};
	struct ask a = {.s = m->server, .found = as_message, .arg = &l};
	Shard__Known *k = arena_take(memory, sizeof(*k));
	struct core_state c;

	if (k == NULL)
		return NULL;
	shard__known__init(k);
	own_model(&a, m);
	k->n_found = taken(&l, &k->found);
	k->model = m->id;
	k->state = copied(memory, progress_own_state(m));
	k->path = copied(memory, m->ckpt->last.path);
	k->step = m->ckpt->last.step;
	k->bytes = m->ckpt->last.bytes;
	k->at = m->ckpt->last.at;
	k->failures = m->ckpt->failures;
	core_state(m->core, &c);
	k->empty = c.joined == 0;
	k->last_error = copied(memory, m->ckpt->last_error);
	return k->state != NULL && k->path != NULL && k->last_error != NULL ? k : NULL;
}

/* What this node has to tell. It is in effect until the next call. */
static void message(const struct server *s, Shard__Health *h)
{
	struct arena *memory = &s->health->memory;
	struct list_of_findings l = {.memory = memory};
	struct ask a = {.s = s, .found = as_message, .arg = &l};
	size_t nr = 0;

	arena_reset(memory);
	shard__health__init(h);
	h->clock = clock_unix_ns();
	own_node(&a);
	h->n_found = taken(&l, &h->found);
	list_each(it, (struct list *)(uintptr_t)&s->models)
		nr++;
	h->models = arena_take(memory, (nr + 1) * sizeof(*h->models));
	list_each(it, (struct list *)(uintptr_t)&s->models) {
		const struct model *m = list_of(it, struct model, link);
		Shard__Known *k = NULL;

		if (server_leads(s) && !m->defining && h->models != NULL)
			k = known_of(m, memory);
		if (k != NULL)
			h->models[h->n_models++] = k;
	}
}

static void tell(struct server *s, uint64_t to)
{
	struct wire_head h = {.op = OP_HEALTH};
	Shard__Health body;
	bool made = false;

	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (!(to >> n & 1) || s->peer[n] == NULL || !s->peer[n]->up ||
		    !peer_knows(s->peer[n], WIRE_HEALTH))
			continue;
		if (!made)
			message(s, &body);
		made = true;
		peer_tell(s, n, &h, &body.base);
	}
}

/* The same findings as message() has, as a sum: a beat allocates nothing while nothing changes. */
static void into_sum(struct ask *a, const struct health_finding *f)
{
	uint64_t *sum = a->arg;

	*sum = xxh_sum(f->text, strlen(f->text), *sum + (uint64_t)f->level);
}

static uint64_t sum_of(const struct server *s)
{
	uint64_t sum = server_leads(s);
	struct ask a = {.s = s, .found = into_sum, .arg = &sum};

	own_node(&a);
	list_each(it, (struct list *)(uintptr_t)&s->models) {
		const struct model *m = list_of(it, struct model, link);
		const struct ckpt_last *l = &m->ckpt->last;
		const char *state;

		if (!server_leads(s) || m->defining)
			continue;
		own_model(&a, m);
		state = progress_own_state(m);
		sum = xxh_sum(state, strlen(state), sum + m->id);
		sum = xxh_sum(l->path, strlen(l->path), sum + l->step + (uint64_t)l->at);
		sum = xxh_sum(m->ckpt->last_error, strlen(m->ckpt->last_error),
			      sum + m->ckpt->failures);
	}
	return sum;
}

void health_beat(struct server *s)
{
	uint64_t sum = sum_of(s);

	if (sum == s->health->sent && clock_ns() - s->health->sent_ns < AGAIN_NS)
		return;
	s->health->sent = sum;
	s->health->sent_ns = clock_ns();
	tell(s, UINT64_MAX);
}

void health_node_up(struct server *s, uint16_t node)
{
	tell(s, 1ull << node);
}

static bool sound(const Shard__Finding *f)
{
	return f->level == HEALTH_WARN || f->level == HEALTH_ILL;
}

static enum shard_status check(const struct peer *p, const Shard__Health *body, struct err *e)
{
	bool ok = true;

	for (size_t i = 0; i < body->n_found; i++)
		ok = ok && sound(body->found[i]);
	for (size_t i = 0; i < body->n_models; i++) {
		const Shard__Known *k = body->models[i];
		size_t word = 0;

		while (progress_states[word] != NULL &&
		       strcmp(progress_states[word], k->state) != 0)
			word++;
		ok = ok && progress_states[word] != NULL;
		for (size_t f = 0; f < k->n_found; f++)
			ok = ok && sound(k->found[f]);
	}
	if (ok)
		return SHARD_OK;
	return err_set(e, SHARD_PROTOCOL, "node %s: HEALTH with a level or a state that is none",
		       members_name(p->server, p->node));
}

/* The message is of the scratch memory. It is kept in memory that grows and is used again. */
enum shard_status health_told(struct peer *p, const Shard__Health *body, struct err *e)
{
	struct told *t = &p->server->health->told[p->node];
	size_t packed = shard__health__get_packed_size(body), room = TOLD_TIMES * packed + 4096;
	uint64_t now = clock_unix_ns();
	const ProtobufCMessage *copy;
	struct arena memory;

	if (check(p, body, e) != SHARD_OK)
		return SHARD_PROTOCOL;
	t->said = NULL;
	t->ahead_ns = body->clock > now ? body->clock - now : 0;
	if (packed + room > t->bytes) {
		free(t->memory);
		t->bytes = packed + room > TOLD_BYTES ? packed + room : TOLD_BYTES;
		t->memory = malloc(t->bytes);
	}
	if (t->memory == NULL) {
		t->bytes = 0;
		return SHARD_OK;
	}
	shard__health__pack(body, (uint8_t *)t->memory + t->bytes - packed);
	arena_init(&memory, t->memory, t->bytes - packed);
	if (control_unpack(&copy, &shard__health__descriptor,
			   (uint8_t *)t->memory + t->bytes - packed, packed, &memory,
			   e) == SHARD_OK)
		t->said = (const Shard__Health *)copy;
	return SHARD_OK;
}

/* --- its life --- */

enum shard_status health_init(struct server *s, struct err *e)
{
	struct health *h = calloc(1, sizeof(*h) + MESSAGE_BYTES);

	s->health = h;
	if (h == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the health");
	arena_init(&h->memory, h + 1, MESSAGE_BYTES);
	return SHARD_OK;
}

void health_free(struct server *s)
{
	for (uint16_t n = 0; s->health != NULL && n < CONFIG_NODES_MAX; n++)
		free(s->health->told[n].memory);
	free(s->health);
	s->health = NULL;
}
