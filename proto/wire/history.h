/* SPDX-License-Identifier: Apache-2.0 */
/* history.h: the bytes of a node's history of a model, in its files and in HISTORY. They are
 * entries, each with a head. README.md beside this file says what an entry holds. A reader takes
 * hostile bytes: what is not a whole entry is said to be cut or damaged, and reading can go on
 * behind it. Nothing here allocates. */
#ifndef SHARD_WIRE_HISTORY_H
#define SHARD_WIRE_HISTORY_H

#include <stddef.h>
#include <stdint.h>

#define HISTORY_MAGIC      0x45485348u /* "HSHE" in memory order. */
#define HISTORY_HEAD_BYTES 24
#define HISTORY_BODY_MAX   (64u << 10)

/* The kinds of a HistoryEntry. */
enum history_kind {
	HISTORY_MODEL = 1, /* What the model is. Each file begins with it. */
	HISTORY_START,     /* This node has the model from here on: it was made, or taken up. */
	HISTORY_VIEW,      /* A view is adopted here. */
	HISTORY_STEP,      /* A step is decided here. */
	HISTORY_SEAL,      /* The model is sealed here: written, or restored from .text. */
	HISTORY_LOST,      /* A generation begins, because of .text. */
	HISTORY_SAVED,     /* The coordinator: step .last was saved to .text. */
	HISTORY_GAP,       /* What is missing here because it could not be written, and why. */
	HISTORY_CUT,       /* A start found an end that was half written, and cut it off. */
	HISTORY_KINDS
};
const char *history_kind_name(uint32_t kind); /* "step"; NULL: there is no such kind. */

enum history_found {
	HISTORY_WHOLE,   /* An entry. */
	HISTORY_SHORT,   /* The bytes end within an entry, or there are none. */
	HISTORY_DAMAGED, /* They do not begin with an entry. */
};

struct history_entry {
	uint64_t number; /* They count up over all files of a node's history of a model. */
	const unsigned char *body; /* In the bytes that were given: a packed HistoryEntry. */
	uint32_t body_bytes;
	size_t bytes; /* Of all of the entry. */
};

/* Looks at the entry with which these bytes begin. out is filled only if it is whole. */
enum history_found history_next(const void *at, size_t bytes, struct history_entry *out);
/* Looks for a whole entry behind the first byte, which is damaged. Returns how many bytes come
 * before it, or all of them if there is none. */
size_t history_resync(const void *at, size_t bytes);
/* Writes the head of the body that lies HISTORY_HEAD_BYTES behind `to`. body_bytes is from 1 to
 * HISTORY_BODY_MAX. */
void history_seal(void *to, uint64_t number, uint32_t body_bytes);

#endif
