/* SPDX-License-Identifier: Apache-2.0 */
/* Follows each model from step to step. Models call the row of functions, on the loop. Each
 * decided step notes when it came. The beat notes since when the model trains, and how long it did
 * before, so that a pause does not count as a step that takes long, and trainers that come and die
 * again and again do. A model that is lost notes its step, and the seal that
 * brings weights back notes what was lost, so that a restore of some milliseconds leaves a trace.
 * Nothing here can fail. */
#include "obs/progress.h"

#include "base/check.h"
#include "base/clock.h"
#include "data/trainer.h"
#include "link/session.h"
#include "model/lead.h"
#include "model/lost.h"
#include "model/model.h"
#include "model/watch.h"
#include "obs/health.h"
#include "obs/metrics.h"
#include "obs/waits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LATE_STEPS  3
#define LATE_MIN_NS NS_PER_SEC

const char *const progress_states[] = {"defining",  "unsealed", "recovering", "resuming",
				       "restoring", "lost",     "paused",     "diverged",
				       "waiting",   "training", NULL};

static bool has_trainer(const struct model *m)
{
	list_each(it, &m->server->conns.sessions)
		if (list_of(it, struct session, link)->trainer->model == m)
			return true;
	return false;
}

const char *progress_own_state(const struct model *m)
{
	struct core_state c;

	if (m->defining)
		return "defining";
	core_state(m->core, &c);
	if (c.restoring)
		return "restoring";
	if (lost_for_good(m))
		return "lost";
	if (c.recovering)
		return "recovering";
	if (!m->sealed)
		return "unsealed";
	if (m->memory.settle.on)
		return "resuming";
	if (c.paused || c.disputed)
		return c.tune->paused ? "paused" : "diverged";
	if (m->attempt.on)
		return "training";
	if (c.coordinator)
		return c.too_few ? "waiting" : "training";
	/* Only nodes with trainers hear that there are too few. */
	return waits_too_few(m) || !has_trainer(m) ? "waiting" : "training";
}

/* Does the state say that the model has weights and could train? */
static bool goes(const char *state)
{
	return strcmp(state, "training") == 0 || strcmp(state, "waiting") == 0 ||
	       strcmp(state, "paused") == 0 || strcmp(state, "diverged") == 0;
}

const char *progress_state(const struct model *m)
{
	const char *own = progress_own_state(m), *known;

	/* What this node lacks it knows best, and what it has heard of the core is newer than what
	 * the coordinator says once a second. */
	if (!goes(own) || m->attempt.on || strcmp(own, "paused") == 0 ||
	    strcmp(own, "diverged") == 0)
		return own;
	known = health_known_state(m);
	/* The coordinator's own image says nothing of the model. */
	return known != NULL && strcmp(known, "resuming") != 0 ? known : own;
}

static void progress_decided(struct model *m, const struct record *r)
{
	struct progress *p = &m->metrics->progress;
	uint64_t now = clock_ns();

	p->stood_ns = 0;
	if (r->outcome == RECORD_SEAL) {
		p->decided_ns = 0;
		return;
	}
	if (p->decided_ns != 0 && p->trains_ns != 0 && p->decided_ns >= p->trains_ns) {
		p->took_ns[p->took_next] = now - p->decided_ns;
		p->took_next = (p->took_next + 1) % PROGRESS_STEPS;
		p->took_nr += p->took_nr < PROGRESS_STEPS;
	}
	p->decided_ns = now;
	p->decided_at = time(NULL);
}

static void sample(struct model *m, uint64_t now_ns)
{
	struct progress *p = &m->metrics->progress;
	double gone = (double)(now_ns - p->sampled_ns) / NS_PER_SEC;
	bool stepped = m->step > p->sampled_step;

	if (p->sampled_ns != 0)
		p->sample[p->samples_next] = (struct progress_sample){
			(float)((double)(now_ns - m->server->started_ns) / NS_PER_SEC),
			stepped ? (float)((double)(m->step - p->sampled_step) / gone) : 0,
			stepped ? (float)m->metrics->step_ns / NS_PER_SEC : -1,
			stepped ? (float)m->metrics->wait_ns / NS_PER_SEC : -1};
	p->samples_nr += p->sampled_ns != 0 && p->samples_nr < PROGRESS_SAMPLES;
	p->samples_next = (p->samples_next + (p->sampled_ns != 0)) % PROGRESS_SAMPLES;
	p->sampled_ns = now_ns;
	p->sampled_step = m->step;
}

