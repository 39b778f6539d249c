/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's state as JSON, as one line, and as a sentence that says who is waited for.
 * dispatch.c asks for STATUS and WAITS, scrape.c for HTTP, and notify.c for systemd, all on the
 * loop. Nothing here changes anything. A node knows its own links and its models. Whom an attempt
 * waits for on other nodes it knows from the coordinator. Without memory status_json() returns
 * NULL. */
#include "obs/status.h"
#include "obs/events.h"
#include "obs/health.h"
#include "obs/history.h"
#include "obs/http.h"
#include "obs/metrics.h"
#include "obs/progress.h"
#include "ckpt/ckpt.h"
#include "ckpt/copying.h"

#include "base/check.h"
#include "control/access.h"
#include "control/moving.h"
#include "data/apply.h"
#include "data/images.h"
#include "data/catchup.h"
#include "base/clock.h"
#include "model/devices.h"
#include "model/lead.h"
#include "model/lost.h"
#include "model/model.h"
#include "model/writer.h"
#include "gpu/device.h"
#include "warm/warm.h"
#include "obs/scrape.h"
#include "obs/waits.h"
#include "link/nodes.h"
#include "link/peer.h"
#include "data/trainer.h"
#include "link/session.h"
#include "wire/dtype.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static double seconds(uint64_t since_ns)
{
	return (double)(clock_ns() - since_ns) / (double)NS_PER_SEC;
}

/* What carries tensors to and from a peer, why it is not RDMA, and what encrypts the rest. */
static void transport_json(json_t *o, const struct peer *p)
{
	char said[TLS_SAID_BYTES];
	uint64_t in, out;
	const char *why;

	rdma_link_bytes(p, &in, &out);
	json_object_set_new(o, "transport",
			    json_string(rdma_link_carries(p, &why) ? "rdma" : "tcp"));
	if (why != NULL)
		json_object_set_new(o, "tcp_why", json_string(why));
	json_object_set_new(o, "rdma_in_bytes", json_integer((json_int_t)in));
	json_object_set_new(o, "rdma_out_bytes", json_integer((json_int_t)out));
	json_object_set_new(o, "rdma_failures", json_integer((json_int_t)p->rdma.failures));
	json_object_set_new(o, "tls",
			    json_string(tls_said(stream_io(conn_stream(p->conns[0].conn)), said)));
}

static void uuid_text(char *out, const uint8_t *uuid)
{
	for (int i = 0; i < STATIC_UUID_BYTES; i++)
		snprintf(out + 2 * i, 3, "%02x", uuid[i]);
}

/* What a node said of itself when it was linked last. */
static void member_json(json_t *o, const struct server *s, uint16_t n)
{
	static const uint8_t nobody[STATIC_UUID_BYTES];
	const struct peer *p = s->peer[n];
	const uint8_t *uuid = p == NULL ? static_uuid(s->dir) : p->uuid;
	char text[2 * STATIC_UUID_BYTES + 1];

	if (memcmp(uuid, nobody, sizeof(nobody)) == 0)
		return;
	uuid_text(text, uuid);
	json_object_set_new(o, "uuid", json_string(text));
	json_object_set_new(o, "capacity",
			    json_integer(p == NULL ? server_capacity(s) : peer_capacity(p)));
	if (lead_voters_known(s))
		json_object_set_new(o, "votes", json_boolean(lead_votes(s, n)));
	json_object_set_new(o, "release", json_string(p == NULL ? SHARD_RELEASE : p->release));
	json_object_set_new(o, "wire_minor", json_integer(p == NULL ? WIRE_MINOR : p->wire_minor));
}

/* A node that is in the list, and not taken in here yet. */
static void next_json(json_t *list, const struct server *s)
{
	const char *why;
	const struct config_node *n = nodes_next(s, &why);

	if (n != NULL)
		json_array_append_new(list,
				      json_pack("{s:s, s:s, s:s, s:b, s:I, s:f, s:s}", "name",
						n->name, "address", n->address.text, "state",
						"joining", "coordinator", false, "incarnation",
						(json_int_t)0, "since_s", 0.0, "why", why));
}

