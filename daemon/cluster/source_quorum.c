/* SPDX-License-Identifier: Apache-2.0 */
/* The membership source `quorum`: the shell of core/quorum.h. The register decides, and this file
 * gives it events one at a time and carries its actions out. The happy path: an entry point notes
 * what has come (a link, a message, a change, a read) and starts the timer; on_timer takes it up by
 * run(); what the register wants to be durable is written by a thread (source_file.h); the answer
 * of the disk is followed by the actions, and then by the next event. While the disk writes,
 * everything else waits in bounded places. A message that finds no room is lost, which the register
 * expects.
 *
 * A full disk is an event that has not happened: the register is put back to what it was before,
 * and its actions are dropped. So nothing that this node says rests on what is not durable. Any
 * other failure of the disk, or a register that fails, ends the source: it answers what is open,
 * tells `lost`, and tells `failed`. */
#include "cluster/source.h"
#include "cluster/source_calls.h"
#include "cluster/source_file.h"
#include "cluster/source_inbox.h"
#include "cluster/source_wire.h"

#include "base/check.h"
#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <uv.h>

static_assert(MEMBER_UUID_BYTES == QUORUM_UUID_BYTES && MEMBER_VIEW_MAX == QUORUM_BYTES_MAX &&
		      MEMBER_VOTERS_MAX == QUORUM_VOTERS_MAX &&
		      MEMBER_LINKS_MAX == QUORUM_PEERS_MAX - 1,
	      "source.h promises what the register has");

#define NEVER UINT64_MAX

struct member_source {
	struct member_events ev;
	uint8_t self[MEMBER_UUID_BYTES], cluster[MEMBER_UUID_BYTES];
	uint64_t beat_ns, election_ns;
	uv_timer_t timer;
	struct source_file *file;
	struct quorum *q;
	void *before; /* A copy of *q as it was before the event in hand. */
	bool first;   /* The first value of the cluster is not durable yet. */
	bool writing; /* The file is being written. out holds the actions that wait for it. */
	bool running; /* run() is on the stack. */
	bool stopping, failed, closing;
	struct quorum_event event; /* In hand. */
	struct quorum_msg msg;     /* Of the event. */
	struct quorum_out out;
	uint64_t led_term;   /* `leading` was told of it, and `lost` was not. 0: none. */
	uint64_t handled_ns; /* When the register was given its last event. */
	uint64_t retry_ns;   /* The disk was full: no tick before. */
	bool deposed;        /* wake() has told `lost`. The register has to stop leading, too. */
	bool resigns;
	uint64_t resign_term;
	struct inbox inbox;
	struct source_calls calls;
	struct quorum_value in; /* The value of the message in hand, or of the change. */
	unsigned char *wire;    /* [SOURCE_MSG_MAX] The message that is sent. */
	void (*stopped)(void *arg);
	void *stopped_arg;
};

static void run(struct member_source *s);

/* Runs on while the machine is suspended, so that a leader that slept knows it. */
static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_BOOTTIME, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_SEC + (uint64_t)ts.tv_nsec;
}

static void on_timer(uv_timer_t *t);

static void work_soon(struct member_source *s)
{
	if (!s->closing)
		CHECK(uv_timer_start(&s->timer, on_timer, 0, 0) == 0);
}

/* --- answers --- */

static const struct member_view *view_of(const struct quorum_value *v, uint64_t term,
					 struct member_view *to)
{
	if (v == NULL || v->seq == 0)
		return NULL;
	*to = (struct member_view){.term = term,
				   .seq = v->seq,
				   .voter = v->voter,
				   .voters_nr = v->voters_nr,
				   .bytes_nr = v->bytes_nr,
				   .bytes = v->bytes};
	memcpy(to->writer, v->writer, sizeof(to->writer));
	return to;
}

static void lose(struct member_source *s, const char *why)
{
	uint64_t term = s->led_term;

	s->led_term = 0;
	if (term != 0)
		s->ev.lost(s->ev.arg, term, why);
}

static void fail(struct member_source *s, const char *why)
{
	if (s->failed)
		return;
	s->failed = true;
	calls_late(&s->calls, NEVER);
	lose(s, why);
	if (!s->stopping)
		s->ev.failed(s->ev.arg, why);
}

/* --- actions --- */

