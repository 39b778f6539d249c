// SPDX-License-Identifier: Apache-2.0
/* The shares of local ranks: what each has said of every segment, and whether they fit when all of
 * them have closed a chunk. contrib.c calls it for PUSH. Happy path: shares are taken one by one,
 * and settle finds that they cover each segment once. A frame that breaks the rules closes its
 * connection. Shares that overlap, leave a hole, or are mixed with whole gradients are the mistake
 * of no single rank: the attempt ends as SHARD_MISMATCH, and the text names elements and ranks. */
#include "data/shares.h"

#include "base/check.h"
#include "data/contrib.h"
#include "data/events.h"
#include "data/model.h"
#include "data/trainer.h"
#include "store/share.h"

#include <stdio.h>
#include <string.h>

typedef unsigned long long ull;

static struct share *share_of(const struct model *m, uint32_t i, uint32_t segment)
{
	return m->contrib.share + (size_t)i * m->layout->segments_nr + segment;
}

static uint8_t *absent_of(const struct model *m, uint32_t i, uint32_t segment)
{
	return m->contrib.absent_local + (size_t)i * m->layout->segments_nr + segment;
}

void shares_begin(struct model *m)
{
	/* All bits set is SHARE_WHOLE. */
	memset(m->contrib.share, 0xff,
	       (size_t)m->contrib.local_nr * m->layout->segments_nr * sizeof(*m->contrib.share));
}

/* --- what a rank says --- */

enum shard_status shares_take(struct model *m, uint32_t chunk, uint32_t i, const Shard__Push *body,
			      struct err *e)
{
	uint32_t s = m->layout->chunk_segment[chunk];

	if (body->n_shares % 3 != 0)
		return err_set(e, SHARD_PROTOCOL,
			       "%zu numbers for the shares of chunk %u: each has three",
			       body->n_shares, chunk);
	for (size_t k = 0; k < body->n_shares; k += 3) {
		uint32_t tensor = body->shares[k], start = body->shares[k + 1],
			 n = body->shares[k + 2];

		if (!layout_find_segment(m->layout, chunk, tensor, &s))
			return err_set(e, SHARD_PROTOCOL,
				       "a share of tensor %u in chunk %u, where it has no element",
				       tensor, chunk);
		if (layout_frozen(m->layout, s) || *absent_of(m, i, s) ||
		    share_of(m, i, s)->n != SHARE_WHOLE)
			return err_set(e, SHARD_PROTOCOL,
				       "a share of tensor %u in chunk %u, which is frozen, absent, "
				       "or there already",
				       tensor, chunk);
		if (start > m->layout->segment[s].n || n > m->layout->segment[s].n - start)
			return err_set(
				e, SHARD_PROTOCOL,
				"a share of %u elements from %u on of tensor %u in chunk %u, "
				"which has %u of it",
				n, start, tensor, chunk, m->layout->segment[s].n);
		*share_of(m, i, s) = (struct share){start, n};
		*absent_of(m, i, s) = n == 0;
	}
	return SHARD_OK;
}

/* --- whether shares fit --- */

struct fit { /* One segment. */
	const struct model *m;
	uint32_t chunk, segment;
	char text[512]; /* What is wrong. */
};

static const struct layout_tensor *tensor_of(const struct fit *f)
{
	return &f->m->layout->tensor[f->m->layout->segment_tensor[f->segment]];
}

/* The place in its tensor of an element of the segment. */
static ull element(const struct fit *f, uint32_t at)
{
	return layout_chunk_start(f->m->layout, f->chunk) +
	       f->m->layout->segment[f->segment].start + at - tensor_of(f)->offset;
}

static uint32_t rank_of(const struct fit *f, uint32_t i)
{
	return f->m->contrib.local[i].rank;
}

static bool overlap(struct fit *f, uint32_t before, uint32_t i)
{
	const struct share *a = share_of(f->m, before, f->segment),
			   *b = share_of(f->m, i, f->segment);
	uint32_t end = a->start + a->n < b->start + b->n ? a->start + a->n : b->start + b->n;

	snprintf(f->text, sizeof(f->text),
		 "elements %llu to %llu of \"%.150s\" are in the shares of ranks %u and %u: those "
		 "of "
		 "a node must not overlap",
		 element(f, b->start), element(f, end - 1), tensor_of(f)->name, rank_of(f, before),
		 rank_of(f, i));
	return false;
}

static bool hole(struct fit *f, uint32_t from, uint32_t end)
{
	snprintf(f->text, sizeof(f->text),
		 "elements %llu to %llu of \"%.150s\" are in the share of no rank of this node: "
		 "together its ranks push all of it",
		 element(f, from), element(f, end - 1), tensor_of(f)->name);
	return false;
}

/* order[] is of local ranks whose shares are not empty. */
static bool covers(struct fit *f, const uint8_t *order, uint32_t nr)
{
	const uint32_t n = f->m->layout->segment[f->segment].n;
	uint32_t at = 0;

	for (uint32_t k = 0; k < nr; k++) {
		const struct share *s = share_of(f->m, order[k], f->segment);

		if (s->start < at)
			return overlap(f, order[k - 1], order[k]);
		if (s->start > at)
			return hole(f, at, s->start);
		at = s->start + s->n;
	}
	return at == n || hole(f, at, n);
}

static bool mixed(struct fit *f, uint32_t share, uint32_t whole)
{
	snprintf(f->text, sizeof(f->text),
		 "\"%.150s\" was pushed with SHARD_SHARE by rank %u and without it by rank %u: all "
		 "ranks of a node pass it, or none",
		 tensor_of(f)->name, rank_of(f, share), rank_of(f, whole));
	return false;
}

static bool fits(struct fit *f)
{
	int share = -1, whole = -1;
	uint8_t order[CONTRIB_LOCAL_MAX];
	uint32_t nr = 0, at;

	for (uint32_t i = 0; i < f->m->contrib.local_nr; i++) {
		const struct share *s = share_of(f->m, i, f->segment);

		if (s->n != SHARE_WHOLE)
			share = (int)i;
		else if (!*absent_of(f->m, i, f->segment))
			whole = (int)i;
		if (s->n == SHARE_WHOLE || s->n == 0)
			continue;
		for (at = nr++; at > 0; at--) {
			if (share_of(f->m, order[at - 1], f->segment)->start <= s->start)
				break;
			order[at] = order[at - 1];
		}
		order[at] = (uint8_t)i;
	}
	if (share >= 0 && whole >= 0)
		return mixed(f, (uint32_t)share, (uint32_t)whole);
	return share < 0 || covers(f, order, nr);
}

/* Any local rank that is still there stands for all of them. */
static void tell(struct model *m, const char *why)
{
	for (uint32_t i = 0; i < m->contrib.local_nr; i++)
		if (m->contrib.local[i].trainer != NULL) {
			m->server->data->differ(m, m->contrib.local[i].trainer->id, why);
			return;
		}
}

bool shares_settle(struct model *m, uint32_t chunk)
{
	const struct layout *l = m->layout;
	struct fit f = {.m = m, .chunk = chunk};

	for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++) {
		f.segment = s;
		if (fits(&f))
			continue;
		if (!m->contrib.chunk[chunk].skip) {
			tell(m, f.text);
			return false;
		}
		/* The step will be skipped, whatever is summed. So that no old bytes are looked at,
		 * nobody has a gradient. */
		for (uint32_t i = 0; i < m->contrib.local_nr; i++)
			*absent_of(m, i, s) = 1;
	}
	return true;
}