static json_t *nodes_json(const struct server *s)
{
	bool known = lead_known(s, NULL) == SHARD_OK;
	json_t *list = json_array();

	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		const struct peer *p = s->peer[n];
		json_t *o =
			json_pack("{s:s, s:s, s:s, s:b, s:I, s:f}", "name", members_name(s, n),
				  "address", s->node[n].address.text, "state",
				  p == NULL           ? "self"
				  : p->up             ? "up"
				  : server_gone(s, n) ? "gone"
						      : "down",
				  "coordinator", known && n == server_coordinator(s), "incarnation",
				  (json_int_t)(p == NULL ? s->incarnation : p->incarnation),
				  "since_s", seconds(p == NULL ? s->started_ns : p->since_ns));

		member_json(o, s, n);
		if (p != NULL && !p->up)
			json_object_set_new(
				o, "why",
				json_string(server_gone(s, n) ? "drained, gone" : p->why));
		if (nodes_ill(s, n)[0] != 0)
			json_object_set_new(o, "ill", json_string(nodes_ill(s, n)));
		if (p != NULL) {
			uint64_t in, out;

			scrape_peer_bytes(p, &in, &out);
			json_object_set_new(o, "in_bytes", json_integer((json_int_t)in));
			json_object_set_new(o, "out_bytes", json_integer((json_int_t)out));
			if (p->up)
				transport_json(o, p);
		}
		json_array_append_new(list, o);
	}
	next_json(list, s);
	return list;
}

/* Those of the last world may have left where too few trainers have joined for another attempt. */
static bool has_world(const struct model *m, const struct core_state *c)
{
	const Shard__Known *k = health_known(m);
	bool empty = c->coordinator ? c->joined == 0 : k != NULL && k->empty;

	return m->attempt.on || (strcmp(progress_state(m), "waiting") != 0 && !empty);
}

/* Of the attempt in hand or, between two, of the last one. */
static json_t *world_json(const struct model *m, const struct core_state *c)
{
	json_t *list = json_array();

	CHECK(m->attempt.world.size <= CORE_RANKS_MAX);
	if (!has_world(m, c))
		return list;
	for (uint32_t r = 0; r < m->attempt.world.size; r++) {
		json_t *o = json_pack("{s:i, s:i, s:s}", "rank", (int)r, "pid",
				      (int)m->attempt.world.rank[r].pid, "node",
				      members_name(m->server, m->attempt.world.rank[r].node));

		for (uint32_t i = 0; i < m->contrib.local_nr; i++) {
			const struct contrib_rank *g = &m->contrib.local[i];

			if (g->rank != r)
				continue;
			json_object_set_new(o, "state",
					    json_string(g->trainer == NULL ? "lost"
							: g->ready         ? "ready"
							: waits_starved(m, g)
								? "waits for the image"
								: "computing"));
			json_object_set_new(o, "chunks_pushed", json_integer(g->chunks_pushed));
			/* Nothing has come from it for that long. */
			if (m->attempt.on && !g->ready)
				json_object_set_new(
					o, "wait_s",
					json_real(seconds(g->pushed_ns ? g->pushed_ns
								       : m->attempt.began_ns)));
		}
		json_array_append_new(list, o);
	}
	return list;
}

/* Figures of the last decided step. The times of contrib_in, grad_in and image_in are from the
 * first byte of other nodes to the last. */