static void act_send(struct member_source *s, const struct quorum_action *a)
{
	size_t nr = source_msg_encode(&a->msg, s->cluster, s->wire);

	s->ev.send(s->ev.arg, a->msg.to, s->wire, (uint32_t)nr);
}

static void act_view(struct member_source *s, const struct quorum_action *a)
{
	struct member_view v;

	s->ev.view(s->ev.arg, view_of(a->value, quorum_disk(s->q)->term, &v));
}

static void act_leading(struct member_source *s, const struct quorum_action *a)
{
	struct member_view v;

	CHECK(s->led_term == 0);
	s->led_term = a->term;
	s->ev.leading(s->ev.arg, a->term, view_of(a->value, a->term, &v));
}

static void act_lost(struct member_source *s, const struct quorum_action *a)
{
	if (s->led_term == a->term) /* Otherwise wake() has told it. */
		lose(s, a->why);
}

static void act_leader(struct member_source *s, const struct quorum_action *a)
{
	static const uint8_t nobody[MEMBER_UUID_BYTES];
	bool none = memcmp(a->uuid, nobody, sizeof(nobody)) == 0;

	s->ev.leader(s->ev.arg, a->term, none ? NULL : a->uuid);
}

static void act_done(struct member_source *s, const struct quorum_action *a)
{
	static const enum member_done rows[] = {[QUORUM_OK] = MEMBER_OK,
						[QUORUM_CONFLICT] = MEMBER_CONFLICT,
						[QUORUM_FENCED] = MEMBER_FENCED,
						[QUORUM_UNKNOWN] = MEMBER_UNKNOWN};
	struct member_view v;

	calls_end(&s->calls, rows[a->how], view_of(a->value, a->term, &v));
}

static void act_read(struct member_source *s, const struct quorum_action *a)
{
	/* Where it was read in the leader's memory, the leader's term goes with it. */
	bool told = s->event.type == QUORUM_EV_MSG && s->msg.op == QUORUM_IS;
	uint64_t term = told ? s->msg.term : quorum_disk(s->q)->term;
	struct member_view v;

	calls_end_read(&s->calls, a->how == QUORUM_OK ? MEMBER_OK : MEMBER_UNKNOWN,
		       view_of(a->value, term, &v));
}

static void act_failed(struct member_source *s, const struct quorum_action *a)
{
	fail(s, a->why);
}

static void act(struct member_source *s)
{
	static void (*const rows[])(struct member_source *, const struct quorum_action *) = {
		[QUORUM_ACT_SEND] = act_send,       [QUORUM_ACT_VIEW] = act_view,
		[QUORUM_ACT_LEADING] = act_leading, [QUORUM_ACT_LOST] = act_lost,
		[QUORUM_ACT_LEADER] = act_leader,   [QUORUM_ACT_DONE] = act_done,
		[QUORUM_ACT_READ] = act_read,       [QUORUM_ACT_FAILED] = act_failed,
	};

	for (uint32_t i = 0; i < s->out.nr && !s->failed; i++)
		rows[s->out.act[i].type](s, &s->out.act[i]);
	s->out.nr = 0;
}

/* --- the disk --- */

/* The event in hand has not happened. */
static void take_back(struct member_source *s)
{
	CHECK(s->event.type == QUORUM_EV_TICK || s->event.type == QUORUM_EV_MSG ||
	      s->event.type == QUORUM_EV_PROPOSE);
	memcpy(s->q, s->before, quorum_bytes());
	s->out.nr = 0;
	if (s->event.type == QUORUM_EV_TICK)
		s->retry_ns = now_ns() + s->beat_ns;
	if (s->event.type == QUORUM_EV_PROPOSE)
		calls_end(&s->calls, MEMBER_NOSPACE, NULL);
}

static void on_saved(void *arg, enum source_saved how, const struct err *e)
{
	struct member_source *s = arg;

	CHECK(s->writing && !s->running);
	s->writing = false;
	s->running = true;
	if (how == SOURCE_BROKEN)
		fail(s, e->text);
	else if (s->first && how == SOURCE_SAVED)
		s->first = false;
	else if (s->first)
		s->retry_ns = now_ns() + s->beat_ns;
	else if (how == SOURCE_REFUSED)
		take_back(s);
	else
		act(s);
	s->running = false;
	run(s);
}

