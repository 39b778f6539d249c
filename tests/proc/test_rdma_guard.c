// SPDX-License-Identifier: Apache-2.0
/* Tests what a node may do to the memory of another node by RDMA. It may write its own landing
 * slots and the image chunks that it holds, or the codes of these, and nothing else, whatever key
 * it uses. Bytes that change after their sum was made are found, and writes and frames of older
 * attempts change no bit. The verbs are those of rdma/fake.h. The test looks into the daemons,
 * which are threads of it. */
#include "base/check.h"
#include "data/deltas.h"
#include "lib/crewed.h"
#include "lib/linked.h"
#include "model/model.h"
#include "net/rdma_impl.h"
#include "link/peer.h"
#include "rdma/fake_impl.h"
#include "data/mr.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

struct range {
	const char *at;
	size_t bytes;
};

static struct model *model_of(struct inproc_node *n)
{
	return list_of(n->server->models.next, struct model, link);
}

static bool inside(const struct ibv_mr *mr, struct range r)
{
	return (char *)mr->addr >= r.at && (char *)mr->addr + mr->length <= r.at + r.bytes;
}

static struct range slots_of(const struct model *m, uint16_t peer)
{
	uint32_t c = 0, last;

	while (!place_holds(&m->place, c, m->server->self))
		c++;
	for (last = c; c < m->layout->chunks_nr; c++)
		last = place_holds(&m->place, c, m->server->self) ? c : last;
	for (c = 0; !place_holds(&m->place, c, m->server->self);)
		c++;
	return (struct range){store_slot(m->store, c, peer),
			      (size_t)((char *)store_slot(m->store, last, peer) -
				       (char *)store_slot(m->store, c, peer)) +
				      layout_chunk_elems(m->layout, last) * m->grad_bytes};
}

static bool in_its_image(const struct model *m, uint16_t peer, const struct ibv_mr *mr)
{
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++) {
		struct range chunk = {store_image(m->store, 0, c),
				      layout_image_bytes(m->layout, c, 1)};

		if (place_holds(&m->place, c, peer) && inside(mr, chunk))
			return true;
	}
	return false;
}

static bool in_its_codes(const struct model *m, uint16_t peer, const struct ibv_mr *mr)
{
	for (uint32_t c = 0; deltas_codes(m) != NULL && c < m->layout->chunks_nr; c++) {
		struct range chunk = {(const char *)deltas_at(m, c), deltas_codes(m)->bytes[c]};

		if (place_holds(&m->place, c, peer) && inside(mr, chunk))
			return true;
	}
	return false;
}

/* Checks every registration that others can write. Chunks of one node are never neighbours here. */
static void what_is_open(void **state)
{
	bool codes = *state != NULL;
	struct crewed *r;
	uint32_t open = 0;

	fake_reset();
	r = crewed_begin(&(struct inproc_conf){.nodes = 3});
	r->crew.extra = *state;
	linked_by_rdma(&r->cluster);
	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, 5);
	while (linked_figure(&r->cluster.node[0], "b", "rdma_in_bytes") <= 0 ||
	       linked_figure(&r->cluster.node[2], "b", "rdma_in_bytes") <= 0)
		crewed_steps(r, 1);
	for (uint32_t n = 0; n < 3; n++)
		for (uint16_t p = 0; p < 3; p++) {
			struct server *s = r->cluster.node[n].server;
			const struct model *m = model_of(&r->cluster.node[n]);

			for (uint32_t i = 0; p != s->self && i < FAKE_MRS; i++) {
				const struct fake_mr *mr = fake.mrs[i];

				if (mr == NULL || !(mr->access & IBV_ACCESS_REMOTE_WRITE) ||
				    mr->mr.pd != s->peer[p]->rdma.domain->pd)
					continue;
				assert_true(inside(&mr->mr, slots_of(m, p)) ||
					    (codes ? in_its_codes(m, p, &mr->mr)
						   : in_its_image(m, p, &mr->mr)));
				open++;
			}
		}
	/* The landing slots and two runs of an image, or of its codes. */
	assert_int_equal(open, 3 * 2 * (1 + 2));
	for (uint32_t i = 0; i < FAKE_MRS; i++)
		if (fake.mrs[i] != NULL)
			assert_int_equal(fake.mrs[i]->access & (IBV_ACCESS_REMOTE_READ |
								IBV_ACCESS_REMOTE_ATOMIC),
					 0);
	crewed_end(r);
}

/* --- writes that no correct sender makes --- */

static void *own_master(struct model *m)
{
	uint32_t c = 0;

	while (!place_holds(&m->place, c, 0))
		c++;
	return store_master(m->store, c);
}

