/* SPDX-License-Identifier: Apache-2.0 */
/* value.h: values that people write: numbers, yes and no, sizes and times with their units. A
 * parser takes the whole text or returns false and leaves *out alone. It writes no error text,
 * because only its caller knows what the value was for. */
#ifndef SHARD_CONFIG_VALUE_H
#define SHARD_CONFIG_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VALUE_TEXT_BYTES 40 /* Room for what a value_*_text() function writes. */

bool value_u64(const char *text, uint64_t *out);   /* Decimal digits and nothing else. */
bool value_count(const char *text, uint64_t *out); /* The same, or with Ki, Mi or Gi behind it. */
bool value_double(const char *text, double *out);  /* Finite and decimal. */
bool value_bool(const char *text, bool *out);      /* yes, no, true, false, on, off, 1 or 0. */
bool value_bytes(const char *text, uint64_t *out); /* With B, KiB, MiB, GiB or TiB. */
bool value_duration(const char *text, uint64_t *out); /* With ns, us, ms, s, min or h; in ns. */
bool value_octal(const char *text, uint32_t *out);    /* Three or four octal digits. */
bool value_name(const char *text);                    /* 1 to 64 of a-z 0-9 . _ - */

/* Sizes and times are written in the largest unit that is exact. A number gets the fewest digits
 * that read back as the same bits. */
void value_bytes_text(char out[VALUE_TEXT_BYTES], uint64_t bytes);
void value_duration_text(char out[VALUE_TEXT_BYTES], uint64_t ns);
void value_double_text(char out[VALUE_TEXT_BYTES], double x);

#endif
