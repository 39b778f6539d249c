/* SPDX-License-Identifier: Apache-2.0 */
/* pace.h: says how long a test may wait before it fails. A limit is written for a quiet machine of
 * 2025. It grows with the time that a fixed piece of work takes here and now, so that neither a
 * slow machine nor one with other work fails a test. No test passes by waiting for such a limit.
 * Tests wait for events, and the limit only ends a test that hangs. */
#ifndef SHARD_TESTS_PACE_H
#define SHARD_TESTS_PACE_H

#include <stdint.h>

/* Each of these measures for some 10 ms, unless that was done less than 5 s ago. Any thread may
 * call them. */
uint64_t pace_ns(uint64_t quiet_ns); /* As much as quiet_ns of a quiet machine. */
int pace_ms(int64_t quiet_ms);       /* The same, for poll(2) and for timeouts of the library. */
uint64_t pace_by(uint64_t quiet_s);  /* The clock_ns() at which quiet_s will have passed. */

#endif