static uint64_t stood_ns(const struct progress *p)
{
	uint64_t since = p->trains_ns > p->decided_ns ? p->trains_ns : p->decided_ns;

	return p->stood_ns + (p->trains_ns != 0 ? clock_ns() - since : 0);
}

static void progress_beat(struct model *m, uint64_t now_ns)
{
	struct progress *p = &m->metrics->progress;

	if (now_ns - p->sampled_ns >= PROGRESS_SAMPLE_NS)
		sample(m, now_ns);

	if (strcmp(progress_state(m), "training") != 0) {
		p->stood_ns = stood_ns(p);
		p->trains_ns = 0;
	} else if (p->trains_ns == 0) {
		p->trains_ns = now_ns;
	}
}

/* The other nodes repeat what the coordinator says, so they hear a new word at once. */
static void progress_ran(struct model *m)
{
	struct progress *p = &m->metrics->progress;
	const char *word;

	if (m->defining || !server_leads(m->server))
		return;
	word = progress_own_state(m);
	if (p->word == word)
		return;
	p->word = word;
	health_beat(m->server);
}

static void progress_lost(struct model *m, bool back, const struct err *e)
{
	struct progress *p = &m->metrics->progress;

	(void)back;
	if (!p->sealed)
		return; /* There was nothing to lose. */
	p->sealed = false;
	p->lost = true;
	p->losses++;
	p->lost_step = m->step;
	snprintf(p->lost_why, sizeof(p->lost_why), "%s", m->lost[0] != 0 ? m->lost : e->text);
}

static void progress_sealed(struct model *m)
{
	struct progress *p = &m->metrics->progress;
	struct core_now now;

	p->sealed = true;
	core_now(m->core, &now);
	if (!p->lost || now.record == NULL)
		return;
	p->lost = false;
	p->back = (struct setback){
		.at = time(NULL), .from_step = p->lost_step, .to_step = now.record->id.step};
	snprintf(p->back.path, sizeof(p->back.path), "%s", m->restored_from);
	snprintf(p->back.why, sizeof(p->back.why), "%s", p->lost_why);
	p->setbacks++;
	if (p->back.from_step > p->back.to_step)
		p->steps_lost += p->back.from_step - p->back.to_step;
	log_line(m->server->log, LOG_LEVEL_WARN,
		 "event=set_back model=%s from=%lu to=%lu path=%s why=%s", m->name,
		 (unsigned long)p->back.from_step, (unsigned long)p->back.to_step, p->back.path,
		 p->back.why);
}

const struct model_watch progress_watch = {
	.decided = progress_decided,
	.beat = progress_beat,
	.ran = progress_ran,
	.lost = progress_lost,
	.sealed = progress_sealed,
};

static int by_time(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

uint64_t progress_median_ns(const struct model *m)
{
	const struct progress *p = &m->metrics->progress;
	uint64_t sorted[PROGRESS_STEPS];

	if (p->took_nr < 3)
		return 0;
	memcpy(sorted, p->took_ns, p->took_nr * sizeof(sorted[0]));
	qsort(sorted, p->took_nr, sizeof(sorted[0]), by_time);
	return sorted[p->took_nr / 2];
}

uint64_t progress_stands_ns(const struct model *m)
{
	return m->metrics->progress.trains_ns != 0 ? stood_ns(&m->metrics->progress) : 0;
}

bool progress_late(const struct model *m)
{
	uint64_t age = progress_stands_ns(m);

	return age > LATE_MIN_NS && age > LATE_STEPS * progress_median_ns(m);
}

static void append(json_t *list, float value)
{
	/* Six digits are enough for a chart. */
	json_array_append_new(list,
			      value < 0 ? json_null() : json_real(rint((double)value * 1e6) / 1e6));
}

json_t *progress_samples_json(const struct model *m)
{
	const struct progress *p = &m->metrics->progress;
	json_t *t = json_array(), *rate = json_array(), *step = json_array(), *wait = json_array();

	for (uint32_t i = 0; i < p->samples_nr; i++) {
		const struct progress_sample *x =
			&p->sample[(p->samples_next + PROGRESS_SAMPLES - p->samples_nr + i) %
				   PROGRESS_SAMPLES];

		append(t, x->t_s);
		append(rate, x->steps_per_s);
		append(step, x->step_s);
		append(wait, x->wait_s);
	}
	return json_pack("{s:o, s:o, s:o, s:o}", "t", t, "rate", rate, "step_s", step, "wait_s",
			 wait);
}
