/* SPDX-License-Identifier: Apache-2.0 */
/* fake.h: libibverbs in one process. Programs named test_rdma* are linked with it in place of the
 * library. It has devices, protection domains, registrations with bounds and rights, reliable
 * connected queue pairs that write into one another's memory, completion channels and asynchronous
 * events, and every way in which they fail. Misuse that a real device would punish later ends the
 * program with a text: more requests than a queue holds, an object freed while in use, or a
 * completion queue that overruns. Several threads may use it. Memory of other devices is that of
 * tests/cuda: it is written there (fake_cuda_dma()), and a sender cannot read it. */
#ifndef SHARD_TESTS_FAKE_H
#define SHARD_TESTS_FAKE_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fake_call {
	FAKE_ANY,
	FAKE_GET_DEVICE_LIST,
	FAKE_OPEN_DEVICE,
	FAKE_QUERY_DEVICE,
	FAKE_QUERY_PORT,
	FAKE_QUERY_GID,
	FAKE_QUERY_GID_TABLE,
	FAKE_ALLOC_PD,
	FAKE_REG_MR,
	FAKE_REG_DMABUF_MR,
	FAKE_CREATE_CHANNEL,
	FAKE_CREATE_CQ,
	FAKE_REQ_NOTIFY,
	FAKE_GET_CQ_EVENT,
	FAKE_GET_ASYNC_EVENT,
	FAKE_POLL_CQ,
	FAKE_CREATE_QP,
	FAKE_MODIFY_QP,
	FAKE_POST_SEND,
	FAKE_POST_RECV,
	FAKE_CALLS
};

#define FAKE_DEVICES_MAX 4
#define FAKE_GIDS_MAX    8

struct fake_gid {
	const char *address; /* Such as "127.0.0.1" or "fe80::1". NULL: a row of zeros. */
	enum ibv_gid_type type;
};

/* Fields that are zero are as in fake0. */
struct fake_device {
	const char *name;
	bool down;       /* Its port is down. */
	bool infiniband; /* The link layer has LIDs instead of GIDs. */
	uint32_t mtu;    /* In bytes. */
	uint32_t max_inline;
	bool no_inline;
	bool no_dma_buf; /* It takes no memory of other devices. */
	int max_qp_wr, max_cqe, open_error;
	struct fake_gid gid[FAKE_GIDS_MAX];
};

struct fake_live {
	uint32_t devices, domains, regions, channels, queues, qps;
};

/* Brings everything to the start: one device, fake0, with the RoCE v1 and v2 GIDs fe80::1 and
 * 127.0.0.1 (the v2 of the latter has index 3). Fails the program if anything is still alive. */
void fake_reset(void);
void fake_devices(const struct fake_device *devices, uint32_t nr); /* Replaces fake0. */

/* The nth call from now (1: the next) fails once with error. FAKE_ANY counts all calls. nth = 0:
 * none fails. Functions that free something never fail. */
void fake_fail(enum fake_call call, uint32_t nth, int error);
void fake_fail_always(enum fake_call call, int error); /* 0: no more. */
uint32_t fake_calls(enum fake_call call);              /* Since the reset. */
void fake_memlock(size_t bytes); /* How much may be registered in all. 0: anything. */
struct fake_live fake_live(void);
uint32_t fake_rnr(void); /* Requests that found no receive. Any is an error. */

/* The nth request that is carried out from now (1: the next) completes with this status, and its
 * queue pair is then in the error state. */
void fake_fail_work(uint32_t nth, enum ibv_wc_status status);
/* A cut queue pair is half open: what it posts is never carried out. qpn = 0: all queue pairs. */
void fake_cut(uint32_t qpn, bool cut);
/* While on, requests wait for fake_deliver(). Turning it off delivers all. */
void fake_hold(bool hold);
/* Delivers so many requests, of queue pairs that are drawn by seed. Returns how many there were. */
uint32_t fake_deliver(uint32_t nr, uint64_t *seed);
/* How many requests were carried out since the reset. */
uint32_t fake_work(void);
/* Port events are of port 1. */
void fake_event(const char *device, enum ibv_event_type type);
void fake_qp_event(uint32_t qpn, enum ibv_event_type type);
void fake_break_qp(uint32_t qpn); /* Flushes everything, as after an error. */
void fake_remove(const char *device);
void fake_set_gid(const char *device, uint32_t index, const char *address);

/* Called before a request is carried out. It may read and change the request and write memory, and
 * must not call any function of this file. wr->sg_list has the bytes to be sent. NULL: nothing is
 * called. */
typedef void (*fake_hook_fn)(void *arg, uint32_t qpn, struct ibv_send_wr *wr);
void fake_hook(fake_hook_fn fn, void *arg);
/* Lists the numbers of the living queue pairs, oldest first. */
uint32_t fake_qps(uint32_t *qpn, uint32_t max);
/* For requests that no correct sender would post. */
struct ibv_qp *fake_qp(uint32_t qpn);

#endif
