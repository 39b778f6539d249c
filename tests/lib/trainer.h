/* SPDX-License-Identifier: Apache-2.0 */
/* trainer.h: the steps of the public API that tests repeat, with a small model: connect, define,
 * write, seal and join. */
#ifndef SHARD_TESTS_TRAINER_H
#define SHARD_TESTS_TRAINER_H

#include "shard.h"

enum {
	TRAINER_TENSORS = 4
}; /* "wte" [30, 100], "h.0.ln_1.weight" [7], "h.0.attn.weight" [50, 50], "ln_f.weight" [1]. */

/* Two entries of a table of tests. *state is NULL in the first one, which uses a unix socket, and
 * not NULL in the second one, which uses tcp. */
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
/* Each of these reaches its state, or fails the test with the library's sentence. */
void trainer_connect(struct trainer *t, const char *address);
/* A trainer that created the model also writes it and seals it at step 0. */
void trainer_define(struct trainer *t, const char *address, enum shard_dtype image,
		    enum shard_dtype grad);
/* The same with a spec that trainer_spec() filled and the test changed, except the tensors. */
void trainer_define_as(struct trainer *t, const char *address, const struct shard_spec *s);
void trainer_join(struct trainer *t, const char *address, enum shard_dtype image,
		  enum shard_dtype grad);
/* Its connection is not made again where it breaks, unless a test says how long to look. */
void trainer_looks(struct trainer *t, uint64_t ns);
/* Its connection breaks while the daemon lives on, and is made again. After trainer_looks(). */
void trainer_cut(struct trainer *t);
void trainer_begin(struct trainer *t);
/* Pushes `value` for every element, from memory of its own. */
void trainer_push_all(struct trainer *t, float value);
float trainer_image_at(struct trainer *t, enum shard_dtype image, uint32_t tensor, uint64_t i);
/* Every weight must be `minus` less than what was written. */
void trainer_check_image(struct trainer *t, enum shard_dtype image, float minus);
void trainer_end(struct trainer *t);
float trainer_weight(uint32_t tensor, uint64_t i); /* What trainer_define() wrote. */

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

/* Expects a sentence with a time in it: "BEFORE waited N.N s AFTER". How long the wait was depends
 * on the machine. */
#define EXPECT_TEXT_AROUND(before, after)                                                          \
	do {                                                                                       \
		size_t text_ = strlen(shard_error()), after_ = strlen(after);                      \
		if (strncmp(shard_error(), (before), strlen(before)) != 0 || text_ < after_ ||     \
		    strcmp(shard_error() + text_ - after_, (after)) != 0)                          \
			fail_msg("\"%s\" is not \"%s...%s\"", shard_error(), (before), (after));   \
	} while (0)

#endif
