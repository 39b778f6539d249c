/* SPDX-License-Identifier: Apache-2.0 */
/* The membership source `static`: the nodes are listed in their configuration, and the first one
 * leads from its start to its end. The value and the number of the last start are the file of
 * source_file.h. The number of this start is the term. It is durable before anybody hears of it, so
 * that no term is used twice. A change writes a new file, and is answered when that is durable.
 * Other nodes keep nothing and hear of values from the first one by other ways: here they answer
 * every change with MEMBER_FENCED and every read with MEMBER_UNKNOWN. A full disk refuses a change,
 * and delays a start. Any other failure of the disk ends the source. Nobody takes over. */
#include "cluster/source.h"
#include "cluster/source_calls.h"
#include "cluster/source_file.h"

#include "base/check.h"
#include "base/clock.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#define AGAIN_MS 250 /* Between two tries of a start to write to a full disk. */

struct static_value { /* The body of the file. bytes_nr bytes follow. */
	uint64_t start;
	uint64_t seq; /* 0: there is no value. */
	uint8_t writer[MEMBER_UUID_BYTES];
	uint32_t bytes_nr, zero;
};
static_assert(sizeof(struct static_value) == 40, "frozen");

struct member_source {
	struct member_events ev;
	struct source_file *file;
	uv_timer_t timer;
	bool first, leads, stopping, failed, closing;
	struct static_value value; /* The durable one, but for the start. */
	unsigned char *bytes;
	bool counted; /* The number of this start is durable. */
	bool writing; /* The file is being written. */
	bool told;    /* This value was told by `view`. */
	uint64_t again_ns;
	uint8_t self[MEMBER_UUID_BYTES];

	struct source_calls calls;
	struct static_value next; /* What the change that is being written makes of it. */

	void (*stopped)(void *arg);
	void *stopped_arg;
};

static void on_saved(void *arg, enum source_saved how, const struct err *e);

static void work_soon(struct member_source *s);

static const struct member_view *view_of(const struct member_source *s, struct member_view *v)
{
	if (!s->leads || s->value.seq == 0)
		return NULL;
	*v = (struct member_view){.term = s->value.start,
				  .seq = s->value.seq,
				  .bytes_nr = s->value.bytes_nr,
				  .bytes = s->bytes};
	memcpy(v->writer, s->value.writer, sizeof(v->writer));
	return v;
}

static void lose(struct member_source *s, const char *why)
{
	calls_late(&s->calls, UINT64_MAX);
	if (s->leads) {
		s->leads = false;
		s->ev.lost(s->ev.arg, s->value.start, why);
	}
}

static void tell_view(struct member_source *s)
{
	struct member_view v;

	if (!s->told && view_of(s, &v) != NULL) {
		s->told = true;
		s->ev.view(s->ev.arg, &v);
	}
}

/* --- the disk --- */

static void save(struct member_source *s, const struct static_value *v, const unsigned char *bytes)
{
	unsigned char *body = source_file_body(s->file);

	memcpy(body, v, sizeof(*v));
	memcpy(body + sizeof(*v), bytes, v->bytes_nr);
	s->writing = true;
	source_file_save(s->file, sizeof(*v) + v->bytes_nr, on_saved, s);
}

static void lead(struct member_source *s)
{
	struct member_view v;

	s->counted = s->leads = true;
	tell_view(s);
	s->ev.leader(s->ev.arg, s->value.start, s->self);
	if (s->leads)
		s->ev.leading(s->ev.arg, s->value.start, view_of(s, &v));
}

static void changed(struct member_source *s)
{
	struct member_view v;

	s->value = s->next;
	memcpy(s->bytes, s->calls.change.bytes, s->next.bytes_nr);
	s->told = false;
	tell_view(s);
	calls_end(&s->calls, MEMBER_OK, view_of(s, &v));
}

