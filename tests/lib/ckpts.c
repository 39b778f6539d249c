/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and reads the small checkpoints of ckpts.h. Tests of files call it. The model has tensors
 * of 1 to some thousands of elements with awkward names. The step is the salt of the values, so
 * that a load that takes one checkpoint for another is noticed. A wrong element ends the test. */
#include "ckpt/client.h"
#include "lib/ckpts.h"

#include "base/check.h"
#include "lib/rmtree.h"
#include "wire/dtype.h"
#include "wire/xxh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const uint64_t ckpts_elems[CKPTS_TENSORS] = {1, 63, 64, 65, 1000, 4097, 7};
const char *const ckpts_names[CKPTS_TENSORS] = {
	"a", "h.0.w[3]", "h.0.\"b\"\\", "gr\xc3\xbc\xc3\x9f/e", "h.1.w", "h.1.w.bias", "z:z"};
const enum shard_dtype ckpts_images[CKPTS_TENSORS] = {SHARD_BF16, SHARD_F32,  SHARD_BF16, SHARD_F32,
						      SHARD_F16,  SHARD_BF16, SHARD_F32};
const enum shard_kind ckpts_kinds[CKPTS_KINDS] = {SHARD_MASTER, SHARD_EXP_AVG, SHARD_EXP_AVG_SQ};

float ckpts_value(uint64_t salt, int kind, int tensor, uint64_t element)
{
	uint64_t key[4] = {salt, (uint64_t)kind, (uint64_t)tensor, element};

	return dtype_float(
		(uint32_t)xxh_sum(key, sizeof(key), 0)); /* Any bits, also NaN and denormals. */
}

static void fill(struct manifest *m, const char *model, uint64_t step)
{
	*m = (struct manifest){.step = step,
			       .applied = step,
			       .image = SHARD_BF16,
			       .grad = SHARD_F16,
			       .kinds_nr = CKPTS_KINDS};
	snprintf(m->name, sizeof(m->name), "%s", model);
	strcpy(m->run_id, "run");
	strcpy(m->release, "0.1.0");
	m->settings = strdup("optimizer=adamw lr=0.001");
	m->optimizer = strdup("adamw");
	memcpy(m->kinds, ckpts_kinds, sizeof(ckpts_kinds));
	m->scaler.scale = 65536;
	m->scaler.last_overflow = -1;
	m->tensors_nr = CKPTS_TENSORS;
	m->tensors = calloc(CKPTS_TENSORS, sizeof(*m->tensors));
	for (int i = 0; i < CKPTS_TENSORS; i++)
		m->tensors[i] = (struct shard_tensor){.name = strdup(ckpts_names[i]),
						      .ndim = 1,
						      .shape = {ckpts_elems[i]},
						      .image = ckpts_images[i]};
	m->files = calloc(16, sizeof(*m->files));
	m->blobs = calloc(CKPTS_BLOBS, sizeof(*m->blobs));
}

static enum shard_status write_node(const char *path, struct manifest *m, int node, int nodes,
				    uint64_t chunk, uint64_t salt, struct err *e)
{
	struct part_run runs[4096];
	struct part_blob blob = {
		.rank = (uint32_t)node, .bytes = 5, .step = m->step, .data = "hello"};
	uint32_t nr = 0, at = 0, blobs = node < CKPTS_BLOBS ? 1 : 0;
	float *memory = malloc(CKPTS_KINDS * 8192 * sizeof(float));
	char name[32];
	enum shard_status st;

	for (int k = 0; k < CKPTS_KINDS; k++) {
		uint64_t c = 0;

		for (int t = 0; t < CKPTS_TENSORS; t++) {
			for (uint64_t first = 0, n; first < ckpts_elems[t]; first += n, c++) {
				n = ckpts_elems[t] - first < chunk ? ckpts_elems[t] - first : chunk;
				if (c % (uint64_t)nodes != (uint64_t)node)
					continue;
				CHECK(nr < NR(runs));
				runs[nr++] = (struct part_run){.kind = ckpts_kinds[k],
							       .tensor = ckpts_names[t],
							       .first = first,
							       .count = n,
							       .at = memory + at};
				for (uint64_t i = 0; i < n; i++)
					memory[at++] = ckpts_value(salt, k, t, first + i);
			}
		}
	}
	snprintf(name, sizeof(name), "node-%c.safetensors", 'a' + node);
	st = part_write(path, name, runs, nr, &blob, blobs, NULL, &m->files[m->files_nr], NULL, e);
	free(memory);
	if (st != SHARD_OK)
		return st;
	if (blobs)
		m->blobs[m->blobs_nr++] =
			(struct manifest_blob){blob.rank, blob.bytes,  m->files_nr,
					       blob.step, blob.offset, xxh_sum("hello", 5, 0)};
	m->files_nr++;
	return SHARD_OK;
}

