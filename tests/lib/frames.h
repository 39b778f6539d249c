/* SPDX-License-Identifier: Apache-2.0 */
/* frames.h: a receiver that remembers what a stream or conn delivered, and valid frames as bytes;
 * for tests of proto/net. */
#ifndef SHARD_TESTS_FRAMES_H
#define SHARD_TESTS_FRAMES_H

#include "net/stream.h"

enum { FRAMES_MAX = 256, FRAMES_BODY_MAX = 1 << 20 };

struct frames {
	uint32_t heads, nr;                   /* on_head, on_frame calls */
	struct wire_head head[FRAMES_MAX];    /* of on_frame */
	uint64_t sum[FRAMES_MAX];             /* XXH3 of the body as delivered */
	unsigned char *to;                    /* where bulk goes; NULL: the stream's own buffer */
	struct landing *landing;              /* that bulk belongs to; NULL: none */
	bool discard, hold_after_each, spare; /* spare: a damaged body does not end the stream */
	uint32_t damaged;
	uint16_t refuse_op; /* refused by on_head */
	int fds[8], fds_nr; /* taken */
	bool take_fds;
	int fds_at[FRAMES_MAX]; /* taken until the end of each frame */
};

extern const struct stream_handler frames_handler; /* owner: struct frames */

/* A sealed frame into out (64 + body_bytes); returns its bytes. */
size_t frames_make(unsigned char *out, uint16_t op, uint32_t flags, uint32_t chunk,
		   const void *body, uint32_t body_bytes, uint64_t ordinal);
/* n pseudo-random bytes */
void frames_fill(void *p, size_t bytes, uint64_t seed);
uint32_t frames_open_fds(void); /* of this process */

#endif
