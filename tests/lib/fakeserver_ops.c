// SPDX-License-Identifier: Apache-2.0
/* How the scripted daemon answers: one row per op that a trainer sends. Its thread calls it, and
 * fakeserver.c calls some of it for a test, both with the lock held. It is strict about what a
 * correct library sends: anything else ends the test by CHECK. */
#include "lib/fakeserver_impl.h"

#include "base/check.h"
#include "wire/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void fake_control(struct fake *f, const struct wire_head *h, const ProtobufCMessage *msg)
{
	if (f->stream != NULL)
		CHECK(stream_send_control(f->stream, h, msg) == SHARD_OK);
}

static void reply(struct fake *f, const struct wire_head *h, const ProtobufCMessage *msg)
{
	struct wire_head r = {.op = h->op,
			      .flags = WIRE_REPLY,
			      .attempt = h->attempt,
			      .model = FAKE_MODEL,
			      .generation = f->generation};

	fake_control(f, &r, msg);
}

static void refuse(struct fake *f, const struct wire_head *h, enum shard_status st,
		   const char *text)
{
	struct wire_head r = {.op = OP_ERROR, .flags = WIRE_REPLY, .attempt = h->attempt};
	Shard__Error e = SHARD__ERROR__INIT;

	e.status = st;
	e.text = (char *)(uintptr_t)text;
	e.sys = st == SHARD_SYSTEM || st == SHARD_BUSY ? f->sys : 0;
	fake_control(f, &r, &e.base);
}

struct wire_head fake_head(struct fake *f, uint16_t op)
{
	return (struct wire_head){.op = op,
				  .model = FAKE_MODEL,
				  .generation = f->generation,
				  .term = FAKE_TERM,
				  .seq = 1,
				  .step = f->step + 1,
				  .attempt = f->attempt};
}

void fake_send_attempt(struct fake *f, const char *why)
{
	Shard__Attempt a = SHARD__ATTEMPT__INIT;
	struct wire_head h;

	f->attempt++;
	memset(f->chunk_pushed, 0, f->chunks_nr);
	memset(f->tensor_absent, 0, sizeof(f->tensors) / sizeof(f->tensors[0]));
	h = fake_head(f, OP_ATTEMPT);
	a.rank = f->conf.rank;
	a.world_size = f->conf.world_size + f->knobs.more_ranks;
	a.local_size = 1;
	a.loss_scale = f->knobs.loss_scale > 0 ? f->knobs.loss_scale : 8;
	a.weights = f->wrote[f->step < f->conf.staleness_after];
	a.newest = f->wrote[1];
	a.why = (char *)(uintptr_t)why;
	fake_control(f, &h, &a.base);
}

void fake_decide(struct fake *f)
{
	struct wire_head h = fake_head(f, OP_RESULT);
	bool skip = f->ready_skip || f->knobs.skip_nonfinite;
	Shard__Result r = SHARD__RESULT__INIT;

	r.outcome = f->ready_skip ? SHARD_SKIPPED_VOTE
		    : skip        ? SHARD_SKIPPED_NONFINITE
				  : SHARD_APPLIED;
	r.attempts = f->attempt;
	r.weight_sum = f->ready_weight;
	r.grad_norm = 2.5;
	r.bad_tensor = r.bad_rank = -1;
	r.world_size = f->conf.world_size;
	r.loss_scale = 8;
	r.next_loss_scale = skip ? 4 : 8;
	r.diverged = f->knobs.diverged;
	f->knobs.skip_nonfinite = false;
	if (!skip)
		fake_apply(f);
	fake_control(f, &h, &r.base);
	f->step++;
	if (f->ready_has_blob) {
		f->blob = f->ready_blob;
		f->blob.step = f->step;
	}
	f->attempt = 0;
	fake_decided(f, !skip);
	if (!f->knobs.no_next_attempt)
		fake_send_attempt(f, "");
}

/* --- requests --- */

static void on_hello(struct fake *f, const struct wire_head *h, const void *body)
{
	Shard__Hello *q = shard__hello__unpack(NULL, h->body_bytes, body), r = SHARD__HELLO__INIT;

	CHECK(q != NULL && q->role == ROLE_TRAINER && q->wire_min == 1 &&
	      q->pid == (uint32_t)getpid());
	r.wire_min = r.wire_max = WIRE_VERSION;
	r.features = q->features & FEATURE_BODY_SUM;
	r.release = q->release;
	if (f->knobs.run_id != NULL)
		r.run_id = (char *)(uintptr_t)f->knobs.run_id;
	reply(f, h, &r.base);
	stream_features(f->stream, r.features);
	stream_set_body_max(f->stream, WIRE_CONTROL_MAX);
	shard__hello__free_unpacked(q, NULL);
}