static void save(struct member_source *s)
{
	size_t nr = source_disk_encode(quorum_disk(s->q), source_file_body(s->file));

	s->writing = true;
	source_file_save(s->file, nr, on_saved, s);
}

static void handle(struct member_source *s, uint64_t now)
{
	memcpy(s->before, s->q, quorum_bytes());
	s->handled_ns = now;
	quorum_handle(s->q, &s->event, now, &s->out);
	if (s->out.sync)
		save(s);
	else
		act(s);
}

/* --- what waits for the register. Each of these is true if it had an event. --- */

static bool take_tick(struct member_source *s, uint64_t now)
{
	if (quorum_deadline(s->q) > now || s->retry_ns > now)
		return false;
	s->event = (struct quorum_event){.type = QUORUM_EV_TICK};
	handle(s, now);
	return true;
}

static bool take_link(struct member_source *s, uint64_t now)
{
	struct quorum_event *e = &s->event;

	*e = (struct quorum_event){0};
	if (!inbox_take_link(&s->inbox, &e->type, e->uuid))
		return false;
	handle(s, now);
	return true;
}

static bool take_msg(struct member_source *s, uint64_t now)
{
	uint32_t nr;
	const void *bytes = inbox_take_msg(&s->inbox, &nr);

	if (bytes == NULL)
		return false;
	/* It was right when it came. */
	CHECK(source_msg_decode(bytes, nr, s->cluster, &s->msg, &s->in, NULL) == SHARD_OK);
	s->event = (struct quorum_event){.type = QUORUM_EV_MSG, .msg = &s->msg};
	handle(s, now);
	return true;
}

static bool names(const struct quorum_value *v, const uint8_t *uuid, uint32_t *at)
{
	for (*at = 0; *at < v->voters_nr; (*at)++)
		if (memcmp(v->voter[*at], uuid, QUORUM_UUID_BYTES) == 0)
			return true;
	return false;
}

/* Changes v's voters. False: it cannot be done. */
static bool change_voters(struct quorum_value *v, enum change_kind kind, const uint8_t *uuid)
{
	uint32_t at;
	bool there = names(v, uuid, &at);

	if (kind == CHANGE_JOIN && !there) {
		if (v->voters_nr == QUORUM_VOTERS_MAX)
			return false;
		memcpy(v->voter[v->voters_nr++], uuid, QUORUM_UUID_BYTES);
	} else if (kind == CHANGE_LEAVE && there) {
		if (v->voters_nr == 1)
			return false;
		v->voters_nr--;
		memmove(v->voter[at], v->voter[at + 1], (v->voters_nr - at) * sizeof(v->voter[0]));
		memset(v->voter[v->voters_nr], 0, sizeof(v->voter[0]));
	}
	return true;
}

/* The value that the change makes of the current one. The register looks at it only if the change's
 * term and seq are its own. */
static bool make_value(struct member_source *s)
{
	const struct source_change *c = &s->calls.change;

	s->in = quorum_disk(s->q)->value;
	memcpy(s->in.writer, c->writer, sizeof(s->in.writer));
	if (c->kind != CHANGE_VALUE)
		return change_voters(&s->in, c->kind, c->uuid);
	s->in.bytes_nr = c->bytes_nr;
	memcpy(s->in.bytes, c->bytes, c->bytes_nr);
	return true;
}

static bool take_change(struct member_source *s, uint64_t now)
{
	struct source_change *c = &s->calls.change;

	if (c->state != CHANGE_WAITS)
		return false;
	if (!quorum_may_propose(s->q)) {
		/* A full disk has brought back a state in which a change was not settled. */
		calls_end(&s->calls, MEMBER_UNKNOWN, NULL);
		return true;
	}
	if (s->led_term == c->term && quorum_disk(s->q)->value.seq == c->seq && !make_value(s)) {
		calls_end(&s->calls, MEMBER_CONFLICT, NULL);
		return true;
	}
	c->state = CHANGE_HANDED;
	s->event = (struct quorum_event){
		.type = QUORUM_EV_PROPOSE, .term = c->term, .seq = c->seq, .value = &s->in};
	handle(s, now);
	return true;
}

static bool take_read(struct member_source *s, uint64_t now)
{
	if (s->calls.read.done == NULL || s->calls.read.handed)
		return false;
	s->calls.read.handed = true;
	s->event = (struct quorum_event){.type = QUORUM_EV_READ};
	handle(s, now);
	return true;
}

