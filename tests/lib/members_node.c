// SPDX-License-Identifier: Apache-2.0
/* A process that runs one membership source and nothing else. members.c starts it. It has two
 * sockets to the test: commands come and events leave by the first, and messages of other nodes
 * come by the second. It calls wake() before it takes what has come, as the contract says. It ends
 * when its source has stopped, with status 0, when its source failed or did not start, with 1, or
 * with the test. */
#include "lib/members.h"
#include "lib/members_impl.h"

#include "base/check.h"
#include "cluster/source_etcd.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

struct self {
	uv_loop_t loop;
	uv_poll_t control, wire;
	int control_fd, wire_fd;
	const struct member_source_ops *ops;
	struct member_source *source;
	bool lies, heard;
	struct members_frame first_view;
	union members_packet in;
	int status;
};

static void tell(struct self *me, const struct members_frame *f)
{
	ssize_t n;

	do
		n = send(me->control_fd, f, sizeof(*f), MSG_NOSIGNAL);
	while (n < 0);
}

static void put_view(struct members_frame *f, const struct member_view *v)
{
	if (v == NULL)
		return;
	f->term = v->term;
	f->seq = v->seq;
	f->voters_nr = v->voters_nr;
	memcpy(&f->writer, v->writer, sizeof(f->writer));
	f->bytes_nr = v->bytes_nr;
	/* The bytes of a proposal count up. */
	for (uint32_t i = 0; i < v->bytes_nr; i++)
		CHECK(((const unsigned char *)v->bytes)[i] ==
		      (unsigned char)(*(const unsigned char *)v->bytes + i));
}

static void on_view(void *arg, const struct member_view *v)
{
	struct members_frame f = {.type = MEMBERS_VIEW};
	struct self *me = arg;

	put_view(&f, v);
	if (!me->heard)
		me->first_view = f;
	me->heard = true;
	tell(me, &f);
}

static void on_leading(void *arg, uint64_t term, const struct member_view *v)
{
	struct members_frame f = {.type = MEMBERS_LEADING};

	put_view(&f, v);
	f.term = term;
	tell(arg, &f);
}

static void on_lost(void *arg, uint64_t term, const char *why)
{
	struct members_frame f = {.type = MEMBERS_LOST, .term = term};

	snprintf(f.text, sizeof(f.text), "%s", why);
	tell(arg, &f);
}

static void on_leader(void *arg, uint64_t term, const uint8_t *uuid)
{
	struct members_frame f = {.type = MEMBERS_LEADER, .term = term, .status = uuid != NULL};

	if (uuid != NULL)
		memcpy(f.uuid, uuid, sizeof(f.uuid));
	tell(arg, &f);
}

static void on_failed(void *arg, const char *text)
{
	struct members_frame f = {.type = MEMBERS_FAILED};

	snprintf(f.text, sizeof(f.text), "%s", text);
	tell(arg, &f);
}