static void *arena(struct model *m)
{
	return store_arena_shm(m->store, 0)->base;
}

static void *own_image(struct model *m)
{
	uint32_t c = 0;

	while (!place_holds(&m->place, c, 0))
		c++;
	return store_image(m->store, 0, c);
}

static void *another_slot(struct model *m)
{
	return (void *)(uintptr_t)slots_of(m, 2).at;
}

static void *behind_its_slot(struct model *m)
{
	struct range r = slots_of(m, 1);

	return (void *)(uintptr_t)(r.at + r.bytes - 32);
}

static void *image_head_of(struct model *m)
{
	return store_image_shm(m->store)->base;
}

static const struct target {
	const char *name;
	void *(*at)(struct model *m);
} targets[] = {
	{"masters", own_master},
	{"an arena", arena},
	{"the holder's image", own_image},
	{"another's slot", another_slot},
	{"behind its slot", behind_its_slot},
	{"the image's head", image_head_of},
};

/* Node b writes 64 bytes into node a with this key. */
static void write_there(struct crewed *r, void *at, uint32_t rkey)
{
	struct rdma_rail *queues = r->cluster.node[1].server->peer[0]->rdma.queues;
	struct ibv_sge sge = {(uintptr_t)queues->memory, 64, queues->mr->lkey};
	struct ibv_send_wr *bad, wr = {.wr_id = WORK_ID(WORK_BODY, 0, 0),
				       .sg_list = &sge,
				       .num_sge = 1,
				       .opcode = IBV_WR_RDMA_WRITE,
				       .send_flags = IBV_SEND_SIGNALED,
				       .wr.rdma = {(uintptr_t)at, rkey}};

	assert_int_equal(ibv_post_send(queues->qp[0].qp, &wr, &bad), 0);
}

static void keys_refuse(void **state)
{
	const struct target *t = *state;
	struct mr_peer *told;
	struct crewed *r;
	struct model *m;
	void *at;

	fake_reset();
	r = crewed_begin(&(struct inproc_conf){.nodes = 3});
	linked_by_rdma(&r->cluster);
	crew_start(&r->crew, UINT64_MAX);
	while (linked_figure(&r->cluster.node[0], "b", "rdma_in_bytes") <= 0)
		crewed_steps(r, 1);
	m = model_of(&r->cluster.node[0]);
	told = &model_of(&r->cluster.node[1])->mr->peer[0];
	at = t->at(m);
	write_there(r, at,
		    strcmp(t->name, "the holder's image") == 0 ? told->image[0].rkey
							       : told->slots.rkey);
	inproc_wait_log(&r->cluster.node[1], "event=rdma_down", 1);
	assert_true(inproc_logged(&r->cluster.node[1], "remote access") > 0);
	crewed_steps(r, 3);
	crewed_end(r);
}

/* --- bytes that change after the checksum --- */

struct meddle {
	_Atomic uint32_t skip, done; /* Bodies to leave alone, and bodies that were changed. */
	enum { FLIP, REPLAY } how;
	uint64_t at[256]; /* The last write of each queue pair. */
	uint32_t qpn[256], bytes[256];
	char *old;
	uint64_t old_at;
	uint32_t old_bytes;
};

static uint32_t queue_of(struct meddle *x, uint32_t qpn)
{
	uint32_t i = 0;

	while (x->qpn[i] != 0 && x->qpn[i] != qpn)
		i++;
	CHECK(i < NR(x->qpn));
	x->qpn[i] = qpn;
	return i;
}

static void meddle(void *arg, uint32_t qpn, struct ibv_send_wr *wr)
{
	struct meddle *x = arg;
	uint32_t i = queue_of(x, qpn);

	if (wr->opcode == IBV_WR_RDMA_WRITE) {
		x->at[i] = wr->wr.rdma.remote_addr;
		x->bytes[i] = wr->sg_list->length;
		if (x->how == REPLAY && x->old == NULL) {
			x->old = malloc(x->bytes[i]);
			memcpy(x->old, (void *)(uintptr_t)wr->sg_list->addr, x->bytes[i]);
			x->old_at = x->at[i];
			x->old_bytes = x->bytes[i];
		} else if (x->how == REPLAY && x->at[i] == x->old_at &&
			   x->bytes[i] == x->old_bytes) {
			/* Writes once more what was written in an older attempt. */
			memcpy((void *)(uintptr_t)x->old_at, x->old, x->old_bytes);
			x->done++;
		}
		return;
	}
	if (x->how != FLIP || x->at[i] == 0 || wr->opcode != IBV_WR_SEND_WITH_IMM || x->done > 0)
		return;
	if (x->skip > 0) {
		x->skip--;
		return;
	}
	/* This is after the checksum was made and before it is compared. */
	((char *)(uintptr_t)x->at[i])[x->bytes[i] / 2] ^= 1;
	x->done++;
}

