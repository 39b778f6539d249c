/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the files of checkpoints. What was saved comes back with the same bits, whatever the
 * boundaries are. A damaged, short or missing file is refused and named, for every byte of a small
 * checkpoint. Manifests keep every number. Headers that others wrote are judged. */
#include "base/check.h"
#include "ckpt/manifest_scan.h"
#include "ckpt/safetensors.h"
#include "ckpt/spec_of.h"
#include "lib/ckpts.h"
#include "lib/sanitized.h"
#include "wire/xxh.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define MUST(x)                                                                                    \
	do {                                                                                       \
		enum shard_status st_ = (x);                                                       \
		if (st_ != SHARD_OK)                                                               \
			fail_msg("%s: %s: %s", #x, status_name(st_), e.text);                      \
	} while (0)

/* A checkpoint loads with the same bits, whatever the chunk sizes of the save and the lengths of
 * the loaded runs are. */
static void test_round_trips(void **state)
{
	static const uint64_t chunks[] = {1024, 64, 5000, 128}, runs[] = {5000, 63, 1, 1000};
	struct err e = {.text = ""};
	char dir[64];

	(void)state;
	ckpts_folder(dir);
	for (size_t c = 0; c < NR(chunks); c++) {
		MUST(ckpts_save(dir, "gpt", 100 + c, 1 + (int)c % 3, chunks[c], &e));
		for (size_t r = 0; r < NR(runs); r++) {
			char tag[CHECKPOINT_TAG_MAX + 1];

			checkpoint_tag(tag, 100 + c);
			MUST(ckpts_load(dir, tag, "gpt", runs[r], &e));
		}
	}
	ckpts_remove(dir);
}

/* --- many pieces: progress, cancel, elements across pieces --- */

enum { BIG = 5 * (PART_PIECE_BYTES / 4) + 12345 };

/* A file of several pieces is written and loaded with other boundaries. Progress counts its bytes,
 * and a cancel ends each operation. */
static void test_pieces(void **state)
{
	float *a = malloc((size_t)BIG * 4), *b = calloc(BIG, 4);
	struct part_progress p = {0};
	struct part_file f;
	struct err e = {.text = ""};
	uint64_t bytes;
	char dir[64];

	(void)state;
	ckpts_folder(dir);
	for (uint32_t i = 0; i < BIG; i++)
		a[i] = (float)(i * 7 % 16777213);
	struct part_run out[] = {
		{.kind = SHARD_MASTER, .tensor = "w", .first = 10, .count = BIG / 2, .at = a},
		{.kind = SHARD_MASTER,
		 .tensor = "w",
		 .first = 10 + BIG / 2,
		 .count = BIG - BIG / 2,
		 .at = a + BIG / 2}};
	struct part_run in[] = {{.kind = SHARD_MASTER,
				 .tensor = "w",
				 .first = 1000000,
				 .count = BIG - 1000000 + 10,
				 .at = b},
				{.kind = SHARD_MASTER,
				 .tensor = "w",
				 .first = 10,
				 .count = 999990,
				 .at = b + BIG - 999990}};
	struct part_run few[] = {{.kind = SHARD_MASTER,
				  .tensor = "w",
				  .first = PART_PIECE_BYTES / 4,
				  .count = 1,
				  .at = b}};

	MUST(part_write(dir, "x.safetensors", out, 2, NULL, 0, NULL, &f, &p, &e));
	assert_int_equal(p.done_bytes, f.bytes);
	assert_int_equal(f.bytes, part_bytes(out, 2, NULL, 0));
	assert_int_equal(f.sums_nr, 6);
	MUST(part_load_bytes(dir, &f, 1, in, 2, &bytes, &e));
	assert_int_equal(bytes, f.bytes);
	p.done_bytes = 0;
	MUST(part_load(dir, &f, 1, in, 2, false, &p, &e));
	assert_int_equal(p.done_bytes, bytes);
	assert_memory_equal(b, a + 999990, ((size_t)BIG - 999990) * 4);
	assert_memory_equal(b + BIG - 999990, a, 999990 * 4);
	MUST(part_load_bytes(dir, &f, 1, few, 1, &bytes, &e));
	assert_int_equal(bytes, PART_PIECE_BYTES);
	p.cancel = true;
	assert_int_equal(part_load(dir, &f, 1, in, 2, false, &p, &e), SHARD_INTERRUPTED);
	assert_int_equal(part_verify(dir, &f, 1, &p, &e), SHARD_INTERRUPTED);
	part_file_free(&f);
	assert_int_equal(part_write(dir, "x.safetensors", out, 2, NULL, 0, NULL, &f, &p, &e),
			 SHARD_INTERRUPTED);
	assert_int_equal(rmdir(dir), 0); /* The cancelled write has removed its file. */
	free(a);
	free(b);
}

/* A piece of the file that is one stretch of whole pages in memory is written from there, also
 * across the border of two runs. A piece that ends inside a page, or whose runs lie apart, is
 * gathered first. Both kinds load with the same bits. */
static void test_in_place(void **state)
{
	/* In elements. */
	const uint64_t w = PART_PIECE_BYTES / 2, v = 64 * 1000, u = PART_PIECE_BYTES / 4 + 1;
	const size_t near_bytes = (w + v) * 4;
	float *near = aligned_alloc(4096, (near_bytes + 4095) & ~(size_t)4095),
	      *far = malloc(u * 4), *back = calloc(w + v + u, 4);
	struct part_file f;
	struct err e = {.text = ""};
	char dir[64];

	(void)state;
	assert_true(near && far && back && near_bytes % 4096 != 0);
	ckpts_folder(dir);
	for (uint64_t i = 0; i < w + v; i++)
		near[i] = (float)(i * 5 % 16777213);
	for (uint64_t i = 0; i < u; i++)
		far[i] = -(float)(i * 3 % 16777213);
	struct part_run out[] = {
		{.kind = SHARD_MASTER, .tensor = "w", .first = 0, .count = w, .at = near},
		{.kind = SHARD_MASTER, .tensor = "v", .first = 0, .count = v, .at = near + w},
		{.kind = SHARD_MASTER, .tensor = "u", .first = 7, .count = u, .at = far}};
	struct part_run in[] = {
		{.kind = SHARD_MASTER, .tensor = "w", .first = 0, .count = w, .at = back},
		{.kind = SHARD_MASTER, .tensor = "v", .first = 0, .count = v, .at = back + w},
		{.kind = SHARD_MASTER, .tensor = "u", .first = 7, .count = u, .at = back + w + v}};

	MUST(part_write(dir, "x.safetensors", out, 3, NULL, 0, NULL, &f, NULL, &e));
	MUST(part_verify(dir, &f, 1, NULL, &e));
	MUST(part_load(dir, &f, 1, in, 3, false, NULL, &e));
	assert_memory_equal(back, near, near_bytes);
	assert_memory_equal(back + w + v, far, u * 4);
	part_file_free(&f);
	ckpts_remove(dir);
	free(near);
	free(far);
	free(back);
}

/* A load of elements that no file holds names the first of them. Only moments may be missing, where
 * the caller says so, and are then zero. Two files that hold the same elements are refused. */
static void test_what_is_not_there(void **state)
{
	float x[64] = {1}, y[64];
	struct part_run out = {
		.kind = SHARD_MASTER, .tensor = "w", .first = 64, .count = 64, .at = x};
	struct part_run
		gap = {.kind = SHARD_MASTER, .tensor = "w", .first = 63, .count = 2, .at = y},
		moment = {.kind = SHARD_EXP_AVG, .tensor = "w", .first = 64, .count = 64, .at = y},
		other = {.kind = SHARD_MASTER, .tensor = "v", .first = 64, .count = 1, .at = y};
	struct part_file f[2];
	struct err e = {.text = ""};
	char dir[64];

	(void)state;
	ckpts_folder(dir);
	MUST(part_write(dir, "x.safetensors", &out, 1, NULL, 0, NULL, &f[0], NULL, &e));
	MUST(part_write(dir, "y.safetensors", &out, 1, NULL, 0, NULL, &f[1], NULL, &e));
	assert_int_equal(part_load(dir, f, 1, &gap, 1, true, NULL, &e), SHARD_NOT_FOUND);
	assert_non_null(strstr(e.text, "master/w[63:64]"));
	assert_int_equal(part_load(dir, f, 1, &other, 1, true, NULL, &e), SHARD_NOT_FOUND);
	assert_non_null(strstr(e.text, "master/v[64:65]"));
	assert_int_equal(part_load(dir, f, 1, &moment, 1, false, NULL, &e), SHARD_NOT_FOUND);
	memset(y, 1, sizeof(y));
	MUST(part_load(dir, f, 1, &moment, 1, true, NULL, &e));
	for (int i = 0; i < 64; i++)
		assert_true(y[i] == 0);
	assert_int_equal(part_load(dir, f, 2, &out, 1, false, NULL, &e), SHARD_PROTOCOL);
	assert_non_null(strstr(e.text, "both hold master/w[64]"));
	part_file_free(&f[0]);
	part_file_free(&f[1]);
	ckpts_remove(dir);
}

/* --- damage --- */

static long size_of(const char *path)
{
	struct stat s;

	assert_int_equal(stat(path, &s), 0);
	return (long)s.st_size;
}

static void must_refuse(const char *dir, const char *what, long at)
{
	struct err e = {.text = ""};
	enum shard_status st = ckpts_load(dir, "global_step9", "gpt", 4096, &e);

	if (st != SHARD_PROTOCOL && st != SHARD_NOT_FOUND)
		fail_msg("%s, byte %ld: %s %s", what, at, status_name(st), e.text);
	if (!strstr(e.text, dir))
		fail_msg("%s, byte %ld: names no path: %s", what, at, e.text);
	if (!strstr(e.text, "global_step5"))
		fail_msg("%s, byte %ld: does not offer the other checkpoint: %s", what, at, e.text);
}

static void must_refuse_part(const char *dir, const char *what, long at)
{
	struct err e = {.text = ""};
	enum shard_status st = ckpts_load(dir, "global_step9", "gpt", 4096, &e);

	if (st != SHARD_PROTOCOL && st != SHARD_NOT_FOUND)
		fail_msg("%s, byte %ld: %s %s", what, at, status_name(st), e.text);
	if (!strstr(e.text, dir) || !strstr(e.text, what))
		fail_msg("%s, byte %ld: names no path: %s", what, at, e.text);
}

static void each_byte(const char *dir, const char *file, long step,
		      void (*must)(const char *, const char *, long))
{
	char path[CHECKPOINT_PATH_MAX];
	long n;
	int fd;

	snprintf(path, sizeof(path), "%s/global_step9/%s", dir, file);
	n = size_of(path);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	const long near = SANITIZED ? 61 : 1;

	for (long i = 0; i < n; i += i < 4096 + 64 || i > n - 64 ? near : step) {
		unsigned char was, now;

		assert_int_equal(pread(fd, &was, 1, i), 1);
		now = was ^ (unsigned char)(1u << (i % 8));
		assert_int_equal(pwrite(fd, &now, 1, i), 1);
		must(dir, file, i);
		assert_int_equal(pwrite(fd, &was, 1, i), 1);
	}
	close(fd);
}

static void each_length(const char *dir, const char *file, long step)
{
	char path[CHECKPOINT_PATH_MAX], *all;
	long n;
	int fd;

	snprintf(path, sizeof(path), "%s/global_step9/%s", dir, file);
	n = size_of(path);
	all = malloc((size_t)n + 1);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0 && pread(fd, all, (size_t)n, 0) == n);
	for (long i = 0; i < n; i += step) {
		assert_int_equal(ftruncate(fd, i), 0);
		must_refuse(dir, file, i);
		assert_int_equal(pwrite(fd, all, (size_t)n, 0), n);
	}
	assert_int_equal(pwrite(fd, "x", 1, n), 1);
	must_refuse(dir, file, n);
	assert_int_equal(ftruncate(fd, n), 0);
	close(fd);
	free(all);
}

