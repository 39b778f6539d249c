/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_stream: the goodput of streams, on which push_tcp and pull_tcp build. Two processes send from
 * stream to stream over loopback with checksums, and bulk goes straight into cold memory. The limit
 * is the bare transfer of limit_tcp.c, in each round. */
#include "base/check.h"
#include "base/clock.h"
#include "bench/limit_tcp.h"
#include "net/stream.h"
#include "wire/ops.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PARTS_PER_CHUNK = 8, QUEUE = 64, ROUNDS_MAX = 99 };

struct side {
	struct stream *s;
	unsigned char *memory;
	size_t bytes;
	uint64_t parts, pongs;
};

static enum shard_status on_head(void *owner, struct stream *s, const struct wire_head *h,
				 void **to, struct err *e)
{
	struct side *d = owner;
	uint64_t part = (uint64_t)h->chunk * PARTS_PER_CHUNK + WIRE_PART(h->flags);

	(void)s;
	(void)e;
	if (wire_bulk(h)) {
		CHECK((part + 1) * WIRE_PART_BYTES <= d->bytes);
		*to = d->memory + part * WIRE_PART_BYTES;
	}
	return SHARD_OK;
}

static enum shard_status on_frame(void *owner, struct stream *s, const struct wire_head *h,
				  const void *body, struct err *e)
{
	struct wire_head pong = {.op = OP_PONG};
	struct side *d = owner;

	(void)body;
	(void)e;
	d->parts += wire_bulk(h);
	if (h->op == OP_PING)
		CHECK(stream_send(s, &pong, NULL, 0, NULL, NULL) == SHARD_OK);
	d->pongs += h->op == OP_PONG;
	return SHARD_OK;
}

static const struct stream_handler handler = {.on_head = on_head, .on_frame = on_frame};

static void side_begin(struct side *d, int fd, size_t bytes)
{
	struct stream_conf conf = {
		.fd = fd, .queue_max = QUEUE, .body_max = 65536, .handler = &handler, .owner = d};

	memset(d, 0, sizeof(*d));
	d->bytes = bytes;
	d->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(d->memory != MAP_FAILED);
	memset(d->memory, 0x5a, bytes);
	CHECK(stream_open(&d->s, &conf, NULL) == SHARD_OK);
}

/* Makes one turn of a loop: it waits for readiness, writes and reads. False: the peer has
 * closed. */
static bool turn(struct side *d, bool want_write)
{
	struct pollfd p = {stream_fd(d->s), (short)(POLLIN | (want_write ? POLLOUT : 0)), 0};

	CHECK(poll(&p, 1, 60000) == 1);
	if (p.revents & POLLIN && stream_read(d->s, 1 << 20, NULL) != SHARD_OK)
		return false;
	return true;
}

static void receive_for_ever(int fd, size_t bytes)
{
	struct side d;

	side_begin(&d, fd, bytes);
	while (turn(&d, false))
		while (stream_queued(d.s) > 0 && stream_write(d.s, NULL) == SHARD_AGAIN)
			;
	stream_free(&d.s);
	_exit(0);
}

static double round_trip(struct side *d)
{
	uint64_t start = clock_ns(), pongs = d->pongs, nr = d->bytes / WIRE_PART_BYTES, part = 0;
	struct wire_head ping = {.op = OP_PING};

	while (d->pongs == pongs) {
		enum shard_status rc;

		for (; part < nr; part++) {
			struct wire_head h = {.op = OP_CONTRIB_DATA,
					      .chunk = (uint32_t)(part / PARTS_PER_CHUNK),
					      .flags = WIRE_PART_FLAG(part % PARTS_PER_CHUNK)};

			if (stream_send(d->s, &h, d->memory + part * WIRE_PART_BYTES,
					WIRE_PART_BYTES, NULL, NULL) != SHARD_OK)
				break;
		}
		if (part == nr && stream_send(d->s, &ping, NULL, 0, NULL, NULL) == SHARD_OK)
			part++;
		rc = stream_write(d->s, NULL);
		CHECK(rc == SHARD_OK || rc == SHARD_AGAIN);
		if (rc == SHARD_AGAIN || part > nr)
			CHECK(turn(d, rc == SHARD_AGAIN));
	}
	return (double)d->bytes / (double)(clock_ns() - start);
}

int main(int argc, char **argv)
{
	size_t bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 256) << 20;
	int rounds = argc > 2 ? atoi(argv[2]) : 9, fds[2], status;
	double bare[ROUNDS_MAX], ours[ROUNDS_MAX], b, o;
	struct limit_tcp l;
	struct side d;
	pid_t pid;

	CHECK(rounds > 0 && rounds <= ROUNDS_MAX);
	CHECK(limit_tcp_begin(&l, bytes) == 0 && limit_tcp_pair(fds) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		close(fds[0]);
		receive_for_ever(fds[1], bytes);
	}
	close(fds[1]);
	side_begin(&d, fds[0], bytes);
	(void)limit_tcp_round(&l); /* A first round lets the buffers of the kernel grow. */
	(void)round_trip(&d);
	for (int i = 0; i < rounds; i++) {
		bare[i] = limit_tcp_round(&l);
		ours[i] = round_trip(&d);
	}
	CHECK(stream_stats(d.s)->copied_bytes == 0);
	b = limit_tcp_median(bare, rounds);
	o = limit_tcp_median(ours, rounds);
	printf("bench: tcp_stream %.3f GB/s limit %.3f ratio %.3f\n", o, b, o / b);
	if (argc <= 3)
		printf("bench: tcp_iperf3 %.3f GB/s for information\n", limit_tcp_iperf3());
	stream_free(&d.s);
	limit_tcp_end(&l);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	return 0;
}
