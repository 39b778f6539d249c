// SPDX-License-Identifier: Apache-2.0
/* Devices of the daemon for tests. tests/unit/test_gpu_* call it. There is one loop, which runs
 * until a job or a closing device has come back. */
#include "lib/gpujobs.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

struct gpujobs jobs;

void gpujobs_init(char **argv)
{
	setenv("FAKE_CUDA_DEVICES", "2", 0);
	fakegpu_path(argv);
	fakegpu_find(&jobs.fake);
	CHECK(uv_loop_init(&jobs.loop) == 0);
}

void gpujobs_deinit(void)
{
	CHECK(uv_loop_close(&jobs.loop) == 0);
}

/* --- jobs --- */

static void on_done(void *owner, uint64_t tag, enum shard_status st, uint64_t kept)
{
	assert_ptr_equal(owner, &jobs.loop);
	assert_int_equal(tag, 77);
	assert_true(st == SHARD_OK || st == SHARD_SYSTEM);
	jobs.done_nr++;
	jobs.lost_nr += st != SHARD_OK;
	jobs.kept += kept;
}

static void on_after(void *owner, uint64_t tag)
{
	(void)owner;
	(void)tag;
	jobs.after_nr++;
}

struct gpu_job gpujobs_of(enum gpu_what what)
{
	return (struct gpu_job){
		.done = on_done, .after = on_after, .owner = &jobs.loop, .tag = 77, .what = what};
}

void gpujobs_run(struct gpu *g, const struct gpu_job *j)
{
	uint32_t before = jobs.done_nr;

	assert_int_equal(gpu_submit(g, j), SHARD_OK);
	while (jobs.done_nr == before)
		uv_run(&jobs.loop, UV_RUN_ONCE);
}

void gpujobs_copy(struct gpu *g, enum gpu_what what, void *host, uint64_t device, uint64_t bytes)
{
	struct gpu_job j = gpujobs_of(what);

	j.copy[0] = (struct gpu_copy){host, device, bytes};
	j.copies_nr = 1;
	gpujobs_run(g, &j);
}

/* --- devices --- */

struct gpu *gpujobs_open(int ordinal)
{
	struct gpu_conf conf = {.ordinal = ordinal, .jobs_max = JOBS};
	struct gpu *g = NULL;
	struct err e = {0};

	if (gpu_open(&g, &conf, &jobs.loop, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	return g;
}

static void on_closed(void *arg)
{
	*(bool *)arg = true;
}

void gpujobs_close(struct gpu **g)
{
	bool over = false;

	gpu_close(g, on_closed, &over);
	while (!over)
		uv_run(&jobs.loop, UV_RUN_ONCE);
}

struct gpu_mem gpujobs_map(struct gpu *g, uint64_t bytes, bool exports)
{
	struct gpu_mem m;
	struct err e = {0};

	if (gpu_map(g, bytes, exports, &m, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	assert_ptr_equal(m.gpu, g);
	assert_true(m.bytes >= bytes && (m.fd >= 0) == exports);
	return m;
}

void gpujobs_nothing_left(const struct fake_cuda_left *before, const char *when)
{
	struct fake_cuda_left now;

	jobs.fake.fake_cuda_left(&now);
	if (memcmp(&now, before, sizeof(now)) != 0)
		fail_msg("%s: left are %d registered, %d allocated, %d streams, %d events, %d "
			 "contexts, %d handles, %d ranges, %d gpujobs_map, %d modules, %d buffers",
			 when, (int)(now.registered - before->registered),
			 (int)(now.allocated - before->allocated),
			 (int)(now.streams - before->streams), (int)(now.events - before->events),
			 (int)(now.contexts - before->contexts),
			 (int)(now.handles - before->handles), (int)(now.ranges - before->ranges),
			 (int)(now.mapped - before->mapped), (int)(now.modules - before->modules),
			 (int)(now.device - before->device));
}

struct layout *gpujobs_layout(struct rng *r, uint32_t tensors_nr, uint64_t numel_max,
			      uint32_t chunk_elems)
{
	struct shard_tensor *t = calloc(tensors_nr, sizeof(*t));
	char(*names)[16] = calloc(tensors_nr, sizeof(*names));
	struct layout *l = NULL;
	struct err e = {0};

	for (uint32_t i = 0; i < tensors_nr; i++) {
		snprintf(names[i], sizeof(names[i]), "t%u", i);
		t[i] = (struct shard_tensor){.name = names[i],
					     .ndim = 1,
					     .group = (uint32_t)rng_below(r, 2),
					     .flags = rng_below(r, 5) == 0 ? SHARD_FROZEN : 0};
		t[i].shape[0] = 1 + rng_below(r, rng_below(r, 2) ? 70 : numel_max);
		if (rng_below(r, 3) == 0) /* No gap behind it. */
			t[i].shape[0] = (t[i].shape[0] + 63) / 64 * 64;
	}
	if (layout_init(&l, t, tensors_nr, 2, SHARD_BF16, chunk_elems, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	free(t);
	free(names);
	return l;
}
