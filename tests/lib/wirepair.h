/* SPDX-License-Identifier: Apache-2.0 */
/* wirepair.h: a stream and, at the other end of its socketpair, a descriptor to which a test writes
 * torn, wrong and right bytes. */
#ifndef SHARD_TESTS_WIREPAIR_H
#define SHARD_TESTS_WIREPAIR_H

#include "lib/frames.h"

struct wirepair {
	struct stream *s;
	struct frames got;
	int peer; /* -1: closed. */
};

struct wirepair *wirepair_new(void);
void wirepair_free(struct wirepair *p);
enum shard_status wirepair_feed(struct wirepair *p, const void *bytes, size_t nr, struct err *e);
/* Writes four frames: control, bulk, empty and control, which are the shapes that a reader can
 * meet. Returns their bytes. 500 and bulk_bytes are enough room. */
size_t wirepair_sample(unsigned char *out, size_t bulk_bytes);
/* Exactly these frames must have arrived. */
void wirepair_check(const struct frames *f, size_t bulk_bytes);

#endif
