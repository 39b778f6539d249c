/* SPDX-License-Identifier: Apache-2.0 */
/* rawnode.h: a cluster of two nodes of which one is a daemon and the other is the test itself,
 * frame by frame: node b, which dials; or node a, the coordinator, which is dialled and whose
 * decisions the daemon has to follow. What it says may be as wrong as it likes. */
#ifndef SHARD_TESTS_RAWNODE_H
#define SHARD_TESTS_RAWNODE_H

#include "base/arena.h"
#include "core/core.h"
#include "lib/inproc.h"
#include "lib/rawpeer.h"
#include "shard.pb-c.h"

enum { RAWNODE_CONNECTIONS_MAX = 4 };

struct rawnode {
	struct inproc c;
	struct inproc_node *daemon; /* the one that runs */
	struct config conf;         /* of the node that the test is */
	bool coordinates;
	int listener; /* of a coordinator */
	uint64_t incarnation, daemon_incarnation;
	uint32_t connections;
	struct raw r[RAWNODE_CONNECTIONS_MAX];
	/* of a coordinator */
	uint32_t model, chunks_nr, tag;
	const char *settings;
	bool silent;    /* Does not wait for the answer to what it defines. */
	uint8_t folder; /* which state directory it seems to have */
	struct core_view view;
	struct arena packing;
	void *packing_bytes;
};

/* Starts the daemon, linked. lines: of the configuration of both, beside `connections`; NULL: none.
 */
void rawnode_start(struct rawnode *x, bool coordinates, const struct inproc_conf *lines,
		   uint32_t connections);
void rawnode_link(struct rawnode *x); /* anew, after the link ended */
void rawnode_stop(struct rawnode *x); /* the daemon still answers, and ends */
void rawnode_free(struct rawnode *x); /* the daemon may have been stopped */
/* The daemon ends the link, with a sentence that has this part. */
void rawnode_refused(struct rawnode *x, uint32_t connection, const char *part);

/* As node b: MODEL has come (it is the last frame read) and is answered; or it is waited for first.
 */
void rawnode_held(struct rawnode *x);
void rawnode_hold(struct rawnode *x);
/* As the coordinator. The model has one tensor of fp32, its first half held by a and the other by
 * b. Its number is 1 and its name "m" unless said otherwise. */
void rawnode_define(struct rawnode *x, uint32_t chunks, const char *settings);
void rawnode_define_as(struct rawnode *x, uint32_t model, const char *name, uint32_t chunks,
		       const char *settings);
/* Writes zeros into what node b holds, and seals: views that the daemon adopts. */
void rawnode_seal(struct rawnode *x, uint64_t step);
void rawnode_say(struct rawnode *x,
		 const struct core_msg *m); /* a message of the core, to the daemon */
void rawnode_begin(struct rawnode *x, const struct core_world *w,
		   struct core_id *id); /* the attempt after id->attempt */
void rawnode_expect(struct rawnode *x,
		    uint16_t op); /* on connection 0; others before it are passed over */

/* As node b, which holds nothing: does what a member owes, until a frame with this op is in
 * r[0].head. session: of a trainer that it tells of with each view; 0: none. */
void rawnode_obey(struct rawnode *x, uint16_t until, uint64_t session);
void rawnode_join(struct rawnode *x, uint64_t session); /* a trainer of b's wants in */

#endif
