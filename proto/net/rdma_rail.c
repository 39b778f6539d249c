/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a rail: the queue pairs between two nodes, one completion queue and the memory of all
 * headers. The link that owns it calls it, and rdma_device.c for turns. Happy path: new -> both
 * nodes tell their ends over TCP -> connect -> turns, in which completions become sent(),
 * on_frame() and on_room() -> free. Making it fails where the device lacks resources, connecting
 * where the peer's ends make no sense. Later a completion with an error, a refused frame, or a
 * frame that is not completed in time ends the rail. Then a turn calls on_fail() once. */
#include "net/rdma_impl.h"

#include "base/check.h"
#include "base/clock.h"
#include "wire/ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

enum {
	/* Completions taken at a time. RDMA_SPARE assumes that receives are posted again after each
	 * batch. */
	BATCH = 16,
	ACK_TIMEOUT = 17, /* 4.096 us << 17 = 0.54 s. */
	RETRIES = 6,      /* Of ACK_TIMEOUT. 7 means for ever on some devices. */
	RNR_RETRIES = 6,  /* None should be needed, as there are receives for everything. */
	RNR_TIMER = 12,   /* 0.64 ms. */
	HOP_LIMIT = 64,
	QPN_MAX = 0xffffff,
	LID_MAX = 0xbfff,
};

void rdma_rail_fail(struct rdma_rail *l, enum shard_status st, const char *fmt, ...)
{
	va_list ap;

	CHECK(st != SHARD_OK && st != SHARD_AGAIN);
	if (l->dead.status != SHARD_OK)
		return; /* The first reason counts. */
	va_start(ap, fmt);
	err_setv(&l->dead, st, fmt, ap);
	va_end(ap);
}

static void describe(const struct rdma_qp *q, uint64_t wr_id, char *text, size_t bytes)
{
	uint64_t n = wr_id & 0xffffffffffffull;
	const struct wire_head *h = (const void *)(q->slots + n % RDMA_QUEUE * RDMA_SLOT);
	const struct wire_op_row *row;

	switch (wr_id >> 56) {
	case WORK_BODY:
	case WORK_FRAME:
		row = wire_op(h->op);
		snprintf(text, bytes, "%s %llu (%s, %u bytes)",
			 wr_id >> 56 == WORK_BODY ? "body of frame" : "frame",
			 (unsigned long long)n, row ? row->name : "?", h->body_bytes);
		break;
	case WORK_COUNT:
		snprintf(text, bytes, "a credit");
		break;
	default:
		snprintf(text, bytes, "receiving");
		break;
	}
}

/* A completion with an error. Requests that were only flushed may be seen before the one that is
 * the reason. */
void rdma_rail_died(struct rdma_rail *l, const struct rdma_qp *q, const struct ibv_wc *wc)
{
	bool flushed = wc->status == IBV_WC_WR_FLUSH_ERR;
	bool theirs = wc->status == IBV_WC_REM_ACCESS_ERR || wc->status == IBV_WC_REM_INV_REQ_ERR ||
		      wc->status == IBV_WC_LOC_LEN_ERR;
	char what[96];

	if (l->dead.status != SHARD_OK && l->only_flushed && !flushed && !l->failed_told)
		l->dead.status = SHARD_OK;
	else if (l->dead.status == SHARD_OK)
		l->only_flushed = flushed;
	describe(q, wc->wr_id, what, sizeof(what));
	rdma_rail_fail(
		l, theirs ? SHARD_PROTOCOL : SHARD_UNREACHABLE,
		"RDMA queue pair %u to %s (%u here, %u there): %s: %s (status %d, vendor %u)",
		q->index, l->there, q->qp->qp_num, q->their_qpn, what,
		ibv_wc_status_str(wc->status), (int)wc->status, wc->vendor_err);
	if (!flushed)
		l->only_flushed = false;
}

