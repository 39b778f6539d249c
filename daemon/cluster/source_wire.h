/* SPDX-License-Identifier: Apache-2.0 */
/* source_wire.h: the bytes of core/quorum.h, as messages between nodes and as the body of the file
 * that a voter keeps. Pure functions. What comes from outside is checked here down to the last
 * byte, so that the register sees only what a register could have said. */
#ifndef SHARD_CLUSTER_SOURCE_WIRE_H
#define SHARD_CLUSTER_SOURCE_WIRE_H

#include "base/status.h"
#include "core/quorum.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define SOURCE_MSG_MAGIC 0x31515253u /* "SRQ1" in memory order. */

/* Little-endian, as all of the wire. */
struct source_msg_wire {
	uint32_t magic;
	uint8_t op, yes, has_value, zero;
	uint64_t sum; /* XXH3-64 of all bytes of the message while it is zero. */
	uint8_t cluster[QUORUM_UUID_BYTES], from[QUORUM_UUID_BYTES], to[QUORUM_UUID_BYTES];
	uint64_t term, promised, accepted, seq, chosen_seq, round;
};

/* Then come bytes_nr bytes. */
struct source_value_wire {
	uint64_t seq;
	uint8_t writer[QUORUM_UUID_BYTES];
	uint32_t voters_nr, bytes_nr;
	uint8_t voter[QUORUM_VOTERS_MAX][QUORUM_UUID_BYTES]; /* Zeros after the last one. */
};

/* A value follows if term is not 0. */
struct source_disk_wire {
	uint64_t promised, term;
};

static_assert(sizeof(struct source_msg_wire) == 112, "frozen");
static_assert(offsetof(struct source_msg_wire, op) == 4, "frozen");
static_assert(offsetof(struct source_msg_wire, sum) == 8, "frozen");
static_assert(offsetof(struct source_msg_wire, cluster) == 16, "frozen");
static_assert(offsetof(struct source_msg_wire, from) == 32, "frozen");
static_assert(offsetof(struct source_msg_wire, to) == 48, "frozen");
static_assert(offsetof(struct source_msg_wire, term) == 64, "frozen");
static_assert(offsetof(struct source_msg_wire, round) == 104, "frozen");
static_assert(sizeof(struct source_value_wire) == 112, "frozen");
static_assert(offsetof(struct source_value_wire, voters_nr) == 24, "frozen");
static_assert(offsetof(struct source_value_wire, voter) == 32, "frozen");
static_assert(sizeof(struct source_disk_wire) == 16, "frozen");
static_assert(QUORUM_POLL == 1 && QUORUM_READ == 9 && QUORUM_IS == 10, "frozen");

#define SOURCE_VALUE_MAX (sizeof(struct source_value_wire) + QUORUM_BYTES_MAX)
#define SOURCE_MSG_MAX   (sizeof(struct source_msg_wire) + SOURCE_VALUE_MAX)
#define SOURCE_DISK_MAX  (sizeof(struct source_disk_wire) + SOURCE_VALUE_MAX)

/* Writes at most SOURCE_MSG_MAX bytes to `to` and returns how many. */
size_t source_msg_encode(const struct quorum_msg *m, const uint8_t cluster[QUORUM_UUID_BYTES],
			 unsigned char *to);
/* Fills m. Its value, if it has one, is in *room. SHARD_PROTOCOL: the bytes are no message of this
 * cluster that a register could have sent; e says what is wrong with them. */
enum shard_status source_msg_decode(const void *bytes, size_t nr,
				    const uint8_t cluster[QUORUM_UUID_BYTES], struct quorum_msg *m,
				    struct quorum_value *room, struct err *e);

/* Writes at most SOURCE_DISK_MAX bytes to `to` and returns how many. */
size_t source_disk_encode(const struct quorum_disk *d, unsigned char *to);
/* SHARD_PROTOCOL as above. */
enum shard_status source_disk_decode(const void *bytes, size_t nr, struct quorum_disk *d,
				     struct err *e);

#endif
