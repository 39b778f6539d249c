/* SPDX-License-Identifier: Apache-2.0 */
/* saves.h: what the subcommands share that ask the daemons for something that takes a while: save,
 * restore, verify, drain and rebalance. */
#ifndef SHARD_CTL_SAVES_H
#define SHARD_CTL_SAVES_H

#include "ckpt.h"
#include "ctl/bar.h"
#include "ctl/ctl.h"

#include <jansson.h>

enum { SAVES_DIR_BYTES = 1024, SAVES_SILENCE_MS = 300000 };

/* Makes dir absolute, because a daemon has another working directory. */
const char *saves_dir(char out[SAVES_DIR_BYTES], const char *dir);
/* Connects and sends the request, and shows a bar unless --json is given. It sets the timeout and
 * the progress callback of ask itself, and prints what goes wrong. *seconds is the time of all of
 * it. */
enum ctl_exit saves_run(const struct ctl_options *o, bool restore, struct ckpt_ask *ask,
			struct ckpt_answer *answer, double *seconds);
/* Connects within --timeout, or prints why not. */
enum ctl_exit saves_connect(const struct ctl_options *o, shard_client **c);
/* Makes one request whose answer is a JSON object, which the caller frees. Call it with the
 * client's lock. ask has the name for texts, and how long there may be no sign of life. */
enum shard_status saves_ask_json(shard_client *c, uint16_t op, const ProtobufCMessage *msg,
				 const struct ckpt_ask *ask, json_t **out);
/* How long an answer may take without a sign of life: --timeout, or SAVES_SILENCE_MS where it is
 * not given. */
int64_t saves_silence_ms(const struct ctl_options *o);
void saves_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* arg: a bar. */

#endif
