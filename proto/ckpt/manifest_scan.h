/* SPDX-License-Identifier: Apache-2.0 */
/* manifest_scan.h: a manifest's text cut into pieces, without making anything of it: which member
 * of the one object is where, and one element of a list after the other. So a reader makes only
 * small pieces into JSON values, and its memory stays a small multiple of the text, whatever that
 * holds. */
#ifndef SHARD_CKPT_MANIFEST_SCAN_H
#define SHARD_CKPT_MANIFEST_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SCAN_DEPTH_MAX  8  /* of lists and objects in each other */
#define SCAN_VALUES_MAX 64 /* in a piece that is made into JSON values */

struct scan_piece { /* bytes of one value; at NULL: there is none */
	const char *at;
	size_t bytes;
	uint64_t values; /* lists, objects, their members' names, and what is neither */
};

/* A piece at or behind *at, which moves behind it. False: there is none that can be, before end. */
bool scan_value(const char **at, const char *end, struct scan_piece *out);

struct scan_member {
	const char *key;
	struct scan_piece value;
};

/* The members of the object that text is, all of it. False: it is none, or names one twice. Members
 * that are not asked for are passed over. */
bool scan_object(const char *text, size_t bytes, struct scan_member *members, uint32_t nr);

/* Elements of a list, *nr of them. False: it is no list. */
bool scan_count(const struct scan_piece *list, uint64_t *nr);
/* The next one; *at is NULL before the first. False: there is none. CHECK: scan_count() took it. */
bool scan_next(const struct scan_piece *list, const char **at, struct scan_piece *out);

#endif
