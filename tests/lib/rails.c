/* SPDX-License-Identifier: Apache-2.0 */
/* Two ends of an RDMA connection (a rail) and what they remember. Tests of proto/net's RDMA call
 * it. Happy path: rails_begin(), sends and turns of both loops, rails_close(). A frame that arrives
 * wrong is counted in `bad`. Other failures are left to the test. */
#include "lib/rails.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/frames.h"
#include "lib/pace.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include "shard.pb-c.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

static unsigned char *land(struct rails_end *e, uint32_t qp, uint64_t n)
{
	return e->land_at +
	       ((size_t)qp * RDMA_LOCAL_SLOTS + n % RDMA_LOCAL_SLOTS) * e->rails->conf.part_bytes;
}

static enum shard_status on_head(void *owner, uint32_t qp, const struct wire_head *h, void **to,
				 struct err *err)
{
	struct rails_end *e = owner;

	if (e->discard_qp == qp + 1) {
		*to = STREAM_DISCARD;
		e->next_in[qp]++;
		return SHARD_OK;
	}
	if (wire_bulk(h) && h->chunk >= RDMA_LOCAL_SLOTS)
		return err_set(err, SHARD_PROTOCOL, "no such slot");
	if (wire_bulk(h))
		*to = land(e, qp, h->chunk);
	return SHARD_OK;
}

static enum shard_status on_frame(void *owner, uint32_t qp, const struct wire_head *h,
				  const void *body, struct err *err)
{
	struct rails_end *e = owner;
	bool bulk = wire_bulk(h);

	if (h->seq != (uint32_t)e->next_in[qp])
		e->bad++;
	e->next_in[qp]++;
	if (bulk && (body != land(e, qp, h->chunk) || h->step != xxh_sum(body, h->body_bytes, 7)))
		e->bad++;
	if (!bulk && h->step != h->body_bytes)
		e->bad++;
	e->frames += bulk;
	e->controls += !bulk;
	if (e->on_frame)
		e->on_frame(e, qp, h);
	return e->refuse == SHARD_OK ? SHARD_OK : err_set(err, e->refuse, "refused by the test");
}

static void on_fail(void *owner, const struct err *why)
{
	struct rails_end *e = owner;

	e->fails++;
	e->why = *why;
}

static void on_room(void *owner, uint32_t qp)
{
	struct rails_end *e = owner;

	e->rooms++;
	if (e->on_room)
		e->on_room(e, qp);
}

static const struct rdma_handler handler = {
	.on_head = on_head, .on_frame = on_frame, .on_fail = on_fail, .on_room = on_room};

static void on_gone(void *owner, const struct err *why)
{
	struct rails_end *e = owner;

	e->gones++;
	e->gone_why = *why;
}

static void on_sent(void *arg, enum shard_status st)
{
	struct rails_end *e = arg;

	if (st == SHARD_OK)
		e->sent_ok++;
	else
		e->sent_closed++;
	if (e->on_sent)
		e->on_sent(e, st);
}

