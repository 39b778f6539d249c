/* SPDX-License-Identifier: Apache-2.0 */
/* manifest_scan.h: cuts a manifest's text into pieces without making values of it. It finds the
 * members of the one object, and one element of a list after the other. So a reader makes only
 * small pieces into JSON values, and its memory stays a small multiple of the text, whatever the
 * text holds. */
#ifndef SHARD_CKPT_MANIFEST_SCAN_H
#define SHARD_CKPT_MANIFEST_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SCAN_DEPTH_MAX  8  /* Depth of nested lists and objects. */
#define SCAN_VALUES_MAX 64 /* Values in a piece that is made into JSON values. */

struct scan_piece { /* Bytes of one value. at is NULL if there is none. */
	const char *at;
	size_t bytes;
	uint64_t values; /* Counts lists, objects, names of members and plain values. */
};

/* Finds the value at *at, after blanks, and moves *at to its end. False: there is no valid value
 * before end. */
bool scan_value(const char **at, const char *end, struct scan_piece *out);

struct scan_member {
	const char *key;
	struct scan_piece value;
};

/* Finds the members of the object that the whole text is. False: it is no object, or a wanted
 * member appears twice. Other members are passed over. */
bool scan_object(const char *text, size_t bytes, struct scan_member *members, uint32_t nr);

/* Counts the elements of a list. False: it is no list. */
bool scan_count(const struct scan_piece *list, uint64_t *nr);
/* The next element. *at is NULL before the first. False: there is none. Call scan_count() first,
 * which checks the list. */
bool scan_next(const struct scan_piece *list, const char **at, struct scan_piece *out);

#endif
