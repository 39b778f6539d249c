/* SPDX-License-Identifier: Apache-2.0 */
/* rail_bw [--checksum] [--qps N] [--seconds S] [--device D] [--limit MB/S]: measures how many bytes
 * a second a struct rdma_rail carries between two processes over a real RDMA device, one way, in
 * frames of 256 KiB. Compare it with ib_write_bw. Prints one line: with a limit "bench: rdma_rail
 * VALUE MB/s limit LIMIT ratio R", otherwise without the part from "limit" on. Fails if there is no
 * device. */
#include "base/check.h"
#include "base/clock.h"
#include "net/rdma.h"
#include "wire/ops.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 64, PART = WIRE_PART_BYTES };

/* What the two processes exchange over a socket pair. */
struct hello {
	struct rdma_ends ends;
	uint64_t land;
	uint32_t rkey;
};

struct side {
	struct hello there;
	uv_loop_t loop;
	struct rdma *rdma;
	struct rdma_domain *domain;
	struct rdma_region *region;
	struct rdma_rail *rail;
	unsigned char *memory; /* It has qps * SLOTS * PART bytes. */
	uint32_t qps;
	uint64_t next[RDMA_QPS_MAX], done, until_ns, began_ns;
	bool over;
};

static unsigned char *slot(struct side *s, uint32_t qp, uint64_t n)
{
	return s->memory + ((size_t)qp * SLOTS + n % SLOTS) * PART;
}

static enum shard_status on_head(void *owner, uint32_t qp, const struct wire_head *h, void **to,
				 struct err *e)
{
	(void)e;
	*to = slot(owner, qp, h->chunk);
	return h->chunk < SLOTS ? SHARD_OK : SHARD_PROTOCOL;
}

static enum shard_status on_frame(void *owner, uint32_t qp, const struct wire_head *h,
				  const void *body, struct err *e)
{
	struct side *s = owner;

	(void)qp;
	(void)h;
	(void)body;
	(void)e;
	s->done++;
	return SHARD_OK;
}

static void on_fail(void *owner, const struct err *why)
{
	struct side *s = owner;

	if (!s->over)
		fprintf(stderr, "rail_bw: %s\n", why->text);
	s->over = true;
}

static void on_sent(void *arg, enum shard_status st)
{
	((struct side *)arg)->done += st == SHARD_OK;
}

static void send_more(void *owner, uint32_t qp)
{
	struct side *s = owner;
	enum shard_status rc = SHARD_OK;

	while (rc == SHARD_OK && clock_ns() < s->until_ns) {
		uint64_t n = s->next[qp];
		struct wire_head h = {
			.op = OP_CONTRIB_DATA, .model = 1, .chunk = (uint32_t)(n % SLOTS)};

		rc = rdma_rail_send(s->rail, qp, &h, s->region, slot(s, qp, n), PART,
				    s->there.land + ((size_t)qp * SLOTS + n % SLOTS) * PART,
				    s->there.rkey, on_sent, s);
		s->next[qp] += rc == SHARD_OK;
	}
	rdma_rail_kick(s->rail, qp);
}

static const struct rdma_handler sender = {.on_head = on_head,
					   .on_frame = on_frame,
					   .on_fail = on_fail,
					   .on_room = send_more},
				 receiver = {.on_head = on_head,
					     .on_frame = on_frame,
					     .on_fail = on_fail};

