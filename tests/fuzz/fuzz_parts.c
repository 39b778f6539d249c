/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: the files of a checkpoint as a restore reads them, that is the index over their
 * headers, the pieces with their checksums, and the elements of each run. An input is eight
 * numbers, lines that say which runs are wanted ("kind tensor first count"), an empty line, and the
 * header of each file, with a byte 0x1e between two. The data behind a header is made here, as long
 * as its data_offsets say. The checksums and lengths of the manifest are right unless one of the
 * numbers asks for a lie. What is loaded must be what the files hold at that place. */
// covers: proto/ckpt/part_index.c proto/ckpt/part_load.c
#include "base/check.h"
#include "ckpt/checkpoint.h"
#include "ckpt/part.h"
#include "ckpt/safetensors.h"
#include "wire/xxh.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
const char *__asan_default_options(void);

/* Each call has buffers of 8 MiB. Without this, most of the time goes into their shadow. */
const char *__asan_default_options(void)
{
	return "quarantine_size_mb=16:clear_shadow_mmap_threshold=16777216";
}

enum { FILES_MAX = 2, RUNS_MAX = 8, RUN_ELEMS = 2048, DATA_BYTES = 32768, NUMBERS = 8 };

enum lie {
	LIE_NONE,
	LIE_SUM,
	LIE_BYTES,
	LIE_HEADER_BYTES,
	LIE_PIECE_BYTES,
	LIE_SUMS,
	LIE_SHORT,   /* The file itself is too short. */
	LIE_MISSING, /* There is no file. */
	LIE_FOLDER,  /* It is a folder. */
	LIE_LENGTH,  /* The first 8 bytes are wrong. */
	LIE_TWICE,   /* Both are the same file. */
	LIE_NR
};

/* One file as it should be on the disk. */
struct image {
	char *at;
	size_t bytes;
	uint64_t header_bytes; /* With the first 8 bytes. */
	struct safetensors *s; /* NULL: it is not a safetensors file. */
};

static char dir[] = "/dev/shm/shard-fuzz.XXXXXX";
static bool made;

static void remove_files(void)
{
	char path[64];

	for (int i = 0; i < FILES_MAX; i++) {
		snprintf(path, sizeof(path), "%s/%c.safetensors", dir, 'a' + i);
		(void)remove(path);
	}
}

static void remove_folder(void)
{
	remove_files();
	(void)rmdir(dir);
}

/* Returns the end of the data that the header announces. */
static size_t data_bytes(const char *json, size_t bytes)
{
	static const char word[] = "\"data_offsets\":[";
	size_t most = 0, n = sizeof(word) - 1;

	for (size_t i = 0; i + n < bytes; i++) {
		size_t end = 0, k = i + n;

		if (memcmp(json + i, word, n) != 0)
			continue;
		while (k < bytes && json[k] != ',' && json[k] != ']')
			k++;
		for (k++; k < bytes && json[k] >= '0' && json[k] <= '9' && end < DATA_BYTES; k++)
			end = end * 10 + (size_t)(json[k] - '0');
		most = end > most && end <= DATA_BYTES ? end : most;
	}
	return most;
}

static void image_make(struct image *f, const char *json, size_t bytes, uint32_t seed)
{
	uint64_t n = bytes;
	struct err e;

	f->header_bytes = bytes + 8;
	f->bytes = bytes + 8 + data_bytes(json, bytes);
	f->at = malloc(f->bytes);
	CHECK(f->at != NULL);
	memcpy(f->at, &n, 8);
	memcpy(f->at + 8, json, bytes);
	for (size_t i = f->header_bytes; i < f->bytes; i++)
		f->at[i] = (char)(((i + seed) * 2654435761u) >> 16);
	f->s = NULL;
	(void)safetensors_parse(&f->s, f->at + 8, bytes, f->bytes, "fuzz", &e);
}

static void image_write(const struct image *f, const char *name, enum lie lie, uint8_t value)
{
	size_t bytes = lie == LIE_SHORT && f->bytes > value ? f->bytes - value : f->bytes;
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (lie == LIE_MISSING)
		return;
	if (lie == LIE_FOLDER) {
		CHECK(mkdir(path, 0700) == 0);
		return;
	}
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && write(fd, f->at, bytes) == (ssize_t)bytes && close(fd) == 0);
}

