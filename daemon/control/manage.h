/* SPDX-License-Identifier: Apache-2.0 */
/* manage.h: what an operator or a trainer changes about a model that runs: drop, set, pause,
 * resume, kick. Decided on the coordinator. */
#ifndef SHARD_MANAGE_H
#define SHARD_MANAGE_H

#include "link/caller.h"
#include "model/model.h"

enum manage_action {
	MANAGE_DROP = 1,
	MANAGE_SET,
	MANAGE_PAUSE,
	MANAGE_RESUME,
	MANAGE_KICK,
	MANAGE_NR
};

enum shard_status manage_request(struct session *t, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e);
enum shard_status manage_node_request(struct peer *p, const struct wire_head *h,
				      const Shard__Manage *body, struct err *e);
void manage_answer(struct server *s, const struct caller *a,
		   const struct err *e); /* e NULL: done */

extern const struct model_watch manage_watch;
void manage_fail(struct model *m,
		 const struct err *e); /* who waits for m is refused: it is lost, or dropped */
void manage_beat(struct server *s, uint64_t now_ns);

#endif
