/* SPDX-License-Identifier: Apache-2.0 */
/* push_tcp, pull_tcp, and the same with TLS (_tls, and _tls_kernel where the kernel encrypts): the
 * goodput of tensor bytes between two daemons on loopback with checksums. There is one model with
 * one large fp32 chunk, which node a holds, and a trainer on each node. The trainer of b pushes
 * first and the trainer of a waits, so that nothing else is done between the first and the last
 * byte of b's contribution. After the commit one worker of a updates the chunk. Then the image goes
 * to b, and again nothing else is done. Bytes and times come from the status of the receiving
 * daemon. The limit is the bare transfer of as many bytes (limit_tcp.h), in each round, with TLS of
 * one with the same cipher (limit_tls.h). iperf3 is for information. --quick: fewer rounds. --tls:
 * those with TLS only. */
#include "bench/daemons.h"
#include "bench/limit_tcp.h"
#include "bench/limit_tls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SECRET "dd00112233445566778899aabbccddeeff00112233445566778899aabbccddee\n"

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

/* A way between the daemons, with its limit. */
struct way {
	const char *name, *lines; /* Of the configuration. */
	bool tls, kernel;
};

static const struct way ways[] = {
	{"tcp", "[net]\ntransport = tcp\n", false, false},
	{"tcp_tls", "[net]\ntransport = tcp\ntls = psk\ntls_kernel = off\n", true, false},
	{"tcp_tls_kernel", "[net]\ntransport = tcp\ntls = psk\ntls_kernel = auto\n", true, true},
};

struct bare_way {
	struct limit_tcp tcp;
	struct limit_tls *tls; /* NULL: tcp. */
};

static double limit_round(struct bare_way *bare)
{
	double goodput = 0;

	bench_processors(1);
	for (int i = 0; i < 2; i++) /* Processors that were idle are slower for a while. */
		goodput = bare->tls ? limit_tls_round(bare->tls) : limit_tcp_round(&bare->tcp);
	bench_processors(-1);
	return goodput;
}

static void bare_open(struct bare_way *bare, const struct way *w)
{
	bench_processors(0); /* The bare receiver runs where node a's daemon runs. */
	bare->tls = w->tls ? limit_tls_begin(ELEMS * sizeof(float), w->kernel) : NULL;
	if (w->tls ? !bare->tls : limit_tcp_begin(&bare->tcp, ELEMS * sizeof(float)) != 0)
		bench_fail("no loopback");
	bench_processors(-1);
}

static void bare_close(struct bare_way *bare)
{
	if (bare->tls)
		limit_tls_end(&bare->tls);
	else
		limit_tcp_end(&bare->tcp);
}

/* TLS makes its keys of the nodes' secret, so both daemons get one. */
static void start(struct daemons *d, const char *argv0, const struct way *w)
{
	char path[160], line[256];
	FILE *f;

	daemons_make(d, argv0, 2, 0, NULL);
	/* An emulated machine may encrypt one chunk for longer than the default. */
	daemons_configure(d, "[cluster]\nmembership = static\nheartbeat_timeout = 60s\n");
	daemons_configure(d, w->lines);
	if (w->tls) {
		snprintf(path, sizeof(path), "%s/node_secret", d->dir);
		f = fopen(path, "w");
		if (!f || fchmod(fileno(f), 0600) != 0 || fputs(SECRET, f) < 0 || fclose(f) != 0)
			bench_fail("%s cannot be written", path);
		snprintf(line, sizeof(line), "[cluster]\nnode_secret = %s\n", path);
		daemons_configure(d, line);
	}
	for (int i = 0; i < 2; i++)
		daemons_launch(d, i);
	for (int i = 0; i < 2; i++)
		daemons_wait(d, i);
}

static void measure(const char *argv0, const struct way *w, int rounds)
{
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
	struct bare_way bare;
	struct fleet_times t;
	struct daemons d;
	struct fleet *f;

	bare_open(&bare, w);
	start(&d, argv0, w);
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
	bare_close(&bare);
	l = bench_median(limit, rounds);
	printf("bench: push_%s %.2f GB/s limit %.2f ratio %.3f\n", w->name,
	       bench_median(push, rounds), l, bench_median(push, rounds) / l);
	printf("bench: pull_%s %.2f GB/s limit %.2f ratio %.3f\n", w->name,
	       bench_median(pull, rounds), l, bench_median(pull, rounds) / l);
	(void)fflush(stdout);
}

static bool given(int argc, char **argv, const char *option)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], option) == 0)
			return true;
	return false;
}

int main(int argc, char **argv)
{
	int rounds = given(argc, argv, "--quick") ? 3 : ROUNDS;

	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		if ((ways[i].tls || !given(argc, argv, "--tls")) &&
		    (!ways[i].kernel || limit_tls_kernel()))
			measure(argv[0], &ways[i], rounds);
	if (rounds == ROUNDS)
		fprintf(stderr, "iperf3, for information: %.2f GB/s\n", limit_tcp_iperf3());
	return 0;
}
