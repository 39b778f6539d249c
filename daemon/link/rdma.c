/* SPDX-License-Identifier: Apache-2.0 */
/* The queue pairs between this node and its peers. peer.c calls when a link comes up or falls and
 * at each beat, dispatch.c brings RAIL frames, and net/rdma.h calls the handler below for frames by
 * RDMA. Happy path: when the link is up the node with the higher index makes queue pairs and offers
 * their ends. The other node makes its own, connects and answers. Then both tell each other their
 * memory regions (data/mr.c), and data/send.c writes chunks there. Frames that arrive by RDMA go to
 * the same events as frames over TCP. Without a device, a peer that has RDMA, or an accepted offer,
 * tensors go by TCP, and the log says why once. Queue pairs that fail later close their link, so
 * that the attempt ends as when a cable is pulled. RDMA then stays off for a time that grows with
 * each failure, while the link, which is dialled again, carries tensors by TCP. */
#include "link/rdma.h"

#include "base/check.h"
#include "base/clock.h"
#include "link/peer.h"
#include "link/events.h"
#include "wire/ops.h"

#include <stdio.h>
#include <string.h>

/* --- off --- */

/* Logs why RDMA is not up, unless that was logged last. */
static void say(struct peer *p)
{
	struct rdma_link *r = &p->rdma;

	if (strcmp(r->why, r->said) == 0)
		return;
	memcpy(r->said, r->why, sizeof(r->said));
	log_line(p->server->log, LOG_LEVEL_INFO, "event=rdma_fallback peer=%s why=%s",
		 members_name(p->server, p->node), r->why);
}

static void stay_off(struct peer *p)
{
	struct rdma_link *r = &p->rdma;
	uint64_t now = clock_ns();

	if (r->state == RDMA_LINK_UP && now - r->since_ns > RDMA_LOCAL_BACKOFF_MAX_NS)
		r->backoff_ns = 0; /* RDMA worked for a long time. */
	r->backoff_ns = rdma_local_longer(r->backoff_ns);
	r->again_ns = now + r->backoff_ns;
	server_wake(p->server, r->again_ns);
}

static void close_lanes(struct rdma_link *r)
{
	for (uint32_t i = 0; i < RDMA_QPS_MAX; i++)
		lane_close(&r->lane[i]);
}

static void free_queues(struct peer *p)
{
	struct rdma_link *r = &p->rdma;

	if (r->queues != NULL) {
		const struct rdma_stats *st = rdma_rail_stats(r->queues);

		r->past_in_bytes += st->tensor_bytes_in;
		r->past_out_bytes += st->tensor_bytes_out;
		close_lanes(r);
		rdma_rail_free(&r->queues);
	}
	r->state = RDMA_LINK_OFF;
	p->server->events->rdma_down(p);
}

static void give_up(struct peer *p, const char *why)
{
	snprintf(p->rdma.why, sizeof(p->rdma.why), "%s", why);
	free_queues(p);
	say(p);
}

/* An offer failed: RDMA stays off for a while. */
static void not_now(struct peer *p, const char *why)
{
	p->rdma.failures++;
	stay_off(p);
	give_up(p, why);
}

/* --- callbacks of the queue pairs --- */

static enum shard_status on_head(void *owner, uint32_t qp, const struct wire_head *h, void **to,
				 struct err *e)
{
	struct peer *p = owner;
	struct landing
		*l; /* Not used: the body is there already, and data/mr.c ends this landing. */
	enum shard_status st;

	(void)qp;
	if (!peer_op_of_chunk(h->op) || (h->flags & WIRE_REPLY))
		return err_set(e, SHARD_PROTOCOL, "frame %s by RDMA", wire_op(h->op)->name);
	if (wire_op(h->op)->body != BODY_BULK)
		return SHARD_OK;
	if (h->body_bytes == 0)
		return err_set(e, SHARD_PROTOCOL, "frame %s by RDMA, of no byte",
			       wire_op(h->op)->name);
	st = p->server->events->node_body(p, h, to, &l, e);
	if (st != SHARD_OK || *to == STREAM_DISCARD)
		return st;
	return p->server->events->rdma_body(p, h, to, e);
}

static enum shard_status on_frame(void *owner, uint32_t qp, const struct wire_head *h,
				  const void *body, struct err *e)
{
	(void)qp;
	return ((struct peer *)owner)->server->events->node_frame(owner, h, body, e);
}

