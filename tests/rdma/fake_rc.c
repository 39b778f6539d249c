/* SPDX-License-Identifier: Apache-2.0 */
/* Carries out the requests of queue pairs in their order, as reliable connections do. Bounds,
 * rights and domains are checked at both ends. A mistake puts the queue pair into the error state
 * and flushes its other requests. The thread that posts does this with the lock held. */
#include "rdma/fake_impl.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

void fake_completed(struct fake_cq *cq, const struct fake_cqe *e)
{
	uint64_t one = 1;

	if (cq->nr == (uint32_t)cq->cq.cqe)
		fake_misuse("a completion queue of %d runs over", cq->cq.cqe);
	cq->ring[(cq->first + cq->nr++) % (uint32_t)cq->cq.cqe] = *e;
	if (!cq->armed || !cq->cq.channel)
		return;
	cq->armed = false;
	cq->pending++;
	if (write(cq->cq.channel->fd, &one, sizeof(one)) != sizeof(one))
		fake_misuse("a completion channel is full");
}

static void complete(struct fake_qp *q, struct ibv_cq *cq, uint64_t wr_id,
		     enum ibv_wc_status status, const struct ibv_wc *more, uint64_t frees)
{
	struct fake_cqe e = {.qp = q, .frees = frees};

	if (more)
		e.wc = *more;
	/* After an error the other fields have no meaning. */
	else
		memset(&e.wc, 0xee, sizeof(e.wc));
	e.wc.wr_id = wr_id;
	e.wc.status = status;
	e.wc.qp_num = q->qp.qp_num;
	if (status != IBV_WC_SUCCESS)
		e.wc.vendor_err = 0;
	fake_completed((struct fake_cq *)(void *)cq, &e);
}

void fake_flush(struct fake_qp *q)
{
	q->attr.qp_state = q->qp.state = IBV_QPS_ERR;
	for (; q->next < q->posted; q->next++)
		complete(q, q->qp.send_cq, q->sq[q->next % q->cap.max_send_wr].wr.wr_id,
			 IBV_WC_WR_FLUSH_ERR, NULL, q->next + 1);
	for (; q->received < q->waiting; q->received++)
		complete(q, q->qp.recv_cq, q->rq[q->received % q->cap.max_recv_wr].wr_id,
			 IBV_WC_WR_FLUSH_ERR, NULL, 0);
}

static const struct fake_mr *find_mr(uint32_t key, const struct ibv_pd *pd, uint64_t at,
				     uint64_t bytes, int access)
{
	for (uint32_t i = 0; i < FAKE_MRS; i++) {
		const struct fake_mr *m = fake.mrs[i];
		uint64_t base;

		if (!m || m->mr.lkey != key)
			continue;
		base = (uintptr_t)m->mr.addr;
		return m->mr.pd == pd && (m->access & access) == access && at >= base &&
				       bytes <= m->mr.length && at - base <= m->mr.length - bytes
			       ? m
			       : NULL;
	}
	return NULL;
}

/* Takes a receive of dest for bytes from `from`. Returns the status for the sender. */
static enum ibv_wc_status receive(struct fake_qp *dest, const struct fake_request *r,
				  const void *from, uint32_t bytes, bool placed)
{
	struct ibv_wc wc = {.opcode = placed ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
			    .byte_len = bytes};
	struct ibv_recv_wr *w = &dest->rq[dest->received % dest->cap.max_recv_wr];
	struct ibv_sge *s = &dest->rq_sge[dest->received % dest->cap.max_recv_wr];

	if (dest->received == dest->waiting) {
		fake.rnr++;
		return IBV_WC_RNR_RETRY_EXC_ERR;
	}
	dest->received++;
	if (!placed && (bytes > s->length ||
			!find_mr(s->lkey, dest->qp.pd, s->addr, bytes, IBV_ACCESS_LOCAL_WRITE))) {
		complete(dest, dest->qp.recv_cq, w->wr_id,
			 bytes > s->length ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR, NULL, 0);
		fake_flush(dest);
		return IBV_WC_REM_INV_REQ_ERR;
	}
	if (!placed && bytes > 0)
		memcpy((void *)(uintptr_t)s->addr, from, bytes);
	if (r->wr.opcode == IBV_WR_SEND_WITH_IMM || r->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
		wc.wc_flags = IBV_WC_WITH_IMM;
		wc.imm_data = r->wr.imm_data;
	}
	complete(dest, dest->qp.recv_cq, w->wr_id, IBV_WC_SUCCESS, &wc, 0);
	return IBV_WC_SUCCESS;
}

