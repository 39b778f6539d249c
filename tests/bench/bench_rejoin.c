// SPDX-License-Identifier: Apache-2.0
/* trainer_rejoin: what a trainer that dies costs. There are two daemons with a trainer each and a
 * model of 16 Mi elements. The first trainer is killed with SIGKILL in the middle of its steps and
 * started again at once, while the other one goes on. The time runs from the kill until the new
 * process has pushed every gradient of its first step, less what the process itself needs from fork
 * to the first line of main(). It covers noticing the death, the world without the trainer,
 * connecting, attaching, mapping, and the world with it. The figure is the median over rounds, and
 * the limit is 1 s. This program is its own trainer. --quick: one round. */
#include "base/check.h"
#include "base/clock.h"
#include "bench/daemons.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 15, TENSORS = 16, NUMEL = 1 << 20, LIMIT_MS = 1000 };

#define TRY(call)                                                                                  \
	do {                                                                                       \
		enum shard_status try_ = (call);                                                   \
		if (try_ != SHARD_OK)                                                              \
			bench_fail("%s: %s: %s", #call, shard_name(try_), shard_error());          \
	} while (0)

struct report { /* What a trainer reports through a pipe. */
	uint64_t in_main, contributed;
};

/* --- the trainer --- */

static void write_weights(shard_model *m)
{
	float *w = calloc(NUMEL, sizeof(*w));

	CHECK(w != NULL);
	for (uint32_t t = 0; t < TENSORS; t++)
		TRY(shard_write(m, SHARD_MASTER, t, 0, NUMEL, SHARD_F32, w));
	free(w);
	TRY(shard_seal(m, 0));
}

static enum shard_status contribute(shard_model *m, shard_ticket *commit)
{
	struct shard_step s = SHARD_INIT(struct shard_step);
	enum shard_status st = shard_begin(m, NULL, &s);

	for (uint32_t t = 0; t < TENSORS && st == SHARD_OK; t++) {
		void *g = shard_grad(m, t);

		CHECK(g != NULL);
		memset(g, 0, NUMEL * 2);
		st = shard_push(m, t, 0, NUMEL, NULL, SHARD_BF16, 0, NULL);
	}
	return st == SHARD_OK ? shard_commit(m, commit) : st;
}

static void train(const char *address, int rank, int fd, uint64_t in_main)
{
	struct shard_tensor tensor[TENSORS];
	struct shard_spec spec = {
		.size = sizeof(spec),
		.name = "bench",
		.tensors = tensor,
		.tensors_nr = TENSORS,
		.image = SHARD_BF16,
		.grad = SHARD_BF16,
		.settings =
			"optimizer=adamw lr=1e-3 clip=1.0 min_world=1 max_world=2 local_world=1"};
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_world w = SHARD_INIT(struct shard_world);
	struct report report = {.in_main = in_main};
	char names[TENSORS][8];
	shard_client *c;
	shard_model *m;
	int created;

	for (uint32_t t = 0; t < TENSORS; t++) {
		snprintf(names[t], sizeof(names[t]), "t.%u", t);
		tensor[t] = (struct shard_tensor){.name = names[t], .ndim = 1, .shape = {NUMEL}};
	}
	o.address = address;
	o.look_ms = -1; /* What broke is told, and not made again. */
	TRY(shard_connect(&c, &o));
	TRY(shard_define(c, &spec, &m, &created));
	if (created)
		write_weights(m);
	TRY(shard_join(m, rank, 60000, &w));
	for (;;) {
		struct shard_result r = SHARD_INIT(struct shard_result);
		shard_ticket commit;
		enum shard_status st = contribute(m, &commit);

		if (st == SHARD_OK && report.contributed == 0) {
			report.contributed = clock_ns();
			CHECK(write(fd, &report, sizeof(report)) == (ssize_t)sizeof(report));
		}
		if (st == SHARD_OK)
			st = shard_result(m, commit, 60000, &r);
		if (st != SHARD_OK && st != SHARD_WORLD_CHANGED)
			bench_fail("trainer %d: %s: %s", rank, shard_name(st), shard_error());
		TRY(shard_world_get(m, &w));
	}
}

/* --- the benchmark --- */

static pid_t launch(const struct daemons *d, int rank, int fd)
{
	char node[8], out[16], program[600];
	pid_t pid;

	snprintf(program, sizeof(program), "%s/tests/bench/bench_rejoin", d->build);
	snprintf(node, sizeof(node), "%d", rank);
	snprintf(out, sizeof(out), "%d", fd);
	fflush(NULL);
	if ((pid = fork()) < 0)
		bench_fail("no process");
	if (pid > 0)
		return pid;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	execl(program, program, "--trainer", d->address[rank], node, out, (char *)NULL);
	_exit(127);
}

static struct report read_report(int fd)
{
	struct report r;

	if (read(fd, &r, sizeof(r)) != (ssize_t)sizeof(r))
		bench_fail("a trainer said nothing");
	return r;
}

int main(int argc, char **argv)
{
	const uint64_t in_main = clock_ns();
	int rounds = argc > 1 && strcmp(argv[1], "--quick") == 0 ? 1 : ROUNDS, fds[2][2];
	double ms[ROUNDS], own[ROUNDS], median;
	struct daemons d;
	pid_t pid[2];

	if (argc == 5 && strcmp(argv[1], "--trainer") == 0)
		train(argv[2], atoi(argv[3]), atoi(argv[4]), in_main);
	daemons_start(&d, argv[0], 2, 0);
	for (int i = 0; i < 2; i++) {
		if (pipe(fds[i]) != 0)
			bench_fail("no pipe");
		pid[i] = launch(&d, i, fds[i][1]);
		(void)read_report(fds[i][0]);
	}
	for (int i = 0; i < rounds; i++) {
		uint64_t killed, started;
		struct report r;

		usleep((useconds_t)(300000 + i * 7919)); /* This ends anywhere in a step. */
		killed = clock_ns();
		CHECK(kill(pid[0], SIGKILL) == 0);
		CHECK(waitpid(pid[0], NULL, 0) == pid[0]);
		started = clock_ns();
		pid[0] = launch(&d, 0, fds[0][1]);
		r = read_report(fds[0][0]);
		own[i] = (double)(r.in_main - started) * 1e-6;
		ms[i] = (double)(r.contributed - killed) * 1e-6 - own[i];
	}
	for (int i = 0; i < 2; i++) {
		CHECK(kill(pid[i], SIGKILL) == 0);
		CHECK(waitpid(pid[i], NULL, 0) == pid[i]);
	}
	daemons_stop(&d);
	median = bench_median(ms, rounds);
	printf("bench: trainer_rejoin %.0f ms limit %d ratio %.3f\n", median, LIMIT_MS,
	       median / LIMIT_MS);
	fprintf(stderr, "trainer_rejoin: from %.0f to %.0f ms; the process's own start %.1f ms\n",
		ms[0], ms[rounds - 1], bench_median(own, rounds));
	return 0;
}
