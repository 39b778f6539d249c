// SPDX-License-Identifier: Apache-2.0
/* reference.c: does the training that gpt does with daemons in one process and one thread, for a
 * comparison bit by bit. It takes gpt's options and the number of ranks on each node, and writes
 * the same step log and the same dump. It shares with the product the model's forward and backward,
 * the conversions between element types and the scalar optimizer kernels. Everything else is
 * written a second time. It exits with 1 if a file cannot be used or the loss scale reached its
 * floor. */
#include "base/check.h"
#include "base/clock.h"
#include "examples/cli.h"
#include "examples/data.h"
#include "examples/dump.h"
#include "examples/steplog.h"
#include "optim/kernels.h"
#include "ref/history.h"
#include "ref/refcode.h"
#include "ref/refmath.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TENSOR_ALIGN 64 /* In elements. */

/* Options that gpt does not have. */
struct extra {
	/* Who trains on which node: always the same, or step by step. */
	const char *nodes, *history;
	uint64_t chunk_elems; /* 0: from the settings. */
};

/* The state of one tensor. */
struct state {
	float *master, *moment[2];
	void *image, *grad[HISTORY_RANKS_MAX]; /* grad[0] has the reduced gradient at the end. */
	/* What the codes of each node have lost, by its number in all worlds: in the last applied
	 * step, and in the step in hand. NULL: the node had no codes yet. */
	uint16_t *lost[2][HISTORY_NODES_MAX];
	/* With max_staleness = 1 this is the image of the step before, on which trainers
	 * compute. */
	void *old;
	enum shard_dtype dtype; /* Of the image. */
	uint64_t start;         /* The first element in the model's element space. */
};

struct reference {
	struct cli cli;
	struct extra extra;
	struct history history;
	const struct history_world *world; /* The world of the current step. */
	struct refsettings conf;
	struct refscale scale;
	struct transformer net;
	struct data data;
	struct state *state;
	uint32_t *order; /* The tensors as they lie in the element space. */
	FILE *log;
	uint64_t applied, skipped_in_row;
	/* .lost[0] of that node is of this applied step, with this loss scale. */
	uint64_t lost_in[HISTORY_NODES_MAX];
	double lost_scale;
	uint32_t rank; /* The rank whose backward runs. */
	struct err err;
};

/* --- start --- */

static enum shard_status no_memory(struct reference *r)
{
	return err_set(&r->err, SHARD_SYSTEM, "no memory for the model's state");
}

/* Tensors whose image has another type than the model's come behind all others, from a chunk of
 * their own on. */
static enum shard_status place(struct reference *r)
{
	const uint64_t chunk = (uint64_t)r->conf.chunk_elems;
	uint64_t end = 0;
	uint32_t nr = 0;

	if (!(r->state = calloc(r->net.tensors_nr, sizeof(*r->state))) ||
	    !(r->order = calloc(r->net.tensors_nr, sizeof(*r->order))))
		return no_memory(r);
	for (int others = 0; others < 2; others++) {
		if (others && nr < r->net.tensors_nr)
			end = (end + chunk - 1) / chunk * chunk;
		for (uint32_t i = 0; i < r->net.tensors_nr; i++) {
			struct state *s = &r->state[i];

			s->dtype = cli_image(&r->cli, r->net.tensors[i].name);
			if ((s->dtype != r->cli.image) != others)
				continue;
			s->start = end;
			end = (end + r->net.tensors[i].numel + TENSOR_ALIGN - 1) / TENSOR_ALIGN *
			      TENSOR_ALIGN;
			r->order[nr++] = i;
		}
	}
	return SHARD_OK;
}

static enum shard_status allocate(struct reference *r)
{
	if (place(r) != SHARD_OK)
		return r->err.status;
	for (uint32_t i = 0; i < r->net.tensors_nr; i++) {
		struct state *s = &r->state[i];
		const uint64_t n = r->net.tensors[i].numel;

		s->master = calloc(n, sizeof(float));
		s->moment[0] = calloc(n, sizeof(float));
		s->moment[1] = calloc(n, sizeof(float));
		s->image = calloc(n, dtype_bytes(s->dtype));
		s->old = calloc(n, dtype_bytes(s->dtype));
		if (!s->master || !s->moment[0] || !s->moment[1] || !s->image || !s->old)
			return no_memory(r);
		for (uint32_t k = 0; k < r->history.size_max; k++) {
			if (!(s->grad[k] = calloc(n, dtype_bytes(r->cli.grad))))
				return no_memory(r);
		}
		transformer_initial(&r->net, i, r->cli.seed, s->master);
		dtype_convert(s->image, s->dtype, s->master, SHARD_F32, n);
		memcpy(s->old, s->image, n * dtype_bytes(s->dtype));
	}
	return SHARD_OK;
}