static enum ibv_wc_status carry_out(struct fake_qp *q, struct fake_request *r, struct fake_qp *dest)
{
	bool inlined = r->wr.send_flags & IBV_SEND_INLINE,
	     write = r->wr.opcode != IBV_WR_SEND && r->wr.opcode != IBV_WR_SEND_WITH_IMM;
	uint32_t bytes = r->wr.num_sge > 0 ? r->sge.length : 0;
	const void *from = (const void *)(uintptr_t)r->sge.addr;
	const struct fake_mr *m = NULL;

	if (bytes > 0 && !inlined) {
		m = find_mr(r->sge.lkey, q->qp.pd, r->sge.addr, bytes, 0);
		if (!m)
			return IBV_WC_LOC_PROT_ERR;
		if (m->dma_buf)
			fake_misuse("a body is sent from memory of another device");
	}
	if (write && bytes > 0) {
		uint64_t at = r->wr.wr.rdma.remote_addr;

		m = dest->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE
			    ? find_mr(r->wr.wr.rdma.rkey, dest->qp.pd, at, bytes,
				      IBV_ACCESS_REMOTE_WRITE)
			    : NULL;
		if (!m || (m->dma_buf && !fake_dma_write(m, at, from, bytes))) {
			fake_flush(dest);
			return IBV_WC_REM_ACCESS_ERR;
		}
		if (!m->dma_buf)
			memmove((void *)(uintptr_t)at, from, bytes);
	}
	return r->wr.opcode == IBV_WR_RDMA_WRITE ? IBV_WC_SUCCESS
						 : receive(dest, r, from, bytes, write);
}

/* Finds the other end. *wait: it exists and is not ready yet. */
static struct fake_qp *other_end(const struct fake_qp *q, bool *wait)
{
	struct fake_qp *d = fake_find_qp(q->attr.dest_qp_num);
	const struct fake_dev *dev = d ? fake_context_of(d->qp.context)->dev : NULL;
	bool here = false;

	*wait = false;
	for (uint32_t i = 0; dev && i < FAKE_GIDS_MAX; i++)
		here |= memcmp(&dev->gid[i], &q->attr.ah_attr.grh.dgid, sizeof(dev->gid[i])) == 0;
	if (!d || dev->removed ||
	    (q->attr.ah_attr.is_global ? !here : dev->lid != q->attr.ah_attr.dlid))
		return NULL;
	*wait = d->attr.qp_state == IBV_QPS_INIT;
	if (d->attr.qp_state != IBV_QPS_RTR && d->attr.qp_state != IBV_QPS_RTS)
		return NULL;
	return d->attr.dest_qp_num == q->qp.qp_num && d->attr.rq_psn == q->attr.sq_psn ? d : NULL;
}

