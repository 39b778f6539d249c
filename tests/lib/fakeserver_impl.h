/* SPDX-License-Identifier: Apache-2.0 */
/* fakeserver_impl.h: what the sources of the scripted daemon share. All of it is called with the
 * lock held. */
#ifndef SHARD_TESTS_FAKESERVER_IMPL_H
#define SHARD_TESTS_FAKESERVER_IMPL_H

#include "lib/fakeserver.h"

extern const struct stream_handler fake_handler; /* owner: struct fake */
void fake_control(struct fake *f, const struct wire_head *h, const ProtobufCMessage *msg);
void fake_send_attempt(struct fake *f, const char *why);
void fake_decide(struct fake *f);
void fake_answer_save(struct fake *f, const struct wire_head *h, enum shard_status st,
		      const char *text);
/* --- fakeserver_life.c --- */
void fake_on_attach(struct fake *f, const struct wire_head *h, const void *body);
void fake_on_manage(struct fake *f, const struct wire_head *h, const void *body);
void fake_on_status(struct fake *f, const struct wire_head *h, const void *body);
/* --- fakeserver_image.c --- */
char *fake_arena(struct fake *f); /* The arena of the step in hand. */
void fake_map(struct fake *f);
void fake_unjoin(struct fake *f);
/* Publishes the chunks of the committed step: in the shared memory, or as parts over tcp. */
void fake_publish(struct fake *f);
void fake_apply(struct fake *f);
void fake_decided(struct fake *f, bool applied); /* f->step is the decided step. */
void fake_roll_back(struct fake *f, uint64_t step, const char *why);

#endif
