/* SPDX-License-Identifier: Apache-2.0 */
/* watch.h: the events of a model for the layers above model/. model/ knows those layers only by
 * this table. Each module that wants events has a row, and server.c lists the rows before there is
 * a model. A NULL function in a row is skipped. All calls are on the loop thread, in the order of
 * the list. A function must not free the model. */
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
	/* --- a step --- */
	/* A record is decided. The model has not changed yet. */
	void (*decided)(struct model *m, const struct record *r);
	/* The attempt in hand is over here, without a record. */
	void (*ended)(struct model *m);
	/* The record is being applied. Not called for one that a warm start finishes. */
	void (*applying)(struct model *m, const struct record *r);
	/* The record has been applied here. */
	void (*applied)(struct model *m);
	/* A step is applied, or the last job or frame of an attempt is done. */
	void (*boundary)(struct model *m);
	/* Weights or an image chunk can be read that could not be read before. */
	void (*readable)(struct model *m);
	/* The core has handled an event, and its actions are carried out. */
	void (*ran)(struct model *m);
	/* The core holds training after that record, as CORE_EV_HOLD asked. */
	void (*held)(struct model *m, const struct record *r);
	/* On the coordinator: chunks lie as CORE_EV_PLACE wanted. */
	void (*moved)(struct model *m);
	/* A change by MANAGE is in force. */
	void (*tuned)(struct model *m);
	/* About once a second. */
	void (*beat)(struct model *m, uint64_t now_ns);

	/* --- its weights --- */
	/* sealed: the core has sealed the model. whole: every chunk of its image is here. */
	void (*sealed)(struct model *m);
	void (*whole)(struct model *m);
	/* The contents of its memory are void. It is reset as soon as nothing uses it. */
	void (*voided)(struct model *m);
	/* The model is LOST. back: it is rolled back, and a checkpoint brings its weights. e says
	 * why. */
	void (*lost)(struct model *m, bool back, const struct err *e);
	/* Its memory has been reset. No weights are in it. */
	void (*cleared)(struct model *m);
	/* On the coordinator: the weights of that step are in this folder, durably. */
	void (*saved)(struct model *m, const char *path, uint64_t step);
	/* anew: a session gets the grant to write its weights. forget: what a restore has read here
	 * must not count for a trainer's seal. */
	void (*anew)(struct model *m);
	void (*forget)(struct model *m);

	/* --- its life --- */
	/* Asks whether the model may be made with these settings. */
	enum shard_status (*may_define)(struct server *s, const Shard__Define *d,
					const struct model_settings *set, struct err *e);
	/* There is a struct model with only its server and definition. A row makes its own state of
	 * the model, and frees it in going(), which is also called if another row failed. */
	enum shard_status (*made)(struct model *m, struct err *e);
	/* Every node has the model. True: the row will have its DEFINEs answered later. */
	bool (*defined)(struct model *m);
	/* Its definition failed. The model is dropped next. */
	void (*refused)(struct model *m, const struct err *e);
	/* dropping: the model is dropped, and requests for it must end. going: it is freed next. */
	void (*dropping)(struct model *m, const struct err *e);
	void (*going)(struct model *m);

	/* --- elections --- */
	/* Another node coordinates now, or this one: server_coordinator(). */
	void (*coordinator)(struct server *s);
	/* This node leads, and the core of the model hears so next. The file is what the node that
	 * led before had made durable. Not called if it had none. */
	void (*led)(struct model *m, const Shard__ModelFile *file, struct core_view *view);
	/* The core of the model has heard so. */
	void (*leads)(struct model *m);
	/* This node does not lead any more. What was ordered here and is not done has to end. */
	void (*resigned)(struct model *m);

	/* --- its file, on the coordinator --- */
	/* Fills in the fields of the row. What they point to stays valid until the file is packed.
	 */
	void (*pack)(const struct model *m, bool sealed, Shard__ModelFile *file, Shard__Run *run);
	/* The file is durable. A row that keeps the bytes takes them and sets *file to NULL. */
	void (*persisted)(struct model *m, void **file, size_t bytes);
	/* found: a start has read the file and makes the model next. A row may change the view, and
	 * write into `lost` why the weights are lost. loaded: the model is made. */
	void (*found)(const Shard__ModelFile *file, struct core_view *view, char *lost,
		      size_t lost_bytes);
	void (*loaded)(struct model *m, const Shard__ModelFile *file, const struct core_view *view,
		       const void *bytes, size_t bytes_nr);
	/* The model was made of the file while the daemon ran, and its core runs next. */
	void (*started)(struct model *m);
	/* A warm start found the model unsealed. seals: the coordinator's view seals it. */
	void (*resumed)(struct model *m, bool seals);

	/* --- questions: the answer is yes if one row says so --- */
	bool (*uses)(const struct model *m);      /* A job uses its memory. */
	bool (*restoring)(const struct model *m); /* No trainer may write its weights. */
	bool (*saving)(const struct model *m);    /* A checkpoint of it is being written. */
	/* Weights were here before this start, and it is not decided yet what becomes of them. */
	bool (*found_weights)(const struct model *m);
	bool (*filled)(const struct model *m);     /* Weights that a restore read are here. */
	bool (*unsealable)(const struct model *m); /* The weights are half read, or about to go. */
	/* Asks whether the weights that were loaded here for request `tag` of that node may count
	 * as written. */
	enum shard_status (*may_count)(const struct model *m, uint16_t requester, uint32_t tag,
				       struct err *e);
};

/* Calls this function of every row that has it. */
#define WATCH_TELL(server, what, ...)                                                              \
	do {                                                                                       \
		for (const struct model_watch *const *w_ = (server)->watches; *w_; w_++)           \
			if ((*w_)->what)                                                           \
				(*w_)->what(__VA_ARGS__);                                          \
	} while (0)

/* Ask all rows. watch_quiet() is true if no row uses the model's memory. */
bool watch_quiet(const struct model *m);
bool watch_restoring(const struct model *m);
bool watch_saving(const struct model *m);
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
