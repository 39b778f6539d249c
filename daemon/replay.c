/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl replay`: main.c calls replay_main(). Happy path: the checkpoint gives layout, weights
 * and moments. For each step after it the history has the record: the world, by which gradients are
 * summed in the order of wire/ARITHMETIC.md, and the scalars of the optimizer as bits. The kernels
 * are those of the daemon. Before a step is applied, the norm of the summed gradients must be that
 * of the record, so that gradients of another run are named instead of blamed on the weights. At
 * the step of each checkpoint that is compared, every element must have the same bits. Whatever is
 * missing or differs ends it with a sentence. All of it is read from files of a user. */
#include "replay.h"

#include "base/check.h"
#include "base/isa.h"
#include "ckpt/manifest.h"
#include "ckpt/part.h"
#include "ckpt/safetensors.h"
#include "optim/ftz.h"
#include "optim/optim.h"
#include "optim/reduce.h"
#include "replay_steps.h"
#include "wire/dtype.h"
#include "wire/layout.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define RANKS_MAX  256
#define PATH_BYTES 1100
#define KINDS_MAX  3

struct rank {
	const char *node;
	uint32_t first; /* The lowest rank of this node. */
	void *map;      /* The file with its gradients. */
	size_t bytes;
	const void **gradient; /* [tensors] In .map. NULL: it pushed none. */
};

struct replay {
	const struct replay_conf *conf;
	struct manifest *from;
	struct layout *layout;
	const struct layout_tensor **by_name; /* [tensors] Sorted. */
	const struct optim_row *optim;
	struct replay_steps *steps;
	double predivide;
	uint32_t kinds_nr; /* Master, then the states. */
	enum shard_kind kind[KINDS_MAX];
	float *state[KINDS_MAX]; /* [elems] */
	void *sum, *image;       /* [elems] sum: of the gradients. image: nobody reads it. */
	uint8_t *absent;         /* [tensors] Nobody has a gradient of it. */
	uint32_t grad_bytes;
	struct rank rank[RANKS_MAX];
	uint32_t ranks_nr;
	uint64_t step, applied, skipped, compared;
};

/* --- the model --- */

/* The value of a key in "key=value key=value". */
static double setting(const char *settings, const char *key, double otherwise)
{
	size_t n = strlen(key);

	for (const char *at = settings; at != NULL && *at != 0; at = strchr(at, ' ')) {
		at += *at == ' ';
		if (strncmp(at, key, n) == 0 && at[n] == '=')
			return strtod(at + n + 1, NULL);
	}
	return otherwise;
}

static float *elements(const struct layout *l)
{
	return calloc(l->elems + 1, sizeof(float));
}

/* Fills state[] from a checkpoint. All kinds must be there. */
static enum shard_status load(const char *path, const struct manifest *m, const struct replay *r,
			      float *const *state, struct err *e)
{
	uint32_t runs_nr = 0;
	struct part_run *runs =
		calloc((size_t)r->layout->tensors_nr * r->kinds_nr + 1, sizeof(*runs));
	struct part_progress progress = {.done_bytes = 0};
	enum shard_status st;

	if (runs == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory to read %s", path);
	for (uint32_t k = 0; k < r->kinds_nr; k++)
		for (uint32_t t = 0; t < r->layout->tensors_nr; t++) {
			const struct layout_tensor *x = &r->layout->tensor[t];

			if (k > 0 && (x->flags & SHARD_FROZEN))
				continue;
			runs[runs_nr++] = (struct part_run){.kind = r->kind[k],
							    .tensor = x->name,
							    .count = x->numel,
							    .at = state[k] + x->offset};
		}
	st = part_load(path, m->files, m->files_nr, runs, runs_nr, false, &progress, e);
	free(runs);
	return st;
}

static int compare_names(const void *a, const void *b)
{
	const struct layout_tensor *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

static enum shard_status sort_names(struct replay *r, struct err *e)
{
	uint32_t nr = r->layout->tensors_nr;

	if ((r->by_name = calloc(nr, sizeof(struct layout_tensor *))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for %u tensors", nr);
	for (uint32_t t = 0; t < nr; t++)
		r->by_name[t] = &r->layout->tensor[t];
	qsort(r->by_name, nr, sizeof(struct layout_tensor *), compare_names);
	return SHARD_OK;
}

/* NULL: the model has none of this name. */
static const struct layout_tensor *tensor_named(const struct replay *r, const char *name)
{
	const struct layout_tensor wanted = {.name = name}, *key = &wanted,
				   *const *at =
					   bsearch(&key, r->by_name, r->layout->tensors_nr,
						   sizeof(struct layout_tensor *), compare_names);

	return at != NULL ? *at : NULL;
}

static enum shard_status open_model(struct replay *r, struct err *e)
{
	const char *from = r->conf->from;
	enum shard_status st = manifest_read(from, &r->from, e);
	const struct manifest *m = r->from;
	uint32_t chunk;

	if (st != SHARD_OK)
		return st;
	chunk = (uint32_t)setting(m->settings, "chunk_elems", 1 << 20);
	r->optim = optim_find(m->optimizer);
	if (r->optim == NULL)
		return err_set(e, SHARD_UNSUPPORTED, "%s: optimizer %s is not known here", from,
			       m->optimizer);
	if (strstr(m->settings, "grad_codec=int") != NULL)
		return err_set(
			e, SHARD_UNSUPPORTED,
			"%s: the gradients of this model travel as codes (grad_codec), which "
			"are not replayed yet",
			from);
	r->predivide = setting(m->settings, "predivide", 1);
	r->grad_bytes = dtype_bytes(m->grad);
	if (chunk < LAYOUT_ALIGN || (chunk & (chunk - 1)) != 0 || !(r->predivide > 0))
		return err_set(e, SHARD_PROTOCOL, "%s: the settings of the model are wrong", from);
	st = layout_init(&r->layout, m->tensors, m->tensors_nr, m->groups_nr, m->image, chunk, e);
	if (st == SHARD_OK)
		st = sort_names(r, e);
	if (st != SHARD_OK)
		return st;
	r->kinds_nr = 1 + r->optim->states_nr;
	r->kind[0] = SHARD_MASTER;
	for (uint32_t k = 1; k < r->kinds_nr; k++)
		r->kind[k] = r->optim->states[k - 1];
	r->sum = elements(r->layout);
	r->image = elements(r->layout);
	r->absent = calloc(r->layout->tensors_nr + 1, 1);
	for (uint32_t k = 0; k < r->kinds_nr; k++)
		if ((r->state[k] = elements(r->layout)) == NULL)
			return err_set(e, SHARD_SYSTEM, "no memory for the weights");
	if (!r->sum || !r->image || !r->absent)
		return err_set(e, SHARD_SYSTEM, "no memory for the gradients");
	r->step = m->step;
	return load(from, m, r, r->state, e);
}

/* --- gradients --- */

static void close_rank(struct rank *k)
{
	if (k->map != NULL)
		munmap(k->map, k->bytes);
	free(k->gradient);
	*k = (struct rank){.node = NULL};
}

static void close_ranks(struct replay *r)
{
	for (uint32_t i = 0; i < r->ranks_nr; i++)
		close_rank(&r->rank[i]);
	r->ranks_nr = 0;
}

static enum shard_status map_file(struct rank *k, const char *path, struct err *e)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat s;

	if (fd < 0)
		return err_set(e, errno == ENOENT ? SHARD_NOT_FOUND : SHARD_SYSTEM, "%s: %s", path,
			       strerror(errno));
	if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode) || s.st_size < 8) {
		close(fd);
		return err_set(e, SHARD_PROTOCOL, "%s: no safetensors file", path);
	}
	k->bytes = (size_t)s.st_size;
	k->map = mmap(NULL, k->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (k->map == MAP_FAILED) {
		k->map = NULL;
		return err_set(e, SHARD_SYSTEM, "%s: %s", path, strerror(errno));
	}
	return SHARD_OK;
}

static enum shard_status find_gradients(const struct replay *r, struct rank *k, const char *path,
					const struct safetensors *header, struct err *e)
{
	if ((k->gradient = calloc(r->layout->tensors_nr, sizeof(void *))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for %s", path);
	for (uint32_t n = 0; n < header->entries_nr; n++) {
		const struct safetensors_entry *x = &header->entry[n];
		const struct layout_tensor *t = tensor_named(r, x->name);

		if (t == NULL)
			return err_set(e, SHARD_MISMATCH, "%s: the model has no tensor \"%.200s\"",
				       path, x->name);
		if (x->dtype != r->from->grad || x->bytes != t->numel * r->grad_bytes ||
		    x->offset % r->grad_bytes != 0)
			return err_set(e, SHARD_MISMATCH,
				       "%s: \"%.200s\" is no gradient of %lu elements of %s", path,
				       x->name, (unsigned long)t->numel, dtype_name(r->from->grad));
		k->gradient[t - r->layout->tensor] = (const char *)k->map + x->offset;
	}
	return SHARD_OK;
}

/* What rank i pushed in the step. */
static enum shard_status open_rank(struct replay *r, uint32_t i, struct err *e)
{
	struct rank *k = &r->rank[i];
	struct safetensors *header = NULL;
	char path[PATH_BYTES];
	uint64_t bytes = 0;
	enum shard_status st;

	snprintf(path, sizeof(path), "%.900s/step%lu-rank%u.safetensors", r->conf->gradients,
		 (unsigned long)r->step + 1, i);
	if ((st = map_file(k, path, e)) == SHARD_OK)
		st = safetensors_header_bytes(k->map, k->bytes, path, &bytes, e);
	if (st == SHARD_OK)
		st = safetensors_parse(&header, (const char *)k->map + 8, bytes, k->bytes, path, e);
	if (st == SHARD_OK)
		st = find_gradients(r, k, path, header, e);
	safetensors_free(&header);
	return st;
}

/* The sums of the ranks of each node, in the order of the lowest rank of each. Returns how many
 * have a gradient. */
static uint32_t sum_nodes(const struct replay *r, uint32_t t, char *parts, const void **part)
{
	reduce_fn *reduce = reduce_kernel(isa_best(), r->from->grad);
	uint64_t numel = r->layout->tensor[t].numel;
	float pre = r->ranks_nr > 1 ? (float)(1.0 / r->predivide) : 1.0f;
	uint32_t nodes = 0;

	for (uint32_t i = 0; i < r->ranks_nr; i++) {
		char *sum = parts + nodes * numel * r->grad_bytes;
		const void *src[RANKS_MAX];
		uint32_t nr = 0;

		for (uint32_t j = i; r->rank[i].first == i && j < r->ranks_nr; j++)
			if (r->rank[j].first == i && r->rank[j].gradient[t] != NULL)
				src[nr++] = r->rank[j].gradient[t];
		if (nr == 0)
			continue;
		(void)reduce(numel, nr, src, sum, pre, false);
		part[nodes++] = sum;
	}
	return nodes;
}

static enum shard_status sum_tensor(struct replay *r, uint32_t t, struct err *e)
{
	const struct layout_tensor *x = &r->layout->tensor[t];
	char *parts = malloc(x->numel * r->grad_bytes * r->ranks_nr + 1);
	const void *part[RANKS_MAX];
	uint32_t nodes;

	if (parts == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the gradients of %u ranks",
			       r->ranks_nr);
	nodes = sum_nodes(r, t, parts, part);
	r->absent[t] = nodes == 0;
	if (nodes > 0)
		(void)reduce_kernel(isa_best(), r->from->grad)(
			x->numel, nodes, part, (char *)r->sum + x->offset * r->grad_bytes, 1.0f,
			false);
	free(parts);
	return SHARD_OK;
}

/* --- a step --- */

static double real_of(const json_t *r, const char *key)
{
	const json_t *x = json_object_get(r, key);

	return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

static bool is(const json_t *r, const char *outcome)
{
	const char *o = json_string_value(json_object_get(r, "outcome"));

	return o != NULL && strcmp(o, outcome) == 0;
}

static enum shard_status wrong(const struct replay *r, const char *what, struct err *e)
{
	return err_set(e, SHARD_PROTOCOL, "%s: the record of step %lu has no %s", r->conf->history,
		       (unsigned long)r->step + 1, what);
}

static enum shard_status take_world(struct replay *r, const json_t *record, struct err *e)
{
	const json_t *world = json_object_get(record, "world");
	enum shard_status st = SHARD_OK;

	if (json_array_size(world) == 0 || json_array_size(world) > RANKS_MAX)
		return wrong(r, "world", e);
	for (size_t i = 0; st == SHARD_OK && i < json_array_size(world); i++) {
		const json_t *node = json_object_get(json_array_get(world, i), "node");

		if (!json_is_string(node))
			return wrong(r, "node of each rank", e);
		r->rank[i] = (struct rank){.node = json_string_value(node)};
		while (strcmp(r->rank[r->rank[i].first].node, r->rank[i].node) != 0)
			r->rank[i].first++;
		r->ranks_nr++;
		st = open_rank(r, (uint32_t)i, e);
	}
	for (uint32_t t = 0; st == SHARD_OK && t < r->layout->tensors_nr; t++)
		if (!(r->layout->tensor[t].flags & SHARD_FROZEN))
			st = sum_tensor(r, t, e);
	return st;
}

/* Are the gradients those that the nodes summed? */
static enum shard_status check_norm(const struct replay *r, const json_t *record, struct err *e)
{
	const struct layout *l = r->layout;
	reduce_fn *reduce = reduce_kernel(isa_best(), r->from->grad);
	double divisor = real_of(record, "loss_scale") * real_of(record, "weight_sum"),
	       told = real_of(record, "grad_norm"), total = 0, norm;

	for (uint32_t c = 0; c < l->chunks_nr; c++) {
		double chunk = 0;

		for (uint32_t i = l->chunk_segment[c]; i < l->chunk_segment[c + 1]; i++) {
			const struct segment *x = &l->segment[i];
			const void *at = (char *)r->sum +
					 (layout_chunk_start(l, c) + x->start) * r->grad_bytes;

			if (!layout_frozen(l, i) && !r->absent[l->segment_tensor[i]])
				chunk += reduce(x->n, 1, &at, NULL, 1.0f, true).sq;
		}
		total += chunk;
	}
	if (r->ranks_nr > 1)
		divisor /= r->predivide;
	norm = sqrt(total) / divisor;
	if (memcmp(&norm, &told, sizeof(norm)) == 0)
		return SHARD_OK;
	return err_set(e, SHARD_MISMATCH,
		       "the gradients of step %lu in %s are not those that were reduced: their "
		       "norm is %.17g, and the history has %.17g",
		       (unsigned long)r->step + 1, r->conf->gradients, norm, told);
}

static enum shard_status apply(struct replay *r, const json_t *record, struct err *e)
{
	const json_t *words = json_object_get(record, "args");
	uint32_t groups = r->from->groups_nr > 0 ? r->from->groups_nr : 1;
	optim_apply *kernel = optim_kernel(r->optim, isa_best(), r->from->grad, r->from->image);

	if (json_array_size(words) != (size_t)groups * OPTIM_ARGS_WORDS)
		return wrong(r, "scalars for each group of tensors", e);
	for (uint32_t t = 0; t < r->layout->tensors_nr; t++) {
		const struct layout_tensor *x = &r->layout->tensor[t];
		uint32_t bits[OPTIM_ARGS_WORDS];
		struct optim_args args;
		float *at[KINDS_MAX] = {NULL};

		if (x->flags & SHARD_FROZEN)
			continue;
		for (uint32_t i = 0; i < OPTIM_ARGS_WORDS; i++)
			bits[i] = (uint32_t)json_integer_value(
				json_array_get(words, x->group * OPTIM_ARGS_WORDS + i));
		memcpy(&args, bits, sizeof(args));
		for (uint32_t k = 0; k < r->kinds_nr; k++)
			at[k] = r->state[k] + x->offset;
		(void)kernel(&args, x->numel,
			     r->absent[t] ? NULL : (char *)r->sum + x->offset * r->grad_bytes,
			     at[0], at[1], at[2], r->image);
	}
	return SHARD_OK;
}

static enum shard_status one_step(struct replay *r, struct err *e)
{
	const json_t *record = replay_steps_at(r->steps, r->step + 1, e);
	enum shard_status st = SHARD_OK;

	if (record == NULL)
		return e->status;
	if (is(record, "applied")) {
		st = take_world(r, record, e);
		if (st == SHARD_OK)
			st = check_norm(r, record, e);
		if (st == SHARD_OK)
			st = apply(r, record, e);
		close_ranks(r);
		r->applied++;
	} else {
		r->skipped++;
	}
	r->step++;
	return st;
}

/* --- comparing --- */

static enum shard_status differs(const struct replay *r, const char *path, uint32_t k, uint32_t t,
				 const float *there, struct err *e)
{
	const struct layout_tensor *x = &r->layout->tensor[t];
	uint64_t nr = 0, first = 0;

	for (uint64_t i = x->numel; i-- > 0;)
		if (memcmp(&there[x->offset + i], &r->state[k][x->offset + i], sizeof(float)) !=
		    0) {
			first = i;
			nr++;
		}
	return err_set(
		e, SHARD_MISMATCH,
		"%s (step %lu): %lu of %lu elements of %s of \"%.200s\" differ, first element "
		"%lu: %.9g, and the replay has %.9g",
		path, (unsigned long)r->step, (unsigned long)nr, (unsigned long)x->numel,
		part_kind_name(r->kind[k]), x->name, (unsigned long)first,
		(double)there[x->offset + first], (double)r->state[k][x->offset + first]);
}

static enum shard_status compare(struct replay *r, const char *path, const struct manifest *m,
				 struct err *e)
{
	float *there[KINDS_MAX] = {NULL};
	enum shard_status st = SHARD_OK;

	for (uint32_t k = 0; k < r->kinds_nr && st == SHARD_OK; k++)
		if ((there[k] = elements(r->layout)) == NULL)
			st = err_set(e, SHARD_SYSTEM, "no memory to compare %s", path);
	if (st == SHARD_OK)
		st = load(path, m, r, there, e);
	for (uint32_t k = 0; k < r->kinds_nr && st == SHARD_OK; k++)
		for (uint32_t t = 0; t < r->layout->tensors_nr && st == SHARD_OK; t++) {
			const struct layout_tensor *x = &r->layout->tensor[t];

			if (k > 0 && (x->flags & SHARD_FROZEN))
				continue;
			if (memcmp(there[k] + x->offset, r->state[k] + x->offset,
				   x->numel * sizeof(float)) != 0)
				st = differs(r, path, k, t, there[k], e);
			r->compared += x->numel;
		}
	for (uint32_t k = 0; k < r->kinds_nr; k++)
		free(there[k]);
	return st;
}

/* The checkpoint must be a later one of the same model. */
static enum shard_status check_later(const struct replay *r, const char *path,
				     const struct manifest *m, struct err *e)
{
	const struct manifest *from = r->from;

	if (m->tensors_nr != from->tensors_nr || strcmp(m->optimizer, from->optimizer) != 0 ||
	    memcmp(m->run.id, from->run.id, sizeof(m->run.id)) != 0)
		return err_set(e, SHARD_MISMATCH, "%s is of another model than %s", path,
			       r->conf->from);
	if (m->step < from->step)
		return err_set(e, SHARD_MISMATCH, "%s is of step %lu, before that of %s", path,
			       (unsigned long)m->step, r->conf->from);
	return SHARD_OK;
}

/* --- all of it --- */

/* Steps until the earliest checkpoint that was not compared yet, and compares it. */
static enum shard_status next(struct replay *r, struct manifest *const *later, bool *compared,
			      struct err *e)
{
	enum shard_status st = SHARD_OK;
	uint32_t n = UINT32_MAX;

	for (uint32_t i = 0; i < r->conf->compare_nr; i++)
		if (!compared[i] && (n == UINT32_MAX || later[i]->step < later[n]->step))
			n = i;
	CHECK(n != UINT32_MAX);
	compared[n] = true;
	while (st == SHARD_OK && r->step < later[n]->step)
		st = one_step(r, e);
	return st == SHARD_OK ? compare(r, r->conf->compare[n], later[n], e) : st;
}

static void close_all(struct replay *r)
{
	close_ranks(r);
	manifest_free(&r->from);
	layout_free(&r->layout);
	free(r->by_name);
	replay_steps_free(&r->steps);
	for (uint32_t k = 0; k < KINDS_MAX; k++)
		free(r->state[k]);
	free(r->sum);
	free(r->image);
	free(r->absent);
}

enum shard_status replay(const struct replay_conf *conf, struct replay_done *done, struct err *e)
{
	struct replay r = {.conf = conf};
	struct manifest *later[REPLAY_CHECKPOINTS_MAX] = {NULL};
	bool compared[REPLAY_CHECKPOINTS_MAX] = {false};
	unsigned mode = ftz_on();
	enum shard_status st;

	CHECK(conf->compare_nr > 0 && conf->compare_nr <= REPLAY_CHECKPOINTS_MAX);
	st = replay_steps_read(&r.steps, conf->history, e);
	if (st == SHARD_OK)
		st = open_model(&r, e);
	for (uint32_t i = 0; i < conf->compare_nr && st == SHARD_OK; i++) {
		st = manifest_read(conf->compare[i], &later[i], e);
		if (st == SHARD_OK)
			st = check_later(&r, conf->compare[i], later[i], e);
	}
	for (uint32_t i = 0; i < conf->compare_nr && st == SHARD_OK; i++)
		st = next(&r, later, compared, e);
	if (st == SHARD_OK)
		*done = (struct replay_done){.from = r.from->step,
					     .to = r.step,
					     .applied = r.applied,
					     .skipped = r.skipped,
					     .elements = r.compared};
	for (uint32_t i = 0; i < conf->compare_nr; i++)
		manifest_free(&later[i]);
	close_all(&r);
	ftz_restore(mode);
	return st;
}

int replay_main(int argc, char **argv)
{
	struct replay_conf conf = {.history = NULL};
	bool json = argc > 0 && strcmp(argv[0], "--json") == 0;
	struct replay_done d;
	struct err e = {.text = ""};
	int n = json;

	if (argc - n < 4 || argc - n > 3 + REPLAY_CHECKPOINTS_MAX) {
		fprintf(stderr, "shardd: --replay is for shardctl replay\n");
		return 2;
	}
	conf.history = argv[n++];
	conf.from = argv[n++];
	conf.gradients = argv[n++];
	while (n < argc)
		conf.compare[conf.compare_nr++] = argv[n++];
	if (replay(&conf, &d, &e) != SHARD_OK) {
		fprintf(stderr, "shardctl: replay: %s: %s\n", status_name(e.status), e.text);
		return 1;
	}
	printf(json ? "{\"from\":%lu,\"to\":%lu,\"applied\":%lu,\"skipped\":%lu,\"elements\":%lu}\n"
		    : "steps %lu to %lu: %lu applied, %lu skipped; all %lu elements are equal\n",
	       (unsigned long)d.from, (unsigned long)d.to, (unsigned long)d.applied,
	       (unsigned long)d.skipped, (unsigned long)d.elements);
	return 0;
}
