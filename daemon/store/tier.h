/* SPDX-License-Identifier: Apache-2.0 */
/* tier.h: where the state of a model's chunks lives, and how a step gets at it. The data path hands
 * out chunks, and a row does the arithmetic where the state is. All is called on the loop thread.
 * Nothing waits or allocates after tier_open(). Each call that was accepted ends in one done(),
 * which may come before the call returns if .here was set. One that was not says SHARD_AGAIN (the
 * row is busy and a later done() makes room) or SHARD_CLOSED. What operands point to stays as it is
 * until done(). */
#ifndef SHARD_TIER_H
#define SHARD_TIER_H

#include "base/list.h"
#include "node/exec.h"
#include "store/codes.h"
#include "store/store.h"
#include "store/tile.h"

#define TIER_SOURCES_MAX 64
struct tier; /* Opaque. */

struct tier_result {
	bool inside;                   /* sum: it is at struct tier_apply.inside, too. */
	bool image_there;              /* apply: .device_image has all of the chunk's new image. */
	double sumsq;                  /* sum: of the result. */
	uint64_t kept;                 /* Elements that the update left as they were. */
	uint64_t unwritten, nonfinite; /* make: weights that nobody wrote, or are not finite. */
	/* sum: false if an element is not finite. .bad_segment is then the first segment with such
	 * an element, and .bad_sources has a bit for each source that has one there. */
	bool finite;
	uint32_t bad_segment;
	uint64_t bad_sources;
};

struct tier_call { /* Who hears of it. */
	void (*done)(void *owner, uint64_t tag, const struct tier_result *r);
	void *owner;
	uint64_t tag;
	bool here; /* The chunk is small: on the calling thread, if that is possible. */
};

struct tier_source {
	const uint8_t *at;     /* The first element of the chunk. */
	const uint8_t *absent; /* [segments_nr] It has no gradient there. */
};

/* TIER_ENCODE: one source becomes codes. TIER_DECODE: the sources are codes. */
enum tier_how { TIER_PLAIN, TIER_ENCODE, TIER_DECODE };

struct tier_sum { /* to = the sources in this order, each times pre, rounded once. */
	uint32_t chunk, sources_nr;
	enum tier_how how;         /* pre is 1, but for TIER_PLAIN. */
	const struct codes *codes; /* But for TIER_PLAIN. It outlives the call. */
	/* TIER_ENCODE: of the chunk. A segment without a gradient keeps what was lost. */
	struct quant_residual residual;
	struct tier_source source[TIER_SOURCES_MAX];
	uint64_t inside; /* A bit for each that is in the direct slot of .node (tier_gpu.h). */
	uint8_t node[TIER_SOURCES_MAX];
	const struct share *share; /* [sources_nr][segments_nr] NULL, or TIER_PLAIN to no source. */
	uint8_t *to;               /* May be that of one source. */
	float pre;
	bool norm; /* Also take the sum of squares of the result. */
};

struct tier_apply {           /* What a record does to one chunk. */
	uint32_t chunk, slot; /* slot: which image. */
	uint32_t half;        /* Where the image is kept: store_image_keep(). */
	/* NULL: the image is the master, rounded. Otherwise it is that of slot .before, plus what
	 * the codes of the difference stand for, which go to .coded. It outlives the call. */
	const struct codes *codes;
	uint8_t *coded;
	uint32_t before;       /* May be .slot. */
	uint64_t device_image; /* On its device: there it is made, too. 0: nowhere. */
	/* That of the record. What has it is left alone where memory outlives the process. */
	uint64_t stamp;
	const struct optim_args *args; /* [groups] */
	const uint8_t *zero;           /* [segments_nr] Nobody has a gradient for it. */
	const uint8_t *grad;           /* The reduced gradient. */
	bool inside;                   /* A sum left it where the state of the chunk is, too. */
};

struct tier_make {                /* The image of one chunk is made. */
	struct tier_apply update; /* With codes, the image before is taken from the other half. */
	bool finish;              /* First the update is finished, if the chunk is whole. */
	bool kept;                /* The image was kept. Otherwise it is made from the master. */
	bool older; /* The image of the step before is made again, too, as it was kept. */
};

