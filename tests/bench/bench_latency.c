/* SPDX-License-Identifier: Apache-2.0 */
/* step_latency: the time from the last push of any trainer until the image is complete at both
 * trainers. There is a model of one chunk of 4 Ki elements, two daemons over TCP, and one trainer
 * on each node. The loop computes such a small chunk itself. The limit is two blocking round trips
 * of 64 bytes over loopback. A contribution, a commit and an image cannot do without one and a
 * half. --quick: fewer steps. */
#include "base/check.h"
#include "base/clock.h"
#include "bench/daemons.h"
#include "bench/limit_tcp.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 1000, WARM = 50 };

static void echo(int fd)
{
	char line[64];

	while (recv(fd, line, sizeof(line), MSG_WAITALL) == (ssize_t)sizeof(line))
		if (send(fd, line, sizeof(line), MSG_NOSIGNAL) != (ssize_t)sizeof(line))
			break;
	_exit(0);
}

static double round_trip(int fd)
{
	uint64_t start = clock_ns();
	char line[64] = "";

	CHECK(send(fd, line, sizeof(line), MSG_NOSIGNAL) == (ssize_t)sizeof(line));
	CHECK(recv(fd, line, sizeof(line), MSG_WAITALL) == (ssize_t)sizeof(line));
	return (double)(clock_ns() - start) * 1e-3;
}

int main(int argc, char **argv)
{
	int steps = argc > 1 && strcmp(argv[1], "--quick") == 0 ? 50 : STEPS, fds[2];
	struct fleet_spec spec = {.name = "bench",
				  .settings = "optimizer=adamw lr=1e-3 clip=1.0 min_world=2 "
					      "local_world=1 chunk_elems=4096",
				  .tensors_nr = 1,
				  .numel = 4096,
				  .dtype = SHARD_BF16,
				  .trainers = 2,
				  .node = {0, 1}};
	double ours[STEPS], bare[STEPS], o, b;
	struct fleet_times t;
	struct daemons d;
	struct fleet *f;
	pid_t pid;

	if (limit_tcp_pair(fds) != 0 || (pid = fork()) < 0)
		bench_fail("no loopback");
	if (pid == 0) {
		close(fds[0]);
		echo(fds[1]);
	}
	close(fds[1]);
	daemons_start(&d, argv[0], 2, 0);
	f = fleet_begin(&d, &spec);
	for (int i = 0; i < WARM; i++)
		fleet_step(f, &t);
	for (int i = 0; i < steps; i++) {
		bare[i] = 2 * round_trip(fds[0]);
		fleet_step(f, &t);
		ours[i] = (double)t.after * 1e-3;
	}
	fleet_end(&f);
	daemons_stop(&d);
	close(fds[0]);
	CHECK(waitpid(pid, NULL, 0) == pid);
	o = bench_median(ours, steps);
	b = bench_median(bare, steps);
	printf("bench: step_latency %.0f us limit %.0f ratio %.3f\n", o, b, o / b);
	fprintf(stderr, "step_latency: 10 %% are under %.0f us, 90 %% under %.0f us\n",
		ours[steps / 10], ours[steps * 9 / 10]);
	return 0;
}
