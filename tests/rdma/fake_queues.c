/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of libibverbs for completion channels, completion queues and queue pairs. */
#include "rdma/fake_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *ic)
{
	struct fake_channel *ch = NULL;
	int rc;

	fake_lock();
	rc = fake_may(FAKE_CREATE_CHANNEL, ic);
	if (rc == 0) {
		ch = fake_made(sizeof(*ch));
		ch->ch.context = ic;
		ch->ch.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
		fake_context_of(ic)->users++;
		fake.live.channels++;
	}
	fake_unlock_with(rc);
	return ch ? &ch->ch : NULL;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *c)
{
	struct fake_channel *ch = (struct fake_channel *)(void *)c;

	fake_lock();
	if (ch->queues > 0)
		fake_misuse("a completion channel is freed that %u queues use", ch->queues);
	fake_context_of(c->context)->users--;
	fake.live.channels--;
	close(c->fd);
	free(ch);
	fake_unlock();
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *ic, int cqe, void *cq_context,
			     struct ibv_comp_channel *channel, int vector)
{
	struct fake_cq *q = NULL;
	int rc;

	fake_lock();
	rc = fake_may(FAKE_CREATE_CQ, ic);
	if (rc == 0 && (cqe <= 0 || vector != 0))
		rc = EINVAL;
	if (rc == 0) {
		q = fake_made(sizeof(*q));
		q->cq = (struct ibv_cq){
			.context = ic, .channel = channel, .cq_context = cq_context, .cqe = cqe};
		q->ring = fake_made((size_t)cqe * sizeof(q->ring[0]));
		((struct fake_channel *)(void *)channel)->queues++;
		fake_context_of(ic)->users++;
		FAKE_PUT(cqs, q);
		fake.live.queues++;
	}
	fake_unlock_with(rc);
	return q ? &q->cq : NULL;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct fake_cq *q = (struct fake_cq *)(void *)cq;
	uint64_t one;

	fake_lock();
	if (q->users > 0 || q->unacked > 0)
		fake_misuse("a completion queue is freed: %u queue pairs use it, %u events not "
			    "acknowledged",
			    q->users, q->unacked);
	for (; q->pending > 0; q->pending--)
		if (read(cq->channel->fd, &one, sizeof(one)) != sizeof(one))
			fake_misuse("an event is lost");
	((struct fake_channel *)(void *)cq->channel)->queues--;
	fake_context_of(cq->context)->users--;
	FAKE_TAKE(cqs, q);
	fake.live.queues--;
	free(q->ring);
	free(q);
	fake_unlock();
	return 0;
}

/* Never waits, because its callers poll the descriptor. */
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	uint64_t one;
	int rc;

	fake_lock();
	rc = fake_enter(FAKE_GET_CQ_EVENT);
	if (rc == 0)
		rc = EAGAIN;
	for (uint32_t i = 0; rc == EAGAIN && i < FAKE_CQS; i++) {
		struct fake_cq *q = fake.cqs[i];

		if (!q || q->cq.channel != channel || q->pending == 0)
			continue;
		if (read(channel->fd, &one, sizeof(one)) != sizeof(one))
			fake_misuse("an event is lost");
		q->pending--;
		q->unacked++;
		*cq = &q->cq;
		*cq_context = q->cq.cq_context;
		rc = 0;
	}
	fake_unlock_with(rc);
	return rc ? -1 : 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nr)
{
	fake_lock();
	if (((struct fake_cq *)(void *)cq)->unacked < nr)
		fake_misuse("more events are acknowledged than there were");
	((struct fake_cq *)(void *)cq)->unacked -= nr;
	fake_unlock();
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	const struct fake_device *conf = &fake_context_of(pd->context)->dev->conf;
	uint32_t max_inline = conf->no_inline ? 0 : conf->max_inline ? conf->max_inline : 128;
	struct fake_qp *q = NULL;
	int rc;

	fake_lock();
	rc = fake_may(FAKE_CREATE_QP, pd->context);
	if (rc == 0 && (init->qp_type != IBV_QPT_RC || init->cap.max_inline_data > max_inline ||
			init->cap.max_send_sge > 1))
		rc = EINVAL;
	if (rc == 0) {
		q = fake_made(sizeof(*q));
		init->cap.max_inline_data = max_inline;
		q->cap = init->cap;
		q->qp = (struct ibv_qp){.context = pd->context,
					.qp_context = init->qp_context,
					.pd = pd,
					.send_cq = init->send_cq,
					.recv_cq = init->recv_cq,
					.qp_num = fake.next_qpn++,
					.qp_type = init->qp_type};
		q->sq = fake_made(q->cap.max_send_wr * sizeof(q->sq[0]));
		q->rq = fake_made(q->cap.max_recv_wr * sizeof(q->rq[0]));
		q->rq_sge = fake_made(q->cap.max_recv_wr * sizeof(q->rq_sge[0]));
		((struct fake_cq *)(void *)init->send_cq)->users++;
		((struct fake_cq *)(void *)init->recv_cq)->users++;
		((struct fake_pd *)(void *)pd)->users++;
		FAKE_PUT(qps, q);
		fake.live.qps++;
	}
	fake_unlock_with(rc);
	return q ? &q->qp : NULL;
}