/* Every changed byte and every other length of a file is refused with its path. So are a missing
 * file and a link. */
static void test_damage(void **state)
{
	struct err e = {.text = ""};
	char dir[64], path[128], aside[128];

	(void)state;
	ckpts_folder(dir);
	MUST(ckpts_save(dir, "gpt", 5, 1, 1024, &e));
	MUST(ckpts_save(dir, "gpt", 9, 2, 2048, &e));
	each_byte(dir, MANIFEST_NAME, 1, must_refuse);
	each_byte(dir, "node-b.safetensors", 997, must_refuse_part);
	each_length(dir, MANIFEST_NAME, 1);
	each_length(dir, "node-a.safetensors", 331);
	snprintf(path, sizeof(path), "%s/global_step9/node-a.safetensors", dir);
	snprintf(aside, sizeof(aside), "%s/x", dir);
	assert_int_equal(rename(path, aside), 0);
	must_refuse(dir, "missing", 0);
	assert_int_equal(symlink(aside, path), 0);
	must_refuse(dir, "a link", 0);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rename(aside, path), 0);
	MUST(ckpts_load(dir, "global_step9", "gpt", 4096, &e));
	assert_int_equal(ckpts_load(dir, "global_step9", "bert", 4096, &e), SHARD_MISMATCH);
	assert_non_null(strstr(e.text, "\"gpt\""));
	assert_int_equal(ckpts_load(dir, "global_step7", "gpt", 4096, &e), SHARD_NOT_FOUND);
	assert_non_null(strstr(e.text, "global_step9"));
	ckpts_remove(dir);
}