static bool tell(int fd, const void *mine, void *theirs, size_t bytes)
{
	return write(fd, mine, bytes) == (ssize_t)bytes &&
	       recv(fd, theirs, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

static enum shard_status begin(struct side *s, const char *device, bool sends, bool checksum,
			       int fd, struct err *e)
{
	struct rdma_conf dev = {.device = device, .gid_index = -1};
	struct rdma_rail_conf conf = {.handler = sends ? &sender : &receiver,
				      .owner = s,
				      .qps_nr = s->qps,
				      .checksum = checksum,
				      .deadline_ns = 60 * NS_PER_SEC};
	size_t bytes = (size_t)s->qps * SLOTS * PART;
	struct hello mine = {0};
	enum shard_status rc;
	char go = 0;

	CHECK(uv_loop_init(&s->loop) == 0);
	s->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	CHECK(s->memory != MAP_FAILED);
	memset(s->memory, 0x5a, bytes);
	rc = rdma_open(&s->rdma, &s->loop, &dev, e);
	if (rc == SHARD_OK)
		rc = rdma_domain_new(&s->domain, s->rdma, e);
	if (rc == SHARD_OK)
		rc = rdma_register(&s->region, s->domain, s->memory, bytes, true, e);
	conf.domain = s->domain;
	if (rc == SHARD_OK)
		rc = rdma_rail_new(&s->rail, &conf, e);
	if (rc != SHARD_OK)
		return rc;
	rdma_rail_ends(s->rail, &mine.ends);
	mine.land = (uintptr_t)s->memory;
	mine.rkey = rdma_region_rkey(s->region);
	if (!tell(fd, &mine, &s->there, sizeof(mine)))
		return err_set(e, SHARD_CLOSED, "the other process is gone");
	rc = rdma_rail_connect(s->rail, &s->there.ends, e);
	if (rc == SHARD_OK && !tell(fd, "g", &go, 1)) /* Afterwards both are connected. */
		rc = err_set(e, SHARD_CLOSED, "the other process is gone");
	return rc;
}

static void on_peer(uv_poll_t *p, int status, int events)
{
	(void)status;
	(void)events;
	((struct side *)p->data)->over = true; /* The sender is done. */
	uv_stop(p->loop);
}

static int receive(struct side *s, int fd)
{
	uv_poll_t p;

	CHECK(uv_poll_init(&s->loop, &p, fd) == 0);
	p.data = s;
	CHECK(uv_poll_start(&p, UV_READABLE, on_peer) == 0);
	(void)uv_run(&s->loop, UV_RUN_DEFAULT);
	return 0;
}

static int send_all(struct side *s, double seconds, double limit, bool checksum)
{
	uint64_t sent = 0;
	double rate;

	s->began_ns = clock_ns();
	s->until_ns = s->began_ns + (uint64_t)(seconds * 1e9);
	for (uint32_t i = 0; i < s->qps; i++)
		send_more(s, i);
	do {
		(void)uv_run(&s->loop, UV_RUN_ONCE);
		sent = 0;
		for (uint32_t i = 0; i < s->qps; i++)
			sent += s->next[i];
	} while (!s->over && (s->done < sent || clock_ns() < s->until_ns));
	rate = (double)s->done * PART / (double)(clock_ns() - s->began_ns) * 1e3;
	printf("bench: rdma_rail%s %.1f MB/s", checksum ? "_summed" : "", rate);
	if (limit > 0)
		printf(" limit %.1f ratio %.2f", limit, rate / limit);
	printf("\n");
	return s->over ? 1 : 0;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"checksum", 0, 0, 'c'}, {"qps", 1, 0, 'q'},
						{"seconds", 1, 0, 's'},  {"device", 1, 0, 'd'},
						{"limit", 1, 0, 'l'},    {0}};
	struct side side = {.qps = 1};
	const char *device = NULL;
	double seconds = 4, limit = 0;
	bool checksum = false;
	struct err e = {0};
	int fds[2], c, rc, status = 0;
	pid_t child;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'c':
			checksum = true;
			break;
		case 'q':
			side.qps = (uint32_t)atoi(optarg);
			break;
		case 's':
			seconds = atof(optarg);
			break;
		case 'd':
			device = optarg;
			break;
		case 'l':
			limit = atof(optarg);
			break;
		default:
			return 2;
		}
	}
	CHECK(side.qps > 0 && side.qps <= RDMA_QPS_MAX &&
	      socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	child = fork(); /* A fork must come before memory is registered. */
	close(fds[child == 0 ? 0 : 1]);
	if (begin(&side, device, child != 0, checksum, fds[child != 0 ? 0 : 1], &e) != SHARD_OK) {
		fprintf(stderr, "rail_bw: %s\n", e.text);
		return 1;
	}
	if (child == 0)
		return receive(&side, fds[1]);
	rc = send_all(&side, seconds, limit, checksum);
	close(fds[0]);
	CHECK(waitpid(child, &status, 0) == child);
	return rc;
}