static void on_saved(void *arg, enum source_saved how, const struct err *e)
{
	struct member_source *s = arg;

	s->writing = false;
	if (how == SOURCE_BROKEN) {
		s->failed = true;
		lose(s, "the disk failed");
		if (!s->stopping)
			s->ev.failed(s->ev.arg, e->text);
	} else if (!s->counted) {
		if (how == SOURCE_SAVED && !s->stopping)
			lead(s);
		s->again_ns = clock_ns() + AGAIN_MS * NS_PER_MS;
	} else if (how == SOURCE_SAVED) {
		changed(s);
	} else {
		calls_end(&s->calls, MEMBER_NOSPACE, NULL);
	}
	work_soon(s);
}

/* --- the loop --- */

static void begin_change(struct member_source *s)
{
	struct source_change *c = &s->calls.change;
	struct member_view v;

	if (!s->leads || c->term != s->value.start) {
		calls_end(&s->calls, MEMBER_FENCED, NULL);
	} else if (c->seq != s->value.seq) {
		calls_end(&s->calls, MEMBER_CONFLICT, view_of(s, &v));
	} else {
		s->next = (struct static_value){
			.start = s->value.start, .seq = s->value.seq + 1, .bytes_nr = c->bytes_nr};
		memcpy(s->next.writer, c->writer, sizeof(s->next.writer));
		c->state = CHANGE_HANDED;
		save(s, &s->next, c->bytes);
	}
}

static void on_closed(uv_handle_t *h)
{
	struct member_source *s = h->data;
	void (*stopped)(void *arg) = s->stopped;
	void *arg = s->stopped_arg;

	source_file_close(&s->file);
	free(s->bytes);
	calls_deinit(&s->calls);
	free(s);
	if (stopped != NULL)
		stopped(arg);
}

/* The next time at which something is due. */
static uint64_t due(const struct member_source *s)
{
	uint64_t at = calls_due(&s->calls);

	if (s->first && !s->counted && !s->writing && s->again_ns < at)
		at = s->again_ns;
	return at;
}

static void on_timer(uv_timer_t *t)
{
	struct member_source *s = t->data;
	uint64_t now = clock_ns(), at;
	struct member_view v;

	if (s->closing)
		return;
	if (s->stopping) {
		lose(s, "it stops");
		if (!s->writing) {
			s->closing = true;
			uv_close((uv_handle_t *)&s->timer, on_closed);
		}
		return;
	}
	if (s->failed)
		return;
	if (s->first && !s->counted && !s->writing && s->again_ns <= now)
		save(s, &s->value, s->bytes);
	if (s->calls.change.state == CHANGE_WAITS && !s->writing)
		begin_change(s);
	calls_late(&s->calls, now);
	if (s->calls.read.done != NULL)
		calls_end_read(&s->calls, s->leads ? MEMBER_OK : MEMBER_UNKNOWN, view_of(s, &v));
	at = due(s);
	if (s->stopping || s->calls.read.done != NULL ||
	    (s->calls.change.state == CHANGE_WAITS && !s->writing))
		work_soon(s); /* An answer was followed by a new call. */
	else if (at != UINT64_MAX)
		uv_timer_start(t, on_timer, at > now ? (at - now) / NS_PER_MS + 1 : 0, 0);
}

static void work_soon(struct member_source *s)
{
	if (!s->closing)
		CHECK(uv_timer_start(&s->timer, on_timer, 0, 0) == 0);
}

/* --- outside --- */

static enum shard_status check_config(const struct member_config *c, struct err *e)
{
	static const uint8_t zeros[MEMBER_UUID_BYTES];

	if (c->deadline_ms == 0 || memcmp(c->self, zeros, sizeof(zeros)) == 0)
		return err_set(e, SHARD_BAD_ARG,
			       "a membership source needs a deadline and a node's identity");
	return SHARD_OK;
}

/* Takes what the file holds. nr: so many bytes; 0: there is no file. */
static enum shard_status take(struct member_source *s, size_t nr, const char *dir, struct err *e)
{
	const unsigned char *body = source_file_body(s->file);

	if (nr > 0 && nr < sizeof(s->value))
		return err_set(e, SHARD_PROTOCOL, "%s/source: it is too short", dir);
	if (nr > 0) {
		memcpy(&s->value, body, sizeof(s->value));
		if (s->value.zero != 0 || s->value.start == 0 || s->value.start >= UINT64_MAX / 4 ||
		    s->value.bytes_nr != nr - sizeof(s->value) ||
		    s->value.bytes_nr > MEMBER_VIEW_MAX ||
		    (s->value.seq == 0 && s->value.bytes_nr > 0))
			return err_set(e, SHARD_PROTOCOL, "%s/source: a number in it cannot be",
				       dir);
		memcpy(s->bytes, body + sizeof(s->value), s->value.bytes_nr);
	}
	s->value.start++;
	return SHARD_OK;
}