/* --- manifests --- */

static void check_double(double v)
{
	struct part_file f = {.name = "x.safetensors",
			      .bytes = 4096,
			      .header_bytes = 4096,
			      .piece_bytes = 4096,
			      .sums_nr = 1};
	struct shard_tensor t = {.name = "w", .ndim = 1, .shape = {1}};
	struct manifest m = {.name = "m",
			     .image = SHARD_F32,
			     .grad = SHARD_F32,
			     .kinds = {SHARD_MASTER},
			     .kinds_nr = 1},
			*back;
	struct err e = {.text = ""};
	char dir[64];

	f.sums = calloc(1, sizeof(uint64_t));
	m.settings = strdup("a=\"b\" \\");
	m.optimizer = strdup("adamw");
	m.tensors = &t;
	m.files = &f;
	m.tensors_nr = m.files_nr = 1;
	m.tune.has_lr = m.tune.has_clip = true;
	m.scaler.scale = m.tune.lr = v;
	m.tune.clip = -v;
	m.tune.hyper[0] = (struct manifest_hyper){3, "weight_decay", v};
	m.tune.hyper[1] = (struct manifest_hyper){0, "beta1", 0.1};
	m.tune.hyper_nr = 2;
	m.scaler.last_overflow = INT64_MIN + 1;
	m.step = m.applied = INT64_MAX;
	ckpts_folder(dir);
	MUST(manifest_write(dir, &m, &e));
	MUST(manifest_read(dir, &back, &e));
	assert_memory_equal(&m.scaler, &back->scaler, sizeof(m.scaler));
	assert_memory_equal(&m.tune.lr, &back->tune.lr, 2 * sizeof(double));
	assert_memory_equal(m.tune.hyper, back->tune.hyper, sizeof(m.tune.hyper));
	assert_int_equal(back->tune.hyper_nr, 2);
	assert_true(back->step == m.step && back->applied == m.applied && back->sum == m.sum);
	assert_string_equal(m.settings, back->settings);
	assert_true(back->run.id[0] == 0 && back->run.id[1] == 0 && back->run.line == back->sum);
	manifest_free(&back);
	m.run = (struct manifest_run){{0, 0xfedcba9876543210}, 1};
	MUST(manifest_write(dir, &m, &e));
	MUST(manifest_read(dir, &back, &e));
	assert_memory_equal(&m.run, &back->run, sizeof(m.run));
	manifest_free(&back);
	m.run.line = 0; /* No reader accepts a run without a line, so it is not written. */
	assert_int_equal(manifest_write(dir, &m, &e), SHARD_PROTOCOL);
	ckpts_remove(dir);
	free(f.sums);
	free(m.settings);
	free(m.optimizer);
}

