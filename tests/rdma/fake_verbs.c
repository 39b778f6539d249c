/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of libibverbs for devices, domains, registrations and events, as rdma.h uses them.
 * Each function that may fail asks fake_enter() first. Functions that free something never fail,
 * and end the program if it is still in use. */
#include "rdma/fake_impl.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_query_port

void *fake_made(size_t bytes)
{
	void *p = calloc(1, bytes);

	if (!p)
		fake_misuse("no memory");
	return p;
}

/* Called with the lock. Returns the call's own failure, or that of a device that is gone. */
int fake_may(enum fake_call call, struct ibv_context *c)
{
	int rc = fake_enter(call);

	return rc == 0 && c && fake_context_of(c)->dev->removed ? EIO : rc;
}

void fake_unlock_with(int rc)
{
	fake_unlock();
	if (rc != 0)
		errno = rc;
}

struct ibv_device **ibv_get_device_list(int *nr)
{
	struct ibv_device **all = NULL;
	int rc;

	fake_lock();
	rc = fake_enter(FAKE_GET_DEVICE_LIST);
	*nr = 0;
	if (rc == 0) {
		all = fake_made((FAKE_DEVICES_MAX + 1) * sizeof(all[0]));
		for (uint32_t i = 0; i < fake.devs; i++)
			if (!fake.dev[i].removed)
				all[(*nr)++] = &fake.dev[i].device;
	}
	fake_unlock_with(rc);
	return all;
}

void ibv_free_device_list(struct ibv_device **all)
{
	free(all);
}

const char *ibv_get_device_name(struct ibv_device *d)
{
	return ((struct fake_dev *)(void *)d)->name;
}

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	struct fake_dev *dev = (struct fake_dev *)(void *)d;
	struct fake_context *c = NULL;
	int rc;

	fake_lock();
	rc = fake_enter(FAKE_OPEN_DEVICE);
	rc = rc ? rc : dev->conf.open_error;
	if (rc == 0) {
		c = fake_made(sizeof(*c));
		c->dev = dev;
		c->c.device = d;
		c->c.async_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
		c->c.ops.poll_cq = fake_poll_cq;
		c->c.ops.req_notify_cq = fake_req_notify;
		c->c.ops.post_send = fake_post_send;
		c->c.ops.post_recv = fake_post_recv;
		FAKE_PUT(contexts, c);
		fake.live.devices++;
	}
	fake_unlock_with(rc);
	return c ? &c->c : NULL;
}

int ibv_close_device(struct ibv_context *ic)
{
	struct fake_context *c = fake_context_of(ic);

	fake_lock();
	if (c->users > 0)
		fake_misuse("a device is closed that %u objects are on", c->users);
	FAKE_TAKE(contexts, c);
	fake.live.devices--;
	close(ic->async_fd);
	free(c);
	fake_unlock();
	return 0;
}

int ibv_query_device(struct ibv_context *ic, struct ibv_device_attr *a)
{
	const struct fake_device *conf = &fake_context_of(ic)->dev->conf;
	int rc;

	fake_lock();
	rc = fake_may(FAKE_QUERY_DEVICE, ic);
	memset(a, 0, sizeof(*a));
	a->phys_port_cnt = 1;
	a->max_qp_wr = conf->max_qp_wr ? conf->max_qp_wr : 16384;
	a->max_cqe = conf->max_cqe ? conf->max_cqe : 65536;
	fake_unlock();
	return rc;
}

int ibv_query_port(struct ibv_context *ic, uint8_t port, struct _compat_ibv_port_attr *compat)
{
	struct ibv_port_attr *a = (void *)compat; /* A current program passes one of these. */
	const struct fake_dev *d = fake_context_of(ic)->dev;
	uint32_t mtu = d->conf.mtu ? d->conf.mtu : 1024;
	int rc;

	fake_lock();
	rc = port == 1 ? fake_may(FAKE_QUERY_PORT, ic) : EINVAL;
	a->state = d->conf.down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
	a->active_mtu = (enum ibv_mtu)(__builtin_ctz(mtu) - 7);
	a->gid_tbl_len = FAKE_GIDS_MAX;
	a->link_layer = d->conf.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
	a->lid = d->conf.infiniband ? d->lid : 0;
	fake_unlock();
	return rc;
}