static bool take_resign(struct member_source *s, uint64_t now)
{
	if (!s->resigns)
		return false;
	s->resigns = false;
	if (s->led_term == 0 || s->resign_term != s->led_term)
		return true;
	s->event = (struct quorum_event){.type = QUORUM_EV_RESIGN};
	handle(s, now);
	return true;
}

/* The clock comes first: what was queued while the process stood still must not be handled by a
 * leader whose time is up. */
static bool take_one(struct member_source *s)
{
	uint64_t now = now_ns();

	if (s->first) {
		if (s->retry_ns <= now)
			save(s);
		return false;
	}
	if (s->deposed) {
		s->deposed = false;
		s->event = (struct quorum_event){.type = QUORUM_EV_RESIGN};
		handle(s, now);
		return true;
	}
	return take_tick(s, now) || take_link(s, now) || take_msg(s, now) || take_change(s, now) ||
	       take_read(s, now) || take_resign(s, now);
}

/* --- the loop --- */

static void on_closed(uv_handle_t *h);

static void close_now(struct member_source *s)
{
	if (s->closing)
		return;
	s->closing = true;
	uv_close((uv_handle_t *)&s->timer, on_closed);
}

static void start_timer(struct member_source *s)
{
	uint64_t now = now_ns(), at = calls_due(&s->calls);

	if (!s->writing) {
		uint64_t tick = s->first ? 0 : quorum_deadline(s->q);

		if (tick < s->retry_ns)
			tick = s->retry_ns;
		at = tick < at ? tick : at;
	}
	if (at == NEVER)
		uv_timer_stop(&s->timer);
	else
		uv_timer_start(&s->timer, on_timer, at > now ? (at - now) / NS_PER_MS + 1 : 0, 0);
}

static void run(struct member_source *s)
{
	if (s->running || s->closing)
		return;
	s->running = true;
	if (!s->failed && !s->stopping)
		calls_late(&s->calls, now_ns());
	while (!s->writing && !s->failed && !s->stopping && take_one(s))
		;
	if (s->stopping)
		calls_late(&s->calls, NEVER);
	if (s->stopping && !s->writing) {
		if (s->led_term != 0 && !s->failed) {
			s->event = (struct quorum_event){.type = QUORUM_EV_RESIGN};
			handle(s, now_ns());
			CHECK(!s->writing);
		}
		CHECK(s->led_term == 0);
		close_now(s);
	} else if (!s->failed && !s->stopping) {
		start_timer(s);
	}
	s->running = false;
}

static void free_source(struct member_source *s)
{
	if (s == NULL)
		return;
	source_file_close(&s->file);
	inbox_deinit(&s->inbox);
	free(s->q);
	free(s->before);
	calls_deinit(&s->calls);
	free(s->wire);
	free(s);
}

static void on_timer(uv_timer_t *t)
{
	run(t->data);
}

static void on_closed(uv_handle_t *h)
{
	struct member_source *s = h->data;
	void (*stopped)(void *arg) = s->stopped;
	void *arg = s->stopped_arg;

	free_source(s);
	if (stopped != NULL)
		stopped(arg);
}

/* --- start --- */

static enum shard_status check_config(const struct member_config *c, struct err *e)
{
	static const uint8_t zeros[MEMBER_UUID_BYTES];

	if (c->beat_ms == 0 || c->election_ms <= c->beat_ms || c->deadline_ms == 0)
		return err_set(
			e, SHARD_BAD_ARG,
			"membership: a beat of %u ms, an election after %u ms and a deadline "
			"of %u ms do not go together",
			c->beat_ms, c->election_ms, c->deadline_ms);
	if (memcmp(c->self, zeros, sizeof(zeros)) == 0)
		return err_set(e, SHARD_BAD_ARG, "membership: this node has no identity");
	return SHARD_OK;
}

/* 16-byte aligned and zeroed; NULL: there is no memory. */
static void *make_quorum(void)
{
	size_t nr = (quorum_bytes() + 15) / 16 * 16;
	void *memory = aligned_alloc(16, nr);

	if (memory != NULL)
		memset(memory, 0, nr);
	return memory;
}