static json_t *last_step_json(const struct model *m)
{
	static const char *const outcomes[] = {"seal", "applied", "nonfinite", "skipped"};
	const struct model_flow *c = &m->last_contrib_in, *g = &m->last_grad_in, *i = &m->image_in;
	const struct record *r = &m->record;
	json_t *o = json_pack("{s:f, s:f, s:I, s:f, s:I, s:f}", "reduce_s",
			      (double)m->last_reduce_ns / NS_PER_SEC, "apply_s",
			      (double)m->img.apply_ns / NS_PER_SEC, "contrib_in_bytes",
			      (json_int_t)c->bytes, "contrib_in_s",
			      (double)(c->ended_ns - c->began_ns) / NS_PER_SEC, "image_in_bytes",
			      (json_int_t)i->bytes, "image_in_s",
			      (double)(i->ended_ns - i->began_ns) / NS_PER_SEC);

	json_object_set_new(o, "grad_in_bytes", json_integer((json_int_t)g->bytes));
	json_object_set_new(o, "grad_in_s",
			    json_real((double)(g->ended_ns - g->began_ns) / NS_PER_SEC));
	json_object_set_new(o, "outcome", json_string(outcomes[r->outcome]));
	json_object_set_new(o, "step_s", json_real((double)m->metrics->step_ns / NS_PER_SEC));
	json_object_set_new(o, "wait_s", json_real((double)m->metrics->wait_ns / NS_PER_SEC));
	/* JSON has no infinity. */
	json_object_set_new(o, "grad_norm",
			    isfinite(r->grad_norm) ? json_real(r->grad_norm) : json_null());
	json_object_set_new(o, "clip_factor",
			    isfinite(r->clip_factor) ? json_real(r->clip_factor) : json_null());
	json_object_set_new(o, "lr", json_real(r->lr));
	return o;
}

static json_t *memory_json(const struct budget_need *need)
{
	json_t *o = json_object();
	char key[32];

	for (enum budget_item i = 0; i < BUDGET_ITEMS; i++) {
		snprintf(key, sizeof(key), "%s", budget_item_name(i));
		for (char *at = key; (at = strchr(at, ' ')) != NULL;)
			*at = '_';
		json_object_set_new(o, key, json_integer((json_int_t)need->bytes[i]));
	}
	json_object_set_new(o, "total", json_integer((json_int_t)need->total));
	return o;
}

static json_t *chunks_json(const struct model *m)
{
	CHECK(m->layout != NULL);
	json_int_t nr[CONFIG_NODES_MAX] = {0};
	json_t *per = json_object();

	for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
		for (uint64_t n = place_copies(&m->place, c); n != 0; n &= n - 1)
			nr[__builtin_ctzll(n)]++;
	for (uint16_t n = 0; n < m->server->nodes_nr; n++)
		json_object_set_new(per, members_name(m->server, n), json_integer(nr[n]));
	return json_pack("{s:i, s:i, s:i, s:i, s:i, s:o}", "nr", (int)m->layout->chunks_nr, "elems",
			 (int)m->layout->chunk_elems, "copies", (int)m->set.replicas, "min_copies",
			 (int)m->set.min_copies, "least", (int)place_least(&m->place), "per_node",
			 per);
}

/* The view that this node has adopted, who is in it, who catches up, and for how many seconds. A
 * model whose memory is being made has no core, but maybe a view in which chunks move. */
static void view_json(json_t *o, const struct model *m, const struct core_state *core)
{
	json_t *members = json_array(), *learns = json_array(), *times = json_object();
	uint64_t behind = m->place.learns | m->place.moves;
	struct moving_left left;
	uint32_t here, all;

	for (uint16_t n = 0; n < m->server->nodes_nr; n++) {
		json_t *name = json_string(members_name(m->server, n));

		if (place_is_member(&m->place, n))
			json_array_append(members, name);
		if (behind >> n & 1)
			json_array_append(learns, name);
		if (behind >> n & 1 && m->learns_ns[n] != 0)
			json_object_set_new(times, members_name(m->server, n),
					    json_real(seconds(m->learns_ns[n])));
		json_decref(name);
	}
	json_object_set_new(
		o, "view",
		json_pack("{s:I, s:i}", "term", (json_int_t)core->term, "seq", (int)core->seq));
	json_object_set_new(o, "members", members);
	json_object_set_new(o, "catching_up", learns);
	json_object_set_new(o, "catching_up_s", times);
	catchup_progress(m, &here, &all);
	if (all > 0)
		json_object_set_new(o, "fetched", json_integer((json_int_t)here));
	if (moving_on(m) || moving_trouble(m)[0] != 0) {
		left = moving_left(m, false);
		json_object_set_new(o, "moving",
				    json_pack("{s:s, s:s, s:s, s:f, s:I, s:I}", "state",
					      moving_state(m), "waits", core->moves, "trouble",
					      moving_trouble(m), "since_s",
					      moving_since(m) != 0 ? seconds(moving_since(m)) : 0.0,
					      "copies_left", (json_int_t)left.copies, "bytes_left",
					      (json_int_t)left.bytes));
	}
}

