/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon of an older release, for proc/test_releases. It is shardd, linked so that HELD comes
 * through here (-Wl,--wrap in the Makefile). Before wire_minor 11 a node without an elected
 * coordinator took HELD for an error, and so did any node where it named no memory. */
#include "control/have.h"
#include "link/peer.h"
#include "model/lead.h"

enum shard_status __real_have_held(struct peer *p, const struct wire_head *h,
				   const Shard__Memory *body, struct err *e);
enum shard_status __wrap_have_held(struct peer *p, const struct wire_head *h,
				   const Shard__Memory *body, struct err *e);

enum shard_status __wrap_have_held(struct peer *p, const struct wire_head *h,
				   const Shard__Memory *body, struct err *e)
{
	if (lead_on(p->server) && body->incarnation != 0)
		return __real_have_held(p, h, body, e);
	return err_set(e, SHARD_PROTOCOL, "HELD of model %u from node %u", h->model, p->node);
}
