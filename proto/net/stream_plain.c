/* SPDX-License-Identifier: Apache-2.0 */
/* The plain socket as a row of stream_io.h: one system call a read and one a write, and nothing in
 * between. Streams over unix sockets always use it, because there the kernel says who the peer is
 * and nobody else sees the bytes. Descriptors travel only here. It fails with the errno of the
 * call. */
#include "net/stream_io.h"

#include <errno.h>
#include <unistd.h>

static ssize_t plain_read(struct stream_io *io, struct msghdr *m)
{
	ssize_t n;

	do
		n = recvmsg(io->fd, m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	return n;
}

static ssize_t plain_write(struct stream_io *io, const struct msghdr *m)
{
	ssize_t n;

	do
		n = sendmsg(io->fd, m, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	io->taken += n > 0 ? (uint64_t)n : 0;
	return n;
}

static int plain_flush(struct stream_io *io)
{
	(void)io;
	return 0;
}

static bool plain_no(const struct stream_io *io)
{
	(void)io;
	return false;
}

static void plain_finish(struct stream_io *io)
{
	(void)shutdown(io->fd, SHUT_WR);
}

static void plain_close(struct stream_io *io)
{
	close(io->fd);
	io->fd = -1;
}

static const struct stream_io_row plain_row = {
	.name = "plain",
	.read = plain_read,
	.write = plain_write,
	.flush = plain_flush,
	.pending = plain_no,
	.unsent = plain_no,
	.blocked = plain_no,
	.finish = plain_finish,
	.close = plain_close,
};

void stream_plain_init(struct stream_io *io, int fd)
{
	*io = (struct stream_io){.row = &plain_row, .fd = fd};
}