static void complete(struct rdma_rail *l, const struct ibv_wc *wc)
{
	uint32_t index = (uint32_t)(wc->wr_id >> 48) & 0xff;
	struct rdma_qp *q = &l->qp[index];

	CHECK(index < l->conf.qps_nr);
	if (wc->status != IBV_WC_SUCCESS)
		rdma_rail_died(l, q, wc);
	else if (wc->wr_id >> 56 == WORK_RECV && l->dead.status == SHARD_OK)
		rdma_recv_came(q, wc);
	else if (wc->wr_id >> 56 != WORK_RECV)
		rdma_send_done(q, wc);
}

/* After a batch of completions: posts receives again, sends what has credit, and tells of room. */
static void settle(struct rdma_rail *l)
{
	for (uint32_t i = 0; i < l->conf.qps_nr && l->dead.status == SHARD_OK; i++) {
		struct rdma_qp *q = &l->qp[i];

		if (!rdma_recv_again(q))
			return;
		rdma_send_post(q);
		rdma_send_count(q);
		if (q->completed && l->conf.handler->on_room)
			l->conf.handler->on_room(l->conf.owner, i);
		q->completed = false;
	}
}

static uint32_t read_completions(struct rdma_rail *l)
{
	struct ibv_wc wc[BATCH];
	int n, nr = 0;

	do {
		n = ibv_poll_cq(l->cq, BATCH, wc);
		if (n < 0)
			rdma_rail_fail(l, SHARD_SYSTEM,
				       "RDMA completions of %s cannot be read (%d)", l->there, n);
		for (int i = 0; i < n; i++)
			complete(l, &wc[i]);
		if (n > 0)
			settle(l);
		nr += n > 0 ? n : 0;
	} while (n == BATCH && nr < RDMA_TURN);
	if (n == BATCH)
		rdma_want_turn(l->rdma);
	if (nr > 0 && l->rdma->conf.busy_poll_us > 0) {
		l->rdma->spin_ns = clock_ns() + l->rdma->conf.busy_poll_us * 1000ull;
		rdma_want_turn(l->rdma);
	}
	return (uint32_t)nr;
}

static void judge_deadlines(struct rdma_rail *l)
{
	uint64_t now = clock_ns();

	for (uint32_t i = 0; i < l->conf.qps_nr && l->dead.status == SHARD_OK; i++) {
		struct rdma_qp *q = &l->qp[i];
		uint64_t since = q->out[q->done % RDMA_QUEUE].posted_ns;
		char what[96];

		if (q->done == q->posted)
			continue;
		if (since < q->progress_ns) /* The time of the frames before it does not count. */
			since = q->progress_ns;
		if (now < since + l->conf.deadline_ns) {
			rdma_want_timer(l->rdma, since + l->conf.deadline_ns);
			continue;
		}
		describe(q, WORK_ID(WORK_FRAME, i, q->done), what, sizeof(what));
		rdma_rail_fail(
			l, SHARD_TIMEOUT,
			"RDMA queue pair %u to %s (%u here, %u there): %s not completed for %.1f s",
			i, l->there, q->qp->qp_num, q->their_qpn, what,
			(double)l->conf.deadline_ns / 1e9);
	}
}

static void stop(struct rdma_rail *l)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};

	for (uint32_t i = 0; i < l->conf.qps_nr; i++) /* May fail. They are destroyed soon. */
		(void)ibv_modify_qp(l->qp[i].qp, &a, IBV_QP_STATE);
}

uint32_t rdma_rail_turn(struct rdma_rail *l, bool armed)
{
	uint32_t nr;

	CHECK(!l->in_callback);
	if (l->failed_told)
		return 0;
	l->in_callback = true;
	if (armed && ibv_req_notify_cq(l->cq, 0) != 0)
		rdma_rail_fail(l, SHARD_SYSTEM, "RDMA completions of %s cannot be waited for",
			       l->there);
	nr = read_completions(l);
	if (l->dead.status == SHARD_OK)
		judge_deadlines(l);
	if (l->dead.status != SHARD_OK) {
		l->failed_told = true;
		stop(l);
		l->conf.handler->on_fail(l->conf.owner, &l->dead);
	}
	l->in_callback = false;
	return nr;
}

