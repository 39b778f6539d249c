/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what the membership source `quorum` takes from other nodes and from its file. Byte 0 says
 * what the rest is: 0 a message as it is; 1 a message whose magic, sum and cluster are made right;
 * 2 the body of the file; 3 the whole file, made right as in 1; 4 messages, each with its length in
 * two bytes before it, that a register of three voters takes one after the other while its clock
 * goes on by the third byte. What is accepted is written again as the same bytes, and no message
 * may end the process. */
// covers: daemon/cluster/source_wire.c
// needs: daemon/cluster/source_file.c daemon/core/quorum*.c
#include "base/check.h"
#include "cluster/source_file.h"
#include "cluster/source_wire.h"
#include "wire/xxh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NODES = 3, FILE_HEAD = 72, FILE_SUM_AT = 64, MS = 1000000 };

static const uint8_t cluster[QUORUM_UUID_BYTES] = {0xc1};

static void uuid_of(unsigned n, uint8_t *uuid)
{
	memset(uuid, 0, QUORUM_UUID_BYTES);
	uuid[0] = (uint8_t)(n + 1);
}

/* A copy of the exact size, so that a byte too far is seen. */
static uint8_t *copy_of(const uint8_t *data, size_t size)
{
	uint8_t *copy = malloc(size + 1);

	CHECK(copy != NULL);
	memcpy(copy + 1, data, size);
	return copy;
}

static void repair(uint8_t *msg, size_t size)
{
	struct source_msg_wire w;

	if (size < sizeof(w) || size > SOURCE_MSG_MAX)
		return;
	memcpy(&w, msg, sizeof(w));
	w.magic = SOURCE_MSG_MAGIC;
	memcpy(w.cluster, cluster, sizeof(cluster));
	w.sum = 0;
	memcpy(msg, &w, sizeof(w));
	w.sum = xxh_sum(msg, size, 0);
	memcpy(msg, &w, sizeof(w));
}

static bool decode(const uint8_t *msg, size_t size, struct quorum_msg *m, struct quorum_value *room)
{
	struct err e = {.text = ""};
	enum shard_status st = source_msg_decode(msg, size, cluster, m, room, &e);

	CHECK(st == SHARD_OK || (st == SHARD_PROTOCOL && strlen(e.text) > 0));
	return st == SHARD_OK;
}

static void one_message(const uint8_t *data, size_t size, bool repairs)
{
	static struct quorum_value room;
	static uint8_t again[SOURCE_MSG_MAX];
	uint8_t *copy = copy_of(data, size);
	struct quorum_msg m;

	if (repairs)
		repair(copy + 1, size);
	if (decode(copy + 1, size, &m, &room)) {
		CHECK(source_msg_encode(&m, cluster, again) == size);
		CHECK(memcmp(again, copy + 1, size) == 0);
	}
	free(copy);
}

static struct quorum *make(const struct quorum_disk *disk)
{
	static _Alignas(16) unsigned char memory[1 << 19];
	struct quorum_conf conf = {.ordinal = 1,
				   .beat_ns = 10 * MS,
				   .election_ns = 50 * MS,
				   .deadline_ns = 100 * MS,
				   .seed = 7};

	CHECK(quorum_bytes() <= sizeof(memory));
	memset(memory, 0, quorum_bytes());
	uuid_of(0, conf.self);
	return quorum_init(memory, &conf, disk, MS);
}

static void one_body(const uint8_t *data, size_t size)
{
	static struct quorum_disk disk;
	static uint8_t again[SOURCE_DISK_MAX];
	uint8_t *copy = copy_of(data, size);
	struct err e = {.text = ""};

	if (source_disk_decode(copy + 1, size, &disk, &e) == SHARD_OK) {
		CHECK(source_disk_encode(&disk, again) == size);
		CHECK(memcmp(again, copy + 1, size) == 0);
		CHECK(make(&disk) != NULL);
	} else {
		CHECK(strlen(e.text) > 0);
	}
	free(copy);
}

static char file_dir[] = "/tmp/shard-fuzz-source-XXXXXX", file_path[64];

static void remove_dir(void)
{
	rmdir(file_dir);
}

