/* SPDX-License-Identifier: Apache-2.0 */
/* register.h: says whether a history of a register is linearizable. The register holds a value with
 * a number and replaces it by compare-and-swap on that number. The checker knows nothing of how the
 * register works. It is for tests of membership sources. */
#ifndef SHARD_TESTS_REGISTER_H
#define SHARD_TESTS_REGISTER_H

#include <stddef.h>
#include <stdint.h>

enum register_kind {
	REGISTER_WRITE, /* Replace the value of .expect by one that .writer marks. */
	REGISTER_READ,  /* .seq and .writer were read. */
	/* .seq and .writer were told at .returned, without a question. They may be old. */
	REGISTER_TOLD,
};

enum register_how {
	REGISTER_OPEN,     /* No answer has come, so it may have happened or may happen later. */
	REGISTER_DONE,     /* It happened between call and return. */
	REGISTER_CONFLICT, /* The number was another one at some moment between. It never happens.
			    */
	REGISTER_REFUSED,  /* It never happens. */
};

struct register_op {
	enum register_kind kind;
	enum register_how how;
	uint64_t called, returned; /* Nanoseconds of one clock. */
	uint64_t expect;           /* Of a write. */
	uint64_t seq;              /* Of a read, and of what was told. 0: there was no value. */
	uint64_t writer;           /* Unique for each write. */
};

/* NULL: the history is linearizable. Otherwise text, which says what contradicts it. The first
 * value may be one that nobody in the history wrote. CONFLICT is judged for each alone. */
const char *register_check(const struct register_op *ops, size_t nr, char text[256]);

#endif