/* The owner, and the mode. */
static void owner_json(json_t *o, const struct model *m)
{
	const Shard__Cred *owner = m->spec->owner;
	char mode[8];

	snprintf(mode, sizeof(mode), "%04o", m->set.mode);
	json_object_set_new(o, "owner",
			    owner != NULL && owner->known
				    ? json_pack("{s:I, s:I}", "uid", (json_int_t)owner->uid, "gid",
						(json_int_t)owner->gid)
				    : json_null());
	json_object_set_new(o, "mode", json_string(mode));
}

/* What operators set for groups, by the keys that they gave: KEY, or GROUP/KEY in a model with
 * named groups. */
static json_t *hyper_json(const struct model *m, const struct core_tune *t)
{
	const Shard__Spec *spec = m->spec->spec;
	json_t *o = json_object();
	char key[96];

	for (uint32_t g = 0; g < m->set.groups_nr; g++)
		for (uint32_t i = 0; i < HYPER_NR; i++) {
			if (!(t->set[g] >> i & 1))
				continue;
			snprintf(key, sizeof(key), "%s%s%s",
				 g < spec->n_groups ? spec->groups[g]->name : "",
				 g < spec->n_groups ? "/" : "", m->set.optim->hyper[i].name);
			json_object_set_new(o, key, json_real(t->hyper[g][i]));
		}
	return o;
}

/* The owner, and what operators changed since the definition. */
static void life_json(json_t *o, const struct model *m, const struct core_state *c)
{
	json_t *groups = json_array();

	owner_json(o, m);
	for (size_t g = 0; g < m->spec->spec->n_groups; g++)
		json_array_append_new(groups, json_string(m->spec->spec->groups[g]->name));
	json_object_set_new(o, "paused", json_boolean(c->tune->paused));
	json_object_set_new(o, "diverged", json_boolean(c->paused && !c->tune->paused));
	json_object_set_new(o, "tuned",
			    json_pack("{s:o, s:o, s:o}", "lr",
				      c->tune->has_lr ? json_real(c->tune->lr) : json_null(),
				      "clip",
				      c->tune->has_clip ? json_real(c->tune->clip) : json_null(),
				      "hyper", hyper_json(m, c->tune)));
	json_object_set_new(o, "tensors", json_integer((json_int_t)m->layout->tensors_nr));
	json_object_set_new(o, "groups", groups);
}

/* The newest checkpoint. The coordinator knows it, and tells the other nodes. */
static json_t *last_json(const struct ckpt_last *l)
{
	double age = difftime(time(NULL), l->at);

	if (l->path[0] == 0)
		return json_null();
	return json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:f}", "path", l->path, "step",
			 (json_int_t)l->step, "bytes", (json_int_t)l->bytes, "shared_bytes",
			 (json_int_t)l->shared_bytes, "write_seconds",
			 (double)l->write_ns / NS_PER_SEC, "hold_seconds",
			 (double)l->hold_ns / NS_PER_SEC, "age_seconds", age > 0 ? age : 0.0);
}

/* What checkpoint_hook has copied. Only the node that runs it knows. */
static json_t *copied_json(const struct model *m)
{
	const struct copying_state *c = copying_state(m);

	if (c == NULL)
		return json_null();
	return json_pack("{s:b, s:I, s:s, s:I, s:I, s:I, s:s}", "running", c->running, "left",
			 (json_int_t)c->left, "path", c->path, "step", (json_int_t)c->step, "at",
			 (json_int_t)c->at, "failures", (json_int_t)c->failures, "last_error",
			 c->last_error);
}

