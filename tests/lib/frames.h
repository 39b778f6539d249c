/* SPDX-License-Identifier: Apache-2.0 */
/* frames.h: for tests of proto/net. It has a receiver that remembers what a stream or a conn
 * delivered, and it makes valid frames as bytes. */
#ifndef SHARD_TESTS_FRAMES_H
#define SHARD_TESTS_FRAMES_H

#include "net/stream.h"

enum { FRAMES_MAX = 256, FRAMES_BODY_MAX = 1 << 20 };

struct frames {
	uint32_t heads, nr;                   /* Calls of on_head and of on_frame. */
	struct wire_head head[FRAMES_MAX];    /* Of on_frame. */
	uint64_t sum[FRAMES_MAX];             /* XXH3 of the body as delivered. */
	unsigned char *to;                    /* Where bulk goes. NULL: the stream's own buffer. */
	struct landing *landing;              /* The landing of bulk. NULL: none. */
	bool discard, hold_after_each, spare; /* `spare`: a damaged body does not end the stream. */
	uint32_t damaged;
	uint16_t refuse_op; /* The op that on_head refuses. */
	int fds[8], fds_nr; /* Those that were taken. */
	bool take_fds;
	int fds_at[FRAMES_MAX]; /* Taken until the end of each frame. */
};

extern const struct stream_handler frames_handler; /* owner: struct frames */

/* Writes a sealed frame into out (64 + body_bytes) and returns its bytes. */
size_t frames_make(unsigned char *out, uint16_t op, uint32_t flags, uint32_t chunk,
		   const void *body, uint32_t body_bytes, uint64_t ordinal);
/* Fills p with pseudo-random bytes. */
void frames_fill(void *p, size_t bytes, uint64_t seed);
uint32_t frames_open_fds(void); /* Of this process. */

#endif
