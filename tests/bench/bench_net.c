/* SPDX-License-Identifier: Apache-2.0 */
/* push_tcp, pull_tcp: the goodput of tensor bytes between two daemons on loopback with checksums.
 * There is one model with one large fp32 chunk, which node a holds, and a trainer on each node. The
 * trainer of b pushes first and the trainer of a waits, so that nothing else is done between the
 * first and the last byte of b's contribution. After the commit one worker of a updates the chunk.
 * Then the image goes to b, and again nothing else is done. Bytes and times come from the status of
 * the receiving daemon. The limit is the bare transfer of as many bytes (limit_tcp.h), in each
 * round. iperf3 is for information. --quick: fewer rounds. */
#include "bench/daemons.h"
#include "bench/limit_tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 11, ELEMS = 16 << 20 };

static double goodput(const struct daemons *d, int node, const char *what)
{
	char bytes[64], seconds[64];

	snprintf(bytes, sizeof(bytes), "last_step.%s_in_bytes", what);
	snprintf(seconds, sizeof(seconds), "last_step.%s_in_s", what);
	if (daemons_figure(d, node, bytes) != ELEMS * sizeof(float))
		bench_fail("%.0f %s bytes came in, %zu were expected",
			   daemons_figure(d, node, bytes), what, ELEMS * sizeof(float));
	return ELEMS * sizeof(float) / daemons_figure(d, node, seconds) * 1e-9;
}

static double limit_round(struct limit_tcp *bare)
{
	double goodput;

	bench_processors(1);
	(void)limit_tcp_round(bare); /* Processors that were idle are slower for a while. */
	goodput = limit_tcp_round(bare);
	bench_processors(-1);
	return goodput;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 && strcmp(argv[1], "--quick") == 0 ? 3 : ROUNDS;
	struct fleet_spec spec = {
		.name = "bench",
		.settings = "optimizer=sgd lr=1e-3 min_world=2 local_world=1 chunk_elems=16777216",
		.tensors_nr = 1,
		.numel = ELEMS,
		.dtype = SHARD_F32,
		.trainers = 2,
		.node = {0, 1},
		.first_hold_ns = 150000000};
	double push[ROUNDS], pull[ROUNDS], limit[ROUNDS], l;
	struct limit_tcp bare;
	struct fleet_times t;
	struct daemons d;
	struct fleet *f;

	bench_processors(0); /* The bare receiver runs where node a's daemon runs. */
	if (limit_tcp_begin(&bare, ELEMS * sizeof(float)) != 0)
		bench_fail("no loopback");
	bench_processors(-1);
	daemons_start(&d, argv[0], 2, 0);
	f = fleet_begin(&d, &spec);
	fleet_step(f, &t);
	(void)limit_round(&bare);
	for (int i = 0; i < rounds; i++) {
		limit[i] = limit_round(&bare);
		fleet_step(f, &t);
		push[i] = goodput(&d, 0, "contrib");
		pull[i] = goodput(&d, 1, "image");
	}
	fleet_end(&f);
	daemons_stop(&d);
	limit_tcp_end(&bare);
	l = bench_median(limit, rounds);
	printf("bench: push_tcp %.2f GB/s limit %.2f ratio %.3f\n", bench_median(push, rounds), l,
	       bench_median(push, rounds) / l);
	printf("bench: pull_tcp %.2f GB/s limit %.2f ratio %.3f\n", bench_median(pull, rounds), l,
	       bench_median(pull, rounds) / l);
	if (rounds == ROUNDS)
		fprintf(stderr, "iperf3, for information: %.2f GB/s\n", limit_tcp_iperf3());
	return 0;
}