static json_t *checkpoint_json(const struct model *m)
{
	const Shard__Known *k = health_known(m);
	const char *error = k != NULL ? k->last_error : m->ckpt->last_error;
	struct ckpt_last last = m->ckpt->last;
	struct ckpt_status st;
	json_t *o;

	if (k != NULL) {
		last = (struct ckpt_last){.step = k->step, .bytes = k->bytes, .at = k->at};
		snprintf(last.path, sizeof(last.path), "%s", k->path);
	}
	ckpt_status(m, &st);
	o = json_pack("{s:s, s:I, s:I, s:I, s:I}", "state", st.state, "step", (json_int_t)st.step,
		      "done_bytes", (json_int_t)st.done_bytes, "shared_bytes",
		      (json_int_t)st.shared_bytes, "total_bytes", (json_int_t)st.total_bytes);
	json_object_set_new(o, "last", last_json(&last));
	json_object_set_new(
		o, "failures",
		json_integer((json_int_t)(k != NULL ? k->failures : m->ckpt->failures)));
	json_object_set_new(o, "last_error", json_string(error));
	json_object_set_new(o, "copied", copied_json(m));
	return o;
}

/* How the training goes: the time of a step, how long there has been none, and whether that is long
 * for this model. */
static void progress_json(json_t *o, const struct model *m)
{
	const struct progress *p = &m->metrics->progress;
	uint64_t step = progress_median_ns(m);

	json_object_set_new(o, "median_step_s",
			    step > 0 ? json_real((double)step / NS_PER_SEC) : json_null());
	json_object_set_new(o, "stands_s", json_real((double)progress_stands_ns(m) / NS_PER_SEC));
	json_object_set_new(o, "late", json_boolean(progress_late(m)));
	json_object_set_new(o, "losses", json_integer((json_int_t)p->losses));
	json_object_set_new(o, "steps_lost", json_integer((json_int_t)p->steps_lost));
	if (p->back.at == 0)
		return;
	json_object_set_new(o, "set_back",
			    json_pack("{s:I, s:I, s:I}", "at", (json_int_t)p->back.at, "from_step",
				      (json_int_t)p->back.from_step, "to_step",
				      (json_int_t)p->back.to_step));
	json_object_set_new(json_object_get(o, "set_back"), "path", json_string(p->back.path));
	json_object_set_new(json_object_get(o, "set_back"), "why", json_string(p->back.why));
}

/* For a requester who may not read the model: says that the name is taken, and who owns it. */
static json_t *private_json(const struct model *m)
{
	json_t *o = json_pack("{s:s, s:s}", "name", m->name, "state", "private");

	if (o != NULL)
		owner_json(o, m);
	return o;
}

static json_t *history_json(const struct model *m)
{
	struct history_state h;

	history_state(m, &h);
	if (!h.on)
		return json_null();
	return json_pack("{s:I, s:I, s:I, s:I, s:s}", "bytes", (json_int_t)h.bytes, "entries",
			 (json_int_t)h.entries, "dropped", (json_int_t)h.dropped, "waiting_bytes",
			 (json_int_t)h.waiting, "trouble", h.trouble);
}

static json_t *model_json(const struct model *m)
{
	static const char *const phases[CORE_PART_NR] = {"free", "staging", "prepared", "applying"};
	uint32_t joined = 0, done, all;
	char waits[1280];
	static const struct core_tune untuned; /* Of a model whose memory is being made. */
	struct core_state c = {.part = CORE_FREE, .tune = &untuned};
	json_t *o;

	if (m->core != NULL)
		core_state(m->core, &c);
	list_each(it, &m->server->conns.sessions)
		joined += list_of(it, struct session, link)->trainer->model == m;
	waits_sentence(m, waits, sizeof(waits));
	o = json_pack("{s:s, s:i, s:i, s:s, s:I, s:I, s:I, s:i, s:s, s:o, s:i, s:o, s:I, s:s, s:s, "
		      "s:o, s:s, s:I, s:s, s:f}",
		      "name", m->name, "id", (int)m->id, "generation", (int)m->generation, "state",
		      progress_state(m), "step", (json_int_t)m->step, "applied",
		      (json_int_t)m->record.applied, "skipped", (json_int_t)m->steps_skipped,
		      "attempt", (int)m->attempt.id.attempt, "phase", phases[c.part], "world",
		      world_json(m, &c), "joined", (int)joined, "chunks", chunks_json(m), "numel",
		      (json_int_t)m->layout->numel, "optimizer", m->set.optim->name, "settings",
		      m->settings_text, "memory", memory_json(&m->need), "waits", waits,
		      "kept_elements", (json_int_t)m->img.kept, "pages",
		      m->store != NULL ? shm_pages_name(store_pages(m->store)) : "none yet",
		      "loss_scale", m->record.scaler.scale);
	if (o != NULL)
		life_json(o, m, &c);
	if (o != NULL)
		view_json(o, m, &c);
	if (o != NULL)
		json_object_set_new(o, "last_step", last_step_json(m));
	if (o != NULL)
		json_object_set_new(o, "checkpoint", checkpoint_json(m));
	if (o != NULL)
		progress_json(o, m);
	if (o != NULL)
		json_object_set_new(o, "grad", json_string(dtype_name(m->grad)));
	if (o != NULL)
		json_object_set_new(o, "stragglers_dropped",
				    json_integer((json_int_t)c.stragglers));
	if (o != NULL)
		json_object_set_new(o, "history", history_json(m));
	if (o != NULL)
		json_object_set_new(o, "votes_differed", json_integer((json_int_t)c.differed));
	apply_settled(m, &done, &all);
	if (o != NULL && all > 0)
		json_object_set_new(o, "resuming",
				    json_pack("{s:i, s:i}", "done", (int)done, "chunks", (int)all));
	if (o != NULL)
		waits_awaited_json(o, m);
	if (o != NULL && lost_why(m)[0] != 0)
		json_object_set_new(o, "lost", json_string(lost_why(m)));
	return o;
}