static void release(struct reference *r)
{
	for (uint32_t i = 0; r->state && i < r->net.tensors_nr; i++) {
		struct state *s = &r->state[i];

		for (uint32_t k = 0; k < HISTORY_RANKS_MAX; k++)
			free(s->grad[k]);
		for (uint32_t k = 0; k < HISTORY_NODES_MAX; k++)
			free(s->lost[0][k]), free(s->lost[1][k]);
		free(s->master), free(s->moment[0]), free(s->moment[1]), free(s->image),
			free(s->old);
	}
	free(r->state);
	free(r->order);
	transformer_deinit(&r->net);
	data_deinit(&r->data);
	history_deinit(&r->history);
	steplog_close(&r->log);
}

static enum shard_status start(struct reference *r)
{
	enum shard_status st = refsettings_parse(&r->conf, r->cli.settings, r->cli.grad, &r->err);
	const char *why;

	if (st != SHARD_OK)
		return st;
	if (r->extra.chunk_elems)
		r->conf.chunk_elems = (double)r->extra.chunk_elems;
	st = r->extra.history ? history_read(&r->history, r->extra.history, &r->err)
			      : history_fixed(&r->history, r->extra.nodes, &r->err);
	if (st != SHARD_OK)
		return st;
	if (r->history.size_max > r->cli.batch)
		return err_set(&r->err, SHARD_BAD_ARG,
			       "--batch %" PRIu64 " is smaller than the world of %u ranks",
			       r->cli.batch, r->history.size_max);
	refscale_start(&r->scale, &r->conf);
	if ((st = data_load(&r->data, r->cli.data, &r->err)) != SHARD_OK)
		return st;
	if ((why = data_too_short(&r->data, r->cli.shape.seq)))
		return err_set(&r->err, SHARD_BAD_ARG, "data file %s: %s", r->cli.data, why);
	if ((st = transformer_init(&r->net, &r->cli.shape, &r->err)) != SHARD_OK)
		return st;
	if ((st = steplog_open(&r->log, r->cli.log, &r->err)) != SHARD_OK)
		return st;
	return allocate(r);
}

/* --- one step --- */

static bool keep(void *arg, uint32_t tensor, const float *grad)
{
	struct reference *r = arg;

	dtype_convert(r->state[tensor].grad[r->rank], r->cli.grad, grad, SHARD_F32,
		      r->net.tensors[tensor].numel);
	return true;
}

/* Computes the gradient of every rank, each rounded to its type on the wire. Returns the mean loss
 * of the global batch. */
static double gradients(struct reference *r, uint64_t step, double *weight_sum)
{
	const uint32_t seq = r->cli.shape.seq, ranks = r->world->size;
	/* On the weights of two steps before. */
	bool late = r->conf.max_staleness == 1 && (double)step > r->conf.staleness_after;
	double loss = 0;

	for (uint32_t i = 0; i < r->net.tensors_nr; i++)
		transformer_load(&r->net, i, late ? r->state[i].old : r->state[i].image,
				 r->state[i].dtype);
	*weight_sum = 0;
	for (r->rank = 0; r->rank < ranks; r->rank++) {
		uint64_t first, count;

		data_share(r->cli.batch, r->rank, ranks, &first, &count);
		transformer_zero_grad(&r->net);
		for (uint64_t i = first; i < first + count; i++)
			loss += transformer_sequence(
				&r->net, data_sample(&r->data, seq, r->cli.seed, step, i),
				(float)r->scale.scale, i + 1 == first + count ? keep : NULL, r);
		*weight_sum += (double)count;
	}
	return loss / (double)r->cli.batch;
}

static uint16_t *lost_by(struct reference *r, uint32_t tensor, uint32_t who, int when)
{
	uint16_t **lost = &r->state[tensor].lost[when][who];

	if (*lost == NULL)
		*lost = calloc(r->net.tensors[tensor].numel, sizeof(**lost));
	CHECK(*lost != NULL);
	return *lost;
}

