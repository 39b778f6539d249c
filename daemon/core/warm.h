/* SPDX-License-Identifier: Apache-2.0 */
/* warm.h: what of a core outlives its process (DESIGN sections 4-6), so that no message that left
 * is ever contradicted.
 *
 * When is a process that starts the same member as the one before it? The member is the memory, not
 * the process.
 * - It is the same, and keeps the incarnation (core_conf.incarnation) that views list, if the
 * memory of every model that the start before it held came back whole: masters, moments and image
 * versions, the reduced gradients of what it voted for, and here its promise, the view it adopted,
 * its last record, the attempt it is PREPARED for with the votes, and APPLYING. To all others its
 * death is a cut link: copies, votes, promises and what it has answered count on; its trainers are
 * lost.
 * - Else it is a new member without copies under an incarnation of its own: memory lost or torn,
 * another boot, another definition, or words in it that cannot be (core_init() returns NULL). Stale
 * memory is worse than none: what another process wrote after it may have been promised already, so
 * only the directly preceding start's counts, and only the buffer that was saved last.
 * - core_conf.term grows with every start, warm ones too: a coordinator that starts again is a new
 * one. It asks all members, its own participant among them, and the recovery rule decides over
 * their answers. Its durable view may be newer than the one that its participant adopted, never
 * older: then the memory is not of this state folder and is refused.
 *
 * The shell: after core_init(), and after each core_handle() before the first of its actions,
 * core_warm_save() into the buffer that does not count; if it returned true, that one counts from
 * then on (one word is switched). So whatever left was saved before, and what was saved but did not
 * leave is a lost message. Where a model's memory is not whole, core_init() is called without warm.
 * After core_init() with warm, CORE_EV_WARM comes first, before CORE_EV_CHECKPOINT, any link or
 * message; it gives FREE, with a record:     SEAL .record                        masters here are
 * as of .record.step: make the image of them PREPARED:                SEAL of the record before,
 * OPEN .id  its reduced gradients are kept; VOTE is repeated over each new link APPLYING: OPEN .id,
 * APPLY .record              chunks that have it already are left as they are; no RESULT again,
 *                                                                which may not have been carried
 * out: nobody is left to tell What was STAGING is FREE and told as an abandon. A BEGIN or VIEW that
 * waited is repeated by the coordinator. Of a generation that is not sealed there is no action:
 * core_state() tells it, and if the shell's own memory is of an older one, CORE_ACT_LOST was
 * decided but not carried out: nothing that is written there counts. Sessions are never used twice
 * by one member: the shell puts the start counter into them. Links, slots lent and borrowed, and
 * what was on its way died with the process. */
#ifndef SHARD_CORE_WARM_H
#define SHARD_CORE_WARM_H

#include "core/step.h"

bool warm_load(struct core *c, const void *from,
	       const struct core_view *view); /* false: it cannot be; c is undefined then */
void warm_on_start(struct ctx *x, const struct core_event *e); /* CORE_EV_WARM */

#endif
