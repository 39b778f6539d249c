/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of `shardctl plan`. plan.c and bench.c call these pure functions, which turn a
 * specification into bytes and cannot fail. The figures of this system follow the daemon's budget
 * to the page, and a unit test compares the two. The other figures are the published formulas, with
 * names for their factors. */
#include "ctl/memory.h"

#include "base/check.h"
#include "net/shm.h"
#include "wire/ops.h"

#define ALIGN_ELEMS 64ull
#define PAGE_BYTES  4096ull
#define HUGE_BYTES  (2ull << 20)
#define BLOB_BYTES  (64ull << 10)
#define CODEC_BLOCK 256ull
/* As store/tier_nvme.c has them: buffers that chunks take turns in, and slots beside one for each
 * chunk. */
#define NVME_TURNS 8u
#define NVME_SPARE 11u
/* As store/tier_gpu.c has them: buffers of the host, and slots of a device beside one for each
 * chunk. */
#define GPU_BUFFERS 8u
#define GPU_SPARE   16u
#define GPU_GRANULE (2ull << 20)  /* What a driver maps is a multiple of it. */
#define GPU_PART    (64ull << 10) /* One node's direct slots on a device are a multiple of it. */
#define GPU_HOST    (19ull << 20) /* Rounded up: the buffers of gpu/lanes.c. */
/* As store/budget.c has them, for gradients of a step: nodes that a cluster may have, bytes of a
 * chunk, and of a rank's share of a segment. */
#define CONTRIB_NODES 64ull
#define CONTRIB_CHUNK 72ull
#define CONTRIB_SHARE 8ull

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
	static const char *const names[MEMORY_ITEMS] = {
		"state", "image", "arenas", "landing slots", "node sums", "codes", "fixed"};

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

/* The elements of each image dtype, and their chunks. The last one of each may be shorter. */
struct shape {
	uint64_t elems[2], chunks[2], dtypes;
};

/* The alignment may shift every tensor but the first of its dtype by up to 63 elements, and half of
 * that is counted. */
static struct shape shape_of(const struct memory_spec *m)
{
	struct shape s = {.elems = {m->params - m->wide, m->wide},
			  .dtypes = m->wide > 0 && m->wide < m->params ? 2 : 1};
	uint64_t others = m->tensors > s.dtypes ? m->tensors - s.dtypes : 0,
		 shift = others * (ALIGN_ELEMS / 2);

	s.elems[s.elems[0] == 0] += shift;
	for (int k = 0; k < 2; k++) {
		s.elems[k] = up(s.elems[k], ALIGN_ELEMS);
		s.chunks[k] = (s.elems[k] + m->chunk_elems - 1) / m->chunk_elems;
	}
	return s;
}

/* The elements of the chunks that the fullest node holds. With one copy, chunks go to nodes in
 * turn, so the first node holds most, and a chunk that is shorter than the others counts as short
 * only where the first node holds it. Of several copies each node holds an equal part, and the
 * fullest one need not hold a short chunk, unless every node holds all of them. */
static uint64_t held_elems(const struct memory_spec *m, const struct shape *s)
{
	uint64_t chunks = s->chunks[0] + s->chunks[1], end = 0;
	uint64_t held = (chunks * m->replicas + m->nodes - 1) / m->nodes, all;

	all = held * m->chunk_elems;
	for (int k = 0; k < 2; k++) {
		end += s->chunks[k];
		if (s->chunks[k] > 0 &&
		    (m->replicas == 1 ? (end - 1) % m->nodes == 0 : held == chunks))
			all -= s->chunks[k] * m->chunk_elems - s->elems[k];
	}
	return all;
}

/* Codes and one scale for each block of them. Those of a chunk begin at a multiple of 64 bytes. */
static uint64_t chunk_codes(uint32_t bits, uint64_t elems)
{
	return up(elems * bits / 8 + (elems + CODEC_BLOCK - 1) / CODEC_BLOCK * 4, 64);
}

static uint64_t codes(const struct memory_spec *m, const struct shape *s, uint32_t bits)
{
	uint64_t all = m->tensors * 8ull; /* Blocks that are short at the end of a tensor. */

	if (bits == 0)
		return 0;
	for (int k = 0; k < 2; k++)
		all += s->elems[k] / m->chunk_elems * chunk_codes(bits, m->chunk_elems) +
		       chunk_codes(bits, s->elems[k] % m->chunk_elems);
	return up(all, PAGE_BYTES);
}

/* Chunks on the disk, the last ones of a node. Each has a buffer or takes turns in one: a slot,
 * which ends with a page of its own. Returns the elements that stay in memory, of the held ones. */
static uint64_t put_away(const struct memory_spec *m, const struct shape *s, uint64_t held,
			 struct memory_node *out, uint64_t *buffers)
{
	uint64_t chunks = (out->chunks * m->replicas + m->nodes - 1) / m->nodes,
		 away = chunks * (m->nvme_share + m->gpu_share) / 100,
		 most = m->gpu_share > 0 ? GPU_BUFFERS : m->nvme_cache,
		 cache = away < most ? away : most,
		 slot = (1 + m->states) * up(m->chunk_elems * 4ull, PAGE_BYTES) + PAGE_BYTES,
		 turns = cache / 2 < NVME_TURNS ? cache / 2 : NVME_TURNS, elems;

	turns = turns < 3 ? 3 : turns;

