/* SPDX-License-Identifier: Apache-2.0 */
/* request.h: a frame with a tag, and the reply that carries the same tag. With the client's lock.
 */
#ifndef SHARD_CLIENT_REQUEST_H
#define SHARD_CLIENT_REQUEST_H

#include "client.h"

struct request {
	struct list node;
	struct shard_client *c;
	uint32_t tag;
	uint16_t op;
	bool answered;         /* The reply is here, or will never come. */
	bool sent;             /* The stream needs data no longer. */
	bool dropped;          /* Nobody waits: it is freed when it is answered and sent. */
	struct wire_head head; /* of the reply */
	struct err err;        /* what the reply refused with */
	unsigned char *body;   /* of a control reply; malloc'ed */
	uint32_t body_bytes;   /* of the reply */
	uint64_t heard_ns;     /* when PROGRESS came last; 0: never */
	uint64_t pinged_ns;    /* when the daemon was asked last whether it runs; 0: never */
	uint64_t done_bytes, total_bytes; /* what it said */
	int fds[2], fds_nr;               /* descriptors that came with the reply */
	uint32_t data_bytes;              /* room in data */
	unsigned char data[];             /* bulk to send, or where a bulk reply lands */
};

/* NULL: no memory, and the text is set. */
struct request *request_new(struct shard_client *c, uint16_t op, uint32_t data_bytes);
/* h has the model and whatever the op asks for; op and tag are filled in. Waits for room in the
 * queue. */
enum shard_status request_send(struct request *r, struct wire_head h, const ProtobufCMessage *msg,
			       struct wait *w);
/* The same with the first `bytes` of data as body. */
enum shard_status request_send_bulk(struct request *r, struct wire_head h, uint32_t bytes,
				    struct wait *w);
/* The reply's status and text; SHARD_TIMEOUT has no text. */
enum shard_status request_wait(struct request *r, struct wait *w);
/* As pump_wait(), for what may take long: a daemon from which not even the answer to a PING comes
 * is waited for no longer. SHARD_TIMEOUT then, before the deadline. */
enum shard_status request_pump(struct request *r, struct wait *w);
/* The same until the reply is here; SHARD_TIMEOUT has a text. of: what the request is about. */
enum shard_status request_wait_alive(struct request *r, struct wait *w, const char *of);
/* NULL is fine. */
void request_free(struct request *r);
/* The request that a reply is for, or NULL. */
struct request *request_find(struct shard_client *c, const struct wire_head *h);
/* The reply is here. */
void request_answer(struct request *r, const struct wire_head *h, const void *body);

#endif
