/* SPDX-License-Identifier: Apache-2.0 */
/* warm.h: the part of a core that outlives its process (DESIGN sections 4-6), so that a new process
 * never contradicts a message that the old one sent.
 *
 * When does a process that starts count as the same member as the process before it? The member is
 * the memory, not the process.
 * - It is the same member, and keeps the incarnation (core_conf.who) that views list, if
 * the memory of every model that the start before it held came back whole. That memory has the
 * masters, the moments and the image versions, and the reduced gradients of what the process voted
 * for. It also has the state that is saved here: the promise, the adopted view, the last record,
 * the attempt that is PREPARED with its votes, and APPLYING. To all others the death of the process
 * is a cut link. Copies, votes, promises and answers still count, and only the trainers are lost.
 * - Otherwise it is a new member without copies, under an incarnation of its own. This is so if
 * memory is lost or torn, after another boot, with another definition, or if values in the memory
 * are impossible (core_init() returns NULL). Stale memory is worse than none, because a later
 * process may have promised something else. So only the memory of the directly preceding start
 * counts, and in it only the buffer that was saved last.
 * - core_conf.term grows with every start, also with a warm one, so a coordinator that starts again
 * is a new one. It asks all members, its own participant among them, and applies the recovery rule
 * to their answers. Its durable view may be newer than the view that its participant adopted, but
 * never older. If it is older, the memory does not belong to this state folder and is refused.
 *
 * What the shell does: after core_init(), and after each core_handle() before it carries out the
 * first action, it calls core_warm_save() with the buffer that does not count. If that returns
 * true, this buffer counts from then on (one word is switched). So everything that left the node
 * was saved before. What was saved but did not leave is like a lost message. If the memory of a
 * model is not whole, the shell calls core_init() without warm.
 *
 * After core_init() with warm, CORE_EV_WARM comes first, before CORE_EV_CHECKPOINT and before any
 * link or message. The actions depend on the saved state:
 * - FREE, with a record: SEAL .record. The masters here are those of .record.step, and the shell
 * makes the image of them.
 * - PREPARED: SEAL of the record before, then OPEN .id. The reduced gradients of .id are kept. VOTE
 * is repeated over each new link.
 * - APPLYING: OPEN .id, then APPLY .record. Chunks that have the record already stay as they are.
 * There is no second RESULT, although the first one may not have been carried out, because the
 * trainers are gone.
 * - A node to which chunks move, and that had not said that it has them: LEARN .record as well,
 * after SEAL or before APPLY. SEAL is then about the chunks whose copies count.
 * - STAGING becomes FREE, and the coordinator is told as of an abandoned attempt.
 * The coordinator repeats a BEGIN or VIEW that waited. If the generation is not sealed there is no
 * action, and core_state() shows the generation. If the shell's own memory is of an older
 * generation, CORE_ACT_LOST was decided but not carried out, and nothing that is written there
 * counts. One member never uses a session number twice, because the shell puts the start counter
 * into it. Links, lent and borrowed slots, and whatever was on its way died with the process. */
#ifndef SHARD_CORE_WARM_H
#define SHARD_CORE_WARM_H

#include "core/step.h"

/* Returns false if the saved state is impossible. c is then undefined. */
bool warm_load(struct core *c, const void *from, const struct core_view *view);
/* Tests change what was saved, and give it the sum that it should have. Returns false if it has no
 * sum, because its numbers are impossible. */
bool warm_sign(void *saved, size_t bytes);
void warm_on_start(struct ctx *x, const struct core_event *e); /* For CORE_EV_WARM. */

#endif
