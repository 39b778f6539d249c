/* SPDX-License-Identifier: Apache-2.0 */
/* pace.h: how long a test may wait before it fails. A limit is written for a quiet machine of 2025,
 * and grows with how much longer a fixed piece of work takes here and now, so that neither a slow
 * machine nor one with other work fails a test. Nothing passes by waiting for such a limit: tests
 * wait for events, and the limit only ends those that hang. */
#ifndef SHARD_TESTS_PACE_H
#define SHARD_TESTS_PACE_H

#include <stdint.h>

/* Each of these measures for some 10 ms, unless that was done less than 5 s ago. Any thread may
 * call. */
uint64_t pace_ns(uint64_t quiet_ns); /* as much as quiet_ns of a quiet machine */
int pace_ms(int64_t quiet_ms);       /* the same, for poll(2) and for timeouts of the library */
uint64_t pace_by(uint64_t quiet_s);  /* the time by clock_ns() when quiet_s will have passed */

#endif
