/* SPDX-License-Identifier: Apache-2.0 */
/* trainer.h: the public API in steps that tests repeat: a small model, connected, written, sealed,
 * joined. */
#ifndef SHARD_TESTS_TRAINER_H
#define SHARD_TESTS_TRAINER_H

#include "shard.h"

enum {
	TRAINER_TENSORS = 4
}; /* "wte" [30, 100], "h.0.ln_1.weight" [7], "h.0.attn.weight" [50, 50], "ln_f.weight" [1] */

/* Two entries of a table of tests: *state is NULL in the first, which is for a socket, and not in
 * the second, over tcp. */
#define OVER_BOTH(fn)                                                                              \
	{#fn " unix", fn, NULL, NULL, NULL},                                                       \
	{                                                                                          \
#fn " tcp", fn, NULL, NULL, (void *)1                                              \
	}

struct trainer {
	shard_client *client;
	shard_model *model;
	int created;
	struct shard_world world;
	struct shard_step step;
};

extern const uint64_t trainer_numel[TRAINER_TENSORS];
void trainer_spec(struct shard_spec *s, enum shard_dtype image, enum shard_dtype grad);
/* The reached state, or a failed test with the sentence. */
void trainer_connect(struct trainer *t, const char *address);
void trainer_define(struct trainer *t, const char *address, enum shard_dtype image,
		    enum shard_dtype grad); /* created: writes and seals at 0 */
/* The same with what trainer_spec() filled and the test changed, but for the tensors. */
void trainer_define_as(struct trainer *t, const char *address, const struct shard_spec *s);
void trainer_join(struct trainer *t, const char *address, enum shard_dtype image,
		  enum shard_dtype grad);
void trainer_begin(struct trainer *t);
void trainer_push_all(struct trainer *t,
		      float value); /* every element value, from memory of its own */
float trainer_image_at(struct trainer *t, enum shard_dtype image, uint32_t tensor, uint64_t i);
void trainer_check_image(struct trainer *t, enum shard_dtype image,
			 float minus); /* every weight is minus less than written */
void trainer_end(struct trainer *t);
float trainer_weight(uint32_t tensor, uint64_t i); /* what trainer_define() wrote */

#define EXPECT(st, call)                                                                           \
	do {                                                                                       \
		enum shard_status expect_ = (call);                                                \
		if (expect_ != (st))                                                               \
			fail_msg("%s: %s: %s, expected %s", #call, shard_name(expect_),            \
				 shard_error(), shard_name(st));                                   \
	} while (0)
#define EXPECT_TEXT(part)                                                                          \
	do {                                                                                       \
		if (strstr(shard_error(), (part)) == NULL)                                         \
			fail_msg("\"%s\" is not in \"%s\"", (part), shard_error());                \
	} while (0)

/* A sentence with a time in it: "BEFORE waited N.N s AFTER"; how long it took is the machine's
 * business. */
#define EXPECT_TEXT_AROUND(before, after)                                                          \
	do {                                                                                       \
		size_t text_ = strlen(shard_error()), after_ = strlen(after);                      \
		if (strncmp(shard_error(), (before), strlen(before)) != 0 || text_ < after_ ||     \
		    strcmp(shard_error() + text_ - after_, (after)) != 0)                          \
			fail_msg("\"%s\" is not \"%s...%s\"", shard_error(), (before), (after));   \
	} while (0)

#endif