static bool on_damage(void *owner, uint32_t qp, const struct wire_head *h)
{
	(void)qp;
	return ((struct peer *)owner)->server->events->node_damaged(owner, h);
}

static void on_fail(void *owner, const struct err *why)
{
	struct peer *p = owner;
	struct rdma_link *r = &p->rdma;
	struct err e;

	if (r->failed)
		return;
	r->failed = true;
	close_lanes(r);
	r->failures++;
	stay_off(p);
	err_set(&e, SHARD_CLOSED, "RDMA with node %s failed: %.400s",
		members_name(p->server, p->node), why->text);
	snprintf(r->why, sizeof(r->why), "%s", e.text);
	log_line(p->server->log, LOG_LEVEL_WARN, "event=rdma_down peer=%s again_s=%.1f why=%s",
		 members_name(p->server, p->node), (double)(r->again_ns - clock_ns()) / NS_PER_SEC,
		 why->text);
	peer_close(p, &e);
}

static void on_room(void *owner, uint32_t qp)
{
	lane_serve(&((struct peer *)owner)->rdma.lane[qp]);
}

static const struct rdma_handler handler = {.on_head = on_head,
					    .on_frame = on_frame,
					    .on_damage = on_damage,
					    .on_fail = on_fail,
					    .on_room = on_room};

/* --- offers --- */

bool rdma_link_sums(const struct peer *p)
{
	return p->server->conf->rdma_checksum || (p->features & FEATURE_RDMA_SUM);
}

static uint32_t queue_pairs(const struct peer *p)
{
	uint32_t mine = p->server->conf->rdma_queue_pairs;

	return p->rdma_queue_pairs < mine ? p->rdma_queue_pairs : mine;
}

/* The reason why RDMA cannot be tried. NULL: it can. */
static const char *cannot(const struct peer *p)
{
	if (!rdma_local_here(p->server))
		return p->server->rdma->why;
	if (!(p->features & FEATURE_RDMA) || p->rdma_queue_pairs == 0)
		return "the other node wants no RDMA: its [net] transport is tcp, or its release "
		       "knows none";
	return NULL;
}

static enum shard_status make_queues(struct peer *p, struct err *e)
{
	struct rdma_link *r = &p->rdma;
	struct rdma_rail_conf conf = {.handler = &handler,
				      .owner = p,
				      .qps_nr = queue_pairs(p),
				      .checksum = rdma_link_sums(p),
				      .deadline_ns = p->server->conf->heartbeat_timeout_ns};
	enum shard_status st = SHARD_OK;

	CHECK(r->queues == NULL);
	if (r->domain == NULL)
		st = rdma_domain_new(&r->domain, p->server->rdma->device, e);
	conf.domain = r->domain;
	if (st == SHARD_OK)
		st = rdma_rail_new(&r->queues, &conf, e);
	if (st == SHARD_OK)
		r->qps_nr = conf.qps_nr;
	return st;
}

static void send_rail(struct peer *p, uint32_t offer, const char *why, uint64_t again_ns)
{
	struct wire_head h = {.op = OP_RAIL};
	Shard__Rail body = SHARD__RAIL__INIT;
	struct rdma_ends ends;

	body.offer = offer;
	if (why != NULL) {
		body.why = (char *)(uintptr_t)why;
		body.again_ms = (again_ns + NS_PER_MS - 1) / NS_PER_MS;
	} else {
		rdma_rail_ends(p->rdma.queues, &ends);
		body.n_qpn = body.n_psn = ends.qps_nr;
		body.qpn = ends.qpn;
		body.psn = ends.psn;
		body.gid = (ProtobufCBinaryData){sizeof(ends.gid), ends.gid};
		body.lid = ends.lid;
		body.mtu = ends.mtu;
	}
	(void)peer_send(p->server, p->node, &h, &body.base,
			NULL); /* If there is no room for the frame, the offer expires. */
}