static void on_define(struct fake *f, const struct wire_head *h, const void *body)
{
	Shard__Define *q = shard__define__unpack(NULL, h->body_bytes, body);
	Shard__Defined r = SHARD__DEFINED__INIT;

	CHECK(q != NULL && q->spec->n_tensors <= sizeof(f->tensors) / sizeof(f->tensors[0]));
	f->image = (enum shard_dtype)q->spec->image;
	f->grad = (enum shard_dtype)q->spec->grad;
	f->elems = 0;
	f->tensors_nr = (uint32_t)q->spec->n_tensors;
	for (uint32_t t = 0; t < f->tensors_nr; t++) {
		f->tensors[t].offset = f->elems;
		f->tensors[t].numel = 1;
		for (size_t d = 0; d < q->spec->tensors[t]->n_shape; d++)
			f->tensors[t].numel *= q->spec->tensors[t]->shape[d];
		f->elems = (f->tensors[t].offset + f->tensors[t].numel + 63) / 64 * 64;
	}
	CHECK(f->elems <= FAKE_ELEMS_MAX);
	f->chunks_nr = (uint32_t)((f->elems + f->conf.chunk_elems - 1) / f->conf.chunk_elems);
	free(f->chunk_pushed);
	f->chunk_pushed = calloc(f->chunks_nr, 1);
	r.model = FAKE_MODEL;
	r.born = FAKE_BORN;
	r.created = !f->defined;
	r.sealed = f->sealed;
	r.step = f->step;
	r.chunk_elems = f->conf.chunk_elems;
	r.timeout_ms = f->conf.timeout_ms;
	r.max_staleness = f->conf.staleness;
	r.staleness_after = f->conf.staleness_after;
	f->defined = true;
	free(f->spec);
	f->spec_bytes = shard__spec__get_packed_size(q->spec);
	f->spec = malloc(f->spec_bytes);
	CHECK(f->spec != NULL);
	shard__spec__pack(q->spec, f->spec);
	reply(f, h, &r.base);
	shard__define__free_unpacked(q, NULL);
}

static void on_write(struct fake *f, const struct wire_head *h, const void *body)
{
	uint32_t n = h->body_bytes / 4;

	CHECK(h->step + n <= f->elems &&
	      h->step / f->conf.chunk_elems == (h->step + n - 1) / f->conf.chunk_elems);
	memcpy((h->chunk == SHARD_MASTER ? f->master : f->moment) + h->step, body, h->body_bytes);
	reply(f, h, NULL);
}

static void on_seal(struct fake *f, const struct wire_head *h, const void *body)
{
	Shard__Seal *q = shard__seal__unpack(NULL, h->body_bytes, body);

	CHECK(q != NULL);
	f->sealed = true;
	f->step = f->wrote[0] = f->wrote[1] = q->step;
	reply(f, h, NULL);
	shard__seal__free_unpacked(q, NULL);
}

static void on_read(struct fake *f, const struct wire_head *h, const void *body)
{
	Shard__Read *q = shard__read__unpack(NULL, h->body_bytes, body);
	struct wire_head r = {.op = OP_READ,
			      .flags = WIRE_REPLY,
			      .attempt = h->attempt,
			      .model = FAKE_MODEL,
			      .generation = f->generation,
			      .step = f->step};

	CHECK(q != NULL && q->first + q->count <= f->elems);
	if (q->step != 0 && q->step != f->step)
		refuse(f, h, SHARD_STALE, "moved on");
	else
		CHECK(stream_send(f->stream, &r,
				  (q->kind == SHARD_MASTER ? f->master : f->moment) + q->first,
				  q->count * 4, NULL, NULL) == SHARD_OK);
	shard__read__free_unpacked(q, NULL);
}

static void on_join(struct fake *f, const struct wire_head *h, const void *body)
{
	struct wire_head r = {.op = OP_JOIN,
			      .flags = WIRE_REPLY,
			      .attempt = h->attempt,
			      .model = FAKE_MODEL,
			      .generation = f->generation,
			      .step = f->step};
	Shard__Joined j = SHARD__JOINED__INIT;

	(void)body;
	fake_map(f);
	j.arena_bytes = f->arena.bytes;
	j.image_bytes = f->shared.bytes;
	j.image_data = image_data_offset(f->chunks_nr * (f->conf.staleness + 1));
	j.image_step = f->step;
	if (f->conf.tcp)
		fake_control(f, &r, &j.base);
	else
		CHECK(stream_send_fds(f->stream, &r, &j.base, (int[]){f->arena.fd, f->shared.fd},
				      2) == SHARD_OK);
	fake_publish(f);
	if (f->knobs.waits == NULL ||
	    strstr(f->knobs.waits, "trainers") == NULL) /* Otherwise the world is incomplete. */
		fake_send_attempt(f, "");
}