/* Fills in what the manifest says of the file. */
static void describe(struct part_file *p, const struct image *f, uint32_t piece, enum lie lie,
		     uint8_t value)
{
	int by = value < 128 ? value : value - 256;

	p->bytes = f->bytes + (uint64_t)(lie == LIE_BYTES ? by : 0);
	p->header_bytes = f->header_bytes + (uint64_t)(lie == LIE_HEADER_BYTES ? by : 0);
	p->piece_bytes = piece;
	if (lie == LIE_PIECE_BYTES)
		p->piece_bytes = value < 128 ? value * 256u : value * 131072u;
	p->sums_nr =
		p->piece_bytes ? (uint32_t)((p->bytes + p->piece_bytes - 1) / p->piece_bytes) : 1;
	if (lie == LIE_SUMS || p->sums_nr > 4096)
		p->sums_nr = value;
	p->sums = calloc(p->sums_nr + 1u, sizeof(*p->sums));
	CHECK(p->sums != NULL);
	/* Exactly as many as it says, so that one more is out of bounds. */
	p->sums = p->sums_nr > 0 ? realloc(p->sums, p->sums_nr * sizeof(*p->sums)) : p->sums;
	for (uint64_t i = 0; i < p->sums_nr; i++) {
		uint64_t at = i * p->piece_bytes, left = at < f->bytes ? f->bytes - at : 0;

		if (left > 0)
			p->sums[i] = xxh_sum(f->at + at,
					     left < p->piece_bytes ? left : p->piece_bytes, 0);
	}
	if (lie == LIE_SUM && p->sums_nr > 0)
		p->sums[value % p->sums_nr] ^= 1;
}

/* Returns where element `at` of a tensor is in a file. NULL: it is not there. */
static const char *element(const struct image *f, const struct part_run *r, uint64_t at)
{
	char begin[160];
	int n = snprintf(begin, sizeof(begin), "%s/%s[", part_kind_name(r->kind), r->tensor);

	for (uint32_t i = 0; f->s && i < f->s->entries_nr; i++) {
		const struct safetensors_entry *x = &f->s->entry[i];
		char *rest;
		uint64_t first;

		if (strncmp(x->name, begin, (size_t)n) != 0)
			continue;
		first = strtoull(x->name + n, &rest, 10);
		if (*rest == ':' && at >= first && at < strtoull(rest + 1, NULL, 10))
			return f->at + x->offset + (at - first) * 4;
	}
	return NULL;
}

static void check_run(const struct image *f, uint32_t files_nr, const struct part_run *r,
		      bool may_lack)
{
	static const float zero;

	for (uint64_t i = 0; i < r->count; i++) {
		const char *want = NULL;

		for (uint32_t k = 0; k < files_nr && want == NULL; k++)
			want = element(&f[k], r, r->first + i);
		CHECK(want != NULL || (may_lack && r->kind != SHARD_MASTER));
		CHECK(memcmp(want ? want : (const char *)&zero, &r->at[i], 4) == 0);
	}
}

static uint32_t runs_of(struct part_run *run, char (*name)[80], const char **at, const char *end)
{
	uint32_t nr = 0;

	while (*at < end && **at != '\n') {
		const char *stop = memchr(*at, '\n', (size_t)(end - *at));
		char line[160] = "";
		unsigned kind, count;
		unsigned long long first;

		stop = stop ? stop : end;
		if ((size_t)(stop - *at) < sizeof(line))
			memcpy(line, *at, (size_t)(stop - *at));
		*at = stop < end ? stop + 1 : end;
		if (nr == RUNS_MAX ||
		    sscanf(line, "%u %79s %llu %u", &kind, name[nr], &first, &count) != 4 ||
		    kind < SHARD_MASTER || kind > SHARD_MOMENTUM || count > RUN_ELEMS)
			continue;
		run[nr] = (struct part_run){.kind = (enum shard_kind)kind,
					    .tensor = name[nr],
					    .first = first & ((1ull << 44) - 1),
					    .count = count,
					    .at = malloc(count * sizeof(float) + !count)};
		CHECK(run[nr].at != NULL);
		nr++;
	}
	*at += *at < end;
	return nr;
}

