/* SPDX-License-Identifier: Apache-2.0 */
/* rails.h: two ends of an RDMA rail, a loop for each, of one process, with memory to send from and
 * land in; over the fake verbs or a real device. What arrives is judged by its header, which has
 * the body's sum and its number on its queue pair. */
#ifndef SHARD_TESTS_RAILS_H
#define SHARD_TESTS_RAILS_H

#include "net/rdma.h"

enum { RDMA_LOCAL_SLOTS = 64 };

struct rails_conf {
	const char *device[2], *address[2]; /* NULL: any */
	int gid_index;                      /* 0: -1 */
	uint32_t qps_nr;                    /* 0: 2 */
	uint32_t part_bytes;                /* of a slot; 0: 4096 */
	uint32_t busy_poll_us;
	bool no_checksum;
	uint64_t deadline_ns; /* 0: 10 s */
};

struct rails_end {
	struct rails *rails;
	struct rdma *rdma;
	struct rdma_domain *domain;
	struct rdma_region *source, *land;
	struct rdma_rail *rail;
	unsigned char *source_at, *land_at; /* RDMA_LOCAL_SLOTS for each queue pair */
	uint64_t next_out[RDMA_QPS_MAX];    /* frames sent of each queue pair: their numbers */
	uint64_t next_in[RDMA_QPS_MAX];
	uint64_t frames, controls, sent_ok, sent_closed, rooms, fails, gones, bad;
	struct err why, gone_why;
	uint32_t discard_qp;      /* + 1: frames of it are dropped */
	enum shard_status refuse; /* by on_frame */
	bool keep_credit;         /* on_frame does not answer; unused by the harness itself */
	void (*on_frame)(struct rails_end *e, uint32_t qp, const struct wire_head *h);
	void (*on_room)(struct rails_end *e, uint32_t qp);
	void (*on_sent)(struct rails_end *e, enum shard_status st);
	void *arg;
};

struct rails {
	uv_loop_t loop[2];
	struct rails_conf conf;
	struct rails_end end[2];
	size_t area; /* bytes of source_at, and of land_at */
};

void rails_init(struct rails *r, const struct rails_conf *conf); /* no verbs yet */
enum shard_status rails_open(struct rails *r, struct err *e); /* devices, domains, regions, rails */
enum shard_status rails_rail(struct rails *r, int i, bool checksum,
			     struct err *e); /* one more, after the last was freed */
enum shard_status rails_connect(struct rails *r, struct err *e);
void rails_begin(struct rails *r, const struct rails_conf *conf); /* all three, and asserts */
void rails_close(struct rails *r); /* whatever there is; the loops end */

/* A bulk frame with a body made of seed, from its slot to the other end's; not kicked. */
enum shard_status rails_send(struct rails *r, int from, uint32_t qp, uint32_t bytes, uint64_t seed);
/* One with a control body of a text. */
enum shard_status rails_control(struct rails *r, int from, uint32_t qp, uint32_t text_bytes);
void rails_kick(struct rails *r, int from);
/* Turns both loops until *what is at least so much; false: not within ms. */
bool rails_until(struct rails *r, const uint64_t *what, uint64_t much, uint32_t ms);
void rails_turn(struct rails *r, uint32_t times);
void rails_turn_end(struct rails *r, int i); /* that loop alone, once */

#endif
