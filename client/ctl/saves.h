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
	5000000000ull /* the default of --timeout: meant for questions, not for bytes */

const char *saves_dir(char out[SAVES_DIR_BYTES],
		      const char *dir); /* as seen from /: daemons have folders of their own */
/* Connects and asks, with a bar unless --json: seconds is what all of it took. ask's silence and
 * progress are set here; what goes wrong is printed. */
enum ctl_exit saves_run(const struct ctl_options *o, bool restore, struct ckpt_ask *ask,
			struct ckpt_answer *answer, double *seconds);
enum ctl_exit saves_print(json_t *j); /* takes it over; NULL: no memory */

#endif
