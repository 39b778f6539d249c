/* SPDX-License-Identifier: Apache-2.0 */
/* manage.h: requests that change an existing model: drop, set, pause, resume, kick. The coordinator
 * carries them out. */
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
	MANAGE_KICK_PROCESS,
	MANAGE_NR
};

enum shard_status manage_request(struct session *t, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e);
enum shard_status manage_node_request(struct peer *p, const struct wire_head *h,
				      const Shard__Manage *body, struct err *e);
void manage_answer(struct server *s, const struct caller *a,
		   const struct err *e); /* e NULL: it is done. */

extern const struct model_watch manage_watch;
void manage_fail(struct model *m,
		 const struct err *e); /* m is lost or dropped: refuses the waiting requests. */
void manage_beat(struct server *s, uint64_t now_ns);

#endif
