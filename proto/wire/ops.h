/* SPDX-License-Identifier: Apache-2.0 */
/* ops.h: the number of every frame type, who may send it, and what its body is. README.md beside
 * this file is the specification. */
#ifndef SHARD_WIRE_OPS_H
#define SHARD_WIRE_OPS_H

#include <stdint.h>

#define WIRE_PART_BYTES                                                                            \
	(256u << 10) /* Bytes of a part of a chunk. The last part of a chunk may be shorter. */
#define WIRE_CONTROL_MAX (16u << 20) /* Largest control body of any op. */
#define WIRE_HELLO_MAX   (64u << 10) /* Largest body before HELLO is through. */

enum wire_op {
	OP_HELLO = 1,
	OP_ERROR,
	OP_PING,
	OP_PONG,
	/* The dialler sends Auth after both HELLOs asked for a proof, and the listener answers with
	 * Auth. */
	OP_AUTH,
	/* Requests of a trainer or tool to a daemon. The reply has the same op, WIRE_REPLY and the
	 * same tag (head.attempt). */
	OP_DEFINE = 10, /* Define -> Defined. Relayed to the coordinator. */
	/* Bulk f32 -> empty. head.chunk is the kind, head.step the first element of the element
	 * space. */
	OP_WRITE,
	OP_SEAL,   /* Seal -> empty, when the image is published here. */
	OP_READ,   /* Read -> bulk f32. head.step is the step of the data. */
	OP_JOIN,   /* Join -> Joined and descriptors. ATTEMPT follows when there is a world. */
	OP_LEAVE,  /* -> empty, at a boundary. */
	OP_STATUS, /* -> Text (JSON). */
	OP_WAITS,  /* -> Text, which says what is waited for now. */
	OP_ATTACH, /* Attach -> Defined with its spec. */
	OP_MANAGE, /* Manage -> empty. Relayed to the coordinator. */
	OP_SAVE,   /* Save -> Saved, after PROGRESS. Relayed to the coordinator. */
	/* Restore -> Defined with its spec, after PROGRESS. Relayed to the coordinator. */
	OP_RESTORE,
	OP_BLOB, /* Blob -> BlobIs. The daemon asks other nodes for their blobs. */
	/* daemon -> the requester and its node: Progress of the request with this tag. */
	OP_PROGRESS,
	/* Attach -> Text (JSON), after PROGRESS. Relayed to the coordinator. */
	OP_VERIFY,
	OP_MOVE, /* Move -> Text (JSON). Passed on to the coordinator, or to the node it names. */
	OP_HISTORY, /* History -> HistoryPage. Passed on to the node that it names. */
	OP_DEVICE,  /* Device -> DeviceMemory and descriptors. Of a trainer that has joined. */
	/* The step, between trainer and daemon. */
	OP_ATTEMPT = 30, /* daemon -> trainer: Attempt. The trainer may write its arena. */
	OP_PUSH_DATA,    /* trainer -> daemon over TCP: part of a chunk's gradient. */
	OP_PUSH,         /* trainer -> daemon: Push. The gradient of head.chunk is complete. */
	/* trainer -> daemon: Ready. The trainer commits, or votes to skip (vote_skip). */
	OP_READY,
	OP_ABANDON,   /* trainer -> daemon: Why. */
	OP_RESULT,    /* daemon -> trainer: Result of a committed step. */
	OP_ENDED,     /* daemon -> trainer: Why. This attempt is over without effect. */
	OP_PUBLISHED, /* daemon -> trainer over a unix socket: image versions changed. */
	/* Bulk: part of an image chunk, whose version is head.step. daemon -> trainer over TCP,
	 * node -> node. */
	OP_IMAGE_DATA,
	/* Chunks. A node that lacks a committed chunk asks its holder. A trainer over TCP asks its
	 * daemon after it joined. */
	OP_IMAGE_ASK,
	OP_LOST, /* daemon -> trainer: Why. The model's generation is over. */
	/* Between nodes. */
	OP_MODEL = 50, /* Model -> Memory. Asks a node to reserve the memory of a model. */
	/* coordinator -> node: Why -> empty, when the memory is free. The model was dropped, or
	 * another node refused it. */
	OP_MODEL_DROP,
	/* coordinator -> node: Written -> Written. Asks before a seal which weights are missing. */
	OP_WRITTEN,
	OP_DETACHED,     /* node -> coordinator: Trainer. A trainer's session is gone. */
	OP_CONTRIB_DATA, /* Bulk: part of this node's contribution for head.chunk. */
	OP_CONTRIB,      /* Push. The contribution for head.chunk is complete. */
	OP_SAVE_PART,    /* coordinator -> node: SavePart -> PartFile. */
	OP_LOAD_PART,    /* coordinator -> node: LoadPart -> empty. */
	/* coordinator -> node: cancels the SAVE_PART, LOAD_PART or VERIFY_PART with this tag. node
	 * -> coordinator: the session whose VERIFY had this tag is gone. */
	OP_PART_CANCEL,
	/* Rail. The node of the higher index offers RDMA and the other answers. Rail also ends
	 * it. */
	OP_RAIL,
	OP_REGION, /* Regions. Where the receiver may write by RDMA for a model. */
	/* Bulk: part of the reduced gradient of head.chunk. Its primary sends it to the other nodes
	 * that have memory for the chunk. */
	OP_GRAD_DATA,
	OP_GRAD, /* Grad. The reduced gradient of head.chunk is complete. */
	/* Memory, where the coordinator is elected. The sender has the model. With head.attempt 0
	 * the receiver answers with its own HELD. */
	OP_HELD,
	/* A node that catches up asks the primary of head.chunk for a copy of its state. */
	OP_COPY_ASK,
	/* Bulk f32: part of that copy. The parts are those of the master, then of each moment, and
	 * then the blobs that go with the chunk. */
	OP_COPY_DATA,
	OP_MEMBER, /* A message of the membership source: cluster/source_wire.h. */
	/* coordinator -> node: empty -> PartFile. head.step is the step whose weights are hashed.
	 * Of PartFile .sums has a digest for each chunk that the node holds in the view of
	 * head.term and head.seq. */
	OP_VERIFY_PART,
	/* Raw bytes: the blob of rank head.chunk that goes with the attempt, for a node that keeps
	 * a copy of it. */
	OP_BLOB_DATA,
	/* coordinator -> node: Tables -> empty, when the node has memory for what they give it. */
	OP_ROOM,
	OP_CAPACITY, /* node -> node: Capacity. It has changed. */
	OP_NODES, /* node -> node: Nodes. All nodes, since another one has joined, or the link came
		     up. */
	OP_NODE_ADD, /* node -> coordinator: Nodes -> empty, when the node is in the list. */
	OP_HEALTH,   /* node -> node: Health. It has changed, or the link came up. */
	/* Bulk: part of the codes of an image chunk (image_codec). head.step as in IMAGE_DATA. */
	OP_IMAGE_CODES,
	OP_CORE = 100, /* Plus an enum core_op: Core. */
	OP_NR = 128
};

enum wire_role { ROLE_NONE = 0, ROLE_TRAINER = 1, ROLE_NODE = 2, ROLE_CTL = 3 };
enum wire_body {
	BODY_NONE,
	BODY_CONTROL,
	BODY_BULK,
	BODY_REPLY_BULK /* Control as request, bulk as reply. */
};

struct wire_op_row {
	const char *name;
	uint8_t body; /* enum wire_body. */
	/* Bit set of the enum wire_role that may send it to a daemon. 0: only a daemon sends it. */
	uint8_t from;
	uint32_t body_min; /* In bytes, of a request. */
	uint32_t body_max; /* In bytes, of request and reply. */
};

const struct wire_op_row *wire_op(uint16_t op); /* NULL: no such op. */

#endif
