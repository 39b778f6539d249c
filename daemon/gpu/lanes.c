// SPDX-License-Identifier: Apache-2.0
/* The jobs of a device. device.c begins a job on a free lane and later waits for it there. Copies
 * go straight where the memory of the host is pinned, and through the buffer of the lane where it
 * is not. An update is: the old state to who keeps it, what is between the elements that change to
 * the new state, gradient and tables to the device, the kernel, and the image back. The kernel
 * makes the image in a buffer of the lane, or where trainers read it. All of it is queued at once
 * on the stream of the lane, with an event behind it. A call of the driver that fails makes the
 * device lost, because nobody knows what of the job has run. */
#include "gpu/device_impl.h"

#include "base/check.h"
#include "config/settings.h"
#include "gpu/kernels.h"

#include <assert.h>
#include <string.h>

enum {
	PIECE = 1 << 20, /* Elements of an update at a time. */
	SEGMENTS_MAX = PIECE / LAYOUT_ALIGN,
	RUNS_MAX = 8, /* More than these are copied through the buffer, or with what is between. */
};
#define BUFFER_BYTES ((uint64_t)4 << 20)
#define STATES       (1 + OPTIM_STATES_MAX)

/* What the kernel is told of a piece, behind one another in memory of the device. There is a copy
 * of the same form in pinned memory. Only as much of it is copied as is used. */
struct tables {
	unsigned long long kept;
	struct gpu_chunk chunk;
	uint8_t pad[56];
	struct optim_args args[SETTINGS_GROUPS_MAX];
	struct gpu_segment segment[SEGMENTS_MAX];
};
static_assert(offsetof(struct tables, args) % 64 == 0, "tables are aligned");
static_assert(offsetof(struct tables, segment) % 64 == 0, "tables are aligned");
static_assert(sizeof(struct tables) >= GPU_LANE_TABLES, "those of a sum fit there");

/* The parts of a lane's memory. */
#define DEVICE_GRAD   0
#define DEVICE_IMAGE  ((uint64_t)PIECE * 4)
#define DEVICE_TABLES ((uint64_t)PIECE * 8)
#define DEVICE_BYTES  (DEVICE_TABLES + sizeof(struct tables))
#define HOST_KEPT     0 /* Is read back. */
#define HOST_TABLES   4096
#define HOST_BUFFER   ((HOST_TABLES + sizeof(struct tables) + 4095) / 4096 * 4096)
#define HOST_BYTES    (HOST_BUFFER + BUFFER_BYTES)

uint64_t gpu_lane_host_bytes(void)
{
	return HOST_BYTES;
}

enum shard_status gpu_lane_init(struct gpu *g, struct gpu_lane *l, struct err *e)
{
	void *host = NULL;
	cu_result rc;

	memset(l, 0, sizeof(*l));
	if ((rc = ASK(g, g->d.stream_create(&l->stream, CU_STREAM_OWN))) != CU_SUCCESS) {
		l->stream = NULL;
		return gpu_fail(g, e, rc, "cuStreamCreate", "");
	}
	if ((rc = ASK(g, g->d.event_create(&l->event, CU_EVENT_BLOCKING | CU_EVENT_NO_TIMING))) !=
	    CU_SUCCESS) {
		l->event = NULL;
		return gpu_fail(g, e, rc, "cuEventCreate", "");
	}
	if ((rc = ASK(g, g->d.memory_alloc(&l->device, DEVICE_BYTES))) != CU_SUCCESS) {
		l->device = 0;
		return gpu_fail(g, e, rc, "cuMemAlloc", "of a buffer");
	}
	if ((rc = ASK(g, g->d.host_alloc(&host, HOST_BYTES, CU_REGISTER_PORTABLE))) != CU_SUCCESS)
		return gpu_fail(g, e, rc, "cuMemHostAlloc", "of a buffer");
	l->host = host;
	return SHARD_OK;
}