/* The head of source_file.c: magic, name, cluster, node, length, sum. */
static void one_file(const uint8_t *data, size_t size)
{
	static const uint64_t magic = 0x314352534452485full;
	struct member_config c = {.dir = file_dir};
	struct source_file *f = NULL;
	uint8_t *copy = copy_of(data, size), *file = copy + 1;
	struct err e = {.text = ""};
	size_t nr = 0;
	FILE *out;

	if (file_path[0] == 0) {
		CHECK(mkdtemp(file_dir) != NULL && atexit(remove_dir) == 0);
		snprintf(file_path, sizeof(file_path), "%s/source", file_dir);
	}
	memcpy(c.cluster, cluster, sizeof(cluster));
	uuid_of(0, c.self);
	if (size >= FILE_HEAD) {
		uint64_t sum = 0;

		memcpy(file, &magic, sizeof(magic));
		memcpy(file + FILE_SUM_AT, &sum, sizeof(sum));
		sum = xxh_sum(file, size, magic);
		memcpy(file + FILE_SUM_AT, &sum, sizeof(sum));
	}
	out = fopen(file_path, "w");
	CHECK(out != NULL && fwrite(file, 1, size, out) == size && fclose(out) == 0);
	if (source_file_open(&f, &c, "quorum", SOURCE_DISK_MAX, &nr, &e) == SHARD_OK)
		one_body(source_file_body(f), nr);
	else
		CHECK(f == NULL && strlen(e.text) > 0);
	source_file_close(&f);
	unlink(file_path);
	free(copy);
}

/* Gives the register an event, and carries nothing out. */
static void handle(struct quorum *q, const struct quorum_event *e, uint64_t now)
{
	static struct quorum_out out;
	static uint8_t wire[SOURCE_MSG_MAX];
	static struct quorum_value room;
	struct quorum_msg m;

	quorum_handle(q, e, now, &out);
	/* What it sends, another node accepts. */
	for (uint32_t i = 0; i < out.nr; i++)
		if (out.act[i].type == QUORUM_ACT_SEND)
			CHECK(decode(wire, source_msg_encode(&out.act[i].msg, cluster, wire), &m,
				     &room));
}

static struct quorum *make_voter(void)
{
	static struct quorum_disk disk;
	struct quorum_conf conf = {.ordinal = 1};
	uint8_t writer[QUORUM_UUID_BYTES] = {1};
	struct quorum_event e = {.type = QUORUM_EV_UP};
	struct quorum *q;

	uuid_of(0, conf.self);
	quorum_first(&disk, &conf, writer, "x", 1);
	disk.value.voters_nr = NODES;
	for (unsigned i = 0; i < NODES; i++)
		uuid_of(i, disk.value.voter[i]);
	q = make(&disk);
	CHECK(q != NULL);
	for (unsigned i = 1; i < NODES; i++) {
		uuid_of(i, e.uuid);
		handle(q, &e, MS);
	}
	return q;
}

static void many_messages(const uint8_t *data, size_t size)
{
	static struct quorum_value room;
	struct quorum *q = make_voter();
	uint64_t now = MS;

	while (size >= 3) {
		size_t nr = data[0] | (size_t)data[1] << 8;
		struct quorum_msg m;
		uint8_t *copy;

		now += data[2] * (uint64_t)MS;
		data += 3;
		size -= 3;
		nr = nr < size ? nr : size;
		if (quorum_deadline(q) <= now)
			handle(q, &(struct quorum_event){.type = QUORUM_EV_TICK}, now);
		copy = copy_of(data, nr);
		repair(copy + 1, nr);
		if (decode(copy + 1, nr, &m, &room)) {
			uuid_of(m.from[0] & 1 ? 1 : 2, m.from);
			uuid_of(0, m.to);
			handle(q, &(struct quorum_event){.type = QUORUM_EV_MSG, .msg = &m}, now);
		}
		free(copy);
		data += nr;
		size -= nr;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	switch (data[0] % 5) {
	case 0:
		one_message(data + 1, size - 1, false);
		break;
	case 1:
		one_message(data + 1, size - 1, true);
		break;
	case 2:
		one_body(data + 1, size - 1);
		break;
	case 3:
		one_file(data + 1, size - 1);
		break;
	case 4:
		many_messages(data + 1, size - 1);
		break;
	}
	return 0;
}
