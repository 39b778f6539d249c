/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl save` asks the daemons for a checkpoint of a model and shows how far they are. Training
 * goes on meanwhile. saves_run() in this file serves `shardctl restore`, too. It fails with the
 * daemon's sentence (for example a path with ENOSPC, or a model without weights) and the exit code
 * for its status. --timeout bounds the time without progress, not the whole save. */
#include "ctl/json.h"
#include "ctl/saves.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DIR_OPTION, TAG, FORCE, CLIENT };

const struct argp_option ctl_save_options[] = {
	{"dir", CTL_KEY + DIR_OPTION, "DIR", 0,
	 "shared by all nodes (default: the model's checkpoint_dir)", 0},
	{"tag", CTL_KEY + TAG, "TAG", 0, "name of the checkpoint (default: global_stepN)", 0},
	{"client", CTL_KEY + CLIENT, "FOLDER", 0,
	 "your folder of plain files that become client/ of the checkpoint", 0},
	{"force", CTL_KEY + FORCE, NULL, 0, "replace a checkpoint of that tag whatever its step is",
	 0},
	{0},
};

void saves_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
	struct bar *b = arg;

	bar_total(b, total_bytes);
	bar_set(b, done_bytes);
}

const char *saves_dir(char out[SAVES_DIR_BYTES], const char *dir)
{
	char here[SAVES_DIR_BYTES];

	if (dir == NULL || dir[0] == '/' || getcwd(here, sizeof(here)) == NULL)
		return dir;
	return snprintf(out, SAVES_DIR_BYTES, "%s/%s", here, dir) < SAVES_DIR_BYTES ? out : dir;
}

enum ctl_exit saves_connect(const struct ctl_options *o, shard_client **c)
{
	struct shard_connect_opts opts = SHARD_INIT(struct shard_connect_opts);
	enum shard_status rc;

	opts.address = o->address;
	opts.secret = o->secret;
	opts.tls = o->tls;
	opts.timeout_ms = (int64_t)(o->timeout_ns / NS_PER_MS) + 1;
	rc = shard_connect(c, &opts);
	return rc == SHARD_OK ? CTL_OK : ctl_fail_as(o, rc, "", shard_error());
}

enum shard_status saves_ask_json(shard_client *c, uint16_t op, const ProtobufCMessage *msg,
				 const struct ckpt_ask *ask, json_t **out)
{
	struct request *r = request_new(c, op, 0);
	enum shard_status rc = r != NULL ? SHARD_OK : SHARD_SYSTEM;
	Shard__Text *t = NULL;
	struct wait w;

	wait_begin(c, &w, ask->timeout_ms);
	if (rc == SHARD_OK)
		rc = request_send(r, (struct wire_head){0}, msg, &w);
	if (rc == SHARD_OK)
		rc = ckpt_answer_wait(r, ask, &w);
	if (rc == SHARD_TIMEOUT)
		text_fail(rc, "\"%s\" waited %.1f s without a word from shardd at %s", ask->name,
			  wait_seconds(&w), c->address);
	if (rc == SHARD_OK && (t = shard__text__unpack(NULL, r->body_bytes, r->body)) != NULL)
		*out = json_loads(t->text, 0, NULL);
	if (rc == SHARD_OK && !json_is_object(*out))
		rc = text_fail(SHARD_PROTOCOL, "shardd at %s answered %s with what cannot be read",
			       c->address, wire_op(op)->name);
	if (t != NULL)
		shard__text__free_unpacked(t, NULL);
	request_free(r);
	return rc;
}

int64_t saves_silence_ms(const struct ctl_options *o)
{
	return o->timeout_given ? (int64_t)(o->timeout_ns / NS_PER_MS) + 1 : SAVES_SILENCE_MS;
}

enum ctl_exit saves_run(const struct ctl_options *o, bool restore, struct ckpt_ask *ask,
			struct ckpt_answer *answer, double *seconds)
{
	const char *what = restore ? "restore" : "save";
	uint64_t began = clock_ns();
	shard_client *c = NULL;
	enum ctl_exit exit = saves_connect(o, &c);
	enum shard_status rc;
	struct bar bar;

	if (exit != CTL_OK)
		return exit;
	ask->timeout_ms = saves_silence_ms(o);
	ask->progress = o->json ? NULL : saves_progress;
	ask->arg = &bar;
	bar_init(&bar, what, 0, isatty(STDERR_FILENO) == 1);
	pthread_mutex_lock(&c->lock);
	rc = restore ? ckpt_restore(c, ask, answer, NULL) : ckpt_save(c, ask, answer);
	pthread_mutex_unlock(&c->lock);
	bar_done(&bar);
	*seconds = (double)(clock_ns() - began) / 1e9;
	if (rc != SHARD_OK)
		exit = ctl_fail_as(o, rc, what, shard_error());
	shard_disconnect(&c);
	return exit;
}

static enum ctl_exit report(const struct ctl_options *o, const struct ckpt_answer *a,
			    double seconds)
{
	char bytes[CTL_NUMBER_BYTES], rate[CTL_NUMBER_BYTES], shared[CTL_NUMBER_BYTES];

	if (o->json)
		return ctl_print(json_pack("{s:s, s:s, s:I, s:I, s:I, s:f, s:f}", "name",
					   o->words[0], "path", a->path, "step",
					   (json_int_t)a->step, "bytes", (json_int_t)a->bytes,
					   "shared_bytes", (json_int_t)a->shared_bytes, "seconds",
					   seconds, "hold_seconds", (double)a->hold_ns / 1e9));
	printf("%s: step %llu of \"%s\", %s in %.1f s (%s/s)", a->path, (unsigned long long)a->step,
	       o->words[0], ctl_bytes(bytes, (double)a->bytes), seconds,
	       ctl_bytes(rate, seconds > 0 ? (double)a->bytes / seconds : 0));
	if (a->shared_bytes > 0)
		printf(", of which %s are as they were and shared with the checkpoint before",
		       ctl_bytes(shared, (double)a->shared_bytes));
	printf("; training was held for %.3f s\n", (double)a->hold_ns / 1e9);
	return CTL_OK;
}

enum ctl_exit ctl_save(const struct ctl_options *o)
{
	char dir[SAVES_DIR_BYTES], client[SAVES_DIR_BYTES];
	struct ckpt_ask ask = {.name = o->words[0],
			       .dir = saves_dir(dir, o->value[DIR_OPTION]),
			       .tag = o->value[TAG],
			       .client = saves_dir(client, o->value[CLIENT]),
			       .fresh = o->value[FORCE] == NULL};
	struct ckpt_answer answer;
	double seconds;
	enum ctl_exit exit = saves_run(o, false, &ask, &answer, &seconds);

	return exit == CTL_OK ? report(o, &answer, seconds) : exit;
}