void gpu_lane_deinit(struct gpu *g, struct gpu_lane *l)
{
	if (l->host != NULL)
		(void)DRIVE(g, g->d.host_free(l->host));
	if (l->device != 0)
		(void)DRIVE(g, g->d.memory_free(l->device));
	if (l->event != NULL)
		(void)DRIVE(g, g->d.event_destroy(l->event));
	if (l->stream != NULL)
		(void)DRIVE(g, g->d.stream_destroy(l->stream));
	memset(l, 0, sizeof(*l));
}

/* --- calls of the driver: false, and the device is lost --- */

bool gpu_lane_ok(struct gpu *g, cu_result rc, const char *call)
{
	if (rc == CU_SUCCESS)
		return true;
	gpu_lose(g, rc, call);
	return false;
}

bool gpu_lane_to_device(struct gpu *g, struct gpu_lane *l, cu_ptr to, const void *from,
			uint64_t bytes)
{
	g->to_device_bytes += bytes;
	return gpu_lane_ok(g, DRIVE(g, g->d.to_device(to, from, bytes, l->stream)),
			   "cuMemcpyHtoDAsync");
}

bool gpu_lane_to_host(struct gpu *g, struct gpu_lane *l, void *to, cu_ptr from, uint64_t bytes)
{
	g->to_host_bytes += bytes;
	return gpu_lane_ok(g, DRIVE(g, g->d.to_host(to, from, bytes, l->stream)),
			   "cuMemcpyDtoHAsync");
}

static bool within(struct gpu *g, struct gpu_lane *l, cu_ptr to, cu_ptr from, uint64_t bytes)
{
	return gpu_lane_ok(g, DRIVE(g, g->d.within(to, from, bytes, l->stream)),
			   "cuMemcpyDtoDAsync");
}

/* --- copies between host and device --- */

/* As gpu_lane_to_device() or gpu_lane_to_host(), of pinned memory that may be pinned in several
 * pieces. */
static bool copy_pinned(struct gpu *g, struct gpu_lane *l, bool in, cu_ptr device, uint8_t *host,
			uint64_t bytes)
{
	while (bytes > 0) {
		uint64_t part = gpu_pinned(g, host, bytes);

		CHECK(part > 0);
		if (!(in ? gpu_lane_to_device(g, l, device, host, part)
			 : gpu_lane_to_host(g, l, host, device, part)))
			return false;
		host += part;
		device += part;
		bytes -= part;
	}
	return true;
}

static bool all_pinned(struct gpu *g, const uint8_t *host, uint64_t bytes)
{
	while (bytes > 0) {
		uint64_t part = gpu_pinned(g, host, bytes);

		if (part == 0)
			return false;
		host += part;
		bytes -= part;
	}
	return true;
}

/* Copies through the buffer, from *used on. What comes to the host waits there. */
static bool copy_buffered(struct gpu *g, struct gpu_lane *l, bool in, cu_ptr device, void *host,
			  uint64_t bytes, uint64_t *used)
{
	uint8_t *buffer = l->host + HOST_BUFFER + *used;

	CHECK(*used + bytes <= BUFFER_BYTES);
	*used += bytes;
	if (in) {
		memcpy(buffer, host, bytes);
		return gpu_lane_to_device(g, l, device, buffer, bytes);
	}
	CHECK(l->outs_nr < GPU_LANE_OUTS_MAX);
	l->out[l->outs_nr++] = (struct gpu_lane_out){host, buffer, bytes};
	return gpu_lane_to_host(g, l, buffer, device, bytes);
}

bool gpu_lane_copies(struct gpu *g, struct gpu_lane *l, const struct gpu_copy *copies, uint32_t nr,
		     bool in, uint64_t *used)
{
	while (l->copy < nr) {
		const struct gpu_copy *c = &copies[l->copy];
		uint8_t *host = (uint8_t *)c->host + l->at;
		uint64_t left = c->bytes - l->at, part;

		if (left == 0) {
			l->copy++;
			l->at = 0;
			continue;
		}
		part = gpu_pinned(g, host, left);
		if (part > 0) {
			if (!copy_pinned(g, l, in, c->device + l->at, host, part))
				return false;
		} else {
			part = left < BUFFER_BYTES - *used ? left : BUFFER_BYTES - *used;
			if (part == 0 || l->outs_nr == GPU_LANE_OUTS_MAX)
				break;
			if (!copy_buffered(g, l, in, c->device + l->at, host, part, used))
				return false;
		}
		l->at += part;
	}
	return true;
}

