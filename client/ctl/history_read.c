/* SPDX-License-Identifier: Apache-2.0 */
/* Makes JSON of the bytes of a history. history.c brings them page by page. Happy path: the bytes
 * of a file gather until an entry is whole, it is unpacked, and its fields become an object.
 * Numbers of nodes become names, as the entry that begins each file has them. What lies between two
 * entries is looked at, too: numbers that are missing, and steps that no entry has. Nothing here
 * fails but for memory. Bytes that are no entry are said, and reading goes on behind them. */
#include "ctl/history.h"

#include "wire/history.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 64, NAME = 65 };

struct history_reader {
	history_fn *fn;
	void *arg;
	char node[NAME], names[SLOTS][NAME];
	uint32_t file;   /* Of the bytes. 0: there was no page yet. */
	uint64_t offset; /* In it, of the first of them. */
	unsigned char *bytes;
	size_t used, room;
	size_t at;       /* In .bytes: what is looked at. */
	uint64_t number; /* Of the last entry. 0: there was none. */
	uint64_t step;   /* Of the last record, and its generation. */
	uint32_t generation;
	bool has_step;
	char trouble[512];
};

struct history_reader *history_reader_new(history_fn *fn, void *arg)
{
	struct history_reader *r = calloc(1, sizeof(*r));

	if (r != NULL) {
		r->fn = fn;
		r->arg = arg;
	}
	return r;
}

/* --- values --- */