static enum shard_status start(struct member_source **out, const struct member_config *c,
			       const struct member_events *ev, struct err *e)
{
	enum shard_status st = check_config(c, e);
	struct member_source *s;
	size_t nr;

	if (st != SHARD_OK)
		return st;
	s = calloc(1, sizeof(*s));
	if (s == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a membership source");
	s->ev = *ev;
	s->first = c->first;
	memcpy(s->self, c->self, sizeof(s->self));
	s->bytes = malloc(MEMBER_VIEW_MAX);
	if (!calls_init(&s->calls, c->deadline_ms * NS_PER_MS) || s->bytes == NULL) {
		st = err_set(e, SHARD_SYSTEM, "no memory for a membership source");
		goto err_source;
	}
	st = source_file_open(&s->file, c, "static", sizeof(s->value) + MEMBER_VIEW_MAX, &nr, e);
	if (st != SHARD_OK)
		goto err_source;
	st = take(s, nr, c->dir, e);
	if (st != SHARD_OK)
		goto err_source;
	CHECK(uv_timer_init(c->loop, &s->timer) == 0);
	s->timer.data = s;
	work_soon(s);
	*out = s;
	return SHARD_OK;
err_source:
	source_file_close(&s->file);
	free(s->bytes);
	calls_deinit(&s->calls);
	free(s);
	return st;
}

static enum shard_status propose(struct member_source *s, uint64_t term, uint64_t expect_seq,
				 const uint8_t writer[MEMBER_UUID_BYTES], const void *bytes,
				 uint32_t bytes_nr, member_done_fn *done, void *arg)
{
	struct source_change what = {.kind = CHANGE_VALUE,
				     .term = term,
				     .seq = expect_seq,
				     .bytes = (unsigned char *)bytes,
				     .bytes_nr = bytes_nr,
				     .done = done,
				     .arg = arg};

	if (s->failed || s->stopping)
		return SHARD_BAD_STATE;
	if (s->calls.change.state != CHANGE_NONE)
		return SHARD_AGAIN;
	if (bytes_nr > MEMBER_VIEW_MAX)
		return SHARD_RANGE;
	memcpy(what.writer, writer, sizeof(what.writer));
	calls_begin(&s->calls, &what, clock_ns());
	work_soon(s);
	return SHARD_OK;
}

static enum shard_status read_value(struct member_source *s, member_done_fn *done, void *arg)
{
	if (s->failed || s->stopping)
		return SHARD_BAD_STATE;
	if (s->calls.read.done != NULL)
		return SHARD_AGAIN;
	calls_begin_read(&s->calls, done, arg, clock_ns());
	work_soon(s);
	return SHARD_OK;
}

static enum shard_status resign(struct member_source *s, uint64_t term)
{
	(void)term; /* Nobody else could lead. */
	return s->failed || s->stopping ? SHARD_BAD_STATE : SHARD_OK;
}

static void link_changed(struct member_source *s, const uint8_t uuid[MEMBER_UUID_BYTES], bool up)
{
	(void)s;
	(void)uuid;
	(void)up;
}

static void wake(struct member_source *s)
{
	(void)s; /* Its time is never up. */
}

static void stop(struct member_source **sp, void (*stopped)(void *arg), void *arg)
{
	struct member_source *s = *sp;

	*sp = NULL;
	CHECK(!s->stopping);
	s->stopping = true;
	s->stopped = stopped;
	s->stopped_arg = arg;
	work_soon(s);
}

const struct member_source_ops source_static = {
	.name = "static",
	.start = start,
	.propose = propose,
	.read = read_value,
	.join = calls_no_voters,
	.leave = calls_no_voters,
	.resign = resign,
	.link = link_changed,
	.message = calls_no_message,
	.wake = wake,
	.stop = stop,
};