static bool copies_go(struct gpu *g, struct gpu_lane *l, const struct gpu_job *j)
{
	uint64_t used = 0;

	return gpu_lane_copies(g, l, j->copy, j->copies_nr, j->what == GPU_TO_DEVICE, &used);
}

void *gpu_lane_tables(const struct gpu_lane *l)
{
	return l->host + HOST_TABLES;
}

cu_ptr gpu_lane_tables_at(const struct gpu_lane *l)
{
	return l->device + DEVICE_TABLES;
}

/* --- an update --- */

struct run { /* Elements of a chunk that are updated, without a gap. */
	uint32_t first, end;
};

/* The next run in [first, end). *segment is where to look, and at first that of the chunk. */
static bool run_next(const struct layout *l, uint32_t chunk, uint32_t *segment, uint32_t first,
		     uint32_t end, struct run *r)
{
	bool found = false;

	for (; *segment < l->chunk_segment[chunk + 1]; ++*segment) {
		const struct segment *s = &l->segment[*segment];
		uint32_t from = s->start > first ? s->start : first;
		uint32_t to = s->start + s->n < end ? s->start + s->n : end;

		if (from >= to || layout_frozen(l, *segment))
			continue;
		if (found && from != r->end)
			break;
		r->first = found ? r->first : from;
		r->end = to;
		found = true;
	}
	return found;
}

static uint32_t runs_of(const struct gpu_update *u, uint32_t first, uint32_t end)
{
	uint32_t segment = u->layout->chunk_segment[u->chunk], nr = 0;
	struct run r;

	while (run_next(u->layout, u->chunk, &segment, first, end, &r))
		nr++;
	return nr;
}

/* What of the update is not pinned, or would be too many copies. */
struct ways {
	bool grad, image, keep[STATES]; /* Through the buffer. */
	uint64_t piece;                 /* Elements. */
};

static struct ways ways_of(struct gpu *g, const struct gpu_update *u)
{
	const uint32_t n = layout_chunk_elems(u->layout, u->chunk);
	const uint32_t grad = dtype_bytes(u->grad_dtype), image = dtype_bytes(u->image_dtype);
	struct ways w = {.grad = u->grad_at == 0 && !all_pinned(g, u->grad, (uint64_t)n * grad),
			 .image = !all_pinned(g, u->image, (uint64_t)n * image) ||
				  runs_of(u, 0, n) > RUNS_MAX};
	uint64_t buffered = (w.grad ? grad : 0) + (w.image ? image : 0);

	for (int i = 0; i < STATES; i++) {
		w.keep[i] = u->keep[i] != NULL && u->from[i] != 0 &&
			    !all_pinned(g, (uint8_t *)u->keep[i], (uint64_t)n * 4);
		buffered += w.keep[i] ? 4 : 0;
	}
	w.piece = PIECE;
	if (buffered > 0 && BUFFER_BYTES / buffered < PIECE)
		w.piece = BUFFER_BYTES / buffered / REDUCE_BLOCK * REDUCE_BLOCK;
	return w;
}

