/* SPDX-License-Identifier: Apache-2.0 */
/* rdma_place.h: which device, port and GID this node uses, and what they allow. For the files of
 * rdma.h only. */
#ifndef SHARD_NET_RDMA_PLACE_H
#define SHARD_NET_RDMA_PLACE_H

#include "net/rdma.h"

#include <infiniband/verbs.h>

struct rdma_place {
	struct ibv_context *verbs;
	uint8_t port;
	uint32_t gid_index, lid, mtu, max_qp_wr, max_cqe;
	bool ethernet;
	union ibv_gid gid;
	char name[128];
};

/* Texts say what is missing. On success the caller owns out->verbs, which is open. */
enum shard_status rdma_place_find(struct rdma_place *out, const struct rdma_conf *conf,
				  struct err *e);
void rdma_gid_text(const uint8_t gid[16], char *text, size_t bytes);
bool rdma_place_holds(const struct rdma_place *p); /* The GID is still the one chosen. */

#endif
