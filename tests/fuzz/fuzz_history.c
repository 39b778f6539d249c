/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what reads a history: shardctl, which gets the bytes of files from daemons, and a daemon
 * that opens its own file after whatever happened to it. Byte 0 says how the rest is used. Bit 0:
 * it is a list of bodies, each with its length in two bytes before it, whose heads are made right,
 * else it is the bytes as they are. Bits 1 to 3: the size of the pages. Bit 4: the pages are of two
 * files. Bit 5: the last page comes twice, which must be refused. Reading must end, say only what
 * is JSON, and find every whole entry that comes before any damage. A daemon that opens the file
 * must be able to append, and then find its own entry again. */
// covers: proto/wire/history.c client/ctl/history_read.c
// needs: daemon/cluster/history_file.c
#include "base/check.h"
#include "cluster/history_file.h"
#include "ctl/history.h"
#include "wire/history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
	uint64_t entries, damaged;
};

static void on_entry(void *arg, json_t *e, uint64_t first, uint64_t last)
{
	struct seen *s = arg;
	char *text = json_dumps(e, JSON_COMPACT);

	(void)first;
	(void)last;
	CHECK(text != NULL && json_is_string(json_object_get(e, "kind")));
	s->entries += json_object_get(e, "number") != NULL;
	s->damaged += strcmp(json_string_value(json_object_get(e, "kind")), "damaged") == 0;
	free(text);
	json_decref(e);
}

/* Bodies with their lengths become entries with numbers from 1 on. */
static size_t seal_all(const uint8_t *data, size_t size, unsigned char *out)
{
	size_t used = 0;
	uint64_t number = 1;

	while (size > 2) {
		size_t body = (size_t)data[0] | (size_t)data[1] << 8;

		data += 2;
		size -= 2;
		body = body == 0 ? 1 : body > size ? size : body;
		if (body > HISTORY_BODY_MAX)
			body = HISTORY_BODY_MAX;
		memcpy(out + used + HISTORY_HEAD_BYTES, data, body);
		history_seal(out + used, number++, (uint32_t)body);
		used += HISTORY_HEAD_BYTES + body;
		data += body;
		size -= body;
	}
	return used;
}

static bool give(struct history_reader *r, uint32_t file, uint64_t offset, const void *at,
		 size_t nr, bool end)
{
	Shard__HistoryPage p = SHARD__HISTORY_PAGE__INIT;
	void *copy = malloc(nr + 1); /* Of the exact size, so that a byte too far is seen. */
	bool ok;

	CHECK(copy != NULL);
	if (nr > 0)
		memcpy(copy, at, nr);
	p.node = (char *)(uintptr_t) "a";
	p.trouble = (char *)(uintptr_t)(end ? "the disk is full" : "");
	p.file = file;
	p.offset = offset;
	p.bytes.data = copy;
	p.bytes.len = nr;
	p.end = end;
	ok = history_reader_page(r, &p);
	free(copy);
	return ok;
}

static void read_pages(uint8_t how, const unsigned char *bytes, size_t nr)
{
	struct seen seen = {0, 0};
	struct history_reader *r = history_reader_new(on_entry, &seen);
	size_t page = (size_t)16 << (how >> 1 & 7) * 2, half = how & 16 ? nr / 2 : nr, whole = 0;
	struct history_entry e;
	uint64_t before = 0;

	CHECK(r != NULL);
	for (size_t at = 0; at < nr; at += page) {
		uint32_t file = at < half ? 1 : 2;
		size_t from = file == 1 ? 0 : half, end = file == 1 ? half : nr;

		if (end - at < page)
			page = end - at;
		CHECK(give(r, file, at - from, bytes + at, page, at + page == nr));
		if (how & 32 && at + page == nr)
			CHECK(!give(r, file, at - from, bytes + at, page, true) || page == 0);
	}
	while (whole < half && history_next(bytes + whole, half - whole, &e) == HISTORY_WHOLE) {
		before++;
		whole += e.bytes;
	}
	CHECK(seen.entries + seen.damaged >= before);
	history_reader_free(r);
}

static void open_file(const unsigned char *bytes, size_t nr)
{
	char state[] = "/tmp/shard-fuzz.XXXXXX", path[80];
	unsigned char mine[HISTORY_HEAD_BYTES + 3] = {[4] = 3}, *all = malloc(nr + 4096);
	struct history_file f;
	struct history_entry e;
	struct history_span at = {.file = 0};
	struct err why;
	FILE *out;

	CHECK(mkdtemp(state) != NULL);
	history_file_init(&f, state, 7, HISTORY_LIMIT_MIN);
	snprintf(path, sizeof(path), "%s/history", state);
	CHECK(mkdir(path, 0700) == 0);
	snprintf(path, sizeof(path), "%s/history/00000007.00000001", state);
	CHECK((out = fopen(path, "w")) != NULL && fwrite(bytes, 1, nr, out) == nr &&
	      fclose(out) == 0);
	CHECK(history_file_append(&f, mine, sizeof(mine), &why) == SHARD_OK);
	at.file = at.last = f.file;
	at.last_bytes = f.bytes;
	at.offset = f.bytes - sizeof(mine);
	CHECK(history_file_read(&f, &at, all, nr + 4096, &why) == SHARD_OK && at.end);
	CHECK(history_next(all, at.nr, &e) == HISTORY_WHOLE && e.number + 1 == f.number);
	CHECK(history_file_remove(&f, &why) == SHARD_OK);
	snprintf(path, sizeof(path), "%s/history", state);
	CHECK(rmdir(path) == 0 && rmdir(state) == 0);
	free(all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* Each body may be of one byte. */
	unsigned char *bytes = malloc((HISTORY_HEAD_BYTES + 1) * (size + 1));
	size_t nr = size > 1 ? size - 1 : 0;

	CHECK(bytes != NULL);
	if (size == 0) {
		free(bytes);
		return 0;
	}
	if (data[0] & 1)
		nr = seal_all(data + 1, size - 1, bytes);
	else
		memcpy(bytes, data + 1, nr);
	read_pages(data[0], bytes, nr);
	open_file(bytes, nr);
	free(bytes);
	return 0;
}
