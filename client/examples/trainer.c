// SPDX-License-Identifier: Apache-2.0
/* trainer.c: the life of an example trainer, which gpt.c and gpt_cuda.c have in common: they differ
 * in what computes. Happy path: it connects, defines the model and joins. The trainer whose define
 * created the model writes the initial weights. Every step then begins, runs forward and backward
 * with a push per tensor, commits and waits for the result. When the world changes it begins the
 * same step again with its new share of the batch. Each step commits the place in the data as a
 * blob, so that a trainer that joins later or is rolled back goes on from there. Any other failure
 * ends it with one sentence and status 1. */
#include "examples/trainer.h"
#include "base/check.h"
#include "base/clock.h"
#include "examples/dump.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define AWAY_NS (60 * NS_PER_SEC)
#define GATE_NS (600 * NS_PER_SEC)

/* Keeps the library's sentence in g->err if st is a failure. */
static enum shard_status library(struct trainer *g, enum shard_status st, const char *doing)
{
	return st == SHARD_OK
		       ? st
		       : err_set(&g->err, st, "%s: %s: %s", doing, shard_name(st), shard_error());
}

/* --- start --- */

static enum shard_status define(struct trainer *g, int *created)
{
	const struct transformer *t = &g->net;
	struct shard_tensor *tensors = calloc(t->tensors_nr, sizeof(*tensors));
	struct shard_spec spec = SHARD_INIT(struct shard_spec);
	char settings[1024], worlds[64] = "";
	enum shard_status st;

	if (!tensors)
		return err_set(&g->err, SHARD_SYSTEM, "no memory for a list of %u tensors",
			       t->tensors_nr);
	for (uint32_t i = 0; i < t->tensors_nr; i++) {
		tensors[i].name = t->tensors[i].name;
		tensors[i].ndim = t->tensors[i].ndim;
		memcpy(tensors[i].shape, t->tensors[i].shape, sizeof(t->tensors[i].shape));
		tensors[i].image = cli_image(&g->cli, t->tensors[i].name);
	}
	if (g->cli.world_min)
		snprintf(worlds, sizeof(worlds), "min_world=%u max_world=%u ", g->cli.world_min,
			 g->cli.world_max);
	snprintf(settings, sizeof(settings), "%s%s", worlds, g->cli.settings);
	spec.name = g->cli.name;
	spec.tensors = tensors;
	spec.tensors_nr = t->tensors_nr;
	spec.image = g->cli.image;
	spec.grad = g->cli.grad;
	spec.settings = settings;
	st = library(g, shard_define(g->client, &spec, &g->model, created), "define");
	free(tensors);
	return st;
}

static enum shard_status write_weights(struct trainer *g)
{
	enum shard_status st = SHARD_OK;

	for (uint32_t i = 0; i < g->net.tensors_nr && st == SHARD_OK; i++) {
		transformer_initial(&g->net, i, g->cli.seed, g->net.w[i]);
		st = library(g,
			     shard_write(g->model, SHARD_MASTER, i, 0, g->net.tensors[i].numel,
					 SHARD_F32, g->net.w[i]),
			     "write");
	}
	return st == SHARD_OK ? library(g, shard_seal(g->model, 0), "seal") : st;
}

/* A node that could have a newer blob may be away for a moment, as it is in an upgrade. */
static enum shard_status find_cursor(struct trainer *g, size_t *bytes, uint64_t *step)
{
	const struct timespec pause = {.tv_nsec = 100 * NS_PER_MS};
	const uint64_t until = clock_ns() + AWAY_NS;
	enum shard_status st;

	do {
		*bytes = sizeof(g->cursor);
		st = shard_blob(g->model, 0, &g->cursor, bytes, step);
		if ((st != SHARD_UNREACHABLE && st != SHARD_BUSY) || clock_ns() > until)
			return st;
	} while (nanosleep(&pause, NULL) == 0);
	return st;
}

/* Finds where the run stands in its data. Rank 0 is in every world, so its blob is of the last
 * step. */
static enum shard_status seek(struct trainer *g)
{
	const uint64_t due = (g->world.step - 1) * g->cli.batch;
	enum shard_status st;
	uint64_t step;
	size_t bytes;

	g->cursor.samples = 0;
	if (g->world.step == 1)
		return SHARD_OK;
	st = find_cursor(g, &bytes, &step);
	if (st == SHARD_NOT_FOUND) { /* The weights did not come from this program. */
		fprintf(stderr,
			"%s: nobody left a place in the data: step %" PRIu64
			" begins after %" PRIu64 " samples\n",
			g->compute->name, g->world.step, due);
		g->cursor.samples = due;
		return SHARD_OK;
	}
	/* Restored once more, or the daemon is gone once more. Begin says so, and then it is looked
	 * for again. */
	if (st == SHARD_STALE || st == SHARD_ROLLED_BACK || st == SHARD_WORLD_CHANGED)
		return SHARD_OK;
	if (st != SHARD_OK)
		return library(g, st, "place in the data");
	if (bytes != sizeof(g->cursor) || step != g->world.step - 1 || g->cursor.samples != due)
		return err_set(&g->err, SHARD_MISMATCH,
			       "place in the data: %" PRIu64 " samples (%zu bytes, of step %" PRIu64
			       "), and step %" PRIu64 " begins after %" PRIu64
			       ": has --batch changed?",
			       g->cursor.samples, bytes, step, g->world.step, due);
	return SHARD_OK;
}

