// SPDX-License-Identifier: Apache-2.0
/* gpt_cuda.c: the example trainer on a GPU. A step is shard_cuda_begin(), a pull of the parameters
 * into the memory of the device (or none, where shardd keeps them there), kernels for forward and
 * backward with a push of each gradient (without a copy, where shardd has memory for it there) as
 * soon as the kernels that make it are queued, and a wait for the pushes. trainer.c has the rest of
 * its life, which gpt.c has as well, and the losses are those of gpt (gpt_kernels.cu). It fails
 * where there is no driver or GPU, and when the device does. */
#include "examples/layer_row.h"
#include "examples/trainer.h"
#include "examples/transformer_cuda.h"
#include "shard_cuda.h"
#include "wire/dtype.h"
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct gpt_cuda {
	struct trainer trainer;
	const char *kernels; /* The file, or NULL. */
	int number;          /* Of the device. */
	bool device_image;   /* Parameters are read where shardd keeps them on the device. */
	bool device_arena;   /* Gradients are written where shardd has memory on the device. */
	struct device device;
	struct transformer_cuda net;
	shard_cuda *cuda;
	void *image; /* A copy of the image on the device. NULL: shardd has one there. */
	struct shard_cuda_pull *pull; /* [tensors] In the order of the image. */
	void **grad;                  /* [tensors] In the type of gradients, on the device. */
	void *grads;                  /* The memory behind grad, or NULL: it is another's. */
	double *loss;                 /* [batch] */
	enum shard_status push_said;  /* The first failure of a push in this step. */
	struct err err;               /* What neither the device nor the library says. */
};

static struct gpt_cuda *gpt_of(struct trainer *g)
{
	return (struct gpt_cuda *)g; /* Its first member. */
}

static const char *why(struct trainer *g)
{
	const struct gpt_cuda *gpt = gpt_of(g);

	return gpt->err.status != SHARD_OK          ? gpt->err.text
	       : gpt->device.err.status != SHARD_OK ? gpt->device.err.text
						    : shard_cuda_error();
}

/* --- memory of the device --- */

static int by_offset(const void *a, const void *b)
{
	const struct shard_cuda_pull *x = a, *y = b;

	return x->dev < y->dev ? -1 : x->dev > y->dev;
}

/* The tensors lie on the device as in the image, so that all of them are one copy. Where shardd has
 * the image there, no copy is needed. */
static enum shard_status place_image(struct gpt_cuda *gpt)
{
	struct trainer *g = &gpt->trainer;
	const uint32_t nr = g->net.tensors_nr;
	enum shard_status st;
	void *base;
	size_t bytes;

	st = shard_region(g->model, SHARD_IMAGE, &base, &bytes);
	if (st != SHARD_OK)
		return err_set(&gpt->err, st, "image: %s", shard_error());
	if (shard_cuda_image(gpt->cuda, 0) == NULL)
		gpt->image = device_alloc(&gpt->device, bytes);
	for (uint32_t i = 0; i < nr && gpt->device.err.status == SHARD_OK; i++) {
		struct shard_info info = SHARD_INIT(struct shard_info);

		st = shard_tensor_info(g->model, i, &info);
		if (st != SHARD_OK)
			return err_set(&gpt->err, st, "tensor %u: %s", i, shard_error());
		gpt->pull[i] = (struct shard_cuda_pull){
			.tensor = i,
			.count = info.numel,
			.dev = gpt->image ? (char *)gpt->image + info.image_offset : NULL};
	}
	qsort(gpt->pull, nr, sizeof(*gpt->pull), by_offset);
	return gpt->device.err.status;
}

/* Who asked for memory of shardd on the device wants to hear why there is none. */
static enum shard_status none_there(struct gpt_cuda *gpt, const char *option)
{
	struct shard_cuda_about about = SHARD_INIT(struct shard_cuda_about);
	enum shard_status st = shard_cuda_tell(gpt->cuda, &about);

	return st == SHARD_OK ? err_set(&gpt->err, SHARD_UNSUPPORTED, "%s: %s", option, about.why)
			      : st;
}

/* Gradients of 16 bits are converted on the device, each into memory of its own. So are all of
 * them, where shardd has memory for them there: this is called after each join then. */
static enum shard_status place_grads(struct gpt_cuda *gpt)
{
	struct trainer *g = &gpt->trainer;
	const size_t size = dtype_bytes(g->cli.grad);
	size_t bytes = 0;

