/* SPDX-License-Identifier: Apache-2.0 */
/* fake.h: libibverbs in one process, in place of the library (programs named test_rdma* are linked
 * with it): devices, protection domains, registrations with bounds and rights, reliable connected
 * queue pairs that write into one another's memory, completion channels, asynchronous events; and
 * every way in which they fail. Misuse that a real device would punish later (more requests than a
 * queue holds, something freed while in use, a completion queue that runs over) ends the program
 * with a text. Threads may share it. */
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
	const char *address; /* "127.0.0.1", "fe80::1"; NULL: a row of zeros */
	enum ibv_gid_type type;
};

struct fake_device { /* zero fields: as fake0 */
	const char *name;
	bool down;       /* its port */
	bool infiniband; /* link layer: LIDs instead of GIDs */
	uint32_t mtu;    /* bytes */
	uint32_t max_inline;
	bool no_inline;
	int max_qp_wr, max_cqe, open_error;
	struct fake_gid gid[FAKE_GIDS_MAX];
};

struct fake_live {
	uint32_t devices, domains, regions, channels, queues, qps;
};

/* Everything as at start: one device, fake0, with RoCE v1 and v2 GIDs fe80::1 and 127.0.0.1 (v2 of
 * the latter: index 3). Fails the program if anything is still alive. */
void fake_reset(void);
void fake_devices(const struct fake_device *devices, uint32_t nr); /* instead of fake0 */

/* The nth call (1: the next) from now fails with error, once. FAKE_ANY: of all. nth 0: none. What
 * frees never fails. */
void fake_fail(enum fake_call call, uint32_t nth, int error);
void fake_fail_always(enum fake_call call, int error); /* 0: no more */
uint32_t fake_calls(enum fake_call call);              /* since the reset */
void fake_memlock(size_t bytes); /* what may be registered in all; 0: anything */
struct fake_live fake_live(void);
uint32_t fake_rnr(void); /* requests that found no receive posted: always wrong */

/* The nth request (1: the next) that is carried out from now completes with this status; its queue
 * pair is in error then. */
void fake_fail_work(uint32_t nth, enum ibv_wc_status status);
void fake_cut(uint32_t qpn, bool cut); /* half-open: what this queue pair posts is never carried
					  out; 0: all queue pairs */
void fake_hold(bool hold); /* what is posted waits for fake_deliver(); off: delivers all */
uint32_t fake_deliver(uint32_t nr, uint64_t *seed); /* so many requests, of queue pairs drawn by
						       seed; returns how many there were */
uint32_t fake_work(void);                           /* requests carried out since the reset */
void fake_event(const char *device, enum ibv_event_type type); /* port events are port 1's */
void fake_qp_event(uint32_t qpn, enum ibv_event_type type);
void fake_break_qp(uint32_t qpn); /* as after an error: everything is flushed */
void fake_remove(const char *device);
void fake_set_gid(const char *device, uint32_t index, const char *address);

/* Called before a request is carried out; it may look, change the request and write memory, and
 * calls nothing of this file. wr->sg_list is the bytes to be sent. NULL: nothing is called. */
typedef void (*fake_hook_fn)(void *arg, uint32_t qpn, struct ibv_send_wr *wr);
void fake_hook(fake_hook_fn fn, void *arg);
uint32_t fake_qps(uint32_t *qpn, uint32_t max); /* numbers of those that live, oldest first */
struct ibv_qp *fake_qp(uint32_t qpn);           /* to post by hand what no honest sender would */

#endif
