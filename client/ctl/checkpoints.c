/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl checkpoints DIR` says what a folder of checkpoints holds. It reads the files itself and
 * asks no daemon. Happy path: it lists the folder and prints a table or JSON. With --verify it also
 * reads every byte and compares it with the sums of the manifest. It fails (exit 1) where there is
 * no such folder, and where --verify finds damage. The line of a damaged checkpoint says what is
 * wrong. */
#include "ctl/bar.h"
#include "ctl/ctl.h"
#include "ctl/json.h"

#include "base/check.h"
#include "ckpt/checkpoint.h"
#include "ckpt/client.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MODEL, VERIFY };

const struct argp_option ctl_checkpoints_options[] = {
	{"model", CTL_KEY + MODEL, "NAME", 0, "only of this model", 0},
	{"verify", CTL_KEY + VERIFY, NULL, 0, "read all bytes and compare their sums", 0},
	{0},
};

struct verify {
	const char *path;
	const struct manifest *m;
	struct part_progress progress;
	_Atomic bool over;
	enum shard_status st;
	struct err e;
};

static void *verify_thread(void *arg)
{
	struct verify *v = arg;

	v->st = checkpoint_fits(v->path, v->m, &v->e);
	if (v->st == SHARD_OK)
		v->st = part_verify(v->path, v->m->files, v->m->files_nr, &v->progress, &v->e);
	if (v->st == SHARD_OK)
		v->st = client_verify(v->path, v->m, &v->progress, &v->e);
	v->over = true;
	return NULL;
}

/* This thread draws the bar while another thread reads. */
static enum shard_status verify_watched(struct verify *v, struct bar *bar, uint64_t before)
{
	const struct timespec moment = {0, 50000000};
	pthread_t thread;

	if (pthread_create(&thread, NULL, verify_thread, v) != 0) {
		verify_thread(v);
		return v->st;
	}
	while (!v->over) {
		bar_set(bar, before + v->progress.done_bytes);
		nanosleep(&moment, NULL);
	}
	pthread_join(thread, NULL);
	return v->st;
}

static void verify_one(const char *dir, struct checkpoint_found *f, struct bar *bar,
		       uint64_t before)
{
	struct verify v = {.st = SHARD_OK};
	char path[CHECKPOINT_PATH_MAX];
	struct manifest *m = NULL;

	if (!f->complete)
		return;
	if (checkpoint_path(path, dir, f->tag, &v.e) != SHARD_OK ||
	    checkpoint_open(dir, f->tag, NULL, &m, &v.e) != SHARD_OK) {
		f->complete = false;
	} else {
		char blob[PART_BLOB_BYTES];

		v.path = path;
		v.m = m;
		f->complete = verify_watched(&v, bar, before) == SHARD_OK;
		for (uint32_t b = 0; f->complete && b < m->blobs_nr; b++)
			f->complete = manifest_blob(path, m, b, blob, &v.e) == SHARD_OK;
	}
	manifest_free(&m);
	if (!f->complete)
		snprintf(f->why, sizeof(f->why), "%.*s", (int)sizeof(f->why) - 1, v.e.text);
}

static void verify_all(const char *dir, struct checkpoint_found *found, uint32_t nr)
{
	uint64_t total = 0, before = 0;
	struct bar bar;

	for (uint32_t i = 0; i < nr; i++)
		total += found[i].complete ? found[i].bytes + found[i].client_bytes : 0;
	bar_init(&bar, "verify", total, isatty(2));
	for (uint32_t i = 0; i < nr; i++) {
		uint64_t bytes = found[i].complete ? found[i].bytes + found[i].client_bytes : 0;

		verify_one(dir, &found[i], &bar, before);
		bar_set(&bar, before += bytes);
	}
	bar_done(&bar);
}

static void print_json(const char *dir, const struct checkpoint_found *found, uint32_t nr,
		       bool verified)
{
	json_t *root = json_object(), *list = json_array();

	json_object_set_new(root, "dir", json_string(dir));
	for (uint32_t i = 0; i < nr; i++) {
		const struct checkpoint_found *f = &found[i];
		json_t *o = json_pack("{ss ss sI sI ss sb sb sb}", "tag", f->tag, "model", f->name,
				      "step", (json_int_t)f->step, "bytes", (json_int_t)f->bytes,
				      "created", f->created, "complete", f->complete, "latest",
				      f->latest, "verified", verified && f->complete);

		json_object_set_new(o, "client_files", json_integer(f->client_nr));
		json_object_set_new(o, "client_bytes", json_integer((json_int_t)f->client_bytes));
		if (f->client_why[0] != 0)
			json_object_set_new(o, "client_why", json_string(f->client_why));
		if (!f->complete)
			json_object_set_new(o, "why", json_string(f->why));
		json_array_append_new(list, o);
	}
	json_object_set_new(root, "checkpoints", list);
	ctl_print(root);
}

/* What stands behind the state: the files of trainers. */
static const char *client_text(char text[sizeof(((struct checkpoint_found *)0)->client_why) + 64],
			       const struct checkpoint_found *f)
{
	char size[CTL_NUMBER_BYTES];

	text[0] = 0;
	if (f->complete && f->client_why[0] != 0)
		sprintf(text, "; %s", f->client_why);
	else if (f->client_nr > 0)
		sprintf(text, ", with %u files of trainers (%s)", f->client_nr,
			ctl_bytes(size, (double)f->client_bytes));
	return text;
}

static void print_table(const struct checkpoint_found *found, uint32_t nr, bool verified)
{
	int tag = 3, model = 5;

	for (uint32_t i = 0; i < nr; i++) {
		tag = (int)strlen(found[i].tag) > tag ? (int)strlen(found[i].tag) : tag;
		model = (int)strlen(found[i].name) > model ? (int)strlen(found[i].name) : model;
	}
	printf("  %-*s %10s  %-*s %11s  %-20s  %s\n", tag, "TAG", "STEP", model, "MODEL", "SIZE",
	       "CREATED", "STATE");
	for (uint32_t i = 0; i < nr; i++) {
		const struct checkpoint_found *f = &found[i];
		char size[CTL_NUMBER_BYTES], text[sizeof(f->client_why) + 64];

		printf("%c %-*s %10llu  %-*s %11s  %-20s  %s%s\n", f->latest ? '*' : ' ', tag,
		       f->tag, (unsigned long long)f->step, model, f->name[0] ? f->name : "?",
		       ctl_bytes(size, (double)f->bytes), f->created[0] ? f->created : "?",
		       !f->complete ? f->why
		       : verified   ? "complete, verified"
				    : "complete",
		       client_text(text, f));
	}
	printf("%s\n", nr ? "* is what `latest` names"
			  : "no checkpoints; in a checkpoint_dir each model has a folder of its "
			    "own: name that");
}

enum ctl_exit ctl_checkpoints(const struct ctl_options *o)
{
	struct checkpoint_found *found;
	bool verify = o->value[VERIFY] != NULL, damage = false;
	struct err e;
	uint32_t nr;

	if (checkpoint_list(o->words[0], o->value[MODEL], &found, &nr, &e) != SHARD_OK)
		return ctl_fail(o, CTL_FAILED, "checkpoints: %s", e.text);
	if (verify)
		verify_all(o->words[0], found, nr);
	if (o->json)
		print_json(o->words[0], found, nr, verify);
	else
		print_table(found, nr, verify);
	for (uint32_t i = 0; i < nr; i++)
		damage |= !found[i].complete;
	free(found);
	return verify && damage ? CTL_FAILED : CTL_OK;
}