static void fits(const struct part_file *file, uint32_t files_nr, const struct part_run *run,
		 uint32_t nr)
{
	struct shard_tensor tensor[RUNS_MAX];
	struct manifest m = {.tensors = tensor,
			     .tensors_nr = nr,
			     .kinds = {SHARD_MASTER, SHARD_MOMENTUM},
			     .kinds_nr = 2,
			     .files = (struct part_file *)(uintptr_t)file,
			     .files_nr = files_nr};
	struct err e;

	for (uint32_t i = 0; i < nr; i++) {
		tensor[i] = (struct shard_tensor){.name = run[i].tensor, .ndim = 1};
		tensor[i].shape[0] = run[i].first + run[i].count;
	}
	(void)checkpoint_fits(dir, &m, &e);
}

/* Loads in the ways that the numbers ask for. Each call opens every file again. */
static void load(const uint8_t *number, struct image *f, struct part_file *file, uint32_t files_nr,
		 struct part_run *run, uint32_t nr)
{
	bool may_lack = number[3] & 1, right = number[1] % LIE_NR == LIE_NONE;
	struct part_progress p = {.cancel = (number[3] & 14) == 14};
	uint64_t bytes = 0;
	struct err e = {.text = ""};
	enum shard_status st = SHARD_OK;

	if (number[5] & 1)
		st = part_load_bytes(dir, file, files_nr, run, nr, &bytes, &e);
	CHECK(st == SHARD_OK || strlen(e.text) > 0);
	if (number[5] & 2) {
		st = part_verify(dir, file, files_nr, NULL, &e);
		CHECK(st != SHARD_INTERRUPTED && (st == SHARD_OK || strlen(e.text) > 0));
	}
	if (number[5] & 4)
		fits(file, files_nr, run, nr);
	if (number[5] & 8)
		return;
	st = part_load(dir, file, files_nr, run, nr, may_lack, &p, &e);
	CHECK(st == SHARD_OK || strlen(e.text) > 0);
	CHECK(st != SHARD_OK || !(number[5] & 1) || p.done_bytes == bytes);
	for (uint32_t i = 0; st == SHARD_OK && right && i < nr; i++)
		check_run(f, files_nr, &run[i], may_lack);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	const char *at = (const char *)data + NUMBERS, *end = (const char *)data + bytes;
	struct part_file file[FILES_MAX] = {{.name = "a.safetensors"}, {.name = "b.safetensors"}};
	struct image f[FILES_MAX] = {{.at = NULL}};
	struct part_run run[RUNS_MAX];
	char name[RUNS_MAX][80];
	uint32_t files_nr = 0, nr, piece;
	enum lie lie;

	if (!made) {
		CHECK(mkdtemp(dir) != NULL);
		atexit(remove_folder);
		made = true;
	}
	if (bytes <= NUMBERS)
		return 0;
	lie = (enum lie)(data[1] % LIE_NR);
	piece = 4096u << (data[0] & 3);
	nr = runs_of(run, name, &at, end);
	while (at < end && files_nr < FILES_MAX) {
		const char *stop = memchr(at, 0x1e, (size_t)(end - at));
		enum lie mine = data[4] % FILES_MAX == files_nr ? lie : LIE_NONE;

		stop = stop ? stop : end;
		image_make(&f[files_nr], at, (size_t)(stop - at), files_nr);
		if (mine == LIE_LENGTH)
			f[files_nr].at[data[2] & 7] ^= (char)(1 << (data[2] >> 5));
		image_write(&f[files_nr], file[files_nr].name, mine, data[2]);
		describe(&file[files_nr], &f[files_nr], piece, mine, data[2]);
		files_nr++;
		at = stop < end ? stop + 1 : end;
	}
	if (lie == LIE_TWICE && files_nr == 2)
		memcpy(file[1].name, file[0].name, sizeof(file[0].name));
	load(data, f, file, files_nr, run, nr);
	for (uint32_t i = 0; i < files_nr; i++) {
		free(f[i].at);
		free(file[i].sums);
		safetensors_free(&f[i].s);
	}
	for (uint32_t i = 0; i < nr; i++)
		free(run[i].at);
	remove_files();
	return 0;
}
