/* SPDX-License-Identifier: Apache-2.0 */
/* fake_impl.h: what the sources of the fake library share. */
#ifndef SHARD_TESTS_FAKE_IMPL_H
#define SHARD_TESTS_FAKE_IMPL_H

#include "rdma/fake.h"

#include <pthread.h>

enum { FAKE_MRS = 4096, FAKE_QPS = 256, FAKE_CQS = 64, FAKE_CONTEXTS = 16, FAKE_EVENTS = 64 };

struct fake_dev {
	struct ibv_device device;
	struct fake_device conf;
	char name[32];
	union ibv_gid gid[FAKE_GIDS_MAX];
	uint16_t lid;
	bool removed;
};

struct fake_context {
	struct ibv_context c;
	struct fake_dev *dev;
	struct ibv_async_event events[FAKE_EVENTS];
	uint32_t first, nr, users;
};

struct fake_channel {
	struct ibv_comp_channel ch;
	uint32_t queues;
};

struct fake_pd {
	struct ibv_pd pd;
	uint32_t users;
};

struct fake_mr {
	struct ibv_mr mr;
	int access;
	uint32_t dma_buf; /* Its name (tests/cuda/fake_cuda.h). 0: it is memory of the host. */
	uint64_t offset;  /* Of .mr.addr in it. */
};

/* Writes memory of another device. False: there is no such range. */
bool fake_dma_write(const struct fake_mr *m, uint64_t at, const void *from, uint32_t bytes);

struct fake_qp;
struct fake_cqe {
	struct ibv_wc wc;
	struct fake_qp *qp;
	uint64_t frees; /* It frees the requests of the send queue below this number. */
};

struct fake_cq {
	struct ibv_cq cq;
	struct fake_cqe *ring;
	uint32_t first, nr, pending, unacked, users;
	bool armed;
};

struct fake_request {
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	unsigned char inlined[256];
};

struct fake_qp {
	struct ibv_qp qp;
	struct ibv_qp_cap cap;
	struct ibv_qp_attr attr; /* As modified so far. */
	bool cut;
	struct fake_request *sq;
	/* Numbers of requests. The places of those below `freed` are free, and those below `next`
	 * were carried out. */
	uint64_t freed, next, posted;
	struct ibv_recv_wr *rq;
	struct ibv_sge *rq_sge;
	uint64_t received, waiting; /* Used and posted receives. */
};

/* There is one in a process, because the functions of libibverbs have no argument that could lead
 * to another. */
struct fake {
	pthread_mutex_t lock;
	struct fake_dev dev[FAKE_DEVICES_MAX];
	uint32_t devs;
	struct fake_context *contexts[FAKE_CONTEXTS];
	struct fake_mr *mrs[FAKE_MRS];
	struct fake_cq *cqs[FAKE_CQS];
	struct fake_qp *qps[FAKE_QPS];
	struct fake_live live;
	uint32_t calls[FAKE_CALLS], fail_in[FAKE_CALLS], rnr, work, fail_work, next_qpn, next_key,
		unacked;
	int fail_with[FAKE_CALLS], always[FAKE_CALLS];
	enum ibv_wc_status fail_status;
	size_t memlock, registered;
	bool hold, cut_all;
	fake_hook_fn hook;
	void *hook_arg;
};
extern struct fake fake;

/* Returns the index of `what` in the table. NULL: of the first free place. */
#define FAKE_PUT(table, what)                                                                      \
	(fake.table[fake_place(fake.table, sizeof(fake.table), NULL)] = (what))
#define FAKE_TAKE(table, what)                                                                     \
	(fake.table[fake_place(fake.table, sizeof(fake.table), (what))] = NULL)
size_t fake_place(const void *table, size_t bytes, const void *what);
void *fake_made(size_t bytes);
/* Called with the lock. Returns the call's own failure, or that of a device that is gone. */
int fake_may(enum fake_call call, struct ibv_context *c);
void fake_unlock_with(int rc); /* Sets errno. */
void fake_lock(void);
void fake_unlock(void);
/* Called with the lock. Counts the call. If it returns not 0, the call fails with that. */
int fake_enter(enum fake_call call);
__attribute__((noreturn, format(printf, 1, 2))) void fake_misuse(const char *fmt, ...);
void fake_push_event(struct fake_context *c, const struct ibv_async_event *ev);
/* Wakes the channel if it is armed. */
void fake_completed(struct fake_cq *cq, const struct fake_cqe *e);
struct fake_qp *fake_find_qp(uint32_t qpn);
struct fake_context *fake_context_of(struct ibv_context *c);
void fake_pump(void);               /* Carries out all requests that can be. */
void fake_flush(struct fake_qp *q); /* Brings it into the error state. */
/* Carries out its next request. False: it has none that can be. */
bool fake_one(struct fake_qp *q);
int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int fake_poll_cq(struct ibv_cq *cq, int nr, struct ibv_wc *wc);
int fake_req_notify(struct ibv_cq *cq, int solicited);

#endif