static bool ends_of(const Shard__Rail *body, struct rdma_ends *ends)
{
	*ends = (struct rdma_ends){
		.qps_nr = (uint32_t)body->n_qpn, .lid = body->lid, .mtu = body->mtu};
	if (body->n_qpn == 0 || body->n_qpn > RDMA_QPS_MAX || body->n_psn != body->n_qpn ||
	    body->gid.len != sizeof(ends->gid))
		return false;
	memcpy(ends->qpn, body->qpn, body->n_qpn * sizeof(ends->qpn[0]));
	memcpy(ends->psn, body->psn, body->n_psn * sizeof(ends->psn[0]));
	memcpy(ends->gid, body->gid.data, sizeof(ends->gid));
	return true;
}

static void up(struct peer *p)
{
	struct rdma_link *r = &p->rdma;

	CHECK(p->rdma.queues != NULL);
	for (uint32_t i = 0; i < r->qps_nr; i++)
		lane_open_rdma(&r->lane[i], r->queues, i);
	r->state = RDMA_LINK_UP;
	r->since_ns = clock_ns();
	r->why[0] = r->said[0] = 0;
	log_line(p->server->log, LOG_LEVEL_INFO, "event=rdma_up peer=%s queue_pairs=%u checksum=%s",
		 members_name(p->server, p->node), r->qps_nr, rdma_link_sums(p) ? "yes" : "no");
	p->server->events->rdma_up(p);
}

static void offer(struct peer *p)
{
	struct err e;

	CHECK(p->up && p->rdma.state != RDMA_LINK_UP);
	p->rdma.offer++;
	if (make_queues(p, &e) != SHARD_OK) {
		not_now(p, e.text);
		send_rail(p, p->rdma.offer, e.text, 0);
		return;
	}
	p->rdma.state = RDMA_LINK_OFFERED;
	p->rdma.since_ns = clock_ns();
	snprintf(p->rdma.why, sizeof(p->rdma.why), "RDMA was offered, node %s has not answered",
		 members_name(p->server, p->node));
	send_rail(p, p->rdma.offer, NULL, 0);
}

static enum shard_status offered(struct peer *p, const Shard__Rail *body, struct err *e)
{
	struct rdma_link *r = &p->rdma;
	uint64_t now = clock_ns();
	const char *why = cannot(p);
	struct rdma_ends theirs;
	char text[ERR_TEXT_BYTES];
	struct err no;

	if (r->failed)
		return SHARD_OK; /* The link is being closed. */
	if (r->queues != NULL &&
	    p->server->events->rdma_told(
		    p)) /* The peer may be writing by them. They may only end with the link. */
		return err_set(e, SHARD_PROTOCOL,
			       "RDMA is offered anew, or taken back, while it is up");
	if (r->queues != NULL || body->why[0] != 0) { /* The peer gave up the offer before. */
		snprintf(text, sizeof(text), "node %s: %.400s", members_name(p->server, p->node),
			 body->why[0] != 0 ? body->why : "RDMA is offered anew");
		give_up(p, text);
	}
	if (body->why[0] != 0)
		return SHARD_OK;
	if (why == NULL && now < r->again_ns) {
		snprintf(text, sizeof(text), "off for %.1f s: %.450s",
			 (double)(r->again_ns - now) / NS_PER_SEC, r->why);
		send_rail(p, body->offer, text, r->again_ns - now);
		return SHARD_OK;
	}
	if (why == NULL && !ends_of(body, &theirs))
		return err_set(
			e, SHARD_PROTOCOL,
			"an offer of RDMA with %zu queue pairs, %zu numbers and a GID of %zu bytes",
			body->n_qpn, body->n_psn, body->gid.len);
	if (why == NULL && (make_queues(p, &no) != SHARD_OK ||
			    rdma_rail_connect(r->queues, &theirs, &no) != SHARD_OK)) {
		not_now(p, no.text);
		why = no.text;
	}
	if (why != NULL) {
		send_rail(p, body->offer, why, 0);
		return SHARD_OK;
	}
	send_rail(p, body->offer, NULL, 0);
	up(p);
	return SHARD_OK;
}

static enum shard_status answered(struct peer *p, const Shard__Rail *body, struct err *e)
{
	struct rdma_link *r = &p->rdma;
	struct rdma_ends theirs;
	char text[ERR_TEXT_BYTES];
	struct err no;

