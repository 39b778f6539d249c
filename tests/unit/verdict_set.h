/* SPDX-License-Identifier: Apache-2.0 */
/* verdict_set.h: the messages that were ever sent, as a set of bits. Equal messages are one
 * element. What a message points to is copied. */
#ifndef TEST_VERDICT_SET_H
#define TEST_VERDICT_SET_H

#include "unit/verdict.h"

static void copy_vote(struct core_vote *v, double *sumsq, uint8_t *finite, double *weights,
		      double *lr, double *values)
{
	for (uint32_t i = 0; i < v->chunks_nr; i++) {
		sumsq[i] = v->sumsq[i];
		finite[i] = v->finite[i];
	}
	for (uint32_t i = 0; i < v->ranks_nr; i++)
		weights[i] = v->weights[i];
	v->sumsq = sumsq;
	v->finite = finite;
	v->weights = weights;
	if (v->lr_nr)
		*lr = v->lr[0];
	v->lr = lr;
	for (uint32_t i = 0; i < v->values_nr; i++)
		values[i] = v->values[i];
	v->values = values;
}

static void put_message(struct search *q, struct state *s, const struct core_msg *m)
{
	static struct message k; /* zeroed each time, so that equal messages have equal bytes */
	uint64_t h = mix(mix(mix(m->op, m->from), m->to), m->from_incarnation);
	uint32_t i = 0;

	/* Who is waited for and when slots are free again have no part in the verdict. GRANT is
	 * taken for heard as soon as an attempt begins, because RANKS, its answer, may be late. */
	if (m->op == CORE_WAITING || m->op == CORE_GRANT || m->op == CORE_DRAINED ||
	    m->id.step > FIRST_STEP)
		return;
	memset(&k, 0, sizeof(k));
	h = mix_id(h, &m->id);
	h = mix(mix(h, m->trainer.session), m->trainer.leave);
	if (m->record)
		h = mix_id(h, &m->record->id);
	if (m->view)
		h = mix(mix_id(h, &m->view->record.id), m->view->sealed);
	if (m->answer)
		h = mix_id(mix_id(mix(h, m->answer->prepared * 2u + m->answer->has_record),
				  &m->answer->id),
			   &m->answer->record.id);
	for (uint32_t r = 0; m->world && r < m->world->size; r++)
		h = mix(h, m->world->rank[r].session);
	while (i < q->messages_nr && q->message[i].hash != h)
		i++;
	CHECK(i < MESSAGES_MAX);
	s->sent[i / 64] |= 1ull << (i % 64);
	if (i < q->messages_nr)
		return;
	q->messages_nr++;
	k.hash = h;
	q->message[i] = k;
	q->message[i].msg = *m;
	if (m->world) {
		q->message[i].world = *m->world;
		q->message[i].msg.world = &q->message[i].world;
	}
	if (m->record) {
		q->message[i].record = *m->record;
		q->message[i].msg.record = &q->message[i].record;
	}
	if (m->view) {
		q->message[i].view = *m->view;
		q->message[i].msg.view = &q->message[i].view;
	}
	copy_vote(&q->message[i].msg.vote, q->message[i].sumsq, q->message[i].finite,
		  q->message[i].weights, &q->message[i].lr, q->message[i].values);
	if (m->answer) {
		q->message[i].answer = *m->answer;
		q->message[i].msg.answer = &q->message[i].answer;
		copy_vote(&q->message[i].answer.vote, q->message[i].answer_sumsq,
			  q->message[i].answer_finite, q->message[i].answer_weights,
			  &q->message[i].answer_lr, q->message[i].answer_values);
	}
	core_copy_text(q->message[i].why, sizeof(q->message[i].why), m->why);
	q->message[i].msg.why = m->why ? q->message[i].why : NULL;
}

#endif