/* Adds what the node's codes lost in the last applied step, if it took part in that. */
static void add_lost(struct reference *r, uint32_t tensor, uint32_t who, float *x)
{
	const uint16_t *lost = lost_by(r, tensor, who, 0);
	const float factor = (float)(r->scale.scale / r->lost_scale);

	if (r->applied == 0 || r->lost_in[who] != r->applied)
		return;
	for (uint64_t i = 0; i < r->net.tensors[tensor].numel; i++) {
		float more = dtype_from_bf16(lost[i]) * factor;

		x[i] = x[i] + more;
	}
}

/* Codes each segment, which is a chunk's part of one tensor. */
static void code_segments(const struct reference *r, uint32_t tensor, float *x, uint16_t *lost,
			  double most)
{
	const uint64_t chunk = (uint64_t)r->conf.chunk_elems, n = r->net.tensors[tensor].numel;

	for (uint64_t first = 0, run; first < n; first += run) {
		uint64_t room = chunk - (r->state[tensor].start + first) % chunk;

		run = n - first < room ? n - first : room;
		refcode(x + first, lost != NULL ? lost + first : NULL, run, (float)most,
			(uint64_t)r->conf.codec_block);
	}
}

/* What the codes of a node's sum stand for. */
static float *coded(struct reference *r, uint32_t tensor, uint32_t node, const void *sum)
{
	const uint64_t n = r->net.tensors[tensor].numel;
	const uint32_t who = r->world->who[node];
	uint16_t *lost = r->conf.error_feedback ? lost_by(r, tensor, who, 1) : NULL;
	float *x = malloc(n * sizeof(*x));

	CHECK(x != NULL);
	dtype_convert(x, SHARD_F32, sum, r->cli.grad, n);
	if (lost != NULL)
		add_lost(r, tensor, who, x);
	code_segments(r, tensor, x, lost, r->conf.codec_most);
	return x;
}

/* A step with codes is applied: what it lost counts. */
static void keep_lost(struct reference *r)
{
	if (r->conf.codec_most == 0 || !r->conf.error_feedback || r->world->nodes_nr < 2)
		return;
	r->lost_scale = r->scale.scale;
	for (uint32_t node = 0; node < r->world->nodes_nr; node++) {
		uint32_t who = r->world->who[node];

		r->lost_in[who] = r->applied;
		for (uint32_t i = 0; i < r->net.tensors_nr; i++) {
			uint16_t *last = r->state[i].lost[0][who];

			r->state[i].lost[0][who] = r->state[i].lost[1][who];
			r->state[i].lost[1][who] = last;
		}
	}
}

/* Adds what the codes of all nodes stand for, and rounds once. */
static void sum_coded(struct reference *r, uint32_t tensor, const void *const *of_node)
{
	const uint64_t n = r->net.tensors[tensor].numel;
	float *all = coded(r, tensor, 0, of_node[0]);

	for (uint32_t node = 1; node < r->world->nodes_nr; node++) {
		float *x = coded(r, tensor, node, of_node[node]);

		for (uint64_t i = 0; i < n; i++)
			all[i] = all[i] + x[i];
		free(x);
	}
	dtype_convert(r->state[tensor].grad[0], r->cli.grad, all, SHARD_F32, n);
	free(all);
}

/* Adds the ranks of a node in the order of ranks and rounds. Then it adds the nodes in the order of
 * their lowest rank and rounds. */
static void reduce(struct reference *r)
{
	const struct history_world *w = r->world;
	const float factor = w->size > 1 ? (float)(1 / r->conf.predivide) : 1;

	for (uint32_t i = 0; i < r->net.tensors_nr; i++) {
		struct state *s = &r->state[i];
		const uint64_t n = r->net.tensors[i].numel;
		const void *of_node[HISTORY_NODES_MAX];

		for (uint32_t node = 0; node < w->nodes_nr; node++) {
			const void *local[HISTORY_RANKS_MAX];
			uint32_t local_nr = 0, lowest = 0;

			for (uint32_t k = w->size; k-- > 0;)
				lowest = w->node[k] == node ? k : lowest;
			for (uint32_t k = lowest; k < w->size; k++)
				if (w->node[k] == node)
					local[local_nr++] = s->grad[k];
			refmath_sum(s->grad[lowest], local, local_nr, r->cli.grad, factor, n);
			of_node[node] = s->grad[lowest];
		}
		if (r->conf.codec_most > 0 && w->nodes_nr > 1)
			sum_coded(r, i, of_node);
		else
			refmath_sum(s->grad[0], of_node, w->nodes_nr, r->cli.grad, 1, n);
	}
}

