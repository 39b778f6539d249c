/* SPDX-License-Identifier: Apache-2.0 */
/* rawpeer.h: one end of a connection to a daemon, frame by frame and byte by byte. Nothing keeps a
 * test from sending what is wrong. */
#ifndef SHARD_TESTS_RAWPEER_H
#define SHARD_TESTS_RAWPEER_H

#include "wire/frame.h"
#include "wire/ops.h"

#include <protobuf-c/protobuf-c.h>

struct raw {
	int fd;
	uint64_t sent, got;    /* Ordinals. */
	struct wire_head head; /* Of the last frame received. */
	unsigned char *body;   /* Its body, with a NUL behind it. */
	int fds[4], fds_nr;    /* Descriptors that came. */
};

void raw_connect(struct raw *r, const char *address); /* "unix:PATH" or "tcp://127.0.0.1:PORT" */
bool raw_try_connect(struct raw *r, const char *address);
void raw_close(struct raw *r);
/* Sends the bytes as they are. A closed peer is no error here. */
void raw_bytes(struct raw *r, const void *p, size_t bytes);
/* Seals and sends a frame. */
void raw_head(struct raw *r, struct wire_head *h, const void *body, uint32_t body_bytes);
void raw_send(struct raw *r, const struct wire_head *h, const ProtobufCMessage *msg);
bool raw_recv(struct raw *r); /* False: closed. The test fails after 10 s without a byte. */
/* Skips frames until op comes. False: closed before. */
bool raw_expect(struct raw *r, uint16_t op);
void raw_hello(struct raw *r, enum wire_role role);
/* The text of the ERROR in hand or of the next one, valid until raw_close(). NULL: the connection
 * closed without one. */
char *raw_error(struct raw *r);
char *raw_status(struct raw *r);       /* JSON, malloc'ed. */
void raw_expect_closed(struct raw *r); /* Within 10 s, whatever comes before. */

#endif
