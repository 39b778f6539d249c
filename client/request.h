/* SPDX-License-Identifier: Apache-2.0 */
/* request.h: a frame with a tag, and the reply that carries the same tag. Call with the client's
 * lock. */
#ifndef SHARD_CLIENT_REQUEST_H
#define SHARD_CLIENT_REQUEST_H

#include "client.h"

struct request {
	struct list node;
	struct shard_client *c;
	uint32_t tag;
	uint16_t op;
	bool answered;         /* The reply is here, or will never come. */
	bool sent;             /* The stream no longer needs data. */
	bool dropped;          /* No caller waits. It is freed when it is answered and sent. */
	struct wire_head head; /* Of the reply. */
	struct err err;        /* The refusal in the reply. */
	unsigned char *body;   /* Of a control reply, malloc'ed. */
	uint32_t body_bytes;   /* Of the reply. */
	uint64_t heard_ns;     /* Time of the last PROGRESS. 0: none came. */
	uint64_t pinged_ns;    /* Time of the last PING for this request. 0: none. */
	uint64_t done_bytes, total_bytes; /* From PROGRESS. */
	int fds[2], fds_nr;               /* Descriptors that came with the reply. */
	uint32_t data_bytes;              /* Room in data. */
	unsigned char data[];             /* Bulk to send, or the memory for a bulk reply. */
};

/* NULL: no memory, and the text is set. */
struct request *request_new(struct shard_client *c, uint16_t op, uint32_t data_bytes);
/* The caller sets the model and what the op needs in h. op and tag are filled in here. Waits for
 * room in the queue. */
enum shard_status request_send(struct request *r, struct wire_head h, const ProtobufCMessage *msg,
			       struct wait *w);
/* The same with the first `bytes` of data as body. */
enum shard_status request_send_bulk(struct request *r, struct wire_head h, uint32_t bytes,
				    struct wait *w);
/* Waits for the reply and returns its status and text. SHARD_TIMEOUT has no text. */
enum shard_status request_wait(struct request *r, struct wait *w);
/* As pump_wait(), for an answer that may take long. A daemon that does not even answer a PING is
 * not waited for. SHARD_TIMEOUT then comes before the deadline. */
enum shard_status request_pump(struct request *r, struct wait *w);
/* The same until the reply is here. SHARD_TIMEOUT has a text. of says what the request is about. */
enum shard_status request_wait_alive(struct request *r, struct wait *w, const char *of);
/* Has the daemon refused it with what passes by itself? Then this pauses, longer each time, and
 * SHARD_AGAIN says that the caller shall ask again. Else it returns rc, and after the deadline that
 * of the refusal. *pause_ns is 0 at first. */
enum shard_status request_again(struct request *r, const struct wait *w, uint64_t *pause_ns,
				enum shard_status rc);
/* NULL is fine. */
void request_free(struct request *r);
/* The request that a reply is for, or NULL. */
struct request *request_find(struct shard_client *c, const struct wire_head *h);
/* The reply is here. */
void request_answer(struct request *r, const struct wire_head *h, const void *body);

#endif
