/* SPDX-License-Identifier: Apache-2.0 */
/* watch.h: what the life of a model tells the layers above it, which it does not know otherwise.
 * Whoever wants to hear of it has a row; server.c puts the rows into one list before there is a
 * model. NULL in a row: it does not care. All calls are on the loop thread, in the order of the
 * list. None may free the model, unless it says so. */
#ifndef SHARD_MODEL_WATCH_H
#define SHARD_MODEL_WATCH_H

#include "base/status.h"
#include "shard.pb-c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_view;
struct model;
struct model_settings;
struct record;
struct server;

struct model_watch {
	/* --- a step; the model has not changed yet unless it says so --- */
	/* A record is decided, and is about to be applied here. */
	void (*decided)(struct model *m, const struct record *r);
	/* It is being applied, for the first time in this process. */
	void (*applying)(struct model *m, const struct record *r);
	/* A record has been carried out here. */
	void (*applied)(struct model *m);
	/* A step is applied, or a job over: nothing of a step is under way. */
	void (*boundary)(struct model *m);
	/* Weights or an image chunk can be read that could not be read before. */
	void (*readable)(struct model *m);
	/* Training stands still after that record, as was asked for. */
	void (*held)(struct model *m, const struct record *r);
	/* The wish of an operator holds. */
	void (*tuned)(struct model *m);
	/* About once a second. */
	void (*beat)(struct model *m, uint64_t now_ns);

	/* --- its weights --- */
	/* The core has sealed it. whole: and every chunk of its image is here. */
	void (*sealed)(struct model *m);
	void (*whole)(struct model *m);
	/* What is in its memory is void: it is reset as soon as nobody uses it. */
	void (*voided)(struct model *m);
	/* It is lost, or rolled back (back: a checkpoint brings its weights); e says why. */
	void (*lost)(struct model *m, bool back, const struct err *e);
	/* Its memory is reset: nothing is written there. */
	void (*cleared)(struct model *m);
	/* Somebody begins to write its weights. forget: what a restore has read here counts for
	 * nobody. */
	void (*anew)(struct model *m);
	void (*forget)(struct model *m);

	/* --- its life --- */
	/* May it be made with these settings? */
	enum shard_status (*may_define)(struct server *s, const Shard__Define *d,
					const struct model_settings *set, struct err *e);
	/* There is a struct, empty but for its server and definition: a row makes what it keeps of
	 * the model, and frees it when the model is going, also if another row failed. */
	enum shard_status (*made)(struct model *m, struct err *e);
	/* Every node has it. true: the row answers who asked for it, later. */
	bool (*defined)(struct model *m);
	/* Its definition failed; it is freed after this. */
	void (*refused)(struct model *m, const struct err *e);
	/* It is dropped: what is in hand for it ends soon. going: it is freed after this. */
	void (*dropping)(struct model *m, const struct err *e);
	void (*going)(struct model *m);

	/* --- its file, on the coordinator --- */
	/* Fills in what a row keeps there; what it points to lives until the file is packed. */
	void (*pack)(const struct model *m, bool sealed, Shard__ModelFile *file, Shard__Run *run);
	/* It is durable. Who keeps the bytes takes them and sets *file to NULL. */
	void (*persisted)(struct model *m, void **file, size_t bytes);
	/* A start has found it, and makes the model next: a row may change the view, and say in
	 * `lost` what is to be said of it. loaded: it is made. */
	void (*found)(const Shard__ModelFile *file, struct core_view *view, char *lost,
		      size_t lost_bytes);
	void (*loaded)(struct model *m, const Shard__ModelFile *file, const struct core_view *view,
		       const void *bytes, size_t bytes_nr);
	/* A warm start found it unsealed; seals: the coordinator's view seals it. */
	void (*resumed)(struct model *m, bool seals);

	/* --- questions: one row that says so is enough --- */
	bool (*uses)(const struct model *m);      /* A job reads or writes its memory. */
	bool (*restoring)(const struct model *m); /* Nobody else may write its weights. */
	/* Weights were here before this start, and what becomes of them is not said yet. */
	bool (*found_weights)(const struct model *m);
	bool (*filled)(const struct model *m);     /* What a restore has read lies here. */
	bool (*unsealable)(const struct model *m); /* What is here is half read, or about to go. */
	/* May what node `requester` had read here, in its request `tag`, be counted as written? */
	enum shard_status (*may_count)(const struct model *m, uint16_t requester, uint32_t tag,
				       struct err *e);
};

/* Calls a row's function in every row that has it. */
#define WATCH_TELL(server, what, ...)                                                              \
	do {                                                                                       \
		for (const struct model_watch *const *w_ = (server)->watches; *w_; w_++)           \
			if ((*w_)->what)                                                           \
				(*w_)->what(__VA_ARGS__);                                          \
	} while (0)

/* The questions, and may_define, of all rows. */
bool watch_quiet(const struct model *m); /* no row uses it */
bool watch_restoring(const struct model *m);
bool watch_found_weights(const struct model *m);
bool watch_filled(const struct model *m);
bool watch_unsealable(const struct model *m);
bool watch_defined(struct model *m);
enum shard_status watch_made(struct model *m, struct err *e);
enum shard_status watch_may_count(const struct model *m, uint16_t requester, uint32_t tag,
				  struct err *e);
enum shard_status watch_may_define(struct server *s, const Shard__Define *d,
				   const struct model_settings *set, struct err *e);

#endif