	if (away == 0)
		return held;
	elems = away * m->chunk_elems;
	/* The last chunk may be short, and is one of them if it is there. */
	if (held % m->chunk_elems != 0 && s->elems[1] % m->chunk_elems == 0)
		elems -= m->chunk_elems - held % m->chunk_elems;
	*buffers = cache * slot + up((away + cache) * 8, PAGE_BYTES);
	if (m->gpu_share > 0) {
		out->device = up((away + GPU_SPARE) * slot, GPU_GRANULE);
		out->device_more = GPU_SPARE * slot;
		out->device_host = GPU_HOST;
		if (m->gpu_direct && m->nodes > 1 && m->codec_bits == 0)
			out->device_direct =
				up(up(elems * m->grad_bytes, GPU_PART) * m->nodes, GPU_GRANULE);
		return held - elems;
	}
	/* Without the superblocks, which are small. */
	out->disk = (away * (m->nvme_durable ? 2 : 1) + NVME_SPARE) * slot;
	out->disk_step = (m->nvme_durable ? away
			  : away == cache ? 0
					  : away - (cache - turns)) *
			 slot;
	return held - elems;
}

/* What a node keeps of the gradients of a step, beside them. */
static uint64_t contribs(const struct memory_spec *m, uint64_t chunks, uint64_t segments)
{
	uint64_t parts = ((uint64_t)m->chunk_elems * m->grad_bytes + WIRE_PART_BYTES - 1) /
			 WIRE_PART_BYTES,
		 bits = 2 * ((parts + 7) / 8);

	return chunks * (CONTRIB_CHUNK + CONTRIB_NODES * (bits + 4) + m->local * bits) +
	       segments * (CONTRIB_NODES + 1 + m->local * (1 + CONTRIB_SHARE));
}

void memory_node(const struct memory_spec *m, struct memory_node *out)
{
	struct shape s = shape_of(m);
	uint64_t grad = m->grad_bytes, copies = m->staleness + 1, held, here, buffers = 0, others,
		 segments, sums, coded;
	/* The elements of another dtype begin a chunk, in arenas too. */
	uint64_t arena =
		up((s.elems[1] > 0 ? s.chunks[0] * m->chunk_elems + s.elems[1] : s.elems[0]) * grad,
		   PAGE_BYTES);
	uint64_t image = up(s.elems[0] * m->image_bytes + s.elems[1] * sizeof(float), PAGE_BYTES);

	CHECK(m->params > 0 && m->tensors > 0 && m->nodes > 0 && m->local > 0 &&
	      m->wide <= m->params && m->chunk_elems >= ALIGN_ELEMS && m->replicas > 0 &&
	      m->replicas <= m->nodes);
	*out = (struct memory_node){.chunks = s.chunks[0] + s.chunks[1]};
	held = held_elems(m, &s);
	others = m->local > 1 ? s.elems[0] + s.elems[1] - held : 0;
	segments = (m->tensors > s.dtypes ? m->tensors : s.dtypes) + out->chunks - s.dtypes;
	out->held_elems = held;
	here = put_away(m, &s, held, out, &buffers);
	out->bytes[MEMORY_STATE] = mapped(m, up(here * 4, PAGE_BYTES) * (1 + m->states) + buffers);
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
	sums = up(held * grad, PAGE_BYTES) + up(others * grad, PAGE_BYTES);
	coded = codes(m, &s, m->codec_bits) + codes(m, &s, m->image_bits);
	if (m->codec_bits > 0) /* What the codes of gradients lose. */
		coded += 2 * up((s.elems[0] + s.elems[1]) * 2, PAGE_BYTES);
	out->bytes[MEMORY_SUMS] = coded > 0 ? sums : mapped(m, sums);
	if (coded > 0)
		out->bytes[MEMORY_CODES] = mapped(m, sums + coded) - sums;
	out->bytes[MEMORY_FIXED] =
		(400ull << 10) + m->tensors * 320ull + segments * 24ull + out->chunks * 192ull +
		contribs(m, out->chunks, segments) +
		((uint64_t)(m->replicas > 1 ? m->ranks : m->local) + m->ranks) * BLOB_BYTES;
	for (int i = 0; i < MEMORY_ITEMS; i++)
		out->total += out->bytes[i];
}

/* What they take beside image_bytes of all. */
static double wide_bytes(const struct memory_spec *m)
{
	return (double)m->wide * (4.0 - m->image_bytes);
}

double memory_device(const struct memory_spec *m, int stage)
{
	double psi = (double)m->params, layer = (double)m->layer;

	CHECK(stage >= 1 && stage <= 3);
	return m->image_bytes * (stage == 3 ? layer : psi) + wide_bytes(m) +
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

/* Of one element. */
static double code_bytes(uint32_t bits)
{
	return bits / 8.0 + 4.0 / (double)CODEC_BLOCK;
}

/* A node sends one contribution for each chunk that another node reduces. Of each chunk that it
 * reduces itself it sends the gradient to the nodes that hold the other copies, and the image to
 * those that hold none. Reduced gradients are not coded. */
double memory_traffic_node(const struct memory_spec *m)
{
	double psi = (double)m->params, share = 1.0 / m->nodes,
	       sent = m->codec_bits > 0 ? psi * code_bytes(m->codec_bits) : psi * m->grad_bytes,
	       image = m->image_bits > 0 ? psi * code_bytes(m->image_bits)
					 : psi * m->image_bytes + wide_bytes(m);

	return (1 - share) * sent + psi * share * (m->replicas - 1) * m->grad_bytes +
	       share * (m->nodes - m->replicas) * image;
}

uint32_t memory_update_bytes(const struct memory_spec *m)
{
	return m->grad_bytes + 8 * (1 + m->states) + m->image_bytes;
}
