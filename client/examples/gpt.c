// SPDX-License-Identifier: Apache-2.0
/* gpt.c: the example trainer. It trains a small transformer on the bytes of a file, with weights
 * and optimizer in the daemon. One process is one rank, and the user starts as many as the world
 * needs. trainer.c has the life of a trainer, and this file has what a step computes: it reads the
 * image, and runs forward and backward on this processor with a push per tensor as soon as nothing
 * more will be added to its gradient. gpt_cuda.c does the same on a GPU. What the library says to a
 * push ends the step. */
#include "examples/trainer.h"
#include "wire/dtype.h"
#include <signal.h>

struct gpt {
	struct trainer trainer;
	shard_ticket pushed;         /* The ticket of the last push that had one. */
	enum shard_status push_said; /* The first failure of a push in this step. */
};

static struct gpt *gpt_of(struct trainer *g)
{
	return (struct gpt *)g; /* Its first member. */
}

static enum shard_status open_nothing(struct trainer *g)
{
	(void)g;
	return SHARD_OK;
}

static void close_nothing(struct trainer *g)
{
	(void)g;
}

static enum shard_status begin(struct trainer *g, const struct shard_begin_opts *opts)
{
	return shard_begin(g->model, opts, &g->step);
}

static const char *why(struct trainer *g)
{
	(void)g;
	return shard_error();
}

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
	struct gpt *gpt = arg;
	struct trainer *g = &gpt->trainer;
	const uint64_t n = g->net.tensors[tensor].numel;
	void *to = shard_grad(g->model, tensor);
	shard_ticket ticket = 0;
	enum shard_status st;

	if (!to) {
		gpt->push_said = SHARD_BAD_STATE;
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
		st = gpt->pushed ? shard_wait(g->model, gpt->pushed, SHARD_DEFAULT)
				 : shard_progress(g->client);
		if (st != SHARD_OK)
			break;
	}
	gpt->pushed = ticket ? ticket : gpt->pushed;
	gpt->push_said = st;
	return st == SHARD_OK;
}

static enum shard_status load_image(struct trainer *g)
{
	for (uint32_t i = 0; i < g->net.tensors_nr; i++) {
		const void *image = shard_image(g->model, i);

		if (!image)
			return SHARD_BAD_STATE;
		transformer_load(&g->net, i, image, cli_image(&g->cli, g->net.tensors[i].name));
	}
	return SHARD_OK;
}

/* The gradient is the sum over this rank's sequences. The weight that begin gave makes it a mean
 * over the sequences of all ranks. */
static enum shard_status forward_backward(struct trainer *g, uint64_t first, uint64_t count,
					  double *loss)
{
	const uint32_t seq = g->cli.shape.seq;
	struct gpt *gpt = gpt_of(g);
	enum shard_status st = load_image(g);

	if (st != SHARD_OK)
		return st;
	transformer_zero_grad(&g->net);
	gpt->push_said = SHARD_OK;
	*loss = 0;
	for (uint64_t i = 0; i < count; i++) {
		const uint8_t *text =
			data_sample(&g->data, seq, g->cli.seed, g->step.step, first + i);

		*loss += transformer_sequence(&g->net, text, (float)g->step.loss_scale,
					      i + 1 == count ? push : NULL, gpt);
	}
	*loss /= count ? (double)count : 1;
	return gpt->push_said;
}

static void print_version(FILE *f, struct argp_state *state)
{
	(void)state;
	fprintf(f, "gpt, an example of libshard %s\n", shard_version());
}

int main(int argc, char **argv)
{
	static const struct compute processor = {.name = "gpt",
						 .open = open_nothing,
						 .begin = begin,
						 .forward_backward = forward_backward,
						 .why = why,
						 .close = close_nothing};
	struct gpt gpt = {.trainer = {.compute = &processor}};

	argp_program_version_hook = print_version;
	cli_parse(&gpt.trainer.cli, argc, argv,
		  "Train a small byte-level transformer as one rank of a world, with weights and "
		  "optimizer state in shardd.\v"
		  "Exit status: 0 trained to the last step, 1 failed, 2 wrong options.",
		  NULL, NULL);
	return trainer_run(&gpt.trainer);
}