static void on_leave(struct fake *f, const struct wire_head *h, const void *body)
{
	(void)body;
	reply(f, h, NULL);
	fake_unjoin(f);
}

static void on_waits(struct fake *f, const struct wire_head *h, const void *body)
{
	Shard__Text t = SHARD__TEXT__INIT;

	(void)body;
	if (f->knobs.waits == NULL)
		return;
	t.text = (char *)(uintptr_t)f->knobs.waits;
	reply(f, h, &t.base);
}

static bool in_hand(struct fake *f, const struct wire_head *h)
{
	return h->term == FAKE_TERM && h->generation == f->generation && h->step == f->step + 1 &&
	       h->attempt == f->attempt;
}

static void on_push(struct fake *f, const struct wire_head *h, const void *body)
{
	Shard__Push *q = shard__push__unpack(NULL, h->body_bytes, body);

	CHECK(q != NULL && h->chunk < f->chunks_nr);
	if (in_hand(f, h)) {
		CHECK(!f->chunk_pushed[h->chunk]);
		f->chunk_pushed[h->chunk] = 1;
		for (size_t i = 0; i < q->n_absent; i++) {
			CHECK(q->absent[i] < f->tensors_nr);
			f->tensor_absent[q->absent[i]] = 1;
		}
	}
	shard__push__free_unpacked(q, NULL);
}

static void on_ready(struct fake *f, const struct wire_head *h, const void *body)
{
	Shard__Ready *q = shard__ready__unpack(NULL, h->body_bytes, body);

	CHECK(q != NULL);
	f->ready_weight = q->weight;
	f->ready_skip = q->skip;
	snprintf(f->ready_why, sizeof(f->ready_why), "%s", q->why);
	CHECK(q->blob.len <= FAKE_BLOB_MAX && (q->has_blob || q->blob.len == 0));
	f->ready_has_blob = q->has_blob;
	f->ready_blob.bytes = (uint32_t)q->blob.len;
	if (q->blob.len > 0)
		memcpy(f->ready_blob.data, q->blob.data, q->blob.len);
	shard__ready__free_unpacked(q, NULL);
	if (!in_hand(f, h))
		return;
	for (uint32_t c = 0; c < f->chunks_nr; c++)
		CHECK(f->chunk_pushed[c]);
	if (f->knobs.ready_us > 0)
		usleep(f->knobs.ready_us);
	if (!f->knobs.mute[OP_READY])
		fake_decide(f);
}

static void on_abandon(struct fake *f, const struct wire_head *h, const void *body)
{
	Shard__Why *q = shard__why__unpack(NULL, h->body_bytes, body);

	CHECK(q != NULL);
	snprintf(f->abandon_why, sizeof(f->abandon_why), "%s", q->why);
	shard__why__free_unpacked(q, NULL);
}

/* --- checkpoints and blobs --- */

void fake_answer_save(struct fake *f, const struct wire_head *h, enum shard_status st,
		      const char *text)
{
	Shard__Saved s = SHARD__SAVED__INIT;
	char path[200];

	if (st != SHARD_OK) {
		refuse(f, h, st, text);
		return;
	}
	snprintf(path, sizeof(path), "%s/%s", f->save_dir, f->save_tag);
	s.path = path;
	s.step = f->step;
	s.bytes = f->elems * 12;
	reply(f, h, &s.base);
}

static void on_save(struct fake *f, const struct wire_head *h, const void *body)
{
	Shard__Save *q = shard__save__unpack(NULL, h->body_bytes, body);

	CHECK(q != NULL);
	snprintf(f->save_dir, sizeof(f->save_dir), "%s", q->dir);
	snprintf(f->save_tag, sizeof(f->save_tag), "%s", q->tag);
	shard__save__free_unpacked(q, NULL);
	memcpy(f->saved, f->master, f->elems * 4);
	if (!f->knobs.mute[OP_SAVE])
		fake_answer_save(f, h, SHARD_OK, NULL);
}