	for (uint32_t i = 0; gpt->device_arena && i < g->net.tensors_nr; i++)
		if ((gpt->grad[i] = shard_cuda_grad(gpt->cuda, i)) == NULL)
			return none_there(gpt, "--device-arena");
	if (gpt->device_arena)
		return SHARD_OK;
	for (uint32_t i = 0; i < g->net.tensors_nr; i++)
		bytes += (g->net.tensors[i].numel * size + 255) / 256 * 256;
	if (g->cli.grad != SHARD_F32)
		gpt->grads = device_alloc(&gpt->device, bytes);
	bytes = 0;
	for (uint32_t i = 0; i < g->net.tensors_nr; i++) {
		gpt->grad[i] = gpt->grads ? (char *)gpt->grads + bytes : (void *)gpt->net.net.g[i];
		bytes += (g->net.tensors[i].numel * size + 255) / 256 * 256;
	}
	return gpt->device.err.status;
}

/* --- what trainer.c calls --- */

/* The fatbin that make leaves beside this program, or the one of --kernels. */
static const char *kernels_path(const struct gpt_cuda *gpt, char path[PATH_MAX])
{
	char self[PATH_MAX] = "";

	if (gpt->kernels)
		return gpt->kernels;
	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		self[0] = '\0';
	if (snprintf(path, PATH_MAX, "%s/client/examples/gpt_kernels.fatbin", dirname(self)) >=
	    PATH_MAX)
		return "gpt_kernels.fatbin";
	return path;
}

static enum shard_status open_device(struct trainer *g)
{
	struct shard_cuda_opts opts = SHARD_INIT(struct shard_cuda_opts);
	struct gpt_cuda *gpt = gpt_of(g);
	char path[PATH_MAX];
	enum shard_status st;

	if (g->cli.break_step)
		return err_set(&gpt->err, SHARD_UNSUPPORTED, "--break is for gpt alone");
	gpt->pull = calloc(g->net.tensors_nr, sizeof(*gpt->pull));
	gpt->grad = calloc(g->net.tensors_nr, sizeof(*gpt->grad));
	gpt->loss = calloc(g->cli.batch, sizeof(*gpt->loss));
	if (!gpt->pull || !gpt->grad || !gpt->loss)
		return err_set(&gpt->err, SHARD_SYSTEM, "no memory for %u tensors",
			       g->net.tensors_nr);
	st = device_open(&gpt->device, gpt->number, kernels_path(gpt, path));
	if (st == SHARD_OK)
		st = transformer_cuda_init(&gpt->net, &gpt->device, &g->cli.shape, g->data.text,
					   g->data.bytes, g->cli.batch);
	opts.device = gpt->number;
	opts.flags = (gpt->device_image ? SHARD_CUDA_IMAGE : 0u) |
		     (gpt->device_arena ? SHARD_CUDA_GRAD : 0u);
	if (st == SHARD_OK)
		st = shard_cuda_open(&gpt->cuda, g->model, &opts);
	if (st == SHARD_OK)
		st = place_image(gpt);
	if (st == SHARD_OK && gpt->device_image && gpt->image)
		st = none_there(gpt, "--device-image");
	return st == SHARD_OK ? place_grads(gpt) : st;
}

static void close_device(struct trainer *g)
{
	struct gpt_cuda *gpt = gpt_of(g);

	/* A copy that is under way has the device's memory, which then goes with the process. */
	if (shard_cuda_close(&gpt->cuda, SHARD_DEFAULT) != SHARD_TIMEOUT) {
		transformer_cuda_deinit(&gpt->net);
		device_free(&gpt->device, gpt->image);
		device_free(&gpt->device, gpt->grads);
		device_close(&gpt->device);
	}
	free(gpt->pull);
	free(gpt->grad);
	free(gpt->loss);
}

static enum shard_status begin(struct trainer *g, const struct shard_begin_opts *opts)
{
	struct gpt_cuda *gpt = gpt_of(g);
	enum shard_status st = shard_cuda_begin(gpt->cuda, opts, &g->step);

	/* It may be other memory now, because the connection was made again. */
	return st == SHARD_OK && gpt->device_arena ? place_grads(gpt) : st;
}

static bool push(void *arg, uint32_t tensor, const float *grad)
{
	struct gpt_cuda *gpt = arg;
	struct trainer *g = &gpt->trainer;
	const uint64_t n = g->net.tensors[tensor].numel;

	if (g->cli.die_step == g->step.step && tensor == g->net.tensors_nr / 2)
		raise(SIGKILL);
	if (gpt->grads || gpt->device_arena)
		DEVICE_RUN(&gpt->device, gpt_store, gpt->grad[tensor], grad, g->cli.grad, n);
	if (gpt->device.err.status != SHARD_OK)
		return false;
	do /* When too many copies are under way, the older ones have to be done first. */
		gpt->push_said = shard_cuda_push(gpt->cuda, tensor, 0, n,
						 gpt->device_arena ? NULL : gpt->grad[tensor],
						 g->cli.grad, 0, gpt->device.stream, NULL);
	while (gpt->push_said == SHARD_AGAIN &&
	       (gpt->push_said = shard_cuda_wait(gpt->cuda, 0, SHARD_DEFAULT)) == SHARD_OK);
	return gpt->push_said == SHARD_OK;
}

