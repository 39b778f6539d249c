/* SPDX-License-Identifier: Apache-2.0 */
/* rdma.h for a build without libibverbs (RDMA=0, or it was not installed). rdma_open() fails and
 * says so. Without an open device the other functions cannot be called with anything valid, so each
 * call of them is a bug and fails a check. */
#include "net/rdma.h"

#include "base/check.h"

enum shard_status rdma_open(struct rdma **out, uv_loop_t *loop, const struct rdma_conf *conf,
			    struct err *e)
{
	(void)loop;
	(void)conf;
	*out = NULL;
	return err_set(e, SHARD_NOT_FOUND,
		       "built without RDMA: install libibverbs-dev and build again");
}

#define NOT_HERE check_failed("rdma_open() succeeded", __FILE__, __LINE__)

const char *rdma_name(const struct rdma *r)
{
	(void)r;
	NOT_HERE;
}

void rdma_close(struct rdma **r)
{
	CHECK(!*r);
}

enum shard_status rdma_domain_new(struct rdma_domain **out, struct rdma *r, struct err *e)
{
	(void)out;
	(void)r;
	(void)e;
	NOT_HERE;
}

void rdma_domain_free(struct rdma_domain **d)
{
	CHECK(!*d);
}

enum shard_status rdma_register(struct rdma_region **out, struct rdma_domain *d, void *base,
				size_t bytes, bool remote, struct err *e)
{
	(void)out;
	(void)d;
	(void)base;
	(void)bytes;
	(void)remote;
	(void)e;
	NOT_HERE;
}

enum shard_status rdma_register_dma_buf(struct rdma_region **out, struct rdma_domain *d,
					const struct rdma_dma_buf *of, struct err *e)
{
	(void)out;
	(void)d;
	(void)of;
	(void)e;
	NOT_HERE;
}

enum shard_status rdma_takes_dma_buf(struct rdma *r, struct err *e)
{
	(void)r;
	(void)e;
	NOT_HERE;
}

void rdma_deregister(struct rdma_region **g)
{
	CHECK(!*g);
}

uint32_t rdma_region_rkey(const struct rdma_region *g)
{
	(void)g;
	NOT_HERE;
}

bool rdma_region_has(const struct rdma_region *g, const void *at, size_t bytes)
{
	(void)g;
	(void)at;
	(void)bytes;
	NOT_HERE;
}

enum shard_status rdma_rail_new(struct rdma_rail **out, const struct rdma_rail_conf *conf,
				struct err *e)
{
	(void)out;
	(void)conf;
	(void)e;
	NOT_HERE;
}

void rdma_rail_ends(const struct rdma_rail *l, struct rdma_ends *mine)
{
	(void)l;
	(void)mine;
	NOT_HERE;
}

enum shard_status rdma_rail_connect(struct rdma_rail *l, const struct rdma_ends *theirs,
				    struct err *e)
{
	(void)l;
	(void)theirs;
	(void)e;
	NOT_HERE;
}

void rdma_rail_free(struct rdma_rail **l)
{
	CHECK(!*l);
}

enum shard_status rdma_rail_send(struct rdma_rail *l, uint32_t qp, const struct wire_head *h,
				 const struct rdma_region *region, const void *body,
				 uint32_t body_bytes, uint64_t remote, uint32_t rkey,
				 stream_sent_fn sent, void *arg)
{
	(void)l;
	(void)qp;
	(void)h;
	(void)region;
	(void)body;
	(void)body_bytes;
	(void)remote;
	(void)rkey;
	(void)sent;
	(void)arg;
	NOT_HERE;
}

enum shard_status rdma_rail_control(struct rdma_rail *l, uint32_t qp, const struct wire_head *h,
				    const ProtobufCMessage *msg)
{
	(void)l;
	(void)qp;
	(void)h;
	(void)msg;
	NOT_HERE;
}

void rdma_rail_kick(struct rdma_rail *l, uint32_t qp)
{
	(void)l;
	(void)qp;
	NOT_HERE;
}

uint32_t rdma_rail_queued(const struct rdma_rail *l, uint32_t qp)
{
	(void)l;
	(void)qp;
	NOT_HERE;
}

bool rdma_rail_room_comes(const struct rdma_rail *l, uint32_t qp)
{
	(void)l;
	(void)qp;
	NOT_HERE;
}

const struct rdma_stats *rdma_rail_stats(const struct rdma_rail *l)
{
	(void)l;
	NOT_HERE;
}