static enum shard_status no(struct rdma_rail *l, struct err *e, const char *what, uint32_t qp)
{
	return err_set(e, SHARD_SYSTEM, "RDMA device %s: %s, queue pair %u of %u: %s",
		       l->rdma->at.name, what, qp, l->conf.qps_nr, strerror(errno));
}

static enum shard_status make_qp(struct rdma_rail *l, struct rdma_qp *q, struct err *e)
{
	struct ibv_qp_init_attr init = {
		.qp_context = q,
		.send_cq = l->cq,
		.recv_cq = l->cq,
		.cap = {RDMA_SENDS, RDMA_RECVS, 1, 1, sizeof(struct wire_head)},
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT,
				.port_num = l->rdma->at.port,
				.qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	int rc;

	q->qp = ibv_create_qp(l->domain->pd, &init);
	if (!q->qp) { /* A device may have no inline data. */
		init.cap = (struct ibv_qp_cap){RDMA_SENDS, RDMA_RECVS, 1, 1, 0};
		q->qp = ibv_create_qp(l->domain->pd, &init);
	}
	if (!q->qp)
		return no(l, e, "cannot make queue pairs", q->index);
	q->max_inline = init.cap.max_inline_data;
	rc = ibv_modify_qp(q->qp, &a,
			   IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (rc != 0) {
		errno = rc;
		return no(l, e, "cannot prepare queue pairs", q->index);
	}
	if (!rdma_recv_init(q))
		return no(l, e, "cannot post receives", q->index);
	return SHARD_OK;
}

/* The memory of headers and control bodies of all queue pairs, in one piece, which no child
 * inherits. */
static enum shard_status make_memory(struct rdma_rail *l, struct err *e)
{
	size_t one = (size_t)(RDMA_QUEUE + RDMA_RECVS) * RDMA_SLOT;

	l->memory_bytes = (one * l->conf.qps_nr + 4095) & ~(size_t)4095;
	l->memory = mmap(NULL, l->memory_bytes, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (l->memory == MAP_FAILED) {
		l->memory = NULL;
		return err_set(e, SHARD_SYSTEM, "no memory for RDMA headers (%zu bytes): %s",
			       l->memory_bytes, strerror(errno));
	}
	(void)madvise(l->memory, l->memory_bytes, MADV_DONTFORK);
	errno = 0;
	l->mr = ibv_reg_mr(l->domain->pd, l->memory, l->memory_bytes, IBV_ACCESS_LOCAL_WRITE);
	if (!l->mr)
		return rdma_no_memory(e, l->rdma, errno, "headers", l->memory_bytes);
	for (uint32_t i = 0; i < l->conf.qps_nr; i++)
		l->qp[i].slots = l->memory + one * i;
	return SHARD_OK;
}

static enum shard_status make(struct rdma_rail *l, struct err *e)
{
	uint32_t cqe = l->conf.qps_nr * (RDMA_SENDS + RDMA_RECVS);
	const struct rdma_place *at = &l->rdma->at;
	enum shard_status rc;

	if (at->max_qp_wr < RDMA_SENDS || at->max_cqe < cqe)
		return err_set(e, SHARD_SYSTEM,
			       "RDMA device %s is too small: %u requests of %u needed, %u "
			       "completions of %u",
			       at->name, at->max_qp_wr, RDMA_SENDS, at->max_cqe, cqe);
	rc = make_memory(l, e);
	if (rc != SHARD_OK)
		return rc;
	l->cq = ibv_create_cq(at->verbs, (int)cqe, l, l->rdma->channel, 0);
	if (!l->cq)
		return no(l, e, "no completion queue", 0);
	if (ibv_req_notify_cq(l->cq, 0) != 0)
		return no(l, e, "completions cannot be waited for", 0);
	for (uint32_t i = 0; i < l->conf.qps_nr && rc == SHARD_OK; i++)
		rc = make_qp(l, &l->qp[i], e);
	return rc;
}

enum shard_status rdma_rail_new(struct rdma_rail **out, const struct rdma_rail_conf *conf,
				struct err *e)
{
	struct rdma_rail *l = calloc(1, sizeof(*l) + conf->qps_nr * sizeof(l->qp[0]));
	enum shard_status rc;