/* From connecting to the place in the data. */
static enum shard_status enter(struct trainer *g)
{
	struct shard_connect_opts opts = SHARD_INIT(struct shard_connect_opts);
	enum shard_status st;
	int created = 0;

	opts.address = g->cli.address;
	opts.timeout_ms = SHARD_DEFAULT;
	opts.look_ms = (int64_t)g->cli.look_s * 1000;
	if ((st = library(g, shard_connect(&g->client, &opts), "connect")) != SHARD_OK)
		return st;
	if ((st = define(g, &created)) != SHARD_OK)
		return st;
	if (created && (st = write_weights(g)) != SHARD_OK)
		return st;
	st = library(g, shard_join(g->model, g->cli.rank_hint, SHARD_DEFAULT, &g->world), "join");
	return st == SHARD_OK ? seek(g) : st;
}

static enum shard_status start(struct trainer *g)
{
	const uint64_t until = clock_ns() + g->cli.look_s * NS_PER_SEC;
	enum shard_status st;
	const char *why;

	if ((st = data_load(&g->data, g->cli.data, &g->err)) != SHARD_OK)
		return st;
	if ((why = data_too_short(&g->data, g->cli.shape.seq)))
		return err_set(&g->err, SHARD_BAD_ARG, "data file %s: %s", g->cli.data, why);
	if ((st = transformer_init(&g->net, &g->cli.shape, &g->err)) != SHARD_OK)
		return st;
	if ((st = steplog_open(&g->log, g->cli.log, &g->err)) != SHARD_OK)
		return st;
	/* The library makes a connection again for trainers that have joined. Before that, a daemon
	 * that goes leaves nothing here that could not be begun anew. */
	while ((st = enter(g)) == SHARD_CLOSED && clock_ns() < until)
		shard_disconnect(&g->client);
	return st;
}

/* --- one step --- */

/* The last step that may be taken by the file of --gate. */
static unsigned long long gate(const char *path)
{
	unsigned long long last = 0;
	FILE *f = fopen(path, "re");

	if (f && fscanf(f, "%llu", &last) != 1)
		last = 0;
	if (f)
		fclose(f);
	return last;
}

static enum shard_status wait_at_gate(struct trainer *g)
{
	const uint64_t until_ns = clock_ns() + GATE_NS;

	while (g->cli.gate && gate(g->cli.gate) < g->step.step) {
		if (clock_ns() > until_ns)
			return err_set(&g->err, SHARD_TIMEOUT, "--gate %s: no step %llu in %u s",
				       g->cli.gate, (unsigned long long)g->step.step,
				       (unsigned)(GATE_NS / NS_PER_SEC));
		nanosleep(&(struct timespec){.tv_nsec = NS_PER_MS}, NULL);
	}
	return SHARD_OK;
}

/* Begins the step, and pushes its gradients. */
static enum shard_status compute(struct trainer *g, double *loss)
{
	struct shard_begin_opts begin = SHARD_INIT(struct shard_begin_opts);
	uint64_t first, count;
	enum shard_status st = shard_samples(&g->world, g->cli.batch, &first, &count);

	if (st != SHARD_OK)
		return library(g, st, "samples");
	g->samples = count;
	/* In a world that is larger than the batch the last ranks only take part. */
	begin.weight = count ? (double)count : SHARD_NO_SAMPLES;
	g->step = SHARD_INIT(struct shard_step);
	st = g->compute->begin(g, &begin);
	if (st == SHARD_OK) {
		if ((st = wait_at_gate(g)) != SHARD_OK)
			return st;
		st = g->compute->forward_backward(g, first, count, loss);
	}
	return st == SHARD_OK
		       ? st
		       : err_set(&g->err, st, "step: %s: %s", shard_name(st), g->compute->why(g));
}

static enum shard_status one_step(struct trainer *g)
{
	struct steplog_line line = {.result = SHARD_INIT(struct shard_result)};
	const uint64_t start_ns = clock_ns();
	shard_ticket ticket = 0;
	enum shard_status st = compute(g, &line.loss), was;