/* Makes the new state what the old one is where no element changes, and keeps the old one. */
static bool states_go(struct gpu *g, struct gpu_lane *l, const struct gpu_update *u,
		      const struct ways *w, struct run piece, uint64_t *used)
{
	const uint64_t bytes = (uint64_t)(piece.end - piece.first) * 4, skip = piece.first * 4ull;
	const bool whole = runs_of(u, piece.first, piece.end) > RUNS_MAX;

	for (int i = 0; i < STATES; i++) {
		uint32_t segment = u->layout->chunk_segment[u->chunk], at = piece.first;
		uint8_t *keep = u->keep[i] ? (uint8_t *)(u->keep[i] + piece.first) : NULL;
		struct run r;

		if (u->from[i] == 0)
			continue;
		if (keep != NULL &&
		    !(w->keep[i] ? copy_buffered(g, l, false, u->from[i] + skip, keep, bytes, used)
				 : copy_pinned(g, l, false, u->from[i] + skip, keep, bytes)))
			return false;
		if (u->from[i] == u->to[i])
			continue;
		if (whole && !within(g, l, u->to[i] + skip, u->from[i] + skip, bytes))
			return false;
		while (!whole && at < piece.end) {
			if (!run_next(u->layout, u->chunk, &segment, piece.first, piece.end, &r))
				r = (struct run){piece.end, piece.end};
			if (r.first > at && !within(g, l, u->to[i] + at * 4ull,
						    u->from[i] + at * 4ull, (r.first - at) * 4ull))
				return false;
			at = r.end;
		}
	}
	return true;
}

struct plan {            /* What the kernel does in a piece. */
	struct run span; /* From the first element that changes to the last one. */
	uint32_t segments_nr, blocks_nr, groups_nr;
	bool gradient; /* Somebody has one. */
};

/* Where the kernel writes the image of a piece. */
static cu_ptr image_of(const struct gpu_lane *l, const struct gpu_update *u, struct run piece)
{
	return u->image_at ? u->image_at + (uint64_t)piece.first * dtype_bytes(u->image_dtype)
			   : l->device + DEVICE_IMAGE;
}

static float *state_at(cu_ptr p, uint32_t element)
{
	return p ? (float *)(uintptr_t)(p + element * 4ull) : NULL;
}

/* Fills the tables. Elements count from the beginning of the piece there. */
static struct plan plan_make(const struct gpu_lane *l, const struct gpu_update *u, struct run piece)
{
	struct tables *t = (struct tables *)(void *)(l->host + HOST_TABLES);
	const struct layout *layout = u->layout;
	struct plan p = {.span = {piece.end, piece.first}};
	cu_ptr grad = u->grad_at == 0
			      ? l->device + DEVICE_GRAD
			      : u->grad_at + (uint64_t)piece.first * dtype_bytes(u->grad_dtype);

	t->kept = 0;
	t->chunk = (struct gpu_chunk){
		state_at(u->from[0], piece.first), state_at(u->from[1], piece.first),
		state_at(u->from[2], piece.first), state_at(u->to[0], piece.first),
		state_at(u->to[1], piece.first),   state_at(u->to[2], piece.first),
		(const void *)(uintptr_t)grad,     (void *)(uintptr_t)image_of(l, u, piece)};
	for (uint32_t i = layout->chunk_segment[u->chunk]; i < layout->chunk_segment[u->chunk + 1];
	     i++) {
		const struct segment *s = &layout->segment[i];
		uint32_t from = s->start > piece.first ? s->start : piece.first;
		uint32_t to = s->start + s->n < piece.end ? s->start + s->n : piece.end;

		if (from >= to || layout_frozen(layout, i))
			continue;
		CHECK(p.segments_nr < SEGMENTS_MAX && s->group < SETTINGS_GROUPS_MAX);
		t->segment[p.segments_nr++] = (struct gpu_segment){.start = from - piece.first,
								   .n = to - from,
								   .block = p.blocks_nr,
								   .group = s->group,
								   .zero = u->zero[i]};
		p.blocks_nr += (to - from + REDUCE_BLOCK - 1) / REDUCE_BLOCK;
		t->args[s->group] = u->args[s->group];
		p.groups_nr = s->group >= p.groups_nr ? s->group + 1 : p.groups_nr;
		p.span.first = from < p.span.first ? from : p.span.first;
		p.span.end = to > p.span.end ? to : p.span.end;
		p.gradient = p.gradient || !u->zero[i];
	}
	return p;
}

