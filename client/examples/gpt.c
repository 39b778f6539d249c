// SPDX-License-Identifier: Apache-2.0
/* gpt.c: the example trainer. It trains a small transformer on the bytes of a file, with weights
 * and optimizer in the daemon. One process is one rank, and the user starts as many as the world
 * needs. Happy path: it connects, defines the model and joins. The trainer whose define created the
 * model writes the initial weights. Every step then begins, reads the image, runs backward with a
 * push per tensor, commits and waits for the result. When the world changes it begins the same step
 * again with its new share of the batch. Each step commits the place in the data as a blob, so that
 * a trainer that joins later or is rolled back goes on from there. Any other failure ends it with
 * one sentence and status 1. */
#include "base/check.h"
#include "base/clock.h"
#include "examples/cli.h"
#include "examples/data.h"
#include "examples/dump.h"
#include "examples/saver.h"
#include "examples/steplog.h"
#include "wire/dtype.h"
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define AWAY_NS (60 * NS_PER_SEC)
#define GATE_NS (600 * NS_PER_SEC)

struct cursor {           /* The blob that each step commits. */
	uint64_t samples; /* Samples of all steps and ranks so far. */
};

struct gpt {
	struct cli cli;
	struct cursor cursor;
	struct transformer net;
	struct data data;
	FILE *log;
	struct saver saver;
	shard_client *client;
	shard_model *model;
	struct shard_world world;
	struct shard_step step;
	shard_ticket pushed;         /* The ticket of the last push that had one. */
	enum shard_status push_said; /* The first failure of a push in this step. */
	struct err err; /* Of this program. The library's sentence is in shard_error(). */
};

/* Keeps the library's sentence in g->err if st is a failure. */
static enum shard_status library(struct gpt *g, enum shard_status st, const char *doing)
{
	return st == SHARD_OK
		       ? st
		       : err_set(&g->err, st, "%s: %s: %s", doing, shard_name(st), shard_error());
}

/* --- start --- */

static enum shard_status define(struct gpt *g, int *created)
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

static enum shard_status write_weights(struct gpt *g)
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
static enum shard_status find_cursor(struct gpt *g, size_t *bytes, uint64_t *step)
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
static enum shard_status seek(struct gpt *g)
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
			"gpt: nobody left a place in the data: step %" PRIu64
			" begins after %" PRIu64 " samples\n",
			g->world.step, due);
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
static enum shard_status enter(struct gpt *g)
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

static enum shard_status start(struct gpt *g)
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

/* Flips the sign bit of the largest element. No rounding of a sum can hide that change. */
static void flip_a_bit(void *grad, const float *values, uint64_t n, enum shard_dtype dt)
{
	const size_t bytes = dtype_bytes(dt);
	uint64_t at = 0;

	for (uint64_t i = 1; i < n; i++) {
		if (values[i] * values[i] > values[at] * values[at])
			at = i;
	}
	((unsigned char *)grad)[(at + 1) * bytes - 1] ^= 0x80;
}

static bool push(void *arg, uint32_t tensor, const float *grad)
{
	struct gpt *g = arg;
	const uint64_t n = g->net.tensors[tensor].numel;
	void *to = shard_grad(g->model, tensor);
	shard_ticket ticket = 0;
	enum shard_status st;

	if (!to) {
		g->push_said = SHARD_BAD_STATE;
		return false;
	}
	if (g->cli.die_step == g->step.step && tensor == g->net.tensors_nr / 2)
		raise(SIGKILL);
	dtype_convert(to, g->cli.grad, grad, SHARD_F32, n);
	if (g->cli.break_step == g->step.step && tensor == 0)
		flip_a_bit(to, grad, n, g->cli.grad);
	while ((st = shard_push(g->model, tensor, 0, n, NULL, g->cli.grad, 0, &ticket)) ==
	       SHARD_AGAIN) {
		/* The window is full, and earlier pushes have to leave it first. */
		st = g->pushed ? shard_wait(g->model, g->pushed, SHARD_DEFAULT)
			       : shard_progress(g->client);
		if (st != SHARD_OK)
			break;
	}
	g->pushed = ticket ? ticket : g->pushed;
	g->push_said = st;
	return st == SHARD_OK;
}

static enum shard_status load_image(struct gpt *g)
{
	for (uint32_t i = 0; i < g->net.tensors_nr; i++) {
		const void *image = shard_image(g->model, i);

		if (!image)
			return SHARD_BAD_STATE;
		transformer_load(&g->net, i, image, cli_image(&g->cli, g->net.tensors[i].name));
	}
	return SHARD_OK;
}

/* *loss becomes the mean loss of this rank's sequences. The gradient is the sum over them. The
 * weight that begin gave makes it a mean over the sequences of all ranks. */