/* A shape in the manifest that is smaller than the stored tensor is refused, because a load would
 * take a part of the tensor for all of it. */
static void test_shapes(void **state)
{
	char dir[64], path[CHECKPOINT_PATH_MAX], tag[CHECKPOINT_TAG_MAX + 1];
	struct err e = {.text = ""};
	struct manifest *m;

	(void)state;
	ckpts_folder(dir);
	checkpoint_tag(tag, 5);
	MUST(ckpts_save(dir, "gpt", 5, 2, 100, &e));
	MUST(checkpoint_open(dir, tag, "gpt", &m, &e));
	MUST(checkpoint_path(path, dir, tag, &e));
	MUST(checkpoint_fits(path, m, &e));
	for (uint32_t i = 0; i < m->tensors_nr; i++) {
		if (m->tensors[i].shape[0] == 1)
			continue;
		m->tensors[i].shape[0]--;
		assert_int_equal(checkpoint_fits(path, m, &e), SHARD_MISMATCH);
		/* A larger shape passes here, because part_load() names what is missing. */
		m->tensors[i].shape[0] += 2;
		MUST(checkpoint_fits(path, m, &e));
		m->tensors[i].shape[0]--;
	}
	m->tensors[5].shape[0] = 0; /* It is stored, so it is not without elements. */
	assert_int_equal(checkpoint_fits(path, m, &e), SHARD_MISMATCH);
	m->tensors[5].shape[0] = 4000;
	assert_int_equal(checkpoint_fits(path, m, &e), SHARD_MISMATCH);
	if (!strstr(e.text, "holds master/h.1.w.bias[4000:4097], and its shape in the manifest has "
			    "4000 elements"))
		fail_msg("%s", e.text);
	manifest_free(&m);
	ckpts_remove(dir);
}

