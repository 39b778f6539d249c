/* SPDX-License-Identifier: Apache-2.0 */
/* refcode.h: what codes stand for, as the specification says it (wire/ARITHMETIC.md, section 2a),
 * written once more for the reference and for tests. */
#ifndef REF_CODE_H
#define REF_CODE_H

#include <stdint.h>

/* Replaces the n elements of a segment by what their codes stand for: integers of at most `most` in
 * blocks with one scale each. lost: gets what is lost, as bf16; NULL: it is lost. */
void refcode(float *x, uint16_t *lost, uint64_t n, float most, uint64_t block);

#endif
