/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of `shardctl plan`. plan.c and bench.c call these pure functions, which turn a
 * specification into bytes and cannot fail. The figures of this system follow the daemon's budget
 * to the page, and a unit test compares the two. The other figures are the published formulas, with
 * names for their factors. */
#include "ctl/memory.h"

#include "base/check.h"
#include "net/shm.h"

#define ALIGN_ELEMS 64ull
#define PAGE_BYTES  4096ull
#define HUGE_BYTES  (2ull << 20)
#define BLOB_BYTES  (64ull << 10)

/* Bytes per parameter that only the optimizer needs: its moments, and the fp32 master of 16-bit
 * parameters. Adam takes 12. */
static double optimizer_bytes(const struct memory_spec *m)
{
	return 4.0 * m->states + (m->image_bytes < 4 ? 4.0 : 0.0);
}

double memory_zero(const struct memory_spec *m, int stage)
{
	double psi = (double)m->params, n = m->ranks, params = m->image_bytes,
	       grads = m->grad_bytes, rest = optimizer_bytes(m);

	CHECK(stage >= 0 && stage <= 3 && m->ranks > 0);
	return psi * (params / (stage >= 3 ? n : 1) + grads / (stage >= 2 ? n : 1) +
		      rest / (stage >= 1 ? n : 1));
}

double memory_zeropp(const struct memory_spec *m)
{
	return memory_zero(m, 3) + (double)m->image_bytes * (double)m->params / m->local;
}

static double greater(double a, double b)
{
	return a > b ? a : b;
}

void memory_deepspeed(const struct memory_spec *m, int stage, enum memory_offload offload,
		      bool init, double *host, double *device)
{
	const double buffers = 1.5, psi = (double)m->params, layer = 4.0 * (double)m->layer;
	double per_node = m->local, ranks = m->ranks, share = 1.0 / m->nodes, held;

	CHECK(stage == 2 || stage == 3);
	if (stage == 2 && offload != OFFLOAD_NONE) {
		*device = 2 * psi;
		*host = psi * greater(4 * ranks, 16) * buffers;
	} else if (stage == 2) {
		*device = 4 * psi + 16 * psi / ranks;
		*host = psi * 4 * per_node * buffers;
	} else if (offload != OFFLOAD_NONE) {
		held = (offload == OFFLOAD_PARAMS ? 18 : 16) * share;
		*device = layer + (offload == OFFLOAD_PARAMS ? 0 : 2 * psi / ranks);
		*host = psi * (init ? held : greater(4 * per_node, held)) * buffers;
	} else {
		*device = layer + 18 * psi / ranks;
		*host = (init ? (double)m->layer : psi) * 4 * per_node * buffers;
	}
}

/* --- this system --- */

const char *memory_item_name(enum memory_item item)
{
	static const char *const names[MEMORY_ITEMS] = {"state",         "image",     "arenas",
							"landing slots", "node sums", "fixed"};

	CHECK((unsigned)item < MEMORY_ITEMS);
	return names[item];
}

static uint64_t up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

static uint64_t mapped(const struct memory_spec *m, uint64_t bytes)
{
	return up(bytes, m->huge && bytes >= HUGE_BYTES ? HUGE_BYTES : PAGE_BYTES);
}

/* The elements of the chunks that the fullest node holds. With one copy, chunks go to nodes in
 * turn, so the first node holds most, and the last chunk, which may be shorter, counts as short
 * only where the first node holds it. Of several copies each node holds an equal part, and the
 * fullest one need not hold the last chunk, unless every node holds all of them. */
static uint64_t held_elems(const struct memory_spec *m, uint64_t chunks, uint64_t last)
{
	uint64_t held = (chunks * m->replicas + m->nodes - 1) / m->nodes;
	bool has_last = m->replicas == 1 ? (chunks - 1) % m->nodes == 0 : held == chunks;

	return held * m->chunk_elems - (has_last ? m->chunk_elems - last : 0);
}

/* The alignment may shift every tensor but the
 * first by up to 63 elements, and half of that is counted. */
