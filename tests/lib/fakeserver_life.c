// SPDX-License-Identifier: Apache-2.0
/* How the scripted daemon answers requests about whole models. ATTACH describes what was defined
 * last, and for the name "nameless" it leaves the description out. MANAGE is noted and answered.
 * STATUS is a text of known length. fakeserver_ops.c calls these functions for each such frame,
 * with the lock held. */
#include "lib/fakeserver_impl.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

static struct wire_head answer_to(const struct fake *f, const struct wire_head *h)
{
	return (struct wire_head){.op = h->op,
				  .flags = WIRE_REPLY,
				  .attempt = h->attempt,
				  .model = FAKE_MODEL,
				  .generation = f->generation};
}

void fake_on_attach(struct fake *f, const struct wire_head *h, const void *body)
{
	Shard__Attach *q = shard__attach__unpack(NULL, h->body_bytes, body);
	Shard__Defined d = SHARD__DEFINED__INIT;
	struct wire_head r = answer_to(f, h);

	CHECK(q != NULL && f->spec != NULL);
	d.model = FAKE_MODEL + f->knobs.other_model;
	d.born = FAKE_BORN + f->knobs.other_birth;
	d.sealed = f->sealed;
	d.step = f->step;
	d.chunk_elems = f->conf.chunk_elems;
	d.timeout_ms = f->conf.timeout_ms;
	d.max_staleness = f->conf.staleness;
	d.staleness_after = f->conf.staleness_after;
	if (strcmp(q->name, "nameless") != 0)
		d.spec = shard__spec__unpack(NULL, f->spec_bytes, f->spec);
	fake_control(f, &r, &d.base);
	if (d.spec != NULL)
		shard__spec__free_unpacked(d.spec, NULL);
	shard__attach__free_unpacked(q, NULL);
}

void fake_on_manage(struct fake *f, const struct wire_head *h, const void *body)
{
	Shard__Manage *q = shard__manage__unpack(NULL, h->body_bytes, body);
	struct wire_head r = answer_to(f, h);

	CHECK(q != NULL && q->cred == NULL); /* Only the daemon says who asks. */
	f->manage.action = q->action;
	f->manage.force = q->force;
	snprintf(f->manage.name, sizeof(f->manage.name), "%s", q->name);
	snprintf(f->manage.key, sizeof(f->manage.key), "%s", q->key);
	snprintf(f->manage.value, sizeof(f->manage.value), "%s", q->value);
	shard__manage__free_unpacked(q, NULL);
	fake_control(f, &r, NULL);
}

void fake_on_status(struct fake *f, const struct wire_head *h, const void *body)
{
	Shard__Text t = SHARD__TEXT__INIT;
	struct wire_head r = answer_to(f, h);

	(void)body;
	t.text = (char *)(uintptr_t) "{\"models\":[]}";
	fake_control(f, &r, &t.base);
}
