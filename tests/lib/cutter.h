/* SPDX-License-Identifier: Apache-2.0 */
/* cutter.h: stands between the nodes of a cluster on every link. It knows whose link it is and
 * which frames pass, and it cuts one link right after a certain frame has passed, or instead of
 * that frame. It also loses votes, or all frames with one op. So a test says in which phase of an
 * operation a link breaks or a node dies, and need not wait for time to pass. */
#ifndef SHARD_TESTS_CUTTER_H
#define SHARD_TESTS_CUTTER_H

#include "lib/proc.h"
#include "wire/frame.h"

#include <stdbool.h>
#include <stdint.h>

struct cutter; /* Opaque. */

struct cutter_rule {
	int low, high; /* The rule waits for a frame on the link of these nodes, by index. */
	uint16_t op;   /* The frame has this op. */
	bool reply;    /* Whether the frame is an answer. */
	uint32_t nth;  /* It is the nth such frame since the rule was given, from 1. */
	int cut_low, cut_high; /* The link that is cut when that frame comes. */
	bool hold; /* All other links stand still until this one is back and has been used. */
	/* The frame does not pass, and the link stays cut until another rule is given. */
	bool instead;
};

/* Called between cluster_make() and the first cluster_spawn(). */
struct cutter *cutter_start(struct cluster *c);
/* Replaces the rule. NULL: no rule. */
void cutter_rule(struct cutter *k, const struct cutter_rule *r);
/* While pass is false, no VOTE arrives anywhere, so that the nodes that have voted stay PREPARED. A
 * node repeats its vote, so that it arrives after pass is true again. */
void cutter_votes(struct cutter *k, bool pass);
/* From now on no frame with this op passes between nodes, and those with any other do again. 0: all
 * pass. */
void cutter_lose(struct cutter *k, uint16_t op);
/* Each frame that passes between two nodes, by their indices. It is called by the thread of the
 * cutter, and body is valid during the call. NULL: nobody watches any more, and no call is running
 * when this returns. */
typedef void cutter_seen(void *arg, int from, int to, const struct wire_head *h, const void *body);
void cutter_watch(struct cutter *k, cutter_seen *seen, void *arg);
/* How the link of two nodes is cut. CUTTER_ENDS: its connections end, and no new one is made.
 * Otherwise frames are lost: what is sent to the node with the lower index, to that with the higher
 * one, or both. */
enum cutter_part { CUTTER_WHOLE, CUTTER_ENDS, CUTTER_TO_LOW, CUTTER_TO_HIGH, CUTTER_SILENT };
/* It stays like that. CUTTER_WHOLE: it may be made anew. */
void cutter_part(struct cutter *k, int low, int high, enum cutter_part how);
/* Ends every connection between nodes. New ones pass. */
void cutter_cut(struct cutter *k);
/* While it is deaf it forwards nothing and closes nothing, what trainers send over it included. */
void cutter_deaf(struct cutter *k, bool deaf);
/* Whether the rule has cut its link since it was given. */
bool cutter_fired(struct cutter *k);
void cutter_stop(struct cutter **k);

#endif
