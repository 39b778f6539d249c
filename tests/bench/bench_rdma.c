/* SPDX-License-Identifier: Apache-2.0 */
/* rdma_push, rdma_pull: the goodput of tensor bytes between two daemons over a real RDMA device of
 * this machine. It may be soft-RoCE, as in a guest of `make vm`. There is one model with one fp32
 * chunk, which node a holds, and a trainer on each node. The trainer of b pushes first and the
 * trainer of a waits, so that nothing else is done between the first and the last of b's parts.
 * After the commit one worker of a updates the chunk. Then the image goes to b, and again nothing
 * else is done. Bytes and times are those that the loop of the receiving daemon saw, from the
 * header of the first part to that of the last, so the first part is not counted. The limit is
 * `ib_write_bw` with 1 MiB on the same device, before and after each round. Names that end in _sum
 * are with rdma_checksum. Without a device there is nothing to measure, and the exit status is 1.
 * --quick: fewer rounds. */
#include "bench/daemons.h"
#include "wire/ops.h"

#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 3, ELEMS = 4 << 20, WARM_MAX = 20 };

struct device {
	char name[64];
	unsigned gid;
};

static double goodput(const struct daemons *d, int node, const char *what)
{
	char bytes[64], seconds[64];

	snprintf(bytes, sizeof(bytes), "last_step.%s_in_bytes", what);
	snprintf(seconds, sizeof(seconds), "last_step.%s_in_s", what);
	if (daemons_figure(d, node, bytes) != ELEMS * sizeof(float))
		bench_fail("%.0f %s bytes came in, %zu were expected",
			   daemons_figure(d, node, bytes), what, ELEMS * sizeof(float));
	return (ELEMS * sizeof(float) - WIRE_PART_BYTES) / daemons_figure(d, node, seconds) * 1e-9;
}

/* Returns the device that the daemon chose, as its log says. */
static struct device chosen(const struct daemons *d)
{
	char path[128], line[1024];
	struct device dev = {.gid = 0};
	const char *at;
	FILE *f;

	snprintf(path, sizeof(path), "%s/a.log", d->dir);
	f = fopen(path, "r");
	while (f != NULL && dev.name[0] == 0 && fgets(line, sizeof(line), f) != NULL) {
		at = strstr(line, "event=rdma device=\"");
		if (at != NULL &&
		    sscanf(at, "event=rdma device=\"%63s port %*u gid %u", dev.name, &dev.gid) != 2)
			bench_fail("which device? %s", line);
	}
	if (f != NULL)
		fclose(f);
	if (dev.name[0] == 0)
		bench_fail("no device in %s", path);
	return dev;
}

static double limit_round(const struct device *dev)
{
	char command[512], line[512], last[512] = "nothing";
	unsigned long bytes, times;
	double peak, average, found = 0;
	FILE *f;

	snprintf(command, sizeof(command), "tests/bench/write_bw.sh %s %u 1048576 100 2>&1",
		 dev->name, dev->gid);
	f = popen(command, "r");
	while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
		if (sscanf(line, " %lu %lu %lf %lf", &bytes, &times, &peak, &average) == 4 &&
		    bytes == 1048576)
			found = average * 1048576 * 1e-9;
		else if (strspn(line, " -\n") < strlen(line))
			snprintf(last, sizeof(last), "%s", line);
	}
	if (f == NULL || pclose(f) != 0 || found <= 0)
		bench_fail("ib_write_bw on %s (package perftest) gave no figure, and said last: %s",
			   dev->name, last);
	return found;
}

/* Makes steps until they go by RDMA. The first ones may have come before the memory was
 * registered. */
static void until_rdma(const struct daemons *d, struct fleet *f)
{
	const double step = ELEMS * sizeof(float);
	struct fleet_times t;

	for (int i = 0; i < WARM_MAX; i++) {
		double in = daemons_figure(d, 0, "/nodes.1.rdma_in_bytes"),
		       out = daemons_figure(d, 0, "/nodes.1.rdma_out_bytes");

		fleet_step(f, &t);
		if (daemons_figure(d, 0, "/nodes.1.rdma_in_bytes") - in >= step &&
		    daemons_figure(d, 0, "/nodes.1.rdma_out_bytes") - out >= step)
			return;
	}
	bench_fail("after %d steps the tensors do not go by RDMA: see %s", WARM_MAX, d->dir);
}

/* Prints each round beside the mean of the limits before and after it, because the speed of a
 * guest's processors changes from one minute to the next. */
static void say(const char *name, bool sums, double *value, const double *limit, int rounds)
{
	double ratio[ROUNDS], v, r;

	for (int i = 0; i < rounds; i++)
		ratio[i] = value[i] / ((limit[i] + limit[i + 1]) / 2);
	r = bench_median(ratio, rounds);
	v = bench_median(value, rounds);
	printf("bench: %s%s %.4f GB/s limit %.4f ratio %.3f\n", name, sums ? "_sum" : "", v, v / r,
	       r);
	fflush(stdout);
}

static void measure(const char *argv0, bool sums, int rounds)
{
	struct fleet_spec spec = {.name = "bench",
				  .settings = "optimizer=sgd lr=1e-3 min_world=2 local_world=1 "
					      "chunk_elems=4194304 timeout=120s",
				  .tensors_nr = 1,
				  .numel = ELEMS,
				  .dtype = SHARD_F32,
				  .trainers = 2,
				  .node = {0, 1},
				  .first_hold_ns = 2000000000};
	double push[ROUNDS], pull[ROUNDS], limit[ROUNDS + 1];
	struct device dev;
	struct fleet_times t;
	struct daemons d;
	struct fleet *f;

	setenv("SHARD_NET_RDMA_CHECKSUM", sums ? "yes" : "no", 1);
	daemons_start(&d, argv0, 2, 0);
	dev = chosen(&d);
	f = fleet_begin(&d, &spec);
	until_rdma(&d, f);
	limit[0] = limit_round(&dev);
	for (int i = 0; i < rounds; i++) {
		fleet_step(f, &t);
		push[i] = goodput(&d, 0, "contrib");
		pull[i] = goodput(&d, 1, "image");
		limit[i + 1] = limit_round(&dev);
	}
	fleet_end(&f);
	daemons_stop(&d);
	say("rdma_push", sums, push, limit, rounds);
	say("rdma_pull", sums, pull, limit, rounds);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 && strcmp(argv[1], "--quick") == 0 ? 1 : ROUNDS, nr = 0;
	struct ibv_device **devices = ibv_get_device_list(&nr);

	if (devices == NULL || nr == 0)
		bench_fail("no RDMA device here: `make vm` measures in a guest that has one");
	ibv_free_device_list(devices);
	setenv("SHARD_NET_TRANSPORT", "rdma", 1);
	setenv("SHARD_CLUSTER_HEARTBEAT_TIMEOUT", "60s", 1);
	setenv("SHARD_MEMORY", "1GiB", 1);
	measure(argv[0], false, rounds);
	measure(argv[0], true, rounds);
	return 0;
}