static enum shard_status allocate(struct member_source *s, uint32_t deadline_ms, struct err *e)
{
	s->before = make_quorum();
	s->wire = malloc(SOURCE_MSG_MAX);
	if (!calls_init(&s->calls, deadline_ms * NS_PER_MS) || !inbox_init(&s->inbox) ||
	    s->before == NULL || s->wire == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a membership source");
	return SHARD_OK;
}

/* Reads the file and makes the register of it. */
static enum shard_status make_register(struct member_source *s, const struct member_config *c,
				       struct quorum_disk *disk, struct err *e)
{
	struct quorum_conf conf = {.ordinal = c->ordinal,
				   .alone = c->alone,
				   .beat_ns = s->beat_ns,
				   .election_ns = s->election_ns,
				   .deadline_ns = s->calls.deadline_ns};
	uint8_t writer[QUORUM_UUID_BYTES];
	enum shard_status st;
	struct err why;
	void *memory;
	size_t nr;

	memcpy(conf.self, c->self, sizeof(conf.self));
	if (getrandom(&conf.seed, sizeof(conf.seed), 0) != (ssize_t)sizeof(conf.seed) ||
	    getrandom(writer, sizeof(writer), 0) != (ssize_t)sizeof(writer))
		return err_sys(e, errno, "no random bytes for a membership source");
	st = source_file_open(&s->file, c, source_quorum.name, SOURCE_DISK_MAX, &nr, e);
	if (st != SHARD_OK)
		return st;
	if (nr > 0 && source_disk_decode(source_file_body(s->file), nr, disk, &why) != SHARD_OK)
		return err_set(e, SHARD_PROTOCOL, "%s/source: %s", c->dir, why.text);
	if (nr == 0 && c->bootstrap) {
		quorum_first(disk, &conf, writer, NULL, 0);
		s->first = true;
	}
	memory = make_quorum();
	if (memory == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a membership source");
	s->q = quorum_init(memory, &conf, disk, now_ns());
	if (s->q == NULL) {
		free(memory);
		return err_set(e, SHARD_PROTOCOL, "%s/source: no register has written that",
			       c->dir);
	}
	return SHARD_OK;
}

static enum shard_status start(struct member_source **out, const struct member_config *c,
			       const struct member_events *ev, struct err *e)
{
	enum shard_status st = check_config(c, e);
	struct quorum_disk *disk;
	struct member_source *s;

	if (st != SHARD_OK)
		return st;
	s = calloc(1, sizeof(*s));
	disk = calloc(1, sizeof(*disk));
	if (s == NULL || disk == NULL) {
		st = err_set(e, SHARD_SYSTEM, "no memory for a membership source");
		goto err_source;
	}
	s->ev = *ev;
	memcpy(s->self, c->self, sizeof(s->self));
	memcpy(s->cluster, c->cluster, sizeof(s->cluster));
	s->beat_ns = c->beat_ms * NS_PER_MS;
	s->election_ns = c->election_ms * NS_PER_MS;
	st = allocate(s, c->deadline_ms, e);
	if (st == SHARD_OK)
		st = make_register(s, c, disk, e);
	if (st != SHARD_OK)
		goto err_source;
	free(disk);
	CHECK(uv_timer_init(c->loop, &s->timer) == 0);
	s->timer.data = s;
	work_soon(s);
	*out = s;
	return SHARD_OK;
err_source:
	free(disk);
	free_source(s);
	return st;
}

/* --- outside --- */

/* There is one change at a time, and none while the register has one that is not settled. */
static enum shard_status may_change(const struct member_source *s)
{
	if (s->failed || s->stopping)
		return SHARD_BAD_STATE;
	if (s->calls.change.state != CHANGE_NONE || !quorum_may_propose(s->q))
		return SHARD_AGAIN;
	return SHARD_OK;
}

static enum shard_status change(struct member_source *s, const struct source_change *what)
{
	enum shard_status st = may_change(s);

	if (st == SHARD_OK && what->bytes_nr > MEMBER_VIEW_MAX)
		st = SHARD_RANGE;
	if (st == SHARD_OK) {
		calls_begin(&s->calls, what, now_ns());
		work_soon(s);
	}
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

