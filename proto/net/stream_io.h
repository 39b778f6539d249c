/* SPDX-License-Identifier: Apache-2.0 */
/* stream_io.h: how the bytes of a stream travel, below its frames. stream.c and stream_in.c know
 * only this table. One row is the plain socket (stream_plain.c), the other is TLS (tls.h). A row
 * never waits. Nobody but a stream calls it. */
#ifndef SHARD_NET_STREAM_IO_H
#define SHARD_NET_STREAM_IO_H

#include "base/status.h"

#include <stdbool.h>
#include <sys/socket.h>

struct stream_io;

struct stream_io_row {
	const char *name;
	/* Receives into m->msg_iov. Returns the bytes, and fewer than there is room for only where
	 * nothing more has come, or what is left in the socket is for the next turn. 0: the peer
	 * has closed. -1: errno says why. With EAGAIN nothing has come, and with EPROTO io->why has
	 * a sentence. */
	ssize_t (*read)(struct stream_io *io, struct msghdr *m);
	/* Takes bytes of m->msg_iov, whose memory is free for something else afterwards. Returns
	 * how many, or -1 as read() does. */
	ssize_t (*write)(struct stream_io *io, const struct msghdr *m);
	/* Hands to the kernel what write() has taken. 0: the kernel has all of it. -1: as above. */
	int (*flush)(struct stream_io *io);
	/* read() has more, although the socket may stay silent. */
	bool (*pending)(const struct stream_io *io);
	/* write() has taken bytes that the kernel does not have yet. */
	bool (*unsent)(const struct stream_io *io);
	/* Nothing can be written before the peer has sent something. */
	bool (*blocked)(const struct stream_io *io);
	/* Nothing is written after this. Tells the peer. */
	void (*finish)(struct stream_io *io);
	/* Closes the descriptor and frees io. */
	void (*close)(struct stream_io *io);
};

struct stream_io {
	const struct stream_io_row *row;
	int fd;
	uint64_t taken; /* Bytes that the kernel has taken, as they travel. */
	/* The peer answers with frames and without TLS. No other bytes of it were understood. */
	bool plain_peer;
	struct err why; /* Of the EPROTO. */
};

/* A plain socket, in memory of the stream. */
void stream_plain_init(struct stream_io *io, int fd);

#endif
