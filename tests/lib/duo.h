/* SPDX-License-Identifier: Apache-2.0 */
/* duo.h: two cores, a (the coordinator) and b, with one chunk and one trainer each. Everything that
 * happens is a line of a trace. */
#ifndef SHARD_TESTS_DUO_H
#define SHARD_TESTS_DUO_H

#include "core/core.h"

#define DUO_QUEUE_NR 64

struct duo_queued {
	struct core_msg msg;
	struct core_world world;
	struct record record;
	struct core_view view;
	struct core_answer answer;
	double sumsq, weights[4];
	uint8_t finite;
	char why[256];
};

struct duo {
	bool elected; /* Coordinators are elected, a first. */
	/* For core_conf of the cores that are made from now on. */
	bool durable, recalled;
	struct core *core[2];
	/* `saved` has two buffers per core, and counts[n] is the valid one. */
	void *memory[2], *saved[2][2];
	unsigned counts[2];
	uint64_t term[2];
	struct core_view view; /* The view that was given last to the disk of core a. */
	/* The process dies in the event, before it has saved its state or before its first
	 * action. */
	bool unsaved, unsent;
	struct core_id id[2];
	struct core_out out;
	struct duo_queued queue[DUO_QUEUE_NR];
	uint32_t head, tail;
	uint64_t now;
	char *trace;
	size_t used, bytes;
};

struct view_node duo_who(unsigned n);
void duo_init(struct duo *p);
void duo_init_durable(struct duo *p); /* As core_conf.durable. */
void duo_init_elected(struct duo *p);
/* The node is elected and begins with the view that was given last to a disk. */
void duo_lead(struct duo *p, unsigned n, uint64_t term);
void duo_deinit(struct duo *p);
__attribute__((format(printf, 2, 3))) void duo_line(struct duo *p, const char *fmt, ...);
/* Its messages wait in the queue. */
void duo_feed(struct duo *p, unsigned n, const struct core_event *e);
void duo_drain(struct duo *p); /* Carries messages until none waits. */
void duo_event(struct duo *p, unsigned n, const char *what, struct core_event e);
void duo_link(struct duo *p);
void duo_first_begin(struct duo *p); /* Seals as step 4. Both trainers are then in step 5. */
void duo_compute(struct duo *p, unsigned n, bool staged, bool ready);
/* Compares the trace with a file. TRACE_UPDATE=1 writes the file again. */
void duo_compare(struct duo *p, const char *path);
/* Both start core n again as the same member in a later term. duo_warm() starts it from `saved` and
 * returns what core_init() returns. duo_dies() starts it from what it saved last, and carries its
 * first messages. */
struct core *duo_warm(struct duo *p, unsigned n, const void *saved);
void duo_dies(struct duo *p, unsigned n);

#endif
