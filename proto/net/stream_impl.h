/* SPDX-License-Identifier: Apache-2.0 */
/* stream_impl.h: what stream.c (life, sending) and stream_in.c (receiving) share. Nobody else
 * includes it. */
#ifndef SHARD_NET_STREAM_IMPL_H
#define SHARD_NET_STREAM_IMPL_H

#include "net/stream.h"
#include "wire/xxh.h"

enum { STREAM_FDS_MAX = 4 };

struct stream_out { /* A queued frame. */
	struct wire_head head;
	const void *body;
	stream_sent_fn sent;
	void *arg;
	void *big; /* An owned body, or a control body too large for the ring. Freed when sent. */
	uint32_t ring_bytes; /* Of the ring, given back when sent. */
	uint32_t held_bytes; /* Counted as held. */
	bool sealed;         /* It has its sums and may be partly written. */
	int fds_nr, fds[STREAM_FDS_MAX];
};

enum stream_into { INTO_OWNER, INTO_OWN, INTO_NOWHERE };

struct stream {
	struct stream_io *io; /* &plain, or one that was given. */
	struct stream_io plain;
	/* The peer does not speak TLS. One ERROR says so, as it can read it, and nothing else. */
	bool only_error;
	bool unix_socket, body_sum, hold, in_callback;
	const struct stream_handler *handler;
	void *owner;
	struct stream_stats stats;
	struct err dead;  /* status != SHARD_OK: nothing more comes in. */
	const char *told; /* The part of dead that the peer is told. NULL: nothing. */
	char name[64];

	/* Sending. */
	bool writing, out_over, full;
	bool stopped; /* stream_read() left something unread because the stream was full. */
	struct stream_account *account;
	uint64_t held, held_max;
	/* Nothing more goes out. What came in before is still read, because it may say why. */
	struct err out_dead;
	struct stream_out *queue;
	uint32_t queue_max, first, queued;
	size_t first_sent; /* Bytes of the first frame that the kernel has. */
	uint64_t ordinal_out;
	unsigned char *ring;
	uint32_t ring_size, ring_at, ring_used;

	/* Receiving: the header in hand, and the next one, which the read of a body may bring
	 * along. */
	struct wire_head heads[2];
	uint32_t cur, head_got, next_got;
	bool in_body;
	enum stream_into into;
	unsigned char *body; /* Where it goes. INTO_NOWHERE: a scratch buffer. */
	/* In landing.streams while the body goes into memory that its owner may take back. */
	struct list landed;
	uint32_t body_got, body_max;
	unsigned char *own; /* Control bodies. */
	uint32_t own_size;
	bool summing; /* The body came in pieces, and sum holds those so far. */
	/* Times of the last byte, and of the first of the frame in hand. */
	uint64_t ordinal_in, heard_ns, began_ns;
	int fds_nr, fds[STREAM_FDS_MAX];
	bool fds_next; /* They came with the next header. */
	struct xxh_state sum;
};

/* Ends the stream with this text. Returns st, or the status of an earlier failure. */
__attribute__((format(printf, 3, 4))) enum shard_status stream_fail(struct stream *s,
								    enum shard_status st,
								    const char *fmt, ...);
enum shard_status stream_over(const struct stream *s, struct err *e); /* Copies the reason to e. */
/* io failed with EPROTO. Ends the stream with its sentence, and returns the status. */
enum shard_status stream_no_tls(struct stream *s);
bool stream_sums(const struct stream *s, uint16_t op);
void stream_in_deinit(struct stream *s);

#endif
