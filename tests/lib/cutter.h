/* SPDX-License-Identifier: Apache-2.0 */
/* cutter.h: stands on every link between the nodes of a cluster, knows whose link it is and which
 * frames pass, and cuts one link right after a certain frame has passed, or instead of it. So a
 * test says in which phase of an operation a link blinks, and waits for no time to pass. */
#ifndef SHARD_TESTS_CUTTER_H
#define SHARD_TESTS_CUTTER_H

#include "lib/proc.h"

#include <stdbool.h>
#include <stdint.h>

struct cutter; /* opaque */

struct cutter_rule {
	int low, high;         /* when a frame passes on the link of these nodes, by index, */
	uint16_t op;           /* of this op */
	bool reply;            /* that is an answer, or is not, */
	uint32_t nth;          /* and is the nth such frame since the rule was given; from 1 */
	int cut_low, cut_high; /* then this link is cut */
	bool hold;             /* and all others stand still until it is back and has been used */
	bool instead; /* the frame does not pass, and the link stays cut until there is another rule
		       */
};

/* Between cluster_make() and the first cluster_spawn(). */
struct cutter *cutter_start(struct cluster *c);
void cutter_rule(struct cutter *k,
		 const struct cutter_rule *r); /* instead of the one before; NULL: none */
bool cutter_fired(struct cutter *k);           /* since the rule was given */
void cutter_stop(struct cutter **k);

#endif
