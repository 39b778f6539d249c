/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: the parsers of a checkpoint. An input that begins with "{" is a manifest
 * without its last line. The checksum is added here, so that the fuzzer gets behind it. Any other
 * input is a safetensors file, of which it has the first 8 bytes and the header. If the ninth byte
 * says so, the data that the header announces counts as present. What is accepted must be
 * consistent. */
// covers: proto/ckpt/safetensors.c proto/ckpt/manifest_read.c proto/ckpt/manifest_scan.c
#include "base/check.h"
#include "ckpt/client.h"
#include "ckpt/manifest.h"
#include "ckpt/safetensors.h"
#include "wire/xxh.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Reads the same manifest from a folder with a data file in it. Before that the manifest is
 * missing, and then it is a folder. */
static void fuzz_folder(const char *text, size_t bytes)
{
	char dir[] = "/tmp/shard-fuzz.XXXXXX", path[64], file[64], blob[PART_BLOB_BYTES];
	struct manifest *m;
	struct err e;
	FILE *f;

	CHECK(mkdtemp(dir) != NULL);
	snprintf(path, sizeof(path), "%s/" MANIFEST_NAME, dir);
	snprintf(file, sizeof(file), "%s/node-a.safetensors", dir);
	CHECK(manifest_read(dir, &m, &e) == SHARD_NOT_FOUND);
	CHECK(mkdir(path, 0700) == 0 && manifest_read(dir, &m, &e) == SHARD_PROTOCOL &&
	      rmdir(path) == 0);
	CHECK((f = fopen(path, "w")) && fwrite(text, 1, bytes, f) == bytes && fclose(f) == 0);
	CHECK((f = fopen(file, "w")) && ftruncate(fileno(f), 4096) == 0 && fclose(f) == 0);
	if (manifest_read(dir, &m, &e) == SHARD_OK)
		for (uint32_t i = 0; i < m->blobs_nr; i++)
			(void)manifest_blob(dir, m, i, blob, &e);
	manifest_free(&m);
	CHECK(unlink(path) == 0 && unlink(file) == 0 && rmdir(dir) == 0);
}

static void fuzz_manifest(const uint8_t *data, size_t bytes)
{
	static const char dir[] = "/tmp";
	char *text = malloc(bytes + 64), blob[PART_BLOB_BYTES];
	struct manifest *m;
	struct err e = {.text = ""};
	size_t all = bytes;

	memcpy(text, data, bytes);
	if (bytes < 2 || text[bytes - 1] != 'x') /* With an x at the end it is taken as it is. */
		all += (size_t)sprintf(text + bytes, "\"sum\":\"%016" PRIx64 "\"}\n",
				       xxh_sum(data, bytes, 0));
	if (bytes > 1 && data[1] == ' ')
		fuzz_folder(text, all);
	if (manifest_parse(&m, text, all, "fuzz", &e) != SHARD_OK) {
		CHECK(m == NULL && strlen(e.text) > 0);
		free(text);
		return;
	}
	CHECK(m->tensors_nr > 0 && m->kinds_nr >= 1 && m->kinds[0] == SHARD_MASTER && m->name[0]);
	for (uint32_t i = 0; i < m->tensors_nr; i++)
		CHECK(m->tensors[i].name[0] && m->tensors[i].ndim <= 8);
	for (uint32_t i = 0; i < m->blobs_nr; i++) {
		CHECK(m->blobs[i].file < m->files_nr);
		CHECK(manifest_blob(dir, m, i, blob, &e) != SHARD_OK);
	}
	for (uint32_t i = 0; i < m->client_nr; i++) {
		const struct part_file *f = &m->client[i];

		CHECK(client_name_ok(f->name));
		CHECK(f->sums_nr == (f->bytes + f->piece_bytes - 1) / f->piece_bytes);
	}
	manifest_free(&m);
	free(text);
}

static void fuzz_file(const uint8_t *data, size_t bytes)
{
	struct safetensors *s = NULL;
	struct err e = {.text = ""};
	uint64_t header, file_bytes = bytes;
	char *json;

	if (bytes < 9)
		return;
	file_bytes += data[8] == '{' ? 24 : 0;
	if (safetensors_header_bytes(data, file_bytes, "fuzz", &header, &e) != SHARD_OK ||
	    header > bytes - 8)
		return;
	json = malloc(header);
	memcpy(json, data + 8, header);
	if (safetensors_parse(&s, json, header, file_bytes, "fuzz", &e) == SHARD_OK) {
		uint64_t at = s->data_offset;
		void *again = NULL;
		size_t again_bytes;

		for (uint32_t i = 0; i < s->entries_nr; i++) {
			CHECK(s->entry[i].name[0] && s->entry[i].offset == at &&
			      s->entry[i].ndim <= SAFETENSORS_DIMS_MAX);
			at += s->entry[i].bytes;
		}
		CHECK(at == file_bytes);
		CHECK(safetensors_make(&again, &again_bytes, s->entry, s->entries_nr, NULL, 0,
				       &e) == SHARD_OK);
		CHECK(again_bytes % SAFETENSORS_ALIGN == 0);
		free(again);
	} else {
		CHECK(s == NULL && strlen(e.text) > 0);
	}
	safetensors_free(&s);
	free(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	if (bytes > 0 && data[0] == '{')
		fuzz_manifest(data, bytes);
	else
		fuzz_file(data, bytes);
	return 0;
}
