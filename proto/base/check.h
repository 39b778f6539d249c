/* SPDX-License-Identifier: Apache-2.0 */
/* check.h: CHECK(x) states what only an error in this program can break. It is always compiled in,
 * and its expression has no side effects. What a peer, a disk or an operator can cause is a status
 * (status.h), never a CHECK. */
#ifndef SHARD_BASE_CHECK_H
#define SHARD_BASE_CHECK_H

__attribute__((noreturn, cold)) void check_failed(const char *what, const char *file, int line);

#define CHECK(x) (__builtin_expect(!!(x), 1) ? (void)0 : check_failed(#x, __FILE__, __LINE__))

#define BIT(n)    (1u << (n))
#define NR(array) (sizeof(array) / sizeof((array)[0]))

#endif