	CHECK(conf->handler && conf->handler->on_head && conf->handler->on_frame &&
	      conf->handler->on_fail);
	CHECK(conf->qps_nr > 0 && conf->qps_nr <= RDMA_QPS_MAX && conf->deadline_ns > 0);
	*out = NULL;
	if (!l)
		return err_set(e, SHARD_SYSTEM, "no memory for %u RDMA queue pairs", conf->qps_nr);
	l->conf = *conf;
	l->domain = conf->domain;
	l->rdma = conf->domain->rdma;
	snprintf(l->there, sizeof(l->there), "an unconnected peer");
	for (uint32_t i = 0; i < conf->qps_nr; i++) {
		l->qp[i].rail = l;
		l->qp[i].index = i;
		if (getrandom(&l->qp[i].psn, sizeof(l->qp[i].psn), 0) != sizeof(l->qp[i].psn))
			/* Protects against stale packets, not against an attacker. */
			l->qp[i].psn = (uint32_t)clock_ns();
		l->qp[i].psn &= QPN_MAX;
	}
	l->domain->rails++;
	list_push(&l->rdma->rails, &l->node);
	rc = l->rdma->over ? err_set(e, SHARD_UNREACHABLE, "%s", l->rdma->why.text) : make(l, e);
	if (rc == SHARD_OK)
		*out = l;
	else
		rdma_rail_free(&l);
	return rc;
}

void rdma_rail_ends(const struct rdma_rail *l, struct rdma_ends *mine)
{
	memset(mine, 0, sizeof(*mine));
	mine->qps_nr = l->conf.qps_nr;
	for (uint32_t i = 0; i < l->conf.qps_nr; i++) {
		mine->qpn[i] = l->qp[i].qp->qp_num;
		mine->psn[i] = l->qp[i].psn;
	}
	memcpy(mine->gid, l->rdma->at.gid.raw, sizeof(mine->gid));
	mine->lid = l->rdma->at.lid;
	mine->mtu = l->rdma->at.mtu;
}

static const char *nonsense(const struct rdma_rail *l, const struct rdma_ends *t)
{
	static const uint8_t zero[16] = {0};

	if (t->qps_nr != l->conf.qps_nr)
		return "another number of queue pairs";
	if (t->mtu < 256 || t->mtu > 4096 || (t->mtu & (t->mtu - 1)) != 0)
		return "an MTU that is none of 256, 512, 1024, 2048, 4096";
	if (l->rdma->at.ethernet ? memcmp(t->gid, zero, 16) == 0 : t->lid == 0 || t->lid > LID_MAX)
		return l->rdma->at.ethernet ? "no GID" : "no LID";
	for (uint32_t i = 0; i < t->qps_nr; i++)
		/* Queue pairs 0 and 1 are reserved. */
		if (t->qpn[i] < 2 || t->qpn[i] > QPN_MAX || t->psn[i] > QPN_MAX)
			return "a queue pair's number that can be none";
	return NULL;
}

static int connect_qp(struct rdma_rail *l, struct rdma_qp *q, const struct rdma_ends *t)
{
	const struct rdma_place *at = &l->rdma->at;
	uint32_t mtu = t->mtu < at->mtu ? t->mtu : at->mtu;
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = (enum ibv_mtu)(__builtin_ctz(mtu) - 7),
		.dest_qp_num = t->qpn[q->index],
		.rq_psn = t->psn[q->index],
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = RNR_TIMER,
		.ah_attr = {.dlid = (uint16_t)t->lid,
			    .is_global = at->ethernet,
			    .port_num = at->port},
	};
	int rc;