int ibv_query_gid(struct ibv_context *ic, uint8_t port, int index, union ibv_gid *gid)
{
	int rc;

	fake_lock();
	rc = port == 1 && index >= 0 && index < FAKE_GIDS_MAX ? fake_may(FAKE_QUERY_GID, ic)
							      : EINVAL;
	if (rc == 0)
		*gid = fake_context_of(ic)->dev->gid[index];
	fake_unlock_with(rc);
	return rc ? -1 : 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *ic, struct ibv_gid_entry *e, size_t max,
			     uint32_t flags, size_t entry_bytes)
{
	const struct fake_dev *d = fake_context_of(ic)->dev;
	static const union ibv_gid zero;
	ssize_t nr = 0;
	int rc;

	(void)flags;
	fake_lock();
	rc = entry_bytes == sizeof(*e) ? fake_may(FAKE_QUERY_GID_TABLE, ic) : EINVAL;
	for (uint32_t i = 0; rc == 0 && i < FAKE_GIDS_MAX && (size_t)nr < max; i++)
		if (memcmp(&d->gid[i], &zero, sizeof(zero)) != 0)
			e[nr++] = (struct ibv_gid_entry){.gid = d->gid[i],
							 .gid_index = i,
							 .port_num = 1,
							 .gid_type = d->conf.gid[i].type};
	fake_unlock();
	return rc ? -rc : nr;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *ic)
{
	struct fake_pd *p = NULL;
	int rc;

	fake_lock();
	rc = fake_may(FAKE_ALLOC_PD, ic);
	if (rc == 0) {
		p = fake_made(sizeof(*p));
		p->pd.context = ic;
		fake_context_of(ic)->users++;
		fake.live.domains++;
	}
	fake_unlock_with(rc);
	return p ? &p->pd : NULL;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	struct fake_pd *p = (struct fake_pd *)(void *)pd;

	fake_lock();
	if (p->users > 0)
		fake_misuse("a protection domain is freed that %u objects are in", p->users);
	fake_context_of(pd->context)->users--;
	fake.live.domains--;
	free(p);
	fake_unlock();
	return 0;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova,
				unsigned int access)
{
	struct fake_mr *m = NULL;
	int rc;

	fake_lock();
	rc = fake_may(FAKE_REG_MR, pd->context);
	if (rc == 0 && fake.memlock > 0 && fake.registered + bytes > fake.memlock)
		rc = ENOMEM;
	if (rc == 0 && (iova != (uintptr_t)addr ||
			((access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE))))
		rc = EINVAL;
	if (rc == 0) {
		m = fake_made(sizeof(*m));
		m->mr = (struct ibv_mr){
			.context = pd->context, .pd = pd, .addr = addr, .length = bytes};
		m->mr.lkey = m->mr.rkey = fake.next_key += 0x101;
		m->access = (int)access;
		((struct fake_pd *)(void *)pd)->users++;
		FAKE_PUT(mrs, m);
		fake.registered += bytes;
		fake.live.regions++;
	}
	fake_unlock_with(rc);
	return m ? &m->mr : NULL;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t bytes, int access)
{
	return ibv_reg_mr_iova2(pd, addr, bytes, (uintptr_t)addr, (unsigned int)access);
}

/* --- memory of other devices --- */

static uint32_t dma_buf_of(int fd)
{
	char path[64], name[64] = "";
	uint32_t number = 0;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (readlink(path, name, sizeof(name) - 1) < 0 ||
	    sscanf(name, "/memfd:fake-dmabuf-%u", &number) != 1)
		return 0;
	return number;
}

