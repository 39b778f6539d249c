/* SPDX-License-Identifier: Apache-2.0 */
/* json.h: what daemons answer in JSON, for the subcommands that print it. */
#ifndef SHARD_CTL_JSON_H
#define SHARD_CTL_JSON_H

#include "ctl/ctl.h"

#include <jansson.h>

/* The number in each object that shardctl prints. It grows when a key changes its meaning or goes.
 */
enum { CTL_FORMAT = 1 };

/* The one printer of --json. Prints an object in one line, and its "format" first. Takes the
 * reference of o. NULL says that there was no memory. */
enum ctl_exit ctl_print(json_t *o);
/* The object of an error: its text, and the name of the exit code. */
void ctl_print_error(const char *text, enum ctl_exit exit);

/* A field of an object. "" and 0 where an older or newer daemon does not send it. The text is the
 * object's. */
const char *ctl_text(const json_t *o, const char *key);
long long ctl_whole(const json_t *o, const char *key);

/* What the chunks of a model that move wait for, or why they cannot, from its status. NULL: nothing
 * moves. Only the coordinator knows more than that they move. */
const char *ctl_moving(const json_t *model);

/* Asks the daemon for its status. The caller gives *out back with json_decref(). SHARD_PROTOCOL:
 * the answer is no JSON. The others are as of ctl_ask(). */
enum shard_status ctl_ask_status(const struct ctl_options *o, json_t **out, struct err *e);

#endif
