// SPDX-License-Identifier: Apache-2.0
/* warm_restart: what a daemon that is killed costs. There is one daemon with a model of 64 Mi
 * elements, and a trainer that connects again after every lost connection. The daemon is killed
 * with SIGKILL in the middle of a step and started again as soon as it is gone. The time runs from
 * the kill until the trainer hears that a step is committed. It covers the end of the old process,
 * the new process with the memory of the old one, connecting, mapping, and a whole step. The figure
 * is the median over rounds. warm_restart_daemon is the part until the daemon says that it is
 * ready. Both are with memory that a service manager keeps, and names with _tmpfs are with files.
 * service_start is the time from exec to READY=1, without any state and with that model. The limits
 * are 1 s. --quick: one round of 1 Mi elements. */
#include "base/check.h"
#include "base/clock.h"
#include "bench/daemons.h"
#include "lib/fdstore.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 9, TENSORS = 64, LIMIT_MS = 1000, PATIENCE_MS = 60000 };

struct trainer {
	pthread_t thread;
	const char *address;
	uint64_t numel;            /* Of each tensor. */
	_Atomic uint64_t first_ns; /* When the first step of its newest session was committed. */
	_Atomic uint32_t firsts;
	_Atomic bool over;
};

/* --- the trainer --- */

/* False: the connection is over. */
static bool went(enum shard_status st, const char *what)
{
	if (st == SHARD_OK)
		return true;
	if (st < SHARD_UNREACHABLE || st == SHARD_LOST)
		bench_fail("%s: %s: %s", what, shard_name(st), shard_error());
	return false;
}