static void on_restore(struct fake *f, const struct wire_head *h, const void *body)
{
	Shard__Restore *q = shard__restore__unpack(NULL, h->body_bytes, body);
	Shard__Defined r = SHARD__DEFINED__INIT;

	CHECK(q != NULL && f->spec != NULL);
	if (strcmp(q->tag, "damaged") == 0) {
		refuse(f, h, SHARD_PROTOCOL, "global_step2/node-a.safetensors: piece 0 differs");
	} else {
		r.model = FAKE_MODEL;
		r.sealed = true;
		r.step = f->step;
		r.chunk_elems = f->conf.chunk_elems;
		r.timeout_ms = f->conf.timeout_ms;
		r.max_staleness = f->conf.staleness;
		r.staleness_after = f->conf.staleness_after;
		if (strcmp(q->tag, "nameless") != 0)
			r.spec = shard__spec__unpack(NULL, f->spec_bytes, f->spec);
		reply(f, h, &r.base);
		if (r.spec != NULL)
			shard__spec__free_unpacked(r.spec, NULL);
	}
	shard__restore__free_unpacked(q, NULL);
}

static void on_blob(struct fake *f, const struct wire_head *h, const void *body)
{
	Shard__Blob *q = shard__blob__unpack(NULL, h->body_bytes, body);
	Shard__BlobIs r = SHARD__BLOB_IS__INIT;

	CHECK(q != NULL);
	if (f->blob.step == 0 || q->rank != f->conf.rank) {
		refuse(f, h, SHARD_NOT_FOUND, "no blob of that rank was committed");
	} else {
		r.rank = q->rank;
		r.step = f->blob.step;
		r.data.len = f->blob.bytes;
		r.data.data = f->blob.data;
		reply(f, h, &r.base);
	}
	shard__blob__free_unpacked(q, NULL);
}

static void on_ping(struct fake *f, const struct wire_head *h, const void *body)
{
	struct wire_head pong = {.op = OP_PONG};

	(void)h, (void)body;
	fake_control(f, &pong, NULL);
}

static void on_nothing(struct fake *f, const struct wire_head *h, const void *body)
{
	(void)f, (void)h, (void)body;
}

static const struct row {
	void (*fn)(struct fake *f, const struct wire_head *h, const void *body);
	bool request;
} rows[OP_NR] = {
	[OP_HELLO] = {on_hello, true},        [OP_DEFINE] = {on_define, true},
	[OP_WRITE] = {on_write, true},        [OP_SEAL] = {on_seal, true},
	[OP_READ] = {on_read, true},          [OP_JOIN] = {on_join, true},
	[OP_LEAVE] = {on_leave, true},        [OP_WAITS] = {on_waits, true},
	[OP_PUSH] = {on_push, false},         [OP_READY] = {on_ready, false},
	[OP_ABANDON] = {on_abandon, false},   [OP_PONG] = {on_nothing, false},
	[OP_PING] = {on_ping, true},          [OP_IMAGE_ASK] = {on_nothing, false},
	[OP_PUSH_DATA] = {on_nothing, false}, [OP_SAVE] = {on_save, false},
	[OP_RESTORE] = {on_restore, true},    [OP_BLOB] = {on_blob, true},
	[OP_ATTACH] = {fake_on_attach, true}, [OP_MANAGE] = {fake_on_manage, true},
	[OP_STATUS] = {fake_on_status, true},
};

static enum shard_status on_head(void *owner, struct stream *s, const struct wire_head *h,
				 void **to, struct err *e)
{
	struct fake *f = owner;

	(void)s, (void)e;
	CHECK(h->op < OP_NR && rows[h->op].fn != NULL && !(h->flags & WIRE_REPLY));
	if (h->op == OP_WRITE)
		*to = f->landing;
	if (h->op == OP_PUSH_DATA) {
		uint64_t at = (uint64_t)h->chunk * f->conf.chunk_elems * dtype_bytes(f->grad) +
			      (uint64_t)WIRE_PART(h->flags) * WIRE_PART_BYTES;

		CHECK(at + h->body_bytes <= f->elems * dtype_bytes(f->grad));
		*to = in_hand(f, h) ? fake_arena(f) + at : STREAM_DISCARD;
	}
	return SHARD_OK;
}

static enum shard_status on_frame(void *owner, struct stream *s, const struct wire_head *h,
				  const void *body, struct err *e)
{
	struct fake *f = owner;

	(void)s, (void)e;
	f->frames[h->op]++;
	f->last[h->op] = *h;
	pthread_cond_broadcast(&f->moved);
	if (rows[h->op].request && f->knobs.refuse[h->op] != SHARD_OK) {
		refuse(f, h, f->knobs.refuse[h->op], f->knobs.refuse_text);
		if (f->knobs.refuse_nr > 0 && --f->knobs.refuse_nr == 0)
			f->knobs.refuse[h->op] = SHARD_OK;
	} else if (!rows[h->op].request || !f->knobs.mute[h->op]) {
		rows[h->op].fn(f, h, body);
	}
	return SHARD_OK;
}

const struct stream_handler fake_handler = {.on_head = on_head, .on_frame = on_frame};