/* Numbers that are hard to print come back from a manifest with the same bits. */
static void test_doubles(void **state)
{
	const double values[] = {0.0,
				 -0.0,
				 1,
				 65536,
				 0.1,
				 3e-4,
				 DBL_MAX,
				 DBL_MIN,
				 4.9406564584124654e-324,
				 2.2250738585072009e-308,
				 1e16,
				 1e22,
				 123456789012345680.0,
				 0.30000000000000004,
				 1 + DBL_EPSILON};

	(void)state;
	for (size_t i = 0; i < NR(values); i++)
		check_double(values[i]);
}

/* A manifest with the right checksum may still hold numbers that no daemon writes. */
static void test_numbers(void **state)
{
	char optimizer[] = "sgd";
	const struct manifest good = {
		.kinds_nr = 3,
		.optimizer = optimizer,
		.groups_nr = 2,
		.step = 9,
		.applied = 8,
		.scaler.scale = 1,
		.tune = {.has_lr = true, .lr = 1, .hyper_nr = 1, .hyper = {{1, "momentum", 0.5}}}};
	struct manifest bad[11], *back;
	struct err e = {.text = ""};
	char dir[64], path[128];

	(void)state;
	for (size_t i = 0; i < NR(bad); i++)
		bad[i] = good;
	bad[0].scaler.scale = 0;
	bad[1].scaler.scale = -65536;
	bad[2].tune.lr = -1;
	bad[3].tune.has_clip = true, bad[3].tune.clip = -1;
	bad[4].step = INT64_MAX;
	bad[5].applied = 10;
	bad[6].skipped_in_row = 10;
	bad[7].tune.hyper[0].group = 2;
	bad[8].tune.hyper[0].value = -1;
	snprintf(bad[9].tune.hyper[0].key, 16, "beta1"); /* Of another optimizer. */
	snprintf(bad[10].tune.hyper[0].key, 16, "lr");
	MUST(ckpt_counters_check(&good, "/p", &e));
	for (size_t i = 0; i < NR(bad); i++)
		if (ckpt_counters_check(&bad[i], "/p", &e) != SHARD_PROTOCOL)
			fail_msg("manifest %zu is taken", i);
	ckpts_folder(dir);
	MUST(ckpts_save(dir, "gpt", 5, 1, 1024, &e));
	snprintf(path, sizeof(path), "%s/global_step5", dir);
	MUST(manifest_read(path, &back, &e));
	assert_true(back->blobs_nr > 0);
	/* The step of a blob is none (0), or after that of the checkpoint (6). manifest_write()
	 * refuses what manifest_read() would refuse. */
	for (uint64_t step = 0; step < 7; step += 6) {
		back->blobs[0].step = step;
		assert_int_equal(manifest_write(path, back, &e), SHARD_PROTOCOL);
		assert_non_null(strstr(e.text, "blobs.step"));
	}
	manifest_free(&back);
	ckpts_remove(dir);
}

