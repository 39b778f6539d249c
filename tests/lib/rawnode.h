/* SPDX-License-Identifier: Apache-2.0 */
/* rawnode.h: a cluster of two nodes, of which one is a daemon and the other is the test itself,
 * frame by frame. The test is node b, which dials, or node a, the coordinator, which is dialled and
 * whose decisions the daemon has to follow. What it sends may be as wrong as the test likes. */
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
	struct inproc_node *daemon; /* The daemon that runs. */
	struct config conf;         /* Of the node that the test plays. */
	bool coordinates;
	int listener; /* For a coordinator. */
	uint64_t incarnation;
	struct view_node daemon_who; /* As it says in its HELLO. */
	uint32_t connections;
	struct raw r[RAWNODE_CONNECTIONS_MAX];
	/* The next ones are for a coordinator. */
	uint32_t model, chunks_nr, tag;
	const char *settings;
	bool silent;    /* Does not wait for the answer to what it defines. */
	uint8_t folder; /* The number of the state directory that it seems to have. */
	struct core_view view;
	struct arena packing;
	void *packing_bytes;
};

/* Starts the daemon and links it. lines is for the configuration of both, beside `connections`.
 * NULL: none. */
void rawnode_start(struct rawnode *x, bool coordinates, const struct inproc_conf *lines,
		   uint32_t connections);
struct view_node rawnode_who(const struct rawnode *x); /* The node that the test plays. */
void rawnode_link(struct rawnode *x);                  /* Links again after the link ended. */
void rawnode_stop(struct rawnode *x); /* The daemon must still answer, and is stopped. */
void rawnode_free(struct rawnode *x); /* For a daemon that may have been stopped. */
/* The daemon must end the link with a sentence that contains `part`. */
void rawnode_refused(struct rawnode *x, uint32_t connection, const char *part);

/* As node b: rawnode_held() answers MODEL, which is the last frame read. rawnode_hold() waits for
 * it first. */
void rawnode_held(struct rawnode *x);
void rawnode_hold(struct rawnode *x);
/* As the coordinator. The model has one tensor of fp32, and a holds its first half and b the other.
 * If the settings say replicas=2, each holds all of it, and is the primary of its half.
 * Its number is 1 and its name is "m", unless rawnode_define_as() says otherwise. */
void rawnode_define(struct rawnode *x, uint32_t chunks, const char *settings);
void rawnode_define_as(struct rawnode *x, uint32_t model, const char *name, uint32_t chunks,
		       const char *settings);
/* Names the placement of that model, for its views. It has no table. */
struct placement rawnode_place(const struct rawnode *x);
/* Writes zeros into what node b holds, and seals with views that the daemon adopts. */
void rawnode_seal(struct rawnode *x, uint64_t step);
/* Sends a message of the core to the daemon. */
void rawnode_say(struct rawnode *x, const struct core_msg *m);
/* Begins the attempt after id->attempt. */
void rawnode_begin(struct rawnode *x, const struct core_world *w, struct core_id *id);
/* Waits for op on connection 0, and skips other frames. */
void rawnode_expect(struct rawnode *x, uint16_t op);

/* As node b, which holds nothing: does what a member owes until a frame with op `until` is in
 * r[0].head. With each view it sends the join of the trainer `session`. 0: no trainer. */
void rawnode_obey(struct rawnode *x, uint16_t until, uint64_t session);
void rawnode_join(struct rawnode *x, uint64_t session); /* A trainer of node b wants to join. */

#endif