	a.ah_attr.grh.sgid_index = (uint8_t)at->gid_index;
	a.ah_attr.grh.hop_limit = HOP_LIMIT;
	memcpy(a.ah_attr.grh.dgid.raw, t->gid, sizeof(t->gid));
	q->their_qpn = t->qpn[q->index];
	rc = ibv_modify_qp(q->qp, &a,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				   IBV_QP_MIN_RNR_TIMER);
	if (rc != 0)
		return rc;
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
				 .timeout = ACK_TIMEOUT,
				 .retry_cnt = RETRIES,
				 .rnr_retry = RNR_RETRIES,
				 .sq_psn = q->psn,
				 .max_rd_atomic = 1};
	return ibv_modify_qp(q->qp, &a,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

enum shard_status rdma_rail_connect(struct rdma_rail *l, const struct rdma_ends *theirs,
				    struct err *e)
{
	const char *why = nonsense(l, theirs);
	char place[48];
	int rc;

	CHECK(!l->connected);
	if (l->dead.status != SHARD_OK)
		return err_set(e, l->dead.status, "%s", l->dead.text);
	rdma_gid_text(theirs->gid, place, sizeof(place));
	if (l->rdma->at.ethernet)
		snprintf(l->there, sizeof(l->there), "%s", place);
	else
		snprintf(l->there, sizeof(l->there), "lid %u", theirs->lid);
	if (why) {
		rdma_rail_fail(l, SHARD_PROTOCOL, "the peer's end of RDMA: %s", why);
		goto err;
	}
	for (uint32_t i = 0; i < l->conf.qps_nr; i++) {
		rc = connect_qp(l, &l->qp[i], theirs);
		if (rc != 0) {
			rdma_rail_fail(
				l, SHARD_UNREACHABLE,
				"RDMA device %s: cannot connect queue pair %u to %u at %s: %s",
				l->rdma->at.name, i, theirs->qpn[i], l->there, strerror(rc));
			goto err;
		}
	}
	l->connected = true;
	return SHARD_OK;
err:
	l->failed_told = true; /* The caller is told here. */
	stop(l);
	return err_set(e, l->dead.status, "%s", l->dead.text);
}

/* A device that was removed answers with these errors. It does no more work. */
static bool destroyed(int rc, const struct rdma *r)
{
	return rc == 0 || rc == EIO || rc == ENODEV || r->over;
}

void rdma_rail_free(struct rdma_rail **lp)
{
	struct rdma_rail *l = *lp;
	struct rdma *r;

	if (!l)
		return;
	r = l->rdma;
	CHECK(!l->in_callback && l->domain->rails > 0);
	*lp = NULL;
	/* A sent() that tries to send gets SHARD_CLOSED. */
	rdma_rail_fail(l, SHARD_CLOSED, "closed here");
	for (uint32_t i = 0; i < l->conf.qps_nr; i++)
		CHECK(!l->qp[i].qp || destroyed(ibv_destroy_qp(l->qp[i].qp), r));
	if (l->cq)
		CHECK(destroyed(ibv_destroy_cq(l->cq), r));
	if (r->turn_next == &l->node)
		r->turn_next = l->node.next;
	list_remove(&l->node);
	l->in_callback = true;
	for (uint32_t i = 0; i < l->conf.qps_nr; i++)
		rdma_send_close(&l->qp[i]);
	if (l->mr)
		(void)ibv_dereg_mr(l->mr);
	if (l->memory)
		(void)munmap(l->memory, l->memory_bytes);
	l->domain->rails--;
	free(l);
}

const struct rdma_stats *rdma_rail_stats(const struct rdma_rail *l)
{
	return &l->stats;
}
