/* SPDX-License-Identifier: Apache-2.0 */
/* rails.h: two ends of an RDMA connection (a rail) in one process, each with a loop and with memory
 * to send from and to land in. They use the fake verbs or a real device. The header of a frame has
 * the sum of its body and its number on its queue pair, so that the receiver can judge it. */
#ifndef SHARD_TESTS_RAILS_H
#define SHARD_TESTS_RAILS_H

#include "net/rdma.h"

enum { RDMA_LOCAL_SLOTS = 64 };

struct rails_conf {
	const char *device[2], *address[2]; /* NULL: any. */
	int gid_index;                      /* 0 stands for -1. */
	uint32_t qps_nr;                    /* 0: 2. */
	uint32_t part_bytes;                /* Of a slot. 0: 4096. */
	uint32_t busy_poll_us;
	bool no_checksum;
	uint64_t deadline_ns; /* 0: 10 s. */
};

struct rails_end {
	struct rails *rails;
	struct rdma *rdma;
	struct rdma_domain *domain;
	struct rdma_region *source, *land;
	struct rdma_rail *rail;
	unsigned char *source_at, *land_at; /* RDMA_LOCAL_SLOTS for each queue pair. */
	/* Frames sent on each queue pair, which are their numbers. */
	uint64_t next_out[RDMA_QPS_MAX];
	uint64_t next_in[RDMA_QPS_MAX];
	uint64_t frames, controls, sent_ok, sent_closed, rooms, fails, gones, bad;
	struct err why, gone_why;
	uint32_t discard_qp;      /* The queue pair whose frames are dropped, plus 1. 0: none. */
	enum shard_status refuse; /* What on_frame refuses with. */
	bool keep_credit;         /* For a test's own on_frame. The harness does not use it. */
	void (*on_frame)(struct rails_end *e, uint32_t qp, const struct wire_head *h);
	void (*on_room)(struct rails_end *e, uint32_t qp);
	void (*on_sent)(struct rails_end *e, enum shard_status st);
	void *arg;
};

struct rails {
	uv_loop_t loop[2];
	struct rails_conf conf;
	struct rails_end end[2];
	size_t area; /* Bytes of source_at, and of land_at. */
};

void rails_init(struct rails *r, const struct rails_conf *conf); /* Uses no verbs yet. */
/* Opens devices, domains, regions and rails. */
enum shard_status rails_open(struct rails *r, struct err *e);
/* Makes one more rail, after the last was freed. */
enum shard_status rails_rail(struct rails *r, int i, bool checksum, struct err *e);
enum shard_status rails_connect(struct rails *r, struct err *e);
/* Calls init, open and connect. A failure fails the test. */
void rails_begin(struct rails *r, const struct rails_conf *conf);
void rails_close(struct rails *r); /* Closes whatever there is, and ends the loops. */

/* Sends a bulk frame with a body made from seed, from its slot to the slot of the other end. It is
 * not kicked. */
enum shard_status rails_send(struct rails *r, int from, uint32_t qp, uint32_t bytes, uint64_t seed);
/* Sends a frame with a control body that has a text. */
enum shard_status rails_control(struct rails *r, int from, uint32_t qp, uint32_t text_bytes);
void rails_kick(struct rails *r, int from);
/* Turns both loops until *what is at least `much`. False: it was not within ms. */
bool rails_until(struct rails *r, const uint64_t *what, uint64_t much, uint32_t ms);
void rails_turn(struct rails *r, uint32_t times);
void rails_turn_end(struct rails *r, int i); /* Turns that loop alone, once. */

#endif