/* Sum of squares: adds the segments of a chunk in order, then the chunks in order. A segment is a
 * chunk's part of one tensor. */
static double square(const struct reference *r, bool *finite)
{
	const uint64_t chunk = (uint64_t)r->conf.chunk_elems;
	double total = 0, of_chunk = 0;
	uint64_t current = 0;

	*finite = true;
	for (uint32_t k = 0; k < r->net.tensors_nr; k++) {
		const uint32_t i = r->order[k];
		const struct state *s = &r->state[i];
		const uint64_t n = r->net.tensors[i].numel;

		for (uint64_t first = 0, run; first < n; first += run) {
			uint64_t at = s->start + first, room = chunk - at % chunk;

			run = n - first < room ? n - first : room;
			if (at / chunk != current) {
				total += of_chunk;
				of_chunk = 0;
				current = at / chunk;
			}
			of_chunk += refmath_square(s->grad[0], r->cli.grad, first, run);
		}
		*finite = *finite && refmath_finite(s->grad[0], r->cli.grad, n);
	}
	return total + of_chunk;
}

static void apply(struct reference *r, const struct optim_args *a)
{
	for (uint32_t i = 0; i < r->net.tensors_nr; i++) {
		struct state *s = &r->state[i];
		optim_apply *kernel =
			optim_scalar.apply[r->conf.optimizer][r->cli.grad - 1][s->dtype - 1];
		float *second = r->conf.states_nr > 1 ? s->moment[1] : NULL;

		kernel(a, r->net.tensors[i].numel, s->grad[0], s->master, s->moment[0], second,
		       s->image);
	}
}

/* The image is the one before, and what the codes of the difference stand for. */
static void code_image(struct reference *r, uint32_t tensor)
{
	struct state *s = &r->state[tensor];
	const uint64_t n = r->net.tensors[tensor].numel;
	float *before = malloc(n * sizeof(*before)), *x = malloc(n * sizeof(*x));

	CHECK(before != NULL && x != NULL);
	dtype_convert(before, SHARD_F32, s->old, s->dtype, n);
	for (uint64_t i = 0; i < n; i++)
		x[i] = s->master[i] - before[i];
	code_segments(r, tensor, x, NULL, r->conf.image_most);
	for (uint64_t i = 0; i < n; i++)
		before[i] = before[i] + x[i];
	dtype_convert(s->image, s->dtype, before, SHARD_F32, n);
	free(before);
	free(x);
}

static enum shard_status one_step(struct reference *r, uint64_t step)
{
	struct steplog_line line = {.step = step, .samples = r->cli.batch};
	struct shard_result *res = &line.result;
	uint64_t start_ns = clock_ns();
	bool finite;
	double divisor;

