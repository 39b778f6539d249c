/* SPDX-License-Identifier: Apache-2.0 */
/* What a peer may access: a protection domain of its own, and the memory registered in it.
 * daemon/link makes a domain when a peer connects, and daemon/data registers the memory of a model,
 * on any thread. Happy path: domain -> regions -> rails use them -> all are freed in reverse order.
 * It fails if the kernel does not lock that much memory, or if the device lacks resources. The text
 * of the former has the limit and what to set. */
#include "net/rdma_impl.h"

#include "base/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum shard_status rdma_no_memory(struct err *e, const struct rdma *r, int error, const char *what,
				 size_t bytes)
{
	struct rlimit lim = {.rlim_cur = RLIM_INFINITY};
	char limit[64] = "unlimited";
	double mib = (double)bytes / (1 << 20);

	(void)getrlimit(RLIMIT_MEMLOCK, &lim);
	if (lim.rlim_cur != RLIM_INFINITY)
		snprintf(limit, sizeof(limit), "%llu KiB", (unsigned long long)lim.rlim_cur >> 10);
	if ((error == ENOMEM || error == EAGAIN || error == EPERM) && lim.rlim_cur != RLIM_INFINITY)
		return err_set(e, SHARD_DENIED,
			       "cannot register %.1f MiB (%s) with RDMA device %s: %s; memlock "
			       "allows %s: set LimitMEMLOCK=infinity "
			       "in the unit, or ulimit -l unlimited",
			       mib, what, r->at.name, strerror(error), limit);
	return err_set(e, SHARD_DENIED,
		       "cannot register %.1f MiB (%s) with RDMA device %s: %s (memlock: %s)", mib,
		       what, r->at.name, strerror(error), limit);
}

enum shard_status rdma_domain_new(struct rdma_domain **out, struct rdma *r, struct err *e)
{
	struct rdma_domain *d = calloc(1, sizeof(*d));

	*out = NULL;
	if (!d)
		return err_set(e, SHARD_SYSTEM, "no memory for an RDMA peer");
	d->rdma = r;
	d->pd = ibv_alloc_pd(r->at.verbs);
	if (!d->pd) {
		free(d);
		return err_set(e, SHARD_SYSTEM, "RDMA device %s: no protection domain: %s",
			       r->at.name, strerror(errno));
	}
	r->domains++;
	*out = d;
	return SHARD_OK;
}

void rdma_domain_free(struct rdma_domain **dp)
{
	struct rdma_domain *d = *dp;

	if (!d)
		return;
	*dp = NULL;
	CHECK(d->regions == 0 && d->rails == 0 && d->rdma->domains > 0);
	(void)ibv_dealloc_pd(d->pd);
	d->rdma->domains--;
	free(d);
}

static enum shard_status region_new(struct rdma_region **out, struct rdma_domain *d, void *base,
				    size_t bytes, struct err *e)
{
	struct rdma_region *g = calloc(1, sizeof(*g));

	CHECK(base && bytes > 0);
	*out = NULL;
	if (!g)
		return err_set(e, SHARD_SYSTEM, "no memory for an RDMA region");
	g->domain = d;
	g->base = base;
	g->bytes = bytes;
	*out = g;
	return SHARD_OK;
}

/* Takes g->mr over, or frees g where there is none. */
static enum shard_status region_end(struct rdma_region **gp, int error, const char *what,
				    struct err *e)
{
	struct rdma_region *g = *gp;
	struct rdma_domain *d = g->domain;
	size_t bytes = g->bytes;

	if (g->mr) {
		d->regions++;
		return SHARD_OK;
	}
	*gp = NULL;
	free(g);
	return rdma_no_memory(e, d->rdma, error, what, bytes);
}

/* With relaxed ordering the device may let bodies overtake one another on the machine's bus. A
 * completion never overtakes its body. libibverbs drops the flag where the kernel does not know
 * it. */
enum shard_status rdma_register(struct rdma_region **out, struct rdma_domain *d, void *base,
				size_t bytes, bool remote, struct err *e)
{
	int access = IBV_ACCESS_RELAXED_ORDERING |
		     (remote ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0);
	enum shard_status st = region_new(out, d, base, bytes, e);

	if (st != SHARD_OK)
		return st;
	errno = 0;
	(*out)->mr = ibv_reg_mr(d->pd, base, bytes, access);
	return region_end(out, errno, remote ? "for a peer to write" : "to be sent", e);
}

enum shard_status rdma_register_dma_buf(struct rdma_region **out, struct rdma_domain *d,
					const struct rdma_dma_buf *of, struct err *e)
{
	enum shard_status st = region_new(out, d, (void *)(uintptr_t)of->at, of->bytes, e);

	if (st != SHARD_OK)
		return st;
	errno = 0;
	(*out)->mr = ibv_reg_dmabuf_mr(d->pd, of->offset, of->bytes, of->at, of->fd,
				       IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_LOCAL_WRITE |
					       IBV_ACCESS_REMOTE_WRITE);
	return region_end(out, errno, "of another device, for a peer to write", e);
}

/* A device that can says that the descriptor is none. It is asked once. */
enum shard_status rdma_takes_dma_buf(struct rdma *r, struct err *e)
{
	struct ibv_pd *pd = r->no_dma_buf == 0 ? ibv_alloc_pd(r->at.verbs) : NULL;
	struct ibv_mr *mr;

	if (r->no_dma_buf == 0 && !pd)
		return err_set(e, SHARD_SYSTEM, "RDMA device %s: no protection domain: %s",
			       r->at.name, strerror(errno));
	if (pd) {
		errno = 0;
		mr = ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE);
		r->no_dma_buf = errno;
		CHECK(!mr);
		(void)ibv_dealloc_pd(pd);
	}
	if (r->no_dma_buf == EBADF)
		return SHARD_OK;
	return err_set(e, SHARD_UNSUPPORTED,
		       "RDMA device %s, or its driver, takes no memory of other devices (%s)",
		       r->at.name, strerror(r->no_dma_buf));
}

void rdma_deregister(struct rdma_region **gp)
{
	struct rdma_region *g = *gp;

	if (!g)
		return;
	*gp = NULL;
	CHECK(g->posted == 0 && g->domain->regions > 0);
	(void)ibv_dereg_mr(g->mr);
	g->domain->regions--;
	free(g);
}

uint32_t rdma_region_rkey(const struct rdma_region *g)
{
	return g->mr->rkey;
}

bool rdma_region_has(const struct rdma_region *g, const void *at, size_t bytes)
{
	size_t offset = (size_t)((uintptr_t)at - (uintptr_t)g->base);

	return (uintptr_t)at >= (uintptr_t)g->base && offset <= g->bytes &&
	       bytes <= g->bytes - offset;
}