bool fake_dma_write(const struct fake_mr *m, uint64_t at, const void *from, uint32_t bytes)
{
	/* The library is one of the program, which has loaded it by then. */
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	void *found = library ? dlsym(library, "fake_cuda_dma") : NULL;
	int (*write_there)(uint32_t, uint64_t, const void *, size_t) = NULL;

	if (found == NULL)
		fake_misuse("memory of another device without tests/cuda");
	memcpy(&write_there, &found, sizeof(found));
	dlclose(library);
	return write_there(m->dma_buf, m->offset + (at - (uintptr_t)m->mr.addr), from, bytes);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova,
				 int fd, int access)
{
	uint32_t dma_buf = fd < 0 ? 0 : dma_buf_of(fd);
	struct fake_mr *m = NULL;
	int rc;

	fake_lock();
	rc = fd < 0 ? 0 : fake_may(FAKE_REG_DMABUF_MR, pd->context); /* A probe is none. */
	if (rc == 0 && fake_context_of(pd->context)->dev->conf.no_dma_buf)
		rc = EOPNOTSUPP;
	if (rc == 0 && fd < 0)
		rc = EBADF;
	/* The device has pages of both. */
	if (rc == 0 && (dma_buf == 0 || bytes == 0 || (iova - offset) % 4096 != 0))
		rc = EINVAL;
	if (rc == 0) {
		m = fake_made(sizeof(*m));
		m->mr = (struct ibv_mr){.context = pd->context,
					.pd = pd,
					.addr = (void *)(uintptr_t)iova,
					.length = bytes};
		m->mr.lkey = m->mr.rkey = fake.next_key += 0x101;
		m->access = access;
		m->dma_buf = dma_buf;
		m->offset = offset;
		((struct fake_pd *)(void *)pd)->users++;
		FAKE_PUT(mrs, m);
		fake.live.regions++;
	}
	fake_unlock_with(rc);
	return m ? &m->mr : NULL;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	struct fake_mr *m = (struct fake_mr *)(void *)mr;

	fake_lock();
	FAKE_TAKE(mrs, m);
	((struct fake_pd *)(void *)mr->pd)->users--;
	fake.registered -= m->dma_buf ? 0 : mr->length;
	fake.live.regions--;
	free(m);
	fake_unlock();
	return 0;
}

int ibv_get_async_event(struct ibv_context *ic, struct ibv_async_event *ev)
{
	struct fake_context *c = fake_context_of(ic);
	uint64_t one;
	int rc;

	fake_lock();
	rc = fake_enter(FAKE_GET_ASYNC_EVENT);
	if (rc == 0 && c->nr == 0)
		rc = EAGAIN;
	if (rc == 0) {
		if (read(ic->async_fd, &one, sizeof(one)) != sizeof(one))
			fake_misuse("an event is lost");
		*ev = c->events[c->first];
		c->first = (c->first + 1) % FAKE_EVENTS;
		c->nr--;
		fake.unacked++;
	}
	fake_unlock_with(rc);
	return rc ? -1 : 0;
}

void ibv_ack_async_event(struct ibv_async_event *ev)
{
	(void)ev;
	fake_lock();
	if (fake.unacked-- == 0)
		fake_misuse("more events are acknowledged than there were");
	fake_unlock();
}

const char *ibv_wc_status_str(enum ibv_wc_status status)
{
	static const char *const text[] = {
		[IBV_WC_SUCCESS] = "success",
		[IBV_WC_LOC_LEN_ERR] = "local length error",
		[IBV_WC_LOC_PROT_ERR] = "local protection error",
		[IBV_WC_WR_FLUSH_ERR] = "Work Request Flushed Error",
		[IBV_WC_REM_INV_REQ_ERR] = "remote invalid request error",
		[IBV_WC_REM_ACCESS_ERR] = "remote access error",
		[IBV_WC_RETRY_EXC_ERR] = "transport retry counter exceeded",
		[IBV_WC_RNR_RETRY_EXC_ERR] = "RNR retry counter exceeded"};

	return (size_t)status < sizeof(text) / sizeof(text[0]) && text[status] ? text[status]
									       : "unknown";
}

const char *ibv_event_type_str(enum ibv_event_type event)
{
	return event == IBV_EVENT_DEVICE_FATAL ? "local catastrophic error"
	       : event == IBV_EVENT_QP_FATAL   ? "local work queue catastrophic error"
					       : "event";
}