static void forget_completions(struct ibv_cq *ibcq, const struct fake_qp *q)
{
	struct fake_cq *cq = (struct fake_cq *)(void *)ibcq;
	uint32_t kept = 0;

	for (uint32_t i = 0; i < cq->nr; i++) {
		struct fake_cqe e = cq->ring[(cq->first + i) % (uint32_t)ibcq->cqe];

		if (e.qp != q)
			cq->ring[(cq->first + kept++) % (uint32_t)ibcq->cqe] = e;
	}
	cq->nr = kept;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct fake_qp *q = (struct fake_qp *)(void *)qp;

	fake_lock();
	FAKE_TAKE(qps, q);
	forget_completions(qp->send_cq, q);
	forget_completions(qp->recv_cq, q);
	((struct fake_cq *)(void *)qp->send_cq)->users--;
	((struct fake_cq *)(void *)qp->recv_cq)->users--;
	((struct fake_pd *)(void *)qp->pd)->users--;
	fake.live.qps--;
	free(q->sq);
	free(q->rq);
	free(q->rq_sge);
	free(q);
	fake_pump(); /* Queue pairs with requests for this one get an error. */
	fake_unlock();
	return 0;
}

/* Checks that each state gets at least the attributes that it needs. */
static int state_allowed(const struct fake_qp *q, const struct ibv_qp_attr *a, int mask)
{
	static const int init =
		IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	static const int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	static const int rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

	switch ((int)a->qp_state) {
	case IBV_QPS_INIT:
		return mask == init && q->attr.qp_state == IBV_QPS_RESET && a->port_num == 1
			       ? 0
			       : EINVAL;
	case IBV_QPS_RTR:
		return mask == rtr && q->attr.qp_state == IBV_QPS_INIT &&
				       a->path_mtu >= IBV_MTU_256 && a->path_mtu <= IBV_MTU_4096 &&
				       a->dest_qp_num <= 0xffffff
			       ? 0
			       : EINVAL;
	case IBV_QPS_RTS:
		return mask == rts && q->attr.qp_state == IBV_QPS_RTR ? 0 : EINVAL;
	case IBV_QPS_ERR:
		return mask == IBV_QP_STATE ? 0 : EINVAL;
	default:
		return EINVAL;
	}
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask)
{
	struct fake_qp *q = (struct fake_qp *)(void *)qp;
	int rc;

	fake_lock();
	rc = fake_may(FAKE_MODIFY_QP, qp->context);
	if (rc == 0)
		rc = state_allowed(q, a, mask);
	if (rc == 0 && a->qp_state == IBV_QPS_ERR) {
		fake_flush(q);
	} else if (rc == 0) {
		if (a->qp_state == IBV_QPS_INIT)
			q->attr.qp_access_flags = a->qp_access_flags;
		if (a->qp_state == IBV_QPS_RTR) {
			q->attr.dest_qp_num = a->dest_qp_num;
			q->attr.rq_psn = a->rq_psn;
			q->attr.ah_attr = a->ah_attr;
		}
		if (a->qp_state == IBV_QPS_RTS)
			q->attr.sq_psn = a->sq_psn;
		q->attr.qp_state = q->qp.state = a->qp_state;
	}
	fake_pump();
	fake_unlock();
	return rc;
}