enum shard_status ckpts_write(const char *path, struct manifest *m, int nodes, uint64_t chunk,
			      uint64_t salt, struct err *e)
{
	enum shard_status st = SHARD_OK;

	for (int n = 0; n < nodes && st == SHARD_OK; n++)
		st = write_node(path, m, n, nodes, chunk, salt, e);
	return st;
}

static const char *given;

void ckpts_give(const char *folder)
{
	given = folder;
}

static enum shard_status save(const char *dir, const char *model, uint64_t id, uint64_t step,
			      int nodes, uint64_t chunk, struct err *e)
{
	char path[CHECKPOINT_PATH_MAX], tag[CHECKPOINT_TAG_MAX + 1];
	struct manifest m;
	enum shard_status st;
	int held;

	checkpoint_tag(tag, step);
	fill(&m, model, step);
	m.run = (struct manifest_run){{id, id}, id};
	st = checkpoint_begin(path, dir, tag, model, &held, e);
	if (st == SHARD_OK) {
		const struct client_from from = {.path = given, .anyones = true};
		struct part_progress p = {.cancel = false};

		st = ckpts_write(path, &m, nodes, chunk, step, e);
		if (st == SHARD_OK && given != NULL)
			st = client_copy(&from, path, &m, &p, e);
		if (st == SHARD_OK)
			st = checkpoint_finish(dir, tag, &m, e);
		if (st != SHARD_OK)
			checkpoint_abandon(dir, tag);
	}
	if (held >= 0)
		close(held);
	ckpts_free(&m);
	return st;
}

enum shard_status ckpts_save(const char *dir, const char *model, uint64_t step, int nodes,
			     uint64_t chunk, struct err *e)
{
	return save(dir, model, 0, step, nodes, chunk, e);
}

enum shard_status ckpts_save_of(const char *dir, const char *model, uint64_t id, uint64_t step,
				struct err *e)
{
	return save(dir, model, id, step, 1, 1024, e);
}

static enum shard_status load_all(const char *path, const struct manifest *m, uint64_t run,
				  struct err *e)
{
	static const char guard[4] = "wall";
	enum shard_status st = SHARD_OK;

	for (int k = 0; k < CKPTS_KINDS; k++) {
		for (int t = 0; t < CKPTS_TENSORS && st == SHARD_OK; t++) {
			struct part_run runs[4200];
			uint32_t nr = 0;
			float *to = malloc((ckpts_elems[t] + 1) * sizeof(float));

			memcpy(to + ckpts_elems[t], guard, 4);
			for (uint64_t first = 0; first < ckpts_elems[t]; first += run, nr++)
				runs[nr] =
					(struct part_run){.kind = ckpts_kinds[k],
							  .tensor = ckpts_names[t],
							  .first = first,
							  .count = ckpts_elems[t] - first < run
									   ? ckpts_elems[t] - first
									   : run,
							  .at = to + first};
			st = part_load(path, m->files, m->files_nr, runs, nr, false, NULL, e);
			for (uint64_t i = 0; st == SHARD_OK && i < ckpts_elems[t]; i++) {
				float want = ckpts_value(m->step, k, t, i);

				CHECK(memcmp(&to[i], &want, 4) == 0);
			}
			CHECK(memcmp(to + ckpts_elems[t], guard, 4) == 0);
			free(to);
		}
	}
	return st;
}

enum shard_status ckpts_load(const char *dir, const char *tag, const char *model, uint64_t run,
			     struct err *e)
{
	char path[CHECKPOINT_PATH_MAX], blob[PART_BLOB_BYTES];
	struct manifest *m;
	enum shard_status st = checkpoint_open(dir, tag, model, &m, e);

	if (st != SHARD_OK)
		return st;
	CHECK(checkpoint_path(path, dir, tag, e) == SHARD_OK);
	st = load_all(path, m, run, e);
	for (uint32_t b = 0; st == SHARD_OK && b < m->blobs_nr; b++) {
		st = manifest_blob(path, m, b, blob, e);
		CHECK(st != SHARD_OK || memcmp(blob, "hello", 5) == 0);
	}
	if (st == SHARD_OK)
		st = part_verify(path, m->files, m->files_nr, NULL, e);
	if (st == SHARD_OK)
		st = client_verify(path, m, &(struct part_progress){.cancel = false}, e);
	manifest_free(&m);
	return st;
}

void ckpts_free(struct manifest *m)
{
	struct manifest *copy = malloc(sizeof(*copy));

	*copy = *m;
	manifest_free(&copy);
}

void ckpts_folder(char dir[64])
{
	const char *tmp = getenv("TMPDIR");

	snprintf(dir, 64, "%.40s/shard-ckpt.XXXXXX", tmp ? tmp : "/tmp");
	CHECK(mkdtemp(dir) != NULL);
}

void ckpts_remove(const char *dir)
{
	rmtree(dir);
}