#define GO(call)                                                                                   \
	do {                                                                                       \
		if (!went((call), #call))                                                          \
			return false;                                                              \
	} while (0)

static bool write_weights(const struct trainer *t, shard_model *m)
{
	float *w = calloc(t->numel, sizeof(*w));

	CHECK(w != NULL);
	for (uint32_t i = 0; i < TENSORS; i++)
		GO(shard_write(m, SHARD_MASTER, i, 0, t->numel, SHARD_F32, w));
	free(w);
	GO(shard_seal(m, 0));
	return true;
}

static bool one_step(const struct trainer *t, shard_model *m)
{
	struct shard_step s = SHARD_INIT(struct shard_step);
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket ticket;

	GO(shard_begin(m, NULL, &s));
	for (uint32_t i = TENSORS; i-- > 0;) {
		void *g = shard_grad(m, i);

		if (g == NULL)
			return false;
		memset(g, 0, t->numel * 2);
		GO(shard_push(m, i, 0, t->numel, NULL, SHARD_BF16, 0, NULL));
	}
	GO(shard_commit(m, &ticket));
	GO(shard_result(m, ticket, PATIENCE_MS, &r));
	return true;
}

static bool session(struct trainer *t, shard_client **c)
{
	struct shard_tensor tensor[TENSORS];
	struct shard_spec spec = {
		.size = sizeof(spec),
		.name = "bench",
		.tensors = tensor,
		.tensors_nr = TENSORS,
		.image = SHARD_BF16,
		.grad = SHARD_BF16,
		.settings = "optimizer=adamw lr=1e-3 clip=1.0 min_world=1 max_world=1"};
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_world w = SHARD_INIT(struct shard_world);
	char names[TENSORS][8];
	shard_model *m;
	int created;

	for (uint32_t i = 0; i < TENSORS; i++) {
		snprintf(names[i], sizeof(names[i]), "t.%u", i);
		tensor[i] = (struct shard_tensor){.name = names[i], .ndim = 1, .shape = {t->numel}};
	}
	o.address = t->address;
	o.look_ms = -1; /* What broke is told, and not made again. */
	GO(shard_connect(c, &o));
	GO(shard_define(*c, &spec, &m, &created));
	if (created && !write_weights(t, m))
		return false;
	GO(shard_join(m, 0, PATIENCE_MS, &w));
	for (bool first = true; !t->over; first = false) {
		if (!one_step(t, m))
			return false;
		if (first) {
			t->first_ns = clock_ns();
			t->firsts++;
		}
	}
	return true;
}

static void *train(void *arg)
{
	struct trainer *t = arg;
	bool done = false;

	while (!done && !t->over) {
		shard_client *c = NULL;

		done = session(t, &c);
		shard_disconnect(&c);
		if (!done)
			usleep(1000);
	}
	return NULL;
}

static uint64_t first_step(const struct trainer *t, uint32_t session)
{
	uint64_t until = clock_ns() + PATIENCE_MS * NS_PER_MS;

	while (t->firsts < session) {
		if (clock_ns() > until)
			bench_fail("no step was committed");
		usleep(200);
	}
	return t->first_ns;
}

/* --- the benchmark --- */

static double ms(uint64_t from, uint64_t to)
{
	return (double)(to - from) * 1e-6;
}

static uint64_t ready(struct daemons *d)
{
	uint64_t at = d->store[0] != NULL ? fdstore_ready_ns(d->store[0], PATIENCE_MS) : 0;

	if (d->store[0] != NULL && at == 0)
		bench_fail("shardd does not say that it is ready: see %s", d->dir);
	return at;
}

static void say(const char *name, double *values, int nr)
{
	double median = bench_median(values, nr);

	printf("bench: %s %.0f ms limit %d ratio %.3f\n", name, median, LIMIT_MS,
	       median / LIMIT_MS);
	fprintf(stderr, "%s: from %.1f to %.1f ms\n", name, values[0], values[nr - 1]);
}

static void empty(struct daemons *d, int rounds)
{
	double start[ROUNDS];

	for (int i = 0; i < rounds; i++) {
		uint64_t began = clock_ns();
		char command[128];

		daemons_launch(d, 0);
		start[i] = ms(began, ready(d));
		daemons_kill(d, 0);
		fdstore_forget(d->store[0], NULL);
		snprintf(command, sizeof(command), "rm -rf %s/a.state", d->dir);
		if (system(command) != 0)
			bench_fail("%s: failed", command);
	}
	say("service_start", start, rounds);
}

static void warm(const char *argv0, const char *how, int rounds, uint64_t elements)
{
	bool systemd = strcmp(how, "systemd") == 0;
	double whole[ROUNDS], own[ROUNDS], start[ROUNDS];
	struct daemons d;
	struct trainer t = {.numel = elements / TENSORS};

	daemons_make(&d, argv0, 1, 0, how);
	if (systemd)
		empty(&d, rounds);
	t.address = d.address[0];
	daemons_launch(&d, 0);
	daemons_wait(&d, 0);
	CHECK(pthread_create(&t.thread, NULL, train, &t) == 0);
	first_step(&t, 1);
	for (int i = 0; i < rounds; i++) {
		uint64_t killed, began, at;

		usleep((useconds_t)(300000 + i * 7919)); /* This ends anywhere in a step. */
		killed = clock_ns();
		daemons_kill(&d, 0);
		began = clock_ns();
		daemons_launch(&d, 0);
		at = ready(&d);
		whole[i] = ms(killed, first_step(&t, 2 + (uint32_t)i));
		own[i] = systemd ? ms(killed, at) : 0;
		start[i] = systemd ? ms(began, at) : 0;
	}
	t.over = true;
	pthread_join(t.thread, NULL);
	daemons_stop(&d);
	say(systemd ? "warm_restart" : "warm_restart_tmpfs", whole, rounds);
	if (systemd) {
		say("warm_restart_daemon", own, rounds);
		say("service_start_warm", start, rounds);
	}
}

int main(int argc, char **argv)
{
	bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;

	warm(argv[0], "systemd", quick ? 1 : ROUNDS, quick ? 1 << 20 : 64 << 20);
	warm(argv[0], "tmpfs", quick ? 1 : ROUNDS, quick ? 1 << 20 : 64 << 20);
	return 0;
}