static const struct flipped {
	const char *name, *extra;
	uint32_t skip;
} flips[] = {
	{"garbage after the sum, at once", NULL, 0},
	{"garbage after the sum, later", NULL, 13},
	{"garbage after the sum, much later", NULL, 100},
	{"garbage in codes", "grad_codec=int8 image_codec=int8", 20},
	{"garbage in codes, much later", "grad_codec=int8 image_codec=int8", 101},
};

static void garbage_after_the_sum(void **state)
{
	static struct meddle x;
	const struct flipped *f = *state;
	struct crewed *r;
	uint32_t refused = 0;

	x = (struct meddle){.skip = f->skip, .how = FLIP};
	fake_reset();
	r = crewed_begin(NULL);
	r->crew.extra = f->extra;
	linked_by_rdma(&r->cluster);
	fake_hook(meddle, &x);
	crew_start(&r->crew, UINT64_MAX);
	while (x.done == 0)
		crewed_steps(r, 1);
	for (int i = 0; refused == 0; i++) {
		refused = 0;
		/* Damage to an image ends the link, and damage to a contribution ends the
		 * attempt. */
		for (int n = 0; n < 2; n++)
			refused += inproc_logged(&r->cluster.node[n], "body checksum") +
				   inproc_logged(&r->cluster.node[n], "event=contribution_damaged");
		crewed_steps(r, 1);
		assert_true(i < 10000);
	}
	crewed_steps(r, 3);
	crewed_end(r);
	fake_hook(NULL, NULL);
}

static void older_writes(void **state)
{
	static struct meddle x;
	struct crewed *r;

	(void)state;
	x = (struct meddle){.how = REPLAY};
	fake_reset();
	r = crewed_begin(NULL);
	linked_by_rdma(&r->cluster);
	fake_hook(meddle, &x);
	crew_start(&r->crew, UINT64_MAX);
	while (x.done < 5)
		crewed_steps(r, 1);
	fake_hook(NULL, NULL);
	crewed_end(r);
	free(x.old);
}

/* Sends the header of a frame that was received long ago once more. */
static void older_frames(void **state)
{
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = {.wr_id = WORK_ID(WORK_FRAME, 0, 0),
				       .sg_list = &sge,
				       .num_sge = 1,
				       .opcode = IBV_WR_SEND_WITH_IMM};
	struct rdma_rail *queues;
	struct crewed *r;

	(void)state;
	fake_reset();
	r = crewed_begin(NULL);
	linked_by_rdma(&r->cluster);
	crew_start(&r->crew, UINT64_MAX);
	while (linked_figure(&r->cluster.node[0], "b", "rdma_in_bytes") <= 0)
		crewed_steps(r, 1);
	crewed_steps(r, 5);
	queues = r->cluster.node[1].server->peer[0]->rdma.queues;
	sge = (struct ibv_sge){(uintptr_t)queues->qp[0].slots, sizeof(struct wire_head),
			       queues->mr->lkey};
	assert_int_equal(ibv_post_send(queues->qp[0].qp, &wr, &bad), 0);
	inproc_wait_log(&r->cluster.node[0], "event=rdma_down", 1);
	assert_true(inproc_logged(&r->cluster.node[0], "over RDMA queue pair 0") >= 1);
	crewed_steps(r, 3);
	crewed_end(r);
}

int main(void)
{
	struct CMUnitTest tests[NR(targets) + NR(flips) + 4];
	size_t nr = 0;

	for (; nr < NR(targets); nr++)
		tests[nr] = (struct CMUnitTest){targets[nr].name, keys_refuse, NULL, NULL,
						(void *)(uintptr_t)&targets[nr]};
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(what_is_open);
	tests[nr++] = (struct CMUnitTest){"what is open with codes", what_is_open, NULL, NULL,
					  (void *)"image_codec=int8"};
	for (size_t i = 0; i < NR(flips); i++)
		tests[nr++] = (struct CMUnitTest){flips[i].name, garbage_after_the_sum, NULL, NULL,
						  (void *)(uintptr_t)&flips[i]};
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(older_writes);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(older_frames);
	CHECK(nr == NR(tests));
	return cmocka_run_group_tests_name("rdma_guard", tests, NULL, NULL);
}