static bool kernel_go(struct gpu *g, struct gpu_lane *l, const struct gpu_update *u,
		      const struct plan *p)
{
	struct tables *t = (struct tables *)(void *)(l->host + HOST_TABLES);
	const cu_ptr at = l->device + DEVICE_TABLES;
	struct gpu_apply job = {
		(const struct gpu_segment *)(uintptr_t)(at + offsetof(struct tables, segment)),
		(const struct gpu_chunk *)(uintptr_t)(at + offsetof(struct tables, chunk)),
		(const struct optim_args *)(uintptr_t)(at + offsetof(struct tables, args)),
		(unsigned long long *)(uintptr_t)(at + offsetof(struct tables, kept)),
		p->segments_nr,
		p->blocks_nr};
	void *args[] = {&job};
	cu_function f = g->apply[u->optim->id][u->grad_dtype][u->image_dtype];

	return gpu_lane_to_device(g, l, at, t,
				  offsetof(struct tables, args) +
					  p->groups_nr * sizeof(t->args[0])) &&
	       gpu_lane_to_device(g, l, at + offsetof(struct tables, segment), t->segment,
				  p->segments_nr * sizeof(t->segment[0])) &&
	       gpu_lane_ok(g,
			   DRIVE(g, g->d.launch(f, p->blocks_nr, 1, 1, GPU_THREADS, 1, 1, 0,
						l->stream, args, NULL)),
			   "cuLaunchKernel") &&
	       gpu_lane_to_host(g, l, l->host + HOST_KEPT, at + offsetof(struct tables, kept),
				sizeof(t->kept));
}

/* The image of the elements that changed. */
static bool image_go(struct gpu *g, struct gpu_lane *l, const struct gpu_update *u,
		     const struct ways *w, const struct plan *p, struct run piece, uint64_t *used)
{
	const uint32_t size = dtype_bytes(u->image_dtype);
	const cu_ptr from = image_of(l, u, piece);
	uint32_t segment = u->layout->chunk_segment[u->chunk];
	struct run r;

	if (w->image) {
		uint64_t skip = (uint64_t)(p->span.first - piece.first) * size;
		uint64_t bytes = (uint64_t)(p->span.end - p->span.first) * size;

		/* So that element i of the piece is at image_from + i * size. */
		l->image_from = l->host + HOST_BUFFER + *used;
		CHECK(*used + skip + bytes <= BUFFER_BYTES);
		*used += skip + bytes;
		return gpu_lane_to_host(g, l, l->image_from + skip, from + skip, bytes);
	}
	while (run_next(u->layout, u->chunk, &segment, piece.first, piece.end, &r))
		if (!copy_pinned(g, l, false, from + (uint64_t)(r.first - piece.first) * size,
				 u->image + (uint64_t)r.first * size,
				 (uint64_t)(r.end - r.first) * size))
			return false;
	return true;
}

static bool update_go(struct gpu *g, struct gpu_lane *l, const struct gpu_update *u)
{
	const uint32_t n = layout_chunk_elems(u->layout, u->chunk);
	const uint32_t size = dtype_bytes(u->grad_dtype);
	const struct ways w = ways_of(g, u);
	uint64_t used = 0, skip, bytes;
	uint8_t *grad;
	struct plan p;
	struct run piece;

	l->piece = n - l->at < w.piece ? n - l->at : w.piece;
	piece = (struct run){(uint32_t)l->at, (uint32_t)(l->at + l->piece)};
	if (!states_go(g, l, u, &w, piece, &used))
		return false;
	p = plan_make(l, u, piece);
	if (p.blocks_nr == 0)
		return true;
	l->counts = true;
	skip = (uint64_t)(p.span.first - piece.first) * size;
	bytes = (uint64_t)(p.span.end - p.span.first) * size;
	grad = (uint8_t *)(uintptr_t)u->grad + (uint64_t)p.span.first * size;
	if (p.gradient && u->grad_at == 0 &&
	    !(w.grad ? copy_buffered(g, l, true, l->device + DEVICE_GRAD + skip, grad, bytes, &used)
		     : copy_pinned(g, l, true, l->device + DEVICE_GRAD + skip, grad, bytes)))
		return false;
	return kernel_go(g, l, u, &p) && image_go(g, l, u, &w, &p, piece, &used);
}

