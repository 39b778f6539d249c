/* SPDX-License-Identifier: Apache-2.0 */
/* members_impl.h: what the test and its nodes say to each other (members.c, members_node.c). */
#ifndef SHARD_TESTS_MEMBERS_IMPL_H
#define SHARD_TESTS_MEMBERS_IMPL_H

#include "cluster/source.h"

enum { MEMBERS_CONTROL_FD = 3, MEMBERS_WIRE_FD = 4, MEMBERS_BYTES_MAX = 65536 };

enum members_frame_type {
	/* From the test. */
	MEMBERS_PROPOSE = 1,
	MEMBERS_JOIN,
	MEMBERS_LEAVE,
	MEMBERS_READ,
	MEMBERS_RESIGN,
	MEMBERS_LINK,
	MEMBERS_STOP,
	/* From the node. */
	MEMBERS_STARTED,
	MEMBERS_VIEW,
	MEMBERS_LEADING,
	MEMBERS_LOST,
	MEMBERS_LEADER,
	MEMBERS_FAILED,
	MEMBERS_WROTE,
	MEMBERS_DID_READ,
	MEMBERS_STOPPED,
};

/* A packet of the control socket. Which fields count depends on the type. */
struct members_frame {
	int type;   /* enum members_frame_type */
	int status; /* A member_done; -1 - a shard_status; or yes and no. */
	uint64_t term, seq, writer;
	uint32_t voters_nr, bytes_nr;
	uint8_t uuid[MEMBER_UUID_BYTES];
	char text[512];
};

/* A packet of the wire: a message to or from another node. */
union members_packet {
	struct {
		uint8_t peer[MEMBER_UUID_BYTES];
		unsigned char bytes[MEMBERS_BYTES_MAX + 4096];
	} msg;
};

#endif