/* JSON has no infinity. */
static json_t *number(double x)
{
	return isfinite(x) ? json_real(x) : json_string(isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
}

static json_t *whole(uint64_t x)
{
	return json_integer((json_int_t)x);
}

/* A number that was drawn at random. */
static json_t *hex(uint64_t x)
{
	char text[17];

	snprintf(text, sizeof(text), "%016" PRIx64, x);
	return json_string(text);
}

/* Of an entry, whose strings may have any bytes. */
static json_t *text_of(const char *s)
{
	json_t *t = json_string(s);

	return t != NULL ? t : json_string("?");
}

static json_t *node_name(const struct history_reader *r, uint32_t slot)
{
	char text[16];

	if (slot < SLOTS && r->names[slot][0] != 0)
		return text_of(r->names[slot]);
	snprintf(text, sizeof(text), "%u", slot);
	return json_string(text);
}

static json_t *world_json(const struct history_reader *r, const Shard__Record *x)
{
	json_t *list = json_array();

	for (size_t i = 0; i < x->n_world; i++)
		json_array_append_new(list, json_pack("{s:o, s:o, s:o, s:o}", "node",
						      node_name(r, x->world[i]->node), "pid",
						      whole(x->world[i]->pid), "session",
						      whole(x->world[i]->session), "weight",
						      number(x->world[i]->weight)));
	return list;
}

static void set_id(json_t *o, const Shard__Id *id)
{
	json_object_set_new(o, "generation", whole(id->generation));
	json_object_set_new(o, "step", whole(id->step));
	json_object_set_new(o, "term", whole(id->term));
	json_object_set_new(o, "seq", whole(id->seq));
	json_object_set_new(o, "attempt", whole(id->attempt));
}

static json_t *record_json(const struct history_reader *r, const Shard__Record *x)
{
	static const char *const outcomes[] = {"seal", "applied", "nonfinite", "skipped"};
	json_t *o = json_object(), *args = json_array(), *values = json_array();

	if (x->id != NULL)
		set_id(o, x->id);
	json_object_set_new(o, "outcome", json_string(x->outcome < 4 ? outcomes[x->outcome] : "?"));
	json_object_set_new(o, "diverged", json_boolean(x->diverged));
	json_object_set_new(o, "content", whole(x->content));
	if (x->content_old > 0) /* The release that wrote it knew it. */
		json_object_set_new(o, "content_old", whole(x->content_old - 1));
	json_object_set_new(o, "applied", whole(x->applied));
	json_object_set_new(o, "skipped_in_row", whole(x->skipped_in_row));
	json_object_set_new(o, "attempts", whole(x->attempts));
	json_object_set_new(o, "grad_norm", number(x->grad_norm));
	json_object_set_new(o, "clip_factor", number(x->clip_factor));
	json_object_set_new(o, "weight_sum", number(x->weight_sum));
	json_object_set_new(o, "loss_scale", number(x->loss_scale));
	json_object_set_new(o, "lr", number(x->lr));
	json_object_set_new(o, "bad_tensor", json_integer(x->bad_tensor));
	json_object_set_new(o, "bad_rank", json_integer(x->bad_rank));
	if (x->scaler != NULL)
		json_object_set_new(o, "scaler",
				    json_pack("{s:o, s:i, s:I, s:I}", "scale",
					      number(x->scaler->scale), "hysteresis",
					      x->scaler->hysteresis, "last_overflow",
					      (json_int_t)x->scaler->last_overflow, "iter",
					      (json_int_t)x->scaler->iter));
	for (size_t i = 0; i < x->n_args; i++)
		json_array_append_new(args, whole(x->args[i]));
	json_object_set_new(o, "args", args);
	for (size_t i = 0; i < x->n_values; i++)
		json_array_append_new(values, number(x->values[i]));
	json_object_set_new(o, "values", values);
	json_object_set_new(o, "world", world_json(r, x));
	return o;
}

static json_t *members_json(const struct history_reader *r, const Shard__HistoryEntry *x)
{
	json_t *list = json_array();

	for (size_t i = 0; i < x->n_nodes; i++) {
		const Shard__HistoryNode *n = x->nodes[i];
		char uuid[33] = "";

		for (size_t k = 0; k < n->uuid.len && k < 16; k++)
			snprintf(uuid + 2 * k, 3, "%02x", n->uuid.data[k]);
		json_array_append_new(list,
				      json_pack("{s:o, s:s, s:o}", "name", node_name(r, n->slot),
						"uuid", uuid, "incarnation", hex(n->incarnation)));
	}
	return list;
}

/* --- what lies between --- */

static json_t *begin(const struct history_reader *r, const char *kind)
{
	return json_pack("{s:o, s:s}", "node", text_of(r->node), "kind", kind);
}

static void missing(struct history_reader *r, uint64_t first, uint64_t last, const char *why)
{
	json_t *o = begin(r, "missing");

	json_object_set_new(o, "first", whole(first));
	json_object_set_new(o, "last", whole(last));
	json_object_set_new(o, "text", json_string(why));
	r->fn(r->arg, o, first, last);
}

static void damaged(struct history_reader *r, size_t bytes, const char *why)
{
	json_t *o = begin(r, "damaged");

	json_object_set_new(o, "file", whole(r->file));
	json_object_set_new(o, "offset", whole(r->offset + r->at));
	json_object_set_new(o, "bytes", whole(bytes));
	json_object_set_new(o, "text", json_string(why));
	r->fn(r->arg, o, r->step, UINT64_MAX);
}

/* Steps before a record that no entry here has. */
static void look_back(struct history_reader *r, const Shard__HistoryEntry *x)
{
	const Shard__Id *id = x->record != NULL ? x->record->id : NULL;
	bool joins = x->kind == HISTORY_START || x->kind == HISTORY_VIEW;

	if (id == NULL)
		return;
	if (r->has_step && id->generation == r->generation && id->step > r->step + 1)
		missing(r, r->step + 1, id->step - 1,
			x->kind == HISTORY_START  ? "the process ended before they were written"
			: x->kind == HISTORY_VIEW ? "this node took them over with a view"
						  : "no entry has them");
	if (joins && r->has_step && id->generation == r->generation && id->step <= r->step)
		return;
	r->has_step = true;
	r->step = id->step;
	r->generation = id->generation;
}

static void note_gap(struct history_reader *r, const Shard__HistoryEntry *x)
{
	if (x->kind == HISTORY_GAP && x->last > r->step) /* It is said, so it is not missing. */
		r->step = x->last;
}

static void note_names(struct history_reader *r, const Shard__HistoryEntry *x)
{
	for (size_t i = 0; i < x->n_nodes; i++)
		if (x->nodes[i]->slot < SLOTS)
			snprintf(r->names[x->nodes[i]->slot], NAME, "%s", x->nodes[i]->name);
}

/* --- entries --- */

static json_t *entry_json(const struct history_reader *r, const Shard__HistoryEntry *x)
{
	const char *kind = history_kind_name(x->kind);
	json_t *o = begin(r, kind != NULL ? kind : "unknown");

	json_object_set_new(o, "number", whole(r->number));
	json_object_set_new(o, "unix_ns", whole(x->unix_ns));
	if (x->kind == HISTORY_START || x->kind == HISTORY_VIEW) {
		json_object_set_new(o, "term", whole(x->term));
		json_object_set_new(o, "seq", whole(x->seq));
		json_object_set_new(o, "generation", whole(x->generation));
		json_object_set_new(o, "coordinator", node_name(r, x->coordinator));
		json_object_set_new(o, "members", members_json(r, x));
		json_object_set_new(o, "counts", json_boolean(x->counts));
	}
	if (x->kind == HISTORY_START)
		json_object_set_new(o, "release", text_of(x->release));
	if (x->kind == HISTORY_MODEL) {
		json_object_set_new(o, "name", text_of(x->name));
		json_object_set_new(o, "optimizer", text_of(x->optimizer));
		json_object_set_new(o, "incarnation", hex(x->incarnation));
	}
	if (x->kind == HISTORY_LOST || x->kind == HISTORY_SAVED)
		json_object_set_new(o, "generation", whole(x->generation));
	if (x->kind == HISTORY_GAP)
		json_object_set_new(o, "first", whole(x->first));
	if (x->kind == HISTORY_GAP || x->kind == HISTORY_SAVED)
		json_object_set_new(o, "last", whole(x->last));
	if (x->kind == HISTORY_GAP || x->kind == HISTORY_CUT)
		json_object_set_new(o, "count", whole(x->count));
	if (x->record != NULL)
		json_object_set_new(o, "record", record_json(r, x->record));
	if (x->text[0] != 0)
		json_object_set_new(o, "text", text_of(x->text));
	return o;
}

static void take(struct history_reader *r, const struct history_entry *e)
{
	Shard__HistoryEntry *x = shard__history_entry__unpack(NULL, e->body_bytes, e->body);
	char text[96];

	if (x == NULL) {
		damaged(r, e->bytes, "an entry cannot be read");
		return;
	}
	if (r->number != 0 && e->number != r->number + 1) {
		snprintf(text, sizeof(text), "entry %" PRIu64 " follows entry %" PRIu64, e->number,
			 r->number);
		damaged(r, 0, text);
	}
	r->number = e->number;
	if (x->kind == HISTORY_MODEL)
		note_names(r, x);
	look_back(r, x);
	note_gap(r, x);
	r->fn(r->arg, entry_json(r, x), x->kind == HISTORY_GAP ? x->first : r->step, r->step);
	shard__history_entry__free_unpacked(x, NULL);
}

static void drop_front(struct history_reader *r)
{
	if (r->at > 0)
		memmove(r->bytes, r->bytes + r->at, r->used - r->at);
	r->used -= r->at;
	r->offset += r->at;
	r->at = 0;
}

/* Takes what is whole. over: nothing more of this file comes. */
static void parse(struct history_reader *r, bool over)
{
	while (r->at < r->used) {
		const unsigned char *bytes = r->bytes + r->at;
		size_t left = r->used - r->at, skip;
		struct history_entry e;

		if (history_next(bytes, left, &e) == HISTORY_WHOLE) {
			take(r, &e);
			r->at += e.bytes;
			continue;
		}
		/* What is damaged can be told from what is not here yet when enough is. */
		if (!over && left < HISTORY_HEAD_BYTES + HISTORY_BODY_MAX)
			break;
		skip = history_resync(bytes, left);
		damaged(r, skip,
			over && skip == left ? "the end of a file is cut or damaged"
					     : "these bytes are no entry");
		r->at += skip;
	}
	drop_front(r);
}

/* Pages of the running file may end in an entry that is being written. */
static void finish(struct history_reader *r)
{
	parse(r, true);
	r->used = 0;
}

bool history_reader_page(struct history_reader *r, const Shard__HistoryPage *p)
{
	size_t nr = p->bytes.len;
	void *more;

	snprintf(r->node, sizeof(r->node), "%s", p->node);
	snprintf(r->trouble, sizeof(r->trouble), "%s", p->trouble);
	if (p->file != r->file) {
		finish(r);
		r->file = p->file;
		r->offset = p->offset;
	}
	if (p->offset != r->offset + r->used)
		return false;
	if (nr > r->room - r->used) {
		if ((more = realloc(r->bytes, r->used + nr)) == NULL)
			return false;
		r->bytes = more;
		r->room = r->used + nr;
	}
	if (nr > 0)
		memcpy(r->bytes + r->used, p->bytes.data, nr);
	r->used += nr;
	parse(r, p->end);
	if (p->end && r->trouble[0] != 0) {
		json_t *o = begin(r, "late");

		json_object_set_new(o, "text", text_of(r->trouble));
		r->fn(r->arg, o, 0, UINT64_MAX);
	}
	return true;
}

void history_reader_free(struct history_reader *r)
{
	free(r->bytes);
	free(r);
}
