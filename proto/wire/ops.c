/* SPDX-License-Identifier: Apache-2.0 */
/* The table of frame types. frame.c looks up whether an op exists and whether its body fits. The
 * dispatchers look up who may send it. A new op needs a row here, a number in ops.h and a paragraph
 * in README.md. Looking up a row cannot fail. */
#include "wire/ops.h"

#include "base/check.h"

#include <stddef.h>

#define T    BIT(ROLE_TRAINER)
#define N    BIT(ROLE_NODE)
#define C    BIT(ROLE_CTL)
#define NO   BODY_NONE
#define CTRL BODY_CONTROL
#define BULK BODY_BULK

enum {
	SMALL = 4096,              /* A message of a few numbers and one sentence. */
	BLOB = (64 << 10) + SMALL, /* SMALL and what one trainer keeps with a step. */
	LIST = 1 << 20,            /* Tensors of a chunk, or runs of chunks. */
	PART = WIRE_PART_BYTES,    /* Tensor bytes. */
	HEALTH = 256 << 10,        /* What is wrong with a node and with all models. */
	REGIONS = 16 << 10,        /* The memory regions of one model. */
	RANKS = 64 << 10,          /* What all ranks of a node gave with a step. */
	WHOLE = WIRE_CONTROL_MAX,
};

