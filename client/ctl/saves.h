/* SPDX-License-Identifier: Apache-2.0 */
/* saves.h: what `shardctl save` and `shardctl restore` share. */
#ifndef SHARD_CTL_SAVES_H
#define SHARD_CTL_SAVES_H

#include "ckpt.h"
#include "ctl/bar.h"
#include "ctl/ctl.h"

#include <jansson.h>

enum { SAVES_DIR_BYTES = 1024, SAVES_SILENCE_MS = 300000 };
#define CTL_TIMEOUT_NS                                                                             \
	5000000000ull /* The default of --timeout. It is for short questions, so SAVES_SILENCE_MS  \
			 replaces it here. */

/* Makes dir absolute, because a daemon has another working directory. */
const char *saves_dir(char out[SAVES_DIR_BYTES], const char *dir);
/* Connects and sends the request, and shows a bar unless --json is given. It sets the timeout and
 * the progress callback of ask itself, and prints what goes wrong. *seconds is the time of all of
 * it. */
enum ctl_exit saves_run(const struct ctl_options *o, bool restore, struct ckpt_ask *ask,
			struct ckpt_answer *answer, double *seconds);
enum ctl_exit saves_print(json_t *j); /* Frees j. NULL says that there was no memory. */

#endif