void status_counts(const struct server *s, uint64_t *refused, uint64_t *copied)
{
	*refused = s->past.refused_frames;
	*copied = s->past.copied_bytes;
	list_each(it, (struct list *)(uintptr_t)&s->conns.sessions) {
		const struct stream_stats *st = conn_stats(list_of(it, struct session, link)->conn);

		*refused += st->refused;
		*copied += st->copied_bytes;
	}
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		for (uint32_t i = 0; s->peer[n] != NULL && i < s->peer[n]->conns_nr; i++)
			if (s->peer[n]->conns[i].conn != NULL)
				*copied += conn_stats(s->peer[n]->conns[i].conn)->copied_bytes;
}

static json_t *warm_json(const struct server *s)
{
	if (s->warm == NULL)
		return json_pack("{s:s}", "place", "off");
	return json_pack("{s:s, s:I, s:I}", "place", warm_place(s->warm), "starts",
			 (json_int_t)warm_counted(s->warm), "bytes",
			 (json_int_t)warm_bytes(s->warm));
}

static json_t *gpus_json(const struct server *s)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < s->gpus_nr; i++) {
		struct gpu_about a;
		char uuid[GPU_UUID_TEXT];
		const char *why;
		struct err e;
		bool direct;
		json_t *o;

		gpu_tell(s->gpu[i], &a);
		o = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "uuid",
			      gpu_uuid_text(a.uuid, uuid), "name", a.name, "total",
			      (json_int_t)a.total_bytes, "limit", (json_int_t)a.limit_bytes, "used",
			      (json_int_t)a.mapped_bytes, "host", (json_int_t)a.host_bytes,
			      "to_device_bytes", (json_int_t)a.to_device_bytes, "to_host_bytes",
			      (json_int_t)a.to_host_bytes, "updates", (json_int_t)a.updates, "sums",
			      (json_int_t)a.sums);
		if (o != NULL && gpu_lost(s->gpu[i], &why))
			json_object_set_new(o, "lost", json_string(why));
		if (o != NULL && s->nodes_nr > 1) {
			direct = devices_direct(s, s->gpu[i], &e) == SHARD_OK;
			json_object_set_new(o, "direct", json_boolean(direct));
			if (!direct)
				json_object_set_new(o, "not_direct", json_string(e.text));
		}
		json_array_append_new(list, o);
	}
	return list;
}

/* Where the page of this node is. */
static json_t *http_json(const struct server *s)
{
	const char *host = s->conf->http.host;
	bool v6 = strchr(host, ':') != NULL;

	if (s->http == NULL)
		return json_null();
	return json_sprintf("%s%s%s:%u", v6 ? "[" : "", host, v6 ? "]" : "", http_port(s->http));
}

