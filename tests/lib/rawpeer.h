/* SPDX-License-Identifier: Apache-2.0 */
/* rawpeer.h: one end of a connection to a daemon, frame by frame and byte by byte, with nothing
 * that stops a test from being wrong. */
#ifndef SHARD_TESTS_RAWPEER_H
#define SHARD_TESTS_RAWPEER_H

#include "wire/frame.h"
#include "wire/ops.h"

#include <protobuf-c/protobuf-c.h>

struct raw {
	int fd;
	uint64_t sent, got;    /* ordinals */
	struct wire_head head; /* of the last frame received */
	unsigned char *body;   /* its body, NUL behind it */
	int fds[4], fds_nr;    /* descriptors that came */
};

void raw_connect(struct raw *r, const char *address); /* "unix:PATH" or "tcp://127.0.0.1:PORT" */
bool raw_try_connect(struct raw *r, const char *address);
void raw_close(struct raw *r);
void raw_bytes(struct raw *r, const void *p,
	       size_t bytes); /* as they are; a closed peer is not an error here */
void raw_head(struct raw *r, struct wire_head *h, const void *body,
	      uint32_t body_bytes); /* sealed and sent */
void raw_send(struct raw *r, const struct wire_head *h, const ProtobufCMessage *msg);
bool raw_recv(struct raw *r);                /* false: closed; 10 s without a byte fail the test */
bool raw_expect(struct raw *r, uint16_t op); /* skips frames until it comes; false: closed before */
void raw_hello(struct raw *r, enum wire_role role);
char *raw_error(struct raw *r);        /* text of the ERROR in hand or of the next one, static until
					  raw_close; NULL: closed without one */
char *raw_status(struct raw *r);       /* JSON, malloc'd */
void raw_expect_closed(struct raw *r); /* within 10 s, whatever comes before */

#endif