/* --- headers that others wrote --- */

static void header(const char *json, uint64_t data, enum shard_status want, const char *text)
{
	struct safetensors *s = NULL;
	struct err e = {.text = ""};
	enum shard_status st =
		safetensors_parse(&s, json, strlen(json), 8 + strlen(json) + data, "/f", &e);

	if (st != want || (text && !strstr(e.text, text)))
		fail_msg("%s: %s: %s", json, status_name(st), e.text);
	safetensors_free(&s);
}

/* Headers of safetensors files of other programs are accepted, or refused with a reason. */
static void test_headers(void **state)
{
	static const uint8_t huge[8] = {0, 0, 0, 0, 0, 0, 0, 0x80}, none[8] = {0};
	struct err e;
	uint64_t bytes;

	(void)state;
	header("{}", 0, SHARD_OK, NULL);
	header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}   ", 8, SHARD_OK,
	       NULL);
	header("{\"a\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},\"b\":{\"dtype\":"
	       "\"X9\",\"shape\":[0],\"data_"
	       "offsets\":[8,8]}}",
	       8, SHARD_OK, NULL);
	header("{\"__metadata__\":{\"a\":\"b\"},\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_"
	       "offsets\":[0,4]}}",
	       4, SHARD_OK, NULL);
	header(" {}", 0, SHARD_PROTOCOL, "begin with {");
	header("{\"a\"", 0, SHARD_PROTOCOL, "no JSON");
	header("{} x", 0, SHARD_PROTOCOL, "no JSON");
	header("{\"a\":1}", 0, SHARD_PROTOCOL, "no shape");
	header("{\"a\":{},\"a\":{}}", 0, SHARD_PROTOCOL, "no JSON");
	header("{\"\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, SHARD_PROTOCOL,
	       "name");
	header("{\"\\u001b[2J\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
	       SHARD_PROTOCOL, "control");
	header("{\"\\u009b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
	       SHARD_PROTOCOL, "control");
	header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
	       SHARD_PROTOCOL, "do not fill");
	header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9,
	       SHARD_PROTOCOL, "tensors end");
	header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7,
	       SHARD_PROTOCOL, "data_offsets");
	header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
	       SHARD_PROTOCOL, "begins at");
	header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,4]}}", 8,
	       SHARD_PROTOCOL, "data_offsets");
	header("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4,
	       SHARD_PROTOCOL, "dimension 0");
	header("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}"
	       "}",
	       0, SHARD_PROTOCOL, "dimension 1");
	header("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}",
	       0, SHARD_PROTOCOL, "do not fill");
	header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}",
	       4, SHARD_PROTOCOL, "dimensions");
	header("{\"a\":{\"dtype\":\"LONGDTYPE\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
	       SHARD_PROTOCOL, "dtype");
	assert_int_equal(safetensors_header_bytes(huge, 1000, "/f", &bytes, &e), SHARD_PROTOCOL);
	assert_int_equal(safetensors_header_bytes(none, 1000, "/f", &bytes, &e), SHARD_PROTOCOL);
}

/* --- a manifest that wants memory --- */

static long peak_kib(void)
{
	FILE *f = fopen("/proc/self/status", "re");
	char line[256];
	long kib = 0;

	while (f != NULL && fgets(line, sizeof(line), f) != NULL)
		if (strncmp(line, "VmHWM:", 6) == 0)
			kib = strtol(line + 6, NULL, 10);
	if (f != NULL)
		fclose(f);
	return kib;
}