	if (st == SHARD_OK) {
		const struct cursor after = {g->cursor.samples + g->cli.batch};

		st = library(g, shard_set_blob(g->model, &after, sizeof(after)), "step");
	}
	if (st == SHARD_OK)
		st = library(g, shard_commit(g->model, &ticket), "step");
	if (st == SHARD_OK)
		st = library(g, shard_result(g->model, ticket, SHARD_DEFAULT, &line.result),
			     "step");
	if (st == SHARD_OK) {
		line.step = g->step.step;
		line.rank = g->step.rank;
		line.world = g->step.world_size;
		line.samples = g->samples;
		line.ns = clock_ns() - start_ns;
		g->cursor.samples += g->cli.batch;
		if ((st = steplog_write(g->log, &line, &g->err)) != SHARD_OK)
			return st;
		saver_step(&g->saver, g->model, g->step.rank, g->step.step);
	} else if (st != SHARD_WORLD_CHANGED && st != SHARD_ROLLED_BACK) {
		return st;
	}
	was = st;
	/* The rank, the world size and the step may be new. Nothing else here depends on the
	 * change, except that the place in the data has to be found again. */
	st = library(g, shard_world_get(g->model, &g->world), "world");
	return st == SHARD_OK && was != SHARD_OK ? seek(g) : st;
}

/* --- end --- */

/* The kinds of tensors that an optimizer keeps, for the dump. */
static const struct {
	const char *optimizer;
	enum shard_kind kinds[3];
} kept[] = {
	{"optimizer=adamw", {SHARD_MASTER, SHARD_EXP_AVG, SHARD_EXP_AVG_SQ}},
	{"optimizer=adam", {SHARD_MASTER, SHARD_EXP_AVG, SHARD_EXP_AVG_SQ}},
	{"optimizer=sgd", {SHARD_MASTER, SHARD_MOMENTUM}},
	{"optimizer=adagrad", {SHARD_MASTER, SHARD_EXP_AVG_SQ}},
	{"optimizer=lion", {SHARD_MASTER, SHARD_EXP_AVG}},
};

static const enum shard_kind *kinds_of(const char *settings)
{
	for (size_t i = 0; i < NR(kept); i++) {
		const char *at = strstr(settings, kept[i].optimizer);
		size_t n = strlen(kept[i].optimizer);

		if (at && (at[n] == ' ' || at[n] == '\0'))
			return kept[i].kinds;
	}
	return kept[0].kinds;
}

/* The daemon may go meanwhile, and come back. */
static enum shard_status read_again(struct trainer *g, enum shard_kind kind, uint32_t tensor,
				    uint64_t *step)
{
	enum shard_status st;

	do
		st = shard_read(g->model, kind, tensor, 0, g->net.tensors[tensor].numel, SHARD_F32,
				g->net.w[tensor], step);
	while (st == SHARD_WORLD_CHANGED &&
	       (st = shard_world_get(g->model, &g->world)) == SHARD_OK);
	return st;
}

static enum shard_status dump(struct trainer *g)
{
	const enum shard_kind *kinds = kinds_of(g->cli.settings);
	enum shard_status st = dump_open(g->cli.dump, &g->err);

	for (uint32_t i = 0; i < g->net.tensors_nr; i++) {
		const struct transformer_tensor *d = &g->net.tensors[i];

		for (unsigned k = 0; k < 3 && kinds[k] && st == SHARD_OK; k++) {
			uint64_t step = g->cli.steps;

			st = library(g, read_again(g, kinds[k], i, &step), "read");
			if (st == SHARD_OK)
				st = dump_tensor(g->cli.dump, d->name, kinds[k], g->net.w[i],
						 d->numel, &g->err);
		}
	}
	return st;
}

static enum shard_status train(struct trainer *g)
{
	enum shard_status st = start(g);

	g->saver.every = g->cli.save_every;
	g->saver.dir = g->cli.dir;
	if (st == SHARD_OK && (st = g->compute->open(g)) != SHARD_OK)
		err_set(&g->err, st, "%s", g->compute->why(g));
	if (st == SHARD_OK && g->world.step > g->cli.steps)
		fprintf(stderr,
			"%s: the model is at step %llu already, so nothing is left of %llu steps: "
			"raise --steps, or give another --name\n",
			g->compute->name, (unsigned long long)g->world.step - 1,
			(unsigned long long)g->cli.steps);
	while (st == SHARD_OK && g->world.step <= g->cli.steps)
		st = one_step(g);
	if (st == SHARD_OK)
		saver_end(&g->saver, g->model);
	if (st == SHARD_OK && g->cli.dump && g->world.rank == 0)
		st = dump(g);
	g->compute->close(g);
	return st == SHARD_OK ? library(g, shard_leave(g->model, SHARD_DEFAULT), "leave") : st;
}

int trainer_run(struct trainer *g)
{
	enum shard_status st;

	g->world = SHARD_INIT(struct shard_world);
	transformer_fp_mode();
	st = train(g);
	if (st != SHARD_OK)
		fprintf(stderr, "%s: %s\n", g->compute->name, g->err.text);
	shard_disconnect(&g->client);
	steplog_close(&g->log);
	transformer_deinit(&g->net);
	data_deinit(&g->data);
	return st == SHARD_OK ? 0 : CLI_FAILED;
}