	if (r->state != RDMA_LINK_OFFERED || body->offer != r->offer)
		return SHARD_OK; /* The answer to an offer that was given up. */
	if (body->why[0] != 0) {
		snprintf(text, sizeof(text), "node %s: %.400s", members_name(p->server, p->node),
			 body->why);
		if (body->again_ms == 0) {
			not_now(p, text);
			return SHARD_OK;
		}
		give_up(p, text); /* RDMA is off at the peer, and again_ms says for how long. */
		r->again_ns = clock_ns() + (body->again_ms < 60000 ? body->again_ms * NS_PER_MS
								   : RDMA_LOCAL_BACKOFF_MAX_NS);
		server_wake(p->server, r->again_ns);
		return SHARD_OK;
	}
	if (!ends_of(body, &theirs))
		return err_set(e, SHARD_PROTOCOL,
			       "RDMA with %zu queue pairs, %zu numbers and a GID of %zu bytes",
			       body->n_qpn, body->n_psn, body->gid.len);
	if (rdma_rail_connect(r->queues, &theirs, &no) != SHARD_OK) {
		not_now(p, no.text);
		send_rail(p, body->offer, no.text, 0);
		return SHARD_OK;
	}
	up(p);
	return SHARD_OK;
}

/* True: this node makes the offers. */
static bool offers(const struct peer *p)
{
	return p->server->self > p->node;
}

enum shard_status rdma_link_told(struct peer *p, const Shard__Rail *body, struct err *e)
{
	return offers(p) ? answered(p, body, e) : offered(p, body, e);
}

/* --- the link --- */

/* Offers RDMA if it is off and it is time to, or says why it is off. */
static void look(struct peer *p, uint64_t now_ns)
{
	struct rdma_link *r = &p->rdma;
	const char *why = cannot(p);

	if (!p->up || r->state != RDMA_LINK_OFF || r->failed)
		return;
	if (why != NULL) {
		snprintf(r->why, sizeof(r->why), "%s", why);
		say(p);
	} else if (offers(p) && now_ns >= r->again_ns) {
		offer(p);
	} else if (offers(p)) {
		server_wake(p->server, r->again_ns);
	} else if (r->why[0] == 0) {
		snprintf(r->why, sizeof(r->why), "node %s has not offered RDMA yet",
			 members_name(p->server, p->node));
	}
}

void rdma_link_link_up(struct peer *p)
{
	p->rdma.failed = false;
	look(p, clock_ns());
}

void rdma_link_link_down(struct peer *p)
{
	if (!p->rdma.failed)
		p->rdma.why[0] = 0;
	free_queues(p);
}

void rdma_link_beat(struct peer *p, uint64_t now_ns)
{
	struct rdma_link *r = &p->rdma;

	if (p->server->rdma->gone && r->queues != NULL) {
		struct err e;

		err_set(&e, SHARD_CLOSED, "%s", p->server->rdma->why);
		peer_close(p, &e);
	}
	rdma_local_beat(p->server, now_ns);
	if (r->state == RDMA_LINK_OFFERED &&
	    now_ns - r->since_ns > p->server->conf->heartbeat_timeout_ns) {
		send_rail(p, r->offer, "the answer came too late", 0);
		not_now(p, "the other node has not answered an offer of RDMA");
	}
	look(p, now_ns);
	if (r->state == RDMA_LINK_UP)
		p->server->events->rdma_beat(p, now_ns);
}

struct rdma_rail *rdma_link_queues(const struct peer *p)
{
	return p->rdma.state == RDMA_LINK_UP && !p->rdma.failed ? p->rdma.queues : NULL;
}

struct rdma_domain *rdma_link_domain(const struct peer *p)
{
	return rdma_local_here(p->server) && !p->server->stop.on ? p->rdma.domain : NULL;
}

bool rdma_link_carries(const struct peer *p, const char **why)
{
	*why = rdma_link_queues(p) != NULL ? p->server->events->rdma_lacks(p) : p->rdma.why;
	return rdma_link_queues(p) != NULL && *why == NULL;
}

void rdma_link_bytes(const struct peer *p, uint64_t *in, uint64_t *out)
{
	const struct rdma_stats *st =
		p->rdma.queues != NULL ? rdma_rail_stats(p->rdma.queues) : NULL;

	*in = p->rdma.past_in_bytes + (st != NULL ? st->tensor_bytes_in : 0);
	*out = p->rdma.past_out_bytes + (st != NULL ? st->tensor_bytes_out : 0);
}