/* Writes `before`, `unit` as often as it fits, `after` in place of the last comma, and the right
 * checksum. Returns the bytes of the text. */
static size_t fill_up(char *text, size_t room, const char *before, const char *unit,
		      const char *after)
{
	size_t at = strlen(before), tail = 26, last = strlen(after);

	memcpy(text, before, at);
	while (at + strlen(unit) + last + tail < room) {
		memcpy(text + at, unit, strlen(unit));
		at += strlen(unit);
	}
	memcpy(text + at - 1, after, last);
	at += last - 1;
	return at + (size_t)sprintf(text + at, "\"sum\":\"%016lx\"}\n",
				    (unsigned long)xxh_sum(text, at, 0));
}

/* A header that the format's own library would refuse is not written. */
static void test_long_header(void **state)
{
	enum { TENSORS = 240000, NAME = 360 };
	struct safetensors_entry *entry = calloc(TENSORS, sizeof(*entry));
	char *names = malloc((size_t)TENSORS * NAME);
	uint64_t shape = 1;
	size_t bytes;
	struct err e;
	void *header;

	(void)state;
	CHECK(entry && names);
	for (uint32_t i = 0; i < TENSORS; i++) {
		char *name = names + (size_t)i * NAME;

		memset(name, 'x', NAME);
		snprintf(name + NAME - 8, 8, "%07u", i);
		entry[i] = (struct safetensors_entry){
			.name = name, .dtype = SHARD_F32, .ndim = 1, .bytes = 4};
		entry[i].shape[0] = shape;
	}
	assert_int_equal(safetensors_make(&header, &bytes, entry, TENSORS, NULL, 0, &e),
			 SHARD_RANGE);
	assert_non_null(strstr(e.text, "for 240000 tensors: the format allows 100000000"));
	assert_int_equal(safetensors_make(&header, &bytes, entry, TENSORS / 2, NULL, 0, &e),
			 SHARD_OK);
	free(header);
	free(entry);
	free(names);
}

/* A hostile manifest makes the parser take at most four times its size. Each one is parsed in a
 * process of its own, because the kernel reports only the peak of a process. */