/* Forward waits on the device for the parameters, and this processor does not wait for forward. */
static enum shard_status load_image(struct gpt_cuda *gpt)
{
	struct trainer *g = &gpt->trainer;
	shard_ticket ticket;
	enum shard_status st = SHARD_OK;

	/* It was there before the connection was made again. */
	if (!gpt->image && shard_cuda_image(gpt->cuda, 0) == NULL)
		st = place_image(gpt);
	if (gpt->image && st == SHARD_OK)
		st = shard_cuda_pull(gpt->cuda, 0, gpt->pull, g->net.tensors_nr, gpt->device.stream,
				     &ticket);
	if (gpt->image && st == SHARD_OK)
		st = shard_cuda_order(gpt->cuda, ticket, gpt->device.stream, SHARD_DEFAULT);
	for (uint32_t i = 0; i < g->net.tensors_nr && st == SHARD_OK; i++) {
		const struct shard_cuda_pull *p = &gpt->pull[i];
		const void *from = gpt->image ? p->dev : shard_cuda_image(gpt->cuda, p->tensor);

		transformer_cuda_load(&gpt->net, p->tensor, from,
				      cli_image(&g->cli, g->net.tensors[p->tensor].name));
	}
	return st;
}

static enum shard_status forward_backward(struct trainer *g, uint64_t first, uint64_t count,
					  double *loss)
{
	struct gpt_cuda *gpt = gpt_of(g);
	enum shard_status st = load_image(gpt);

	if (st != SHARD_OK)
		return st;
	transformer_cuda_zero_grad(&gpt->net);
	gpt->push_said = SHARD_OK;
	for (uint64_t i = 0; i < count; i++) {
		const uint8_t *text = data_sample(&g->data, g->cli.shape.seq, g->cli.seed,
						  g->step.step, first + i);

		transformer_cuda_sequence(&gpt->net, (uint64_t)(text - g->data.text), i,
					  (float)g->step.loss_scale, i + 1 == count ? push : NULL,
					  gpt);
	}
	if (gpt->push_said != SHARD_OK)
		return gpt->push_said;
	if ((st = transformer_cuda_losses(&gpt->net, count, gpt->loss)) != SHARD_OK)
		return st;
	*loss = 0;
	for (uint64_t i = 0; i < count; i++)
		*loss += gpt->loss[i];
	*loss /= count ? (double)count : 1;
	/* Before the commit all gradients are pushed, and the image is read. */
	return shard_cuda_wait(gpt->cuda, 0, SHARD_DEFAULT);
}

/* --- start --- */

enum { OPT_KERNELS = 1000, OPT_DEVICE, OPT_DEVICE_ARENA, OPT_DEVICE_IMAGE };

static const struct argp_option options[] = {
	{"device", OPT_DEVICE, "N", 0, "Which GPU (0)", 5},
	{"device-arena", OPT_DEVICE_ARENA, NULL, 0,
	 "Write gradients where shardd has memory on the GPU (tier=gpu)", 5},
	{"device-image", OPT_DEVICE_IMAGE, NULL, 0,
	 "Read parameters where shardd keeps them on the GPU (tier=gpu)", 5},
	{"kernels", OPT_KERNELS, "FILE", 0,
	 "The kernels (client/examples/gpt_kernels.fatbin beside this program)", 5},
	{0},
};

static error_t option(int key, char *arg, struct argp_state *s)
{
	struct gpt_cuda *gpt = s->input;

	switch (key) {
	case OPT_DEVICE:
		gpt->number = (int)cli_number(s, "--device", arg, 0, 1023);
		return 0;
	case OPT_DEVICE_ARENA:
		gpt->device_arena = true;
		return 0;
	case OPT_DEVICE_IMAGE:
		gpt->device_image = true;
		return 0;
	case OPT_KERNELS:
		gpt->kernels = arg;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void print_version(FILE *f, struct argp_state *state)
{
	(void)state;
	fprintf(f, "gpt-cuda, an example of libshard %s\n", shard_version());
}

int main(int argc, char **argv)
{
	static const struct compute gpu = {.name = "gpt-cuda",
					   .open = open_device,
					   .begin = begin,
					   .forward_backward = forward_backward,
					   .why = why,
					   .close = close_device};
	const struct argp argp = {options, option, NULL, NULL, NULL, NULL, NULL};
	const struct argp_child more[] = {{&argp, 0, NULL, 0}, {0}};
	struct gpt_cuda gpt = {.trainer = {.compute = &gpu}};

	argp_program_version_hook = print_version;
	cli_parse(&gpt.trainer.cli, argc, argv,
		  "Train a small byte-level transformer on a GPU as one rank of a world, with "
		  "weights and optimizer state in shardd.\v"
		  "Exit status: 0 trained to the last step, 1 failed, 2 wrong options.",
		  more, &gpt);
	return trainer_run(&gpt.trainer);
}
