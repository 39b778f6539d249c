/* SPDX-License-Identifier: Apache-2.0 */
/* waits.h: whom or what a model waits for, in words, as far as this node knows it. */
#ifndef SHARD_OBS_WAITS_H
#define SHARD_OBS_WAITS_H

#include "base/status.h"
#include "wire/frame.h"

#include <jansson.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>

struct contrib_rank;
struct model;
struct session;

/* "rank 2 (pid 4411, node b): 14 of 96 chunks pushed". Empty: nobody is known. */
void waits_words(const struct model *m, char *out, size_t bytes);
/* The same for people who look at the model. It also says which step waits, and for how long. */
void waits_sentence(const struct model *m, char *out, size_t bytes);
/* Does the next step wait for min_world trainers, as far as this node knows? */
bool waits_too_few(const struct model *m);
/* Does the rank wait for the image, so that it cannot compute yet? */
bool waits_starved(const struct model *m, const struct contrib_rank *g);
/* WAITS of a session. */
enum shard_status waits_request(struct session *t, const struct wire_head *h,
				const ProtobufCMessage *msg, struct err *e);
/* Adds "awaited": a node that is away, with copies that no other one has. */
void waits_awaited_json(json_t *o, const struct model *m);

#endif
