/* SPDX-License-Identifier: Apache-2.0 */
/* ports.h: TCP ports of 127.0.0.1 and 127.0.0.2 for daemons of tests. */
#ifndef SHARD_TESTS_PORTS_H
#define SHARD_TESTS_PORTS_H

#include <stdint.h>

/* A port that no other test process of this user gets while this process or a child that it forked
 * lives, and that no outgoing connection is given. Nobody listens there now. */
uint16_t ports_take(void);

#endif