bool fake_one(struct fake_qp *q)
{
	struct fake_request *r = &q->sq[q->next % q->cap.max_send_wr];
	static const enum ibv_wc_opcode as[] = {[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
						[IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
						[IBV_WR_SEND] = IBV_WC_SEND,
						[IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND};
	enum ibv_wc_status status = IBV_WC_RETRY_EXC_ERR;
	struct ibv_wc wc = {0};
	struct fake_qp *dest;
	bool wait;

	if (q->attr.qp_state != IBV_QPS_RTS || q->cut || fake.cut_all || q->next == q->posted)
		return false;
	dest = other_end(q, &wait);
	if (wait)
		return false;
	if (dest && fake.hook)
		fake.hook(fake.hook_arg, q->qp.qp_num, &r->wr);
	fake.work++;
	if (fake.fail_work > 0 && --fake.fail_work == 0)
		status = fake.fail_status;
	else if (dest)
		status = carry_out(q, r, dest);
	q->next++;
	wc.opcode = as[r->wr.opcode];
	if (status != IBV_WC_SUCCESS) {
		complete(q, q->qp.send_cq, r->wr.wr_id, status, NULL, q->next);
		fake_flush(q);
	} else if (r->wr.send_flags & IBV_SEND_SIGNALED) {
		complete(q, q->qp.send_cq, r->wr.wr_id, status, &wc, q->next);
	}
	return true;
}

void fake_pump(void)
{
	bool any = !fake.hold;

	while (any) {
		any = false;
		for (uint32_t i = 0; i < FAKE_QPS; i++)
			while (fake.qps[i] && fake_one(fake.qps[i]))
				any = true;
	}
}

static int post_one(struct fake_qp *q, const struct ibv_send_wr *wr)
{
	struct fake_request *r = &q->sq[q->posted % q->cap.max_send_wr];

	if (q->attr.qp_state != IBV_QPS_RTS && q->attr.qp_state != IBV_QPS_ERR)
		return EINVAL;
	if (wr->num_sge > 1 || wr->opcode > IBV_WR_SEND_WITH_IMM)
		return EINVAL;
	if (q->posted - q->freed == q->cap.max_send_wr)
		fake_misuse("a send queue of %u holds no more requests", q->cap.max_send_wr);
	r->wr = *wr;
	r->wr.next = NULL;
	r->wr.sg_list = &r->sge; /* A hook may read and change this. */
	r->sge = wr->num_sge > 0 ? *wr->sg_list : (struct ibv_sge){0};
	if (wr->send_flags & IBV_SEND_INLINE) {
		if (wr->num_sge > 0 &&
		    (r->sge.length > q->cap.max_inline_data || r->sge.length > sizeof(r->inlined)))
			fake_misuse("%u bytes inline, of at most %u", r->sge.length,
				    q->cap.max_inline_data);
		if (wr->num_sge > 0)
			memcpy(r->inlined, (const void *)(uintptr_t)r->sge.addr, r->sge.length);
		r->sge.addr = (uintptr_t)r->inlined;
	}
	q->posted++;
	return 0;
}

int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_qp *q = (struct fake_qp *)(void *)qp;
	int rc;

	fake_lock();
	rc = fake_enter(FAKE_POST_SEND);
	*bad = wr;
	for (; rc == 0 && wr; wr = wr->next) {
		*bad = wr;
		rc = post_one(q, wr);
	}
	if (q->attr.qp_state == IBV_QPS_ERR)
		fake_flush(q);
	fake_pump();
	fake_unlock();
	return rc;
}

int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_qp *q = (struct fake_qp *)(void *)qp;
	int rc;

	fake_lock();
	rc = fake_enter(FAKE_POST_RECV);
	*bad = wr;
	if (rc == 0 && q->attr.qp_state == IBV_QPS_RESET)
		rc = EINVAL;
	for (; rc == 0 && wr; wr = wr->next) {
		uint64_t i = q->waiting % q->cap.max_recv_wr;

		*bad = wr;
		if (q->waiting - q->received == q->cap.max_recv_wr)
			fake_misuse("a receive queue of %u holds no more", q->cap.max_recv_wr);
		if (wr->num_sge != 1) {
			rc = EINVAL;
			break;
		}
		q->rq[i] = *wr;
		q->rq_sge[i] = *wr->sg_list;
		q->waiting++;
	}
	if (q->attr.qp_state == IBV_QPS_ERR)
		fake_flush(q);
	fake_pump();
	fake_unlock();
	return rc;
}

int fake_poll_cq(struct ibv_cq *ibcq, int nr, struct ibv_wc *wc)
{
	struct fake_cq *cq = (struct fake_cq *)(void *)ibcq;
	int n = 0;

	fake_lock();
	if (fake_enter(FAKE_POLL_CQ) != 0)
		n = -1;
	for (; n >= 0 && n < nr && cq->nr > 0; n++, cq->nr--) {
		struct fake_cqe *e = &cq->ring[cq->first];

		wc[n] = e->wc;
		if (e->frees > e->qp->freed)
			e->qp->freed = e->frees;
		cq->first = (cq->first + 1) % (uint32_t)ibcq->cqe;
	}
	fake_unlock();
	return n;
}

int fake_req_notify(struct ibv_cq *ibcq, int solicited)
{
	int rc;

	(void)solicited;
	fake_lock();
	rc = fake_enter(FAKE_REQ_NOTIFY);
	if (rc == 0)
		((struct fake_cq *)(void *)ibcq)->armed = true;
	fake_unlock();
	return rc;
}
