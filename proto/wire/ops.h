/* SPDX-License-Identifier: Apache-2.0 */
/* ops.h: every frame type as a row: its number, who may send it, its body. README.md beside this
 * file is the specification. */
#ifndef SHARD_WIRE_OPS_H
#define SHARD_WIRE_OPS_H

#include <stdint.h>

#define WIRE_PART_BYTES                                                                            \
	(256u << 10) /* bulk travels in parts of this size; the last of a chunk may be shorter */
#define WIRE_CONTROL_MAX (16u << 20) /* largest control body of any op */
#define WIRE_HELLO_MAX   (64u << 10) /* largest body before HELLO is through */

enum wire_op {
	OP_HELLO = 1,
	OP_ERROR,
	OP_PING,
	OP_PONG,
	OP_AUTH, /* dialler -> listener, who asked for a proof in HELLO: Auth -> Auth */
	/* trainer or tool -> daemon, answered by the same op with WIRE_REPLY and the same tag
	   (head.attempt) */
	OP_DEFINE = 10, /* Define -> Defined; relayed to the coordinator */
	OP_WRITE,  /* bulk f32: head.chunk = kind, head.step = first element of the element space ->
		      empty     */
	OP_SEAL,   /* Seal -> empty, when the image is published here   */
	OP_READ,   /* Read -> bulk f32, head.step = step of the data   */
	OP_JOIN,   /* Join -> Joined + descriptors; then BEGIN when there is a world   */
	OP_LEAVE,  /* -> empty, at a boundary  */
	OP_STATUS, /* -> Text (JSON) */
	OP_WAITS,  /* -> Text: who is waited for, now  */
	OP_ATTACH, /* Attach -> Defined with its spec */
	OP_MANAGE, /* Manage -> empty; relayed to the coordinator */
	OP_SAVE,   /* Save -> Saved, after PROGRESS; relayed to the coordinator   */
	OP_RESTORE,  /* Restore -> Defined with its spec, after PROGRESS; relayed to the coordinator
		      */
	OP_BLOB,     /* Blob -> BlobIs; what other nodes have is asked for     */
	OP_PROGRESS, /* daemon -> who asked, and its node: Progress of the request with this tag */
	/* the step, between trainer and daemon */
	OP_ATTEMPT = 30, /* daemon -> trainer: Attempt; the arena is the trainer's */
	OP_PUSH_DATA,    /* trainer -> daemon over TCP: part of a chunk's gradient    */
	OP_PUSH,         /* trainer -> daemon: head.chunk is complete; Push	 */
	OP_READY,        /* trainer -> daemon: commit, or vote_skip; Ready	*/
	OP_ABANDON,      /* trainer -> daemon: Why      */
	OP_RESULT,       /* daemon -> trainer: Result; committed       */
	OP_ENDED,        /* daemon -> trainer: Why; this attempt is over without effect	*/
	OP_PUBLISHED,    /* daemon -> trainer over a unix socket: image versions moved    */
	OP_IMAGE_DATA,   /* bulk: part of an image chunk, head.step = its version; daemon -> trainer
			    over TCP, node -> node */
	OP_IMAGE_ASK,    /* Chunks: who lacks a committed chunk asks its holder; trainer over TCP ->
			    daemon: after join */
	OP_LOST,         /* daemon -> trainer: Why; the model's generation is over	 */
	/* node <-> node */
	OP_MODEL = 50, /* Model -> Memory: reserve   */
	OP_MODEL_DROP, /* coordinator -> node: Why; it was dropped, or another node refused it ->
			  empty, when the memory is free */
	OP_WRITTEN,    /* coordinator -> node -> Written      */
	OP_DETACHED,   /* node -> coordinator: Trainer; a session that had created=1 is gone     */
	OP_CONTRIB_DATA, /* bulk: part of this node's contribution for head.chunk */
	OP_CONTRIB,      /* the contribution for head.chunk is complete; Push      */
	OP_SAVE_PART,    /* coordinator -> node: SavePart -> PartFile    */
	OP_LOAD_PART,    /* coordinator -> node: LoadPart -> empty    */
	OP_PART_CANCEL,  /* coordinator -> node: the SAVE_PART or LOAD_PART with this tag is not
			    wanted any more   */
	OP_RAIL, /* node of the higher index -> the other: Rail, an offer of RDMA; back: the answer;
		    and what ends it */
	OP_REGION,     /* Regions: where the receiver may write by RDMA for a model     */
	OP_CORE = 100, /* + enum core_op: Core */
	OP_NR = 128
};

enum wire_role { ROLE_NONE = 0, ROLE_TRAINER = 1, ROLE_NODE = 2, ROLE_CTL = 3 };
enum wire_body {
	BODY_NONE,
	BODY_CONTROL,
	BODY_BULK,
	BODY_REPLY_BULK /* control as request, bulk as reply */
};

struct wire_op_row {
	const char *name;
	uint8_t body; /* enum wire_body */
	uint8_t from; /* bit set of enum wire_role that may send it to a daemon; 0: only a daemon
			 sends it */
	uint32_t body_min; /* bytes, of a request */
	uint32_t body_max; /* bytes, of request and reply */
};

const struct wire_op_row *wire_op(uint16_t op); /* NULL: no such op */

#endif
