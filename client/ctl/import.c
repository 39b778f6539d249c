/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl import SRC DIR --name NAME` makes a checkpoint from safetensors files of any origin.
 * Happy path: source.c opens SRC, which is a file, an index, or a folder with one of them, and
 * reads the headers. The tensors are written in the order of files and offsets as fp32 parts of
 * bounded size. At the end comes the manifest with the layout. It has the master weights alone, so
 * the moments begin at zero. It fails (exit 1) where a dtype is not one of weights, a weight is inf
 * or nan, a name comes twice, a shard is missing, or the index contradicts its files. The text
 * names the fault, and nothing is left behind. A checkpoint that is there already is replaced only
 * with --force, or if whoever sits at the terminal agrees. Settings that the daemon would refuse
 * are refused here. */
#include "ctl/bar.h"
#include "ctl/child.h"
#include "ctl/ctl.h"
#include "ctl/json.h"
#include "ctl/source.h"

#include "base/check.h"
#include "ckpt/checkpoint.h"
#include "wire/dtype.h"
#include "wire/layout.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME, SETTINGS, IMAGE, GRAD, STEP, TAG, NONFINITE, FORCE };

#define PART_ELEMS                                                                                 \
	(64ull << 20) /* 256 MiB are in memory at a time, and more only where there would be too   \
			 many files. */

const struct argp_option ctl_import_options[] = {
	{"name", CTL_KEY + NAME, "NAME", 0, "of the model: 1 to 64 of [a-z0-9._-]", 0},
	{"settings", CTL_KEY + SETTINGS, "TEXT", 0,
	 "as in \"optimizer=adamw lr=3e-4\": keys of [model]", 0},
	{"image", CTL_KEY + IMAGE, "TYPE", 0, "of parameters: bf16, fp16 or fp32 (default: bf16)",
	 0},
	{"grad", CTL_KEY + GRAD, "TYPE", 0, "of gradients (default: as --image)", 0},
	{"step", CTL_KEY + STEP, "N", 0, "that the weights are of (default: 0)", 0},
	{"tag", CTL_KEY + TAG, "TAG", 0, "of the checkpoint (default: global_step{N})", 0},
	{"allow-nonfinite", CTL_KEY + NONFINITE, NULL, 0,
	 "take weights that are inf or nan as they are", 0},
	{"force", CTL_KEY + FORCE, NULL, 0, "replace a checkpoint of that tag without asking", 0},
	{0},
};

struct job {
	const struct ctl_options *o;
	const char *dir;
	char tag[CHECKPOINT_TAG_MAX + 1], path[CHECKPOINT_PATH_MAX];
	struct source *source;
	struct manifest m;
	uint64_t elems, part_elems, done, nonfinite;
	bool allow_nonfinite;
	float *part;
	struct bar bar;
	struct err e;
};

static bool text_of(char **to, const char *from, size_t bytes)
{
	*to = strndup(from, bytes);
	return *to != NULL;
}

/* Checks the settings and finds the optimizer, which is one of their words. */
static bool take_settings(struct job *j, const char *text)
{
	const char *optimizer = "adamw";
	size_t n = 5;

	for (const char *at = text; *(at += strspn(at, " \t")); at += strcspn(at, " \t")) {
		size_t word = strcspn(at, " \t");

		if (!memchr(at, '=', word) || *at == '=') {
			ctl_fail(j->o, CTL_USAGE, "import: --settings: \"%.*s\": write key=value",
				 (int)word, at);
			return false;
		}
		if (strncmp(at, "optimizer=", 10) == 0) {
			optimizer = at + 10;
			n = word - 10;
		}
	}
	if (strlen(text) > MANIFEST_SETTINGS_MAX || n > 64) {
		ctl_fail(j->o, CTL_USAGE, "import: --settings: is too long");
		return false;
	}
	return text_of(&j->m.settings, text, strlen(text)) &&
	       text_of(&j->m.optimizer, optimizer, n);
}

/* --- what the daemon would say of the settings --- */

/* The daemon's own parser reads them. Where it is not installed, they are taken as they are. */
static enum ctl_exit check_settings(const struct job *j)
{
	/* The daemon keeps what its own file says of these when it restores a model. */
	static const char *const kept[] = {
		"checkpoint_dir=", "checkpoint_every=", "keep_latest=", "restore_at_start="};
	const char *args[CTL_SHARDD_WORDS] = {"--config", "/dev/null", "--check"}, *at;
	char *copy = strdup(j->m.settings), *out, *said, *rest = copy, *word;
	enum ctl_exit rc = CTL_OK;
	static const char set[] = "--set";
	char *sets[CTL_SHARDD_WORDS];
	int n = 3, sets_nr = 0, code;

	while (copy && (word = strtok_r(rest, " \t", &rest)) != NULL) {
		for (size_t i = 0; i < NR(kept); i++)
			if (strncmp(word, kept[i], strlen(kept[i])) == 0)
				fprintf(stderr,
					"shardctl: import: %s holds only where shardd.conf does "
					"not set it\n",
					word);
		if (n + 3 > CTL_SHARDD_WORDS || asprintf(&sets[sets_nr], "model.%s", word) < 0)
			break;
		args[n++] = set;
		args[n++] = sets[sets_nr++];
	}
	code = child_run(child_shardd, args, &out, &said);
	at = strstr(said, "command line: ");
	at = at != NULL ? at + strlen("command line: ") : said;
	if (code == CTL_CONFIG)
		rc = ctl_fail(j->o, CTL_CONFIG, "import: --settings: %.*s", (int)strcspn(at, "\n"),
			      at);
	else if (code != 0)
		fprintf(stderr, "shardctl: import: the settings are not checked: %.*s\n",
			(int)strcspn(at, "\n"), at);
	while (sets_nr > 0)
		free(sets[--sets_nr]);
	free(copy);
	free(out);
	free(said);
	return rc;
}

/* --- what is there already --- */

/* Asks whoever sits at the terminal. */
static bool agreed(const char *path)
{
	char line[16] = "";

	fprintf(stderr, "%s is there already: replace it? [y/N] ", path);
	return fgets(line, sizeof(line), stdin) != NULL && (line[0] == 'y' || line[0] == 'Y');
}

static enum ctl_exit may_replace(struct job *j)
{
	struct stat info;

	if (checkpoint_path(j->path, j->dir, j->tag, &j->e) != SHARD_OK)
		return ctl_fail(j->o, CTL_FAILED, "import: %s", j->e.text);
	if (j->o->value[FORCE] != NULL || lstat(j->path, &info) != 0)
		return CTL_OK;
	if (!j->o->json && isatty(STDIN_FILENO) && agreed(j->path))
		return CTL_OK;
	return ctl_fail(j->o, CTL_REFUSED,
			"import: %s is there already: choose another --tag or folder, or --force "
			"replaces it",
			j->path);
}

static bool take_dtype(const struct ctl_options *o, int option, enum shard_dtype *to)
{
	if (!o->value[option] || dtype_parse(o->value[option], to))
		return true;
	ctl_fail(o, CTL_USAGE, "import: --%s %s: choose bf16, fp16 or fp32",
		 ctl_import_options[option].name, o->value[option]);
	return false;
}

static bool take_options(struct job *j, const struct ctl_options *o)
{
	const char *name = o->value[NAME] ? o->value[NAME] : "", *step = o->value[STEP];
	char *end;

	if (!o->value[NAME]) {
		ctl_fail(o, CTL_USAGE, "import: how is the model called? write --name NAME");
		return false;
	}
	if (!layout_model_name_new(name)) {
		ctl_fail(o, CTL_USAGE, "import: --name %s: choose " LAYOUT_MODEL_NAME_NEW, name);
		return false;
	}
	strcpy(j->m.name, name);
	if (step) {
		errno = 0;
		j->m.step = strtoull(step, &end, 10);
		if (*step < '0' || *step > '9' || *end || errno || j->m.step > 1ull << 62) {
			ctl_fail(o, CTL_USAGE, "import: --step %s: choose a whole number", step);
			return false;
		}
	}
	checkpoint_tag(j->tag, j->m.step);
	if (o->value[TAG] && !checkpoint_tag_ok(o->value[TAG])) {
		ctl_fail(o, CTL_USAGE,
			 "import: --tag %s: 1 to 64 of [A-Za-z0-9._-], not starting with a dot",
			 o->value[TAG]);
		return false;
	}
	if (o->value[TAG])
		strcpy(j->tag, o->value[TAG]);
	j->m.image = SHARD_BF16;
	if (!take_dtype(o, IMAGE, &j->m.image))
		return false;
	j->m.grad = j->m.image;
	return take_dtype(o, GRAD, &j->m.grad) &&
	       take_settings(j, o->value[SETTINGS] ? o->value[SETTINGS] : "");
}

/* --- layout --- */

static bool make_manifest(struct job *j)
{
	struct manifest *m = &j->m;
	uint64_t id[2] = {0, 0};
	uint32_t most;

	if (getrandom(id, sizeof(id), 0) != sizeof(id))
		id[0] = (uint64_t)getpid();
	snprintf(m->run_id, sizeof(m->run_id), "%016llx%016llx", (unsigned long long)id[0],
		 (unsigned long long)id[1]);
	snprintf(m->release, sizeof(m->release), "%s", SHARD_RELEASE);
	m->kinds[0] = SHARD_MASTER;
	m->kinds_nr = 1;
	m->applied = 0;
	m->owner_known = true;
	m->owner_uid = getuid();
	m->owner_gid = getgid();
	m->tensors_nr = j->source->tensors_nr;
	m->tensors = calloc(m->tensors_nr, sizeof(*m->tensors));
	if (!m->tensors)
		return false;
	for (uint32_t i = 0; i < m->tensors_nr; i++) {
		const struct safetensors_entry *x = j->source->tensor[i].entry;
		struct shard_tensor *t = &m->tensors[i];

		t->name = x->name;
		t->ndim = x->ndim;
		memcpy(t->shape, x->shape, sizeof(t->shape));
		j->elems += x->bytes / dtype_bytes(x->dtype);
	}
	j->part_elems = j->elems / (MANIFEST_FILES_MAX - 8) > PART_ELEMS
				? j->elems / (MANIFEST_FILES_MAX - 8)
				: PART_ELEMS;
	if (j->part_elems > j->elems)
		j->part_elems = j->elems;
	most = (uint32_t)(j->elems / j->part_elems + 1);
	m->files = calloc(most, sizeof(*m->files));
	j->part = malloc(j->part_elems * sizeof(float));
	return m->files && j->part;
}

/* --- parts --- */

static bool put_part(struct job *j, const struct part_run *runs, uint32_t runs_nr)
{
	char name[64];

	if (runs_nr == 0)
		return true;
	snprintf(name, sizeof(name), "import-%05u.safetensors", j->m.files_nr + 1);
	if (part_write(j->path, name, runs, runs_nr, NULL, 0, NULL, &j->m.files[j->m.files_nr],
		       NULL, &j->e) != SHARD_OK)
		return false;
	j->m.files_nr++;
	return true;
}

/* An inf or nan weight would make the gradients of every step inf or nan, too. It is found here,
 * and the text names the tensor. */
static bool all_finite(struct job *j, const char *tensor, uint64_t first, const float *w,
		       uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		if (isfinite(w[i]))
			continue;
		j->nonfinite++;
		if (j->allow_nonfinite)
			continue;
		err_set(&j->e, SHARD_BAD_ARG,
			"tensor %.200s: element %llu is %s: no weight; --allow-nonfinite takes it "
			"as it is",
			tensor, (unsigned long long)(first + i),
			isnan(w[i]) ? "nan"
			: w[i] > 0  ? "inf"
				    : "-inf");
		return false;
	}
	return true;
}

static bool put_parts(struct job *j, struct part_run *runs)
{
	uint32_t nr = 0;
	uint64_t used = 0;

	for (uint32_t i = 0; i < j->source->tensors_nr; i++) {
		const struct safetensors_entry *x = j->source->tensor[i].entry;
		uint64_t all = x->bytes / dtype_bytes(x->dtype);

		for (uint64_t at = 0, n; at < all; at += n) {
			n = all - at < j->part_elems - used ? all - at : j->part_elems - used;
			if (source_read(j->source, i, at, n, j->part + used, &j->e) != SHARD_OK ||
			    !all_finite(j, x->name, at, j->part + used, n))
				return false;
			runs[nr++] = (struct part_run){.kind = SHARD_MASTER,
						       .tensor = x->name,
						       .first = at,
						       .count = n,
						       .at = j->part + used};
			used += n;
			bar_set(&j->bar, j->done += n * dtype_bytes(x->dtype));
			if (used < j->part_elems)
				continue;
			if (!put_part(j, runs, nr))
				return false;
			nr = 0;
			used = 0;
		}
	}
	return put_part(j, runs, nr);
}

static enum ctl_exit run(struct job *j)
{
	struct part_run *runs = calloc((size_t)j->source->tensors_nr + 1, sizeof(*runs));
	enum shard_status st;
	int held;
	bool ok;

	if (!runs || !make_manifest(j)) {
		free(runs);
		return ctl_fail(j->o, CTL_FAILED, "import: no memory");
	}
	st = checkpoint_begin(j->path, j->dir, j->tag, j->m.name, &held, &j->e);
	if (st != SHARD_OK) {
		free(runs);
		return ctl_fail(j->o, st == SHARD_EXISTS ? CTL_REFUSED : CTL_FAILED, "import: %s",
				j->e.text);
	}
	bar_init(&j->bar, "import", j->source->bytes, isatty(2));
	ok = put_parts(j, runs);
	bar_done(&j->bar);
	free(runs);
	ok = ok && checkpoint_finish(j->dir, j->tag, &j->m, &j->e) == SHARD_OK;
	if (!ok)
		checkpoint_abandon(j->dir, j->tag);
	if (held >= 0)
		close(held);
	if (!ok)
		return ctl_fail(j->o, CTL_FAILED, "import: %s", j->e.text);
	if (j->o->json)
		ctl_print(json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "model", j->m.name,
				    "tag", j->tag, "step", (json_int_t)j->m.step, "tensors",
				    (json_int_t)j->m.tensors_nr, "elements", (json_int_t)j->elems,
				    "files", (json_int_t)j->m.files_nr, "nonfinite",
				    (json_int_t)j->nonfinite));
	else
		printf("%s, step %llu: %u tensors, %llu elements in %s/%s\n", j->m.name,
		       (unsigned long long)j->m.step, j->m.tensors_nr, (unsigned long long)j->elems,
		       j->dir, j->tag);
	if (j->nonfinite > 0)
		fprintf(stderr, "shardctl: import: %llu weights are inf or nan\n",
			(unsigned long long)j->nonfinite);
	return CTL_OK;
}

enum ctl_exit ctl_import(const struct ctl_options *o)
{
	struct job j = {.o = o, .dir = o->words[1], .allow_nonfinite = o->value[NONFINITE] != NULL};
	enum ctl_exit rc = CTL_USAGE;

	if (take_options(&j, o) && (rc = may_replace(&j)) == CTL_OK &&
	    (rc = check_settings(&j)) == CTL_OK) {
		rc = source_open(&j.source, o->words[0], &j.e) == SHARD_OK
			     ? run(&j)
			     : ctl_fail(o, CTL_FAILED, "import: %s", j.e.text);
	}
	source_close(&j.source);
	for (uint32_t i = 0; i < j.m.files_nr; i++)
		part_file_free(&j.m.files[i]);
	free(j.m.files);
	free(j.m.tensors);
	free(j.m.settings);
	free(j.m.optimizer);
	free(j.part);
	return rc;
}