static enum shard_status forward_backward(struct gpt *g, uint64_t first, uint64_t count,
					  double *loss)
{
	const uint32_t seq = g->cli.shape.seq;
	enum shard_status st = load_image(g);

	if (st != SHARD_OK)
		return st;
	transformer_zero_grad(&g->net);
	g->push_said = SHARD_OK;
	*loss = 0;
	for (uint64_t i = 0; i < count; i++) {
		const uint8_t *text =
			data_sample(&g->data, seq, g->cli.seed, g->step.step, first + i);

		*loss += transformer_sequence(&g->net, text, (float)g->step.loss_scale,
					      i + 1 == count ? push : NULL, g);
	}
	*loss /= count ? (double)count : 1;
	return g->push_said;
}

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

static enum shard_status wait_at_gate(struct gpt *g)
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

static enum shard_status one_step(struct gpt *g)
{
	struct shard_begin_opts begin = SHARD_INIT(struct shard_begin_opts);
	struct steplog_line line = {.result = SHARD_INIT(struct shard_result)};
	uint64_t first, count, start_ns = clock_ns();
	shard_ticket ticket = 0;
	enum shard_status st, was;

	if ((st = shard_samples(&g->world, g->cli.batch, &first, &count)) != SHARD_OK)
		return library(g, st, "samples");
	/* In a world that is larger than the batch the last ranks only take part. */
	begin.weight = count ? (double)count : SHARD_NO_SAMPLES;
	g->step = SHARD_INIT(struct shard_step);
	if ((st = shard_begin(g->model, &begin, &g->step)) == SHARD_OK) {
		if ((st = wait_at_gate(g)) != SHARD_OK)
			return st;
		st = forward_backward(g, first, count, &line.loss);
	}
	if (st == SHARD_OK) {
		const struct cursor after = {g->cursor.samples + g->cli.batch};

		st = shard_set_blob(g->model, &after, sizeof(after));
	}
	if (st == SHARD_OK)
		st = shard_commit(g->model, &ticket);
	if (st == SHARD_OK)
		st = shard_result(g->model, ticket, SHARD_DEFAULT, &line.result);
	if (st == SHARD_OK) {
		line.step = g->step.step;
		line.rank = g->step.rank;
		line.world = g->step.world_size;
		line.samples = count;
		line.ns = clock_ns() - start_ns;
		g->cursor.samples += g->cli.batch;
		if ((st = steplog_write(g->log, &line, &g->err)) != SHARD_OK)
			return st;
		saver_step(&g->saver, g->model, g->step.rank, g->step.step);
	} else if (st != SHARD_WORLD_CHANGED && st != SHARD_ROLLED_BACK) {
		return library(g, st, "step");
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
static enum shard_status read_again(struct gpt *g, enum shard_kind kind, uint32_t tensor,
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

static enum shard_status dump(struct gpt *g)
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

static enum shard_status train(struct gpt *g)
{
	enum shard_status st = start(g);

	g->saver.every = g->cli.save_every;
	g->saver.dir = g->cli.dir;
	if (st == SHARD_OK && g->world.step > g->cli.steps)
		fprintf(stderr,
			"gpt: the model is at step %llu already, so nothing is left of %llu steps: "
			"raise --steps, or give another --name\n",
			(unsigned long long)g->world.step - 1, (unsigned long long)g->cli.steps);
	while (st == SHARD_OK && g->world.step <= g->cli.steps)
		st = one_step(g);
	if (st == SHARD_OK)
		saver_end(&g->saver, g->model);
	if (st == SHARD_OK && g->cli.dump && g->world.rank == 0)
		st = dump(g);
	return st == SHARD_OK ? library(g, shard_leave(g->model, SHARD_DEFAULT), "leave") : st;
}

static void print_version(FILE *f, struct argp_state *state)
{
	(void)state;
	fprintf(f, "gpt, an example of libshard %s\n", shard_version());
}

int main(int argc, char **argv)
{
	struct gpt g = {.world = SHARD_INIT(struct shard_world)};
	enum shard_status st;

	argp_program_version_hook = print_version;
	cli_parse(&g.cli, argc, argv,
		  "Train a small byte-level transformer as one rank of a world, with weights and "
		  "optimizer state in shardd.\v"
		  "Exit status: 0 trained to the last step, 1 failed, 2 wrong options.",
		  NULL, NULL);
	transformer_fp_mode();
	st = train(&g);
	if (st != SHARD_OK)
		fprintf(stderr, "gpt: %s\n", g.err.text);
	shard_disconnect(&g.client);
	steplog_close(&g.log);
	transformer_deinit(&g.net);
	data_deinit(&g.data);
	return st == SHARD_OK ? 0 : CLI_FAILED;
}