struct tier_patch { /* The image of a chunk that is held elsewhere gets the next bytes. */
	uint32_t chunk, slot, before; /* As in struct tier_apply. */
	const struct codes *codes;    /* It outlives the call. */
	const uint8_t *coded;
};

/* Master and moments of a chunk, for who uses them outside of the calls above: writes and reads of
 * weights, seals, saves, copies. store_master() and the like are valid between tier_pin() and
 * tier_unpin() only. A pin rather than a copy, because main memory needs neither. */
struct tier_pin {
	struct list link; /* Of the row, while it waits. */
	uint32_t chunk;
	bool writes; /* What is there is changed before the unpin. */
	enum tier_pinned { TIER_UNPINNED, TIER_WAITS, TIER_PINNED } at;
	void (*done)(struct tier_pin *p); /* It is pinned now, after a wait. */
	void *owner;                      /* For done(). */
};

struct tier_row {
	const char *name;
	enum shard_status (*sum)(struct tier *t, const struct tier_sum *s,
				 const struct tier_call *c);
	enum shard_status (*apply)(struct tier *t, const struct tier_apply *a,
				   const struct tier_call *c);
	enum shard_status (*make)(struct tier *t, const struct tier_make *a,
				  const struct tier_call *c);
	enum shard_status (*patch)(struct tier *t, const struct tier_patch *p,
				   const struct tier_call *c);
	/* At a warm start, before any call: finishes what a killed process was changing. of() fills
	 * what the record in hand does to a chunk that is held here. applying = false: the record
	 * had changed everything, so an unfinished chunk is SHARD_MISMATCH. */
	enum shard_status (*repair)(struct tier *t, uint64_t stamp, bool applying,
				    void (*of)(void *arg, uint32_t chunk, struct tier_apply *a),
				    void *arg, uint64_t *kept, struct err *e);
	/* True: it is in memory. False: the pin waits, and tier_pinned() follows. NULL: always. */
	bool (*pin)(struct tier *t, struct tier_pin *p);
	void (*unpin)(struct tier *t, struct tier_pin *p, bool waited); /* waited: it still did. */
	/* Both may be NULL. A step has begun, and will be applied to every chunk. Before the
	 * threads end, when no call is in hand: nothing is begun by itself any more. */
	void (*ahead)(struct tier *t);
	void (*stop)(struct tier *t);
	uint32_t (*lanes)(const struct tier *t); /* How many chunks it computes at a time. */
	void (*close)(struct tier *t);
};

struct tier {
	const struct tier_row *row;
	uint32_t pins; /* That are pinned or wait. */
};

struct tier_conf {
	struct store *store; /* It outlives the tier. */
	enum isa isa;
	struct exec exec;
	const struct tiles *tiles; /* NULL: the memory ends with the process. */
};

/* Main memory: the state is that of the store. */
enum shard_status tier_ram_open(struct tier **out, const struct tier_conf *conf, struct err *e);
/* Called when no done() is due, and nothing is pinned. NULL is fine. */
void tier_close(struct tier **t);

/* The caller sets .chunk, .writes and .done, and keeps *p. True: the state is in memory, and done()
 * does not come. False: done() comes on a later turn of the loop, or tier_unpin() ends the wait.
 * Who holds one pin may wait for another only if the first one is not needed for that. */
bool tier_pin(struct tier *t, struct tier_pin *p);
/* As tier_pin(), but it does not wait. A row may begin to bring the state, for a later call. */
bool tier_pin_now(struct tier *t, struct tier_pin *p);
void tier_unpin(struct tier *t, struct tier_pin *p); /* Harmless if it is not pinned. */
void tier_ahead(struct tier *t);                     /* As the row's. */
void tier_stop(struct tier *t);                      /* The same. */
void tier_pinned(struct tier_pin *p);                /* For rows: the wait is over. */

#endif
