/* SPDX-License-Identifier: Apache-2.0 */
/* value.h: values that people write: numbers, yes and no, sizes and times with their units. Each parser takes the whole text or
 * refuses it, without a sentence: the caller knows what it was for. Shared by config.c and settings.c. */
#ifndef SHARD_VALUE_H
#define SHARD_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define VALUE_TEXT_BYTES 40 /* of what value_*_text writes */

bool value_u64(const char *text, uint64_t *out);     /* decimal digits only */
bool value_count(const char *text, uint64_t *out);   /* the same, or with Ki, Mi, Gi */
bool value_double(const char *text, double *out);    /* finite, decimal */
bool value_bool(const char *text, bool *out);        /* yes no true false on off 1 0 */
bool value_bytes(const char *text, uint64_t *out);   /* unit required: B KiB MiB GiB TiB; 1.5GiB is fine */
bool value_duration(const char *text, uint64_t *ns); /* unit required: ns us ms s min h */
bool value_octal(const char *text, uint32_t *out);   /* 0660 */
bool value_name(const char *text);                   /* [a-z0-9._-]{1,64} */

void value_bytes_text(char out[VALUE_TEXT_BYTES], uint64_t bytes); /* in the largest unit that is exact */
void value_duration_text(char out[VALUE_TEXT_BYTES], uint64_t ns);
void value_double_text(char out[VALUE_TEXT_BYTES], double x); /* shortest that reads back as x */

/* The candidate that a mistyped word most likely meant; NULL: none is near. candidate(arg, i) is NULL at the end. */
const char *value_nearest(const char *word, const char *(*candidate)(void *arg, uint32_t i), void *arg);

/* One option of --help: the key, then the text in a column of its own, in lines that no terminal has to break. */
void value_help(FILE *out, const char *key, const char *text);

#endif
