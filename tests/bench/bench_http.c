/* SPDX-License-Identifier: Apache-2.0 */
/* http_cost: what it costs a step that /metrics is fetched each second. There is one daemon, one
 * trainer and a model of 4 Mi elements. Blocks of a second with a client that asks and without it
 * alternate. Each pair of blocks gives the quotient of the mean step times with and without, and
 * the figure is the median over the pairs. The block uses the mean because one step in hundreds
 * meets a request, which a median would not show. --quick: one pair. */
#include "base/check.h"
#include "base/clock.h"
#include "bench/daemons.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAIRS = 21 };
#define BLOCK_NS NS_PER_SEC
#define EVERY_NS NS_PER_SEC

struct requester { /* A thread of its own, so that it does not hold up the steps. */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint16_t port;
	uint64_t wanted, answered, bytes;
	bool over;
};

static uint16_t free_port(void)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(in);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&in, sizeof(in)) != 0 ||
	    getsockname(fd, (struct sockaddr *)&in, &bytes) != 0)
		bench_fail("no port on loopback");
	close(fd);
	return ntohs(in.sin_port);
}

static uint64_t fetch(uint16_t port)
{
	static const char request[] =
		"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
	struct sockaddr_in in = {.sin_family = AF_INET,
				 .sin_port = htons(port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char text[16384];
	uint64_t bytes = 0;
	ssize_t n;

	if (fd < 0 || connect(fd, (struct sockaddr *)&in, sizeof(in)) != 0 ||
	    send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) < 0)
		bench_fail("no HTTP on port %u", port);
	while ((n = recv(fd, text, sizeof(text), 0)) > 0) {
		if (bytes == 0 && strncmp(text, "HTTP/1.1 200", 12) != 0)
			bench_fail("/metrics: %.40s", text);
		bytes += (uint64_t)n;
	}
	close(fd);
	return bytes;
}

static void *asker_main(void *arg)
{
	struct requester *a = arg;

	pthread_mutex_lock(&a->lock);
	for (;;) {
		while (a->answered == a->wanted && !a->over)
			pthread_cond_wait(&a->changed, &a->lock);
		if (a->over)
			break;
		pthread_mutex_unlock(&a->lock);
		uint64_t bytes = fetch(a->port);
		pthread_mutex_lock(&a->lock);
		a->answered = a->wanted;
		a->bytes = bytes;
	}
	pthread_mutex_unlock(&a->lock);
	return NULL;
}

static void want(struct requester *a)
{
	pthread_mutex_lock(&a->lock);
	a->wanted++;
	pthread_cond_signal(&a->changed);
	pthread_mutex_unlock(&a->lock);
}

/* Returns the mean time of a step in seconds. */
static double block(struct fleet *f, struct requester *a, bool asking)
{
	uint64_t start = clock_ns(), now = start, next = start;
	struct fleet_times t;
	uint64_t steps = 0;

	while (now - start < BLOCK_NS) {
		if (asking && now >= next) {
			want(a);
			next += EVERY_NS;
		}
		fleet_step(f, &t);
		steps++;
		now = clock_ns();
	}
	return (double)(now - start) * 1e-9 / (double)steps;
}

int main(int argc, char **argv)
{
	int pairs = argc > 1 && strcmp(argv[1], "--quick") == 0 ? 1 : PAIRS;
	struct fleet_spec spec = {
		.name = "bench",
		.settings = "optimizer=adamw lr=1e-3 clip=1.0 min_world=1 local_world=1",
		.tensors_nr = 4,
		.numel = 1 << 20,
		.dtype = SHARD_BF16,
		.trainers = 1};
	struct requester a = {.lock = PTHREAD_MUTEX_INITIALIZER,
			      .changed = PTHREAD_COND_INITIALIZER,
			      .port = free_port()};
	double with[PAIRS], without[PAIRS], ratio[PAIRS], median;
	char address[32];
	struct daemons d;
	struct fleet *f;

	snprintf(address, sizeof(address), "127.0.0.1:%u", a.port);
	CHECK(setenv("SHARD_HTTP", address, 1) == 0); /* The environment overrides the file. */
	daemons_start(&d, argv[0], 1, 0);
	CHECK(unsetenv("SHARD_HTTP") == 0);
	f = fleet_begin(&d, &spec);
	CHECK(pthread_create(&a.thread, NULL, asker_main, &a) == 0);
	(void)block(f, &a, true);
	for (int i = 0; i < pairs; i++) {
		bool first = i % 2 == 0;

		*(first ? &with[i] : &without[i]) = block(f, &a, first);
		*(first ? &without[i] : &with[i]) = block(f, &a, !first);
		ratio[i] = with[i] / without[i];
	}
	pthread_mutex_lock(&a.lock);
	a.over = true;
	pthread_cond_signal(&a.changed);
	pthread_mutex_unlock(&a.lock);
	pthread_join(a.thread, NULL);
	fleet_end(&f);
	daemons_stop(&d);
	median = bench_median(ratio, pairs); /* This also sorts ratio. */
	printf("bench: http_cost %.3f ms limit %.3f ratio %.3f\n", bench_median(with, pairs) * 1e3,
	       bench_median(without, pairs) * 1e3, median);
	fprintf(stderr, "http_cost: ratios of pairs from %.3f to %.3f; an answer has %llu bytes\n",
		ratio[0], ratio[pairs - 1], (unsigned long long)a.bytes);
	return 0;
}