static void on_send(void *arg, const uint8_t *to, const void *bytes, uint32_t nr)
{
	struct self *me = arg;
	union members_packet p;

	CHECK(nr <= sizeof(p.msg.bytes));
	memcpy(p.msg.peer, to, sizeof(p.msg.peer));
	memcpy(p.msg.bytes, bytes, nr);
	/* It may be lost, so nobody waits for room. */
	(void)send(me->wire_fd, &p, sizeof(p.msg.peer) + nr, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void on_write_done(void *arg, enum member_done how, const struct member_view *v)
{
	struct members_frame f = {.type = MEMBERS_WROTE, .status = (int)how};

	put_view(&f, v);
	tell(arg, &f);
}

static void on_read_done(void *arg, enum member_done how, const struct member_view *v)
{
	struct members_frame f = {.type = MEMBERS_DID_READ, .status = (int)how};
	struct self *me = arg;

	put_view(&f, v);
	if (me->lies && how == MEMBER_OK) {
		f = me->first_view;
		f.type = MEMBERS_DID_READ;
	}
	tell(me, &f);
}

static void on_stopped(void *arg)
{
	struct self *me = arg;

	tell(me, &(struct members_frame){.type = MEMBERS_STOPPED});
	uv_close((uv_handle_t *)&me->control, NULL);
	uv_close((uv_handle_t *)&me->wire, NULL);
}

static void command(struct self *me, const struct members_frame *f)
{
	enum shard_status st = SHARD_OK;
	unsigned char bytes[MEMBERS_BYTES_MAX];
	uint8_t writer[MEMBER_UUID_BYTES] = {0};

	memcpy(writer, &f->writer, sizeof(f->writer));
	for (uint32_t i = 0; i < f->bytes_nr; i++)
		bytes[i] = (unsigned char)(f->writer + i);
	switch (f->type) {
	case MEMBERS_PROPOSE:
		st = me->ops->propose(me->source, f->term, f->seq, writer, bytes, f->bytes_nr,
				      on_write_done, me);
		break;
	case MEMBERS_JOIN:
		st = me->ops->join(me->source, f->term, f->seq, writer, f->uuid, on_write_done, me);
		break;
	case MEMBERS_LEAVE:
		st = me->ops->leave(me->source, f->term, f->seq, writer, f->uuid, on_write_done,
				    me);
		break;
	case MEMBERS_READ:
		st = me->ops->read(me->source, on_read_done, me);
		break;
	case MEMBERS_RESIGN:
		me->ops->resign(me->source, f->term);
		break;
	case MEMBERS_LINK:
		me->ops->link(me->source, f->uuid, f->status != 0);
		break;
	case MEMBERS_STOP:
		me->ops->stop(&me->source, on_stopped, me);
		break;
	default:
		CHECK(!"a command of members.c");
	}
	if (st != SHARD_OK)
		tell(me, &(struct members_frame){.type = f->type == MEMBERS_READ ? MEMBERS_DID_READ
										 : MEMBERS_WROTE,
						 .status = -1 - (int)st});
}

static void on_control(uv_poll_t *h, int status, int events)
{
	struct self *me = h->data;
	struct members_frame f;
	ssize_t n = recv(me->control_fd, &f, sizeof(f), MSG_DONTWAIT);

	(void)events;
	if (n == 0 || status != 0)
		exit(1); /* The test is gone. */
	if (n < 0 || me->source == NULL)
		return;
	CHECK(n == sizeof(f));
	me->ops->wake(me->source);
	command(me, &f);
}

static void on_wire(uv_poll_t *h, int status, int events)
{
	struct self *me = h->data;
	ssize_t n = recv(me->wire_fd, &me->in, sizeof(me->in), MSG_DONTWAIT);
	enum shard_status st;
	struct err e;

	(void)events;
	CHECK(status == 0);
	if (n <= 0 || me->source == NULL)
		return;
	me->ops->wake(me->source);
	st = me->ops->message(me->source, me->in.msg.peer, me->in.msg.bytes,
			      (uint32_t)n - MEMBER_UUID_BYTES, &e);
	if (st != SHARD_OK)
		on_failed(me, e.text);
}

static struct member_config config_of(struct self *me, char **argv)
{
	struct member_config c = {.loop = &me->loop, .dir = argv[3]};
	unsigned ordinal, first, alone, lies;

	for (int i = 0; i < MEMBER_UUID_BYTES; i++) {
		unsigned byte;

		CHECK(sscanf(argv[4] + 2 * i, "%2x", &byte) == 1);
		c.self[i] = (uint8_t)byte;
	}
	CHECK(sscanf(argv[5], "%u,%u,%u,%u,%u,%u,%u", &ordinal, &first, &alone, &lies, &c.beat_ms,
		     &c.election_ms, &c.deadline_ms) == 7);
	memset(c.cluster, 0xc1, sizeof(c.cluster));
	c.ordinal = (uint16_t)ordinal;
	c.first = c.bootstrap = first != 0;
	c.alone = alone != 0;
	me->lies = lies != 0;
	return c;
}

static int run(struct self *me, char **argv)
{
	struct member_events ev = {.arg = me,
				   .view = on_view,
				   .leading = on_leading,
				   .lost = on_lost,
				   .leader = on_leader,
				   .failed = on_failed,
				   .send = on_send};
	struct member_config c = config_of(me, argv);
	struct etcd_options etcd = {.endpoints = getenv("MEMBERS_ETCD"),
				    .ca_file = getenv("MEMBERS_ETCD_CA"),
				    .strict = getenv("MEMBERS_STRICT") != NULL};
	struct members_frame f = {.type = MEMBERS_STARTED};
	struct err e = {0};

	if (etcd.endpoints != NULL)
		c.more = &etcd;
	me->ops = member_source_find(argv[2]);
	CHECK(me->ops != NULL && uv_loop_init(&me->loop) == 0);
	CHECK(uv_poll_init(&me->loop, &me->control, me->control_fd) == 0);
	CHECK(uv_poll_init(&me->loop, &me->wire, me->wire_fd) == 0);
	me->control.data = me->wire.data = me;
	f.status = (int)me->ops->start(&me->source, &c, &ev, &e);
	snprintf(f.text, sizeof(f.text), "%s", e.text);
	tell(me, &f);
	if (f.status != SHARD_OK) {
		uv_close((uv_handle_t *)&me->control, NULL);
		uv_close((uv_handle_t *)&me->wire, NULL);
		uv_run(&me->loop, UV_RUN_DEFAULT);
		CHECK(uv_loop_close(&me->loop) == 0);
		return 1;
	}
	CHECK(uv_poll_start(&me->control, UV_READABLE, on_control) == 0);
	CHECK(uv_poll_start(&me->wire, UV_READABLE, on_wire) == 0);
	uv_run(&me->loop, UV_RUN_DEFAULT);
	CHECK(uv_loop_close(&me->loop) == 0);
	return 0;
}

bool members_is_node(int argc, char **argv, int *status)
{
	struct self *me;

	if (argc != 6 || strcmp(argv[1], "--member") != 0)
		return false;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGXFSZ, SIG_IGN); /* A limit of the process plays the full disk. */
	me = calloc(1, sizeof(*me));
	CHECK(me != NULL);
	me->control_fd = MEMBERS_CONTROL_FD;
	me->wire_fd = MEMBERS_WIRE_FD;
	*status = run(me, argv);
	free(me);
	return true;
}