void memory_node(const struct memory_spec *m, struct memory_node *out)
{
	uint64_t elems = up(m->params + (m->tensors - 1) * (ALIGN_ELEMS / 2), ALIGN_ELEMS), last,
		 held, others, segments;
	uint64_t grad = m->grad_bytes, copies = m->staleness + 1;
	uint64_t image = up(elems * m->image_bytes, PAGE_BYTES),
		 arena = up(elems * grad, PAGE_BYTES);

	CHECK(m->params > 0 && m->tensors > 0 && m->nodes > 0 && m->local > 0 &&
	      m->chunk_elems >= ALIGN_ELEMS && m->replicas > 0 && m->replicas <= m->nodes);
	*out = (struct memory_node){.chunks = (elems + m->chunk_elems - 1) / m->chunk_elems};
	last = elems - (out->chunks - 1) * m->chunk_elems;
	held = held_elems(m, out->chunks, last);
	others = m->local > 1 ? elems - held : 0;
	segments = m->tensors + out->chunks - 1;
	out->held_elems = held;
	out->bytes[MEMORY_STATE] = mapped(m, up(held * 4, PAGE_BYTES) * (1 + m->states));
	out->bytes[MEMORY_IMAGE] =
		mapped(m, up(sizeof(struct image_head) + copies * out->chunks * 8, PAGE_BYTES) +
				  copies * image);
	/* Arenas never use reserved huge pages. */
	out->bytes[MEMORY_ARENAS] = m->local * copies * arena;
	if (m->staleness > 0)
		out->stale =
			out->bytes[MEMORY_IMAGE] + out->bytes[MEMORY_ARENAS] - m->local * arena -
			mapped(m,
			       up(sizeof(struct image_head) + out->chunks * 8, PAGE_BYTES) + image);
	out->bytes[MEMORY_SLOTS] = mapped(m, up(held * grad, PAGE_BYTES) * (m->nodes - 1));
	out->bytes[MEMORY_SUMS] =
		mapped(m, up(held * grad, PAGE_BYTES) + up(others * grad, PAGE_BYTES));
	out->bytes[MEMORY_FIXED] =
		(256ull << 10) + m->tensors * 320ull + segments * 24ull + out->chunks * 192ull +
		((uint64_t)(m->replicas > 1 ? m->ranks : m->local) + m->ranks) * BLOB_BYTES;
	for (int i = 0; i < MEMORY_ITEMS; i++)
		out->total += out->bytes[i];
}

double memory_device(const struct memory_spec *m, int stage)
{
	double psi = (double)m->params, layer = (double)m->layer;

	CHECK(stage >= 1 && stage <= 3);
	return m->image_bytes * (stage == 3 ? layer : psi) +
	       m->grad_bytes * (stage == 1 ? psi : layer);
}

/* --- traffic --- */

double memory_traffic_zero(const struct memory_spec *m, int stage)
{
	double psi = (double)m->params;

	CHECK(stage >= 0 && stage <= 3);
	return psi * (stage == 3 ? 2.0 * m->image_bytes + m->grad_bytes
				 : (double)m->image_bytes + m->grad_bytes);
}

/* ZeRO++ sends int8 parameters in the forward gather and int4 gradients. In the backward gather it
 * uses the copy inside the node. The factors are relative to 16-bit elements. */
double memory_traffic_zeropp(const struct memory_spec *m)
{
	return 2.0 * (0.5 + 0.0 + 0.25) * (double)m->params;
}

/* A node sends one contribution for each chunk that another node reduces. Of each chunk that it
 * reduces itself it sends the gradient to the nodes that hold the other copies, and the image to
 * those that hold none. */
double memory_traffic_node(const struct memory_spec *m)
{
	double psi = (double)m->params, share = 1.0 / m->nodes;

	return psi * (1 - share) * m->grad_bytes + psi * share * (m->replicas - 1) * m->grad_bytes +
	       psi * share * (m->nodes - m->replicas) * m->image_bytes;
}

uint32_t memory_update_bytes(const struct memory_spec *m)
{
	return m->grad_bytes + 8 * (1 + m->states) + m->image_bytes;
}