static void test_memory(void **state)
{
	static const struct {
		const char *before, *unit, *after;
	} bad[] = {
		{"{\"format\":\"shardd checkpoint\",\"version\":1,\"tensors\":[", "[],", "],"},
		{"{\"format\":\"shardd checkpoint\",\"version\":1,\"tensors\":[[", "[],", "]],"},
		{"{\"format\":\"shardd checkpoint\",\"version\":1,\"other\":[", "[[[]]],", "],"},
		{"{\"format\":[", "{\"a\":{}},", "],"},
		{"{\"format\":\"shardd checkpoint\",\"version\":1,\"kinds\":[", "1,", "],"},
		{"", "{\"a\":[", "],"},
		{"", "[[[[[[[[[[[[[[[[", "],"},
	};
	const size_t room = 16u << 20;

	(void)state;
	for (size_t i = 0; i < NR(bad); i++) {
		pid_t pid = fork();
		int status = 0;

		assert_true(pid >= 0);
		if (pid == 0) {
			char *text = malloc(room);
			size_t bytes =
				fill_up(text, room, bad[i].before, bad[i].unit, bad[i].after);
			long before = peak_kib();
			struct manifest *m;
			enum shard_status st = manifest_parse(&m, text, bytes, "x", NULL);
			long took = peak_kib() - before;

			if (st != SHARD_PROTOCOL || took > 4 * 16 * 1024)
				printf("%zu: %s, %ld KiB\n", i, status_name(st), took);
			_exit(st != SHARD_PROTOCOL || took > 4 * 16 * 1024);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (status != 0)
			fail_msg("manifest %zu was taken, or took more than four times its size",
				 i);
	}
}

/* The scanner finds members whatever lies between them. It refuses a name that appears twice, and
 * text that is not one object. */
static void test_scan(void **state)
{
	static const struct {
		const char *text;
		bool ok;
	} cases[] = {
		{"{\"a\":1,\"b\":[1, {\"x\": \"]}\\\"\"} ,2]}", true},
		{" { \"b\" : [ ] , \"a\" : { } } ", true},
		{"{\"a\":1,\"a\":2}", false},
		{"{\"a\":1", false},
		{"{\"a\":[1}", false},
		{"{\"a\":\"x}", false},
		{"{\"a\":1} x", false},
		{"{\"a\" 1}", false},
		{"{\"a\":1,}", false},
		{"[1]", false},
		{"", false},
	};
	struct scan_member m[2] = {{.key = "a"}, {.key = "b"}};
	struct scan_piece p;
	const char *at = NULL;
	uint64_t nr;

	(void)state;
	for (size_t i = 0; i < NR(cases); i++)
		if (scan_object(cases[i].text, strlen(cases[i].text), m, 2) != cases[i].ok)
			fail_msg("%s", cases[i].text);
	assert_true(scan_object(cases[0].text, strlen(cases[0].text), m, 2));
	assert_true(scan_count(&m[1].value, &nr) && nr == 3);
	for (nr = 0; scan_next(&m[1].value, &at, &p); nr++)
		assert_true(nr != 1 || (p.bytes == 13 && p.values == 3));
	assert_int_equal(nr, 3);
	assert_false(scan_count(&m[0].value, &nr));
}

/* An open() of a pipe waits until another process opens its other end. Everything that opens a file
 * of a checkpoint must say instead that a pipe is in its place. */
static void test_pipes(void **state)
{
	static const char *const names[] = {"manifest.json", "node-a.safetensors"};
	struct err e = {.text = ""};
	struct manifest *m = NULL;
	char dir[64], path[128], file[200], draft[CHECKPOINT_PATH_MAX];
	uint8_t blob[64];

	(void)state;
	alarm(30); /* An open() that waits ends the test. */
	ckpts_folder(dir);
	MUST(ckpts_save(dir, "gpt", 5, 1, 1024, &e));
	MUST(checkpoint_open(dir, "global_step5", "gpt", &m, &e));
	snprintf(path, sizeof(path), "%s/global_step5", dir);
	for (size_t i = 0; i < NR(names); i++) {
		snprintf(file, sizeof(file), "%s/%s", path, names[i]);
		assert_int_equal(unlink(file), 0);
		assert_int_equal(mkfifo(file, 0600), 0);
		assert_int_equal(ckpts_load(dir, "global_step5", "gpt", 4096, &e), SHARD_PROTOCOL);
		assert_non_null(strstr(e.text, names[0]));
		assert_non_null(strstr(e.text, "no plain file"));
	}
	/* The pipe may also take the place of a file after the length of the file was checked. */
	assert_int_equal(part_verify(path, m->files, m->files_nr, NULL, &e), SHARD_PROTOCOL);
	assert_non_null(strstr(e.text, "node-a.safetensors: is no plain file"));
	assert_int_equal(checkpoint_fits(path, m, &e), SHARD_PROTOCOL);
	assert_int_equal(manifest_blob(path, m, 0, blob, &e), SHARD_PROTOCOL);
	assert_int_equal(manifest_write(path, m, &e), SHARD_PROTOCOL);
	assert_non_null(strstr(e.text, "manifest.json: is no plain file"));
	MUST(checkpoint_begin(draft, dir, "t", "gpt", NULL, &e));
	part_file_free(&m->files[0]);
	m->files_nr = m->blobs_nr = 0;
	MUST(ckpts_write(draft, m, 1, 1024, 5, &e));
	snprintf(file, sizeof(file), "%s/.t.tmp/.latest", dir);
	assert_int_equal(mkfifo(file, 0600), 0);
	assert_int_equal(checkpoint_finish(dir, "t", m, &e), SHARD_PROTOCOL);
	assert_non_null(strstr(e.text, "/.latest: is no plain file"));
	manifest_free(&m);
	alarm(0);
	ckpts_remove(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_long_header),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_scan),
		cmocka_unit_test(test_round_trips),
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_in_place),
		cmocka_unit_test(test_what_is_not_there),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_doubles),
		cmocka_unit_test(test_headers),
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_shapes),
		cmocka_unit_test(test_pipes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