static const struct wire_op_row rows[OP_NR] = {
	/*                     name            body   from       min  max  */
	[OP_HELLO] = {"hello", CTRL, T | N | C, 4, WIRE_HELLO_MAX},
	[OP_ERROR] = {"error", CTRL, T | N | C, 0, SMALL},
	[OP_PING] = {"ping", NO, T | N | C, 0, 0},
	[OP_PONG] = {"pong", NO, T | N | C, 0, 0},
	[OP_AUTH] = {"auth", CTRL, T | N | C, 34, WIRE_HELLO_MAX},

	[OP_DEFINE] = {"define", CTRL, T | N, 2, WHOLE},
	[OP_WRITE] = {"write", BULK, T | N, 4, PART},
	[OP_SEAL] = {"seal", CTRL, T | N, 0, SMALL},
	[OP_READ] = {"read", BODY_REPLY_BULK, T | N, 2, PART},
	[OP_JOIN] = {"join", CTRL, T, 0, SMALL},
	[OP_LEAVE] = {"leave", NO, T, 0, 0},
	[OP_STATUS] = {"status", CTRL, T | N | C, 0, WHOLE},
	[OP_WAITS] = {"waits", CTRL, T | C, 0, SMALL},
	[OP_ATTACH] = {"attach", CTRL, T | C, 2, WHOLE},
	[OP_MANAGE] = {"manage", CTRL, T | C | N, 2, SMALL},
	[OP_SAVE] = {"save", CTRL, T | C | N, 0, SMALL},
	[OP_RESTORE] = {"restore", CTRL, T | C | N, 0, WHOLE},
	[OP_BLOB] = {"blob", CTRL, T | N, 0, BLOB},
	[OP_VERIFY] = {"verify", CTRL, T | C | N, 0, LIST},
	[OP_MOVE] = {"move", CTRL, T | C | N, 2, LIST},
	[OP_HISTORY] = {"history", CTRL, T | C | N, 2, LIST},
	[OP_DEVICE] = {"device", CTRL, T, 2, SMALL},
	[OP_PROGRESS] = {"progress", CTRL, N, 0, SMALL},

	[OP_ATTEMPT] = {"attempt", CTRL, 0, 0, SMALL},
	[OP_PUSH_DATA] = {"push_data", BULK, T, 2, PART},
	[OP_PUSH] = {"push", CTRL, T, 0, LIST},
	[OP_READY] = {"ready", CTRL, T, 0, BLOB},
	[OP_ABANDON] = {"abandon", CTRL, T, 0, SMALL},
	[OP_RESULT] = {"result", CTRL, 0, 0, SMALL},
	[OP_ENDED] = {"ended", CTRL, 0, 0, SMALL},
	[OP_PUBLISHED] = {"published", NO, 0, 0, 0},
	[OP_IMAGE_DATA] = {"image_data", BULK, N, 2, PART},
	[OP_IMAGE_ASK] = {"image_ask", CTRL, T | N, 0, LIST},
	[OP_LOST] = {"lost", CTRL, 0, 0, SMALL},

	[OP_MODEL] = {"model", CTRL, N, 2, WHOLE},
	[OP_MODEL_DROP] = {"model_drop", CTRL, N, 0, SMALL},
	[OP_WRITTEN] = {"written", CTRL, N, 0, SMALL},
	[OP_DETACHED] = {"detached", CTRL, N, 0, SMALL},
	[OP_CONTRIB_DATA] = {"contrib_data", BULK, N, 2, PART},
	[OP_CONTRIB] = {"contrib", CTRL, N, 0, LIST},
	[OP_SAVE_PART] = {"save_part", CTRL, N, 2, WHOLE},
	[OP_LOAD_PART] = {"load_part", CTRL, N, 2, SMALL},
	[OP_PART_CANCEL] = {"part_cancel", NO, N, 0, 0},
	[OP_RAIL] = {"rail", CTRL, N, 2, SMALL},
	[OP_REGION] = {"region", CTRL, N, 0, REGIONS},
	[OP_GRAD_DATA] = {"grad_data", BULK, N, 2, PART},
	[OP_GRAD] = {"grad", CTRL, N, 0, LIST},
	[OP_HELD] = {"held", CTRL, N, 0, SMALL},
	[OP_COPY_ASK] = {"copy_ask", NO, N, 0, 0},
	[OP_COPY_DATA] = {"copy_data", BULK, N, 4, PART},
	[OP_MEMBER] = {"member", BULK, N, 1, PART},
	[OP_VERIFY_PART] = {"verify_part", CTRL, N, 0, WHOLE},
	[OP_BLOB_DATA] = {"blob_data", BULK, N, 0, PART},
	[OP_ROOM] = {"room", CTRL, N, 2, WHOLE},
	[OP_CAPACITY] = {"capacity", CTRL, N, 0, SMALL},
	[OP_NODES] = {"nodes", CTRL, N, 2, WIRE_HELLO_MAX},
	[OP_NODE_ADD] = {"node_add", CTRL, N, 2, SMALL},
	[OP_HEALTH] = {"health", CTRL, N, 0, HEALTH},
	[OP_IMAGE_CODES] = {"image_codes", BULK, N, 4, PART},

	/* In the order of enum core_op in daemon/core/core.h. A unit test compares the count. */
	[OP_CORE + 1] = {"ask", CTRL, N, 0, SMALL},
	[OP_CORE + 2] = {"answer", CTRL, N, 0, WHOLE},
	[OP_CORE + 3] = {"view", CTRL, N, 0, WHOLE},
	[OP_CORE + 4] = {"view_ok", CTRL, N, 0, SMALL},
	[OP_CORE + 5] = {"begin", CTRL, N, 0, WHOLE},
	[OP_CORE + 6] = {"grant", CTRL, N, 0, SMALL},
	[OP_CORE + 7] = {"vote", CTRL, N, 0, WHOLE},
	[OP_CORE + 8] = {"commit", CTRL, N, 0, WHOLE},
	[OP_CORE + 9] = {"abort", CTRL, N, 0, SMALL},
	[OP_CORE + 10] = {"done", CTRL, N, 0, SMALL},
	[OP_CORE + 11] = {"drained", CTRL, N, 0, SMALL},
	[OP_CORE + 12] = {"core_join", CTRL, N, 0, SMALL},
	[OP_CORE + 13] = {"gone", CTRL, N, 0, SMALL},
	[OP_CORE + 14] = {"core_abandon", CTRL, N, 0, SMALL},
	[OP_CORE + 15] = {"waiting", CTRL, N, 0, SMALL},
	[OP_CORE + 16] = {"ranks", CTRL, N, 0, RANKS},
	[OP_CORE + 17] = {"hear", CTRL, N, 0, SMALL},
	[OP_CORE + 18] = {"heard", CTRL, N, 0, SMALL},
	[OP_CORE + 19] = {"odd", CTRL, N, 0, SMALL},
	[OP_CORE + 20] = {"back", CTRL, N, 0, SMALL},
};

const struct wire_op_row *wire_op(uint16_t op)
{
	return op < OP_NR && rows[op].name ? &rows[op] : NULL;
}