	if (!(r->world = history_at(&r->history, step)))
		return err_set(&r->err, SHARD_BAD_ARG, "history %s: nobody trained step %" PRIu64,
			       r->extra.history, step);
	line.world = r->world->size;
	line.loss = gradients(r, step, &res->weight_sum);
	/* Whatever happens to this step, the next one computes on this image. */
	for (uint32_t i = 0; i < r->net.tensors_nr; i++)
		memcpy(r->state[i].old, r->state[i].image,
		       r->net.tensors[i].numel * dtype_bytes(r->state[i].dtype));
	reduce(r);
	res->loss_scale = r->scale.scale;
	res->attempts = 1;
	res->lr = refschedule_lr(&r->conf.schedule, r->conf.hyper[HYPER_LR], r->applied + 1);
	divisor = res->loss_scale * res->weight_sum;
	if (r->world->size > 1)
		divisor /= r->conf.predivide;
	res->grad_norm = sqrt(square(r, &finite)) / divisor;
	finite = finite && isfinite(res->grad_norm);
	res->clip_factor = finite ? refmath_clip(&r->conf, res->grad_norm) : 1;
	if (finite) {
		struct optim_args a =
			refmath_words(&r->conf, ++r->applied, res->clip_factor / divisor);

		apply(r, &a);
		for (uint32_t i = 0;
		     r->conf.image_most > 0 && r->world->nodes_nr > 1 && i < r->net.tensors_nr; i++)
			code_image(r, i);
		keep_lost(r);
	}
	res->grad_norm = finite ? res->grad_norm : (double)NAN;
	r->skipped_in_row = finite ? 0 : r->skipped_in_row + 1;
	res->outcome = finite ? SHARD_APPLIED : SHARD_SKIPPED_NONFINITE;
	res->applied = r->applied;
	line.ns = clock_ns() - start_ns;
	if (!refscale_next(&r->scale, &r->conf, !finite))
		return err_set(&r->err, SHARD_DIVERGED,
			       "step %" PRIu64 ": overflow with the loss scale at its floor, %g",
			       step, r->scale.scale);
	if (r->conf.pause && !finite)
		return err_set(&r->err, SHARD_DIVERGED,
			       "step %" PRIu64 ": a gradient is not finite, and nonfinite=pause",
			       step);
	if (r->conf.max_skips > 0 && (double)r->skipped_in_row >= r->conf.max_skips)
		return err_set(&r->err, SHARD_DIVERGED,
			       "step %" PRIu64 ": skipped %" PRIu64 " steps in a row", step,
			       r->skipped_in_row);
	return steplog_write(r->log, &line, &r->err);
}

/* --- end --- */

static enum shard_status dump(struct reference *r)
{
	enum shard_status st = dump_open(r->cli.dump, &r->err);

	for (uint32_t i = 0; i < r->net.tensors_nr && st == SHARD_OK; i++) {
		const struct transformer_tensor *d = &r->net.tensors[i];

		st = dump_tensor(r->cli.dump, d->name, SHARD_MASTER, r->state[i].master, d->numel,
				 &r->err);
		for (uint32_t k = 0; k < r->conf.states_nr && st == SHARD_OK; k++)
			st = dump_tensor(r->cli.dump, d->name, r->conf.states[k],
					 r->state[i].moment[k], d->numel, &r->err);
	}
	return st;
}

static error_t option(int key, char *arg, struct argp_state *s)
{
	struct extra *x = s->input;

	switch (key) {
	case 'n':
		for (const char *at = arg; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
			char one[16];

			snprintf(one, sizeof(one), "%.*s", (int)strcspn(at, ","), at);
			(void)cli_number(s, "--nodes", one, 1, HISTORY_RANKS_MAX);
		}
		x->nodes = arg;
		return 0;
	case 'h':
		x->history = arg;
		return 0;
	case 'c':
		x->chunk_elems = cli_number(s, "--chunk-elems", arg, 1024, 1u << 30);
		if (x->chunk_elems & (x->chunk_elems - 1))
			argp_error(s, "--chunk-elems %s: choose a power of two", arg);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

int main(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{"nodes", 'n', "N,N...", 0, "Ranks on each node (1)", 5},
		{"history", 'h', "FILE", 0,
		 "Lines with step=N and nodes=a:2,b:1: who trained from a step on", 5},
		{"chunk-elems", 'c', "N", 0,
		 "Elements of a chunk (chunk_elems of the settings, or 1048576)", 5},
		{0},
	};
	static const struct argp argp = {options, option, NULL, NULL, NULL, NULL, NULL};
	static const struct argp_child more[] = {{&argp, 0, "Only for the reference:", 5}, {0}};
	struct reference r = {.extra = {.nodes = "1"}};
	enum shard_status st;

	cli_parse(&r.cli, argc, argv, "Train as gpt does, in one process without a daemon.", more,
		  &r.extra);
	transformer_fp_mode();
	st = r.cli.break_step ? err_set(&r.err, SHARD_BAD_ARG,
					"--break is for a trainer: the reference stays whole")
			      : start(&r);
	for (uint64_t step = 1; step <= r.cli.steps && st == SHARD_OK; step++)
		st = one_step(&r, step);
	if (st == SHARD_OK && r.cli.dump)
		st = dump(&r);
	if (st != SHARD_OK)
		fprintf(stderr, "reference: %s\n", r.err.text);
	release(&r);
	return st == SHARD_OK ? 0 : CLI_FAILED;
}
