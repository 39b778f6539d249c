/* SPDX-License-Identifier: Apache-2.0 */
/* sanitized.h: whether a sanitizer watches this test. A test that tries each byte or each call
 * tries fewer of them then: the sanitizer looks for mistakes in code, and the plain build tries
 * all cases. */
#ifndef SHARD_TESTS_SANITIZED_H
#define SHARD_TESTS_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

#endif
