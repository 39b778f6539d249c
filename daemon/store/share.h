/* SPDX-License-Identifier: Apache-2.0 */
/* share.h: what a rank has of a segment whose gradient the ranks of its node have reduced among
 * themselves. Shares of a segment do not overlap, and together they are all of it. */
#ifndef SHARD_STORE_SHARE_H
#define SHARD_STORE_SHARE_H

#include <stdint.h>

#define SHARE_WHOLE UINT32_MAX

struct share {
	uint32_t start, n; /* n = SHARE_WHOLE: there are no shares of the segment. */
};

#endif