/* --- pieces --- */

static bool piece_go(struct gpu *g, struct gpu_lane *l)
{
	const struct gpu_job *j = &g->slot[l->slot].job;

	l->outs_nr = 0;
	l->image_from = NULL;
	l->counts = false;
	l->summed = 0;
	if (!(j->what == GPU_UPDATE ? update_go(g, l, &j->update)
	      : j->what == GPU_ADD  ? gpu_add_go(g, l, j->add)
				    : copies_go(g, l, j)))
		return false;
	return gpu_lane_ok(g, DRIVE(g, g->d.event_record(l->event, l->stream)), "cuEventRecord");
}

/* Hands over what has come to the buffer. */
static void piece_take(struct gpu *g, const struct gpu_lane *l)
{
	const struct gpu_update *u = &g->slot[l->slot].job.update;
	const uint32_t first = (uint32_t)l->at, end = (uint32_t)(l->at + l->piece);
	unsigned long long kept;
	uint32_t segment, size;
	struct run r;

	for (uint32_t i = 0; i < l->outs_nr; i++)
		memcpy(l->out[i].to, l->out[i].from, l->out[i].bytes);
	if (!l->counts)
		return;
	memcpy(&kept, l->host + HOST_KEPT, sizeof(kept));
	g->slot[l->slot].kept += kept;
	if (l->image_from == NULL)
		return;
	segment = u->layout->chunk_segment[u->chunk];
	size = dtype_bytes(u->image_dtype);
	while (run_next(u->layout, u->chunk, &segment, first, end, &r))
		memcpy(u->image + (uint64_t)r.first * size,
		       l->image_from + (uint64_t)(r.first - first) * size,
		       (uint64_t)(r.end - r.first) * size);
}

/* What network devices have written is seen from now on. The writes are completed: who gives the
 * job has heard of them. */
static bool flush(struct gpu *g)
{
	return !g->flushes ||
	       gpu_lane_ok(g, DRIVE(g, g->d.flush_writes(CU_FLUSH_CURRENT, CU_FLUSH_TO_OWNER)),
			   "cuFlushGPUDirectRDMAWrites");
}

bool gpu_lane_begin(struct gpu *g, struct gpu_lane *l, uint32_t slot)
{
	const struct gpu_job *j = &g->slot[slot].job;

	l->slot = slot;
	l->copy = 0;
	l->at = 0;
	if (j->what == GPU_ADD)
		gpu_add_begin(l, j->add);
	if ((j->what == GPU_ADD || j->written) && !flush(g))
		return false;
	return piece_go(g, l);
}

bool gpu_lane_go_on(struct gpu *g, struct gpu_lane *l, bool *more)
{
	const struct gpu_job *j = &g->slot[l->slot].job;

	if (!gpu_lane_ok(g, DRIVE(g, g->d.event_sync(l->event)), "cuEventSynchronize"))
		return false;
	piece_take(g, l);
	if (j->what == GPU_UPDATE) {
		l->at += l->piece;
		*more = l->at < layout_chunk_elems(j->update.layout, j->update.chunk);
	} else if (j->what == GPU_ADD) {
		*more = !gpu_add_take(l, j->add);
	} else {
		*more = l->copy < j->copies_nr;
	}
	if (*more)
		return piece_go(g, l);
	g->updates += j->what == GPU_UPDATE;
	g->sums += j->what == GPU_ADD;
	return true;
}

void gpu_lane_settle(struct gpu *g, struct gpu_lane *l)
{
	(void)DRIVE(g, g->d.stream_sync(l->stream));
}