	memcpy(what.writer, writer, sizeof(what.writer));
	return change(s, &what);
}

static enum shard_status change_voter(struct member_source *s, enum change_kind kind, uint64_t term,
				      uint64_t expect_seq, const uint8_t *writer,
				      const uint8_t *uuid, member_done_fn *done, void *arg)
{
	struct source_change what = {
		.kind = kind, .term = term, .seq = expect_seq, .done = done, .arg = arg};

	memcpy(what.writer, writer, sizeof(what.writer));
	memcpy(what.uuid, uuid, sizeof(what.uuid));
	return change(s, &what);
}

static enum shard_status join(struct member_source *s, uint64_t term, uint64_t expect_seq,
			      const uint8_t writer[MEMBER_UUID_BYTES],
			      const uint8_t uuid[MEMBER_UUID_BYTES], member_done_fn *done,
			      void *arg)
{
	enum shard_status st = may_change(s);

	if (st != SHARD_OK)
		return st;
	if (memcmp(uuid, s->self, sizeof(s->self)) != 0 && !inbox_is_up(&s->inbox, uuid))
		return SHARD_UNREACHABLE;
	return change_voter(s, CHANGE_JOIN, term, expect_seq, writer, uuid, done, arg);
}

static enum shard_status leave(struct member_source *s, uint64_t term, uint64_t expect_seq,
			       const uint8_t writer[MEMBER_UUID_BYTES],
			       const uint8_t uuid[MEMBER_UUID_BYTES], member_done_fn *done,
			       void *arg)
{
	return change_voter(s, CHANGE_LEAVE, term, expect_seq, writer, uuid, done, arg);
}

static enum shard_status read_value(struct member_source *s, member_done_fn *done, void *arg)
{
	if (s->failed || s->stopping)
		return SHARD_BAD_STATE;
	/* The register may still be at work on a read that was late here. */
	if (s->calls.read.done != NULL || s->calls.read.handed)
		return SHARD_AGAIN;
	calls_begin_read(&s->calls, done, arg, now_ns());
	work_soon(s);
	return SHARD_OK;
}

static enum shard_status resign(struct member_source *s, uint64_t term)
{
	if (s->failed || s->stopping)
		return SHARD_BAD_STATE;
	s->resigns = true;
	s->resign_term = term;
	work_soon(s);
	return SHARD_OK;
}

static void link_changed(struct member_source *s, const uint8_t uuid[MEMBER_UUID_BYTES], bool up)
{
	if (s->failed || s->stopping || memcmp(uuid, s->self, sizeof(s->self)) == 0)
		return;
	inbox_link(&s->inbox, uuid, up);
	work_soon(s);
}

static enum shard_status message(struct member_source *s, const uint8_t from[MEMBER_UUID_BYTES],
				 const void *bytes, uint32_t bytes_nr, struct err *e)
{
	struct quorum_msg m;
	enum shard_status st;

	if (s->failed || s->stopping || !inbox_is_up(&s->inbox, from))
		return SHARD_OK;
	/* The value of the event in hand is in the register by now, so `in` is free. */
	st = source_msg_decode(bytes, bytes_nr, s->cluster, &m, &s->in, e);
	if (st != SHARD_OK)
		return st;
	if (memcmp(m.from, from, sizeof(m.from)) != 0 || memcmp(m.to, s->self, sizeof(m.to)) != 0)
		return err_set(
			e, SHARD_PROTOCOL,
			"a message of the register is wrong: it is from or for another node");
	inbox_put(&s->inbox, bytes, bytes_nr);
	work_soon(s);
	return SHARD_OK;
}

/* While the disk writes, the register cannot be asked. But if it was given its last event too long
 * ago, it has not heard of anybody since. */
static void wake(struct member_source *s)
{
	uint64_t now = now_ns();

	if (s->running || s->failed || s->stopping || s->led_term == 0)
		return;
	s->running = true;
	if (!s->writing)
		take_tick(s, now);
	if (s->writing && s->led_term != 0 && quorum_disk(s->q)->value.voters_nr > 1 &&
	    now - s->handled_ns >= s->election_ns) {
		s->deposed = true;
		lose(s, "no majority of the voters has answered in time");
	}
	s->running = false;
	work_soon(s);
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

const struct member_source_ops source_quorum = {
	.name = "quorum",
	.start = start,
	.propose = propose,
	.read = read_value,
	.join = join,
	.leave = leave,
	.resign = resign,
	.link = link_changed,
	.message = message,
	.wake = wake,
	.stop = stop,
};
