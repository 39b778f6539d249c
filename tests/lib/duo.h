/* SPDX-License-Identifier: Apache-2.0 */
/* duo.h: two cores, a (the coordinator) and b, with one chunk and one trainer each; everything that
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
	double sumsq, weight;
	uint8_t finite;
	char why[256];
};

struct duo {
	struct core *core[2];
	void *memory[2], *saved[2][2]; /* saved: two buffers, of which .counts does */
	unsigned counts[2];
	uint64_t term[2];
	struct core_view view; /* given to a's disk last */
	bool unsaved, unsent;  /* the process dies in the event: before it saved; before its first
				  action */
	struct core_id id[2];
	struct core_out out;
	struct duo_queued queue[DUO_QUEUE_NR];
	uint32_t head, tail;
	uint64_t now;
	char *trace;
	size_t used, bytes;
};

void duo_init(struct duo *p);
void duo_deinit(struct duo *p);
__attribute__((format(printf, 2, 3))) void duo_line(struct duo *p, const char *fmt, ...);
void duo_feed(struct duo *p, unsigned n, const struct core_event *e); /* its messages wait */
void duo_drain(struct duo *p);                                        /* until none waits */
void duo_event(struct duo *p, unsigned n, const char *what, struct core_event e);
void duo_link(struct duo *p);
void duo_first_begin(struct duo *p); /* sealed as step 4, both trainers in step 5 */
void duo_compute(struct duo *p, unsigned n, bool staged, bool ready);
void duo_compare(struct duo *p,
		 const char *path); /* the trace with a file; TRACE_UPDATE=1 writes it anew */
/* As the same member in its next term. duo_warm: what core_init() gives; duo_dies: from what it
 * saved last, up to its first messages. */
struct core *duo_warm(struct duo *p, unsigned n, const void *saved);
void duo_dies(struct duo *p, unsigned n);

#endif
