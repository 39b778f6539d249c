/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl restore` restores a model from a checkpoint. A model that the daemons do not know is
 * defined as it was when it was saved. A model that has weights is refused without --force. With
 * --force its trainers go back to the saved step, too (SHARD_ROLLED_BACK). The daemon names what is
 * damaged, missing or of another model. --timeout bounds the time without progress, not the whole
 * restore. */
#include "ctl/json.h"
#include "ctl/saves.h"

#include <jansson.h>
#include <stdio.h>

enum { TAG, NAME, FORCE };

const struct argp_option ctl_restore_options[] = {
	{"tag", CTL_KEY + TAG, "TAG", 0, "which checkpoint (default: what DIR/latest names)", 0},
	{"name", CTL_KEY + NAME, "NAME", 0, "of the model (default: as it was saved)", 0},
	{"force", CTL_KEY + FORCE, NULL, 0,
	 "a model that has weights: they are given up, its trainers go back to the saved step", 0},
	{0},
};

static enum ctl_exit report(const struct ctl_options *o, const char *dir,
			    const struct ckpt_answer *a, double seconds)
{
	char bytes[CTL_NUMBER_BYTES], rate[CTL_NUMBER_BYTES], path[2 * SAVES_DIR_BYTES];

	snprintf(path, sizeof(path), "%s%s%s", dir, o->value[TAG] ? "/" : "",
		 o->value[TAG] ? o->value[TAG] : "");
	if (o->json)
		return ctl_print(json_pack("{s:s, s:s, s:I, s:I, s:f}", "name", a->name, "path",
					   path, "step", (json_int_t)a->step, "bytes",
					   (json_int_t)a->bytes, "seconds", seconds));
	printf("\"%s\" is at step %llu: %s from %s in %.1f s (%s/s)\n", a->name,
	       (unsigned long long)a->step, ctl_bytes(bytes, (double)a->bytes), path, seconds,
	       ctl_bytes(rate, seconds > 0 ? (double)a->bytes / seconds : 0));
	return CTL_OK;
}

enum ctl_exit ctl_restore(const struct ctl_options *o)
{
	char memory[SAVES_DIR_BYTES];
	const char *dir = saves_dir(memory, o->words[0]);
	struct ckpt_ask ask = {.name = o->value[NAME],
			       .dir = dir,
			       .tag = o->value[TAG],
			       .force = o->value[FORCE] != NULL};
	struct ckpt_answer answer;
	double seconds;
	enum ctl_exit exit = saves_run(o, true, &ask, &answer, &seconds);

	return exit == CTL_OK ? report(o, dir, &answer, seconds) : exit;
}