void rails_init(struct rails *r, const struct rails_conf *conf)
{
	memset(r, 0, sizeof(*r));
	if (conf)
		r->conf = *conf;
	r->conf.gid_index = r->conf.gid_index ? r->conf.gid_index : -1;
	r->conf.qps_nr = r->conf.qps_nr ? r->conf.qps_nr : 2;
	r->conf.part_bytes = r->conf.part_bytes ? r->conf.part_bytes : 4096;
	r->conf.deadline_ns = r->conf.deadline_ns ? r->conf.deadline_ns : pace_ns(10 * NS_PER_SEC);
	r->area = (size_t)r->conf.qps_nr * RDMA_LOCAL_SLOTS * r->conf.part_bytes;
	for (int i = 0; i < 2; i++) {
		struct rails_end *e = &r->end[i];

		CHECK(uv_loop_init(&r->loop[i]) == 0);
		e->rails = r;
		e->source_at = mmap(NULL, 2 * r->area, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		CHECK(e->source_at != MAP_FAILED);
		e->land_at = e->source_at + r->area;
	}
}

enum shard_status rails_rail(struct rails *r, int i, bool checksum, struct err *e)
{
	struct rails_end *end = &r->end[i];
	struct rdma_rail_conf rail = {.domain = end->domain,
				      .handler = &handler,
				      .owner = end,
				      .qps_nr = r->conf.qps_nr,
				      .checksum = checksum,
				      .deadline_ns = r->conf.deadline_ns};

	return rdma_rail_new(&end->rail, &rail, e);
}

static enum shard_status open_end(struct rails *r, int i, struct err *e)
{
	struct rails_end *end = &r->end[i];
	struct rdma_conf dev = {.device = r->conf.device[i],
				.gid_index = r->conf.gid_index,
				.address = r->conf.address[i],
				.busy_poll_us = r->conf.busy_poll_us,
				.gone = on_gone,
				.owner = end};
	enum shard_status rc = rdma_open(&end->rdma, &r->loop[i], &dev, e);

	if (rc == SHARD_OK)
		rc = rdma_domain_new(&end->domain, end->rdma, e);
	if (rc == SHARD_OK)
		rc = rdma_register(&end->source, end->domain, end->source_at, r->area, false, e);
	if (rc == SHARD_OK)
		rc = rdma_register(&end->land, end->domain, end->land_at, r->area, true, e);
	return rc == SHARD_OK ? rails_rail(r, i, !r->conf.no_checksum, e) : rc;
}

enum shard_status rails_open(struct rails *r, struct err *e)
{
	enum shard_status rc = open_end(r, 0, e);

	return rc == SHARD_OK ? open_end(r, 1, e) : rc;
}

enum shard_status rails_connect(struct rails *r, struct err *e)
{
	enum shard_status rc = SHARD_OK;
	struct rdma_ends ends[2];

	rdma_rail_ends(r->end[0].rail, &ends[0]);
	rdma_rail_ends(r->end[1].rail, &ends[1]);
	for (int i = 0; i < 2 && rc == SHARD_OK; i++)
		rc = rdma_rail_connect(r->end[i].rail, &ends[1 - i], e);
	return rc;
}

void rails_begin(struct rails *r, const struct rails_conf *conf)
{
	struct err e = {0};

	rails_init(r, conf);
	if (rails_open(r, &e) != SHARD_OK || rails_connect(r, &e) != SHARD_OK)
		fail_msg("%s", e.text);
}

void rails_close(struct rails *r)
{
	for (int i = 0; i < 2; i++)
		rdma_rail_free(&r->end[i].rail);
	for (int i = 0; i < 2; i++) {
		struct rails_end *e = &r->end[i];

		rdma_deregister(&e->land);
		rdma_deregister(&e->source);
		rdma_domain_free(&e->domain);
		rdma_close(&e->rdma);
	}
	for (int i = 0; i < 2; i++) {
		CHECK(uv_run(&r->loop[i], UV_RUN_DEFAULT) == 0);
		CHECK(uv_loop_close(&r->loop[i]) == 0);
		munmap(r->end[i].source_at, 2 * r->area);
	}
}

enum shard_status rails_send(struct rails *r, int from, uint32_t qp, uint32_t bytes, uint64_t seed)
{
	struct rails_end *e = &r->end[from], *to = &r->end[1 - from];
	uint64_t n = e->next_out[qp];
	struct wire_head h = {.op = OP_CONTRIB_DATA,
			      .model = 1,
			      .chunk = (uint32_t)(n % RDMA_LOCAL_SLOTS),
			      .seq = (uint32_t)n};
	unsigned char *body =
		e->source_at +
		((size_t)qp * RDMA_LOCAL_SLOTS + n % RDMA_LOCAL_SLOTS) * r->conf.part_bytes;
	enum shard_status rc;

	CHECK(bytes <= r->conf.part_bytes);
	if (rdma_rail_queued(e->rail, qp) == RDMA_LOCAL_SLOTS)
		return SHARD_AGAIN; /* The slot is in use. The rail would say the same. */
	frames_fill(body, bytes, seed);
	h.step = xxh_sum(body, bytes, 7);
	rc = rdma_rail_send(e->rail, qp, &h, e->source, body, bytes, (uintptr_t)land(to, qp, n),
			    rdma_region_rkey(to->land), on_sent, e);
	e->next_out[qp] += rc == SHARD_OK;
	return rc;
}

enum shard_status rails_control(struct rails *r, int from, uint32_t qp, uint32_t text_bytes)
{
	static char text[RDMA_BODY_MAX + 64];
	Shard__Why why = SHARD__WHY__INIT;
	struct rails_end *e = &r->end[from];
	struct wire_head h = {.op = OP_ABANDON, .seq = (uint32_t)e->next_out[qp]};
	enum shard_status rc;

	CHECK(text_bytes < sizeof(text));
	memset(text, 'x', sizeof(text));
	text[text_bytes] = 0;
	why.why = text;
	h.step = protobuf_c_message_get_packed_size(&why.base);
	rc = rdma_rail_control(e->rail, qp, &h, &why.base);
	e->next_out[qp] += rc == SHARD_OK;
	return rc;
}

void rails_kick(struct rails *r, int from)
{
	for (uint32_t i = 0; i < r->conf.qps_nr; i++)
		rdma_rail_kick(r->end[from].rail, i);
}

void rails_turn_end(struct rails *r, int i)
{
	(void)uv_run(&r->loop[i], UV_RUN_NOWAIT);
}

void rails_turn(struct rails *r, uint32_t times)
{
	while (times-- > 0) {
		rails_turn_end(r, 0);
		rails_turn_end(r, 1);
	}
}

bool rails_until(struct rails *r, const uint64_t *what, uint64_t much, uint32_t ms)
{
	uint64_t end = clock_ns() + pace_ns(ms * NS_PER_MS);

	while (*what < much && clock_ns() < end)
		rails_turn(r, 1);
	return *what >= much;
}