static void models_json(json_t *models, const struct list *list, const Shard__Cred *who)
{
	struct err e;

	list_each(it, (struct list *)(uintptr_t)list) {
		const struct model *m = list_of(it, struct model, link);

		json_array_append_new(models, access_check(m, who, false, &e) == SHARD_OK
						      ? model_json(m)
						      : private_json(m));
	}
}

char *status_json(const struct server *s, const Shard__Cred *who, enum status_what what)
{
	json_t *models = json_array(), *o;
	uint64_t refused, copied;
	struct err e;
	char *text;

	models_json(models, &s->models, who);
	models_json(models, &s->makings, who);
	status_counts(s, &refused, &copied);
	o = json_pack("{s:i, s:s, s:s, s:s, s:i, s:f, s:I, s:I, s:o, s:o, s:{s:I, s:I, s:I}, s:i, "
		      "s:I, s:I, s:o}",
		      "format", STATUS_FORMAT, "node", members_name(s, s->self), "run_id",
		      s->conf->run_id, "release", SHARD_RELEASE, "pid", (int)getpid(), "uptime_s",
		      seconds(s->started_ns), "incarnation", (json_int_t)s->incarnation, "start",
		      (json_int_t)s->start, "warm_restart", warm_json(s), "nodes", nodes_json(s),
		      "budget", "total", (json_int_t)s->budget.total, "used",
		      (json_int_t)s->budget.used, "queues", (json_int_t)s->budget.queues,
		      "connections", (int)(s->conns.sessions_nr + s->conns.openings_nr),
		      "refused_frames", (json_int_t)refused, "copied_bytes", (json_int_t)copied,
		      "models", models);
	if (o != NULL)
		json_object_set_new(o, "http", http_json(s));
	if (o != NULL)
		json_object_set_new(o, "gpus", gpus_json(s));
	if (o != NULL && s->gpus_missing.why[0] != 0)
		json_object_set_new(o, "gpu_missing", json_string(s->gpus_missing.why));
	if (o != NULL && lead_known(s, &e) != SHARD_OK)
		json_object_set_new(o, "no_coordinator", json_string(e.text));
	if (o != NULL && what == STATUS_WHOLE) {
		json_object_set_new(o, "health", health_json(s, who));
		json_object_set_new(o, "events", events_json(s, who));
	}
	text = o != NULL ? json_dumps(o, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
	json_decref(o);
	return text;
}

/* Adds one model to the line. False: there is no room. */
static bool add_model(const struct model *m, const char *glue, char *out, size_t *used,
		      size_t bytes)
{
	const char *state = progress_state(m);
	bool open = strcmp(state, "training") == 0;
	int n;

	if (m->defining)
		n = snprintf(out + *used, bytes - *used, "%s%s (defining)", glue, m->name);
	else
		n = snprintf(out + *used, bytes - *used, "%s%s (step %lu, world %u%s%s)", glue,
			     m->name, (unsigned long)m->step, m->attempt.world.size,
			     open ? "" : ", ", open ? "" : state);
	if (n < 0 || (size_t)n >= bytes - *used)
		return false;
	*used += (size_t)n;
	return true;
}

void status_line(const struct server *s, char *out, size_t bytes)
{
	const struct list *const lists[] = {&s->models, &s->makings};
	size_t used, room = bytes - 16; /* For " and 123456 more". */
	uint32_t nr = 0, left = 0;
	unsigned up = 0, gone = 0;

	CHECK(bytes > 0);
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		up += s->peer[n] == NULL || s->peer[n]->up;
		gone += s->peer[n] != NULL && !s->peer[n]->up && server_gone(s, n);
	}
	used = (size_t)snprintf(out, bytes, "nodes %u of %u, ", up, s->nodes_nr - gone);
	for (size_t i = 0; i < NR(lists); i++)
		list_each(it, (struct list *)(uintptr_t)lists[i])
			if (left > 0 || !add_model(list_of(it, struct model, link),
						   nr++ ? ", " : "models ", out, &used, room))
				left++;
	if (nr == 0)
		snprintf(out + used, bytes - used, "no models");
	else if (left > 0)
		snprintf(out + used, bytes - used, " and %u more", left);
	else
		out[used] = 0;
}
