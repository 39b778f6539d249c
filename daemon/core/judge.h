/* SPDX-License-Identifier: Apache-2.0 */
/* judge.h: what follows when votes for copies differ (odd.h). Private to daemon/core. */
#ifndef SHARD_CORE_JUDGE_H
#define SHARD_CORE_JUDGE_H

#include "core/ctx.h"

void judge_votes(struct ctx *x);        /* Ends an attempt in which they differ. */
void judge_settle(struct ctx *x);       /* Tells who is odd, once no view needs its copies. */
void judge_repeat(struct ctx *x);       /* Tells it again. */
bool judge_tells(const struct core *c); /* Is there somebody to be told again? */
/* Does no step begin because of it? If so, judge_waits() says why. */
bool judge_blocks(const struct core *c);
const char *judge_waits(const struct core *c);

#endif
